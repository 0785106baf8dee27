"""The parts of a page that each regime fills in its own terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sordino.report.load import Run

Fact = tuple[str, str, str]
"""Name, value, remark."""


@dataclass(frozen=True, slots=True)
class Course:
    """A section of the page: how the run went on. Lines are one paragraph; a table has a head and rows, or pairs and no head.

    ``wordy`` tables hold sentences.
    """

    title: str
    intro: str = ""
    lines: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    wordy: bool = False


@dataclass(frozen=True, slots=True)
class Members:
    """Who took part: a line to open the table by, a note, the table."""

    summary: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Teller:
    """What a regime has to tell: facts to see first, its course, terms of its guarantee, who took part."""

    facts: Callable[[Run], list[Fact]]
    courses: Callable[[Run], list[Course]]
    terms: Callable[[Run, float | None, float | None], list[tuple[str, str]]]
    members: Callable[[Run], Members]
