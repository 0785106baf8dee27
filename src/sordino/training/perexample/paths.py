r"""Which path a module's gradients take, why it may be trusted, and what it costs.

A path follows from the module's structure and from the shapes and types of inputs and labels. It
never follows from data: one example that could move a batch to another path would change how all
others are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sordino.training.flat import Flat
from sordino.training.loss import Loss, cross_entropy
from sordino.training.outline import FAST, SINGLE, Path
from sordino.training.perexample.general import OneByOne
from sordino.training.perexample.plan import Plan, compiled
from sordino.training.perexample.single import Single


class Store(Protocol):
    """A client's examples ``x`` (n, ...), with labels ``y`` (n,); bytes are pixels."""

    @property
    def x(self) -> Tensor: ...

    @property
    def y(self) -> Tensor: ...

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the examples with these indices (b,), as model input, and their labels."""
        ...


@dataclass(frozen=True, slots=True)
class Given:
    """Examples as model input."""

    x: Tensor
    y: Tensor

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Store`."""
        if len(chosen) == len(self.y):  # all of them, in order
            return self.x, self.y
        return self.x.index_select(0, chosen), self.y.index_select(0, chosen)


def path_of(
    flat: Flat, shape: tuple[int, ...], loss: Loss = cross_entropy, tokens: bool = False
) -> Path:
    """The path of a module for examples of ``shape``, numbers or ``tokens``, with class labels.

    Raises:
        StudyError: if a forward pass changes the module's buffers.
    """
    if not tokens and Single.of(flat, loss) is not None:
        return SINGLE
    if compiled(flat, shape, tokens) is not None:
        return FAST
    x = flat.weights.new_zeros((1, *shape), dtype=torch.int64 if tokens else None)
    return OneByOne(flat, loss).path(x, torch.zeros(1, dtype=torch.int64, device=x.device))


class Paths:
    """The paths of one module, found out once for each shape of input.

    Attributes:
        flat: the module.
        loss: its loss.
        slow: the path for every module.
    """

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self.flat, self.loss = flat, loss
        self.slow = OneByOne(flat, loss)
        self._fast: dict[tuple[tuple[int, ...], bool], Plan | None] = {}
        self._single = Single.of(flat, loss)

    def in_place(self, examples: Store, chosen: Tensor) -> Single | None:
        """The path that reads a batch in place; None: it must be copied."""
        single = self._single
        if single is None or not len(chosen) or not single.reads(examples.x, examples.y):
            return None
        if isinstance(examples, Given) and examples.x.dtype == torch.uint8:
            return None  # the model's input are bytes
        return single if chosen.ndim == 1 and chosen.dtype == torch.int64 else None

    def find(self, x: Tensor) -> Plan | None:
        """The fast path for batches like this one, or None where examples go one by one."""
        key = tuple(x.shape[1:]), x.is_floating_point()
        if key not in self._fast:
            tokens = x.dtype in (torch.int64, torch.int32)
            self._fast[key] = (
                compiled(self.flat, key[0], tokens)
                if tokens or x.dtype == self.flat.weights.dtype
                else None
            )
        return self._fast[key]
