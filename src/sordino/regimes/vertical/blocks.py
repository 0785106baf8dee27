"""A stream in blocks: reading on, counting what came of events, rows of the log, and checkpoints.

A block holds a thousand events and begins at a multiple of it, wherever rows of the log and
checkpoints fall: what is drawn (who is active, who does not answer, what noise there is) is
numbered by event or by block, so that the same study gives the same bits whatever is logged, and a
run that was killed comes to the same end. A checkpoint stands between two blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sordino.base.message import Derivative, Embedding, Query, Vector, encode
from sordino.core import records
from sordino.core import world as moments
from sordino.core.effect import (
    Arrived,
    Begin,
    BlockPlayed,
    Closed,
    Effect,
    Event,
    EventBlock,
    Finish,
    Log,
    Send,
    Stop,
)
from sordino.core.world import EncodedSnapshot
from sordino.data.stream import Piece
from sordino.regimes.vertical.engine import Arrays, Engine, Mask, Played, below
from sordino.regimes.vertical.records import VerticalRound

BLOCK = 1000
"""Events in a block."""
_GROWS = np.array([2**7, 2**8, 2**16, 2**32, 2**63 - 1])
"""Whole numbers from which on MessagePack needs more bytes."""
Booked = tuple[str, int, int, int]
"""Prefix of the charges' keys, the event they were booked at, first and last appearance."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive events of a stream, n of them, of which u are used.

    Attributes:
        read: their examples.
        start: events of the stream before it.
        first: number of its first used event, from 1.
        used: (n,).
        times: appearances, by its end, of the entity that has appeared most often.
        batch: b, examples in an event.
    """

    read: Piece
    start: int
    first: int
    used: Mask
    times: int
    batch: int

    @property
    def stop(self) -> int:
        """Events of the stream up to its end."""
        return self.start + len(self.used)

    @property
    def last(self) -> int:
        """Number of its last used event."""
        return self.first + int(self.used.sum()) - 1

    def until(self, n: int) -> Block:
        """Return its first n events."""
        return replace(self, used=self.used[:n])

    @property
    def places(self) -> NDArray[np.int64]:
        """Places in the block of examples of used events (u b,)."""
        whole = np.arange(len(self.used) * self.batch)
        return whole if self.used.all() else whole[np.repeat(self.used, self.batch)]


class Traffic(NamedTuple):
    """Bytes of payload up and down, and of framing."""

    up: int
    down: int
    framing: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of messages: bytes of an embedding, or derivative, of each party, and a number's bits.

    The payload of an embedding or a derivative is its numbers, at 16 or 32 bits; the framing is
    what the codec adds (names, party, event, lengths), and queries are framing altogether. Bytes
    are counted from who was active, so that every path counts the same.

    >>> sizes = Sizes.of((64,) * 4, resends=1, batch=1, bits=16)
    >>> traffic = sizes.weigh(1, np.ones((1000, 4), bool), np.ones(1000, bool))
    >>> traffic.up == traffic.down == 1000 * 4 * 64 * 2
    True
    """

    payload: tuple[int, ...]
    bits: int

    @staticmethod
    def of(embeddings: Sequence[int], *, resends: int, batch: int, bits: int) -> Sizes:
        """Return sizes for embeddings of so many numbers, sent for so many examples."""
        return Sizes(tuple(width * resends * batch * bits // 8 for width in embeddings), bits)

    def weigh(self, first: int, active: Mask, learned: Mask) -> Traffic:
        """Return the bytes of events from number ``first`` on.

        Everybody sends an embedding, in time or too late; a passive party is queried; an active one
        gets a derivative of what was learned from.

        Args:
            active: active parties (n, M).
            learned: events that were learned from (n,).
        """
        ups, downs, asked = np.ones_like(active), active & learned[:, None], ~active
        kinds = np.searchsorted(_GROWS, np.arange(first, first + len(learned)), side="right")
        framing = 0
        for kind in np.unique(kinds):
            here, event = kinds == kind, int(_GROWS[kind]) - 1
            framing += int(asked[here].sum()) * len(encode(Query(event)))
            for party, size in enumerate(self.payload):
                body = bytes(size)
                up = len(encode(Embedding(party, event, True, self.bits, body))) - size
                down = len(encode(Derivative(party, event, self.bits, body))) - size
                framing += int(ups[here, party].sum()) * up + int(downs[here, party].sum()) * down
        payload = np.array(self.payload)
        return Traffic(int(ups.sum(0) @ payload), int(downs.sum(0) @ payload), framing)


class Tally(msgspec.Struct):
    """Sums over used events, for a row of the log or for a whole run.

    Attributes:
        active, silent: events in which each party was active, or did not answer.
        events, learned: seen, and learned from.
        errors: predictions that were not the label the server knows.
        examples: predictions; there is none of an event that is skipped.
        loss, regret: sums over events, the loss over those learned from.
        up, down, framing: bytes.
        dropped: messages that could not be used.
        unused: events of entities that had no budget left.
        seconds: of parties' forward passes, their backward passes and steps, the server.
        passive: part of the forward seconds that passive parties took.
    """

    active: list[int]
    silent: list[int]
    events: int = 0
    learned: int = 0
    errors: int = 0
    examples: int = 0
    loss: float = 0.0
    regret: float = 0.0
    up: int = 0
    down: int = 0
    framing: int = 0
    dropped: int = 0
    unused: int = 0
    seconds: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0])
    passive: float = 0.0

    def copied(self) -> Tally:
        """Return a tally of its own with the same sums."""
        found = Tally.zero(len(self.active))
        found.add(self)
        return found

    @staticmethod
    def zero(parties: int) -> Tally:
        """Return a tally with nothing counted yet."""
        return Tally([0] * parties, [0] * parties)

    def add(self, other: Tally) -> None:
        """Count the other's as well."""
        self.active = [a + b for a, b in zip(self.active, other.active, strict=True)]
        self.silent = [a + b for a, b in zip(self.silent, other.silent, strict=True)]
        self.events += other.events
        self.learned += other.learned
        self.errors += other.errors
        self.examples += other.examples
        self.loss += other.loss
        self.regret += other.regret
        self.up += other.up
        self.down += other.down
        self.framing += other.framing
        self.dropped += other.dropped
        self.unused += other.unused
        self.seconds = [a + b for a, b in zip(self.seconds, other.seconds, strict=True)]
        self.passive += other.passive


