"""Addressed randomness: equal addresses, equal draws; any other address, others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sordino.base.entropy import Part, Seeded

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
