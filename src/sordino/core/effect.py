"""Events and effects: what a regime is told and what it asks for, one set of events and effects for
all regimes.

A regime has ``step(state, event) -> (state, effects)``; it does no I/O and reads no clock. Time
reaches it as :class:`Woke`, the outside world as the other events, and what it wants done it
returns as effects. The kernel (:mod:`sordino.core.kernel`) carries them out, in simulation or
over a network. Unknown, stale and repeated events change nothing. A state that is changed in place
is returned as well, and the one that was given must not be used any more.

Sites (clients, edges, parties) are numbered from 0. Numbers of rounds, tasks and events count from
1; 0 is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.frozen import Frozen
from sordino.base.message import Reply, Task, Vector
from sordino.core.records import Row
from sordino.privacy import Event as Fact
from sordino.privacy import Permit


class Begin(Frozen):
    """The run begins or goes on, or a round was closed and is evaluated and saved: what is next?"""


class EventBlock(Frozen):
    """A task for an engine that plays many events in one local call; it is never sent to anybody.

    Attributes:
        number: of the first event, from 1.
        count: events, fewer only where the stream ends.
    """

    number: int
    count: int


class BlockPlayed(Frozen, eq=False):
    """The outcome of an :class:`EventBlock`.

    Attributes:
        number: of its first event.
        read: events that the stream still had.
        counted: what was counted up to which event, in order.
    """

    number: int
    read: int
    counted: tuple[tuple[int, Any], ...]


Request = Task | EventBlock
Said = Reply | BlockPlayed


class Arrived(Frozen):
    """A message reached the server.

    Who sent it stands in it, and was checked by whoever received it.
    """

    message: Said


Permits = tuple[Permit, ...]


class Booked(Frozen):
    """The charge that :class:`Book` asked for is in the ledger, durably: a permit of every unit."""

    permits: Permits


class Woke(Frozen):
    """The time asked for by a :class:`Wake` with this tag has come."""

    tag: str


class Joined(Frozen):
    """A site that was given up has been heard from again."""

    site: int


class Left(Frozen):
    """A site cannot be reached any more, and what it worked on will not come while it is away.

    Attributes:
        final: whether it has refused, so that nobody need wait for it to come back.
    """

    site: int
    final: bool = False


class Overtaken(Frozen):
    """Tasks up to this number are booked and may have been answered, and a power failure has taken
    what the server knew of them: go on with the next number.

    Attributes:
        number: of the last such task.
        site: whose tasks these were, where each site's have numbers of their own.
        steps: that each site was charged for until then, where all have the same numbers.
    """

    number: int
    site: int = 0
    steps: tuple[int, ...] = ()


class Stop(Frozen):
    """The run cannot go on, and why; what was released stands, and the run ends with it."""

    why: str


class Lapsed(Frozen):
    """The answer to this task would not be used any more, and was not computed; it is paid for."""

    site: int
    number: int


class Learned(Frozen):
    """The server's model has done what :class:`Learn` or :class:`Skip` asked."""

    number: int


class Summed(Frozen, eq=False):
    """The sum that :class:`Open` asked for is opened, or is lost and cannot be.

    Attributes:
        number: of the round.
        clients: whose contributions it is of, ascending; none where it could not be opened.
        values: residues of the sum (d,), below 2^bits; empty where it could not be opened.
    """

    number: int
    clients: tuple[int, ...]
    values: NDArray[np.uint64]


Event = (
    Begin | Arrived | Booked | Woke | Joined | Left | Overtaken | Stop | Lapsed | Learned | Summed
)


class Book(Frozen):
    """Charge every site, in the cohort or not, with what a round releases of it, beforehand."""

    number: int
    fact: Fact


class Send(Frozen):
    """Give a site a task, or an answer. Whatever its price is, is booked first."""

    site: int
    message: Request


class Wake(Frozen):
    """Send back :class:`Woke` with this tag after so many seconds."""

    after: float
    tag: str


class Learn(Frozen, eq=False):
    """Let the server's own model learn from an event whose embeddings are all there.

    It answers the active parties.

    Attributes:
        number: of the event.
        labels: of its examples (b,), as the server knows them.
        embeddings: of every party, in order; (e_m,) numbers, or with a window (l e_m,).
        active: parties that want a derivative, ascending.
        absent: parties whose embedding is a stand-in.
    """

    number: int
    labels: tuple[int, ...]
    embeddings: tuple[Vector, ...]
    active: tuple[int, ...]
    absent: tuple[int, ...]


class Skip(Frozen):
    """The event is over, and nobody learns from it; the server has seen its labels all the same."""

    number: int
    labels: tuple[int, ...]
    absent: tuple[int, ...]
    active: tuple[int, ...] = ()


class Open(Frozen, eq=False):
    """Open the sum of what these clients sent in a round, and of nothing else.

    A simulation's contributions are under no mask: their sum stands open. On a network the masks
    are taken off, which not all of these clients need live to see.

    Attributes:
        number: of the round.
        clients: whose contributions arrived, ascending.
        values: the sum of what arrived (d,), masks and all, modulo 2^bits.
    """

    number: int
    clients: tuple[int, ...]
    values: NDArray[np.uint64]


class Log(Frozen):
    """A row for the log. The kernel adds what it alone knows (time, epsilon, accuracy)."""

    row: Row


class Closed(Frozen):
    """A round is over and a new global model stands; the moment to evaluate and to save."""

    number: int


class Finish(Frozen):
    """Nothing more will happen."""

    why: str


Effect = Book | Send | Wake | Learn | Skip | Open | Log | Closed | Finish
Effects = Sequence[Effect]
