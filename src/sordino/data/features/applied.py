"""Data sets as a front end shows them, once for each data set."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset
from sordino.data.features.front import FRONT_ENDS, Examples, FrontEnd, given, shape_of, tried
from sordino.errors import DataError
from sordino.files import cache_folder

TOLD_EVERY = 16
"""Examples between two words on how far features are."""

VERSION = 2
"""Of the program's own front ends: a new one for other features."""

_SUM = 32

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
    place = _place(data, front) if public and len(data) else None
    found = None if place is None else _kept(place, (len(data), *shape_of(front, data.shape)))
    if found is None:
        found = _made(data, front)
        if place is not None:
            _keep(place, found)
    return replace(data, x=found, origin=data.x)


def _made(data: Dataset, front: FrontEnd) -> Examples:
    kind, wanted = tried(front, data.shape, data.x.dtype), shape_of(front, data.shape)
    found, told = np.empty((len(data), *wanted), kind), _told.get()
    for i in range(len(data)):
        try:
            one = given(front, data.x[i : i + 1], wanted)
            if not np.isfinite(one).all():
                raise DataError(f"its features of data.features kind '{front.kind}' are not finite")
        except DataError as error:
            raise DataError(
                f"{data.name}: example {i} (the first is 0): {error}. Are its numbers as large as "
                "they should be? Divide all examples by a constant that does not depend on the data"
            ) from error
        if one.dtype != kind:
            raise FRONT_ENDS.wrong(front, "features", one, f"{kind} numbers, as it did before")
        found[i] = one[0]
        if told is not None and ((i + 1) % TOLD_EVERY == 0 or i + 1 == len(data)):
            told(data.name, i + 1, len(data))
    return found


def _place(data: Dataset, front: FrontEnd) -> Path | None:
    """Where features of these examples are kept; None for a front end of somebody's own, whose
    code may change.
    """
    if not type(front).__module__.startswith("sordino."):
        return None
    key = f"{VERSION}{front.model_dump_json()}{data.fingerprint()}"
    return cache_folder() / "features" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"


def _kept(place: Path, shape: tuple[int, ...]) -> Examples | None:
    """What a file of features holds, read where it lies; None if it is not there or not whole."""
    try:
        found = np.lib.format.open_memmap(place, mode="c")
        with place.open("rb") as file:
            file.seek(-_SUM, os.SEEK_END)
            told = file.read()
    except Exception:  # readers of headers have many errors for damaged bytes
        return None
    whole = found.shape == shape and found.dtype == np.uint8 and _sum(found) == told
    return found if whole else None


def _keep(place: Path, features: Examples) -> None:
    """Keep features and their digest; where that cannot be done they are made again next time."""
    if features.dtype != np.uint8:
        return
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(f".{secrets.token_hex(8)}.part")
        try:
            with part.open("xb") as file:
                np.save(file, features, allow_pickle=False)
                file.write(_sum(features))
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)


def _sum(features: Examples) -> bytes:
    """A digest: a power failure may leave a file of the right length that holds other bytes."""
    return hashlib.sha256(np.ascontiguousarray(features).data).digest()
