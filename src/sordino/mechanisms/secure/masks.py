"""The masks that hide vectors modulo 2^bits (:mod:`sordino.base.residues`).

A mask is the key stream of AES-256 in counter mode (NIST SP 800-38A) under a key that is used for
nothing else, cut into numbers of 32 bits, or of 64 where the modulus is larger.

>>> pad = stream(bytes(32), 3, 16)
>>> int(((np.array([1, 2, 3], np.uint32) + pad - pad) & 0xFFFF)[0])
1
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sordino.base.residues import Residues, kind, within


def stream(key: bytes, count: int, bits: int) -> Residues:
    """``count`` residues that only who knows the key (32 bytes) can tell from uniform ones."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    drawn = np.frombuffer(cipher.update(bytes(count * kind(bits).itemsize)), kind(bits))
    return drawn if bits == 8 * drawn.itemsize else within(drawn.copy(), bits)


def masked(
    values: Residues, bits: int, *, plus: Iterable[bytes], minus: Iterable[bytes]
) -> Residues:
    """Values with the masks of some keys added, and those of others taken away."""
    found = values.astype(kind(bits))
    for key in plus:
        found += stream(key, len(found), bits)
    for key in minus:
        found -= stream(key, len(found), bits)
    return within(found, bits)
