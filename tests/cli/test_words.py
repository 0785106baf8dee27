"""What the ledger's table says of an entry, in words that need no source beside them."""

from __future__ import annotations

import pytest

from sordino.api.ledgers import event_text
from sordino.privacy import Composed, Event, Gaussian, NonPrivate, Pure, Repeated


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (Repeated(Composed((Gaussian(noise_multiplier=0.5),)), 5), "Gaussian, sigma 0.5, 5 times"),
        (Repeated(Composed((Gaussian(noise_multiplier=0.5),)), 1), "Gaussian, sigma 0.5"),
        (
            Repeated(NonPrivate(reason="embeddings are sent without noise"), 4),
            "NOT private: embeddings are sent without noise, 4 times",
        ),
        (
            Repeated(Repeated(Composed((Gaussian(noise_multiplier=2.0), Pure(epsilon=1.0))), 3), 4),
            "Gaussian, sigma 2 and pure, epsilon 1 together, 3 times, 4 times",
        ),
    ],
)
def test_what_is_released_several_times_is_said_so(event: Event, said: str) -> None:
    assert event_text(event) == said
