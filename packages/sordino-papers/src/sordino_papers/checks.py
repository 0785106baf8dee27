"""Statements of the papers that need no run: computed anew, each beside the printed number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sordino.extend.runs import Basis, Gaussian, PoissonSampled, accountant
from sordino_papers.rules import Asked, Pair, Rule

if TYPE_CHECKING:
    from sordino_papers.verdicts import Evidence


class Computed(Rule, frozen=True):
    """``computed = "ali-iterations"``: one of :data:`CHECKS`; it holds where every number is where
    the paper says.
    """

    computed: str

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
        return iter(CHECKS[self.computed]())

    def named(self) -> Iterator[tuple[str, Sequence[str]]]:
        yield "check", (self.computed,)


def _near(what: str, ours: float, printed: float, relative: float) -> Pair:
    room = relative * abs(printed)
    asked = Asked(printed - room, printed + room, closed=True)
    return Pair(what, [ours], asked, printed, exact=True)


def _at_most(what: str, ours: float, bound: float) -> Pair:
    return Pair(what, [ours], Asked(high=bound, closed=True), bound, exact=True)


def ali_iterations() -> list[Pair]:
    """Steps that the epsilons of section V-B pay for: "approximately", here within 5 %."""
    step = PoissonSampled(sampling_rate=0.015, event=Gaussian(noise_multiplier=1.1))
    books = accountant("rdp-classic")

    def steps(epsilon: float) -> int:
        paid, beyond = 0, 4096
        while beyond - paid > 1:
            middle = (paid + beyond) // 2
            fits = books.epsilon([(step, middle)], 1e-5) <= epsilon
            paid, beyond = (middle, beyond) if fits else (paid, middle)
        return paid

    printed = {1.55: 79, 1.75: 177, 2: 317, 2.5: 598, 2.75: 775, 3.25: 1123, 3.75: 1585, 5.25: 2990}
    return [
        _near(f"steps at epsilon = {e:g}", steps(e), count, 0.05) for e, count in printed.items()
    ]


def _weights(m: int) -> list[float]:
    """The paper's W of each coefficient of m gradients, in the order of the coefficients."""
    basis = Basis.flat(m)
    levels = [level for level in basis.levels for _ in range(m >> level if level else 1)]
    return [float(2**level if level else m) for level in levels]


def haar_example() -> list[Pair]:
    """The coefficients of the worked example, Table II, and their weights, section 4.3."""
    import torch

    basis = Basis.flat(8)
    factors = [2.0 ** (-0.5 * (level or 3)) for level in basis.levels]
    found = basis.forward(torch.tensor([4.0, 8, 1, 9, 8, 4, 5, 3]), factors).tolist()
    coefficients = [5.25, 0.25, 0.5, 1, -2, -4, 2, 1]
    weights = [8, 8, 4, 4, 2, 2, 2, 2]
    pairs = zip(found, coefficients, _weights(8), weights, strict=True)
    told = []
    for i, (ours, printed, weight, other) in enumerate(pairs):
        told.append(_near(f"coefficient {i}", ours, printed, 1e-6))
        told.append(_near(f"weight {i}", weight, other, 1e-6))
    return told


def _variances() -> list[tuple[int, float, float]]:
    """Of several m: the variance of a gradient that comes back, in sigma^2, and the printed one."""
    import torch

    found = []
    for m in (8, 1024):
        basis = Basis.flat(m)  # H = u 2^(-l/2), so noise of 1 / W on H is one of 2^(l/2) / W on u
        scales = [2.0 ** (0.5 * (level or math.log2(m))) for level in basis.levels]
        noise = torch.diag(1.0 / torch.tensor(_weights(m), dtype=torch.float64))
        back = basis.inverse(noise, scales)
        found.append((m, float((back**2).sum(dim=0).max()), (2 + math.log2(m)) / 2))
    return found


def haar_bound() -> list[Pair]:
    """Lemma 1 as a bound: the largest variance of a reconstructed gradient."""
    return [_at_most(f"variance in sigma^2, m = {m}", v, bound) for m, v, bound in _variances()]


def haar_equality() -> list[Pair]:
    """Lemma 1 as Lemma 2 uses it: the noise may be divided by the root of what it comes back as."""
    return [_near(f"variance in sigma^2, m = {m}", v, told, 0.05) for m, v, told in _variances()]


