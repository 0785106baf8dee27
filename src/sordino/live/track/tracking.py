"""Several trackers as one observer of a run, none of which can stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from sordino.base.errors import StudyError
from sordino.base.files import folder_below
from sordino.core.records import Round, Row
from sordino.core.run import log
from sordino.core.run.session import Going, Outcome
from sordino.live.track.base import STORE, Maker, Tracker, maker, step

Say = Callable[[str], None]


class Tracking:
    """Hands a run on to trackers; ``begin`` and ``row`` fit :func:`sordino.core.run.session.begin`.

    A context manager: leave it, and whatever was not ended is closed as interrupted.

    Args:
        names: of known trackers, or ``package.module:Class``, or the class itself.
        warn: is told once of a tracker that has failed; it gets no more rows then.

    Raises:
        StudyError: if a name is not known, a package is missing, or two have one name.
    """

    def __init__(self, names: Sequence[str | Maker] = (), warn: Say = lambda _: None) -> None:
        self._makers: dict[str, Maker] = {}
        for each in dict.fromkeys(names):
            name, made = (each, maker(each)) if isinstance(each, str) else (_called(each), each)
            if name in self._makers:
                raise StudyError(f"track: two trackers are called {name!r}, and so is their store")
            self._makers[name] = made
        self._warn = warn
        self._open: dict[str, tuple[Tracker, int]] = {}

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(None)

    def begin(self, going: Going) -> None:
        """Open the stores, and tell each what the log of a resumed run has and it has not."""
        for name, made in self._makers.items():
            with self._guarded(name):
                # a folder of somebody else's, with a link in it, sends no store elsewhere
                tracker = made(folder_below(going.folder, STORE, name.replace(":", ".")))
                self._open[name] = tracker, int(tracker.begin(going))
        for row in _told(going) if self._open else ():
            self.row(row)

    def row(self, row: Row) -> None:
        """One row of the log; trackers get those of rounds that they do not hold."""
        if not isinstance(row, Round):
            return
        for name, (tracker, last) in list(self._open.items()):
            if step(row) > last:
                with self._guarded(name):
                    tracker.row(row)
                    self._open[name] = tracker, step(row)

    def end(self, outcome: Outcome | None) -> None:
        """Close the stores."""
        for name, (tracker, _) in list(self._open.items()):
            with self._guarded(name):
                tracker.end(outcome)
        self._open.clear()

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Drop a tracker that fails, with a warning."""
        try:
            yield
        except (Exception, SystemExit) as error:  # a package of others may raise anything
            self._open.pop(name, None)
            self._warn(
                f"--track {name} has failed and is left out from here on; the run goes on "
                f"({type(error).__name__}: {error})"
            )


def _called(own: Maker) -> str:
    """The name of the folder of a tracker that is given as a class."""
    return str(getattr(own, "__name__", type(own).__name__)).strip("<>")


def _told(going: Going) -> Sequence[Round]:
    """The rounds that the log of a resumed run has and that will not be repeated."""
    if not going.rounds_done:
        return ()
    return [
        row
        for row in log.rows(going.folder, going.about.regime)
        if isinstance(row, Round) and step(row) <= going.rounds_done
    ]
