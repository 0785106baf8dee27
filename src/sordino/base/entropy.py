"""Addressed randomness: the same address gives the same draw, whatever came before.

A run that is killed, reordered or replayed in part must see the batches and the
noise that it would have seen unbroken. So nothing draws from a shared stream:
every use of randomness names its address, ``entropy.at("client", 3, "round", 7,
"noise")``, and gets a generator of its own, keyed by SHA-256 over root and address.

:class:`Seeded` is for studies and tests. Its noise protects nobody from someone who
knows the seed: a simulation says so. Its generator is SFC64 with 192 bits of key: fast,
and collisions between addresses are out of reach (a 32-bit seed, as torch's CPU
generator uses, repeats itself after some 65 000 addresses).

:class:`System` protects: its root is a secret key of 256 bits from the operating system, and
below each address runs AES-256 in counter mode under a key of its own (HMAC-SHA-256 of the
address). Whoever has the key can repeat a run that was killed; without it, nobody can.

**Noise is never used twice.** Two releases that share their noise differ by what it was meant to
hide. So the root of :class:`Seeded` takes a digest of everything that shapes what is released
(study, data, program, environment) beside the seed: the same study over the same data repeats bit
for bit, anything else draws afresh. And noise is drawn over a digest of the raw sum that it hides
(:func:`over`): whatever was changed unnoticed between two tries, another sum has other noise.

>>> a, b = Seeded(0).at("client", 3), Seeded(0).at("client", 3)
>>> bool((a.random(4) == b.random(4)).all())
True
>>> float(Seeded(0).at("client", 4).random()) == float(Seeded(0).at("client", 3).random())
False
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import math
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

# Theory of operation
#
# Noise protects once. If two releases carry the same noise, their difference shows what it hid, and
# no sum of prices bounds that. If a release is asked for again after a kill and carries *other*
# noise, two noisy values of one thing are out, and one was booked. So a draw must be the same
# whenever the same release is made again, and different for every other release.
#
# That is done by addresses, in three layers:
#
#     root       of a run. Seeded: the seed, and a digest of the study, the data, the numerics and
#                the environment. System: a secret key.
#     address    words and numbers: the use ("noise", "batch", ...), who, and which round, version
#                or event. One use has one address; nothing is drawn twice from one.
#     contents   a digest of the raw numbers that the noise hides (:func:`over`)
#
#     generator = KDF(root, address, contents)       SHA-256, or HMAC-SHA-256 under the key
#
# Why each is needed. *Addresses* and no shared stream: a client that is late, missing or replayed
# leaves the draws of all others as they were, and order does not matter. *The digest in the root*:
# a changed data set or program with the same seed makes another release and must not repeat the
# noise; two runs over one ledger have different roots by the name of the run. *Contents*: the same
# address may come to hide another sum. A folder that was put back from a copy is told something
# else than before; a library was changed in a way that no recorded fact shows. Other contents give
# other noise, equal contents give the same bytes. Where others decide what a copy is told, equal
# bytes would tell them that the contents are equal; there the history of what was told is a part of
# the contents (:class:`Transcript`).
#
# What must hold for who adds a draw:
#
# * name every index that the use depends on; a loop's index too. A missing index is shared noise;
# * never rename an address, nor change the order of its parts: old runs could not go on;
# * never draw from what ``at`` returned for two uses, nor keep a numbered generator of
#   :class:`Stream` beyond the next call, which seeds the same object anew;
# * hash contents by :func:`digest`, of all that a release shows, before noise is added;
# * a change of what is computed, to the last bit, raises NUMERICS (:mod:`sordino.base`):
#   it is part of the root of :class:`Seeded`, and no run goes on under another number.

Part = str | int
Contents = Sequence[bytes | memoryview]
"""Raw numbers as bytes, part after part; all parts but the last have a length of their own."""

_MIXING = 12  # steps of SFC64 between seeding and use


def drawable(rate: float) -> float:
    """The largest multiple of 2^-53 that is not above a rate in [0, 1].

    A random number of 53 bits lies below it with exactly this probability.

    >>> drawable(0.25), drawable(1e-20)
    (0.25, 0.0)
    """
    return math.floor(rate * 2.0**53) / 2.0**53


class Entropy(Protocol):
    """A root of randomness; every draw is addressed below it."""

    def at(self, *address: Part) -> Generator:
        """The generator of this address. Equal addresses give equal generators."""

    def stream(self, *address: Part) -> Numbered:
        """Many generators below one address, told apart by a number."""


class Numbered(Protocol):
    """Generators numbered from 0."""

    def at(self, number: int) -> Generator:
        """The generator of this number, from 0; it is good until the next call."""

    def over(self, number: int, hidden: Contents) -> Generator:
        """The generator of this number, of noise that hides these bytes; see :func:`over`."""


class Stream:
    """Generators numbered from 0, for what happens thousands of times a second.

    One generator is seeded anew for each number, as its author seeds it: three words of key (two
    from the address, and the number), a counter at 1, and twelve steps to mix them. That takes two
    microseconds where a generator of its own takes 25.
    """

    __slots__ = ("_bits", "_generator", "_key", "_secret", "_state")

    def __init__(self, words: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
        self._bits, self._key = np.random.SFC64(0), (int(words[0]), int(words[1]))
        self._secret = hashlib.sha256(words.tobytes()).digest()
        self._generator = Generator(self._bits)
        self._state: Any = self._bits.state

    def at(self, number: int) -> Generator:
        """The generator of this number, from 0; always the same object; good until next time."""
        return self._seeded(*self._key, number)

    def over(self, number: int, hidden: Contents) -> Generator:
        """Likewise, of noise that hides these bytes."""
        first, second = self._key
        words = np.frombuffer(digest(self._secret, hidden), dtype=np.uint64)
        return self._seeded(first ^ int(words[0]), second ^ int(words[1]), number)

    def _seeded(self, *words: int) -> Generator:
        self._state["state"]["state"][:] = (*words, 1)
        self._bits.state = self._state
        self._bits.random_raw(_MIXING, output=False)
        return self._generator


def _digest(root: bytes, address: tuple[Part, ...]) -> bytes:
    digest = hashlib.sha256(root)
    for part in address:
        # Length and type are hashed with each part: ("a", "b") is not ("ab",), 1 is not "1".
        text = str(part).encode()
        digest.update(f"{type(part).__name__}:{len(text)}:".encode() + text)
    return digest.digest()


def _generator(root: bytes, address: tuple[Part, ...]) -> Generator:
    words = np.frombuffer(_digest(root, address), dtype=np.uint32)
    return Generator(np.random.SFC64(np.random.SeedSequence(words)))


@dataclass(frozen=True, slots=True)
class Seeded:
    """Reproducible randomness for studies and tests.

    Attributes:
        seed: of the study.
        run: where it is not empty, draws are its own, whatever others have the same seed: a digest
            of all that shapes a release.
    """

    seed: int
    run: str = ""

    def at(self, *address: Part) -> Generator:
        return _generator(self._root, address)

    def stream(self, *address: Part) -> Stream:
        return Stream(
            np.frombuffer(_digest(self._root + b"/stream", address), dtype=np.uint64)[:2].copy()
        )

    @property
    def _root(self) -> bytes:
        return (
            b"sordino-seeded:"
            + str(self.seed).encode()
            + (b":run:" + self.run.encode() if self.run else b"")
        )


_WORD = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
_HALF = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_SHARE = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)

_AHEAD = 64  # words fetched at once for callers that want one


class _BitGenerator(ctypes.Structure):
    """The table that NumPy's Generator reads of a bit generator (``bitgen_t``,
    numpy/random/bitgen.h)."""

    _fields_ = [
        ("state", ctypes.c_void_p),
        ("next_uint64", _WORD),
        ("next_uint32", _HALF),
        ("next_double", _SHARE),
        ("next_raw", _WORD),
    ]


class KeyStream:
    """AES-256 in counter mode as a bit generator for :class:`numpy.random.Generator`.

    The words are the key stream of the cipher (NIST SP 800-38A; by the ``cryptography`` library)
    under a key (32 bytes) that is used for nothing else, so the counter begins at 0. NumPy's own
    distributions ask for one word at a time, through a call back into Python, at half a microsecond
    each; noise asks for many at once (:mod:`sordino.mechanisms.grid`) and gets them at the cipher's
    speed.

    >>> first, again = (Generator(KeyStream(bytes(32))) for _ in range(2))
    >>> bool((first.random(3) == again.random(3)).all())
    True
    """

    key_stream = True

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._ahead: list[int] = []
        self.lock = threading.RLock()
        word = _WORD(lambda _: self._next())
        half = _HALF(lambda _: self._next() >> 32)
        share = _SHARE(lambda _: (self._next() >> 11) * 2.0**-53)
        self._table = _BitGenerator(None, word, half, share, word)  # kept: NumPy holds its address
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.capsule = make(ctypes.addressof(self._table), b"BitGenerator", None)

    def random_raw(self, count: int) -> npt.NDArray[np.uint64]:
        """The next words (count,)."""
        taken = self._ahead[-1 : -count - 1 : -1]
        self._ahead = self._ahead[: max(0, len(self._ahead) - count)]
        fresh = self._words(count - len(taken))
        return np.concatenate([np.array(taken, np.uint64), fresh]) if taken else fresh

    def _words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self._cipher.update(bytes(8 * count)), "<u8").astype(
            np.uint64, copy=False
        )

    def _next(self) -> int:
        if not self._ahead:
            self._ahead = self._words(_AHEAD)[::-1].tolist()
        return self._ahead.pop()


@dataclass(frozen=True, slots=True)
class System:
    """Randomness that nobody can predict: AES-256-CTR under a secret key.

    Attributes:
        key: 32 secret bytes; from the operating system unless given. Given again, it repeats every
            draw.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError(f"a key has 32 bytes; got {len(self.key)}")

    def at(self, *address: Part) -> Generator:
        key: Any = KeyStream(hmac.digest(self.key, _digest(b"at", address), "sha256"))
        return Generator(key)  # it has all that a bit generator is asked for

    def stream(self, *address: Part) -> Numbered:
        return _Below(self, address)


