"""Checks of streams of somebody's own, before anything uses what they give."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import StudyError
from sordino.data.stream.piece import BLOCK, DerivedStream, Piece, Stream

PARTS = ("name", "shape", "classes", "length", "columns", "read", "changes")
AGAIN = 16
"""Examples of the first block that are read once more, by themselves."""
Wrong = Callable[[str, object, str], StudyError]
"""An error that names the class, of: the call, what it gave, what it must give."""


class Checked(DerivedStream):
    """A stream of somebody's own whose pieces are looked at; ``wrong`` makes what is raised."""

    def __init__(self, stream: Stream, wrong: Wrong) -> None:
        super().__init__(stream)
        self.wrong = wrong

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        given: object = self.stream.changes(start, stop)
        if not isinstance(given, tuple | list) or not all(
            isinstance(each, int | np.integer) for each in given
        ):
            raise self.wrong("changes", given, "the numbers of examples, a tuple")
        return tuple(map(int, given))

    def read(self, start: int, count: int) -> Piece:
        """Return the examples from ``start`` on.

        Raises:
            StudyError: if it is no piece of at most ``count`` such examples.
        """
        given: object = self.stream.read(start, count)
        features = int(np.prod(self.shape))
        if not isinstance(given, Piece):
            raise self.wrong("read", given, "a Piece")
        for what, values, shape, kind in (
            ("x", given.x, (len(given.y), features), np.float32),
            ("y", given.y, (len(given.y),), np.int64),
            ("entity", given.entity, (len(given.y),), np.int64),
        ):
            if what == "entity" and values is None:
                continue
            if (
                not isinstance(values, np.ndarray)
                or values.shape != shape
                or values.dtype != kind
                or len(values) > count
            ):
                raise self.wrong(
                    f"{what} of a Piece that read",
                    _described(values),
                    f"{np.dtype(kind).name} of shape {shape}, at most {count} examples",
                )
        if not np.isfinite(given.x).all():
            raise self.wrong("x of a Piece that read", "NaN or infinity", "finite numbers")
        if len(given.y) and not (given.y.min() >= 0 and given.y.max() < len(self.classes)):
            raise self.wrong(
                "y of a Piece that read",
                f"classes {given.y.min()} to {given.y.max()}",
                f"class numbers from 0 to {len(self.classes) - 1}",
            )
        return given


NO_LABEL = -1
"""The class of every example, as a drift sees it that declares nothing about labels."""


class Unlabelled(Checked):
    """A stream whose labels a drift does not see: all are :data:`NO_LABEL`."""

    def read(self, start: int, count: int) -> Piece:
        piece = self.stream.read(start, count)
        return Piece(piece.x, np.full_like(piece.y, NO_LABEL), piece.entity)


class Labelled(Checked):
    """A drift's stream over an untold one, with the labels of the stream itself, ``told``."""

    def __init__(self, stream: Stream, wrong: Wrong, told: Stream) -> None:
        super().__init__(stream, wrong)
        self.told = told

    def read(self, start: int, count: int) -> Piece:
        """Return the examples from ``start`` on.

        Raises:
            StudyError: if the examples are not those of the stream, in its order.
        """
        given: object = self.stream.read(start, count)
        own = self.told.read(start, count)
        if not isinstance(given, Piece) or not (
            np.array_equal(given.y, np.full_like(own.y, NO_LABEL))
            and _same_entities(given.entity, own.entity)
        ):
            raise self.wrong(
                "read",
                "other examples or labels than the stream has there",
                f"its examples in their order, with the label {NO_LABEL} that stands for all; or "
                "declare by_class = True (examples are chosen by class) or relabels = True "
                "(labels change)",
            )
        return Piece(given.x, own.y, own.entity)


def examine(stream: Stream, events: int, wrong: Wrong, *, one_label: bool) -> None:
    """Go through a stream of somebody's own before a promise about its entities is made.

    A price is that of an entity's appearances, and speaks of its own rows. So an entity that comes
    again must be known by its number, must keep its label where that is answered once for all, and
    an example must not depend on those around it.

    Raises:
        StudyError: naming what is not so.
    """
    seen: set[bytes] = set()
    labels: dict[int, int] = {}
    for start in range(0, events, BLOCK):
        piece = stream.read(start, min(BLOCK, events - start))
        # of the first block only: some streams go back by beginning again
        for i in range(0, 0 if start else len(piece), max(len(piece) // AGAIN, 1)):
            alone = stream.read(start + i, 1)
            if not len(alone) or not np.array_equal(alone.x[0], piece.x[i]):
                raise wrong(
                    f"read({start + i}, 1)",
                    "another example than as part of a longer piece",
                    "the same numbers however the reading is cut: an example that depends on "
                    "those around it tells of them at no price",
                )
        for i, (row, label) in enumerate(zip(piece.x, piece.y.tolist(), strict=True)):
            if piece.entity is None:
                word = hashlib.sha256(row.tobytes() + bytes(str(label), "ascii")).digest()
                if word in seen:
                    raise wrong(
                        "entity of a Piece that read",
                        f"None, and example {start + i} came before",
                        "whose each example is, as numbers, where one may come again: each "
                        "appearance has a price",
                    )
                seen.add(word)
            elif one_label and labels.setdefault(int(piece.entity[i]), label) != label:
                raise wrong(
                    "read",
                    f"entity {piece.entity[i]} with two labels",
                    "one label for each entity, since privacy.memoised answers it once for all",
                )
        if len(piece) < min(BLOCK, events - start):
            return


def refuse_incomplete(given: object, wrong: Wrong, call: str) -> None:
    """Refuse what ``call`` gave if it is no stream.

    Raises:
        StudyError: naming what it lacks.
    """
    if missing := [part for part in PARTS if not hasattr(given, part)]:
        raise wrong(call, given, f"a stream, and this has no {', no '.join(missing)}")


def _same_entities(given: NDArray[np.int64] | None, own: NDArray[np.int64] | None) -> bool:
    if given is None or own is None:
        return given is own
    return np.array_equal(given, own)


def _described(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype.name} of shape {values.shape}"
    return type(values).__name__
