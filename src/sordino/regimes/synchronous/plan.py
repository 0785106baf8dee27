r"""What a study in rounds will cost, before anything runs.

The privacy budget pays for R_c local steps, the round budget for R_s rounds; whichever ends
first ends the run. Noise is a plan, not a habit: at a given epsilon the noise in one step
relative to the data is sigma / (q n), and it falls as q grows, at a cost in computing.
:func:`advise` lays that out over a grid.

Expected signal to noise: a mean of clipped gradients is at most C long, the noise in it
sigma C sqrt(d) / B_i, so one client's step has a ratio of at most B_i / (sigma sqrt(d)).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sordino.base.errors import StudyError
from sordino.core.plan import ACCOUNTANTS, Curve, Plan, limits
from sordino.privacy import (
    Composed,
    Event,
    Gaussian,
    PoissonSampled,
    Pure,
    accountant,
    noise_multiplier,
)
from sordino.privacy.budget import left_out
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.regimes.synchronous.study import SynchronousStudy


def release(study: SynchronousStudy) -> Callable[[float], Event]:
    """What one step releases: a noisy sum, and a noisy loss with it where a method asks for one.

    A method that asks for the loss once a round is priced as if it did in every step.
    """
    mechanism, loss = study.privacy.mechanism, study.method.wants.loss
    if loss is None or loss[1] == 0.0:
        return mechanism.event
    beside = Gaussian(noise_multiplier=loss[1])
    return lambda sigma: Composed(events=(mechanism.event(sigma), beside))


def step(study: SynchronousStudy, sigma: float) -> Event:
    """One step as it is booked, at this noise multiplier."""
    return PoissonSampled(sampling_rate=study.privacy.sampling_rate, event=release(study)(sigma))


def charged_per_round(study: SynchronousStudy) -> int | None:
    """How often a round's event is booked: tau times, once for clients; None if chosen."""
    return 1 if study.privacy.unit == "client" else study.method.fixed_tau


def schedule(study: SynchronousStudy) -> list[tuple[float, int]]:
    """Factors on sigma and the rounds at each, in order: one for most methods."""
    rounds = study.budget.rounds
    factors = [study.method.scale(number / rounds)[1] for number in range(rounds)]
    return [(factor, len(list(run))) for factor, run in itertools.groupby(factors)]


def planned_steps(study: SynchronousStudy) -> int | list[tuple[float, int]]:
    """What noise is calibrated for: steps of one client, on a schedule if there is one.

    With a cohort smaller than the federation a client takes part in a random number of rounds:
    three standard deviations more than its share are paid for.
    """
    rounds, method, parts = study.budget.rounds, study.method, schedule(study)
    if len(parts) > 1 or study.privacy.unit == "client":
        return [(factor, count * (charged_per_round(study) or 1)) for factor, count in parts]
    if study.budget.steps is not None:
        return study.budget.steps
    share = (
        1.0
        if study.participation.cohort is None
        else study.participation.cohort / study.data.clients
    )
    taken = min(rounds, math.ceil(rounds * share + 3.0 * math.sqrt(rounds * share * (1.0 - share))))
    return taken * (method.fixed_tau or 2)


def calibrate(study: SynchronousStudy) -> SynchronousStudy:
    """The same study with its noise multiplier filled in, if it was left out."""
    privacy = study.privacy
    if privacy.unit == "none" or privacy.noise_multiplier is not None:
        return study
    if privacy.epsilon is None or privacy.delta is None or math.isinf(privacy.epsilon):
        raise StudyError(
            "privacy.noise_multiplier can be calibrated only from a finite epsilon; give one "
            "of the two"
        )
    sigma = noise_multiplier(
        sampling_rate=privacy.sampling_rate,
        steps=planned_steps(study),
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        accountant=privacy.accountant,
        release=release(study),
    )
    return study.model_copy(
        update={"privacy": privacy.model_copy(update={"noise_multiplier": sigma})}
    )


