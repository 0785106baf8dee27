r"""A run of events on one machine: its objects, and the simulation of a stream.

A block of events (:mod:`sordino.regimes.vertical.blocks`) is read, what it releases is booked, and
then it is played: to the kernel, a block is one task of an engine, site 0. A stand-in for a network
needs nothing else: an engine may hand every message over (:mod:`sordino.regimes.vertical.network`).

Entities that a stream repeats are counted. The ledger books for *an* entity what its k-th
appearance releases, when the first entity appears for the k-th time: that is the price of the one
that appeared most often, and a bound for all. What appears more often than its budget pays for is
not used. A run that goes on where its releases may come out differently (``origin``: another
environment) is counted from nothing again: what was released before stays booked, and what follows
is booked beside it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch
from msgspec import UNSET
from numpy.typing import NDArray

from sordino.base.entropy import Entropy, Seeded
from sordino.base.errors import DataError
from sordino.base.registry import foreign
from sordino.core import records as rows
from sordino.core.effect import (
    BlockPlayed,
    Closed,
    Effect,
    Event,
    EventBlock,
    Finish,
    Request,
    Send,
)
from sordino.core.kernel import Kernel
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun, open_ledgers
from sordino.core.run.environment import (
    answering,
    charge_key_prefix,
    protective,
    response_key_prefix,
)
from sordino.core.world import Block as Permitted
from sordino.core.world import ChargeRequest, EncodedSnapshot, RunListener, World
from sordino.data import stream as streams
from sordino.mechanisms.response import RandomisedResponse, secret
from sordino.privacy import (
    Allowance,
    Budget,
    Charge,
    LedgerSession,
    Permit,
    Repeated,
    accountant,
)
from sordino.privacy import Event as Release
from sordino.privacy.accounting import Spent
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical.blocks import (
    BLOCK,
    Block,
    EventBlocks,
    Moment,
    Sizes,
    State,
    Tally,
    counted,
    joined,
    unpacked,
)
from sordino.regimes.vertical.engine import (
    Engine,
    EventPath,
    InProcessEngine,
    Played,
    RequiredCharges,
)
from sordino.regimes.vertical.models import Split, half_settings, rates
from sordino.regimes.vertical.plan import (
    ENTITIES,
    LABELS,
    affordable_events,
    charges,
    features,
    label,
    label_epsilon,
    party,
    price,
    promised,
    units,
    unprotected,
)
from sordino.regimes.vertical.records import Party, Vertical
from sordino.regimes.vertical.records import Release as Released
from sordino.regimes.vertical.stream import (
    Activity,
    Examples,
    Index,
    LabelRandomizer,
    arranged,
    parts,
    source,
)
from sordino.regimes.vertical.study import VerticalStudy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """A vertical federation on one machine.

    Attributes:
        engine: server and parties; made anew for each call of :meth:`run`.
        stream: examples one after another.
        events: T.
        batch: b, examples in an event.
        every: events between two rows of the log.
        block: events in a block.
        activity: active parties, and parties that do not answer.
        sizes: of messages.
        randomizer: tells labels.
        charges: what appearances ``first`` to ``last`` of an entity release: (unit, event, how
            often).
        limit: in how many events an entity takes part at most.
        ledgers, units, budget: the ledger; what is promised is promised to ``units``.
        unlimited: budget of units to which nothing is promised.
        method, charge_key_prefix: for the ledger.
        origin: what the protected releases depend on; the same one releases the same again.
    """

    engine: Callable[[], Engine]
    stream: Examples
    events: int
    batch: int
    every: int
    block: int
    activity: Activity
    sizes: Sizes
    randomizer: LabelRandomizer
    charges: Callable[[int, int], Sequence[tuple[str, Release, int]]]
    limit: int | None
    ledgers: LedgerSession
    units: Sequence[str]
    budget: Budget
    unlimited: Budget
    method: str
    charge_key_prefix: str
    origin: str

    @property
    def affordable_steps(self) -> list[int] | None:
        """Appearances that an entity can pay for, or no limit."""
        return None if self.limit is None else [self.limit]

    def first(self) -> Moment:
        """Return the moment before the first event."""
        engine, parties = self.engine(), len(self.activity.columns)
        none = Tally.zero(parties), Tally.zero(parties)
        return Moment(State(engine.pack(), joined(engine), *none, origin=self.origin))

    def unpack(self, packed: EncodedSnapshot) -> Moment:
        """Return a moment that was kept."""
        return unpacked(packed, self.engine(), self.origin)

    def run(self, moment: Moment, watcher: RunListener[Moment]) -> Moment:
        """Play from ``moment`` to the end of the run."""
        state = moment.state.copied()  # a moment may be played from twice
        return Kernel(Play(self, state), replace(moment, state=state), watcher).run()

    def read(self, start: int, first: int, counts: dict[int, int]) -> Block:
        """Read the block that begins after ``start`` events of the stream.

        Args:
            first: number of its first used event.
            counts: appearances of entities, to which those of the block are added.
        """
        count = min(self.block - start % self.block, self.events - start)
        read = self.stream.read(start * self.batch, count * self.batch)
        used, times = self._admitted(read, counts)
        return Block(read, start, first, used, times, self.batch)

    def _admitted(
        self, read: streams.Piece, counts: dict[int, int]
    ) -> tuple[NDArray[np.bool_], int]:
        """Return which events may be used (n,), and how often whoever appears most in them has
        appeared by then.
        """
        n, entities = len(read.y) // self.batch, read.entity
        used, most_times = np.ones(n, bool), 1
        if entities is None or not self.units:
            return used, most_times
        for i in range(n):
            group = entities[i * self.batch : (i + 1) * self.batch].tolist()
            times = {e: counts.get(e, 0) + group.count(e) for e in group}
            most = max(times.values())
            if self.limit is not None and most > self.limit:
                used[i] = False
                continue
            counts.update(times)
            most_times = max(most_times, most)
        return used, most_times

    def answers(self, block: Block, paid: Allowance, told: dict[int, int]) -> NDArray[np.int64]:
        """Return the labels of a block's used events as the server learns them (u b,).

        Args:
            paid: permits for the answers.
            told: answers about entities so far, to which these are added.

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
            _remember(told, entities, found)
        return found

    def requests_between(
        self, first: int, last: int, event: int, charge_key_prefix: str
    ) -> Iterator[ChargeRequest]:
        """Yield the charges of an entity's appearances ``first`` to ``last``, at an event."""
        for part, (unit, release, count) in enumerate(self.charges(first, last)):
            charge = Charge(
                unit=unit,
                event=release,
                count=count,
                why="one entity's appearances",
                method=self.method,
                round=event,
                key=f"{charge_key_prefix}/appearance {first} to {last}/{part}",
            )
            budget = self.budget if unit in self.units else self.unlimited
            yield ChargeRequest((0,), charge, budget, unit in self.units)


