"""Files that a run writes while it goes on: the log, one row a line, and checkpoints.

A checkpoint is a moment of a simulation as one file: vectors in safetensors, the rest as JSON in
its header, tagged by the regime whose state it is. The file is replaced whole, so it holds one
moment or the one before, never a mixture. With it stands the length that the log had at that
moment: on resuming, what the log has beyond it is cut off and played again. So does the head of
every ledger: one that has lost it is older.

What a run needs to go on may tell of private rows: windows of examples, names of entities, who was
drawn. So only the owner reads it, and of a run that has ended nothing of it is kept: see
:class:`Ended`. Folders of runs that have ended are shown to others.

A thousand edges may hold a thousand models, 100 MB of them for a small CNN. They are written from
where they lie, and read a few at a time: the library would write them from a copy, and read them
all from one mapping that counts as memory, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from sordino.base.errors import ResumeError
from sordino.base.files import append_below, check_below, folder_below, open_below
from sordino.base.message import Vector
from sordino.base.parsing import Malformed
from sordino.core import records
from sordino.core.files import replace_file, said_clearly
from sordino.core.records import Row, dumped, known, number
from sordino.core.run.folder import CHECKPOINT, CHECKPOINTS, LOG
from sordino.core.world import EncodedSnapshot, Simulation, Snapshot

Array = np.ndarray[Any, Any]

FORMAT, FORMAT_ENDED = 5, 6
"""Of a run that goes on, and of one that has ended. Earlier versions wrote 5 for both."""
NAMES = {
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}
AT_ONCE = 64  # vectors read from one mapping of the file


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A moment, and what else stood then.

    Attributes:
        moment: of the simulation.
        log_length: bytes that the log had.
        regime: whose state the moment holds.
        heads: number and digest of the last link of each ledger, by one of its units. A ledger
            without it is an older one.
    """

    moment: Snapshot
    log_length: int
    regime: str
    heads: Mapping[str, tuple[int, str]] = field(default_factory=dict)


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: int
    steps: int
    ended: str


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """All that is kept of a run that has ended: its model and how far it came.

    See :class:`sordino.core.world.Snapshot`.
    """

    number: int
    steps: int
    model: Vector
    ended: str

    def pack(self) -> EncodedSnapshot:
        """Return it as it is kept on disk."""
        rest = _End(self.number, self.steps, self.ended)
        return EncodedSnapshot({"model": self.model}, msgspec.json.encode(rest))


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    log_length: int
    regime: str
    heads: dict[str, tuple[int, str]]
    moment: msgspec.Raw


def write_checkpoint(folder: Path, saved: Saved) -> None:
    """Replace the folder's checkpoint."""
    moment, number, mode = saved.moment, FORMAT, 0o600
    if moment.ended is not None:
        moment = Ended(moment.number, moment.steps, moment.model, moment.ended)
        number, mode = FORMAT_ENDED, 0o666
    packed = moment.pack()
    header = _Header(
        format=number,
        log_length=saved.log_length,
        regime=saved.regime,
        heads=dict(saved.heads),
        moment=msgspec.Raw(packed.rest),
    )
    pieces = _pieces(packed.vectors, {"state": msgspec.json.encode(header).decode()})
    replace_file(folder / CHECKPOINT, *pieces, below=folder, mode=mode)


