"""Numbers and keys that a file states, beside what a ledger holds of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sordino.core import begun
from sordino.core.built import UNIT as TEST
from sordino.privacy.chain import PROMISED, Note
from sordino.privacy.rounding import epsilon_text

CLOSE = 1e-6  # relative: accountants of other versions may differ in last digits

Row = dict[str, Any]


def bound_of(spent: float | None, promise: object) -> float | None:
    """The epsilon that is a bound: what was spent; at least the budget if releases chose that."""
    told = promise if isinstance(promise, dict) else {}
    budget = number_of(told.get("epsilon_budget"))
    return (
        spent
        if spent is None
        or not told.get("chosen")
        or told.get("form") != "sound"
        or math.isinf(budget)
        else max(spent, budget)
    )


def numbers_in(about: Row, key: str) -> list[float]:
    """The numbers that a result states under a key, in order of size."""
    result = about.get("result")
    found = result.get(key) if isinstance(result, dict) else None
    return sorted(
        map(number_of, found if isinstance(found, list) else [] if found is None else [found])
    )


def at_least(spent: Mapping[str, float], stated: Sequence[float]) -> dict[str, float]:
    """What is stated of each unit, if no less than its own entries: its records may have more.

    Once a run has ended its records' histories are those of classes, in which later runs are, too.
    That what is stated was not changed since, the seal shows.
    """
    own = sorted(spent.items(), key=lambda item: item[1])
    if len(stated) != len(own) or not all(
        told >= found or close(told, found) for told, (_, found) in zip(stated, own, strict=True)
    ):
        return dict(spent)
    return {unit: told for told, (unit, _) in zip(stated, own, strict=True)}


def exceeded(begin: Row, seal: Row, privacy: Row) -> Iterator[str]:
    """Every client that was promised less than its records have spent when the run was sealed.

    What was promised stands in the note of the beginning, or, of versions before, in the study.
    """
    units, told, promise = begin.get("units"), seal.get("spent"), begin.get("promise")
    each = told.get("each") if isinstance(told, dict) else None
    if (
        not isinstance(units, dict)
        or not isinstance(each, list)
        or not isinstance(promise, dict)
        or promise.get("form") != "sound"
    ):
        return
    clients = sorted((unit for unit in units if unit != TEST), key=lambda one: (len(one), one))
    own, kept = privacy.get("epsilons"), begin.get(PROMISED)
    if len(clients) != len(each):
        return
    for client, spent in zip(clients, map(number_of, each), strict=True):
        number = client.removeprefix("client:")
        if isinstance(kept, dict):
            found = kept.get(units[client])
            most = number_of(found[0] if isinstance(found, list) and found else "inf")
        elif isinstance(own, list) and number.isdigit() and int(number) < len(own):
            most = number_of(own[int(number)])
        else:
            most = number_of(privacy.get("epsilon", "inf"))
        if spent > most * (1 + CLOSE):
            yield (
                f"{client[:80]} was promised an epsilon of at most {epsilon_text(most)}, and its "
                f"records had spent {epsilon_text(spent)} when the run was sealed"
            )


def called(begins: Sequence[Note]) -> dict[str, str]:
    """What the last run called units whose names are fingerprints."""
    units = begins[-1].facts.get("units") if begins else None
    return (
        {str(name): str(unit) for unit, name in units.items() if name != unit}
        if isinstance(units, dict)
        else {}
    )


def differing(
    ledger: object, file: Mapping[str, Any], epsilon: float | None = None
) -> Iterator[str]:
    """Every key of a file that differs from what the ledger holds of it."""
    given = ledger if isinstance(ledger, dict) else {}
    for key in begun.differing(given, file):
        if (
            key in ("result.epsilon", "result.spent")
            and epsilon is not None
            and not close(given.get(key), file.get(key))
        ):
            continue  # said already, with what the ledger adds up to
        yield f"{key} is {begun.shown(file, key)}; the ledger says {begun.shown(given, key)}"


def number_of(value: object) -> float:
    if isinstance(value, str):
        return math.inf if value == "inf" else math.nan
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    return float(value) if isinstance(value, float) or abs(value) < 10**300 else math.nan


def close(stated: object, given: object) -> bool:
    return math.isclose(number_of(stated), number_of(given), rel_tol=CLOSE)


def in_words(value: object) -> str:
    number = number_of(value)
    return "not a number" if math.isnan(number) else epsilon_text(number)


def at_place(path: Path, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(str(path)) else f"{path}: {text}"
