"""The result of a comparison: every run, means of each study, differences to the first.

Runs with the same seed share data, division and start, so two studies are compared seed by seed:
the mean of the differences, and Student's interval for it, which is honest for few seeds as far
as the differences are normal. Accuracies are shares in [0, 1]; words are in percentage points.

Studies may differ in one key; then there is a picture with a line for each method and a point for
each value:

>>> goal("0.75"), goal("loss=0.5")
(Goal(key='accuracy', value=0.75), Goal(key='loss', value=0.5))
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from msgspec import field, structs

from sordino.base.errors import StudyError
from sordino.clients.study import HorizontalStudy
from sordino.comparison.schedule import Side, Task
from sordino.core.records import Record, known
from sordino.core.regimes import ON_TEST_SET, Accuracy
from sordino.core.run.reading import Run, load
from sordino.core.study.base import Study
from sordino.report.comparisons import cost_of
from sordino.report.curves import EDGES, EPSILON, Goal, Sweep
from sordino.report.words import bound, ends_early

CONFIDENCE = 0.95


class Spread(Record):
    """Mean and standard deviation (None for fewer than two) of so many values."""

    mean: float | None
    sd: float | None
    count: int


class Paired(Record):
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


def verdict(label: str, found: Paired, measured: Accuracy = ON_TEST_SET) -> str:
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
        return f"exactly the same {measured.told} in every seed"
    ahead = (found.mean < 0) if measured.falling else (found.mean > 0)
    way = "better" if ahead else "worse"
    range_ = _range(low, high, percent=measured.percent)
    always = low > 0 or high < 0
    if found.interval is None:
        return (
            f"{label} is {way} by the same {range_} in all {count} seeds: without a spread, "
            "chance cannot be judged"
        )
    if found.interval[0] > 0 or found.interval[1] < 0:
        where = f"in every seed, by {range_}" if always else "on average, not in every seed"
        return f"{label} is {way} {where}"
    if always:
        return (
            f"{label} is {'ahead' if ahead else 'behind'} in every seed, by {range_}, but {count} "
            "seeds cannot show that this is more than chance"
        )
    return f"no difference that {count} seeds can show"


def _range(low: float, high: float, *, percent: bool = True) -> str:
    """
    >>> _range(-0.021, -0.012), _range(0.0152, 0.0153)
    ('1.2 to 2.1 points', '1.5 points')
    >>> _range(3.14159, 2.5, percent=False)
    '2.5 to 3.14'
    """
    sizes = sorted((abs(low), abs(high)))
    small, large = (f"{100 * size:.1f}" if percent else f"{size:.3g}" for size in sizes)
    range_ = small if small == large else f"{small} to {large}"
    return f"{range_} points" if percent else range_


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


At = Literal["true", "claimed"]
EQUAL = 0.01  # epsilons this close, relatively, count as equal
COMPUTING = (
    "numerics",
    "python",
    "torch",
    "numpy",
    "numba",
    "machine",
    "device",
    "cpu",
    "settings",
)
"""Of environment.json: what the numbers of two runs of one study would depend on."""

INTERVALS = (
    f"Each interval holds the mean difference with {CONFIDENCE:.0%} confidence over seeds: other "
    "noise, batches, start and division of the same data. It says nothing about other data."
)
MANY = (
    "Each interval stands for itself: the more studies are compared, the likelier one of "
    "them misses by chance."
)
CHOOSING = (
    "Each epsilon is that of one run alone: runs over the same records add up. To choose a study "
    "by its accuracy on the same private data is itself a use of that data; no epsilon here "
    "accounts for it."
)


KEYS: dict[str, Callable[[Study], float]] = {
    EPSILON: lambda study: math.inf if study.privacy.epsilon is None else study.privacy.epsilon,
    EDGES: lambda study: (
        float(study.data.clients) if isinstance(study, HorizontalStudy) else float("nan")
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One study with its runs, in the order of the seeds; a seed is in ``runs`` or ``failed``."""

    side: Side
    runs: Mapping[int, Run]
    failed: Mapping[int, str]

    @property
    def measures(self) -> dict[int, float]:
        """By seed: accuracy in [0, 1] of the models handed out, or an error in units of the
        label.
        """
        return {seed: run.measured for seed, run in self.runs.items() if run.measured is not None}

    @property
    def measure(self) -> Spread:
        """Of :attr:`measures`."""
        return spread(list(self.measures.values()))

    @property
    def measured(self) -> Accuracy:
        """The measure of its runs; accuracy where no run says."""
        return next(iter(self.runs.values())).vocabulary.accuracy if self.runs else ON_TEST_SET

    @property
    def epsilon(self) -> float | None:
        """The true one: the highest over the seeds, from the ledgers."""
        return max((run.spent for run in self.runs.values() if run.spent is not None), default=None)

    @property
    def claimed(self) -> float | None:
        """The highest that is claimed over the seeds."""
        return max(
            (run.claimed for run in self.runs.values() if run.claimed is not None), default=None
        )

    @property
    def overclaims(self) -> bool:
        """True if less is claimed than is true."""
        return (
            self.epsilon is not None
            and self.claimed is not None
            and self.epsilon > self.claimed * (1 + 1e-9)
        )

    def at(self, at: At) -> float | None:
        """The epsilon that studies are compared at."""
        return self.claimed if at == "claimed" else self.epsilon


