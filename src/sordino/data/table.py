"""A user's own file: CSV, Parquet or npz.

**CSV and Parquet.** One row is one example. One column holds the label (``label``), one
may say whose the example is (``client``), every other column is a numeric feature.

**npz.** Arrays ``x`` (examples first) and ``y``; optionally ``client``, and ``x_test`` with
``y_test`` (and ``client_test``). Images without a channel axis, (examples, height, width),
get one. Type ``uint8`` means pixels; anything else becomes ``float32``.

**Labels** are classes or numbers (:mod:`sordino.data.labels`); columns of names, gaps and ranges
follow public rules (:mod:`sordino.data.encoding`).

**No missing values** but those that a rule covers. Any other gap, a NaN or an infinity is refused
with its row and column: a row that silently disappeared would change the number of examples that
the guarantee speaks about.

A CSV file's columns are parted by commas, semicolons or tabs; its first line tells which.

CSV files carry no length: one that breaks off inside a row with too few columns is
refused, one that breaks off elsewhere cannot be recognised. Parquet and npz can.

**Memory.** Columns are copied into the one feature matrix and dropped from the table one
at a time, so that there is never a second float copy of the whole.

**Files that announce more than they hold** are refused before memory is asked for. An npz file is a
zip archive: what its members expand to, and what the header of each array announces, are compared
with each other and with what may be read. Only stored and deflated members are read, as NumPy
writes them, and no pickles. Parquet says how many rows and columns it has; a constant column of any
length takes a few bytes. What a single page inside claims is known to the library alone, which asks
for up to 2 GiB for one: that is not looked at here. CSV may be compressed, and has as many columns
as its first line has commas.
"""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sordino.base.errors import DataError
from sordino.base.files import MIB, allowed, open_plain, readable, too_large
from sordino.data import identity
from sordino.data.dataset import (
    Array,
    Features,
    Names,
    Single,
    Span,
    Words,
    listed,
    refuse_non_finite,
    single,
)
from sordino.data.encoding import Encoding, refuse_gaps, refuse_text
from sordino.data.formats import Source
from sordino.data.labels import Target, refuse_nobody

if TYPE_CHECKING:
    import polars as pl

ARRAYS = tuple(f"{name}{half}" for half in ("", "_test") for name in ("x", "y", "client"))
SUFFIXES = (".csv", ".parquet", ".npz")
WIDE = ("Int128", "UInt128")
MOST_MISTAKES = 20
"""Columns whose mistakes are named."""
MOST_COLUMNS = 1 << 17
MOST_TEXT = 1 << 10
"""Bytes of a label or an owner."""
HEADER = 16 * MIB
"""Bytes of a CSV file's first line."""

_SAMPLE, _LINES = 1 << 16, 50
"""Bytes, and lines of them, that tell how a CSV file is written."""

