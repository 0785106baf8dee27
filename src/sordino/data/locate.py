"""Where published data is looked for, and how it gets there.

Loading never touches the network: a run must not depend on one, and a hospital's machine
has none. :func:`find` looks in three places, in this order,

1. ``$SORDINO_DATA/<name>``
2. the user's cache, ``$XDG_CACHE_HOME/sordino/<name>`` or ``~/.cache/sordino/<name>``
3. ``/usr/share/datasets/<name>``, where Debian's data packages install

and when nothing is there says so once, with every place and every way to get the data.
:func:`fetch` is the separate, deliberate step that downloads. A file is checked while it
arrives and takes its name only when it is whole and right; nothing half-written is left.

Checksums are those that the publishers or torchvision state (MD5, which still resists a
forged file for a given sum; the connection is authenticated besides), and SHA-256 for
Fashion-MNIST. Debian's package holds the same Fashion-MNIST recompressed without the
original names in the gzip headers, hence other sums; putting these names and times back
gives the published sums, which is how the equality was established. UCI states none for SUSY and
HIGGS: theirs are those that scikit-learn_bench checks; the one of HIGGS is stated by several others
too, of SUSY by none that we know.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sordino.data import cifar
from sordino.errors import DataError

TIMEOUT = 60.0
_SYSTEM = Path("/usr/share/datasets")
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


@dataclass(frozen=True, slots=True)
class Published:
    """A published data set: its classes, what a folder must hold, where that comes from.

    Attributes:
        layouts: sets of file names, each of which is enough; a name may have a suffix from
            ``endings``.
        streamed: whether it is read row by row (:mod:`sordino.data.stream`), because it is too
            large to be loaded.
    """

    name: str
    classes: tuple[str, ...]
    layouts: tuple[tuple[str, ...], ...]
    endings: tuple[str, ...] = ("",)
    remote: tuple[Remote, ...] = ()
    package: str | None = None
    streamed: bool = False

    def missing(self, folder: Path) -> tuple[str, ...]:
        """What ``folder`` lacks for the layout it comes closest to; nothing if one is complete."""
        lacking = [
            tuple(n for n in layout if pick(folder, n, self.endings) is None)
            for layout in self.layouts
        ]
        return min(lacking, key=len)


_DIGITS = tuple("0123456789")
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"


def _remotes(base: str, sums: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(name, base + name, checksum) for name, checksum in sums.items())


_FASHION_MNIST = Published(
    "fashion-mnist",
    (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
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
)
_MNIST = Published(
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
)
_CIFAR10 = Published(
    "cifar10",
    (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
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
)
_USPS = Published(
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
)


def _collisions(name: str, folder: str, checksum: str) -> Published:
    """A file of simulated particle collisions, from the UCI repository."""
    file = f"{name.upper()}.csv"
    remote = _remotes(_UCI + folder, {f"{file}.gz": checksum})
    return Published(name, ("background", "signal"), ((file,),), (".gz", ""), remote, streamed=True)


_SUSY = _collisions(
    "susy", "00279/", "sha256:be56cb5598da8ece4b13912230ee713bab8b3431a7d118e0054ffdf3a2f25664"
)
_HIGGS = _collisions(
    "higgs", "00280/", "sha256:ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698"
)

PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {p.name: p for p in (_FASHION_MNIST, _MNIST, _CIFAR10, _USPS, _SUSY, _HIGGS)}
)


def cache_folder() -> Path:
    """Where downloads go: the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "sordino"


def places(name: str) -> tuple[Path, ...]:
    """The folders in which ``name`` is looked for, first to last."""
    own = os.environ.get("SORDINO_DATA", "")
    return (
        *((Path(own).expanduser() / name,) if own else ()),
        cache_folder() / name,
        _SYSTEM / name,
    )


def pick(folder: Path, name: str, endings: tuple[str, ...] = ("",)) -> Path | None:
    """The file ``name`` in ``folder`` under the first ending that exists."""
    return next(
        (path for path in (folder / (name + ending) for ending in endings) if path.is_file()), None
    )


