"""Which mechanism a study's noise is, and what its examples or updates are bounded in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sordino import study as studies
from sordino.errors import StudyError
from sordino.learning.bench import Workbench
from sordino.learning.flat import Flat
from sordino.mechanism import Bounded, CountedGaussian, Gaussian
from sordino.mechanism.haar import Basis, Groups, HaarGaussian, optimal, paper, uniform
from sordino.method.client_level import ClientLevel
from sordino.study import Study

LOOKED_AT = 512  # public examples from which energies are taken


def mechanism(study: Study, sizes: Sequence[int], bench: Workbench, public: tuple[torch.Tensor, torch.Tensor]) -> Bounded:
    """The mechanism of a calibrated study at the multiplier that it begins with; ``public`` are its validation examples."""
    privacy, noise = study.privacy, study.privacy.mechanism
    sigma = privacy.noise_multiplier or 0.0
    if isinstance(noise, studies.HaarNoise):
        return _haar(study, noise, sigma, sizes, bench, public)
    if isinstance(study.method, ClientLevel) and study.method.clipping == "adaptive":
        return _counting(study, sigma, len(sizes))
    return (CountedGaussian if privacy.clipped_fraction else Gaussian)(clip=privacy.clip, noise_multiplier=sigma)


def _counting(study: Study, sigma: float, clients: int) -> CountedGaussian:
    """A mechanism whose count is good enough to steer by."""
    assert isinstance(study.method, ClientLevel)
    deviation = study.method.count_noise or study.privacy.sampling_rate * clients / 20.0  # Andrew et al. 2021, section 3
    share = (sigma / (2.0 * deviation)) ** 2
    if share >= 1.0:
        raise StudyError(
            f"method.count_noise = {deviation:g} clients leaves nothing of noise_multiplier = {sigma:g} for the updates;"
            f" it must be above {sigma / 2.0:g}"
        )
    return CountedGaussian(clip=study.privacy.clip, noise_multiplier=sigma, share=share)


def _haar(
    study: Study, noise: studies.HaarNoise, sigma: float, sizes: Sequence[int], bench: Workbench, public: tuple[torch.Tensor, torch.Tensor]
) -> HaarGaussian:
    clip, basis = study.privacy.clip, basis_of(bench.flat, noise.blocks)
    if noise.form == "sound":
        return HaarGaussian.weighted(clip=clip, noise_multiplier=sigma, basis=basis, weights=_weights(noise, basis, clip, bench, public))
    if study.privacy.unit == "sample":
        return HaarGaussian.literal(clip=clip, noise_multiplier=sigma, basis=basis, discount=noise.discount)
    assert isinstance(study.method, ClientLevel)
    largest = max(sizes) if study.method.weights == "size" else 1
    return HaarGaussian.literal_server(
        clip=clip,
        noise_multiplier=sigma,
        basis=basis,
        bound=update_bound(study),
        weight=largest,
        expected=largest,
        discount=noise.discount,
    )


def update_bound(study: Study) -> float:
    """S of algorithm 2, where only gradients are clipped: tau steps of at most eta C each."""
    assert isinstance(study.method, ClientLevel)
    return study.method.learning_rate * study.method.tau * study.privacy.clip


def basis_of(flat: Flat, blocks: str) -> Basis:
    """One transform over all parameters, or one for each."""
    return Basis.flat(flat.dim) if blocks == "flat" else Basis.of(slot.size for slot in flat.layout)


def _weights(noise: studies.HaarNoise, basis: Basis, clip: float, bench: Workbench, public: tuple[torch.Tensor, torch.Tensor]) -> Groups:
    match noise.weights:
        case "uniform":
            return uniform(basis)
        case "paper":
            found = paper(basis)
            scale = max(found)  # so that no contribution is clipped harder than C in the plain norm would
            return tuple(w / scale for w in found)
        case "optimal":
            x, y = public[0][:LOOKED_AT], public[1][:LOOKED_AT]
            energies = torch.zeros(basis.groups, dtype=torch.float64)
            for part in range(0, len(x), 64):
                rows = bench.clipped.rows(x[part : part + 64], y[part : part + 64])
                norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
                rows = torch.where(torch.isfinite(norms) & (norms > 0), rows / norms.clamp_min(1e-30), torch.zeros(()))
                energies += basis.energies(rows).sum(0)
            return optimal(energies.tolist(), basis.sizes, exponent=noise.exponent)
