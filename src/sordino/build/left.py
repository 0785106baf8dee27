"""What the ledgers of a study's data have left, read without writing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sordino.build.federation import Federation
from sordino.build.rounds import _units, aggregated
from sordino.plan import Plan, step_event
from sordino.plan.arrivals import epsilons, multipliers, planned, rates
from sordino.plan.left import Left, priced, remedies
from sordino.plan.rounds import planned_steps, release, schedule, scheduled_steps
from sordino.privacy import Budget, Event, Ledger, PoissonSampled
from sordino.privacy.vault import ledger_file
from sordino.study import AsynchronousStudy, HorizontalStudy, SynchronousStudy

Spending = tuple[tuple[Event, int], ...]


def spent(folder: Path, units: Mapping[str, str]) -> dict[str, Spending]:
    """What each unit (name -> fingerprint) has spent in the ledgers of this folder; nothing where there is no ledger yet."""
    found: dict[str, Spending] = {}
    for unit, fingerprint in units.items():
        path = ledger_file(folder, fingerprint)
        if not path.exists():
            found[unit] = ()
            continue
        with Ledger.open(path, readonly=True) as ledger:
            found[unit] = ledger.spent(fingerprint)
    return found


def left(study: HorizontalStudy, divided: Federation, plan: Plan) -> Plan:
    """The plan of a calibrated study, with what its data's ledgers have left, and the remedy where that is too little."""
    privacy = study.privacy
    if privacy.ledger == "run" or privacy.unit == "none" or study.form != "sound" or privacy.epsilon is None or privacy.delta is None:
        return plan
    whole = isinstance(study, SynchronousStudy) and aggregated(study)
    units, fingerprints = _units(whole, [part.fingerprint() for part in divided.parts], False)
    before = spent(Path(privacy.ledger).expanduser(), fingerprints)
    found, budgets, wanted = [], _budgets(study, len(units)), _wanted(study)
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
