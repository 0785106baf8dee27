"""Outlines of the built-in models, before any is made: their sizes, and how gradients of single
examples are computed. A plan asks for no more, and need not wait for torch.

:mod:`sordino.training.models` makes them by the same designs.

>>> found = outline("cnn", (1, 28, 28), 10)
>>> found.dim, found.path.name
(26010, 'layer by layer')
"""

from __future__ import annotations

import itertools
import math
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


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, a rectifier and a pool; all pools are 2 wide.

    Attributes:
        channels: of its output.
        kernel, stride, padding: in pixels.
        pool: stride of the pool, in pixels.
    """

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    pool: int = 2

    def side(self, pixels: int) -> int:
        """Return the pixels that are left of a side."""
        after = (pixels + 2 * self.padding - self.kernel) // self.stride + 1
        return (after - 2) // self.pool + 1


@dataclass(frozen=True, slots=True)
class Design:
    """The layers of a built-in model: convolutions, then linear layers, rectified in between.

    Attributes:
        convolutions: in order.
        hidden: widths of the linear layers but the last.
        smallest: pixels a side that leave something after the last pool; 0 for any shape.
    """

    convolutions: tuple[Convolution, ...] = ()
    hidden: tuple[int, ...] = ()
    smallest: int = 0

    def fits(self, shape: Shape) -> bool:
        """Return whether it takes examples of ``shape``."""
        if not self.convolutions:
            return True
        return len(shape) == 3 and min(shape[1:]) >= self.smallest

    def widths(self, shape: Shape, classes: int) -> tuple[int, ...]:
        """Return the widths before, between and after the linear layers."""
        features = math.prod(shape)
        if self.convolutions:
            _, height, width = shape
            for each in self.convolutions:
                height, width = each.side(height), each.side(width)
            features = self.convolutions[-1].channels * height * width
        return features, *self.hidden, classes


DESIGNS = {
    "logistic": Design(),
    "svm": Design(),
    "linear": Design(),
    "mlp": Design(hidden=(200,)),
    "cnn": Design((Convolution(16, 8, 2, 3, 1), Convolution(32, 4, 2, 0, 1)), (32,), 15),
    "cnn-large": Design((Convolution(32, 5), Convolution(64, 5)), (512,), 16),
    "cifar-cnn": Design(tuple(Convolution(n, 3, 1, 1) for n in (32, 64, 128)), (192,), 8),
    "cnn-small": Design((Convolution(10, 5), Convolution(10, 5)), (), 16),
}
NAMES = tuple(DESIGNS)


def outline(name: str, shape: Shape, classes: int) -> Outline | None:
    """Return a built-in model for examples of ``shape``; None for other models, or one that does
    not fit.
    """
    design = DESIGNS.get(name)
    if design is None or min(shape, default=0) < 1 or classes < 1 or not design.fits(shape):
        return None
    parameters: list[int] = []
    channels = shape[0]
    for each in design.convolutions:
        parameters += [channels * each.channels * each.kernel**2, each.channels]
        channels = each.channels
    for inputs, outputs in itertools.pairwise(design.widths(shape, classes)):
        parameters += [inputs * outputs, outputs]
    alone = len(parameters) == 2 and name != "linear"  # squares have no compiled path
    return Outline(tuple(parameters), SINGLE if alone else FAST)
