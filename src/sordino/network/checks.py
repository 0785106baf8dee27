"""What the server holds against what a site says, before anybody acts on it."""

from __future__ import annotations

import math
from collections.abc import Callable

from sordino.base.errors import RemoteProtocolError, ResumeError
from sordino.base.message import Embedding, Labels, Message, Passive, Reply, Task, decode, vectors
from sordino.core.effect import Request, Stretch
from sordino.network import frames
from sordino.network.seals import Far, Kind, Seals
from sordino.training.plausible import length

Unfit = Callable[[int, int, Reply], str | None]
"""Why a message about an event is refused, as the regime says: of a site, to a task."""


def unknown(site: int, number: int, said: Reply) -> str:
    """Why a message about an event is refused where there are no events."""
    return f"no site of this study sends {type(said).__name__}"


def differs(said: frames.Hello, agreement: str) -> RemoteProtocolError | None:
    """What a greeting says that the server does not agree with, or None."""
    if said.version != frames.VERSION:
        return RemoteProtocolError(
            f"it speaks version {said.version} of the protocol, the server {frames.VERSION}",
            "another version",
        )
    if said.agreement != agreement:
        return RemoteProtocolError(
            "it has agreed to something else: its agreement.toml or study.toml differs",
            "another study",
        )
    return None


def ahead(
    seals: Seals, site: str, far: Far, said: frames.Hello, bridged: Callable[[], bool]
) -> bool:
    """Whether a site proves that this server has asked it a later task than its run folder leads
    to, and the run can go on after that task (``bridged``).

    Raises:
        ResumeError: if it proves that, and the run cannot go on.
    """
    kinds: tuple[tuple[Kind, tuple[int, bytes], int], ...] = (
        ("round", said.round, far.round),
        ("task", said.task, far.task),
    )
    for kind, (number, seal), known in kinds:
        if number > known and seals.hold(kind, site, number, seal):
            if kind == "task" and bridged():
                return True
            raise ResumeError(
                f"site {site} proves that this server has asked it for {kind} {number}, and the "
                f"run folder leads to {kind} {known} only: it is an older copy, or a power failure "
                "has taken a part of its journal (`serve --durable` prevents that). Going on would "
                "release again what was released. Put back the newest copy of the run folder, or "
                "begin a new run"
            )
    return False


def checked(
    site: int, number: int, message: Message, unfit: Unfit, most: float = math.inf
) -> Reply:
    """A message of this site about this task, whose vectors are at most ``most`` long, and whose
    numbers are those of such vectors: no more than ``||v - w||^2``.

    Raises:
        RemoteProtocolError: if it is not.
    """
    if not isinstance(message, Reply):
        raise RemoteProtocolError(f"a site does not send {type(message).__name__}", "no answer")
    if isinstance(message, Embedding | Labels | Passive):
        if (why := unfit(site, number, message)) is not None:
            raise RemoteProtocolError(why, "unfit")
        return message
    if message.client != site:
        raise RemoteProtocolError(
            f"it speaks for client {message.client} and is client {site}", "for another"
        )
    quoted = getattr(message, "round", getattr(message, "task", None))
    if quoted != number:
        raise RemoteProtocolError(
            f"its frame is of task {number}, its message of {quoted}", "another task"
        )
    for name, vector in vectors(message):
        if (found := length(vector)) > most:
            raise RemoteProtocolError(
                f"its {name} has the length {found:.3g}, and a model takes {most:.3g} at most",
                "too large",
            )
    for told in (getattr(message, "statistics", None), getattr(message, "raw", None)):
        for name in () if told is None else told.__struct_fields__:
            value = getattr(told, name)
            if not isinstance(value, float | int):
                continue
            if not math.isfinite(value):
                raise RemoteProtocolError(f"its {name} is not finite", "not finite")
            if abs(value) > 4.0 * most**2:
                raise RemoteProtocolError(
                    f"its {name} is {value:.3g}, and vectors that a model takes give "
                    f"{4.0 * most**2:.3g} at most",
                    "too large",
                )
    return message


def sendable(task: Request) -> Task:
    """A task that can be sent.

    Raises:
        TypeError: for one that is not.
    """
    if isinstance(task, Stretch):
        raise TypeError("a stretch of events is played in one process, and is not sent")
    return task


def said(body: bytes, dimension: int) -> Reply:
    """What a site has said.

    Raises:
        RemoteProtocolError: if no site says that.
    """
    found = decode(body, dimension=dimension)
    if not isinstance(found, Reply):
        raise RemoteProtocolError(f"a site does not send {type(found).__name__}")
    return found
