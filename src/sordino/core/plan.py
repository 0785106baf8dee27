"""The price of a study, whatever its regime."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from sordino.core.balance import Balance
from sordino.core.schedule import Curve
from sordino.mechanisms import GaussianNoise, Noise
from sordino.mechanisms.shared import SharedGrid
from sordino.privacy import Event, PoissonSampled
from sordino.privacy.rounding import epsilon_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The price of a study.

    Attributes:
        noise_multiplier: sigma; 0 without privacy.
        steps: R_c under the study's accountant, in local steps, or in rounds where whole clients
            are protected; None without a limit.
        most: R_c under every accountant.
        rounds: R_s, or T updates.
        used: how many of them a client will use if tau keeps to the pace.
        epsilon: after ``used`` steps: a proven bound, infinite where there is none.
        curve: epsilon after each round at that pace; of a paper's literal form, what it claims.
        ends: "rounds" or "privacy": which budget ends the run.
        batches: expected batch of the smallest, median and largest client; of the cohort (three
            times) where clients are protected.
        signal_to_noise: upper bound for one step of the median client.
        relative_noise: sigma / (q n), n all examples: noise of an averaged step in units of C /
            sqrt(d), times the clients.
        calibrated: whether sigma was calibrated here.
        warnings: what to look at before running.
        stages: of clipping bound and learning rate, where gradients are applied as they arrive;
            dataclasses.
        claimed: what a paper's literal form says that epsilon is; None for sound forms.
        gradients: how gradients of single examples are computed, why so and what it costs; empty
            where none are clipped.
        releases: of parties with different features: unit of the ledger, what is released of an
            entity, and epsilon.
        shared: the grid of a sum whose noise clients share, in the first round.
        left: what each client's data has left, where its ledger outlives runs.
        clients: epsilon, noise multiplier and weight of each client, where they differ.
    """

    noise_multiplier: float = 0.0
    steps: int | None = None
    most: dict[str, int | None] = field(default_factory=dict)
    rounds: int | None = None
    used: int | None = None
    epsilon: float = math.inf
    curve: Curve | tuple[float, ...] = ()
    ends: str = "rounds"
    batches: tuple[float, float, float] | None = None
    signal_to_noise: float | None = None
    relative_noise: float | None = None
    calibrated: bool = False
    warnings: tuple[str, ...] = ()
    stages: tuple[Any, ...] = ()
    claimed: float | None = None
    gradients: str = ""
    releases: tuple[tuple[str, str, float], ...] = ()
    shared: SharedGrid | None = None
    left: tuple[Balance, ...] = ()
    clients: tuple[tuple[float, float, float], ...] = ()

    def exposed(self, where: str, true: float, why: str) -> Plan:
        """The plan of a form that gives ``true`` where it claims what was planned, and says so."""
        claim = f" (noise multiplier {self.noise_multiplier:.4g})" if self.noise_multiplier else ""
        warning = (
            f"{where} = 'paper' is NOT private: it claims epsilon = "
            f"{epsilon_text(self.epsilon)}{claim} and gives epsilon = {epsilon_text(true)} "
            f"({why}); the ledger books what it gives"
        )
        return replace(self, epsilon=true, claimed=self.epsilon, warnings=(*self.warnings, warning))


def step_event(sampling_rate: float, sigma: float, noise: Noise | None = None) -> Event:
    """One DP-SGD step with this mechanism (Gaussian unless given) as the ledger books it."""
    return PoissonSampled(
        sampling_rate=sampling_rate, event=(noise or GaussianNoise()).event(sigma)
    )
