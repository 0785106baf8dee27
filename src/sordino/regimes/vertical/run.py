r"""A run of events on one machine: its objects, the simulation of a stream in blocks, and what came
of them.

A block of events is read, what it releases is booked, and then it is played: to the kernel, a block
is one task of an engine, site 0. A stand-in for a network needs nothing else: an engine may hand
every message over (:mod:`sordino.regimes.vertical.messages`).

A block holds a thousand events and begins at a multiple of it, wherever rows of the log and
checkpoints fall: what is drawn (who is active, who does not answer, what noise there is) is
numbered by event or by block, so that the same study gives the same bits whatever is logged, and a
run that was killed comes to the same end. A checkpoint stands between two blocks.

What entities release, and when it is charged: :mod:`sordino.regimes.vertical.appearances`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from sordino.base.arrays import Array, Bools, Ints, below
from sordino.base.entropy import Entropy, Seeded
from sordino.base.frozen import Frozen
from sordino.base.message import Derivative, Embedding, Query, Vector, encode
from sordino.base.registry import foreign
from sordino.base.settings import tune
from sordino.core import effect, world
from sordino.core import records as rows
from sordino.core.effect import BlockPlayed, Effect, Effects, Event, EventBlock, Log, Request, Send
from sordino.core.kernel import Kernel
from sordino.core.plan import Plan
from sordino.core.prepared import Affordable, PreparedRun, open_ledgers
from sordino.core.run import environment
from sordino.core.world import Charges, EncodedSnapshot, KernelSnapshot, PermitRange, World
from sordino.mechanisms.response import RandomisedResponse, secret
from sordino.privacy import Allowance, Budget, LedgerSession, Permits, accountant
from sordino.privacy.accounting import Spent
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical import regime as prices
from sordino.regimes.vertical.appearances import Appearances, Block, Charged, affordable, not_booked
from sordino.regimes.vertical.halves import Arrays, Engine, EventPath, Graph, Played
from sordino.regimes.vertical.models import Split, make_party, make_server, named, rates
from sordino.regimes.vertical.records import PartyFacts, ReleaseFacts, Vertical, VerticalRound
from sordino.regimes.vertical.regime import BLOCK, label_epsilon, party_unit, promised
from sordino.regimes.vertical.stream import Activity, Arranged, LabelRandomizer, remember, source
from sordino.regimes.vertical.study import VerticalStudy

_GROWS = np.array([2**7, 2**8, 2**16, 2**32, 2**63 - 1])
"""Whole numbers from which on MessagePack needs more bytes."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of messages: numbers in an embedding message, or a derivative, of each party, and a
    number's bits.

    The payload of an embedding or a derivative is its numbers, at 16 or 32 bits; the framing is
    what the codec adds (names, party, event, lengths), and queries are framing altogether. Bytes
    are counted from who was active, so that every path counts the same.

    >>> sizes = Sizes((64,) * 4, bits=16)
    >>> up, down, _ = sizes.traffic(1, np.ones((1000, 4), bool), np.ones(1000, bool))
    >>> up == down == 1000 * 4 * 64 * 2
    True
    """

    numbers: tuple[int, ...]
    bits: int

    def traffic(self, first: int, active: Bools, learned: Bools) -> tuple[int, int, int]:
        """Return the bytes of events from number ``first`` on: payload up and down, and framing.

        Everybody sends an embedding, in time or too late; a passive party is queried; an active one
        gets a derivative of what was learned from.

        Args:
            active: active parties (n, M).
            learned: events that were learned from (n,).
        """
        payload = np.array(self.numbers) * self.bits // 8
        downs, framing = active & learned[:, None], 0
        kinds = np.searchsorted(_GROWS, np.arange(first, first + len(learned)), side="right")
        for kind in np.unique(kinds):
            here, event = kinds == kind, int(_GROWS[kind]) - 1
            framing += int((~active[here]).sum()) * len(encode(Query(event)))
            for party, size in enumerate(payload.tolist()):
                up = len(encode(Embedding(party, event, True, self.bits, bytes(size)))) - size
                down = len(encode(Derivative(party, event, self.bits, bytes(size)))) - size
                framing += int(here.sum()) * up + int(downs[here, party].sum()) * down
        return len(active) * int(payload.sum()), int(downs.sum(0) @ payload), framing


class Tally(Frozen):
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
        seconds: of processor time: parties' forward passes, their backward passes and steps, the
            server.
        passive: part of the forward seconds that passive parties took.
    """

    active: tuple[int, ...]
    silent: tuple[int, ...]
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
    seconds: tuple[float, ...] = (0.0, 0.0, 0.0)
    passive: float = 0.0

    @staticmethod
    def zero(parties: int) -> Tally:
        """Return a tally with nothing counted yet."""
        return Tally((0,) * parties, (0,) * parties)

    def plus(self, other: Tally) -> Tally:
        """Return the sums of both: of numbers, and of tuples number by number."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        summed: list[Any] = [
            tuple(map(operator.add, a, b)) if isinstance(a, tuple) else a + b for a, b in pairs
        ]
        return Tally(*summed)


class _Rest(msgspec.Struct, kw_only=True, eq=False, forbid_unknown_fields=True):
    """The part of a state that is no array."""

    row: Tally
    whole: Tally
    position: int = 0
    charged: list[Charged] = msgspec.field(default_factory=list, name="booked")
    ended: str | None = None
    origin: str = ""


class StreamState(_Rest):
    """A stream between two blocks; changed in place.

    Attributes:
        kept: what the engine needs to go on.
        model: all weights in one vector, server first.
        row, whole: counted since the last row of the log, and since the beginning.
        position: events of the stream that were read, used or not.
        counts: appearances of each entity, where a stream repeats any.
        answers: the answer about each entity's label, where one answer is for good.
        charged: appearances that are charged, in order.
        ended: why the run is over, or None.
        origin: what releases so far depend on; see :class:`Events`.
    """

    kept: Arrays
    model: Vector
    counts: dict[int, int] = {}
    answers: dict[int, int] = {}

    @property
    def number(self) -> int:
        """Events of the stream that were read."""
        return self.position

    @property
    def taken(self) -> int:
        """Events in which the party that was active most was active."""
        return max(self.whole.active)

    def pack(self) -> EncodedSnapshot:
        """Return the state as arrays, and the rest as JSON."""
        vectors: dict[str, Any] = {f"engine.{name}": value for name, value in self.kept.items()}
        for name, values in (("counts", self.counts), ("told", self.answers)):
            if values:
                vectors[f"{name}.entities"] = np.fromiter(values, np.int64, len(values))
                vectors[f"{name}.values"] = np.fromiter(values.values(), np.int64, len(values))
        # Sums of a model that diverges are no numbers that JSON knows.
        tallies = {"row": self.row, "whole": self.whole}
        vectors["sums"] = np.array([[each.loss, each.regret] for each in tallies.values()])
        rest = {name: getattr(self, name) for name in _Rest.__struct_fields__}
        for name, tally in tallies.items():
            rest[name] = msgspec.structs.replace(tally, loss=0.0, regret=0.0)
        return EncodedSnapshot(vectors, msgspec.json.encode(_Rest(**rest)))

    def copied(self) -> StreamState:
        """Return a state that can be played on without changing this one."""
        return msgspec.structs.replace(
            self, counts=dict(self.counts), answers=dict(self.answers), charged=list(self.charged)
        )


def _table(prefix: str, vectors: Mapping[str, Array]) -> dict[int, int]:
    """Return numbers by entity."""
    found = below(prefix, vectors)
    if not found:
        return {}
    return dict(zip(found["entities"].tolist(), found["values"].tolist(), strict=True))


@dataclass(kw_only=True, eq=False)
class Events(world.RegimeRules[StreamState], World[StreamState]):
    """A vertical federation on one machine, and to the kernel a stream: blocks one after another,
    each charged, played and counted, with rows where they are due. It is its own rules: what
    follows depends on the stream that it reads.

    Attributes:
        split: the network, cut, and its calibrated study, ``study``.
        run_id: of the run.
        engine: makes a server and its parties, anew for each call of :meth:`run`.
        stream: examples one after another.
        entropy: of the key of answers about labels, where there is one.
        affordable_steps: how many appearances an entity's budget pays for, or no limit.
        ledgers: where charges go.
        batch: examples in an event: b.
        promised: the unit of the ledger to which something is promised, if any is; ``units`` is
            the same, as a simulation names it.
        budget: of what is promised; ``unlimited`` is that of other units.
        sizes: of messages.
        activity: active parties, and parties that do not answer.
        randomizer: tells labels.
        origin: what the protected releases depend on; the same one releases the same again.
        state: of the run that is played; changed in place.
        player: the engine that plays it.
        block: the open block.
    """

    split: Split
    run_id: str
    engine: Callable[[], Engine]
    stream: Arranged
    entropy: Callable[[], Entropy]
    affordable_steps: list[int] | None
    ledgers: LedgerSession
    state: StreamState = field(init=False)
    player: Engine = field(init=False)
    block: Block | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Derive the rest; who is active is drawn once on zeros, to refuse misfits."""
        split, study = self.split, self.split.study
        method, privacy = study.method, study.privacy
        torch.set_num_threads(study.execution.threads)
        self.regime, self.study, self.batch = self, study, method.batch
        self.promised = promised(study) if privacy.unit != "none" else None
        self.units: tuple[str, ...] = () if self.promised is None else (self.promised,)
        most, delta = privacy.epsilon or math.inf, privacy.delta or 1e-5
        self.budget = Budget(most, delta, privacy.accountant)
        self.unlimited = replace(self.budget, epsilon=math.inf)
        self.sizes = Sizes(split.numbers, study.world.precision)
        self.activity = Activity(
            activation=method.activation,
            columns=split.columns,
            dropout=study.world.dropout,
            entropy=Seeded(study.seed),
            block=BLOCK,
        )
        self.activity.asked(np.zeros((1, sum(split.features)), np.float32), 0, 1)
        mechanism, key = None, (0, 0)
        if self.promised is not None:
            mechanism = RandomisedResponse(epsilon=label_epsilon(study), classes=split.classes)
            key = secret(self.entropy().at("labels"))
        self.randomizer = LabelRandomizer(
            mechanism=mechanism,
            key=key,
            memoised=privacy.memoised,
            required=prices.label_charges(study),
        )
        self.origin = environment.response_key_prefix(study, self.run_id)

    @cached_property
    def appearances(self) -> Appearances:
        """The entities of the stream, with the charges of what this process releases of them."""
        most = None if self.affordable_steps is None else self.affordable_steps[0]
        prefix = environment.charge_key_prefix(self.study, self.run_id)
        return Appearances(self.study, self.stream, BLOCK, most, self.budget, prefix)

    def prepared(self, chosen: EventPath) -> PreparedRun:
        """Return the objects of a run that is played as ``chosen``."""
        study, priced = self.study, prices.price(self.study)
        return PreparedRun(
            study=study,
            plan=priced,
            simulation=self,
            first=self.first(),
            facts=facts(self.split, priced, chosen),
            model=study.model.name,
            named=partial(named, self.split.flats()),
            paid="appearance of an entity",
            remedy=self._remedy(),
        )

    def _remedy(self) -> str:
        """Return what helps where the budget pays for no event; what was spent before is said,
        too.
        """
        found, unit = "raise the noise multipliers, or lower label_epsilon", self.promised
        if self.affordable_steps != [0] or unit is None:
            return found.capitalize()
        spent = self.ledgers.epsilon(unit, self.budget.delta, self.budget.accountant)
        if not spent:
            return found.capitalize()
        return (
            f"The {unit} have spent epsilon {epsilon_text(spent)} of "
            f"{epsilon_text(self.budget.epsilon)} before: use other data, raise privacy.epsilon, "
            f"{found}"
        )

    def first(self) -> KernelSnapshot[StreamState]:
        """Return the moment before the first event."""
        engine, zero = self.engine(), Tally.zero(len(self.activity.columns))
        kept, model, origin = engine.pack(), engine.model, self.origin
        state = StreamState(kept=kept, model=model, row=zero, whole=zero, origin=origin)
        return KernelSnapshot.initial(state)

    def unpack(self, packed: EncodedSnapshot) -> KernelSnapshot[StreamState]:
        """Return a moment that was kept. If what releases depend on is not what it was then,
        appearances are counted from nothing again.
        """
        return world.unpacked(packed, self._unpacked)

    def _unpacked(self, local: EncodedSnapshot) -> StreamState:
        rest, vectors = msgspec.json.decode(local.rest, type=_Rest), dict(local.vectors)
        for name, (loss, regret) in zip(("row", "whole"), vectors["sums"].tolist(), strict=True):
            tally = msgspec.structs.replace(getattr(rest, name), loss=loss, regret=regret)
            setattr(rest, name, tally)
        engine, kept = self.engine(), below("engine.", vectors)
        engine.unpack(kept)
        state = StreamState(kept=kept, model=engine.model, **msgspec.structs.asdict(rest))
        if rest.origin == self.origin:
            state.counts, state.answers = _table("counts.", vectors), _table("told.", vectors)
        else:
            state.origin, state.charged = self.origin, []
        return state

    def resumed(self, moment: KernelSnapshot[StreamState]) -> KernelSnapshot[StreamState]:
        """Stand at ``moment``, and return a copy of it, as it may be played from twice."""
        self.state, self.player, self.block = moment.state.copied(), self.engine(), None
        self.player.unpack(self.state.kept)
        return msgspec.structs.replace(moment, state=self.state)

    def run(
        self, moment: KernelSnapshot[StreamState], watcher: world.RunListener
    ) -> KernelSnapshot[StreamState]:
        """Play from ``moment`` to the end of the run."""
        tune()
        return Kernel(self, self.resumed(moment), watcher).run()

    def answers(self, block: Block, paid: Allowance, known: dict[int, int]) -> Ints:
        """Return the labels of a block's used events as the server learns them (u b,).

        Args:
            paid: permits for the answers.
            known: answers about entities so far, to which these are added.

        Raises:
            LocalProtocolError: if they are not paid for; nothing has been told then.
            DataError: if an entity has two labels, and its label is told once for all.
        """
        randomizer, examples = self.randomizer, block.places
        places = block.start * self.batch + examples
        entities = None if block.read.entity is None else block.read.entity[examples]
        found = randomizer(
            block.read.y[examples], places if entities is None else entities, places, paid
        )
        if entities is not None and randomizer.memoised and randomizer.mechanism is not None:
            remember(known, entities, found)
        return found

    def unused_permits(self, state: StreamState, site: int, permits: Permits) -> Permits:
        """Return all permits: none is ever worked off."""
        return permits

    def needed_permits(self, site: int, number: int, permits: Permits) -> Permits:
        """Return all permits, at a site."""
        return permits

    def price(self, unit: str, spent: Spent, budget: Budget) -> float:
        """Return the epsilon of a history."""
        return accountant(budget.accountant).epsilon(spent, budget.delta)

    def step(self, state: StreamState, event: Event) -> tuple[StreamState, Effects]:
        """Return what follows from one event. A stream that has ended stays as it is."""
        effects: list[Effect] = []
        match event:
            case _ if state.ended is not None:
                pass
            case effect.Begin():
                effects = self.open_block(state)
            case effect.Arrived(BlockPlayed() as played) if played.number == state.position + 1:
                effects = self._played(state, played)
            case effect.Stop(why):
                effects = self._end(state, why)
        if any(isinstance(each, effect.Closed | effect.Finish) for each in effects):
            state.kept, state.model = self.player.pack(), self.player.model
        return state, effects

    def open_block(self, state: StreamState) -> list[Effect]:
        """Read the next block, and return what begins it."""
        start, first = state.position, state.whole.events + 1
        self.block = self.appearances.read(start, first, state.counts, state.charged)
        return [Send(0, EventBlock(start + 1, self.appearances.events(start)))]

    def _played(self, state: StreamState, played: BlockPlayed) -> list[Effect]:
        """Count a block, log what is due, and go on."""
        count = self.appearances.events(state.position)
        found = self.count(state, played)
        if state.position >= self.study.horizon:
            return found + self._end(state, f"all {self.study.horizon} events were played")
        if played.read < count:
            return found + self._end(state, f"the stream ended after {state.position} events")
        return found or self.open_block(state)  # after a row, once it is written and saved

    def count(self, state: StreamState, played: BlockPlayed) -> list[Effect]:
        """Count a block, or what there is of it, and log what is due."""
        found: list[Effect] = []
        for stop, tally in played.counted:
            state.row, state.whole = state.row.plus(tally), state.whole.plus(tally)
            if stop % self.study.stride == 0:
                found += self._log(state, stop)
        state.position += played.read
        return found

    def _end(self, state: StreamState, why: str) -> list[Effect]:
        """Log what is in no row yet, and finish."""
        state.ended = why
        left = state.row.events or state.row.unused
        found = self._log(state, state.position) if left else ()
        accuracy = _right(self.error(state.whole))
        end = Log(rows.End(round=state.position, why=why, accuracy=accuracy))
        return [*found, end, effect.Finish(why)]

    def error(self, tally: Tally) -> float | None:
        """Return the share of wrong predictions, under privacy an unbiased estimate; or None."""
        if not tally.examples:
            return None
        return 1.0 - self.randomizer.accuracy(1.0 - tally.errors / tally.examples)

    def _log(self, state: StreamState, stop: int) -> tuple[Effect, Effect]:
        """Return a row for the log, of everything since the last one."""
        tally, whole, batch = state.row, state.whole, self.batch
        events, error = max(tally.events, 1), self.error(tally)
        start = stop - tally.events - tally.unused
        changes = self.stream.changes(start * batch, stop * batch)
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
            changes=tuple(place / batch for place in changes),
            active_seconds=whole.seconds[0] - whole.passive + whole.seconds[1],
            passive_seconds=whole.passive,
            server_seconds=whole.seconds[2],
            steps=max(whole.active),
        )
        state.row = Tally.zero(len(tally.active))
        return Log(row), effect.Closed(stop)

    def requests(self, state: StreamState, effects: Effects, paid: world.Paid) -> Charges:
        """Return the charges of the open block, which come before anything is released of it."""
        return () if self.block is None else not_booked(self.block.charges, paid.get(0, ()))

    def reissued(self, state: StreamState, blocks: Mapping[int, Sequence[PermitRange]]) -> Charges:
        """Return all charges of what this run has counted."""
        return self.appearances.charges(state.charged)

    def visible_row(self, row: rows.Row) -> rows.Row | None:
        """Return a row without a time; without a promise, epsilon is infinite."""
        if isinstance(row, rows.Round) and self.promised is None:
            row = msgspec.structs.replace(row, epsilon=math.inf)
        return msgspec.structs.replace(row, time=msgspec.UNSET)

    def answer(self, site: int, number: int, task: Request | None, permits: Permits) -> effect.Said:
        """Play the block that was read, and count what came of it up to each row of the log."""
        block = self.block
        if not isinstance(task, EventBlock) or block is None:
            raise TypeError("an engine is asked for a block of events")
        n = len(block.used)
        if not n:
            return BlockPlayed(number, 0, ())
        paid = Allowance(permits, block.most)
        whole = block.read.x[: n * self.batch]
        active, silent = self.activity.drawn(whole, block.start, n)
        active, silent = active[block.used], silent[block.used]
        labels, played = block.read.y[:0], Played.room(0)
        if block.used.any():
            x = whole if block.used.all() else whole[block.places]
            labels = self.answers(block, paid, self.state.answers)
            played = self.player.run(x, labels, active, silent, paid)
        tallies = self.counted(block, played, active, silent, labels)
        return BlockPlayed(number, n, tuple(tallies))

    def counted(
        self, block: Block, played: Played, active: Bools, silent: Bools, labels: Ints
    ) -> Iterator[tuple[int, Tally]]:
        """Yield what came of a block, up to each row of the log: the event after which it stands,
        and the tally.

        Args:
            active, silent: parties (u, M).
            labels: as the server knows them (u b,).
        """
        every, stop, end = self.study.stride, block.start, block.stop
        wrong = (played.predictions != labels).reshape(-1, block.batch).sum(1) * played.learned
        at = block.start + np.flatnonzero(block.used)
        clock = played.seconds / max(len(at), 1)
        while stop < end:
            begin, stop = stop, min((stop // every + 1) * every, end)
            low, high = np.searchsorted(at, (begin, stop))
            here = slice(low, high)
            learned = played.learned[here]
            up, down, framing = self.sizes.traffic(block.first + low, active[here], learned)
            events = int(high - low)
            passive = float((~active[here]).mean()) if events else 0.0
            tally = Tally(
                active=tuple(active[here].sum(0).tolist()),
                silent=tuple(silent[here].sum(0).tolist()),
                events=events,
                learned=int(learned.sum()),
                errors=int(wrong[here].sum()),
                examples=int(learned.sum()) * block.batch,
                loss=float(played.losses[here].sum()),
                regret=float(played.regret[here].sum()),
                up=up,
                down=down,
                framing=framing,
                dropped=int(played.dropped[here].sum()),
                unused=stop - begin - events,
                seconds=tuple((clock * events).tolist()),
                passive=float(clock[0]) * events * passive,
            )
            yield stop, tally


def _right(error: float | None) -> float | None:
    return None if error is None else 1.0 - error


def build(study: VerticalStudy, folder: Path, run: str, steps: Affordable) -> PreparedRun:
    """Make the objects of a simulation of a calibrated study, with its ledger in ``folder``."""
    stream, fingerprint, known = source(study)
    split = Split.of(study, stream)
    shape = split.shaping(fingerprint)
    whose = {party_unit(m): f"{party_unit(m)}/{digest[:16]}" for m, digest in enumerate(shape[1:])}
    noise = environment.protective(study, run, shape, folder)
    # the noise is over what it covers already
    ledgers = open_ledgers(
        study,
        folder,
        run,
        {unit: f"{fingerprint}/{whose.get(unit, unit)}" for unit in prices.units(study)},
        [*shape, *split.digests()],
        known,
        # an entity's record books them, too
        {unit: f"{run}/{unit}" for unit in whose},
        public=study.data.published and not foreign(study.data.stream),
    )
    events = Events(
        split=split,
        run_id=run,
        engine=partial(_engine, split, noise),
        stream=Arranged(stream, split.held),
        entropy=partial(environment.answering, study, run, shape, folder),
        affordable_steps=affordable(study, steps, ledgers),
        ledgers=ledgers,
    )
    return events.prepared(path(split))


def path(split: Split) -> EventPath:
    """Return the way in which events are played."""
    study = split.study
    privacy, method = study.privacy, study.method
    noisy = privacy.embedding is not None or privacy.updates != "raw"
    handed = study.execution.path == "messages" or study.world.dropout or noisy
    if handed or (privacy.unit != "none" and not split.known):
        return "messages"  # where a row on which a module fails ends nothing
    plain = method.batch == 1 and method.buffered and not method.fades and not method.replays
    return "loop" if plain and split.net is not None else "graph"


def _engine(split: Split, noise: Entropy) -> Engine:
    study, net, chosen = split.study, split.net, path(split)
    found: Engine
    if chosen == "loop" and net is not None:  # the compiler is large: it is loaded here alone
        from sordino.regimes.vertical.loop import Loop, Rule

        rule = Rule(study.method.window, study.method.attenuation)
        found = loop = Loop(net, rule, rates(study), half=study.world.precision == 16)
        loop.start({who: flat.weights.numpy() for who, flat in split.flats().items()})
    else:
        server, columns = make_server(split), split.columns
        parties = [make_party(split, m, noise) for m in range(len(split.held))]
        if chosen == "graph":
            found = Graph(server, parties, columns)
        else:
            from sordino.regimes.vertical.messages import Messages, ServerModel

            found = Messages(ServerModel(split.rules, server), parties, columns)
    found.required = prices.feature_charges(study)
    return found


def facts(split: Split, priced: Plan, chosen: EventPath) -> Vertical:
    """Return what run.json says of these events."""
    study = split.study
    method, privacy, private = study.method, study.privacy, study.privacy.unit != "none"
    sizes = {who: flat.dim for who, flat in split.flats().items()}
    return Vertical(
        title=method.title,
        classes=tuple(split.stream.classes),
        clients=tuple(
            PartyFacts(
                client=m,
                unit=f"party:{m}",
                features=len(part),
                embedding=width,
                parameters=sizes[f"party{m}"],
            )
            for m, (part, width) in enumerate(zip(split.held, split.embeddings, strict=True))
        ),
        dimension=sum(sizes.values()),
        stream=split.stream.name,
        drift=study.data.drift.kind,
        activation=method.activation.model_dump(exclude_none=True),
        window=method.window,
        alpha=method.attenuation,
        resends=method.resends,
        precision=study.world.precision,
        missing=study.world.missing if study.world.dropout else None,
        buffer=msgspec.UNSET if method.buffered else "server",
        schedule=method.schedule or msgspec.UNSET,
        path=chosen,
        clip=privacy.embedding.clip if privacy.embedding is not None else None,
        label_epsilon=label_epsilon(study) if private else None,
        open=prices.unprotected(study) if private else None,
        releases=tuple(ReleaseFacts(unit=u, what=w, epsilon=e) for u, w, e in priced.releases),
        R_c=None,
    )
