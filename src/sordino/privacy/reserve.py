"""What a run that let its releases choose how much it spends could still have spent.

Theory of operation. A budget bounds what is released until it is reached (a filter). What was spent
when a run ended earlier bounds nothing, if releases decided about the end (an odometer; Rogers,
Roth, Ullman and Vadhan 2016). For the run itself, its budget is the bound. A later run over the
same records composes with it, and filters of privacy losses are proved for steps that are all
alike: after a number of steps of one kind that was chosen by looking, the number of steps of
another kind that a budget pays for is chosen by looking, too, and the true delta can be 1.7 times
the stated one.

But a run that ends early says less than one that goes on: its end is post-processing of the run
that takes all steps that its budget pays for. The number of these was known before. So later runs
count all of them: ``reserve`` says which are missing, and they are booked when a run has ended. Of
noise chosen along the way, one release of the fixed order's divergence that is left is missing
(Feldman and Zrnic 2021). A run's own ledger has no later run, and is priced as if they stood there.

Runs whose steps and noise were fixed in advance have no reserve, unless others ended them: what is
missing is then what was planned.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from sordino.privacy.accounting import Spent, accountant, fixed_order
from sordino.privacy.budget import Budget
from sordino.privacy.chain import BEGIN, CLOSED, PLANNED, PROMISED, RECORDS, SEAL, Charge, Note
from sordino.privacy.event import Chosen, Event, Gaussian, decode

if TYPE_CHECKING:
    from sordino.privacy.ledger import Ledger

RESERVE = "reserve"
"""What keys of charges that book a reserve have behind the name of the run; before it, too, where
the run had ended in a version that booked none."""


def chose(ledger: Ledger, begin: Note) -> bool:
    """Return whether a run let its releases choose how much it spends; or others did, who ended it
    early or asked when they liked.
    """
    seal = ledger.noted(SEAL, begin.name)
    promise, ended = begin.facts.get("promise"), None if seal is None else seal.facts.get("run")
    said = promise if isinstance(promise, Mapping) else {}
    early = isinstance(ended, Mapping) and ended.get("result.early")
    return bool(said.get("chosen") or early) and said.get("form") == "sound"


Histories = Callable[[str], Sequence[Spent]]
"""Of the records of a unit, with what the run itself has charged."""


def reserve(
    ledger: Ledger, run: str | None = None, histories: Histories | None = None
) -> list[Charge]:
    """The charges that are missing, of all runs or of one, on units that a run charged.

    ``histories`` say what its budget has paid for; without them, what it charged itself alone.
    """
    done = {note.facts.get(CLOSED) for note in ledger.notes(RECORDS)}
    return [
        each
        for begin in ledger.notes(BEGIN)
        if begin.name not in done and run in (None, begin.name) and chose(ledger, begin)
        for each in _missing(ledger, begin, histories)
    ]


def _missing(ledger: Ledger, begin: Note, histories: Histories | None) -> Iterator[Charge]:
    run = begin.name
    for unit, budget in _budgets(begin).items():
        spent, key = Counter[Event](), f"{run}/{RESERVE}/{unit}"
        rows = ledger.connection.execute(
            "SELECT event, count, key FROM entries WHERE unit = ? AND (key = ? OR key >= ? AND "
            "key < ?)",
            (unit, f"{RESERVE}/{key}", f"{run}/", f"{run}0"),
        ).fetchall()
        if not rows or any(booked.endswith(key) for _, _, booked in rows):
            continue
        for text, count, _ in rows:
            spent[decode(text)] += count
        own = tuple(sorted(spent.items(), key=repr))
        paid = [own] if histories is None else histories(unit)
        found = [_rest(budget, own, tuple(each)) for each in paid]
        # all records of a unit are charged alike, so the dearest of them ends it
        event, count = min(found, key=lambda each: (each[1], -_multiplier(each[0])))
        planned = begin.facts.get(PLANNED)
        if isinstance(planned, int) and not isinstance(event, Chosen):
            count = min(count, max(planned - sum(spent.values()), 0))
        if count:
            why = f"what run {run} could still have released, which chose by looking"
            yield Charge(unit=unit, event=event, count=count, why=why, method="", round=0, key=key)


def _budgets(begin: Note) -> dict[str, Budget]:
    """The promise of a run to each of its units, by its name in the ledger."""
    promise, kept = begin.facts["promise"], begin.facts.get(PROMISED)
    if isinstance(kept, Mapping):
        return {str(unit): Budget(*each) for unit, each in kept.items()}
    epsilon, delta, name = (promise.get(e) for e in ("epsilon_budget", "delta", "accountant"))
    if not isinstance(epsilon, (int, float)) or math.isinf(epsilon) or delta is None:
        return {}
    return {str(unit): Budget(epsilon, delta, name) for unit in begin.facts["units"].values()}


def _multiplier(event: Event) -> float:
    inside = event.event if isinstance(event, Chosen) else event
    return inside.noise_multiplier if isinstance(inside, Gaussian) else 0.0


@cache
def _rest(budget: Budget, own: tuple[tuple[Event, int], ...], history: Spent) -> tuple[Event, int]:
    """What a budget would have paid for after a history, of the kind of steps that were taken."""
    order, price = fixed_order(budget.accountant), accountant(budget.accountant).epsilon
    kinds = len(own) > 1 or any(isinstance(event, Chosen) for event, _ in own)
    if order is None or not kinds:
        # of several kinds, which versions before allowed without an order, the dearest
        event = max(own, key=lambda each: price([(each[0], 1)], budget.delta))[0]
        return event, budget.remaining_steps(event, history) or 0
    low, high = 1e-3, 1e6
    while high > (1.0 + 1e-12) * low:
        sigma = math.sqrt(low * high)
        tried = [*history, (Chosen(order=order, event=Gaussian(noise_multiplier=sigma)), 1)]
        within = price(tried, budget.delta) <= budget.epsilon
        low, high = (low, sigma) if within else (sigma, high)
    return Chosen(order=order, event=Gaussian(noise_multiplier=high)), 1