_PACKED = (b"\x1f\x8b", b"BZh")
_UNKNOWN = (b"\x28\xb5\x2f\xfd", b"x\x01", b"x\x5e", b"x\x9c", b"x\xda", b"\xfd7zXZ", b"PK\x03\x04")


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """Features that are ready, labels and owners as written, what rows and their persons are
    recognised by, and the names of the features where the file has any; ``columns`` are those that
    these were made of.
    """

    x: Features
    y: Array
    client: Array | None
    words: Words | None = None
    people: Words | None = None
    names: Names = ()
    columns: Names = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A user's settings for reading data of any kind.

    Attributes:
        label: the column of labels (CSV, Parquet).
        client_column: the column that says whose each example is (CSV, Parquet).
        person: the column (or array) that says who a row is about.
        identify: whether examples are to know what they are recognised by.
        scale: a public constant, known without looking at the data, by which features are divided.
        columns: names of the features (CSV, Parquet), whatever order the file has them in; as they
            come, if left out. ``whose`` they are, for refusals.
        encoding: public rules for columns that are no plain numbers, and for ranges.
        target: what labels are (:mod:`sordino.data.labels`); ``label_range`` of numbers,
            ``classes`` that there are, or those that occur if it is left out.
    """

    label: str = "label"
    client_column: str | None = None
    person: str | None = None
    identify: bool = False
    scale: float = 1.0
    columns: Sequence[str] = ()
    whose: str = "the agreed ones"
    encoding: Encoding = field(default_factory=Encoding)
    target: Target | None = None
    label_range: Span | None = None
    classes: Sequence[str] | None = None


def read_table(path: Path, how: ReadOptions) -> Raw:
    """A CSV or Parquet file."""
    texts = {*how.encoding.categories}
    texts |= {each for each in (how.person, how.client_column) if each is not None}
    if how.classes is not None and how.target is None:
        texts.add(how.label)
    return read_frame(frame_of(path, texts), how, str(path))


def read_frame(frame: pl.DataFrame, how: ReadOptions, place: str) -> Raw:
    """A table of one example a row. Its columns are let go of one by one, to save memory.

    The column ``person`` says who a row is about; it is no feature, and ``client_column`` may be
    the same. Features come in the order of ``columns``, if these are given.

    Args:
        place: what refusals call it.

    Raises:
        DataError: naming what cannot be read as examples.
    """
    label, client_column, person = how.label, how.client_column, how.person
    for role, column in (("label", label), ("client_column", client_column), ("person", person)):
        if column is not None and column not in frame.columns:
            raise DataError(
                f"{place}: no column {column!r} (data.{role}); its columns are "
                f"{listed(frame.columns)}"
            )
    for other, column in (("client", client_column), ("person", person)):
        if label == column:
            raise DataError(f"{place}: column {label!r} cannot be both the label and the {other}")
    # a dictionary, for a frame of many columns needs a time for each that grows with their number
    held = dict(zip(frame.columns, frame.get_columns(), strict=True))
    del frame
    mistakes: list[str] = []
    y = client = who = None
    with _noted(mistakes):
        y = _plain(held.pop(label), place)
    if client_column is not None:
        with _noted(mistakes):
            client = _named(held.pop(client_column), place)
            refuse_nobody(client, "client_column", place)
    if person is not None:
        with _noted(mistakes):
            who = client if person == client_column else _named(held.pop(person), place)
            if who is not None:
                refuse_nobody(who, "person", place)
    if not held:
        raise DataError(f"{place}: no feature columns beside {label!r}")
    columns = in_order(list(held), how.columns, place, how.whose)
    if how.encoding.plain:
        x, names, words = _numbers(held, columns, how, place, mistakes), tuple(columns), None
    else:
        x, names, words = _encoded(held, columns, how.encoding, place, mistakes)
    _refuse(mistakes)
    assert y is not None
    made = _made(place, how, x, names, words, y, client, who)
    return replace(made, columns=tuple(columns))


def _made(
    place: str,
    how: ReadOptions,
    x: Array,
    names: Names,
    words: Words | None,
    y: Array,
    client: Array | None,
    who: Array | None,
) -> Raw:
    """Examples, once their features are numbers; ``words`` are what features add to theirs."""
    found = people = None
    if how.identify:
        owners = [each for each in (client, None if who is client else who) if each is not None]
        own = identity.features(x) if words is None else words
        found = identity.words(own, identity.column(y), identity.columns(*owners))
        people = None if who is None else identity.persons(who)
    if x.dtype != np.uint8:
        if how.scale != 1.0:
            with np.errstate(over="ignore"):  # a warning would tell of a row
                x /= np.float32(how.scale)
        refuse_non_finite(x, place, names)
    return Raw(x[:, None] if x.ndim == 3 else x, y, client, found, people, names)


@contextmanager
def _noted(mistakes: list[str]) -> Iterator[None]:
    """Keep the mistake of one column, so that those of all are told together."""
    try:
        yield
    except DataError as error:
        mistakes.append(str(error))


def _refuse(mistakes: Sequence[str]) -> None:
    if mistakes:
        more = len(mistakes) - MOST_MISTAKES
        rest = [f"and {more} more columns that cannot be read"] if more > 0 else []
        raise DataError("\n".join([*mistakes[:MOST_MISTAKES], *rest]))


def _numbers(
    held: dict[str, pl.Series],
    columns: Sequence[str],
    how: ReadOptions,
    place: str,
    mistakes: list[str],
) -> Single:
    """Columns of numbers, (n, k); ``held`` is emptied."""
    x = np.empty((len(held[columns[0]]), len(columns)), dtype=np.float32)
    asks = " (is it the client column? name it in data.client_column)"
    hint = asks if how.client_column is None else ""
    for j, column in enumerate(columns):
        series = held.pop(column)
        with _noted(mistakes):
            refuse_text(series, place, hint)
            refuse_gaps(series, place)
            x[:, j] = single(_array(series))  # an infinity is refused by the caller with its place
    return x


def _encoded(
    held: dict[str, pl.Series],
    columns: Sequence[str],
    rules: Encoding,
    place: str,
    mistakes: list[str],
) -> tuple[Single, Names, Words]:
    """Columns by public rules, (n, k), their names, and each row's words of them as they stand."""
    rules.fits(columns, place)
    rows = len(held[columns[0]])
    x = np.empty((rows, sum(map(rules.width, columns))), dtype=np.float32)
    words = identity.NOTHING
    names: list[str] = []
    for column in columns:
        with _noted(mistakes):
            series = held.pop(column)
            made, own = rules.column(series, place)
            x[:, len(names) : len(names) + len(own)] = made
            names += own
            words = words + identity.series(series)
    return x, tuple(names), words


