"""The figures of a comparison as people read them: the same cells on a terminal and on the page."""

from __future__ import annotations

from collections import Counter

from sordino.comparison.result import CONFIDENCE, Comparison, Difference, Member, recorded
from sordino.core import regimes
from sordino.core.files import replace_file
from sordino.core.records import dumped
from sordino.core.statements import Table
from sordino.report import comparisons, words
from sordino.report.comparisons import COST_HEAD, Content, cost_cells, figures_of, render

PAGE = "comparison.html"


def content(comparison: Comparison) -> Content:
    """Content of the page."""
    members, seeds = comparison.members, comparison.seeds
    claimed = comparison.at == "claimed"
    which = f"seed {seeds[0]}"
    if len(seeds) > 1:
        which = f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}, the same for each study"
    labels = [member.side.label for member in members]
    groups = [list(member.runs.values()) for member in members]
    return Content(
        title=f"{len(labels)} {'study' if len(labels) == 1 else 'studies'} compared",
        sub=which,
        labels=labels,
        groups=groups,
        banner=comparison.overclaims if claimed else (),
        first=[
            *(() if claimed else comparison.overclaims),
            *(f"Failed: {each}" for each in comparison.failures),
        ],
        warnings=comparison.warnings,
        final=studies(comparison),
        reported=reported(comparison),
        differences=differences(comparison),
        verdicts=verdicts(comparison),
        remarks=comparison.notes,
        runs=runs(comparison),
        figures=figures_of(groups, labels, claimed=claimed, sweep=comparison.sweep),
    )


def studies(comparison: Comparison) -> Table:
    """One row for each study."""
    claimed = comparison.at == "claimed"
    streamed = any(
        run.vocabulary.accuracy.streamed
        for member in comparison.members
        for run in member.runs.values()
    )
    epsilons = ("epsilon claimed", "epsilon true") if claimed else ("epsilon",)
    rows = [
        [
            member.side.label,
            member.side.study.method.title,
            f"{len(member.runs)} of {len(comparison.seeds)}",
            measure(member),
            *([_epsilon(member.claimed)] if claimed else []),
            _epsilon(member.epsilon) + _own(member),
            *_terms(member),
            *(cost_cells(list(member.runs.values())) if streamed else ()),
        ]
        for member in comparison.members
    ]
    head = (
        *("study", "method", "seeds", _spoken(comparison).accuracy.told, *epsilons),
        *("delta", "accountant", "unit", *(COST_HEAD if streamed else ())),
    )
    return Table("Studies", head, rows)


def _own(member: Member) -> str:
    """The clients' own epsilons, where they differ, and of how many each is."""
    own = Counter(getattr(member.side.study.privacy, "epsilons", None) or ())
    told = ", ".join(f"{words.bound(each)} ({count})" for each, count in sorted(own.items()))
    return f"; of clients: {told}" if told else ""


def reported(comparison: Comparison) -> Table:
    """One row for each study of which a publication reports something: here, and there."""
    rows = []
    for member in comparison.members:
        told = member.side.study.reported
        if told is None:
            continue
        accuracy = (
            1.0 - told.error if told.accuracy is None and told.error is not None else told.accuracy
        )
        mib, _, seconds = cost_cells(list(member.runs.values()))
        rows.append(
            [
                member.side.label,
                measure(member),
                "-" if accuracy is None else words.percent(accuracy),
                mib,
                "-" if told.mib is None else f"{told.mib:.2f}",
                seconds,
                "-" if told.seconds is None else f"{told.seconds:.0f}",
                told.source,
            ]
        )
    there, measured = "reported", _spoken(comparison).accuracy
    head = ("study", measured.told, there, "payload MiB", there, "party s", there, "source")
    return Table("Beside what is reported", head, rows)


def _spoken(comparison: Comparison) -> regimes.Vocabulary:
    """Words for all runs."""
    return regimes.shared(
        run.vocabulary for member in comparison.members for run in member.runs.values()
    )


