"""How a run stands, from the files in its folder: the rows of its log, and nothing else.

The log is read as it grows. Where it was cut (a run goes on from its last checkpoint), it is read
again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from sordino.base.errors import StudyError
from sordino.base.files import MIB, open_below, read_below, there
from sordino.base.parsing import Malformed
from sordino.core import records, vocabulary
from sordino.core.records import About, Round, dumped, known, number
from sordino.core.run.folder import LOG
from sordino.core.run.reading import NEEDED
from sordino.live.console import Limits, Progress, facts, follow, remaining, share
from sordino.live.console.text import BARS

EVERY = 0.5
"""Seconds between two looks."""
BEAT = 15.0
"""Seconds after which a stream says that it is alive, so that a closed browser is noticed."""
PIECE = 16 * MIB
"""Bytes of the log that are read at a time; a line that is longer is no row."""
MOST_POINTS = 400
"""Points of a curve; of a longer one every second, fourth, ... is kept."""


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run."""
    return all(there(folder, name) for name in NEEDED)


def about_of(folder: Path) -> About:
    """What ``run.json`` says.

    Raises:
        StudyError: if it is missing or cannot be read.
    """
    path = folder / "run.json"
    try:
        return records.about(read_below(folder, path.name), path)
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from error


def limits_of(about: About) -> Limits:
    """What a run may use."""
    words = vocabulary.of(about.regime)
    budget = number(about.epsilon_budget)
    return Limits(
        title=known(about.name) or known(about.run) or "run",
        rounds=known(about.R_s) or 0,
        epsilon=math.inf if budget is None else budget,
        steps=known(about.facts.R_c) if words.steps_end else None,
        words=words,
    )


class Follower:
    """Follows one run.

    Args:
        clock: in seconds; the time left is told of what was seen to go on.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._again()

    def _again(self) -> None:
        self.about = about_of(self.folder)
        self.limits = limits_of(self.about)
        self.seen = Progress()
        self.points: list[list[float | None]] = []
        self._at, self._started, self._first = 0, self._clock(), -1.0
        self._kept, self._every = 0, 1

    def look(self) -> bool:
        """Read what was written since; says whether there was anything."""
        try:
            with open_below(self.folder, LOG) as log:
                size = os.fstat(log.fileno()).st_size
                if size < self._at:
                    self._again()
                log.seek(self._at)
                written = self._read(log, size)
        except FileNotFoundError:
            written = False
        if self._first < 0:  # of what stood there before, nobody saw how long it took
            self._first = share(self.seen.row, self.limits)
        done = self.about.status == "done"
        if not done:
            self.about = about_of(self.folder)
        return written or done != (self.about.status == "done")

    def _read(self, log: BinaryIO, size: int) -> bool:
        """Take the lines up to ``size``; says whether there was a whole one."""
        before = self._at
        while self._at < size:
            content = log.read(min(PIECE, size - self._at))
            whole = content.rfind(b"\n") + 1  # half a line is still being written
            if not whole and len(content) < PIECE:
                break
            for line in content[:whole].splitlines():
                self._take(line)
            self._at += whole or len(content)
            log.seek(self._at)
        return self._at > before

    def _take(self, line: bytes) -> None:
        try:
            row = records.row(line, self.about.regime)
        except Malformed:
            return
        self.seen = follow(self.seen, row, self.limits)
        if not isinstance(row, Round):
            return
        self._kept += 1
        if self._kept % self._every:
            return
        numbers = [number(known(row.round)), number(row.accuracy), number(row.epsilon)]
        self.points.append(
            [None if each is None or not math.isfinite(each) else each for each in numbers]
        )
        if len(self.points) > MOST_POINTS:
            self.points, self._every = self.points[::-2][::-1], 2 * self._every

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self.about.status == "done"

    @property
    def left(self) -> float | None:
        """Seconds left, if the run goes on as fast as it was seen to."""
        if self.done or self.seen.said is not None:
            return None
        now = share(self.seen.row, self.limits)
        return remaining(self._clock() - self._started, max(self._first, 0.0), now)

    def state(self) -> dict[str, Any]:
        """What the page shows, as JSON has it."""
        limits = self.limits
        return {
            "title": limits.title,
            "method": known(self.about.method) or "-",
            "facts": [
                [name, text.rstrip(BARS).rstrip(), part]  # the page has curves of its own
                for name, text, part in facts(self.seen, limits, self.left)
            ],
            "round": limits.words.round,
            "rounds": limits.rounds,
            "budget": limits.epsilon if math.isfinite(limits.epsilon) else None,
            "points": self.points,
            "done": self.done,
        }


def events(folder: Path, over: Callable[[], bool]) -> Iterator[bytes]:
    """Server-sent events of a run until it has ended, or what follows it is ``over``."""
    try:
        follower = Follower(folder)
        follower.look()
        yield _event(follower)
        beat = time.monotonic()
        while not (follower.done or over()):
            time.sleep(EVERY)
            now = time.monotonic()
            if follower.look():
                yield _event(follower)
                beat = now
            elif now - beat > BEAT:
                yield b": still there\n\n"
                beat = now
    except StudyError as error:  # the folder was taken away
        yield f"event: gone\ndata: {dumped(str(error))}\n\n".encode()


def _event(follower: Follower) -> bytes:
    return f"data: {dumped(follower.state())}\n\n".encode()
