"""The mechanism of a study in rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from sordino.entropy import Seeded
from sordino.errors import StudyError
from sordino.federation.mechanism import energies
from sordino.mechanism import Bounded, NoiseRequest
from sordino.message import Train
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.training.kernels import Examples, ModelKernels
from sordino.training.local import LocalWork


def mechanism(
    study: SynchronousStudy,
    sizes: Sequence[int],
    kernels: ModelKernels,
    public: tuple[Tensor, Tensor],
) -> Bounded:
    """The mechanism of a calibrated study at the multiplier that it begins with; ``public`` are its
    validation examples.
    """
    privacy, method, deviation, bound, largest = study.privacy, study.method, None, None, 1.0
    adaptive, clip = False, privacy.clip
    if isinstance(method, ClientLevel):
        adaptive = method.clipping == "adaptive"
        if adaptive:
            deviation = (
                method.count_noise or privacy.sampling_rate * len(sizes) / 20.0
            )  # Andrew et al. 2021, section 3
        if method.clipping == "proxy":
            clip = proxy_clip(study, method, sizes, kernels, public)
        bound = method.learning_rate * method.tau * privacy.clip
        largest = float(max(sizes)) if method.weights == "size" else 1.0
    return privacy.mechanism.made(
        NoiseRequest(
            unit=privacy.unit,
            clip=clip,
            noise_multiplier=privacy.noise_multiplier or 0.0,
            parameters=tuple(slot.size for slot in kernels.flat.layout),
            energies=partial(energies, kernels, public) if study.data.validation else None,
            counted=privacy.clipped_fraction or adaptive,
            count_deviation=deviation,
            update_bound=bound,
            largest=largest,
        )
    )


def proxy_clip(
    study: SynchronousStudy,
    method: ClientLevel,
    sizes: Sequence[int],
    kernels: ModelKernels,
    public: tuple[Tensor, Tensor],
) -> float:
    """S: the median norm of the first updates of clients made up from public examples, as many each
    as the median client has.
    """
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
    found = statistics.median(norms)
    if not (found > 0 and math.isfinite(found)):
        raise StudyError(
            f"method.clipping 'proxy' found a median update of length {found}: lower "
            "method.learning_rate, or set privacy.clip"
        )
    return found
