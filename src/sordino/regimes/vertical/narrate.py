"""What people are told of a study of events."""

from __future__ import annotations

from sordino.core.plan import Plan
from sordino.core.statements import Paragraph, Table
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical.study import VerticalStudy


def told(study: VerticalStudy, priced: Plan) -> list[Paragraph]:
    """A plan, for people."""
    found: list[Paragraph] = []
    data, method = study.data, study.method
    found.append(
        f"{study.budget.events} events, {data.parties} parties, activation "
        f"{method.activation.kind}, window {method.window}"
    )
    if study.privacy.unit == "none":
        found.append("no privacy: epsilon is infinite")
        return found
    rows = [[unit, what, epsilon_text(epsilon)] for unit, what, epsilon in priced.releases]
    times = f"{priced.used} appearance{'s' if priced.used != 1 else ''}"
    title = (
        f"What {times} of an entity release{'s' if priced.used == 1 else ''}, at delta "
        f"{study.privacy.delta:g}"
    )
    found.append(
        Table(
            title, ["unit of the ledger", "released", f"epsilon ({study.privacy.accountant})"], rows
        )
    )
    promise = (
        f"promised, with unit '{study.privacy.unit}': epsilon {epsilon_text(study.privacy.epsilon)}"
    )
    limit = "" if priced.steps is None else f"; it pays for {priced.steps} appearances of an entity"
    found.append(promise + limit)
    return found
