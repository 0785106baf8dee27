r"""Which path a module's gradients take, why it may be trusted, and what it costs.

A path follows from the module's structure and from the shapes and types of inputs and labels. It
never follows from data: one example that could move a batch to another path would change how all
others are rounded.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sordino.training.flat import Flat
from sordino.training.loss import Loss, cross_entropy
from sordino.training.outline import FAST, SINGLE, Path
from sordino.training.perexample.general import OneByOne
from sordino.training.perexample.plan import Plan, compiled
from sordino.training.perexample.single import Single
from sordino.training.perexample.store import Index, Rows, Store


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

    def in_place(self, examples: Store, chosen: Tensor) -> tuple[Single, Rows, Index] | None:
        """The path that reads a batch in place, its store and position; None: it must be copied."""
        single, rows = self._single, examples.rows
        if single is None or rows is None or rows.features != single.features or not len(chosen):
            return None
        where: Index = chosen.numpy()  # rows are on a processor, so their indices are
        if where.ndim != 1 or where.dtype != np.int64 or not where.flags.c_contiguous:
            return None
        return single, rows, where

    def here(self, x: Tensor, y: Tensor) -> tuple[Single, Rows, Index] | None:
        """The same for model input ``x`` (n, ...), ``y`` (n,); None where it does not serve."""
        if self._single is None or x.dtype != torch.float32:
            return None
        rows = Rows.of(x, y)
        if rows is None or rows.features != self._single.features:
            return None
        return self._single, rows, np.arange(len(y))

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
