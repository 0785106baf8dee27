"""Appearances of entities in a stream: read and counted block by block, and charged before the
block is played. A run on one machine, a server and a site at work all use :class:`Appearances`.
"""

# Theory of operation
#
# An *appearance* is one use of an entity, in an event. It releases an answer about the entity's
# label and, at each party, an embedding and a step. An entity's budget pays for so many appearances
# (`most`); an event in which an entity would go beyond that is not used.
#
# One charge for all entities. The ledger names no entity. What the k-th appearance of an entity
# releases is charged when the first entity appears for the k-th time. That is the price of the
# entity that has appeared most often, and a bound for every other one. So what is charged so far is
# one number, the last appearance of `charged`, and a block brings charges only where an entity in
# it goes beyond that number. A block is charged as a whole, before anything of it is released.
#
# Who charges what. All processes read the same entities in the same order, so all of them find the
# same appearances at the same events. A run on one machine and a server charge all units: the
# kernel asks for the charges of the open block (Events.requests). A site charges the unit of its
# own data, and "entities": its session asks before each turn (VerticalSite.site_requests). Who
# releases something shows an Allowance: its permits must add up to all appearances until the end of
# the block.
#
# Keys. A ledger charges a key once, and whoever asks again gets the permit of the same entry:
#
#     PREFIX/appearance FIRST to LAST/PART
#
# PREFIX is the run, with a digest of study and environment (core/run/environment.py), and PART
# counts the charges of one range. An appearance is charged twice where two ranges hold it. So FIRST
# and LAST must come out the same in every life of a process. They follow from the order of rows,
# from where blocks begin, from what was charged before, and from `most`, which is found when a run
# begins and kept in its run.json ("affordable when the run began").
#
# After a restart. A run on one machine and a server have `counts` and `charged` in their
# StreamState, so in each checkpoint. They ask for all of `charged` again, each range under the
# prefix that it was charged with, and then go on counting. Where releases may come out differently
# than before (StreamState.origin: another environment), both begin empty: what is released again is
# charged again. A site saves neither: it reads its stream from the beginning, counts all of it
# again, and asks for all charges for which it has no permit.

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sordino.base.arrays import Bools, Ints
from sordino.core.prepared import Affordable
from sordino.core.world import ChargeRequest
from sordino.data.stream import Piece
from sordino.privacy import Budget, Charge, LedgerSession, Permits
from sordino.privacy.event import History
from sordino.regimes.vertical import regime as prices
from sordino.regimes.vertical.stream import Arranged
from sordino.regimes.vertical.study import VerticalStudy

Charged = tuple[str, int, int, int]
"""Appearances that were charged together: prefix of the charges' keys, the event at which they were
charged, the first and the last appearance.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive events of a stream, n of them, of which u are used.

    Attributes:
        read: their examples.
        start: events of the stream before it.
        first: number of its first used event, from 1.
        used: (n,).
        most: appearances, by its end, of the entity that has appeared most often.
        batch: b, examples in an event.
        charges: of appearances that no block before it has charged.
    """

    read: Piece
    start: int
    first: int
    used: Bools
    most: int
    batch: int
    charges: Sequence[ChargeRequest]

    @property
    def stop(self) -> int:
        """Events of the stream up to its end."""
        return self.start + len(self.used)

    @property
    def last(self) -> int:
        """Number of its last used event."""
        return self.first + int(self.used.sum()) - 1

    @property
    def places(self) -> Ints:
        """Places in the block of examples of used events (u b,)."""
        whole = np.arange(len(self.used) * self.batch)
        return whole if self.used.all() else whole[np.repeat(self.used, self.batch)]


