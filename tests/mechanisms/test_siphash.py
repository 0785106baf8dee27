"""SipHash-2-4: its authors' answers, and words that look uniform and independent where entities are
numbered one after another.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2  # type: ignore[import-untyped]

from sordino.base.entropy import Seeded
from sordino.base.siphash import siphash
from sordino.mechanisms.response import secret
from sordino.privacy.records.identity import digests

FALSE_ALARM = 1e-9
MASK = 2**64 - 1
AUTHORS_KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
N = 2**16

Words = Callable[[Any], Any]


def reference(key: tuple[int, int], text: bytes) -> int:
    """SipHash-2-4 of any text, as the paper's section 2 says it, in whole numbers."""

    def turn(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) & MASK

    v = [
        a ^ b
        for a, b in zip(
            key * 2,
            (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573),
            strict=True,
        )
    ]

    def mix(times: int) -> None:
        for _ in range(times):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[2] = turn(v[2], 32)

    padded = text + bytes(7 - len(text) % 8) + bytes([len(text) % 256])
    for place in range(0, len(padded), 8):
        word = int.from_bytes(padded[place : place + 8], "little")
        v[3] ^= word
        mix(2)
        v[0] ^= word
    v[2] ^= 0xFF
    mix(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def of(numbers: Any, key: tuple[int, int] = AUTHORS_KEY, second: Any = None) -> Any:
    left = np.asarray(numbers).astype(np.uint64)
    right = np.zeros_like(left) if second is None else np.asarray(second).astype(np.uint64)
    return siphash(key, *(np.full_like(left, word) for word in (11, 12)), left, right)


def test_the_reference_gives_the_authors_answers() -> None:
    """Appendix A of the paper, and the first of the published list."""
    assert reference(AUTHORS_KEY, bytes(range(15))) == 0xA129CA6149BE45E5
    assert reference(AUTHORS_KEY, b"") == 0x726FDB47DD0E0E31


whole = st.integers(0, MASK) | st.sampled_from([0, 1, MASK, 2**63, 2**32])


@given(
    key=st.tuples(whole, whole),
    first=st.tuples(whole, whole),
    pairs=st.lists(st.tuples(whole, whole), min_size=1, max_size=9),
)
@settings(deadline=None)
def test_words_are_siphash_of_32_bytes(
    key: tuple[int, int], first: tuple[int, int], pairs: list[tuple[int, int]]
) -> None:
    left, right = (np.array(side, dtype=np.uint64) for side in zip(*pairs, strict=True))
    texts = [b"".join(word.to_bytes(8, "little") for word in (*first, *pair)) for pair in pairs]
    words = (*(np.full_like(left, word) for word in first), left, right)
    assert siphash(key, *words).tolist() == [reference(key, text) for text in texts]


def test_keys_are_drawn_from_the_address() -> None:
    assert secret(Seeded(0).at("a")) == secret(Seeded(0).at("a"))
    found = {word for number in range(200) for word in secret(Seeded(0).at(number))}
    assert len(found) == 400
    assert max(found).bit_length() == 64


def even(cells: Any, many: int) -> bool:
    """Whether cells (n,) out of ``many`` could be uniform and independent: both tails of a
    chi-square.
    """
    counts = np.bincount(cells.astype(np.int64), minlength=many)
    statistic = ((counts - len(cells) / many) ** 2).sum() * many / len(cells)
    return bool(min(chi2.sf(statistic, many - 1), chi2.cdf(statistic, many - 1)) > FALSE_ALARM)


def looks_random(hashed: Words) -> bool:
    """Words of entities that are numbered in steps: each bit, each byte, and each pair of
    neighbours.
    """
    for step in (1, 2**8, 2**20, 2**47):
        numbers = np.arange(N, dtype=np.uint64) * np.uint64(step)
        found, after = hashed(numbers), hashed(numbers + np.uint64(step))
        for shift in range(0, 64, 8):
            if not even(found >> np.uint64(shift) & np.uint64(255), 256):
                return False
        for high in (60, 56, 11):
            pair = (found >> np.uint64(high) & np.uint64(15)) * np.uint64(16) + (
                after >> np.uint64(high) & np.uint64(15)
            )
            if not even(pair, 256):
                return False
        ones = np.unpackbits((found ^ after).view(np.uint8)).reshape(N, 64).mean(0)
        if np.abs(ones - 0.5).max() > 6.8 * 0.5 / N**0.5:  # the largest of 64
            return False
    return True


@pytest.mark.parametrize("key", [AUTHORS_KEY, (0, 0), secret(Seeded(1).at("k"))])
def test_words_of_numbered_entities_look_random(key: tuple[int, int]) -> None:
    assert looks_random(lambda numbers: of(numbers, key))
    # visits of one entity
    assert looks_random(lambda numbers: of(np.full(len(numbers), 7), key, numbers))


def test_the_test_sees_hashes_that_are_none() -> None:
    golden = np.uint64(0x9E3779B97F4A7C15)
    assert not looks_random(lambda numbers: numbers * golden)
    assert not looks_random(lambda numbers: (numbers ^ numbers >> np.uint64(32)) * golden)
    assert not looks_random(lambda numbers: of(numbers // np.uint64(2)))


def bits(word: Any) -> Any:
    return np.unpackbits(word.view(np.uint8)).reshape(-1, 64)


def test_every_bit_of_number_visit_and_key_turns_half_of_the_word() -> None:
    n = 2000
    numbers = np.arange(n, dtype=np.uint64)
    found, zero = of(numbers), np.zeros(n, dtype=np.uint64)
    for place in range(64):
        flip = np.uint64(1) << np.uint64(place)
        for other in (
            of(numbers ^ flip),
            of(numbers, second=zero ^ flip),
            of(numbers, (AUTHORS_KEY[0] ^ 1 << place, AUTHORS_KEY[1])),
            of(numbers, (AUTHORS_KEY[0], AUTHORS_KEY[1] ^ 1 << place)),
        ):
            turned = bits(found ^ other).mean(0)
            assert abs(turned.mean() - 0.5) < 7.0 * 0.5 / (64 * n) ** 0.5
            # the largest of 64 bits, 256 flips
            assert np.abs(turned - 0.5).max() < 7.5 * 0.5 / n**0.5
    assert len(np.unique(found)) == n


def test_digests_of_records_are_siphash_of_their_siphash() -> None:
    """A digest that changes would make every record of every ledger a new one."""
    key = bytes(range(16))
    halves = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    words = np.array([0, 1, 2**63, 0x0706050403020100, 12345678901234567890], np.uint64)
    wanted = [reference(halves, int(word).to_bytes(8, "little")) for word in words]
    assert digests(key, words).tolist() == wanted
