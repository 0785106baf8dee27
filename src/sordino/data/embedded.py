"""Digits that need no download: scikit-learn's 1 797 scans of 8 x 8 pixels.

Values 0..16 are counts of inked dots in a 4 x 4 block, so 16 is a public constant, and
dividing by it is no release. The data has no published test set; ours is drawn once,
from a fixed address, and never changes: 1 437 examples to train, 360 to test.

Reference: Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits", UCI.
"""

from __future__ import annotations

import numpy as np

from sordino.data.dataset import Corpus, Dataset
from sordino.entropy import Seeded

TEST = 360


def digits() -> Corpus:
    """The embedded digits, (examples, 1, 8, 8) in [0, 1]."""
    # Here, because importing scikit-learn takes longer than reading the digits.
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = (np.asarray(raw.images) / 16).astype(np.float32)[:, None]
    y = np.asarray(raw.target).astype(np.int64)
    order = Seeded(0).at("digits", "test set").permutation(len(y))
    whole = Dataset("digits", x, y, tuple("0123456789"))
    return Corpus(train=whole.take(np.sort(order[TEST:])), test=whole.take(np.sort(order[:TEST])))
