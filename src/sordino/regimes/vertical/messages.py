"""The server's model, here and on a network; and the engine that passes messages in one process.

:class:`ServerModel` is the server's half with the rules of an event. A server of a network has one
(:class:`~sordino.regimes.vertical.federation.VerticalServer`). In one process, :class:`Messages`
passes its turns to the parties from hand to hand. Nothing waits there: a party
that is silent in the study's world makes its embedding (its window goes on, and its noise is
drawn), which counts as dropped. Derivatives are learned from at once, so that the regret of an
event can be summed over all halves; a server of a network knows its own part alone. The kernel
charges the block before (:mod:`sordino.regimes.vertical.appearances`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from sordino.base.arrays import Array, Bools, Ints, below
from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Derivative, Labels, Passive, Turn
from sordino.core.effect import Arrived, Effect, Event, Learn, Learned, Left, Send, Skip
from sordino.privacy import Allowance
from sordino.regimes.vertical import halves
from sordino.regimes.vertical.halves import Arrays, Engine, Party, Played, Rows, Server
from sordino.regimes.vertical.protocol import EventRules, EventState
from sordino.training.plausible import length


class ServerModel(Engine):
    """The server between two events: its half of the network, its rules, and what it owes to sites.

    Attributes:
        rules: of the order of messages.
        server: its half.
        state: of the rules.
        due: derivatives of the last event, which travel with the next turn, by party.
        away: sites that are not there.
        faults: parties whose embeddings were taken and could not be learned from, and why.
        count: events of the open block that are over, of n.
        played: their results.
        active, absent: parties that were active in them, and that did not answer, (n, M).
        labels: theirs, (n, b).
    """

    def __init__(self, rules: EventRules, server: Server) -> None:
        self.rules, self.server = rules, server
        self.state: EventState = rules.start()
        self.due: dict[int, Derivative] = {}
        self.away: set[int] = set()
        self.faults: list[tuple[int, str]] = []
        self.begin(0)

    def begin(self, n: int) -> None:
        """Begin a block of n events."""
        batch, parties = self.server.settings.method.batch, self.rules.parties
        self.count, self.played = 0, Played.room(n, batch)
        self.active, self.absent = np.zeros((2, n, parties), bool)
        self.labels = np.zeros((n, batch), np.int64)
        self._dropped = self.state.dropped

    def open(self, *, over: bool = False) -> list[Effect]:
        """Return the next event's turn, for everybody; who is away is passive in it."""
        event, due = self.state.closed + 1, self.due
        self.due = {}
        found: list[Effect] = [
            Send(site, Turn(event, False, due.get(site), over))
            for site in range(self.rules.parties + 1)
        ]
        if not over:
            for site in sorted(self.away - {self.rules.parties}):
                found += self.step(Arrived(Passive(site, event)))
        return found

    def step(self, event: Event) -> list[Effect]:
        """Return what the rules of events ask for; who is away answers no query."""
        found = list(self.rules.step(self.state, event)[1])
        for effect in tuple(found):
            if isinstance(effect, Send) and effect.site in self.away:
                found += self.step(Left(effect.site))
        return found

    def learn(self, effect: Learn | Skip) -> Learned:
        """Learn from an event, or only see its labels; derivatives wait for the next turn."""
        i, played, batch = self.count, self.played, len(effect.labels)
        self.count += 1
        self.labels[i], labels = effect.labels, torch.tensor(effect.labels)
        self.active[i, list(effect.active)] = self.absent[i, list(effect.absent)] = True
        played.learned[i] = False
        begun = time.thread_time()
        if isinstance(effect, Skip):
            self.server.see(labels)
        else:
            try:
                made = self.server.learn(effect.number, effect.embeddings, labels, effect.active)
            except RemoteProtocolError as refusal:
                self._blame(effect, str(refusal))
            else:
                played.learned[i], played.losses[i] = True, made.loss
                played.predictions[i * batch : (i + 1) * batch] = made.predictions
                self.due = {each.party: each for each in made.derivatives}
            played.seconds[halves.SERVER] += time.thread_time() - begun
        played.regret[i] = self.server.square(effect.number)
        played.dropped[i] = self.state.dropped - self._dropped
        self._dropped = self.state.dropped
        return Learned(effect.number)

    def _blame(self, effect: Learn, why: str) -> None:
        """Name the largest embedding of an event that cannot be learned from; it stands in for no
        later one.
        """
        lengths = [length(values.astype(np.float64)) for values in effect.embeddings]
        party = int(np.argmax(lengths))
        self.state.last[party] = np.zeros_like(self.state.last[party])
        text = f"its embedding of event {effect.number} has the length {lengths[party]:.3g}"
        self.faults.append((party, f"{text}, and the server would take {why}"))

    def weights(self) -> halves.Weights:
        """Return the flat weights of "server"."""
        return {"server": self.server.weights}

    def pack(self) -> Arrays:
        """Return everything that a later :meth:`unpack` needs."""
        found: Arrays = {f"server.{name}": value for name, value in self.server.pack().items()}
        found |= {f"last.{m}": values for m, values in enumerate(self.state.last)}
        found |= {f"due.{m}": np.frombuffer(each.values, np.uint8) for m, each in self.due.items()}
        found["counts"] = np.array([self.state.closed, self.state.dropped])
        if self.away:
            found["away"] = np.array(sorted(self.away), np.int64)
        return found

    def unpack(self, kept: Mapping[str, Array]) -> None:
        """Restore the state that :meth:`pack` returned."""
        closed, dropped = (int(value) for value in kept["counts"])
        self.server.unpack(below("server.", kept))
        last = [kept[f"last.{m}"].copy() for m in range(self.rules.parties)]
        self.state = EventState(last, closed=closed, dropped=dropped)
        self.away = {int(site) for site in kept.get("away", ())}
        self.due = {
            m: Derivative(m, closed, self.server.settings.bits, kept[f"due.{m}"].tobytes())
            for m in range(self.rules.parties)
            if f"due.{m}" in kept
        }


