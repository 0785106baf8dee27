"""A federation over NVFlare on the loopback: how long a frame takes there and back between a site's
job process and the server's, and updates a second. NVFlare provisions it, with mutual TLS.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from bench.network import SITES, STUDY, rate, watched
from sordino.core import study as studies
from sordino.network import demo
from sordino_nvflare import job, workspace
from sordino_nvflare import transport as demos

UPDATES, ECHOES, BYTES = 3000, 200, 100_000
RESULT = "SORDINO_BENCH_RESULT"
ROOT = Path(__file__).parents[1]


@contextmanager
def _reachable() -> Iterator[None]:
    """Let job processes import this package."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
        yield


def echo() -> float:
    """Milliseconds in which 100 KB go from a site to the server and back: the median."""
    parts = {job.SERVE: "bench.flare_echo.Back", job.JOIN: "bench.flare_echo.Ask"}
    true = job.files

    def files(agreed: Any) -> Mapping[str, bytes]:
        def bent(content: bytes) -> bytes:
            for ours, its in parts.items():
                content = content.replace(ours.encode(), its.encode())
            return content

        return {name: bent(content) for name, content in true(agreed).items()}

    with tempfile.TemporaryDirectory() as folder, _reachable():
        path, result = Path(folder) / "study.toml", Path(folder) / "result.json"
        path.write_text(STUDY.format(sites=1, updates=1))
        laid = demo.lay_out(
            studies.read(path), Path(folder) / "laid", scripted=False, transport="nvflare"
        )
        with (
            mock.patch.object(job, "files", files),
            mock.patch.object(workspace, "ALLOWED", tuple(parts.values())),
            mock.patch.object(demos, "_wait_for_proofs"),
            mock.patch.object(demos, "TRIES", 1),
            mock.patch.dict(os.environ, {RESULT: str(result)}),
        ):
            if demos.NVFLARE.play(laid, lambda words: None, scripted=False):
                raise SystemExit("the echo over NVFlare failed")
        taken: list[float] = json.loads(result.read_text())
    return 1e3 * sorted(taken)[len(taken) // 2]


def updates() -> tuple[float, float]:
    """Updates a second of logistic regression of 784 inputs (31 KB) between three sites and a
    server, from the first tenth of the run to its end; and seconds from the submission of the job
    to the first update.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.toml"
        path.write_text(STUDY.format(sites=SITES, updates=UPDATES))
        study = studies.read(path, [f"execution.evaluate_every={UPDATES // 10}"])
        laid = demo.lay_out(study, Path(folder) / "laid", scripted=False, transport="nvflare")
        begun, first = [0.0], [0.0]

        def told(words: str) -> None:
            if words.startswith("submitted"):
                begun[0] = time.monotonic()
                threading.Thread(target=watch, daemon=True).start()

        def watch() -> None:
            journal = laid.server / "run" / "journal.bin"
            while not (journal.exists() and journal.stat().st_size > BYTES // 2):
                time.sleep(0.05)
            first[0] = time.monotonic()

        once = mock.patch.object(demos, "TRIES", 1)
        with once, watched(laid.server / "run" / "rounds.jsonl") as seen:
            if demos.NVFLARE.play(laid, told, scripted=False):
                raise SystemExit("the run over NVFlare failed")
    return rate(seen), first[0] - begun[0]


def measure() -> list[dict[str, Any]]:
    """All rows, where NVFlare is installed."""
    if importlib.util.find_spec("nvflare") is None:
        return []
    took = echo()
    rate, start = updates()
    return [
        _row("ms for 100 KB to the server and back, mutual TLS, NVFlare", took, 15.0, took <= 15),
        _row(
            f"updates a second: logistic 784-10 (31 KB), {SITES} sites, NVFlare",
            rate,
            100.0,
            rate >= 100,
        ),
        _row(
            "seconds from the submission of an NVFlare job to its first update",
            start,
            30.0,
            start <= 30,
        ),
    ]


def _row(what: str, ours: float, bound: float, met: bool) -> dict[str, Any]:
    sign = ">=" if bound == 100 else "<="
    return {
        "what": what,
        "peer": None,
        "ours": ours,
        "reach": f"{sign} {bound:g}",
        "met": met,
        "detail": {},
    }


if __name__ == "__main__":
    for each in measure():
        print(f"{each['ours']:8.3g}  {each['what']}")
