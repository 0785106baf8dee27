"""Which pictures a run gets, with their titles and how to read them; each regime has its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sordino.core import regimes
from sordino.core.runs import Run
from sordino.report import judged
from sordino.report.canvas import inline

EVALUATED = "{share}, after the {rounds} that were evaluated."
SPENT = (
    " Below, epsilon spent by the {client} that spent most; it must stay under the dashed budget."
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure: title, inline SVG (safe to embed), how to read it, and where it comes from."""

    title: str
    svg: Any
    caption: str
    mark: str = ""


def pictures(run: Run) -> list[Picture]:
    """The figures of a run, those that have something to show."""
    drawn = (*regimes.teller(run.about.regime).pictures(run), *judged.pictures(run))
    return [
        Picture(title, markup(picture), caption, mark)
        for title, picture, caption, mark in drawn
        if picture is not None
    ]


def measured(run: Run) -> str:
    """What a curve over the course of a run shows: the start of a title."""
    measure = run.vocabulary.accuracy
    if not run.values(measure.key):
        return "Epsilon"
    name = measure.told[:1].upper() + measure.told[1:]
    return f"{name} and epsilon" if run.private else name


def evaluated(run: Run) -> str:
    """How to read such a curve."""
    words = run.vocabulary
    if not run.values(words.accuracy.key):
        return (
            f"Epsilon spent by the {words.client} that spent most; it must stay under the dashed "
            "budget."
        )
    return EVALUATED.format(share=words.accuracy.share, rounds=words.rounds) + (
        SPENT.format(client=words.client) if run.private else ""
    )


def markup(picture: str) -> Any:
    """The SVG that we drew ourselves, marked as safe to embed."""
    from markupsafe import Markup

    return Markup(inline(picture))
