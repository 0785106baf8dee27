"""Residues: packing, wrapping, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.base import residues
from sordino.base.errors import RemoteProtocolError


@given(st.integers(1, 64), st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20))
def test_packing_and_back(bits: int, values: list[int]) -> None:
    found = residues.reduced(np.array(values, np.int64), bits)
    data = residues.packed(found, bits)
    assert len(data) == len(values) * ((bits + 7) // 8)
    again = residues.unpacked(data, len(values), bits)
    assert again.tolist() == [each % 2**bits for each in values]
    assert b"".join(int(each).to_bytes((bits + 7) // 8, "little") for each in again) == data


@given(st.integers(2, 63), st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=9))
def test_sums_wrap_and_come_back_with_their_sign(bits: int, values: list[int]) -> None:
    total = residues.reduced(np.zeros(1, np.int64), bits)
    for each in values:
        total = residues.added(total, residues.reduced(np.array([each], np.int64), bits), bits)
    half = 2 ** (bits - 1)
    assert total.dtype == (np.uint32 if bits <= 32 else np.uint64)
    assert int(residues.lifted(total, bits)[0]) == (sum(values) + half) % 2**bits - half


def test_what_is_no_vector_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="2 numbers of 3 bytes"):
        residues.unpacked(bytes(5), 2, 20)
    with pytest.raises(RemoteProtocolError, match="beyond the modulus"):
        residues.unpacked(b"\x00\x00\x10", 1, 20)
    assert residues.unpacked(b"\xff\xff\x0f", 1, 20).tolist() == [2**20 - 1]
    assert residues.unpacked(b"", 0, 20).size == 0
