r"""Front ends: fixed functions of one example, which a model sees in its place.

========== ===============================================================================
scattering two layers of fixed wavelets (Bruna and Mallat 2013), for images
random     convolutions with random filters from a public seed
========== ===============================================================================

A front end must look at one example alone: then the features of neighbouring data sets differ in
one example, too, and every guarantee for examples is one for theirs. It must not learn anything
from data: no mean, no deviation, no dictionary. What it needs at random comes from a public seed.

**It is tried before it sees data**, on made-up examples of the right shape: alone, together, in
another order and once more. A front end that gives other features to the same example then is
refused.

**Examples go through one by one.** Matrix products of libraries give other last digits to an
example beside others, by its place among them; a byte that is rounded from such a number may change
as well. And no trial on made-up examples shows what a front end does with other ones. Alone, an
example has no neighbours to depend on. (A front end whose sums do not depend on neighbours
to the last bit may take several together: ``together``.)

**A front end of your own** is a class with a registration, or ``kind = "package.module:Class"`` in
a study (docs/own-tables.md).

Shapes: examples (n, *shape), ``uint8`` pixels or ``float32``; features (n, *other), ``float32``, or
``uint8`` where every feature lies between two public limits: then a byte b stands for
(b - 127.5) / 127.5, as with pixels.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib
import os
import stat
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError, no_memory
from sordino.base.files import cache_folder, fresh_below, own_folder, trusted
from sordino.base.registry import Registry, Section, foreign
from sordino.data.dataset import Array, Dataset, Shape
from sordino.data.notices import tell

Examples = Array

TRIED = 6
_ROUNDING = 1e-3  # of features, relative to the largest: what another order of sums may change


class FrontEnd(Section):
    """One front end, and the ``data.features`` table of a study that asks for it.

    Its fields are the keys.
    """

    kind: str

    @property
    def together(self) -> int:
        """Examples that may go through at once: one, unless all that is done to several at
        once gives each the same bits in any company, as whole numbers and loops over examples do.
        """
        return 1

    @property
    def settings(self) -> tuple[tuple[str, object], ...]:
        """Its keys and values, but its name and what is not set."""
        found = self.model_dump(exclude={"kind"}, exclude_none=True)
        return tuple(found.items())

    def shape(self, shape: Shape) -> Shape:
        """Shape of an example's features, by that of an example.

        Raises:
            StudyError: if it takes no such examples.
        """
        raise NotImplementedError

    def features(self, x: Examples) -> Examples:
        """Features (n, *shape) of examples (n, ...), each of its own example alone."""
        raise NotImplementedError


FRONT_ENDS = Registry(
    base=FrontEnd,
    noun="front end",
    place="data.features",
    needs=("shape", "features"),
    load=lambda: importlib.import_module("sordino.data.scattering"),
)


def tried(front: FrontEnd, shape: Shape, kind: np.dtype[Any]) -> np.dtype[Any]:
    """The type of a front end's features, once it has been tried.

    Raises:
        StudyError: if it gives no features, or features that depend on other examples.
    """
    wanted = shape_of(front, shape)
    x = made_up(shape, kind)
    together = _tried_on(front, x, wanted)

    def one_by_one() -> Array:
        return np.concatenate([_tried_on(front, x[i : i + 1], wanted) for i in range(len(x))])

    alone = one_by_one()
    turned = _tried_on(front, x[::-1].copy(), wanted)[::-1]
    few = _tried_on(front, x[:2].copy(), wanted)
    if not np.array_equal(alone, one_by_one()):
        raise _refused(front, "gives another answer when it is asked again")
    same = _close if front.together == 1 else np.array_equal
    for found, beside in ((together, alone), (turned, alone), (few, alone[:2])):
        if not same(found, beside):
            raise _refused(front, "looks at more than one example")
    return alone.dtype


def made_up(shape: Shape, kind: np.dtype[Any]) -> Examples:
    """Examples of a shape and type that are nobody's: random ones, one of them dark."""
    rng = Seeded(0).at("made-up examples")
    bytes_ = rng.integers(0, 256, (TRIED, *shape))
    bytes_[1] //= 16
    found = bytes_.astype(np.uint8)
    return found if kind == np.uint8 else (found.astype(np.float32) - 127.5) / np.float32(127.5)


