"""Load any data set: a published one by its name, or a user's own file.

The standard test set stays a test set. Where a user's file has none, a fixed fraction of
its rows is set aside, always the same ones: a split that changed from run to run would
let test rows of one run train the next, and bind every run to a different fingerprint.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sordino.data import cifar, locate
from sordino.data.dataset import Corpus, Dataset, Indices, Labels
from sordino.data.embedded import digits
from sordino.data.identity import words
from sordino.data.idx import read_images, read_labels
from sordino.data.libsvm import read_usps
from sordino.data.sets import PUBLISHED, Halves, Published, pick
from sordino.data.table import (
    SUFFIXES,
    Raw,
    Scale,
    client_names,
    encode_clients,
    encode_labels,
    read_npz,
    read_table,
)
from sordino.entropy import Seeded
from sordino.errors import DataError


def names() -> tuple[str, ...]:
    """Data sets that need no file argument and fit in memory."""
    return ("digits", *(name for name, known in PUBLISHED.items() if not known.streamed))


USPS_TRAIN, USPS_TEST = 7291, 2007


def load(
    name: str,
    *,
    file: str | os.PathLike[str] | None = None,
    label: str = "label",
    client_column: str | None = None,
    test_file: str | os.PathLike[str] | None = None,
    test_fraction: float | None = 0.2,
    scale: Scale | None = None,
    person: str | None = None,
    identify: bool = False,
    columns: Sequence[str] = (),
) -> Corpus:
    """A training and a test set.

    Args:
        name: one of :func:`names`, or ``package.module:NAME``; with ``file``, any name for reports.
        file: the user's own npz, CSV or Parquet file.
        label: the column of labels (CSV, Parquet).
        client_column: the column that says whose each example is (CSV, Parquet).
        test_file: a second file of the same form; otherwise ``test_fraction`` of ``file``.
        test_fraction: fraction of rows set aside where there is no test set, 0 < fraction < 1; None
            sets none aside, and the test set may then be empty.
        scale: public constants, known without looking at the data, by which features are divided.
        person: the column (or array) that says who a row is about.
        identify: whether the training set is to know what its examples are recognised by.
        columns: names of the features (CSV, Parquet), whatever order the file has them in; as they
            come, if left out. A second file has those of the first.
    """
    if file is not None:
        how = _How(label, client_column, scale, person, identify, tuple(columns))
        return _own(
            name, Path(file), None if test_file is None else Path(test_file), test_fraction, how
        )
    if person is not None:
        raise DataError(f"data.person: {name!r} names no persons; leave it out")
    found = _published(name)
    return (
        replace(found, train=replace(found.train, words=words(found.train.x, found.train.y)))
        if identify
        else found
    )


def _published(name: str) -> Corpus:
    if name == "digits":
        return digits()
    published = locate.named(name)
    if published is None:
        raise DataError(_unknown(name))
    if published.streamed:
        raise DataError(
            f"data.name: {name!r} is too large to be loaded; it is read as a stream, row by "
            f"row; to load: {', '.join(names())}"
        )
    train, test = (published.read or _HALVES[name])(locate.find(name), published)
    return Corpus(*(Dataset(name, x, y, published.classes) for x, y in (train, test)))


def labels(name: str) -> tuple[Labels, tuple[int, ...], tuple[str, ...]] | None:
    """Of a published training set, its labels, the shape of an example and the names of classes;
    None where that takes as long as loading all of it.
    """
    published = locate.named(name)
    if published is None or published.read or _HALVES.get(name) is not _idx_halves:
        return None
    images, targets, *_ = published.layouts[0]
    folder = locate.find(name)
    shape, y = read_labels(
        _present(folder, images, published),
        _present(folder, targets, published),
        len(published.classes),
    )
    return y, shape, published.classes


def _unknown(name: str) -> str:
    if Path(name).suffix in SUFFIXES:
        return f"data.name: {name!r} looks like a file; write file = {name!r} and choose any name"
    near = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"data.name: unknown data set {name!r}; {hint}known: {', '.join(names())}; your own "
        "file: file = 'x.csv' (or .parquet, .npz)"
    )


def _idx_halves(folder: Path, published: Published) -> Halves:
    train_x, train_y, test_x, test_y = (
        _present(folder, name, published) for name in published.layouts[0]
    )
    return read_images(train_x, train_y, len(published.classes)), read_images(
        test_x, test_y, len(published.classes)
    )


def _usps_halves(folder: Path, published: Published) -> Halves:
    train, test = (_present(folder, name, published) for name in published.layouts[0])
    return read_usps(train, USPS_TRAIN), read_usps(test, USPS_TEST)


def _cifar_halves(folder: Path, published: Published) -> Halves:
    whole = [
        layout for layout in published.layouts if all((folder / name).is_file() for name in layout)
    ]
    # Batches before archives: no decompression; the binary form before the python one: no pickle.
    first = max(
        whole, key=lambda layout: (len(layout) > 1, "binary" in layout[0] or ".bin" in layout[0])
    )
    if len(first) == 1:
        return cifar.read_archive(folder / first[0])
    return cifar.read_folder((folder / first[0]).parent)


_HALVES: dict[str, Callable[[Path, Published], Halves]] = {
    "fashion-mnist": _idx_halves,
    "mnist": _idx_halves,
    "cifar10": _cifar_halves,
    "usps": _usps_halves,
}


def _present(folder: Path, name: str, published: Published) -> Path:
    path = pick(folder, name, published.endings)
    if path is None:  # gone since the folder was found complete
        raise DataError(locate.missing_message(published))
    return path


@dataclass(frozen=True, slots=True)
class _How:
    """How a user's file is read; see :func:`load`."""

    label: str
    client_column: str | None
    scale: Scale | None
    person: str | None
    identify: bool
    columns: tuple[str, ...] = ()
    whose: str = "the agreed ones"


