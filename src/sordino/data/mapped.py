"""Examples of many clients in files that are mapped into memory, not read into it.

A folder whose name ends in ``.mapped`` holds a plain ``.npy`` file for each array and one index:

    index.json   the format's number, and what the arrays do not say: classes, names of columns, the
                 SHA-256 of every file
    bounds.npy   where each client's examples begin, and the end of the last one's, (clients + 1,)
    prints.npy   the fingerprint of each client's examples, (clients, 32)
    x.npy y.npy  the examples, one client after another, as :class:`~sordino.data.dataset.Dataset`
                 has them
    words.npy    what each example is recognised by; people.npy whose it is, where that is named
    x_test.npy ...          the same four of a test set, if there is one

It is made from another file once (:func:`write`). To open it takes no time for each client and no
memory for each example: a page of ``x.npy`` is read when a client is drawn who has examples there,
and is given back to the system some clients later. So a run on a million clients needs the memory
of its cohort.

Labels are numbered, columns are encoded and persons' rows are counted when the folder is written,
by the study that it is written for; a study that reads it repeats none of these rules.

A run knows its data by fingerprints. They stand in ``prints.npy``, and hold as long as all files
are those of the index: those that a run asks for are read through once in a process, a little at a
time.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from sordino.base.errors import DataError
from sordino.base.files import MIB, object_of, read_plain, readable
from sordino.base.frozen import Frozen
from sordino.data.dataset import (
    Array,
    ByClient,
    ClientRanges,
    Corpus,
    Dataset,
    Indices,
    Names,
    Span,
    let_go,
)
from sordino.data.formats import checksum
from sordino.data.table import ReadOptions

ENDING = ".mapped"
FORMAT = 1
INDEX = "index.json"
MOST_INDEX = 256 * MIB
AT_ONCE = 1 << 14
"""Examples that are written at once."""

_TRAINING = ("x", "y", "words", "people")
_KINDS = {"bounds": (np.int64, 1), "prints": (np.uint8, 2)}
"""Types of arrays that are not examples, and their axes."""
_IDENTITY = {"words", "people", "words_test", "people_test"}
_KINDS |= dict.fromkeys(_IDENTITY, (np.uint64, 2))
_NAMES = {*_KINDS, "x", "y", "x_test", "y_test"}
"""Of all arrays: an index may name files elsewhere."""


class Index(Frozen, kw_only=True, forbid_unknown_fields=True):
    """``index.json``.

    Attributes:
        format: of the folder.
        name: of the data set.
        classes, columns, span: of the examples.
        person: the column that named persons, if any.
        owners: names of the clients; none where they are numbers.
        files: SHA-256 (hex) of every array's file, by its name.
    """

    format: int
    name: str
    classes: Names
    columns: Names
    span: Span | None
    person: str | None
    owners: Names
    files: dict[str, str]


def is_mapped(file: Path) -> bool:
    """Return whether a file's name says that it is such a folder."""
    return file.suffix.lower() == ENDING


def has_test(folder: Path) -> bool:
    """Return whether a folder holds a test set."""
    return (folder / "x_test.npy").is_file()


def write(
    folder: Path,
    parts: ByClient,
    test: Dataset | None,
    *,
    owners: Names = (),
    person: str | None = None,
) -> None:
    """Write the examples of clients, and a test set, into a new folder.

    Raises:
        DataError: if the folder is there, its name has another ending, or it cannot be written.
    """
    if not is_mapped(folder):
        raise DataError(f"{folder}: the name of a folder of mapped data ends in {ENDING}")
    if folder.exists():
        raise DataError(f"{folder}: it is there already. Choose another name, or delete it")
    draft = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700, parents=True)
        _fill(draft, parts, test, owners, person)
        draft.rename(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fill(
    draft: Path, parts: ByClient, test: Dataset | None, owners: Names, person: str | None
) -> None:
    whole, digests = parts.whole, dict[str, str]()
    arrays: dict[str, Array] = {
        "bounds": parts.bounds.astype(np.int64),
        "prints": np.frombuffer(parts.fingerprints.digests, np.uint8).reshape(-1, 32),
    }
    if test is not None and len(test):
        held = {f"{name}_test": getattr(test, name) for name in _TRAINING}
        arrays |= {name: values for name, values in held.items() if values is not None}
    for name, values in arrays.items():
        digests[name] = _saved(draft / f"{name}.npy", values)
    for name in _TRAINING:
        if (values := getattr(whole, name)) is not None:
            digests[name] = _saved(draft / f"{name}.npy", values, parts.order)
    index = Index(
        format=FORMAT,
        name=whole.name,
        classes=whole.classes,
        columns=whole.columns,
        span=whole.span,
        person=person,
        owners=owners,
        files=digests,
    )
    (draft / INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index), indent=1))


def _saved(path: Path, values: Array, order: Indices | None = None) -> str:
    """Write rows of an array, in some order, piece by piece; return its file's SHA-256 (hex)."""
    rows, kind = len(values if order is None else order), values.dtype.newbyteorder("<")
    shape, descr = (rows, *values.shape[1:]), np.lib.format.dtype_to_descr(kind)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows, AT_ONCE):
            at = slice(start, start + AT_ONCE)
            piece = values[at] if order is None else values[order[at]]
            file.write(np.ascontiguousarray(piece, kind).data)
        file.flush()
        os.fsync(file.fileno())
    return checksum(path)


