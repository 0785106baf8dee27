"""Data sets as a front end shows them, once for each data set."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset
from sordino.data.features.front import FRONT_ENDS, Examples, FrontEnd, tried
from sordino.data.locate import cache_folder
from sordino.errors import DataError

AT_ONCE = 16
"""Examples that go through a front end together, if it has the same answer for each alone."""

VERSION = 1
"""Of the program's own front ends: a new one for other features."""

Told = Callable[[str, int, int], None]
_told: ContextVar[Told | None] = ContextVar("told", default=None)


@contextlib.contextmanager
def watched(told: Told) -> Iterator[None]:
    """Tell how far features are: what they are of, how many examples are done, and of how many."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


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
    if not len(data):
        x = np.empty((0, *front.shape(data.shape)), _kind(front, data))
        return replace(data, x=x, origin=data.x)
    place = _place(data, front) if public else None
    found = None if place is None else _kept(place, (len(data), *front.shape(data.shape)))
    if found is None:
        found = _made(data, front)
        if place is not None:
            _keep(place, found)
    return replace(data, x=found, origin=data.x)


def _made(data: Dataset, front: FrontEnd) -> Examples:
    step = tried(front, data.shape, data.x.dtype) or AT_ONCE
    wanted, told = front.shape(data.shape), _told.get()
    found: Examples | None = None
    for start in range(0, len(data), step):
        given: object = front.features(data.x[start : start + step].copy())
        if found is None:
            found = np.empty(
                (len(data), *wanted), given.dtype if isinstance(given, np.ndarray) else np.float32
            )
        here = found[start : start + step]
        if not isinstance(given, np.ndarray) or (given.shape, given.dtype) != (
            here.shape,
            found.dtype,
        ):
            raise FRONT_ENDS.wrong(
                front, "features", given, f"{found.dtype} numbers of shape {here.shape}"
            )
        if given.dtype == np.float32 and not np.isfinite(given).all():
            raise DataError(
                f"{data.name}: data.features kind '{front.kind}' gives features that are "
                f"not finite for one of the examples {start} to {start + len(given) - 1}"
            )
        here[...] = given
        if told is not None:
            told(data.name, min(start + step, len(data)), len(data))
    assert found is not None
    return found


def _kind(front: FrontEnd, data: Dataset) -> np.dtype[np.uint8] | np.dtype[np.float32]:
    """The type of a front end's features."""
    from sordino.data.features.front import made_up

    kind: np.dtype[np.uint8] = front.features(made_up(data.shape, data.x.dtype)[:1]).dtype
    return kind


def _place(data: Dataset, front: FrontEnd) -> Path | None:
    """Where features of these examples are kept; None for a front end of somebody's own, whose
    code may change.
    """
    if ":" in front.kind:
        return None
    key = f"{VERSION}{front.model_dump_json()}{data.fingerprint()}"
    return cache_folder() / "features" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"


def _kept(place: Path, shape: tuple[int, ...]) -> Examples | None:
    """What a file of features holds, read where it lies; None if it is not there or not whole."""
    try:
        found = np.load(place, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return found if found.shape == shape and found.dtype == np.uint8 else None


def _keep(place: Path, features: Examples) -> None:
    """Keep features; where that cannot be done they are made again next time."""
    if features.dtype != np.uint8:
        return
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(f".{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                np.save(file, features, allow_pickle=False)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
