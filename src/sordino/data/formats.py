"""The bytes of a data file, and the forms in which the papers' data sets are published.

**Bytes.** A download that broke off is the commonest fault of a data file, and the reader must not
turn half a file into a smaller data set: the ledger would then bind a budget to data that nobody
has. So every reader states in advance how many bytes it expects, asks :class:`Source` for exactly
those, and at the end asks for the end. Compression is recognised by the first bytes, not by the
name, and its checksum is verified because the stream is always read to its end. Pieces of 64 KiB
are expanded as they are asked for, 256 KiB at a time, straight into the caller's array. A header
that announces more than :func:`sordino.base.files.allowed` allows is refused before anything is
allocated, and what is read whole expands to so much at most: a small file cannot fill the memory.

**IDX**, of MNIST and Fashion-MNIST. A file is one array: two zero bytes, a type code (0x08:
unsigned byte, the only one these data sets use), the number of dimensions, each dimension as a
big-endian 32-bit integer, then the values in row-major order. Nothing follows, so every missing or
surplus byte shows.

Images are returned with a channel axis, (examples, 1, height, width); the array is the
file's only copy in memory.

**LIBSVM text**, of USPS (16 x 16 digits of envelopes). A line is one example: a class number, then
``index:value`` pairs with rising indices from 1; what is not listed is 0. USPS has values in [-1,
1] already, a public range, and calls its digits 1 to 10, of which we make 0 to 9.

Text carries no length, so a file cut at the end of a line looks whole. Readers of a
published file therefore say how many examples it must have, and a last line without its
line feed is refused.

**CIFAR-10**: 60 000 colour images of 32 x 32 pixels in six batches. Two published forms hold the
same images. The **binary** form is 10 000 records a batch, one byte of label and 3 072 of pixels (1
024 red, 1 024 green, 1 024 blue, row by row). The **python** form holds a pickled dictionary a
batch, which is read without running it (:func:`read_inert`). Either may lie in a folder or in the
archive as downloaded; archives are read as a stream and nothing is ever extracted to disk.

**A pickle is read without running it.** A pickle is a program: its instructions name any importable
function and call it, so that loading one from the network hands the machine to whoever wrote it.
This project neither writes nor loads pickles. One published data set, CIFAR-10's "python version",
exists as pickles all the same, and many people have just that one on their disks.

So the file is interpreted with the dictionary of callable names replaced. Of all names
that a pickle may utter, the few that NumPy's own pickling uses are answered, and each with
an inert record defined here: ``_reconstruct`` returns an empty note pad, its ``state`` is
written on it, and that is all. No NumPy code runs on the pickle's behalf, no imported
callable is ever reachable, and any other name is refused. What comes out are containers,
numbers, strings and note pads, which :func:`array_of` then reads with as much distrust as
any other file.

Old batches were written by Python 2: strings arrive as ``bytes`` (encoding="bytes").

References:
    LeCun, Cortes, Burges 1998, "The MNIST database of handwritten digits".
    Xiao, Rasul, Vollgraf 2017, "Fashion-MNIST".
    Hull 1994, "A database for handwritten text recognition research".
    Chang and Lin 2011, "LIBSVM: a library for support vector machines".
    Krizhevsky 2009, "Learning multiple layers of features from tiny images".
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import math
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sordino.base.errors import DataError
from sordino.base.files import allowed, open_plain, readable, too_large
from sordino.data.dataset import Bytes, Double, Labels, Names, Shape, Single

AGAIN = "The file is damaged or incomplete: get it again"

_PIECE = 1 << 18
_GZIP = b"\x1f\x8b"
_BZIP2 = b"BZh"


def checksum(path: Path, kind: str = "sha256", size: int = 0) -> str:
    """The checksum (hex) of a file, or of so many of its first bytes once it is expanded."""
    found = path.stat()
    return _checksum(path, kind, size, (found.st_ino, found.st_size, found.st_mtime_ns))


@cache
def _checksum(path: Path, kind: str, size: int, stamp: tuple[int, ...]) -> str:
    """As :func:`checksum`; a file with another ``stamp`` is another file."""
    if size:
        content = Source(path).exactly(size, "its beginning")
        return hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    with open_plain(path) as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(kind, usedforsecurity=False)
        ).hexdigest()


class Source(io.RawIOBase):
    """A data file read once, from front to back; what is compressed is expanded."""

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        """Look at the file's first bytes.

        Args:
            whole: whether its content is to be held in memory, and hence must not expand without
                limit.
        """
        self.path, self._given = path, 0
        with readable(path, DataError, "Name a file that can"):
            self._file = open_plain(path)
        self._allowed = allowed(path.stat().st_size)
        self._most = self._allowed if whole else None
        head = self._file.peek(len(_BZIP2))
        self._content: io.BufferedIOBase = self._file
        self._kind = ""
        if head.startswith(_GZIP):
            self._content = gzip.GzipFile(fileobj=self._file)
            self._kind = "gzip"
        elif head.startswith(_BZIP2):
            self._content = bz2.BZ2File(self._file)
            self._kind = "bzip2"

    def readable(self) -> bool:
        """Return True, which readers above it ask."""
        return True

    def readinto(self, out: Any, /) -> int:
        """Fill ``out`` as far as the next bytes go; 0 at the end of the file."""
        try:
            count = self._content.readinto(out)
        except EOFError as error:
            raise self.damaged(
                f"expected a complete {self._kind} stream", "it breaks off before its end mark"
            ) from error
        except (zlib.error, OSError, ValueError) as error:
            what, how = (
                ("a file", "reading") if not self._kind else (f"a {self._kind} stream", "expanding")
            )
            raise self.damaged(f"expected {what}", f"{how} it failed ({error})") from error
        if self._most is not None and self._kind and self._given + count > self._most:
            what = "it expands to more than"
            raise DataError(too_large(self.path, what, self._given, self._most))
        self._given += count
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def exactly(self, size: int, what: str) -> bytes:
        """``size`` bytes of ``what``, or a DataError that counts what there is."""
        out = bytearray(size)
        self.fill(memoryview(out), what)
        return bytes(out)

    def fill(self, out: memoryview, what: str) -> None:
        """Fill ``out`` (bytes) with ``what``, or say how many bytes were found."""
        filled = 0
        while filled < len(out) and (more := self.readinto(out[filled:])):
            filled += more
        if filled < len(out):
            raise self.damaged(
                f"expected {len(out)} bytes of {what}", f"the file ends after {filled} of them"
            )

    def end(self, what: str) -> None:
        """Insist that nothing follows ``what``; also verifies the checksum of a compressed file."""
        if self.read(1):
            raise self.damaged(f"expected the end of the file after {what}", "more bytes follow")

    def whole(self) -> bytes:
        """Everything that is left, if it is not too much."""
        self._most = self._allowed
        return b"".join(iter(lambda: self.read(_PIECE), b""))

    def damaged(self, expected: str, found: str) -> DataError:
        """The one form in which a damaged file is reported."""
        return DataError(f"{self.path}: {expected}, but {found}. {AGAIN}")


_UNSIGNED_BYTE = 0x0800


def read_idx(path: Path, dimensions: int) -> Bytes:
    """The array in an IDX file (gzip or not) of unsigned bytes with so many dimensions."""
    source = Source(path)
    wanted = _UNSIGNED_BYTE | dimensions
    (magic,) = struct.unpack(">I", source.exactly(4, "IDX magic number"))
    if magic != wanted:
        raise source.damaged(
            f"expected the IDX magic number 0x{wanted:08x} (unsigned bytes, {dimensions} "
            f"dimension{'s' * (dimensions > 1)})",
            f"found 0x{magic:08x}",
        )
    shape = struct.unpack(f">{dimensions}I", source.exactly(4 * dimensions, "IDX dimensions"))
    size, what = math.prod(shape), f"values (shape {' x '.join(map(str, shape))})"
    if size == 0:
        raise source.damaged(
            "expected at least one value", f"the header announces the shape {shape}"
        )
    if size > (most := allowed(path.stat().st_size)):
        raise DataError(too_large(path, "its header announces", size, most))
    values = np.empty(shape, dtype=np.uint8)
    source.fill(values.reshape(-1).data, what)
    source.end(f"{size} {what}")
    return values


def read_images(images: Path, labels: Path, classes: int) -> tuple[Bytes, Labels]:
    """Images (examples, 1, height, width) and their labels, from their two files."""
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if len(x) != len(y):
        raise Source(labels).damaged(
            f"expected {len(x)} labels, one for each image of {images.name}", f"found {len(y)}"
        )
    if int(y.max()) >= classes:
        row = int(np.argmax(y >= classes))
        raise Source(labels).damaged(
            f"expected labels 0..{classes - 1}", f"label {row} is {int(y[row])}"
        )
    return x[:, None], y.astype(np.int64)


def read_libsvm(path: Path, features: int, examples: int | None = None) -> tuple[Single, Double]:
    """Dense features (examples, features) and labels as written, from text (bzip2, gzip or plain).

    Raises:
        DataError: naming what is damaged or missing.
    """
    source = Source(path)
    content = source.whole()
    if not content.endswith(b"\n"):
        raise source.damaged("expected the last line to end with a line feed", "it breaks off")
    found = content.count(b"\n")
    if examples is not None and found != examples:
        raise source.damaged(f"expected {examples} lines, one for each example", f"found {found}")
    if (size := 4 * features * found) > (most := allowed(path.stat().st_size)):
        raise DataError(too_large(path, f"its {found} lines need", size, most))
    from sklearn.datasets import load_svmlight_file

    try:
        x, y = load_svmlight_file(
            io.BytesIO(content), n_features=features, dtype=np.float32, zero_based=False
        )
        if len(y) != found:
            raise ValueError("found an empty line")
        if not (np.isfinite(x.data).all() and np.isfinite(y).all()):
            raise ValueError("found a number that is not finite")
    except (ValueError, OverflowError) as error:
        raise source.damaged(
            "expected lines of 'label index:value ...' with finite numbers and rising feature "
            f"numbers 1..{features}",
            str(error),
        ) from error
    return x.toarray(), y


def read_usps(path: Path, examples: int | None) -> tuple[Single, Labels]:
    """USPS as images (examples, 1, 16, 16) in [-1, 1] and digits 0..9."""
    x, y = read_libsvm(path, 256, examples)
    if bad := np.flatnonzero((y != np.round(y)) | (y < 1) | (y > 10)).tolist():
        raise Source(path).damaged("expected labels 1..10", f"line {bad[0] + 1} has {y[bad[0]]:g}")
    if bad := np.flatnonzero(np.abs(x).max(axis=1) > 1).tolist():
        raise Source(path).damaged("expected values in [-1, 1]", f"line {bad[0] + 1} has others")
    return x.reshape(-1, 1, 16, 16), y.astype(np.int64) - 1


CIFAR_BINARY = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_PYTHON = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR_RECORDS = 10_000
_CIFAR_PIXELS = 3 * 32 * 32
_CIFAR_CLASSES = 10

Split = tuple[Bytes, Labels]


def read_cifar_folder(folder: Path, records: int = CIFAR_RECORDS) -> tuple[Split, Split]:
    """(training, test) from the batches that lie in ``folder``; the binary form is preferred."""
    names = (
        CIFAR_BINARY if all((folder / name).is_file() for name in CIFAR_BINARY) else CIFAR_PYTHON
    )
    return _assemble(
        names,
        ((name, str(folder / name), Source(folder / name).whole()) for name in names),
        records,
        str(folder),
    )


def read_cifar_archive(path: Path, records: int = CIFAR_RECORDS) -> tuple[Split, Split]:
    """(training, test) from ``cifar-10-binary.tar.gz`` or ``cifar-10-python.tar.gz``."""
    names = CIFAR_BINARY if "binary" in path.name else CIFAR_PYTHON
    return _assemble(names, _members(path, names, records), records, str(path))


def _members(path: Path, names: Names, records: int) -> Iterator[tuple[str, str, bytes]]:
    source = Source(path, whole=True)  # tarfile holds as much of a header as it announces
    # Names of the images and the dictionary around them make the python form a little larger.
    most = records * (_CIFAR_PIXELS + 1) * 2 + 65_536
    with (
        readable(f"{path}: the archive of batches", DataError, AGAIN),
        tarfile.open(fileobj=source, mode="r|") as archive,
    ):
        for member in archive:
            name = member.name.rsplit("/", 1)[-1]
            if name not in names or not member.isreg():
                continue
            if member.size > most:
                raise source.damaged(
                    f"expected {name} to have at most {most} bytes", f"it has {member.size}"
                )
            content = archive.extractfile(member)
            yield name, f"{path}: {name}", content.read() if content else b""
    while source.read(_PIECE):
        pass  # to the end, so that a compressed file's own checksum is verified


def _assemble(
    names: Names, batches: Iterator[tuple[str, str, bytes]], records: int, place: str
) -> tuple[Split, Split]:
    """Decode each batch into its part of one array; the test batch is the last of ``names``."""
    decode: Callable[[bytes, str, int], Split] = _binary if names == CIFAR_BINARY else _python
    x = np.empty((len(names) * records, 3, 32, 32), dtype=np.uint8)
    y = np.empty(len(names) * records, dtype=np.int64)
    seen: set[str] = set()
    for name, where, content in batches:
        start = names.index(name) * records
        pixels, labels = decode(content, where, records)
        x[start : start + records] = pixels
        y[start : start + records] = labels
        seen.add(name)
    if missing := [name for name in names if name not in seen]:
        raise DataError(
            f"{place}: expected the batches {', '.join(names)}, but {', '.join(missing)} is "
            f"not there. {AGAIN}"
        )
    cut = (len(names) - 1) * records
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def _binary(content: bytes, place: str, records: int) -> Split:
    expected = records * (_CIFAR_PIXELS + 1)
    if len(content) != expected:
        raise DataError(
            f"{place}: expected {expected} bytes ({records} images of {_CIFAR_PIXELS + 1}), found "
            f"{len(content)}. {AGAIN}"
        )
    raw = np.frombuffer(content, dtype=np.uint8).reshape(records, _CIFAR_PIXELS + 1)
    labels = raw[:, 0].astype(np.int64)
    if bad := np.flatnonzero(labels >= _CIFAR_CLASSES).tolist():
        raise DataError(
            f"{place}: expected labels 0..{_CIFAR_CLASSES - 1}, found {int(labels[bad[0]])} in "
            f"image {bad[0]}. {AGAIN}"
        )
    return raw[:, 1:].reshape(records, 3, 32, 32), labels


def _python(content: bytes, place: str, records: int) -> Split:
    batch = read_inert(content, place)
    if not isinstance(batch, Mapping):
        raise DataError(
            f"{place}: expected a dictionary with 'data' and 'labels', found "
            f"{type(batch).__name__}. {AGAIN}"
        )
    fields = {
        key.decode("latin1") if isinstance(key, bytes) else key: value
        for key, value in batch.items()
    }
    pixels = array_of(fields.get("data"), (records, _CIFAR_PIXELS), f"{place}: data")
    labels = fields.get("labels")
    if (
        not isinstance(labels, list)
        or len(labels) != records
        or not all(type(v) is int and 0 <= v < _CIFAR_CLASSES for v in labels)
    ):
        raise DataError(
            f"{place}: expected 'labels' to be a list of {records} integers "
            f"0..{_CIFAR_CLASSES - 1}. {AGAIN}"
        )
    return pixels.reshape(records, 3, 32, 32), np.array(labels, dtype=np.int64)


class InertDtype:
    """An element type as a pickle names it."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment say nothing about single bytes."""


