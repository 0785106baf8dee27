"""The bytes of a data file, compressed or not, and what to say when they are not all there.

A download that broke off is the commonest fault of a data file, and the reader must not
turn half a file into a smaller data set: the ledger would then bind a budget to data that
nobody has. So every reader states in advance how many bytes it expects, asks this class
for exactly those, and at the end asks for the end. Compression is recognised by the first
bytes, not by the name, and its checksum is verified because the stream is always read to
its end.

Memory: pieces of 64 KiB are expanded as they are asked for, 256 KiB at a time, straight into the
caller's array. A header that announces an absurd size is refused before anything is allocated:
no gzip stream expands more than about 1032 times. What is read whole expands at most to what
:func:`sordino.base.files.allowed` allows: a small file cannot fill the memory.

Users' files that announce more than they hold are refused before memory is asked for.

**npz** is a zip archive: what its members expand to, and what the header of each array announces,
are compared with each other and with what may be read. Only stored and deflated members are read,
as NumPy writes them, and no pickles.

**Parquet** says how many rows and columns it has; a constant column of any length takes a few
bytes. What a single page inside claims is known to the library alone, which asks for up to 2 GiB
for one: that is not looked at here.

**CSV** may be compressed, and has as many columns as its first line has commas.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.base.files import MIB, allowed, open_plain, too_large

if TYPE_CHECKING:
    import polars as pl

AGAIN = "The file is damaged or incomplete: get it again"

_PIECE = 1 << 16
_STEP = 1 << 18
_GZIP = b"\x1f\x8b"
_BZIP2 = b"BZh"
_GZIP_EXPANDS = 1_100
_BZIP2_EXPANDS = 25_000


class Source:
    """A data file read once, from front to back."""

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        """Look at the file's first bytes.

        Args:
            whole: whether its content is to be held in memory, and hence must not expand without
                limit.
        """
        self.path = path
        self.expands = 1
        self._most = self._allowed() if whole else None
        self._given = 0
        self._pieces = self._open()
        self._rest = b""
        self._at = 0

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
        out = bytearray(size)
        filled = self._into(memoryview(out))
        return bytes(out[:filled])

    def exactly(self, size: int, what: str) -> bytes:
        """``size`` bytes of ``what``, or a DataError that counts what was found."""
        found = self.read(size)
        if len(found) < size:
            raise self.damaged(
                f"expected {size} bytes of {what}", f"the file ends after {len(found)} of them"
            )
        return found

    def fill(self, out: memoryview, what: str) -> None:
        """Fill ``out`` (bytes) with ``what``, or say how many bytes were found."""
        filled = self._into(out)
        if filled < len(out):
            raise self.damaged(
                f"expected {len(out)} bytes of {what}", f"the file ends after {filled} of them"
            )

    def end(self, what: str) -> None:
        """Insist that nothing follows ``what``; also verifies the checksum of a compressed file."""
        if self.read(1):
            raise self.damaged(f"expected the end of the file after {what}", "more bytes follow")

    def drain(self) -> None:
        """Read to the end, so that a compressed file's own checksum is verified."""
        while self.read(_PIECE):
            pass

    def whole(self) -> bytes:
        """Everything that is left, if it is not too much."""
        if self._most is None:
            self._most = self._allowed()
        return b"".join([self._rest[self._at :], *self._pieces])

    def check_room(self, size: int, what: str) -> None:
        """Refuse a header that announces more than the file can possibly hold."""
        held = self.path.stat().st_size
        if size > held * self.expands:
            raise self.damaged(
                f"expected {size} bytes of {what}, as the header says",
                f"the file has only {held} bytes",
            )

    def damaged(self, expected: str, found: str) -> DataError:
        """The one form in which a damaged file is reported."""
        return DataError(f"{self.path}: {expected}, but {found}. {AGAIN}")

    def _into(self, out: memoryview) -> int:
        filled = 0
        while filled < len(out):
            if self._at == len(self._rest):
                self._rest, self._at = next(self._pieces, b""), 0
                if not self._rest:
                    break
            take = min(len(out) - filled, len(self._rest) - self._at)
            out[filled : filled + take] = self._rest[self._at : self._at + take]
            filled += take
            self._at += take
        return filled

    def _allowed(self) -> int:
        try:
            return allowed(self.path.stat().st_size)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _count(self, more: int) -> None:
        self._given += more
        if self._most is not None and self._given > self._most:
            raise DataError(
                too_large(self.path, "it expands to more than", self._given - more, self._most)
            )

    def _open(self) -> Iterator[bytes]:
        # Not a generator itself: the file's kind must be known before the first read.
        try:
            with open_plain(self.path) as file:
                head = file.read(4)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
        if head.startswith(_GZIP):
            self.expands = _GZIP_EXPANDS
            return self._expanded(lambda file: gzip.GzipFile(fileobj=file), "gzip")
        if head.startswith(_BZIP2):
            self.expands = _BZIP2_EXPANDS
            return self._expanded(bz2.BZ2File, "bzip2")
        return self._stored()

    def _stored(self) -> Iterator[bytes]:
        try:
            with open_plain(self.path) as file:
                while piece := file.read(_PIECE):
                    yield piece
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _expanded(
        self, opened: Callable[[IO[bytes]], io.BufferedIOBase], kind: str
    ) -> Iterator[bytes]:
        try:
            with open_plain(self.path) as file, opened(file) as content:
                while plain := content.read(_STEP):
                    self._count(len(plain))
                    yield plain
        except EOFError as error:
            raise self.damaged(
                f"expected a complete {kind} stream", "it breaks off before its end mark"
            ) from error
        except (zlib.error, OSError, ValueError) as error:
            raise self.damaged(
                f"expected a {kind} stream", f"expanding it failed ({error})"
            ) from error


