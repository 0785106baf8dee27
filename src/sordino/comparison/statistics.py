"""Statistics of a few seeds: what they can show, and what they cannot.

Runs with the same seed share data, division and start, so two studies are compared seed by seed:
the mean of the differences, and Student's interval for it, which is honest for few seeds as far
as the differences are normal. Accuracies are shares in [0, 1]; words are in percentage points.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sordino.core.records import Record

CONFIDENCE = 0.95


class Spread(Record, frozen=True):
    """Mean and standard deviation (None for fewer than two) of so many values."""

    mean: float | None
    sd: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Paired:
    """Differences, second minus first, over the seeds that both have.

    Attributes:
        seeds, differences: in the same order.
        mean, sd: None where there are too few.
        interval: of the mean, at ``CONFIDENCE``; None for fewer than two seeds and where all
            differences are equal, since then the spread is not known.
    """

    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float | None
    sd: float | None
    interval: tuple[float, float] | None


def spread(values: Sequence[float]) -> Spread:
    """
    >>> spread([0.5, 0.75, 1.0])
    Spread(mean=0.75, sd=0.25, count=3)
    """
    return Spread(
        mean=statistics.fmean(values) if values else None,
        sd=statistics.stdev(values) if len(values) > 1 else None,
        count=len(values),
    )


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Paired:
    """The differences between two studies, each given as what was measured by seed.

    >>> paired({0: 0.5, 1: 0.5, 2: 0.7}, {0: 0.75, 1: 0.625}).differences
    (0.25, 0.125)
    """
    seeds = tuple(sorted(first.keys() & second.keys()))
    differences = tuple(second[seed] - first[seed] for seed in seeds)
    found = spread(differences)
    return Paired(seeds, differences, found.mean, found.sd, student(differences, CONFIDENCE))


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit of a difference, and which way is better.

    Attributes:
        factor: what a value is multiplied with.
        unit: what stands behind it.
        falling: whether less is better.
        measure: what is compared.
    """

    factor: float = 100.0
    unit: str = " points"
    falling: bool = False
    measure: str = "accuracy"


POINTS = Scale()
"""Of shares, in percentage points."""


def verdict(label: str, found: Paired, scale: Scale = POINTS) -> str:
    """Return the meaning of the differences, in plain words.

    >>> verdict("B", paired({0: 0.5}, {0: 0.9}))
    'one seed: nothing can be concluded'
    >>> verdict("B", paired({0: 0.5, 1: 0.6, 2: 0.4}, {0: 0.52, 1: 0.615, 2: 0.416}))
    'B is better in every seed, by 1.5 to 2.0 points'
    >>> verdict("B", paired({0: 0.5, 1: 0.6}, {0: 0.51, 1: 0.63}))
    'B is ahead in every seed, by 1.0 to 3.0 points, but 2 seeds cannot show that this is more than
    chance'
    """
    count = len(found.seeds)
    if count == 0 or found.mean is None:
        return "no seed has finished in both: nothing can be said"
    if count == 1:
        return "one seed: nothing can be concluded"
    low, high = min(found.differences), max(found.differences)
    if low == high == 0:
        return f"exactly the same {scale.measure} in every seed"
    ahead = (found.mean < 0) if scale.falling else (found.mean > 0)
    way = "better" if ahead else "worse"
    range_ = _range(low, high, scale)
    always = low > 0 or high < 0
    if found.interval is None:
        return (
            f"{label} is {way} by the same {range_} in all {count} seeds: without a spread, "
            "chance cannot be judged"
        )
    if found.interval[0] > 0 or found.interval[1] < 0:
        return (
            f"{label} is {way} in every seed, by {range_}"
            if always
            else f"{label} is {way} on average, not in every seed"
        )
    if always:
        return (
            f"{label} is {'ahead' if ahead else 'behind'} in every seed, by {range_}, but {count} "
            "seeds cannot show that this is more than chance"
        )
    return f"no difference that {count} seeds can show"


def _range(low: float, high: float, scale: Scale = POINTS) -> str:
    """
    >>> _range(-0.021, -0.012), _range(0.0152, 0.0153)
    ('1.2 to 2.1 points', '1.5 points')
    >>> _range(3.14159, 2.5, Scale(1.0, "", falling=True))
    '2.5 to 3.14'
    """
    form = ".1f" if scale.factor == POINTS.factor else ".3g"
    small, large = (format(scale.factor * size, form) for size in sorted((abs(low), abs(high))))
    return f"{small}{scale.unit}" if small == large else f"{small} to {large}{scale.unit}"


def student(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Student's interval of the mean; None for fewer than two values, and where all are equal:
    then the spread is not known.
    """
    found = spread(values)
    if found.mean is None or not found.sd or max(values) - min(values) < 1e-12:
        return None
    from scipy.stats import t  # type: ignore[import-untyped]

    low, high = t.interval(
        confidence, found.count - 1, loc=found.mean, scale=found.sd / found.count**0.5
    )
    return float(low), float(high)
