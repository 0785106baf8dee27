"""Processes in an operator's hands: services, clocks, and lines that are half-open."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import time
from pathlib import Path

import numpy as np
import pytest

import warm
from federations import laid, study_of
from sordino.network import demo, kit, websocket
from sordino.network.transport import Lost, Mailbox

from .slow import SlowLine
from .test_websocket import Open


def status(command: list[str], log: Path, seconds: float = 60.0) -> int | None:
    with log.open("ab") as file:
        return warm.Popen(command, stdout=file, stderr=file).wait(seconds)


def test_a_study_that_was_stopped_has_a_status_of_its_own_however_often_it_is_started(
    tmp_path: Path,
) -> None:
    """A service that is restarted on failure is not restarted after it: docs/operations.md."""
    study = study_of(tmp_path, "synchronous", ["budget.rounds=500"], clients=1)
    found, log = demo.lay_out(study, tmp_path / "out", scripted=False), tmp_path / "log"
    server, site = demo.commands(found, scripted=False)
    with log.open("ab") as file:
        serving = warm.Popen(server, stdout=file, stderr=file)
    assert status([*site, "--epsilon-limit", "2.5"], log) == 4, log.read_text()
    assert serving.wait(60) == 4
    hasty = (
        "from sordino.cli import main; from sordino.network import server; server.FAREWELL = 0.2\n"
        "main()"
    )
    assert status([server[0], "-c", hasty, *server[3:]], log) == 4
    text = Path("docs/operations.md").read_text()
    assert "RestartPreventExitStatus=2 3 4" in text


def test_a_second_server_of_one_folder_is_refused(tmp_path: Path) -> None:
    found, log = laid(tmp_path, "synchronous", scripted=False), tmp_path / "log"
    server, *_ = demo.commands(found, scripted=False)
    with log.open("ab") as file:
        first = warm.Popen(server, stdout=file, stderr=file)
    try:
        end = time.monotonic() + 60
        journal = found.server / "run/journal.bin"
        while "waiting for" not in log.read_text() or not journal.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        before = journal.stat()
        assert status(server, log) == 2
        assert f"another process ({first.pid}) is running there" in log.read_text()
        assert journal.stat() == before
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()


def test_a_half_open_line_is_noticed_in_eight_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = 4.0  # all that is measured in beats takes a quarter of its time
    monkeypatch.setattr(websocket, "BEAT", websocket.BEAT / faster)
    line = SlowLine(rate=1e6)
    monkeypatch.setenv("https_proxy", line.url)
    opened = Open(laid(tmp_path, "synchronous"))
    site = opened.line()
    event = opened.mailbox.get(5)
    assert event is not None
    time.sleep(3.0 / faster)  # so that a look at every so many seconds comes late
    line.frozen.set()
    began = time.monotonic()
    event = opened.mailbox.get(30)
    assert event is not None
    assert event.kind == "closed"
    assert time.monotonic() - began < 9.0 / faster + 1.0  # for a machine that does other work
    with pytest.raises(Lost):
        next(site.frames())
    site.close()
    opened.hub.close()
    line.frozen.clear()
    line.close()


def test_a_clock_that_is_slow_is_named_and_tried_again(tmp_path: Path) -> None:
    found = laid(tmp_path, "synchronous")
    ahead = dt.datetime.now(dt.UTC) + dt.timedelta(days=3)
    kit.renew(found.server.parent / "authority", "server", found.server, ahead)
    opened = Open(found, Mailbox())
    with pytest.raises(Lost, match=r"not yet valid\)\. By the clock of this machine"):
        opened.line()
    opened.hub.close()
    log = tmp_path / "log"
    server, *_ = demo.commands(found, scripted=False)
    assert status(server, log) == 2
    assert "Set the clock" in log.read_text()


def test_log_lines_hold_nothing_of_private_rows(tmp_path: Path) -> None:
    """Neither numbers of rounds nor what the data has spent, nor notices for its owner, nor words
    of an error in a file of rows or in a study's own code: `--log-format` writes what may leave the
    machine, where a journal keeps both streams.
    """
    study = study_of(tmp_path, "synchronous", ["budget.rounds=500"], clients=1)
    found, log = demo.lay_out(study, tmp_path / "out", scripted=False), tmp_path / "log"
    server, site = (
        [*each, "--log-format", "json"] for each in demo.commands(found, scripted=False)
    )
    with log.open("ab") as file:
        serving = warm.Popen(server, stdout=file, stderr=file)
    own, table = tmp_path / "site", tmp_path / "uneven.csv"
    with np.load(found.sites[0][1]) as held:
        scaled = held["x"] * [1e5, 1, 1, 1, 1, 1]
        rows = [",".join(map(str, (*x, y))) for x, y in zip(scaled, held["y"], strict=True)]
    table.write_text("\n".join(["secret,b,c,d,e,f,label", *rows]))  # its owner gets a notice
    site = [str(table) if each == str(found.sites[0][1]) else each for each in site]
    with own.open("ab") as file:
        joined = warm.Popen([*site, "--epsilon-limit", "2.5"], stdout=file, stderr=file)
        assert (joined.wait(60), serving.wait(60)) == (4, 4)
    for path, name in ((log, ""), (own, "site-0")):
        lines = [json.loads(each) for each in path.read_text().splitlines()]
        assert all(list(each) == ["time", "level", "study", "site", "message"] for each in lines)
        assert {each["study"] for each in lines} == {study.name}
        assert lines[0]["site"] == name
        assert lines[-1]["level"] == "error"
        assert not any("round 1/" in each["message"] for each in lines)
    assert "site-0 is there" in log.read_text()
    assert "own budget does not allow it" in own.read_text()
    assert "epsilon" not in own.read_text()
    table.write_text("a,label\nsecret,1\n")
    text = tmp_path / "text"
    again = ["text" if each == "json" else each for each in site]
    assert status([*again, "--out", str(tmp_path / "again")], text) == 2
    assert "error Rounds site-0: DataError: " in text.read_text()
    kit_study = found.sites[0][0] / "study.toml"
    code = "raise ValueError('secret')\n"
    kit_study.with_name("broken.py").write_text(code)
    kit_study.write_text(kit_study.read_text().replace('"logistic"', '"broken:Net"'))
    with kit_study.with_name("agreement.toml").open("a") as file:  # whose last table is [modules]
        file.write(f'broken = "{hashlib.sha256(code.encode()).hexdigest()}"\n')
    good = [str(found.sites[0][1]) if each == str(table) else each for each in again]
    assert status([*good, "--out", str(tmp_path / "again")], text) == 2
    assert "error Rounds site-0: StudyError: " in text.read_text()
    assert "secret" not in text.read_text() + own.read_text()
