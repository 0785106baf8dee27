"""A moment of a simulation as one file: vectors in safetensors, the rest as JSON in its header.

The file is replaced whole, so it holds one moment or the one before, never a mixture. With
it stands the length that the log had at that moment: on resuming, what the log has beyond
it is cut off and played again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from sordino.errors import ResumeError
from sordino.runtime.files import replace_file
from sordino.runtime.watch import Moment, Packed, Play

FORMAT = 2
NAME = "latest.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A moment and the length of the log (bytes) that belongs to it."""

    moment: Moment
    log_length: int


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    log_length: int
    moment: msgspec.Raw


def write(folder: Path, saved: Saved) -> None:
    """Replace the folder's checkpoint."""
    packed = saved.moment.pack()
    header = _Header(format=FORMAT, log_length=saved.log_length, moment=msgspec.Raw(packed.rest))
    replace_file(folder / NAME, save(packed.vectors, metadata={"state": msgspec.json.encode(header).decode()}))


def read(folder: Path, play: Play) -> Saved | None:
    """The folder's checkpoint, or None if it has none yet.

    Raises:
        ResumeError: if it cannot be read; nothing is guessed.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        vectors = load_file(path)
        with safe_open(path, framework="numpy") as file:
            state = file.metadata()["state"].encode()
        version = msgspec.json.decode(state, type=dict[str, msgspec.Raw]).get("format")
        if version is None or bytes(version) != str(FORMAT).encode():
            found = None if version is None else bytes(version).decode()
            raise ResumeError(f"{path}: written in format {found}; this version reads format {FORMAT}. Begin a new run")
        header = msgspec.json.decode(state, type=_Header)
        moment = play.unpack(Packed(vectors, bytes(header.moment)))
    except (SafetensorError, msgspec.MsgspecError, KeyError, ValueError, json.JSONDecodeError, OSError) as error:
        raise ResumeError(f"{path}: this checkpoint cannot be read ({error}). Restore it from a copy, or begin a new run") from error
    return Saved(moment, header.log_length)