def price(study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
    """The plan of a study over clients of these sizes and a model of this dimension."""
    full = calibrate(study)
    privacy, rounds = full.privacy, full.budget.rounds
    tau = full.method.fixed_tau
    batches = _batches(full, sizes)
    if (
        privacy.unit == "none"
        or privacy.delta is None
        or privacy.epsilon is None
        or privacy.noise_multiplier is None
    ):
        used = None if tau is None else tau * rounds
        return Plan(
            0.0,
            None,
            {},
            rounds,
            used,
            math.inf,
            (math.inf,) * rounds,
            "rounds",
            batches,
            None,
            None,
            False,
            (),
        )
    sigma = privacy.noise_multiplier
    names = tuple(dict.fromkeys((*ACCOUNTANTS, privacy.accountant)))
    if len(schedule(full)) > 1:
        most: dict[str, int | None] = {name: scheduled_steps(full, name) for name in names}
    else:
        most = limits(step(full, sigma), privacy.epsilon, privacy.delta, names)
    # Noisy models are not held to a budget that nobody could keep: the claim is then for all
    # rounds.
    steps = most[privacy.accountant] if getattr(full.method, "aggregated", True) else None
    pace = charged_per_round(full) or (
        1 if steps is None or rounds >= steps else math.ceil(steps / rounds)
    )
    used = pace * rounds if steps is None else min(pace * rounds, steps)
    spent = curve(full, pace, used)
    raw = full.method.unpriced is not None
    return Plan(
        noise_multiplier=sigma,
        steps=steps,
        most=most,
        rounds=rounds,
        used=used,
        epsilon=math.inf if raw else spent[-1],
        claimed=spent[-1] if raw else None,
        curve=spent,
        ends="privacy" if steps is not None and pace * rounds > steps else "rounds",
        batches=batches,
        signal_to_noise=batches[1] / (sigma * math.sqrt(dimension)),
        relative_noise=sigma
        / (privacy.sampling_rate * (len(sizes) if privacy.unit == "client" else sum(sizes))),
        calibrated=study.privacy.noise_multiplier is None,
        warnings=(*warnings(full, sizes, steps, dimension), *_left_out(full, used, dimension)),
    )


def _left_out(study: SynchronousStudy, used: int, dimension: int) -> tuple[str, ...]:
    """Of one client's noise; sums of shared noise have more (:mod:`.sums`)."""
    privacy = study.privacy
    if privacy.noise == "shared" or study.form != "sound":
        return ()
    return left_out(privacy.delta, privacy.epsilon, numbers=used * dimension)


def _batches(study: SynchronousStudy, sizes: Sequence[int]) -> tuple[float, float, float]:
    """Expected batch of the smallest, median and largest client; or of clients in a cohort."""
    rate = study.privacy.sampling_rate
    if study.privacy.unit == "client":
        return (rate * sum(shares(study, sizes)),) * 3
    ordered = sorted(sizes)
    return rate * ordered[0], rate * ordered[len(ordered) // 2], rate * ordered[-1]


def shares(study: SynchronousStudy, sizes: Sequence[int]) -> list[float]:
    """w_i in (0, 1] of every client in a sum of clients' updates."""
    return (
        [1.0] * len(sizes)
        if study.method.weights == "equal"
        else [size / max(sizes) for size in sizes]
    )


def spending(study: SynchronousStudy, charges: int) -> list[tuple[Event, int]]:
    """What the first ``charges`` charges of a calibrated study come to, along its schedule.

    A method that chooses how many steps a round takes is booked at one noise: all charges alike.
    """
    privacy, each, parts = study.privacy, charged_per_round(study) or 1, schedule(study)
    if len(parts) == 1:
        event = step(study, (privacy.noise_multiplier or 0.0) * parts[0][0])
        return [(event, charges)] if charges else []
    found: list[tuple[Event, int]] = []
    for factor, rounds in parts:
        count = min(rounds * each, charges)
        charges -= count
        found.append((step(study, (privacy.noise_multiplier or 0.0) * factor), count))
    return [(event, count) for event, count in found if count]


def spent_by(
    study: SynchronousStudy, true: Event, sigma: float, rate: float, charges: int
) -> list[tuple[Event, int]]:
    """So many charges of a client, along its schedule, where one at ``sigma`` is ``true``."""
    if len(schedule(study)) == 1 or not isinstance(true, Gaussian | Pure):
        return [(PoissonSampled(sampling_rate=rate, event=true), charges)]
    level = true.noise_multiplier if isinstance(true, Gaussian) else sigma
    return spending(
        study.model_copy(
            update={"privacy": study.privacy.model_copy(update={"noise_multiplier": level})}
        ),
        charges,
    )


def aggregated(study: SynchronousStudy) -> bool:
    """Whether whole clients are protected by noise on their sum."""
    return isinstance(study.method, ClientLevel) and study.method.aggregated


def scheduled_steps(
    study: SynchronousStudy, name: str, spent: Sequence[tuple[Event, int]] = ()
) -> int:
    """The most charges of a scheduled study, in whole rounds, within its budget after ``spent``."""
    privacy, each, chosen = study.privacy, charged_per_round(study) or 1, accountant(name)
    assert privacy.epsilon is not None
    assert privacy.delta is not None
    delta = privacy.delta

    def price(rounds: int) -> float:
        return chosen.epsilon([*spent, *spending(study, rounds * each)], delta)

    return each * max(
        bisect.bisect_right(range(study.budget.rounds + 1), privacy.epsilon, key=price) - 1, 0
    )


def curve(study: SynchronousStudy, pace: int, used: int) -> Curve:
    """epsilon after each round of ``pace`` charges, until ``used``; finely bounded at the end."""
    delta, chosen = study.privacy.delta, accountant(study.privacy.accountant)
    assert delta is not None
    after = [min(pace * k, used) for k in range(1, math.ceil(used / pace) + 1)] or [0]
    event = step(study, study.privacy.noise_multiplier or 0.0)
    scheduled = len(schedule(study)) > 1

    def price(count: int) -> float:
        spent = spending(study, count) if scheduled else [(event, count)]
        return chosen.epsilon(spent, delta, quick=count != used)

    return Curve(tuple(after), price)


def warnings(
    study: SynchronousStudy, sizes: Sequence[int], steps: int | None, dimension: int
) -> list[str]:
    """What is allowed but should be looked at."""
    found = []
    privacy, smallest = study.privacy, min(sizes)
    if privacy.unit == "none":
        return ["this run promises no privacy: epsilon is infinite"]
    if privacy.unit == "client":
        return _of_clients(study, sizes, steps, dimension)
    if privacy.delta is not None and privacy.delta >= 1.0 / smallest:
        found.append(
            f"privacy.delta = {privacy.delta:g} is not below 1/{smallest}, one over the smallest "
            "client's examples: it would allow giving one example away. Choose less than "
            f"{1.0 / smallest:.1g}"
        )
    if steps == 0:
        found.append(
            "the privacy budget does not pay for a single step: raise epsilon or noise_multiplier"
        )
    found += study.budget.ignored(steps)
    if privacy.sampling_rate * smallest < 1.0:
        found.append(
            f"the smallest client has {smallest} examples and an expected batch of "
            f"{privacy.sampling_rate * smallest:.2g}: mostly noise"
        )
    if study.method.adapts_noise and study.form == "sound":
        found.append(
            "the noise falls during the run, so later rounds cost more: the privacy budget "
            "may end before the round budget"
        )
    if study.method.unpriced is not None:
        found.append(
            f"{study.method.unpriced}: the run is NOT private, and the ledger charges "
            "epsilon = infinity"
        )
    return found


def _of_clients(
    study: SynchronousStudy, sizes: Sequence[int], steps: int | None, dimension: int
) -> list[str]:
    privacy, found = study.privacy, []
    if privacy.delta is not None and privacy.delta >= 1.0 / len(sizes):
        found.append(
            f"privacy.delta = {privacy.delta:g} is not below 1/{len(sizes)}, one over the clients:"
            " it would allow a release that reveals one whole client. Choose less than "
            f"{1.0 / len(sizes):.1g}"
        )
    if steps == 0:
        found.append(
            "the privacy budget does not pay for a single round: raise epsilon or noise_multiplier"
        )
    cohort = privacy.sampling_rate * sum(shares(study, sizes))
    noise = (privacy.noise_multiplier or 0.0) * math.sqrt(dimension) / cohort
    if noise > 1.0:
        found.append(
            f"more noise than signal: the mean of {cohort:.3g} updates of length at most S carries "
            f"noise of length z sqrt(d) / {cohort:.3g} = {noise:.3g} S (z = "
            f"{privacy.noise_multiplier:g}, d = {dimension}); more clients a round "
            "(privacy.sampling_rate, data.clients) or a smaller model would help"
        )
    return found


@dataclass(frozen=True, slots=True)
class Cell:
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
    study: SynchronousStudy,
    sizes: Sequence[int],
    seen: Callable[[int, int], None] = lambda done, whole: None,
    rates: Sequence[float] = (0.015, 0.03, 0.06, 0.12, 0.25),
    taus: Sequence[int] = (1, 2, 5),
) -> list[Cell]:
    """The grid, least noisy first within each tau; ``seen`` is told how many cells are done, and
    of how many.

    Raises:
        StudyError: for a study that promises nothing, where there is nothing to weigh.
    """
    privacy = study.privacy
    if privacy.unit == "client" or len(schedule(study)) > 1:
        raise StudyError(
            "--advise weighs the sampling rate and tau of single examples at one noise; this "
            "study protects clients or has a schedule"
        )
    if privacy.epsilons is not None:
        raise StudyError("--advise weighs one noise for all; leave privacy.epsilons out")
    if privacy.epsilon is None or privacy.delta is None or math.isinf(privacy.epsilon):
        raise StudyError("--advise weighs noise at a finite privacy.epsilon; this study has none")
    total, tried = sum(sizes), sorted({*rates, privacy.sampling_rate})
    cells: list[Cell] = []
    for tau in taus:
        for rate in tried:
            seen(len(cells), len(taus) * len(tried))
            steps = tau * study.budget.rounds
            sigma = noise_multiplier(
                sampling_rate=rate,
                steps=steps,
                epsilon=privacy.epsilon,
                delta=privacy.delta,
                accountant=privacy.accountant,
                release=release(study),
            )
            cells.append(
                Cell(
                    rate,
                    tau,
                    steps,
                    sigma,
                    sigma / (rate * total),
                    rate * steps * total / len(sizes),
                )
            )
    return cells
