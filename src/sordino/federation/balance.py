"""What a study's data has left: in the ledger of the data, read without writing anything, and where
rows of one person share a budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sordino.engine.balance import CLOSE, Balance, enough, priced, remedies
from sordino.engine.plan import Plan
from sordino.federation.division import Federation, identified, records
from sordino.federation.study import H, HorizontalStudy
from sordino.privacy import Budget, Event, Ledger
from sordino.privacy.records import Burden, Records, burdens
from sordino.privacy.records.group import CLIENT, SAMPLE
from sordino.privacy.vault import data_ledger

if TYPE_CHECKING:
    from sordino.federation.regime import HorizontalRegime


@dataclass(frozen=True, slots=True)
class Shared:
    """How much of the data one person is.

    Attributes:
        rows: the most that one person has, at all clients together.
        clients: the most that one person is at.
        whole: whether whole clients are protected.
    """

    rows: int
    clients: int
    whole: bool

    @property
    def words(self) -> str:
        """Why a charge counts more than once for somebody; empty where it does not."""
        if self.whole and self.clients > 1:
            return (
                f"data.person: one person has rows at up to {self.clients} clients, so every "
                "client is priced for what the others of its people release"
            )
        if self.whole or self.rows == 1:
            return ""
        where = f", at up to {self.clients} clients" if self.clients > 1 else ""
        return (
            f"data.person: one person has up to {self.rows} examples{where}, which share one budget"
        )

    @property
    def remedy(self) -> str:
        """What helps besides more noise."""
        return (
            "give all rows of a person to one client (data.client_column), or keep one row of each "
            "(data.person_rows = 1)"
            if self.clients > 1
            else "keep fewer rows of each person (data.person_rows)"
        )


def shared(known: Sequence[Records]) -> Shared:
    """How many rows one person has in these units, and in how many of them."""
    people = [
        np.unique(each.people, return_counts=True) for each in known if each.people is not None
    ]
    whole = any(each.kind == CLIENT for each in known)
    if not people:
        return Shared(1, 1, whole)
    _, at = np.unique(np.concatenate([who for who, _ in people]), return_inverse=True)
    rows = np.bincount(at.reshape(-1), weights=np.concatenate([rows for _, rows in people]))
    return Shared(int(rows.max()), int(np.bincount(at.reshape(-1)).max()), whole)


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
    known = [records(part, unit, kind) for part, unit in zip(divided.parts, units, strict=True)]
    before = _burdens(study, known)
    for i, (unit, own) in enumerate(zip(units, budgets, strict=True)):
        told = [
            (regime.steps(study, divided.sizes, i, own, each), priced(each.spent, own), each)
            for each in before[unit]
        ]
        steps, _, burden = min(told, key=lambda each: (_fewer(each[0]), -each[1]))
        name = divided.names[i] if divided.names else None
        found.append(Balance(unit, name, max(spent for _, spent, _ in told), steps))
        dearest.append(burden)
    worst = min(range(len(units)), key=lambda i: (_fewer(found[i].steps), -found[i].spent))

    def event(sigma: float) -> Event:
        return dearest[worst].of(regime.event(study, divided.sizes, worst, sigma))

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
    people = shared(known)
    if people.words and (steps := found[worst].steps) is not None:
        said.append(_of_people(people, steps, wanted, charged, plan, budgets[worst], scheduled))
    shown = () if privacy.ledger == "run" else tuple(found)
    return replace(plan, left=shown, warnings=(*plan.warnings, *said))


def _fewer(steps: int | None) -> float:
    return math.inf if steps is None else steps


def _of_people(
    people: Shared,
    steps: int,
    wanted: int,
    charged: str,
    plan: Plan,
    budget: Budget,
    event: Callable[[float], Event] | None,
) -> str:
    """What people with several rows, or at several clients, can pay for; and the remedy."""
    if steps >= wanted:
        return f"{people.words}; it pays for {wanted} {charged}, which is all that is planned"
    raised = None if event is None else enough(event, plan.noise_multiplier, wanted, (), budget)
    noise = "raise privacy.noise_multiplier" + (
        "" if raised is None else f" from {plan.noise_multiplier:.4g} to {raised * CLOSE:.4g}"
    )
    ways = (
        f"{people.remedy}"
        if event is not None and raised is None
        else f"{noise}, or {people.remedy}"
    )
    end = ", and the run is refused" if steps == 0 else ""
    return f"{people.words}; it pays for {steps} of {wanted} {charged}{end}: {ways}"


def remedy(known: Sequence[Records], usual: str) -> str:
    """What helps where not even one charge can be paid for; people are named where they are why.

    Args:
        known: who is in each client's data; nobody where nobody asks.
        usual: what helps otherwise.
    """
    people = shared([each for each in known if each.unit.startswith("client:")])
    return f"{people.words}. {usual}, or {people.remedy}" if people.words else usual
