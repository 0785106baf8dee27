"""Studies of events on a network: sites have different columns of the same rows, and one more site
has the labels.

Rows are aligned: the k-th row of every file is about the same entity. Which event shows which row
follows from the study's seed, or is their order.

Theory of operation
-------------------
*Roles.* M sites are parties, each with features of its own
and a half of the network; one more site, the last, has the labels. The server has neither: it keeps
its half of the network, and the rules of an event (:mod:`~sordino.regimes.vertical.protocol`). All
go through the same stream by themselves: which row an event shows follows from the study's seed and
the agreed number of rows, who is active from the seed, whose budget is spent from the appearances
that everybody counts alike.

*Turns.* Queries and derivatives travel in turns, because only the last task of a site is sent again
after a lost connection:

    server -> every site       :  Turn(t), with the derivative of t - 1 for who was active then
    active party -> server     :  Embedding(t);   a passive one: Passive(t);   the labels: Labels(t)
    server -> passive parties  :  Turn(t, asked)
    passive party -> server    :  Embedding(t)
    server                     :  learns, and opens event t + 1

A party makes its embedding of t at its first turn of t, active or not, and sends these bytes
however often it is asked: noise is drawn once. It learns from the derivative of t - 1 before that.
A site that finds that the server went on without it passes the events it missed: a window of
examples goes on, and nothing is released. At the end of the stream a last turn (``over``) brings
the last derivatives; a site says that it is passive, and so that it has them.

*Charges.* Everybody books a block of events before its first turn: the server what all sites
together release (an upper bound), each site what it releases itself, and what an entity releases at
all sites together. An embedding, a step and an answer about a label refuse to be made without the
permits for them.

*Who does not answer.* A site that is away says nothing, and is given up as soon as it would be
queried. One that is there and silent is given up when the server's patience ends. What an answer
that comes later says is dropped. Whatever is dropped or stood in shows in the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino.base import errors
from sordino.base.arrays import Array, Bools, Ints
from sordino.base.entropy import History, Seeded
from sordino.base.errors import DataError, RemoteProtocolError, StudyError
from sordino.base.message import Derivative, Embedding, Labels, Passive, Turn, Vector, numbers
from sordino.core import effect, network, world
from sordino.core.effect import Effect, Effects, Event, Request, Said, Wake
from sordino.core.network import DemoFiles, NetworkRegime, Shape, Standing, stand_in
from sordino.core.plan import Disk, Plan
from sordino.core.prepared import Affordable, PreparedRun, open_ledgers
from sordino.core.run.environment import answering, protective
from sordino.core.world import ChargeRequest, Charges, Faults, KernelSnapshot, ServerSide, SiteSide
from sordino.data.dataset import Dataset, refuse_non_finite, single
from sordino.data.labels import encode
from sordino.data.stream.drift import NoDrift
from sordino.data.stream.opening import Rows
from sordino.data.table import columns_of, in_order, read_arrays
from sordino.privacy import Allowance, Budget, LedgerSession, Permits
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical import regime as prices
from sordino.regimes.vertical.halves import Party
from sordino.regimes.vertical.messages import ServerModel
from sordino.regimes.vertical.models import Split, make_party, make_server, mechanism_of, named
from sordino.regimes.vertical.run import Block, Events, Sizes, State, appearances
from sordino.regimes.vertical.stream import Arranged, parts, source, stream_of, whole
from sordino.regimes.vertical.study import VerticalStudy
from sordino.training.flat import Flat
from sordino.training.plausible import CHANCE, LONGEST, ROUNDING, Length, length

LEAVE = "leave"
"""Tag of the alarm after which a server waits for no site to have its last derivative."""


HOLDER, DRAWN = "labels", "drawn"
"""Names of the site that has the labels, and of the data that was drawn, in a demo."""


class VerticalServer(Events, ServerSide[State]):
    """A server's run over a network, as the kernel asks for it.

    To the kernel there is one state, that of the stream; a block of it is no task of an engine
    here, but a row of events.
    """

    hands_out = False
    continuous = True
    player: ServerModel

    def resumed(self, moment: KernelSnapshot[State]) -> KernelSnapshot[State]:
        """Stand at ``moment``, before a block."""
        found = super().resumed(moment)
        self.player.server.most = LONGEST
        self.widest = max(self.player.rules.sizes)
        self._task = effect.EventBlock(1, 0)
        self._silent: Bools = np.zeros((0, 0), bool)
        self._unbooked: Charges = ()
        self._asked: dict[int, int] = {}
        self._leaving: set[int] | None = None
        return found

    def account(self, site: int) -> tuple[str, Budget]:
        """Return a party's unit, or that of labels; of a unit to which nothing is promised, no
        limit.
        """
        if site == self.study.data.parties:
            return prices.LABELS, self.budget
        bounded = self.promised == prices.ENTITIES
        return prices.party_unit(site), self.budget if bounded else self.unlimited

    def step(self, state: State, event: Event) -> tuple[State, Effects]:
        """Return what the rules of the stream say, and within a block those of events."""
        match event:
            case effect.Arrived(message):
                self._answered(message)
            case effect.Stop() if state.ended is None:
                return state, [*self._cut_short(), *super().step(state, event)[1]]
            case effect.Begin():
                return super().step(state, event)
            case effect.Joined(site):
                self.player.away.discard(site)
                return state, ()
            case effect.Left(site):
                self.player.away.add(site)
            case effect.Lapsed():
                self.player.state.dropped += 1  # an answer that comes too late
                return state, ()
        if state.ended is not None:
            return state, ()
        if self._leaving is not None:
            return state, self._left(event, self._leaving)
        found = self._noted(self.player.step(event))
        if isinstance(event, effect.Learned):
            over = self.player.count == self._block.used.sum()
            found += self._over() if over else self._noted(self.player.open())
        return state, found

    @property
    def _block(self) -> Block:
        assert self.block is not None
        return self.block

    def _answered(self, message: Said) -> None:
        """Note that a site answers a turn once, whether its answer can be used or not."""
        if isinstance(message, Embedding | Passive | Labels):
            parties = self.player.rules.parties
            site = parties if isinstance(message, Labels) else message.party
            if self._asked.get(site, 0) // 2 == message.event:
                del self._asked[site]

    def _noted(self, effects: Iterable[Effect]) -> list[Effect]:
        """Note the turns that sites are sent."""
        found = list(effects)
        for each in found:
            if isinstance(each, effect.Send) and isinstance(each.message, Turn):
                self._asked[each.site] = each.message.number
        return found

    def open_block(self, state: State) -> list[Effect]:
        """Read a block, and open its first event."""
        self._task = self._next(state)
        self._unbooked = self.read_next(state, self._task)
        block = self._block
        self.player.begin(int(block.used.sum()))
        silent = self.activity.silent(block.start, len(block.used))
        self._silent = silent[block.used]
        return self._noted(self.player.open()) if block.used.any() else self._over()

    def _over(self) -> list[Effect]:
        """Close a block. The last one is closed when everybody has the last derivative."""
        n, model = len(self._block.used), self.player
        if self.state.position + n < self.study.horizon and n == self._task.count:
            return self._block_played()
        self._leaving = set(range(model.rules.parties + 1)) - model.away
        last = self._noted(model.open(over=True))
        return [*last, Wake(model.rules.patience, LEAVE)] if self._leaving else self._block_played()

    def _left(self, event: Event, leaving: set[int]) -> list[Effect]:
        match event:
            case effect.Arrived(Passive(site, _)) | effect.Left(site):
                leaving.discard(site)
            case effect.Woke(tag) if tag == LEAVE:
                leaving.clear()
        if leaving:
            return []
        self._leaving = None
        return self._block_played()

    def _block_played(self) -> list[Effect]:
        """Count the block, and go on."""
        return list(super().step(self.state, effect.Arrived(self._counted(self._block)))[1])

    def _cut_short(self) -> list[Effect]:
        """Count the events of the open block that are over: no more of them will come."""
        over = self.player.count
        if not over or self._task.number != self.state.position + 1:
            return []
        stop = int(np.flatnonzero(self._block.used)[over - 1]) + 1
        return self.count(self.state, self._counted(self._block.until(stop)))

    def _counted(self, block: Block) -> effect.BlockPlayed:
        """Return what came of a block."""
        model, n = self.player, len(block.used)
        if not n:
            return effect.BlockPlayed(self._task.number, 0, ())
        labels = model.labels.reshape(-1)
        tallies = self.counted(block, model.played, model.active, model.absent, labels)
        return effect.BlockPlayed(self._task.number, n, tuple(tallies))

    def requests(self, state: State, effects: Effects, paid: world.Paid) -> Charges:
        """Return the charges of a block, before its first turn is sent."""
        found, self._unbooked = self._unbooked, ()
        return found

    def learn(self, each: effect.Learn | effect.Skip) -> effect.Learned:
        """Let the server learn, or only see the labels."""
        return self.player.learn(each)

    def faults(self) -> Faults:
        """Return parties whose embeddings could not be learned from, each once."""
        found, self.player.faults = self.player.faults, []
        return found

    def latest(self, state: State, site: int) -> int:
        """Return the number of the query of the open event."""
        return 2 * (self.player.state.closed + 1) + 1

    def indispensable(self, site: int) -> bool:
        """Return whether a site holds the labels: nothing goes on without them."""
        return site == self.player.rules.parties

    def expects(self, state: State, site: int, number: int) -> bool:
        """Return whether this is what the site was asked last, and has not answered."""
        return self._asked.get(site) == number

    def trip(self, site: int, task: Request) -> float:
        """Return how long an answer takes by the simulator's clock: an event takes a second or so,
        and a party that is to be silent answers too late.
        """
        rules = self.player.rules
        if not isinstance(task, Turn) or not task.asked:
            return 4.0 * rules.patience
        late = self._silent[self.player.count, site]
        return 1.5 * rules.patience if late else 0.0

    def reach(self, site: int, task: Request | None, said: Said) -> Length | None:
        """Return the length of an embedding with noise, and how long noise lets it be."""
        noise = mechanism_of(self.study.privacy.embedding)
        if noise is None or not isinstance(said, Embedding):
            return None
        try:
            values = numbers(said, self.player.rules.sizes[site])
        except RemoteProtocolError:  # the rules drop it
            return None
        most = noise.within(self.player.server.settings.rows, len(values), CHANCE)
        return Length(length(values), most * (1.0 + ROUNDING))  # which 16 bits stay within

    def unfit(self, site: int, number: int, said: Said) -> str | None:
        """Return why an answer is refused: it is another's, of another event, or of another size.
        What is not finite is for the rules to drop.
        """
        event, parties = number // 2, self.player.rules.parties
        if not isinstance(said, Embedding | Labels | Passive):
            return f"no site of this study sends {type(said).__name__}"
        if said.event != event:
            return f"its frame is of event {event}, its message of {said.event}"
        if isinstance(said, Labels):
            if site != parties:
                return "it does not hold the labels"
            if len(said.values) != self.batch:
                return f"{len(said.values)} labels; an event has {self.batch}"
            if not all(0 <= value < self.split.classes for value in said.values):
                return f"labels that are no numbers from 0 to {self.split.classes - 1}"
            return None
        if said.party != site:
            return f"it speaks for site {said.party} and is site {site}"
        if isinstance(said, Passive):
            return None
        if site == parties:
            return "who holds the labels has no embedding"
        return _misfit("an embedding", said, self.sizes, site)


def _misfit(what: str, said: Embedding | Derivative, sizes: Sizes, party: int) -> str | None:
    """Return why a message does not hold a party's numbers; None if it does."""
    bits = sizes.bits
    size = sizes.numbers[party] * bits // 8
    if said.bits == bits and len(said.values) == size:
        return None
    return (
        f"{what} of {len(said.values)} bytes at {said.bits} bits a number; agreed are {size} at "
        f"{bits}"
    )