def ending(path: Path) -> str:
    """The ending of a file's name, by which its kind is known.

    Raises:
        DataError: if it is another.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: its ending says its kind, and must be one of {', '.join(SUFFIXES)}; or "
            ".mapped, of a folder that `sordino data convert` has written"
        )
    return path.suffix.lower()


def columns_of(path: Path) -> dict[str, Array]:
    """Every column of a CSV or Parquet file, (n,)."""
    ending(path)
    frame = frame_of(path)
    return {name: _plain(frame[name], str(path)) for name in frame.columns}


def read_npz(path: Path, how: ReadOptions) -> tuple[Raw, Raw | None]:
    """(the examples, the test examples if the file has any)."""
    arrays, found = read_arrays(path, (*ARRAYS, *(() if how.person is None else (how.person,))))
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(
                f"{path}: no array {name!r}; expected x and y (optional: client, x_test, "
                f"y_test), found {listed(found)}"
            )
    return from_arrays(arrays, how, str(path))


def from_arrays(arrays: dict[str, Array], how: ReadOptions, place: str) -> tuple[Raw, Raw | None]:
    """(the examples, the test examples if there are any), of arrays named as in an npz file.

    Args:
        arrays: "x" (n, ...) and "y" (n,); optionally "client" (n,), one named as ``how.person``
            (n,), and "x_test", "y_test", "client_test". It is emptied of features.
        place: what refusals call them.

    Raises:
        DataError: naming what cannot be read as examples.
    """
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{place}: x_test and y_test must come together")
    if how.person is not None and how.person not in arrays:
        raise DataError(
            f"{place}: no array {how.person!r} (data.person); found {listed(list(arrays))}"
        )
    train = _raw(place, arrays, "", how)
    test = _raw(place, arrays, "_test", replace(how, person=None)) if "x_test" in arrays else None
    return train, test


def _raw(place: str, arrays: dict[str, Array], suffix: str, how: ReadOptions) -> Raw:
    x, y, client = arrays.pop("x" + suffix), arrays["y" + suffix], arrays.get("client" + suffix)
    if x.dtype.kind not in "buif":
        raise DataError(f"{place}: x{suffix} must hold numbers, found {x.dtype}")
    if x.ndim < 2 or len(x) == 0 or x.size == 0:
        raise DataError(
            f"{place}: x{suffix} must have a row for each example, found shape {x.shape}"
        )
    who = None if how.person is None else arrays[how.person]
    for name, values in (("y", y), ("client", client), (how.person, who)):
        if values is not None and values.shape != (len(x),):
            raise DataError(
                f"{place}: {name}{suffix} must have one entry for each of {len(x)} examples, "
                f"found shape {values.shape}"
            )
    for role, values in (("client_column", client), ("person", who)):
        if values is not None:
            refuse_nobody(values, role, place)
    if x.dtype != np.uint8 or how.scale != 1.0:
        x = single(x)
    names: Names = ()
    words: Words | None = None
    if not how.encoding.plain:
        x, names, words = _encoded_array(x, how, f"{place}: x{suffix}")
    return _made(f"{place}: x{suffix}", how, x, names, words, y, client, who)


def _encoded_array(x: Array, how: ReadOptions, place: str) -> tuple[Single, Names, Words]:
    """An array (n, k) by public rules, its columns named as given, or by their numbers from 0."""
    if x.ndim != 2 or x.dtype == np.uint8:
        raise DataError(
            f"{place}: data.categories, data.ranges and data.missing are for tables, and this is "
            f"{x.dtype} of shape {x.shape[1:]} for each example; leave them out"
        )
    import polars as pl

    given = len(how.columns) == x.shape[1]
    names = [*how.columns] if given else [str(j) for j in range(x.shape[1])]
    held = {name: pl.Series(name, x[:, j]) for j, name in enumerate(names)}
    mistakes: list[str] = []
    found = _encoded(held, names, how.encoding, place, mistakes)
    _refuse(mistakes)
    return found


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Refuse a file that polars cannot read as what it should be.

    Raises:
        DataError: naming the file, and polars' first line on it.
    """
    from polars.exceptions import PanicException  # of its Rust part, and no Exception

    try:
        yield
    except DataError:
        raise
    except (Exception, PanicException) as error:
        first = str(error).splitlines()[0]
        raise DataError(f"{path}: expected {kind}, but reading it failed ({first})") from error


