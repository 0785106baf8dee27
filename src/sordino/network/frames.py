"""The frames between a server and a site: one tagged union for each direction, one strict
codec.

Frames carry the messages of the regime (``base.message``) as bytes. Unknown fields, other
types and frames above the limit are refused. Nothing is ever unpickled.

>>> to_site(encode(Ask(number=1, body=b"")))
Ask(number=1, body=b'', seal=b'', shares=b'')
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from sordino.base import PROTOCOL
from sordino.base.errors import LONGEST, RemoteProtocolError, printable
from sordino.base.frozen import Frozen
from sordino.base.message import read, tight

VERSION = PROTOCOL
STOPPED = "the run was stopped: "
"""The beginning of why a run ended, where that was before its time."""
FORGOTTEN = "this site's machine failed, and it may have answered this before"
"""Why a site takes no task for a while: it is away, and comes back for later ones."""
SLOWEST = 100_000
"""Bytes a second of a line for which everybody waits."""
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of a task, a round or a phase: logs hold no others."""
Run = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")]
"""An identifier of a run, which people read."""


class Frame(Frozen, tag=True, tag_field="kind", forbid_unknown_fields=True):
    """A message in one piece."""


class Hello(Frame, tag="hello"):
    """The first frame of a site.

    Attributes:
        version: of these frames.
        agreement: SHA-256 (hex) of what the site has agreed to.
        code: digest of its program's sources; recorded alone.
        last: number of the last task that it answered.
        booked: the last round that it booked, where rounds are charged to everybody.
        task, round: numbers whose tokens it shows, and these: proof of how far the server has gone
            (:class:`~sordino.network.storage.ProgressTokens`).
    """

    version: int
    agreement: str
    code: str
    last: Number
    booked: Number = 0
    task: tuple[Number, bytes] = (0, b"")
    round: tuple[Number, bytes] = (0, b"")


class Say(Frame, tag="say"):
    """The answer to a task: the bytes of a :data:`sordino.base.message.Reply`."""

    number: Number
    body: bytes


class Booked(Frame, tag="booked"):
    """A round that is charged to everybody stands in the site's ledger."""

    number: Number


class Stepped(Frame, tag="stepped"):
    """The answer to a step of a secure sum.

    Attributes:
        number: of the round.
        phase: see :mod:`sordino.mechanisms.secure.messages`.
        body: the bytes of the message; empty where the site takes part no more, and
        why: the reason.
    """

    number: Number
    phase: Number
    body: bytes
    why: str = ""


class Refuse(Frame, tag="refuse"):
    """The site does not answer this task, and why; 0 for what is no task."""

    number: Number
    why: str


class Done(Frame, tag="done"):
    """The site has kept what it needs of the end."""


class Welcome(Frame, tag="welcome", omit_defaults=True):
    """The first frame of the server.

    Attributes:
        run: identifier of the federation's run.
        answered: the last task that the site has answered, where it is later than the site's
            greeting says; else 0, which is left out: versions before this have no such field.
    """

    run: Run
    answered: Number = 0


class Ask(Frame, tag="ask"):
    """A task: the bytes of a :data:`sordino.base.message.Task`, and the token that it was asked.

    Attributes:
        shares: where the answer goes into a secure sum, the bytes of what the others have sealed
            for this site.
    """

    number: Number
    body: bytes
    seal: bytes = b""
    shares: bytes = b""


class Step(Frame, tag="step"):
    """A step of a secure sum, but the masked input, which is the answer to a task.

    Attributes:
        number: of the round.
        phase: see :mod:`sordino.mechanisms.secure.messages`.
        body: the bytes of the message.
    """

    number: Number
    phase: Number
    body: bytes


class Book(Frame, tag="book"):
    """A round that is charged to everybody: its number, its event as the ledger writes it, and the
    token that it is to be booked.
    """

    number: Number
    event: str
    seal: bytes = b""


class Reject(Frame, tag="reject"):
    """The server does not talk to this site, and why."""

    why: str


class Bye(Frame, tag="bye"):
    """The run has ended.

    Attributes:
        why: what ended it.
        model: the model that is handed out, (d,) little-endian float32.
    """

    why: str
    model: bytes


FromSite = Hello | Say | Stepped | Booked | Refuse | Done
FromServer = Welcome | Ask | Step | Book | Reject | Bye

F = TypeVar("F")

_encoder = msgspec.msgpack.Encoder()
_from_site: msgspec.msgpack.Decoder[FromSite] = msgspec.msgpack.Decoder(FromSite)
_from_server: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


def cut_short(why: str) -> bool:
    """Return whether a run that ended for this reason ended before its time."""
    return why.startswith(STOPPED)


def limit(dimension: int) -> int:
    """Bytes of the largest frame for a model of d numbers: three vectors, and a little."""
    return 12 * dimension + 65_536


def encode(frame: FromSite | FromServer) -> bytes:
    """The bytes of a frame (MessagePack)."""
    return tight(_encoder.encode(frame))


def to_server(data: bytes | str) -> FromSite:
    """A frame of a site.

    Raises:
        RemoteProtocolError: for anything else.
    """
    found = _read(_from_site, data)
    if isinstance(found, Refuse | Stepped) and len(found.why) > LONGEST:
        raise RemoteProtocolError(f"a reason of {len(found.why)} characters", "unreadable")
    return _plain(found)


def to_site(data: bytes | str) -> FromServer:
    """A frame of the server.

    Raises:
        RemoteProtocolError: for anything else.
    """
    return _plain(_read(_from_server, data))


def _plain(frame: F) -> F:
    """The frame with a reason that controls no terminal: a peer chooses it, and people read it."""
    if not isinstance(frame, Stepped | Refuse | Reject | Bye) or frame.why.isprintable():
        return frame
    return msgspec.structs.replace(frame, why=printable(frame.why))


def _read(decoder: msgspec.msgpack.Decoder[F], data: bytes | str) -> F:
    if isinstance(data, str):
        raise RemoteProtocolError("a frame of text; frames are bytes", "unreadable")
    return read(decoder, data, "frame")
