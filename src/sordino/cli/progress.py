"""What a command that runs something shows: a live display, and in the end what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sordino.cli import say

if TYPE_CHECKING:
    from sordino.console import Display
    from sordino.engine.records import Row
    from sordino.engine.session import Going, Outcome


class Progress:
    """The live display, opened when the run knows how long it may become."""

    def __init__(self, display: Callable[..., Display], quiet: bool) -> None:
        self.display, self.quiet = display, quiet
        self.open: Display | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.open is not None:
            self.open.__exit__(kind, error, trace)

    def begin(self, going: Going) -> None:
        """Show the warnings, then the panel."""
        from sordino.engine.records import known, number

        about = going.about
        for warning in known(about.warnings) or ():
            say.people(f"warning: {warning}")
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


def concluded(outcome: Outcome) -> None:
    """Write the report, and say how a run ended."""
    from sordino.engine import vocabulary
    from sordino.engine.files import resumable
    from sordino.report import write

    with resumable(Path(outcome.run)):  # which writes the page of a run that has ended, too
        page = write(Path(outcome.run))
    words, accuracy = vocabulary.of(outcome.regime), "-"
    if outcome.rmse is not None:
        words, accuracy = vocabulary.of_numbers(words), f"{outcome.rmse:.4g}"
    elif outcome.accuracy is not None:
        accuracy = f"{100 * outcome.accuracy:.2f} %"
    chosen = (
        ""
        if outcome.spent == outcome.epsilon
        else f", the budget ({say.bound(outcome.spent)} was spent, but only the budget is a bound),"
    )
    say.people(
        f"{outcome.method}: {words.many(outcome.rounds)}, at most {outcome.steps} "
        f"{words.steps_of_one},"
        f" {words.accuracy.told} {accuracy},"
        f" epsilon {say.bound(outcome.epsilon)}{chosen} at delta {say.number(outcome.delta)} "
        f"({outcome.accountant}).\n"
        f"It ended because {outcome.why}.\nReport: {page}"
    )
