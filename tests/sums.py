"""Clients and a server of one secure sum, in one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from sordino.mechanisms.secure import client
from sordino.mechanisms.secure.client import Record
from sordino.mechanisms.secure.messages import (
    Delivered,
    FromClient,
    FromServer,
    Included,
    KeyList,
    Setting,
    Signatures,
    decode,
    encode,
)
from sordino.mechanisms.secure.server import Opened, Sum, Void

Vector = NDArray[np.integer[Any]]


def setting(clients: int, *, honest: int = 1, dishonest: int = 0, **more: Any) -> Setting:
    """A sum of small vectors of so many clients."""
    known: dict[str, Any] = {"study": "s", "run": "r", "round": 1, "dimension": 3, **more}
    return Setting(clients=clients, fewest=honest + dishonest, dishonest=dishonest, **known)


class Signers:
    """Keys of certificates: quick ones, since signatures are abstract here."""

    def __init__(self, count: int) -> None:
        self.keys = [
            Ed25519PrivateKey.from_private_bytes(bytes([i, *range(31)])) for i in range(count)
        ]

    def sign(self, who: int, content: bytes) -> bytes:
        """See :data:`sordino.mechanisms.secure.client.Sign`."""
        return self.keys[who].sign(content)

    def verify(self, who: int, content: bytes, signature: bytes) -> bool:
        """See :data:`sordino.mechanisms.secure.client.Verify`."""
        try:
            self.keys[who].public_key().verify(signature, content)
        except Exception:
            return False
        return True


@dataclass
class Party:
    """A client that keeps its record as a network would: through its bytes."""

    setting: Setting
    number: int
    vector: Vector
    signers: Signers
    seed: bytes = b""
    record: Record | None = None
    failed: dict[int, str] = field(default_factory=dict)

    def first(self) -> FromClient:
        """Its keys."""
        seed = self.seed or np.random.default_rng().bytes(32)
        found = client.begin(self.setting, self.number, seed, self._sign)
        self._keep(found)
        return found.own

    def _sign(self, content: bytes) -> bytes:
        return self.signers.sign(self.number, content)

    def _keep(self, record: Record) -> None:
        self.record = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Record)

    def answer(self, told: FromServer) -> FromClient:
        """What it says then."""
        assert self.record is not None
        made: FromClient
        match told:
            case KeyList():
                kept, made = client.share(self.setting, self.record, told, self.signers.verify)
            case Delivered():
                opened, self.failed = client.open_shares(self.setting, self.record, told)
                kept, made = client.mask(self.setting, opened, self.vector)  # type: ignore[arg-type]
            case Included():
                kept, made = client.sign(self.setting, self.record, told, self._sign)
            case Signatures():
                return client.reveal(self.setting, self.record, told, self.signers.verify)
        self._keep(kept)
        return made


Tamper = Callable[[FromClient], FromClient]


def parties(own: Setting, vectors: Sequence[Vector], signers: Signers | None = None) -> list[Party]:
    """One for each vector."""
    known = signers or Signers(own.clients)
    return [Party(own, i, each, known) for i, each in enumerate(vectors)]


def played(everybody: Sequence[Party], gone: Mapping[int, int] | None = None) -> Opened | Void:
    """A whole sum with an honest server; ``gone`` says in which phase a client answers no more."""
    own, signers = everybody[0].setting, everybody[0].signers
    sums = Sum(own, signers.verify, waiting=frozenset(each.number for each in everybody))
    told: Mapping[int, FromServer] = {}
    while True:
        for each in everybody:
            if each.number in sums.waiting and (gone or {}).get(each.number, 9) > sums.phase:
                said = each.answer(told[each.number]) if sums.phase else each.first()
                sums = _heard(sums, said)
        done = sums.closed()
        if not isinstance(done, tuple):
            return done
        sums, told = done


def _heard(sums: Sum, said: FromClient) -> Sum:
    found = decode(encode(said))
    assert found == said
    return sums.received(found)


def total(vectors: Sequence[Vector], who: Collection[int], bits: int) -> list[int]:
    """The sum of some of the vectors, by Python's whole numbers."""
    return [sum(int(vectors[i][j]) for i in who) % 2**bits for j in range(len(vectors[0]))]
