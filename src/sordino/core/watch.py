"""What the kernel shares with those who watch a run and resume it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from sordino.base.message import Vector
from sordino.core.records import Row


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A moment as it is kept on disk: named arrays, and the rest as JSON."""

    vectors: dict[str, NDArray[Any]]
    rest: bytes


class Moment(Protocol):
    """A simulation at a point from which it may be resumed."""

    @property
    def number(self) -> int:
        """Rounds closed, or updates done."""
        ...

    @property
    def steps(self) -> int:
        """Local steps, or tasks, of the client that did most."""
        ...

    @property
    def model(self) -> Vector:
        """The model that is handed out, (d,)."""
        ...

    @property
    def ended(self) -> str | None:
        """Why the run is over, or None."""
        ...

    def pack(self) -> Packed:
        """As it is kept."""
        ...


Watched = TypeVar("Watched", contravariant=True)


class Watcher(Protocol[Watched]):
    """What a run tells while it goes on; written to by the simulation only."""

    def row(self, row: Row) -> None:
        """A finished row for the log."""
        ...

    def save(self, moment: Watched) -> None:
        """A point from which the run may be resumed."""
        ...


def bound(value: float) -> float | str:
    """A number that may be infinite, for JSON."""
    return "inf" if value == float("inf") else value
