"""The published data sets that have names: those that need no download, and those that do.

**Three lie in scikit-learn.** *digits*: 1 797 scans of 8 x 8 pixels. Values 0..16 are counts of
inked dots in a 4 x 4 block, so 16 is a public constant, and dividing by it is no release.

*breast-cancer*: 30 measures of the cell nuclei of 569 tumours, malignant or benign.

*diabetes*: 10 measures of 442 patients, and the disease's progression after a year, a number.

All are published, and so are the ranges of their columns, which stand in scikit-learn's
descriptions or were read off the published rows once; they bring each column to [-1, 1]. None has a
published test set; ours is drawn once, from a fixed address, and never changes.

**Others are downloaded**, and somebody may register more. Checksums are those that the publishers
or torchvision state (MD5, which still resists a forged file for a given sum; the connection is
authenticated besides), and SHA-256 for Fashion-MNIST. Debian's package holds the same Fashion-MNIST
recompressed without the original names in the gzip headers, hence other sums; putting these names
and times back gives the published sums, which is how the equality was established. UCI states none
for SUSY and HIGGS: theirs are those that scikit-learn_bench checks; the one of HIGGS is stated by
several others too, of SUSY by none that we know.

References:
    Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits", UCI.
    Wolberg, Mangasarian, Street 1995, "Breast cancer Wisconsin (diagnostic)", UCI.
    Efron, Hastie, Johnstone, Tibshirani 2004, "Least angle regression", Annals of Statistics 32.
"""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError
from sordino.data.dataset import Corpus, Dataset, Features, Labels, Span
from sordino.data.formats import CIFAR_BINARY, CIFAR_PYTHON

_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to download.

    Attributes:
        name: what it is called in the data folder.
        url: where it is published.
        checksum: "sha256:..." or "md5:..." of the file as published.
    """

    name: str
    url: str
    checksum: str


Halves = tuple[tuple[Features, Labels], tuple[Features, Labels]]
"""Examples and labels to train on, and to test on."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published data set: its classes, what a folder must hold, where that comes from.

    Of one that is somebody's own, only the test half counts as public: models are measured on it
    exactly. Data of people belongs in a file of its own (``data.file``).

    Attributes:
        layouts: sets of file names, each of which is enough; a name may have a suffix from
            ``endings``.
        streamed: whether it is read row by row (:mod:`sordino.data.stream`), because it is too
            large to be loaded.
        read: both halves from a folder that holds all of it; one of somebody's own needs it.
    """

    name: str
    classes: tuple[str, ...]
    layouts: tuple[tuple[str, ...], ...]
    endings: tuple[str, ...] = ("",)
    remote: tuple[Remote, ...] = ()
    package: str | None = None
    streamed: bool = False
    read: Callable[[Path, Published], Halves] | None = None

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Return the files that ``folder`` lacks for the layout that it comes closest to; nothing
        where one is complete.
        """
        lacking = [
            tuple(n for n in layout if pick(folder, n, self.endings) is None)
            for layout in self.layouts
        ]
        return min(lacking, key=len)


_DIGITS = tuple("0123456789")
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"


def _remotes(base: str, sums: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(name, base + name, checksum) for name, checksum in sums.items())


_published: dict[str, Published] = {
    p.name: p
    for p in (
        Published(
            "fashion-mnist",
            (
                "T-shirt/top",
                "Trouser",
                "Pullover",
                "Dress",
                "Coat",
                "Sandal",
                "Shirt",
                "Sneaker",
                "Bag",
                "Ankle boot",
            ),
            (_IDX,),
            (".gz", ""),
            _remotes(
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                {
                    "train-images-idx3-ubyte.gz": (
                        "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
                    ),
                    "train-labels-idx1-ubyte.gz": (
                        "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
                    ),
                    "t10k-images-idx3-ubyte.gz": (
                        "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
                    ),
                    "t10k-labels-idx1-ubyte.gz": (
                        "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
                    ),
                },
            ),
            "dataset-fashion-mnist",
        ),
        Published(
            "mnist",
            _DIGITS,
            (_IDX,),
            (".gz", ""),
            _remotes(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                {
                    "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
                    "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
                    "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
                },
            ),
        ),
        Published(
            "cifar10",
            (
                "airplane",
                "automobile",
                "bird",
                "cat",
                "deer",
                "dog",
                "frog",
                "horse",
                "ship",
                "truck",
            ),
            (
                ("cifar-10-binary.tar.gz",),
                ("cifar-10-python.tar.gz",),
                CIFAR_BINARY,
                CIFAR_PYTHON,
                tuple(f"cifar-10-batches-bin/{n}" for n in CIFAR_BINARY),
                tuple(f"cifar-10-batches-py/{n}" for n in CIFAR_PYTHON),
            ),
            remote=_remotes(
                "https://www.cs.toronto.edu/~kriz/",
                {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
            ),
        ),
        Published(
            "usps",
            _DIGITS,
            (("usps", "usps.t"),),
            (".bz2", ""),
            _remotes(
                "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
                {
                    "usps.bz2": "md5:ec16c51db3855ca6c91edd34d0e9b197",
                    "usps.t.bz2": "md5:8ea070ee2aca1ac39742fdd1ef5ed118",
                },
            ),
        ),
        Published(
            "susy",
            ("background", "signal"),
            (("SUSY.csv",),),
            (".gz", ""),
            _remotes(
                _UCI + "00279/",
                {
                    "SUSY.csv.gz": (
                        "sha256:be56cb5598da8ece4b13912230ee713bab8b3431a7d118e0054ffdf3a2f25664"
                    ),
                },
            ),
            streamed=True,
        ),
        Published(
            "higgs",
            ("background", "signal"),
            (("HIGGS.csv",),),
            (".gz", ""),
            _remotes(
                _UCI + "00280/",
                {
                    "HIGGS.csv.gz": (
                        "sha256:ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698"
                    ),
                },
            ),
            streamed=True,
        ),
    )
}

PUBLISHED: Mapping[str, Published] = MappingProxyType(_published)
"""By name; :func:`register` adds to them."""


def is_ours(name: str) -> bool:
    """Return whether this program names the data set: what others register may be of people,
    whatever its module says.
    """
    known = _published.get(name)
    return name in NAMES or (known is not None and known.read is None)


def register(published: Published) -> Published:
    """Make a data set known by its name.

    Raises:
        DataError: if another one has this name, or nothing reads it.
    """
    if published.read is None:
        raise DataError(f"data set {published.name!r}: it needs a function that reads it (read)")
    if published.name in NAMES or _published.get(published.name, published) != published:
        raise DataError(f"data set {published.name!r} is known already; choose another name")
    _published[published.name] = published
    return published


def forget(name: str) -> None:
    """Undo a registration: for tests."""
    _published.pop(name, None)


def pick(folder: Path, name: str, endings: tuple[str, ...] = ("",)) -> Path | None:
    """The file ``name`` in ``folder`` under the first ending that exists."""
    return next(
        (path for path in (folder / (name + ending) for ending in endings) if path.is_file()), None
    )


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
