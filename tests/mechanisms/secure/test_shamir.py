"""Shares: known values, every subset that recovers, and nothing from fewer."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.base.errors import RemoteProtocolError
from sordino.mechanisms.secure.secrets import LENGTH, PRIME, deal, number, recover


def _fixed(*coefficients: int) -> "bytes":
    return b"".join(each.to_bytes(82, "big") for each in coefficients)


def test_shares_are_the_polynomial_s_values() -> None:
    """1234 + 166 x + 94 x^2, the example of Wikipedia's "Shamir's secret sharing"."""
    shares = deal((1234).to_bytes(2, "big"), 3, range(6), lambda count: _fixed(166, 94)[:count])
    values = [number(shares[i]) for i in range(6)]
    assert values == [1494, 1942, 2578, 3402, 4414, 5614]
    assert recover({i: shares[i] for i in (1, 3, 4)}, 3, 2) == (1234).to_bytes(2, "big")


@given(st.integers(1, 6), st.integers(0, 3), st.binary(min_size=1, max_size=64), st.integers(0))
def test_every_subset_of_t_shares_recovers(t: int, more: int, secret: bytes, seed: int) -> None:
    rng = np.random.default_rng(seed % 2**32)
    shares = deal(secret, t, range(t + more), rng.bytes)
    for subset in combinations(range(t + more), t):
        assert recover({i: shares[i] for i in subset}, t, len(secret)) == secret


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(0))
def test_fewer_shares_fit_every_secret(one: bytes, other: bytes, seed: int) -> None:
    """With t = 3: for two given shares and any other secret there is one polynomial. So the two
    shares of uniform coefficients have the same distribution whatever the secret is.
    """
    rng = np.random.default_rng(seed % 2**32)
    shares = deal(one, 3, range(3), rng.bytes)
    y1, y2, s = number(shares[0]), number(shares[1]), int.from_bytes(other, "big")
    # s + a + b = y1, s + 2 a + 4 b = y2
    b = (y2 - s - 2 * (y1 - s)) * pow(2, -1, PRIME) % PRIME
    a = (y1 - s - b) % PRIME
    again = deal(other, 3, range(3), lambda count: _fixed(a, b)[:count])
    assert (again[0], again[1]) == (shares[0], shares[1])
    assert (again[2] == shares[2]) == (one == other)


def test_bad_shares_are_refused() -> None:
    shares = deal(bytes(32), 2, range(3), np.random.default_rng(0).bytes)
    with pytest.raises(RemoteProtocolError, match="1 shares, and 2"):
        recover({0: shares[0]}, 2, 32)
    for bad in (b"", shares[0][1:], b"\xff" * LENGTH, PRIME.to_bytes(LENGTH, "big")):
        with pytest.raises(RemoteProtocolError):
            recover({0: bad, 1: shares[1]}, 2, 32)
    with pytest.raises(RemoteProtocolError, match="belong together"):
        recover({0: shares[0], 1: bytes(LENGTH)}, 2, 32)
    for size in (0, 65):
        with pytest.raises(ValueError, match="1 to 64"):
            deal(bytes(size), 2, range(3), bytes)
    assert recover(deal(bytes(64), 1, range(1), bytes), 1, 64) == bytes(64)
