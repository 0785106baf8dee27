"""What a program cannot know of a deployment, asked of the people who answer for it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sordino.base.errors import StudyError
from sordino.base.files import read_below, readable, toml_of

MOST = 1 << 20
SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")

QUESTIONS: dict[str, str] = {
    "name": "What is the model called?",
    "description": "What does the model do, in two or three sentences?",
    "intended_use": "What is it for?",
    "region": "Which region do the data describe, and whose law applies?",
    "published": "When was the model published first (YYYY-MM-DD)?",
    "sector": f"One of {', '.join(SECTORS)}; leave empty if none fits.",
    "sources": "Where can people read more, or get the model?",
    "justification": "Why this epsilon, this delta and this unit? Who decided, and how?",
    "outside": "What was done with the same data outside of the ledger: looking at it, cleaning "
    "it, choosing features, training other models, publishing figures?",
    "tuning": "How were clip, learning rate and the other constants chosen?",
    "reuse": "Will the data be used or the model be trained again? When does a budget begin anew?",
    "collection": "How were the data collected, and did people agree to this use?",
    "security": "Who can read the raw data, the keys and the run folders? How are they protected?",
    "audit": "Was the run attacked (`sordino audit`), and what did that show?",
    "harm": "Who is harmed by a wrong answer, and was accuracy compared between groups?",
}


class Answers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
