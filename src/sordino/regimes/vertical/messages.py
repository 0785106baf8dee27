"""Events message by message: every embedding, label, query and derivative is handed over.

This is the path for noise and for missing answers, and the one that a network takes: the kernel
plays the regime's protocol. Event i of a stretch begins at second i. Active parties speak then, and
whoever holds the labels; who is queried answers at once. A passive party that is to be silent sends
its answer too late: it is dropped by rule. So are numbers that are not finite, of a model that
diverges or beyond 16 bits: their party is given up for this event.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Derivative, Embedding, Labels, Query
from sordino.core import records
from sordino.core.effect import Effect, Event, Learn, Learned, Request, Said, Skip
from sordino.core.kernel import Kernel
from sordino.core.simulation import KernelSnapshot
from sordino.core.world import ChargeRequest, World
from sordino.privacy import Allowance, Permit
from sordino.regimes.vertical.engine import Dues, Kept, Mask, Played
from sordino.regimes.vertical.engines.observed import Observed
from sordino.regimes.vertical.engines.split import Party, Server
from sordino.regimes.vertical.protocol import State, Vertical

LATE, OVER = 0.5, 0.9
"""Seconds that an answer takes which comes too late, and after which an event is over."""

Inputs = np.ndarray[Any, np.dtype[np.float32]]


class Messages:
    """A server and its parties in one process.

    ``dues`` are what an appearance of an entity releases, by unit.
    """

    def __init__(
        self,
        regime: Vertical,
        server: Server,
        parties: Sequence[Party],
        columns: Sequence[slice],
        dues: Dues,
        *,
        regret: bool = True,
    ) -> None:
        self.regime, self.server, self.parties = regime, server, tuple(parties)
        self.columns, self.regret = tuple(columns), regret
        self.dues = dues
        self.state: State = regime.start()

    def run(
        self,
        x: Inputs,
        y: np.ndarray[Any, np.dtype[np.int64]],
        active: Mask,
        silent: Mask,
        paid: Allowance,
    ) -> Played:
        """See :class:`~sordino.regimes.vertical.engine.Engine`."""
        for unit, event in self.dues:
            paid.covers(unit, event)
        n, batch = len(active), self.server.plan.batch
        inputs = torch.from_numpy(x).view(n, batch, x.shape[1])
        labels = torch.from_numpy(y).view(n, batch)
        played = Played(
            Observed(np.zeros(n * batch, np.int64), np.zeros(n), np.zeros(n), np.zeros(3)),
            np.ones(n, bool),
            np.zeros(n, np.int64),
        )
        exchange = _Exchange(self, inputs, labels, active, silent, paid, played)
        heart = Kernel(exchange, KernelSnapshot(self.state), _Nobody())
        first, clerk = self.state.closed + 1, len(self.parties) + 1
        for i in range(n):
            for m in (*np.flatnonzero(active[i]).tolist(), len(self.parties)):
                heart.push(float(i), m, first + i)
            heart.push(i + OVER, clerk, first + i)
        self.state = heart.run().state
        return played

    def weights(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """See :class:`~sordino.regimes.vertical.engine.Engine`."""
        found = {"server": self.server.flat.weights.cpu().numpy().copy()}
        return found | {
            f"party{m}": party.flat.weights.cpu().numpy().copy()
            for m, party in enumerate(self.parties)
        }

    def pack(self) -> Kept:
        """See :class:`~sordino.regimes.vertical.engine.Engine`."""
        found: Kept = {f"server.{name}": value for name, value in self.server.pack().items()}
        for m, party in enumerate(self.parties):
            found |= {f"party{m}.{name}": value for name, value in party.pack().items()}
            found[f"last.{m}"] = self.state.last[m]
        found["counts"] = np.array([self.state.closed, self.state.dropped])
        return found

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """See :class:`~sordino.regimes.vertical.engine.Engine`."""
        closed, dropped = (int(value) for value in kept["counts"])

        def below(prefix: str) -> dict[str, NDArray[Any]]:
            return {
                name.removeprefix(prefix): value
                for name, value in kept.items()
                if name.startswith(prefix)
            }

        self.server.unpack(below("server."))
        for m, party in enumerate(self.parties):
            party.unpack(below(f"party{m}."))
        self.state = State(
            [kept[f"last.{m}"].copy() for m in range(len(self.parties))],
            closed=closed,
            dropped=dropped,
        )


class _Nobody:
    """Nobody watches single events."""

    def row(self, row: records.Row) -> None: ...

    def save(self, moment: KernelSnapshot[Any]) -> None: ...


class _Exchange(World[State]):
    """One stretch of events for the kernel: sites are parties, the holder of labels, the counter.

    Everybody speaks, even too late: a party's window goes on, and what it says is dropped by rule.
    Stretches are charged as a whole, before they are played.
    """

    def __init__(
        self,
        ends: Messages,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        active: Mask,
        silent: Mask,
        paid: Allowance,
        played: Played,
    ) -> None:
        self.ends, self.inputs, self.labels, self.active = ends, inputs, labels, active
        self.silent = silent
        self.paid, self.played = paid, played
        self.first, self.dropped, self.refused = ends.state.closed + 1, ends.state.dropped, 0

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """The regime's."""
        return self.ends.regime.step(state, event)

    def answer(
        self, site: int, number: int, task: Request | None, permits: Sequence[Permit]
    ) -> Said | None:
        """What a party says when active or queried, or the labels; derivatives go unanswered."""
        i, parties = number - self.first, len(self.ends.parties)
        if site > parties:
            self._over(i, number)
            return None
        if site == parties:
            return Labels(number, tuple(self.labels[i].tolist()))
        if task is None or task.number != number:
            return self._embed(site, number, True)
        if isinstance(task, Derivative):
            self._take_in(site, task)
            return None
        # an active one has said what it had to say
        return None if self.active[i, site] else self._embed(site, number, False)

    def trip(self, site: int, task: Request) -> float:
        """None at all, but for who is to be too late."""
        i = task.number - self.first
        return (
            LATE
            if isinstance(task, Query) and (self.silent[i, site] or self.active[i, site])
            else 0.0
        )

    def learn(self, effect: Learn | Skip) -> Learned:
        """Let the server learn, or only see the labels."""
        i, server = effect.number - self.first, self.ends.server
        if isinstance(effect, Skip):
            self.played.learned[i] = False
            server.see(torch.tensor(effect.labels))
            return Learned(effect.number, ())
        start = time.perf_counter()
        made = server.learn(
            effect.number, effect.embeddings, torch.tensor(effect.labels), effect.active
        )
        self.played.seen.seconds[2] += time.perf_counter() - start
        self.played.seen.losses[i] = made.loss
        self.played.seen.predictions[i * server.plan.batch : (i + 1) * server.plan.batch] = (
            made.predictions
        )
        return Learned(effect.number, tuple((each.party, each) for each in made.derivatives))

    def _embed(self, m: int, number: int, active: bool) -> Embedding:
        start = time.perf_counter()
        features = self.inputs[number - self.first][:, self.ends.columns[m]]
        found = self.ends.parties[m].embed(number, features, active, self.paid)
        self.played.seen.seconds[0] += time.perf_counter() - start
        return found

    def _take_in(self, m: int, derivative: Derivative) -> None:
        start = time.perf_counter()
        try:
            self.ends.parties[m].learn(derivative)
        except RemoteProtocolError:
            self.refused += 1
        self.played.seen.seconds[1] += time.perf_counter() - start

    def _over(self, i: int, number: int) -> None:
        """Count what came of an event, before the next begins."""
        messages, dropped = self.ends, self.ends.state.dropped + self.refused
        if messages.regret:
            self.played.seen.regret[i] = messages.server.square(number) + sum(
                party.square(number) for party in messages.parties
            )
        self.played.dropped[i] = dropped - self.dropped
        self.dropped = dropped

    def requests(
        self, state: State, effects: Sequence[Effect], paid: Mapping[int, Sequence[Permit]]
    ) -> Sequence[ChargeRequest]:
        """None: the stretch is paid for."""
        return ()
