"""Random words: of a key and a number (SipHash-2-4), and of a generator (SFC64), many at once.

SipHash (Aumasson and Bernstein 2012) is a keyed pseudorandom function of 128 bits of key: whoever
does not know the key cannot tell its words from independent uniform ones with any effort that can
be had. So the word of an entity may stand for the coin that was tossed for it, and is found again
whenever it is asked for. That is a guarantee against bounded effort, as every generator's is;
mixers of 64-bit words (Murmur's, SplitMix's) give none, since they can be run backwards.

What is hashed is always 32 bytes: two words that the caller fixes, then one pair. Adding, turning
and xor of 64-bit words are all it does, so every machine gets the same answers.

Shapes: pairs (n,), words (n,), of 64 bits.

Generators of the kind SFC64 (Doty-Humphrey 2018) run side by side in the processor's vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.compiled import compiled

U = np.uint64
_LENGTH = U(32 << 56)  # bytes hashed, where SipHash puts them


@compiled()
def _turned(word: Any, by: Any) -> Any:
    return U(U(word << by) | U(word >> U(U(64) - by)))


@compiled()
def _mixed(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    """One SipRound."""
    a, c = U(a + b), U(c + d)
    b, d = U(_turned(b, U(13)) ^ a), U(_turned(d, U(16)) ^ c)
    a = _turned(a, U(32))
    a, c = U(a + d), U(c + b)
    d, b = U(_turned(d, U(21)) ^ a), U(_turned(b, U(17)) ^ c)
    return a, b, _turned(c, U(32)), d


@compiled()
def _taken(a: Any, b: Any, c: Any, d: Any, word: Any) -> tuple[Any, Any, Any, Any]:
    """The state after one word more of the text."""
    d = U(d ^ word)
    for _ in range(2):
        a, b, c, d = _mixed(a, b, c, d)
    return U(a ^ word), b, c, d


@compiled()
def _hash(key: Any, first: Any, left: Any, right: Any, out: Any) -> None:
    a, b = U(key[0] ^ U(0x736F6D6570736575)), U(key[1] ^ U(0x646F72616E646F6D))
    c, d = U(key[0] ^ U(0x6C7967656E657261)), U(key[1] ^ U(0x7465646279746573))
    for i in range(2):
        a, b, c, d = _taken(a, b, c, d, first[i])
    for i in range(out.size):
        p, q, r, s = _taken(a, b, c, d, left[i])
        p, q, r, s = _taken(p, q, r, s, right[i])
        p, q, r, s = _taken(p, q, r, s, _LENGTH)
        r = U(r ^ U(0xFF))
        for _ in range(4):
            p, q, r, s = _mixed(p, q, r, s)
        out[i] = U(U(p ^ q) ^ U(r ^ s))


def words(
    key: tuple[int, int],
    first: tuple[int, int],
    left: NDArray[np.uint64],
    right: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """SipHash-2-4 under ``key`` of first[0], first[1], left[i], right[i] (little-endian), (n,)."""
    out = np.empty(len(left), dtype=np.uint64)
    _hash(np.array(key, dtype=np.uint64), np.array(first, dtype=np.uint64), left, right, out)
    return out


LANES = 32


@compiled(error_model="numpy")
def fill(state: Any, out: Any) -> None:
    """``out`` (32 k,) from 32 states (4, 32) of SFC64, one word of each in turn."""
    a, b, c, counter = state[0], state[1], state[2], state[3]
    for start in range(0, out.size, LANES):
        place = out[start : start + LANES]
        for i in range(LANES):
            word = a[i] + b[i] + counter[i]
            counter[i] = counter[i] + np.uint64(1)
            a[i] = b[i] ^ (b[i] >> np.uint64(11))
            b[i] = c[i] + (c[i] << np.uint64(3))
            c[i] = ((c[i] << np.uint64(24)) | (c[i] >> np.uint64(40))) + word
            place[i] = word
