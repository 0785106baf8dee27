"""One secure sum: its public facts, the condition under which it protects, and its messages.

**Condition.** Of n clients, c collude with the server (it may send anything to anybody, and claim
of anybody that he did not answer). A sum is opened only where ``threshold`` t clients have signed
which set U it is over, and where

    2 t > n + c     and     |U| >= max(t, ``fewest``).

Then at most the sum over *one* set can be opened in a round, and at least ``fewest`` - c of its
contributions are honest. docs/secure-sums.md has the whole proof; its core: an honest client signs
one set in a round. Two sets that are opened have t signers each; who has signed both colludes. So
2 t <= n + c, which the condition excludes.

**Messages**, phase by phase:

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
from dataclasses import dataclass

import msgspec

from sordino.base.errors import StudyError
from sordino.base.frozen import Frozen
from sordino.base.message import read

MOST_CLIENTS = 256
"""Clients of one sum: messages grow with their number, and all work with its square."""
DIGEST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One secure sum.

    Attributes:
        study: digest of what all have agreed to.
        run: identifier of the run.
        round: number of the sum in the run, from 1.
        clients: n, numbered from 0.
        fewest: contributions that an opened sum must hold, at least.
        dishonest: c, clients that may collude with the server.
        bits: of the modulus 2^bits, 1 to 64.
        dimension: numbers of a vector.

    Raises:
        StudyError: if the condition does not hold, or a number is out of range.
    """

    study: str
    run: str
    round: int
    clients: int
    fewest: int
    dishonest: int = 0
    bits: int = 32
    dimension: int

    def __post_init__(self) -> None:
        n, c = self.clients, self.dishonest
        if not 2 <= n <= MOST_CLIENTS:
            raise StudyError(f"a secure sum takes 2 to {MOST_CLIENTS} clients; there are {n}")
        if not 1 <= self.fewest <= n or not 0 <= c < n:
            raise StudyError(
                f"a secure sum of {n} clients cannot hold {self.fewest} contributions, where {c} "
                "clients are dishonest"
            )
        if not 1 <= self.bits <= 64 or self.dimension < 1 or self.round < 1:
            raise StudyError("bits must lie in 1..64; dimension and round are positive")

    @property
    def threshold(self) -> int:
        """t, the lowest that is sound."""
        return lowest_threshold(self.clients, self.dishonest)

    @property
    def least(self) -> int:
        """Contributions below which a sum is not opened: max(t, fewest)."""
        return max(self.threshold, self.fewest)

    def context(self, what: str, *parts: bytes) -> bytes:
        """Return what a signature or a key is bound to: ``what`` it is for, this sum, and
        ``parts``.

        A digest (32 bytes) of all of them with their lengths.
        """
        numbers = [self.round, self.clients, self.fewest, self.dishonest, self.threshold]
        numbers += [self.bits, self.dimension]
        told = [b"sordino secure sum 1", what.encode(), self.study.encode(), self.run.encode()]
        told += [b",".join(b"%d" % each for each in numbers), *parts]
        found = hashlib.sha256()
        for part in told:
            found.update(len(part).to_bytes(8, "little") + part)
        return found.digest()


def lowest_threshold(clients: int, dishonest: int) -> int:
    """The lowest t with 2 t > n + c.

    >>> lowest_threshold(10, 0), lowest_threshold(10, 3), lowest_threshold(3, 0)
    (6, 7, 2)
    """
    return (clients + dishonest) // 2 + 1


class _Message(Frozen, tag=True, array_like=True, forbid_unknown_fields=True):
    """A message, or a part of one."""


class _OfServer(_Message):
    round: int


class _OfClient(_Message):
    client: int
    round: int


class Invitation(_OfServer):
    """A sum is next. Send your keys."""


class Keys(_OfClient):
    """A client's fresh public keys of a round.

    Attributes:
        encrypt: X25519 public key (32 bytes) that shares are sealed with; its private key never
            leaves the client.
        mask: X25519 public key (32 bytes) that pairwise masks follow from; its private key is what
            is shared.
        commitment: SHA-256 over the seed of the client's own mask, so that a wrong one is noticed.
        signature: by the key of the client's certificate, over :func:`signed_keys`.
    """

    encrypt: bytes
    mask: bytes
    commitment: bytes
    signature: bytes


class KeyList(_OfServer):
    """The keys of all who take part, in the order of their numbers."""

    keys: tuple[Keys, ...]


class Shares(_OfClient):
    """A client's two secrets, shared between all who take part.

    Attributes:
        sealed: for every other client of the list, in order: its two shares, encrypted for it.
        prints: for every client of the list, in order: SHA-256 of its share of the own mask's seed
            and of the private key, 64 bytes; the server tells a wrong share by them.
    """

    sealed: tuple[bytes, ...]
    prints: tuple[bytes, ...]


class Delivered(_OfServer):
    """Shares that others have sealed for a client, by sender, ascending. Mask your input."""

    senders: tuple[int, ...]
    sealed: tuple[bytes, ...]


class MaskedInput(_OfClient):
    """A client's vector under its masks, as :func:`sordino.base.residues.packed`."""

    values: bytes


class Included(_OfServer):
    """The clients, ascending, whose masked inputs arrived. Sign that."""

    clients: tuple[int, ...]


class Signed(_OfClient):
    """A client's signature over :func:`signed_set`."""

    signature: bytes


class Signatures(_OfServer):
    """Signers of the set in ascending order, and their signatures: shares are to be revealed."""

    signers: tuple[int, ...]
    signatures: tuple[bytes, ...]


class Revealed(_OfClient):
    """A client's shares: of the own masks of those who are in, in order, and of the private keys of
    those who are not, each with whose it is.
    """

    masks: tuple[bytes, ...]
    keys: tuple[tuple[int, bytes], ...]


class Unopened(_OfClient):
    """A client takes part in the sum no more, and whose shares for it did not open, ascending."""

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
    return read(_decoder, data)


def signed_keys(setting: Setting, keys: Keys) -> bytes:
    """Return what a client signs of its keys."""
    return setting.context("keys", b"%d" % keys.client, keys.encrypt, keys.mask, keys.commitment)


def transcript(setting: Setting, keys: tuple[Keys, ...]) -> bytes:
    """A digest of the keys of all who take part, which each client has checked. Signatures are left
    out: the same client may sign the same keys twice in different ways.
    """
    return setting.context("transcript", *(signed_keys(setting, each) for each in keys))


def signed_set(setting: Setting, agreed: bytes, clients: tuple[int, ...]) -> bytes:
    """Return what a client signs of a set: the clients in it, and the keys (:func:`transcript`)
    that its own input was masked with.
    """
    return setting.context("set", agreed, *(b"%d" % each for each in clients))


def fingerprint(share: bytes) -> bytes:
    """SHA-256 of a share."""
    return hashlib.sha256(share).digest()
