"""A small study from Python, which runs in a second."""

from __future__ import annotations

import sordino as so


def small(**changes: object) -> so.Study:
    keys: dict[str, object] = {
        "data": so.Data(name="digits", clients=3),
        "model": "logistic",
        "method": so.DpSgd(learning_rate=0.5, tau=1),
        "privacy": so.Privacy(unit="sample", epsilon=2.0, delta=1e-3, sampling_rate=0.1),
        "budget": so.Budget(rounds=2),
    }
    return so.Study(**{**keys, **changes})  # type: ignore[arg-type]