@dataclass(kw_only=True, eq=False)
class VerticalSite(Events, SiteSide[State]):
    """A site's work on a network: that of a party with its features, or of the holder of labels.

    Its stream is the study's as the site has it: its own features, or the labels. It reads the
    stream block by block and counts the appearances of entities as the server does.

    Attributes:
        site: number, from 0; the holder of labels comes last.
        party: its half of the network; None for the labels.
        names: units of its ledger, the one first that its limit is about.
        limit: epsilon that it spends at most.
        budgets: as ``units``: one for each site.
    """

    hands_out = False
    remembers = True

    site: int
    party: Party | None
    names: Sequence[str]
    limit: float

    def __post_init__(self) -> None:
        """Derive the rest, and hold it to its own limit."""
        super().__post_init__()
        parties, most = len(self.split.numbers), min(self.budget.epsilon, self.limit)
        # every column is the site's own here: only its own activity is looked at
        columns = (slice(0, math.prod(self.stream.stream.shape)),) * parties
        self.activity = replace(self.activity, columns=columns)
        promises = self.promised == self.names[0]
        self.budget = replace(self.budget, epsilon=most if promises else math.inf)
        self.units = (self.names[0],) * (parties + 1)
        self.budgets = (self.budget,) * (parties + 1)
        self.widest = max(self.split.numbers)
        self._counts: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._booked = 0
        self._requests: list[ChargeRequest] = []
        self._active: Bools = np.zeros(0, bool)
        self._labels: Ints | None = None
        self._last = 0
        self._said: tuple[int, Embedding | Labels | Passive] | None = None
        self._faults: list[tuple[int, str]] = []
        if self.party is not None:
            self.party.most, noise = LONGEST, self.party.noise
            self.repeats_noise = noise.embedding is not None or noise.update is not None

    @property
    def history(self) -> History | None:
        """The history that a party's noise is drawn over."""
        return None if self.party is None else self.party.noise.history

    def objection(self, site: int, task: Request) -> str | None:
        """Return why a task is refused: only the next turns of the agreed stream are taken."""
        if not isinstance(task, Turn):
            return f"no server of this study sends {type(task).__name__}"
        if not 1 <= task.event <= self.study.horizon + task.over or task.event < self._last:
            return f"event {task.event} after {self._last}; {self.study.horizon} are agreed"
        if task.asked and (self.party is None or task.over):
            return "nothing of this site is to be queried"
        if (derivative := task.derivative) is not None:
            if self.party is None or derivative.party != site or task.asked:
                return "a derivative that is not for this site"
            if (misfit := _misfit("a derivative", derivative, self.sizes, site)) is not None:
                return misfit
            if derivative.event != task.event - 1:
                return f"a derivative of event {derivative.event} with event {task.event}"
        if not task.over and not self._reach(task.event):
            return f"the stream has no event {task.event}"
        party = self.party
        gone = party is not None and task.event <= self._last and task.event != party.sent
        return f"event {task.event} is over" if gone else None

    def _reach(self, event: int) -> bool:
        """Read on to the block that holds an event; return whether there is one."""
        while self.block is None or event > self.block.last:
            block = self.block
            start, first = (0, 1) if block is None else (block.stop, block.last + 1)
            if block is not None:
                self._miss(block, block.last)
            if not self._read(start, first):
                return False
        return event >= self.block.first

    def _read(self, start: int, first: int) -> bool:
        """Read a block, and note its charges; return whether there is one."""
        if start >= self.study.horizon:
            return False
        block = self.read(start, first, self._counts)
        n = len(block.used)
        if not n:
            return False
        x = block.read.x[: n * self.batch]
        active = self.activity.drawn(x, start, n)[0][block.used]
        if self.party is not None:
            self._active = active[:, self.site]
        self.block, self._labels = block, None
        if requests := self.new_charges(block, self._booked):
            self._booked = block.times
            self._requests += [each for each in requests if each.charge.unit in self.names]
        return True

    def _miss(self, block: Block, last: int) -> None:
        """Go past events that were played without this site."""
        for event in range(max(self._last + 1, block.first), last + 1):
            if self.party is not None:
                self.party.rows(self._features(block, event))
        self._last = max(self._last, last)

    def _features(self, block: Block, event: int) -> torch.Tensor:
        """Return the features of an event (b, f)."""
        at, batch = (event - block.first) * block.batch, block.batch
        return torch.from_numpy(block.read.x[block.places[at : at + batch]])

    def site_requests(self, site: int, task: Request, permits: Permits) -> Charges:
        """Return what the blocks so far release, as far as it has not been booked."""
        have = {permit.key for permit in permits}
        return [request for request in self._requests if request.charge.key not in have]

    def settle(self, site: int, task: Request) -> None:
        """Learn from the derivative, and close the event before."""
        party, said = self.party, self._said
        if party is None or not isinstance(task, Turn) or task.asked:
            return
        if said is not None and said[0] == task.number:  # this turn came before
            return
        if task.derivative is not None:
            try:
                party.learn(task.derivative)
            except RemoteProtocolError as refusal:  # nothing has been learned
                self._faults.append((site, f"event {task.derivative.event}: {refusal}"))
        if self._last:
            party.square(self._last)

    def faults(self) -> Faults:
        """Return derivatives that were not learned from, each once."""
        found, self._faults = self._faults, []
        return found

    def answer(
        self, site: int, number: int, task: Request | None, permits: Permits
    ) -> Embedding | Labels | Passive:
        """Return the labels; an active party's embedding, or one that was asked for; or that there
        is none.
        """
        if not isinstance(task, Turn):
            raise errors.LocalProtocolError("a site of events answers to turns")
        if self._said is None or self._said[0] != number:
            self._said = number, self._answered(task, permits)
        return self._said[1]

    def _answered(self, task: Turn, permits: Permits) -> Embedding | Labels | Passive:
        event, block = task.event, self.block
        if task.over:
            return Passive(self.site, event)
        assert block is not None
        paid = Allowance(permits, block.times)
        if self.party is None:
            if self._labels is None:
                self._labels = self.answers(block, paid, self._told)
            at = (event - block.first) * block.batch
            return Labels(event, tuple(self._labels[at : at + block.batch].tolist()))
        if event > self._last:
            self._miss(block, event - 1)
        active = bool(self._active[event - block.first])
        found = self.party.answer(task, self._features(block, event), active, paid)
        self._last = event
        return found

    def carried(self, site: int) -> Mapping[str, Array]:
        """Return the party's half between two events, and the number of the last one."""
        last = {"last": np.array([self._last])}
        return last if self.party is None else {**self.party.pack(), **last}

    def restore(self, site: int, carried: Mapping[str, Array]) -> None:
        """Restore what :meth:`carried` returned."""
        if not carried:
            return
        self._last = int(carried["last"][0])
        if self.party is not None:
            self.party.unpack(carried)

    def model_of(self, site: int, given: Vector) -> Vector:
        """Return its own half, which nobody sends it."""
        return np.zeros(0, np.float32) if self.party is None else self.party.weights