class Difference(Paired, kw_only=True):
    """A study against the first.

    Attributes:
        verdict: what the numbers mean.
        equal: whether both truly have the same epsilon, delta and unit.
        notes: what makes the two unequal.
    """

    study: str
    against: str
    verdict: str
    equal: bool = field(name="equal_privacy")
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All of it.

    Attributes:
        overclaims: which studies are not private at the epsilon they claim.
        notes: what all differences have in common.
        warnings: of the studies.
        sweep: a key that the studies are drawn over, and their runs at each value; or None.
    """

    folder: Path
    at: At
    seeds: tuple[int, ...]
    members: tuple[Member, ...]
    differences: tuple[Difference, ...]
    overclaims: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    sweep: Sweep | None = None

    @property
    def failures(self) -> list[str]:
        """The failures and their reasons; seeds with the same reason together."""
        found: dict[tuple[str, str], list[int]] = {}
        for member in self.members:
            for seed, why in member.failed.items():
                found.setdefault((member.side.label, why), []).append(seed)
        return [
            f"{label}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}: {why}"
            for (label, why), seeds in found.items()
        ]


def collect(
    folder: Path,
    at: At,
    tasks: Sequence[Task],
    failed: Mapping[Task, str],
    sweep: Sweep | None = None,
) -> Comparison:
    """Read what the runs left."""
    members: list[Member] = []
    for side in dict.fromkeys(task.side for task in tasks):
        runs: dict[int, Run] = {}
        reasons: dict[int, str] = {}
        for task in (task for task in tasks if task.side is side):
            if task in failed:
                reasons[task.seed] = failed[task]
                continue
            try:
                runs[task.seed] = load(task.folder)
            except StudyError as error:
                reasons[task.seed] = str(error)
        members.append(Member(side, runs, reasons))
    return compared(folder, at, tuple(dict.fromkeys(task.seed for task in tasks)), members, sweep)


def compared(
    folder: Path,
    at: At,
    seeds: tuple[int, ...],
    members: Sequence[Member],
    sweep: Sweep | None = None,
) -> Comparison:
    """The differences of all members to the first, and what must be said with them."""
    first, *others = members
    notes = [INTERVALS] if others and len(seeds) > 1 else []
    notes += [MANY] if len(others) > 1 and len(seeds) > 1 else []
    notes += [CHOOSING] if others else []
    if sweep is not None:
        lines: dict[str, dict[float, list[Run]]] = {}
        for member in (each for each in members if each.runs):
            value = KEYS[sweep.key](member.side.study)
            lines.setdefault(line(member.side.study), {})[value] = list(member.runs.values())
        sweep = replace(sweep, lines=lines)
    return Comparison(
        folder=folder,
        at=at,
        seeds=seeds,
        members=tuple(members),
        differences=tuple(difference(first, other, at) for other in others),
        overclaims=tuple(
            f"{member.side.label} is NOT private at the epsilon of {bound(member.claimed)} that it "
            "claims: its true epsilon is "
            f"{'infinite' if member.epsilon == math.inf else bound(member.epsilon)}."
            for member in members
            if member.overclaims
        ),
        notes=tuple(notes),
        warnings=_warnings(members),
        sweep=sweep,
    )


def difference(first: Member, other: Member, at: At) -> Difference:
    """``other`` against ``first``."""
    same = first.measured.key == other.measured.key
    found = paired(first.measures, other.measures if same else {})
    label = other.side.label
    unequal = tuple(inequalities(first, other, "true"))
    shown = [*inequalities(first, other, at)]
    if at == "claimed" and not shown and unequal:
        shown.append(f"at the claimed epsilon only; in truth {unequal[0]}")
    return Difference(
        *structs.astuple(found),
        study=label,
        against=first.side.label,
        verdict=verdict(label, found, other.measured),
        equal=not unequal and bool(found.seeds),
        notes=(*shown, *_remarks(first, other)),
    )


def inequalities(first: Member, other: Member, at: At) -> list[str]:
    """Why the two are not at equal privacy."""
    study, against = other.side.study, first.side.study
    if study.protected != against.protected:
        return [f"not at equal privacy: unit {study.protected} against {against.protected}"]
    a, b = against.privacy, study.privacy
    found = []
    if a.unit != "none" and a.delta != b.delta:
        found.append(f"not at equal privacy: delta {b.delta:g} against {a.delta:g}")
    if len({getattr(each, "epsilons", None) for each in (a, b)}) > 1:
        found.append("not at equal privacy: clients have other epsilons")
    one, two = first.at(at), other.at(at)
    if one is not None and two is not None and not math.isclose(one, two, rel_tol=EQUAL):
        same = a.epsilon == b.epsilon and math.isfinite(one) and math.isfinite(two)
        told = f"epsilon {bound(two)} against {bound(one)}{' of the same budget' * same}"
        found.append(f"not at equal privacy: {told}")
    return found


def _remarks(first: Member, other: Member) -> list[str]:
    """Return remarks on what else tells two studies apart, and should not."""
    a, b = first.side.study, other.side.study
    found = []
    if a.privacy.unit == b.privacy.unit != "none" and a.privacy.accountant != b.privacy.accountant:
        found.append(
            f"the bounds are of different accountants ({b.privacy.accountant} against "
            f"{a.privacy.accountant})"
        )
    old, new = a.data.model_dump(mode="json"), b.data.model_dump(mode="json")
    if keys := [key for key in old if old[key] != new[key]]:
        found.append(
            f"not on the same data: data.{', data.'.join(keys)} "
            f"{'differs' if len(keys) == 1 else 'differ'}"
        )
    made = [run.environment for member in (first, other) for run in member.runs.values()]
    apart = [key for key in COMPUTING if len({str(getattr(each, key)) for each in made}) > 1]
    digests = [known(each.modules) or {} for each in made]
    names = {name for each in digests for name in each}  # that only some name is no difference
    apart += [n for n in sorted(names) if len({each[n] for each in digests if n in each}) > 1]
    if apart:
        found.append(
            f"the runs were not all made by the same program ({', '.join(apart)} in "
            "environment.json): run them again in a new --out"
        )
    return found


def _warnings(members: Sequence[Member]) -> tuple[str, ...]:
    """Warnings of all runs, those that differ in numbers only as one, with its studies; and each
    damaged log.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    damaged = []
    for member in members:
        label = member.side.label
        for seed, run in member.runs.items():
            if run.damaged:
                damaged.append(f"{label}: seed {seed}: {ends_early(run.damaged)}")
            for warning in known(run.about.warnings) or ():
                _, labels = found.setdefault(re.sub(r"[\d.e+-]+", "#", warning), (warning, []))
                labels += [label] if label not in labels else []
    told = [
        f"{'every study' if len(labels) == len(members) > 1 else '; '.join(labels)}: {warning}"
        for warning, labels in found.values()
    ]
    return (*told, *damaged)


