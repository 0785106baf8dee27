"""What a run consists of, in its regime's terms: first numbers, course, and guarantee."""

from __future__ import annotations

import datetime as dt

from sordino.core import regimes
from sordino.core.records import known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Course, Fact, Members
from sordino.report.judged import judged
from sordino.report.words import bound, duration, epsilon, measured, plain, promise

UNITS = {
    "sample": "each single example of {a_client}'s data",
    "client": "each {client}, with all its data",
    "label": "each entity's label",
    "entity": "each entity: its label, and its features at every {client}",
}


def key_numbers(run: Run) -> list[Fact]:
    """The few numbers to see first: (name, value, remark)."""
    about, words = run.about, run.vocabulary
    delta, best = number(about.delta), run.best
    streamed, own = words.accuracy.streamed, regimes.teller(about.regime)
    unseen = own.unseen(run) or ("never evaluated" if run.done else "not evaluated yet")
    looked = (
        unseen
        if best is None
        else "predicted before learned from"
        if streamed
        else f"best: {measured(run, best)}"
    )
    found = [
        (words.accuracy.name, measured(run, run.measured), looked),
        _price(run),
        (
            "delta",
            plain(delta, 6) if run.private else "-",
            f"{known(about.accountant) or '-'} accountant" if run.private else "no guarantee",
        ),
        (words.rounds, str(run.number), f"of {plain(number(about.R_s))} planned"),
        *own.facts(run),
        (words.clients, str(len(run.clients)), own.held(run)),
    ]
    if (seconds := number(run.result.seconds)) is not None:
        found.append(("wall time", duration(seconds), "of the last session"))
    return found


def _price(run: Run) -> Fact:
    """Epsilon that is guaranteed, which is not what was spent where that was chosen by looking."""
    if run.chosen:
        values = [number(each) for each in known(run.result.spent) or ()]
        spent = max(
            (value for value in values if value is not None),
            default=max(run.values("epsilon"), default=0.0),
        )
        return (
            "epsilon",
            bound(run.guaranteed),
            f"fixed in advance; {bound(spent)} spent, which is no bound: releases chose it",
        )
    return (
        "epsilon spent",
        epsilon(run),
        f"{'' if run.done else 'so far; '}budget {bound(run.budget)}"
        if run.private
        else "no guarantee",
    )


def terms(run: Run) -> list[tuple[str, str]]:
    """What the guarantee is made of, for whoever checks it: (name, value); empty without one."""
    if not promise(run).private:
        return []
    about, words = run.about, run.vocabulary
    noise, clip = number(about.noise_multiplier), number(about.facts.clip)
    unit = UNITS.get(str(about.unit), str(about.unit))
    found = [
        ("who is protected", unit.format(client=words.client, a_client=words.a_client)),
        ("neighbours differ by", known(about.adjacency) or "-"),
        ("budget", f"epsilon = {bound(run.budget)} at delta = {plain(number(about.delta), 6)}"),
        ("accountant", known(about.accountant) or "-"),
        *regimes.teller(run.about.regime).terms(run, noise, clip),
    ]
    return [(name, value) for name, value in found if value != "-"]


def origin(run: Run) -> list[tuple[str, str]]:
    """When a run was made, and the fingerprint of its data, as far as run.json says."""
    about = run.about
    found = [
        ("begun", _date(known(about.begun))),
        ("ended", _date(known(about.ended))),
        ("fingerprint of the data", known(about.data)),
    ]
    return [(name, value) for name, value in found if value]


def _date(stated: str | None) -> str:
    """A date of ISO 8601 for people; as it stands if it is none.

    >>> _date("2026-11-22T21:01:00+00:00")
    '2026-11-22 21:01 UTC'
    """
    if stated is None:
        return ""
    try:
        found = dt.datetime.fromisoformat(stated)
    except ValueError:
        return stated
    return f"{found:%Y-%m-%d %H:%M} {found.tzname() or ''}".rstrip()


def courses(run: Run) -> list[Course]:
    """How the run went on, where the page tells it in words."""
    return [*judged(run), *regimes.teller(run.about.regime).courses(run)]


def members(run: Run) -> Members:
    """Who took part, and what each had."""
    return regimes.teller(run.about.regime).members(run)
