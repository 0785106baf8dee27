"""What a stream of somebody's own gives, looked at before anything uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordino.data.stream.piece import Piece, Stream
from sordino.errors import StudyError

PARTS = ("name", "shape", "classes", "length", "columns", "read", "changes")
Wrong = Callable[[str, object, str], StudyError]
"""An error that names the class, of: the call, what it gave, what it must give."""


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """A stream whose pieces are looked at.

    Attributes:
        stream: somebody's own.
        wrong: what to raise.
    """

    stream: Stream
    wrong: Wrong

    @property
    def name(self) -> str:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return self.stream.name

    @property
    def shape(self) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return self.stream.shape

    @property
    def classes(self) -> tuple[str, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return self.stream.classes

    @property
    def length(self) -> int | None:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return self.stream.length

    @property
    def columns(self) -> tuple[str, ...] | None:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return self.stream.columns

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        given: object = self.stream.changes(start, stop)
        if not isinstance(given, tuple | list) or not all(
            isinstance(each, int | np.integer) for each in given
        ):
            raise self.wrong("changes", given, "the numbers of examples, a tuple")
        return tuple(map(int, given))

    def read(self, start: int, count: int) -> Piece:
        """See :class:`~sordino.data.stream.piece.Stream`.

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


def refuse_incomplete(given: object, wrong: Wrong, call: str) -> None:
    """Refuse what ``call`` gave if it is no stream.

    Raises:
        StudyError: naming what it lacks.
    """
    if missing := [part for part in PARTS if not hasattr(given, part)]:
        raise wrong(call, given, f"a stream, and this has no {', no '.join(missing)}")


def is_foreign(stream: object) -> bool:
    """Whether a stream, or what opens it, is of a class of somebody's own."""
    return not type(stream).__module__.startswith("sordino.")


def _described(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype.name} of shape {values.shape}"
    return type(values).__name__
