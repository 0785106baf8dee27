"""Data sets that need no download: three that lie in scikit-learn.

**digits**: 1 797 scans of 8 x 8 pixels. Values 0..16 are counts of inked dots in a 4 x 4 block, so
16 is a public constant, and dividing by it is no release.

**breast-cancer**: 30 measures of the cell nuclei of 569 tumours, malignant or benign.

**diabetes**: 10 measures of 442 patients, and the disease's progression after a year, a number.

All are published, and so are the ranges of their columns, which stand in scikit-learn's
descriptions or were read off the published rows once; they bring each column to [-1, 1]. None has a
published test set; ours is drawn once, from a fixed address, and never changes.

References:
    Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits", UCI.
    Wolberg, Mangasarian, Street 1995, "Breast cancer Wisconsin (diagnostic)", UCI.
    Efron, Hastie, Johnstone, Tibshirani 2004, "Least angle regression", Annals of Statistics 32.
"""

from __future__ import annotations

import gzip
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sordino.base.entropy import Seeded
from sordino.data.dataset import Corpus, Dataset, Span

TEST = 360
"""Of the digits."""
NAMES = ("digits", "breast-cancer", "diabetes")
SPANS: dict[str, Span] = {"diabetes": (25.0, 346.0)}
"""Ranges of labels that are numbers."""

_CANCER = {
    "mean radius": (6.981, 28.11),
    "mean texture": (9.71, 39.28),
    "mean perimeter": (43.79, 188.5),
    "mean area": (143.5, 2501.0),
    "mean smoothness": (0.052, 0.164),
    "mean compactness": (0.019, 0.346),
    "mean concavity": (0.0, 0.427),
    "mean concave points": (0.0, 0.202),
    "mean symmetry": (0.106, 0.304),
    "mean fractal dimension": (0.049, 0.098),
    "radius error": (0.111, 2.873),
    "texture error": (0.36, 4.885),
    "perimeter error": (0.757, 21.98),
    "area error": (6.802, 542.2),
    "smoothness error": (0.001, 0.032),
    "compactness error": (0.002, 0.136),
    "concavity error": (0.0, 0.396),
    "concave points error": (0.0, 0.053),
    "symmetry error": (0.007, 0.079),
    "fractal dimension error": (0.0, 0.03),
    "worst radius": (7.93, 36.04),
    "worst texture": (12.02, 49.54),
    "worst perimeter": (50.41, 251.2),
    "worst area": (185.2, 4254.0),
    "worst smoothness": (0.071, 0.223),
    "worst compactness": (0.027, 1.058),
    "worst concavity": (0.0, 1.252),
    "worst concave points": (0.0, 0.291),
    "worst symmetry": (0.156, 0.664),
    "worst fractal dimension": (0.055, 0.208),
}
_DIABETES = {
    "age": (19.0, 79.0),
    "sex": (1.0, 2.0),
    "body mass index": (18.0, 42.2),
    "blood pressure": (62.0, 133.0),
    "s1": (97.0, 301.0),
    "s2": (41.6, 242.4),
    "s3": (22.0, 99.0),
    "s4": (2.0, 9.09),
    "s5": (3.25, 6.11),
    "s6": (58.0, 124.0),
}

Table = npt.NDArray[np.float64]


def embedded(name: str) -> Corpus:
    """One of :data:`NAMES`: the digits (examples, 1, 8, 8) in [0, 1], other examples (n, columns)
    in [-1, 1].
    """
    if name == "digits":
        return digits()
    columns = _CANCER if name == "breast-cancer" else _DIABETES
    if name == "breast-cancer":
        raw = _cancer()
        x, y, classes = raw[:, :-1], raw[:, -1].astype(np.int64), ("malignant", "benign")
        return _halves(Dataset(name, _between(x, columns), y, classes, columns=tuple(columns)))
    x, labels = _diabetes()
    low, high = SPANS[name]
    y = (2.0 * (labels - low) / (high - low) - 1.0).astype(np.float32)
    scaled = _between(x, columns)
    return _halves(Dataset(name, scaled, y, (), columns=tuple(columns), span=(low, high)))


def digits() -> Corpus:
    """The embedded digits, (examples, 1, 8, 8) in [0, 1]."""
    raw = _digits()
    x = (raw[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)[:, None]
    y = raw[:, -1].astype(np.int64)
    return _halves(Dataset("digits", x, y, tuple("0123456789")), TEST)


def _halves(whole: Dataset, test: int | None = None) -> Corpus:
    """A training and a test set; the test set is a fifth if its size is left out."""
    count = len(whole) // 5 if test is None else test
    order = Seeded(0).at(whole.name, "test set").permutation(len(whole))
    return Corpus(whole.take(np.sort(order[count:])), whole.take(np.sort(order[:count])))


def _between(x: Table, columns: dict[str, Span]) -> npt.NDArray[np.float32]:
    """Columns (n, k) in [-1, 1] by their ranges."""
    low, high = np.array(list(columns.values())).T
    found: npt.NDArray[np.float32] = np.clip(
        2.0 * (x - low) / (high - low) - 1.0, -1.0, 1.0
    ).astype(np.float32)
    return found


def _inside(file: str) -> Path | None:
    """A file of scikit-learn's, which is ten times as fast to read as scikit-learn to import."""
    found = importlib.util.find_spec("sklearn")  # does not import it
    if found is None or not found.origin:
        return None
    path = Path(found.origin).parent / "datasets" / "data" / file
    return path if path.is_file() else None


def _read(path: Path, delimiter: str | None, skip: int = 0) -> Table:
    if path.suffix != ".gz":
        return np.loadtxt(path, delimiter=delimiter, skiprows=skip)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return np.loadtxt(file, delimiter=delimiter, skiprows=skip)


@cache
def _digits() -> Table:
    """(examples, 65): the pixels row by row, and the digit."""
    if (path := _inside("digits.csv.gz")) is not None:
        return _read(path, ",")
    from sklearn.datasets import load_digits

    raw = load_digits()
    return np.column_stack([raw.data, raw.target])


@cache
def _cancer() -> Table:
    """(examples, 31): the measures, and 0 for malignant."""
    if (path := _inside("breast_cancer.csv")) is not None:
        return _read(path, ",", 1)
    from sklearn.datasets import load_breast_cancer

    raw = load_breast_cancer()
    return np.column_stack([raw.data, raw.target])


@cache
def _diabetes() -> tuple[Table, Table]:
    """(examples, 10) and (examples,): the measures, and the progression."""
    x, y = _inside("diabetes_data_raw.csv.gz"), _inside("diabetes_target.csv.gz")
    if x is not None and y is not None:
        return _read(x, None), _read(y, None)
    from sklearn.datasets import load_diabetes

    raw = load_diabetes(scaled=False)
    return raw.data, raw.target
