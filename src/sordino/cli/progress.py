"""What a command that runs something says in the end: what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sordino.cli import say

if TYPE_CHECKING:
    from sordino.core.run.session import Outcome


def concluded(outcome: Outcome) -> None:
    """Write the report, and say how a run ended."""
    from sordino.core import vocabulary
    from sordino.core.files import resumable
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
