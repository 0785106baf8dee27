r"""Distributions of privacy losses on a grid: of one Gaussian step on a Poisson sample, and of
many.

A loss is a multiple of the grid g, or infinite. Both directions are kept: a record that is there
against none ("with"), and none against one ("without").

**One step.** By connecting the dots (Doroshenko et al. 2022): with delta_i the hockey-stick
divergence at epsilon_i = i g, the masses

    p_i = ((delta_{i+1} - delta_i) - e^g (delta_i - delta_{i-1})) / (e^g - 1)

have these very divergences at all i g and larger ones between. Losses outside of the middle
1 - e^-50 of the noise go to infinity, or up to the lowest multiple.

**Many.** k equal steps are the k-th power of one's Fourier transform. What lies outside of Chernoff
bounds at mass 1e-15 is cut off, and 1e-15 is added to the mass of infinity.

The arithmetic is that of dp-accounting, in its order: a test holds both to the same bits.

References: Koskela, Jälkö and Honkela 2020, "Computing tight differential privacy guarantees using
FFT"; Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, "Connect the dots".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib import import_module, machinery, util
from pathlib import Path
from typing import Any

import numpy as np

_TAIL = 1e-15  # mass that a composition may cut off
_OUTSIDE = -50.0  # log of the mass of the noise that is not looked at
_EDGE = -9.745474864965935  # of the standard normal: half of that mass lies below
_CHERNOFF = 20  # orders on each side
_PIECE = 2048  # losses that are looked at together
_NEWTON = 4  # steps to where a loss lies
_SPECIAL = "scipy.special"


@cache
def functions() -> Any:
    """Return a module with SciPy's ``erfcx``, ``gammaln``, ``log_ndtr`` and ``ndtr``, for arrays.

    To import ``scipy.special`` for these costs half a second and 15 MB in every process that
    charges a ledger, most of it for parts that nothing here uses; the compiled module that holds
    them costs a millisecond. Where SciPy keeps it elsewhere, the package is imported as usual.

    >>> round(float(functions().gammaln(5.0)), 6)  # log 4!
    3.178054
    """
    return _compiled() or import_module(_SPECIAL)


def _compiled() -> Any:
    """The compiled module by itself; None where this SciPy has no such module."""
    package = util.find_spec("scipy")
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent / "special"
    spec = machinery.PathFinder.find_spec(f"{_SPECIAL}._special_ufuncs", [str(folder)])
    if spec is None or not isinstance(spec.loader, machinery.ExtensionFileLoader):
        return None
    try:
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    needed = ("erfcx", "gammaln", "log_ndtr", "ndtr")
    return module if all(hasattr(module, name) for name in needed) else None


@dataclass(frozen=True, eq=False)
class Side:
    """Losses in one direction: ``masses`` (n,) at (``lowest`` + i) g, and that of infinity."""

    grid: float
    lowest: int
    masses: Any
    infinite: float

    @cached_property
    def _moments(self) -> list[tuple[float, float]]:
        """Orders, and the logarithms of the moment generating function there."""
        size, index = len(self.masses), np.arange(len(self.masses))
        signs = np.sign(self.masses)  # rounding in a transform leaves some just below zero
        with np.errstate(divide="ignore"):
            logs = np.log(np.abs(self.masses))
        found = []
        for number in (*range(-_CHERNOFF, 0), *range(1, _CHERNOFF + 1)):
            order = number / size
            terms = index * order + logs
            top = terms.max()
            found.append((order, float(np.log((signs * np.exp(terms - top)).sum()) + top)))
        return found

    def _bounds(self, count: int) -> tuple[int, int]:
        """Between which indices all but :data:`_TAIL` of the mass of ``count`` losses lies."""
        lowest, highest = 0, (len(self.masses) - 1) * count
        for order, moment in self._moments:
            bound = (count * moment + math.log(2 / _TAIL)) / order
            if not math.isfinite(bound):
                continue
            if order > 0:
                highest = min(highest, math.ceil(bound))
            else:
                lowest = max(lowest, math.floor(bound))
        return lowest, highest

    def power(self, count: int) -> Side:
        """``count`` such losses together."""
        size = len(self.masses)
        low, high = self._bounds(count)
        length = high - low + 1
        padded = _fast_length(max(length, size))
        half = np.fft.rfft(self.masses, padded)
        half **= count
        whole = np.concatenate([half, half[1 : (padded + 1) // 2][::-1].conj()])
        del half  # each is some megabytes
        whole = np.fft.ifft(whole)
        infinite = _TAIL - math.expm1(count * math.log1p(-self.infinite))
        lowest = self.lowest * count + low
        return Side(self.grid, lowest, np.roll(whole.real, -low)[:length].copy(), infinite)

    def compose(self, other: Side) -> Side:
        """Both losses together."""
        cut, masses, right = _cut(_convolved(self.masses, other.masses))
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        return Side(self.grid, self.lowest + other.lowest + cut, masses, infinite + right)

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence at ``epsilon``."""
        losses = (np.arange(len(self.masses)) + self.lowest) * self.grid
        beyond = losses > epsilon
        return float(
            self.infinite + np.dot(-np.expm1(epsilon - losses[beyond]), self.masses[beyond])
        )

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon with a divergence of at most ``delta``; infinite if there is
        none.
        """
        if self.infinite > delta:
            return math.inf
        above, below = self.infinite, 0.0  # masses of both sides at larger losses
        beyond = self.lowest + len(self.masses)  # the first multiple without mass
        while beyond > max(self.lowest, 0):  # no epsilon is sought below 0
            piece = (beyond - 1) // _PIECE
            first = max(piece * _PIECE, self.lowest)
            masses = self.masses[first - self.lowest : beyond - self.lowest][::-1]
            losses = np.arange(beyond - 1, first - 1, -1) * self.grid
            falling = _exponentials(self.grid, piece)
            other = falling[first - piece * _PIECE : beyond - piece * _PIECE][::-1] * masses
            upper = np.cumsum(np.concatenate([[above], masses]))
            lower = np.cumsum(np.concatenate([[below], other]))
            found = _ends(upper, lower, losses, delta)
            if found is not None:
                return found
            above, below, beyond = float(upper[-1]), float(lower[-1]), first
        return _solved(above, below, delta)


@lru_cache(maxsize=256)
def _exponentials(grid: float, piece: int) -> Any:
    """e^-loss of the losses of a piece, none below 0, (:data:`_PIECE`,)."""
    # Not numpy's exponential: its last bit depends on the processor.
    first = piece * _PIECE
    return np.array([math.exp(-number * grid) for number in range(first, first + _PIECE)])


def _ends(upper: Any, lower: Any, losses: Any, delta: float) -> float | None:
    """The epsilon that lies between two of the falling ``losses`` (n,), with the masses of both
    sides at larger losses (n + 1,); None where it is below all of them.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        reached = np.log((upper[:-1] - delta) / lower[:-1])
    near = 1e-9 * (1.0 + np.abs(losses))  # what is close is looked at by itself
    passed = (upper[:-1] > delta) & (lower[:-1] > 0) & (reached >= losses - near)
    overflown = (upper[1:] >= delta) & (lower[1:] == 0)  # losses too large for their exponential
    for place in np.flatnonzero(passed | overflown).tolist():
        above, below, loss = float(upper[place]), float(lower[place]), float(losses[place])
        if passed[place] and math.log((above - delta) / below) >= loss:
            return _solved(above, below, delta)
        if overflown[place]:
            return max(0.0, loss)
    return None


