"""What a run leaves on disk while it goes on: the log, one row a line, and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from sordino.engine.records import Row, text
from sordino.files import append_below, folder_below
from sordino.runtime import checkpoint
from sordino.runtime.files import said_clearly
from sordino.runtime.watch import Moment

LOG = "rounds.jsonl"
CHECKPOINTS = "checkpoints"


class Recorder:
    """Appends rows to ``rounds.jsonl`` and saves a checkpoint every so many rounds, counted from 0 whatever was ``begun`` with.
    ``heads`` says where the ledgers stand.

    The log is flushed to the disk before a checkpoint that counts its bytes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        length: int,
        every: int,
        begun: int,
        show: Callable[[Row], None],
        heads: Callable[[], Mapping[str, tuple[int, str]]] = dict,
    ) -> None:
        self.folder, self.every, self.show, self.heads = folder, every, show, heads
        self.saved = begun
        with said_clearly(folder / LOG):
            self.file = append_below(folder, LOG)
            self.file.truncate(length)
            self.file.seek(length)
            folder_below(folder, CHECKPOINTS)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with said_clearly(self.folder / LOG):
            self.file.close()

    def row(self, row: Row) -> None:
        """Append one row and show it."""
        with said_clearly(self.folder / LOG):
            self.file.write(text(row).encode() + b"\n")
            self.file.flush()
        self.show(row)

    def save(self, moment: Moment) -> None:
        """Save a checkpoint where one is due, and always at the end."""
        if moment.ended is None and moment.number // self.every == self.saved // self.every:
            return
        self.saved = moment.number
        with said_clearly(self.folder / LOG):
            self.file.flush()
            os.fsync(self.file.fileno())
        checkpoint.write(self.folder / CHECKPOINTS, checkpoint.Saved(moment, self.file.tell(), self.heads()))
