r"""Contributions as they come, in pieces, before anybody has written them out.

The gradient of a linear layer for one example is an outer product of two short vectors, and
that of a convolution lies turned in memory. Written out as rows (n, d) they cost more than
many a norm that is wanted of them; a mechanism that can take its norm from the pieces
(:class:`~sordino.mechanism.gaussian.Piecewise`) is handed these.

A piece holds, for n contributions, O lines of K numbers: line o has the numbers offset + o K
to offset + (o + 1) K of the vector.

Shapes: rows (n, d).

>>> outer = Outer(offset=1, left=torch.tensor([[1.0, 2.0]]), right=torch.tensor([[3.0, 4.0, 5.0]]))
>>> turned = Turned(offset=8, values=torch.tensor([[[1.0, 3.0], [2.0, 4.0]]]))
>>> pieces = Pieces.of(1, 12, [turned, outer, Rows(offset=7, values=torch.tensor([[9.0]]))])
>>> pieces.rows(slice(None), torch.empty(1, 12)).tolist()
[[0.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 9.0, 1.0, 2.0, 3.0, 4.0]]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Values:
    offset: int
    values: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What it is made of, contributions first."""
        return (self.values,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows(_Values):
    """Numbers in their order: one line.

    Attributes:
        offset: of the first in the vector.
        values: (n, K).
    """

    @property
    def lines(self) -> tuple[int, int]:
        """O and K."""
        return 1, self.values.shape[1]

    def write(self, part: slice, place: Tensor) -> None:
        """These contributions into ``place`` (k, O, K)."""
        place.copy_(self.values[part].unsqueeze(1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turned(_Values):
    """Lines side by side: values[:, k, o] is number k of line o.

    Attributes:
        offset: of the first number in the vector.
        values: (n, K, O).
    """

    @property
    def lines(self) -> tuple[int, int]:
        """O and K."""
        return self.values.shape[2], self.values.shape[1]

    def write(self, part: slice, place: Tensor) -> None:
        """These contributions into ``place`` (k, O, K)."""
        place.copy_(self.values[part].transpose(1, 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outer:
    """Multiples of one line: left[:, o] right[:, k] is number k of line o.

    Attributes:
        offset: of the first number in the vector.
        left: (n, O).
        right: (n, K).
    """

    offset: int
    left: Tensor
    right: Tensor

    @property
    def lines(self) -> tuple[int, int]:
        """O and K."""
        return self.left.shape[1], self.right.shape[1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What it is made of, contributions first."""
        return self.left, self.right

    def write(self, part: slice, place: Tensor) -> None:
        """These contributions into ``place`` (k, O, K)."""
        torch.mul(self.left[part].unsqueeze(2), self.right[part].unsqueeze(1), out=place)


Piece = Rows | Turned | Outer


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """n contributions of d numbers each. Numbers that lie in no piece are zero.

    Attributes:
        count: n.
        dimension: d.
        parts: by offset; they do not overlap.
    """

    count: int
    dimension: int
    parts: tuple[Piece, ...]

    @classmethod
    def of(cls, count: int, dimension: int, parts: Iterable[Piece]) -> Pieces:
        """Pieces in any order."""
        return cls(count, dimension, tuple(sorted(parts, key=lambda piece: piece.offset)))

    def rows(self, part: slice, out: Tensor) -> Tensor:
        """These contributions written out into ``out`` (k, d), which is returned."""
        at = 0
        for piece in self.parts:
            outputs, inner = piece.lines
            out[:, at : piece.offset].zero_()
            at = piece.offset + outputs * inner
            piece.write(part, out[:, piece.offset : at].view(len(out), outputs, inner))
        out[:, at:].zero_()
        return out
