"""Messages: equal where all that they say is equal, vectors included, and numbers that do not fit are refused."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sordino.errors import RemoteProtocolError
from sordino.message import Embedding, Raw, Train, Update, encode, numbers, packed

D = 5
vectors = arrays(np.float32, D, elements=st.floats(allow_nan=False, allow_infinity=False, width=32))


@given(vectors, vectors)
def test_messages_are_equal_where_their_vectors_are(one: Any, other: Any) -> None:
    same = one.tobytes() == other.tobytes()
    for make in (
        lambda vector: Train(round=1, steps=2, weights=vector, probe=vector),
        lambda vector: Update(client=0, round=1, steps=2, weights=np.zeros(D, np.float32), raw=Raw(beta=1.0, rho=0.5, gradient=vector)),
    ):
        assert make(one) == make(one.copy())
        assert (make(one) == make(other)) is same
    assert Train(round=1, steps=2, weights=one) != Train(round=2, steps=2, weights=one)
    assert Train(round=1, steps=2, weights=one) != Update(client=0, round=1, steps=2, weights=one)


def test_vectors_are_encoded_as_little_endian_float32() -> None:
    sent = msgspec.msgpack.decode(encode(Train(round=1, steps=2, weights=np.arange(D)[::-1].astype(">f8"))))
    assert sent["type"] == "Train"
    assert np.array_equal(np.frombuffer(sent["weights"], "<f4"), np.arange(D)[::-1])


def test_numbers_of_another_count_or_infinite_are_refused() -> None:
    body = packed(np.array([0.5, 1e6], np.float32), 16)
    with pytest.raises(RemoteProtocolError, match="3 numbers are expected"):
        numbers(Embedding(0, 1, True, 16, body), 3)
    with pytest.raises(RemoteProtocolError, match="not finite"):
        numbers(Embedding(0, 1, True, 16, body), 2)
