"""The intervals of an audit, for a record: what attacks found from below."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_below, readable
from sordino.base.frozen import Frozen
from sordino.deployment.document import Attack, Point


class _Row(Frozen):
    name: str
    unit: str
    how: str
    low: float
    plain: float
    ledger: float | None
    delta: float


class _Printed(Frozen):
    """The fields that are read of the JSON of ``sordino audit``."""

    attack: str
    confidence: float
    intervals: tuple[_Row, ...]
    verdicts: tuple[str, ...]
    own_examples: bool = True


def read(path: Path) -> tuple[Attack, ...]:
    """Read what ``sordino audit --json`` printed.

    Raises:
        StudyError: if it cannot be read, or the attack looked at the study's own examples.
    """
    with readable(path, remedy="Give what `sordino audit --json` has printed"):
        found = msgspec.json.decode(read_below(path.parent, path.name, most=MIB), type=_Printed)
        rows = list(zip(found.intervals, found.verdicts, strict=True))
    if found.own_examples and found.attack != "mechanism":
        raise StudyError(
            f"{path}: this attack looked at the study's own examples. Its result is a release that "
            "is in no ledger, and a record is for others. Attack the mechanism, or the same study "
            "on public rows; what else was found, say in the answers"
        )
    return tuple(
        Attack(
            name=row.name,
            unit=row.unit,
            how=row.how,
            low=max(row.low, 0.0),
            plain=max(row.plain, 0.0),
            ledger=row.ledger,
            delta=row.delta,
            confidence=found.confidence,
            verdict=verdict,
        )
        for row, verdict in rows
    )


def point(attacks: tuple[Attack, ...]) -> Point:
    """Return whether attacks contradict what ledgers say."""
    wrong = [each.name for each in attacks if each.verdict in ("BROKEN", "not caught")]
    if wrong:
        return Point("Attacks", "open", f"A claim is contradicted: {', '.join(wrong)}.")
    return Point(
        "Attacks",
        "assumed",
        f"{len(attacks)} attacks contradict no ledger. A lower bound below epsilon proves nothing: "
        "another attack may reach further.",
    )