def differences(comparison: Comparison) -> Table:
    """One row for each study but the first, in percentage points or in units of the label."""
    head = ("study", "mean difference", "sd", f"{CONFIDENCE:.0%} interval", "by seed")
    measured = _spoken(comparison).accuracy
    title = f"Differences to {comparison.members[0].side.label}"
    title += f" in {measured.told}" if measured.streamed else ""
    rows = [_difference(each, measured.percent) for each in comparison.differences]
    return Table(title, head, rows)


def verdicts(comparison: Comparison) -> list[tuple[str, str]]:
    """In words: what each difference means, and what makes the two unequal."""
    return [
        (
            f"{'' if each.verdict.startswith(each.study) else each.study + ': '}{each.verdict}.",
            f"But {'; '.join(each.notes)}." if each.notes else "",
        )
        for each in comparison.differences
    ]


def runs(comparison: Comparison) -> Table:
    """One row for each run."""
    rows = [
        [
            member.side.label,
            str(seed),
            words.measured(run, run.measured),
            _epsilon(run.spent),
            str(run.number),
            str(run.steps),
            str(run.folder.relative_to(comparison.folder)),
        ]
        for member in comparison.members
        for seed, run in member.runs.items()
    ]
    spoken = _spoken(comparison)
    counts = (spoken.rounds, spoken.steps.removeprefix("local "))
    head = ("study", "seed", spoken.accuracy.told, "epsilon", *counts, "folder")
    return Table("Every run", head, rows)


def latex(comparison: Comparison) -> str:
    """The tables of a page as LaTeX, those that have rows."""
    found = content(comparison)
    tables = (found.final, found.reported, found.differences)
    return "\n\n".join(comparisons.latex(each) for each in tables if each.rows) + "\n"


def write(comparison: Comparison) -> None:
    """Leave ``comparison.json`` and ``comparison.html`` in the folder."""
    replace_file(
        comparison.folder / "comparison.json", dumped(recorded(comparison), indent=1).encode()
    )
    replace_file(comparison.folder / PAGE, render(content(comparison)).encode("utf-8", "replace"))


def _difference(each: Difference, percent: bool) -> list[str]:
    unit, ends = " points" if percent else "", each.interval
    return [
        each.study,
        "-" if each.mean is None else f"{_signed(each.mean, percent)}{unit}",
        "-" if each.sd is None else _size(each.sd, percent),
        "-" if ends is None else " to ".join(_signed(end, percent) for end in ends),
        ", ".join(_signed(difference, percent) for difference in each.differences) or "-",
    ]


def _signed(value: float, percent: bool) -> str:
    """
    >>> [_signed(each, True) for each in (0.0123, -0.004, -0.0)]
    ['+1.23', '-0.40', '0.00']
    >>> _signed(-2.5, False)
    '-2.5'
    """
    shown = _size(abs(value), percent)
    return shown if float(shown) == 0 else f"{'+' if value > 0 else '-'}{shown}"


def _size(value: float, percent: bool) -> str:
    return f"{100 * value:.2f}" if percent else f"{value:.4g}"


def measure(member: Member) -> str:
    """Mean and standard deviation over the seeds."""
    found = member.measure
    if found.mean is None:
        return "-"
    if not member.measured.percent:
        return words.plain(found.mean) + ("" if found.sd is None else f" ± {words.plain(found.sd)}")
    spread = "" if found.sd is None else f" ± {100 * found.sd:.2f}"
    return f"{100 * found.mean:.2f}{spread} %"


def _epsilon(value: float | None) -> str:
    return words.bound(value, 5)


def _terms(member: Member) -> list[str]:
    study = member.side.study
    privacy = study.privacy
    if privacy.unit == "none":
        return ["-", "-", "none"]
    return [words.plain(privacy.delta), privacy.accountant, study.protected]
