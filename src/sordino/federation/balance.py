"""What the ledger of a study's data has left, read without writing anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.engine.balance import Balance, priced, remedies
from sordino.engine.plan import Plan
from sordino.federation.division import Federation, records
from sordino.federation.study import H
from sordino.privacy import Budget, Event, Ledger, accountant
from sordino.privacy.records import Records, histories
from sordino.privacy.records.group import CLIENT, SAMPLE
from sordino.privacy.vault import data_ledger

if TYPE_CHECKING:
    from sordino.federation.regime import HorizontalRegime

Spending = tuple[tuple[Event, int], ...]


def spent(folder: Path, known: Sequence[Records], own: Sequence[Budget]) -> dict[str, Spending]:
    """What each unit has spent in the folder's ledger, by its dearest history; or nothing yet."""
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


def left(regime: HorizontalRegime[H], study: H, divided: Federation, plan: Plan) -> Plan:
    """The plan of a calibrated study, with what its data's ledgers have left, and the remedy."""
    privacy = study.privacy
    if (
        privacy.ledger == "run"
        or privacy.unit == "none"
        or study.form != "sound"
        or privacy.epsilon is None
        or privacy.delta is None
    ):
        return plan
    kind = CLIENT if regime.whole(study) else SAMPLE
    units = [f"client:{i}" for i in range(len(divided.parts))]
    found, wanted = [], regime.wanted(study)
    budgets = [
        Budget(epsilon=epsilon, delta=privacy.delta, accountant=privacy.accountant)
        for epsilon in regime.epsilons(study)
    ]
    known = [records(part, unit, kind) for part, unit in zip(divided.parts, units, strict=True)]
    before = spent(Path(privacy.ledger).expanduser(), known, budgets)
    for i, (unit, own) in enumerate(zip(units, budgets, strict=True)):
        name = divided.names[i] if divided.names else None
        found.append(
            Balance(
                unit,
                name,
                priced(before[unit], own),
                regime.steps(study, divided.sizes, i, own, before[unit]),
            )
        )
    worst = min(
        range(len(units)),
        key=lambda i: (wanted if (steps := found[i].steps) is None else steps, -found[i].spent),
    )
    said = remedies(
        found,
        wanted,
        "rounds" if privacy.unit == "client" else regime.charged,
        budgets[worst],
        [before[unit] for unit in units],
        None
        if regime.scheduled(study)
        else lambda sigma: regime.event(study, divided.sizes, worst, sigma),
        plan.noise_multiplier,
    )
    return replace(plan, left=tuple(found), warnings=(*plan.warnings, *said))
