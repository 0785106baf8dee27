"""The real packages with their local stores: they hold the log, once, and nothing else."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sordino.base.errors import StudyError
from sordino.core import records
from sordino.core.records import Round
from sordino.core.run.session import Going, Outcome
from sordino.live import track

SECRET = 90210
ABOUT = {
    "format": 1,
    "run": "00ff00ff",
    "name": "a small run",
    "method": "ali-dpfl",
    "regime": "synchronous",
    "epsilon_budget": 2.0,
    "delta": 1e-5,
    "R_s": 6,
    "clients": [{"client": 0, "unit": "client:0", "examples": SECRET, "labels": [SECRET, 3]}],
}
OUTCOME = Outcome(
    run="r", method="ali-dpfl", regime="synchronous", rounds=6, steps=12, accuracy=0.9, epsilon=1.5,
    spent=1.5, delta=1e-5, accountant="pld", unit="sample", seconds=1.0, why="used up",
)  # fmt: skip
Seen = dict[int, float]


def row(number: int) -> Round:
    return Round(round=number, accuracy=number / 10, epsilon=number / 4)


def of_tensorboard(store: Path) -> Seen:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(store))
    found.Reload()
    events = found.Scalars("accuracy")
    assert len(events) == len({each.step for each in events})
    return {each.step: each.value for each in events}


def of_mlflow(store: Path) -> Seen:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store.resolve().as_uri())
    place = client.get_experiment_by_name("sordino")
    assert place is not None
    runs = client.search_runs([place.experiment_id])
    assert len(runs) == 1
    events = client.get_metric_history(runs[0].info.run_id, "accuracy")
    assert len(events) == len({each.step for each in events})
    return {each.step: each.value for each in events}


def pieces(content: bytes) -> Iterator[bytes]:
    """Records of a W&B file: blocks of 32 KiB after seven bytes, each piece with checksum, length
    and whether it is whole, first, inner or last.
    """
    at, held = 7, b""
    while at + 7 <= len(content):
        if 2**15 - at % 2**15 < 7:  # what is left of a block is filled up
            at += 2**15 - at % 2**15
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        held += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield held
            held = b""


def of_wandb(store: Path) -> Seen:
    from wandb.proto import wandb_internal_pb2

    seen: Seen = {}
    for file in sorted(store.rglob("*.wandb")):
        for content in pieces(file.read_bytes()):
            record: Any = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            for item in record.history.item:
                if (item.key or "/".join(item.nested_key)) == "accuracy":
                    assert record.history.step.num not in seen
                    seen[record.history.step.num] = json.loads(item.value_json)
    return seen


READERS: dict[str, Callable[[Path], Seen]] = {
    "tensorboard": of_tensorboard,
    "mlflow": of_mlflow,
    "wandb": of_wandb,
}


def stored(name: str, folder: Path, count: int) -> Seen:
    """What a store holds. W&B writes in a process of its own, which may end its file a little
    later than it says that a run is finished.
    """
    end = time.monotonic() + 20
    while len(found := READERS[name](folder / track.STORE / name)) < count:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return found


def going(folder: Path, done: int = 0) -> Going:
    return Going(records.about(json.dumps(ABOUT).encode(), "run.json"), done, folder)


@contextmanager
def tracked(*given: Any) -> Iterator[track.Tracking]:
    """Trackers that are closed at the end, as those of a run are."""
    tracking = track.Tracking(*given)
    try:
        yield tracking
    finally:
        tracking.end(None)


def test_every_tracker_is_tested() -> None:
    assert set(READERS) == set(track.KNOWN)


@pytest.mark.parametrize("name", list(READERS))
def test_a_killed_run_goes_on_in_the_same_store(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    with tracked([name], said.append) as first:
        first.begin(going(tmp_path))
        for i in (1, 2, 3, 4):
            first.row(row(i))
    # killed: the last checkpoint was after round 2
    (tmp_path / "rounds.jsonl").write_text(
        "".join(records.dumped(row(i)) + "\n" for i in (1, 2, 3))
    )
    with tracked([name], said.append) as second:
        second.begin(going(tmp_path, done=2))
        for i in (3, 4, 5, 6):
            second.row(row(i))
        second.end(OUTCOME)
    assert said == []
    store = tmp_path / track.STORE / name
    assert stored(name, tmp_path, 6) == pytest.approx({i: i / 10 for i in range(1, 7)})
    for file in store.rglob("*"):
        assert not file.is_file() or str(SECRET).encode() not in file.read_bytes(), file


@pytest.mark.parametrize("name", list(READERS))
def test_a_tracker_that_comes_later_gets_the_earlier_rounds(name: str, tmp_path: Path) -> None:
    log = "".join(records.dumped(row(i)) + "\n" for i in (1, 2, 3))
    (tmp_path / "rounds.jsonl").write_text(log)
    with tracked([name]) as tracking:
        tracking.begin(going(tmp_path, done=2))
        tracking.row(row(3))
        tracking.end(OUTCOME)
    assert stored(name, tmp_path, 3) == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})


class Failing:
    """Fails at its second row."""

    def __init__(self, folder: Path) -> None:
        self.rows = 0

    def begin(self, going: Going) -> int:
        return 0

    def row(self, row: Round) -> None:
        self.rows += 1
        if self.rows == 2:
            raise OSError("the disk is full")

    def end(self, outcome: Outcome | None) -> None:
        raise AssertionError("it was left out")


def test_a_tracker_that_fails_is_left_out_with_one_warning(tmp_path: Path) -> None:
    said: list[str] = []
    with tracked([Failing], said.append) as tracking:
        tracking.begin(going(tmp_path))
        for i in (1, 2, 3):
            tracking.row(row(i))
        tracking.end(OUTCOME)
    assert len(said) == 1
    assert "Failing has failed" in said[0]
    assert "the disk is full" in said[0]


class Odd(Failing):
    """Does not say which round it holds."""

    def begin(self, going: Going) -> int:
        return None  # type: ignore[return-value]


class Leaving(Failing):
    """Ends the program."""

    def row(self, row: Round) -> None:
        raise SystemExit("goodbye")


@pytest.mark.parametrize("kind", [Odd, Leaving])
def test_no_tracker_ends_a_run(kind: type[Failing], tmp_path: Path) -> None:
    said: list[str] = []
    with tracked([kind], said.append) as tracking:
        tracking.begin(going(tmp_path))
        tracking.row(row(1))
        tracking.end(OUTCOME)
    assert len(said) == 1
    assert f"{kind.__name__} has failed" in said[0]


def test_a_link_in_a_run_folder_sends_no_store_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / track.STORE).symlink_to(tmp_path / "elsewhere")
    said: list[str] = []
    with tracked([Failing], said.append) as tracking:
        tracking.begin(going(tmp_path / "run"))
    assert "a symbolic link stands where a folder belongs" in said[0]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_two_trackers_of_one_name_are_refused() -> None:
    other = type("Failing", (Failing,), {})
    with pytest.raises(StudyError, match="two trackers are called 'Failing'"):
        track.Tracking([Failing, other])
    track.Tracking([Failing, Failing])


def test_what_cannot_be_tracked_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StudyError, match="did you mean 'mlflow'"):
        track.Tracking(["mlfow"])
    monkeypatch.setattr(track, "find_spec", lambda name: None)
    with pytest.raises(StudyError, match=r"pip install 'sordino\[track\]'"):
        track.Tracking(["wandb"])


def test_infinite_epsilon_is_no_number_to_draw() -> None:
    assert track.scalars(Round(round=1, epsilon=float("inf"), accuracy=0.5)) == {"accuracy": 0.5}
