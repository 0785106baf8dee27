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

# Theory of operation
#
# A permit is the receipt of a booked charge, and releasing code takes nothing else as proof. The
# order is always the same:
#
#     1. Before a task is worked on, somebody says what it will release: for each unit an event and
#        a count (:data:`Price`), with a key that names this release and no other.
#     2. ``Ledger.charge`` books it. One SQLite transaction checks the budget of each unit, appends
#        the entries to the chain and commits them to the disk. It refuses as a whole.
#     3. The ledger calls :func:`issue` for each entry, also for those that it found booked already
#        under the same key and content. ``new`` tells the two apart.
#     4. The permits travel with the task to whoever works on it. That code calls a ``covers``
#        function first, before it reads a row, and computes and releases afterwards.
#
# What must hold:
#
# * No release without a permit. A crash between 2 and 4 leaves a charge without a release, which
#   over-counts; there is no way to a release without a charge.
# * A permit is for one unit, one event, and ``count`` releases numbered from ``round``. Checks
#   compare all of them with what is about to be done: a permit for another noise multiplier, for
#   another client or for an earlier round is none. Rounds (:func:`covers_round`) must match
#   exactly, in order; a numbered release (:func:`covers_one`) must lie in a block that was booked
#   together; releases that are counted by the one who releases most (:class:`Allowance`) add up
#   over permits.
# * Nobody else makes one. ``maker`` is an object that this module alone holds, so neither a slip
#   nor a message from outside can build a permit. It is no barrier against hostile code in the
#   same process, which could read the data at once. Permits are never written to a file or a
#   frame of a federation. A worker is a part of the run: it gets the permit itself
#   (:data:`PackedPermit`) from the process that has booked the charge, with the task.
# * A key is charged once. Replaying a round of a simulation, or going on after a kill, asks for the
#   same keys with the same content, adds nothing, and gets permits of the same entries; noise is
#   then drawn at the same addresses (:mod:`sordino.base.entropy`), so the same bytes are released
#   again. The same key with other content is refused: that would be a second release under one
#   price.
#
# In a ledger of the data the unit of an entry is the name of a set of records, and code knows it as
# ``client:3``: :meth:`Permit.named` changes the name and nothing else. Plain methods book
# :class:`~sordino.privacy.event.NonPrivate`, which has an infinite price, and need permits as well.
# tests/test_permits.py finds every class that releases and takes its permits away.

Price = Sequence[tuple[Event, int]]
"""Events and how often."""

PackedPermit = tuple[str, Event, int, int, str, int, str, bool]
"""A permit that the ledger's process hands to a worker: the fields of :class:`Permit`."""

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
                f"{self.unit}: a permit comes from the ledger that has charged the release, "
                "and from nowhere else"
            )

    def packed(self) -> PackedPermit:
        """The permit as it travels with a task to a worker of the same run."""
        own = self.unit, self.event, self.count, self.round, self.key, self.seq, self.digest
        return *own, self.new

    def named(self, unit: str) -> Permit:
        """The same permit, for who calls the unit by another name than the ledger."""
        return replace(self, unit=unit)

    def holds(self, number: int) -> bool:
        """Tell whether the numbered release is one of those that were booked together."""
        return self.round <= number < self.round + self.count


Permits = Sequence[Permit]


def unpacked(packed: PackedPermit) -> Permit:
    """The permit; for workers, which trust the process that holds the run's ledger."""
    return Permit(*packed[:-1], _LEDGER, packed[-1])


def issue(charge: Charge, seq: int, digest: str, *, new: bool = False) -> Permit:
    """For the ledger: the permit of a charge that it has written as entry ``seq``."""
    own = charge.unit, charge.event, charge.count, charge.round, charge.key
    return Permit(*own, seq, digest, _LEDGER, new)


def covers_round(unit: str, permits: Permits, price: Price, number: int) -> None:
    """Refuse unless permits of this round cover just this price of this unit.

    Raises:
        LocalProtocolError: if they do not; nothing may be computed then.
    """
    here = [permit for permit in permits if permit.round == number]
    booked = [(permit.event, permit.count) for permit in here]
    if not booked or booked != list(price) or any(permit.unit != unit for permit in here):
        raise LocalProtocolError(
            f"round {number}: the ledger charged {booked} of "
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
            f"task {number}: the ledger charged {permit}, the work of {unit} would release {event}"
        )


class Allowance:
    """Permits on several units, for releases counted by the one who released most.

    Such as an entity's appearances.

    Args:
        permits: all that the run has, of every unit.
        releases: how often whoever releases most has released by the end of what is covered, now
            included.
    """

    def __init__(self, permits: Permits, releases: int = 1) -> None:
        self.releases = releases
        self._booked: Counter[tuple[str, Event]] = Counter()
        for permit in permits:
            self._booked[permit.unit, permit.event] += permit.count

    def covers(self, unit: str, event: Event, releases: int | None = None) -> None:
        """Refuse unless permits on a unit cover so many releases (or ``self.releases``), together.

        Raises:
            LocalProtocolError: if they do not; nothing may be computed then.
        """
        booked, wanted = self._booked[unit, event], self.releases if releases is None else releases
        if booked < wanted:
            raise LocalProtocolError(
                f"{unit}: the ledger charged {event} {booked} times, the work would release "
                f"it {wanted} times"
            )
