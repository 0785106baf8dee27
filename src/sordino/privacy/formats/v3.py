"""Format 3: the tables and the chain of format 2, adjacency as codes instead of a sentence."""

from __future__ import annotations

from sordino.privacy.chain import canonical
from sordino.privacy.formats.layout import Adjacency, LedgerFormat
from sordino.privacy.formats.v2 import TABLES, start

_META = {
    "format": "3",
    "adjacency": canonical(
        {
            "": Adjacency.ZERO_OUT,
            "entities": Adjacency.REPLACE_ONE,
            "labels": Adjacency.REPLACE_ONE,
            "party": Adjacency.REPLACE_ONE,
        }
    ),
}
V3 = LedgerFormat(_META, start(_META), TABLES)
