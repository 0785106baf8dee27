r"""Calls of one shape, so that an example's bits do not depend on how many others are in its batch.

A library may add up the products of a row in another order where a matrix has another number of
rows (one row goes by another routine than two), and take the last few numbers of an array by other
instructions than the rest. A Poisson batch has n or n + 1 examples, as one record is drawn or not:
then all others would be rounded anew, and with weights near the limit of float32 a gradient that is
finite in one batch is not in the other (seen: 1.62 C). So whatever a library rounds is called on
blocks of :data:`EXAMPLES` examples. Zeros fill up the last block, and what becomes of them is cut
off. What is compiled here (:mod:`sordino.training.jit`) goes example by example and needs no
blocks; nor do comparisons, copies and single additions, products and roots, which have one result.

What is assumed of libraries is now less: for calls of one shape, a row's bits depend neither on its
place nor on the values of the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

EXAMPLES, MANY = 32, 128
"""Rows of a block: on a processor, and elsewhere, where a call costs more than its rows."""


def block(like: Tensor) -> int:
    """Examples in a block, where ``like`` lies."""
    return EXAMPLES if like.device.type == "cpu" else MANY


def in_blocks(
    work: Callable[..., Tensor],
    *given: Tensor,
    size: int | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """``work`` of tensors (n, ...), n > 0, by so many rows at a time, always exactly as many.

    ``work`` gives a tensor (size, ...), whose row i is made from the rows i of what it is given.
    ``into`` (n, ...) takes the result, where it is there.

    >>> in_blocks(lambda x: x + len(x), torch.zeros(3), size=2)
    tensor([2., 2., 2.])
    """
    parts = [
        part if into is None else into[start : start + len(part)].copy_(part)
        for start, (part,) in _blocks(lambda *some: (work(*some),), given, size)
    ]
    return into if into is not None else parts[0] if len(parts) == 1 else torch.cat(parts)


def pairs_in_blocks(
    work: Callable[..., tuple[Tensor, Tensor]], *given: Tensor, size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The same where ``work`` gives two tensors."""
    parts = [part for _, part in _blocks(work, given, size)]
    if len(parts) == 1:
        return parts[0][0], parts[0][1]
    return torch.cat([one for one, _ in parts]), torch.cat([other for _, other in parts])


def _blocks(
    work: Callable[..., tuple[Tensor, ...]], given: tuple[Tensor, ...], size: int | None
) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    rows, n = size or block(given[0]), len(given[0])
    for start in range(0, n, rows):
        made = work(*(filled(tensor[start : start + rows], rows) for tensor in given))
        yield start, tuple(part[: n - start] for part in made)


def filled(some: Tensor, rows: int) -> Tensor:
    """``some``, and rows of zeros until there are so many, one after another in memory: libraries
    look at strides, too, even of axes of length one.
    """
    short = rows - len(some)
    if short > 0:
        some = torch.cat([some, some.new_zeros(short, *some.shape[1:])])
    if some.is_contiguous() and 1 not in some.shape:
        return some
    return some.reshape(-1).view(some.shape)
