"""What came of a round: how far the model moves, what the method remembers, the row of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from sordino.mechanism import Learning
from sordino.message import Contribution, Update, Vector
from sordino.regimes.synchronous.aggregate import PrivateSum
from sordino.regimes.synchronous.method import RoundNoise, SynchronousMethod, Terms
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
        answers: models that were sent one by one.
        void: why nothing was opened, where clients share the noise; None if something was.
    """

    moved: Vector64 | None
    memory: Any
    row: SynchronousRound
    answers: Sequence[Update] = ()
    void: str | None = None


def of_models(
    method: SynchronousMethod, terms: Terms, state: State, contract: RoundNoise
) -> Outcome:
    """Of a round in which clients sent models."""
    answers = [a for a in _ordered(state) if isinstance(a, Update)]
    memory = method.remembered("fold", method.fold(state.memory, terms, answers))
    row = SynchronousRound(
        cohort=state.cohort,
        answered=len(answers),
        missing=state.cohort - len(answers),
        clipped=clipped_fraction(answers, terms),
        snr=signal_to_noise(answers, terms_under(terms, contract)),
    )
    return Outcome(mean_change(state.weights, terms, answers), memory, row, answers)


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
