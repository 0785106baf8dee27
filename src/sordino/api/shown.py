"""Records as data frames, and as a notebook shows them: tables and figures in one piece of HTML.

Nothing is fetched and no script runs. Names from files are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.base.errors import StudyError

if TYPE_CHECKING:
    import pandas
    import polars


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


def _part(name: str, *given: object) -> str:
    """One of the parts in ``notebook.html``."""
    from sordino.report.page import template

    found: str = getattr(template("notebook.html", Path(__file__).parent).module, name)(*given)
    return found


def page(title: str, *parts: str) -> str:
    """Parts below a title."""
    return _part("page", title, parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words."""
    return _part("table", head, rows)


def sentences(told: Sequence[str]) -> str:
    """A paragraph each."""
    return _part("sentences", told)


def picture(title: str, svg: str, caption: str) -> str:
    """A figure that was drawn here."""
    return _part("picture", title, svg, caption)
