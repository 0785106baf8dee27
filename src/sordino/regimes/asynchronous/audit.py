"""Canaries at one edge of a study in which gradients are applied as they arrive."""

from __future__ import annotations

from collections.abc import Sequence

from sordino.audit import canaries as examples
from sordino.audit.intervals import Row
from sordino.regimes.asynchronous.study import AsynchronousStudy


def rows(study: AsynchronousStudy, canaries: int, name: str) -> Sequence[Row]:
    """Return the row of one study: an adversary sees all that the first edge sends."""
    examples.refuse(study)
    seen = f"{name}, every gradient seen"
    return [lambda alpha: examples.white_box(study, canaries, alpha, seen)]


ROWS = rows
