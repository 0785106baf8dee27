"""The price of a study whose clients have examples of their own: its charges, its plan, what the
ledgers of its data have left, what measuring on private rows costs, and the public trial that may
shape a mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from sordino.base.errors import BudgetExceeded, StudyError
from sordino.base.frozen import Frozen
from sordino.clients.division import Federation, identified
from sordino.clients.records import TestSet
from sordino.clients.study import EQUAL, HorizontalStudy, takes_equal_rows_apart
from sordino.core.plan import Balance, NoisyCharges, Plan, Schedule, balances
from sordino.core.prepared import UNIT
from sordino.core.statements import Table, number_text, of_other_runs
from sordino.mechanisms import gaussian
from sordino.privacy import (
    Budget,
    Event,
    Gaussian,
    LedgerSession,
    NonPrivate,
    accountant,
    noise_multiplier,
)
from sordino.privacy.records import Records
from sordino.privacy.records.group import of_rows
from sordino.privacy.rounding import epsilon_text

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.training.client import ModelKernels

LOOKED_AT = 512
"""Public examples from which energies are taken."""
LARGEST = 1e6
"""Of noise multipliers that are looked at."""
CLOSE = 1.001
"""Ratio to which a noise multiplier that is enough is found."""
SAMPLINGS = ("poisson", "passes", "correlated")
"""Keys of :attr:`~sordino.core.plan.Plan.samplings`."""
BATCHES = (
    "with Poisson batches, which holds only if nobody learns who is in a batch (not where the "
    "order of examples is fixed or known, or batches follow from who is there)"
)
KINDS = 16
"""Kinds of clients beyond which the one that spends most is found by the Rényi bound."""


def schedule(
    study: HorizontalStudy,
    rates: Sequence[float],
    charged: str,
    stages: tuple[tuple[float, int], ...],
    release: Callable[[float], Event] | None = None,
    pace: int = 1,
    batches: Sequence[int | None] | None = None,
) -> Schedule:
    """Return the charges of clients at one noise multiplier, or at one each.

    Where a run's own ledger knows clients and all have one epsilon, the first of each rate stands
    for those that are like it (:func:`unit_like`).

    Args:
        rates: q of every client.
        charged: what is charged, in the plural.
        stages: factors on the noise multiplier, and charges of a client at each.
        release: of one charge by noise multiplier; the mechanism's unless given.
        pace: charges of a round.
        batches: of a pass of every client, where batches come in an order; those of the study
            unless given.
    """
    privacy, release = study.privacy, release or study.privacy.mechanism.event
    numbers: Sequence[int] = range(len(rates))
    if not identified(study) and study.given_epsilons is None and batches is None:
        numbers = sorted(dict(zip(reversed(rates), reversed(numbers), strict=True)).values())
    epsilons = study.epsilons
    asked = Schedule(
        budgets={
            f"client:{i}": Budget(epsilons[i], privacy.delta or 1e-5, privacy.accountant)
            for i in numbers
        },
        charged=charged,
        noisy={
            f"client:{i}": NoisyCharges(
                release=release,
                stages=stages,
                sampling_rate=rates[i],
                batches=study.batches if batches is None else batches[i],
            )
            for i in numbers
        },
        one_multiplier=study.given_epsilons is None,
        pace=pace,
    )
    sigmas = study.multipliers
    return asked.with_noise({f"client:{i}": sigmas[i] for i in numbers} if sigmas else {})


def unit_like(asked: Schedule, rates: Sequence[float], client: int) -> str:
    """Return the unit of a schedule that is charged as a client is, by the rates of all."""
    own = f"client:{client}"
    return own if own in asked.budgets else f"client:{rates.index(rates[client])}"


def samplings(asked: Schedule, unit: str, batches: int | None = None) -> dict[str, float]:
    """Return the noise multiplier that a unit's planned steps need, by how batches come about: as
    Poisson samples ("poisson"), and in passes of about 1 / q batches, or of ``batches`` ("passes").
    "correlated" is that of independent noise which adds up over all steps to as much as correlated
    noise in these passes. Nothing where charges differ, or a pass has too many batches.
    """
    from sordino.mechanisms.correlated import LONGEST_BAND, LONGEST_MATRIX, Correlation

    noisy, budget, steps = asked.noisy[unit], asked.budgets[unit], asked.wanted(unit)
    if asked.staged or math.isinf(budget.epsilon):
        return {}
    count = batches or noisy.batches or max(round(1.0 / noisy.sampling_rate), 1)
    if count > LONGEST_MATRIX:
        return {}
    rate = noisy.sampling_rate if batches is None else 1.0 / batches
    drawn = msgspec.structs.replace(noisy, batches=None, sampling_rate=rate).calibrated(budget)
    ordered = msgspec.structs.replace(noisy, batches=count).calibrated(budget)
    kind: Literal["banded", "blt"] = "banded" if count <= LONGEST_BAND else "blt"
    noise = Correlation(kind=kind, separation=count, passes=-(-steps // count))
    share = noise.together(steps) / math.sqrt(steps)
    return {"poisson": drawn, "passes": ordered, "correlated": ordered * share}


def samplings_told(plan: Plan, secret: str, passes: str) -> list[str]:
    """Return what noise the promise of a plan needs with other batches.

    Args:
        secret: what Poisson sampling rests on, and where that fails.
        passes: what a pass consists of.
    """
    if not plan.samplings:
        return []
    drawn, ordered, adds_up = (plan.samplings[each] for each in SAMPLINGS)
    return [
        f"the same promise needs noise multiplier {drawn:.4g} {secret}, and {ordered:.4g} in "
        f"passes of {passes}, where nothing is secret (privacy.sampling). There, correlated noise "
        "(privacy.correlation) adds up over all steps as independent noise of multiplier "
        f"{adds_up:.4g} would"
    ]


def dearest(asked: Schedule, charges: int) -> str:
    """Return the unit that spends most in so many charges; of many kinds by the Rényi bound."""
    units = list(dict.fromkeys(asked.kinds.values()))
    if len(units) == 1:
        return units[0]
    by = "rdp" if len(units) > KINDS else ""

    def spent(unit: str) -> tuple[float, float]:
        after = asked.epsilon(unit, charges, by=by)
        rate = asked.noisy[unit].sampling_rate
        return min(after, asked.budgets[unit].epsilon), rate / asked.multipliers[unit]

    return max(units, key=spent)


def warnings(
    delta: float | None, smallest: int, steps: int | None, client: str, charge: str
) -> list[str]:
    """Return what is allowed but should be looked at.

    Args:
        smallest: examples of the smallest client.
        steps: charges that the budget pays for.
        client, charge: what they are called, in the singular.
    """
    found = []
    if delta is not None and delta >= 1.0 / smallest:
        found.append(
            f"privacy.delta = {delta:g} is not below 1/{smallest}, one over the smallest "
            f"{client}'s examples: it would allow giving one example away. Choose less than "
            f"{1.0 / smallest:.1g}"
        )
    if steps == 0:
        found.append(
            f"the privacy budget does not pay for a single {charge}: raise epsilon or "
            "noise_multiplier"
        )
    return found


def most_table(title: str, charged: str, study: HorizontalStudy, plan: Plan) -> Table:
    """Return the most charges by every accountant; the study's own has a star."""
    privacy = study.privacy
    rows = [
        [name + (" *" if name == privacy.accountant else ""), number_text(n, 10)]
        for name, n in plan.most.items()
    ]
    within = f"within epsilon {epsilon_text(privacy.epsilon)}, delta {privacy.delta:g}"
    return Table(f"{title} {within}", ["accountant", charged], rows)


