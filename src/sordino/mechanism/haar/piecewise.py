"""Energies of Haar coefficients of contributions in pieces, most of which are never written out; see :mod:`.split`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.mechanism.haar import pyramids
from sordino.mechanism.haar.split import Place, Split, split
from sordino.mechanism.haar.transform import layout
from sordino.mechanism.pieces import Outer, Piece, Pieces

Energies = NDArray[np.float64]


def energies(pieces: Pieces, blocks: tuple[tuple[int, int], ...], groups: int) -> Energies | None:
    """Sums of squared coefficients (n, groups) in float64 of pieces; None where rows would do as well, or are the only way."""
    if not all(one.dtype == torch.float32 and one.is_cpu for piece in pieces.parts for one in piece.tensors):
        return None
    found = split(blocks, tuple(_place(piece) for piece in pieces.parts))
    return None if found is None else _energies(pieces, found, blocks, groups)


def _array(one: Tensor) -> NDArray[np.float32]:
    flat = one if one.ndim == 2 else one.flatten(1)
    return flat.detach().contiguous().numpy()


def _place(piece: Piece) -> Place:
    return Place(piece.offset, *piece.lines)


def _energies(pieces: Pieces, found: Split, blocks: tuple[tuple[int, int], ...], groups: int) -> Energies:
    n, depth = pieces.count, found.depth
    arrays = [[_array(one) for one in piece.tensors] for piece in pieces.parts]
    dense, coarse = np.empty((n, found.written), np.float32), np.empty((n, found.groups), np.float32)
    fine, out = np.zeros((n, len(blocks), depth)), np.empty((n, groups))
    for start, end in found.gaps:
        dense[:, start:end] = 0.0
    for piece, own, runs in zip(pieces.parts, arrays, found.runs, strict=True):
        if len(runs) and isinstance(piece, Outer):
            pyramids.multiply(*own, runs, dense)
        elif len(runs):
            pyramids.gather(*own, piece.lines[0], runs, dense)
    for number, block, *where in found.inside:
        piece, own = pieces.parts[number], arrays[number]
        if isinstance(piece, Outer):
            pyramids.outer(*own, depth, *where, coarse, fine[:, block])
        else:
            pyramids.turned(depth)(*own, piece.lines[0], *where, coarse, fine[:, block])
    sizes = layout(tuple(size for _, size in blocks))
    pyramids.finish(dense, depth, found.places, found.starts, found.coarse, sizes, coarse, fine, out)
    return out