def _remember(
    told: dict[int, int], entities: NDArray[np.int64], answers: NDArray[np.int64]
) -> None:
    """Hold a stream to its promise of one label for each entity, and fill ``told``.

    Other answers would tell of the change, which nothing bounds.

    Raises:
        DataError: if it breaks it; nothing of this block has been used then.
    """
    for entity, answer in zip(entities.tolist(), answers.tolist(), strict=True):
        if told.setdefault(entity, answer) != answer:
            raise DataError(
                f"entity {entity} has two labels in this stream, and privacy.memoised tells its "
                "label once for all: set memoised = false, and appearances to the events that one "
                "entity may take part in"
            )


class Play(World[State]):
    """A stream, as the kernel sees it: blocks that are charged, and then played.

    The state is changed in place.
    """

    def __init__(self, events: Events, state: State) -> None:
        self.events, self.state, self.ledgers = events, state, events.ledgers
        self.engine = events.engine()
        self.engine.unpack(state.kept)
        self.rules = EventBlocks(
            events.events,
            events.every,
            events.block,
            events.stream.changes,
            events.batch,
            events.randomizer.accuracy,
        )
        self.block: Block | None = None

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """Return what the rules say, with the engine as it is where a moment may be kept."""
        state, effects = self.rules.step(state, event)
        if any(isinstance(effect, Closed | Finish) for effect in effects):
            state.kept, state.model = self.engine.pack(), joined(self.engine)
        return state, effects

    def read(self, state: State, task: EventBlock) -> tuple[Block, list[ChargeRequest]]:
        """Read a block, and return its charges: for what no entity has released so often."""
        block = self.events.read(task.number - 1, state.whole.events + 1, state.counts)
        booked = state.booked[-1][-1] if state.booked else 0
        if block.times <= booked or not block.used.any():
            return block, []
        state.booked.append((self.events.charge_key_prefix, task.number, booked + 1, block.times))
        requests = self.events.requests_between(
            booked + 1, block.times, task.number, self.events.charge_key_prefix
        )
        return block, list(requests)

    def requests(
        self, state: State, effects: Sequence[Effect], paid: Mapping[int, Sequence[Permit]]
    ) -> Sequence[ChargeRequest]:
        """Read the block that is asked for, and return its charges."""
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, EventBlock):
                self.block, requests = self.read(state, effect.message)
                return requests
        return ()

    def reissued(
        self, state: State, blocks: Mapping[int, Sequence[Permitted]]
    ) -> Sequence[ChargeRequest]:
        """Return all that was booked for what this run has counted."""
        return [
            request
            for charge_key_prefix, number, first, last in state.booked
            for request in self.events.requests_between(first, last, number, charge_key_prefix)
        ]

    def kept(self, state: State, site: int, permits: Sequence[Permit]) -> Sequence[Permit]:
        """Return all permits: appearances add up."""
        return permits

    def price(self, unit: str, spent: Spent, budget: Budget) -> float:
        """Return the epsilon of a history."""
        return accountant(budget.accountant).epsilon(spent, budget.delta)

    def shown(self, row: rows.Row) -> rows.Row | None:
        """Return a row without a time; without a promise, epsilon is infinite."""
        if isinstance(row, rows.Round) and not self.events.units:
            row = msgspec.structs.replace(row, epsilon=math.inf)
        return msgspec.structs.replace(row, time=msgspec.UNSET)

    def answer(
        self, site: int, number: int, task: Request | None, permits: Sequence[Permit]
    ) -> BlockPlayed:
        """Play the block that was read, and count what came of it up to each row of the log."""
        block, events = self.block, self.events
        if not isinstance(task, EventBlock) or block is None:
            raise TypeError("an engine is asked for a block of events")
        n = len(block.used)
        if not n:
            return BlockPlayed(number, 0, ())
        paid = Allowance(permits, block.times)
        whole = block.read.x[: n * events.batch]
        active, silent = events.activity.drawn(whole, block.start, n, events.block)
        active, silent = active[block.used], silent[block.used]
        labels, played = block.read.y[:0], Played.room(0)
        if block.used.any():
            x = whole if block.used.all() else whole[block.places]
            labels = events.answers(block, paid, self.state.told)
            played = self.engine.run(x, labels, active, silent, paid)
        tallies = counted(block, played, active, silent, labels, events.sizes, events.every)
        return BlockPlayed(number, n, tuple(tallies))


