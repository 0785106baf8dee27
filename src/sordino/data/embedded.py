"""Digits that need no download: scikit-learn's 1 797 scans of 8 x 8 pixels.

Values 0..16 are counts of inked dots in a 4 x 4 block, so 16 is a public constant, and
dividing by it is no release. The data has no published test set; ours is drawn once,
from a fixed address, and never changes: 1 437 examples to train, 360 to test.

Reference: Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits", UCI.
"""

from __future__ import annotations

import gzip
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sordino.data.dataset import Corpus, Dataset
from sordino.entropy import Seeded

TEST = 360
_FILE = Path("datasets", "data", "digits.csv.gz")


def digits() -> Corpus:
    """The embedded digits, (examples, 1, 8, 8) in [0, 1]."""
    raw = _table()
    x = (raw[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)[:, None]
    y = raw[:, -1].astype(np.int64)
    order = Seeded(0).at("digits", "test set").permutation(len(y))
    whole = Dataset("digits", x, y, tuple("0123456789"))
    return Corpus(train=whole.take(np.sort(order[TEST:])), test=whole.take(np.sort(order[:TEST])))


@cache
def _table() -> npt.NDArray[np.float64]:
    """(examples, 65): the pixels row by row, and the digit.

    Importing scikit-learn takes ten times as long as reading the digits that lie in it.
    """
    found = importlib.util.find_spec("sklearn")  # does not import it
    path = Path(found.origin).parent / _FILE if found is not None and found.origin else None
    if path is not None and path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            table: npt.NDArray[np.float64] = np.loadtxt(file, delimiter=",")
        return table
    from sklearn.datasets import load_digits

    raw = load_digits()
    return np.column_stack([raw.data, raw.target])
