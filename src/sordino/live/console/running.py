"""What is shown while something runs: its warnings, then a live display."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from sordino.core.records import known, number

if TYPE_CHECKING:
    from sordino.core.records import Row
    from sordino.core.run.session import Going
    from sordino.live.console.screen import Display


class Running:
    """The live display, opened when the run knows how long it may become."""

    def __init__(self, display: Callable[..., Display], quiet: bool) -> None:
        self.display, self.quiet = display, quiet
        self.open: Display | None = None

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the panel as it is; lines that follow stand below it."""
        shown, self.open = self.open, None
        if shown is not None:
            shown.__exit__(None, None, None)

    def begin(self, going: Going) -> None:
        """Show the warnings, then the panel."""
        about = going.about
        for warning in known(about.warnings) or ():
            sys.stderr.write(f"warning: {warning}\n")
        if not self.quiet:
            self.open = self.display(
                total_rounds=known(about.R_s) or 0,
                budget_epsilon=math.inf
                if (budget := number(about.epsilon_budget)) is None
                else budget,
                budget_steps=known(about.facts.R_c),
                title=known(about.name) or "",
                regime=about.regime,
                begun=going.rounds_done,
            ).__enter__()

    def row(self, row: Row) -> None:
        """One row of the log."""
        if self.open is not None:
            self.open.show(row)
