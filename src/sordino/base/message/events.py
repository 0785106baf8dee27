"""What the server and the parties of a stream of events say to each other."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sordino.base.errors import RemoteProtocolError

Vector = npt.NDArray[np.float32]


class Query(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Server to passive party: your embedding of this event, please.

    Attributes:
        event: its number, from 1.
    """

    event: int

    @property
    def number(self) -> int:
        """What an answer must quote."""
        return self.event


class Embedding(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Party to server: what it makes of its features of an event; :func:`numbers` unpacks it.

    Attributes:
        party: who, from 0.
        event: which; the message opens it if the party is active.
        active: whether the party was activated, and wants a derivative back.
        bits: of a number, 16 or 32.
        values: the numbers, example by example; with a window, the newest example first.
    """

    party: int
    event: int
    active: bool
    bits: int
    values: bytes


class Derivative(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Server to active party: the derivative of the loss by its embedding, number by number."""

    party: int
    event: int
    bits: int
    values: bytes

    @property
    def number(self) -> int:
        """Of the event."""
        return self.event


class Labels(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Whoever holds the labels to the server: those of an event, or randomised answers.

    Attributes:
        event: which, from 1.
        values: whole numbers from 0, one for each example.
    """

    event: int
    values: tuple[int, ...]


class Turn(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Server to a site of a network: an event is next; or, ``asked``, your embedding of it, please.

    A site's tasks have growing numbers, and only the last one is sent again after a lost
    connection: so a derivative travels with the turn that follows it.

    Attributes:
        event: its number, from 1.
        asked: whether it is a query.
        derivative: of the event before, for a party that was active in it.
        over: whether there is no such event: the stream has ended.
    """

    event: int
    asked: bool = False
    derivative: Derivative | None = None
    over: bool = False

    @property
    def number(self) -> int:
        """What an answer must quote."""
        return 2 * self.event + self.asked


class Passive(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A site of a network to the server: it sends nothing unasked in this event.

    Attributes:
        party: who, from 0; whoever holds the labels comes after the parties.
        event: which.
    """

    party: int
    event: int


_FLOATS: dict[int, np.dtype[Any]] = {16: np.dtype("<f2"), 32: np.dtype("<f4")}


def packed(values: Vector, bits: int) -> bytes:
    """Numbers as they travel: nearest where 16 bits hold them, infinite where they do not fit."""
    with np.errstate(over="ignore"):
        return values.astype(_FLOATS[bits]).tobytes()


def numbers(message: Embedding | Derivative, count: int) -> Vector:
    """The ``count`` numbers of a message.

    Raises:
        RemoteProtocolError: if it holds others, or some that are not finite.
    """
    kind = _FLOATS.get(message.bits)
    if kind is None or len(message.values) != count * kind.itemsize:
        what = type(message).__name__
        raise RemoteProtocolError(
            f"{what} of {len(message.values)} bytes at {message.bits} bits a number; {count} "
            "numbers are expected"
        )
    found: Vector = np.frombuffer(message.values, dtype=kind).astype(np.float32)
    if not np.isfinite(found).all():
        raise RemoteProtocolError(
            f"{type(message).__name__} of party {message.party} holds numbers that are not finite"
        )
    return found
