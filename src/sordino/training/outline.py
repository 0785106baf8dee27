"""Outlines of the built-in models, before any is made: their sizes, and how gradients of single
examples are computed. A plan asks for no more, and need not wait for torch.

Reference: the layers are those of :mod:`sordino.training.models`, to which a test holds them.

>>> found = outline("cnn", (1, 28, 28), 10)
>>> found.dim, found.path.name
(26010, 'layer by layer')
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """A way to compute the per-example gradients of a module.

    Attributes:
        name: in a few words.
        why: it is this one.
        cost: against plain training, in words.
    """

    name: str
    why: str
    cost: str


SINGLE = Path(
    "compiled, in place", "one linear layer", "about as much as plain training by a library"
)
FAST = Path(
    "layer by layer",
    "a plain sequence of layers known to keep examples apart",
    "about twice plain training",
)
MAPPED = Path(
    "vmap, example by example",
    "not a plain sequence of layers known to keep examples apart",
    "a few times plain training, and memory for the gradients of 64 MB of examples",
)
RECORDED = Path(
    "one example at a time, recorded",
    "vmap is not known to keep examples apart in this module",
    "a forward and a backward pass for every example: ten to a hundred times plain training",
)


@dataclass(frozen=True, slots=True)
class Outline:
    """A model as a plan needs it.

    Attributes:
        parameters: how many numbers each parameter has, in the order of
            :class:`~sordino.training.flat.Flat`.
        path: of gradients of single examples.
    """

    parameters: tuple[int, ...]
    path: Path

    @property
    def dim(self) -> int:
        """d, the number of trainable parameters."""
        return sum(self.parameters)


SMALLEST = {
    "cnn": 15,
    "cnn-large": 16,
    "cifar-cnn": 8,
    "cnn-small": 16,
}
"""Pixels a side that leave something after the last pool."""


def outline(name: str, shape: Shape, classes: int) -> Outline | None:
    """A built-in model for examples of ``shape``; None for other models, or one that does not
    fit.
    """
    if name not in _KNOWN or min(shape, default=0) < 1 or classes < 1:
        return None
    if name in SMALLEST and (len(shape) != 3 or min(shape[1:]) < SMALLEST[name]):
        return None
    parameters = _KNOWN[name](shape, classes)
    alone = len(parameters) == 2 and name != "linear"  # squares have no compiled path
    return Outline(tuple(parameters), SINGLE if alone else FAST)


def _linear(*widths: int) -> list[int]:
    """Weights and biases of linear layers between these widths."""
    found = []
    for inputs, outputs in itertools.pairwise(widths):
        found += [inputs * outputs, outputs]
    return found


@dataclass(frozen=True, slots=True)
class _Conv:
    """A convolution and the pool behind it; pixels."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    pool: int = 2

    def side(self, pixels: int) -> int:
        """Return the pixels that are left of a side; all pools are 2 wide."""
        after = (pixels + 2 * self.padding - self.kernel) // self.stride + 1
        return (after - 2) // self.pool + 1


def _convolutional(layers: Sequence[_Conv], *widths: int) -> Callable[[Shape, int], Sequence[int]]:
    """Convolutions, then linear layers of these hidden widths."""

    def parameters(shape: Shape, classes: int) -> Sequence[int]:
        channels, height, width = shape
        found: list[int] = []
        for each in layers:
            found += [channels * each.channels * each.kernel**2, each.channels]
            channels, height, width = each.channels, each.side(height), each.side(width)
        return [*found, *_linear(channels * height * width, *widths, classes)]

    return parameters


_KNOWN: dict[str, Callable[[Shape, int], Sequence[int]]] = {
    "logistic": lambda shape, classes: _linear(math.prod(shape), classes),
    "svm": lambda shape, classes: _linear(math.prod(shape), classes),
    "linear": lambda shape, classes: _linear(math.prod(shape), classes),
    "mlp": lambda shape, classes: _linear(math.prod(shape), 200, classes),
    "cnn": _convolutional((_Conv(16, 8, 2, 3, 1), _Conv(32, 4, 2, 0, 1)), 32),
    "cnn-large": _convolutional((_Conv(32, 5), _Conv(64, 5)), 512),
    "cifar-cnn": _convolutional(tuple(_Conv(n, 3, 1, 1) for n in (32, 64, 128)), 192),
    "cnn-small": _convolutional((_Conv(10, 5), _Conv(10, 5))),
}
NAMES = tuple(_KNOWN)
