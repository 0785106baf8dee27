r"""Rounds: the server asks a cohort, waits, aggregates, and asks the next.

One round, with K the cohort and A those of it whose answers came in time:

    tau     from the method, cut to what the poorest client of K can still pay for
    w_i     from each i in A, after tau local steps from w
    Delta   = sum_{i in A} p_i (w_i - w) / sum_{i in A} p_i
    v       <- momentum v + Delta,       w <- w + v
    w_avg   <- decay w_avg + (1 - decay) w          (what is evaluated and handed out)

Momentum and averaging touch only what clients released, so they cost no privacy. Sums run in
float64 in the order of the clients' numbers: who arrives first changes nothing.

Where whole clients are protected, the cohort is a Poisson sample, clients send bounded updates
instead of models, and the aggregator (``PrivateSum`` of
:mod:`sordino.regimes.synchronous.aggregate`) puts the noise on their sum, once the round is booked;
Delta is then its release. Every client is charged for every round, drawn or not, because what is
charged for is the chance of being drawn. Who was drawn, and how many, is a secret: it depends on
who is in the federation, and nobody has paid for it. No row of the log says it, and local steps are
counted as if everybody had taken them.

With passes in a public order nobody is drawn: clients take part in blocks, in turn
(:class:`~sordino.training.passes.Blocks`), and each pass over all blocks is charged once, to every
client, before its first round; between sites, each round to its block.

Where clients share the noise (``SharedSum``, in the same place), everybody within reach sends
residues, which are added up as they come. Their sum is opened once, when the round closes; Delta is
what it stands for. With fewer than M contributions the round is void: nothing is opened,
charges stay. Where fewer than M are within reach, nobody is asked or charged.

A round closes when everybody has answered or, with a deadline, when it passes. What comes
later is *late*: its noise was released and is booked, but it is not used. A client that never
answers is *lost*: its steps were booked before it started, and the ledger over-counts. Either
is not asked again until it is heard from.

The run ends when the rounds are used up, or when no client of a cohort can pay for a step.

Rules: an answer counts if it quotes the open round, comes from a client that was asked and
has not answered, and took the steps it was given. Anything else is dropped with a row in the
log, and the state stays as it is.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from sordino.base.arrays import Floats, Ints, below
from sordino.base.entropy import Entropy, Transcript
from sordino.base.errors import BudgetExceeded, StudyError
from sordino.base.message import Contribution, Masked, Train, TrainInOrder, Update, Vector
from sordino.clients.world import Rules
from sordino.core import effect, records
from sordino.core.effect import Closed, Effects, Event, Finish, Log, Open, Request, Send, Wake, Woke
from sordino.core.world import EncodedSnapshot, Faults
from sordino.mechanisms.correlated import Memory
from sordino.mechanisms.gaussian import LARGEST, SMALLEST, Learning
from sordino.privacy import Event as Fact
from sordino.regimes.synchronous import aggregate
from sordino.regimes.synchronous.aggregate import PrivateSum, RoundOutcome, SharedSum, State
from sordino.regimes.synchronous.method import Remaining, RoundNoise, SynchronousMethod, Terms
from sordino.training.client import poisson
from sordino.training.extra_releases import Wants

Clients = Ints
"""Numbers of clients, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronous(Rules[State]):
    """The rules of a synchronous run.

    Attributes:
        method: chooses tau, folds answers, and says how the server steps.
        terms: public facts; ``terms.rounds`` is R_s, ``terms.steps`` is R_c.
        budget: steps that each client can pay for in this run, (clients,); None: no limit.
        affordable_rounds: rounds that every client can pay for, where a round is what is charged
            (None: no limit).
        aggregator: of bounded updates, where whole clients are protected.
        adder: of contributions with shared noise.
        learner: the mechanism, if its shape follows what was released before.
        entropy: where cohorts are drawn from.
        cohort: clients asked in a round; None asks everybody present.
        deadline: seconds after which a round closes; None waits for everybody.
        ordered: whether clients' batches come in a public order, so that tasks say where in it
            they begin.
    """

    method: SynchronousMethod
    terms: Terms
    budget: Ints | None
    entropy: Entropy
    cohort: int | None = None
    deadline: float | None = None
    affordable_rounds: int | None = None
    aggregator: PrivateSum | None = None
    adder: SharedSum | None = None
    learner: Learning | None = None
    ordered: bool = False

    @property
    def secret(self) -> bool:
        """Secrecy of who takes part: amplification by sampling clients rests on it."""
        return self.aggregator is not None

    @property
    def together(self) -> bool:
        """Each round is charged to all clients at once."""
        return self.secret or (self.adder is not None and self.adder.whole)

    @property
    def wants(self) -> Wants:
        """The requests to clients besides a model; nothing where only a sum is opened."""
        return self.method.wants if self.adder is None else Wants()

    @property
    def timed(self) -> bool:
        """Rounds last until their deadline, lest one client's speed decide who is back."""
        return self.secret and self.deadline is not None

    def start(self, weights: Vector) -> State:
        """Everybody present, nothing asked yet; :meth:`begin` opens the first round."""
        count = len(self.terms.sizes)
        return State(
            number=0,
            weights=weights,
            velocity=np.zeros(weights.shape, np.float32),
            average=weights,
            steps=np.zeros(count, np.int64),
            memory=self.method.start(self.terms),
            models=(None,) * count if self.method.wants.raw else (),
        )

    def step(self, state: State, event: Event) -> tuple[State, Effects]:
        """Return what follows from one event. A finished run stays finished."""
        if state.ended is not None:
            return state, ()
        match event:
            case effect.Arrived(Update() | Contribution() | Masked() as message):
                return self._arrived(state, message)
            case effect.Summed(number, clients, values) if state.opening and number == state.number:
                same = clients == state.arrived
                return self._close(replace(state, total=values if same else None))
            case effect.Begin() if not state.open:
                return self.begin(state)
            case effect.Booked(permits) if self.together and state.open and not state.permits:
                paid = replace(state, permits=permits)
                # noise alone is released where nobody was drawn, and nobody can come
                asks = state.waiting or self.deadline is not None
                return self._ask(paid) if asks else self._ended(paid)
            case Woke(tag) if state.open and not state.opening and tag == f"round {state.number}":
                return self._ended(state)
            case effect.Joined(client):
                return self._joined(state, client)
            case effect.Left(client, final):
                return self._left(state, client, final=final)
            case effect.Overtaken(number) if number > state.number:
                # a sum that was not opened is masks alone
                waits = replace(state, waiting=frozenset(), total=None)
                state, closed = self._close(waits) if state.open else (state, ())
                return replace(state, number=number, steps=np.array(event.steps, np.int64)), closed
            case effect.Stop(why):
                return self._finish(state, why)
            case effect.Lapsed(client, number):
                late = Log(records.Late(round=number, client=client, released=self.adder is None))
                state, heard = self._joined(state, client)
                return state, (late, *heard)
            case _:
                return state, ()

    def _left(self, state: State, client: int, *, final: bool) -> tuple[State, Effects]:
        """A client that vanished may be back before the deadline, unless its leave is ``final``;
        without a deadline nobody waits.
        """
        lost = Log(records.Lost(round=state.number, client=client, released=False))
        if self.deadline is not None and not final:
            return state, (lost,) if client in state.waiting else ()
        if client in state.absent or not 0 <= client < len(state.steps):
            return state, ()
        waited = client in state.waiting
        state = replace(state, absent=state.absent | {client}, waiting=state.waiting - {client})
        if not waited:
            return state, (lost,)
        waits = bool(state.waiting) or self.timed or state.opening
        state, closed = (state, ()) if waits else self._ended(state)
        return state, (lost, *closed)

    def _joined(self, state: State, client: int) -> tuple[State, Effects]:
        """Count a client in again that was given up."""
        if client not in state.absent:
            return state, ()
        state = replace(state, absent=state.absent - {client})
        return state, (Log(records.Joined(client=client)),)

    def expects(self, state: State, client: int, round_number: int) -> bool:
        """Return whether an answer of this client for this round would still be used."""
        return (
            state.ended is None
            and not state.opening
            and round_number == state.number
            and client in state.waiting
        )

    def unpacked(self, packed: EncodedSnapshot) -> State:
        """Return the state that was packed.

        Raises:
            ValueError: if it cannot be one.
        """
        kept: dict[str, Any] = dict(packed.vectors)
        last = tuple(kept.pop(f"model.{i}", None) for i in range(len(self.terms.sizes)))
        kept["models"] = last if self.method.wants.raw else ()
        noise = below(aggregate.NOISE, kept)
        kept = {name: each for name, each in kept.items() if not name.startswith(aggregate.NOISE)}
        rest = msgspec.json.decode(packed.rest)
        if isinstance(steps := rest.get("steps"), list):  # as numerics 5 and before wrote it
            kept["steps"] = np.array(steps, np.int64)
            rest["absent"] = sorted(set(range(len(steps))) - set(rest.pop("present")))
        state = Rules.unpacked(self, EncodedSnapshot(kept, msgspec.json.encode(rest)))
        vectors = state.velocity, state.average, state.squares, *state.models
        if state.steps.shape != (len(self.terms.sizes),) or any(
            each is not None and each.shape != state.weights.shape for each in vectors
        ):
            raise ValueError("its vectors have different lengths")
        memory = msgspec.convert(state.memory, self.method.memory)
        return replace(state, memory=memory, noise=Memory.of(noise) if noise else None)

    def faults(self, before: State, after: State) -> Faults:
        """Return the clients whose answers the method could not use in the round that closed."""
        return () if after.faults is before.faults else after.faults

    def steps_by(self, number: int) -> int:
        """Return the local steps of a client that takes part in so many rounds."""
        return number * (self.method.fixed_tau or 1)

    @property
    def history(self) -> Transcript | None:
        """The history that the aggregator's noise is drawn over."""
        return None if self.aggregator is None else self.aggregator.history

    @property
    def growth(self) -> float:
        """The most that answers of length 1 can lengthen the model in a whole run.

        Of models, w' = mean + momentum (w - w_before), whose poles have the absolute value
        sqrt(momentum); of bounded updates of length 1, each round moves the model by 1/q_c, and by
        what momentum repeats. An adaptive step has a length of its own, whatever the answers' are.
        """
        momentum = self.method.momentum
        if self.method.server is not None:
            return 1.0
        if self.aggregator is None:
            return float((1.0 - momentum**0.5) ** -2)
        return self.terms.rounds / (self.aggregator.sampling_rate * (1.0 - momentum))

    def begin(self, state: State) -> tuple[State, Effects]:
        """Open the next round, or end the run."""
        if state.number >= self.terms.rounds:
            return self._finish(
                state, f"the round budget is used up: {state.number} of {self.terms.rounds} rounds"
            )
        if self.exhausted(state):
            return self._finish(
                state,
                f"the privacy budget is used up after {state.taken} local steps, in round "
                f"{state.number}",
            )
        number = state.number + 1
        chosen = self._chosen(state, number)
        remaining = self._remaining(state, chosen)
        steps_left = remaining.steps
        choice = self.method.chosen(state.memory, self.terms, remaining)
        if choice.tau == 0:
            return self._finish(state, choice.note or "the method has ended it")
        tau = choice.tau if steps_left is None else min(choice.tau, steps_left)
        if self.adder is not None and not self.adder.whole:
            tau = 1  # sums of models after several steps have noise that nobody shares
        taken = state.steps.copy()
        few = self.adder is not None and not chosen
        taken[slice(None) if self.together and not few else chosen] += tau
        state = replace(
            state.closed(),
            number=number,
            open=True,
            tau=tau,
            waiting=frozenset(chosen),
            cohort=len(chosen),
            steps=taken,
            note=choice.note,
        )
        round_noise = self.method.checked_noise(state.memory, self.terms, number)
        if not few and (priced := self.priced(round_noise)) is not None:
            return state, (effect.Book(number, priced),)
        return self._ask(state)

    def exhausted(self, state: State) -> bool:
        """Return whether nobody within reach, if anybody is, can pay for another round."""
        if self.affordable_rounds is not None and state.number >= self.affordable_rounds:
            return True
        somebody = self.budget is not None and len(state.absent) < len(state.steps)
        return somebody and not len(self._solvent(state))

    def _solvent(self, state: State) -> Clients:
        """Return the clients within reach that can pay for a step."""
        can = np.ones(len(state.steps), np.bool_)
        if self.budget is not None:
            can &= self.budget > state.steps
        can[list(state.absent)] = False
        return np.flatnonzero(can)

    def _remaining(self, state: State, chosen: Sequence[int] | Clients) -> Remaining:
        """Return what is left for a round of these clients."""
        # where nobody is within reach, tau is what anybody could pay for, if he came back in time
        asked = chosen if len(chosen) else slice(None)
        left = None if self.budget is None else self.budget[asked] - state.steps[asked]
        share = 1.0 if self.cohort is None else min(self.cohort / len(state.steps), 1.0)
        return Remaining(
            rounds=max(round((self.terms.rounds - state.number) * share), 1),
            steps=None if left is None else int(left.min()),
        )

    def _chosen(self, state: State, number: int) -> list[int]:
        """Return the clients that are asked, or that a secret sample has drawn."""
        if self.aggregator is None:
            found = cohort(self.entropy, self._solvent(state), self.cohort, number)
            # a sum of fewer is not opened: nobody is charged for one that cannot be
            return found if self.adder is None or len(found) >= self.adder.fewest else []
        rate, count = self.aggregator.sampling_rate, len(state.steps)
        if (blocks := self.aggregator.blocks) is not None:
            return [i for i in blocks.of(number, count) if i not in state.absent]
        return sample(self.entropy, rate, count, state.absent, number)

    def priced(self, round_noise: RoundNoise) -> Fact | None:
        """Return what a round releases of every client, where it is charged to all at once."""
        summed = self.adder or self.aggregator
        return None if summed is None or not self.together else summed.event(round_noise)

    def _ask(self, state: State) -> tuple[State, Effects]:
        """Send the open round's cohort its tasks."""
        chosen, number = sorted(state.waiting), state.number
        wake = () if self.deadline is None else (Wake(self.deadline, f"round {number}"),)
        if not chosen and not wake:
            who = "no client" if self.adder is None else f"fewer than {self.adder.fewest} clients"
            why = f"{who} can be reached, and no deadline is set to wait for one"
            return self._finish(state, why)
        round_noise = self.method.checked_noise(state.memory, self.terms, number)
        usual = RoundNoise(self.terms.clip, self.terms.sigma)  # what clients have anyway
        told = self.together or round_noise != usual
        kind = TrainInOrder if self.ordered else Train
        task = kind(
            round=number,
            steps=state.tau,
            weights=state.weights,
            clip=round_noise.clip if told else None,
            noise_multiplier=round_noise.noise_multiplier if told else None,
            order=self.terms.order if self.method.adapts_noise else None,
            shape=state.seen,
        )
        wants, sent = self.wants, list[Send]()
        for i in chosen:
            asked = wants.asked(task, state.models[i] if wants.raw else None)
            if self.ordered:
                asked = replace(asked, taken=int(state.steps[i]) - state.tau)
            sent.append(Send(i, asked))
        return state, (*sent, *wake)

    def _arrived(
        self, state: State, answer: Update | Contribution | Masked
    ) -> tuple[State, Effects]:
        if (taken := self._taken(state, answer)) is None:
            why = "late, repeated or not asked for"
            return state, (Log(records.Dropped(round=answer.round, client=answer.client, why=why)),)
        state = replace(taken, waiting=taken.waiting - {answer.client})
        return self._ended(state) if not state.waiting and not self.timed else (state, ())

    def _taken(self, state: State, answer: Update | Contribution | Masked) -> State | None:
        """Return the state with an answer of the open round; None where it is none."""
        if not self.expects(state, answer.client, answer.round):
            return None
        if self.adder is not None:
            total = self.adder.added(state.total, answer) if isinstance(answer, Masked) else None
            arrived = list(state.arrived)
            bisect.insort(arrived, answer.client)
            return None if total is None else replace(state, total=total, arrived=tuple(arrived))
        meant = Update if self.aggregator is None else Contribution
        if not isinstance(answer, meant) or answer.steps != state.tau:
            return None
        return replace(state, answers=(*state.answers, answer))

    def _ended(self, state: State) -> tuple[State, Effects]:
        """Nobody is waited for any more: close the round, or let its sum be opened."""
        if self.adder is None or state.total is None or len(state.arrived) < self.adder.fewest:
            return self._close(state)
        return replace(state, opening=True), (Open(state.number, state.arrived, state.total),)

    def _outcome(self, state: State, round_noise: RoundNoise) -> RoundOutcome:
        if (summed := self.adder or self.aggregator) is not None:
            return summed.outcome(self.method, self.terms, state, round_noise)
        solvent = self._solvent(state)
        more = state.number < self.terms.rounds and len(solvent)
        left = self._remaining(state, solvent) if more else None
        return aggregate.of_models(self.method, self.terms, state, round_noise, left)

    def _close(self, state: State) -> tuple[State, Effects]:
        """Aggregate what came. The runtime evaluates and saves, then calls :meth:`begin`."""
        round_noise = self.method.checked_noise(state.memory, self.terms, state.number)
        found = self._outcome(state, round_noise)
        row = replace(
            found.row,
            round=state.number,
            steps=state.taken,
            tau=state.tau,
            note=found.void or state.note,
            extra=self.method.noted(found.memory),
        )
        models = list(state.models)
        for answer in found.answers if models else ():
            models[answer.client] = answer.weights
        seen, moved = state.seen, state
        if found.moved is not None:
            seen = self._shape_learned(state, round_noise, found, found.moved)
            moved = state.moved(found.moved, self.method)
        state = replace(
            moved.closed(),
            memory=found.memory,
            seen=seen,
            noise=found.noise,
            models=tuple(models),
            absent=state.absent | state.waiting,
            faults=found.faults,
        )
        unused = [
            Log(records.Dropped(round=state.number, client=client, why=why))
            for client, why in found.faults
        ]
        return state, (*unused, Log(row), Closed(state.number))

    def _shape_learned(
        self, state: State, round_noise: RoundNoise, found: RoundOutcome, change: Floats
    ) -> tuple[float, ...]:
        """Return what a mechanism has learned of its shape from a round's change (d,)."""
        if self.learner is None:
            return state.seen
        if self.aggregator is not None:
            unit = self.aggregator.unit
        else:
            answered = [answer.client for answer in found.answers]
            unit = aggregate.deviation(self.terms, state.tau, answered)
        shaped = self.learner.scaled(round_noise.clip, round_noise.noise_multiplier)
        return shaped.observed(state.seen, torch.from_numpy(change.astype(np.float32)), unit)

    def _finish(self, state: State, why: str) -> tuple[State, Effects]:
        # with the memory of noise, what was released could be stripped of it
        return replace(state, ended=why, noise=None), (Log(records.End(why=why)), Finish(why))

    def dearest_task(self, number: int) -> Train | None:
        """Return the dearest task that a client accepts in a round, for a model of no numbers."""
        method, terms, tau = self.method, self.terms, self.method.fixed_tau
        if tau is None or method.adapts_noise or self.wants.raw or self.learner is not None:
            return None
        noise = method.round_noise(method.start(terms), terms, number)
        task = Train(
            number,
            tau,
            np.zeros(0, np.float32),
            clip=noise.clip,
            noise_multiplier=noise.noise_multiplier,
        )
        return self.wants.asked(task, None)

    def objection(self, client: int, task: Request) -> str | None:
        """Return what a task asks for beyond the study, as far as a client can tell; or None.

        A client knows the method and its public schedule. Where earlier releases decide about C or
        sigma, it accepts what it is told: the price follows sigma, and C does not change it.

        Raises:
            BudgetExceeded: for more local steps than its own budget pays for, and nothing else.
        """
        if not isinstance(task, Train):
            return f"it asks for {type(task).__name__}, and clients of rounds are asked to train"
        method, terms, number = self.method, self.terms, task.round
        if not 1 <= number <= terms.rounds:
            return f"it is of round {number}, and the study has {terms.rounds}"
        blocks = None if self.aggregator is None else self.aggregator.blocks
        if blocks is not None and not blocks.turn(client, number):
            return f"round {number} is not its turn"
        if isinstance(task, TrainInOrder) != self.ordered:
            drawn = "batches come in an order" if self.ordered else "batches are drawn"
            return f"it is a {type(task).__name__}, and in the study {drawn}"
        # its pass has a number in the ledger, which holds none above 2^40
        if isinstance(task, TrainInOrder) and not 0 <= task.taken < 2**39:
            return f"it begins at step {task.taken} of an order"
        most = method.fixed_tau
        if self.adder is not None and not self.adder.whole:
            most = 1
        if not task.steps >= 1 or (most is not None and task.steps > most):
            return f"it asks for {task.steps} local steps, and the study has {most or 'no such'}"
        if (why := self.wants.refusal(task)) is not None:
            return why
        if task.order != (terms.order if method.adapts_noise else None):
            return f"it fixes the Rényi order {task.order}, and the study another"
        if task.shape and self.learner is None:
            return "it shapes the noise, and the study's mechanism has one shape"
        if (why := self._objection_to_noise(task)) is not None:
            return why
        try:
            if self.learner is not None:
                self.learner.shaped(task.shape)
        except (StudyError, ArithmeticError, ValueError) as error:
            return f"no noise has the shape that it asks for ({error})"
        # last: who also asks for something else must not learn for nothing how much is left
        if most is None and terms.steps is not None and task.steps > terms.steps:
            raise BudgetExceeded(
                f"round {number} asks for {task.steps} local steps, and this site's own budget "
                f"paid for {terms.steps} when the run began"
            )
        return None

    def objection_to_round(self, book: effect.Book) -> str | None:
        """Return what is wrong with the booking of a round, as far as a client can tell."""
        if not self.together:
            return "no round of this method is charged to everybody"
        if not 1 <= book.number <= self.terms.rounds:
            return f"it is of round {book.number}, and the study has {self.terms.rounds}"
        method, terms = self.method, self.terms
        noise = method.round_noise(method.start(terms), terms, book.number)
        if not method.adapts_noise and book.fact != self.priced(noise):
            return f"round {book.number} would release {book.fact}, and the study says otherwise"
        return None

    def _objection_to_noise(self, task: Train) -> str | None:
        method, terms = self.method, self.terms
        if (task.clip is None) != (task.noise_multiplier is None):
            return "it sets only one of the clip and the noise multiplier"
        first = method.round_noise(method.start(terms), terms, task.round)
        clip = terms.clip if task.clip is None else task.clip
        sigma = terms.sigma if task.noise_multiplier is None else task.noise_multiplier
        if not (SMALLEST <= clip <= LARGEST or (task.clip is None and not terms.sigma)):
            return f"its clip is {clip}"
        if not method.adapts_clip and clip != first.clip:
            return f"its clip is {clip}, and the study's is {first.clip}"
        if method.adapts_noise:
            return None if 0.0 < sigma <= terms.sigma else f"its noise multiplier is {sigma}"
        if sigma != first.noise_multiplier:
            return f"its noise multiplier is {sigma}, and the study's is {first.noise_multiplier}"
        return None


def cohort(entropy: Entropy, solvent: Clients, size: int | None, number: int) -> list[int]:
    """Return the cohort of a round, in ascending order: uniform, without replacement."""
    if size is None or len(solvent) <= size:
        return [int(i) for i in solvent]
    found = entropy.at("cohort", number).choice(len(solvent), size=size, replace=False)
    return sorted(int(i) for i in np.asarray(solvent)[found])


def sample(
    entropy: Entropy, rate: float, count: int, absent: Collection[int], number: int
) -> list[int]:
    """Return a Poisson sample of all clients, those of it that are not out of reach; of many it
    takes time in proportion to the sample.
    """
    drawn: list[int] = poisson(count, rate, entropy.at("cohort", number)).tolist()
    return [i for i in drawn if i not in absent]
