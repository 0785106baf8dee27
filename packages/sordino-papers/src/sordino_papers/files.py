"""Where the catalogue lies, and what is in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sordino.extend.commands import StudyError, did_you_mean
from sordino_papers.entry import Entry, read

CATALOGUE = Path(__file__).parent / "catalogue"


def names(home: Path = CATALOGUE) -> list[str]:
    """Every entry's name, in order: ``ali-dpfl-table-2`` before ``ali-dpfl-table-10``."""
    return sorted((path.stem for path in home.glob("*.toml")), key=_order)


def entries(home: Path = CATALOGUE) -> list[Entry]:
    """Every entry; raises as :func:`.entry.read`."""
    return [read(home / f"{name}.toml") for name in names(home)]


def chosen(asked: Sequence[str], home: Path = CATALOGUE) -> list[Entry]:
    """The entries that were asked for: names, beginnings of names (``mapa``), or ``all``.

    Raises:
        StudyError: if a name stands for none.
    """
    known = names(home)
    found: dict[str, None] = {}
    for word in asked:
        fitting = [each for each in known if word in ("all", each)] or [
            each for each in known if each.startswith(f"{word}-")
        ]
        if not fitting:
            papers = dict.fromkeys(name.rsplit("-", 2)[0] for name in known)
            written = word.lower().replace("_", "-").strip("-")
            meant = did_you_mean(written, [*known, *papers, "all"])
            raise StudyError(
                f"{word!r} is no entry of the catalogue{meant or '.'} "
                "`sordino reproduce LIST` names all"
            )
        found |= dict.fromkeys(fitting)
    return [read(home / f"{name}.toml") for name in found]


def _order(name: str) -> tuple[tuple[int, str | int], ...]:
    return tuple((0, int(word)) if word.isdigit() else (1, word) for word in name.split("-"))
