"""Sums over events, for a row of the log or for a whole run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from sordino.regimes.vertical.engine import Mask, Played
from sordino.regimes.vertical.traffic import Sizes


class Tally(msgspec.Struct):
    """What has been counted, of events that were used; sums, but for the lists by party.

    Attributes:
        events, learned: seen, and learned from.
        errors: predictions that were not the label the server knows.
        examples: predictions; there is none of an event that is skipped.
        loss, regret: sums over events, the loss over those learned from.
        active, silent: events in which each party was active, or did not answer.
        up, down, framing: bytes.
        dropped: messages that were no part of anything.
        unused: events of entities that had no budget left.
        seconds: of parties' forward passes, their backward passes and steps, the server.
        passive: share of the forward seconds that went to passive parties.
    """

    active: list[int]
    silent: list[int]
    events: int = 0
    learned: int = 0
    errors: int = 0
    examples: int = 0
    loss: float = 0.0
    regret: float = 0.0
    up: int = 0
    down: int = 0
    framing: int = 0
    dropped: int = 0
    unused: int = 0
    seconds: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0])
    passive: float = 0.0

    def copied(self) -> Tally:
        """A tally of its own with the same sums."""
        found = Tally.zero(len(self.active))
        found.add(self)
        return found

    @staticmethod
    def zero(parties: int) -> Tally:
        """Nothing counted yet."""
        return Tally([0] * parties, [0] * parties)

    def add(self, other: Tally) -> None:
        """Count the other's as well."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(
                self,
                name,
                [a + b for a, b in zip(mine, theirs, strict=True)]
                if isinstance(mine, list)
                else mine + theirs,
            )


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A piece of a stream that was played.

    Attributes:
        start: events of the stream before it.
        used: which of its n events were used (n,).
        first: number of the first one used.
        active, silent: parties of those used (u, M).
        y: their labels, as the server knows them (u b,).
    """

    start: int
    used: Mask
    first: int
    active: Mask
    silent: Mask
    y: NDArray[np.int64]


def counted(
    course: Course, played: Played, sizes: Sizes, every: int, batch: int
) -> Iterator[tuple[int, Tally]]:
    """What came of a piece, up to each row of the log: the event after which it stands, and the
    tally.
    """
    start, n, active = course.start, len(course.used), course.active
    wrong = (played.seen.predictions != course.y).reshape(-1, batch).sum(1) * played.learned
    at = start + np.flatnonzero(course.used)
    clock = played.seen.seconds / max(len(active), 1)
    stop = start
    while stop < start + n:
        begin, stop = stop, min((stop // every + 1) * every, start + n)
        low, high = np.searchsorted(at, (begin, stop))
        here = slice(low, high)
        traffic = sizes.weigh(course.first + low, active[low:high], played.learned[low:high])
        events, learned = int(high - low), int(played.learned[here].sum())
        passive = float((~active[here]).mean()) if events else 0.0
        yield (
            stop,
            Tally(
                active=active[here].sum(0).tolist(),
                silent=course.silent[here].sum(0).tolist(),
                events=events,
                learned=learned,
                errors=int(wrong[here].sum()),
                examples=learned * batch,
                loss=float(played.seen.losses[here].sum()),
                regret=float(played.seen.regret[here].sum()),
                up=traffic.up,
                down=traffic.down,
                framing=traffic.framing,
                dropped=int(played.dropped[here].sum()),
                unused=stop - begin - events,
                seconds=(clock * events).tolist(),
                passive=float(clock[0]) * events * passive,
            ),
        )
