"""What a regime tells of a run on its page: pictures, facts, course, and its guarantee."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sordino.engine.runs import Run

Fact = tuple[str, str, str]
"""Name, value, remark."""

Drawn = tuple[str, str | None, str, str]
"""Title, picture (SVG) if there is one, how to read it, a mark of where it comes from."""


@dataclass(frozen=True, slots=True)
class Course:
    """A section of the page: how the run went on.

    Lines are one paragraph; a table has a head and rows, or pairs and no head.

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
    """What a regime tells: facts to see first, course, guarantee, who took part, pictures."""

    facts: Callable[[Run], list[Fact]]
    courses: Callable[[Run], list[Course]]
    terms: Callable[[Run, float | None, float | None], list[tuple[str, str]]]
    members: Callable[[Run], Members]
    pictures: Callable[[Run], Iterable[Drawn]]