class InertArray:
    """An array as a pickle describes it."""

    shape: object = None
    dtype: object = None
    fortran: object = None
    values: object = None

    def __setstate__(self, state: object) -> None:
        """Note (version, shape, element type, column-major, bytes)."""
        if isinstance(state, tuple) and len(state) == 5:
            _, self.shape, self.dtype, self.fortran, self.values = state


def _buffered(values: object, dtype: object, shape: object, order: object) -> InertArray:
    array = InertArray()
    array.__setstate__((1, shape, dtype, order == "F", values))
    return array


def _encoded(text: object, *_: object) -> bytes:
    """Bytes as Python 3 writes them into pickles that Python 2 can read."""
    if not isinstance(text, str):
        raise pickle.UnpicklingError("only text can be encoded")
    return text.encode("latin1")


class _Answer:
    """A class in the place of a name. It has no state, so a pickle cannot alter it either."""

    __slots__ = ()

    def __call__(self, *given: Any) -> object:
        return _ANSWERS[self](*given)


_CALLS: dict[str, Callable[..., object]] = {
    "numpy.ndarray": InertArray,
    "numpy.dtype": InertDtype,
    "numpy._core.multiarray._reconstruct": lambda *_: InertArray(),
    "numpy._core.numeric._frombuffer": _buffered,
    "_codecs.encode": _encoded,
}
_NAMES = {name: _Answer() for name in _CALLS}
_ANSWERS = dict(zip(_NAMES.values(), _CALLS.values(), strict=True))