def read(folder: Path, how: ReadOptions) -> Corpus:
    """Open a folder: the examples, mapped, and its test set, in memory and perhaps empty.

    Args:
        how: rules for columns, labels and persons, which must be those that the folder was written
            by, or left out.

    Raises:
        DataError: if a file is missing, or is not what the index says, or a rule differs.
    """
    with readable(folder, DataError, "Convert its source again"):
        index = _index(folder)
        _refuse_rules(folder, index, how)
        unread = set() if how.identify else _IDENTITY
        arrays: dict[str, Array] = {}
        for name in sorted((_NAMES & index.files.keys()) - unread):
            path = folder / f"{name}.npy"
            if checksum(path) != index.files[name]:  # cached: a run opens its data twice
                raise DataError(
                    f"{path}: not the file that was written here: its SHA-256 differs from that "
                    f"in {INDEX}. Convert the source again"
                )
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
    _refuse_odd(folder, arrays, persons=how.identify and index.person is not None)
    bounds = np.array(arrays["bounds"])
    _refuse_uneven(folder, bounds, arrays, len(index.owners))
    train = Dataset(
        index.name,
        arrays["x"],
        arrays["y"],
        index.classes,
        owners=index.owners,
        words=arrays.get("words"),
        people=arrays.get("people") if how.person is not None else None,
        columns=index.columns,
        span=index.span,
        blocks=ClientRanges(bounds, arrays["prints"].tobytes()),
    )
    let_go(train.y)
    held = {name: arrays.get(f"{name}_test") for name in _TRAINING}
    if not has_test(folder):
        held = {name: values[:0] for name in _TRAINING if (values := arrays.get(name)) is not None}
    test = {name: np.array(values) for name, values in held.items() if values is not None}
    people = test.get("people") if how.person is not None else None
    test_set = replace(
        train, x=test["x"], y=test["y"], owners=(), words=test.get("words"), people=people,
        blocks=None,
    )  # fmt: skip
    return Corpus(train, test_set)


def _index(folder: Path) -> Index:
    path = folder / INDEX
    content = read_plain(path, MOST_INDEX)
    found = object_of(content, path, DataError)
    if found.get("format") != FORMAT:
        raise DataError(
            f"{path}: format must be {FORMAT}, which this version reads; got "
            f"{found.get('format')!r}. Convert its source again"
        )
    return msgspec.json.decode(content, type=Index)


def _refuse_rules(folder: Path, index: Index, how: ReadOptions) -> None:
    """Refuse a study that reads the examples otherwise than they were written."""
    given = {
        "data.classes": (how.classes and tuple(how.classes), index.classes),
        "data.label_range": (how.label_range and tuple(how.label_range), index.span),
        "data.person": (how.person, index.person),
        "data.columns": (how.columns and tuple(how.columns), index.columns),
    }
    for key, (wanted, there) in given.items():
        if wanted and wanted != there:
            raise DataError(
                f"{folder}: {key} is {wanted!r}, and it was written with {there!r}. Leave the key "
                "out, or convert its source again with it"
            )
    if not how.encoding.plain or how.scale != 1.0:
        raise DataError(
            f"{folder}: data.categories, ranges, missing and scale were applied when it was "
            "written: leave them out"
        )


def _refuse_odd(folder: Path, arrays: dict[str, Array], *, persons: bool) -> None:
    """Refuse a folder that lacks an array, or has one of another kind than is written."""
    needed = {*_KINDS, "x", "y", *(("x_test", "y_test") if has_test(folder) else ())}
    needed -= _IDENTITY - ({"people"} if persons else set())
    missing = needed - arrays.keys()
    odd = {name for name, values in arrays.items() if not values.ndim}
    for name, (kind, axes) in _KINDS.items():
        if name in arrays and (arrays[name].dtype != kind or arrays[name].ndim != axes):
            odd.add(name)
    if missing or odd:
        raise DataError(
            f"{folder}: {', '.join(sorted(missing | odd))}: not there, or not an array as it is "
            "written here. Convert its source again"
        )


def _refuse_uneven(folder: Path, bounds: Indices, arrays: dict[str, Array], owners: int) -> None:
    """Refuse arrays, or names of owners, of different lengths: sums of what an index says are not
    trusted.
    """
    rows, clients = len(arrays["x"]), len(bounds) - 1
    lengths = {name: len(arrays[name]) for name in _TRAINING if name in arrays}
    if (
        clients < 1
        or bounds[0] != 0
        or bounds[-1] != rows
        or not (np.diff(bounds) > 0).all()
        or arrays["prints"].shape != (clients, 32)
        or set(lengths.values()) != {rows}
        or owners not in (0, clients)
    ):
        raise DataError(
            f"{folder}: its arrays do not fit together: {clients} clients, examples {lengths}. "
            "Convert its source again"
        )
