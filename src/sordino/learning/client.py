"""Somebody with data who can be asked to train, and the rule that work is paid for first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sordino.errors import LocalProtocolError
from sordino.message import Answer, Train
from sordino.privacy import Event, Receipt


class Client(Protocol):
    """Somebody with data who can be asked to train."""

    @property
    def index(self) -> int:
        """Which client, from 0."""
        ...

    def price(self, task: Train) -> tuple[tuple[Event, int], ...]:
        """What answering this task releases, as events and how often; booked before ``answer``."""
        ...

    def answer(self, task: Train, receipts: Sequence[Receipt]) -> Answer:
        """Do the work. ``receipts`` prove that ``price(task)`` is in the ledger."""
        ...


def paid_for(price: Sequence[tuple[Event, int]], receipts: Sequence[Receipt], task: Train) -> None:
    """Refuse to work unless the ledger has booked exactly this price for this round.

    Raises:
        LocalProtocolError: if it has not; nothing has been computed then.
    """
    booked = [(receipt.event, receipt.count) for receipt in receipts if receipt.round == task.round]
    if booked != list(price):
        raise LocalProtocolError(f"round {task.round}: the ledger booked {booked}, the work would release {list(price)}")
