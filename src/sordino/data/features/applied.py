"""Data sets as a front end shows them, once for each data set."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset
from sordino.data.features.front import FRONT_ENDS, Examples, FrontEnd, given, shape_of, tried
from sordino.data.features.kept import keep, kept, place_of
from sordino.data.features.progress import tell
from sordino.errors import DataError


def featured(data: Dataset, front: FrontEnd | None, *, public: bool = False) -> Dataset:
    """The same examples with features in the place of ``x``; they stay recognisable by what they
    were.

    Args:
        front: the front end; with None, the data set as it is.
        public: whether the examples are: then their features are kept in the user's cache, where
            the next run finds them.

    Raises:
        StudyError: if the front end gives no features of single examples.
        DataError: if features of an example are not finite.
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
    kind, wanted = tried(front, data.shape, data.x.dtype), shape_of(front, data.shape)
    found = np.empty((len(data), *wanted), kind)
    step = front.together if _ours(front) else 1
    for start in range(0, len(data), step):
        some = slice(start, min(start + step, len(data)))
        try:
            # what one of somebody's own keeps of an example must not reach the next
            one = front if _ours(front) else copy.deepcopy(front)
            features = given(one, data.x[some], wanted)
            if not np.isfinite(features).all():
                raise DataError(f"its features of data.features kind '{front.kind}' are not finite")
        except DataError as error:
            raise DataError(
                f"{data.name}: example {_guilty(front, data, some, wanted)} (the first is 0): "
                f"{error}. Are its numbers as large as they should be? Divide all examples by a "
                "constant that does not depend on the data"
            ) from error
        if features.dtype != kind:
            raise FRONT_ENDS.wrong(front, "features", features, f"{kind} numbers, as it did before")
        found[some] = features
        tell(data.name, some.stop, len(data))
    return found


def _guilty(front: FrontEnd, data: Dataset, some: slice, wanted: tuple[int, ...]) -> int:
    """The first of some examples that has no features."""
    for i in range(some.start, some.stop):
        try:
            if not np.isfinite(given(front, data.x[i : i + 1], wanted)).all():
                return i
        except DataError:
            return i
    return int(some.start)


def _place(data: Dataset, front: FrontEnd) -> Path | None:
    """Where features of these examples are kept; None for a front end of somebody's own, whose
    code may change.
    """
    if not _ours(front):
        return None
    return place_of(f"{front.model_dump_json(exclude_none=True)}{data.fingerprint()}")


def _ours(front: FrontEnd) -> bool:
    return type(front).__module__.startswith("sordino.")
