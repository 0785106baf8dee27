"""Pages that compare runs, or studies over seeds: curves, costs, tables, paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from sordino.base.errors import StudyError
from sordino.core import regimes
from sordino.core.files import replace_file
from sordino.core.records import at, known
from sordino.core.run.reading import Run, load
from sordino.core.statements import Colour, Costs, Figure, Matrix, Panel, Series, Table
from sordino.report import curves, words
from sordino.report.canvas import clean
from sordino.report.page import picture_of, template

STEPS = "Steps are what privacy is paid for; rounds are what communication is paid for."
GRADIENTS = (
    "Gradients are what an edge pays for with privacy; updates are what the server makes "
    "of those of all."
)

CAPTION = (
    "MiB sent in all: embeddings up, derivatives down, framing; and the share of events in which a "
    "party was active, on average over parties. Of two methods that err as often, the one with the "
    "shorter bar is the better one."
)
MEAN = " Means over seeds."


def cost_of(run: Run) -> Costs | None:
    """Return the costs of a run; None where no messages are counted, or there were none yet."""
    return regimes.teller(run.about.regime).costs(run)


def costs(groups: curves.Groups, labels: Sequence[str], mean: str = "") -> Iterator[Figure]:
    """Yield messages of each group's runs, means over them, where a run tells of any.

    Args:
        mean: what ends the caption.
    """
    found = [[each for run in runs if (each := cost_of(run)) is not None] for runs in groups]
    shown = [(label, each) for label, each in zip(labels, found, strict=True) if each]
    if not shown:
        return
    kinds: tuple[tuple[str, Colour, list[float]], ...] = (
        ("payload up", "blue", [fmean(each.up for each in group) for _, group in shown]),
        ("payload down", "green", [fmean(each.down for each in group) for _, group in shown]),
        ("framing", "quiet", [fmean(each.framing for each in group) for _, group in shown]),
    )
    series, base = [], [0.0] * len(shown)
    for name, colour, parts in kinds:
        places = range(len(shown))
        series.append(Series(kind="bar", name=name, colour=colour, x=places, y=parts, base=base))
        base = [low + part for low, part in zip(base, parts, strict=True)]
    texts = []
    for length, (_, group) in zip(base, shown, strict=True):
        active = [each.activity for each in group if each.activity is not None]
        share = f", active {100 * fmean(active):.1f} %" if active else ""
        texts.append(f"{words.amount(length)} MiB{share}")
    series[-1] = replace(series[-1], texts=texts)
    yield Figure(
        key="costs",
        title="Messages and activity",
        caption=CAPTION + mean,
        label=f"Messages of {len(shown)} studies",
        x="MiB",
        lying=True,
        names=[label for label, _ in shown],
        panels=[Panel(label="", series=series)],
    )


def cost_cells(runs: Sequence[Run]) -> list[str]:
    """The same of one study, for a table: MiB of payload, activity, seconds of all parties.

    >>> cost_cells([])
    ['-', '-', '-']
    """
    found = [each for run in runs if (each := cost_of(run)) is not None]
    active = [each.activity for each in found if each.activity is not None]
    return [
        f"{fmean(each.up + each.down for each in found):.2f}" if found else "-",
        f"{100 * fmean(active):.1f} %" if active else "-",
        f"{fmean(each.seconds for each in found):.1f}" if found else "-",
    ]


COST_HEAD = ("payload MiB", "active", "party s")


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write one page that compares several runs.

    Raises:
        StudyError: if a folder is no run folder, or ``out`` cannot be written.
    """
    if not folders:
        raise StudyError("nothing to compare: give at least one run folder")
    if out.is_dir() or not out.parent.is_dir():
        raise StudyError(f"{out}: cannot be written; give a file name in a folder that exists")
    runs = [load(folder) for folder in folders]
    replace_file(out, render_comparison(runs).encode("utf-8", "replace"))
    return out


