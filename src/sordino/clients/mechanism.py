"""What studies ask their mechanisms for, and what these are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.privacy import Event, Gaussian, NonPrivate

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.training.client import ModelKernels

LOOKED_AT = 512  # public examples from which energies are taken


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What a mechanism may be shaped by before a run: a model, and public examples.

    Attributes:
        parameters: how many numbers each parameter of the model has, in the vector's order.
        look: gives the kernels, and public examples as tensors (n, ...) and (n,). A plan makes them
            only for a mechanism that asks.
    """

    parameters: tuple[int, ...]
    look: Callable[[], tuple[ModelKernels, tuple[Tensor, Tensor]]]

    @classmethod
    def of(cls, kernels: ModelKernels, public: tuple[Tensor, Tensor]) -> Trial:
        """With kernels that are there already."""
        sizes = tuple(slot.size for slot in kernels.flat.layout)
        return cls(sizes, lambda: (kernels, public))

    def energies(self, measure: Callable[[Tensor], Tensor]) -> Sequence[float]:
        """See :func:`energies`."""
        return energies(*self.look(), measure)


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


def energies(
    kernels: ModelKernels, public: tuple[Tensor, Tensor], measure: Callable[[Tensor], Tensor]
) -> list[float]:
    """The mean of ``measure`` over gradients of public examples, each of length one."""
    import torch

    x, y = public[0][:LOOKED_AT], public[1][:LOOKED_AT]
    found = []
    for part in range(0, len(x), 64):
        rows = kernels.clipped.rows(x[part : part + 64], y[part : part + 64])
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        usable = (torch.isfinite(norms) & (norms > 0)).squeeze(1)
        found.append(measure(rows[usable] / norms[usable]))
    return [float(value) for value in torch.cat(found).mean(0)]
