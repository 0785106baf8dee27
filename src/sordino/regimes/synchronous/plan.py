r"""The price of a study in rounds, before anything runs.

The privacy budget pays for R_c local steps, the round budget for R_s rounds; whichever ends
first ends the run. Noise is a plan, not a habit: at a given epsilon the noise in one step
relative to the data is sigma / (q n), and it falls as q grows, at a cost in computing.
:func:`advise` lays that out over a grid.

Expected signal to noise: a mean of clipped gradients is at most C long, the noise in it
sigma C sqrt(d) / B_i, so one client's step has a ratio of at most B_i / (sigma sqrt(d)).

Clients with epsilons of their own (``privacy.epsilons``). A client's noise multiplier sigma_i is
calibrated for its epsilon_i, over the steps that all take. A client with little epsilon sends much
noise, and an average by size would be as noisy as its worst part. So a client counts in the average
by its usual weight times 1 / sigma_i^2, as the precision of its noise says, which is what it was
before if all epsilons are equal. Weights follow from epsilons, sizes, delta, q and the number of
steps, all of which are public, so they cost nothing; they tilt what is learned towards the data of
those who allow more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sordino.base.errors import StudyError
from sordino.clients.regime import calibrated
from sordino.core.plan import NoisyCharges, Plan, Schedule, least, runs_of
from sordino.mechanisms.shared import SharedGrid
from sordino.privacy import Budget, Composed, Event, Gaussian, noise_multiplier
from sordino.privacy.budget import left_out
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.regimes.synchronous.sharing import aggregated, honest, rule, shared, shares
from sordino.regimes.synchronous.study import SynchronousStudy

NOTICEABLE = 1.05
"""The growth of noise by rounding that a plan warns of."""


def release(study: SynchronousStudy) -> Callable[[float], Event]:
    """Return one step's release by noise multiplier: a noisy sum, and a noisy loss if asked for.

    A method that asks for the loss once a round is priced as if it did in every step.
    """
    mechanism, loss = study.privacy.mechanism, study.method.wants.loss
    if loss is None or loss[1] == 0.0:
        return mechanism.event
    beside = Gaussian(noise_multiplier=loss[1])
    return lambda sigma: Composed(events=(mechanism.event(sigma), beside))


def charged_per_round(study: SynchronousStudy) -> int | None:
    """Return how often a round's event is booked: tau times, once for clients; None if chosen."""
    return 1 if study.privacy.unit == "client" else study.method.fixed_tau


def planned_charges(study: SynchronousStudy) -> tuple[tuple[float, int], ...]:
    """Return factors on sigma, and the charges at each that noise is calibrated for, in order.

    With a cohort smaller than the federation a client takes part in a random number of rounds:
    three standard deviations more than its share are paid for.
    """
    rounds, method = study.budget.rounds, study.method
    parts = runs_of(method.scale(number / rounds)[1] for number in range(rounds))
    if len(parts) > 1 or study.privacy.unit == "client":
        return tuple((factor, count * (charged_per_round(study) or 1)) for factor, count in parts)
    ((factor, _),) = parts
    if study.budget.steps is not None:
        return ((factor, study.budget.steps),)
    share = (
        1.0
        if study.participation.cohort is None
        else study.participation.cohort / study.data.clients
    )
    taken = min(rounds, math.ceil(rounds * share + 3.0 * math.sqrt(rounds * share * (1.0 - share))))
    return ((factor, taken * (method.fixed_tau or 2)),)


def planned_steps(study: SynchronousStudy) -> int:
    """Return how many charges of one client noise is calibrated for."""
    return sum(count for _, count in planned_charges(study))


def scheduled(study: SynchronousStudy) -> bool:
    """Return whether the noise follows a public schedule, so that charges differ."""
    return len(planned_charges(study)) > 1


