"""Simulations, their snapshots, and who listens: for who builds, plays, saves and resumes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from numpy.typing import NDArray

from sordino.base.message import Vector
from sordino.core.records import Row
from sordino.privacy import Budget, LedgerSession


@dataclass(frozen=True, slots=True, eq=False)
class EncodedSnapshot:
    """A moment as it is kept on disk: named arrays, and the rest as JSON."""

    vectors: dict[str, NDArray[Any]]
    rest: bytes


class Snapshot(Protocol):
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
        """Return why the run is over, or None."""
        ...

    def pack(self) -> EncodedSnapshot:
        """As it is kept."""
        ...


Watched = TypeVar("Watched", contravariant=True)


class RunListener(Protocol[Watched]):
    """A listener to a run while it goes on; written to by the simulation only."""

    def row(self, row: Row) -> None:
        """A finished row for the log."""
        ...

    def save(self, moment: Watched) -> None:
        """A point from which the run may be resumed."""
        ...


def bound(value: float) -> float | str:
    """A number that may be infinite, for JSON."""
    return "inf" if value == float("inf") else value


M = TypeVar("M", bound=Snapshot)


class Simulation(Protocol[M]):
    """A federation on one machine, of any regime; its moments are of that regime's kind."""

    @property
    def ledgers(self) -> LedgerSession:
        """Return where charges go."""
        ...

    @property
    def units(self) -> Sequence[str]:
        """Ledger unit of each client."""
        ...

    @property
    def budget(self) -> Budget:
        """Return what a client may spend in all, at most."""
        ...

    @property
    def affordable_steps(self) -> list[int] | None:
        """Steps, or rounds of all, that clients could pay for at the beginning; None: no limit."""
        ...

    def unpack(self, packed: EncodedSnapshot) -> M:
        """A moment that was kept.

        Raises:
            ValueError: if it cannot be one.
        """
        ...

    def run(self, moment: M, watcher: RunListener[M]) -> M:
        """Simulation from ``moment`` to the end of the run."""
        ...


Flight = tuple[float, int, int, int, str]
"""When; order among equals; whose answer; to which number (0: a site is back); an alarm's tag."""

Block = tuple[int, int]
"""Number of the first release of a permit, and how many."""


class RegimeState(Protocol):
    """The state of a regime."""

    @property
    def number(self) -> int:
        """Rounds begun, or updates done."""
        ...

    @property
    def ended(self) -> str | None:
        """Return why the run is over, or None."""
        ...


S = TypeVar("S", bound=RegimeState)


@dataclass(frozen=True, slots=True, eq=False)
class KernelSnapshot(Generic[S]):
    """A run between two events. A state that is changed in place goes on changing: pack it at once.

    Attributes:
        state: of the regime.
        time: virtual seconds.
        flights: answers, returns and alarms to come.
        away: absent sites, and the number whose beginning finds them back.
        blocks: of each site, the permits that it has not worked off.
        count: flights so far.
        epsilon: highest so far, over all units.
    """

    state: S
    time: float = 0.0
    flights: tuple[Flight, ...] = ()
    away: Mapping[int, int] = field(default_factory=dict)
    blocks: Mapping[int, tuple[Block, ...]] = field(default_factory=dict)
    count: int = 0
    epsilon: float = 0.0

    @property
    def number(self) -> int:
        """Rounds begun, or updates done."""
        return self.state.number

    @property
    def ended(self) -> str | None:
        """Return why the run is over, or None."""
        return self.state.ended

    def packed(self) -> EncodedSnapshot:
        """The regime's state."""
        raise NotImplementedError

    def pack(self) -> EncodedSnapshot:
        """Return the moment as it is kept on disk."""
        own = self.packed()
        rest = _Rest(
            time=self.time,
            flights=list(self.flights),
            away=dict(self.away),
            blocks=dict(self.blocks),
            count=self.count,
            epsilon=bound(self.epsilon),
            state=msgspec.Raw(own.rest),
        )
        return EncodedSnapshot(own.vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a moment that is no vector."""

    time: float
    flights: list[Flight]
    away: dict[int, int]
    blocks: dict[int, tuple[Block, ...]]
    count: int
    epsilon: float | str
    state: msgspec.Raw


def unpacked(packed: EncodedSnapshot) -> tuple[EncodedSnapshot, dict[str, Any]]:
    """The regime's state as it was packed, and the kernel's own part of the moment, by name.

    Raises:
        ValueError: if it cannot be one.
    """
    rest = msgspec.json.decode(packed.rest, type=_Rest)
    own = {
        "time": rest.time,
        "flights": tuple(rest.flights),
        "away": rest.away,
        "blocks": rest.blocks,
        "count": rest.count,
    }
    return EncodedSnapshot(packed.vectors, bytes(rest.state)), {
        **own,
        "epsilon": float(rest.epsilon),
    }