def _solved(upper: float, lower: float, delta: float) -> float:
    """The epsilon at which ``upper`` - e^epsilon ``lower`` is ``delta``."""
    return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """Losses in both directions."""

    with_record: Side
    without: Side

    def power(self, count: int) -> Losses:
        """``count`` such losses together."""
        if self.with_record is self.without:
            return Losses(*(self.with_record.power(count),) * 2)
        return Losses(self.with_record.power(count), self.without.power(count))

    def compose(self, other: Losses) -> Losses:
        """Both losses together."""
        return Losses(
            self.with_record.compose(other.with_record), self.without.compose(other.without)
        )

    def delta(self, epsilon: float) -> float:
        """The larger of both divergences at ``epsilon``."""
        return max(self.with_record.delta(epsilon), self.without.delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon that bounds both divergences by ``delta``."""
        return max(self.with_record.epsilon(delta), self.without.epsilon(delta))


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """N(J, sigma^2) against N(0, sigma^2), where J of k rows are drawn, each at ``rate``.

    The loss of "with" at noise x is log sum_j P(J = j) e^((j x - j^2 / 2) / sigma^2). It rises with
    x and is convex in it.

    Attributes:
        rows: k.
    """

    rate: float
    sigma: float
    rows: int

    @property
    def chances(self) -> Any:
        """P(J = j), (k + 1,)."""
        return _binomial(self.rate, self.rows)

    @property
    def variance(self) -> float:
        """About the variance of the loss."""
        chances, j = self.chances, np.arange(self.rows + 1.0) / self.sigma
        mean = 0.5 * j * j
        with np.errstate(over="ignore", invalid="ignore"):
            pairs = np.nansum(np.outer(chances, chances) * np.expm1(np.outer(j, j)))
        return float(min(pairs, chances @ (mean * mean + 2.0 * mean)))

    @property
    def least(self) -> float:
        """Return the loss that none is below: none of the rows was drawn."""
        return self.rows * math.log1p(-self.rate)

    def loss(self, x: Any) -> tuple[Any, Any]:
        """The loss at noise ``x`` (n,), and how fast it rises there."""
        j = np.arange(self.rows + 1.0)
        drawn = self.chances > 0.0
        j, chances = j[drawn], self.chances[drawn]
        found, rises = np.empty_like(x), np.empty_like(x)
        for start in range(0, len(x), _PIECE):
            piece = slice(start, start + _PIECE)
            terms = (j * x[piece, None] - 0.5 * j * j) / self.sigma**2 + np.log(chances)
            top = terms.max(axis=1)
            parts = np.exp(terms - top[:, None])
            whole = parts.sum(axis=1)
            found[piece], rises[piece] = top + np.log(whole), parts @ j / whole / self.sigma**2
        return found, rises

    def noise(self, loss: Any, low: float, high: float) -> Any:
        """Where the ``loss`` (n,), above :attr:`least`, lies: between ``low`` and ``high``.

        Any place in its stead gives a divergence that is smaller by the square of its distance.
        """
        places = np.linspace(low, high, 4096)
        x = np.interp(loss, self.loss(places)[0], places)
        for _ in range(_NEWTON):
            now, rises = self.loss(x)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = (now - loss) / rises
            x = np.clip(x - np.where(np.isfinite(step), step, 0.0), low, high)
        return x

    def deltas(self, epsilons: Any, low: float, high: float, *, with_record: bool) -> Any:
        """The divergences (n,) at ``epsilons`` (n,)."""
        ndtr, log_ndtr = functions().ndtr, functions().log_ndtr
        sign = 1.0 if with_record else -1.0
        found = np.zeros_like(epsilons)
        if with_record:  # below the least loss
            found = -np.expm1(np.minimum(epsilons, 0.0))
        reached = sign * epsilons > self.least
        x = self.noise(sign * epsilons[reached], low, high)
        mixed = np.zeros_like(x)  # of the side with rows, the probability of larger losses
        for j, chance in enumerate(self.chances.tolist()):
            mixed += chance * ndtr(sign * (j - x) / self.sigma)
        plain = -sign * x / self.sigma
        if with_record:
            found[reached] = mixed - np.exp(epsilons[reached] + log_ndtr(plain))
        else:
            with np.errstate(divide="ignore"):
                found[reached] = ndtr(plain) - np.exp(epsilons[reached] + np.log(mixed))
        return np.clip(found, 0.0, 1.0)


@lru_cache(maxsize=64)
def _binomial(q: float, k: int) -> Any:
    """Return P(J = j) of k draws, (k + 1,)."""
    none = math.log1p(-q)
    return np.array([math.comb(k, j) * q**j * math.exp((k - j) * none) for j in range(k + 1)])


@lru_cache(maxsize=16)
def mixture(rate: float, sigma: float, rows: int, grid: float) -> Losses:
    """Of one Gaussian on a Poisson sample, for several rows that fall away together."""
    pair, edge = Mixture(rate, sigma, rows), -_EDGE * sigma
    low, high = -edge, rows + edge
    lowest, none, highest = (float(each) for each in pair.loss(np.array([low, edge, high]))[0])
    sides = []
    for least, most, with_record in ((lowest, highest, True), (-none, -lowest, False)):
        first = math.floor(least / grid)
        losses = np.arange(first, math.ceil(most / grid) + 1) * grid
        delta = pair.deltas(losses, low, high, with_record=with_record)
        sides.append(_connected(grid, first, delta))
    return Losses(*sides)


@lru_cache(maxsize=16)
def gaussian(rate: float, sigma: float, grid: float) -> Losses:
    """Of one Gaussian of this noise multiplier on a Poisson sample of this rate."""
    found = _gaussian(rate, sigma, grid, with_record=True)
    return Losses(found, _gaussian(rate, sigma, grid, with_record=False) if rate < 1.0 else found)


def _gaussian(rate: float, sigma: float, grid: float, *, with_record: bool) -> Side:
    edge = _EDGE * sigma
    shift = 1.0 if with_record else 0.0  # of the end with the larger losses
    ends = edge - shift, -edge + (1.0 - shift)
    high, low = (float(_loss(np.array([x]), rate, sigma, with_record)[0]) for x in ends)
    lowest, highest = math.floor(low / grid), math.ceil(high / grid)
    delta = _deltas(np.arange(lowest, highest + 1) * grid, rate, sigma, with_record)
    return _connected(grid, lowest, delta)


def _connected(grid: float, lowest: int, delta: Any) -> Side:
    """The losses with these divergences (n,) at the multiples of ``grid`` from ``lowest`` on."""
    if len(delta) == 1:
        return Side(grid, lowest, 1 - delta, float(delta[0]))
    delta = np.minimum.accumulate(delta)
    falls, masses = np.diff(delta), np.zeros_like(delta)
    masses[0] = 1 - delta[0] + falls[0] / math.expm1(grid)
    masses[1:-1] = (falls[1:] - falls[:-1] * math.exp(grid)) / math.expm1(grid)
    masses[-1] = falls[-1] / math.expm1(-grid)
    return Side(grid, lowest, np.maximum(0.0, masses), float(delta[-1]))


def _loss(x: Any, rate: float, sigma: float, with_record: bool) -> Any:
    """The loss at noise ``x`` (n,): it falls as x rises."""
    if not with_record:
        return -_loss(-x, rate, sigma, True)
    whole = (-0.5 - x) / sigma**2
    return whole if rate == 1.0 else _log_affine(rate, whole, 1 - rate)


def _noise(loss: Any, rate: float, sigma: float, with_record: bool) -> Any:
    """Where the loss (n,) lies: :func:`_loss` inverted."""
    if rate < 1.0:
        sign = 1.0 if with_record else -1.0
        bound = sign * math.log(1 - rate)  # no loss reaches it
        near = np.abs(loss - bound) <= 1e-9 * np.maximum(np.abs(loss), abs(bound))
        inside = np.where(near, sign, loss)  # any number: it is replaced
        inside = sign * _log_affine(1 / rate, sign * inside, 1 - 1 / rate)
        loss = np.where(near, -sign * math.inf, inside)
    return (0.0 if with_record else 1.0) + (-0.5 - loss * sigma**2)


def _deltas(epsilons: Any, rate: float, sigma: float, with_record: bool) -> Any:
    """The divergences (n,) at ``epsilons`` (n,)."""
    log_ndtr, ndtr = functions().log_ndtr, functions().ndtr
    found, reached = np.zeros_like(epsilons), np.full(epsilons.shape, True)
    if rate < 1.0 and with_record:
        reached = epsilons > math.log1p(-rate)
        found[~reached] = -np.expm1(epsilons[~reached])
    elif rate < 1.0:
        reached = epsilons < -math.log1p(-rate)
    x = _noise(epsilons[reached], rate, sigma, with_record)
    upper = ndtr((x + 1.0 if rate == 1.0 and with_record else x) / sigma)
    lower = log_ndtr((x - 1.0 if rate == 1.0 and not with_record else x) / sigma)
    if rate < 1.0 and with_record:
        upper = (1 - rate) * upper + rate * ndtr((x + 1.0) / sigma)
    elif rate < 1.0:
        drawn = np.log(rate) + log_ndtr((x - 1.0) / sigma)
        lower = np.logaddexp(np.log1p(-rate) + lower, drawn)
    found[reached] = upper - np.exp(epsilons[reached] + lower)
    return np.clip(found, 0, 1)


def _log_affine(a: float, b: Any, c: float) -> Any:
    """log(a e^b + c) for b (n,), a > 0 and c other than 0."""
    d = b + np.log(a)
    if c < 0:
        found = d + np.log1p(-np.exp(np.log(-c) - d))
    else:
        low, high = np.minimum(d, np.log(c)), np.maximum(d, np.log(c))
        found = high + np.log1p(np.exp(low - high))
    return np.where(b == 0.0, np.log(a + c), found)


def _convolved(x: Any, y: Any) -> Any:
    """The full convolution (n + m - 1,) of ``x`` (n,) and ``y`` (m,)."""
    length = len(x) + len(y) - 1
    if min(len(x), len(y)) == 1:
        return x * y
    padded = _fast_length(length, (2, 3, 5))
    return np.fft.irfft(np.fft.rfft(x, padded) * np.fft.rfft(y, padded), padded)[:length].copy()


def _cut(masses: Any) -> tuple[int, Any, float]:
    """Return the number of masses cut below, the others, and the mass cut above: at most half of
    :data:`_TAIL` each. What fell away below is put on the first that stays.
    """

    def few(values: Any) -> int:
        beyond = np.cumsum(values) > _TAIL / 2
        return int(beyond.argmax()) if beyond.any() else len(values)

    first = few(masses)
    last = max(len(masses) - few(masses[::-1]), first + 1)
    kept = masses[first:last].copy()
    kept[0] += masses[:first].sum()
    return first, kept, float(masses[last:].sum())


@lru_cache(maxsize=1024)
def _fast_length(least: int, primes: tuple[int, ...] = (2, 3, 5, 7, 11)) -> int:
    """The smallest number from ``least`` on with no other prime factors: its transform is fast."""
    found = least
    while _without(found, primes) != 1:
        found += 1
    return found


def _without(number: int, primes: tuple[int, ...]) -> int:
    for prime in primes:
        while number % prime == 0:
            number //= prime
    return number
