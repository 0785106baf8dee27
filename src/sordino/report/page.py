"""The page: one HTML file that opens anywhere, without a network, for as long as there are browsers.

Everything is inside it: style, pictures, the study. Names from study files and data sets are
escaped; no script runs. Equal run folders give equal bytes, so a report can be compared with
``diff`` and kept under version control.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.errors import StudyError
from sordino.report import figures, words
from sordino.report.canvas import inline
from sordino.report.load import Run, load, number
from sordino.runtime.files import replace_file

PAGE = "report.html"
MOST_CLIENTS = 500
FEW_CLIENTS = 12
MOST_CLASSES = 40
MOST_TAU = 24

MANY_CLIENTS = (
    "Examples of each label (column) at the clients (rows): the darker, the more; none is left blank. Clients are ordered by the label"
    " they hold most of. Dark steps from the upper left to the lower right mean that each client holds few labels; even columns mean"
    " evenly divided data."
)

HEAD = (
    *("run", "method", "status", "accuracy", "best", "epsilon", "budget", "delta", "accountant"),
    *("rounds", "steps", "clip", "noise", "sampling", "learning rate"),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure: title, inline SVG (safe to embed), how to read it, and what must be known about where it comes from."""

    title: str
    svg: Any
    caption: str
    mark: str = ""


