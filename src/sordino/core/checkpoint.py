"""A moment of a simulation as one file: vectors in safetensors, the rest as JSON in its header,
tagged by the regime whose state it is.

The file is replaced whole, so it holds one moment or the one before, never a mixture. With
it stands the length that the log had at that moment: on resuming, what the log has beyond
it is cut off and played again. So does the head of every ledger: one that has lost it is older.

What a run needs to go on may tell of private rows: windows of examples, names of entities, who was
drawn. So only the owner reads it, and of a run that has ended nothing of it is kept: see
:class:`Ended`. Folders of runs that have ended are shown to others.

A thousand edges may hold a thousand models, 100 MB of them for a small CNN. They are written from
where they lie, and read a few at a time: the library would write them from a copy, and read them
all from one mapping that counts as memory, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from sordino.base.errors import ResumeError
from sordino.base.files import check_below
from sordino.base.message import Vector
from sordino.core.files import replace_file
from sordino.core.play import Play
from sordino.core.watch import Moment, Packed

Array = np.ndarray[Any, Any]

FORMAT, FORMAT_ENDED = 5, 6
"""Of a run that goes on, and of one that has ended. Earlier versions wrote 5 for both."""
NAME = "latest.safetensors"
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

    moment: Moment
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

    See :class:`sordino.core.watch.Moment`.
    """

    number: int
    steps: int
    model: Vector
    ended: str

    def pack(self) -> Packed:
        """See :class:`sordino.core.watch.Moment`."""
        rest = _End(self.number, self.steps, self.ended)
        return Packed({"model": self.model}, msgspec.json.encode(rest))


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    log_length: int
    regime: str
    heads: dict[str, tuple[int, str]]
    moment: msgspec.Raw


def write(folder: Path, saved: Saved) -> None:
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
    replace_file(folder / NAME, *pieces, below=folder.parent, mode=mode)


def remove(folder: Path) -> None:
    """Remove the folder's checkpoint, if it has one: its run goes no further."""
    (folder / NAME).unlink(missing_ok=True)


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


def read(folder: Path, play: Play[Any], regime: str) -> Saved | None:
    """The folder's checkpoint, or None if it has none yet; ``play`` is of this regime.

    Raises:
        ResumeError: if it cannot be read, or holds a state of another regime; nothing is guessed.
    """
    path = folder / NAME
    try:
        check_below(folder.parent, folder.name, NAME)
    except FileNotFoundError:
        return None
    try:
        vectors, state = _vectors(path)
        version = msgspec.json.decode(state, type=dict[str, msgspec.Raw]).get("format")
        known = [str(each).encode() for each in (FORMAT, FORMAT_ENDED)]
        if version is None or bytes(version) not in known:
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
            moment: Moment = Ended(end.number, end.steps, vectors["model"], end.ended)
        else:
            moment = play.unpack(Packed(vectors, bytes(header.moment)))
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
            f"{path}: this checkpoint cannot be read ({error}). Restore it from a copy, or "
            "begin a new run"
        ) from error
    return Saved(moment, header.log_length, header.regime, header.heads)


def heads(folder: Path) -> Mapping[str, tuple[int, str]]:
    """Where the ledgers stood at the folder's checkpoint; nothing if it has none yet.

    Raises:
        ResumeError: if it cannot be read.
    """
    path = folder / NAME
    try:
        check_below(folder.parent, folder.name, NAME)
    except FileNotFoundError:
        return {}
    try:
        with safe_open(path, framework="numpy") as file:
            return msgspec.json.decode(file.metadata()["state"].encode(), type=_Header).heads
    except (
        SafetensorError,
        msgspec.MsgspecError,
        KeyError,
        TypeError,
        ValueError,
        OSError,
        RecursionError,
    ) as error:
        raise ResumeError(
            f"{path}: this checkpoint cannot be read ({error}). Restore it from a copy"
        ) from error
