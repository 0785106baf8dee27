"""The result of a comparison: every run, means of each study, differences to the first."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec import UNSET

from sordino.base.errors import StudyError
from sordino.comparison import over as sweeps
from sordino.comparison.over import Over
from sordino.comparison.record import ComparisonOf, DifferenceOf, RunOf, StudyOf
from sordino.comparison.schedule import Side, Task
from sordino.comparison.statistics import (
    CONFIDENCE,
    POINTS,
    Paired,
    Scale,
    Spread,
    paired,
    spread,
    verdict,
)
from sordino.core.records import known, plain
from sordino.core.run.reading import Run, load
from sordino.core.vocabulary import ON_TEST_SET, Accuracy
from sordino.report.comparisons import cost_of
from sordino.report.words import bound, ends_early

At = Literal["true", "claimed"]
EQUAL = 0.01  # epsilons this close, relatively, count as equal

INTERVALS = (
    f"Each interval holds the mean difference with {CONFIDENCE:.0%} confidence over seeds: other "
    "noise, batches, start and division of the same data. It says nothing about other data."
)
MANY = (
    "Each interval stands for itself: the more studies are compared, the likelier one of "
    "them misses by chance."
)
CHOOSING = (
    "To choose a study by its accuracy on the same private data is itself a use of that "
    "data; no epsilon here accounts for it."
)


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


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """A study against the first.

    Attributes:
        paired: the numbers.
        verdict: what they mean.
        equal: whether both truly have the same epsilon, delta and unit.
        notes: what makes the two unequal.
    """

    label: str
    against: str
    paired: Paired
    verdict: str
    equal: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All of it.

    Attributes:
        overclaims: which studies are not private at the epsilon they claim.
        notes: what all differences have in common.
        warnings: of the studies.
        over: a key to draw the studies over, or None.
    """

    folder: Path
    at: At
    seeds: tuple[int, ...]
    members: tuple[Member, ...]
    differences: tuple[Difference, ...]
    overclaims: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    over: Over | None = None

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
    over: Over | None = None,
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
    return compared(folder, at, tuple(dict.fromkeys(task.seed for task in tasks)), members, over)


