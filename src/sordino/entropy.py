"""Addressed randomness: the same address gives the same draw, whatever came before.

A run that is killed, reordered or replayed in part must see the batches and the
noise that it would have seen unbroken. So nothing draws from a shared stream:
every use of randomness names its address, ``entropy.at("client", 3, "round", 7,
"noise")``, and gets a generator of its own, keyed by SHA-256 over root and address.

:class:`Seeded` is for studies and tests. Its noise protects nobody from someone who
knows the seed: a simulation says so, and a deployment must draw its protective noise
from a cryptographic generator seeded by the operating system instead.

The generator is SFC64 with 192 bits of key: fast, and collisions between addresses
are out of reach (a 32-bit seed, as torch's CPU generator uses, repeats itself after
some 65 000 addresses).

>>> a, b = Seeded(0).at("client", 3), Seeded(0).at("client", 3)
>>> bool((a.random(4) == b.random(4)).all())
True
>>> float(Seeded(0).at("client", 4).random()) == float(Seeded(0).at("client", 3).random())
False
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Part = str | int


class Entropy(Protocol):
    """A root of randomness; every draw is addressed below it."""

    def at(self, *address: Part) -> np.random.Generator:
        """The generator of this address. Equal addresses give equal generators."""
        ...


def _generator(root: bytes, address: tuple[Part, ...]) -> np.random.Generator:
    digest = hashlib.sha256(root)
    for part in address:
        # Length and type are hashed with each part: ("a", "b") is not ("ab",), 1 is not "1".
        text = str(part).encode()
        digest.update(f"{type(part).__name__}:{len(text)}:".encode() + text)
    words = np.frombuffer(digest.digest(), dtype=np.uint32)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([int(w) for w in words])))


@dataclass(frozen=True, slots=True)
class Seeded:
    """Reproducible randomness for studies and tests."""

    seed: int

    def at(self, *address: Part) -> np.random.Generator:
        """See :class:`Entropy`."""
        return _generator(b"sordino-seeded:" + str(self.seed).encode(), address)
