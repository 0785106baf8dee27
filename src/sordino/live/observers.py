"""Observers of a run: display, trackers, live page, and callers that ask for rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from sordino.base.compiled import watched as compiling
from sordino.data.notices import noticed, watched
from sordino.live.console import Making, Running

if TYPE_CHECKING:
    from sordino.core.records import Row
    from sordino.core.run.session import Going, Outcome
    from sordino.live.track import Maker, Tracking
    from sordino.live.view import Live

Say = Callable[[str], None]
COMPILING = "  compiling for this machine: some seconds, and only once (the machine code is kept)"


@contextmanager
def observed(
    *,
    quiet: bool,
    tell: Say,
    warn: Say,
    notice: Say,
    track: Sequence[str | Maker] = (),
    live: int | None = None,
    on_row: Callable[[Row], None] | None = None,
) -> Iterator[Observers]:
    """Everything that looks on, for as long as a run goes on.

    Args:
        quiet: whether no progress is shown.
        tell: is told what takes a while.
        warn: is told of a tracker that has failed.
        notice: is told what depends on private rows: the owner of the data alone.
        track: trackers.
        live: the port of the live page on the loopback, 0 for any that is free; None without one.
        on_row: is called with each row of the log.

    Raises:
        StudyError: if a tracker is not known or lacks its package, or the port is in use.
    """

    def compiles() -> None:
        if not quiet:
            tell(COMPILING)

    with (
        warnings.catch_warnings(),
        compiling(compiles),
        Observers(Running(quiet), tell, warn, track, live, on_row) as seen,
        closing(Making(quiet)) as making,
        watched(making),
        noticed(notice),
    ):
        # numpy's tell of rows: of an overflow, of a logarithm of zero
        warnings.simplefilter("ignore", RuntimeWarning)
        yield seen


class Observers:
    """Hands the rows of a run to all that look on. A context manager; see :func:`observed`."""

    def __init__(
        self,
        progress: Running,
        tell: Say,
        warn: Say,
        track: Sequence[str | Maker],
        live: int | None,
        on_row: Callable[[Row], None] | None,
    ) -> None:
        self._progress, self._tell, self._on_row = progress, tell, on_row
        self._tracking: Tracking | None = None
        self._live: Live | None = None
        if track:
            from sordino.live.track import Tracking

            self._tracking = Tracking(track, warn)
        if live is not None:
            from sordino.live.view import Live

            self._live = Live(live)

    def __enter__(self) -> Observers:
        if self._live is not None:
            self._tell(f"Live: {self._live.address}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.close()
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
        if self._on_row is not None:
            self._on_row(row)

    def end(self, outcome: Outcome) -> None:
        """The run has ended; lines that follow stand below the display."""
        if self._tracking is not None:
            self._tracking.end(outcome)
        self._progress.close()