def haar_density() -> list[Pair]:
    """Fig. 4: the variance of the noise that comes back, over that of DP-SGD at the same epsilon.

    A gradient of norm 1 moves H by u W^(-1/2), so H / (1 / W) by the root of the largest W, m: so
    many times more noise costs what DP-SGD does.
    """
    return [_at_most(f"variance over DP-SGD's, m = {m}", v * m, 1.0) for m, v, _ in _variances()]


def mapa_sensitivity() -> list[Pair]:
    """Remark 4: an average of b = 12 gradients, clipped to b dS / 2, moves by dS at most.

    All examples but one lie along a line, the last one is a large gradient one way or the other:
    both averages are clipped, to opposite ends.
    """
    b, sensitivity = 12, 1.0
    moved = []
    for other in (-1000.0, 1000.0):
        average = (other + (b - 1) * 1e-3) / b
        bound = b * sensitivity / 2
        moved.append(average * min(1.0, bound / abs(average)))
    return [_at_most("change over dS, b = 12", (moved[1] - moved[0]) / sensitivity, 1.0)]


def mapa_theorem_1() -> list[Pair]:
    """The privacy loss of noise of uniform direction and exponential length, in two dimensions, at
    a point close to one gradient; the other one is dS away. The density is that of the length over
    2 pi times the length.
    """
    epsilon, near = 0.1, 1e-6
    far = 1.0 - near
    loss = math.log(far / near) + epsilon * (far - near)
    return [_at_most(f"loss at epsilon = {epsilon}, {near:g} dS away", loss, epsilon)]


def _stale(rates: Callable[[int], float], updates: int, delay: int, noise: float) -> np.ndarray:
    """Squared norms |x_t|^2 of descent on f(x) = |x|^2 / 2 with gradients from ``delay`` updates
    before and noise of this total variance, (runs, updates), from |x| = 1.
    """
    rng, runs, dimension = np.random.default_rng(0), 100, 20
    path = np.zeros((updates + 1, runs, dimension))
    path[0, :, 0] = 1.0
    for t in range(updates):
        gradient = path[max(t - delay, 0)]
        noisy = gradient + rng.normal(0.0, math.sqrt(noise / dimension), gradient.shape)
        path[t + 1] = path[t] - rates(t + 1) * noisy
    squares: np.ndarray = (path[:-1] ** 2).sum(axis=2).T
    return squares


DELAY, UPDATES, NOISE = 10, 2000, 4.0


def mapa_theorem_2() -> list[Pair]:
    """The average error of AUDP on a quadratic function with L = 1, at the rates of Eq. (10)."""

    def rate(t: int) -> float:
        return 1.0 / (DELAY + 1 + math.sqrt(NOISE + 1) * math.sqrt(t))

    squares = _stale(rate, UPDATES, DELAY, NOISE)
    radius = largest = math.sqrt(squares.max())
    bound = radius * largest * DELAY / UPDATES
    bound += (
        (NOISE + largest**2) / (2 * (NOISE + 1)) * (DELAY + 1) ** 2 * math.log(UPDATES) / UPDATES
    )
    bound += ((4 + radius**2) * math.sqrt(NOISE + 1) + radius**2 / rate(1)) / (
        2 * math.sqrt(UPDATES)
    )
    return [_at_most("mean error", float(squares.mean()) / 2, bound)]


def mapa_theorem_4() -> list[Pair]:
    """The mean squared gradient on a quadratic function with L = 1, at the rate of Eq. (13)."""
    rate = 1.0 / (2 * (DELAY + 1))
    squares = _stale(lambda t: rate, UPDATES, DELAY, NOISE)
    bound = 1.0 / (UPDATES * rate) + 2 * NOISE * rate
    return [_at_most("mean |grad f|^2", float(squares.mean()), bound)]


CHECKS: Mapping[str, Callable[[], list[Pair]]] = {
    "ali-iterations": ali_iterations,
    "haar-example": haar_example,
    "haar-bound": haar_bound,
    "haar-equality": haar_equality,
    "haar-density": haar_density,
    "mapa-sensitivity": mapa_sensitivity,
    "mapa-theorem-1": mapa_theorem_1,
    "mapa-theorem-2": mapa_theorem_2,
    "mapa-theorem-4": mapa_theorem_4,
}
