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
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sordino.base.files import there
from sordino.core import regimes
from sordino.core.files import locked, replace_file, said_clearly
from sordino.core.records import Owners, at, known, number, plain
from sordino.core.run.reading import Run, load
from sordino.core.statements import Course, Figure, Matrix, Panel, Series, look
from sordino.report import words
from sordino.report.canvas import clean, inline
from sordino.report.drawing import draw, export

PAGE = "report.html"
HOME = Path(__file__).parent
MOST_CLIENTS = 500
FEW_CLIENTS = 12
MOST_TAU = 24


def write(folder: Path) -> Path:
    """Write ``report.html`` into a run folder and say where it is.

    Raises:
        StudyError: if ``folder`` is no run folder, or a process is writing there.
    """
    out = folder / PAGE
    with locked(folder) if folder.is_dir() else nullcontext():
        replace_file(out, render(load(folder)).encode("utf-8", "replace"))
    return out


def render(run: Run) -> str:
    """The report of one run as HTML."""
    html: str = template("page.html").render(
        title=run.name,
        run=run,
        about=plain(run.about),
        environment=plain(run.environment),
        status=words.status(run),
        promise=words.promise(run),
        spent=None if run.epsilon is None else words.epsilon(run),
        terms=words.terms(run),
        origin=words.origin(run),
        few_clients=FEW_CLIENTS,
        numbers=words.key_numbers(run),
        words=run.vocabulary,
        courses=[*model_courses(run), *regimes.teller(run.about.regime).courses(run)],
        most_lines=MOST_TAU,
        warnings=words.warnings(run),
        pictures=pictures(run),
        members=regimes.teller(run.about.regime).members(run),
        most_clients=MOST_CLIENTS,
        ledger=None if (place := known(run.about.ledger)) is None else plain(place),
        ledger_here=there(run.folder, "ledger.sqlite"),
    )
    return html


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


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure: title, inline SVG (safe to embed), how to read it, and where it comes from."""

    title: str
    svg: Any
    caption: str
    mark: str = ""


def figures(run: Run) -> Iterator[Figure | Matrix]:
    """The figures of a run, those that have something to show."""
    yield from regimes.teller(run.about.regime).figures(run)
    yield from model_figures(run)


def pictures(run: Run) -> list[Picture]:
    """The figures of a run as its page shows them."""
    return [picture_of(each) for each in figures(run)]


def write_figures(folder: Path, out: Path, kind: str) -> list[Path]:
    """Write each figure of a run into a folder of its own, which is made; the files.

    Args:
        kind: "svg", "pdf" or "png".

    Raises:
        StudyError: if ``folder`` is no run folder, or of another kind.
    """
    run = load(folder)
    with said_clearly(out):
        out.mkdir(parents=True, exist_ok=True)
    found = {out / f"{each.key}.{kind}": each for each in figures(run)}
    for path, each in found.items():
        replace_file(path, export(each, kind))
    return list(found)


def picture_of(figure: Figure | Matrix) -> Picture:
    """Return a figure as a page shows it."""
    from markupsafe import Markup

    safe = Markup(inline(draw(figure)))  # we drew it ourselves
    return Picture(figure.title, safe, figure.caption, figure.remark)


# Quality of the model that a run hands out, as it suits the task

MOST_BARS, MOST_CELLS = 40, 30
"""Classes whose bars are drawn, and whose confusions are."""
MOST_SERVED = 60
SHARES = (
    ("accuracy", "accuracy", "rows that are told right"),
    ("balanced_accuracy", "balanced accuracy", "mean over classes of the rows told right"),
    ("f1", "F1, mean over classes", "harmonic mean of precision and recall"),
    ("auroc", "area under the ROC curve", "a row of the class scores above one that is not"),
    ("average_precision", "average precision", "precision, over all thresholds"),
    ("calibration_error", "calibration error", "between how sure and how often right; 0 is best"),
)
ERRORS = (
    ("rmse", "root mean squared error", "in units of the label"),
    ("mae", "mean absolute error", "in units of the label"),
    ("r2", "R²", "1 is perfect; 0 is what the mean of the test labels gives"),
)
PRIVATE = (
    "Its test rows are private. Only their noisy accuracy is released, and its price is paid: "
    "every other metric, and every share of a class or a client, would have a price of its own."
)
BY = {
    "rows": "on test rows of its own",
    "labels": "expected: the recall of each class, weighted by how often the {client} has it",
}


def model_courses(run: Run) -> Iterator[Course]:
    """Tables of the final model's metrics; a sentence where its test rows are private."""
    found = run.metrics
    if found is None:
        test = at(run.about.facts, "test")
        if getattr(test, "kind", None) == "private share":
            yield Course("The final model on the test set", PRIVATE)
        return
    rows = [
        *((name, words.percent(number(getattr(found, key))), what) for key, name, what in SHARES),
        *((name, words.plain(getattr(found, key)), what) for key, name, what in ERRORS),
        ("loss", words.plain(found.loss), "mean over rows"),
    ]
    yield Course(
        "The final model on the test set",
        f"Measured on {known(found.rows)} public rows, without noise.",
        head=("metric", "value", "what it is"),
        rows=[row for row in rows if row[1] != "-"],
        wordy=True,
    )
    if (classes := known(found.classes)) and len(classes) <= MOST_BARS:
        yield Course(
            "By class",
            head=("class", "test rows", "precision", "recall", "F1", "ROC area"),
            rows=[
                (
                    clean(known(each.name) or "", 60),
                    str(known(each.rows)),
                    *(
                        words.percent(number(share))
                        for share in (each.precision, each.recall, each.f1, each.auroc)
                    ),
                )
                for each in classes
            ],
        )
    if (clients := known(found.clients)) is not None:
        yield _served(run, clients)


