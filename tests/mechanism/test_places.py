"""Every place where something that depends on raw data leaves, for whoever plays the distinguisher.

| what leaves | message | made in | noise from | booked as |
|---|---|---|---|---|
| noisy weights after tau steps | ``Update`` | ``training/dpsgd.py: answer`` | ``Mechanism.release_counted``: gaussian, haar, knorm | ``PoissonSampled`` |
| share of clipped examples, where adaptive | ``Update.statistics`` | ``training/dpsgd.py: answer`` | ``Adaptive.release_counted`` | the same event |
| a client's change | ``Contribution`` | ``training/local.py: answer`` | none: the aggregator's | at the aggregator |
| mean of clients' changes | ``Released`` | ``regimes/synchronous/aggregate.py: release`` | the study's mechanism | ``PoissonSampled``, unit client |
| a client's change, noisy where it is made | ``Update`` | ``training/local.py: answer`` | ``mechanism/single.py: release``, ``overclaimed.py`` | ``Gaussian`` |
| plain weights | ``Update`` | ``training/sgd.py: answer`` | none | ``NonPrivate`` |
| an edge's gradient | ``Gradient`` | ``regimes/asynchronous/edge.py: answer`` | the edge's mechanism | ``PoissonSampled``, ``NonPrivate`` |
| an embedding, or that there is none | ``Embedding`` | ``regimes/vertical/engines/split.py`` | ``mechanism/single.py: release_rows`` | ``Gaussian``, ``NonPrivate`` |
| a party's update | (kept) | ``regimes/vertical/engines/split.py`` | ``mechanism/single.py: release`` | ``Gaussian`` |
| a label's answer | (to the server) | ``mechanism/response.py: respond, respond_for`` | randomised response | ``Pure`` |
"""

from __future__ import annotations

from pathlib import Path

import sordino


def test_the_places_of_the_table_exist() -> None:
    root = Path(sordino.__file__).parent
    for line in (__doc__ or "").splitlines()[4:]:
        place = line.split("|")[3].strip().strip("`") if line.startswith("|") else ""
        if place:
            file, _, names = place.partition(": ")
            text = (root / file).read_text()
            assert all(f"def {name}" in text for name in names.split(", ") if name), place