def render_comparison(runs: Sequence[Run]) -> str:
    """Several runs on one page."""
    labels = words.labels([run.name for run in runs], [run.folder.resolve().name for run in runs])
    spoken = regimes.shared(run.vocabulary for run in runs)
    alone = [[run] for run in runs]
    title = f"Over {spoken.rounds}"
    caption = f"{spoken.accuracy.curve_is.format(round=spoken.round)}."
    if curves.rising(runs):
        caption += (
            " Below, epsilon spent (dashed: budgets). Look how high a curve is where its epsilon "
            "is the same."
        )
    caption += words.estimated(runs)
    drawn = [curves.together(alone, labels, "round", title=title, caption=caption)]
    if not spoken.accuracy.streamed:  # nothing is paid for by the activation
        caption = f"The same over {spoken.steps_of_one}. {STEPS if spoken.steps_end else GRADIENTS}"
        title = f"Over {spoken.steps}"
        drawn.append(curves.together(alone, labels, "steps", title=title, caption=caption))
    cells = [_cells(run, label) for run, label in zip(runs, labels, strict=True)]
    names = (
        *("run", "method", "status", spoken.accuracy.told, "best", "epsilon", "budget", "delta"),
        *("accountant", spoken.rounds, spoken.steps.removeprefix("local "), "clip", "noise"),
        *("sampling", "learning rate", *COST_HEAD),
    )
    kept = [column for column in zip(names, *cells, strict=True) if set(column[1:]) != {"-"}]
    head, *rows = map(list, zip(*kept, strict=True))
    return render(
        Content(
            title=f"{len(runs)} runs compared",
            labels=labels,
            groups=alone,
            warnings=_notes(runs, labels),
            final=Table("Final numbers", head, rows),
            figures=[*filter(None, drawn), *costs(alone, labels)],
        )
    )


def _cells(run: Run, label: str) -> list[str]:
    about = run.about
    stated = (
        about.facts.clip,
        about.noise_multiplier,
        at(about.facts, "sampling_rate"),
        about.learning_rate,
    )
    return [
        label,
        run.method,
        "done" if run.done else "not finished",
        words.measured(run, run.measured),
        words.measured(run, run.best),
        words.spent(run),
        words.budget(run),
        words.plain(about.delta, 6) if run.private else "-",
        known(about.accountant) or "-" if run.private else "-",
        str(run.number),
        str(run.steps),
        *(words.plain(each, 6) for each in stated),
        *cost_cells([run]),
    ]


