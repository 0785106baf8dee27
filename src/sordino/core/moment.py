"""A run between two events, and the one packing of it for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from sordino.core.watch import Packed, bound

Flight = tuple[float, int, int, int, str]
"""When; order among equals; whose answer; to which number (0: a site is back); an alarm's tag."""

Block = tuple[int, int]
"""Number of the first release of a permit, and how many."""


class Standing(Protocol):
    """Where a regime stands."""

    @property
    def number(self) -> int:
        """Rounds begun, or updates done."""
        ...

    @property
    def ended(self) -> str | None:
        """Why the run is over, or None."""
        ...


S = TypeVar("S", bound=Standing)


@dataclass(frozen=True, slots=True, eq=False)
class Moment(Generic[S]):
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
        """Why the run is over, or None."""
        return self.state.ended

    def packed(self) -> Packed:
        """The regime's state."""
        raise NotImplementedError

    def pack(self) -> Packed:
        """See :class:`sordino.core.watch.Moment`."""
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
        return Packed(own.vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a moment is no vector."""

    time: float
    flights: list[Flight]
    away: dict[int, int]
    blocks: dict[int, tuple[Block, ...]]
    count: int
    epsilon: float | str
    state: msgspec.Raw


def unpacked(packed: Packed) -> tuple[Packed, dict[str, Any]]:
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
    return Packed(packed.vectors, bytes(rest.state)), {**own, "epsilon": float(rest.epsilon)}