def counted(
    block: Block,
    played: Played,
    active: Mask,
    silent: Mask,
    labels: NDArray[np.int64],
    sizes: Sizes,
    every: int,
) -> Iterator[tuple[int, Tally]]:
    """Yield what came of a block, up to each row of the log: the event after which it stands, and
    the tally.

    Args:
        active, silent: parties (u, M).
        labels: as the server knows them (u b,).
        every: events between two rows of the log.
    """
    start, n, batch = block.start, len(block.used), block.batch
    wrong = (played.predictions != labels).reshape(-1, batch).sum(1) * played.learned
    at = start + np.flatnonzero(block.used)
    clock = played.seconds / max(len(active), 1)
    stop = start
    while stop < start + n:
        begin, stop = stop, min((stop // every + 1) * every, start + n)
        low, high = np.searchsorted(at, (begin, stop))
        here = slice(low, high)
        traffic = sizes.weigh(block.first + low, active[here], played.learned[here])
        events, learned = int(high - low), int(played.learned[here].sum())
        passive = float((~active[here]).mean()) if events else 0.0
        yield (
            stop,
            Tally(
                active=active[here].sum(0).tolist(),
                silent=silent[here].sum(0).tolist(),
                events=events,
                learned=learned,
                errors=int(wrong[here].sum()),
                examples=learned * batch,
                loss=float(played.losses[here].sum()),
                regret=float(played.regret[here].sum()),
                up=traffic.up,
                down=traffic.down,
                framing=traffic.framing,
                dropped=int(played.dropped[here].sum()),
                unused=stop - begin - events,
                seconds=(clock * events).tolist(),
                passive=float(clock[0]) * events * passive,
            ),
        )


@dataclass(slots=True, eq=False)
class State:
    """A stream between two blocks; changed in place.

    Attributes:
        kept: what the engine needs to go on.
        model: all weights in one vector, server first.
        row, whole: counted since the last row of the log, and since the beginning.
        position: events of the stream that were read, used or not.
        counts: appearances of each entity, where a stream repeats any.
        told: the answer about each entity's label, where one answer is for good.
        booked: appearances that the ledger has booked, in order.
        ended: why the run is over, or None.
        origin: what releases so far depend on; see :class:`sordino.regimes.vertical.run.Events`.
    """

    kept: Arrays
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
        """Events of the stream that were read."""
        return self.position

    def copied(self) -> State:
        """Return a state that can be played on without changing this one."""
        return replace(
            self,
            row=self.row.copied(),
            whole=self.whole.copied(),
            counts=dict(self.counts),
            told=dict(self.told),
            booked=list(self.booked),
        )


@dataclass(frozen=True, slots=True, eq=False)
class EventBlocks:
    """The rules of a stream: blocks one after another, counted, with rows where they are due.

    Attributes:
        events: T.
        every: events between two rows of the log.
        block: events in a block, counted from the first event.
        changes: examples of the stream, from one number to another, at which the world changed at
            once.
        batch: b, examples in an event.
        accuracy: an unbiased estimate of the share of right predictions, from the share that agrees
            with the labels as told.
    """

    events: int
    every: int
    block: int
    changes: Callable[[int, int], Sequence[int]]
    batch: int
    accuracy: Callable[[float], float]

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """Return what follows from one event. A stream that has ended stays as it is."""
        if state.ended is not None:
            return state, ()
        match event:
            case Begin():
                return state, (self._next(state),)
            case Arrived(BlockPlayed() as played) if played.number == state.position + 1:
                return state, self._played(state, played)
            case Stop(why):
                return state, self._end(state, why)
        return state, ()

    def _next(self, state: State) -> Send:
        """Return the task of the next block, up to the next multiple of its length."""
        count = min(self.block - state.position % self.block, self.events - state.position)
        return Send(0, EventBlock(state.position + 1, count))

    def _played(self, state: State, played: BlockPlayed) -> Sequence[Effect]:
        """Count a block, log what is due, and go on."""
        asked = self._next(state).message
        found = self.count(state, played)
        if state.position >= self.events:
            return (*found, *self._end(state, f"all {self.events} events were played"))
        if isinstance(asked, EventBlock) and played.read < asked.count:
            why = f"the stream ended after {state.position} events"
            return (*found, *self._end(state, why))
        return found or (self._next(state),)  # after a row, once it is written and saved

    def count(self, state: State, played: BlockPlayed) -> list[Effect]:
        """Count a block, or what there is of it, and log what is due."""
        found: list[Effect] = []
        for stop, tally in played.counted:
            state.row.add(tally)
            state.whole.add(tally)
            if stop % self.every == 0:
                found += self._log(state, stop)
        state.position += played.read
        return found

    def _end(self, state: State, why: str) -> Sequence[Effect]:
        """Log what is in no row yet, and finish."""
        state.ended = why
        found: list[Effect] = []
        if state.row.events or state.row.unused:
            found += self._log(state, state.position)
        accuracy = _right(self.error(state.whole))
        end = Log(records.End(round=state.position, why=why, accuracy=accuracy))
        return (*found, end, Finish(why))

    def error(self, tally: Tally) -> float | None:
        """Return the share of wrong predictions, under privacy an unbiased estimate; or None."""
        if not tally.examples:
            return None
        return 1.0 - self.accuracy(1.0 - tally.errors / tally.examples)

    def _log(self, state: State, stop: int) -> tuple[Effect, Effect]:
        """Return a row for the log, of everything since the last one."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Moment(moments.KernelSnapshot[State]):
    """A stream between two blocks, on its way into a checkpoint and back.

    It shares the state, which goes on changing: pack it at once.
    """

    @property
    def kept(self) -> Arrays:
        """The arrays that the engine needs to go on."""
        return self.state.kept

    @property
    def model(self) -> Vector:
        """All weights in one vector, server first."""
        return self.state.model

    @property
    def whole(self) -> Tally:
        """Sums since the beginning."""
        return self.state.whole

    @property
    def steps(self) -> int:
        """Events in which the party that was active most was active."""
        return max(self.state.whole.active)

    def packed(self) -> EncodedSnapshot:
        """Return the state as arrays, and the rest as JSON."""
        state = self.state
        vectors: dict[str, Any] = {f"engine.{name}": value for name, value in state.kept.items()}
        for name, values in (("counts", state.counts), ("told", state.told)):
            if values:
                vectors[f"{name}.entities"] = np.fromiter(values, np.int64, len(values))
                vectors[f"{name}.values"] = np.fromiter(values.values(), np.int64, len(values))
        # Sums of a model that diverges are no numbers that JSON knows.
        vectors["sums"] = np.array(
            [[tally.loss, tally.regret] for tally in (state.row, state.whole)]
        )
        row, whole = (
            msgspec.structs.replace(tally, loss=0.0, regret=0.0)
            for tally in (state.row, state.whole)
        )
        rest = _Rest(row, whole, state.position, list(state.booked), state.ended, state.origin)
        return EncodedSnapshot(vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a state that is no array."""

    row: Tally
    whole: Tally
    position: int
    booked: list[Booked]
    ended: str | None
    origin: str


def unpacked(packed: EncodedSnapshot, engine: Engine, origin: str) -> Moment:
    """Return the moment that :meth:`Moment.packed` put away.

    Args:
        packed: from a checkpoint.
        engine: a new one; it takes over what the checkpoint keeps for it.
        origin: what releases depend on from now on. If it is not the checkpoint's, appearances are
            counted from nothing again.
    """
    local, shared = moments.unpacked(packed)
    rest, vectors = msgspec.json.decode(local.rest, type=_Rest), dict(local.vectors)
    sums = vectors.pop("sums").tolist()
    for tally, (loss, regret) in zip((rest.row, rest.whole), sums, strict=True):
        tally.loss, tally.regret = loss, regret
    kept = below("engine.", vectors)
    engine.unpack(kept)
    state = State(
        kept, joined(engine), rest.row, rest.whole, rest.position, ended=rest.ended, origin=origin
    )
    if rest.origin == origin:
        state.counts, state.told = _table("counts.", vectors), _table("told.", vectors)
        state.booked = rest.booked
    return Moment(state, **shared)


def _table(prefix: str, vectors: Mapping[str, NDArray[Any]]) -> dict[int, int]:
    """Return numbers by entity."""
    found = below(prefix, vectors)
    if not found:
        return {}
    return dict(zip(found["entities"].tolist(), found["values"].tolist(), strict=True))


def joined(engine: Engine) -> Vector:
    """Return all weights in one vector (d,), server first."""
    found: Vector = np.concatenate(list(engine.weights().values()))
    return found
