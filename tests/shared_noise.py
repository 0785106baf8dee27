"""Shared noise for tests, and the whole way of a sum modulo 2^bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Entropy
from sordino.base.residues import Residues, added, packed, unpacked
from sordino.mechanisms.shared import SharedGrid, SharedNoise

Floats = NDArray[np.float64]


def noise(**changes: Any) -> SharedNoise:
    """Five clients, all of them honest, unless ``changes`` tell otherwise."""
    told: dict[str, Any] = {"most": (20.0,) * 5, "dimension": 50, "honest": 5, "rounds": 100}
    return SharedNoise(**{**told, **changes})


def opened(grid: SharedGrid, totals: list[Floats], entropy: Entropy) -> Floats:
    """The sum of what clients with these vectors send, on its whole way."""
    d = totals[0].size
    found: Residues = np.zeros(d, np.uint64)
    for i, total in enumerate(totals):
        drawn, rounding = (entropy.at("client", i, what) for what in ("noise", "rounding"))
        sent = packed(grid.contribution(i, total, drawn, rounding), grid.bits)
        found = added(found, unpacked(sent, d, grid.bits), grid.bits)
    return grid.opened(found)
