"""What a run leaves on disk while it goes on: the log, one row a line, and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sordino.base.errors import ResumeError
from sordino.base.files import append_below, folder_below, open_below
from sordino.base.parsing import Malformed
from sordino.core import checkpoint, records
from sordino.core.files import said_clearly
from sordino.core.records import Row, known, number, text
from sordino.core.watch import Moment

LOG = "rounds.jsonl"
METRICS = "metrics.json"
CHECKPOINTS = "checkpoints"


class Recorder:
    """Appends rows to ``rounds.jsonl`` and saves a checkpoint every so many rounds.

    Rounds are counted from 0 whatever was ``begun`` with. ``heads`` says where the ledgers stand;
    states are of this ``regime``.

    The log is flushed to the disk before a checkpoint that counts its bytes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        regime: str,
        length: int,
        every: int,
        begun: int,
        show: Callable[[Row], None],
        heads: Callable[[], Mapping[str, tuple[int, str]]] = dict,
    ) -> None:
        self.folder, self.every, self.show, self.heads = folder, every, show, heads
        self.saved, self.regime, self._hurried = begun, regime, False
        with said_clearly(folder / LOG):
            self.file = append_below(folder, LOG)
            self.file.truncate(length)
            self.file.seek(length)
            folder_below(folder, CHECKPOINTS)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *raised: object) -> None:
        with said_clearly(self.folder / LOG):
            self.file.close()

    def row(self, row: Row) -> None:
        """Append one row and show it."""
        with said_clearly(self.folder / LOG):
            self.file.write(text(row).encode() + b"\n")
            self.file.flush()
        self.show(row)

    def hurry(self) -> None:
        """Let a checkpoint be due as soon as there is a moment that can be saved."""
        self._hurried = True

    def save(self, moment: Moment) -> None:
        """Save a checkpoint where one is due, and always at the end."""
        due = self._hurried and moment.number != self.saved
        early = moment.number // self.every == self.saved // self.every
        if moment.ended is None and early and not due:
            return
        self.saved, self._hurried = moment.number, False
        with said_clearly(self.folder / LOG):
            self.file.flush()
            os.fsync(self.file.fileno())
        saved = checkpoint.Saved(moment, self.file.tell(), self.regime, self.heads())
        checkpoint.write(self.folder / CHECKPOINTS, saved)


def length_of(folder: Path) -> int:
    """Bytes of the log; none if there is none yet."""
    try:
        with open_below(folder, LOG) as log:
            return os.fstat(log.fileno()).st_size
    except FileNotFoundError:
        return 0


def rows(folder: Path, regime: str) -> Iterator[Row | records.Unknown]:
    """The rows of the log.

    Raises:
        ResumeError: naming the line that cannot be read.
    """
    try:
        with open_below(folder, LOG) as log:
            for count, line in enumerate(log, start=1):
                try:
                    yield records.row(line, regime)
                except Malformed as error:
                    raise ResumeError(
                        f"{folder / LOG}: line {count}: cannot be read ({error}). Restore it "
                        "from a copy"
                    ) from error
    except FileNotFoundError:
        return


def last_told(folder: Path, regime: str, key: str = "accuracy") -> float | None:
    """The last accuracy, or other number, that the log tells; None if it tells none."""
    told = [
        value for row in rows(folder, regime) if (value := number(records.at(row, key))) is not None
    ]
    return told[-1] if told else None


def why_refused(folder: Path, regime: str) -> str | None:
    """Why the budget let the run go no further, if the log ends with that."""
    found = None
    for row in rows(folder, regime):
        found = str(known(row.why)) if isinstance(row, records.Refused) else None
    return found
