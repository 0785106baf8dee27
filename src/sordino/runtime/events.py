r"""The simulator of online vertical learning: a stream of events, cut into pieces, each charged before it is played.

Pieces hold a thousand events and begin at multiples of it, wherever rows of the log and checkpoints fall: what is
drawn (who is active, who does not answer, what noise there is) is numbered by event or by piece, so that the same study
gives the same bits whatever is logged, and a run that was killed comes to the same end. A checkpoint stands between two pieces.

The error is prequential: every example is predicted before it is learned from. Under privacy the server
knows responded labels only, and what is logged is the unbiased estimate that they allow
(:meth:`~sordino.mechanism.response.RandomisedResponse.accuracy`).

Entities that a stream repeats are counted. The ledger books for *an* entity what its k-th appearance
releases, when the first entity appears for the k-th time: that is the price of the one that appeared
most often, and a bound for all. What appears more often than its budget pays for is not used. A run that goes on where its
releases may come out differently (``origin``: another environment) is counted from nothing again: what was released
before stays booked, and what follows is booked beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from sordino.engine import records
from sordino.errors import BudgetExceeded, DataError
from sordino.mechanism.response import Key, RandomisedResponse
from sordino.message import Vector
from sordino.privacy import Budget, Charge, Event, Vault, accountant
from sordino.runtime.engine import Engine, Mask, Played
from sordino.runtime.tally import Tally
from sordino.runtime.traffic import Sizes
from sordino.runtime.watch import Packed, Watcher, bound
from sordino.runtime.whom import Whom

PIECE = 1000  # events

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


class Piece(Protocol):
    """Consecutive examples of a stream."""

    @property
    def x(self) -> NDArray[np.float32]:
        """(n, f), the parties' features side by side."""
        ...

    @property
    def y(self) -> NDArray[np.int64]:
        """(n,)."""
        ...

    @property
    def entity(self) -> NDArray[np.int64] | None:
        """Whose each is (n,), where the stream knows."""
        ...


