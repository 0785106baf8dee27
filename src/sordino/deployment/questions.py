"""The facts of a deployment that a program cannot know, asked of the people who answer for it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from sordino.base.errors import StudyError
from sordino.base.files import read_below, readable, toml_of
from sordino.base.frozen import Frozen

MOST = 1 << 20
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
QUESTIONS: dict[str, str] = WORDS["questions"]


class Answers(Frozen, forbid_unknown_fields=True):
    """Answers by the key of their question; ``curators`` publish the model, ``authors`` write the
    record.
    """

    curators: tuple[str, ...] = ()
    authors: tuple[str, ...] = ()
    name: str = ""
    description: str = ""
    intended_use: str = ""
    region: str = ""
    published: str = ""
    sector: str = ""
    sources: str = ""
    justification: str = ""
    outside: str = ""
    tuning: str = ""
    reuse: str = ""
    collection: str = ""
    security: str = ""
    audit: str = ""
    harm: str = ""


def read(path: Path) -> Answers:
    """Read answers from a TOML file.

    Raises:
        StudyError: naming the key and what is wrong.
    """
    with readable(path, remedy="`sordino record RUN --questions` prints one to fill in"):
        content = read_below(path.parent, path.name, most=MOST)
        found = msgspec.convert(toml_of(content.decode()), Answers)
    if found.sector not in ("", *SECTORS):
        raise StudyError(f"{path}: sector must be one of {', '.join(SECTORS)}, or empty")
    return found


def template() -> str:
    """A TOML file with every question, to fill in."""
    lines = [
        "# Who publishes the model, and who writes this record?",
        "curators = []",
        "authors = []",
    ]
    for key, question in QUESTIONS.items():
        lines += ["", f"# {question}", f'{key} = ""']
    return "\n".join(lines) + "\n"
