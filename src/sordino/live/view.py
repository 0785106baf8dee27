"""A run in one's own browser while it goes on, and runs that have ended; this machine only."""

from __future__ import annotations

import datetime as dt
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from sordino.base.errors import StudyError
from sordino.base.files import KIB, MIB, Malformed, open_below, read_below, readable, there
from sordino.core import records
from sordino.core.records import Round, dumped, known, number
from sordino.core.run.folder import LOG
from sordino.core.run.reading import NEEDED, Run, load, read_about
from sordino.live.console import BARS, Progress
from sordino.live.loopback import Answer, Loopback
from sordino.report import page, words

EVERY = 0.5
"""Seconds between two looks."""
BEAT = 15.0
"""Seconds after which a stream says that it is alive, so that a closed browser is noticed."""
PIECE = 16 * MIB
"""Bytes of the log that are read at a time; a line that is longer is no row."""
MOST_POINTS = 400
"""Points of a curve; of a longer one every second, fourth, ... is kept."""


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run."""
    return all(there(folder, name) for name in NEEDED)


class Follower:
    """Follows one run.

    Args:
        clock: in seconds; the time left is told of what was seen to go on.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._again()

    def _again(self) -> None:
        self.about = read_about(self.folder)
        self.seen, self._fresh = Progress(self.about, self._clock), True
        self.points: list[list[float | None]] = []
        self._at, self._kept, self._every = 0, 0, 1

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
        if self._fresh:  # of what stood there before, nobody saw how long it took
            self.seen.count()
            self._fresh = False
        if not self.done:
            self.about = read_about(self.folder)
            written = written or self.done
        return written

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
        self.seen.take(row)
        if not isinstance(row, Round):
            return
        self._kept += 1
        if self._kept % self._every:
            return
        numbers = [number(known(row.round)), number(row.accuracy), number(row.epsilon)]
        finite = [each if each is not None and math.isfinite(each) else None for each in numbers]
        self.points.append(finite)
        if len(self.points) > MOST_POINTS:
            self.points, self._every = self.points[::-2][::-1], 2 * self._every

    @property
    def done(self) -> bool:
        """Return whether the run has ended."""
        return self.about.status == "done"

    def state(self) -> dict[str, Any]:
        """Return the state of the page as JSON."""
        seen = self.seen
        return {
            "title": seen.title,
            "method": known(self.about.method) or "-",
            "facts": [
                [name, text.rstrip(BARS).rstrip(), part]  # the page has curves of its own
                for name, text, part in seen.facts()
            ],
            "round": seen.words.round,
            "rounds": seen.rounds,
            "budget": seen.epsilon if math.isfinite(seen.epsilon) else None,
            "points": self.points,
            "done": self.done,
        }


def events(folder: Path, over: Callable[[], bool]) -> Iterator[bytes]:
    """Server-sent events of a run until it has ended, or what follows it is ``over``."""
    try:
        follower, told = Follower(folder), -math.inf  # the first look is told of, whatever it saw
        while True:
            now = time.monotonic()
            if follower.look() or math.isinf(told):
                yield f"data: {dumped(follower.state())}\n\n".encode()
                told = now
            elif now - told > BEAT:
                yield b": still there\n\n"
                told = now
            if follower.done or over():
                return
            time.sleep(EVERY)
    except StudyError as error:  # the folder was taken away
        yield f"event: gone\ndata: {dumped(str(error))}\n\n".encode()


HOME = Path(__file__).parent
MOST_RUNS = 200
MOST_PAGE = 64 * MIB
TAIL = 64 * KIB
"""Bytes of a log that are read for its line in the list."""
LINGER = 10.0
"""Seconds that the page of a run waits after its end for its readers to go on to the report."""
COMPARED = "comparison.html"


def shown_of(folder: Path) -> list[Path]:
    """The runs and comparisons in a folder: itself, or those one step below, the newest first.

    Raises:
        StudyError: if there are none, or the folder cannot be read.
    """
    if _is_shown(folder):
        return [folder]
    with readable(folder, remedy="Give a folder that can"):
        found = [each for each in folder.iterdir() if _is_shown(each)] if folder.is_dir() else []
    if not found:
        raise StudyError(
            f"{folder}: this is no run folder and no comparison, and there is none in it. Give the "
            "folder that `sordino run` or `sordino compare` named, or the one above it"
        )
    return sorted(found, key=lambda each: (-_written(each), each.name))


def _is_shown(folder: Path) -> bool:
    return is_run(folder) or there(folder, COMPARED)


def _written(folder: Path) -> float:
    """When ``run.json`` or a comparison was written; 0 of one that has been taken away since."""
    try:  # of a link itself: it may lead nowhere
        return (folder / ("run.json" if is_run(folder) else COMPARED)).lstat().st_mtime
    except OSError:
        return 0.0


