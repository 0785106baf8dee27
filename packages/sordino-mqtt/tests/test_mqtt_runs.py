"""Whole runs over a broker: they keep their bytes, whatever comes twice or is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import warm
from mosquitto import NEEDED, Run
from sordino.core.network import Agreement
from sordino.core.run import session as sessions
from sordino.network import demo, site
from sordino.network.transport import Line
from sordino_mqtt.transport import Mqtt

pytestmark = NEEDED


class Twice:
    """A line over which everything comes twice."""

    def __init__(self, inner: Line) -> None:
        self._inner = inner

    def send(self, frame: bytes) -> None:
        self._inner.send(frame)
        self._inner.send(frame)

    def frames(self) -> Iterator[bytes]:
        for frame in self._inner.frames():
            yield frame
            yield frame

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(site, "LONGEST_PAUSE", 0.1)


@pytest.mark.parametrize("trouble", ["repeats", "kills of the broker"])
def test_a_scripted_run_over_mqtt_gives_the_model_of_the_simulation(
    trouble: str, tmp_path: Path, swift: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = Mqtt.site

    def twice(own: Mqtt, agreement: Agreement, index: int, kit: Path) -> Callable[[int], Line]:
        connects = true(own, agreement, index, kit)
        return lambda limit: Twice(connects(limit))

    if trouble == "repeats":
        monkeypatch.setattr(Mqtt, "site", twice)
    run = Run(tmp_path, updates=100, scripted=True)
    run.play(run.killed if "kills" in trouble else lambda: None)
    sessions.begin(run.study, tmp_path / "simulated", lambda row: None, lambda going: None)
    assert run.models() == {(tmp_path / "simulated/model.safetensors").read_bytes()}
    assert ("kills" in trouble) == any("connection to the broker" in text for text in run.words)


def test_a_second_server_of_one_folder_is_refused_over_a_broker(tmp_path: Path) -> None:
    """Two would take each other's answers, and write into one journal."""
    run = Run(tmp_path, updates=200)
    server, *_ = demo.commands(run.laid, scripted=False)
    log, folder = tmp_path / "served", run.laid.server / "run"
    with log.open("wb") as file:
        first = warm.Popen(server, stdout=file, stderr=file)
    try:
        end = time.monotonic() + 60
        while "waiting for" not in log.read_text() or not (folder / "journal.bin").exists():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        before = (folder / "journal.bin").stat()
        with log.open("ab") as file:
            assert warm.Popen(server, stdout=file, stderr=file).wait(60) == 2
        assert f"another process ({first.pid}) is running there" in log.read_text()
        assert (folder / "journal.bin").stat() == before
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()
        run.place.stop()


def test_a_run_whose_broker_is_killed_goes_on(tmp_path: Path, swift: None) -> None:
    run = Run(tmp_path, updates=200)

    run.play(run.killed)
    assert len(run.models()) == 1
    assert run.done["server"].rounds == 200
    assert any("no connection to the broker" in text for text in run.words)