class Stream(Protocol):
    """Examples one after another."""

    def read(self, start: int, count: int) -> Piece:
        """The examples from number ``start`` on; fewer than ``count`` only at the end."""
        ...

    def changes(self, start: int, stop: int) -> Sequence[int]:
        """Examples at which the world changed at once."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """A simulation between two pieces.

    Attributes:
        kept: what the engine needs to go on.
        model: all weights in one vector, server first.
        row, whole: counted since the last row of the log, and since the beginning.
        position: events of the stream that were read, used or not.
        counts: appearances of each entity: numbers and how often (two arrays), where a stream repeats any.
        told: what was told of each entity's label: numbers and answers, where one answer is for good.
        booked: appearances that the ledger has booked.
        epsilon: of the promised unit, so far.
        ended: why the run is over, or None.
        origin: what releases so far depend on; see :class:`Events`.
    """

    kept: dict[str, NDArray[Any]]
    model: Vector
    row: Tally
    whole: Tally
    position: int = 0
    counts: Pairs | None = None
    told: Pairs | None = None
    booked: int = 0
    epsilon: float = 0.0
    ended: str | None = None
    origin: str = ""

    @property
    def number(self) -> int:
        """Events of the stream that are behind us."""
        return self.position

    @property
    def steps(self) -> int:
        """Events in which the party that was active most was active."""
        return max(self.whole.active)

    def pack(self) -> Packed:
        """See :class:`sordino.runtime.watch.Moment`."""
        vectors: dict[str, NDArray[Any]] = {f"engine.{name}": value for name, value in self.kept.items()}
        for name, pairs in (("counts", self.counts), ("told", self.told)):
            if pairs is not None:
                vectors[f"{name}.entities"], vectors[f"{name}.values"] = pairs
        # Sums of a model that diverges are no numbers that JSON knows.
        vectors["sums"] = np.array([[tally.loss, tally.regret] for tally in (self.row, self.whole)])
        row, whole = (msgspec.structs.replace(tally, loss=0.0, regret=0.0) for tally in (self.row, self.whole))
        rest = _Rest(row, whole, self.position, self.booked, bound(self.epsilon), self.ended, self.origin)
        return Packed(vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a moment is no array."""

    row: Tally
    whole: Tally
    position: int
    booked: int
    epsilon: float | str
    ended: str | None
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Respond:
    """How the server comes to know labels: by randomised response, drawn once for an entity or at each event."""

    mechanism: RandomisedResponse
    key: Key
    memoised: bool

    def __call__(self, labels: NDArray[np.int64], entities: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        """Responses (n,) to the labels of these entities, at the places from ``first`` on in the stream."""
        visits = None if self.memoised else np.arange(first, first + len(labels))
        found: NDArray[np.int64] = self.mechanism.respond_for(labels, entities, self.key, visits)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """A vertical federation on one machine.

    Attributes:
        engine: server and parties; made anew for each call of :meth:`run`.
        stream: where examples come from.
        events: T.
        batch: b, examples in an event.
        every: events between two rows of the log.
        whom: who is active, and who does not answer.
        sizes: of messages.
        respond: how labels are told, or None for as they are.
        charges: what appearances ``first`` to ``last`` of an entity release: (unit, event, how often).
        limit: in how many events an entity takes part at most.
        vault, units, budget: the ledger; what is promised is promised to ``units``.
        unlimited: budget of units to which nothing is promised.
        method, lineage: for the ledger.
        origin: what the protected releases depend on; the same one releases the same again.
    """

    engine: Callable[[], Engine]
    stream: Stream
    events: int
    batch: int
    every: int
    whom: Whom
    sizes: Sizes
    respond: Respond | None
    charges: Callable[[int, int], Sequence[tuple[str, Event, int]]]
    limit: int | None
    vault: Vault
    units: Sequence[str]
    budget: Budget
    unlimited: Budget
    method: str
    lineage: str
    origin: str

    @property
    def payable(self) -> list[int] | None:
        """Appearances that an entity can pay for, or no limit."""
        return None if self.limit is None else [self.limit]

    def first(self) -> Moment:
        """Before the first event."""
        engine = self.engine()
        parties = len(self.whom.columns)
        return Moment(engine.pack(), _joined(engine), Tally.zero(parties), Tally.zero(parties), origin=self.origin)

    def unpack(self, packed: Packed) -> Moment:
        """See :class:`sordino.runtime.watch.Play`."""
        rest, vectors = msgspec.json.decode(packed.rest, type=_Rest), dict(packed.vectors)
        pairs = {
            name: (vectors.pop(f"{name}.entities"), vectors.pop(f"{name}.values"))
            for name in ("counts", "told")
            if f"{name}.entities" in vectors
        }
        for tally, (loss, regret) in zip((rest.row, rest.whole), vectors.pop("sums").tolist(), strict=True):
            tally.loss, tally.regret = loss, regret
        kept = {name.removeprefix("engine."): value for name, value in vectors.items()}
        engine = self.engine()
        engine.unpack(kept)
        counted: Any = {**pairs, "booked": rest.booked} if rest.origin == self.origin else {}
        return Moment(
            kept,
            _joined(engine),
            rest.row,
            rest.whole,
            rest.position,
            epsilon=float(rest.epsilon),
            ended=rest.ended,
            origin=self.origin,
            **counted,
        )

    def run(self, moment: Moment, watcher: Watcher) -> Moment:
        """Play from ``moment`` to the end of the run.

        Raises:
            BudgetExceeded: if somebody else spent this data's budget meanwhile.
        """
        play = _Play(self, moment, watcher)
        while play.ended is None:
            play.piece()
        return play.moment()


class _Play:
    """The moving parts of one call of ``run``."""

    def __init__(self, world: Events, moment: Moment, watcher: Watcher) -> None:
        self.world, self.watcher, self.engine = world, watcher, world.engine()
        self.engine.unpack(moment.kept)
        self.row, self.whole = moment.row.copied(), moment.whole.copied()
        self.position, self.booked, self.epsilon, self.ended = moment.position, moment.booked, moment.epsilon, moment.ended
        self.counts, self.told = _dict(moment.counts), _dict(moment.told)

    def moment(self) -> Moment:
        row, whole = self.row.copied(), self.whole.copied()
        return Moment(
            self.engine.pack(),
            _joined(self.engine),
            row,
            whole,
            self.position,
            _pairs(self.counts),
            _pairs(self.told),
            self.booked,
            self.epsilon,
            self.ended,
            self.world.origin,
        )

    def piece(self) -> None:
        """Read up to the next multiple of :data:`PIECE`, charge, play, count, log."""
        world, start = self.world, self.position
        count = min(PIECE - start % PIECE, world.events - start)
        read = world.stream.read(start * world.batch, count * world.batch)
        n = len(read.y) // world.batch
        if n:
            self.play(read, start, n)
            self.position += n
        if self.position >= world.events:
            self.ended = f"all {world.events} events were played"
        elif n < count:
            self.ended = f"the stream ended after {self.position} events"
        saved = self.position // world.every > start // world.every
        if self.ended is not None:
            if self.row.events or self.row.unused:
                self.log()
            self.watcher.row(records.End(round=self.position, why=self.ended, accuracy=_right(self.error(self.whole))))
        if saved or self.ended is not None:
            self.watcher.save(self.moment())

    def play(self, read: Piece, start: int, n: int) -> None:
        """Charge for a piece, play it, and count what came of it, row by row of the log."""
        world, batch = self.world, self.world.batch
        x, y = read.x[: n * batch], read.y[: n * batch]
        entities = read.entity[: n * batch] if read.entity is not None else None
        used = self.admit(entities, n)
        active, silent = world.whom.drawn(x, start, n, PIECE)
        examples = slice(None) if used.all() else np.repeat(used, batch)
        if world.respond is not None:
            known = entities if entities is not None else np.arange(start * batch, (start + n) * batch)
            y = world.respond(y, known, start * batch)
            if entities is not None and world.respond.memoised:
                self.remember(entities[examples], y[examples])
        x, y, active, silent = x[examples], y[examples], active[used], silent[used]
        first = self.whole.events + 1
        played = self.engine.run(x, y, active, silent) if used.any() else Played.nothing()
        wrong = (played.seen.predictions != y).reshape(-1, batch).sum(1) * played.learned
        places = start + np.flatnonzero(used)
        clock = played.seen.seconds / max(len(active), 1)
        stop = start
        while stop < start + n:
            begin, stop = stop, min((stop // world.every + 1) * world.every, start + n)
            low, high = np.searchsorted(places, (begin, stop))
            here, traffic = slice(low, high), world.sizes.weigh(first + low, active[low:high], played.learned[low:high])
            events, learned = int(high - low), int(played.learned[here].sum())
            passive = float((~active[here]).mean()) if events else 0.0
            self.count(
                Tally(
                    active=active[here].sum(0).tolist(),
                    silent=silent[here].sum(0).tolist(),
                    events=events,
                    learned=learned,
                    errors=int(wrong[here].sum()),
                    examples=learned * batch,
                    loss=float(played.seen.losses[here].sum()),
                    regret=float(played.seen.regret[here].sum()),
                    up=traffic.up,
                    down=traffic.down,
                    framing=traffic.framing,
                    dropped=int(played.dropped[here].sum()),
                    unused=stop - begin - events,
                    seconds=(clock * events).tolist(),
                    passive=float(clock[0]) * events * passive,
                )
            )
            if stop % world.every == 0:
                self.log(stop)

    def count(self, tally: Tally) -> None:
        self.row.add(tally)
        self.whole.add(tally)

    def admit(self, entities: NDArray[np.int64] | None, n: int) -> Mask:
        """Which events may be used, their appearances counted and booked."""
        used, highest = np.ones(n, bool), 1
        if entities is not None and self.world.units:
            limit, batch = self.world.limit, self.world.batch
            for i in range(n):
                group = entities[i * batch : (i + 1) * batch].tolist()
                times = {e: self.counts.get(e, 0) + group.count(e) for e in group}
                most = max(times.values())
                if limit is not None and most > limit:
                    used[i] = False
                    continue
                self.counts.update(times)
                highest = max(highest, most)
        if highest > self.booked and used.any():
            self.book(highest)
        return used

    def remember(self, entities: NDArray[np.int64], answers: NDArray[np.int64]) -> None:
        """Hold the stream to its promise of one label for each entity: other answers would tell of the change, which nothing bounds.

        Raises:
            DataError: if it breaks it; nothing of this piece has been used then.
        """
        for entity, answer in zip(entities.tolist(), answers.tolist(), strict=True):
            if self.told.setdefault(entity, answer) != answer:
                raise DataError(
                    f"entity {entity} has two labels in this stream, and privacy.memoised tells its label once for all:"
                    " set memoised = false, and appearances to the events that one entity may take part in"
                )

    def book(self, highest: int) -> None:
        """Charge for what an entity releases up to its ``highest``-th appearance, durably.

        Raises:
            BudgetExceeded: after a row in the log.
        """
        world = self.world
        groups: dict[Budget, list[Charge]] = {}
        for number, (unit, event, count) in enumerate(world.charges(self.booked + 1, highest)):
            charge = Charge(
                unit=unit,
                event=event,
                count=count,
                why="one entity's appearances",
                method=world.method,
                round=self.position + 1,
                key=f"{world.lineage}/appearance {self.booked + 1} to {highest}/{number}",
            )
            groups.setdefault(world.budget if unit in world.units else world.unlimited, []).append(charge)
        for budget, charges in groups.items():
            try:
                receipts = world.vault.charge(charges, budget)
            except BudgetExceeded as refusal:
                self.watcher.row(records.Refused(round=self.position, why=str(refusal)))
                raise
            for receipt in receipts:
                if receipt.unit in world.units:  # as of this entry: a run that is being replayed has booked later ones already
                    chosen, histories = accountant(budget.accountant), world.vault.histories(receipt.unit, receipt.seq)
                    self.epsilon = max(self.epsilon, *(chosen.epsilon(spent, budget.delta) for spent in histories))
        self.booked = highest

    def error(self, tally: Tally) -> float | None:
        """Share of wrong predictions; under privacy its unbiased estimate. None of no predictions."""
        if not tally.examples:
            return None
        agreement = 1.0 - tally.errors / tally.examples
        return 1.0 - (agreement if self.world.respond is None else self.world.respond.mechanism.accuracy(agreement))

    def log(self, stop: int | None = None) -> None:
        """A row for the log, of everything since the last one."""
        tally, stop = self.row, self.position if stop is None else stop
        events, error = max(tally.events, 1), self.error(tally)
        changes = self.world.stream.changes((stop - tally.events - tally.unused) * self.world.batch, stop * self.world.batch)
        row = records.VerticalRound(
            round=stop,
            accuracy=_right(error),
            error=error,
            accumulated=self.error(self.whole),
            loss=tally.loss / tally.learned if tally.learned else None,
            regret=tally.regret / events,
            regret_sum=self.whole.regret,
            active=tuple(times / events for times in tally.active),
            silent=tuple(times / events for times in tally.silent),
            up=self.whole.up,
            down=self.whole.down,
            framing=self.whole.framing,
            learned=tally.learned,
            dropped=tally.dropped,
            unused=tally.unused,
            changes=tuple(place / self.world.batch for place in changes),
            active_seconds=self.whole.seconds[0] - self.whole.passive + self.whole.seconds[1],
            passive_seconds=self.whole.passive,
            server_seconds=self.whole.seconds[2],
            steps=max(self.whole.active),
            epsilon=self.epsilon if self.world.units else math.inf,
        )
        self.watcher.row(row)
        self.row = Tally.zero(len(self.world.whom.columns))


def _right(error: float | None) -> float | None:
    return None if error is None else 1.0 - error


def _dict(pairs: Pairs | None) -> dict[int, int]:
    return {} if pairs is None else dict(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))


def _pairs(values: dict[int, int]) -> Pairs | None:
    return (np.fromiter(values, np.int64, len(values)), np.fromiter(values.values(), np.int64, len(values))) if values else None


def _joined(engine: Engine) -> Vector:
    found: Vector = np.concatenate(list(engine.weights().values()))
    return found