_multiplier = lru_cache(maxsize=64)(noise_multiplier)


def priced(study: HorizontalStudy) -> tuple[gaussian.Gaussian, Budget, int]:
    """Return the noise on a count of right answers, the budget and the number of evaluations of a
    private test share (:class:`~sordino.core.prepared.PaidEvaluation`): one every so many rounds or
    updates, and one at the end.
    """
    privacy, times = study.privacy, study.horizon // study.stride + 1
    own, delta, kind = privacy.evaluation_epsilon, privacy.delta, privacy.accountant
    epsilon = study.least_epsilon if own is None else own
    if epsilon is None or delta is None:
        raise StudyError("data.test = 'private share' needs privacy.epsilon and privacy.delta")
    sigma = _multiplier(
        sampling_rate=1.0, steps=times, epsilon=epsilon, delta=delta, accountant=kind
    )
    made = gaussian.Gaussian(clip=1.0, noise_multiplier=sigma)
    return made, Budget(epsilon, delta, kind), times


def tested(study: HorizontalStudy) -> float:
    """Return epsilon of the rows of a private test share, if models are measured as planned."""
    mechanism, budget, times = priced(study)
    return accountant(budget.accountant).epsilon([(mechanism.event(), times)], budget.delta)


def test_set_record(study: HorizontalStudy, rows: int) -> TestSet:
    """Return what run.json says of the test set."""
    kind = study.data.testing
    if kind != "private share":
        return TestSet(kind=kind, rows=rows)
    mechanism, budget, times = priced(study)
    return TestSet(
        kind=kind,
        rows=rows,
        unit=UNIT,
        epsilon=budget.epsilon,
        noise_multiplier=mechanism.noise_multiplier,
        evaluations=times,
    )


