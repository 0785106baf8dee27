"""``sordino audit --attack mechanism|canaries|lira|all``: lower bounds beside ledgers' epsilons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sordino.base.errors import StudyError
from sordino.cli import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.audit.intervals import Interval
    from sordino.audit.lira import Form, Inferred
    from sordino.audit.mechanisms import Subject
    from sordino.clients.study import HorizontalStudy
    from sordino.core.study.base import Study

ALPHA = 0.05
"""All lower bounds of a table hold together but for this chance."""
PICTURE, ROC = "audit.svg", "lira.svg"
SHADOWS = "shadows"
SCALES = ("quick", "full")
LONGEST_NAME = 24
NO_PROOF = (
    "A lower bound far below the ledger's epsilon proves nothing: another attack may reach further."
)
A_USE = (
    "These runs looked at the study's own examples, with canaries among them, or with some left "
    "out. With real data, their result is a release that no ledger has booked: do not publish it."
)
SMALL = {
    "samples": "budget.rounds=10",
    "clients": "budget.rounds=10",
    "arrivals": "budget.updates=20",
    "labels": "budget.events=600",
    "entities": "budget.events=600",
}
"""Studies that come with the program, one for each unit and regime, and how they are shortened."""
FEW = 1000
"""Canaries of a short run."""
FEW_SHADOWS, MANY_SHADOWS = 8, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for.

    Attributes:
        attack: its name.
        study: to be attacked; None for all mechanisms, and small studies.
        canaries: most of them in a run.
        scale: "quick" or "full".
        seed: of the releases of mechanisms.
        shadows: shadow runs; None if nothing was said.
        jobs: runs at once; None for as many as there are cores.
        modules: where modules lie that the study names.
        picture: where it goes; all else goes beside it.
    """

    attack: str
    study: Study | None
    canaries: int
    scale: str
    seed: int
    shadows: int | None
    jobs: int | None
    modules: Path | None
    picture: Path

    @property
    def wants_canaries(self) -> bool:
        """Whether runs with canaries are made."""
        return self.attack in ("canaries", "all")

    @property
    def wants_shadows(self) -> bool:
        """Whether shadow runs are made: many of them, so not of a study by "all" alone."""
        return self.attack == "lira" or (
            self.attack == "all" and (self.study is None or self.shadows is not None)
        )

    @property
    def count(self) -> int:
        """How many shadow runs."""
        if self.shadows is not None:
            return self.shadows
        return FEW_SHADOWS if self.scale == "quick" else MANY_SHADOWS


@dataclass(slots=True, eq=False)
class Found:
    """What attacks came to: the table's rows, and curves of those with shadow runs."""

    intervals: list[Interval] = field(default_factory=list)
    inferred: list[Inferred] = field(default_factory=list)


def show(asked: Asked, *, as_json: bool) -> None:
    """Make the table and the pictures.

    Raises:
        StudyError: if the attack cannot be made on this study.
        typer.Exit: with status 1 where a ledger is contradicted, or a false claim is not caught.
    """
    from sordino.audit.intervals import failed

    _checked(asked)
    found = attacked(asked)
    _draw(asked, found)
    _tell(found.intervals, used=asked.study is not None and asked.attack != "mechanism")
    if found.inferred:
        _tell_membership(found.inferred)
    say.people(f"Picture: {asked.picture}")
    if found.inferred:
        say.people(f"Picture of hits over false alarms: {asked.picture.with_name(ROC)}")
    if as_json:
        _to_machines(asked, found)
    if wrong := failed(found.intervals):
        say.people(f"FAILED: {', '.join(one.name for one in wrong)}")
        raise typer.Exit(1)


def attacked(asked: Asked) -> Found:
    """All rows that were asked for, which share the chance of error (Bonferroni).

    Runs tell less than releases by the thousand: where there are both, half of the chance is
    theirs.
    """
    from sordino.audit import mechanisms

    subjects, found = _subjects(asked), Found()
    rows = [*_canaries(asked), *_shadows(asked, found)]
    part = ALPHA / 2.0 if subjects and rows else ALPHA
    effort = mechanisms.Effort() if asked.scale == "quick" else mechanisms.Effort.full()
    if subjects:
        found.intervals += mechanisms.table(subjects, effort, asked.seed, part)
    for row in rows:
        found.intervals.append(row(part / len(rows)))
    return found


def _subjects(asked: Asked) -> list[Subject]:
    from sordino.audit import mechanisms

    if asked.attack not in ("mechanism", "all"):
        return []
    known = mechanisms.subjects() if asked.study is None or asked.attack == "all" else []
    return known if asked.study is None else [_own(asked.study), *known]


def _canaries(asked: Asked) -> list[Callable[[float], Interval]]:
    """Rows of runs with canaries: of the study, or of small ones."""
    if not asked.wants_canaries:
        return []
    from sordino.audit.rows import rows

    if asked.study is not None:
        return list(rows(asked.study, asked.canaries, _name(asked.study)))
    most = min(asked.canaries, FEW) if asked.scale == "quick" else asked.canaries
    studies = [small(unit, asked.scale) for unit in SMALL]
    return [row for study in studies for row in rows(study, most, study.name)]