def _close(found: Examples, beside: Examples) -> bool:
    if found.dtype == np.uint8:
        return bool(np.abs(found.astype(np.int16) - beside).max(initial=0) <= 1)
    most = float(np.abs(beside).max(initial=0.0))
    return bool(np.abs(found - beside).max(initial=0.0) <= _ROUNDING * most)


def shape_of(front: FrontEnd, shape: Shape) -> Shape:
    """Shape of an example's features, by that of an example, if it is one.

    Raises:
        StudyError: if it is none, or the front end takes no such examples.
    """
    value: object = front.shape(shape)
    if not (
        isinstance(value, tuple) and value and all(isinstance(n, int) and n > 0 for n in value)
    ):
        raise FRONT_ENDS.wrong(front, "shape", value, "a shape: a tuple of positive whole numbers")
    return value


def given(front: FrontEnd, x: Examples, wanted: Shape) -> Examples:
    """Features of examples, finite or not.

    Raises:
        StudyError: if they are none of the right shape and type.
    """
    from sordino.base.settings import own_code  # loads torch

    with own_code(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # one would tell of an example
        value: object = front.features(x.copy())
    asked, told = (len(x), *wanted), value
    if isinstance(value, np.ndarray):
        if value.dtype in (np.uint8, np.float32) and value.shape == asked:
            return value
        told = f"{value.dtype} numbers of shape {value.shape}"
    raise FRONT_ENDS.wrong(front, "features", told, f"uint8 or float32 numbers of shape {asked}")


def _tried_on(front: FrontEnd, x: Examples, wanted: Shape) -> Examples:
    found = given(front, x, wanted)
    if not np.isfinite(found).all():
        raise _refused(front, "gives features that are not finite")
    return found


def _refused(front: FrontEnd, why: str) -> StudyError:
    return StudyError(
        f"data.features kind '{front.kind}' {why}: features must be a fixed function of one "
        "example. It was tried on made-up examples; no data was read"
    )


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
    place = found = None
    if public and len(data) and not foreign(front):  # the code of somebody's own may change
        place = place_of(f"{front.model_dump_json(exclude_none=True)}{data.fingerprint()}")
        found = kept(place, (len(data), *shape_of(front, data.shape)))
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
    step = 1 if foreign(front) else front.together
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
    one = copy.deepcopy(front) if foreign(front) else front
    try:
        with np.errstate(all="ignore"):
            features = given(one, x, found.shape[1:])
    except BaseException as error:  # a user's front end may raise anything
        if isinstance(error, KeyboardInterrupt) or (no_memory(error) and not foreign(front)):
            raise
        return False
    if features.dtype != found.dtype or not np.isfinite(features).all():
        return False
    found[:] = features
    return True


VERSION = 5
"""Of the program's own front ends: a new one for other features."""

_SUM = 32


def place_of(what: str) -> Path:
    """Return the file for bytes that are determined by ``what`` and by the program's front ends."""
    key = hashlib.sha256(f"{VERSION}{what}".encode()).hexdigest()[:32]
    return cache_folder() / "features" / f"{key}.npy"


def kept(place: Path, shape: Shape) -> Examples | None:
    """Return the features in a file, read where it lies; None if it is not there or not whole, or
    somebody else can have written it.
    """
    try:
        with own_folder(place.parent, make=False) as held:
            about = os.stat(place.name, dir_fd=held, follow_symlinks=False)
            if not (stat.S_ISREG(about.st_mode) and trusted(about)):
                return None
        found = np.lib.format.open_memmap(place, mode="c")
        with place.open("rb") as file:
            file.seek(-_SUM, os.SEEK_END)
            digest = file.read()
    except Exception:  # readers of headers have many errors for damaged bytes
        return None
    whole = found.shape == shape and found.dtype == np.uint8 and _sum(found) == digest
    return found if whole else None


def keep(place: Path, features: Examples) -> None:
    """Keep features and their digest; where that cannot be done they are made again next time."""
    if features.dtype != np.uint8:
        return
    with (
        contextlib.suppress(OSError, StudyError),
        own_folder(place.parent, make=True),
        fresh_below(place.parent, place.name, mode=0o600) as file,
    ):
        np.save(file, features, allow_pickle=False)
        file.write(_sum(features))


def _sum(features: Examples) -> bytes:
    """A digest: a power failure may leave a file of the right length that holds other bytes."""
    return hashlib.sha256(np.ascontiguousarray(features).data).digest()
