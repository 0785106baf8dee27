"""``sordino view`` and ``run --live``: this machine only, the rows of the log, and a clean end."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import browser
from command import sordino
from sordino.base.errors import StudyError
from sordino.base.files import MIB
from sordino.core import records
from sordino.core.records import Round
from sordino.core.run.reading import load
from sordino.live import loopback
from sordino.live.loopback import Answer, Loopback
from sordino.live.view import Follower, Live, Site, events, view

SECRET = 90210
ABOUT: dict[str, Any] = {
    "format": 1,
    "run": "00ff00ff",
    "name": "a small <run>",
    "method": "ali-dpfl",
    "form": "sound",
    "regime": "synchronous",
    "status": "running",
    "unit": "sample",
    "epsilon_budget": 2.0,
    "delta": 1e-5,
    "R_s": 8,
    "guarantee": "Everything is (epsilon = 2, delta = 1e-05)-differentially private.",
    "clients": [{"client": 0, "unit": "client:0", "examples": SECRET, "labels": [SECRET, 3]}],
}


def row(number: int) -> str:
    return records.dumped(Round(round=number, accuracy=number / 10, epsilon=number / 4)) + "\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "study.toml").write_text('name = "x"\n')
    (folder / "run.json").write_text(json.dumps(ABOUT))
    (folder / "rounds.jsonl").write_text(row(1) + row(2))
    return folder


def finish(folder: Path) -> None:
    (folder / "run.json").write_text(json.dumps(ABOUT | {"status": "done"}))


def append(folder: Path, text: str) -> None:
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(text)


Serve = Callable[[Path], Loopback]


@pytest.fixture
def serve() -> Iterator[Serve]:
    opened: list[Loopback] = []

    def serve(folder: Path) -> Loopback:
        opened.append(view(folder, 0))
        return opened[-1]

    yield serve
    for each in opened:
        each.close()


def ask(server: Loopback, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    port = int(server.address.rstrip("/").rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers=headers)
    found = connection.getresponse()
    answer = found.status, dict(found.getheaders()), found.read().decode()
    connection.close()
    return answer


def test_other_names_and_other_machines_are_refused(run: Path, serve: Serve) -> None:
    server = serve(run)
    assert server.address.startswith("http://127.0.0.1:")
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example:80", ""):
        assert ask(server, "/", Host=host)[0] == 403
    assert ask(server, "/events", Origin="https://evil.example")[0] == 403
    assert ask(server, "/", Origin=server.address.rstrip("/"))[0] == 200
    status, headers, html = ask(server, "/")
    assert status == 200
    assert "a small &lt;run&gt;" in html
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "'unsafe-inline'" not in policy[policy.index("script-src") :]
    assert str(SECRET) not in html


def test_paths_lead_nowhere_else(run: Path, serve: Serve) -> None:
    (run.parent / "secret.txt").write_text("secret")
    server = serve(run.parent)
    for path in ("/secret.txt", "/..", "/../", "/%2e%2e/", "/one/run.json", "/one/../secret.txt"):
        assert ask(server, path)[0] == 404, path


def test_a_folder_of_runs_is_listed(run: Path, serve: Serve) -> None:
    server = serve(run.parent)
    html = ask(server, "/")[2]
    assert '<a href="one/">one</a>' in html
    assert "not finished" in html
    assert ask(server, "/one")[1]["Location"] == "/one/"
    assert ask(server, "/one/")[0] == 200


def test_a_list_names_studies_dates_and_comparisons(run: Path, serve: Serve) -> None:
    dated = {"name": "asthma in two clinics", "begun": "2026-11-22T21:01:00+00:00"}
    (run / "run.json").write_text(json.dumps(ABOUT | dated))
    (run.parent / "c").mkdir()
    (run.parent / "c" / "comparison.html").write_text("<h1>5 studies compared</h1>")
    server = serve(run.parent)
    html = ask(server, "/")[2]
    for told in ("asthma in two clinics", "2026-11-22 21:01 UTC", '<a href="c/">c</a>'):
        assert told in html
    assert ask(server, "/c/")[2] == "<h1>5 studies compared</h1>"
    assert ask(server, "/c/more")[0] == 404
    assert ask(serve(run.parent / "c"), "/")[2] == "<h1>5 studies compared</h1>"


def test_a_run_that_cannot_be_read_hides_no_other(run: Path, serve: Serve) -> None:
    for name, link in (("gone", "/nonexistent/run.json"), ("led", str(run / "run.json"))):
        folder = run.parent / name
        folder.mkdir()
        (folder / "study.toml").write_text("")
        (folder / "run.json").symlink_to(link)
    server = serve(run.parent)
    html = ask(server, "/")[2]
    assert html.count("a symbolic link stands where a file belongs") == 2
    assert '<a href="one/">one</a>' in html
    assert ask(server, "/gone/")[0] == 503


def test_a_huge_log_costs_neither_time_nor_memory(run: Path, serve: Serve) -> None:
    append(run, "".join(row(number) for number in range(3, 2000)))
    shown = ask(serve(run.parent), "/")[2]
    assert ">1999</td>" in shown  # of the end of the log
    os.truncate(
        run / "rounds.jsonl", 256 * MIB
    )  # one line of zeros, which takes no place on the disk
    tracemalloc.start()
    follower = Follower(run)
    follower.look()
    assert getattr(follower.seen.row, "round", None) == 1999
    append(run, "\n" + row(2000))
    assert follower.look()
    assert getattr(follower.seen.row, "round", None) == 2000
    loaded = load(run)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(loaded.rounds) == 1999
    assert loaded.damaged == "line 2000 of rounds.jsonl is damaged; what follows is left out"
    assert most < 200 * MIB


def test_a_finished_run_is_its_report(run: Path, serve: Serve) -> None:
    finish(run)
    server = serve(run)
    assert ask(server, "/")[1]["Location"] == "/report"
    status, headers, html = ask(server, "/report")
    assert status == 200
    assert "<h2>Figures</h2>" in html
    assert "'sha256-" in headers["Content-Security-Policy"]


def test_rows_are_told_as_they_come_until_the_end(run: Path) -> None:
    stream = events(run, lambda: False)

    def state() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(next(stream).decode().removeprefix("data: "))
        return found

    assert state()["points"] == [[1, 0.1, 0.25], [2, 0.2, 0.5]]
    append(run, row(3) + '{"kind": "rou')
    told = state()
    assert told["points"][-1] == [3, 0.3, 0.75]
    assert ["epsilon", "0.750/2.000", 0.375] in told["facts"]
    assert str(SECRET) not in json.dumps(told)
    finish(run)
    assert state()["done"] is True
    with pytest.raises(StopIteration):
        next(stream)


def test_a_log_that_was_cut_is_read_again(run: Path) -> None:
    clock = [0.0]
    follower = Follower(run, lambda: clock[0])
    follower.look()
    assert follower.seen.left() is None
    clock[0] = 10.0
    append(run, row(3) + row(4))
    assert follower.look()
    assert follower.seen.left() == pytest.approx(20.0)  # two of eight rounds in ten seconds
    (run / "rounds.jsonl").write_text(row(1))
    assert follower.look()
    assert follower.points == [[1, 0.1, 0.25]]


def test_a_long_run_has_a_short_curve(run: Path) -> None:
    (run / "rounds.jsonl").write_text("".join(row(i) for i in range(1, 2001)))
    follower = Follower(run)
    follower.look()
    assert 100 < len(follower.points) <= 400
    assert follower.points[-1][0] > 1990  # type: ignore[operator]


def test_a_browser_that_is_closed_leaves_no_traceback(
    run: Path, serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve(run)
    port = int(server.address.rstrip("/").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.0 200")
    for i in range(3, 6):
        append(run, row(i))
        time.sleep(0.3)
    assert ask(server, "/")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_port_in_use_and_a_folder_without_runs_are_one_message(run: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = sordino(tmp_path, "view", str(run), "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"sordino: --port {port}: cannot listen there")
    assert done.stderr.count("\n") == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no run folder" in sordino(tmp_path, "view", str(empty)).stderr
    with pytest.raises(StudyError, match="cannot listen"):
        Live(-1)


def test_interruption_ends_it_quietly(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Loopback) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Loopback, "wait", interrupted)
    done = sordino(tmp_path, "view", str(run))
    assert done.returncode == 0
    assert done.stderr.endswith("Stopped.\n")


def test_live_waits_for_its_reader_and_for_nobody_else(run: Path) -> None:
    live = Live(0)
    live.begin(run)
    before = time.monotonic()
    live.close()
    assert time.monotonic() - before < 2.0


@pytest.mark.skipif(browser.PATH is None, reason="Debian's Chromium is not installed")
@pytest.mark.usefixtures("painted")
def test_a_live_page_goes_on_to_the_report(run: Path, tmp_path: Path) -> None:
    live = Live(0)
    with browser.browser(tmp_path / "browser") as tab:
        tab.open(live.address)
        assert "Preparing" in tab.told("document.title")
        live.begin(run)
        tab.until("document.title.startsWith('a small') && document.querySelector('polyline')")
        append(run, row(3))
        tab.until("document.body.innerText.includes('0.750/2.000')")
        for width in (1280, 768, 390):
            tab.sized(width)
            assert tab.told("document.scrollingElement.scrollWidth") <= width
        finish(run)
        ending = threading.Thread(target=live.close)
        ending.start()
        tab.until("location.pathname === '/report' && document.querySelector('.tools')")
        ending.join(20)
        assert not ending.is_alive()
        assert tab.errors == []


def test_names_of_any_bytes_are_listed_and_no_page_leads_to_another_host(run: Path) -> None:
    finish(run)
    odd = run.rename(run.with_name(os.fsdecode(b"odd\xff")))
    site = Site(odd.parent)
    assert b'href="odd%FF/"' in site("/").body
    assert site("/odd%FF").place == "/odd%FF/"
    assert site("/odd%FF/").place == "/odd%FF/report"
    assert site("//odd%FF/").place == "/odd%FF/report"  # two slashes would begin a host's name


def test_connections_that_say_nothing_cost_a_run_no_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every user of the machine can connect."""
    monkeypatch.setattr(loopback, "MOST", 5)
    monkeypatch.setattr(loopback, "SILENT", 0.3)
    served = Loopback(0, lambda path: Answer(b"there"))
    port = served.address.rstrip("/").rpartition(":")[2]
    before = len(os.listdir("/proc/self/fd"))
    idle = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(12)]
    time.sleep(0.2)
    assert len(os.listdir("/proc/self/fd")) <= before + 12 + 5
    time.sleep(0.6)  # they are closed now
    asks = http.client.HTTPConnection("127.0.0.1", int(port), timeout=5)
    asks.request("GET", "/")
    assert asks.getresponse().read() == b"there"
    for each in idle:
        each.close()
    served.close()
