"""Vectors of whole numbers modulo 2^bits, and how they travel.

>>> total = added(reduced(np.array([1, -2]), 16), reduced(np.array([2, 1]), 16), 16)
>>> total.tolist(), lifted(total, 16).tolist(), packed(total, 16).hex()
([3, 65535], [3, -1], '0300ffff')
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import RemoteProtocolError

Residues = NDArray[np.unsignedinteger[Any]]
"""Numbers from 0 to 2^bits - 1, as uint32 where they fit and as uint64 otherwise."""


def kind(bits: int) -> np.dtype[Any]:
    """The type of residues modulo 2^bits, 1 <= bits <= 64."""
    return np.dtype("<u4") if bits <= 32 else np.dtype("<u8")


def bytes_each(bits: int) -> int:
    """Bytes of a residue as it travels."""
    return (bits + 7) // 8


def within(values: Residues, bits: int) -> Residues:
    """Numbers of the right type modulo 2^bits, where they lie."""
    if bits != 8 * values.itemsize:
        values &= values.dtype.type(2**bits - 1)
    return values


def reduced(values: NDArray[np.integer[Any]] | Residues, bits: int) -> Residues:
    """Whole numbers modulo 2^bits, in an array of its own."""
    return within(values.astype(kind(bits)), bits)


def lifted(residues: Residues, bits: int) -> NDArray[np.int64]:
    """Whole numbers in [-2^(bits-1), 2^(bits-1)) with these residues; bits <= 63."""
    half = np.int64(1 << (bits - 1))
    return ((residues & np.uint64(2**bits - 1)).astype(np.int64) ^ half) - half


def added(one: Residues, other: Residues, bits: int) -> Residues:
    """Their sum modulo 2^bits."""
    return within(one + other, bits)


def packed(values: Residues, bits: int) -> bytes:
    """Residues (d,) as they travel: little-endian, ceil(bits / 8) bytes each."""
    octets = np.ascontiguousarray(values, kind(bits)).view(np.uint8)
    return octets.reshape(len(values), -1)[:, : bytes_each(bits)].tobytes()


def unpacked(data: bytes, count: int, bits: int) -> Residues:
    """The ``count`` residues in these bytes.

    Raises:
        RemoteProtocolError: if they are others, or a number is beyond the modulus.
    """
    width = bytes_each(bits)
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