class Messages(Engine):
    """A server and its parties in one process, which hand every message over."""

    def __init__(
        self, server: ServerModel, parties: Sequence[Party], columns: Sequence[slice]
    ) -> None:
        self.server, self.parties, self.columns = server, tuple(parties), tuple(columns)

    def run(self, x: Rows, y: Ints, active: Bools, silent: Bools, paid: Allowance) -> Played:
        """Play n events, as :class:`~sordino.regimes.vertical.halves.Engine` says."""
        for unit, event in self.required:
            paid.covers(unit, event)
        n, batch = len(active), self.server.server.settings.method.batch
        features, labels = torch.from_numpy(x).view(n, batch, -1), y.reshape(n, batch)
        self.server.begin(n)
        for i in range(n):
            self._play(features[i], labels[i], active[i], silent[i], paid)
        return self.server.played

    def _play(
        self, features: torch.Tensor, labels: Ints, active: Bools, silent: Bools, paid: Allowance
    ) -> None:
        """Play an event: features (b, f), labels (b,), parties (M,)."""
        server, played = self.server, self.server.played
        waiting = deque(server.open())
        while waiting:
            match waiting.popleft():
                case Send(site, Turn() as turn) if site == len(self.parties):
                    waiting += server.step(Arrived(Labels(turn.event, tuple(labels.tolist()))))
                case Send(site, Turn() as turn):
                    begun = time.thread_time()
                    said = self.parties[site].answer(
                        turn, features[:, self.columns[site]], bool(active[site]), paid
                    )
                    played.seconds[halves.FORWARD] += time.thread_time() - begun
                    if turn.asked and silent[site]:
                        waiting += server.step(Left(site))  # and the answer comes too late
                    waiting += server.step(Arrived(said))
                case Learn() | Skip() as effect:
                    server.learn(effect)
        begun, i = time.thread_time(), server.count - 1
        for party in self.parties:
            if (derivative := server.due.pop(party.index, None)) is not None:
                try:
                    party.learn(derivative)
                except RemoteProtocolError:  # not finite: nothing has been learned
                    played.dropped[i] += 1
        played.seconds[halves.BACKWARD] += time.thread_time() - begun
        played.regret[i] += sum(party.square(server.state.closed) for party in self.parties)

    def weights(self) -> halves.Weights:
        """Return flat weights of "server", "party0", "party1" and so on."""
        parties = {f"party{m}": party.weights for m, party in enumerate(self.parties)}
        return self.server.weights() | parties

    def pack(self) -> Arrays:
        """Return everything that a later :meth:`unpack` needs."""
        found = self.server.pack()
        for m, party in enumerate(self.parties):
            found |= {f"party{m}.{name}": value for name, value in party.pack().items()}
        return found

    def unpack(self, kept: Mapping[str, Array]) -> None:
        """Restore the state that :meth:`pack` returned."""
        self.server.unpack(kept)
        for m, party in enumerate(self.parties):
            party.unpack(below(f"party{m}.", kept))
