"""What a study's data has left: in the ledger of the data, read without writing anything, and where
rows of one person share a budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.clients.division import Federation, identified, records
from sordino.clients.promise import EQUAL, takes_equal_rows_apart
from sordino.clients.study import H, HorizontalStudy
from sordino.core.balance import CLOSE, Balance, enough, priced, remedies
from sordino.core.plan import Plan
from sordino.privacy import Budget, Event, Ledger
from sordino.privacy.records import Burden, Records, burdens
from sordino.privacy.records.group import CLIENT, SAMPLE
from sordino.privacy.session import data_ledger

if TYPE_CHECKING:
    from sordino.clients.regime import HorizontalRegime


def _of_persons(study: HorizontalStudy) -> str:
    """Why a charge counts more than once for everybody; empty where it does not."""
    most = study.data.person_rows or 1
    if most == 1 or study.privacy.unit != "sample":
        return ""
    return f"data.person_rows = {most}: up to {most} examples of one person share one budget"


FEWER = "keep fewer rows of each person (data.person_rows)"
ALIKE = (
    "clients hold the same records, of which each has the least epsilon of those who hold it: give "
    "them the same privacy.epsilons, or each its own records"
)


def _burdens(study: HorizontalStudy, known: Sequence[Records]) -> dict[str, tuple[Burden, ...]]:
    """What each unit has spent, and how a charge counts for its people; nothing is written."""
    path = None
    if study.privacy.ledger != "run":
        path = data_ledger(Path(study.privacy.ledger).expanduser())
    if path is None or not path.exists():
        return burdens(None, known)
    with Ledger.open(path, readonly=True) as ledger:
        return burdens(ledger, known)


def left(regime: HorizontalRegime[H], study: H, divided: Federation, plan: Plan) -> Plan:
    """The plan of a calibrated study, with what its data's ledgers have left, and the remedy.

    Also what its people can pay for, where that is too little.
    """
    privacy = study.privacy
    if (
        not identified(study)
        or privacy.unit == "none"
        or study.form != "sound"
        or privacy.epsilon is None
        or privacy.delta is None
    ):
        return plan
    kind = CLIENT if regime.whole(study) else SAMPLE
    units = [f"client:{i}" for i in range(len(divided.parts))]
    found, dearest, wanted = list[Balance](), list[Burden](), regime.wanted(study)
    budgets = [
        Budget(epsilon=epsilon, delta=privacy.delta, accountant=privacy.accountant)
        for epsilon in regime.epsilons(study)
    ]
    known = [
        records(part, unit, kind, study.data.person_rows)
        for part, unit in zip(divided.parts, units, strict=True)
    ]
    before = _burdens(study, known)
    for i, (unit, own) in enumerate(zip(units, budgets, strict=True)):
        told = [
            (regime.steps(study, divided.sizes, _least(budgets, each), each), spent, each)
            for each in before[unit]
            for spent in (priced(each.spent, own),)
        ]
        steps, _, burden = min(told, key=lambda each: (_fewer(each[0]), -each[1]))
        name = divided.names[i] if divided.names else None
        found.append(Balance(unit, name, max(spent for _, spent, _ in told), steps))
        dearest.append(burden)
    worst = min(range(len(units)), key=lambda i: (_fewer(found[i].steps), -found[i].spent))

    def event(sigma: float) -> Event:
        return dearest[worst].of(lambda i: regime.event(study, divided.sizes, i, sigma))

    charged = "rounds" if privacy.unit == "client" else regime.charged
    scheduled = None if regime.scheduled(study) else event
    said = remedies(
        found,
        wanted,
        charged,
        budgets[worst],
        [each.spent for each in dearest],
        scheduled,
        plan.noise_multiplier,
    )
    why = _of_persons(study)
    if why and (steps := found[worst].steps) is not None:
        said.append(_of_people(why, steps, wanted, charged, plan, budgets[worst], scheduled))
    if any(_differ(budgets, each) for own in before.values() for each in own):
        said.append(f"privacy.epsilons: {ALIKE}")
    if takes_equal_rows_apart(study):
        said.append(EQUAL)
    shown = () if privacy.ledger == "run" else tuple(found)
    return replace(plan, left=shown, warnings=(*plan.warnings, *said))


def _least(budgets: Sequence[Budget], burden: Burden) -> Budget:
    """The budget of records: the least of those of the clients that hold them."""
    return min((budgets[i] for i in burden.units), key=lambda each: each.epsilon)


def _differ(budgets: Sequence[Budget], burden: Burden) -> bool:
    return len({budgets[i] for i in burden.units}) > 1


def _fewer(steps: int | None) -> float:
    return math.inf if steps is None else steps


def _of_people(
    why: str,
    steps: int,
    wanted: int,
    charged: str,
    plan: Plan,
    budget: Budget,
    event: Callable[[float], Event] | None,
) -> str:
    """Say for how much people with several rows can pay, and the remedy."""
    if steps >= wanted:
        return f"{why}; it pays for {wanted} {charged}, which is all that is planned"
    raised = None if event is None else enough(event, plan.noise_multiplier, wanted, (), budget)
    noise = "raise privacy.noise_multiplier" + (
        "" if raised is None else f" from {plan.noise_multiplier:.4g} to {raised * CLOSE:.4g}"
    )
    ways = FEWER if event is not None and raised is None else f"{noise}, or {FEWER}"
    end = ", and the run is refused" if steps == 0 else ""
    return f"{why}; it pays for {steps} of {wanted} {charged}{end}: {ways}"


def remedy(study: HorizontalStudy, epsilons: Sequence[float], usual: str) -> str:
    """The remedy where not even one charge can be paid for.

    Args:
        epsilons: of the clients.
        usual: what helps in any case.
    """
    why = _of_persons(study)
    found = f"{why}. {usual}, or {FEWER}" if why else usual
    lasting = study.privacy.ledger != "run" and study.data.person is None
    differ = lasting and len(set(epsilons)) > 1
    return f"{found}. It may be that {ALIKE}" if differ else found
