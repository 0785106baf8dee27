"""What a study asks its mechanism for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from sordino.entropy import Seeded
from sordino.errors import StudyError
from sordino.mechanism import Asked, Bounded
from sordino.message import Train
from sordino.privacy import Event, Gaussian, NonPrivate
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.training.bench import Examples, Workbench
from sordino.training.local import LocalWork

LOOKED_AT = 512  # public examples from which energies are taken


def mechanism(study: SynchronousStudy, sizes: Sequence[int], bench: Workbench, public: tuple[Tensor, Tensor]) -> Bounded:
    """The mechanism of a calibrated study at the multiplier that it begins with; ``public`` are its validation examples."""
    privacy, method, deviation, bound, largest = study.privacy, study.method, None, None, 1.0
    adaptive, clip = False, privacy.clip
    if isinstance(method, ClientLevel):
        adaptive = method.clipping == "adaptive"
        if adaptive:
            deviation = method.count_noise or privacy.sampling_rate * len(sizes) / 20.0  # Andrew et al. 2021, section 3
        if method.clipping == "proxy":
            clip = proxy_clip(study, method, sizes, bench, public)
        bound = method.learning_rate * method.tau * privacy.clip
        largest = float(max(sizes)) if method.weights == "size" else 1.0
    return privacy.mechanism.make(
        Asked(
            unit=privacy.unit,
            clip=clip,
            noise_multiplier=privacy.noise_multiplier or 0.0,
            parameters=tuple(slot.size for slot in bench.flat.layout),
            energies=partial(_energies, bench, public) if study.data.validation else None,
            counted=privacy.clipped_fraction or adaptive,
            count_deviation=deviation,
            update_bound=bound,
            largest=largest,
        )
    )


def edge_mechanism(study: AsynchronousStudy, bench: Workbench, public: tuple[Tensor, Tensor]) -> Bounded:
    """The mechanism of the edges in the first stage, at the largest multiplier of any.

    No count is released beside: every gradient would pay for it.
    """
    return study.privacy.mechanism.make(
        Asked(
            unit=study.privacy.unit,
            clip=study.privacy.clip,
            noise_multiplier=study.privacy.noise_multiplier or 0.0,
            parameters=tuple(slot.size for slot in bench.flat.layout),
            energies=partial(_energies, bench, public) if study.data.validation else None,
        )
    )


def as_good(true: Event, claimed: Event) -> bool:
    """Whether a release is worth what its form claims."""
    if isinstance(true, Gaussian) and isinstance(claimed, Gaussian):
        return true.noise_multiplier >= claimed.noise_multiplier * (1.0 - 1e-9)
    return true == claimed


def in_words(event: Event) -> str:
    """What a release is worth, in words."""
    match event:
        case Gaussian(noise_multiplier=sigma):
            return f"noise multiplier {sigma:.3g}"
        case NonPrivate(reason=reason):
            return reason
        case _:
            return repr(event)


def proxy_clip(
    study: SynchronousStudy, method: ClientLevel, sizes: Sequence[int], bench: Workbench, public: tuple[Tensor, Tensor]
) -> float:
    """S: the median norm of the first updates of clients made up from public examples, as many each as the median client has."""
    size = min(max(sorted(sizes)[len(sizes) // 2], 1), len(public[1]))
    start, norms = bench.flat.weights.clone(), []
    for index, part in enumerate(range(0, len(public[1]) - size + 1, size)):
        work = LocalWork(
            index=index,
            examples=Examples(public[0][part : part + size], public[1][part : part + size]),
            learning_rate=method.learning_rate,
            batch=method.batch,
            proximal=method.proximal,
            optimizer=method.optimizer,
            bench=bench,
            entropy=Seeded(study.seed),  # round 0 is nobody else's
        )
        moved = work.train(Train(round=0, steps=method.tau, weights=start.cpu().numpy()))
        norms.append(float(torch.linalg.vector_norm(moved)))
    bench.flat.load(start)
    found = statistics.median(norms)
    if not (found > 0 and math.isfinite(found)):
        raise StudyError(
            f"method.clipping 'proxy' found a median update of length {found}: lower method.learning_rate, or set privacy.clip"
        )
    return found


def _energies(bench: Workbench, public: tuple[Tensor, Tensor], measure: Callable[[Tensor], Tensor]) -> list[float]:
    """The mean of ``measure`` over gradients of public examples, each of length one."""
    x, y = public[0][:LOOKED_AT], public[1][:LOOKED_AT]
    found = []
    for part in range(0, len(x), 64):
        rows = bench.clipped.rows(x[part : part + 64], y[part : part + 64])
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        usable = (torch.isfinite(norms) & (norms > 0)).squeeze(1)
        found.append(measure(rows[usable] / norms[usable]))
    return [float(value) for value in torch.cat(found).mean(0)]
