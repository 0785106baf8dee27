"""What is known after a stretch of events, by any path; and who learns at which rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Rates:
    """eta_0 of the server, eta_m of each party."""

    server: float
    parties: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Of n events (of b examples each).

    Attributes:
        predictions: classes (n b,), each before its event was learned from.
        losses: mean loss of each event's examples (n,), likewise.
        regret: squared norm of the window's gradient after each event (n,).
        seconds: spent on parties' forward passes, on their backward passes and steps, on the server
            (3,).
    """

    predictions: NDArray[np.int64]
    losses: NDArray[np.float64]
    regret: NDArray[np.float64]
    seconds: NDArray[np.float64]
