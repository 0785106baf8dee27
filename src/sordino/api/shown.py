"""Records as data frames, and as a notebook shows them: tables and figures in one piece of HTML.

Nothing is fetched and no script runs. Names from files are escaped.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sordino.base.errors import StudyError

if TYPE_CHECKING:
    import pandas
    import polars

_STYLE = (
    "overflow-x:auto;max-width:60em;font-family:system-ui,sans-serif;"
    "color:var(--jp-content-font-color1,inherit)"
)
_CELL = "text-align:left;padding:.15em .8em .15em 0;vertical-align:top"


def frame(rows: Sequence[Mapping[str, Any]]) -> polars.DataFrame:
    """A row for each record, a column for each key that any of them has."""
    import polars

    keys = list(dict.fromkeys(key for row in rows for key in row))
    return polars.DataFrame({key: [row.get(key) for row in rows] for key in keys}, strict=False)


class Tabular:
    """A record with rows, as data frames."""

    def to_polars(self) -> polars.DataFrame:
        """Return the rows."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """Return the same rows as pandas has them.

        Raises:
            StudyError: if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise StudyError(
                "pandas is not installed: `pip install pandas`, or take .to_polars()"
            ) from None
        return pandas.DataFrame(self.to_polars().to_dict(as_series=False))


def page(title: str, *parts: str) -> str:
    """Parts below a title."""
    head = f"<strong>{html.escape(title)}</strong>" if title else ""
    return f'<div style="{_STYLE}">{head}{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words."""
    names = "".join(f'<th scope="col" style="{_CELL}">{html.escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<table style="border-collapse:collapse"><thead><tr>{names}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def sentences(told: Sequence[str]) -> str:
    """A paragraph each."""
    return "".join(f"<p>{html.escape(each)}</p>" for each in told)


def picture(title: str, svg: str, caption: str) -> str:
    """A figure that was drawn here."""
    return (
        f'<figure style="margin:1em 0;max-width:42em"><figcaption><em>{html.escape(title)}.</em> '
        f"{html.escape(caption)}</figcaption>{svg}</figure>"
    )