def schedule(study: SynchronousStudy) -> Schedule:
    """Return what a study that promises something charges its clients, with the noise it states."""
    privacy = study.privacy
    units = [f"client:{i}" for i in range(study.data.clients)]
    each = NoisyCharges(
        release=release(study),
        stages=planned_charges(study),
        sampling_rate=privacy.sampling_rate,
    )
    asked = Schedule(
        budgets={
            unit: Budget(epsilon, privacy.delta or 1e-5, privacy.accountant)
            for unit, epsilon in zip(units, study.epsilons, strict=True)
        },
        charged="rounds" if privacy.unit == "client" else "local steps",
        noisy=dict.fromkeys(units, each),
        pace=charged_per_round(study) or 1,
    )
    return asked.with_noise(dict(zip(units, study.multipliers, strict=False)))


def scales(study: SynchronousStudy) -> tuple[float, ...]:
    """Return sigma_i over the largest of them; nothing where all clients are alike."""
    each, largest = study.privacy.noise_multipliers, study.privacy.noise_multiplier
    return () if each is None or not largest else tuple(sigma / largest for sigma in each)


def weights(study: SynchronousStudy, sizes: Sequence[int]) -> tuple[float, ...]:
    """Return p_i of every client in the average, adding up to 1."""
    total, equal = sum(sizes), study.method.weights == "equal"
    usual = tuple(1.0 / len(sizes) if equal else n / total for n in sizes)
    factors = scales(study)
    if not factors:
        return usual
    precise = [p / s**2 for p, s in zip(usual, factors, strict=True)]
    return tuple(p / sum(precise) for p in precise)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Clients of a study with the same epsilon and noise, as its plan sees them."""

    unit: str
    study: SynchronousStudy
    most: dict[str, int | None]
    steps: int | None
    used: int


def price(study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
    """Return the plan of a study over clients of these sizes and a model of this dimension.

    With epsilons of clients' own: steps that all clients can pay for, and epsilon of the one that
    spends most. Where clients share the noise: with the grid of the first round.

    Raises:
        StudyError: if no noise is enough, or the modulus of a shared sum is too small.
    """
    full = calibrated(study, lambda: schedule(study))
    privacy, rounds, tau = full.privacy, full.budget.rounds, full.method.fixed_tau
    batches = _batches(full, sizes)
    if privacy.unit == "none" or privacy.epsilon is None or privacy.delta is None:
        used = None if tau is None else tau * rounds
        return Plan(rounds=rounds, used=used, curve=(math.inf,) * rounds, batches=batches)
    asked = schedule(full)
    kinds = [_kind(full, asked, unit) for unit in dict.fromkeys(asked.kinds.values())]
    steps = least(each.steps for each in kinds)
    dearest = kinds[0]
    if len(kinds) > 1:
        dearest = max(kinds, key=lambda each: asked.epsilon(each.unit, each.used))
    pace, used = _pace(full, steps)
    curve = asked.curve(
        dearest.unit, [min(pace * k, used) for k in range(1, math.ceil(used / pace) + 1)] or [0]
    )
    spent = curve[-1]
    raw = full.method.unpriced is not None
    warned = [
        line
        for each in kinds
        for line in (
            *warnings(each.study, sizes, each.steps, dimension),
            *_left_out(each.study, each.used, dimension),
        )
    ]
    signals = [
        batches[1] / ((each.study.privacy.noise_multiplier or 0.0) * math.sqrt(dimension))
        for each in kinds
    ]
    found = Plan(
        noise_multiplier=privacy.noise_multiplier or 0.0,
        steps=steps,
        most={name: least(each.most[name] for each in kinds) for name in kinds[0].most},
        rounds=rounds,
        used=used,
        epsilon=math.inf if raw else spent,
        claimed=spent if raw else None,
        curve=curve,
        ends="privacy" if steps is not None and pace * rounds > steps else "rounds",
        batches=batches,
        signal_to_noise=max(signals),
        relative_noise=_relative(full, sizes),
        calibrated=not study.multipliers,
        clients=()
        if privacy.epsilons is None
        else tuple(zip(full.epsilons, full.multipliers, weights(full, sizes), strict=True)),
        warnings=tuple(dict.fromkeys(warned)),
    )
    return _of_shared_noise(full, found, sizes, dimension) if shared(full) else found


def _pace(study: SynchronousStudy, steps: int | None) -> tuple[int, int]:
    """Return the charges of a round, and of all rounds, where ``steps`` can be paid for."""
    rounds = study.budget.rounds
    chosen = 1 if steps is None or rounds >= steps else math.ceil(steps / rounds)
    pace = charged_per_round(study) or chosen
    return pace, pace * rounds if steps is None else min(pace * rounds, steps)


def _kind(study: SynchronousStudy, asked: Schedule, unit: str) -> _Kind:
    privacy = study.privacy
    changed = {
        "epsilon": asked.budgets[unit].epsilon,
        "noise_multiplier": asked.multipliers[unit],
        "epsilons": None,
        "noise_multipliers": None,
    }
    one = study.model_copy(update={"privacy": privacy.model_copy(update=changed)})
    most = asked.most(unit)
    steps, used = charges(study, most[privacy.accountant])
    return _Kind(unit, one, most, steps, used)


def charges(study: SynchronousStudy, most: int | None) -> tuple[int | None, int]:
    """Return R_c, and the charges that a client uses, where its budget pays for ``most``.

    Noisy models are not held to a budget that nobody could keep: their claim is for all rounds.
    """
    method = study.method
    steps = None if isinstance(method, ClientLevel) and not method.aggregated else most
    return steps, _pace(study, steps)[1]


def _of_shared_noise(
    study: SynchronousStudy, priced: Plan, sizes: Sequence[int], dimension: int
) -> Plan:
    """Return the plan of sums whose noise clients share."""
    privacy, sigma, rounds = study.privacy, priced.noise_multiplier, study.budget.rounds
    fixed = rule(study, sizes, dimension)
    factors = dict.fromkeys(study.method.scale(number / rounds) for number in range(rounds))
    # every round's, lest a run end where its schedule comes to one that no modulus can hold
    grids = [fixed.grid(privacy.clip * clip, sigma * noise) for clip, noise in factors]
    # of n parts of the noise, H are booked
    excess = len(sizes) / honest(study)
    batch = sum(shares(study, sizes)) if aggregated(study) else sum(sizes)
    growth = grids[0].growth
    signal = privacy.sampling_rate * batch / (sigma * growth * math.sqrt(excess * dimension))
    numbers = len(sizes) * dimension * fixed.rounds
    more = left_out(
        privacy.delta, privacy.epsilon, numbers=numbers, more=max(map(fixed.unbooked, grids))
    )
    return replace(
        priced,
        signal_to_noise=signal,
        warnings=(*priced.warnings, *_coarse(grids), *more),
        shared=grids[0],
    )


def _coarse(grids: Sequence[SharedGrid]) -> list[str]:
    grid = max(grids, key=lambda each: each.growth)
    if grid.growth <= NOTICEABLE:
        return []
    return [
        f"a modulus of {grid.bits} bits leaves a grid so coarse that rounding adds "
        f"{100 * (grid.growth - 1):.0f} % to the noise: raise privacy.bits"
    ]


def _left_out(study: SynchronousStudy, used: int, dimension: int) -> tuple[str, ...]:
    """Return what is left out of delta for one client's noise; sums of shared noise have more."""
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


def _relative(study: SynchronousStudy, sizes: Sequence[int]) -> float:
    """sigma / (q n); where clients differ, of equal clients with as much noise in their average."""
    privacy = study.privacy
    if privacy.epsilons is None:
        counted = len(sizes) if privacy.unit == "client" else sum(sizes)
        return (privacy.noise_multiplier or 0.0) / (privacy.sampling_rate * counted)
    each = zip(weights(study, sizes), study.multipliers, sizes, strict=True)
    parts = [p * sigma / (privacy.sampling_rate * n) for p, sigma, n in each if n]
    return math.hypot(*parts) / math.sqrt(len(sizes))


def warnings(
    study: SynchronousStudy, sizes: Sequence[int], steps: int | None, dimension: int
) -> list[str]:
    """Return what is allowed but should be looked at."""
    found = []
    privacy, smallest = study.privacy, min(sizes)
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
    """A cell of the grid: a q and a tau at the study's epsilon and rounds.

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
    """Return the grid, by tau and then by sampling rate.

    ``seen`` is called with how many cells are done, and of how many.

    Raises:
        StudyError: for a study that promises nothing, where there is nothing to weigh.
    """
    privacy = study.privacy
    if privacy.unit == "client" or scheduled(study):
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