def _notes(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """Return remarks on what makes the numbers of several runs hard to compare."""
    notes = [
        f"{label}: {words.ends_early(run.damaged)}"
        for run, label in zip(runs, labels, strict=True)
        if run.damaged
    ]
    if len(runs) == 1:
        return notes
    notes += [
        "Each epsilon is that of one run alone: runs over the same records add up. To choose a run "
        "by its accuracy on the same private data is itself a use of that data; no epsilon here "
        "accounts for it."
    ]
    private = [run.about for run in runs if run.private]
    for key, what in (
        ("accountant", "accountants"),
        ("delta", "deltas"),
        ("unit", "units of privacy"),
        ("adjacency", "adjacency relations"),
    ):
        if len({str(at(about, key)) for about in private}) > 1:
            notes.append(f"The runs use different {what}: their epsilons do not mean the same.")
    return notes


# Studies over seeds

CAPTIONS = {
    "round": "{curve_is}, mean over the seeds{below}. A band reaches from the lowest to the "
    "highest seed; a curve ends where its first seed ends.{estimated}",
    "epsilon": "{same} over the epsilon that was spent for it. Studies are at equal privacy where "
    "they stand above the same point. A study without privacy is a level: it stands nowhere on "
    "this axis.",
    "claimed": "{same} over the epsilon that is claimed for it. A single dot is a claim for the "
    "end of a run alone. What the banner names is not private at that epsilon.",
}
BELOW = " (above), and epsilon spent (below; dashed: budgets)"
TITLES = {"round": "Over {rounds}", "epsilon": "Over epsilon", "claimed": "Over claimed epsilon"}


def latex(table: Table) -> str:
    """Return a table as LaTeX; names may hold any characters.

    >>> print(latex(Table("Results", ("study", "ε"), [["a_b & c", "50 %"]])))
    \\begin{table}
    \\caption{Results}
    \\begin{tabular}{lr}
    \\hline
    study & $\\varepsilon$ \\\\
    \\hline
    a\\_b \\& c & 50 \\% \\\\
    \\hline
    \\end{tabular}
    \\end{table}
    """
    head, *rows = (" & ".join(map(escaped, row)) + r" \\" for row in (table.head, *table.rows))
    return "\n".join(
        (
            r"\begin{table}",
            rf"\caption{{{escaped(table.title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}",
            r"\hline",
            head,
            r"\hline",
            *rows,
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
        )
    )


LATEX = str.maketrans(
    {
        **{each: f"\\{each}" for each in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "∞": r"$\infty$",
        "ε": r"$\varepsilon$",
    }
)


def escaped(text: str) -> str:
    """Return text as LaTeX prints it.

    >>> escaped("50 % of $x_1$")
    '50 \\\\% of \\\\$x\\\\_1\\\\$'
    """
    return clean(text, len(text)).translate(LATEX)


EMPTY = Table("", (), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content of a page that compares.

    Attributes:
        title, sub: the title, and one line below it.
        labels, groups: the runs or studies, and the runs of each.
        banner: which studies are not private as claimed.
        first, warnings: what to know before the numbers, and below them.
        final, reported, differences, runs: the tables: of each run or study, of what publications
            report, of studies to the first, of each run of a study.
        verdicts: what each difference means, and what makes it unequal.
        remarks: what all differences have in common.
        figures: the pictures.
    """

    title: str
    labels: Sequence[str]
    groups: curves.Groups
    warnings: Sequence[str]
    final: Table
    figures: Sequence[Figure | Matrix]
    sub: str = ""
    banner: Sequence[str] = ()
    first: Sequence[str] = ()
    reported: Table = EMPTY
    differences: Table = EMPTY
    verdicts: Sequence[tuple[str, str]] = ()
    remarks: Sequence[str] = ()
    runs: Table = EMPTY


def render(content: Content) -> str:
    """The page as HTML."""
    promises = [
        (label, words.promise(max(runs, key=lambda run: run.spent or 0.0)))
        for label, runs in zip(content.labels, content.groups, strict=True)
        if runs
    ]
    html: str = template("comparison.html").render(
        title=content.title,
        page=content,
        without=[label for label, promise in promises if not promise.private],
        pictures=[picture_of(each) for each in content.figures],
        promises=promises,
    )
    return html


def figures_of(
    groups: curves.Groups, labels: Sequence[str], *, claimed: bool, sweep: curves.Sweep | None
) -> list[Figure]:
    """The figures of studies over seeds.

    Args:
        claimed: whether studies stand at the epsilon that is claimed.
        sweep: a key that they differ in and are drawn over, or None.
    """
    spoken = regimes.shared(run.vocabulary for runs in groups for run in runs)
    measured = spoken.accuracy
    told = {
        "round": spoken.round,
        "rounds": spoken.rounds,
        "below": BELOW if curves.rising(run for runs in groups for run in runs) else "",
        "curve_is": measured.curve_is.format(round=spoken.round),
        "estimated": words.estimated(run for runs in groups for run in runs),
        "same": f"{measured.final}," if measured.streamed else "The same accuracy",
    }

    def over(axis: Literal["round", "epsilon"], name: str) -> Figure | None:
        title, caption = (texts[name].format(**told) for texts in (TITLES, CAPTIONS))
        return curves.together(groups, labels, axis, title=title, caption=caption, claimed=claimed)

    drawn = [
        None if sweep is None else curves.over_key(sweep),
        over("round", "round"),
        over("epsilon", "claimed" if claimed else "epsilon"),
    ]
    return [*filter(None, drawn), *costs(groups, labels, MEAN)]
