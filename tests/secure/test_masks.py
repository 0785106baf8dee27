"""Residues: packing, wrapping, and the cipher's key stream."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import RemoteProtocolError
from sordino.keystream import KeyStream
from sordino.secure import masks

BITS = st.integers(1, 64)


@given(BITS, st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20))
def test_packing_and_back(bits: int, values: list[int]) -> None:
    found = masks.reduced(np.array(values, np.int64), bits)
    data = masks.packed(found, bits)
    assert len(data) == len(values) * ((bits + 7) // 8)
    again = masks.unpacked(data, len(values), bits)
    assert again.tolist() == [each % 2**bits for each in values]
    assert b"".join(int(each).to_bytes((bits + 7) // 8, "little") for each in again) == data


@given(BITS, st.integers(1, 50), st.binary(min_size=32, max_size=32))
def test_masks_are_the_key_stream_and_cancel(bits: int, count: int, key: bytes) -> None:
    pad = masks.stream(key, count, bits)
    words = KeyStream(key).random_raw(count).tobytes()  # at least as many bytes
    raw = np.frombuffer(words, masks.kind(bits))[:count]
    assert pad.tolist() == [int(each) % 2**bits for each in raw]
    values = masks.reduced(np.arange(count), bits)
    hidden = masks.masked(values, bits, plus=[key], minus=[])
    assert masks.masked(hidden, bits, plus=[], minus=[key]).tolist() == values.tolist()
    assert hidden.tolist() == [
        (int(a) + int(b)) % 2**bits for a, b in zip(values, pad, strict=True)
    ]
    assert masks.added(values, hidden, bits).max() < 2**bits


def test_what_is_no_vector_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="2 numbers of 3 bytes"):
        masks.unpacked(bytes(5), 2, 20)
    with pytest.raises(RemoteProtocolError, match="beyond the modulus"):
        masks.unpacked(b"\x00\x00\x10", 1, 20)
