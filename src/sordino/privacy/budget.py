"""A budget: what a client may spend in all, and the refusal when a release would pass it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.base.errors import BudgetExceeded, StudyError
from sordino.privacy.accounting import Spent, accountant
from sordino.privacy.calibrate import most_steps
from sordino.privacy.event import Event
from sordino.privacy.rounding import epsilon_text


@dataclass(frozen=True, slots=True)
class Budget:
    """The promise that a ledger is held against.

    Attributes:
        epsilon: at most; infinite for a run that promises nothing.
        delta: in (0, 1).
        accountant: name of who does the arithmetic.
    """

    epsilon: float
    delta: float
    accountant: str = "pld"

    def __post_init__(self) -> None:
        if not self.epsilon >= 0.0:
            raise StudyError(
                f"epsilon must be a number from 0, or infinite for no promise; got {self.epsilon}"
            )
        if not 0.0 < self.delta < 1.0:
            raise StudyError(f"delta must lie between 0 and 1; got {self.delta}")
        accountant(self.accountant)

    def remaining_steps(self, event: Event, spent: Spent) -> int | None:
        """How often ``event`` may still happen after ``spent``; None where nothing limits it."""
        if math.isinf(self.epsilon):
            return None
        before = list(spent)
        if self._price(before) > self.epsilon:
            return 0
        return most_steps(
            event, epsilon=self.epsilon, delta=self.delta, accountant=self.accountant, spent=before
        )

    def admit(self, unit: str, spent: Spent) -> None:
        """Refuse a history that passes the budget, asking the cheapest bound first.

        What "pld" shows is never above the improved Rényi bound, which takes a hundredth of its
        time.

        Raises:
            BudgetExceeded: see :meth:`check`.
        """
        history = list(spent)
        if (
            self.accountant != "pld"
            or accountant("rdp").epsilon(history, self.delta) > self.epsilon
        ):
            self.check(unit, history)

    def check(self, unit: str, spent: Spent) -> float:
        """A bound on the epsilon of a history, or the refusal of one that passes the budget.

        The quick bound decides where it can; where it comes out over the budget, the fine one does.

        Raises:
            BudgetExceeded: naming the unit, the epsilon it would reach and the remedy.
        """
        history, chosen = list(spent), accountant(self.accountant)
        quick = chosen.epsilon(history, self.delta, quick=True)
        if quick <= self.epsilon:
            return quick
        value = self._price(history)
        if value > self.epsilon:
            raise BudgetExceeded(self._refusal(unit, value))
        return value

    def _refusal(self, unit: str, value: float) -> str:
        digits = next(
            (d for d in range(4, 17) if epsilon_text(value, d) != epsilon_text(self.epsilon, d)), 17
        )
        remedy = (
            "No bound is known for this release: only a run without a guarantee (infinite "
            "epsilon) can make it"
            if math.isinf(value)
            else "Lower rounds or local steps, or raise noise_multiplier"
        )
        return (
            f"{unit}: this release would bring epsilon to {epsilon_text(value, digits)},"
            f" over the budget of {epsilon_text(self.epsilon, digits)} (delta "
            f"{self.delta:g}, {self.accountant}). {remedy}"
        )

    def _price(self, spent: Spent) -> float:
        return accountant(self.accountant).epsilon(spent, self.delta)