class Site:
    """Answers for a folder that may be named later."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.closed = False
        self.readers = 0  # of a run that goes on, and those that saw it end

    def __call__(self, path: str) -> Answer:
        if self.folder is None:
            return _page("waiting.html", title="Preparing the run")
        parts = [unquote(part, errors="surrogateescape") for part in path.split("/") if part]
        if _is_shown(self.folder):
            return self._shown(self.folder, parts, path)
        if not parts:
            return _page("runs.html", title=self.folder.resolve().name, **_listed(self.folder))
        if parts[0] not in {each.name for each in shown_of(self.folder)}:
            return _missing()
        if len(parts) == 1 and not path.endswith("/"):
            return Answer(place=f"/{_place(parts[0])}/")
        return self._shown(self.folder / parts[0], parts[1:], path)

    def _shown(self, folder: Path, parts: Sequence[str], path: str) -> Answer:
        match parts:
            case [] if not is_run(folder):
                compared = read_below(folder, COMPARED, most=MOST_PAGE)
                return Answer(compared, scripts=(page.script_digest(),))
            case []:
                follower = Follower(folder)
                follower.look()
                if follower.done:
                    return Answer(place=f"/{path.strip('/')}/report".replace("//", "/"))
                title = follower.seen.title
                return _page("live.html", state=follower.state(), title=title, script=_script())
            case ["events"]:
                return Answer(kind="text/event-stream", stream=self._events(folder))
            case ["report"]:
                text = page.render(load(folder))
                return Answer(text.encode("utf-8", "replace"), scripts=(page.script_digest(),))
            case _:
                return _missing()

    def _events(self, folder: Path) -> Iterator[bytes]:
        self.readers += 1
        try:
            yield from events(folder, lambda: self.closed)
        except GeneratorExit:  # the browser was closed
            self.readers -= 1
            raise


class Live:
    """The page of a run that goes on in this process.

    Args:
        port: 0 for any that is free.

    Raises:
        StudyError: if nothing can listen there.
    """

    def __init__(self, port: int) -> None:
        self._site = Site()
        self._loopback = Loopback(port, self._answer)
        self.address = self._loopback.address
        self._reports = 0

    def _answer(self, path: str) -> Answer:
        found = self._site(path)
        if path.endswith("/report"):
            return Answer(kind=found.kind, scripts=found.scripts, stream=self._counted(found))
        return found

    def _counted(self, found: Answer) -> Iterator[bytes]:
        """The body of a report, which counts as seen once it is sent."""
        yield found.body
        self._reports += 1

    def begin(self, folder: Path) -> None:
        """The run has a folder now."""
        self._site.folder = folder

    def close(self, *, wait: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        """Stop; a browser that shows the run is given time to go on to the report first."""
        until = clock() + LINGER
        while wait and self._reports < self._site.readers and clock() < until:
            time.sleep(0.05)
        self._site.closed = True
        self._loopback.close()


def view(folder: Path, port: int) -> Loopback:
    """Serve the pages of a run, or of the runs in a folder.

    Raises:
        StudyError: if there is no run, or nothing can listen at the port.
    """
    shown_of(folder)
    return Loopback(port, Site(folder))


def _listed(folder: Path) -> dict[str, Any]:
    """The runs and comparisons by name: what is read of each, or why it cannot be read."""
    found = shown_of(folder)
    runs, wrong, compared = dict[str, Run](), dict[str, str](), dict[str, str]()
    for each in found[:MOST_RUNS]:
        if not is_run(each):
            written = dt.datetime.fromtimestamp(_written(each), dt.UTC)
            compared[each.name] = words.date(written.isoformat())
            continue
        try:
            runs[each.name] = load(each, last=TAIL)
        except StudyError as error:
            wrong[each.name] = str(error)
    return {
        "names": [each.name for each in found[:MOST_RUNS]],
        "runs": runs,
        "wrong": wrong,
        "compared": compared,
        "more": len(found[MOST_RUNS:]),
        "place": _place,
        "words": words,
    }


def _place(name: str) -> str:
    """A folder's name in an address, whatever bytes it has."""
    return quote(os.fsencode(name))


def _missing() -> Answer:
    return Answer(b"There is nothing here.\n", 404, "text/plain; charset=utf-8")


@cache
def _script() -> str:
    return (HOME / "live.js").read_text(encoding="utf-8")


def _page(name: str, **values: Any) -> Answer:
    """A page with the style of a report, and the script of a live one."""
    text = page.template(name, HOME).render({"script": None, **values})
    return Answer(text.encode("utf-8", "replace"), scripts=(page.script_digest(_script()),))
