"""Messages between a server and its clients or parties: one tagged union, one codec.

Vectors travel as little-endian float32 with their length; nothing is ever unpickled.
The simulator hands the same objects over without encoding them.

>>> task = Train(round=1, steps=2, weights=np.zeros(3, np.float32))
>>> decode(encode(task), dimension=3) == task
True

"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from sordino.base.errors import RemoteProtocolError
from sordino.base.frozen import Frozen

T = TypeVar("T")
Vector = npt.NDArray[np.float32]


class _Tagged(Frozen, tag=True, forbid_unknown_fields=True):
    """A message; its tag is the name of its class."""


class _WithVectors(_Tagged, eq=False):
    """A message with vectors: two are equal whose bytes are equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and encode(self) == encode(other)  # type: ignore[arg-type]


class Query(_Tagged):
    """Server to passive party: your embedding of this event, please.

    Attributes:
        event: its number, from 1.
    """

    event: int

    @property
    def number(self) -> int:
        """The number that an answer must quote."""
        return self.event


class Embedding(_Tagged):
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


class Derivative(_Tagged):
    """Server to active party: the derivative of the loss by its embedding, number by number."""

    party: int
    event: int
    bits: int
    values: bytes

    @property
    def number(self) -> int:
        """Of the event."""
        return self.event


class Labels(_Tagged):
    """Whoever holds the labels to the server: those of an event, or randomised answers.

    Attributes:
        event: which, from 1.
        values: whole numbers from 0, one for each example.
    """

    event: int
    values: tuple[int, ...]


class Turn(_Tagged):
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
        """The number that an answer must quote."""
        return 2 * self.event + self.asked


class Passive(_Tagged):
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


class Train(_WithVectors):
    """Server to client: take ``steps`` local steps from ``weights`` (d,).

    Attributes:
        round: number of the round, from 1; an answer must quote it.
        steps: tau.
        weights: the global model.
        wants_first: send the first noisy gradient along (it is released anyway).
        probe: in a paper's literal form only: the client's own last model (d,), against
            which it is to measure *raw* constants. Booked as not private.
        clip: C of this round, where a public schedule or earlier releases set it; None keeps the
            client's own.
        noise_multiplier: sigma of this round, likewise.
        order: the Rényi order fixed in advance, where sigma is chosen by looking at releases; part
            of the price.
        shape: what earlier releases taught about the mechanism's shape; empty where it has one
            shape.
        loss_bound: M; asks for the mean loss of the first batch, each example's cut to [0, M].
        loss_noise: sigma_h of its noise, in units of M; 0 asks for it raw, which is booked as not
            private.
    """

    round: int
    steps: int
    weights: Vector
    wants_first: bool = False
    probe: Vector | None = None
    clip: float | None = None
    noise_multiplier: float | None = None
    order: float | None = None
    shape: tuple[float, ...] = ()
    loss_bound: float | None = None
    loss_noise: float = 0.0

    @property
    def number(self) -> int:
        """The number that an answer must quote."""
        return self.round


class TrainInOrder(Train, eq=False):
    """The same, of a client whose batches come in a public order, one pass after another.

    Attributes:
        taken: local steps that this client was asked for before, in all rounds: where in its order
            the first batch stands.
    """

    taken: int = 0


class Statistics(Frozen, forbid_unknown_fields=True):
    """Numbers of one client's round, most of them computed from its noisy gradients g_1 … g_tau.

    Those are post-processing of what the ledger has booked, and cost nothing more. ``clipped`` and
    ``loss`` are releases with noise of their own, and their price is part of what is booked.
    Here w_0 is the model received and w' the one at which g_tau was taken.

    Attributes:
        energy: mean over the steps of ||g||^2.
        first: ||g_1||^2.
        change: ||g_tau - g_1||^2.
        moved: ||w' - w_0||^2.
        slope_first: <g_1, w' - w_0>.
        slope_last: <g_tau, w' - w_0>.
        clipped: noisy fraction of clipped examples, or None where it is not released.
        loss: noisy mean loss of the first batch, over its expected size, where it was asked for.
    """

    energy: float
    first: float
    change: float
    moved: float
    slope_first: float
    slope_last: float
    clipped: float | None = None
    loss: float | None = None


class Raw(Frozen, forbid_unknown_fields=True):
    """Constants of the raw data, as a paper's literal form sends them. NOT private.

    Attributes:
        beta: ||grad F_i(w_i) - grad F_i(w)|| / ||w_i - w|| (the papers' mu and beta).
        rho: |F_i(w_i) - F_i(w)| / ||w_i - w||.
        gradient: grad F_i(w), of shape (d,).
    """

    beta: float
    rho: float
    gradient: Vector


