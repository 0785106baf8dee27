"""Messages between the clients and the server of a secure sum, phase by phase.

======  ==========================  ==========================
phase   server to client            client to server
======  ==========================  ==========================
0       :class:`Invitation`         :class:`Keys`
1       :class:`KeyList`            :class:`Shares`
2       :class:`Delivered`          :class:`MaskedInput`
3       :class:`Included`           :class:`Signed`
4       :class:`Signatures`         :class:`Revealed`
======  ==========================  ==========================

In place of its answer to phase 2 or 3, a client may say :class:`Unopened`.

>>> decode(encode(Signed(client=2, round=7, signature=b"s")))
Signed(client=2, round=7, signature=b's')
"""

from __future__ import annotations

import hashlib

import msgspec

from sordino.base.errors import RemoteProtocolError
from sordino.mechanisms.secure.setting import Setting


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """A message, or a part of one."""


class Invitation(_Message, frozen=True):
    """A sum is next. Send your keys."""

    round: int


class Keys(_Message, frozen=True):
    """A client's fresh public keys of a round.

    Attributes:
        encrypt: X25519 public key (32 bytes) that shares are sealed with; its private key never
            leaves the client.
        mask: X25519 public key (32 bytes) that pairwise masks follow from; its private key is what
            is shared.
        commitment: SHA-256 over the seed of the client's own mask, so that a wrong one is noticed.
        signature: by the key of the client's certificate, over :func:`said`.
    """

    client: int
    round: int
    encrypt: bytes
    mask: bytes
    commitment: bytes
    signature: bytes


class KeyList(_Message, frozen=True):
    """The keys of all who take part, in the order of their numbers."""

    round: int
    keys: tuple[Keys, ...]


class Shares(_Message, frozen=True):
    """A client's two secrets, shared between all who take part.

    Attributes:
        sealed: for every other client of the list, in order: its two shares, encrypted for it.
        prints: for every client of the list, in order: SHA-256 of its share of the own mask's seed
            and of the private key, 64 bytes; the server tells a wrong share by them.
    """

    client: int
    round: int
    sealed: tuple[bytes, ...]
    prints: tuple[bytes, ...]


class Delivered(_Message, frozen=True):
    """Shares that others have sealed for a client, by sender, ascending. Mask your input."""

    round: int
    senders: tuple[int, ...]
    sealed: tuple[bytes, ...]


class MaskedInput(_Message, frozen=True):
    """A client's vector under its masks, as :func:`sordino.base.residues.packed`."""

    client: int
    round: int
    values: bytes


class Included(_Message, frozen=True):
    """The clients, ascending, whose masked inputs arrived. Sign that."""

    round: int
    clients: tuple[int, ...]


class Signed(_Message, frozen=True):
    """A client's signature over :func:`set_of`."""

    client: int
    round: int
    signature: bytes


class Signatures(_Message, frozen=True):
    """Signers of the set in ascending order, and their signatures: shares are to be revealed."""

    round: int
    signers: tuple[int, ...]
    signatures: tuple[bytes, ...]


class Revealed(_Message, frozen=True):
    """A client's shares: of the own masks of those who are in, in order, and of the private keys of
    those who are not, each with whose it is.
    """

    client: int
    round: int
    masks: tuple[bytes, ...]
    keys: tuple[tuple[int, bytes], ...]


class Unopened(_Message, frozen=True):
    """A client takes part in the sum no more, and whose shares for it did not open, ascending."""

    client: int
    round: int
    dealers: tuple[int, ...]


FromClient = Keys | Shares | MaskedInput | Signed | Revealed | Unopened
FromServer = Invitation | KeyList | Delivered | Included | Signatures
Message = FromClient | FromServer

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The bytes of a message (MessagePack)."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """The message in ``data``.

    Raises:
        RemoteProtocolError: for anything else.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(
            f"a message of {len(data)} bytes could not be read: {error}", "unreadable"
        ) from error


def said(setting: Setting, keys: Keys) -> bytes:
    """Return what a client signs of its keys."""
    return setting.context("keys", b"%d" % keys.client, keys.encrypt, keys.mask, keys.commitment)


def transcript(setting: Setting, keys: tuple[Keys, ...]) -> bytes:
    """A digest of the keys of all who take part, which each client has checked. Signatures are left
    out: the same client may sign the same keys twice in different ways.
    """
    return setting.context("transcript", *(said(setting, each) for each in keys))


def set_of(setting: Setting, agreed: bytes, clients: tuple[int, ...]) -> bytes:
    """Return what a client signs of a set: the clients in it, and the keys (:func:`transcript`)
    that its own input was masked with.
    """
    return setting.context("set", agreed, *(b"%d" % each for each in clients))


def fingerprint(share: bytes) -> bytes:
    """SHA-256 of a share."""
    return hashlib.sha256(share).digest()
