"""Words and numbers of a report: pure functions over a :class:`~sordino.core.run.reading.Run`.

Rule: a number that is no guarantee must not look like one. If nothing is guaranteed,
epsilon is shown as infinite even if some row of the log holds a finite number.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable
from dataclasses import dataclass

from sordino.core import regimes
from sordino.core.records import Refused, known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Fact
from sordino.privacy.rounding import epsilon_text


@dataclass(frozen=True, slots=True)
class Promise:
    """The guarantee: whether there is one, the sentence, and what it leaves open."""

    private: bool
    sentence: str
    exposed: str | None = None


def promise(run: Run) -> Promise:
    """Return the guarantee of a run, or why there is none."""
    said, none = known(run.about.guarantee) or "", "No privacy guarantee"
    if over_budget(run):
        why = f"Epsilon {epsilon(run)} was spent, over the promised budget of {bound(run.budget)}. "
        why += "See the ledger."
    elif run.private and said and not said.startswith(none):
        return Promise(True, said, regimes.teller(run.about.regime).exposed(run))
    elif said.startswith(none):
        why = said.removeprefix(none).lstrip(": ")
        why = why[:1].upper() + why[1:]
    elif run.about.unit == "none":
        why = "The clients' updates were computed without noise, and epsilon is infinite."
    elif run.about.form == "paper":
        why = (
            "Epsilon is infinite: the paper's literal form sends values without noise, or with "
            "noise without a bound."
        )
    elif run.private:
        why = "run.json states none."
    else:
        why = "Epsilon is infinite: run.json does not state all that a guarantee needs."
    return Promise(False, why)


def over_budget(run: Run) -> bool:
    """Return whether more was spent than promised."""
    return run.private and run.epsilon is not None and run.epsilon > run.budget * (1 + 1e-9)


def estimated(runs: Iterable[Run]) -> str:
    """Return the remark on a stream's error by responded labels; empty for true labels."""
    streamed = (run for run in runs if run.vocabulary.accuracy.streamed)
    if all(known(run.about.unit) in (None, "none") for run in streamed):
        return ""
    return (
        " Where labels are known as responded only, it is an estimate, unbiased but for entities "
        "whose response was learned from before; that of a few events may lie below 0 or above 100 "
        "%."
    )


def status(run: Run) -> str:
    """Where the run stands, in one sentence."""
    if run.done:
        return f"Finished: {run.ended}." if run.ended else "Finished."
    if refused := next((row for row in run.others if isinstance(row, Refused)), None):
        return f"Stopped: the ledger refused a release. {known(refused.why) or ''}".rstrip()
    spoken = run.vocabulary
    if not run.rounds:
        return f"No {spoken.round} is {spoken.closed} yet."
    are = "is" if run.number == 1 else "are"
    return (
        f"Running, or stopped and not yet resumed: {spoken.many(run.number)} {are} "
        f"{spoken.closed}. The numbers below are those so far."
    )


def warnings(run: Run) -> list[str]:
    """Return the warnings that a reader should see first."""
    found = list(known(run.about.warnings) or ())
    if run.damaged:
        found.append(ends_early(run.damaged))
    if over_budget(run):
        found.append(f"Epsilon {epsilon(run)} is over the budget of {bound(run.budget)}.")
    return found


def ends_early(why: str) -> str:
    """Of a log that could not be read to its end."""
    return f"The log ends early: {why}."


def epsilon(run: Run) -> str:
    """Epsilon for people; infinite wherever nothing is promised."""
    if not run.private:
        return plain(math.inf)
    return bound(run.guaranteed)


def spent(run: Run) -> str:
    """Epsilon of a run beside others; a dash where it promises, and says nothing yet."""
    return epsilon(run) if run.epsilon is not None or not run.private else "-"


def budget(run: Run) -> str:
    """The epsilon that was promised."""
    return bound(run.budget) if run.private else plain(math.inf)


def plain(value: object, digits: int = 4) -> str:
    """A number of a record, for people.

    >>> plain(None), plain(math.inf), plain(1.99991), plain(1e-05), plain(26010)
    ('-', '∞', '2', '1e-05', '26010')
    """
    if (found := number(value)) is None:
        return "-"
    if math.isinf(found):
        return "∞" if found > 0 else "-∞"
    return str(int(found)) if found == int(found) and abs(found) < 1e15 else f"{found:.{digits}g}"


def bound(value: float | None, digits: int = 6) -> str:
    """An epsilon, whether spent, promised or claimed: rounded up.

    >>> bound(1.9999134), bound(0.5), bound(math.inf), bound(None)
    ('1.99992', '0.5', '∞', '-')
    """
    return epsilon_text(value, digits, infinite="∞")


def percent(value: float | None) -> str:
    """
    >>> percent(0.7888), percent(None)
    ('78.88 %', '-')
    """
    return "-" if value is None else f"{100 * value:.2f} %"


def measured(run: Run, value: float | None) -> str:
    """Accuracy in percent, or an error in units of the label."""
    return percent(value) if run.vocabulary.accuracy.percent else plain(value)


