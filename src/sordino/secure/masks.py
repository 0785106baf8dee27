"""Vectors modulo 2^bits, the masks that hide them, and how they travel.

A mask is the key stream of AES-256 in counter mode (NIST SP 800-38A) under a key that is used for
nothing else, cut into numbers of 32 bits, or of 64 where the modulus is larger.

>>> pad = stream(bytes(32), 3, 16)
>>> int(((np.array([1, 2, 3], np.uint32) + pad - pad) & 0xFFFF)[0])
1
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from sordino.errors import RemoteProtocolError

Residues = NDArray[np.unsignedinteger[Any]]
"""Numbers from 0 to 2^bits - 1, as uint32 where they fit and as uint64 otherwise."""


def kind(bits: int) -> np.dtype[Any]:
    """The type of residues modulo 2^bits."""
    return np.dtype("<u4") if bits <= 32 else np.dtype("<u8")


def reduced(values: NDArray[np.integer[Any]] | Residues, bits: int) -> Residues:
    """Whole numbers modulo 2^bits, in an array of its own."""
    return _within(values.astype(kind(bits)), bits)


def _within(values: Residues, bits: int) -> Residues:
    if bits != 8 * values.itemsize:
        values &= values.dtype.type(2**bits - 1)
    return values


def stream(key: bytes, count: int, bits: int) -> Residues:
    """``count`` residues that only who knows the key (32 bytes) can tell from uniform ones."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    drawn = np.frombuffer(cipher.update(bytes(count * kind(bits).itemsize)), kind(bits))
    return drawn if bits == 8 * drawn.itemsize else _within(drawn.copy(), bits)


def masked(
    values: Residues, bits: int, *, plus: Iterable[bytes], minus: Iterable[bytes]
) -> Residues:
    """Values with the masks of some keys added, and those of others taken away."""
    found = values.astype(kind(bits))
    for key in plus:
        found += stream(key, len(found), bits)
    for key in minus:
        found -= stream(key, len(found), bits)
    return _within(found, bits)


def added(one: Residues, other: Residues, bits: int) -> Residues:
    """Their sum modulo 2^bits."""
    return _within(one + other, bits)


def packed(values: Residues, bits: int) -> bytes:
    """Little-endian, ceil(bits / 8) bytes a number."""
    octets = np.ascontiguousarray(values, kind(bits)).view(np.uint8)
    return octets.reshape(len(values), -1)[:, : (bits + 7) // 8].tobytes()


def unpacked(data: bytes, count: int, bits: int) -> Residues:
    """The ``count`` residues in these bytes.

    Raises:
        RemoteProtocolError: if they are others, or a number is beyond the modulus.
    """
    width = (bits + 7) // 8
    if len(data) != count * width:
        raise RemoteProtocolError(
            f"a vector of {len(data)} bytes; {count} numbers of {width} bytes are expected",
            "wrong shape",
        )
    octets = np.zeros((count, kind(bits).itemsize), np.uint8)
    octets[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    found: Residues = octets.view(kind(bits))[:, 0]
    if bits % 8 and int(found.max(initial=0)) >> bits:
        raise RemoteProtocolError(f"a number beyond the modulus 2^{bits}", "not finite")
    return found
