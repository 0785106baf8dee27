"""What a run seals in its ledger when it ends: digests of its files, and what ``run.json`` says of it.

A seal releases nothing and costs nothing. It makes everything that a folder says part of the chain, so that a number, a
sentence, a row of the log or a weight that is changed afterwards no longer fits.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.build.begun import differences, held, plain
from sordino.errors import ResumeError, StudyError
from sordino.files import open_below

MODEL = "model.safetensors"
FILES = ("study.toml", "environment.json", "rounds.jsonl", MODEL)
_PIECE = 1 << 20

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent when a run ended; epsilon.

    Attributes:
        each: by each unit of the run, the highest among its records.
        test: by the rows of a test set that is paid for.
    """

    each: tuple[float, ...]
    test: float | None


def facts(folder: Path, done: Mapping[str, Any], model: bytes, spent: Spent) -> Row:
    """The seal of a run that ended with ``done`` in its ``run.json`` and this model, which need not be written yet."""
    files = {name: file_digest(folder / name) for name in FILES if name != MODEL and (folder / name).exists()}
    files[MODEL] = hashlib.sha256(model).hexdigest()
    return {"files": files, "run": run(done), "spent": plain({"each": spent.each, "test": spent.test})}


def run(done: Mapping[str, Any]) -> Row:
    """What a seal holds of ``run.json``: all but its place in the ledger, which follows, and how long it took."""
    found = held({key: value for key, value in done.items() if key != "ledger"})
    found.pop("result.seconds", None)
    return found


def spent(folder: Path, before: Mapping[str, Any]) -> Spent:
    """What the units had spent when the run was sealed.

    Raises:
        ResumeError: if the seal does not say it.
    """
    try:
        found = before["spent"]
        test = found["test"]
        return Spent(tuple(float(each) for each in found["each"]), None if test is None else float(test))
    except (KeyError, TypeError, ValueError):
        raise ResumeError(
            f"{folder}: the seal in its ledger does not say what was spent when it ended. Restore the ledger from a copy"
        ) from None


def refuse_another_end(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Hold how a run ends against how it ended before, and name what differs.

    Raises:
        ResumeError: if anything does.
    """
    lines = [f"{folder / 'run.json'}: {each}" for each in differences(before.get("run", {}), now["run"])]
    lines += [f"{folder / name}: not the file that the run ended with" for name in changed(before, now["files"])]
    if lines:
        raise ResumeError("\n".join(lines) + "\nThe run had ended and was sealed in its ledger. Restore the folder from a copy")


def changed(before: Mapping[str, Any], files: Mapping[str, str]) -> list[str]:
    """Names of the files whose digests differ from the sealed ones."""
    sealed = before.get("files")
    known = sealed if isinstance(sealed, dict) else {}
    return [name for name in dict.fromkeys((*known, *files)) if known.get(name) != files.get(name)]


def file_digest(path: Path, late: Callable[[], None] = lambda: None, most: int | None = None) -> str:
    """SHA-256 (hex) of a plain file; ``late`` is asked now and then and may stop it.

    Raises:
        StudyError: if it is no plain file, has more than ``most`` bytes, or cannot be read.
    """
    found = hashlib.sha256()
    try:
        with open_below(path.parent, path.name) as file:
            if most is not None and (size := os.fstat(file.fileno()).st_size) > most:
                raise StudyError(f"{path}: {size} bytes; a file of this kind has at most {most}. Restore it from a copy")
            while piece := file.read(_PIECE):
                found.update(piece)
                late()
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror}). Restore it from a copy") from error
    return found.hexdigest()
