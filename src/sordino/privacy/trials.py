"""Numbers of runs of a private choice: random, drawn in secret, whatever the data.

See :mod:`sordino.privacy.parts` for what that costs.

>>> law("geometric", 10.0)
NegativeBinomial(eta=1.0, gamma=0.1)
>>> round(expected(law("logarithmic", 10.0)), 6)
10.0
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import msgspec

from sordino.base.errors import StudyError

_LARGEST = 1e6  # trials expected


class NegativeBinomial(
    msgspec.Struct, frozen=True, tag=True, tag_field="type", forbid_unknown_fields=True
):
    """P(K = k) of the negative binomial distribution, given K >= 1 (its limit for eta = 0).

    Attributes:
        eta: above -1; 1 is geometric, 0 logarithmic.
        gamma: in (0, 1); the smaller, the more trials.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (-1.0 < self.eta <= 100.0 and 0.0 < self.gamma < 1.0):
            raise StudyError(
                f"a negative binomial number of trials needs -1 < eta <= 100 and 0 < gamma < 1; "
                f"got eta {self.eta} and gamma {self.gamma}"
            )
        for name in ("eta", "gamma"):
            msgspec.structs.force_setattr(self, name, float(getattr(self, name)) + 0.0)


class Poisson(msgspec.Struct, frozen=True, tag=True, tag_field="type", forbid_unknown_fields=True):
    """K is Poisson; with K = 0 nothing is released.

    Attributes:
        mean: of K, above 0.
    """

    mean: float

    def __post_init__(self) -> None:
        if not 0.0 < self.mean <= _LARGEST:
            raise StudyError(f"the mean number of trials must lie in (0, 1e6]; got {self.mean}")
        msgspec.structs.force_setattr(self, "mean", float(self.mean))


Trials = NegativeBinomial | Poisson
LAWS = ("geometric", "logarithmic", "poisson")


def law(name: str, mean: float) -> Trials:
    """The distribution of this name with ``mean`` trials expected.

    Raises:
        StudyError: if there is none.
    """
    if name not in LAWS:
        raise StudyError(f"the number of trials is {', '.join(LAWS)}; got {name!r}")
    if name == "poisson":
        return Poisson(mean=mean)
    if not 1.0 < mean <= _LARGEST:
        raise StudyError(
            f"a {name} number of trials is at least 1, so its mean must lie in (1, 1e6]; "
            f"got {mean:g}"
        )
    return NegativeBinomial(1.0, 1.0 / mean) if name == "geometric" else _logarithmic(mean)


def _logarithmic(mean: float) -> NegativeBinomial:
    low, high = 1e-12, 1.0 - 1e-12  # gamma by bisection: the mean falls as it rises
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _mean(0.0, middle) > mean else (low, middle)
    return NegativeBinomial(0.0, high)


def _mean(eta: float, gamma: float) -> float:
    if eta == 0.0:
        return (1.0 / gamma - 1.0) / -math.log(gamma)
    return eta * (1.0 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


def expected(trials: Trials) -> float:
    """E K."""
    return trials.mean if isinstance(trials, Poisson) else _mean(trials.eta, trials.gamma)


def missed(trials: Trials, candidates: int) -> float:
    """The chance that one candidate of so many, drawn at random in each trial, is never tried."""
    x = 1.0 - 1.0 / candidates
    if isinstance(trials, Poisson):
        return math.exp(-trials.mean / candidates)
    left = 1.0 - (1.0 - trials.gamma) * x
    if trials.eta == 0.0:
        return math.log(left) / math.log(trials.gamma)
    whole = math.expm1(-trials.eta * math.log(trials.gamma))
    return math.expm1(-trials.eta * math.log(left)) / whole


def number(trials: Trials, uniform: float, normal: Callable[[float], int]) -> int:
    """K from one uniform number in [0, 1) by its distribution function, or from ``normal`` (which
    draws a Poisson number of the mean that it is given).
    """
    if isinstance(trials, Poisson):
        return normal(trials.mean)
    chance, k = _first(trials), 1
    below = chance
    while below <= uniform and chance > 0.0:
        chance *= (1.0 - trials.gamma) * (k + trials.eta) / (k + 1)
        k += 1
        below += chance
    return k


def _first(trials: NegativeBinomial) -> float:
    """P(K = 1)."""
    gamma, eta = trials.gamma, trials.eta
    if eta == 0.0:
        return (1.0 - gamma) / -math.log(gamma)
    return eta * (1.0 - gamma) / math.expm1(-eta * math.log(gamma))


@lru_cache(maxsize=64)
def named(name: str) -> tuple[str, Trials] | None:
    """The base accountant and the number of trials in ``BASE-best-of-LAW@MEAN``; None for others.

    >>> named("pld-best-of-geometric@4")
    ('pld', NegativeBinomial(eta=1.0, gamma=0.25))
    """
    base, of, rest = name.partition("-best-of-")
    kind, at, mean = rest.partition("@")
    if not of or not at or kind not in LAWS:
        return None
    try:
        return base, law(kind, float(mean))
    except ValueError:
        return None


def name_of(base: str, kind: str, mean: float) -> str:
    """The same name, from its parts."""
    return f"{base}-best-of-{kind}@{mean:g}"
