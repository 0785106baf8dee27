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
instead of models, and the aggregator (:mod:`sordino.regimes.synchronous.aggregate`) puts the noise
on their sum, once the round is booked; Delta is then its release. Every client is charged for every
round, drawn or not, because what is charged for is the chance of being drawn. Who was drawn, and
how many, is a secret: it depends on who is in the federation, and nobody has paid for it. No row of
the log says it, and local steps are counted as if everybody had taken them.

Where clients share the noise (:mod:`sordino.regimes.synchronous.shared`), everybody within reach
sends residues, which are added up as they come. Their sum is opened once, when the round closes;
Delta is what it stands for. With fewer than M contributions the round is void: nothing is opened,
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
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from sordino.base.entropy import Entropy
from sordino.base.message import Contribution, Masked, Update, Vector
from sordino.core import records
from sordino.core.effect import (
    Arrived,
    Begin,
    Book,
    Booked,
    Closed,
    Effect,
    Event,
    Finish,
    Joined,
    Lapsed,
    Left,
    Log,
    Open,
    Overtaken,
    Refused,
    Send,
    Stop,
    Summed,
    Wake,
    Woke,
)
from sordino.mechanisms import Learning
from sordino.privacy import Event as Price
from sordino.regimes.synchronous import cohort, outcome
from sordino.regimes.synchronous.aggregate import PrivateSum
from sordino.regimes.synchronous.method import (
    Remaining,
    RoundNoise,
    SynchronousMethod,
    Terms,
    Wants,
)
from sordino.regimes.synchronous.shared import SharedSum
from sordino.regimes.synchronous.state import State
from sordino.regimes.synchronous.update import after