def _own(
    name: str, file: Path, test_file: Path | None, test_fraction: float | None, how: _How
) -> Corpus:
    train, test = _read(file, how)
    if test_file is not None:
        if test is not None:
            raise DataError(
                f"{file}: it has a test set of its own (x_test); leave data.test_file out"
            )
        first = replace(how, columns=train.columns, whose=f"those of {file}")
        test, surplus = _read(test_file, first)
        if surplus is not None:
            raise DataError(
                f"{test_file}: a test file must not have a test set of its own (x_test)"
            )
    if test is None and test_fraction is None:
        return _without_test(name, file, train)
    if test is None:
        return _set_aside(name, file, train, test_fraction)
    if train.x.shape[1:] != test.x.shape[1:] or train.x.dtype != test.x.dtype:
        raise DataError(
            f"{test_file or file}: test examples are {test.x.dtype} of shape {test.x.shape[1:]}, "
            f"training examples {train.x.dtype} of shape {train.x.shape[1:]}"
        )
    (train_y, test_y), classes = encode_labels((train.y, test.y), str(file))
    train_client = test_client = None
    names: tuple[str, ...] = ()
    if train.client is not None and test.client is not None:
        train_client, test_client = encode_clients((train.client, test.client))
        names = client_names((train.client, test.client))
    elif train.client is not None:
        train_client, names = _owned(train)
    return Corpus(
        _whole(name, train, train_y, classes, train_client, names),
        _whole(name, test, test_y, classes, test_client, names),
    )


def _read(file: Path, how: _How) -> tuple[Raw, Raw | None]:
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{file}: its kind is told by its ending, which must be one of {', '.join(SUFFIXES)}"
        )
    if file.suffix.lower() == ".npz":
        return read_npz(file, how.scale, person=how.person, identify=how.identify)
    return read_table(
        file,
        how.label,
        how.client_column,
        how.scale,
        person=how.person,
        identify=how.identify,
        columns=how.columns,
        whose=how.whose,
    ), None


def _without_test(name: str, file: Path, raw: Raw) -> Corpus:
    """All rows to train on, and a test set of none."""
    (y,), classes = encode_labels((raw.y,), str(file))
    client, names = _owned(raw)
    whole = _whole(name, raw, y, classes, client, names)
    return Corpus(whole, whole.take([]))


def _whole(
    name: str,
    raw: Raw,
    y: Labels,
    classes: tuple[str, ...],
    client: Labels | None,
    owners: tuple[str, ...],
) -> Dataset:
    return Dataset(
        name, raw.x, y, classes, client, owners=owners, words=raw.words, columns=raw.columns
    )


def _owned(raw: Raw) -> tuple[Labels | None, tuple[str, ...]]:
    """Whose each example is, as a number, and the names of the numbers."""
    return (
        (None, ())
        if raw.client is None
        else (encode_clients((raw.client,))[0], client_names((raw.client,)))
    )


def _set_aside(name: str, file: Path, raw: Raw, fraction: float | None) -> Corpus:
    if fraction is None or not (0 < fraction < 1 and math.isfinite(fraction)):
        raise DataError(
            f"data.test_fraction must lie between 0 and 1, got {fraction}; a run is always "
            "judged on rows it did not train on"
        )
    if len(raw.x) < 2:
        raise DataError(f"{file}: one row cannot be both training and test set")
    (y,), classes = encode_labels((raw.y,), str(file))
    client, names = _owned(raw)
    count = min(max(round(fraction * len(y)), 1), len(y) - 1)
    cut = len(y) - count
    chosen = np.sort(Seeded(0).at("test rows").permutation(len(y))[:count])
    # Test rows change places with the last rows, so that both sets are slices of the one copy in
    # memory.
    columns = tuple(values for values in (raw.x, y, client, raw.words) if values is not None)
    _swap_rows(columns, chosen[chosen < cut], np.setdiff1d(np.arange(cut, len(y)), chosen))
    whole = _whole(name, raw, y, classes, client, names)
    return Corpus(_stretch(whole, slice(cut)), _stretch(whole, slice(cut, None)))


def _stretch(whole: Dataset, rows: slice) -> Dataset:
    """Consecutive examples, not copied."""
    client, words = whole.client, whole.words
    return replace(
        whole,
        x=whole.x[rows],
        y=whole.y[rows],
        client=None if client is None else client[rows],
        words=None if words is None else words[rows],
    )


def _swap_rows(arrays: tuple[npt.NDArray[Any], ...], one: Indices, other: Indices) -> None:
    for array in arrays:
        array[one], array[other] = array[other], array[one]
