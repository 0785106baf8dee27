"""What a round's answers do to the global model. Vectors are (d,) and never written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sordino.base.message import Update, Vector
from sordino.regimes.synchronous.method import RoundNoise, Terms
from sordino.regimes.synchronous.state import State

Vector64 = npt.NDArray[np.float64]


def terms_under(terms: Terms, contract: RoundNoise) -> Terms:
    """The terms with C and sigma of one round."""
    if not terms.sigma:
        return terms
    noise = terms.noise * contract.noise_multiplier / terms.sigma
    return replace(terms, clip=contract.clip, noise=noise)


def mean_change(weights: Vector, terms: Terms, answers: Sequence[Update]) -> Vector64 | None:
    """The weighted mean of how far the clients moved; None where nobody answered."""
    if not answers:
        return None
    total = sum(terms.weights[a.client] for a in answers)
    mean = np.zeros(weights.shape, np.float64)
    for answer in answers:
        mean += (terms.weights[answer.client] / total) * answer.weights
    return mean - weights


def deviation(terms: Terms, tau: int, answered: Sequence[int]) -> float:
    """Noise in the mean of what tau plain steps moved, of deviation 1 in a step's sum."""
    total = sum(terms.weights[i] for i in answered)
    spread = sum((terms.weights[i] / total / terms.batch(i)) ** 2 for i in answered)
    return float(terms.learning_rate * (tau * spread) ** 0.5)


def after(
    state: State, change: Vector64 | None, momentum: float, decay: float
) -> tuple[Vector, Vector, Vector]:
    """w, v and w_avg after a round."""
    if change is None:
        return state.weights, state.velocity, state.average
    velocity = momentum * state.velocity + change
    weights = (state.weights + velocity).astype(np.float32)
    average = weights
    if decay != 0.0 and state.round != 1:  # the random start is no model to average in
        average = (decay * state.average + (1.0 - decay) * weights).astype(np.float32)
    return weights, velocity.astype(np.float32), average
