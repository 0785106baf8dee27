"""Weights & Biases, offline: nothing is sent, unless somebody calls ``wandb sync`` later.

A run that goes on is a further folder of the same identifier; ``wandb sync --append`` joins them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sordino.base.files import KIB, read_below
from sordino.core.files import replace_file
from sordino.core.records import Round, known
from sordino.core.run.session import Going, Outcome
from sordino.live.track.base import constants, register, results, scalars, settle, step

PROJECT = "sordino"
HELD = "last-round.txt"


@register("wandb", "wandb")
class WandB:
    """Writes offline runs of Weights & Biases into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run: Any = None

    def begin(self, going: Going) -> int:
        settle(WANDB_ERROR_REPORTING="false")
        import wandb

        self._run = wandb.init(
            mode="offline",
            dir=str(self._folder),
            id=known(going.about.run) or going.folder.name,
            resume="allow",
            project=PROJECT,
            name=known(going.about.name) or going.folder.name,
            config=constants(going.about),
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,  # names of this machine and its user
                x_disable_stats=True,
            ),
        )
        try:
            return int(read_below(self._folder, HELD, most=KIB))
        except (FileNotFoundError, ValueError):
            return 0

    def row(self, row: Round) -> None:
        # Noted first: a kill between the two loses a row, and repeats none.
        replace_file(self._folder / HELD, str(step(row)).encode())
        self._run.log(scalars(row), step=step(row))

    def end(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            self._run.summary.update({**results(outcome), "why": outcome.why})
        self._run.finish(exit_code=1 if outcome is None else 0)
