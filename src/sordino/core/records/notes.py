"""What a run notes in its ledger: its beginning and its end, as JSON holds them.

Large values are digests.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sordino.core.records.base import Real, Record


class Begin(Record, frozen=True, kw_only=True):
    """What a run begins with.

    Attributes:
        study: calibrated, as TOML, without ``[execution]``.
        environment: ``environment.json``.
        promise: what ``run.json`` says before the run ends, by dotted key.
        key: digest of its secret key; absent without one.
    """

    study: str
    environment: dict[str, object]
    promise: dict[str, object]
    key: str | UnsetType = UNSET


class Spent(Record, frozen=True, kw_only=True):
    """What was spent when a run ended; epsilon.

    Attributes:
        each: by each unit of the run, the highest among its records.
        test: by the rows of a test set that is paid for.
    """

    each: tuple[Real, ...]
    test: Real | None


class Seal(Record, frozen=True, kw_only=True):
    """How a run ended: files' digests by name, ``run.json`` by dotted key, what was spent."""

    files: dict[str, str]
    run: dict[str, object]
    spent: Spent
