"""The price of a study, whatever its regime, and the balances of its ledgers of data: spent, still
affordable, and what would help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sordino.core.schedule import Curve
from sordino.mechanisms import GaussianNoise, Noise
from sordino.mechanisms.shared import SharedGrid
from sordino.privacy import Budget, Event, PoissonSampled
from sordino.privacy.accounting import accountant
from sordino.privacy.rounding import epsilon_text

Spending = tuple[tuple[Event, int], ...]

_LARGEST = 1e6  # of noise multipliers that are looked at
CLOSE = 1.001


@dataclass(frozen=True, slots=True)
class Balance:
    """One client's ledger, as it is now.

    Attributes:
        unit: of the study.
        name: of the client, where it has one.
        spent: epsilon, at the study's delta and by its accountant.
        steps: charges of the study that it can still pay for; None without a limit.
    """

    unit: str
    name: str | None
    spent: float
    steps: int | None

    @property
    def called(self) -> str:
        """For people."""
        return f"{self.unit} ({self.name})" if self.name else self.unit


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


def priced(before: Spending, budget: Budget) -> float:
    """Epsilon of what was spent."""
    return accountant(budget.accountant).epsilon(before, budget.delta) if before else 0.0


def enough(
    event: Callable[[float], Event], sigma: float, steps: int, before: Spending, budget: Budget
) -> float | None:
    """The noise multiplier, to a thousandth, for so many steps after what was spent; or None."""

    def fits(tried: float) -> bool:
        return (
            accountant(budget.accountant).epsilon(
                [*before, (event(tried), steps)], budget.delta, quick=True
            )
            <= budget.epsilon
        )

    low, high = sigma, 2.0 * sigma
    while not fits(high):
        low, high = high, 2.0 * high
        if high > _LARGEST:
            return None
    while high > CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def remedies(
    clients: Sequence[Balance],
    wanted: int,
    charged: str,
    budget: Budget,
    before: Sequence[Spending],
    event: Callable[[float], Event] | None,
    sigma: float,
) -> list[str]:
    """Return what stands in the way of a study, and the remedy, of the client that has least left.

    Args:
        clients: with what is left of each.
        wanted: charges that the study plans for each.
        charged: what is charged, in the plural.
        budget: of the study.
        before: what each client has spent.
        event: what is charged, by noise multiplier; None where charges differ along a schedule.
        sigma: the study's noise multiplier.
    """
    short = [
        (left, spent)
        for left, spent in zip(clients, before, strict=True)
        if spent and left.steps is not None and left.steps < wanted
    ]
    if not short:
        return []
    worst, spent = min(short, key=lambda pair: (pair[0].steps or 0, -pair[0].spent))
    others = (
        f" ({len(short)} of {len(clients)} clients have too little left)" if len(short) > 1 else ""
    )
    most = epsilon_text(budget.epsilon)
    if math.isinf(worst.spent):
        return [
            f"the ledger of {worst.called}: its data was used without a bound, so no finite "
            f"epsilon can be promised for it again{others}: use other data, or privacy.unit = "
            "'none'"
        ]
    if worst.spent >= budget.epsilon:
        return [
            f"the ledger of {worst.called} has spent epsilon {epsilon_text(worst.spent)}, which is "
            f"all of {most}{others}: use other data, or raise privacy.epsilon, which is a promise "
            "to the people in the data"
        ]
    raised = None if event is None else enough(event, sigma, wanted, spent, budget)
    ways = ["raise privacy.noise_multiplier"] if event is None else []
    ways += (
        []
        if raised is None
        else [f"raise privacy.noise_multiplier from {sigma:.4g} to {raised * CLOSE:.4g}"]
    )
    ways += (
        [f"plan for at most {worst.steps} {charged} (budget.rounds or budget.updates)"]
        if worst.steps
        else []
    )
    return [
        f"the ledger of {worst.called} has spent epsilon {epsilon_text(worst.spent)} of {most}, "
        f"and pays for {worst.steps} of {wanted} {charged}{others}: "
        f"{', or '.join([*ways, 'use other data'])}"
    ]
