"""What every simulation shares with those who watch and resume it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from sordino.engine.records import Row
from sordino.message import Vector
from sordino.privacy import Budget, Vault


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


class Watcher(Protocol):
    """What a run tells while it goes on; written to by the simulation only."""

    def row(self, row: Row) -> None:
        """A finished row for the log."""
        ...

    def save(self, moment: Any) -> None:
        """A point from which the run may be resumed."""
        ...


class Play(Protocol):
    """A federation on one machine, of any regime."""

    @property
    def vault(self) -> Vault:
        """Where charges go."""
        ...

    @property
    def units(self) -> Sequence[str]:
        """Ledger unit of each client."""
        ...

    @property
    def budget(self) -> Budget:
        """What a client may spend in all, at most."""
        ...

    @property
    def payable(self) -> list[int] | None:
        """Steps that each client could pay for when the run began, or rounds that all of them could; None without a limit."""
        ...

    def unpack(self, packed: Packed) -> Moment:
        """A moment that was kept.

        Raises:
            ValueError: if it cannot be one.
        """
        ...

    def run(self, moment: Any, watcher: Watcher) -> Moment:
        """Play from ``moment`` to the end of the run."""
        ...


def bound(value: float) -> float | str:
    """A number that may be infinite, for JSON."""
    return "inf" if value == float("inf") else value
