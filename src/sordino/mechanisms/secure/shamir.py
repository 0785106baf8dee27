"""Shamir's secret sharing over the prime field of 2^521 - 1 (Shamir 1979).

A secret s < 2^512 is the value at 0 of a polynomial of degree t - 1 whose other coefficients are
uniform; the share of client i is its value at i + 1. Any t shares give s; t - 1 of them are uniform
and independent of s. The arithmetic is Python's, whose time depends on the numbers: a client's
shares are computed once, from fresh secrets, and nobody can have them computed again.

>>> shares = deal(bytes(31) + b"*", 2, range(3), lambda count: bytes(count))
>>> recover({0: shares[0], 2: shares[2]}, 2, 32)[-1:]
b'*'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sordino.base.errors import RemoteProtocolError

PRIME = 2**521 - 1
LENGTH = 66
"""Bytes of a share, big-endian."""
_DRAWN = LENGTH + 16  # drawn bytes of a coefficient: its bias modulo the prime is below 2^-128


def deal(
    secret: bytes, threshold: int, clients: Iterable[int], draws: Callable[[int], bytes]
) -> dict[int, bytes]:
    """A share of the secret (up to 64 bytes) for each client, of which ``threshold`` recover it.

    Args:
        draws: gives so many uniform bytes that nobody else knows.
    """
    if not 1 <= len(secret) <= 64:
        raise ValueError(f"a secret has 1 to 64 bytes; got {len(secret)}")
    drawn = draws(_DRAWN * (threshold - 1))
    rest = [
        int.from_bytes(drawn[i : i + _DRAWN], "big") % PRIME for i in range(0, len(drawn), _DRAWN)
    ]
    coefficients = [int.from_bytes(secret, "big"), *rest]
    return {i: _at(coefficients, i + 1).to_bytes(LENGTH, "big") for i in clients}


def _at(coefficients: list[int], x: int) -> int:
    found = 0
    for each in reversed(coefficients):
        found = (found * x + each) % PRIME
    return found


def recover(shares: Mapping[int, bytes], threshold: int, length: int) -> bytes:
    """The secret (``length`` bytes) from the shares of ``threshold`` clients or more.

    Raises:
        RemoteProtocolError: if a share is none, there are too few, or they give no such secret:
            somebody's share is wrong.
    """
    if len(shares) < threshold:
        raise RemoteProtocolError(f"{len(shares)} shares, and {threshold} are needed", "shares")
    used = sorted(shares)[:threshold]
    found = 0
    for i in used:
        above = below = 1
        for j in used:
            if j != i:
                above = above * (j + 1) % PRIME
                below = below * (j - i) % PRIME
        found += number(shares[i]) * above * pow(below, -1, PRIME)
    try:
        return (found % PRIME).to_bytes(length, "big")
    except OverflowError:
        raise RemoteProtocolError("the shares do not belong together", "shares") from None


def number(share: bytes) -> int:
    """A share as a number below the prime.

    Raises:
        RemoteProtocolError: if it is none.
    """
    found = int.from_bytes(share, "big")
    if len(share) != LENGTH or found >= PRIME:
        raise RemoteProtocolError(f"a share of {len(share)} bytes is none", "shares")
    return found