MOST_COLUMNS = 1 << 17
MOST_TEXT = 1 << 10
"""Bytes of a label or an owner."""
HEADER = 16 * MIB
"""Bytes of a CSV file's first line."""

_SAMPLE, _LINES = 1 << 16, 50
"""Bytes, and lines of them, that tell how a CSV file is written."""

_PACKED = (b"\x1f\x8b", b"BZh")
_UNKNOWN = (b"\x28\xb5\x2f\xfd", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda", b"\xfd7zXZ", b"PK\x03\x04")


def read_arrays(
    path: Path, wanted: Collection[str]
) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """The arrays of these names in an npz archive, and the names of all that it has.

    Raises:
        DataError: if it is damaged, or would expand to more than may be read.
    """
    try:
        with open_plain(path) as content, zipfile.ZipFile(content) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            chosen = {name: info for name, info in members.items() if name in wanted}
            total = sum(info.file_size for info in chosen.values())
            most = allowed(path.stat().st_size)
            if total > most:
                raise DataError(too_large(path, "its arrays expand to", total, most))
            return {name: _array(archive, info) for name, info in chosen.items()}, list(members)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        # zip, zlib and header parsers each have their own errors for damaged bytes
        raise DataError(
            f"{path}: expected an npz archive of plain arrays, but reading it failed ({error}). "
            "Arrays of Python objects are not read; save numbers or fixed-length text (numpy.savez)"
        ) from error


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename} is compressed in a way that NumPy does not write")
    with archive.open(info) as member:
        announced = _announced(member)
        held = info.file_size - member.tell()
    if announced != held:
        raise ValueError(
            f"the header of {info.filename} announces {announced} bytes, and {held} follow"
        )
    with archive.open(info) as member:
        found: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return found