def _served(run: Run, found: Owners) -> Course:
    """Return the table of how evenly clients are served."""
    spoken, share = run.vocabulary, run.vocabulary.accuracy.percent
    told = words.percent if share else words.plain
    name = "accuracy" if share else "root mean squared error"
    how = BY.get(known(found.by) or "", "").format(client=spoken.client)
    each = sorted(
        known(found.each) or (), key=lambda one: number(one.value) or 0.0, reverse=not share
    )
    return Course(
        f"How well each {spoken.client} is served",
        f"{name.capitalize()} {how}; the worst first. Mean of the tenth that is served worst: "
        f"{told(number(found.worst_decile))}; standard deviation over {spoken.clients}: "
        f"{told(number(found.spread))}."
        + (f" The first {MOST_SERVED} are shown." if len(each) > MOST_SERVED else ""),
        head=(spoken.client, "rows", name),
        rows=[
            (clean(known(one.name) or "", 60), str(known(one.rows)), told(number(one.value)))
            for one in each[:MOST_SERVED]
        ],
    )


def model_figures(run: Run) -> Iterator[Figure | Matrix]:
    """Recall and precision of each class, and which classes are taken for which."""
    found = run.metrics
    classes = () if found is None else known(found.classes) or ()
    if found is None or not classes:
        return
    names = [clean(known(each.name) or "", 24) for each in classes]
    if len(classes) <= MOST_BARS:
        series = [
            Series(
                kind="bar",
                name=name,
                colour=look(i)[0],
                x=range(len(names)),
                y=[100 * (number(getattr(each, name)) or 0.0) for each in classes],
            )
            for i, name in enumerate(("recall", "precision"))
        ]
        yield Figure(
            key="by-class",
            title="Recall and precision of each class",
            caption="Recall: of the test rows of a class, those that are taken for it. Precision: "
            "of the rows taken for it, those that are of it.",
            label="Recall and precision of each class",
            x="test rows (%)",
            lying=True,
            names=names,
            panels=[Panel(label="", limits=(0.0, 100.0), series=series)],
        )
    matrix = known(found.confusion) or ()
    if len(classes) <= MOST_CELLS and matrix:
        yield Matrix(
            key="confusion",
            title="Confusion matrix",
            caption="Each row is a true class: the darker a cell, the larger the share of its test "
            "rows that is taken for the class of the column. On the diagonal they are told right.",
            label="Test rows of each true class, by the class they are taken for",
            rows=names,
            columns=names,
            counts=matrix,
            x="taken for",
            y="true class",
            kind="shares",
        )
