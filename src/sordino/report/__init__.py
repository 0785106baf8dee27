"""One page that shows a run: its guarantee first, then what it learned and what it spent."""

from __future__ import annotations

from sordino.report.page import write, write_comparison

__all__ = ["write", "write_comparison"]
