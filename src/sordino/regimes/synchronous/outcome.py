"""What came of a round: how far the model moves, what the method remembers, the row of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from sordino.base.message import Contribution, Update, Vector
from sordino.mechanisms import Learning
from sordino.regimes.synchronous.aggregate import PrivateSum
from sordino.regimes.synchronous.method import Remaining, RoundNoise, SynchronousMethod, Terms
from sordino.regimes.synchronous.methods.estimate import clipped_fraction, signal_to_noise
from sordino.regimes.synchronous.records import SynchronousRound
from sordino.regimes.synchronous.shared import SharedSum
from sordino.regimes.synchronous.state import State
from sordino.regimes.synchronous.update import Vector64, deviation, mean_change, terms_under


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """See the module's docstring.

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
    """Of a round in which clients sent models; ``left`` before the next one, if there is one."""
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
    """Of a round in which an aggregator added up bounded updates."""
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
    """Of a round in which a sum was opened; or void, where too few contributions came."""
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
    """What a mechanism with a shape of its own has learned after the round's release."""
    if learner is None or found.moved is None:
        return state.seen
    answered = [a.client for a in found.answers]
    unit = deviation(terms, state.tau, answered) if aggregator is None else aggregator.unit
    return learner.scaled(contract.clip, contract.noise_multiplier).observed(
        state.seen, torch.from_numpy(found.moved.astype(np.float32)), unit
    )


def models(state: State, found: Outcome) -> tuple[Vector | None, ...]:
    """The last model of each client, where a paper's literal form keeps them."""
    kept = list(state.models)
    for answer in found.answers if kept else ():
        kept[answer.client] = answer.weights
    return tuple(kept)


def _ordered(state: State) -> list[Any]:
    return sorted(state.answers, key=lambda a: a.client)
