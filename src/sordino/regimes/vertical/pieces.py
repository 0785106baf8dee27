"""The rules of a stream: pieces one after another, counted, with rows where they are due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from sordino.base.message import Vector
from sordino.core import records
from sordino.core.effect import (
    Arrived,
    Begin,
    Closed,
    Effect,
    Event,
    Finish,
    Log,
    Send,
    Stop,
    Stretch,
    Stretched,
)
from sordino.regimes.vertical.records import VerticalRound
from sordino.regimes.vertical.tally import Tally

Booked = tuple[str, int, int, int]
"""Lineage of the charges' keys, the event they were booked at, first and last appearance."""


@dataclass(slots=True, eq=False)
class State:
    """Where a stream stands, between two pieces; changed in place.

    Attributes:
        kept: what the engine needs to go on.
        model: all weights in one vector, server first.
        row, whole: counted since the last row of the log, and since the beginning.
        position: events of the stream that were read, used or not.
        counts: appearances of each entity, where a stream repeats any.
        told: what was told of each entity's label, where one answer is for good.
        booked: appearances that the ledger has booked, in order.
        ended: why the run is over, or None.
        origin: what releases so far depend on; see
            :class:`sordino.regimes.vertical.simulation.Events`.
    """

    kept: dict[str, NDArray[Any]]
    model: Vector
    row: Tally
    whole: Tally
    position: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    told: dict[int, int] = field(default_factory=dict)
    booked: list[Booked] = field(default_factory=list)
    ended: str | None = None
    origin: str = ""

    @property
    def number(self) -> int:
        """Events of the stream that are behind us."""
        return self.position

    def copied(self) -> State:
        """A state that can be played on without changing this one."""
        row, whole = self.row.copied(), self.whole.copied()
        return replace(
            self,
            row=row,
            whole=whole,
            counts=dict(self.counts),
            told=dict(self.told),
            booked=list(self.booked),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The rules.

    Attributes:
        events: T.
        every: events between two rows of the log.
        piece: events in a piece, counted from the first event.
        changes: examples of the stream, from one number to another, at which the world changed at
            once.
        batch: b, examples in an event.
        accuracy: an unbiased estimate of the share of right predictions, from the share that agrees
            with the labels as told.
    """

    events: int
    every: int
    piece: int
    changes: Callable[[int, int], Sequence[int]]
    batch: int
    accuracy: Callable[[float], float]

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """What follows from one event. A stream that has ended stays as it is."""
        if state.ended is not None:
            return state, ()
        match event:
            case Begin():
                return state, (self._next(state),)
            case Arrived(Stretched() as played) if played.number == state.position + 1:
                return state, self._played(state, played)
            case Stop(why):
                return state, self._end(state, why)
        return state, ()

    def _next(self, state: State) -> Send:
        """Up to the next multiple of a piece's length."""
        return Send(
            0,
            Stretch(
                state.position + 1,
                min(self.piece - state.position % self.piece, self.events - state.position),
            ),
        )

    def _played(self, state: State, played: Stretched) -> Sequence[Effect]:
        """Count a piece, log what is due, and go on."""
        asked = self._next(state).message
        found = self.count(state, played)
        if state.position >= self.events:
            return (*found, *self._end(state, f"all {self.events} events were played"))
        if isinstance(asked, Stretch) and played.read < asked.count:
            why = f"the stream ended after {state.position} events"
            return (*found, *self._end(state, why))
        return found or (self._next(state),)  # after a row, once it is written and saved

    def count(self, state: State, played: Stretched) -> list[Effect]:
        """Count a piece, or what there is of it, and log what is due."""
        found: list[Effect] = []
        for stop, tally in played.counted:
            state.row.add(tally)
            state.whole.add(tally)
            if stop % self.every == 0:
                found += self._log(state, stop)
        state.position += played.read
        return found

    def _end(self, state: State, why: str) -> Sequence[Effect]:
        """Log what no row has told yet, and finish."""
        state.ended = why
        found: list[Effect] = []
        if state.row.events or state.row.unused:
            found += self._log(state, state.position)
        accuracy = _right(self.error(state.whole))
        end = Log(records.End(round=state.position, why=why, accuracy=accuracy))
        return (*found, end, Finish(why))

    def error(self, tally: Tally) -> float | None:
        """Share of wrong predictions; under privacy an unbiased estimate; or None."""
        return (
            None if not tally.examples else 1.0 - self.accuracy(1.0 - tally.errors / tally.examples)
        )

    def _log(self, state: State, stop: int) -> tuple[Effect, Effect]:
        """A row for the log, of everything since the last one."""
        tally, whole = state.row, state.whole
        events, error = max(tally.events, 1), self.error(tally)
        changes = self.changes((stop - tally.events - tally.unused) * self.batch, stop * self.batch)
        row = VerticalRound(
            round=stop,
            accuracy=_right(error),
            error=error,
            accumulated=self.error(whole),
            loss=tally.loss / tally.learned if tally.learned else None,
            regret=tally.regret / events,
            regret_sum=whole.regret,
            active=tuple(times / events for times in tally.active),
            silent=tuple(times / events for times in tally.silent),
            up=whole.up,
            down=whole.down,
            framing=whole.framing,
            learned=tally.learned,
            dropped=tally.dropped,
            unused=tally.unused,
            changes=tuple(place / self.batch for place in changes),
            active_seconds=whole.seconds[0] - whole.passive + whole.seconds[1],
            passive_seconds=whole.passive,
            server_seconds=whole.seconds[2],
            steps=max(whole.active),
        )
        state.row = Tally.zero(len(tally.active))
        return Log(row), Closed(stop)


def _right(error: float | None) -> float | None:
    return None if error is None else 1.0 - error