# The interpreter written in Python, not the faster one in C: a damaged memo index makes the latter
# allocate and touch up to 64 GB, which ends the process instead of raising. A batch takes some 50
# ms.
class _Reader(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        answer = _NAMES.get(f"{module}.{name}".replace("numpy.core.", "numpy._core."))
        if answer is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, and this reader calls nothing")
        return answer

    def persistent_load(self, pid: object) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside itself")


def read_inert(content: bytes, place: str) -> object:
    """The containers in a pickle; DataError, naming ``place``, for anything else."""
    file = io.BytesIO(content)
    with readable(f"{place}: the batch of arrays", DataError, AGAIN):
        value = _Reader(file, encoding="bytes").load()
    if file.read(1):
        raise DataError(
            f"{place}: expected the end of the file after the batch, but more bytes follow"
        )
    return value


def array_of(value: object, shape: Shape, place: str) -> Bytes:
    """The array of unsigned bytes with this shape that ``value`` describes (a view)."""
    if not isinstance(value, InertArray):
        raise DataError(
            f"{place}: expected an array of shape {shape}, found {type(value).__name__}"
        )
    code = value.dtype.code if isinstance(value.dtype, InertDtype) else None
    size = int(np.prod(shape))
    if (
        code != "u1"
        or value.shape != shape
        or not isinstance(value.values, bytes | bytearray)
        or len(value.values) != size
    ):
        raise DataError(
            f"{place}: expected unsigned bytes of shape {shape}, found type {code}, shape "
            f"{value.shape}"
        )
    return np.frombuffer(value.values, dtype=np.uint8).reshape(
        shape, order="F" if value.fortran else "C"
    )
