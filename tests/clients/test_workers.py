"""A run has the same bytes for any number of workers; no kill loses anything."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import warm
from cases import ARRIVAL, CLIENT, METHODS, MORE, ORDERED, SAMPLE, study_of
from sordino.base.errors import StudyError, WorkerGone
from sordino.clients.assemble import Assembly
from sordino.clients.workers import INTERRUPT, Load, Workers, workers
from sordino.clients.world import HorizontalWorld
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.run import session

PASSES = ['privacy.sampling="passes"']
KEEPING = "execution.checkpoint_every=2"
LATE = ['world.latency={kind="exponential", typical=1.0}', "world.dropout=0.2"]
MANY = {
    **{name: case for name, case in {**METHODS, **MORE}.items() if case[0] != "vertical"},
    "dp-sgd/shared": ("synchronous", "dp-sgd", [*SAMPLE, "method.tau=1", 'privacy.noise="shared"']),
    "dp-fedavg/shared": ("synchronous", "dp-fedavg", [*CLIENT, 'privacy.noise="shared"']),
    "dp-sgd/system": ("synchronous", "dp-sgd", [*SAMPLE, 'privacy.entropy="system"']),
    **{name: ORDERED[name] for name in ("dp-sgd/passes", "dp-fedavg/banded")},
    "dp-sgd/banded": ORDERED["dp-sgd/banded"],
    "als-dpfl/blt": (*ORDERED["als-dpfl/blt"][:2], [*ORDERED["als-dpfl/blt"][2], KEEPING]),
    "mapa/passes": ("asynchronous", "mapa", [*ARRIVAL, *PASSES, "method.batch=20"]),
    "mapa/blt": ORDERED["mapa/passes"],
    "mapa/stale": (
        "asynchronous",
        "mapa",
        [*ARRIVAL, *LATE, "data.clients=8", "budget.updates=60", "participation.staleness=4"],
    ),
    "dp-fedavg/late": (
        "synchronous",
        "dp-fedavg",
        [*CLIENT, *LATE, "data.clients=12", "budget.rounds=10", "participation.deadline=1.5"],
    ),
}
FEW = ("ali-dpfl/longer", "als-dpfl/blt", "dp-fedavg/haar", "dp-fedavg/shared", "mapa/mlp, late")
EACH = [
    pytest.param(name, marks=() if name in FEW else pytest.mark.nightly, id=name) for name in MANY
]
"""Rounds, late answers, whole clients, shared noise and arrivals; all others nightly."""


NOW = mock.patch.object(session, "_now", return_value="2026-01-01T00:00:00+00:00")


def nobody(_: object) -> None:
    """Listen to nothing."""


def play(folder: Path, name: str, group: Workers | None, row: Any = nobody) -> Path:
    """Run a case, with the same name of the run and the same secret key each time."""
    build = regimes.build if group is None else group.build
    with (
        mock.patch("secrets.token_hex", side_effect=lambda n: "0" * (2 * n)),
        mock.patch("secrets.token_bytes", side_effect=bytes),
        NOW,
        mock.patch.object(session, "time", SimpleNamespace(monotonic=lambda: 0.0)),
    ):
        session.begin(study_of(MANY[name], folder.parent), folder, row, nobody, build=build)
    return folder


def goes_on(folder: Path, group: Workers) -> None:
    """Go on with a run in several processes, which know nothing of it."""
    with mock.patch.object(session, "time", SimpleNamespace(monotonic=lambda: 0.0)), NOW:
        session.resume(folder, nobody, nobody, build=group.build)


def contents(folder: Path) -> dict[str, Any]:
    """All that a run folder holds; of the ledger all tables, for a file of SQLite has room."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        rows = list(ledger.iterdump())
    return {
        "ledger": rows,
        **{path.name: path.read_bytes() for path in files if "sqlite" not in path.name},
    }


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.nightly), 3])
def group(request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Workers that play one run after another."""
    with workers(request.param) as found:
        assert found is not None
        yield found


ALONE: dict[str, tuple[Path, dict[str, Any]]] = {}
"""The runs of one process, and the folder that their studies name files in."""


@pytest.mark.parametrize("name", EACH)
def test_any_number_of_workers_gives_the_same_bytes(
    tmp_path: Path, group: Workers, name: str
) -> None:
    if name not in ALONE:
        ALONE[name] = tmp_path, contents(play(tmp_path / "alone", name, None))
    home, alone = ALONE[name]
    there = contents(play(home / f"together {tmp_path.name}", name, group))
    assert there.keys() == alone.keys()
    assert [key for key in there if there[key] != alone[key]] == []


def test_answers_that_come_too_late_are_no_others_and_stop_no_run(
    tmp_path: Path, group: Workers
) -> None:
    """Answers of a run that has ended were taken for the next one's; those after a deadline were
    computed with the permits of the round that followed, and refused.
    """
    for name in ("mapa/stale", "dp-fedavg/late"):
        folder = tmp_path / name.replace("/", " ")
        folder.mkdir()
        there, alone = play(folder / "run", name, group), play(folder / "alone", name, None)
        assert contents(there) == contents(alone)


def test_workers_that_have_finished_get_what_process_0_would_work_on_next(
    tmp_path: Path, group: Workers
) -> None:
    """Its own tasks are due first here: it worked them all off before it listened to anybody."""
    own, answer = [], HorizontalWorld.answer

    def slow(*given: Any) -> Any:
        own.append(given)
        time.sleep(0.3)
        return answer(*given)

    with (
        mock.patch.object(Assembly, "work", lambda self, client, task: client + 1.0),
        mock.patch.object(HorizontalWorld, "answer", slow),
        mock.patch.dict(MANY, {"twelve": (*MANY["dp-sgd"][:2], TWELVE)}),
    ):
        play(tmp_path / "run", "twelve", group)
    assert 0 < len(own) < 6


TWELVE = [*SAMPLE, "data.clients=12", "budget.rounds=1"]


def test_no_worker_has_a_socket_that_other_users_can_reach(group: Workers) -> None:
    """Every user can connect to the loopback: the secret key of noise goes to who does."""
    reachable = {
        line.split()[9]
        for table in ("tcp", "tcp6", "udp", "udp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    }
    for child in group.children.values():
        for handle in Path(f"/proc/{child.process.pid}/fd").iterdir():
            assert os.readlink(handle)[len("socket:[") : -1] not in reachable


@pytest.mark.parametrize("changed", ["rows", pytest.param("persons", marks=pytest.mark.nightly)])
def test_a_worker_that_reads_other_rows_than_those_that_are_charged_is_refused(
    tmp_path: Path, changed: str
) -> None:
    """As where another machine has another copy of the file."""
    file = tmp_path / "rows.csv"

    def write(first: int, last: int) -> None:
        rows = [f"{(n + last) // 2},{n + first}.5,{n % 2}" for n in range(40)]
        file.write_text("\n".join(["who,a,label", *rows]))

    write(0, 0)
    text = STUDY.replace('name = "digits", clients = 6', DATA.replace("FILE", str(file)))
    (tmp_path / "study.toml").write_text(text)
    study = studies.read(tmp_path / "study.toml")
    refused = r"worker 1: .*the rows here are not those of process 0"
    with pytest.raises(StudyError, match=refused), workers(2) as group:  # noqa: PT012
        assert group is not None
        prepare = group.prepare

        def late(full: Any, simulation: Any) -> None:
            write(*((1, 0) if changed == "rows" else (0, 1)))
            group.tell(Load(studies.write(full), None))
            prepare(full, simulation)
            for _ in range(1000):  # so that it is interrupted here
                time.sleep(0.05)

        with mock.patch.object(group, "prepare", late):
            session.begin(study, tmp_path / "run", nobody, nobody, build=group.build)


DATA = 'file = "FILE", clients = 1, test = "none", person = "who", person_rows = 2'
STUDY = """
name = "killed"
seed = 1
data = { name = "digits", clients = 6 }
model = { name = "logistic" }
method = { name = "dp-sgd", learning_rate = 0.5, tau = 2 }
budget = { rounds = 60 }
execution = { checkpoint_every = 7 }
[privacy]
unit = "sample"
epsilon = 8.0
delta = 1e-3
sampling_rate = 0.1
accountant = "rdp"
"""
GONE = 10.0
"""Seconds within which all processes of a run have ended, once one of them is killed."""


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start ``sordino run``."""
    command = [sys.executable, "-m", "sordino", "run", *arguments, "--quiet"]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    found = Path(f"/proc/{process}/task/{process}/children")
    return [int(each) for each in found.read_text().split()] if found.exists() else []


def alive(process: int) -> bool:
    """Tell whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def rows(folder: Path) -> int:
    """Return the rows of a run's log."""
    log = folder / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def charged(folder: Path) -> list[Any]:
    """Return the entries of a ledger, but for what names the run."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        return ledger.execute("select unit, event, count, round from entries").fetchall()


# an interruption may leave a file open that a library reads
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_whose_worker_is_killed_says_so_and_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    name, killed = "als-dpfl/blt", "worker 1 is gone: stopped by signal 9.*--resume"
    with pytest.raises(WorkerGone, match=killed), workers(2) as group:  # noqa: PT012
        assert group is not None
        child = group.children[1].process

        def kills(row: Any) -> None:
            if getattr(row, "round", 0) == 5:
                child.kill()

        play(tmp_path / "run", name, group, kills)
    with workers(2) as group:
        assert group is not None
        goes_on(tmp_path / "run", group)
    assert contents(tmp_path / "run") == contents(play(tmp_path / "alone", name, None))


def test_an_interruption_that_comes_when_the_run_has_ended_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker's end was noticed before its interruption came, which then ended the caller."""
    change = signal.signal

    def late(*given: Any) -> Any:
        signal.raise_signal(INTERRUPT)
        return change(*given)

    with pytest.raises(WorkerGone, match="so it is"), workers(2) as group:  # noqa: PT012
        assert group is not None
        monkeypatch.setattr(signal, "signal", late)
        group.gone = WorkerGone("so it is")
        group.check()


def test_workers_end_with_the_run_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    words = [sys.executable, "-m", "sordino", "run", "study.toml", "--out", "run", "--workers", "2"]
    with (tmp_path / "said").open("wb") as file:
        run = warm.Popen(words, cwd=tmp_path, stderr=file)
    while not rows(tmp_path / "run"):
        assert run.poll() is None, (tmp_path / "said").read_text()
        time.sleep(0.05)
    (worker,) = children(run.pid)
    run.kill()
    run.wait()
    until = time.monotonic() + GONE
    while alive(worker):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("correlation", ["none", "blt"])
def test_thirty_kills_lose_nothing(tmp_path: Path, correlation: str) -> None:
    ordered = f'sampling = "passes"\nbatches = 10\ncorrelation = "{correlation}"'
    drawn = "sampling_rate = 0.1"
    text = STUDY if correlation == "none" else STUDY.replace(drawn, ordered)
    (tmp_path / "study.toml").write_text(text)
    alone = started(tmp_path, "study.toml", "--out", "alone")
    alone.communicate()
    assert alone.returncode == 0
    draw, kills, number = random.Random(0), 0, 0
    while kills < 30:
        number += 1
        folder, resumed = tmp_path / f"run-{number}", False
        while True:
            count = str(draw.randint(1, 3))
            given = ["--resume", folder.name] if resumed else ["study.toml", "--out", folder.name]
            run = started(tmp_path, *given, "--workers", count)
            before = rows(folder)
            after, most = draw.uniform(0.0, 1.0), before + draw.randint(0, 30)
            while run.poll() is None and rows(folder) < most:
                time.sleep(0.01)
            time.sleep(after)
            family = [run.pid, *children(run.pid)]
            victim = draw.choice(family)
            if run.poll() is None:
                os.kill(victim, signal.SIGKILL)
                kills += 1
            try:
                _, said = run.communicate(timeout=GONE)
            except subprocess.TimeoutExpired:
                pytest.fail(f"{run.pid} hangs after {victim} was killed")
            until = time.monotonic() + GONE
            while any(map(alive, family)):
                assert time.monotonic() < until
                time.sleep(0.05)
            if run.returncode == 0:
                break
            assert victim == run.pid or "--resume" in said or not folder.exists()
            resumed = folder.exists()
        for file in ("rounds.jsonl", "model.safetensors", "metrics.json"):
            assert (folder / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
        assert charged(folder) == charged(tmp_path / "alone")
