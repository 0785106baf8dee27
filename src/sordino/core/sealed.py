"""What a run seals in its ledger when it ends: digests of its files, and ``run.json``.

A seal releases nothing and costs nothing. It makes everything that a folder says part of the chain,
so that a number, a sentence, a row of the log or a weight that is changed afterwards no longer
fits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from sordino.base.errors import ResumeError, StudyError
from sordino.base.files import open_below
from sordino.core import checkpoint
from sordino.core.begun import differences, held
from sordino.core.built import Built
from sordino.core.recorder import CHECKPOINTS, METRICS
from sordino.core.records import Misfit, Seal, Spent, fitted
from sordino.privacy import accountant

MODEL = "model.safetensors"
CHECKPOINT = f"{CHECKPOINTS}/{checkpoint.NAME}"
FILES = ("study.toml", "environment.json", "rounds.jsonl", METRICS, MODEL, CHECKPOINT)
"""Metrics are there only where a model was measured on public rows. Reports are not among them:
they are written again whenever somebody asks.
"""
LATER = (METRICS, CHECKPOINT)
"""Files that a seal may not have: then nothing is said of them."""
_PIECE = 1 << 20


def facts(folder: Path, done: Mapping[str, object], model: bytes, spent: Spent) -> Seal:
    """The seal of a run that ended with ``done`` and this model, which may be written later."""
    files = {
        name: file_digest(folder, name)
        for name in FILES
        if name != MODEL and (folder / name).exists()
    }
    files[MODEL] = hashlib.sha256(model).hexdigest()
    return Seal(files=files, run=run(done), spent=spent)


def spent_now(built: Built) -> Spent:
    """What each unit of the ledger has spent, the highest of its records; each history once."""
    sim = built.simulation
    histories = {unit: sim.ledgers.histories(unit) for unit in dict.fromkeys(sim.units)}
    chosen = accountant(sim.budget.accountant)
    prices = {
        history: chosen.epsilon(history, sim.budget.delta)
        for history in {each for own in histories.values() for each in own}
    }
    each = tuple(
        max((prices[history] for history in own), default=0.0) for own in histories.values()
    )
    return Spent(each=each, test=None if built.evaluation is None else built.evaluation.spent())


def run(done: Mapping[str, object]) -> dict[str, object]:
    """What a seal holds of ``run.json``: all but the later place in the ledger, and the clock's."""
    found = held({key: value for key, value in done.items() if key not in ("ledger", "ended")})
    found.pop("result.seconds", None)
    return found


def read(folder: Path, facts: Mapping[str, object]) -> Seal:
    """What the seal in a ledger says of how a run ended, and of what its units had spent then.

    Raises:
        ResumeError: if it lacks a part.
    """
    try:
        return fitted(facts, Seal)
    except Misfit as error:
        raise ResumeError(
            f"{folder}: the seal in its ledger does not say how it ended, or what was spent "
            f"then ({error}). Restore the ledger from a copy"
        ) from error


def refuse_another_end(folder: Path, before: Seal, now: Seal) -> None:
    """Hold how a run ends against how it ended before, and name what differs.

    Raises:
        ResumeError: if anything does.
    """
    lines = [f"{folder / 'run.json'}: {each}" for each in differences(before.run, now.run)]
    lines += [
        f"{folder / name}: not the file that the run ended with"
        for name in changed({"files": before.files}, now.files)
    ]
    if lines:
        raise ResumeError(
            "\n".join(lines)
            + "\nThe run had ended and was sealed in its ledger. Restore the folder from a copy"
        )


def changed(before: Mapping[str, object], files: Mapping[str, str]) -> list[str]:
    """Names of the files whose digests differ from the sealed ones."""
    sealed = before.get("files")
    known = sealed if isinstance(sealed, dict) else {}
    return [name for name in dict.fromkeys((*known, *files)) if known.get(name) != files.get(name)]


def file_digest(folder: Path, name: str, late: Callable[[], None] = lambda: None) -> str:
    """SHA-256 (hex) of a plain file below a folder; ``late`` is asked at times, and may stop it.

    Raises:
        StudyError: if it is no plain file, or cannot be read.
    """
    found = hashlib.sha256()
    try:
        with open_below(folder, *name.split("/")) as file:
            while piece := file.read(_PIECE):
                found.update(piece)
                late()
    except OSError as error:
        raise StudyError(
            f"{folder / name}: cannot be read ({error.strerror}). Restore it from a copy"
        ) from error
    return found.hexdigest()