class VerticalNetwork(NetworkRegime[VerticalStudy]):
    """A study in which every site is a party; the last one holds the labels."""

    others = "Each sees the derivatives that the server sends to it alone"
    data_ledger = False

    @classmethod
    def refuse(cls, study: VerticalStudy) -> None:
        """Refuse a study whose stream needs more than each site has."""
        data, kind, why = study.data, study.data.stream.kind, None
        if kind not in ("replay", "file"):
            why = f"data.stream = '{kind}' makes new examples of whole ones: use 'replay'"
        elif data.drift.kind != "none":
            why = f"data.drift = '{data.drift.kind}' changes whole examples: use 'none'"
        elif data.entity is not None:
            why = "data.entity: no site tells the others yet whose a row is. Leave it out"
        elif study.privacy.ledger != "run":
            why = "privacy.ledger: sites of events have a ledger of the run. Set it to 'run'"
        if why is not None:
            raise StudyError(f"{why}. Here each site has its own columns of the same rows")

    @cached_property
    def split(self) -> Split:
        """The network, cut for stand-ins of the agreed number, shape and classes."""
        rows = stand_in(min(self.agreement.sizes), self.agreement.data)
        return Split.of(self.study, stream_of(self.study, rows))

    def calibrated(self) -> VerticalStudy:
        """Fill in the study's noise for these sites; refuse a study that cannot run."""
        rows, parties = self.agreement.sizes, self.study.data.parties
        sites = len(rows)
        if not self.agreement.data.classes:
            raise StudyError("data.classes: name the classes in the agreement; they are public")
        if sites != parties + 1:
            raise StudyError(
                f"data.parties = {parties}, and the federation has {sites} sites: one "
                "for each party, and a last one that holds the labels"
            )
        if len(set(rows)) > 1:
            raise StudyError(f"sites have {min(rows)} to {max(rows)} rows, and must have the same")
        return prices.calibrate(network.with_secret_noise(self.agreement, self.study))

    def widest(self) -> int:
        """Return how many numbers the longest vector of a message has."""
        sizes = (flat.dim for flat in self.split.flats().values())
        return max(*self.split.numbers, *sizes)

    def server(self, folder: Path, run: str, pays: Affordable, test: Dataset | None) -> PreparedRun:
        """Make the objects at the server, which has no data, with its ledger in ``folder``."""
        split, study, fingerprint = self.split, self.study, self._fingerprint("elsewhere")
        ledgers = self._ledgers(folder, run, prices.units(study), fingerprint, public=True)
        server = VerticalServer(
            split=split,
            run_id=run,
            engine=self._server_model,
            stream=Arranged(split.stream),
            entropy=partial(Seeded, study.seed),  # it estimates accuracy, and tells no labels
            affordable_steps=appearances(study, pays, ledgers),
            ledgers=ledgers,
        )
        mine = {"server": split.flats()["server"]}
        made, rows = server.prepared("messages"), min(self.agreement.sizes)
        return replace(made, named=partial(named, mine), planned=partial(server.planned, rows))

    def site(
        self,
        index: int,
        data: Dataset,
        limited: VerticalStudy,
        folder: Path,
        run: str,
        pays: Affordable,
    ) -> PreparedRun:
        """Make the objects at site ``index``, whose data are its features (n, f), or the labels at
        the last site. What is released is as agreed; the site's own study only sets its limit.
        """
        split, study, party, flats = self.split, self.study, None, dict[str, Flat]()
        promised = study.privacy.unit != "none" and self.unbounded(index) is None
        if pays is None and promised and self.standing(index, limited, data).pays == 0:
            limit = epsilon_text(limited.privacy.epsilon)
            raise errors.BudgetExceeded(
                f"this site's own limit, epsilon = {limit}, does not pay for the first events, "
                "which are booked together: raise --epsilon-limit"
            )
        holder = index == study.data.parties
        names = (prices.LABELS if holder else prices.party_unit(index), prices.ENTITIES)
        if study.privacy.unit == "entity":
            names = (names[1], names[0])
        fingerprint = self._fingerprint(data.fingerprint())
        ledgers = self._ledgers(folder, run, names, fingerprint, public=False)
        shape = split.shaping(fingerprint)
        if not holder:
            party = make_party(split, index, protective(study, run, shape, folder))
            flats = {f"party{index}": party.flat}
        work = VerticalSite(
            split=split,
            run_id=run,
            engine=self._server_model,
            stream=Arranged(stream_of(study, data)),
            entropy=partial(answering, study, run, shape, folder),
            affordable_steps=appearances(study, pays, ledgers),
            ledgers=ledgers,
            site=index,
            party=party,
            names=names,
            limit=limited.privacy.epsilon or math.inf,
        )
        made = work.prepared("messages")
        return replace(
            made,
            study=limited,
            named=partial(named, flats),
            planned=partial(work.planned, len(data)),
        )

    def _server_model(self) -> ServerModel:
        """Return the server's half; it waits for a site to speak unasked, and for an answer to a
        query, for as many seconds as agreed.
        """
        rules = replace(self.split.rules, patience=self.agreement.patience)
        return ServerModel(rules, make_server(self.split))

    def _fingerprint(self, own: str) -> str:
        """Return the fingerprint of everybody's data in a rehearsal, else the ``own``."""
        return self.agreement.rehearsal[0] if self.agreement.rehearsal else own

    def _ledgers(
        self, folder: Path, run: str, names: Sequence[str], fingerprint: str, *, public: bool
    ) -> LedgerSession:
        """Return the ledger of one process, of what it releases of data with this fingerprint."""
        prints = {unit: f"{fingerprint}/{unit}" for unit in names}
        origins = [*self.split.shaping(fingerprint), *self.split.digests()]
        return open_ledgers(self.study, folder, run, prints, origins, public=public)

    def limited(self, index: int, ledger: Path | None, limit: float | None) -> VerticalStudy:
        """Return the agreed study with a site's own limit; ledgers are of the run only."""
        study = self.study
        network.refuse_limit(study, limit)
        if limit is not None and (why := self.unbounded(index)) is not None:
            raise StudyError(f"--epsilon-limit: no limit holds for what this site has: {why}")
        if ledger is not None:
            raise StudyError(
                "--ledger: sites of events have a ledger of the run only. Leave it out"
            )
        if limit is None or study.privacy.epsilon is None or limit >= study.privacy.epsilon:
            return study
        told = min(prices.label_epsilon(study), limit)  # is not used: releases are as agreed
        return study.with_privacy({"epsilon": limit, "label_epsilon": told})

    def read(self, path: Path, index: int, limited: VerticalStudy) -> Dataset:
        """Read a site's own file, as agreed: its columns, or the labels."""
        agreement, shape, held = self.agreement, self.agreement.data, self.split.held
        rows = agreement.site[index].examples
        y = np.zeros(rows, np.int64)
        if index == self.study.data.parties:
            labels = _column(path, self.study.data.label)
            x = np.zeros((len(labels), 1), np.float32)
            if len(labels) == rows:
                (given,), known = encode((labels,), str(path), "classes")  # 1.0, True are class 1
                y = network.numbered(Dataset(HOLDER, x, given, known), shape.classes, path)
        else:
            mine = [shape.columns[at] for at in held[index] if shape.columns]
            x = _features(path, shape.type, mine)
            if x.shape[1] != len(held[index]):
                raise DataError(
                    f"{path}: it has {x.shape[1]} columns; this party agreed to have "
                    f"{len(held[index])}"
                )
        if len(x) != rows:
            raise DataError(f"{path}: it has {len(x)} rows, and this site agreed to have {rows}")
        return Dataset(agreement.names[index], x, y, shape.classes)

    def test(self, path: Path | None) -> Dataset | None:
        """Refuse a test set: a stream has none."""
        if path is not None:
            raise StudyError(
                "--test: an example of a stream is predicted before it is learned from"
            )
        return None

    @classmethod
    def demo(cls, study: VerticalStudy) -> DemoFiles:
        """Divide the study's data into a file for each site. Examples that are made up, or change,
        are drawn here, from the study's seed: rows of a file, which sites then read in their order.
        Only who lays out a demo has whole examples that could be drawn from.
        """
        data, privacy = study.data, study.privacy
        drawn = data.stream.kind not in ("replay", "file") or data.drift.kind != "none"
        # rows that come again under a promise would count as other entities
        if drawn and (data.stream.invents or privacy.unit == "none") and data.entity is None:
            stream, fingerprint, _ = source(study, known=False)
            piece = stream.read(0, study.horizon * study.method.batch)
            x, y = piece.x, piece.y
            rows: dict[str, Any] = {
                "name": None,
                "file": Path(f"{DRAWN}.npz"),
                "classes": stream.classes,
            }
            rows |= {"stream": Rows(), "drift": NoDrift(), "scale": 1.0}
            study = study.model_copy(update={"data": data.model_copy(update=rows)})
            cls.refuse(study)
        else:
            cls.refuse(study)
            if data.scale != 1.0:
                raise StudyError(
                    "data.scale: let each site scale its own columns, and leave it out"
                )
            stream, fingerprint, _ = source(study, known=False)
            x, y = whole(study, stream)
        count = study.data.parties
        shape = Shape(
            shape=stream.shape,
            type="uint8" if x.dtype == np.uint8 else "float32",
            classes=stream.classes,
            columns=stream.columns or (),
        )
        features = ({"x": np.ascontiguousarray(x[:, part])} for part in parts(study, stream))
        return DemoFiles(
            shape=shape,
            names=(*["party"] * count, HOLDER),
            examples=(len(y),) * (count + 1),
            files=(*features, {"y": np.array(stream.classes)[y]}),
            prints=(fingerprint,),
            study=study,
        )

    def plan(self, index: int, limited: VerticalStudy) -> Plan:
        """Return what the study costs a site."""
        return prices.price(self.study)

    def standing(self, index: int, limited: VerticalStudy, data: Dataset) -> Standing:
        """Return what a new run's ledger leaves. Each row is an entity, and returns in every pass.
        Releases are as agreed; the site's own study only sets its limit.
        """
        privacy, batch, rows = self.study.privacy, self.study.method.batch, len(data)
        unit, asked = prices.promised(self.study), prices.schedule(self.study)
        budget = replace(asked.budgets[unit], epsilon=limited.privacy.epsilon or math.inf)
        asked = replace(asked, budgets={**asked.budgets, unit: budget})
        planned = min(-(-self.study.horizon * batch // rows), privacy.appearances)
        pays = asked.affordable(unit)
        first = min(-(-min(prices.BLOCK, self.study.horizon) * batch // rows), planned)
        if pays is not None and pays < first:  # a block of events is booked as a whole
            pays = 0
        most = planned if pays is None else min(pays, planned)
        return Standing(
            spent=0.0,
            pays=pays,
            planned=planned,
            charged="appearances of each row",
            rounds=min(most * rows // batch, self.study.horizon),
            total=asked.epsilon(unit, most),
            noise=self.plan(index, limited).noise_multiplier,
            turns="event",
        )

    def disk(self) -> Disk | None:
        held = [len(each) for each in self.split.held]
        return prices.disk(self.study, held, len(self.agreement.data.classes))

    def released(self, index: int) -> str:
        """Return what leaves a site each time that it is asked, for people."""
        privacy = self.study.privacy
        if index == self.study.data.parties:
            private = privacy.unit != "none"
            return f"the label of an event, {'by randomised response' if private else 'as it is'}"
        noise = "with noise on it" if privacy.embedding is not None else "WITHOUT any noise"
        return f"an embedding of its columns of an event, {noise}, and whether it is active"

    def unbounded(self, index: int) -> str | None:
        """Return why what a site releases has no finite price, where the study protects labels."""
        if self.study.privacy.unit != "label" or index == self.study.data.parties:
            return None
        return prices.unprotected(self.study) or "this study promises nothing about features"


def _features(path: Path, kind: str, wanted: Sequence[str]) -> Array:
    """All columns of a party's file, (n, f): those that are wanted, where columns have names."""
    columns: list[str] = []
    if path.suffix.lower() == ".npz":
        arrays, names = read_arrays(path, ("x",))
        if "x" not in arrays:
            raise DataError(f"{path}: no array 'x'; found {', '.join(names)}")
        x = arrays["x"]
    else:
        found = columns_of(path)
        columns = in_order(list(found), wanted, str(path), "the agreed ones")
        x = np.stack([found[name] for name in columns], axis=1)
    if x.ndim != 2 or x.dtype.kind not in "uif":
        raise DataError(f"{path}: features must be numbers, a row for each event")
    if kind == "uint8":
        if x.dtype != np.uint8:
            raise DataError(f"{path}: agreed are pixels (uint8), found {x.dtype}")
        return x
    found_x = single(x)
    refuse_non_finite(found_x, str(path), columns)
    return found_x


def _column(path: Path, label: str) -> Array:
    """The labels in a file, (n,)."""
    if path.suffix.lower() == ".npz":
        arrays, found = read_arrays(path, ("y",))
        wanted = "y"
    else:
        arrays = columns_of(path)
        found, wanted = list(arrays), label
    if wanted not in arrays:
        raise DataError(f"{path}: no {wanted!r} for the labels; found {', '.join(found)}")
    return arrays[wanted]
