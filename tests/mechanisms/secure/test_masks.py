"""Masks: the cipher's key stream, added and taken away."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sordino.base import residues
from sordino.base.entropy import KeyStream
from sordino.mechanisms.secure.secrets import masked, stream

BITS = st.integers(1, 64)


@given(BITS, st.integers(1, 50), st.binary(min_size=32, max_size=32))
def test_masks_are_the_key_stream_and_cancel(bits: int, count: int, key: bytes) -> None:
    pad = stream(key, count, bits)
    words = KeyStream(key).random_raw(count).tobytes()  # at least as many bytes
    raw = np.frombuffer(words, residues.kind(bits))[:count]
    assert pad.tolist() == [int(each) % 2**bits for each in raw]
    values = residues.reduced(np.arange(count), bits)
    hidden = masked(values, bits, plus=[key], minus=[])
    assert masked(hidden, bits, plus=[], minus=[key]).tolist() == values.tolist()
    assert hidden.tolist() == [
        (int(a) + int(b)) % 2**bits for a, b in zip(values, pad, strict=True)
    ]
    assert residues.added(values, hidden, bits).max() < 2**bits