def frame_of(path: Path, texts: Collection[str] = ()) -> pl.DataFrame:
    """A file's table, of one row at least; ``texts`` are columns of a CSV file that are text, as it
    stands there: one fraction or word would change how all others are read. Between semicolons each
    decimal comma becomes a point, whether or not the first lines have one: a row would decide that
    for all others.
    """
    # Here, because polars takes a tenth of a second to import.
    import polars as pl

    if not path.is_file():
        raise DataError(f"{path}: no such file")
    parquet = path.suffix.lower() == ".parquet"
    kind = "a Parquet file" if parquet else "a CSV file with a header and equally long rows"
    with reading(path, kind):
        if parquet:
            refuse_large(path, pl.scan_parquet(path))
            frame = pl.read_parquet(path)
        else:
            content, form = csv_input(path)
            frame = pl.read_csv(
                content,
                infer_schema_length=None,
                separator=form.separator,
                decimal_comma=form.decimal_comma,
                schema_overrides=dict.fromkeys(texts, pl.String),
            )
            if form.separator == ";":
                held = [name for name in texts if name in frame.columns]
                frame = frame.with_columns(
                    pl.col(held).str.replace(r"^(\s*[+-]?\d*),(\d+\s*)$", "${1}.${2}")
                )
    if frame.height == 0:
        raise DataError(f"{path}: there are no rows")
    return frame


def _plain(series: pl.Series, place: str) -> Array:
    """Labels or owners as a NumPy array of integers, floats, or text."""
    refuse_gaps(series, place, "")
    if series.dtype.is_numeric():
        return _array(series)
    refuse_long(series, place)
    return np.array(
        [
            value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
            for value in series.to_list()
        ]
    )


def _named(series: pl.Series, place: str) -> Array:
    """Persons or clients as a NumPy array, each as the file names him."""
    if str(series.dtype) == "String":
        whole = series.cast(int, strict=False)
        return _plain(series if whole.null_count() else whole, place)
    return _plain(series.cast(str) if str(series.dtype) in WIDE else series, place)


def _array(series: pl.Series) -> Array:
    """Numbers as NumPy has them; it has none of 128 bits."""
    return (series.cast(float) if str(series.dtype) in WIDE else series).to_numpy()


SHOWN = 5


def in_order(found: Sequence[str], wanted: Sequence[str], place: str, whose: str) -> list[str]:
    """The columns ``found`` in the order ``wanted``; as they are where nothing is wanted.

    Args:
        place: the file, for a refusal; ``whose`` columns are wanted, such as "the agreed ones".

    Raises:
        DataError: if these are not the same names; with the first that are lacking or unknown.
    """
    if not wanted or list(found) == list(wanted):
        return list(found)
    there, asked = set(found), set(wanted)
    lacking = [name for name in wanted if name not in there]
    unknown = [name for name in found if name not in asked]
    if lacking or unknown:
        named = (("it lacks", lacking), ("it also has", unknown))
        told = [f"{what} {listed(list(map(repr, names)), SHOWN)}" for what, names in named if names]
        raise DataError(
            f"{place}: its {len(found)} feature columns are not {whose} ({len(wanted)}): "
            f"{', and '.join(told)}. Rename, add or drop columns"
        )
    return list(wanted)


def read_arrays(path: Path, wanted: Collection[str]) -> tuple[dict[str, Array], list[str]]:
    """The arrays of these names in an npz archive, and the names of all that it has.

    Raises:
        DataError: if it is damaged, or would expand to more than may be read.
    """
    remedy = (
        "Arrays of Python objects are not read; save numbers or fixed-length text (numpy.savez)"
    )
    with (
        readable(path, DataError, remedy),
        open_plain(path) as content,
        zipfile.ZipFile(content) as archive,
    ):
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        chosen = {name: info for name, info in members.items() if name in wanted}
        total = sum(info.file_size for info in chosen.values())
        most = allowed(path.stat().st_size)
        if total > most:
            raise DataError(too_large(path, "its arrays expand to", total, most))
        return {name: _member(archive, info) for name, info in chosen.items()}, list(members)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{info.filename} is compressed in a way that NumPy does not write")
    with archive.open(info) as member:
        form, old = np.lib.format, np.lib.format.read_magic(member) == (1, 0)
        read = form.read_array_header_1_0 if old else form.read_array_header_2_0
        shape, _, kind = read(member)
        if math.prod(shape) * kind.itemsize != info.file_size - member.tell():
            raise ValueError(f"the header of {info.filename} announces another size than it has")
    with archive.open(info) as member:
        found: Array = np.lib.format.read_array(member, allow_pickle=False)
    return found


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
    longest = series.str.len_bytes().max() if str(series.dtype) == "String" else 0
    if isinstance(longest, int) and longest > MOST_TEXT:
        raise DataError(
            f"{place}: column {series.name!r} has a text of {longest:,} bytes; labels and "
            f"owners have at most {MOST_TEXT:,}"
        )
