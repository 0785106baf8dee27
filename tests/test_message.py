"""The codec: round trips for every message, and nothing but messages gets in."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Message, Raw, Statistics, Train, Update, decode, encode

D = 5
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
sizes = st.floats(-(2.0**60), 2.0**60, width=32)  # of which squares can be added up
vectors = arrays(np.float32, D, elements=sizes)
statistics = st.builds(
    Statistics,
    energy=numbers,
    first=numbers,
    change=numbers,
    moved=numbers,
    slope_first=numbers,
    slope_last=numbers,
    clipped=st.none() | numbers,
)
trains = st.builds(
    Train,
    round=st.integers(0, 10**6),
    steps=st.integers(1, 100),
    weights=vectors,
    probe=st.none() | vectors,
)
updates = st.builds(
    Update,
    client=st.integers(0, 10**6),
    round=st.integers(0, 10**6),
    steps=st.integers(1, 100),
    weights=vectors,
    statistics=st.none() | statistics,
    first=st.none() | vectors,
    raw=st.none() | st.builds(Raw, beta=numbers, rho=numbers, gradient=vectors),
)


@given(trains | updates)
def test_round_trip(message: Message) -> None:
    assert decode(encode(message), dimension=D) == message


@given(st.binary(max_size=200))
def test_noise_is_a_remote_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data, dimension=D)


@given(updates, st.data())
def test_damage_never_raises_anything_else(message: Update, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        with contextlib.suppress(RemoteProtocolError):
            decode(damaged, dimension=D)


def test_wrong_sizes_and_infinities_are_refused_by_name() -> None:
    good = Update(client=0, round=1, steps=1, weights=np.zeros(D, np.float32))
    with pytest.raises(
        RemoteProtocolError, match=r"Update\.weights has 5 numbers; the model has 6"
    ):
        decode(encode(good), dimension=6)
    bad = Update(client=0, round=1, steps=1, weights=np.full(D, np.inf, np.float32))
    with pytest.raises(RemoteProtocolError, match="not finite"):
        decode(encode(bad), dimension=D)
    huge = Update(client=0, round=1, steps=1, weights=np.full(D, 1e30, np.float32))
    with pytest.raises(RemoteProtocolError, match=r"Update\.weights holds numbers that are too"):
        decode(encode(huge), dimension=D)
