"""Permits: what a ledger hands out for a charge that it booked, and the only key to a release.

Whoever releases something computed from data (a client, an edge, a party, an aggregator, a
respondent, an evaluation on private rows) takes permits and checks, before it computes anything,
that they are for its own unit and cover just what it is about to release. Plain methods book
:class:`~sordino.privacy.event.NonPrivate` and take permits as well. Only the ledger makes them:
:func:`issue` is for it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sordino.base.errors import LocalProtocolError
from sordino.privacy.chain import Charge
from sordino.privacy.event import Event

Price = Sequence[tuple[Event, int]]
"""Events and how often."""

_LEDGER = object()


@dataclass(frozen=True, slots=True)
class Permit:
    """Proof that a charge is in the ledger.

    Attributes:
        unit: whose data.
        event, count: what may be done with it, and how often.
        round: number of the round, or of the first of ``count`` numbered releases.
        key: of the charge; the same key is the same release, however often it is asked for.
        seq, digest: of the ledger's entry.
        new: whether the charge that this comes from has written the entry, and did not find it.

    Raises:
        LocalProtocolError: where anything but a ledger makes one.
    """

    unit: str
    event: Event
    count: int
    round: int
    key: str
    seq: int
    digest: str
    maker: object = field(default=None, repr=False, compare=False)
    new: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.maker is not _LEDGER:
            raise LocalProtocolError(
                f"{self.unit}: a permit comes from the ledger that has booked the release, "
                "and from nowhere else"
            )

    def named(self, unit: str) -> Permit:
        """The same permit, for who calls the unit by another name than the ledger."""
        return replace(self, unit=unit)

    def holds(self, number: int) -> bool:
        """Whether the numbered release is one of those that were booked together."""
        return self.round <= number < self.round + self.count


def issue(charge: Charge, seq: int, digest: str, *, new: bool = False) -> Permit:
    """For the ledger: the permit of a charge that it has written as entry ``seq``."""
    own = charge.unit, charge.event, charge.count, charge.round, charge.key
    return Permit(*own, seq, digest, _LEDGER, new)


def covers_round(unit: str, permits: Sequence[Permit], price: Price, number: int) -> None:
    """Refuse unless permits of this round cover just this price of this unit.

    Raises:
        LocalProtocolError: if they do not; nothing may be computed then.
    """
    here = [permit for permit in permits if permit.round == number]
    booked = [(permit.event, permit.count) for permit in here]
    if not booked or booked != list(price) or any(permit.unit != unit for permit in here):
        raise LocalProtocolError(
            f"round {number}: the ledger booked {booked} of "
            f"{sorted({permit.unit for permit in here})}, but {unit} would release {list(price)}"
        )


def covers_one(unit: str, permit: Permit | None, event: Event, number: int) -> None:
    """Refuse unless the permit is of this unit and covers a block of such releases that holds this
    one.

    Raises:
        LocalProtocolError: if it does not; nothing may be computed then.
    """
    if permit is None or permit.unit != unit or permit.event != event or not permit.holds(number):
        raise LocalProtocolError(
            f"task {number}: the ledger booked {permit}, the work of {unit} would release {event}"
        )


class Allowance:
    """Permits on several units, for releases counted by the one who released most.

    Such as an entity's appearances.

    Args:
        permits: all that the run has, of every unit.
        times: how often whoever releases most has released by the end of what is covered, now
            included.
    """

    def __init__(self, permits: Sequence[Permit], times: int = 1) -> None:
        self.times = times
        self._booked: Counter[tuple[str, Event]] = Counter()
        for permit in permits:
            self._booked[permit.unit, permit.event] += permit.count

    def covers(self, unit: str, event: Event, times: int | None = None) -> None:
        """Refuse unless permits on a unit cover the event so often (or ``self.times``), together.

        Raises:
            LocalProtocolError: if they do not; nothing may be computed then.
        """
        booked, wanted = self._booked[unit, event], self.times if times is None else times
        if booked < wanted:
            raise LocalProtocolError(
                f"{unit}: the ledger booked {event} {booked} times, the work would release "
                f"it {wanted} times"
            )