@dataclass(frozen=True, slots=True)
class _Below:
    system: System
    address: tuple[Part, ...]

    def at(self, number: int) -> Generator:
        return self.system.at(*self.address, "number", number)

    def over(self, number: int, hidden: Contents) -> Generator:
        return over(self.system, hidden, *self.address, "number", number)


def over(draws: Entropy, hidden: Contents, *address: Part) -> Generator:
    """The generator, at an address, of the noise that hides these bytes or what follows from them.

    Other bytes get other noise at the same address: a process that goes on from a copy of its
    folder, and is told something else than before, covers something else. The same bytes get the
    same noise; see :class:`Transcript` for who must not see that.
    """
    secret = draws.at(*address, "digest").bytes(32)
    return draws.at(*address, "over", digest(secret, hidden).hex())


class Transcript:
    """A digest of all that a process was told so far, in order.

    That two releases are equal is an answer, too: what they hide is the same. So where others may
    have a round or an event played again from a copy of a folder, noise is drawn over the history
    as well. A process that was killed goes through the same history to the same noise; a copy that
    is told something else has other noise from then on, whether it hides the same or not.

    Attributes:
        digest: of the history (32 bytes); empty before the first, and where nobody adds to it.
    """

    __slots__ = ("digest",)

    def __init__(self) -> None:
        self.digest = b""

    def add(self, told: bytes) -> None:
        """Take in what comes next."""
        self.digest = hashlib.sha256(self.digest + told).digest()


def raw(values: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of numbers, which are not copied: sums are large."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def digest(secret: bytes, hidden: Contents) -> bytes:
    """Return the digest (16 bytes) that tells raw contents apart, under a secret of 32 bytes.

    It is the tag of AES-GCM: for a secret that is drawn at random, two contents of n bytes have one
    digest with probability at most (n / 16 + 2) / 2^128 (McGrew and Viega 2004, GHASH). That is
    enough here, since no digest is ever shown, and it is twenty times as fast as SHA-256.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    found = Cipher(algorithms.AES(secret), modes.GCM(bytes(12))).encryptor()
    for part in hidden:
        found.authenticate_additional_data(part)
    found.finalize()
    return found.tag
