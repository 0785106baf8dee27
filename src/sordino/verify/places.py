"""Where ledgers lie, and what files beside them and notes say: limited, and never trusted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sordino.base.errors import LedgerError, StudyError
from sordino.base.files import read_below
from sordino.base.parsing import json_of, toml_of
from sordino.core import begun
from sordino.privacy import Ledger, accountant
from sordino.privacy.chain import BEGIN, Note
from sordino.privacy.session import refuse_closed
from sordino.verify.found import Terms

ABOUT, STUDY = "run.json", "study.toml"
LARGEST = 64 << 20  # bytes of a JSON or TOML file that is read whole

Row = dict[str, Any]


def places(path: Path) -> list[Path]:
    """The ledger files at a path: the file itself, that of a run folder, or all of a folder.

    Raises:
        StudyError: if there is none.
        LedgerError: if a folder of them may not be read.
    """
    if path.is_file():
        return [path]
    if (path / begun.LEDGER).exists():
        return [path / begun.LEDGER]
    if (path / ABOUT).exists():
        about, folder = table(path / ABOUT, json_of), data_folder(path)
        if folder is not None:
            refuse_closed(folder)
        found = (
            []
            if folder is None
            else [
                each
                for each in sorted(folder.glob("*.sqlite"))
                if _knows(each, str(about.get("run")))
            ]
        )
        if not found:
            where = f" (privacy.ledger in its {STUDY} names {folder})" if folder is not None else ""
            raise StudyError(
                f"{path}: it holds no {begun.LEDGER}, and no ledger of its run was found "
                f"where data is kept{where}"
            )
        return found
    found = sorted(path.glob("*.sqlite")) if path.is_dir() else []
    if not found:
        raise StudyError(f"{path}: there is no run folder, ledger file or folder of ledgers here")
    return found


def data_folder(folder: Path) -> Path | None:
    """Where a run folder's study keeps the ledgers of its data; None if nowhere."""
    privacy = table(folder / STUDY, toml_of).get("privacy")
    kept = privacy.get("ledger") if isinstance(privacy, dict) else None
    return (
        Path(kept).expanduser()
        if isinstance(kept, str) and kept != "run" and "\0" not in kept
        else None
    )


def _knows(path: Path, run: str) -> bool:
    try:
        with Ledger.open(path, readonly=True) as ledger:
            return ledger.noted(BEGIN, run) is not None
    except LedgerError:
        return False


def table(path: Path, read: Callable[[str], Any]) -> Row:
    """The table in a JSON or TOML file.

    Raises:
        StudyError: if there is none that can be read.
    """
    try:
        found = read(read_below(path.parent, path.name, most=LARGEST).decode())
    except (ValueError, RecursionError, OSError) as error:
        raise StudyError(
            f"{path}: cannot be read ({str(error)[:200]}). Restore it from a copy"
        ) from error
    if not isinstance(found, dict):
        raise StudyError(
            f"{path}: it must hold one table of keys and values. Restore it from a copy"
        )
    return found


def terms_of(note: Note) -> tuple[Row, Terms]:
    """The study that a run began with, and the terms of its promise.

    Raises:
        LedgerError: if the note holds none.
    """
    try:
        study = toml_of(str(note.facts["study"]))
        privacy = study["privacy"]
        delta = float(privacy.get("delta", 1e-5))
        found = Terms(delta, accountant(str(privacy["accountant"])).name)
        if not 0.0 < delta < 1.0:
            raise ValueError(f"delta = {delta}")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, StudyError) as error:
        raise LedgerError(
            f"entry {note.seq} (begin {note.name[:80]}) holds no study that can be read: {error!r}"
        ) from error
    return study, found
