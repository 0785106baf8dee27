"""Data sets as a front end shows them, once for each data set."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset
from sordino.data.features.front import Examples, FrontEnd, given, shape_of, tried
from sordino.data.features.kept import keep, kept, place_of
from sordino.data.features.progress import tell

ZERO = 128
"""The byte that stands for about zero."""


def featured(data: Dataset, front: FrontEnd | None, *, public: bool = False) -> Dataset:
    """The same examples with features in the place of ``x``; they stay recognisable by what they
    were.

    Args:
        front: the front end; with None, the data set as it is.
        public: whether the examples are: then their features are kept in the user's cache, where
            the next run finds them.

    Raises:
        StudyError: if the front end gives no features of single made-up examples.
    """
    if front is None:
        return data
    place = _place(data, front) if public and len(data) else None
    found = None if place is None else kept(place, (len(data), *shape_of(front, data.shape)))
    if found is None:
        found = _made(data, front)
        if place is not None:
            keep(place, found)
    return replace(data, x=found, origin=data.x)


def _made(data: Dataset, front: FrontEnd) -> Examples:
    """Features of all examples. One that has none has zeros: an end of the run, or a message that
    names it, would tell of it.
    """
    kind, wanted = tried(front, data.shape, data.x.dtype), shape_of(front, data.shape)
    found = np.empty((len(data), *wanted), kind)
    step = front.together if is_ours(front) else 1
    for start in range(0, len(data), step):
        some = slice(start, min(start + step, len(data)))
        if not _fill(found[some], front, data.x[some]):
            for i in range(some.start, some.stop):
                if not _fill(found[i : i + 1], front, data.x[i : i + 1]):
                    found[i] = ZERO if kind == np.uint8 else 0.0
        tell(data.name, some.stop, len(data))
    return found


def _fill(found: Examples, front: FrontEnd, x: Examples) -> bool:
    """Fill in the features of some examples; whether all of them have any."""
    # what one of somebody's own keeps of an example must not reach the next
    one = front if is_ours(front) else copy.deepcopy(front)
    try:
        with np.errstate(all="ignore"):
            features = given(one, x, found.shape[1:])
    except (Exception, SystemExit):  # a user's front end may raise anything
        return False
    if features.dtype != found.dtype or not np.isfinite(features).all():
        return False
    found[:] = features
    return True


def _place(data: Dataset, front: FrontEnd) -> Path | None:
    """Where features of these examples are kept; None for a front end of somebody's own, whose
    code may change.
    """
    if not is_ours(front):
        return None
    return place_of(f"{front.model_dump_json(exclude_none=True)}{data.fingerprint()}")


def is_ours(front: FrontEnd) -> bool:
    """Whether a front end is the program's own, so that its version says what it gives."""
    return type(front).__module__.startswith("sordino.")
