"""A site's side of events between real sites: a party with its features, or whoever holds the
labels.

It goes through the stream by itself, piece by piece, and counts the appearances of entities as the
server does. Before the first event of a piece it books what the piece releases of its own data, and
of an entity at all sites together.

Events that the server went on without are missed: a window of examples goes on, and nothing is
released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.base.errors import LocalProtocolError, RemoteProtocolError
from sordino.base.message import Embedding, Labels, Passive, Turn, Vector
from sordino.core.effect import Request
from sordino.core.world import ChargeRequest, SiteSide
from sordino.privacy import Allowance, Budget, LedgerSession, Permit, accountant
from sordino.privacy.accounting import Spent
from sordino.regimes.vertical.engine import Mask
from sordino.regimes.vertical.engines.split import Party
from sordino.regimes.vertical.simulation import PIECE, Events, Piece
from sordino.training.plausible import LONGEST


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A piece of the stream as a site reads it.

    Attributes:
        start: events of the stream before it, of which ``n`` are in it.
        first: number of its first used event.
        rows: places of the used ones (u,).
        times: how often whoever appears most has appeared by its end.
        active: whether the party is active in those used (u,).
    """

    read: Piece
    start: int
    n: int
    first: int
    used: Mask
    rows: NDArray[np.int64]
    times: int
    active: NDArray[np.bool_]

    @property
    def last(self) -> int:
        """Number of its last used event."""
        return self.first + len(self.rows) - 1


