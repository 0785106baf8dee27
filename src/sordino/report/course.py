"""What a run consists of, in the terms of its regime: the numbers to see first, its course, what its guarantee is made of.

>>> coded([2, 2, 3])
['2 in rounds 1 to 2', '3 in round 3']
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from sordino.engine.records import Holder, Stage, known, number
from sordino.report import arrivals, events
from sordino.report.canvas import clean
from sordino.report.load import Run
from sordino.report.teller import Course, Fact, Members, Teller
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
    sizes = [size for c in known(run.horizontal.clients) or () if (size := known(c.examples)) is not None]
    unmeasured = tested is not None and tested.kind == "none"
    unseen = UNMEASURED if unmeasured else "never evaluated" if run.done else "not evaluated yet"
    looked = unseen if best is None else "predicted before learned from" if streamed else f"best: {percent(best)}"
    held = f"{sum(sizes):,} examples".replace(",", "\u202f") if sizes or not streamed else "with different features"
    found = [
        (words.accuracy.name, percent(run.accuracy), looked),
        _price(run),
        (
            "delta",
            plain(delta, 6) if run.private else "-",
            f"{known(about.accountant) or '-'} accountant" if run.private else "no guarantee",
        ),
        (words.rounds, str(run.number), f"of {plain(number(about.R_s))} planned"),
        *COURSES.get(words.regime, ROUNDS).facts(run),
        (words.clients, str(len(run.clients)), held),
    ]
    if (seconds := number(run.result.seconds)) is not None:
        found.append(("wall time", duration(seconds), "of the last session"))
    return found


def _price(run: Run) -> Fact:
    """Epsilon that is guaranteed, which is not what was spent where that was chosen by looking."""
    if run.chosen:
        values = [number(each) for each in known(run.result.spent) or ()]
        spent = max((value for value in values if value is not None), default=max(run.values("epsilon"), default=0.0))
        return "epsilon", bound(run.guaranteed), f"fixed in advance; {bound(spent)} spent, which is no bound: releases chose it"
    return "epsilon spent", epsilon(run), f"{'' if run.done else 'so far; '}budget {bound(run.budget)}" if run.private else "no guarantee"


def terms(run: Run) -> list[tuple[str, str]]:
    """What the guarantee is made of, for whoever checks it: (name, value). Empty where nothing is guaranteed."""
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
        *COURSES.get(words.regime, ROUNDS).terms(run, noise, clip),
    ]
    return [(name, value) for name, value in found if value != "-"]


def courses(run: Run) -> list[Course]:
    """How the run went on, where the page tells it in words."""
    return COURSES.get(run.vocabulary.regime, ROUNDS).courses(run)


def members(run: Run) -> Members:
    """Who took part, and what each had."""
    return COURSES.get(run.vocabulary.regime, ROUNDS).members(run)


def by_client(run: Run) -> list[tuple[str, str]]:
    """What each client has spent, and may spend, where run.json says so; else nothing."""
    spent = known(run.result.spent)
    if not run.private or spent is None or len(spent) != len(run.clients):
        return []
    values = [number(each) for each in spent]
    budgets = arrivals.edge_budgets(run, len(spent))
    return [(bound(value, 5), bound(own)) for value, own in zip(values, budgets, strict=True)]


def coded(values: Sequence[int]) -> list[str]:
    """Run-length coding in words."""
    found, at = [], 1
    for value, same in groupby(values):
        length = sum(1 for _ in same)
        found.append(f"{value} in round {at}" if length == 1 else f"{value} in rounds {at} to {at + length - 1}")
        at += length
    return found


def _round_facts(run: Run) -> list[Fact]:
    planned = "of a client drawn in each round" if run.of_clients else f"of {plain(number(run.about.facts.R_c))} planned"
    return [("local steps", str(run.steps), planned)]


def _round_courses(run: Run) -> list[Course]:
    lines = coded([int(tau) for tau in run.values("tau")])
    return [Course("Local steps, round by round", intro="tau:" if lines else "No round is closed yet.", lines=lines)]


def _round_terms(run: Run, noise: float | None, clip: float | None) -> list[tuple[str, str]]:
    about = run.about
    each = "-" if noise is None or clip is None else f"sigma C = {plain(noise * clip, 6)}, on a sum of clipped contributions"
    return [
        ("clipping norm C", plain(clip, 6)),
        ("noise multiplier sigma", plain(noise, 6)),
        ("noise on each number", each),
        ("sampling rate q", plain(number(run.horizontal.sampling_rate), 6)),
        (f"numbers released per {'round' if run.of_clients else 'step'}", plain(number(about.facts.dimension))),
        ("local steps planned, R_c", plain(number(about.facts.R_c))),
        ("rounds planned, R_s", plain(number(about.R_s))),
    ]


def _update_facts(run: Run) -> list[Fact]:
    about = run.about
    begun, planned = len(arrivals.stages(run)), len(known(run.horizontal.stages) or ())
    tau, found = number(run.horizontal.staleness), arrivals.histogram(run)
    mean = sum(each * n for each, n in found.items()) / found.total() if found else None
    facts = [
        ("gradients of one edge", str(run.steps), "of the edge asked most"),
        ("expected batch b", plain(number(about.batch)), "examples of a gradient"),
        ("tau_max", plain(tau), f"mean staleness: {plain(mean, 3)}"),
        ("stages", str(begun), f"of {planned} planned"),
    ]
    if run.private:
        facts.append(("noise multiplier z", _multipliers(run), f"clipping bound {_bounds(run)}"))
    return [fact for fact in facts if fact[1] != "-"]


def _update_courses(run: Run) -> list[Course]:
    last = number(run.about.R_s) or math.inf
    rows = [_stage(stage, last) for stage in known(run.horizontal.stages) or ()]
    head = ("stage", "updates", "planned length", "clipping bound G_s", "learning rate", "slowed by noise, P", "variance Delta_b")
    return [Course("Stages", intro="" if rows else "run.json names none.", head=head if rows else (), rows=rows)]


def _update_terms(run: Run, noise: float | None, clip: float | None) -> list[tuple[str, str]]:
    about = run.about
    batch, own_noise = number(about.batch), known(run.horizontal.noise_multipliers)
    sizes = [size for c in known(run.horizontal.clients) or () if (size := known(c.examples))]
    rates = sorted({batch / size for size in sizes}) if batch is not None else []
    first = f", in the first stage {plain(noise * clip, 6)}" if not own_noise and noise is not None and clip is not None else ""
    own = Counter(arrivals.edge_budgets(run, len(known(run.horizontal.epsilons) or ())))
    own_words = ", ".join(f"{bound(value)} ({count} edge{'s' if count > 1 else ''})" for value, count in sorted(own.items()))
    return [
        ("budgets of single edges", own_words or "-"),
        ("clipping bound G_s", _bounds(run)),
        ("noise multiplier z", _multipliers(run)),
        ("noise on each number", f"z G_s{first}, on a sum of clipped gradients"),
        ("expected batch b", plain(batch, 6)),
        ("sampling rates q_k = b / n_k", " to ".join(dict.fromkeys(plain(q) for q in (rates[0], rates[-1]))) if rates else "-"),
        ("numbers released per gradient", plain(number(about.facts.dimension))),
        ("gradients that the edge which spends fastest can pay for", plain(number(about.facts.R_c))),
        ("updates planned, T", plain(number(about.R_s))),
    ]


def _multipliers(run: Run) -> str:
    """z, or the lowest and the highest where edges have their own."""
    own = sorted(z for each in known(run.horizontal.noise_multipliers) or () if (z := number(each)) is not None)
    return " to ".join(dict.fromkeys(plain(z) for z in (own[0], own[-1]))) if own else plain(number(run.about.noise_multiplier))


def _bounds(run: Run) -> str:
    """The first and the last clipping bound that the run has come to."""
    clips = [clip for stage in arrivals.stages(run) if (clip := number(stage.clip)) is not None]
    return " to ".join(dict.fromkeys(plain(clip) for clip in clips[:1] + clips[-1:])) or "-"


def _stage(stage: Stage, last: float) -> list[str]:
    start, length, clip, rate = known(stage.start) or 0, known(stage.length) or 0, number(stage.clip), number(stage.rate)
    return [
        arrivals.numbered(stage),
        f"{plain(start + 1)} to {plain(min(start + length, last))}",
        plain(length),
        "none" if clip == math.inf else plain(clip),
        "falls with t" if rate is None else plain(rate),
        plain(number(stage.slowing), 3),
        plain(number(stage.variance)),
    ]


def called(client: Holder) -> str:
    """A client by its name, where it has one, else by its number."""
    name, index = known(client.name), known(client.client)
    return clean(name, 60) if name else "" if index is None else str(index)


def _holders(run: Run) -> Members:
    """Clients with examples of their own."""
    words, clients, classes = run.vocabulary, known(run.horizontal.clients) or (), list(known(run.about.facts.classes) or ())[:MOST_CLASSES]
    spent = by_client(run)
    rows = [
        [called(c), known(c.unit) or "", "-" if (size := known(c.examples)) is None else str(size), *(spent[i] if spent else ())]
        + [str(n) for n in (known(c.labels) or ())[: len(classes)]]
        for i, c in enumerate(clients)
    ]
    counted = any(known(c.labels) for c in clients)
    simulated = f"Known because this is a simulation, not released by {words.clients}."
    return Members(
        f"{len(clients)} {words.clients} and their examples{' of each label' if counted else ''}",
        simulated if counted else "How many of each label there are is private.",
        (words.client, "unit", "examples", *(("epsilon spent", "budget") if spent else ()), *(classes if counted else ())),
        rows,
    )


ROUNDS = Teller(_round_facts, _round_courses, _round_terms, _holders)
COURSES: Mapping[str, Teller] = {
    "synchronous": ROUNDS,
    "asynchronous": Teller(_update_facts, _update_courses, _update_terms, _holders),
    "vertical": events.TELLER,
}
