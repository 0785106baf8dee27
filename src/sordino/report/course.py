"""What a run consists of, in its regime's terms: first numbers, course, and guarantee."""

from __future__ import annotations

from sordino.engine import regimes
from sordino.engine.records import Holder, known, number
from sordino.engine.runs import Run
from sordino.engine.teller import Course, Fact, Members
from sordino.report.canvas import clean
from sordino.report.words import bound, duration, epsilon, percent, plain, promise

UNITS = {
    "sample": "each single example of {a_client}'s data",
    "client": "each {client}, with all its data",
    "label": "each entity's label",
    "entity": "each entity: its label, and its features at every {client}",
}
MOST_CLASSES = 40
UNMEASURED = "no test set: data.test = 'none'"


def key_numbers(run: Run) -> list[Fact]:
    """The few numbers to see first: (name, value, remark)."""
    about, words = run.about, run.vocabulary
    delta, best = number(about.delta), max(run.values("accuracy"), default=None)
    streamed, tested = words.accuracy.streamed, known(run.horizontal.test)
    sizes = [
        size for c in known(run.horizontal.clients) or () if (size := known(c.examples)) is not None
    ]
    unmeasured = tested is not None and tested.kind == "none"
    unseen = UNMEASURED if unmeasured else "never evaluated" if run.done else "not evaluated yet"
    looked = (
        unseen
        if best is None
        else "predicted before learned from"
        if streamed
        else f"best: {percent(best)}"
    )
    held = (
        f"{sum(sizes):,} examples".replace(",", "\u202f")
        if sizes or not streamed
        else "with different features"
    )
    found = [
        (words.accuracy.name, percent(run.accuracy), looked),
        _price(run),
        (
            "delta",
            plain(delta, 6) if run.private else "-",
            f"{known(about.accountant) or '-'} accountant" if run.private else "no guarantee",
        ),
        (words.rounds, str(run.number), f"of {plain(number(about.R_s))} planned"),
        *regimes.teller(run.vocabulary.regime).facts(run),
        (words.clients, str(len(run.clients)), held),
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
        *regimes.teller(run.vocabulary.regime).terms(run, noise, clip),
    ]
    return [(name, value) for name, value in found if value != "-"]


def courses(run: Run) -> list[Course]:
    """How the run went on, where the page tells it in words."""
    return regimes.teller(run.vocabulary.regime).courses(run)


def members(run: Run) -> Members:
    """Who took part, and what each had."""
    return regimes.teller(run.vocabulary.regime).members(run)


def by_client(run: Run) -> list[tuple[str, str]]:
    """What each client has spent, and may spend, where run.json says so; else nothing."""
    spent = known(run.result.spent)
    if not run.private or spent is None or len(spent) != len(run.clients):
        return []
    values = [number(each) for each in spent]
    budgets = client_budgets(run, len(spent))
    return [(bound(value, 5), bound(own)) for value, own in zip(values, budgets, strict=True)]


def called(client: Holder) -> str:
    """A client by its name, where it has one, else by its number."""
    name, index = known(client.name), known(client.client)
    return clean(name, 60) if name else "" if index is None else str(index)


def holders(run: Run) -> Members:
    """Clients with examples of their own."""
    words, clients = run.vocabulary, known(run.horizontal.clients) or ()
    classes = list(known(run.about.facts.classes) or ())[:MOST_CLASSES]
    spent = by_client(run)
    rows = [
        [
            called(c),
            known(c.unit) or "",
            "-" if (size := known(c.examples)) is None else str(size),
            *(spent[i] if spent else ()),
        ]
        + [str(n) for n in (known(c.labels) or ())[: len(classes)]]
        for i, c in enumerate(clients)
    ]
    counted = any(known(c.labels) for c in clients)
    simulated = f"Known because this is a simulation, not released by {words.clients}."
    return Members(
        f"{len(clients)} {words.clients} and their examples{' of each label' if counted else ''}",
        simulated if counted else "How many of each label there are is private.",
        (
            words.client,
            "unit",
            "examples",
            *(("epsilon spent", "budget") if spent else ()),
            *(classes if counted else ()),
        ),
        rows,
    )


def client_budgets(run: Run, count: int) -> list[float]:
    """What each edge may spend: its own epsilon, or that of all."""
    own = [number(each) for each in known(run.horizontal.epsilons) or ()]
    stated = [value for value in own if value is not None]
    return stated if len(stated) == len(own) == count else [run.budget] * count