__all__ = ["State", "Synchronous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronous:
    """The rules of a synchronous run.

    Attributes:
        method: chooses tau and folds answers.
        terms: public facts; ``terms.rounds`` is R_s, ``terms.steps`` is R_c.
        budget: steps that each client can pay for in this run (None: no limit).
        payable: rounds that every client can pay for, where a round is what is charged (None: no
            limit).
        aggregator: of bounded updates, where whole clients are protected.
        adder: of contributions with shared noise.
        learner: the mechanism, if its shape follows what was released before.
        entropy: where cohorts are drawn from.
        cohort: clients asked in a round; None asks everybody present.
        deadline: seconds after which a round closes; None waits for everybody.
        momentum: of the server, in [0, 1).
        decay: of the average of global models, in [0, 1).
    """

    method: SynchronousMethod
    terms: Terms
    budget: tuple[int, ...] | None
    entropy: Entropy
    cohort: int | None = None
    deadline: float | None = None
    momentum: float = 0.0
    decay: float = 0.0
    payable: int | None = None
    aggregator: PrivateSum | None = None
    adder: SharedSum | None = None
    learner: Learning | None = None

    @property
    def secret(self) -> bool:
        """Whether it is a secret who takes part: amplification by sampling clients rests on it."""
        return self.aggregator is not None

    @property
    def together(self) -> bool:
        """Whether each round is charged to all clients at once."""
        return self.secret or (self.adder is not None and self.adder.whole)

    @property
    def wants(self) -> Wants:
        """What clients are asked for besides a model; nothing where only a sum is opened."""
        return self.method.wants if self.adder is None else Wants()

    @property
    def timed(self) -> bool:
        """Whether rounds last until their deadline, lest one client's speed decide who is back."""
        return self.secret and self.deadline is not None

    @property
    def plain(self) -> RoundNoise:
        """C and sigma that clients have anyway."""
        return RoundNoise(self.terms.clip, self.terms.sigma)

    def start(self, weights: Vector) -> State:
        """Everybody present, nothing asked yet; :meth:`begin` opens the first round."""
        count = len(self.terms.sizes)
        return State(
            round=0,
            weights=weights,
            velocity=np.zeros_like(weights),
            average=weights,
            steps=(0,) * count,
            present=frozenset(range(count)),
            memory=self.method.start(self.terms),
            models=(None,) * count if self.method.wants.raw else (),
        )

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """What follows from one event. A finished run stays finished."""
        if state.ended is not None:
            return state, ()
        match event:
            case Arrived(Update() | Contribution() | Masked() as message):
                return self._arrived(state, message)
            case Summed(number, clients, values) if state.opening and number == state.round:
                same = clients == state.arrived
                return self._close(replace(state, total=values if same else None))
            case Begin() if not state.open:
                return self.begin(state)
            case Booked(permits) if self.together and state.open and not state.permits:
                return self._booked(replace(state, permits=permits))
            case Refused(why) if self.method.adapts_noise and not state.open:
                # The ledger is the filter: it held more than this run's own spending, which is all
                # that the method knows.
                return self._finish(state, f"the privacy filter lets no further round pass: {why}")
            case Woke(tag) if state.open and not state.opening and tag == f"round {state.round}":
                return self._ended(state)
            case Joined(client):
                return self._joined(state, client)
            case Left(client, final):
                return self._left(state, client, final=final)
            case Overtaken(number) if number > state.round:
                # a sum that was not opened is masks alone
                waits = replace(state, waiting=frozenset(), total=None)
                state, closed = self._close(waits) if state.open else (state, ())
                return replace(state, round=number, steps=event.steps), closed
            case Stop(why):
                return self._finish(state, why)
            case Lapsed(client, number):
                late = Log(records.Late(round=number, client=client, released=self.adder is None))
                state, heard = self._joined(state, client)
                return state, (late, *heard)
            case _:
                return state, ()

    def _left(self, state: State, client: int, *, final: bool) -> tuple[State, Sequence[Effect]]:
        """A client that vanished may be back before the deadline, unless its leave is ``final``;
        without a deadline nobody waits.
        """
        lost = Log(records.Lost(round=state.round, client=client, released=False))
        if self.deadline is not None and not final:
            return state, (lost,) if client in state.waiting else ()
        if client not in state.present:
            return state, ()
        waited = client in state.waiting
        state = replace(state, present=state.present - {client}, waiting=state.waiting - {client})
        if not waited:
            return state, (lost,)
        waits = bool(state.waiting) or self.timed or state.opening
        state, closed = (state, ()) if waits else self._ended(state)
        return state, (lost, *closed)

    def _joined(self, state: State, client: int) -> tuple[State, Sequence[Effect]]:
        """Count a client in again that was given up."""
        if client in state.present or not 0 <= client < len(state.steps):
            return state, ()
        state = replace(state, present=state.present | {client})
        return state, (Log(records.Joined(client=client)),)

    def expects(self, state: State, client: int, round_number: int) -> bool:
        """Whether an answer of this client for this round would still be used."""
        return (
            state.ended is None
            and not state.opening
            and round_number == state.round
            and client in state.waiting
        )

    def over(self, state: State) -> bool:
        """Whether no further round can be opened after the one that was closed."""
        return self.begin(state)[0].ended is not None

    def affordable(self, state: State, client: int) -> int | None:
        """Steps that a client can still pay for; None without a limit."""
        return None if self.budget is None else self.budget[client] - state.steps[client]

    def begin(self, state: State) -> tuple[State, Sequence[Effect]]:
        """Open the next round, or end the run."""
        if state.round >= self.terms.rounds:
            return self._finish(
                state, f"the round budget is used up: {state.round} of {self.terms.rounds} rounds"
            )
        solvent = self._solvent(state)
        if (state.present and not solvent) or (
            self.payable is not None and state.round >= self.payable
        ):
            spent = max(state.steps)
            return self._finish(
                state,
                f"the privacy budget is used up after {spent} local steps, in round {state.round}",
            )
        number = state.round + 1
        chosen = self._chosen(state, solvent, number)
        remaining = self._remaining(state, chosen)
        steps_left = remaining.steps
        choice = self.method.chosen(state.memory, self.terms, remaining)
        if choice.tau == 0:
            return self._finish(state, choice.note or "the method has ended it")
        tau = choice.tau if steps_left is None else min(choice.tau, steps_left)
        if self.adder is not None and not self.adder.whole:
            tau = 1  # sums of models after several steps have noise that nobody shares
        taken = list(state.steps)
        few = self.adder is not None and not chosen
        for i in range(len(taken)) if self.together and not few else chosen:
            taken[i] += tau
        state = replace(
            state,
            round=number,
            open=True,
            tau=tau,
            waiting=frozenset(chosen),
            cohort=len(chosen),
            answers=(),
            arrived=(),
            total=None,
            opening=False,
            steps=tuple(taken),
            note=choice.note,
            faults=(),
        )
        contract = self.method.round_noise(state.memory, self.terms, number)
        if not few and (priced := self.priced(contract)) is not None:
            return state, (Book(number, priced),)
        return self._ask(state)

    def _solvent(self, state: State) -> list[int]:
        """Clients within reach that can pay for a step."""
        can = {i: self.affordable(state, i) for i in sorted(state.present)}
        return [i for i, steps in can.items() if steps is None or steps > 0]

    def _remaining(self, state: State, chosen: Sequence[int]) -> Remaining:
        """What is left for a round of these clients."""
        # where nobody is within reach, tau is what anybody could pay for, if he came back in time
        left = [self.affordable(state, i) for i in chosen or range(len(state.steps))]
        share = 1.0 if self.cohort is None else min(self.cohort / len(state.steps), 1.0)
        return Remaining(
            rounds=max(round((self.terms.rounds - state.round) * share), 1),
            steps=min((n for n in left if n is not None), default=None),
        )

    def _chosen(self, state: State, solvent: Sequence[int], number: int) -> list[int]:
        """Who is asked; whom a secret sample of clients has drawn."""
        if self.aggregator is None:
            found = cohort.drawn(self.entropy, solvent, self.cohort, number)
            # a sum of fewer is not opened: nobody is charged for one that cannot be
            return found if self.adder is None or len(found) >= self.adder.fewest else []
        rate, count = self.aggregator.sampling_rate, len(state.steps)
        return cohort.sampled(self.entropy, rate, count, state.present, number)

    def priced(self, contract: RoundNoise) -> Price | None:
        """What a round releases of every client, where it is charged to all at once."""
        adder = self.aggregator if self.adder is None else self.adder
        return None if adder is None or not self.together else adder.event(contract)

    def _booked(self, state: State) -> tuple[State, Sequence[Effect]]:
        """The round's release is paid for: ask the cohort, or release noise alone if empty."""
        asks = state.waiting or self.deadline is not None
        return self._ask(state) if asks else self._ended(state)

    def _ask(self, state: State) -> tuple[State, Sequence[Effect]]:
        """Send the open round's cohort its tasks."""
        chosen, number = sorted(state.waiting), state.round
        wake = () if self.deadline is None else (Wake(self.deadline, f"round {number}"),)
        if not chosen and not wake:
            who = "no client" if self.adder is None else f"fewer than {self.adder.fewest} clients"
            why = f"{who} can be reached, and no deadline is set to wait for one"
            return self._finish(state, why)
        contract = self.method.round_noise(state.memory, self.terms, number)
        given = contract if self.together or contract != self.plain else None
        order = self.terms.order if self.method.adapts_noise else None
        sends = [Send(i, cohort.task(state, i, self.wants, given, order)) for i in chosen]
        return state, (*sends, *wake)

    def _arrived(
        self, state: State, answer: Update | Contribution | Masked
    ) -> tuple[State, Sequence[Effect]]:
        if (taken := self._taken(state, answer)) is None:
            why = "late, repeated or not asked for"
            return state, (Log(records.Dropped(round=answer.round, client=answer.client, why=why)),)
        state = replace(taken, waiting=taken.waiting - {answer.client})
        return self._ended(state) if not state.waiting and not self.timed else (state, ())

    def _taken(self, state: State, answer: Update | Contribution | Masked) -> State | None:
        """The state with an answer of the open round; None where it is none."""
        if not self.expects(state, answer.client, answer.round):
            return None
        if self.adder is not None:
            before = self.adder.nothing() if state.total is None else state.total
            total = self.adder.added(before, answer) if isinstance(answer, Masked) else None
            arrived = list(state.arrived)
            bisect.insort(arrived, answer.client)
            return None if total is None else replace(state, total=total, arrived=tuple(arrived))
        meant = Update if self.aggregator is None else Contribution
        if not isinstance(answer, meant) or answer.steps != state.tau:
            return None
        return replace(state, answers=(*state.answers, answer))

    def _ended(self, state: State) -> tuple[State, Sequence[Effect]]:
        """Nobody is waited for any more: close the round, or let its sum be opened."""
        if self.adder is None or state.total is None or len(state.arrived) < self.adder.fewest:
            return self._close(state)
        return replace(state, opening=True), (Open(state.round, state.arrived, state.total),)

    def _outcome(self, state: State, contract: RoundNoise) -> outcome.Outcome:
        if self.adder is not None:
            return outcome.of_sum(self.method, self.terms, state, contract, self.adder)
        if self.aggregator is not None:
            return outcome.of_updates(self.method, self.terms, state, contract, self.aggregator)
        solvent = self._solvent(state)
        more = state.round < self.terms.rounds and solvent
        left = self._remaining(state, solvent) if more else None
        return outcome.of_models(self.method, self.terms, state, contract, left)

    def _close(self, state: State) -> tuple[State, Sequence[Effect]]:
        """Aggregate what came. The runtime evaluates and saves, then calls :meth:`begin`."""
        contract = self.method.round_noise(state.memory, self.terms, state.round)
        found = self._outcome(state, contract)
        weights, velocity, average = after(state, found.moved, self.momentum, self.decay)
        learned = outcome.learned(self.learner, self.terms, state, contract, self.aggregator, found)
        row = msgspec.structs.replace(
            found.row,
            round=state.round,
            steps=max(state.steps),
            tau=state.tau,
            note=found.void or state.note,
            extra=self.method.noted(found.memory),
        )
        state = replace(
            state,
            weights=weights,
            velocity=velocity,
            average=average,
            memory=found.memory,
            seen=learned,
            models=outcome.models(state, found),
            present=state.present - state.waiting,
            open=False,
            opening=False,
            waiting=frozenset(),
            answers=(),
            arrived=(),
            total=None,
            faults=found.faults,
            permits=(),
        )
        unused = [
            Log(records.Dropped(round=state.round, client=client, why=why))
            for client, why in found.faults
        ]
        return state, (*unused, Log(row), Closed(state.round))

    def _finish(self, state: State, why: str) -> tuple[State, Sequence[Effect]]:
        return replace(state, ended=why), (Log(records.End(why=why)), Finish(why))
