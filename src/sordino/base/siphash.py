r"""SipHash-2-4 (Aumasson and Bernstein 2012) of many texts of 64-bit words at once, in numpy.

It is a keyed pseudorandom function of 128 bits of key: whoever does not know the key cannot tell
its words from independent uniform ones with any effort that can be had. That is a guarantee against
bounded effort, as every generator's is; mixers of 64-bit words (Murmur's, SplitMix's) give none,
since they can be run backwards. Adding, turning and xor of 64-bit words are all that it does, so
every machine gets the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_CHUNK = 1 << 15  # texts at once: what a round needs stays in the processor's cache
_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash(key: tuple[int, int], *words: Words) -> Words:
    """SipHash-2-4 under ``key`` of each text (n,); text i is the i-th of all ``words``, (n,) each,
    little-endian.
    """
    out = np.empty(len(words[0]), np.uint64)
    length = np.full_like(out, 8 * len(words) << 56)
    for start in range(0, len(out), _CHUNK):
        part = slice(start, start + _CHUNK)
        state = [np.full(len(out[part]), constant, np.uint64) for constant in _START]
        for i, register in enumerate(state):
            register ^= np.uint64(key[i % 2])
        for text in (*words, length):
            word = text[part]
            state[3] ^= word
            _mix(*state, rounds=2)
            state[0] ^= word
        state[2] ^= np.uint64(0xFF)
        _mix(*state, rounds=4)
        out[part] = state[0] ^ state[1] ^ state[2] ^ state[3]
    return out


def _mix(a: Words, b: Words, c: Words, d: Words, *, rounds: int) -> None:
    """SipRounds, in place."""
    for _ in range(rounds):
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


def stacked(parts: Sequence[Words]) -> Words:
    """Words (n, w) of several parts, one below the other; a part with fewer has its own again."""
    wide = max(part.shape[1] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, wide - part.shape[1])), mode="wrap") for part in parts]
    )