def compared(
    folder: Path,
    at: At,
    seeds: tuple[int, ...],
    members: Sequence[Member],
    over: Over | None = None,
) -> Comparison:
    """The differences of all members to the first, and what must be said with them."""
    first, *others = members
    notes = [INTERVALS] if others and len(seeds) > 1 else []
    notes += [MANY] if len(others) > 1 and len(seeds) > 1 else []
    notes += [CHOOSING] if others else []
    return Comparison(
        folder=folder,
        at=at,
        seeds=seeds,
        members=tuple(members),
        differences=tuple(difference(first, other, at) for other in others),
        overclaims=tuple(_overclaim(member) for member in members if member.overclaims),
        notes=tuple(notes),
        warnings=tuple(
            f"{member.side.label}: {warning}" for member in members for warning in _warnings(member)
        ),
        over=over,
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
    equal = not unequal and bool(found.seeds)
    return Difference(
        label,
        first.side.label,
        found,
        verdict(label, found, scale_of(other.measured)),
        equal,
        (*shown, *_remarks(first, other)),
    )


def scale_of(measured: Accuracy) -> Scale:
    """Return how its differences are written."""
    if measured.percent:
        return POINTS
    return Scale(1.0, "", falling=measured.falling, measure=measured.told)


def inequalities(first: Member, other: Member, at: At) -> list[str]:
    """Why the two are not at equal privacy."""
    a, b = first.side.study.privacy, other.side.study.privacy
    if a.unit != b.unit:
        return [f"not at equal privacy: unit {b.unit} against {a.unit}"]
    found = (
        []
        if a.unit == "none" or a.delta == b.delta
        else [f"not at equal privacy: delta {b.delta:g} against {a.delta:g}"]
    )
    one, two = first.at(at), other.at(at)
    if (
        one is not None
        and two is not None
        and not (one == two or math.isclose(one, two, rel_tol=EQUAL))
    ):
        same = (
            " of the same budget"
            if a.epsilon == b.epsilon and math.isfinite(one) and math.isfinite(two)
            else ""
        )
        found.append(f"not at equal privacy: epsilon {bound(two)} against {bound(one)}{same}")
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
    if len({_made_by(run) for member in (first, other) for run in member.runs.values()}) > 1:
        found.append(
            "the runs were not all made by the same program (environment.json differs): run "
            "them again in a new --out"
        )
    return found


def _made_by(run: Run) -> tuple[tuple[str, str], ...]:
    """Return what the bits of a run depend on besides its study."""
    return tuple(sorted((key, str(value)) for key, value in plain(run.environment).items()))


def _overclaim(member: Member) -> str:
    true = "infinite" if member.epsilon == math.inf else bound(member.epsilon)
    return (
        f"{member.side.label} is NOT private at the epsilon of {bound(member.claimed)} that it "
        f"claims: its true epsilon is {true}."
    )


def _warnings(member: Member) -> list[str]:
    """Warnings of the runs, those that differ in numbers only as one; and each damaged log."""
    found: dict[str, str] = {}
    damaged = [
        f"seed {seed}: {ends_early(run.damaged)}"
        for seed, run in member.runs.items()
        if run.damaged
    ]
    for seed, run in member.runs.items():
        for warning in known(run.about.warnings) or ():
            found.setdefault(
                re.sub(r"[\d.e+-]+", "#", warning),
                f"{warning} (seed {seed})" if len(member.runs) > 1 else warning,
            )
    return [*found.values(), *damaged]


def recorded(comparison: Comparison) -> ComparisonOf:
    """All figures, for ``comparison.json`` and ``--json``."""
    return ComparisonOf(
        folder=str(comparison.folder),
        at=comparison.at,
        seeds=comparison.seeds,
        confidence=CONFIDENCE,
        studies=tuple(map(_study, comparison.members)),
        differences=tuple(map(_difference, comparison.differences)),
        not_private_as_claimed=tuple(
            member.side.label for member in comparison.members if member.overclaims
        ),
        failed=sum(len(member.failed) for member in comparison.members),
        notes=comparison.notes,
        warnings=comparison.warnings,
        over=UNSET
        if comparison.over is None
        else sweeps.recorded(comparison.over, comparison.members),
    )


def _difference(each: Difference) -> DifferenceOf:
    found = each.paired
    return DifferenceOf(
        study=each.label,
        against=each.against,
        seeds=found.seeds,
        differences=found.differences,
        mean=found.mean,
        sd=found.sd,
        interval=found.interval,
        equal_privacy=each.equal,
        notes=each.notes,
        verdict=each.verdict,
    )


def _study(member: Member) -> StudyOf:
    study = member.side.full
    failed = (RunOf(seed=seed, status="failed", reason=why) for seed, why in member.failed.items())
    return StudyOf(
        label=member.side.label,
        name=study.name,
        file=str(member.side.path),
        method=study.method.name,
        form=study.form,
        unit=study.privacy.unit,
        delta=study.privacy.delta,
        accountant=study.privacy.accountant,
        epsilon_budget=study.privacy.epsilon,
        epsilon=member.epsilon,
        claimed_epsilon=member.claimed,
        measure=UNSET if member.measured.percent else member.measured.key,
        accuracy=member.measure,
        runs=(*(_run(seed, run) for seed, run in member.runs.items()), *failed),
    )


def _run(seed: int, run: Run) -> RunOf:
    result, sent = run.result, cost_of(run)
    return RunOf(
        seed=seed,
        status="done",
        run=str(run.folder),
        accuracy=run.measured,
        epsilon=run.spent,
        claimed_epsilon=run.claimed,
        rounds=known(result.rounds),
        steps=known(result.steps),
        seconds=known(result.seconds),
        why=known(result.why),
        mebibytes=UNSET if sent is None else sent.mebibytes,
        activity=UNSET if sent is None else sent.activity,
    )
