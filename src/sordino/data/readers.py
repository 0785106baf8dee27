"""Load any data set: a published one by its name, or a user's own file.

The standard test set stays a test set. Where a user's file has none, a fixed fraction of
its rows is set aside, always the same ones: a split that changed from run to run would
let test rows of one run train the next, and bind every run to a different fingerprint.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError
from sordino.data import identity, mapped, sets
from sordino.data.dataset import Corpus, Dataset
from sordino.data.labels import clamped, encode, encode_clients
from sordino.data.sets import NAMES, PUBLISHED, embedded
from sordino.data.table import Raw, ReadOptions, ending, read_npz, read_table


def names() -> tuple[str, ...]:
    """Data sets that need no file argument and fit in memory."""
    return (*NAMES, *(name for name, known in PUBLISHED.items() if known.rows is None))


def load(
    name: str,
    *,
    file: Path | None = None,
    test_file: Path | None = None,
    test_fraction: float | None = 0.2,
    how: ReadOptions | None = None,
) -> Corpus:
    """A training and a test set.

    Args:
        name: one of :func:`names`, or ``package.module:NAME``; with ``file``, any name for reports.
        file: the user's own npz, CSV or Parquet file, or a folder of mapped data.
        test_file: a second file of the same form; otherwise ``test_fraction`` of ``file``. It has
            the columns of the first.
        test_fraction: fraction of rows set aside where there is no test set, 0 < fraction < 1; None
            sets none aside, and the test set may then be empty.
        how: settings for a file; of a published one, whether its examples are to know what they are
            recognised by.
    """
    how = ReadOptions() if how is None else how
    if file is not None and mapped.is_mapped(file):
        return _mapped(file, test_file, test_fraction, how)
    if file is not None:
        return _own(name, file, test_file, test_fraction, how)
    if how.person is not None:
        raise DataError(f"data.person: {name!r} names no persons; leave it out")
    found = _published(name)
    if not how.identify:
        return found
    both = (found.train, found.test)
    words = (identity.words(identity.features(each.x), identity.column(each.y)) for each in both)
    return Corpus(*(replace(each, words=of) for each, of in zip(both, words, strict=True)))


def _mapped(
    folder: Path, test_file: Path | None, test_fraction: float | None, how: ReadOptions
) -> Corpus:
    found = mapped.read(folder, how)
    if test_fraction is not None:
        raise DataError(
            f"{folder}: data.test sets a share of the rows aside, and mapped rows stay where they "
            "are. Set it when you convert the source (data.test = 'public share'), and data.test = "
            "'file' here"
        )
    if test_file is None:
        return found
    if len(found.test):
        raise DataError(f"{folder}: it has a test set of its own; leave data.test_file out")
    span = found.train.span
    like = replace(
        how,
        columns=found.train.columns,
        whose=f"those of {folder}",
        classes=found.train.classes or None,
        target="classes" if span is None else "number",
        label_range=span,
    )
    test = load(found.train.name, file=test_file, test_fraction=None, how=like).train
    return Corpus(found.train, replace(test, name=found.train.name))


def _published(name: str) -> Corpus:
    if name in NAMES:
        return embedded(name)
    published = sets.known(name)
    if published.rows is not None:
        raise DataError(
            f"data.name: {name!r} is too large to be loaded; it is read as a stream, row by "
            f"row; to load: {', '.join(names())}"
        )
    assert published.read is not None
    train, test = published.read(sets.find(name), published)
    return Corpus(*(Dataset(name, x, y, published.classes) for x, y in (train, test)))


def _own(
    name: str, file: Path, test_file: Path | None, test_fraction: float | None, how: ReadOptions
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
    both = (train,) if test is None else (train, test)
    parts, classes = encode(
        [each.y for each in both], str(file), how.target, how.label_range, how.classes
    )
    span = how.label_range if how.target == "number" else None
    whole = all(raw.client is not None for raw in both)
    clients = [raw.client for raw in (both if whole else both[:1]) if raw.client is not None]
    numbers, owners = encode_clients(clients) if clients else ((), ())
    sets = [
        Dataset(
            name,
            raw.x,
            y,
            classes,
            client,
            owners=() if client is None else owners,
            words=raw.words,
            people=raw.people,
            columns=raw.names,
            span=span,
        )
        for raw, y, client in zip_longest(both, parts, numbers)
    ]
    if test is not None:
        corpus = Corpus(*sets)
    elif test_fraction is None:
        corpus = Corpus(sets[0], sets[0].take([]))
    else:
        corpus = _set_aside(str(file), sets[0], test_fraction)
    if span is None:
        return corpus
    # numbers that are trained on stay within their range; those that are measured on need not
    return replace(corpus, train=replace(corpus.train, y=clamped(corpus.train.y)))


def _read(file: Path, how: ReadOptions) -> tuple[Raw, Raw | None]:
    if ending(file) == ".npz":
        return read_npz(file, how)
    return read_table(file, how), None


def _set_aside(place: str, whole: Dataset, fraction: float) -> Corpus:
    if len(whole) < 2:
        raise DataError(f"{place}: one row cannot be both training and test set")
    y = whole.y
    if whole.people is not None:  # all rows of a person
        chosen = np.flatnonzero(identity.in_share(whole.people[:, 0], fraction))
        if not 0 < len(chosen) < len(y):
            raise DataError(
                f"{place}: data.test sets {fraction:g} of the persons aside, who are chosen by "
                f"their names, and {'all' if len(chosen) else 'none'} of these few are: give "
                "another data.test_share, or data.test = 'file' with rows of other persons"
            )
    else:
        count = min(max(round(fraction * len(y)), 1), len(y) - 1)
        chosen = np.sort(Seeded(0).at("test rows").permutation(len(y))[:count])
    cut = len(y) - len(chosen)
    # Test rows change places with the last rows, so that both sets are slices of the one copy in
    # memory.
    one, other = chosen[chosen < cut], np.setdiff1d(np.arange(cut, len(y)), chosen)
    for values in (whole.x, y, whole.client, whole.words, whole.people):
        if values is not None:
            values[one], values[other] = values[other], values[one]
    return Corpus(whole.take(slice(cut)), whole.take(slice(cut, None)))