class Trial(Frozen, eq=False):
    """A model and public examples, by which a mechanism may be shaped before a run.

    Attributes:
        parameters: how many numbers each parameter of the model has, in the vector's order.
        look: gives the kernels, and public examples as tensors (n, ...) and (n,). A plan makes them
            only for a mechanism that asks.
    """

    parameters: tuple[int, ...]
    look: Callable[[], tuple[ModelKernels, tuple[Tensor, Tensor]]]

    @classmethod
    def of(cls, kernels: ModelKernels, public: tuple[Tensor, Tensor]) -> Trial:
        """Return the trial of kernels that are there already."""
        sizes = tuple(slot.size for slot in kernels.flat.layout)
        return cls(sizes, lambda: (kernels, public))

    def energies(self, measure: Callable[[Tensor], Tensor]) -> Sequence[float]:
        """Return the mean of ``measure`` over gradients of public examples, each of length one."""
        import torch

        kernels, public = self.look()
        x, y = public[0][:LOOKED_AT], public[1][:LOOKED_AT]
        found = []
        for part in range(0, len(x), 64):
            rows = kernels.clipped.rows(x[part : part + 64], y[part : part + 64])
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            usable = (torch.isfinite(norms) & (norms > 0)).squeeze(1)
            found.append(measure(rows[usable] / norms[usable]))
        return [float(value) for value in torch.cat(found).mean(0)]


def exposed(
    plan: Plan, study: HorizontalStudy, asked: Schedule, unit: str, true: Event, where: str
) -> Plan:
    """Return the plan with what a literal form claims beside what it gives, where they differ.

    Args:
        unit: whose charges count.
        true: what a release at the plan's noise multiplier is worth.
        where: the key that asks for the form.
    """
    privacy, sigma = study.privacy, plan.noise_multiplier
    claimed = privacy.mechanism.event(sigma)
    if isinstance(true, Gaussian) and isinstance(claimed, Gaussian):
        kept = true.noise_multiplier >= claimed.noise_multiplier * (1.0 - 1e-9)
    else:
        kept = true == claimed
    if kept or plan.used is None or privacy.delta is None:
        return plan
    released = asked.released(unit, true, sigma, plan.used)
    spent = [(of_rows(event, study.rows_at_once), count) for event, count in released]
    epsilon = accountant(privacy.accountant).epsilon(spent, privacy.delta)
    if isinstance(true, Gaussian):
        worth = f"noise multiplier {true.noise_multiplier:.3g}"
    else:
        worth = true.reason if isinstance(true, NonPrivate) else repr(true)
    return plan.exposed(where, epsilon, worth)


def _of_persons(study: HorizontalStudy) -> str:
    """Return why a charge counts more than once for everybody; empty where it does not."""
    most = study.rows_at_once
    if most == 1:
        return ""
    return f"data.person_rows = {most}: up to {most} examples of one person share one budget"


FEWER = (
    "keep fewer rows of each person (data.person_rows), or clip persons (privacy.clip_per = "
    "'person')"
)
ALIKE = (
    "clients hold the same records, of which each has the least epsilon of those who hold it: give "
    "them the same privacy.epsilons, or each its own records"
)


def with_balances(
    study: HorizontalStudy,
    asked: Schedule,
    known: Sequence[Records],
    divided: Federation,
    plan: Plan,
) -> Plan:
    """Return the plan of a calibrated study that protects records that are recognised, with what
    its data's ledgers have left, and remedies.

    Also with what its people can pay for, where that is too little.

    Args:
        asked: the study's charges.
        known: its records.
    """
    privacy, lasting = study.privacy, study.privacy.ledger != "run"
    if study.form != "sound" or privacy.epsilon is None or privacy.delta is None:
        return plan
    names = dict(zip(asked.budgets, divided.names, strict=False))
    with planned_ledgers(study, known, asked) as ledgers:
        left = affordable(study, asked, ledgers)
        used = asked.wanted(next(iter(left))) if plan.used is None else plan.used
        clients = balances(asked, ledgers, left, used, names)
        said = _remedies(study, asked, ledgers, clients)
        worst = min(clients, key=lambda each: each.rank)
        wanted = asked.wanted(worst.unit)
        held = list(clients)
        if study.pays_to_test:
            mechanism, most, times = priced(study)
            told = Schedule(
                budgets={UNIT: most}, charged="tests", stages={UNIT: ((mechanism.event(), times),)}
            )
            held += balances(told, ledgers, told.affordable_in(ledgers, 1, alone=True), times)
            if held[-1].rank[0] < times:
                said.append(
                    f"the private test rows pay for {held[-1].steps} of {times} evaluations"
                )
        said += of_other_runs(study, ledgers, held, f"{used} {asked.charged} of each client")
        why = _of_persons(study)
        if why and worst.steps is not None and worst.steps < wanted:
            ways = ", or ".join([*_more_noise(asked, ledgers), FEWER])
            end = ", and the run is refused" if worst.steps == 0 else ""
            paid = f"it pays for {worst.steps} of {wanted} {asked.charged}"
            said.append(f"{why}; {paid}{end}: {ways}")
        if ledgers.at_odds(asked.budgets):
            said.append(f"privacy.epsilons: {ALIKE}")
    if takes_equal_rows_apart(study):
        said.append(EQUAL)
    return replace(plan, left=clients if lasting else (), warnings=(*plan.warnings, *said))


