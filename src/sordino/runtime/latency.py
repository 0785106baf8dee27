r"""How long clients take, and when they are away: seeded models for the virtual clock.

A task of tau steps at client i costs  scale_i (base_i + tau step)  seconds, base_i drawn anew
for every round from one of

    constant        m
    exponential     mean m
    log-normal      median m, shape s:  m exp(s N(0,1))
    pareto          minimum m, tail index a:  m U^(-1/a)

and scale_i fixed for the client, log-normal with shape ``spread`` (some devices are always slow).
Independently, with probability ``dropout`` a client that took a task vanishes before it
answers, and comes back after a geometric number of rounds with probability ``rejoin`` each.

Every draw has its own address (client, round), so that latencies do not depend on the order
of events or on where a run was resumed. Times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sordino.entropy import Entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Time a client needs for a task.

    Attributes:
        kind: the distribution of the round trip.
        typical: m, seconds.
        shape: s of log-normal, a of pareto; unused otherwise.
        step: seconds of computing for each local step.
        spread: shape of the fixed per-client factor; 0 makes all clients alike.
    """

    kind: Literal["constant", "exponential", "lognormal", "pareto"] = "constant"
    typical: float = 1.0
    shape: float = 0.5
    step: float = 0.0
    spread: float = 0.0

    def draw(self, entropy: Entropy, client: int, round_number: int, steps: int) -> float:
        """Seconds from the task's sending to the answer's arrival."""
        rng = entropy.at("latency", client, "round", round_number)
        match self.kind:
            case "constant":
                trip = self.typical
            case "exponential":
                trip = self.typical * float(rng.exponential())
            case "lognormal":
                trip = self.typical * float(rng.lognormal(0.0, self.shape))
            case "pareto":
                trip = self.typical * float(rng.random()) ** (-1.0 / self.shape)
        factor = float(entropy.at("speed", client).lognormal(0.0, self.spread)) if self.spread else 1.0
        return factor * (trip + steps * self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """Clients that vanish and return.

    Attributes:
        dropout: probability that a client given a task never answers it.
        rejoin: probability, each round it is away, that it comes back for the next.
    """

    dropout: float = 0.0
    rejoin: float = 0.5

    def away(self, entropy: Entropy, client: int, round_number: int) -> int:
        """Rounds that the client will be away for, from this one on; 0 if it stays."""
        if self.dropout == 0.0:
            return 0
        rng = entropy.at("churn", client, "round", round_number)
        return int(rng.geometric(self.rejoin)) if rng.random() < self.dropout else 0
