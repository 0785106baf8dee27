"""Timing that can be trusted on a shared machine: CPU seconds, taken in turns, lower quartile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def in_turns(works: Mapping[str, Work], *, rounds: int = 15, repeat: int = 5) -> dict[str, float]:
    """CPU milliseconds of each piece of work: A B C A B C …, the lower quartile of ``rounds`` means
    of ``repeat``.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            for _ in range(repeat):
                work()
            taken[name].append((time.process_time() - start) / repeat)
    return {name: 1e3 * sorted(values)[len(values) // 4] for name, values in taken.items()}
