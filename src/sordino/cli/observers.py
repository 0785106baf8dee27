"""What looks on while a run goes on: the display of the terminal, trackers, the live page."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from sordino.cli import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.console.running import Running
    from sordino.engine.records import Row
    from sordino.engine.session import Going, Outcome
    from sordino.track import Tracking
    from sordino.view import Live


class Observers:
    """Hands the rows of a run to all that look on. A context manager.

    Args:
        track: names of trackers.
        live: the port of the live page on the loopback, 0 for any that is free; None without one.

    Raises:
        StudyError: if a tracker is not known or lacks its package, or the port is in use.
    """

    def __init__(self, progress: Running, track: Sequence[str], live: int | None) -> None:
        self._progress = progress
        self._tracking: Tracking | None = None
        self._live: Live | None = None
        if track:
            from sordino.track import Tracking

            self._tracking = Tracking(track, lambda text: say.people(f"warning: {text}"))
        if live is not None:
            from sordino.view import Live

            self._live = Live(live)

    def __enter__(self) -> Observers:
        if self._live is not None:
            say.people(f"Live: {self._live.address}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tracking is not None:
            self._tracking.end(None)  # of a run that has ended, it is closed already
        if self._live is not None:
            self._live.close(wait=kind is None)

    def begin(self, going: Going) -> None:
        """The run begins, or goes on."""
        self._progress.begin(going)
        if self._tracking is not None:
            self._tracking.begin(going)
        if self._live is not None:
            self._live.begin(going.folder)

    def row(self, row: Row) -> None:
        """One row of the log."""
        self._progress.row(row)
        if self._tracking is not None:
            self._tracking.row(row)

    def end(self, outcome: Outcome) -> None:
        """The run has ended."""
        if self._tracking is not None:
            self._tracking.end(outcome)
