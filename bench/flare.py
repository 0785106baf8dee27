"""A federation through a tunnel of NVFlare on the loopback: how long a frame takes there and back,
and updates a second. NVFlare is provisioned with mutual TLS, and carries TLS of the federation's.
"""

from __future__ import annotations

import importlib.util
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.network import BYTES, SITES, STUDY, UPDATES, provisioned, rate, timed, watched
from sordino.core import study as studies
from sordino.network import demo
from sordino_nvflare import demo as tunnels


def echo() -> float:
    """Milliseconds in which 100 KB go from a site to the server and back: the median."""
    with tempfile.TemporaryDirectory() as folder:
        out, port = Path(folder), demo.free_port()
        agreement = provisioned(out, "websocket")
        with tunnels.tunnel(out, agreement.port, {"site": port}, lambda words: None):
            demo.listens("127.0.0.1", port, lambda: True, 60.0)
            return timed(agreement, out / "kits", f"127.0.0.1:{port}")


def updates() -> tuple[float, float]:
    """Updates a second of logistic regression of 784 inputs (31 KB) between three sites and a
    server, from the first tenth of the run to its end; and seconds from the submission of the job
    to the first update.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.toml"
        path.write_text(STUDY.format(sites=SITES, updates=UPDATES))
        study = studies.read(path, [f"execution.evaluate_every={UPDATES // 10}"])
        laid = demo.lay_out(study, Path(folder) / "laid", scripted=False)
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

        with watched(laid.server / "run" / "rounds.jsonl") as seen:
            if tunnels.through(laid, told, scripted=False):
                raise SystemExit("the run through NVFlare failed")
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
