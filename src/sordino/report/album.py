"""Which pictures a run gets, with their titles and how to read them; each regime has its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sordino.core import regimes
from sordino.core.figures import Figure, Matrix
from sordino.core.run.reading import Run
from sordino.report import judged
from sordino.report.canvas import inline
from sordino.report.drawing import draw


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure: title, inline SVG (safe to embed), how to read it, and where it comes from."""

    title: str
    svg: Any
    caption: str
    mark: str = ""


def pictures(run: Run) -> list[Picture]:
    """The figures of a run, those that have something to show."""
    shown = (*regimes.teller(run.about.regime).pictures(run), *judged.figures(run))
    found = []
    for each in shown:
        if isinstance(each, Figure | Matrix):
            found.append(Picture(each.title, markup(draw(each)), each.caption, each.remark))
            continue
        title, picture, caption, mark = each
        if picture is not None:
            found.append(Picture(title, markup(picture), caption, mark))
    return found


def markup(picture: str) -> Any:
    """The SVG that we drew ourselves, marked as safe to embed."""
    from markupsafe import Markup

    return Markup(inline(picture))
