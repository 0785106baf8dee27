"""A federation of events at work: the server's side, and a site's side.

Their network study, files and objects: :mod:`~sordino.regimes.vertical.network`.

Theory of operation
-------------------
*Roles.* M sites are parties, each with features of its own and a half of the network; one more
site, the last, has the labels. The server has neither: it keeps its half of the network, and the
rules of an event (:mod:`~sordino.regimes.vertical.protocol`). All go through the same stream by
themselves: which row an event shows follows from the study's seed and the agreed number of rows,
who is active from the seed, whose budget is spent from the appearances that everybody counts alike.

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

*Charges.* Everybody charges a block of events before its first turn: the server what all sites
together release (an upper bound), each site what it releases itself, and what an entity releases at
all sites together (:mod:`~sordino.regimes.vertical.appearances`). An embedding, a step and an
answer about a label refuse to be made without the permits for them.

*Restarts.* A server goes on from a checkpoint between two blocks, and takes the inputs in its
journal again (:mod:`sordino.network.kernel`). A site goes on from a checkpoint between two turns,
which holds what it *carries*: its half and the last event. It takes the turns in its journal again
(:mod:`sordino.network.site_session`), by the same calls as at first: objection, site_requests,
apply_derivative, answer. All else follows from the stream, which it reads from the beginning:
blocks, active events, appearances and answers about labels.

*Who does not answer.* A site that is away says nothing, and is given up as soon as it would be
queried. One that is there and silent is given up when the server's patience ends. What an answer
that comes later says is dropped. Whatever is dropped or stood in shows in the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sordino.base.arrays import Array, Bools, Ints
from sordino.base.entropy import Transcript
from sordino.base.errors import LocalProtocolError, RemoteProtocolError
from sordino.base.message import Derivative, Embedding, Labels, Passive, Turn, Vector, numbers
from sordino.core import effect
from sordino.core.effect import Effect, Effects, Event, Request, Said, Wake
from sordino.core.world import ChargeRequest, Charges, Faults, KernelSnapshot, ServerSide, SiteSide
from sordino.privacy import Allowance, Budget, Permits
from sordino.regimes.vertical import regime as prices
from sordino.regimes.vertical.appearances import Block, Charged, not_booked
from sordino.regimes.vertical.halves import Party
from sordino.regimes.vertical.messages import ServerModel
from sordino.regimes.vertical.models import mechanism_of
from sordino.regimes.vertical.run import Events, Sizes, StreamState
from sordino.training.plausible import CHANCE, LONGEST, ROUNDING, Length, length

LEAVE = "leave"
"""Tag of the alarm after which a server waits for no site to have its last derivative."""


class VerticalServer(Events, ServerSide[StreamState]):
    """A server's run over a network, as the kernel asks for it.

    To the kernel there is one state, that of the stream; a block of it is no task of an engine
    here, but a row of events.
    """

    hands_out = False
    continuous = True
    player: ServerModel
    block: Block

    def resumed(self, moment: KernelSnapshot[StreamState]) -> KernelSnapshot[StreamState]:
        """Stand at ``moment``, before a block."""
        found = super().resumed(moment)
        self.player.server.most = LONGEST
        self.widest = max(self.player.rules.sizes)
        self._silent: Bools = np.zeros((0, 0), bool)
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

    def step(self, state: StreamState, event: Event) -> tuple[StreamState, Effects]:
        """Return what the rules of the stream say, and within a block those of events."""
        match event:
            case effect.Arrived(message):
                self._note_answered(message)
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
        found = self._note_asked(self.player.step(event))
        if isinstance(event, effect.Learned):
            over = self.player.count == self.block.used.sum()
            found += self._over() if over else self._note_asked(self.player.open())
        return state, found

    def _note_answered(self, message: Said) -> None:
        """Note that a site answers a turn once, whether its answer can be used or not."""
        if isinstance(message, Embedding | Passive | Labels):
            parties = self.player.rules.parties
            site = parties if isinstance(message, Labels) else message.party
            if self._asked.get(site, 0) // 2 == message.event:
                del self._asked[site]

    def _note_asked(self, effects: Iterable[Effect]) -> list[Effect]:
        """Note the turns that sites are sent."""
        found = list(effects)
        for each in found:
            if isinstance(each, effect.Send) and isinstance(each.message, Turn):
                self._asked[each.site] = each.message.number
        return found

    def open_block(self, state: StreamState) -> list[Effect]:
        """Read a block, and open its first event."""
        super().open_block(state)
        start, used = self.block.start, self.block.used
        self.player.begin(int(used.sum()))
        self._silent = self.activity.silent(start, len(used))[used]
        return self._note_asked(self.player.open()) if used.any() else self._over()

    def _over(self) -> list[Effect]:
        """Close a block. The last one is closed when everybody has the last derivative."""
        n, model, start = len(self.block.used), self.player, self.block.start
        if start + n < self.study.horizon and n == self.appearances.events(start):
            return self._block_played()
        self._leaving = set(range(model.rules.parties + 1)) - model.away
        last = self._note_asked(model.open(over=True))
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
        return list(super().step(self.state, effect.Arrived(self._counted(self.block)))[1])

    def _cut_short(self) -> list[Effect]:
        """Count the events of the open block that are over: no more of them will come."""
        over = self.player.count
        if not over or self.block.start != self.state.position:
            return []
        used = self.block.used[: int(np.flatnonzero(self.block.used)[over - 1]) + 1]
        return self.count(self.state, self._counted(replace(self.block, used=used)))

    def _counted(self, block: Block) -> effect.BlockPlayed:
        """Return what came of a block."""
        model, labels = self.player, self.player.labels.reshape(-1)
        tallies = self.counted(block, model.played, model.active, model.absent, labels)
        return effect.BlockPlayed(block.start + 1, len(block.used), tuple(tallies))

    def learn(self, each: effect.Learn | effect.Skip) -> effect.Learned:
        """Let the server learn, or only see the labels."""
        return self.player.learn(each)

    def faults(self) -> Faults:
        """Return parties whose embeddings could not be learned from, each once."""
        found, self.player.faults = self.player.faults, []
        return found

    def latest(self, state: StreamState, site: int) -> int:
        """Return the number of the query of the open event."""
        return 2 * (self.player.state.closed + 1) + 1

    def indispensable(self, site: int) -> bool:
        """Return whether a site holds the labels: nothing goes on without them."""
        return site == self.player.rules.parties

    def expects(self, state: StreamState, site: int, number: int) -> bool:
        """Return whether this is what the site was asked last, and has not answered."""
        return self._asked.get(site) == number

    def trip(self, site: int, task: Request) -> float:
        """Return how long an answer takes by the simulator's clock: an event takes a second or so,
        and a party that is to be silent answers too late.
        """
        rules = self.player.rules
        if not isinstance(task, Turn) or not task.asked:
            return 4.0 * rules.patience
        return 1.5 * rules.patience if self._silent[self.player.count, site] else 0.0

    def length_bound(self, site: int, task: Request | None, said: Said) -> Length | None:
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

    def objection_to_reply(self, site: int, number: int, said: Said) -> str | None:
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
    found = f"{what} of {len(said.values)} bytes at {said.bits} bits a number"
    return f"{found}; agreed are {size} at {bits}"


@dataclass(kw_only=True, eq=False)
class VerticalSite(Events, SiteSide[StreamState]):
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
        self._counts, self._answers = dict[int, int](), dict[int, int]()
        self._charged, self._charges = list[Charged](), list[ChargeRequest]()
        self._active: Bools = np.zeros(0, bool)
        self._labels: Ints | None = None
        self._last = 0
        self._said: tuple[int, Embedding | Labels | Passive] | None = None
        self._faults: list[tuple[int, str]] = []
        if self.party is not None:
            self.party.most, noise = LONGEST, self.party.noise
            self.repeats_noise = noise.embedding is not None or noise.update is not None

    @property
    def history(self) -> Transcript | None:
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
        if not task.over and not self._read_to(task.event):
            return f"the stream has no event {task.event}"
        party = self.party
        gone = party is not None and task.event <= self._last and task.event != party.sent
        return f"event {task.event} is over" if gone else None

    def _read_to(self, event: int) -> bool:
        """Read on to the block that holds an event, and note all charges on the way; return whether
        there is one.
        """
        while self.block is None or event > self.block.last:
            start, first = 0, 1
            if self.block is not None:
                self._miss(self.block, self.block.last)
                start, first = self.block.stop, self.block.last + 1
            if start >= self.study.horizon:
                return False
            block = self.appearances.read(start, first, self._counts, self._charged)
            if not (n := len(block.used)):
                return False
            active = self.activity.drawn(block.read.x[: n * self.batch], start, n)[0][block.used]
            if self.party is not None:
                self._active = active[:, self.site]
            self.block, self._labels = block, None
            self._charges += [each for each in block.charges if each.charge.unit in self.names]
        return event >= self.block.first

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
        return not_booked(self._charges, permits)

    def apply_derivative(self, site: int, task: Request) -> None:
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
            raise LocalProtocolError("a site of events answers to turns")
        if self._said is None or self._said[0] != number:
            self._said = number, self._computed(task, permits)
        return self._said[1]

    def _computed(self, task: Turn, permits: Permits) -> Embedding | Labels | Passive:
        event, block = task.event, self.block
        if task.over:
            return Passive(self.site, event)
        assert block is not None
        paid = Allowance(permits, block.most)
        if self.party is None:
            if self._labels is None:
                self._labels = self.answers(block, paid, self._answers)
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