def duration(seconds: float, decimals: int = 0) -> str:
    """A length of time; below a minute with so many decimals.

    >>> duration(12.3), duration(9.4, 1), duration(75), duration(3700)
    ('12 s', '9.4 s', '1 min 15 s', '1 h 1 min')
    """
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{max(seconds, 0.0):.{decimals}f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def labels(names: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Return labels of runs: names if they differ, else folders, else numbers as well.

    >>> labels(["a", "b"], ["x", "y"]), labels(["a", "a"], ["x", "y"])
    (['a', 'b'], ['x', 'y'])
    >>> labels(["a", "a"], ["x", "x"])
    ['x (1)', 'x (2)']
    """
    names, folders = list(names), list(folders)
    for tried in (names, folders):
        if len(set(tried)) == len(tried):
            return tried
    return [f"{folder} ({i})" for i, folder in enumerate(folders, start=1)]


UNITS = {
    "sample": "each single example of {a_client}'s data",
    "client": "each {client}, with all its data",
    "person": "each person, with all their examples",
    "label": "each entity's label",
    "entity": "each entity: its label, and its features at every {client}",
}


def key_numbers(run: Run) -> list[Fact]:
    """The few numbers to see first: (name, value, remark)."""
    about, words = run.about, run.vocabulary
    delta, best = number(about.delta), run.best
    streamed, own = words.accuracy.streamed, regimes.teller(about.regime)
    looked = "predicted before learned from" if streamed else f"best: {measured(run, best)}"
    if best is None:
        looked = own.unseen(run) or ("never evaluated" if run.done else "not evaluated yet")
    found = [
        (words.accuracy.name, measured(run, run.measured), looked),
        _price(run),
        (
            "delta",
            plain(delta, 6) if run.private else "-",
            f"{known(about.accountant) or '-'} accountant" if run.private else "no guarantee",
        ),
        (words.rounds, str(run.number), f"of {plain(about.R_s)} planned"),
        *own.facts(run),
        (words.clients, str(run.headcount), own.held(run)),
    ]
    if (seconds := number(run.result.seconds)) is not None:
        found.append(("wall time", duration(seconds, 1), "of the last session"))
    return found


def _price(run: Run) -> Fact:
    """Epsilon that is guaranteed, which is not what was spent where that was chosen by looking."""
    if run.chosen:
        values = [number(each) for each in known(run.result.spent) or ()]
        spent = max(
            (value for value in values if value is not None),
            default=max(run.values("epsilon"), default=0.0),
        )
        who = "releases chose it" if run.about.chosen else "others may have chosen the end"
        told = f"fixed in advance; {bound(spent)} spent, which is no bound: {who}"
        return "epsilon", bound(run.guaranteed), told
    exact, highest = run.spent, run.epsilon
    if run.done and exact is not None and highest is not None and exact < highest:
        told = f"; {bound(exact)} exactly: rounds are priced by a quick upper bound"
    else:
        told = "" if run.done else "; so far"
    budget = f"budget {bound(run.budget)}{told}" if run.private else "no guarantee"
    return "epsilon spent", epsilon(run), budget


def terms(run: Run) -> list[tuple[str, str]]:
    """Return the terms of the guarantee as (name, value) pairs; empty without one."""
    if not promise(run).private:
        return []
    about, words = run.about, run.vocabulary
    noise, clip = number(about.noise_multiplier), number(about.facts.clip)
    unit = UNITS.get(about.protected, about.protected)
    found = [
        ("who is protected", unit.format(client=words.client, a_client=words.a_client)),
        ("neighbours differ by", known(about.adjacency) or "-"),
        ("budget", f"epsilon = {bound(run.budget)} at delta = {plain(about.delta, 6)}"),
        ("accountant", known(about.accountant) or "-"),
        *regimes.teller(run.about.regime).terms(run, noise, clip),
    ]
    return [(name, value) for name, value in found if value != "-"]


def origin(run: Run) -> list[tuple[str, str]]:
    """When a run was made, and the fingerprint of its data, as far as run.json says."""
    about = run.about
    found = [
        ("begun", date(known(about.begun))),
        ("ended", date(known(about.ended))),
        ("fingerprint of the data", known(about.data)),
    ]
    return [(name, value) for name, value in found if value]


def date(stated: str | None) -> str:
    """A date of ISO 8601 for people; as it stands if it is none.

    >>> date("2026-11-22T21:01:00+00:00")
    '2026-11-22 21:01 UTC'
    """
    if stated is None:
        return ""
    try:
        found = dt.datetime.fromisoformat(stated)
    except ValueError:
        return stated
    return f"{found:%Y-%m-%d %H:%M} {found.tzname() or ''}".rstrip()


def amount(mebibytes: float, digits: int = 4) -> str:
    """MiB for people.

    >>> amount(0.99243), amount(4.3111), amount(976.6, 3), amount(12345.6)
    ('0.9924', '4.311', '977', '12\u202f346')
    """
    if mebibytes < 999.5:
        return f"{mebibytes:.{digits}g}"
    return f"{mebibytes:,.0f}".replace(",", "\u202f")