def over(key: str | None, until: str | None, sides: Sequence[Side]) -> Sweep | None:
    """Return the meaning of ``--over`` and ``--until``, without runs yet.

    Raises:
        StudyError: if that cannot be drawn of these studies.
    """
    if key is None:
        if until is not None:
            raise StudyError(f"--until goes with --over {EDGES}")
        return None
    if key not in KEYS:
        raise StudyError(f"--over must be one of {', '.join(KEYS)}; got {key!r}")
    if (key == EDGES) != (until is not None):
        raise StudyError(
            f"--over {EDGES} draws how long it took: give a threshold with it, for example "
            "--until 0.75"
            if key == EDGES
            else f"--over {key} draws final accuracies: --until goes with --over {EDGES}"
        )
    value = KEYS[key]
    asked = Sweep(key, goal=None if until is None else goal(until))
    if without := next((side for side in sides if math.isnan(value(side.study))), None):
        raise StudyError(
            f"--over {key}: {without.path} has no {key}; give studies that do, or --over {EPSILON}"
        )
    values = {value(side.study) for side in sides}
    if len(list(filter(math.isfinite, values))) < 2:
        told = ", ".join(f"{each:g}" for each in sorted(values))
        raise StudyError(
            f"--over {key}: the studies do not differ in it (it is {told}); there is nothing "
            "to draw over"
        )
    taken: dict[tuple[str, float], Side] = {}
    for side in sides:
        place = line(side.study), value(side.study)
        if place in taken:
            raise StudyError(
                f"--over {key}: {taken[place].path} and {side.path} both have method {place[0]} "
                f"and {key} = {place[1]:g}; a line holds one study at each value"
            )
        taken[place] = side
    return asked