def build(study: VerticalStudy, folder: Path, run: str, pays: Sequence[int] | None) -> PreparedRun:
    """Make the objects of a simulation of a calibrated study, with its ledger in ``folder``."""
    torch.set_num_threads(study.execution.threads)
    stream, fingerprint, known = source(study)
    held = parts(study, stream)
    split = Split.of(study, stream, held)
    shape = shaping(fingerprint, held)
    whose = {party(m): f"{party(m)}/{digest[:16]}" for m, digest in enumerate(shape[1:])}
    noise = protective(study, run, shape, folder)
    # the noise is over what it covers already
    begun = [*shape, *split.digests(operations=not unprotected(study))]
    ledgers = open_ledgers(
        study,
        folder,
        run,
        {unit: f"{fingerprint}/{whose.get(unit, unit)}" for unit in units(study)},
        begun,
        known,
        # an entity's record books them, too
        {party(m): f"{run}/{party(m)}" for m in range(len(held))},
        public=study.data.published and not foreign(study.data.stream),
    )
    events = simulation(
        study,
        split,
        run,
        engine=partial(_engine, study, split, noise),
        stream=arranged(stream, held),
        randomizer=randomizer(
            study, len(stream.classes), partial(answering, study, run, shape, folder)
        ),
        limit=appearances(study, pays, ledgers.histories(promised(study))),
        ledgers=ledgers,
    )
    return built(study, split, stream, held, events, path(study, split))


