"""The page: one HTML file that opens anywhere, without a network, as long as browsers exist.

Everything is inside it: style, pictures, the study. Names from study files and data sets are
escaped. One small script of ours runs, which the page names by its digest, for hover values and
downloads; the page can be read without it. Equal run folders give equal bytes, so a report can be
compared with
``diff`` and kept under version control.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from sordino.base.errors import StudyError
from sordino.base.files import there
from sordino.core.files import locked, replace_file
from sordino.core.records import at, known, number, plain
from sordino.core.run.reading import Run, load
from sordino.core.vocabulary import Vocabulary, shared
from sordino.report import costs, course, together, words
from sordino.report.album import Picture, markup, pictures

PAGE = "report.html"
HOME = Path(__file__).parent
MOST_CLIENTS = 500
FEW_CLIENTS = 12
MOST_TAU = 24

STEPS = "Steps are what privacy is paid for; rounds are what communication is paid for."
GRADIENTS = (
    "Gradients are what an edge pays for with privacy; updates are what the server makes "
    "of those of all."
)


Say = Callable[[str], None]


def _silent(text: str) -> None:
    """Tell nobody."""


def write(folder: Path, say: Say = _silent) -> Path:
    """Write ``report.html`` into a run folder and say where it is.

    Args:
        say: is told if the log is damaged.

    Raises:
        StudyError: if ``folder`` is no run folder, or a process is writing there.
    """
    out = folder / PAGE
    with locked(folder) if folder.is_dir() else nullcontext():
        run = _loaded(folder, say)
        replace_file(out, render(run).encode("utf-8", "replace"))
    return out


def _loaded(folder: Path, say: Say) -> Run:
    run = load(folder)
    if run.damaged:
        say(f"{folder}: {words.ends_early(run.damaged)}")
    return run


def write_comparison(folders: Sequence[Path], out: Path, say: Say = _silent) -> Path:
    """Write one page that compares several runs.

    Args:
        say: is told of each log that is damaged.

    Raises:
        StudyError: if a folder is no run folder, or ``out`` cannot be written.
    """
    if not folders:
        raise StudyError("nothing to compare: give at least one run folder")
    if out.is_dir() or not out.parent.is_dir():
        raise StudyError(f"{out}: cannot be written; give a file name in a folder that exists")
    runs = [_loaded(folder, say) for folder in folders]
    replace_file(out, render_comparison(runs).encode("utf-8", "replace"))
    return out


def render(run: Run) -> str:
    """The report of one run as HTML."""
    html: str = template("page.html").render(
        run=run,
        about=plain(run.about),
        environment=plain(run.environment),
        status=words.status(run),
        promise=words.promise(run),
        spent=None if run.epsilon is None else words.epsilon(run),
        terms=course.terms(run),
        origin=course.origin(run),
        few_clients=FEW_CLIENTS,
        numbers=course.key_numbers(run),
        words=run.vocabulary,
        courses=course.courses(run),
        most_lines=MOST_TAU,
        warnings=words.warnings(run),
        pictures=pictures(run),
        members=course.members(run),
        most_clients=MOST_CLIENTS,
        ledger=None if (place := known(run.about.ledger)) is None else plain(place),
        ledger_here=there(run.folder, "ledger.sqlite"),
    )
    return html


def render_comparison(runs: Sequence[Run]) -> str:
    """Several runs on one page."""
    labels = words.labels([run.name for run in runs], [run.folder.resolve().name for run in runs])
    promises = list(zip(labels, (words.promise(run) for run in runs), strict=True))
    spoken = shared(run.vocabulary for run in runs)
    captions = {
        "round": _curves(runs, spoken),
        "steps": f"The same over {spoken.steps_of_one}. {STEPS if spoken.steps_end else GRADIENTS}",
    }
    if spoken.accuracy.streamed:
        del captions["steps"]  # nothing is paid for by the activation
    drawn = [
        Picture(
            f"Over {spoken.rounds if over == 'round' else spoken.steps}", markup(picture), caption
        )
        for over, caption in captions.items()
        if (picture := together.compared(runs, labels, over)) is not None
    ]
    if (picture := costs.costs([[run] for run in runs], labels)) is not None:
        drawn.append(Picture(costs.TITLE, markup(picture), costs.CAPTION.format(mean="")))
    cells = [_cells(run, label) for run, label in zip(runs, labels, strict=True)]
    told = [set(column) != {"-"} for column in zip(*cells, strict=True)]
    html: str = template("comparison.html").render(
        title=f"{len(runs)} runs compared",
        head=[name for name, kept in zip(_head(spoken), told, strict=True) if kept],
        rows=[[cell for cell, kept in zip(row, told, strict=True) if kept] for row in cells],
        without=[label for label, promised in promises if not promised.private],
        notes=_notes(runs, labels),
        pictures=drawn,
        promises=promises,
    )
    return html


def _curves(runs: Sequence[Run], spoken: Vocabulary) -> str:
    """How to read the curves over rounds."""
    said = f"{spoken.accuracy.curve_is.format(round=spoken.round)}."
    below = (
        " Below, epsilon spent (dashed: budgets). Look how high a curve is where its epsilon "
        "is the same."
    )
    return said + (below if together.rising(runs) else "") + words.estimated(runs)


def _head(spoken: Vocabulary) -> tuple[str, ...]:
    counted = (spoken.rounds, spoken.steps.removeprefix("local "))
    return (
        *(
            "run",
            "method",
            "status",
            spoken.accuracy.told,
            "best",
            "epsilon",
            "budget",
            "delta",
            "accountant",
        ),
        *(*counted, "clip", "noise", "sampling", "learning rate", *costs.HEAD),
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
        words.epsilon(run) if run.epsilon is not None or not run.private else "-",
        words.bound(run.budget) if run.private else "∞",
        words.plain(number(about.delta), 6) if run.private else "-",
        known(about.accountant) or "-" if run.private else "-",
        str(run.number),
        str(run.steps),
        *(words.plain(number(each), 6) for each in stated),
        *costs.cells([run]),
    ]


def _notes(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """What makes the numbers of several runs hard to compare."""
    notes = [
        f"{label}: {words.ends_early(run.damaged)}"
        for run, label in zip(runs, labels, strict=True)
        if run.damaged
    ]
    if len(runs) == 1:
        return notes
    notes += [
        "To choose a run by its accuracy on the same private data is itself a use of that "
        "data; no epsilon here accounts for it."
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


@cache
def template(name: str, *above: Path) -> Any:
    """A template of this folder, or of those ``above``, which are looked into first."""
    from jinja2 import Environment, FileSystemLoader

    rooms = Environment(
        loader=FileSystemLoader([*above, HOME]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rooms.globals |= {"script": script(), "script_digest": script_digest()}
    return rooms.get_template(name)


@cache
def script() -> str:
    """The one script of a page: hover values, downloads, and where the page lies."""
    return (HOME / "page.js").read_text(encoding="utf-8")


def script_digest(text: str | None = None) -> str:
    """The source of a policy that lets this script run and no other; of a page's, if left out."""
    digest = hashlib.sha256((script() if text is None else text).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
