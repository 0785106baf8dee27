"""``comparison.json``: every figure of a comparison of studies."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sordino.comparison.statistics import Spread
from sordino.core.records import Record


class RunOf(Record, frozen=True, kw_only=True):
    """A run of a compared study: what it came to, or for a failed one the reason.

    Attributes:
        run: its folder.
        accuracy, epsilon, claimed_epsilon: null where nothing tells. Where labels are numbers,
            ``accuracy`` is what ``measure`` of the study says.
        mebibytes, activity: sent, and share of events; of streams only.
    """

    seed: int
    status: str
    run: str | UnsetType = UNSET
    accuracy: float | UnsetType | None = UNSET
    epsilon: float | UnsetType | None = UNSET
    claimed_epsilon: float | UnsetType | None = UNSET
    rounds: int | UnsetType | None = UNSET
    steps: int | UnsetType | None = UNSET
    seconds: float | UnsetType | None = UNSET
    why: str | UnsetType | None = UNSET
    mebibytes: float | UnsetType = UNSET
    activity: float | UnsetType | None = UNSET
    reason: str | UnsetType = UNSET


class StudyOf(Record, frozen=True, kw_only=True):
    """A compared study; epsilons are the highest over its seeds.

    Attributes:
        measure: what stands under accuracy, where that is something else: "rmse".
    """

    label: str
    name: str
    file: str
    method: str
    form: str
    unit: str
    delta: float | None
    accountant: str
    epsilon_budget: float | None
    epsilon: float | None
    claimed_epsilon: float | None
    measure: str | UnsetType = UNSET
    accuracy: Spread
    runs: tuple[RunOf, ...]


class DifferenceOf(Record, frozen=True, kw_only=True):
    """A study against the first over the seeds that both have; ``interval`` is of the mean."""

    study: str
    against: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float | None
    sd: float | None
    interval: tuple[float, float] | None
    equal_privacy: bool
    notes: tuple[str, ...]
    verdict: str


class PointOf(Record, frozen=True, kw_only=True):
    """A study's place over a key: final accuracies by seed, or how long a goal took (or null)."""

    method: str
    value: float
    by_seed: dict[str, float | None]


class OverOf(Record, frozen=True, kw_only=True):
    """A picture over a key that studies differ in, and the goal it is drawn for."""

    key: str
    until: dict[str, float] | None
    points: tuple[PointOf, ...]


class ComparisonOf(Record, frozen=True, kw_only=True):
    """All of it; ``page`` is where people read it."""

    format: int = 1
    folder: str
    at: str
    seeds: tuple[int, ...]
    confidence: float
    studies: tuple[StudyOf, ...]
    differences: tuple[DifferenceOf, ...]
    not_private_as_claimed: tuple[str, ...]
    failed: int
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    over: OverOf | UnsetType = UNSET
    page: str | UnsetType = UNSET