@dataclass(frozen=True, slots=True, eq=False)
class Appearances:
    """A stream whose entities are counted, and charged.

    Attributes:
        study: calibrated.
        stream: examples one after another.
        length: events in a block.
        most: appearances of an entity that its budget pays for; None: no limit.
        budget: of the unit to which something is promised.
        key_prefix: of the charges' keys.
    """

    study: VerticalStudy
    stream: Arranged
    length: int
    most: int | None
    budget: Budget
    key_prefix: str

    def events(self, start: int) -> int:
        """Return how many events the block after ``start`` events has, if the stream has them."""
        return min(self.length - start % self.length, self.study.horizon - start)

    def read(self, start: int, first: int, counts: dict[int, int], charged: list[Charged]) -> Block:
        """Read the block after ``start`` events of the stream.

        Args:
            first: number of its first used event.
            counts: appearances of entities, to which those of the block are added.
            charged: what is charged so far, to which the block's charges are added.
        """
        batch, most = self.study.method.batch, 1
        read = self.stream.read(start * batch, self.events(start) * batch)
        used, groups = np.ones(len(read.y) // batch, bool), list[list[int]]()
        if read.entity is not None and self.study.privacy.unit != "none":
            groups = read.entity[: len(used) * batch].reshape(-1, batch).tolist()
        for i, group in enumerate(groups):
            seen = {e: counts.get(e, 0) + group.count(e) for e in group}
            highest = max(seen.values())
            if self.most is not None and highest > self.most:
                used[i] = False
                continue
            counts.update(seen)
            most = max(most, highest)
        before, new = charged[-1][-1] if charged else 0, list[Charged]()
        if most > before and used.any():
            new.append((self.key_prefix, start + 1, before + 1, most))
        charged += new
        return Block(read, start, first, used, most, batch, self.charges(new))

    def charges(self, charged: Iterable[Charged]) -> list[ChargeRequest]:
        """Return the charges of these appearances; for the same ones, the same keys."""
        found, privacy = list[ChargeRequest](), self.study.privacy
        promised = None if privacy.unit == "none" else prices.promised(self.study)
        unlimited = replace(self.budget, epsilon=math.inf)
        for prefix, event, first, last in charged:
            for part, (unit, release, count) in enumerate(prices.charges(self.study, first, last)):
                charge = Charge(
                    unit=unit,
                    event=release,
                    count=count,
                    why="one entity's appearances",
                    method=self.study.method.name,
                    round=event,
                    key=f"{prefix}/appearance {first} to {last}/{part}",
                )
                budget = self.budget if unit == promised else unlimited
                found.append(ChargeRequest((0,), charge, budget, unit == promised))
        return found

    def planned(self, rows: int, units: Container[str]) -> dict[str, History]:
        """Return all charges on these units of an entity that its budget pays for, where each of so
        many rows is one and comes again in every pass.
        """
        found: dict[str, History] = {}
        if self.most is not None:
            passes = -(-self.study.horizon * self.study.method.batch // rows)
            for unit, event, count in prices.charges(self.study, 1, min(self.most, passes)):
                if unit in units:
                    found[unit] = (*found.get(unit, ()), (event, count))
        return found


def not_booked(charges: Iterable[ChargeRequest], permits: Permits) -> list[ChargeRequest]:
    """Return the charges whose keys are on no permit yet."""
    keys = {permit.key for permit in permits}
    return [each for each in charges if each.charge.key not in keys]


def affordable(study: VerticalStudy, steps: Affordable, ledgers: LedgerSession) -> list[int] | None:
    """Return how many appearances an entity's budget pays for after what ``ledgers`` hold of it;
    where a run goes on, ``steps``, which was found when it began; None without privacy.
    """
    if study.privacy.unit == "none" or steps is not None:
        return None if steps is None else [steps[0]]
    asked, unit = prices.schedule(study), prices.promised(study)
    left = asked.of(unit).affordable_in(ledgers, 1, alone=True)
    most = left[unit] if unit in left else asked.affordable(unit)
    whole = study.horizon * study.method.batch
    return [whole if most is None else min(most, study.privacy.appearances)]