def remove_checkpoint(folder: Path) -> None:
    """Remove the folder's checkpoint, if it has one: its run goes no further."""
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _pieces(vectors: Mapping[str, Array], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors file: length of the header (8 bytes, lowest first), header as JSON, numbers."""
    header: dict[str, object] = {"__metadata__": metadata}
    pieces: list[bytes | memoryview] = []
    end = 0
    for name, vector in vectors.items():
        little = np.ascontiguousarray(vector).astype(
            vector.dtype.newbyteorder("<"), casting="equiv", copy=False
        )
        numbers = little.reshape(-1).view(np.uint8).data  # its own memory
        begin, end = end, end + len(numbers)
        header[name] = {
            "dtype": NAMES[vector.dtype.name],
            "shape": vector.shape,
            "data_offsets": (begin, end),
        }
        pieces.append(numbers)
    told = msgspec.json.encode(header)
    told += b" " * (-len(told) % 8)  # the format asks that the numbers begin at a multiple of 8
    return [len(told).to_bytes(8, "little"), told, *pieces]


def _vectors(path: Path) -> tuple[dict[str, Array], bytes]:
    """The vectors of a file and the state in its header."""
    with safe_open(path, framework="numpy") as file:
        names, state = list(file.keys()), (file.metadata() or {})["state"].encode()
    vectors: dict[str, Array] = {}
    for start in range(0, len(names), AT_ONCE):
        with safe_open(path, framework="numpy") as file:
            vectors |= {name: file.get_tensor(name) for name in names[start : start + AT_ONCE]}
    return vectors, state


@contextmanager
def _readable(folder: Path, remedy: str = "") -> Iterator[Path]:
    """The folder's checkpoint; whatever a forged or damaged one raises is one message."""
    path = folder / CHECKPOINT
    try:
        yield path
    except (
        SafetensorError,
        msgspec.MsgspecError,
        KeyError,
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
        OSError,
    ) as error:
        raise ResumeError(
            f"{path}: this checkpoint cannot be read ({error}). Restore it from a copy{remedy}"
        ) from error


def _there(folder: Path) -> bool:
    try:
        check_below(folder, *CHECKPOINT.split("/"))
    except FileNotFoundError:
        return False
    return True


def read_checkpoint(folder: Path, play: Simulation[Any], regime: str) -> Saved | None:
    """The folder's checkpoint, or None if it has none yet; ``play`` is of this regime.

    Raises:
        ResumeError: if it cannot be read, or holds a state of another regime; nothing is guessed.
    """
    if not _there(folder):
        return None
    with _readable(folder, ", or begin a new run") as path:
        vectors, state = _vectors(path)
        version = msgspec.json.decode(state, type=dict[str, msgspec.Raw]).get("format")
        if version is None or bytes(version).decode() not in (str(FORMAT), str(FORMAT_ENDED)):
            found = None if version is None else bytes(version).decode()
            raise ResumeError(
                f"{path}: written in format {found}; this version reads formats {FORMAT} and "
                f"{FORMAT_ENDED}. Begin a new run"
            )
        header = msgspec.json.decode(state, type=_Header)
        if header.regime != regime:
            raise ResumeError(
                f"{path}: it holds a state of regime {header.regime!r}, and the run is of regime "
                f"{regime!r}. Restore it from a copy, or begin a new run"
            )
        if header.format == FORMAT_ENDED:
            end = msgspec.json.decode(header.moment, type=_End)
            moment: Snapshot = Ended(end.number, end.steps, vectors["model"], end.ended)
        else:
            moment = play.unpack(EncodedSnapshot(vectors, bytes(header.moment)))
    return Saved(moment, header.log_length, header.regime, header.heads)


def checkpoint_heads(folder: Path) -> Mapping[str, tuple[int, str]]:
    """Return where the ledgers stood at the folder's checkpoint; nothing if it has none yet.

    Raises:
        ResumeError: if it cannot be read.
    """
    if not _there(folder):
        return {}
    with _readable(folder) as path, safe_open(path, framework="numpy") as file:
        return msgspec.json.decode(file.metadata()["state"].encode(), type=_Header).heads


class RunLog:
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

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *raised: object) -> None:
        with said_clearly(self.folder / LOG):
            self.file.close()

    def row(self, row: Row) -> None:
        """Append one row and show it."""
        with said_clearly(self.folder / LOG):
            self.file.write(dumped(row).encode() + b"\n")
            self.file.flush()
        self.show(row)

    def hurry(self) -> None:
        """Let a checkpoint be due as soon as there is a moment that can be saved."""
        self._hurried = True

    def save(self, moment: Snapshot) -> None:
        """Save a checkpoint where one is due, and always at the end."""
        due = self._hurried and moment.number != self.saved
        early = moment.number // self.every == self.saved // self.every
        if moment.ended is None and early and not due:
            return
        self.saved, self._hurried = moment.number, False
        with said_clearly(self.folder / LOG):
            self.file.flush()
            os.fsync(self.file.fileno())
        saved = Saved(moment, self.file.tell(), self.regime, self.heads())
        write_checkpoint(self.folder, saved)


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
    """Return why the budget let the run go no further, if the log ends with that."""
    found = None
    for row in rows(folder, regime):
        found = str(known(row.why)) if isinstance(row, records.Refused) else None
    return found