def shaping(fingerprint: str, held: Sequence[Index]) -> list[str]:
    """Return what of the data shapes the noise: a fingerprint, and the features of each party."""
    return [fingerprint, *(hashlib.sha256(part.tobytes()).hexdigest() for part in held)]


def randomizer(
    study: VerticalStudy, classes: int, entropy: Callable[[], Entropy]
) -> LabelRandomizer:
    """Return what tells labels: as they are, or by randomised response with a key of its own."""
    told, mechanism, key = label(study), None, (0, 0)
    if study.privacy.unit != "none":
        mechanism = RandomisedResponse(epsilon=label_epsilon(study), classes=classes)
        key = secret(entropy().at("labels"))
    required = ((LABELS, told), (ENTITIES, told))
    return LabelRandomizer(
        mechanism=mechanism, key=key, memoised=study.privacy.memoised, required=required
    )


def simulation(
    study: VerticalStudy,
    split: Split,
    run: str,
    *,
    engine: Callable[[], Engine],
    stream: Examples,
    randomizer: LabelRandomizer,
    limit: int | None,
    ledgers: LedgerSession,
) -> Events:
    """Return the events of a study. Who is active is drawn once on zeros now, to refuse misfits."""
    method, privacy = study.method, study.privacy
    delta = privacy.delta or 1e-5
    activity = Activity(
        activation=method.activation,
        columns=split.columns,
        dropout=study.world.dropout,
        entropy=Seeded(study.seed),
    )
    activity.drawn(np.zeros((1, sum(split.features)), np.float32), 0, 1, BLOCK)
    return Events(
        engine=engine,
        stream=stream,
        events=study.horizon,
        batch=method.batch,
        every=study.stride,
        block=BLOCK,
        activity=activity,
        sizes=Sizes.of(
            split.embeddings, resends=method.resends, batch=method.batch, bits=study.world.precision
        ),
        randomizer=randomizer,
        charges=partial(charges, study),
        limit=limit,
        ledgers=ledgers,
        units=(promised(study),) if privacy.unit != "none" else (),
        budget=Budget(privacy.epsilon or math.inf, delta, privacy.accountant),
        unlimited=Budget(math.inf, delta, privacy.accountant),
        method=method.name,
        charge_key_prefix=charge_key_prefix(study, run),
        origin=response_key_prefix(study, run),
    )


def built(
    study: VerticalStudy,
    split: Split,
    stream: streams.Stream,
    held: Sequence[Index],
    events: Events,
    chosen: EventPath,
) -> PreparedRun:
    """Return the objects of a run over these events, which are played as ``chosen``."""
    priced = price(study)
    return PreparedRun(
        study=study,
        plan=priced,
        simulation=events,
        first=events.first(),
        facts=facts(study, split, stream, held, priced, chosen),
        model=study.model.name,
        named=split.named,
        paid="appearance of an entity",
        remedy=_remedy(events),
    )


def _remedy(events: Events) -> str:
    """Return what helps where the budget pays for no event; what was spent before is said, too."""
    found, budget = "raise the noise multipliers, or lower label_epsilon", events.budget
    if events.limit != 0 or not events.units:
        return found.capitalize()
    (unit,) = events.units
    spent = events.ledgers.epsilon(unit, budget.delta, budget.accountant)
    if not spent:
        return found.capitalize()
    return (
        f"The {unit} have spent epsilon {epsilon_text(spent)} of {epsilon_text(budget.epsilon)} "
        f"before: use other data, raise privacy.epsilon, {found}"
    )


