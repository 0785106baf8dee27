"""TensorBoard: event files. See them with ``tensorboard --logdir RUN/tracking/tensorboard``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sordino.core.records import Round
from sordino.core.run.session import Going, Outcome
from sordino.live.track.base import constants, register, results, scalars, step


@register("tensorboard", "tensorboard")
class TensorBoard:
    """Writes event files into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def begin(self, going: Going) -> int:
        from torch.utils.tensorboard.writer import SummaryWriter

        before = any(self._folder.glob("events.out.*"))
        self._writer = SummaryWriter(
            str(self._folder), purge_step=going.rounds_done + 1 if before else None
        )
        if not before:
            told = "\n".join(
                f"| {key} | {value} |" for key, value in constants(going.about).items()
            )
            self._writer.add_text("study", f"| key | value |\n| --- | --- |\n{told}")
        return going.rounds_done if before else 0

    def row(self, row: Round) -> None:
        for key, value in scalars(row).items():
            self._writer.add_scalar(key, value, step(row))

    def end(self, outcome: Outcome | None) -> None:
        if outcome is not None:
            for key, value in results(outcome).items():
                self._writer.add_scalar(f"result/{key}", value, outcome.rounds)
            self._writer.add_text("ended", outcome.why, outcome.rounds)
        self._writer.close()
