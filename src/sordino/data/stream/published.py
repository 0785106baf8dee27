"""SUSY and HIGGS: five and eleven million simulated collisions, from the UCI repository's files.

The first column is the class (1: signal, 0: background), then come 18 or 28 features; there is no
header. Both files are found where other data is (:mod:`sordino.data.locate`), under the names
SUSY.csv.gz and HIGGS.csv.gz or unpacked.

Reference: Baldi, Sadowski, Whiteson 2014, "Searching for exotic particles in high-energy physics
with deep learning".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from sordino.base.errors import DataError
from sordino.data import locate
from sordino.data.sets import PUBLISHED, pick
from sordino.data.stream.table import TableStream
from sordino.data.table import Scale

_JETS = tuple(f"jet {i} {what}" for i in (1, 2, 3, 4) for what in ("pt", "eta", "phi", "b-tag"))

COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "susy": (
            "lepton 1 pT", "lepton 1 eta", "lepton 1 phi",
            "lepton 2 pT", "lepton 2 eta", "lepton 2 phi",
            "missing energy magnitude", "missing energy phi", "MET_rel", "axial MET",
            "M_R", "M_TR_2", "R", "MT2", "S_R", "M_Delta_R", "dPhi_r_b", "cos(theta_r1)",
        ),
        "higgs": (
            "lepton pT", "lepton eta", "lepton phi",
            "missing energy magnitude", "missing energy phi", *_JETS,
            "m_jj", "m_jjj", "m_lv", "m_jlv", "m_bb", "m_wbb", "m_wwbb",
        ),
    }
)  # fmt: skip
"""Names of the features."""

ROWS: Mapping[str, int] = MappingProxyType({"susy": 5_000_000, "higgs": 11_000_000})


def published(
    name: str, *, file: str | os.PathLike[str] | None = None, rows: int | None = None,
    scale: Scale | None = None, offset: Scale | None = None, seed: int = 0,
) -> TableStream:  # fmt: skip
    """The stream ``susy`` or ``higgs``.

    Args:
        name: which.
        file: where it is; otherwise it is looked for.
        rows: how many there must be, if it is not the whole file.
        scale, offset: public constants, see :class:`~sordino.data.stream.table.TableStream`.
        seed: of what a drift draws.

    Raises:
        DataError: if it is not known or not found, with every way to get it.
    """
    if name not in COLUMNS:
        raise DataError(
            f"unknown stream {name!r}; known: {', '.join(COLUMNS)}; your own file: "
            "TableStream('x.csv', ...)"
        )
    known = PUBLISHED[name]
    if file is None:
        found = pick(locate.find(name), known.layouts[0][0], known.endings)
        if found is None:  # gone since the folder was found complete
            raise DataError(locate.missing_message(known))
        file = found
    return TableStream(
        file, classes=known.classes, header=("label", *COLUMNS[name]),
        rows=ROWS[name] if rows is None else rows, scale=scale, offset=offset, name=name,
        seed=seed,
    )  # fmt: skip