class Taking(SiteSide[Any]):
    """A site's work.

    Args:
        events: the study's stream as this site has it: its own features, or the labels.
        site: which, from 0; whoever holds the labels comes last.
        party: its half of the network; None for the labels.
        units: of its ledger, the one first that its limit is about.
        sizes: numbers in an embedding message of each party.
    """

    hands_out = False
    remembers = True

    def __init__(
        self,
        events: Events,
        site: int,
        party: Party | None,
        units: Sequence[str],
        sizes: Sequence[int],
    ) -> None:
        self.events, self.site, self.party = events, site, party
        self.ledgers: LedgerSession = events.ledgers
        self.repeats_noise = party is not None and party.cover.numbered
        self.units = (units[0],) * (len(sizes) + 1)
        self.widest, self._sizes = max(sizes), sizes
        self._mine = frozenset(units)
        self._counts: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._booked: list[tuple[int, int, int]] = []
        self._requests: list[ChargeRequest] = []
        self._part: _Part | None = None
        self._labels: NDArray[np.int64] | None = None
        self._last = 0
        self._embedding: Embedding | None = None
        self._said: tuple[int, Embedding | Labels | Passive] | None = None
        self._faults: list[tuple[int, str]] = []
        if party is not None:
            party.most = LONGEST

    @property
    def budget(self) -> Budget:
        """What this site spends at most."""
        promised = self.units[0] in self.events.units
        return self.events.budget if promised else self.events.unlimited

    @property
    def payable(self) -> list[int] | None:
        """See :class:`~sordino.core.simulation.Simulation`."""
        return self.events.payable

    def objection(self, site: int, task: Request) -> str | None:
        """Anything but the next turns of the agreed stream."""
        if not isinstance(task, Turn):
            return f"no server of this study sends {type(task).__name__}"
        if not 1 <= task.event <= self.events.events + task.over or task.event < self._last:
            return f"event {task.event} after {self._last}; {self.events.events} are agreed"
        if task.asked and (self.party is None or task.over):
            return "nothing of this site is to be queried"
        if (derivative := task.derivative) is not None:
            if self.party is None or derivative.party != site or task.asked:
                return "a derivative that is not for this site"
            size = self._sizes[site] * self.party.plan.bits // 8
            if derivative.bits != self.party.plan.bits or len(derivative.values) != size:
                return f"a derivative of {len(derivative.values)} bytes; agreed are {size}"
            if derivative.event != task.event - 1:
                return f"a derivative of event {derivative.event} with event {task.event}"
        if not task.over and not self._reach(task.event):
            return f"the stream has no event {task.event}"
        said = 0 if self._embedding is None else self._embedding.event
        gone = self.party is not None and task.event <= self._last and task.event != said
        return f"event {task.event} is over" if gone else None

    def _reach(self, event: int) -> bool:
        """Read on to the piece that holds an event; whether there is one."""
        while self._part is None or event > self._part.last:
            part = self._part
            start, first = (0, 1) if part is None else (part.start + part.n, part.last + 1)
            if part is not None:
                self._miss(part, part.last)
            if not self._read(start, first):
                return False
        return event >= self._part.first

    def _read(self, start: int, first: int) -> bool:
        events = self.events
        batch = events.batch
        if start >= events.events:
            return False
        read = events.stream.read(start * batch, min(PIECE, events.events - start) * batch)
        n = len(read.y) // batch
        if not n:
            return False
        used, times = events.admitted(read, self._counts)
        active = events.activity.drawn(read.x[: n * batch], start, n, PIECE)[0][used]
        own = active[:, self.site] if self.party is not None else np.zeros(len(active), bool)
        rows = np.flatnonzero(used)
        self._part, self._labels = _Part(read, start, n, first, used, rows, times, own), None
        booked = self._booked[-1][-1] if self._booked else 0
        if times > booked and used.any():
            self._booked.append((start + 1, booked + 1, times))
            self._requests += [
                request
                for request in events.requests_between(booked + 1, times, start + 1, events.lineage)
                if request.charge.unit in self._mine
            ]
        return True

    def _miss(self, part: _Part, last: int) -> None:
        """Go past events that were played without this site."""
        for event in range(max(self._last + 1, part.first), last + 1):
            if self.party is not None:
                self.party.miss(self._features(part, event))
        self._last = max(self._last, last)

    def _features(self, part: _Part, event: int) -> torch.Tensor:
        """Of an event (b, f)."""
        at, batch = int(part.rows[event - part.first]), self.events.batch
        return torch.from_numpy(part.read.x[at * batch : (at + 1) * batch])

    def site_requests(
        self, site: int, task: Request, permits: Sequence[Permit]
    ) -> Sequence[ChargeRequest]:
        """What the pieces so far release, as far as it has not been booked."""
        have = {permit.key for permit in permits}
        return [request for request in self._requests if request.charge.key not in have]

    def held(self, site: int, number: int, permits: Sequence[Permit]) -> Sequence[Permit]:
        """All of them: appearances add up."""
        return permits

    def price(self, unit: str, spent: Spent, budget: Budget) -> float:
        """What a history comes to."""
        return accountant(budget.accountant).epsilon(spent, budget.delta)

    def settle(self, site: int, task: Request) -> None:
        """Learn from the derivative, and close the event before."""
        if (
            self.party is None
            or not isinstance(task, Turn)
            or task.asked
            or self._said_already(task)
        ):
            return
        if task.derivative is not None:
            try:
                self.party.learn(task.derivative)
            except RemoteProtocolError as refusal:  # nothing has been learned
                self._faults.append((site, f"event {task.derivative.event}: {refusal}"))
        if self._last:
            self.party.square(self._last)

    def faults(self) -> Sequence[tuple[int, str]]:
        """See :class:`~sordino.core.world.World`: derivatives that were not learned from."""
        found, self._faults = self._faults, []
        return found

    def _said_already(self, task: Turn) -> bool:
        return self._said is not None and self._said[0] == task.number

    def answer(
        self, site: int, number: int, task: Request | None, permits: Sequence[Permit]
    ) -> Embedding | Labels | Passive:
        """The labels; an active party's embedding, or one that was asked for; or that there is
        none.
        """
        if not isinstance(task, Turn):
            raise LocalProtocolError("a site of events answers to turns")
        if self._said is None or self._said[0] != number:
            self._said = number, self._answered(task, permits)
        return self._said[1]

    def _answered(self, task: Turn, permits: Sequence[Permit]) -> Embedding | Labels | Passive:
        event, part = task.event, self._part
        if task.over:
            return Passive(self.site, event)
        assert part is not None
        paid = Allowance(permits, part.times)
        if self.party is None:
            return Labels(event, self._responses(part, event, paid))
        if event > self._last:
            self._miss(part, event - 1)
            active = bool(part.active[event - part.first])
            self._embedding = self.party.embed(event, self._features(part, event), active, paid)
            self._last = event
        found = self._embedding
        assert found is not None  # else there was an objection
        return found if found.active or task.asked else Passive(self.site, event)

    def _responses(self, part: _Part, event: int, paid: Allowance) -> tuple[int, ...]:
        """What is told of an event's labels."""
        if self._labels is None:
            self._labels = self.events.told(part.read, part.start, part.used, paid, self._told)
        batch, at = self.events.batch, event - part.first
        return tuple(self._labels[at * batch : (at + 1) * batch].tolist())

    def carried(self, site: int) -> Mapping[str, NDArray[Any]]:
        """The party's half between two events, and which was the last."""
        last = {"last": np.array([self._last])}
        return last if self.party is None else {**self.party.pack(), **last}

    def restore(self, site: int, carried: Mapping[str, NDArray[Any]]) -> None:
        """Stand where :meth:`carried` was called."""
        if not carried:
            return
        self._last = int(carried["last"][0])
        if self.party is not None:
            self.party.unpack(carried)

    def model_of(self, site: int, given: Vector) -> Vector:
        """Its own half, which nobody sends it."""
        if self.party is None:
            return np.zeros(0, np.float32)
        found: Vector = self.party.flat.weights.cpu().numpy().copy()
        return found