def _announced(member: IO[bytes]) -> int:
    """Bytes of the numbers of an array, from its header."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(member)
    if version not in readers:
        raise ValueError(
            f"its header has version {version}, which arrays of plain numbers do not need"
        )
    shape, _, dtype = readers[version](member)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if any(side < 0 for side in shape):
        raise ValueError(f"its header announces the shape {shape}")
    return math.prod(shape) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class CsvForm:
    """The form of a CSV file.

    Attributes:
        separator: between two cells.
        decimal_comma: whether 1,5 is a number: with semicolons, as spreadsheets write it in much of
            Europe. Cells of the first lines decide it, and can change no feature of another row: in
            the other form a column with such numbers is refused as text.
    """

    separator: str = ","
    decimal_comma: bool = False


_COMMA = re.compile(rb"^\s*[+-]?\d+,\d+\s*$")


def form_of(head: bytes) -> CsvForm:
    """The form of a CSV file, by its first lines: commas, unless its header has none and parts its
    names by semicolons or tabs.

    >>> form_of(b"a;b\\n1,5;2\\n"), form_of(b"a,b\\n1,2\\n").separator
    (CsvForm(separator=';', decimal_comma=True), ',')
    """
    first, *others = head.splitlines()[:_LINES] or [b""]
    if b"," in first or not (parted := [mark for mark in (b";", b"\t") if mark in first]):
        return CsvForm()
    cells = [cell for line in others for cell in line.split(parted[0])]
    return CsvForm(parted[0].decode(), any(map(_COMMA.match, cells)))


def csv_input(path: Path) -> tuple[Path | bytes, CsvForm]:
    """Return the input for a CSV reader, which is the path of plain text, or what compressed text
    expands to; and its form.

    Raises:
        DataError: if it is compressed in a way that is not known here, expands too far, or has too
            many columns, or two of one name.
    """
    with open_plain(path) as file:
        head = file.read(HEADER)
    if head.startswith(_UNKNOWN):
        raise DataError(
            f"{path}: this is no text but a compressed file; expand it first (gzip and bzip2 "
            "are read as they are)"
        )
    content = Source(path, whole=True).whole() if head.startswith(_PACKED) else None
    start = head if content is None else content[:HEADER]
    first, form = start.partition(b"\n")[0], form_of(start[:_SAMPLE])
    if first.count(form.separator.encode()) >= MOST_COLUMNS:
        raise DataError(
            f"{path}: its first line has more than {MOST_COLUMNS:,} columns; is it a CSV file?"
        )
    _refuse_twice(path, first, form)
    return (path if content is None else content), form


def _refuse_twice(path: Path, header: bytes, form: CsvForm) -> None:
    """Refuse two columns of one name, the second of which a reader would call otherwise."""
    try:
        names = next(
            csv.reader([header.decode("utf-8-sig")], delimiter=form.separator, strict=True), []
        )
    except (UnicodeDecodeError, csv.Error):
        return  # the reader says it better
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise DataError(f"{path}: two columns are called {twice[0]!r}; rename one")


def refuse_large(path: Path, frame: pl.LazyFrame) -> None:
    """Refuse a Parquet file with more rows and columns than may be read."""
    import polars as pl

    schema = frame.collect_schema()
    if len(schema) > MOST_COLUMNS:
        raise DataError(
            f"{path}: it has {len(schema):,} columns, and at most {MOST_COLUMNS:,} are read"
        )
    if nested := [name for name, kind in schema.items() if kind.is_nested()]:
        raise DataError(
            f"{path}: column {nested[0]!r} holds {schema[nested[0]]}, not a number or a text "
            "in each row; drop it"
        )
    rows = int(frame.select(pl.len()).collect().item())
    # eight bytes as stored, four as a feature
    size, most = 12 * rows * len(schema), allowed(path.stat().st_size)
    if size > most:
        raise DataError(
            too_large(path, f"its {rows:,} rows of {len(schema):,} columns need", size, most)
        )


def refuse_long(series: pl.Series, place: str) -> None:
    """Refuse labels or owners of a length that no name has: all texts of an array are as wide."""
    import polars as pl

    longest = series.str.len_bytes().max() if series.dtype == pl.String else 0
    if isinstance(longest, int) and longest > MOST_TEXT:
        raise DataError(
            f"{place}: column {series.name!r} has a text of {longest:,} bytes; labels and "
            f"owners have at most {MOST_TEXT:,}"
        )