def planned_ledgers(
    study: HorizontalStudy, known: Sequence[Records], asked: Schedule
) -> LedgerSession:
    """Return the ledger that a run of the study would begin with, over a copy."""
    lasting = study.privacy.ledger != "run"
    folder = Path(study.privacy.ledger).expanduser() if lasting else None
    return LedgerSession.for_plan(folder, known, asked.budgets)


def affordable(
    study: HorizontalStudy, asked: Schedule, ledgers: LedgerSession
) -> dict[str, int | None]:
    """Return the charges that each unit of a schedule can still pay for in a ledger that knows
    records.
    """
    names, budgets = list(ledgers.names.values()), set(asked.budgets.values())
    alone = len(budgets) == 1 and len(set(names)) == len(names)
    return asked.affordable_in(ledgers, study.rows_at_once, alone=alone)


def _more_noise(asked: Schedule, ledgers: LedgerSession) -> list[str]:
    """Return the remedy of more noise, for all that is planned; nothing where none is enough."""
    here = [unit for unit in asked.noisy if unit in ledgers.names]
    budgets = {unit: asked.budgets[unit] for unit in here}
    sigma = asked.multipliers[here[0]]

    def fits(tried: float) -> bool:
        scaled = {unit: asked.multipliers[unit] * tried / sigma for unit in here}
        noisier = asked.with_noise(scaled)
        with suppress(BudgetExceeded), ledgers.undone():
            ledgers.charge(noisier.charges({unit: asked.wanted(unit) for unit in here}), budgets)
            return True
        return False

    low, high = sigma, 2.0 * sigma
    while not fits(high):
        low, high = high, 2.0 * high
        if high > LARGEST:
            return []
    while high > CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return [f"raise privacy.noise_multiplier from {sigma:.4g} to {high * CLOSE:.4g}"]


def _remedies(
    study: HorizontalStudy, asked: Schedule, ledgers: LedgerSession, clients: Sequence[Balance]
) -> list[str]:
    """Return what stands in the way of a study, and the remedy, of the client that has least left
    after earlier runs.
    """
    wanted = asked.wanted(clients[0].unit)
    short = [each for each in clients if each.spent and each.rank[0] < wanted]
    if not short:
        return []
    worst = min(short, key=lambda each: each.rank)
    others = (
        f" ({len(short)} of {len(clients)} clients have too little left)" if len(short) > 1 else ""
    )
    most, whose = asked.budgets[worst.unit].epsilon, f"the ledger of {worst.called}"
    if math.isinf(worst.spent):
        return [
            f"{whose}: its data was used without a bound, so no finite epsilon can be promised "
            f"for it again{others}: use other data, or privacy.unit = 'none'"
        ]
    if worst.spent >= most:
        return [
            f"{whose} has spent epsilon {epsilon_text(worst.spent)}, which is all of "
            f"{epsilon_text(most)}{others}: use other data, or raise privacy.epsilon, which is a "
            "promise to the people in the data"
        ]
    ways = _more_noise(asked, ledgers)
    if worst.steps:
        ways.append(
            f"plan for at most {worst.steps} {asked.charged} (budget.rounds or budget.updates)"
        )
    return [
        f"{whose} has spent epsilon {epsilon_text(worst.spent)} of {epsilon_text(most)}, and pays "
        f"for {worst.steps} of {wanted} {asked.charged}{others}: "
        f"{', or '.join([*ways, 'use other data'])}"
    ]


def remedy(study: HorizontalStudy, usual: str) -> str:
    """Return the remedy where not even one charge can be paid for; ``usual`` helps anyway."""
    why = _of_persons(study)
    found = f"{why}. {usual}, or {FEWER}" if why else usual
    lasting = study.privacy.ledger != "run" and study.data.person is None
    differ = lasting and len(set(study.epsilons)) > 1
    return f"{found}. It may be that {ALIKE}" if differ else found
