"""A simulation between two rounds, as one file: vectors in safetensors, the rest as JSON in its header.

The file is replaced whole, so it holds one moment or the one before, never a mixture. With
it stands the length that the log had at that moment: on resuming, what the log has beyond
it is cut off and played again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from sordino.errors import ResumeError
from sordino.message import Vector
from sordino.regime.synchronous import State
from sordino.runtime.files import replace_file
from sordino.runtime.simulate import Moment

FORMAT = 1
NAME = "latest.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A moment and the length of the log (bytes) that belongs to it."""

    moment: Moment
    log_length: int


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    log_length: int
    time: float
    epsilon: float | str
    away: dict[int, int]
    late: list[tuple[float, int, int]]
    round: int
    steps: list[int]
    present: list[int]
    memory: msgspec.Raw
    models: int | None
    note: str | None
    ended: str | None
    seen: tuple[float, ...] = ()


def write(folder: Path, saved: Saved) -> None:
    """Replace the folder's checkpoint."""
    state = saved.moment.state
    vectors: dict[str, Vector] = {"weights": state.weights, "velocity": state.velocity, "average": state.average}
    vectors |= {f"model.{i}": model for i, model in enumerate(state.models) if model is not None}
    epsilon = saved.moment.epsilon
    header = _Header(
        format=FORMAT,
        log_length=saved.log_length,
        time=saved.moment.time,
        epsilon="inf" if epsilon == float("inf") else epsilon,
        away=dict(saved.moment.away),
        late=list(saved.moment.late),
        round=state.round,
        steps=list(state.steps),
        present=sorted(state.present),
        memory=msgspec.Raw(msgspec.json.encode(state.memory)),
        models=len(state.models) or None,
        note=state.note,
        ended=state.ended,
        seen=state.seen,
    )
    replace_file(folder / NAME, save(vectors, metadata={"state": msgspec.json.encode(header).decode()}))


def read(folder: Path, memory: type[msgspec.Struct]) -> Saved | None:
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
            header = msgspec.json.decode(file.metadata()["state"].encode(), type=_Header)
        remembered: Any = msgspec.json.decode(header.memory, type=memory)
        state = State(
            round=header.round,
            weights=vectors["weights"],
            velocity=vectors["velocity"],
            average=vectors["average"],
            steps=tuple(header.steps),
            present=frozenset(header.present),
            memory=remembered,
            models=tuple(vectors.get(f"model.{i}") for i in range(header.models or 0)),
            note=header.note,
            ended=header.ended,
            seen=header.seen,
        )
    except (SafetensorError, msgspec.MsgspecError, KeyError, json.JSONDecodeError, OSError) as error:
        raise ResumeError(f"{path}: this checkpoint cannot be read ({error}). Restore it from a copy, or begin a new run") from error
    if header.format != FORMAT:
        raise ResumeError(f"{path}: written in format {header.format}; this version reads format {FORMAT}")
    epsilon = np.inf if header.epsilon == "inf" else float(header.epsilon)
    moment = Moment(state=state, time=header.time, away=header.away, late=tuple(header.late), epsilon=float(epsilon))
    return Saved(moment, header.log_length)
