"""Users' files that announce more than they hold, refused before memory is asked for.

**npz** is a zip archive: what its members expand to, and what the header of each array announces,
are compared with each other and with what may be read. Only stored and deflated members are read,
as NumPy writes them, and no pickles.

**Parquet** says how many rows and columns it has; a constant column of any length takes a few
bytes. What a single page inside claims is known to the library alone, which asks for up to 2 GiB
for one: that is not looked at here.

**CSV** may be compressed, and has as many columns as its first line has commas.
"""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.base.files import MIB, allowed, open_plain, too_large
from sordino.data.source import Source

if TYPE_CHECKING:
    import polars as pl

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
class Form:
    """How a CSV file is written.

    Attributes:
        separator: between two cells.
        decimal_comma: whether 1,5 is a number: with semicolons, as spreadsheets write it in much of
            Europe. Cells of the first lines decide it, and can change no feature of another row: in
            the other form a column with such numbers is refused as text.
    """

    separator: str = ","
    decimal_comma: bool = False


_COMMA = re.compile(rb"^\s*[+-]?\d+,\d+\s*$")


def form_of(head: bytes) -> Form:
    """The form of a CSV file, by its first lines: commas, unless its header has none and parts its
    names by semicolons or tabs.

    >>> form_of(b"a;b\\n1,5;2\\n"), form_of(b"a,b\\n1,2\\n").separator
    (Form(separator=';', decimal_comma=True), ',')
    """
    first, *others = head.splitlines()[:_LINES] or [b""]
    if b"," in first or not (parted := [mark for mark in (b";", b"\t") if mark in first]):
        return Form()
    cells = [cell for line in others for cell in line.split(parted[0])]
    return Form(parted[0].decode(), any(map(_COMMA.match, cells)))


def csv_input(path: Path) -> tuple[Path | bytes, Form]:
    """What to give to a CSV reader: the path of plain text, or what compressed text expands to; and
    how it is written.

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


def _refuse_twice(path: Path, header: bytes, form: Form) -> None:
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
