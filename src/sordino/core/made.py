"""When a run was made and on which data: what ``run.json`` says of it, which promises nothing.

Of time it says the second of the beginning and of the end, and how many seconds lie between; what
takes longer where a secret is larger is not told more finely. A trial of a private choice says
nothing of time: with it, whoever has the chosen run would estimate how many trials there were.
"""

from __future__ import annotations

import datetime as dt
import hashlib

from msgspec import UNSET, UnsetType

from sordino.base.fingerprints import KEYED
from sordino.core.built import ELSEWHERE, Built
from sordino.core.study.base import Study


def dated(study: Study) -> bool:
    """Whether a run may say when it was and how long it took."""
    return study.tuned is None or study.tuned.source != "private"


def now(study: Study) -> str | UnsetType:
    """The time, UTC, ISO 8601, to the second; absent where a run may not say it."""
    if not dated(study):
        return UNSET
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def seconds_of(study: Study, seconds: float) -> int | UnsetType:
    """How long a run took, in whole seconds; absent where it may not say it."""
    return round(seconds) if dated(study) else UNSET


def data_of(built: Built) -> str | UnsetType:
    """One SHA-256 over the fingerprints of published data in a ledger of the run's own.

    Absent of private data, whose digest would tell guesses of its rows apart.
    """
    if built.study.privacy.ledger != "run":
        return UNSET
    prints = built.simulation.ledgers.ledger.units()
    if not prints or any(each.startswith((KEYED, *ELSEWHERE)) for each in prints.values()):
        return UNSET
    told = "\n".join(f"{unit} {each}" for unit, each in sorted(prints.items()))
    return hashlib.sha256(told.encode()).hexdigest()