def goal(text: str) -> Goal:
    """A threshold: a share of the test set, or ``loss=`` a loss.

    Raises:
        StudyError: if it is none.
    """
    key, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if key in ("", "accuracy") and 0 < number <= 1:
        return Goal("accuracy", number)
    if key == "loss" and 0 < number < math.inf:
        return Goal("loss", number)
    raise StudyError(
        f"--until must be an accuracy such as 0.75 or a loss such as loss=0.5; got {text!r}"
    )


def line(study: Study) -> str:
    """Which line a study belongs to."""
    return study.method.title + (", paper's form: NOT private" if study.form == "paper" else "")


def recorded(comparison: Comparison) -> dict[str, object]:
    """Return all figures, for ``comparison.json`` and ``--json``."""
    found: dict[str, object] = {
        "format": 1,
        "folder": str(comparison.folder),
        "at": comparison.at,
        "seeds": comparison.seeds,
        "confidence": CONFIDENCE,
        "studies": [_study(member) for member in comparison.members],
        "differences": comparison.differences,
        "not_private_as_claimed": [
            member.side.label for member in comparison.members if member.overclaims
        ],
        "failed": sum(len(member.failed) for member in comparison.members),
        "notes": comparison.notes,
        "warnings": comparison.warnings,
    }
    if (asked := comparison.sweep) is not None:
        goal = asked.goal
        found["over"] = {
            "key": asked.key,
            "until": None if goal is None else {goal.key: goal.value},
            "points": [
                {
                    "method": line(member.side.study),
                    "value": KEYS[asked.key](member.side.study),
                    "by_seed": {  # None where the goal was not reached
                        seed: run.accuracy if goal is None else goal.of(run)
                        for seed, run in member.runs.items()
                    },
                }
                for member in comparison.members
            ],
        }
    return found


def _study(member: Member) -> dict[str, object]:
    """A compared study; epsilons are the highest over its seeds. Where ``measure`` is given, that
    is what stands under accuracy.
    """
    study = member.side.full
    failed = ({"seed": n, "status": "failed", "reason": why} for n, why in member.failed.items())
    return {
        "label": member.side.label,
        "name": study.name,
        "file": str(member.side.path),
        "method": study.method.name,
        "form": study.form,
        "unit": study.protected,
        "delta": study.privacy.delta,
        "accountant": study.privacy.accountant,
        "epsilon_budget": study.privacy.epsilon,
        "epsilon": member.epsilon,
        "claimed_epsilon": member.claimed,
        **({} if member.measured.percent else {"measure": member.measured.key}),
        "accuracy": member.measure,
        "runs": [*(_run(seed, run) for seed, run in member.runs.items()), *failed],
    }


def _run(seed: int, run: Run) -> dict[str, object]:
    result, sent = run.result, cost_of(run)
    return {
        "seed": seed,
        "status": "done",
        "run": str(run.folder),
        "accuracy": run.measured,
        "epsilon": run.spent,
        "claimed_epsilon": run.claimed,
        "rounds": known(result.rounds),
        "steps": known(result.steps),
        "seconds": known(result.seconds),
        "why": known(result.why),
        **({} if sent is None else {"mebibytes": sent.mebibytes, "activity": sent.activity}),
    }
