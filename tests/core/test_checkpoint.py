"""Checkpoints are safetensors files like any other, written and read with little memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sordino.base.errors import ResumeError
from sordino.base.files import folder_below
from sordino.base.message import Vector
from sordino.core.run import folder as log
from sordino.core.run.folder import AT_ONCE, CHECKPOINT, CHECKPOINTS, Saved
from sordino.core.world import EncodedSnapshot

VECTORS = st.dictionaries(
    st.text(max_size=8), arrays.arrays(np.float32, st.integers(1, 9)), max_size=5
)


@dataclass
class Still:
    """A moment that is nothing but what is kept of it, and the play that it belongs to."""

    packed: EncodedSnapshot | None = None
    ended: str | None = None

    def pack(self) -> EncodedSnapshot:
        assert self.packed is not None
        return self.packed

    def unpack(self, packed: EncodedSnapshot) -> Any:
        return Still(packed)


def kept(folder: Path, vectors: dict[str, Vector]) -> None:
    moment: Any = Still(EncodedSnapshot(vectors, b'{"t":1}'))
    folder_below(folder, CHECKPOINTS)
    log.write_checkpoint(folder, Saved(moment, 42, "still", {"client:0": (7, "ab")}))


def again(folder: Path) -> Saved[Any]:
    world: Any = Still()
    saved = log.read_checkpoint(folder, world, "still")
    assert saved is not None
    return saved


def same(a: dict[str, Vector], b: dict[str, Vector]) -> bool:
    return {name: v.tobytes() for name, v in a.items()} == {
        name: v.tobytes() for name, v in b.items()
    }


@given(vectors=VECTORS)
def test_the_library_reads_what_is_written(
    tmp_path_factory: pytest.TempPathFactory, vectors: dict[str, Vector]
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    vectors.pop("__metadata__", None)
    kept(folder, vectors)
    assert same(load_file(folder / CHECKPOINT), vectors)
    assert (folder / CHECKPOINT).stat().st_mode & 0o777 == 0o600  # windows of raw rows may be in it
    with safe_open(folder / CHECKPOINT, framework="numpy") as file:
        state = {
            "format": log.FORMAT,
            "log_length": 42,
            "regime": "still",
            "heads": {"client:0": [7, "ab"]},
            "moment": {"t": 1},
        }
        assert msgspec.json.decode(file.metadata()["state"]) == state
    saved = again(folder)
    assert saved.log_length == 42
    assert saved.heads == log.checkpoint_heads(folder) == {"client:0": (7, "ab")}
    assert saved.moment.pack().rest == b'{"t":1}'
    assert same(saved.moment.pack().vectors, vectors)


def test_more_vectors_than_are_read_at_once_and_one_that_is_a_view(tmp_path: Path) -> None:
    grid = np.arange(6 * (2 * AT_ONCE + 1), dtype=np.float32).reshape(6, -1)
    vectors = {f"version.{i}": grid[:, i] for i in range(grid.shape[1])}
    kept(tmp_path, vectors)
    assert same(again(tmp_path).moment.pack().vectors, vectors)


def test_what_the_library_wrote_is_read(tmp_path: Path) -> None:
    vectors = {
        "weights": np.array([1.0, np.nan, -0.0], np.float32),
        "average": np.array([np.inf], np.float32),
    }
    told = '"log_length":7,"regime":"still","heads":{},"moment":{}'
    state = f'{{"format":{log.FORMAT},{told}}}'
    folder_below(tmp_path, CHECKPOINTS)
    save_file(vectors, tmp_path / CHECKPOINT, metadata={"state": state})
    assert same(again(tmp_path).moment.pack().vectors, vectors)


def test_a_state_of_another_regime_or_another_format_is_refused(tmp_path: Path) -> None:
    kept(tmp_path, {"weights": np.ones(2, np.float32)})
    world: Any = Still()
    told = (
        r"latest.safetensors: it holds a state of regime 'still', and the run is of regime 'moving'"
    )
    with pytest.raises(ResumeError, match=told):
        log.read_checkpoint(tmp_path, world, "moving")
    state = '{"format":4,"log_length":7,"heads":{},"moment":{}}'
    save_file({"weights": np.ones(2)}, tmp_path / CHECKPOINT, metadata={"state": state})
    with pytest.raises(
        ResumeError, match=r"written in format 4; this version reads formats 5 and 6\."
    ):
        again(tmp_path)


@pytest.mark.parametrize("error", [RuntimeError("sizes differ"), IndexError("no such place")])
def test_whatever_a_damaged_state_raises_is_one_message(tmp_path: Path, error: Exception) -> None:
    """Torch and numpy raise these where a vector has another length."""
    kept(tmp_path, {"weights": np.ones(2, np.float32)})
    world = mock.Mock(unpack=mock.Mock(side_effect=error))
    with pytest.raises(ResumeError, match=f"cannot be read .{error}.. Restore it from a copy"):
        log.read_checkpoint(tmp_path, world, "still")


def test_numbers_are_never_rounded_on_the_way(tmp_path: Path) -> None:
    wide: Any = {
        "weights": np.array([1.0 + 2.0**-50]),
        "counts": np.array([2**53 + 1]),
        "set": np.array([True, False]),
    }
    kept(tmp_path, wide)
    assert same(again(tmp_path).moment.pack().vectors, wide)
    with pytest.raises(KeyError, match="complex128"):
        kept(tmp_path, {"weights": np.zeros(3, complex)})
