r"""What a study will cost, before anything runs.

The privacy budget pays for R_c local steps, the round budget for R_s rounds; whichever ends
first ends the run. Noise is a plan, not a habit: at a given epsilon the noise in one step
relative to the data is sigma / (q n), and it falls as q grows, at a cost in computing.
:func:`advise` lays that out over a grid.

Expected signal to noise: a mean of clipped gradients is at most C long, the noise in it
sigma C sqrt(d) / B_i, so one client's step has a ratio of at most B_i / (sigma sqrt(d)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sordino.errors import StudyError
from sordino.privacy import Event, PoissonSampled, epsilon_after, most_steps, noise_multiplier
from sordino.privacy import Gaussian as GaussianEvent
from sordino.study import Study

ACCOUNTANTS = ("pld", "rdp", "rdp-classic")


@dataclass(frozen=True, slots=True)
class Plan:
    """The price of a study.

    Attributes:
        noise_multiplier: sigma; 0 without privacy.
        steps: R_c under the study's accountant; None without a limit.
        most: R_c under every accountant.
        rounds: R_s; None for a plan without a study.
        used: local steps that a client will take if tau keeps to the pace.
        epsilon: after ``used`` steps.
        curve: epsilon after each round at that pace.
        ends: "rounds" or "privacy": which budget ends the run.
        batches: expected batch of the smallest, median and largest client.
        signal_to_noise: upper bound for one step of the median client.
        relative_noise: sigma / (q n), n all examples: noise of an averaged step in units of C / sqrt(d), times the clients.
        calibrated: whether sigma was calibrated here.
        warnings: what to look at before running.
    """

    noise_multiplier: float
    steps: int | None
    most: dict[str, int | None]
    rounds: int | None
    used: int | None
    epsilon: float
    curve: tuple[float, ...]
    ends: str
    batches: tuple[float, float, float] | None
    signal_to_noise: float | None
    relative_noise: float | None
    calibrated: bool
    warnings: tuple[str, ...]


def step_event(sampling_rate: float, sigma: float) -> Event:
    """One DP-SGD step as the ledger books it."""
    return PoissonSampled(sampling_rate=sampling_rate, event=GaussianEvent(noise_multiplier=sigma))


def planned_steps(study: Study) -> int:
    """Local steps of one client that noise is calibrated for.

    With a cohort smaller than the federation a client takes part in a random number of rounds:
    three standard deviations more than its share are paid for.
    """
    rounds, method = study.budget.rounds, study.method
    if study.budget.steps is not None:
        return study.budget.steps
    share = 1.0 if study.participation.cohort is None else study.participation.cohort / study.data.clients
    taken = min(rounds, math.ceil(rounds * share + 3.0 * math.sqrt(rounds * share * (1.0 - share))))
    return taken * (method.fixed_tau or 2)


def calibrate(study: Study) -> Study:
    """The same study with its noise multiplier filled in, if it was left out."""
    privacy = study.privacy
    if privacy.unit == "none" or privacy.noise_multiplier is not None:
        return study
    if privacy.epsilon is None or privacy.delta is None or math.isinf(privacy.epsilon):
        raise StudyError("privacy.noise_multiplier can be calibrated only from a finite epsilon; give one of the two")
    sigma = noise_multiplier(
        sampling_rate=privacy.sampling_rate,
        steps=planned_steps(study),
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        accountant=privacy.accountant,
    )
    return study.model_copy(update={"privacy": privacy.model_copy(update={"noise_multiplier": sigma})})


def limits(event: Event, epsilon: float, delta: float, accountants: Sequence[str] = ACCOUNTANTS) -> dict[str, int | None]:
    """R_c under each accountant; None where epsilon is infinite."""
    if math.isinf(epsilon):
        return dict.fromkeys(accountants)
    return {name: most_steps(event, epsilon=epsilon, delta=delta, accountant=name) for name in accountants}


def price(study: Study, sizes: Sequence[int], dimension: int) -> Plan:
    """The plan of a study over clients of these sizes and a model of this dimension."""
    full = calibrate(study)
    privacy, rounds = full.privacy, full.budget.rounds
    tau = full.method.fixed_tau
    ordered = sorted(sizes)
    batches = (privacy.sampling_rate * ordered[0], privacy.sampling_rate * ordered[len(ordered) // 2], privacy.sampling_rate * ordered[-1])
    if privacy.unit == "none" or privacy.delta is None or privacy.epsilon is None or privacy.noise_multiplier is None:
        used = None if tau is None else tau * rounds
        return Plan(0.0, None, {}, rounds, used, math.inf, (math.inf,) * rounds, "rounds", batches, None, None, False, ())
    sigma, delta = privacy.noise_multiplier, privacy.delta
    event = step_event(privacy.sampling_rate, sigma)
    most = limits(event, privacy.epsilon, delta)
    steps = most[privacy.accountant]
    pace = tau if tau is not None else 1 if steps is None or rounds >= steps else math.ceil(steps / rounds)
    used = pace * rounds if steps is None else min(pace * rounds, steps)
    after = [min(pace * k, used) for k in range(1, math.ceil(used / pace) + 1)]
    curve = epsilon_after(event, after, delta=delta, accountant=privacy.accountant)
    return Plan(
        noise_multiplier=sigma,
        steps=steps,
        most=most,
        rounds=rounds,
        used=used,
        epsilon=curve[-1],
        curve=tuple(curve),
        ends="privacy" if steps is not None and pace * rounds > steps else "rounds",
        batches=batches,
        signal_to_noise=batches[1] / (sigma * math.sqrt(dimension)),
        relative_noise=sigma / (privacy.sampling_rate * sum(sizes)),
        calibrated=study.privacy.noise_multiplier is None,
        warnings=tuple(warnings(full, sizes, steps)),
    )


def warnings(study: Study, sizes: Sequence[int], steps: int | None) -> list[str]:
    """What is allowed but should be looked at."""
    found = []
    privacy, smallest = study.privacy, min(sizes)
    if privacy.unit == "none":
        return ["this run promises no privacy: epsilon is infinite"]
    if privacy.delta is not None and privacy.delta >= 1.0 / smallest:
        found.append(
            f"privacy.delta = {privacy.delta:g} is not below 1/{smallest}, one over the smallest client's examples:"
            f" it would allow giving one example away. Choose less than {1.0 / smallest:.1g}"
        )
    if steps == 0:
        found.append("the privacy budget does not pay for a single step: raise epsilon or noise_multiplier")
    if privacy.sampling_rate * smallest < 1.0:
        found.append(
            f"the smallest client has {smallest} examples and an expected batch of {privacy.sampling_rate * smallest:.2g}: mostly noise"
        )
    if study.form == "paper":
        found.append("form = 'paper' sends raw constants: the run is NOT private, and is booked at epsilon = infinity")
    return found


@dataclass(frozen=True, slots=True)
class Advice:
    """One cell of the grid: what this q and tau would give at the study's epsilon and rounds.

    Attributes:
        sampling_rate: q.
        tau: local steps in each round.
        steps: tau times the rounds.
        noise_multiplier: calibrated sigma.
        relative_noise: sigma / (q n), in units of 1e-6 of C per example.
        compute: examples that one client of average size works through.
    """

    sampling_rate: float
    tau: int
    steps: int
    noise_multiplier: float
    relative_noise: float
    compute: float


def advise(
    study: Study, sizes: Sequence[int], rates: Sequence[float] = (0.015, 0.03, 0.06, 0.12, 0.25), taus: Sequence[int] = (1, 2, 5)
) -> list[Advice]:
    """The grid, least noisy first within each tau.

    Raises:
        StudyError: for a study that promises nothing, where there is nothing to weigh.
    """
    privacy = study.privacy
    if privacy.epsilon is None or privacy.delta is None or math.isinf(privacy.epsilon):
        raise StudyError("--advise weighs noise at a finite privacy.epsilon; this study has none")
    total = sum(sizes)
    cells = []
    for tau in taus:
        for rate in sorted({*rates, privacy.sampling_rate}):
            steps = tau * study.budget.rounds
            sigma = noise_multiplier(
                sampling_rate=rate, steps=steps, epsilon=privacy.epsilon, delta=privacy.delta, accountant=privacy.accountant
            )
            cells.append(Advice(rate, tau, steps, sigma, sigma / (rate * total), rate * steps * total / len(sizes)))
    return cells