def where(name: str) -> Path | None:
    """The first folder that holds all of ``name``, or None."""
    return next((folder for folder in places(name) if not PUBLISHED[name].missing(folder)), None)


def find(name: str) -> Path:
    """As :func:`where`; a DataError says all places and all ways where there is none."""
    if name not in PUBLISHED:
        raise DataError(
            f"data find: nothing is known about {name!r}; known: digits, {', '.join(PUBLISHED)}"
        )
    folder = where(name)
    if folder is None:
        raise DataError(missing_message(PUBLISHED[name]))
    return folder


def missing_message(published: Published) -> str:
    """Where ``published`` was looked for, and every way to get it."""
    name = published.name
    lines = [f"the data set {name} was not found. Looked in"]
    if not os.environ.get("SORDINO_DATA"):
        lines.append(f"  $SORDINO_DATA/{name}: SORDINO_DATA is not set")
    for folder in places(name):
        lacking = published.missing(folder)
        lines.append(
            f"  {folder}: "
            + (f"lacks {', '.join(lacking)}" if folder.is_dir() else "no such folder")
        )
    ways = []
    if published.package:
        ways.append(f"install Debian's package: apt install {published.package}")
    if published.remote:
        ways.append(
            f"download it with its checksum, where there is a network: sordino data fetch {name}"
        )
    wanted = " or ".join(", ".join(layout) for layout in published.layouts[:2])
    compressed = f" (each with or without {published.endings[0]})" if published.endings[0] else ""
    ways.append(f"put {wanted}{compressed} into {cache_folder() / name}")
    ways.append(f"set SORDINO_DATA to the folder that holds {name}/ with these files")
    ways.append("or use the data set digits, which needs no files")
    return "\n".join([*lines, "Ways to get it:", *(f"  - {way}" for way in ways)])


def fetch(
    name: str, *, folder: Path | None = None, say: Callable[[str], None] | None = None
) -> Path:
    """Download ``name`` into ``folder``, and check it; files that are right already are kept."""
    if name not in PUBLISHED:
        raise DataError(
            f"data fetch: nothing is known about {name!r}; known: {', '.join(PUBLISHED)}"
        )
    published = PUBLISHED[name]
    if not published.remote:
        raise DataError(
            f"data fetch: no trusted checksum is known for {name}, so it is not "
            f"downloaded.\n{missing_message(published)}"
        )
    target = cache_folder() / name if folder is None else folder
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"data fetch: cannot make the folder {target} ({error.strerror})"
        ) from error
    for remote in published.remote:
        path = target / remote.name
        if path.is_file() and _sum_of(path, remote.checksum) == remote.checksum:
            if say:
                say(f"{remote.name}: already there")
            continue
        if say:
            say(f"{remote.name}: downloading {remote.url}")
        _download(remote, path)
    return target


def _download(remote: Remote, path: Path) -> None:
    """Into a temporary neighbour first; the name is taken only by a whole and right file."""
    kind = remote.checksum.partition(":")[0]
    digest = hashlib.new(kind, usedforsecurity=False)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            try:
                with urllib.request.urlopen(remote.url, timeout=TIMEOUT) as answer:
                    while piece := answer.read(1 << 18):
                        digest.update(piece)
                        file.write(piece)
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error
                raise DataError(
                    f"data fetch: {remote.url} could not be downloaded into {path} ({reason}). "
                    f"Without a network, copy the file there by hand; it must have {kind} "
                    f"{remote.checksum.partition(':')[2]}"
                ) from error
            file.flush()
            os.fsync(file.fileno())
        found = f"{kind}:{digest.hexdigest()}"
        if found != remote.checksum:
            raise DataError(
                f"data fetch: {remote.url} is not the published file: expected "
                f"{remote.checksum}, found {found}; nothing was kept"
            )
        # a data folder may be shared; temporary files are their owner's alone
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _sum_of(path: Path, like: str) -> str:
    kind = like.partition(":")[0]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return f"{kind}:{found.hexdigest()}"