def write(folder: Path) -> Path:
    """Write ``report.html`` into a run folder and say where it is.

    Raises:
        StudyError: if ``folder`` is no run folder.
    """
    out = folder / PAGE
    replace_file(out, render(load(folder)).encode("utf-8", "replace"))
    return out


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write one page that compares several runs.

    Raises:
        StudyError: if a folder is no run folder, or ``out`` cannot be written.
    """
    if not folders:
        raise StudyError("nothing to compare: give at least one run folder")
    if out.is_dir() or not out.parent.is_dir():
        raise StudyError(f"{out}: cannot be written; give a file name in a folder that exists")
    replace_file(out, render_comparison([load(folder) for folder in folders]).encode("utf-8", "replace"))
    return out


def render(run: Run) -> str:
    """The report of one run as HTML."""
    clients = list(run.about.get("clients") or [])
    html: str = template("page.html").render(
        run=run,
        about=run.about,
        status=words.status(run),
        promise=words.promise(run),
        spent=None if run.epsilon is None else words.epsilon(run),
        terms=words.terms(run),
        few_clients=FEW_CLIENTS,
        numbers=words.key_numbers(run),
        warnings=words.warnings(run),
        pictures=pictures(run),
        tau=words.tau_list(run),
        most_tau=MOST_TAU,
        clients=clients,
        classes=list(run.about.get("classes") or [])[:MOST_CLASSES],
        most_clients=MOST_CLIENTS,
        ledger=run.about.get("ledger"),
        ledger_here=(run.folder / "ledger.sqlite").exists(),
        command=shlex.quote(run.folder.resolve().name),
    )
    return html


def render_comparison(runs: Sequence[Run]) -> str:
    """Several runs on one page."""
    labels = words.labels([run.name for run in runs], [run.folder.resolve().name for run in runs])
    promises = list(zip(labels, (words.promise(run) for run in runs), strict=True))
    captions = {
        "round": "Accuracy on the test set (above) and epsilon spent (below; dashed: budgets) after each round. Look how high a curve"
        " is where its epsilon is the same.",
        "steps": "The same over local steps of one client. Steps are what privacy is paid for; rounds are what communication is paid for.",
    }
    drawn = [
        Picture(f"Over {'rounds' if over == 'round' else 'local steps'}", markup(picture), caption)
        for over, caption in captions.items()
        if (picture := figures.compared(runs, labels, over)) is not None
    ]
    html: str = template("comparison.html").render(
        title=f"{len(runs)} runs compared",
        head=HEAD,
        rows=[_cells(run, label) for run, label in zip(runs, labels, strict=True)],
        without=[label for label, promised in promises if not promised.private],
        notes=_notes(runs),
        pictures=drawn,
        promises=promises,
    )
    return html


PACE = " The dashed pace uses up steps and rounds together; above it steps run out first, below it rounds do."


def pictures(run: Run) -> list[Picture]:
    """The figures of a run, those that have something to show."""
    spent = " Below, epsilon spent by the client that spent most; it must stay under the dashed budget." if run.private else ""
    what = "Accuracy and epsilon" if run.private else "Accuracy"
    held = [client.get("labels") or [] for client in run.about.get("clients") or []]
    drawn: list[tuple[str, str | None, str, str]] = [
        (
            f"{what} over rounds",
            figures.learning(run, "round"),
            "Share of the test set classified correctly, after the rounds that were evaluated."
            + spent
            + " A round is one exchange with the server.",
            "",
        ),
        (
            f"{what} over local steps",
            None if run.of_clients else figures.learning(run, "steps"),
            "The same over local steps. Privacy is paid for by the step, communication by the round.",
            "",
        ),
        (
            "Local steps per round",
            figures.pace(run),
            "tau, the local steps that each client took in a round."
            + (
                ""
                if run.of_clients
                else " The dashed pace uses up steps and rounds together; above it steps run out first, below it rounds do."
            ),
            "",
        ),
        (
            "Clipped updates" if run.of_clients else "Clipped gradients",
            figures.share_clipped(run),
            ("Share of clients whose update was cut to the bound" if run.of_clients else "Share of gradients cut to the clipping norm")
            + ", as it was released, with noise. Near 100 % the norm is small and most of the signal is cut; near 0 % it is large and noise"
            " is wasted.",
            "",
        ),
        (
            "Signal to noise",
            figures.signal(run),
            f"Estimated length of the signal in one {'round' if run.of_clients else 'step of a client'}, divided by that of its noise;"
            f" mean of the last {figures.SMOOTH} rounds. Much below 1, it moves the model mostly at random, and only the sum over clients"
            " and rounds learns. 0 means that no signal was seen above the noise.",
            "",
        ),
        (
            "Late and lost answers",
            figures.absences(run),
            "Late answers came after their round was closed: paid for, not used. Lost clients never answered:"
            " the ledger counts them as if they had.",
            "",
        ),
        (
            "Virtual time",
            figures.clock(run),
            "Simulated seconds until each round was closed. A steep piece is a round that waited for somebody slow.",
            "",
        ),
        (
            "Who holds what",
            figures.partition_figure(held, list(run.about.get("classes") or [])) if any(held) else None,
            MANY_CLIENTS
            if len(held) > figures.MOST_BUBBLES
            else "Examples of each label at each client: the larger a dot's area, the more. Rows that look alike mean evenly divided data.",
            "known because this is a simulation, not released by clients",
        ),
    ]
    return [Picture(title, markup(picture), caption, mark) for title, picture, caption, mark in drawn if picture is not None]


def _cells(run: Run, label: str) -> list[str]:
    about = run.about
    best = max(run.values("accuracy"), default=None)
    numbers = [words.plain(number(about.get(key)), 6) for key in ("clip", "noise_multiplier", "sampling_rate", "learning_rate")]
    return [
        label,
        str(about.get("method", "-")),
        "done" if run.done else "not finished",
        words.percent(run.accuracy),
        words.percent(best),
        words.epsilon(run) if run.epsilon is not None or not run.private else "-",
        words.plain(run.budget, 6) if run.private else "∞",
        words.plain(number(about.get("delta")), 6) if run.private else "-",
        str(about.get("accountant", "-")) if run.private else "-",
        str(len(run.rounds)),
        str(run.steps),
        *numbers,
    ]


def _notes(runs: Sequence[Run]) -> list[str]:
    """What makes the numbers of several runs hard to compare."""
    notes = ["To choose a run by its accuracy on the same private data is itself a use of that data; no epsilon here accounts for it."]
    private = [run.about for run in runs if run.private]
    for key, what in (
        ("accountant", "accountants"),
        ("delta", "deltas"),
        ("unit", "units of privacy"),
        ("adjacency", "adjacency relations"),
    ):
        if len({str(about.get(key)) for about in private}) > 1:
            notes.append(f"The runs use different {what}: their epsilons do not mean the same.")
    return notes if len(runs) > 1 else []


def template(name: str) -> Any:
    from jinja2 import Environment, FileSystemLoader

    home = Path(__file__).parent
    rooms = Environment(loader=FileSystemLoader(home), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return rooms.get_template(name)


def markup(picture: str) -> Any:
    """The SVG that we drew ourselves, marked as safe to embed."""
    from markupsafe import Markup

    return Markup(inline(picture))
