"""Observers of a run: display, trackers, live page, and callers that ask for rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.base.compiled import watched as compiling
from sordino.data.notices import noticed, watched
from sordino.live.console import Making, Running
from sordino.live.track import Maker, Say, Tracking

if TYPE_CHECKING:
    from sordino.core.records import Row
    from sordino.core.run.session import Going, Outcome
    from sordino.live.view import Live

COMPILING = "  compiling for this machine: some seconds, and only once (the machine code is kept)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Hands the rows of a run to all that look on."""

    progress: Running
    tracking: Tracking
    page: Live | None
    on_row: Callable[[Row], None] | None

    def begin(self, going: Going) -> None:
        """The run begins, or goes on."""
        self.progress.begin(going)
        self.tracking.begin(going)
        if self.page is not None:
            self.page.begin(going.folder)

    def row(self, row: Row) -> None:
        """One row of the log."""
        self.progress.row(row)
        self.tracking.row(row)
        if self.on_row is not None:
            self.on_row(row)

    def end(self, outcome: Outcome | None) -> None:
        """The run has ended, or was interrupted; lines that follow stand below the display."""
        self.tracking.end(outcome)
        self.progress.close()


@contextmanager
def _page(live: int | None, tell: Say) -> Iterator[Live | None]:
    """The live page, which gives its readers time to go on to the report of a run that ended."""
    if live is None:
        yield None
        return
    from sordino.live.view import Live

    page, wait = Live(live), False
    try:
        tell(f"Live: {page.address}")
        yield page
        wait = True
    finally:
        page.close(wait=wait)


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

    tracking = Tracking(track, warn)
    with (
        warnings.catch_warnings(),
        compiling(compiles),
        _page(live, tell) as page,
        closing(Making(quiet)) as making,
        watched(making),
        noticed(notice),
    ):
        # numpy's tell of rows: of an overflow, of a logarithm of zero
        warnings.simplefilter("ignore", RuntimeWarning)
        seen = Observers(progress=Running(quiet), tracking=tracking, page=page, on_row=on_row)
        try:
            yield seen
        finally:
            seen.end(None)  # of a run that has ended, all is closed already
