"""Vector registers of this machine, for the vertical regime's compiled loops."""

from __future__ import annotations

from functools import cache

from sordino.native import processor


@cache
def _wide() -> bool:
    return processor.has("avx512f")


def registers(size: int) -> int:
    """How many accumulators of ``size`` numbers fit the vector registers, with room to work."""
    return 28 if _wide() else 96 // size


def widest() -> int:
    """Numbers in the machine's widest vector: where rows need not be whole vectors, the best L."""
    return 16 if _wide() else 8
