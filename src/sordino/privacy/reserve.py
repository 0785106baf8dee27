"""The reserve of a run whose releases choose how much it spends: what it could still have spent.

Theory of operation. A budget bounds what is released until it is reached (a filter). What was spent
when a run ended earlier bounds nothing, if releases decided about the end (an odometer; Rogers,
Roth, Ullman and Vadhan 2016). For the run itself, its budget is the bound. A later run over the
same records composes with it, and filters of privacy losses are proved for steps that are all
alike: after a number of steps of one kind that was chosen by looking, the number of steps of
another kind that a budget pays for is chosen by looking, too, and the true delta can be 1.7 times
the stated one.

But a run that ends early says less than one that goes on: its end is post-processing of the run
that takes all steps that its plan and its budget allow. Which these are was known before. So other
runs count all of them, from its beginning on (:class:`~sordino.privacy.records.Prices`), and
what is missing is booked when the run has ended: ``reserve`` says what that is.

* Where the number of charges is fixed, their events stand in the note of the beginning. The run
  charges these events and no others (:class:`~sordino.privacy.session.LedgerSession`), so they are
  missing but for those that were charged, whoever chose which came first.
* Else the steps are missing that the budget would pay for. Under a fixed order, where steps may
  differ or their noise is chosen along the way, releases with the divergence of that order which is
  left are missing (Feldman and Zrnic 2021).

A run counts its own charges alone in what it states, or its budget. A run's own ledger has no other
run. Runs whose steps and noise were fixed in advance have no reserve, unless others can end them:
those of a federation, until they are sealed as complete.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from sordino.privacy import chain
from sordino.privacy.accounting import accountant, fixed_order
from sordino.privacy.budget import Budget
from sordino.privacy.event import Chosen, Event, Gaussian, NonPrivate, decode

if TYPE_CHECKING:
    from sordino.privacy.ledger import Ledger

LEAST = 1e-5
"""delta where a promise names none, and epsilon is infinite."""
WHY = "who saw its releases chose how much it spends, and nothing bounds that"
RESERVE = "reserve"
"""The part of the keys of a booked reserve behind the name of the run; before it, too, where the
run had ended in a version that booked none."""


def chose(ledger: Ledger, begin: chain.Note) -> bool:
    """Return whether a run let its releases choose how much it spends; or others did, or still can:
    who ended it early, or asked when they liked. A run of a federation without a seal counts.
    """
    seal = ledger.noted(chain.SEAL, begin.name)
    promise, ended = begin.facts.get("promise"), None if seal is None else seal.facts.get("run")
    said = promise if isinstance(promise, Mapping) else {}
    early = isinstance(ended, Mapping) and ended.get("result.early")
    left = seal is None and begin.facts.get(chain.OTHERS)
    priced = said.get("form") == "sound" or begin.facts.get(chain.PLANNED)
    return bool((said.get("chosen") or early or left) and priced)


Remaining = Callable[[Mapping[str, Sequence[Event]], Mapping[str, Budget]], dict[str, int | None]]
"""The number of times that an event of each unit could still be charged, on all of them alike."""


def reserve(
    ledger: Ledger, run: str | None = None, remaining: Remaining | None = None
) -> list[chain.Charge]:
    """The charges that are missing, of all runs or of one, on units that it charged.

    Without ``remaining``, budgets pay for what a run has charged itself alone. Of a plan all is
    missing, also what other runs have made too much for the budget since: see :func:`paid`.
    """
    begins = ledger.notes(chain.BEGIN) if run is None else (ledger.noted(chain.BEGIN, run),)
    found = [begin for begin in begins if begin is not None and chose(ledger, begin)]
    # who is asked for by name is open
    ended = ledger.notes(chain.RECORDS) if found and run is None else ()
    done = {note.facts.get(chain.CLOSED) for note in ended}
    return [
        each
        for begin in found
        if begin.name not in done
        for each in _missing(ledger, begin, remaining)
    ]


def _missing(
    ledger: Ledger, begin: chain.Note, remaining: Remaining | None
) -> Iterator[chain.Charge]:
    run, planned, budgets = begin.name, ledger.planned(begin.name), _budgets(begin)
    taken, booked = _charged(ledger, run)
    done = ledger.charged_by(run) if planned else {}
    events = {
        unit: _kind(budgets[unit], tuple(sorted(spent.items(), key=repr)))
        for unit, spent in taken.items()
        if unit in budgets and unit not in planned and unit not in booked
    }
    if remaining is None:
        left = {
            unit: budgets[unit].remaining_steps(event, tuple(taken[unit].items()))
            for unit, event in events.items()
        }
    else:
        left = remaining(
            {unit: [event] for unit, event in events.items()},
            {unit: budgets[unit] for unit in events},
        )
    # what ended before its first charge has released nothing
    counts = planned if taken or ledger.noted(chain.SEAL, run) is None else ()
    for unit in sorted({*taken, *counts} - booked):
        rest = planned[unit] - done[unit] if unit in planned else Counter()
        if unit in events:
            most = left[unit]
            unbounded = most is None or isinstance(events[unit], NonPrivate)
            rest = Counter({NonPrivate(reason=WHY): 1} if unbounded else {events[unit]: most or 0})
        for place, (event, count) in enumerate((+rest).items()):
            yield chain.Charge(
                unit=unit,
                event=event,
                count=count,
                why=f"what run {run} could still have released, which chose by looking",
                method="",
                round=0,
                key=f"{_key(run, unit)}/{place}",
            )


def _charged(ledger: Ledger, run: str) -> tuple[dict[str, Counter[Event]], set[str]]:
    """All that a run has charged its units, and those whose rest is booked already."""
    rows = ledger.connection.execute(
        "SELECT unit, event, count, key FROM entries WHERE key >= ? AND key < ? OR key >= ? AND "
        "key < ?",
        (f"{RESERVE}/{run}/", f"{RESERVE}/{run}0", f"{run}/", f"{run}0"),
    ).fetchall()
    found, booked = defaultdict[str, Counter[Event]](Counter), set[str]()
    for unit, text, count, key in rows:
        found[unit][decode(text)] += count
        if _key(run, unit) in key:
            booked.add(unit)
    return found, booked


def _key(run: str, unit: str) -> str:
    return f"{run}/{RESERVE}/{unit}"


def _budgets(begin: chain.Note) -> dict[str, Budget]:
    """The promise of a run to each of its units, by its name in the ledger."""
    promise, kept = begin.facts.get("promise") or {}, begin.facts.get(chain.PROMISED) or {}
    epsilon, delta, name = (promise.get(e) for e in ("epsilon_budget", "delta", "accountant"))
    if epsilon is None or promise.get("form") != "sound":
        epsilon = math.inf
    usual = Budget(float(epsilon), delta or LEAST, name or "rdp")
    own = {str(unit): Budget(*each) for unit, each in kept.items()}
    return {str(unit): own.get(str(unit), usual) for unit in begin.facts["units"].values()}


@cache
def _kind(budget: Budget, spent: tuple[tuple[Event, int], ...]) -> Event:
    """The steps that are missing where no plan says them: as those that were taken, the dearest of
    several. Under a fixed order steps may differ: there, parts of what it allows, a million of
    which are all of it.
    """
    order, price = fixed_order(budget.accountant), accountant(budget.accountant).epsilon
    if order is None:
        return max(spent, key=lambda each: price([(each[0], 1)], budget.delta))[0]
    low, high = 1e-3, 1e6
    while high > (1.0 + 1e-9) * low:
        sigma = math.sqrt(low * high)
        whole = Chosen(order=order, event=Gaussian(noise_multiplier=sigma))
        within = price([(whole, 1)], budget.delta) <= budget.epsilon
        low, high = (low, sigma) if within else (sigma, high)
    return Chosen(order=order, event=Gaussian(noise_multiplier=1000.0 * high))
