r"""Studies in rounds: ALS-DPFL, ALI-DPFL, DP-SGD, DP-FedAvg, and what they are compared with; their
price before anything runs, and what their promise rests on.

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
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, product
from typing import TYPE_CHECKING

import numpy as np

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Train
from sordino.clients import pricing
from sordino.clients.division import examples, federation
from sordino.clients.pricing import LOOKED_AT, Trial
from sordino.clients.regime import HorizontalRegime
from sordino.clients.study import BATCHES, ORDERED, SIZES, resting_on
from sordino.core.plan import NoisyCharges, Plan, Schedule, least
from sordino.core.statements import Advice
from sordino.core.world import Snapshot, Summing
from sordino.mechanisms.kinds import NoiseRequest
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import Budget, Event, Gaussian
from sordino.privacy.budget import left_out
from sordino.regimes.synchronous import report
from sordino.regimes.synchronous.method import check
from sordino.regimes.synchronous.methods import ClientLevel, Clipped
from sordino.regimes.synchronous.study import TEMPLATE, SynchronousStudy
from sordino.training.plausible import drawn

if TYPE_CHECKING:
    from sordino.clients.assemble import Assembly
    from sordino.mechanisms.gaussian import Bounded

NOTICEABLE = 1.05
"""The growth of noise by rounding that a plan warns of."""
RATES, TAUS = (0.015, 0.03, 0.06, 0.12, 0.25), (1, 2, 5)
"""The grid of sampling rates and local steps that is weighed."""
CAPS = (1, 2, 3, 5, 8, 12, 20)
"""Rows of one person that are weighed."""
BATCHES_OF_A_PASS = (4, 6, 10, 20, 40)
"""Batches of a pass that are weighed."""
CLAMPED = 2.0**-60
"""Chance that a round's batch of one client is larger than its R_i allows for."""
OF_CLIENTS = (
    "The aggregator is trusted with single bounded updates, or sees only their sum (secure "
    "aggregation); all else sees the noisy sum.",
    "The members and the size of a cohort are secret; amplification by sampling depends on "
    "this. Checkpoints hold both until the run ends: keep the folder secret until then. In a "
    "federation the times at which rounds close tell other sites of it (docs/threats.md).",
    "The number of clients and their weights are public and fixed: they form the divisor "
    "of every sum.",
)

BLOCKS = (
    "Nothing about turns is secret: client i is in block i mod {batches}, the blocks take part in "
    "turn, one in each round, and who misses a turn waits for the next. Who of a block has "
    "answered is secret. Checkpoints hold that, and the memory of correlated noise, until the run "
    "ends: keep the folder secret until then."
)

RELEASED = "Every opened sum of the clients' contributions, and all that the server publishes,"
SENDING = (
    "Every client sends in every round. Whether its data is in what it sends is its own secret. "
    "Privacy amplification by sampling depends on this: neither the time that a client takes nor "
    "anything else must show whether it was drawn."
)