class Update(_WithVectors):
    """Client to server: the model after its local steps, and what may be said about them."""

    client: int
    round: int
    steps: int
    weights: Vector
    statistics: Statistics | None = None
    first: Vector | None = None
    raw: Raw | None = None


class Contribution(_WithVectors):
    """Client to *aggregator*: raw, but bounded.

    It adds this to a sum that only leaves the aggregator with noise on it.

    It is no release: no method sees it, nothing logs or keeps it. On a network it travels under
    secure aggregation, or to an aggregator that is trusted with it.

    Attributes:
        delta: w_i - w (d,), clipped.
        inside: whether its norm was within the clip; a bit that adaptive clipping sums up.
    """

    client: int
    round: int
    steps: int
    delta: Vector
    inside: bool


class Masked(_Tagged):
    """Client to server: a bounded vector with this client's part of the noise, for a sum that is
    opened modulo 2^bits.

    By itself it has too little noise: on a network it travels under a mask, and only a sum is ever
    opened. See :mod:`sordino.mechanisms.shared`.

    Attributes:
        client: who, from 0.
        round: which round; it must be the open one.
        values: residues of the d numbers, little-endian, ceil(bits / 8) bytes each.
    """

    client: int
    round: int
    values: bytes


class Compute(_WithVectors):
    """Server to edge: a gradient at ``weights`` (d,), please.

    Attributes:
        task: number of the edge's task, from 1; its answer must quote it.
        version: how many updates ``weights`` have seen.
        clip: G_s, the bound that holds in this stage; None without privacy.
    """

    task: int
    version: int
    weights: Vector
    clip: float | None = None

    @property
    def number(self) -> int:
        """The number that an answer must quote."""
        return self.task


class Gradient(_WithVectors):
    """Edge to server: the gradient (d,) that was asked for, with the edge's own noise on it."""

    client: int
    task: int
    version: int
    gradient: Vector


Message = (
    Train
    | TrainInOrder
    | Update
    | Contribution
    | Masked
    | Compute
    | Gradient
    | Query
    | Embedding
    | Derivative
    | Labels
    | Turn
    | Passive
)
Answer = Update | Contribution | Masked
Task = Train | TrainInOrder | Compute | Query | Derivative | Turn
"""A message from the server to a site; each has a ``number``."""
Reply = Update | Contribution | Masked | Gradient | Embedding | Labels | Passive
"""A message from a site to the server."""


LONG = 1 << 20
"""Bytes from which memory counts more than a copy."""


def encode_vector(value: Any) -> Any:
    """A vector as bytes, for an encoder."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, dtype="<f4").tobytes()
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def decode_vector(kind: Any, value: Any) -> Any:
    """The vector in bytes, for a decoder."""
    if not isinstance(value, bytes) or len(value) % 4:
        raise ValueError("a vector is sent as bytes, four for each number")
    return np.frombuffer(value, dtype="<f4").astype(np.float32)


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_vector)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
    Message, dec_hook=decode_vector
)


def encode(message: Message) -> bytes:
    """The bytes of a message (MessagePack)."""
    return tight(_encoder.encode(message))


def tight(encoded: bytes) -> bytes:
    """Return the same bytes; long ones in memory of their length, for those who keep them: an
    encoder's own has up to half more.
    """
    return bytes(memoryview(encoded)) if len(encoded) > LONG else encoded


def read(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str = "message") -> T:
    """The message that a decoder makes of bytes from somebody else.

    Raises:
        RemoteProtocolError: if it cannot read them.
    """
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(
            f"a {what} of {len(data)} bytes could not be read: {error}", "unreadable"
        ) from error


def decode(data: bytes, *, dimension: int) -> Message:
    """The message in ``data``, with every vector (``dimension``,) and its square finite.

    Raises:
        RemoteProtocolError: for anything else; the caller drops it and goes on.
    """
    message = read(_decoder, data)
    for name, vector in vectors(message):
        if vector.shape != (dimension,):
            raise RemoteProtocolError(
                f"{type(message).__name__}.{name} has {vector.size} numbers; the model has "
                f"{dimension}",
                "wrong shape",
            )
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(np.dot(vector, vector))
        if not finite:  # whoever adds such vectors up comes to infinity
            what = "too large" if np.isfinite(vector).all() else "not finite"
            why = f"{type(message).__name__}.{name} holds numbers that are {what}"
            raise RemoteProtocolError(why, what)
    return message


def vectors(message: Message) -> list[tuple[str, Vector]]:
    """The vectors of a message by their names; those of events are bytes, and unpacked by whoever
    knows their sizes.
    """
    fields = msgspec.structs.asdict(message)
    if (raw := fields.get("raw")) is not None:
        fields["raw.gradient"] = raw.gradient
    return [(name, value) for name, value in fields.items() if isinstance(value, np.ndarray)]
