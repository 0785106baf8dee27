"""The mechanism of a study in rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Train
from sordino.clients.mechanism import LOOKED_AT, Trial, as_good, in_words
from sordino.core.plan import Plan
from sordino.mechanisms import NoiseRequest
from sordino.privacy import Gaussian, accountant
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.regimes.synchronous.methods.fixed import Clipped
from sordino.regimes.synchronous.plan import spent_by
from sordino.regimes.synchronous.study import SynchronousStudy

if TYPE_CHECKING:
    from sordino.mechanisms import Bounded


def mechanism(study: SynchronousStudy, sizes: Sequence[int], trial: Trial) -> Bounded:
    """The mechanism of a calibrated study at its first multiplier, shaped by public examples."""
    privacy, method, deviation, bound, largest = study.privacy, study.method, None, None, 1.0
    adaptive, clip = False, privacy.clip
    if isinstance(method, ClientLevel):
        adaptive = method.clipping == "adaptive"
        if adaptive:
            # Andrew et al. 2021, section 3
            deviation = method.count_noise or privacy.sampling_rate * len(sizes) / 20.0
        if method.clipping == "proxy":
            clip = proxy_clip(study, method, sizes, trial)
        bound = method.learning_rate * method.tau * privacy.clip
        largest = float(max(sizes)) if method.weights == "size" else 1.0
    made = privacy.mechanism.made(
        NoiseRequest(
            unit=privacy.unit,
            clip=clip,
            noise_multiplier=privacy.noise_multiplier or 0.0,
            parameters=trial.parameters,
            energies=trial.energies if study.data.validation else None,
            counted=(privacy.clipped_fraction or adaptive) and privacy.noise == "own",
            count_deviation=deviation,
            update_bound=bound,
            largest=largest,
        )
    )
    if isinstance(method, Clipped) and method.clipping == "proxy":
        return made.scaled(gradient_clip(made, trial), made.noise_multiplier)
    return made


def gradient_clip(made: Bounded, trial: Trial) -> float:
    """C: the median norm of public examples' gradients at the first model.

    It is the norm of the mechanism, in which gradients will be clipped.
    """
    import torch

    from sordino.training.dpsgd import bound_of

    kernels, (x, y) = trial.look()
    out = torch.empty_like(kernels.flat.weights, dtype=torch.float64)
    seen = kernels.clipped(x[:LOOKED_AT], y[:LOOKED_AT], bound_of(made), out)
    return _median(seen.norms.tolist(), "gradient")


def proxy_clip(
    study: SynchronousStudy, method: ClientLevel, sizes: Sequence[int], trial: Trial
) -> float:
    """S: the median norm of first updates, of median-sized clients made of public examples."""
    import torch

    from sordino.training.client import Examples
    from sordino.training.local import LocalWork

    kernels, public = trial.look()
    size = min(max(sorted(sizes)[len(sizes) // 2], 1), len(public[1]))
    start, norms = kernels.flat.weights.clone(), []
    for index, part in enumerate(range(0, len(public[1]) - size + 1, size)):
        work = LocalWork(
            index=index,
            examples=Examples(public[0][part : part + size], public[1][part : part + size]),
            learning_rate=method.learning_rate,
            batch=method.batch,
            proximal=method.proximal,
            optimizer=method.optimizer,
            kernels=kernels,
            entropy=Seeded(study.seed),  # round 0 is nobody else's
        )
        moved = work.train(Train(round=0, steps=method.tau, weights=start.cpu().numpy()))
        norms.append(float(torch.linalg.vector_norm(moved)))
    kernels.flat.load(start)
    return _median(norms, "update")


def _median(norms: Sequence[float], of: str) -> float:
    found = statistics.median(norms)
    if not (found > 0 and math.isfinite(found)):
        raise StudyError(
            f"method.clipping 'proxy' found a median {of} of length {found}: "
            + (
                "lower method.learning_rate, or set privacy.clip"
                if of == "update"
                else "choose other public examples or another model, or leave clipping out"
            )
        )
    return found


def announced(priced: Plan, study: SynchronousStudy, noise: Bounded, largest: int) -> Plan:
    """The plan with what a literal form claims beside what it gives."""
    privacy, true, where = study.privacy, noise.event(), "privacy.mechanism.form"
    if isinstance(study.method, ClientLevel) and not study.method.aggregated:
        true, where = (
            Gaussian(noise_multiplier=priced.noise_multiplier / (largest * study.method.tau)),
            "method.form",
        )
    if (
        as_good(true, privacy.mechanism.event(priced.noise_multiplier))
        or priced.used is None
        or privacy.delta is None
    ):
        return priced
    spent = spent_by(study, true, priced.noise_multiplier, privacy.sampling_rate, priced.used)
    return priced.exposed(
        where, accountant(privacy.accountant).epsilon(spent, privacy.delta), in_words(true)
    )
