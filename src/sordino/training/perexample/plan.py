r"""One forward and one backward pass, written out, for modules that are plain sequences.

Autograd would form the weights' gradients once for the whole batch, where they are of no
use, and per-example ones a second time. A sequence of known layers needs no autograd: the
plan runs every stage forward, walks back to the activations, and hands each
layer that owns parameters its output gradient. Nothing is computed twice, and the weights'
gradients are formed once, already clipped.

Only layers that are known to keep examples apart (:mod:`.separable`) are taken. One without
parameters that has no stage of its own is run by autograd, alone. Anything else makes
:func:`compiled` return None, and examples are differentiated by themselves
(:mod:`sordino.training.perexample.general`); so do weights used twice, hooks, and subclasses
of known layers, whose ``forward`` may be anything.

A batch whose buffers exceed the cache by far is worked off in pieces of about 40 MB; the sum is
the same.

Shapes: x (n, ...) with images as (n, channels, height, width) in any memory format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.training.flat import Flat
from sordino.training.loss import Loss
from sordino.training.perexample.layers import (
    Convolution,
    Embedding,
    Flatten,
    Linear,
    Normalisation,
    Opaque,
    Owner,
    Relu,
    Stage,
)
from sordino.training.perexample.separable import alone, known

PIECE_BYTES = 40e6
_OWNERS = (Linear, Convolution, Normalisation, Embedding)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The stages of a module for inputs of one shape.

    Attributes:
        stages: in order; those before ``first`` own no parameters and need no backward step.
        owners: for each stage, itself if it owns parameters.
        first: index of the first stage with parameters.
        most: examples of a piece at most, for memory.
    """

    stages: tuple[Stage, ...]
    owners: tuple[Owner | None, ...]
    first: int
    most: int

    def forward(self, x: Tensor) -> Tensor:
        """Scores of a batch."""
        if x.ndim == 4:
            x = x.permute(0, 2, 3, 1)
        for stage in self.stages:
            x = stage.forward(x)
        return x.permute(0, 3, 1, 2) if x.ndim == 4 else x

    def slopes(
        self, loss: Loss, x: Tensor, y: Tensor, scale: float
    ) -> tuple[Tensor, Iterator[tuple[Owner, Tensor]]]:
        """Return losses (n,) and, last layer first, each owner with its scaled output gradient.

        The backward pass runs as the pairs are drawn, so that an owner finds its gradient still in
        the cache.
        """
        losses, g = loss.slope(self.forward(x), y)
        # some backward moves write into it
        g = (g.permute(0, 2, 3, 1) if g.ndim == 4 else g).contiguous()
        if scale != 1.0:
            g.mul_(scale)
        return losses, self._backward(g)

    def _backward(self, g: Tensor) -> Iterator[tuple[Owner, Tensor]]:
        for index in range(len(self.stages) - 1, self.first - 1, -1):
            owner = self.owners[index]
            if owner is not None:
                yield owner, g
            if index > self.first:
                g = self.stages[index].backward(g)


def plain_layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of nested plain sequences in order; None if one may mix examples."""
    found: list[nn.Module] = []

    def walk(part: nn.Module) -> bool:
        if type(part) is nn.Sequential and known(part):
            # a layer that stands there twice counts twice, which ``children`` would not tell
            return all(child is not None and walk(child) for child in part._modules.values())
        found.append(part)
        return known(part)

    return found if walk(module) else None


def _stage(layer: nn.Module, flat: Flat, like: Tensor, free: bool) -> Stage | None:
    """The stage for a layer; None if there is none.

    Args:
        like: an input of one example, channels last if an image; tokens are integers.
        free: its input may be overwritten.
    """
    axes, tokens = like.ndim - 1, not like.is_floating_point()
    if tokens or isinstance(layer, nn.Embedding):
        if not (tokens and axes == 1 and isinstance(layer, nn.Embedding)):
            return None
        return Embedding(layer, flat) if Embedding.supports(layer) else None
    match layer:
        case nn.ReLU():
            return Relu(flat.weights, free)
        case nn.Flatten(start_dim=1, end_dim=end) if end in (-1, axes):
            return Flatten()
        case nn.Linear():
            return Linear(layer, flat) if axes in (1, 2) else None
        case nn.Conv2d():
            return Convolution(layer, flat) if axes == 3 and Convolution.supports(layer) else None
        case nn.GroupNorm():
            return Normalisation(layer, flat) if axes == 3 else None
        case nn.LayerNorm():
            fits = axes != 3 and len(layer.normalized_shape) <= axes
            return Normalisation(layer, flat) if fits else None
    return Opaque(layer) if alone(layer, 1 + axes) else None


def compiled(flat: Flat, shape: tuple[int, ...], tokens: bool = False) -> Plan | None:
    """The plan of a module for inputs of ``shape`` or ``tokens``; None: the general path."""
    layers = plain_layers(flat.module)
    if layers is None:
        return None
    parameters = [each for layer in layers for each in layer.parameters()]
    if len(set(parameters)) < len(parameters) or None in map(flat.slot, parameters):
        return None
    probe = flat.weights.new_zeros((1, *shape), dtype=torch.int64 if tokens else None)
    if probe.ndim == 4:
        probe = probe.permute(0, 2, 3, 1)
    stages: list[Stage] = []
    owners: list[Owner | None] = []
    numbers = 0
    with torch.no_grad():
        for layer in layers:
            free = bool(stages) and isinstance(stages[-1], Linear | Convolution)
            if (stage := _stage(layer, flat, probe, free)) is None:
                return None
            stages.append(stage)
            owner = stage if isinstance(stage, _OWNERS) else None
            owners.append(owner if any(True for _ in layer.parameters()) else None)
            try:
                probe = stage.forward(probe)
            except (RuntimeError, ValueError, IndexError):
                # a layer that cannot run on one example, or does not fit: not for us to say
                return None
            if len(probe) != 1:
                return None
            numbers += probe.numel() + (stage.kept if isinstance(stage, Convolution) else 0)
    first = next(index for index, owner in enumerate(owners) if owner is not None)
    most = max(1, int(PIECE_BYTES / (numbers * flat.weights.element_size())))
    return Plan(tuple(stages), tuple(owners), first, most)
