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
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sordino.base.files import there
from sordino.core import regimes
from sordino.core.figures import Figure, Matrix
from sordino.core.files import locked, replace_file
from sordino.core.records import known, plain
from sordino.core.run.reading import Run, load
from sordino.report import metrics, words
from sordino.report.canvas import inline
from sordino.report.drawing import draw

PAGE = "report.html"
HOME = Path(__file__).parent
MOST_CLIENTS = 500
FEW_CLIENTS = 12
MOST_TAU = 24

Say = Callable[[str], None]


def silent(text: str) -> None:
    """Ignore what is told."""


def write(folder: Path, say: Say = silent) -> Path:
    """Write ``report.html`` into a run folder and say where it is.

    Args:
        say: is told if the log is damaged.

    Raises:
        StudyError: if ``folder`` is no run folder, or a process is writing there.
    """
    out = folder / PAGE
    with locked(folder) if folder.is_dir() else nullcontext():
        run = loaded(folder, say)
        replace_file(out, render(run).encode("utf-8", "replace"))
    return out


def loaded(folder: Path, say: Say) -> Run:
    """Return the run in a folder; ``say`` is told if its log is damaged."""
    run = load(folder)
    if run.damaged:
        say(f"{folder}: {words.ends_early(run.damaged)}")
    return run


def render(run: Run) -> str:
    """The report of one run as HTML."""
    html: str = template("page.html").render(
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
        courses=[*metrics.tables(run), *regimes.teller(run.about.regime).courses(run)],
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


def pictures(run: Run) -> list[Picture]:
    """The figures of a run, those that have something to show."""
    figures = (*regimes.teller(run.about.regime).figures(run), *metrics.figures(run))
    return [picture_of(each) for each in figures]


def picture_of(figure: Figure | Matrix) -> Picture:
    """Return a figure as a page shows it."""
    return Picture(figure.title, markup(draw(figure)), figure.caption, figure.remark)


def markup(picture: str) -> Any:
    """The SVG that we drew ourselves, marked as safe to embed."""
    from markupsafe import Markup

    return Markup(inline(picture))
