"""The published data sets that have names, and those that somebody registers.

Checksums are those that the publishers or torchvision state (MD5, which still resists a
forged file for a given sum; the connection is authenticated besides), and SHA-256 for
Fashion-MNIST. Debian's package holds the same Fashion-MNIST recompressed without the
original names in the gzip headers, hence other sums; putting these names and times back
gives the published sums, which is how the equality was established. UCI states none for SUSY and
HIGGS: theirs are those that scikit-learn_bench checks; the one of HIGGS is stated by several others
too, of SUSY by none that we know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sordino.base.errors import DataError
from sordino.data import cifar
from sordino.data.dataset import Features, Labels
from sordino.data.embedded import NAMES

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
        """What ``folder`` lacks for the layout that it comes closest to; nothing where one is
        complete.
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
                cifar.BINARY,
                cifar.PYTHON,
                tuple(f"cifar-10-batches-bin/{n}" for n in cifar.BINARY),
                tuple(f"cifar-10-batches-py/{n}" for n in cifar.PYTHON),
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
    """Whether this program names the data set: what somebody else registers may be of people,
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
