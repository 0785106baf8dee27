"""How long the question "how many steps?" takes, imports aside."""

from __future__ import annotations

import time
from typing import Any

from sordino.privacy import Gaussian, PoissonSampled, most_steps


def measure() -> list[dict[str, Any]]:
    """Most steps at epsilon 2, delta 1e-5, q 0.015, sigma 1.1."""
    event = PoissonSampled(0.015, Gaussian(1.1))
    most_steps(
        PoissonSampled(0.02, Gaussian(1.0)), epsilon=1.0, delta=1e-5, accountant="pld"
    )  # imports, once
    start = time.perf_counter()
    steps = most_steps(event, epsilon=2.0, delta=1e-5, accountant="pld")
    seconds = time.perf_counter() - start
    return [
        {
            "what": "most steps at epsilon 2, delta 1e-5, q 0.015, sigma 1.1 (PLD)",
            "peer": 314,
            "ours": steps,
            "reach": "716 in under 1 s",
            "met": steps == 716 and seconds < 1.0,
            "detail": {"seconds": round(seconds, 3)},
        }
    ]
