"""Progress of a run: one live panel on a terminal, one plain line per row of the log elsewhere.

A program's log must be readable in a file years later, so without a terminal there are no control
characters and nothing is overwritten::

    round 12/158  tau 2  steps 24  accuracy 0.712  epsilon 0.531/2.000  12 s left
    update 13650/15000  stage 3  clip 0.25  staleness 4.0  accuracy 0.744  ...  2 s left
    event 20000/2000000  error 0.103  accumulated 0.211  regret 3.1e-02  ...  5 min 2 s left

How far a run in rounds is, is the larger of the shares of rounds and steps used: it ends when
either is used up. Updates and events end when there were enough of them. The time left assumes that
the rest goes as fast as what was seen here after the first row, which has waited for compilation;
after a resume only the rounds of this session count.

>>> from sordino.core.records import Round
>>> row = Round(round=12, steps=24, accuracy=0.712, epsilon=0.531, extra={"tau": 2})
>>> line(row, rounds=158, budget=2.0, left=12.0)
'round 12/158  tau 2  steps 24  accuracy 0.712  epsilon 0.531/2.000  12 s left'
"""

from __future__ import annotations

from sordino.live.console.progress import Limits, Progress, follow, remaining, share
from sordino.live.console.screen import Display, Screen, display
from sordino.live.console.text import Fact, duration, epsilon_of, facts, line, plain, sparkline

__all__ = [
    "Display",
    "Fact",
    "Limits",
    "Progress",
    "Screen",
    "display",
    "duration",
    "epsilon_of",
    "facts",
    "follow",
    "line",
    "plain",
    "remaining",
    "share",
    "sparkline",
]
