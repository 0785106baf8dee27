"""Permits for tests of what asks for them: from a ledger, as there are no others."""

from __future__ import annotations

import atexit
import math
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sordino.privacy import Budget, Charge, Event, Ledger, Permit

_BUDGET = Budget(epsilon=math.inf, delta=1e-5, accountant="rdp")


@cache
def _ledger() -> Ledger:
    folder = tempfile.TemporaryDirectory()
    ledger = Ledger.create(Path(folder.name) / "ledger.sqlite", {"client:0": "data"})

    def done() -> None:
        ledger.close()
        folder.cleanup()

    atexit.register(done)
    return ledger


@cache
def permit(event: Event, count: int = 1, number: int = 1, unit: str = "client:0") -> Permit:
    """A permit for ``count`` times the event, in round ``number``."""
    ledger = _ledger()
    ledger.register({unit: "data"})
    charge = Charge(
        unit=unit,
        event=event,
        count=count,
        why="a test",
        method="test",
        round=number,
        key=repr((unit, event, count, number)),
    )
    (found,) = ledger.charge([charge], _BUDGET)
    return found


def permits(
    price: Sequence[tuple[Event, int]], number: int = 1, unit: str = "client:0"
) -> list[Permit]:
    """Permits for a price, in round ``number``."""
    return [permit(event, count, number, unit) for event, count in price]
