"""Facts: one text for equal facts, nothing impossible, nothing unknown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.base.errors import LedgerError, StudyError
from sordino.privacy import (
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    Nothing,
    PoissonSampled,
    Pure,
    Repeated,
    decode,
    encode,
)

SIGMA = st.floats(0.0, 1e9)
EVENTS: st.SearchStrategy[Event] = st.recursive(
    st.one_of(
        SIGMA.map(lambda s: Gaussian(noise_multiplier=s)),
        SIGMA.map(lambda e: Pure(epsilon=e)),
        st.text(max_size=9).map(lambda r: NonPrivate(reason=r)),
        st.just(Nothing()),
    ),
    lambda inside: st.one_of(
        st.builds(
            lambda q, e: PoissonSampled(sampling_rate=q, event=e),
            st.floats(0.0, 1.0, exclude_min=True),
            inside,
        ),
        st.builds(lambda n, e: Repeated(event=e, count=n), st.integers(0, 2**40), inside),
        st.lists(inside, max_size=3).map(lambda events: Composed(events=tuple(events))),
    ),
    max_leaves=6,
)


@given(EVENTS)
def test_text_and_event_are_one_to_one(event: Event) -> None:
    again = decode(encode(event))
    assert again == event
    assert hash(again) == hash(event)
    assert encode(again) == encode(event)


def test_equal_events_have_equal_text() -> None:
    for one, other in (
        (Gaussian(noise_multiplier=1), Gaussian(noise_multiplier=np.float64(1.0))),
        (Gaussian(noise_multiplier=0.0), Gaussian(noise_multiplier=-0.0)),
        (Pure(epsilon=1), Pure(epsilon=np.float64(1.0))),
        (
            PoissonSampled(sampling_rate=1, event=Nothing()),
            PoissonSampled(sampling_rate=1.0, event=Nothing()),
        ),
        (
            Repeated(event=Nothing(), count=int(np.int64(3))),
            Repeated(event=Nothing(), count=np.int64(3)),  # type: ignore[arg-type]
        ),
        (Composed(events=(Nothing(),)), Composed(events=[Nothing()])),  # type: ignore[arg-type]
    ):
        assert one == other
        assert hash(one) == hash(other)
        assert encode(one) == encode(other)


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_impossible_noise_is_refused(sigma: float) -> None:
    with pytest.raises(StudyError, match="noise_multiplier must be a number from 0; got"):
        Gaussian(noise_multiplier=sigma)


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf")])
def test_impossible_epsilons_are_refused(epsilon: float) -> None:
    with pytest.raises(StudyError, match="pure release must be a number from 0; got"):
        Pure(epsilon=epsilon)


def test_the_text_of_a_pure_release_stays_as_it_is() -> None:
    assert encode(Pure(epsilon=0.5)) == '{"type":"Pure","epsilon":0.5}'


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0001, float("nan")])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(StudyError, match=r"sampling_rate must lie in \(0, 1\]; got"):
        PoissonSampled(sampling_rate=rate, event=Gaussian(noise_multiplier=1.0))


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(StudyError, match="cannot happen -1 times"):
        Repeated(event=Nothing(), count=-1)
    with pytest.raises(LedgerError, match="not an event"):
        decode('{"type":"Repeated","event":{"type":"Nothing"},"count":-1}')
