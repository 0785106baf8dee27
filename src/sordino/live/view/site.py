"""The pages of ``sordino view`` and of ``sordino run --live``.

``/`` is the run, or a list of runs; below a run's path lie its page, its ``events``, and its
``report`` when it has ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from sordino.base.errors import StudyError
from sordino.base.files import KIB
from sordino.core.run.reading import load
from sordino.live.view.follow import Follower, events, is_run
from sordino.live.view.loopback import Answer, Loopback
from sordino.report import page, words

HOME = Path(__file__).parent
MOST_RUNS = 200
TAIL = 64 * KIB
"""Bytes of a log that are read for its line in the list."""
LINGER = 10.0
"""Seconds that the page of a run waits after its end for its readers to go on to the report."""
HEAD = ("Run", "Method", "Status", "Rounds", "Accuracy", "Epsilon", "Budget")


def runs_of(folder: Path) -> list[Path]:
    """The runs in a folder: itself, or those one step below, the newest first.

    Raises:
        StudyError: if there are none, or the folder cannot be read.
    """
    if is_run(folder):
        return [folder]
    try:
        found = [each for each in folder.iterdir() if is_run(each)] if folder.is_dir() else []
    except OSError as error:
        raise StudyError(f"{folder}: cannot be read ({error.strerror})") from error
    if not found:
        raise StudyError(
            f"{folder}: this is no run folder, and there is none in it. Give the folder that "
            "`sordino run` named, or the one above it"
        )
    return sorted(found, key=lambda each: (-_written(each), each.name))


def _written(folder: Path) -> float:
    """When a run's ``run.json`` was written; 0 of one that has been taken away since."""
    try:
        return (folder / "run.json").lstat().st_mtime  # of a link itself: it may lead nowhere
    except OSError:
        return 0.0


class Site:
    """Answers for a folder that may be named later."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.closed = False
        self.readers = 0  # of a run that goes on, and those that saw it end

    def __call__(self, path: str) -> Answer:
        """See :data:`~sordino.live.view.loopback.Answers`."""
        if self.folder is None:
            return _page("waiting.html", title="Preparing the run")
        parts = [unquote(part, errors="surrogateescape") for part in path.split("/") if part]
        if is_run(self.folder):
            return self._run(self.folder, parts, path)
        if not parts:
            return _page("runs.html", title=self.folder.resolve().name, **_listed(self.folder))
        if parts[0] not in {each.name for each in runs_of(self.folder)}:
            return _missing()
        if len(parts) == 1 and not path.endswith("/"):
            return Answer(place=f"/{_place(parts[0])}/")
        return self._run(self.folder / parts[0], parts[1:], path)

    def _run(self, folder: Path, parts: Sequence[str], path: str) -> Answer:
        match parts:
            case []:
                follower = Follower(folder)
                follower.look()
                if follower.done:
                    return Answer(place=f"/{path.strip('/')}/report".replace("//", "/"))
                return _page("live.html", state=follower.state(), title=follower.limits.title)
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
    runs_of(folder)
    return Loopback(port, Site(folder))


def _listed(folder: Path) -> dict[str, Any]:
    """A row for each run: its path, and what stands in the list."""
    found = runs_of(folder)
    rows: list[tuple[str, Sequence[str]]] = []
    for each in found[:MOST_RUNS]:
        try:
            run = load(each, last=TAIL)
        except StudyError as error:
            rows.append((f"{_place(each.name)}/", (each.name, "-", str(error), *["-"] * 4)))
            continue
        rows.append(
            (
                f"{_place(each.name)}/",
                (
                    each.name,
                    run.method,
                    "done" if run.done else "not finished",
                    str(run.number),
                    words.percent(run.accuracy),
                    words.epsilon(run) if run.epsilon is not None or not run.private else "-",
                    words.bound(run.budget) if run.private else "∞",
                ),
            )
        )
    return {"head": HEAD, "rows": rows, "more": len(found) - len(rows)}


def _place(name: str) -> str:
    """A folder's name in an address, whatever bytes it has."""
    return quote(os.fsencode(name))


def _missing() -> Answer:
    return Answer(b"There is nothing here.\n", 404, "text/plain; charset=utf-8")


@cache
def _script() -> str:
    return (HOME / "live.js").read_text(encoding="utf-8")


def _page(name: str, **told: Any) -> Answer:
    """A page with the style of a report, and the script of a live one."""
    text = page.template(name, HOME).render({**told, "script": _script()})
    return Answer(text.encode("utf-8", "replace"), scripts=(page.script_digest(_script()),))
