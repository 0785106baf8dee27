"""The state of a run in rounds, and the outcome of one: how far the model moves, what the method
remembers, the row of the log. Vectors are (d,) and never written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import NDArray

from sordino.base.message import Answer, Contribution, Update, Vector
from sordino.core.world import EncodedSnapshot
from sordino.mechanisms.gaussian import Learning
from sordino.privacy import Permit
from sordino.regimes.synchronous.aggregate import PrivateSum
from sordino.regimes.synchronous.method import Remaining, RoundNoise, SynchronousMethod, Terms
from sordino.regimes.synchronous.methods.estimate import clipped_fraction, signal_to_noise
from sordino.regimes.synchronous.records import SynchronousRound
from sordino.regimes.synchronous.sharing import SharedSum

Vector64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a synchronous run stands. Vectors are (d,) and never written to.

    Attributes:
        round: rounds begun; 0 before the first.
        weights: w, the global model.
        velocity: v of server momentum.
        average: w_avg; the weights themselves where decay is 0.
        steps: local steps given to every client so far.
        present: clients that are thought to be within reach.
        memory: the method's own.
        open: whether a round is under way.
        tau: local steps of the open round.
        waiting: clients of the open round that have not answered.
        cohort: how many were asked in the open round.
        answers: answers of the open round.
        arrived: clients whose contributions to the open round's sum came, ascending.
        total: the sum of what they sent (d,), modulo 2^bits; None before any came, or where it
            could not be opened.
        opening: whether that sum was asked to be opened: nothing more is added to it.
        models: last model that each client sent, for a paper's literal form only.
        seen: what releases have taught about the mechanism's shape.
        note: the method's remark on the open round.
        faults: clients whose answers the method could not use in the round that was closed last,
            and why.
        permits: that the open round's release was booked, where it is the round that is charged.
        ended: why the run is over, or None.
    """

    round: int
    weights: Vector
    velocity: Vector
    average: Vector
    steps: tuple[int, ...]
    present: frozenset[int]
    memory: msgspec.Struct
    open: bool = False
    tau: int = 0
    waiting: frozenset[int] = frozenset()
    cohort: int = 0
    answers: tuple[Answer, ...] = ()
    arrived: tuple[int, ...] = ()
    total: NDArray[np.uint64] | None = None
    opening: bool = False
    models: tuple[Vector | None, ...] = ()
    seen: tuple[float, ...] = ()
    note: str | None = None
    faults: tuple[tuple[int, str], ...] = ()
    permits: tuple[Permit, ...] = ()
    ended: str | None = None

    @property
    def number(self) -> int:
        """Rounds begun."""
        return self.round

    @property
    def taken(self) -> int:
        """Local steps of the client that took most."""
        return max(self.steps)

    @property
    def model(self) -> Vector:
        """w_avg."""
        return self.average

    def packed(self) -> EncodedSnapshot:
        """Return the state between two rounds as it is kept."""
        vectors: dict[str, Vector] = {
            "weights": self.weights,
            "velocity": self.velocity,
            "average": self.average,
        }
        vectors |= {f"model.{i}": model for i, model in enumerate(self.models) if model is not None}
        rest = Kept(
            round=self.round,
            steps=list(self.steps),
            present=sorted(self.present),
            memory=msgspec.Raw(msgspec.json.encode(self.memory)),
            models=len(self.models) or None,
            note=self.note,
            ended=self.ended,
            seen=self.seen,
        )
        return EncodedSnapshot(vectors, msgspec.json.encode(rest))


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a kept state that is no vector."""

    round: int
    steps: list[int]
    present: list[int]
    memory: msgspec.Raw
    models: int | None
    note: str | None
    ended: str | None
    seen: tuple[float, ...] = ()


def terms_under(terms: Terms, contract: RoundNoise) -> Terms:
    """Return the terms with C and sigma of one round."""
    if not terms.sigma:
        return terms
    noise = terms.noise * contract.noise_multiplier / terms.sigma
    return replace(terms, clip=contract.clip, noise=noise)


def mean_change(weights: Vector, terms: Terms, answers: Sequence[Update]) -> Vector64 | None:
    """Return the weighted mean of how far the clients moved; None where nobody answered."""
    if not answers:
        return None
    total = sum(terms.weights[a.client] for a in answers)
    mean = np.zeros(weights.shape, np.float64)
    for answer in answers:
        mean += (terms.weights[answer.client] / total) * answer.weights
    return mean - weights


def deviation(terms: Terms, tau: int, answered: Sequence[int]) -> float:
    """Return the noise in the mean of tau plain steps, of deviation 1 in a step's sum."""
    total = sum(terms.weights[i] for i in answered)
    spread = sum((terms.weights[i] / total / terms.batch(i)) ** 2 for i in answered)
    return float(terms.learning_rate * (tau * spread) ** 0.5)


