r"""Events between parties with different features: the order of messages of Algorithm 1, and what a server does with them.

Event t opens when the first word of it reaches the server: an active party's embedding, or its label. Active parties
speak unasked, at about the same time; who has done so is known when the runtime says that it has waited. Then

    server -> those who have not sent :  Query(t)
    party  -> server                  :  Embedding(t)          active ones unasked, the others when queried
    server                            :  learns, once the label is there, and every embedding or its stand-in
    server -> active parties          :  Derivative(t)

Rules. Events come one after another: t counts from 1, and a word of any other event than the one that is
open (or the next, which opens it) is *dropped*: a second copy, an answer that is late, a number nobody gave
out, an answer before the question. So is an embedding of the wrong size, or one that is not finite. A party that was queried
and does not answer is given up, and by the run's rule its *last* embedding stands in, or *zeros*, or the event is
*skipped*: no one learns from it. What was dropped or stood in shows in the log. An active party cannot be
missing: it is the one that spoke.

:class:`State` is changed in place: there are tens of thousands of events in a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sordino.errors import RemoteProtocolError
from sordino.message import Embedding, Query, Vector, numbers

Rule = Literal["last", "zeros", "skip"]


@dataclass(frozen=True, slots=True)
class Labelled:
    """The label of an event has reached the server."""

    event: int


@dataclass(frozen=True, slots=True)
class Waited:
    """Whoever has something to say of an event unasked has had the time to."""

    event: int


@dataclass(frozen=True, slots=True)
class Silent:
    """A party was queried and has not answered in time."""

    party: int
    event: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a party a query."""

    party: int
    query: Query


@dataclass(frozen=True, slots=True, eq=False)
class Learn:
    """Every embedding of an event is there: learn from it, and answer the active parties.

    Attributes:
        event: number.
        embeddings: of every party, in order; (e_m,) numbers, or with a window (l e_m,).
        active: parties that want a derivative, ascending.
        absent: parties whose embedding is a stand-in.
    """

    event: int
    embeddings: tuple[Vector, ...]
    active: tuple[int, ...]
    absent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """The event is over, and nobody learns from it."""

    event: int
    absent: tuple[int, ...]


Heard = Labelled | Waited | Embedding | Silent
Effect = Ask | Learn | Skip


@dataclass(slots=True, eq=False)
class State:
    """Where the server stands.

    Attributes:
        closed: events that are over.
        asked: whether, of event ``closed + 1``, those who had not sent were queried.
        labelled: whether its label is there.
        got: its embeddings so far.
        active: who sent theirs unasked.
        given_up: who did not answer.
        last: the last embedding of each party that came.
        dropped: words that were no part of anything, so far.
    """

    last: list[Vector]
    closed: int = 0
    asked: bool = False
    labelled: bool = False
    got: dict[int, Vector] = field(default_factory=dict)
    active: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Vertical:
    """The rules of a vertical run.

    Attributes:
        sizes: numbers in an embedding message of each party.
        missing: what stands in for an embedding that does not come.
        again: messages hold a window of so many events, the newest first: the last one stands in a place further on.
    """

    sizes: tuple[int, ...]
    missing: Rule = "last"
    again: int = 1

    @property
    def parties(self) -> int:
        """M."""
        return len(self.sizes)

    def start(self) -> State:
        """Before the first event; nobody has been heard, so zeros stand in."""
        return State([np.zeros(size, np.float32) for size in self.sizes])

    def step(self, state: State, heard: Heard) -> Sequence[Effect]:
        """What follows from one word."""
        if heard.event != state.closed + 1:
            return self._dropped(state)
        match heard:
            case Labelled():
                if state.labelled:
                    return self._dropped(state)
                state.labelled = True
            case Waited():
                if state.asked:
                    return self._dropped(state)
                state.asked = True
                return [Ask(party, Query(heard.event)) for party in range(self.parties) if party not in state.got]
            case Embedding():
                return self._embedding(state, heard)
            case Silent(party=party):
                if not state.asked or not 0 <= party < self.parties or party in state.got or party in state.given_up:
                    return self._dropped(state)
                state.given_up.add(party)
        return self._complete(state)

    def _embedding(self, state: State, heard: Embedding) -> Sequence[Effect]:
        party = heard.party
        known = 0 <= party < self.parties and party not in state.got and party not in state.given_up
        if not known or not (state.asked or heard.active):
            return self._dropped(state)
        try:
            values = numbers(heard, self.sizes[party])
        except RemoteProtocolError:
            return self._dropped(state)
        state.got[party] = values
        if heard.active:
            state.active.add(party)
        return self._complete(state)

    def _complete(self, state: State) -> Sequence[Effect]:
        if not state.labelled or len(state.got) + len(state.given_up) < self.parties:
            return ()
        event, absent = state.closed + 1, tuple(sorted(state.given_up))
        found: Effect
        if absent and self.missing == "skip":
            found = Skip(event, absent)
        else:
            last = self.missing == "last"
            stand_in = [self._aged(values) if last else np.zeros_like(values) for values in state.last]
            whole = tuple(state.got[party] if party in state.got else stand_in[party] for party in range(self.parties))
            found = Learn(event, whole, tuple(sorted(state.active)), absent)
        for party in range(self.parties):
            state.last[party] = state.got[party] if party in state.got else self._aged(state.last[party])
        state.closed, state.asked, state.labelled = event, False, False
        state.got, state.active, state.given_up = {}, set(), set()
        return (found,)

    def _aged(self, values: Vector) -> Vector:
        """A window of embeddings one event later: each a place on, and the newest once more."""
        newest = len(values) // self.again
        return values if self.again == 1 else np.concatenate([values[:newest], values[: len(values) - newest]])

    @staticmethod
    def _dropped(state: State) -> Sequence[Effect]:
        state.dropped += 1
        return ()
