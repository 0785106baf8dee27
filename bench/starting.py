"""How long the command line takes before it says anything: CPU seconds of a fresh process."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

COMMANDS = (
    (("--help",), 0.3),
    (("plan", "examples/ali-dpfl-digits.toml"), 1.0),
    (("plan", "examples/events/entities.toml"), 1.0),
)
TIMES = 5


def _seconds(arguments: tuple[str, ...]) -> float:
    """The least CPU time of some processes, their system's part with it."""
    taken = []
    for _ in range(TIMES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "sordino", *arguments], check=True, capture_output=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def measure() -> list[dict[str, Any]]:
    """Help, and the plans of two studies that are always there; run from the repository's root."""
    rows = []
    for arguments, most in COMMANDS:
        seconds = _seconds(arguments)
        rows.append(
            {
                "what": f"sordino {' '.join(arguments)}, CPU seconds of a fresh process",
                "peer": None,
                "ours": round(seconds, 3),
                "reach": f"under {most:g} s",
                "met": seconds < most,
                "detail": {"processes": TIMES, "shown": "the least"},
            }
        )
    return rows
