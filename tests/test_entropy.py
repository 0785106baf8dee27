"""Addressed randomness: equal addresses, equal draws; any other address, others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.base.entropy import Part, Seeded, System, over

addresses = st.lists(st.integers(-5, 5) | st.text(max_size=3), max_size=4).map(tuple)


@given(addresses, addresses, st.integers(0, 3), st.integers(0, 3))
def test_draws_are_equal_exactly_where_seed_and_address_are(
    a: tuple[Part, ...], b: tuple[Part, ...], s: int, t: int
) -> None:
    one, two = Seeded(s).at(*a).random(4), Seeded(t).at(*b).random(4)
    assert np.array_equal(one, two) == (
        (s, [(type(p), p) for p in a]) == (t, [(type(p), p) for p in b])
    )


def test_many_addresses_never_repeat_a_draw() -> None:
    seen = {
        Seeded(0).at("client", i, "round", k, "noise").integers(2**63)
        for i in range(100)
        for k in range(100)
    }
    assert len(seen) == 10_000


def test_a_draw_is_the_same_in_every_version() -> None:
    """Runs are to be repeated years later: these numbers may never change."""
    assert Seeded(0).at("client", 3, "round", 7).integers(0, 10**6, 4).tolist() == EXPECTED


EXPECTED = [845764, 590186, 874985, 159436]


@pytest.mark.parametrize("draws", [Seeded(3), System(bytes(range(32)))])
def test_noise_is_another_for_every_change_of_what_it_hides(draws: Seeded | System) -> None:
    """One bit of a sum, its length, an address, a root: never the same draw; else always."""
    total = np.random.default_rng(0).standard_normal(33)
    flipped = [bytearray(total.tobytes()) for _ in range(0, 33 * 64, 7)]
    for bit, changed in zip(range(0, 33 * 64, 7), flipped, strict=True):
        changed[bit // 8] ^= 1 << bit % 8
    contents = [total.tobytes(), total.tobytes() + b"\0", b"", *map(bytes, flipped)]
    stream = draws.stream("x", 1)
    first = [over(draws, [each], "x", 1).random() for each in contents]
    numbered = [stream.over(2, [each]).random() for each in contents]
    others = [over(draws, [b""], "x", 2).random(), stream.over(3, [b""]).random()]
    assert len({*first, *numbered, *others}) == 2 * len(contents) + 2
    assert first == [over(draws, [each], "x", 1).random() for each in contents]
    assert numbered == [stream.over(2, [each]).random() for each in contents]
