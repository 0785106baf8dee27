"""Which path a module's gradients take, and why it may be trusted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sordino.learning.flat import Flat
from sordino.learning.loss import Loss
from sordino.learning.perexample.general import Hooked, OneByOne, Unsuitable
from sordino.learning.perexample.plan import Plan, compiled
from sordino.learning.perexample.single import Single
from sordino.learning.perexample.store import Index, Rows, Store

AGREEMENT = 1e-2  # far above what rounding does to a norm, far below what mixing examples does

Fast = Plan | Hooked


class Paths:
    """The paths of one module, found out once for each shape of input.

    Attributes:
        flat: the module.
        loss: its loss.
        slow: the path that is always right.
    """

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self.flat, self.loss = flat, loss
        self.slow = OneByOne(flat, loss)
        self._fast: dict[tuple[int, ...], Fast | None] = {}
        self._trusted: set[tuple[int, ...]] = set()
        self._single = Single.of(flat, loss)
        self._single_trusted = False

    def in_place(self, examples: Store, chosen: Tensor) -> tuple[Single, Rows, Index] | None:
        """The path that reads a batch where it lies, what it lies in and where; None where the batch must be taken out first."""
        single, rows = self._single, examples.rows
        if single is None or rows is None or rows.features != single.features:
            return None
        where: Index = chosen.numpy()  # rows are on a processor, so their indices are
        if where.ndim != 1 or where.dtype != np.int64 or not where.flags.c_contiguous or not where.size:
            return None
        if not self._single_trusted:
            self._single_trusted = True
            if not self._agrees_in_place(single, examples, rows, chosen[:2]):
                self._single = None
                return None
        return single, rows, where

    def find(self, x: Tensor, y: Tensor) -> Fast | None:
        """The fast path for a batch like this one, or None where only the slow one is right."""
        shape = tuple(x.shape[1:])
        if shape not in self._fast:
            self._fast[shape] = self._build(x, shape)
        path = self._fast[shape]
        # A single example cannot be mixed with another, so the first pair is early enough.
        if path is not None and shape not in self._trusted and len(x) > 1:
            if not self._agrees(path, x[:2], y[:2]):
                path = self._fast[shape] = None
            self._trusted.add(shape)
        return path

    def distrust(self, x: Tensor) -> None:
        """Take the slow path for inputs of this shape from now on."""
        self._fast[tuple(x.shape[1:])] = None

    def _build(self, x: Tensor, shape: tuple[int, ...]) -> Fast | None:
        plan = compiled(self.flat, shape) if x.is_floating_point() else None
        if plan is not None:
            return plan
        try:
            return Hooked(self.flat)
        except Unsuitable:
            return None

    def _agrees(self, path: Fast, x: Tensor, y: Tensor) -> bool:
        """Whether norms and sum of the fast path are those of examples differentiated alone."""
        y = self._telling(x, y)
        try:
            _, pairs = path.pairs(self.loss, x, y, 1.0)
        except Unsuitable:
            return False
        squared = torch.zeros(len(x), dtype=self.flat.weights.dtype, device=x.device)
        total = torch.zeros_like(self.flat.weights)
        for kernel, a, g in pairs:
            squared += kernel.collect(a, g)
            kernel.write(torch.ones_like(squared), total, False)
        try:
            _, rows = self.slow.loop(x, y)
        except (RuntimeError, ValueError):
            return False  # an example alone is nothing to this module: it must be one that mixes them
        return _same(squared.sqrt(), total, rows)

    def _agrees_in_place(self, single: Single, examples: Store, rows: Rows, chosen: Tensor) -> bool:
        total = torch.empty_like(self.flat.weights)
        with torch.no_grad():
            x, y = examples.take(chosen)
            y = self._telling(x, y)
            labels = rows.labels.copy()
            labels[chosen.numpy()] = y.numpy()
            seen = single.clipped(replace(rows, labels=labels), chosen.numpy(), math.inf, total)  # nothing is cut
            return _same(seen.norms, total, self.slow.loop(x, y)[1])

    def _telling(self, x: Tensor, y: Tensor) -> Tensor:
        """Labels to compare paths by: of classes, the one that the model thinks least of.

        Where it is sure of the true label, a gradient is the rounding of p - 1, and no two right paths agree.
        """
        scores = self.flat.module(x)
        classes = y.ndim == 1 and y.dtype == torch.int64 and scores.shape[:1] == y.shape and scores.ndim == 2
        return scores.argmin(1) if classes else y


def _same(seen: Tensor, total: Tensor, rows: Tensor) -> bool:
    """Whether norms (n,) and sum (d,) are those of gradients (n, d)."""
    norms = torch.linalg.vector_norm(rows, dim=1)
    if not bool(torch.isfinite(norms).all()):
        return True  # nothing to compare with; examples like these are left out of every sum
    tiny = torch.finfo(norms.dtype).tiny ** 0.5
    same_norms = bool(((seen - norms).abs() <= AGREEMENT * norms + tiny).all())
    return same_norms and float((total - rows.sum(0)).norm()) <= AGREEMENT * float(norms.sum()) + tiny
