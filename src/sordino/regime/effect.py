"""What a regime is told, and what it asks for: events in, effects out.

A regime is a value with ``start`` and ``step``; it does no I/O and reads no clock. Time
reaches it as :class:`Woke`, the outside world as the other events, and what it wants done
it returns as effects. A runtime carries them out. Unknown, stale and repeated events change
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sordino.engine.records import Row
from sordino.message import Answer, Compute, Gradient, Train
from sordino.privacy import Event as Fact


@dataclass(frozen=True, slots=True)
class Arrived:
    """An answer reached the server."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Woke:
    """The time asked for by a :class:`Wake` with this tag has come."""

    tag: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A client that was given up has been heard from again."""

    client: int


@dataclass(frozen=True, slots=True)
class Received:
    """A gradient reached the server."""

    gradient: Gradient


@dataclass(frozen=True, slots=True)
class Lapsed:
    """The gradient of this task is too stale to be applied, and the simulator has not troubled to compute it; it is paid for."""

    client: int
    task: int


@dataclass(frozen=True, slots=True)
class Left:
    """A client cannot be reached any more, and what it worked on will not come."""

    client: int


Event = Arrived | Woke | Joined


@dataclass(frozen=True, slots=True)
class Book:
    """Charge every client, in the cohort or not, with what a round releases of it; before anything is sent."""

    round: int
    fact: Fact


@dataclass(frozen=True, slots=True)
class Send:
    """Give a client a task."""

    client: int
    task: Train


@dataclass(frozen=True, slots=True)
class Task:
    """Ask an edge for a gradient."""

    client: int
    task: Compute


@dataclass(frozen=True, slots=True)
class Wake:
    """Send back :class:`Woke` with this tag after so many seconds."""

    after: float
    tag: str


@dataclass(frozen=True, slots=True)
class Log:
    """A row for the log. The runtime adds what it alone knows (time, epsilon, accuracy)."""

    row: Row = field(hash=False)


@dataclass(frozen=True, slots=True)
class Closed:
    """A round is over and a new global model stands; the moment to evaluate and to save."""

    round: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing more will happen."""

    why: str


Effect = Book | Send | Wake | Log | Closed | Finish