class SynchronousRegime(HorizontalRegime[SynchronousStudy]):
    """Clients train on the same model in rounds; the server averages what they send."""

    name = "synchronous"
    study = SynchronousStudy
    budget = "rounds"
    template = TEMPLATE
    carried = True
    told = staticmethod(report.plan_told)
    check = staticmethod(check)

    def complete(self, study: SynchronousStudy, moment: Snapshot) -> bool:
        """Return whether all rounds have passed, with all steps of the client that took most."""
        tau = study.method.fixed_tau
        steps = 0 if study.privacy.unit == "client" else (tau or math.inf) * study.horizon
        return moment.number >= study.horizon and moment.taken >= steps

    def planned(self, study: SynchronousStudy) -> int | None:
        """Return the charges of all rounds, where each is one release of the schedule; of whole
        clients in turns not all have as many.
        """
        charged, method = charged_per_round(study), study.method
        turns = study.batches is not None and study.privacy.unit == "client"
        if charged is None or turns or method.adapts_noise or method.wants.scalar_event is not None:
            return None
        return charged * study.horizon

    def wanted(self, study: SynchronousStudy) -> int:
        """Return the charges of a client that noise is calibrated for."""
        return sum(count for _, count in planned_charges(study))

    def schedule(self, study: SynchronousStudy, sizes: Sequence[int]) -> Schedule:
        """Return what a study charges its clients, with the noise that it states."""
        return pricing.schedule(
            study,
            self.rates(study, sizes),
            "rounds" if study.privacy.unit == "client" else self.charged,
            planned_charges(study),
            release(study),
            charged_per_round(study) or 1,
        )

    def price(self, study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
        """Return the plan of a study over clients of these sizes and a model of this dimension.

        With epsilons of clients' own: steps that all clients can pay for, and epsilon of the one
        that spends most. Where clients share the noise: with the grid of the first round.

        Raises:
            StudyError: if no noise is enough, or the modulus of a shared sum is too small.
        """
        full = self.calibrate(study, sizes)
        privacy, rounds, tau = full.privacy, full.budget.rounds, full.method.fixed_tau
        batches = self.batches(full, sizes)
        if privacy.unit == "none" or privacy.epsilon is None or privacy.delta is None:
            used = None if tau is None else tau * rounds
            return Plan(rounds=rounds, used=used, curve=(math.inf,) * rounds, batches=batches)
        schedule = self.promised(full, sizes)
        # clients with the same epsilon and noise are of one kind, named by the first of them
        kinds = tuple(dict.fromkeys(schedule.kinds.values()))
        each = {unit: charges(full, schedule.affordable(unit)) for unit in kinds}
        steps = least(steps for steps, _ in each.values())
        dearest = kinds[0]
        if len(kinds) > 1:
            dearest = max(kinds, key=lambda unit: schedule.epsilon(unit, each[unit][1]))
        pace, used = _pace(full, steps)
        counts = [min(pace * k, used) for k in range(1, math.ceil(used / pace) + 1)]
        curve = schedule.curve(dearest, counts or [0])
        raw, warned = full.method.unpriced is not None, list[str]()
        for unit, (paid, taken) in each.items():
            warned += self.warnings(full, sizes, paid, dimension)
            if not full.shared and full.form == "sound":  # sums of shared noise leave out more
                epsilon, numbers = schedule.budgets[unit].epsilon, taken * dimension
                warned += left_out(privacy.delta, epsilon, numbers=numbers)
        quietest = min(schedule.multipliers[unit] for unit in kinds)
        own: tuple[tuple[float, float, float], ...] = ()
        if privacy.epsilons is not None:
            own = tuple(zip(full.epsilons, full.multipliers, weights(full, sizes), strict=True))
        found = Plan(
            noise_multiplier=privacy.noise_multiplier or 0.0,
            steps=steps,
            most=schedule.most(*kinds),
            rounds=rounds,
            used=used,
            epsilon=math.inf if raw else curve[-1],
            claimed=curve[-1] if raw else None,
            curve=curve,
            ends="privacy" if steps is not None and pace * rounds > steps else "rounds",
            batches=batches,
            signal_to_noise=batches[1] / (quietest * math.sqrt(dimension)),
            relative_noise=_relative(full, sizes),
            calibrated=not study.multipliers,
            clients=own,
            warnings=tuple(dict.fromkeys(warned)),
        )
        return _of_shared_noise(full, found, sizes, dimension) if full.shared else found

    def may_choose(self, study: SynchronousStudy) -> bool:
        """Return whether batches, or cohorts, may come in a public order or be drawn."""
        own = study.privacy.unit != "none" and not study.shared and study.form == "sound"
        return own and not study.method.adapts_noise and not scheduled(study)

    def vectors(self, study: SynchronousStudy) -> tuple[int, int]:
        """Return the most vectors of an answer: a model, and the first gradient where a method asks
        for it; and of a checkpoint: the model, its average, two of an adaptive step, and of a
        literal form each client's last model.
        """
        last = study.data.clients if study.form != "sound" else 0
        return 1 if study.aggregated else 2, 4 + last

    def mechanism(self, study: SynchronousStudy, sizes: Sequence[int], trial: Trial) -> Bounded:
        """Return the mechanism of a calibrated study at its first multiplier, shaped by a trial."""
        made, method = super().mechanism(study, sizes, trial), study.method
        if isinstance(method, Clipped) and method.clipping == "proxy":
            return made.scaled(gradient_clip(made, trial), made.noise_multiplier)
        return made

    def clips(self, study: SynchronousStudy, dimension: int) -> Sequence[float]:
        """Return C of each round's schedule."""
        return [study.privacy.clip * clip for clip, _ in study.factors]

    def request(self, study: SynchronousStudy, sizes: Sequence[int], trial: Trial) -> NoiseRequest:
        """Return the terms that this mechanism is made for, with a count where one is released."""
        privacy, method, own = study.privacy, study.method, study.privacy.noise == "own"
        asked = super().request(study, sizes, trial)
        asked = replace(asked, counted=privacy.clipped_fraction and own)
        if not isinstance(method, ClientLevel):
            return asked
        largest = float(max(sizes)) if method.weights == "size" else 1.0
        bound = method.learning_rate * method.tau * privacy.clip
        asked = replace(asked, update_bound=bound, largest=largest)
        if method.clipping == "adaptive" or study.counts_clients:
            # Andrew et al. 2021, section 3
            deviation = method.count_noise or privacy.sampling_rate * len(sizes) / 20.0
            asked = replace(asked, counted=own, count_deviation=deviation)
        if method.clipping == "proxy":
            return replace(asked, clip=proxy_clip(study, method, sizes, trial))
        return asked

    def passes(self, study: SynchronousStudy, sizes: Sequence[int]) -> tuple[int | None, ...]:
        """Return the batches of a pass of every client; whole clients have none of their own."""
        if study.aggregated:
            return (None,) * study.data.clients
        return super().passes(study, sizes)

    def batches(self, study: SynchronousStudy, sizes: Sequence[int]) -> tuple[float, float, float]:
        """Return the expected batches; three times the cohort where clients are protected."""
        if study.privacy.unit == "client":
            return (study.privacy.sampling_rate * sum(study.shares(sizes)),) * 3
        return super().batches(study, sizes)

    def warnings(
        self, study: SynchronousStudy, sizes: Sequence[int], steps: int | None, dimension: int
    ) -> list[str]:
        """Return what is allowed but should be looked at."""
        privacy, smallest = study.privacy, min(sizes)
        if privacy.unit == "client":
            return _of_clients(study, sizes, steps, dimension)
        found = super().warnings(study, sizes, steps, dimension)
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

    def announced(
        self, priced: Plan, study: SynchronousStudy, noise: Bounded, sizes: Sequence[int]
    ) -> Plan:
        """Return the plan with what a literal form claims beside what it gives."""
        true, where = noise.event(), "privacy.mechanism.form"
        if isinstance(study.method, ClientLevel) and not study.method.aggregated:
            level = priced.noise_multiplier / (max(sizes) * study.method.tau)
            true, where = Gaussian(noise_multiplier=level), "method.form"
        schedule = self.schedule(study, sizes)
        return pricing.exposed(priced, study, schedule, "client:0", true, where)

    @property
    def assembly(self) -> type[Assembly[SynchronousStudy]]:
        """The maker of a run's objects."""
        from sordino.regimes.synchronous.assemble import RoundsAssembly

        return RoundsAssembly

    def whole(self, study: SynchronousStudy) -> bool:
        """Return whether whole clients are protected by noise on their sum."""
        return study.aggregated

    def advise(self, study: SynchronousStudy, seen: Callable[[int, int], None]) -> Advice:
        """Return other sampling rates and tau: a grid, by tau and then by sampling rate.

        Raises:
            StudyError: for a study that promises nothing, where there is nothing to weigh.
        """
        sized, privacy = self.sized(study), study.privacy
        sizes = federation(examples(sized)).sizes
        if privacy.unit == "client" or scheduled(study):
            raise StudyError(
                "--advise weighs the sampling rate and tau of single examples at one noise; this "
                "study protects clients or has a schedule"
            )
        if privacy.epsilons is not None:
            raise StudyError("--advise weighs one noise for all; leave privacy.epsilons out")
        if privacy.epsilon is None or privacy.delta is None or math.isinf(privacy.epsilon):
            raise StudyError(
                "--advise weighs noise at a finite privacy.epsilon; this study has none"
            )
        budget = Budget(privacy.epsilon, privacy.delta, privacy.accountant)
        total, rates = sum(sizes), sorted({*RATES, privacy.sampling_rate})
        cells: list[report.Cell] = []
        for tau, rate in product(TAUS, rates):
            seen(len(cells), len(TAUS) * len(rates))
            steps = tau * study.budget.rounds
            charged = NoisyCharges(
                release=release(sized), stages=((1.0, steps),), sampling_rate=rate
            )
            sigma = charged.for_group(study.rows_at_once).calibrated(budget)
            compute = rate * steps * total / len(sizes)
            cells.append(report.Cell(rate, tau, steps, sigma, sigma / (rate * total), compute))
        caps = (*CAPS, study.data.person_rows or 1) if study.of_persons else ()
        asked = self.schedule(sized, sizes)
        unit = max(asked.noisy, key=lambda each: asked.noisy[each].sampling_rate)
        noise = {k: asked.noisy[unit].for_group(k).calibrated(budget) for k in sorted({*caps})}
        steps, passes = asked.wanted(unit), dict[int, dict[str, float]]()
        if self.may_choose(study):
            own, held = study.batches or max(round(1.0 / privacy.sampling_rate), 1), self.promised
            for count in sorted({*BATCHES_OF_A_PASS, own}):
                found = pricing.samplings(held(sized, sizes), unit, count)
                if count <= steps and found:
                    passes[count] = found
        return Advice(cells, report.advised(sized, cells, noise, steps, passes))

    def assumptions(self, study: SynchronousStudy) -> list[str]:
        """Return what the promise rests on."""
        if study.shared:
            return resting_on(study, _resting_on_shares(study))
        if study.privacy.unit == "client":
            trusted, secret, public = OF_CLIENTS
            if study.batches is not None:
                secret = BLOCKS.format(batches=study.batches)
            return resting_on(study, (trusted, secret, public))
        order = (
            BATCHES if study.batches is None else ORDERED.format(batches=f"{study.batches} batches")
        )
        return resting_on(study, (SIZES, order))

    def released(self, study: SynchronousStudy) -> str | None:
        """Return what the promise is about, where clients share the noise."""
        return RELEASED if study.shared else None

    def summing(self, study: SynchronousStudy) -> Summing | None:
        """Return what secure sums follow from, where clients share the noise."""
        return study.summing

    def against(self, study: SynchronousStudy) -> str:
        """Return against whom the promise holds."""
        if not study.shared:
            return super().against(study)
        colluding = study.fewest - study.honest
        held = (
            f"It holds against the server and up to {colluding} of the clients together, whoever "
            "drops out of a sum."
            if colluding
            else "It holds against the server, and not against another client, who knows its own "
            "part: for that, set privacy.honest below privacy.fewest."
        )
        return (
            "This holds even if an observer knows everything but the clients' parts of the noise. "
            f"{held} A single contribution has only a part of the noise: it must travel under a "
            "mask (secure aggregation)."
        )


def release(study: SynchronousStudy) -> Callable[[float], Event]:
    """Return one step's release by noise multiplier: a noisy sum, and a noisy number if asked for.

    A number that is released once a round is priced as if it were in every step.
    """
    mechanism, wants = study.privacy.mechanism, study.method.wants
    if wants.scalar_event is None:
        return mechanism.event
    return lambda sigma: wants.first_step(mechanism.event(sigma))


def charged_per_round(study: SynchronousStudy) -> int | None:
    """Return how often a round's event is booked: tau times, once for clients; None if chosen."""
    return 1 if study.privacy.unit == "client" else study.method.fixed_tau


def planned_charges(study: SynchronousStudy) -> tuple[tuple[float, int], ...]:
    """Return factors on sigma, and the charges at each that noise is calibrated for, in order.

    With a cohort smaller than the federation a client takes part in a random number of rounds:
    three standard deviations more than its share are paid for.
    """
    rounds, method = study.budget.rounds, study.method
    parts = [(factor, len(list(alike))) for factor, alike in groupby(n for _, n in study.factors)]
    if len(parts) > 1 or study.privacy.unit == "client":
        return tuple((factor, count * (charged_per_round(study) or 1)) for factor, count in parts)
    ((factor, _),) = parts
    if study.budget.steps is not None:
        return ((factor, study.budget.steps),)
    cohort = study.participation.cohort
    share = 1.0 if cohort is None else cohort / study.data.clients
    taken = min(rounds, math.ceil(rounds * share + 3.0 * math.sqrt(rounds * share * (1.0 - share))))
    return ((factor, taken * (method.fixed_tau or 2)),)


def scheduled(study: SynchronousStudy) -> bool:
    """Return whether the noise follows a public schedule, so that charges differ."""
    return len(planned_charges(study)) > 1


def scales(study: SynchronousStudy) -> tuple[float, ...]:
    """Return sigma_i over the largest of them; nothing where all clients are alike."""
    each, largest = study.privacy.noise_multipliers, study.privacy.noise_multiplier
    return () if each is None or not largest else tuple(sigma / largest for sigma in each)


def weights(study: SynchronousStudy, sizes: Sequence[int]) -> tuple[float, ...]:
    """Return p_i of every client in the average, adding up to 1."""
    if study.method.weights == "equal":
        usual = (1.0 / len(sizes),) * len(sizes)
    else:
        usual = tuple((np.array(sizes) / sum(sizes)).tolist())
    factors = scales(study)
    if not factors:
        return usual
    precise = [p / s**2 for p, s in zip(usual, factors, strict=True)]
    total = sum(precise)
    return tuple(p / total for p in precise)


def _pace(study: SynchronousStudy, steps: int | None) -> tuple[int, int]:
    """Return the charges of a round, and of all rounds, where ``steps`` can be paid for."""
    rounds = study.budget.rounds
    chosen = 1 if steps is None or rounds >= steps else math.ceil(steps / rounds)
    pace = charged_per_round(study) or chosen
    return pace, pace * rounds if steps is None else min(pace * rounds, steps)


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
    privacy, sigma = study.privacy, priced.noise_multiplier
    fixed = rule(study, sizes, dimension)
    # every round's, lest a run end where its schedule comes to one that no modulus can hold
    grids = [
        fixed.grid(privacy.clip * clip, sigma * noise)
        for clip, noise in dict.fromkeys(study.factors)
    ]
    # of n parts of the noise, H are booked
    excess = len(sizes) / study.honest
    batch = sum(study.shares(sizes)) if study.aggregated else sum(sizes)
    noise = sigma * grids[0].growth * math.sqrt(excess * dimension)
    signal = privacy.sampling_rate * batch / noise
    numbers = len(sizes) * dimension * fixed.rounds
    unbooked = max(map(fixed.unbooked, grids))
    more = left_out(privacy.delta, privacy.epsilon, numbers=numbers, more=unbooked)
    coarse = max(grids, key=lambda grid: grid.growth)
    if coarse.growth > NOTICEABLE:
        more = (
            f"a modulus of {coarse.bits} bits leaves a grid so coarse that rounding adds "
            f"{100 * (coarse.growth - 1):.0f} % to the noise: raise privacy.bits",
            *more,
        )
    warnings = (*priced.warnings, *more)
    return replace(priced, signal_to_noise=signal, warnings=warnings, shared=grids[0])


def _relative(study: SynchronousStudy, sizes: Sequence[int]) -> float:
    """sigma / (q n); where clients differ, of equal clients with as much noise in their average."""
    privacy = study.privacy
    if privacy.epsilons is None:
        counted = len(sizes) if privacy.unit == "client" else sum(sizes)
        return (privacy.noise_multiplier or 0.0) / (privacy.sampling_rate * counted)
    each = zip(weights(study, sizes), study.multipliers, sizes, strict=True)
    parts = [p * sigma / (privacy.sampling_rate * n) for p, sigma, n in each if n]
    return math.hypot(*parts) / math.sqrt(len(sizes))


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
    found += pricing.warnings(None, 1, steps, "client", "round")
    cohort = privacy.sampling_rate * sum(study.shares(sizes))
    noise = (privacy.noise_multiplier or 0.0) * math.sqrt(dimension) / cohort
    if noise > 1.0:
        found.append(
            f"more noise than signal: the mean of {cohort:.3g} updates of length at most S carries "
            f"noise of length z sqrt(d) / {cohort:.3g} = {noise:.3g} S (z = "
            f"{privacy.noise_multiplier:g}, d = {dimension}); more clients a round "
            "(privacy.sampling_rate, data.clients) or a smaller model would help"
        )
    return found


def rule(study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> SharedNoise:
    """Return all that the grids of a calibrated study follow from, which is public.

    A number of a sum of m clipped gradients is at most m C. m is more than a round's batch, but for
    a chance of 2^-60; what would be beyond is clamped, which costs no privacy.

    Raises:
        StudyError: for more honest contributions than clients.
    """
    rate = study.privacy.sampling_rate
    return SharedNoise(
        most=tuple(
            weight * (1.0 if study.aggregated else drawn(size, rate, 1, CLAMPED))
            for weight, size in zip(study.contribution_weights(sizes), sizes, strict=True)
        ),
        dimension=dimension,
        honest=study.honest,
        rounds=study.budget.rounds,
        bits=study.bits,
    )


def _resting_on_shares(study: SynchronousStudy) -> tuple[str, ...]:
    """Return what the promise rests on that is particular to shared noise."""
    most = study.honest
    seen = (
        "The server sees who contributes to a round, and of their contributions nothing but the "
        f"sum modulo 2^{study.bits}, and no sum of fewer than {study.fewest} of the "
        f"{study.data.clients} clients."
    )
    parts = (
        f"The noise is shared: every client adds 1/{most} of the variance that is charged, in "
        f"whole numbers. {most} clients of every opened sum are assumed to be honest: they add "
        "their part of the noise and keep it to themselves."
    )
    secret = SENDING if isinstance(study.method, ClientLevel) else BATCHES
    return (seen, parts, SIZES, secret)


def gradient_clip(made: Bounded, trial: Trial) -> float:
    """Return C: the median norm of public examples' gradients at the first model.

    It is the norm of the mechanism, in which gradients will be clipped.
    """
    import torch

    from sordino.training.client import bound_of

    kernels, (x, y) = trial.look()
    out = torch.empty_like(kernels.flat.weights, dtype=torch.float64)
    seen = kernels.clipped(x[:LOOKED_AT], y[:LOOKED_AT], bound_of(made), out)
    return _median(seen.norms.tolist(), "gradient")


def proxy_clip(
    study: SynchronousStudy, method: ClientLevel, sizes: Sequence[int], trial: Trial
) -> float:
    """Return S: the median norm of first updates, of clients of public examples that are as large
    as the median one; where sizes are private, as what a client draws in a round.
    """
    import torch

    from sordino.training.local import LocalWork
    from sordino.training.perexample.sums import Examples

    kernels, public = trial.look()
    usual = method.batch * method.tau if study.hides_sizes else sorted(sizes)[len(sizes) // 2]
    size = min(max(usual, 1), len(public[1]))
    start, norms = kernels.flat.weights.clone(), []
    kernels.mean.prepare(Examples(*public), [min(method.batch, size)])
    for index, part in enumerate(range(0, len(public[1]) - size + 1, size)):
        work = LocalWork(
            index=index,
            examples=Examples(public[0][part : part + size], public[1][part : part + size]),
            learning_rate=method.learning_rate,
            batch=method.batch,
            proximal=method.mu or 0.0,
            optimizer=method.optimizer,
            kernels=kernels,
            entropy=Seeded(study.seed),  # round 0 is nobody else's
        )
        moved = work.train(Train(round=0, steps=method.tau, weights=start.cpu().numpy()))
        norms.append(float(torch.linalg.vector_norm(moved)))
    kernels.flat.load(start)
    return _median(norms, "update")


def _median(norms: Sequence[float], of: str) -> float:
    found = statistics.median(norms)
    if not (found > 0 and math.isfinite(found)):
        remedy = "choose other public examples or another model, or leave clipping out"
        if of == "update":
            remedy = "lower method.learning_rate, or set privacy.clip"
        raise StudyError(f"method.clipping 'proxy' found a median {of} of length {found}: {remedy}")
    return found


REGIME = SynchronousRegime()