def after(
    state: State, change: Vector64 | None, momentum: float, decay: float
) -> tuple[Vector, Vector, Vector]:
    """Return w, v and w_avg after a round."""
    if change is None:
        return state.weights, state.velocity, state.average
    velocity = momentum * state.velocity + change
    weights = (state.weights + velocity).astype(np.float32)
    average = weights
    if decay != 0.0 and state.round != 1:  # the random start is no model to average in
        average = (decay * state.average + (1.0 - decay) * weights).astype(np.float32)
    return weights, velocity.astype(np.float32), average


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The outcome of a round.

    Attributes:
        moved: Delta (d,); None where the model stays.
        memory: of the method.
        row: what of the row is known here.
        answers: models that were sent one by one, and were used.
        faults: whose were not, and why.
        void: why nothing was opened, where clients share the noise, or no answer was used; None
            if something was.
    """

    moved: Vector64 | None
    memory: Any
    row: SynchronousRound
    answers: Sequence[Update] = ()
    faults: tuple[tuple[int, str], ...] = ()
    void: str | None = None


def of_models(
    method: SynchronousMethod,
    terms: Terms,
    state: State,
    contract: RoundNoise,
    left: Remaining | None,
) -> Outcome:
    """Return the outcome of a round in which clients sent models.

    ``left`` is what remains before the next one, if there is one.
    """
    sent = [a for a in _ordered(state) if isinstance(a, Update)]
    memory, answers, faults, void = _folded(method, terms, state.memory, sent, left)
    row = SynchronousRound(
        cohort=state.cohort,
        answered=len(answers),
        missing=state.cohort - len(answers),
        clipped=clipped_fraction(answers, terms),
        snr=signal_to_noise(answers, terms_under(terms, contract)),
    )
    return Outcome(mean_change(state.weights, terms, answers), memory, row, answers, faults, void)


def _folded(
    method: SynchronousMethod,
    terms: Terms,
    memory: Any,
    sent: Sequence[Update],
    left: Remaining | None,
) -> tuple[Any, Sequence[Update], tuple[tuple[int, str], ...], str | None]:
    """The memory after a round, the answers that were used, whose were not and why, and why none
    were.

    One client's numbers must not end a run: an answer that by itself leads the method to numbers
    that do not exist is left out. Where only several together do, nobody knows who is to blame:
    the round is void.
    """

    def tried(answers: Sequence[Update]) -> tuple[Any, str | None]:
        try:
            found = method.remembered("fold", method.fold(memory, terms, answers))
            if left is not None and method.fixed_tau is None:
                method.chosen(found, terms, left)
        except (ArithmeticError, ValueError) as error:
            return memory, f"{method.name} cannot use its numbers ({error})"
        return found, None

    found, why = tried(sent)
    if why is None:
        return found, sent, (), None
    alone = [(answer, tried([answer])[1]) for answer in sent]
    faults = tuple((answer.client, fault) for answer, fault in alone if fault is not None)
    used = [answer for answer, fault in alone if fault is None]
    found, void = tried(used)
    if void is not None:
        found, used = tried([])[0], []
    return found, used, faults, void


def of_updates(
    method: SynchronousMethod,
    terms: Terms,
    state: State,
    contract: RoundNoise,
    aggregator: PrivateSum,
) -> Outcome:
    """Return the outcome of a round in which an aggregator added up bounded updates."""
    contributed = [a for a in _ordered(state) if isinstance(a, Contribution)]
    released = aggregator.release(
        contributed, contract, state.round, len(state.weights), state.permits, state.seen
    )
    memory = method.remembered("learn", method.learn(state.memory, terms, released))
    row = SynchronousRound(
        clipped=None if released.clipped is None else min(max(released.clipped, 0.0), 1.0),
        snr=aggregator.signal_to_noise(released, contract, state.seen),
    )
    return Outcome(released.mean.astype(np.float64), memory, row)


def of_sum(
    method: SynchronousMethod, terms: Terms, state: State, contract: RoundNoise, adder: SharedSum
) -> Outcome:
    """Return the outcome of a round whose sum was opened, or void, where too few came."""
    clients = state.arrived
    row = SynchronousRound(
        cohort=state.cohort, answered=len(clients), missing=state.cohort - len(clients)
    )
    if len(clients) < adder.fewest:
        void = f"{len(clients)} of the {adder.fewest} contributions that a sum needs: void"
        return Outcome(None, state.memory, row, void=void)
    if state.total is None:
        return Outcome(None, state.memory, row, void="the sum could not be opened: void")
    released = adder.released(state.total, clients, contract)
    memory = method.remembered("learn", method.learn(state.memory, terms, released))
    snr = adder.signal_to_noise(released, clients, contract)
    row = msgspec.structs.replace(row, snr=snr)
    return Outcome(released.mean.astype(np.float64), memory, row)


def learned(
    learner: Learning | None,
    terms: Terms,
    state: State,
    contract: RoundNoise,
    aggregator: PrivateSum | None,
    found: Outcome,
) -> tuple[float, ...]:
    """Return what a mechanism has learned of its shape after the round's release."""
    if learner is None or found.moved is None:
        return state.seen
    answered = [a.client for a in found.answers]
    unit = deviation(terms, state.tau, answered) if aggregator is None else aggregator.unit
    return learner.scaled(contract.clip, contract.noise_multiplier).observed(
        state.seen, torch.from_numpy(found.moved.astype(np.float32)), unit
    )


def models(state: State, found: Outcome) -> tuple[Vector | None, ...]:
    """Return the last model of each client, where a paper's literal form keeps them."""
    kept = list(state.models)
    for answer in found.answers if kept else ():
        kept[answer.client] = answer.weights
    return tuple(kept)


def _ordered(state: State) -> list[Any]:
    return sorted(state.answers, key=lambda a: a.client)
