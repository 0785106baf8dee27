r"""Constants of the loss, estimated from noisy gradients that are already booked.

ALI-DPFL and ALS-DPFL steer by constants mu, beta, rho, xi that their papers compute from
raw data: a release that nobody priced. Here they come from the noisy gradients
g~ = g + n, n ~ N(0, s_i^2 I_d), s_i = sigma C / B_i, which the ledger holds anyway, by
subtracting what the noise adds on average. Post-processing costs no privacy.

With w_0 the model received, w' the model at the last step, and m = ||w' - w_0||^2:

    E1   mu_i^2   = ( ||g~_tau - g~_1||^2 - 2 d s_i^2 - C^2 / B_i ) / m
         rho_i    = ( <g~_1, w' - w_0> + eta d s_i^2 + <g~_tau, w' - w_0> ) / (2 sqrt(m))
         xi^2     = sum_i p_i ( ||g~_1i||^2 - d s_i^2 - v_i )
                    - ( ||sum_i p_i g~_1i||^2 - sum_i p_i^2 (d s_i^2 + v_i) )

C^2 / B_i and v_i = C^2 / (2 B_i) are rough corrections for sampling, which assume that a
clipped gradient has E||g||^2 = C^2 / 2. The noise in g~_1 is also in w' - w_0, by -eta n,
hence + eta d s_i^2; w' does not contain the noise of g~_tau. rho_i is the secant slope of the
(clipped) loss along the path, by the trapezoid of its two ends.

One client's mu_i^2 may come out negative; means over clients and an exponential average
over rounds seldom do. An average that is not positive is no estimate: callers keep the
last one they had.

Shapes: ``first`` vectors ``(d,)``; everything else scalar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from sordino.base.message import Statistics, Update
from sordino.regimes.synchronous.method import SynchronousMethod, Terms

DECAY = 0.8  # of the exponential averages over rounds; a half-life of three rounds


def smooth(old: float | None, new: float | None) -> float | None:
    """Exponential average over rounds; a value that is missing or not finite changes nothing."""
    if new is None or not math.isfinite(new):
        return old
    return new if old is None else DECAY * old + (1.0 - DECAY) * new


def _moved(answers: Sequence[Update]) -> list[tuple[int, Statistics]]:
    """Clients whose round had two gradients at different weights to compare."""
    return [
        (a.client, a.statistics)
        for a in answers
        if a.statistics is not None and a.steps > 1 and a.statistics.moved > 0.0
    ]


def squared_curvature(answers: Sequence[Update], terms: Terms) -> float | None:
    """Mean over clients of E1's mu_i^2 (per unit of step length, squared); may be negative.

    None where no client took two steps.
    """
    parts, total = 0.0, 0.0
    for client, seen in _moved(answers):
        noise = 2.0 * terms.dimension * terms.deviation(client) ** 2 + terms.clip**2 / terms.batch(
            client
        )
        parts += terms.weights[client] * (seen.change - noise) / seen.moved
        total += terms.weights[client]
    return parts / total if total else None


def slope(answers: Sequence[Update], terms: Terms) -> float | None:
    """Size of the mean over clients of rho_i (loss per distance); None without two steps."""
    parts, total = 0.0, 0.0
    for client, seen in _moved(answers):
        own = terms.learning_rate * terms.dimension * terms.deviation(client) ** 2
        parts += (
            terms.weights[client]
            * (seen.slope_first + own + seen.slope_last)
            / (2.0 * seen.moved**0.5)
        )
        total += terms.weights[client]
    return abs(parts / total) if total else None


def squared_divergence(answers: Sequence[Update], terms: Terms) -> float | None:
    """xi^2: mean squared distance of client gradients from their mean; may be negative, or None."""
    firsts = [(a.client, a.first) for a in answers if a.first is not None]
    total = sum(terms.weights[client] for client, _ in firsts)
    if len(firsts) < 2 or total <= 0.0:
        return None
    mean = np.zeros(terms.dimension, np.float64)
    spread, own = 0.0, 0.0
    for client, first in firsts:
        p = terms.weights[client] / total
        noise = terms.dimension * terms.deviation(client) ** 2 + terms.clip**2 / (
            2.0 * terms.batch(client)
        )
        # summed by NumPy itself: BLAS would add up in an order that depends on its threads
        exact = first.astype(np.float64)
        spread += p * (float(np.square(exact).sum()) - noise)
        own += p * p * noise
        mean += p * exact
    return spread - (float(np.square(mean).sum()) - own)


def signal_to_noise(answers: Sequence[Update], terms: Terms) -> float | None:
    """||signal|| / ||noise|| of one step's gradient, pooled over clients; None without noise.

    ||signal||^2 is estimated without bias, so it may come out negative: its root then has a minus
    sign, and x |x| can still be averaged over rounds.
    """
    signal, noise = 0.0, 0.0
    for answer in answers:
        if answer.statistics is not None and terms.noise:
            variance = terms.dimension * terms.deviation(answer.client) ** 2
            signal += terms.weights[answer.client] * (answer.statistics.energy - variance)
            noise += terms.weights[answer.client] * variance
    return math.copysign(math.sqrt(abs(signal) / noise), signal) if noise else None


def clipped_fraction(answers: Sequence[Update], terms: Terms) -> float | None:
    """Fraction of clipped examples over the round, from the noisy counts; kept within [0, 1]."""
    parts, total = 0.0, 0.0
    for answer in answers:
        if answer.statistics is not None and answer.statistics.clipped is not None:
            examples = terms.batch(answer.client) * answer.steps
            parts += examples * answer.statistics.clipped
            total += examples
    return min(max(parts / total, 0.0), 1.0) if total else None


class Estimating(SynchronousMethod):
    """A method that steers by such constants, and learns them anew from every answered round.

    Attributes:
        form: "sound", or "paper" for constants of raw data, which are not private.
    """

    form: Literal["sound", "paper"] = "sound"

    def fold(self, memory: Any, terms: Terms, answers: Sequence[Update]) -> Any:
        """Return the memory after a round."""
        if not answers:
            return memory
        tau = max(answer.steps for answer in answers)
        return (self.told if self.form == "paper" else self.estimated)(memory, terms, answers, tau)

    def estimated(self, memory: Any, terms: Terms, answers: Sequence[Update], tau: int) -> Any:
        """The memory after a round of ``tau`` steps, from what was released."""
        raise NotImplementedError

    def told(self, memory: Any, terms: Terms, answers: Sequence[Update], tau: int) -> Any:
        """Return the memory after a round, with raw constants; not private."""
        raise NotImplementedError
