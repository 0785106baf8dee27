"""What every simulation shares with those who build, watch and resume it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sordino.core.watch import Moment, Packed, Watcher
from sordino.privacy import Budget, LedgerSession

M = TypeVar("M", bound=Moment)


class Play(Protocol[M]):
    """A federation on one machine, of any regime; its moments are of that regime's kind."""

    @property
    def ledgers(self) -> LedgerSession:
        """Where charges go."""
        ...

    @property
    def units(self) -> Sequence[str]:
        """Ledger unit of each client."""
        ...

    @property
    def budget(self) -> Budget:
        """What a client may spend in all, at most."""
        ...

    @property
    def payable(self) -> list[int] | None:
        """Steps, or rounds of all, that clients could pay for at the beginning; None: no limit."""
        ...

    def unpack(self, packed: Packed) -> M:
        """A moment that was kept.

        Raises:
            ValueError: if it cannot be one.
        """
        ...

    def run(self, moment: M, watcher: Watcher[M]) -> M:
        """Play from ``moment`` to the end of the run."""
        ...