def _shadows(asked: Asked, found: Found) -> list[Callable[[float], Interval]]:
    """Rows of attacks with shadow runs, which are made here."""
    if not asked.wants_shadows:
        return []
    from functools import partial

    from sordino.audit.lira import FORMS
    from sordino.cli.shipped import folder
    from sordino.comparison.shadows import shadowed

    study = small("samples", asked.scale) if asked.study is None else asked.study
    with say.stoppable():
        seen = shadowed(
            _horizontal(study),
            asked.count,
            asked.picture.parent / SHADOWS,
            modules=folder() if asked.study is None else asked.modules,
            jobs=asked.jobs,
            told=say.Waiting("runs are done"),
        )

    def row(form: Form, alpha: float) -> Interval:
        told = seen.inferred(form, alpha)
        found.inferred.append(told)
        return seen.interval(told, _name(study))

    return [partial(row, form) for form in FORMS]


def small(unit: str, scale: str) -> Study:
    """A study that comes with the program: ``samples``, ``clients``, ``arrivals`` and so on."""
    from sordino.cli.shipped import folder
    from sordino.core import study as studies

    changes = (SMALL[unit],) if scale == "quick" else ()
    return studies.read(folder() / "audit" / f"{unit}.toml", changes)


def _name(study: Study) -> str:
    return study.name if len(study.name) <= LONGEST_NAME else study.method.name


def _own(study: Study) -> Subject:
    from sordino.audit.canaries import own_mechanism

    return own_mechanism(_horizontal(study))


def _horizontal(study: Study) -> HorizontalStudy:
    from sordino.clients.study import HorizontalStudy

    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"method.name = {study.method.name!r}: this attack is for studies whose clients hold "
            "examples. `sordino audit --attack mechanism` without a study looks at the mechanisms "
            "of the others too, and --attack canaries at their runs"
        )
    return study


def _checked(asked: Asked) -> None:
    if asked.scale not in SCALES:
        raise StudyError(f"--scale {asked.scale!r} is not known: one of {', '.join(SCALES)}")
    if asked.canaries < 1:
        raise StudyError(f"--canaries must be from 1; got {asked.canaries}")
    if asked.wants_shadows:
        from sordino.comparison.shadows import attacked_runs

        attacked_runs(asked.count)
    elif asked.shadows is not None:
        raise StudyError(f"--shadows does not go with --attack {asked.attack}; give --attack lira")


def _draw(asked: Asked, found: Found) -> None:
    from sordino.core.files import replace_file, said_clearly
    from sordino.report.intervals import intervals_figure
    from sordino.report.lira import lira_figure

    with said_clearly(asked.picture):
        asked.picture.parent.mkdir(parents=True, exist_ok=True)
    replace_file(asked.picture, intervals_figure(found.intervals).encode())
    if found.inferred:
        replace_file(asked.picture.with_name(ROC), lira_figure(found.inferred).encode())


def _to_machines(asked: Asked, found: Found) -> None:
    from sordino.audit.intervals import IntervalsTold

    say.machine(
        IntervalsTold(
            attack=asked.attack,
            seed=asked.seed,
            confidence=1.0 - ALPHA,
            picture=str(asked.picture),
            intervals=tuple(found.intervals),
            verdicts=tuple(one.verdict for one in found.intervals),
            inferred=tuple(found.inferred),
        )
    )


def _tell(found: Sequence[Interval], *, used: bool) -> None:
    from sordino.report.intervals import lower_text

    head = ["", "unit", "lower bound", "assuming nothing", "claimed", "ledger", "how", "verdict"]
    rows = [
        [
            one.name,
            one.unit,
            lower_text(one.low),
            lower_text(one.plain),
            say.bound(one.claimed),
            say.bound(one.ledger),
            one.how,
            one.verdict,
        ]
        for one in found
    ]
    say.table("epsilon from below and from above", head, rows)
    say.people(
        f"All lower bounds hold together with {1.0 - ALPHA:.0%} confidence. 'lower bound' takes "
        "the trade-off between hits and false alarms to be of the kind that is claimed"
    )
    if any(not one.binding for one in found):
        say.people(
            "With shadow runs it takes guesses about records of one run to be independent, and "
            "'assuming nothing' does not: only that decides the verdict"
        )
    say.people(NO_PROOF)
    if used:
        say.people(f"warning: {A_USE}")


def _tell_membership(found: Sequence[Inferred]) -> None:
    from sordino.audit.lira import RATES

    head = ["", *(f"hits at {rate:.1%} false alarms" for rate in RATES), "area", "guesses"]
    rows = [
        [
            one.form,
            *(f"{rate:.2%}" for rate in one.hits),
            f"{one.area:.3f}",
            str(one.guesses),
        ]
        for one in found
    ]
    say.table("membership of records in runs", head, rows)
