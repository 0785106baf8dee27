"""What a study asks its mechanism for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from sordino.learning.bench import Workbench
from sordino.mechanism import Asked, Bounded
from sordino.method.client_level import ClientLevel
from sordino.study import Study

LOOKED_AT = 512  # public examples from which energies are taken


def mechanism(study: Study, sizes: Sequence[int], bench: Workbench, public: tuple[Tensor, Tensor]) -> Bounded:
    """The mechanism of a calibrated study at the multiplier that it begins with; ``public`` are its validation examples."""
    privacy, method, deviation, bound, largest = study.privacy, study.method, None, None, 1.0
    adaptive = False
    if isinstance(method, ClientLevel):
        adaptive = method.clipping == "adaptive"
        if adaptive:
            deviation = method.count_noise or privacy.sampling_rate * len(sizes) / 20.0  # Andrew et al. 2021, section 3
        bound = method.learning_rate * method.tau * privacy.clip
        largest = float(max(sizes)) if method.weights == "size" else 1.0
    return privacy.mechanism.make(
        Asked(
            unit=privacy.unit,
            clip=privacy.clip,
            noise_multiplier=privacy.noise_multiplier or 0.0,
            parameters=tuple(slot.size for slot in bench.flat.layout),
            energies=partial(_energies, bench, public) if study.data.validation else None,
            counted=privacy.clipped_fraction or adaptive,
            count_deviation=deviation,
            update_bound=bound,
            largest=largest,
        )
    )


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
