r"""Who a record is: keyed digests of what stands in its row.

A reader of data (:mod:`sordino.data.identity`) boils a row down to words of 64 bits: one over all
of its values, one over its features, and with ``data.person`` one for the person. Here they become
digests under a key of the ledger's own: SipHash-2-4 (Aumasson and Bernstein 2012), a keyed
pseudorandom function. Without the key a digest says nothing about a value. The key stands in the
ledger: whoever has the whole file can try out guesses, so it is to be kept like the data.

**Collisions over-count.** Two rows with one digest are taken for one record, whose price is then
that of both. Among n rows some two that differ share a digest with probability below 2 n^2 / 2^64
(two digests a row): 1.1 10^-5 for ten million.

Shapes: words (n,), rows (n, 2).

>>> first, second = digests(bytes(16), np.array([1, 2], dtype=np.uint64))
>>> bool(first != second)
True
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sordino.base.errors import LedgerError

Words = npt.NDArray[np.uint64]

KEY = 16
"""Bytes of a ledger's key."""

_CHUNK = 1 << 15  # words at once: what a round needs stays in the processor's cache
_LENGTH = np.uint64(8 << 56)


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """What one unit of a run holds.

    Attributes:
        unit: its name in the run, such as "client:3".
        kind: what a charge on it protects: "sample", "client", "entity" or "label".
        rows: (n, 2) words of all values and of the features, or (0, 2).
        people: (n,) words of persons, or None; then every row is a person's of its own.
        most: rows that one person may have here: a public bound, at which everybody is priced. A
            price by the rows that somebody has would tell how many these are.
        summed: whether one release is the sum over these rows and those of other units that say so;
            else the releases of each unit are its own. Whole clients are always taken for summed.
        units: how many units of the run hold exactly these rows; the ledger counts them.
    """

    unit: str
    kind: str
    rows: Words
    people: Words | None = None
    most: int = 1
    summed: bool = False
    units: int = 1

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.rows.shape[1] != 2 or self.rows.dtype != np.uint64:
            raise LedgerError(
                f"{self.unit}: words of rows are (n, 2) uint64; got {self.rows.shape} "
                f"{self.rows.dtype}"
            )
        if self.people is not None and len(self.rows) and self.people.shape != (len(self.rows),):
            raise LedgerError(
                f"{self.unit}: {len(self.rows)} rows, but words of persons of shape "
                f"{self.people.shape}"
            )


def digests(key: bytes, words: Words) -> Words:
    """SipHash-2-4 of each word by itself, (n,)."""
    out = np.empty(len(words), dtype=np.uint64)
    keys = np.frombuffer(key, dtype="<u8").astype(np.uint64)
    for start in range(0, len(words), _CHUNK):
        out[start : start + _CHUNK] = _siphash(keys, words[start : start + _CHUNK])
    return out


def _siphash(key: Words, words: Words) -> Words:
    a, b, c, d = (
        np.full(len(words), key[i % 2] ^ np.uint64(constant))
        for i, constant in enumerate(
            (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
        )
    )
    for word in (words, _LENGTH):
        d ^= word
        for _ in range(2):
            _round(a, b, c, d)
        a ^= word
    c ^= np.uint64(0xFF)
    for _ in range(4):
        _round(a, b, c, d)
    found: Words = a ^ b ^ c ^ d
    return found


def _round(a: Words, b: Words, c: Words, d: Words) -> None:
    """One SipRound, in place."""
    a += b
    c += d
    _turn(b, 13)
    b ^= a
    _turn(d, 16)
    d ^= c
    _turn(a, 32)
    a += d
    c += b
    _turn(d, 21)
    d ^= a
    _turn(b, 17)
    b ^= c
    _turn(c, 32)


def _turn(words: Words, by: int) -> None:
    low = words >> np.uint64(64 - by)
    words <<= np.uint64(by)
    words |= low


def name_of(records: Records, rows: Words, people: Words | None) -> str:
    """The set's name in the ledger: its kind and a digest of its members in any order."""
    digest = hashlib.blake2b(
        f"{records.kind}/{people is not None}/{len(rows)}".encode(), digest_size=12
    )
    if people is None:
        digest.update(np.sort(rows[:, 0]).tobytes())
        digest.update(np.sort(rows[:, 1]).tobytes())
    else:
        digest.update(np.sort(people).tobytes())
        if len(rows):
            digest.update(np.sort(rows[:, 0]).tobytes())
    return f"{records.kind}s {digest.hexdigest()}"
