"""What the ledger of a study's data has left, read without writing anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sordino.engine.left import Left, priced, remedies
from sordino.engine.plan import Plan, step_event
from sordino.federation.division import Federation, records
from sordino.federation.study import HorizontalStudy
from sordino.privacy import Budget, Event, Ledger, PoissonSampled, accountant
from sordino.privacy.records import Records, histories
from sordino.privacy.records.group import CLIENT, SAMPLE
from sordino.privacy.vault import data_ledger
from sordino.regimes.asynchronous.plan import epsilons, multipliers, planned, rates
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.regimes.synchronous.assemble import aggregated
from sordino.regimes.synchronous.plan import planned_steps, release, schedule, scheduled_steps
from sordino.regimes.synchronous.study import SynchronousStudy

Spending = tuple[tuple[Event, int], ...]


def spent(folder: Path, known: Sequence[Records], own: Sequence[Budget]) -> dict[str, Spending]:
    """What each unit has spent in the ledger of this folder, the dearest history of its records; nothing where there is no ledger yet."""
    path = data_ledger(folder)
    if not path.exists():
        return {each.unit: () for each in known}
    with Ledger.open(path, readonly=True) as ledger:
        found = histories(ledger, known)
    return {
        unit: max(told, key=partial(_price, budget)) if len(told) > 1 else told[0]
        for (unit, told), budget in zip(found.items(), own, strict=True)
    }


def _price(budget: Budget, spent: Spending) -> float:
    return accountant(budget.accountant).epsilon(spent, budget.delta)


def left(study: HorizontalStudy, divided: Federation, plan: Plan) -> Plan:
    """The plan of a calibrated study, with what its data's ledgers have left, and the remedy where that is too little."""
    privacy = study.privacy
    if privacy.ledger == "run" or privacy.unit == "none" or study.form != "sound" or privacy.epsilon is None or privacy.delta is None:
        return plan
    whole = isinstance(study, SynchronousStudy) and aggregated(study)
    units = [f"client:{i}" for i in range(len(divided.parts))]
    found, budgets, wanted = [], _budgets(study, len(units)), _wanted(study)
    known = [records(part, unit, CLIENT if whole else SAMPLE) for part, unit in zip(divided.parts, units, strict=True)]
    before = spent(Path(privacy.ledger).expanduser(), known, budgets)
    for i, (unit, own) in enumerate(zip(units, budgets, strict=True)):
        name = divided.names[i] if divided.names else None
        found.append(Left(unit, name, priced(before[unit], own), _steps(study, divided, i, own, before[unit])))
    scheduled = isinstance(study, SynchronousStudy) and len(schedule(study)) > 1
    worst = min(range(len(units)), key=lambda i: (wanted if (steps := found[i].steps) is None else steps, -found[i].spent))
    said = remedies(
        found,
        wanted,
        "rounds" if privacy.unit == "client" else "local steps" if isinstance(study, SynchronousStudy) else "gradients",
        budgets[worst],
        [before[unit] for unit in units],
        None if scheduled else lambda sigma: _event(study, divided, worst, sigma),
        plan.noise_multiplier,
    )
    return replace(plan, left=tuple(found), warnings=(*plan.warnings, *said))


def _wanted(study: HorizontalStudy) -> int:
    """Charges of a client that the study asks for, whatever its budget pays for."""
    if isinstance(study, AsynchronousStudy):
        return planned(study)
    if isinstance(study, SynchronousStudy):
        steps = planned_steps(study)
        return steps if isinstance(steps, int) else sum(count for _, count in steps)
    raise TypeError(type(study).__name__)


def _budgets(study: HorizontalStudy, count: int) -> list[Budget]:
    """What each client may spend in all."""
    privacy, delta = study.privacy, study.privacy.delta or 1e-5
    each = epsilons(study) if isinstance(study, AsynchronousStudy) else (privacy.epsilon or 0.0,) * count
    return [Budget(epsilon=epsilon, delta=delta, accountant=privacy.accountant) for epsilon in each]


def _event(study: HorizontalStudy, divided: Federation, client: int, sigma: float) -> Event:
    """One charge of a client at this noise multiplier."""
    if isinstance(study, SynchronousStudy):
        return PoissonSampled(sampling_rate=study.privacy.sampling_rate, event=release(study)(sigma))
    if isinstance(study, AsynchronousStudy):
        return step_event(rates(study.method.batch, divided.sizes)[client], sigma, study.privacy.mechanism)
    raise TypeError(type(study).__name__)


def _steps(study: HorizontalStudy, divided: Federation, client: int, own: Budget, before: Spending) -> int | None:
    """Charges that a client can still pay for."""
    if isinstance(study, SynchronousStudy) and len(schedule(study)) > 1:
        return scheduled_steps(study, own.accountant, before)
    sigma = multipliers(study)[client] if isinstance(study, AsynchronousStudy) else study.privacy.noise_multiplier or 0.0
    return own.remaining_steps(_event(study, divided, client, sigma), before)
