r"""An exponentially weighted window of past gradients, for modules of any kind.

    S_t = sum_{i<l} alpha^i g_{t-i} = alpha S_{t-1} + g_t - alpha^l g_{t-l},   W = sum_{i<l} alpha^i

(Aydore, Zhu and Foster 2019, Definition 2.) The recursion costs a few passes over the parameters,
whatever l is. Each event leaves a rounding error in S; every 32 l events S is added up anew from
the gradients themselves, which costs a thirtieth of a pass an event, so no error is older than
that. The loop keeps factors instead (:mod:`~sordino.regimes.vertical.loop`).

Shapes: gradients and weights (d,); the window (l, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.training.flat import Flat, Slot

FRESH = 32  # windows after which the sum is added up anew


def total(length: int, alpha: float) -> float:
    """W."""
    return float(sum(alpha**i for i in range(length)))


class Window:
    """The window over one participant's module on a processor, and the steps that follow from it.

    Gradients are kept as autograd gave them, one array for each parameter in the order of the flat
    vector: nobody writes to them.

    ``whole`` is what sums are divided by where it is not W; with ``fades``, the step of event t is
    divided by sqrt(t) as well.

    Attributes:
        seen: number of the last event that the window knows.
        square: ||S / W||^2 after it.
    """

    def __init__(
        self,
        flat: Flat,
        length: int,
        alpha: float,
        rate: float,
        *,
        whole: float | None = None,
        fades: bool = False,
    ) -> None:
        whole = total(length, alpha) if whole is None else whole
        self._length, self._alpha, self._fades = length, alpha, fades
        self._step, self._norm = rate / whole, whole**-2
        self._keep, self._drop = (alpha, alpha**length) if length > 1 else (0.0, 0.0)
        self._slots = flat.layout
        self._sum, self._weights = torch.zeros(flat.dim), self._parts(flat.weights)
        self._sums, self._zeros = self._parts(self._sum), self._parts(torch.zeros(flat.dim))
        self._ring: list[list[Tensor]] = [self._zeros] * length
        self.seen, self.square = 0, 0.0

    def learn(
        self,
        event: int,
        gradients: Sequence[Tensor | None],
        cover: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Enqueue an event's gradient by parameter (None: zero), through ``cover`` (d,); step.

        Events between the last one and this had no gradient.
        """
        self.pass_by(event - 1)
        fresh = [
            _stored(slot, g, zero)
            for slot, g, zero in zip(self._slots, gradients, self._zeros, strict=True)
        ]
        if cover is not None:
            fresh = self._parts(cover(torch.cat(fresh)))
        step = self._step / math.sqrt(event) if self._fades else self._step
        self._move(event, fresh)
        for weights, part in zip(self._weights, self._sums, strict=True):
            weights.sub_(part, alpha=step)

    def pass_by(self, event: int) -> None:
        """Enqueue zeros up to an event that brought no gradient."""
        if event - self.seen >= self._length:  # nothing of what is there will be left
            self._ring = [self._zeros] * self._length
            self._sum.zero_()
            self.seen, self.square = event, 0.0
        while self.seen < event:
            self._move(self.seen + 1, self._zeros)

    def _move(self, event: int, fresh: list[Tensor]) -> None:
        """S <- alpha S + fresh - alpha^l gone, and its square."""
        place, square = event % self._length, 0.0
        for part, gone, new in zip(self._sums, self._ring[place], fresh, strict=True):
            part.mul_(self._keep).add_(new)
            if self._length > 1:
                part.sub_(gone, alpha=self._drop)
            square += float(part.square().sum())  # a dot's bits depend on where numbers lie
        self._ring[place] = fresh
        self.seen, self.square = event, square * self._norm
        if self._length > 1 and event % (FRESH * self._length) == 0:
            self._sum.zero_()
            for age in range(self._length):
                for part, gradient in zip(
                    self._sums, self._ring[(event - age) % self._length], strict=True
                ):
                    part.add_(gradient, alpha=self._alpha**age)

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Each parameter's stretch of a vector (d,)."""
        return [vector[slot.offset : slot.offset + slot.size] for slot in self._slots]

    def pack(self) -> dict[str, np.ndarray[Any, Any]]:
        """Gradients and sum, as they are, and the event that they are as of."""
        ring = torch.stack([torch.cat(row) for row in self._ring])
        return {
            "ring": ring.numpy(), "sum": self._sum.numpy().copy(), "seen": np.array([self.seen])
        }  # fmt: skip

    def unpack(self, kept: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """What :meth:`pack` gave."""
        self._ring = [self._parts(torch.from_numpy(row.copy())) for row in kept["ring"]]
        self._sum.copy_(torch.from_numpy(kept["sum"]))
        self.seen = int(kept["seen"][0])


def _stored(slot: Slot, gradient: Tensor | None, zero: Tensor) -> Tensor:
    """A gradient as the flat vector keeps its parameter."""
    if gradient is None:
        return zero
    ordered = gradient.permute(0, 2, 3, 1) if len(slot.shape) == 4 else gradient
    return ordered.contiguous().view(-1)