def appearances(
    study: VerticalStudy, pays: Sequence[int] | None, spent: Sequence[Spent] = ((),)
) -> int | None:
    """Return in how many events an entity may take part after what its records have ``spent``, as
    was found first (``pays``); None without privacy.
    """
    if study.privacy.unit == "none" or pays is not None:
        return pays[0] if pays is not None else None
    found = [most for each in spent if (most := affordable_events(study, each)) is not None]
    return min(*found, study.privacy.appearances) if found else study.horizon * study.method.batch


def path(study: VerticalStudy, split: Split) -> EventPath:
    """Return the way in which events are played."""
    privacy, method = study.privacy, study.method
    if (
        study.execution.path == "messages"
        or study.world.dropout
        or privacy.embedding is not None
        or privacy.updates != "raw"
    ):
        return "messages"
    if privacy.unit != "none" and not split.known:
        return "messages"  # where a row on which a module fails ends nothing
    plain = method.batch == 1 and method.buffered and not method.fades and not method.replays
    return "loop" if plain and split.net is not None else "graph"


def _engine(study: VerticalStudy, split: Split, noise: Entropy) -> Engine:
    method, speeds, net = study.method, rates(study), split.net
    chosen, required = path(study, split), required_charges(study)
    first = {who: flat.weights.numpy() for who, flat in split.flats().items()}
    if chosen == "loop" and net is not None:  # the compiler is large: it is loaded here alone
        from sordino.regimes.vertical.loop import Loop, Rule

        rule = Rule(method.window, method.attenuation)
        loop = Loop(net, rule, speeds, half=study.world.precision == 16)
        return InProcessEngine(loop, first, required)
    if chosen == "graph":
        from sordino.regimes.vertical.graph import Graph

        settings = half_settings(study)
        graph = Graph(*split.halves(), settings, speeds, split.columns, split.classes)
        return InProcessEngine(graph, first, required)
    from sordino.regimes.vertical.network import Messages

    return Messages.of(study, split, noise, required)


def required_charges(study: VerticalStudy) -> RequiredCharges:
    """Return what an entity's appearance releases of its features: at each party, at all."""
    held, parties = features(study), study.data.parties
    return (*((party(m), held) for m in range(parties)), (ENTITIES, Repeated(held, parties)))


def facts(
    study: VerticalStudy,
    split: Split,
    stream: streams.Stream,
    held: Sequence[Index],
    priced: Plan,
    chosen: EventPath,
) -> Vertical:
    """Return what run.json says of these events."""
    method, privacy = study.method, study.privacy
    sizes = {who: flat.dim for who, flat in split.flats().items()}
    return Vertical(
        title=method.title,
        classes=tuple(stream.classes),
        clients=tuple(
            Party(
                client=m,
                unit=f"party:{m}",
                features=len(part),
                embedding=width,
                parameters=sizes[f"party{m}"],
            )
            for m, (part, width) in enumerate(zip(held, split.embeddings, strict=True))
        ),
        dimension=sum(sizes.values()),
        stream=stream.name,
        drift=study.data.drift.kind,
        activation=method.activation.model_dump(exclude_none=True),
        window=method.window,
        alpha=method.attenuation,
        resends=method.resends,
        precision=study.world.precision,
        missing=study.world.missing if study.world.dropout else None,
        buffer=UNSET if method.buffered else "server",
        schedule=method.schedule or UNSET,
        path=chosen,
        clip=privacy.embedding.clip if privacy.embedding is not None else None,
        label_epsilon=label_epsilon(study) if privacy.unit != "none" else None,
        open=unprotected(study) if privacy.unit != "none" else None,
        releases=tuple(
            Released(unit=unit, what=what, epsilon=epsilon)
            for unit, what, epsilon in priced.releases
        ),
        R_c=None,
    )
