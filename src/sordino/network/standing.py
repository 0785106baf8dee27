"""What the server knows of a site, and what it hears from one."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from sordino.base.message import Reply
from sordino.network import frames

KINDS, LONGEST = 64, 300
"""Reasons that are told apart for each site, and characters of one."""


@dataclass(slots=True)
class Standing:
    """What the server knows of a site.

    Attributes:
        connection: number of its connection; 0 without one.
        answered: number of the last task that it has answered.
        greeted: whether it has said on this connection who it is and what it agreed to.
        there: whether it counts as present.
        since: since when it is not greeted, in seconds of the clock.
        ask: what it was last asked, and has not answered.
        step: the step of a secure sum that it was last asked for, and has not taken.
        out: why it takes part no more, until it connects again; empty while it does.
        barred: how often it was out since its last answer.
        turned: why its greeting was not accepted, until one is.
        excluded: why this process of the server admits it no more; empty while it does.
        paused: until when it is not counted as present, in seconds of the clock.
        revoked: that its certificate is revoked, until it greets with another.
        books: rounds that it has not booked yet.
        bad: frames of this connection that were refused.
        refused: counts of what was refused, by reason.
        flagged: answers that were longer than clipping and noise make plausible, and were used all
            the same; ``flag`` is about the last one.
        received, sent: bytes of frames.
        seen: when it was last heard from.
    """

    connection: int = 0
    answered: int = 0
    greeted: bool = False
    there: bool = False
    since: float = 0.0
    ask: frames.Ask | None = None
    step: frames.Step | None = None
    out: str = ""
    barred: int = 0
    turned: str = ""
    excluded: str = ""
    paused: float = -math.inf
    revoked: str = ""
    books: dict[int, bytes] = field(default_factory=dict)
    bad: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    flagged: int = 0
    flag: str = ""
    received: int = 0
    sent: int = 0
    seen: float = 0.0


class Heard(NamedTuple):
    """What reaches the server.

    Attributes:
        kind: see :class:`~sordino.network.journal.Input`.
        said: the message that the body holds, if it is one.
    """

    kind: str
    site: int
    body: bytes = b""
    number: int = 0
    said: Reply | None = None


def untimely(own: Standing, number: int) -> str:
    """What an answer is that nobody waits for."""
    if number == own.answered:
        return "replayed"
    return "stale" if number < max(own.answered, own.ask.number if own.ask else 0) else "unasked"


def leaving(own: Standing) -> bool:
    """Whether a site is counted out when it stays away for the agreed patience."""
    return not own.greeted and (own.there or (bool(own.revoked) and not own.out))


def returning(own: Standing) -> bool:
    """Whether a site was left out for a while and is connected."""
    return own.greeted and not own.there and own.paused > -math.inf
