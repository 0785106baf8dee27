"""Processes: one that fails takes nobody along, and none is left behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from sordino.base.errors import StudyError
from sordino.comparison.runner import Job, play, runs_at_once


def job(key: str, code: str, threads: int = 1) -> Job:
    return Job(key, (sys.executable, "-c", code), threads)


def test_a_failure_and_a_kill_leave_the_others_alone(tmp_path: Path) -> None:
    made = tmp_path / "threads"
    jobs = [
        job("wrong", "import sys; sys.exit('warning: x\\nsordino: a.toml: is wrong\\n  and how')"),
        job("killed", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        job("bug", "1 / 0"),
        job("silent", "import sys; sys.exit(3)"),
        job("good", f"import os; open({str(made)!r}, 'w').write(os.environ['OMP_NUM_THREADS'])", 3),
    ]
    ends: dict[str, str | None] = {}
    most: list[int] = []
    play(jobs, 2, ended=ends.__setitem__, tick=lambda going: most.append(len(going)))
    assert ends.pop("good") is None
    assert made.read_text() == "3"
    assert ends["wrong"] == "a.toml: is wrong\n  and how"
    assert "signal 9" in (ends["killed"] or "")
    assert ends["bug"] == "ZeroDivisionError: division by zero"
    assert ends["silent"] == "ended with status 3 and said nothing"
    assert max(most) <= 2


def test_interrupted_it_stops_every_process(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); "
        "os.rename(sys.argv[1], sys.argv[1] + '.pid'); time.sleep(60)"
    )
    jobs = [Job(i, (sys.executable, "-c", code, str(tmp_path / str(i)))) for i in range(3)]

    def tick(going: Sequence[object]) -> None:
        if len(list(tmp_path.glob("*.pid"))) == 2:
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        play(jobs, 2, ended=lambda key, why: None, tick=tick)
    assert time.monotonic() - started < 30.0
    pids = [int(path.read_text()) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2  # the third never began
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_jobs_follow_the_cores() -> None:
    assert runs_at_once(3, [1]) == 3
    assert runs_at_once(None, [10_000]) == 1
    assert runs_at_once(None, [1]) >= 1
    with pytest.raises(StudyError, match="--workers must be at least 1; got 0"):
        runs_at_once(0, [1])
