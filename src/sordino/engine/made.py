"""When a run was made and on which data: what ``run.json`` says of it, which promises nothing."""

from __future__ import annotations

import datetime as dt
import hashlib

from msgspec import UNSET, UnsetType

from sordino.engine.built import ELSEWHERE, Built
from sordino.fingerprints import KEYED


def now() -> str:
    """The time, UTC, ISO 8601, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def data_of(built: Built) -> str | UnsetType:
    """One SHA-256 over the fingerprints of published data in a ledger of the run's own.

    Absent of private data, whose digest would tell guesses of its rows apart.
    """
    if built.study.privacy.ledger != "run":
        return UNSET
    prints = built.simulation.vault.ledger.units()
    if not prints or any(each.startswith((KEYED, *ELSEWHERE)) for each in prints.values()):
        return UNSET
    told = "\n".join(f"{unit} {each}" for unit, each in sorted(prints.items()))
    return hashlib.sha256(told.encode()).hexdigest()
