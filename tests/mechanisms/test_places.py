"""Every place where something that depends on raw data leaves, for whoever tests it by attacks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import sordino


class Place(NamedTuple):
    """What leaves in which message, where it is made, its noise, and what it is booked as."""

    what: str
    message: str
    made_in: str
    noise: str
    booked: str


PLACES = (
    Place(
        "noisy weights after tau steps",
        "Update",
        "training/client.py: answer",
        "Mechanism.release_counted: gaussian, haar, knorm",
        "PoissonSampled",
    ),
    Place(
        "share of clipped examples, where adaptive",
        "Update.statistics",
        "training/client.py: answer",
        "Adaptive.release_counted",
        "the same event",
    ),
    Place(
        "a client's change",
        "Contribution",
        "training/local.py: answer",
        "none: the aggregator's",
        "at the aggregator",
    ),
    Place(
        "mean of clients' changes",
        "Released",
        "regimes/synchronous/aggregate.py: release",
        "the study's mechanism",
        "PoissonSampled, unit client",
    ),
    Place(
        "a client's change, noisy where it is made",
        "Update",
        "training/local.py: answer",
        "mechanisms/gaussian.py: release",
        "Gaussian",
    ),
    Place("plain weights", "Update", "training/client.py: answer", "none", "NonPrivate"),
    Place(
        "an edge's gradient",
        "Gradient",
        "regimes/asynchronous/assemble.py: answer",
        "the edge's mechanism",
        "PoissonSampled, NonPrivate",
    ),
    Place(
        "an embedding, or that there is none",
        "Embedding",
        "regimes/vertical/halves.py",
        "mechanisms/gaussian.py: release_rows",
        "Gaussian, NonPrivate",
    ),
    Place(
        "a party's update",
        "(kept)",
        "regimes/vertical/halves.py",
        "mechanisms/gaussian.py: release",
        "Gaussian",
    ),
    Place(
        "a label's answer",
        "(to the server)",
        "mechanisms/response.py: respond, respond_for",
        "randomised response",
        "Pure",
    ),
)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.what)
def test_the_places_of_the_table_exist(place: Place) -> None:
    file, _, names = place.made_in.partition(": ")
    text = (Path(sordino.__file__).parent / file).read_text()
    assert all(f"def {name}" in text for name in names.split(", ") if name)
