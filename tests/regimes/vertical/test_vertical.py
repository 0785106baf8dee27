"""The server of events under whatever reaches it: every event closes once and in order, on its own
embeddings or on their stand-ins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.base.message import Embedding, Labels, Turn, packed
from sordino.core.effect import Arrived, Lapsed, Learn, Send, Skip, Wake, Woke
from sordino.regimes.vertical.protocol import EventRules, EventState

SIZES = (2, 1, 3)
PARTIES = len(SIZES)


def said(party: int, event: int, active: bool, *, copy: int = 0, bits: int = 32) -> Embedding:
    """Values that tell who, which event, and which copy."""
    values = np.full(SIZES[party % PARTIES], 100 * event + 10 * party + copy, np.float32)
    return Embedding(party, event, active, bits, packed(values, bits))


@dataclass(frozen=True)
class Labelled:
    event: int


@dataclass(frozen=True)
class Waited:
    event: int


@dataclass(frozen=True)
class Silent:
    party: int
    event: int


def hear(regime: EventRules, state: EventState, word: Any) -> Any:
    """What follows from a word, but for alarms."""
    match word:
        case Embedding():
            event: Any = Arrived(word)
        case Labelled():
            event = Arrived(Labels(word.event, (word.event % 7,)))
        case Waited():
            event = Woke(f"ask {word.event}")
        case _:
            event = Lapsed(word.party, word.event)
    same, effects = regime.step(state, event)
    assert same is state
    return tuple(effect for effect in effects if not isinstance(effect, Wake))


def broken(party: int, event: int, active: bool, how: int) -> Embedding:
    size = SIZES[party % PARTIES]
    bad = np.full(size, (np.nan, np.inf, -np.inf)[how % 3], np.float32)
    bodies = [packed(bad, 32), bytes(4 * size + 4), bytes(4 * size - 1), b"", bytes(8 * size)]
    return Embedding(party, event, active, (32, 32, 32, 16, 64)[how], bodies[how])


@dataclass
class Spec:
    """The rules once more, in sets: what is open, who has been heard, who was asked."""

    missing: str
    event: int = 1
    got: dict[int, Any] = field(default_factory=dict)
    last: dict[int, Any] = field(
        default_factory=lambda: {m: np.zeros(size, np.float32) for m, size in enumerate(SIZES)}
    )
    flags: set[Any] = field(default_factory=set)
    dropped: int = 0

    def hear(self, word: Any, valid: bool) -> list[Any]:
        """("ask", parties), ("learn", event, embeddings, active, absent), ("skip", event,
        absent).
        """
        party = getattr(word, "party", 0)
        gone = {m for m in range(PARTIES) if ("gone", m) in self.flags}
        asked = "asked" in self.flags
        match word:
            case Labelled():
                good = "labelled" not in self.flags
            case Waited():
                good = not asked
            case Embedding():
                good = party not in {*self.got, *gone} and (asked or word.active)
            case _:
                good = asked and party not in {*self.got, *gone}
        if word.event != self.event or not good or not 0 <= party < PARTIES:
            self.dropped += isinstance(word, Labelled | Embedding)  # the others are no messages
            return []
        match word:
            case Labelled():
                self.flags.add("labelled")
            case Waited():
                self.flags.add("asked")
                return [("ask", set(range(PARTIES)) - set(self.got) - gone)]
            case Embedding() if not valid:  # it will not be better when it is asked for
                self.dropped += 1
                self.flags.add(("gone", party))
            case Embedding():
                self.got[party] = np.frombuffer(
                    word.values, "<f2" if word.bits == 16 else "<f4"
                ).astype(np.float32)
                self.flags |= {("active", party)} if word.active else set()
            case _:
                self.flags.add(("gone", party))
        gone = {m for m in range(PARTIES) if ("gone", m) in self.flags}
        if "labelled" not in self.flags or len(self.got) + len(gone) < PARTIES:
            return []
        if gone and self.missing == "skip":
            found: Any = ("skip", self.event, gone)
        else:
            stand = {m: self.last[m] if self.missing == "last" else 0 * self.last[m] for m in gone}
            whole = [{**self.got, **stand}[m].tolist() for m in range(PARTIES)]
            found = (
                "learn",
                self.event,
                whole,
                {m for m in range(PARTIES) if ("active", m) in self.flags},
                gone,
            )
        self.last |= self.got
        self.event, self.got, self.flags = self.event + 1, {}, set()
        return [found]


def plain(effects: Any) -> list[Any]:
    asks = [effect for effect in effects if isinstance(effect, Send)]
    rest: list[Any] = [("ask", {ask.site for ask in asks})] if asks else []
    assert len({ask.site for ask in asks}) == len(asks)
    for effect in effects:
        match effect:
            case Learn(
                number=event, labels=labels, embeddings=embeddings, active=active, absent=absent
            ):
                assert list(active) == sorted(active)
                assert labels == (event % 7,)
                rest.append(
                    ("learn", event, [h.tolist() for h in embeddings], set(active), set(absent))
                )
            case Skip(number=event, labels=labels, absent=absent):
                assert labels == (event % 7,)
                rest.append(("skip", event, set(absent)))
    return rest


parties, near = st.integers(-1, PARTIES), st.integers(-1, 2)
words = st.one_of(
    st.tuples(st.just("label"), near),
    st.tuples(st.just("waited"), near),
    st.tuples(st.just("silent"), near, parties),
    st.tuples(st.just("silent"), st.just(0), st.integers(0, PARTIES - 1)),
    st.tuples(
        st.just("said"), near, parties, st.booleans(), st.integers(0, 3), st.sampled_from([16, 32])
    ),
    st.tuples(
        st.just("said"),
        st.just(0),
        st.integers(0, PARTIES - 1),
        st.booleans(),
        st.just(0),
        st.just(32),
    ),
    st.tuples(
        st.just("broken"), st.just(0), st.integers(0, PARTIES - 1), st.booleans(), st.integers(0, 4)
    ),
)


@settings(max_examples=150)
@given(told=st.lists(words, max_size=60), missing=st.sampled_from(["last", "zeros", "skip"]))
def test_anything_may_come_in_any_order(told: list[Any], missing: Any) -> None:
    """Event numbers are drawn relative to the open event, so that runs get somewhere."""
    regime = EventRules(SIZES, missing)
    state, spec, closed = regime.start(), Spec(missing), 0
    for kind, relative, *rest in told:
        event, valid = state.closed + 1 + relative, True
        word: Any
        if kind == "label":
            word = Labelled(event)
        elif kind == "waited":
            word = Waited(event)
        elif kind == "silent":
            word = Silent(rest[0], event)
        elif kind == "said":
            word = said(rest[0], event, rest[1], copy=rest[2], bits=rest[3])
        else:
            word, valid = broken(rest[0], event, rest[1], rest[2]), False
        expected = [effect for effect in spec.hear(word, valid) if effect != ("ask", set())]
        found = plain(hear(regime, state, word))
        assert found == expected
        assert state.dropped == spec.dropped
        for effect in found:
            if effect[0] != "ask":
                assert effect[1] == closed + 1
                closed += 1
        assert state.closed == closed
    event = closed + 1  # whatever is open can still be closed
    for word in (Labelled(event), Waited(event), *(said(m, event, True) for m in range(PARTIES))):
        hear(regime, state, word)
    assert state.closed == event


@pytest.mark.parametrize("active", [(), (1,), (0, 2), (0, 1, 2)])
def test_queries_go_to_whoever_has_not_sent_and_nobody_else(active: tuple[int, ...]) -> None:
    """Algorithm 1, lines 3 and 15: active parties speak first, all others are asked once; in any
    order of answers.
    """
    passive = [m for m in range(PARTIES) if m not in active]
    for order in permutations(passive):
        regime = EventRules(SIZES)
        state = regime.start()
        for event in (1, 2):
            for m in active:
                assert hear(regime, state, said(m, event, True)) == ()
            asks = hear(regime, state, Waited(event))
            assert list(asks) == [Send(m, Turn(event, True)) for m in passive]
            effects = list(hear(regime, state, Labelled(event)))
            for m in order:
                assert not effects
                effects += hear(regime, state, said(m, event, False))
            (found,) = effects
            assert isinstance(found, Learn)
            assert (found.number, found.active, found.absent) == (event, active, ())
            assert [h[0] for h in found.embeddings] == [
                100 * event + 10 * m for m in range(PARTIES)
            ]
        assert state.dropped == 0


def test_a_stand_in_is_the_last_that_came_even_where_nobody_learned_from_it() -> None:
    regime = EventRules(SIZES, "skip")
    state = regime.start()

    def play(event: int, silent: int | None) -> Any:
        for word in (
            Waited(event),
            Labelled(event),
            *(Silent(m, event) if m == silent else said(m, event, False) for m in range(PARTIES)),
        ):
            found = hear(regime, state, word)
        return found[0]

    assert isinstance(play(1, None), Learn)
    assert play(2, 0) == Skip(2, (2,), (0,))
    assert [float(h[0]) for h in state.last] == [100.0, 210.0, 220.0]
    late = said(0, 2, False)
    assert hear(regime, state, late) == ()
    assert state.dropped == 1
    kept = EventRules(SIZES, "last")
    for word in (Waited(3), Labelled(3), said(0, 3, False), Silent(1, 3), said(2, 3, False)):
        found = hear(kept, state, word)
    assert [float(h[0]) for h in found[0].embeddings] == [300.0, 210.0, 320.0]


def test_a_window_that_stands_in_has_moved_on_by_an_event() -> None:
    """Its rows belong to the labels that the server has moved on, too; the newest stands in for the
    one that did not come.
    """
    regime = EventRules((6, 6), "last", resends=3)
    state = regime.start()

    def played(event: int, sent: np.ndarray[tuple[int], np.dtype[np.float32]] | None) -> Learn:
        hear(regime, state, Waited(event))
        hear(regime, state, Labelled(event))
        hear(regime, state, Embedding(0, event, False, 32, packed(np.zeros(6, np.float32), 32)))
        last = (
            Silent(1, event) if sent is None else Embedding(1, event, False, 32, packed(sent, 32))
        )
        (found,) = hear(regime, state, last)
        assert isinstance(found, Learn)
        return found

    played(1, np.array([1, 2, 3, 4, 5, 6], np.float32))
    assert played(2, None).embeddings[1].tolist() == [1, 2, 1, 2, 3, 4]
    assert played(3, None).embeddings[1].tolist() == [1, 2, 1, 2, 1, 2]
