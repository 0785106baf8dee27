"""One page that shows a run: its guarantee first, then what it learned and what it spent."""

from __future__ import annotations

from sordino.report.comparisons import write_comparison
from sordino.report.page import write

__all__ = ["write", "write_comparison"]
