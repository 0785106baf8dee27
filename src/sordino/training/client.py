"""Somebody with data who can be asked to train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sordino.base.message import Answer, Train
from sordino.privacy import Event, Permit


class Client(Protocol):
    """Somebody with data who can be asked to train."""

    @property
    def index(self) -> int:
        """Which client, from 0."""
        ...

    def price(self, task: Train) -> tuple[tuple[Event, int], ...]:
        """What answering this task releases, as events and how often; booked before ``answer``."""
        ...

    def answer(self, task: Train, permits: Sequence[Permit]) -> Answer:
        """Do the work. ``permits`` prove that ``price(task)`` is in the ledger."""
        ...
