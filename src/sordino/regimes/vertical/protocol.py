r"""Events between parties with different features: Algorithm 1's messages and the server.

Event t opens when the first message of it reaches the server: an active party's embedding, or its
labels. Active parties speak unasked, at about the same time; the server waits a little for all of
them to have done so. Then

    server -> those who have not sent :  Turn(t, asked), a query
    party  -> server                  :  Embedding(t)   active ones unasked, the others when queried
    server                            :  learns, once the labels are there, and every embedding or
                                         its stand-in
    server -> active parties          :  Derivative(t)

Rules. Events come one after another: t counts from 1, and a message of any other event than the
one that is open (or the next, which opens it) is *dropped*: a second copy, an answer that is late,
a number nobody gave out, an answer before the question. So is an embedding of the wrong size, or
one that is not finite: its party is given up for this event at once. A party that was queried and
does not answer in time is given up, and by the run's rule its *last* embedding stands in, or
*zeros*, or the event is *skipped*: no one learns from it. What was dropped or stood in shows in the
log. An active party cannot be missing: it is the one that spoke.

On a network a party says as well that it is *passive* in an event. When all have spoken, nobody has
to be waited for, and the queries go at once.

:class:`EventState` is changed in place: there are thousands of events in a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Embedding, Labels, Passive, Turn, Vector, numbers
from sordino.core import effect
from sordino.core.effect import Effect, Effects, Event, Learn, Send, Skip, Wake, Woke


@dataclass(slots=True, eq=False)
class EventState:
    """Where the server stands.

    Attributes:
        closed: events that are over.
        opened: a message of event ``closed + 1`` has come.
        asked: those who had not sent anything of that event were queried.
        labels: its labels, if they are there.
        embeddings: its embeddings so far.
        active: who sent theirs unasked.
        passive: who has said that it will not.
        given_up: who did not answer, or with numbers that are none.
        last: the last embedding of each party that came.
        dropped: messages that were no part of anything, so far.
    """

    last: list[Vector]
    closed: int = 0
    opened: bool = False
    asked: bool = False
    labels: tuple[int, ...] | None = None
    embeddings: dict[int, Vector] = field(default_factory=dict)
    active: set[int] = field(default_factory=set)
    passive: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class EventRules:
    """The rules of a vertical run.

    Attributes:
        sizes: numbers in an embedding message of each party.
        missing: what stands in for an embedding that does not come.
        resends: messages hold a window of so many events, the newest first: the last one stands in
            a place further on.
        patience: seconds from the first message of an event until those who have not sent are
            queried, and from the queries until who has not answered is given up.
    """

    sizes: tuple[int, ...]
    missing: Literal["last", "zeros", "skip"] = "last"
    resends: int = 1
    patience: float = 0.25

    @property
    def parties(self) -> int:
        """M."""
        return len(self.sizes)

    def start(self) -> EventState:
        """Before the first event; nobody has been heard, so zeros stand in."""
        return EventState([np.zeros(size, np.float32) for size in self.sizes])

    def step(self, state: EventState, event: Event) -> tuple[EventState, Effects]:
        """Return what follows from one event; the state is changed in place."""
        match event:
            case effect.Arrived(Embedding() | Labels() | Passive() as message):
                return state, self._heard(state, message)
            case Woke(tag) if tag == f"ask {state.closed + 1}" and not state.asked:
                return state, self._ask(state)
            case Woke(tag) if tag == f"missing {state.closed + 1}" and state.asked:
                return state, self._give_up(state, range(self.parties))
            case effect.Lapsed(party, number) if number == state.closed + 1 and state.asked:
                return state, self._give_up(state, (party,))
            case effect.Left(party) if state.asked:
                return state, self._give_up(state, (party,))
        return state, ()

    def _heard(self, state: EventState, message: Embedding | Labels | Passive) -> Effects:
        """Take a message of the open event, or of the next, whose clock the first one starts."""
        if not self._awaited(state, message):
            state.dropped += 1
            return ()
        clock = () if state.opened else (Wake(self.patience, f"ask {state.closed + 1}"),)
        state.opened = True
        match message:
            case Labels():
                state.labels = message.values
            case Passive(party):
                state.passive.add(party)
            case Embedding(party):
                try:
                    state.embeddings[party] = numbers(message, self.sizes[party])
                except RemoteProtocolError:
                    state.dropped += 1
                    state.given_up.add(party)
                else:
                    state.active |= {party} if message.active else set()
        return (*clock, *self._spoken(state), *self._complete(state))

    def _awaited(self, state: EventState, message: Embedding | Labels | Passive) -> bool:
        """Return whether a message is of this event, and the first that its sender may send."""
        if message.event != state.closed + 1:
            return False
        if isinstance(message, Labels):
            return state.labels is None
        turn = not state.asked if isinstance(message, Passive) else state.asked or message.active
        silent = message.party not in state.embeddings and message.party not in state.given_up
        return turn and silent and 0 <= message.party < self.parties

    def _ask(self, state: EventState) -> Effects:
        """Query whoever has not sent."""
        state.opened = state.asked = True
        number = state.closed + 1
        found = [
            Send(party, Turn(number, True))
            for party in range(self.parties)
            if party not in state.embeddings and party not in state.given_up
        ]
        if not found:
            return self._complete(state)
        return (*found, Wake(self.patience, f"missing {number}"))

    def _spoken(self, state: EventState) -> Effects:
        """Query the passive ones, once all have said what they are."""
        spoken = state.passive | state.embeddings.keys() | state.given_up
        every = state.passive and len(spoken) == self.parties
        return self._ask(state) if every and not state.asked else ()

    def _give_up(self, state: EventState, parties: Sequence[int]) -> Effects:
        """Do without those of the parties that have not answered."""
        here = {party for party in parties if 0 <= party < self.parties}
        state.given_up |= here - state.embeddings.keys()
        return self._complete(state)

    def _complete(self, state: EventState) -> Effects:
        if state.labels is None or len(state.embeddings) + len(state.given_up) < self.parties:
            return ()
        event, absent, labels = state.closed + 1, tuple(sorted(state.given_up)), state.labels
        active = tuple(sorted(state.active))
        aged = [self._aged(values) for values in state.last]
        found: Effect = Skip(event, labels, absent, active)
        if not absent or self.missing != "skip":
            instead = aged if self.missing == "last" else [np.zeros_like(each) for each in aged]
            whole = tuple(state.embeddings.get(m, instead[m]) for m in range(self.parties))
            found = Learn(event, labels, whole, active, absent)
        state.last = [state.embeddings.get(m, aged[m]) for m in range(self.parties)]
        state.closed, state.opened, state.asked = event, False, False
        state.labels = None
        state.embeddings, state.active, state.passive, state.given_up = {}, set(), set(), set()
        return (found,)

    def _aged(self, values: Vector) -> Vector:
        """A window of embeddings one event later: each a place on, and the newest once more."""
        newest = len(values) // self.resends
        if self.resends == 1:
            return values
        return np.concatenate([values[:newest], values[: len(values) - newest]])
