"""A moment of a simulation as one file: vectors in safetensors, the rest as JSON in its header,
tagged by the regime whose state it is.

The file is replaced whole, so it holds one moment or the one before, never a mixture. With
it stands the length that the log had at that moment: on resuming, what the log has beyond
it is cut off and played again. So does the head of every ledger: one that has lost it is older.

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

from sordino.engine.files import replace_file
from sordino.engine.play import Play
from sordino.engine.watch import Moment, Packed
from sordino.errors import ResumeError
from sordino.files import check_below

Array = np.ndarray[Any, Any]

FORMAT = 5
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


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    log_length: int
    regime: str
    heads: dict[str, tuple[int, str]]
    moment: msgspec.Raw


def write(folder: Path, saved: Saved) -> None:
    """Replace the folder's checkpoint."""
    packed = saved.moment.pack()
    header = _Header(
        format=FORMAT,
        log_length=saved.log_length,
        regime=saved.regime,
        heads=dict(saved.heads),
        moment=msgspec.Raw(packed.rest),
    )
    pieces = _pieces(packed.vectors, {"state": msgspec.json.encode(header).decode()})
    replace_file(folder / NAME, *pieces, below=folder.parent)


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
        if version is None or bytes(version) != str(FORMAT).encode():
            found = None if version is None else bytes(version).decode()
            raise ResumeError(
                f"{path}: written in format {found}; this version reads format {FORMAT}. "
                "Begin a new run"
            )
        header = msgspec.json.decode(state, type=_Header)
        if header.regime != regime:
            raise ResumeError(
                f"{path}: it holds a state of regime {header.regime!r}, and the run is of regime "
                f"{regime!r}. Restore it from a copy, or begin a new run"
            )
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
