"""The page of a run of arrivals, and the words of its plan."""

from __future__ import annotations

import math
from collections import Counter

from sordino.clients.pricing import most_table
from sordino.clients.records import Stage, horizontal
from sordino.clients.report import client_budgets, held, holders, unseen
from sordino.core.plan import Plan
from sordino.core.records import known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Course, Fact, Paragraph, RegimeReport, Table
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.asynchronous import figures as arrivals
from sordino.regimes.asynchronous.method import Stage as PlannedStage
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.report.words import bound, plain


def facts(run: Run) -> list[Fact]:
    about = run.about
    begun, planned = len(arrivals.stages(run)), len(known(horizontal(run).stages) or ())
    tau, found = number(horizontal(run).staleness), arrivals.histogram(run)
    mean = sum(each * n for each, n in found.items()) / found.total() if found else None
    facts = [
        ("gradients of one edge", str(run.steps), _asked_most(run)),
        ("expected batch b", plain(number(about.batch)), "examples of a gradient"),
        ("tau_max", plain(tau), f"mean staleness: {plain(mean, 3)}"),
        ("stages", str(begun), f"of {planned} planned"),
    ]
    if run.private:
        facts.append(("noise multiplier z", _multipliers(run), f"clipping bound {_bounds(run)}"))
    return [fact for fact in facts if fact[1] != "-"]


def courses(run: Run) -> list[Course]:
    last = number(run.about.R_s) or math.inf
    rows = [_stage(stage, last) for stage in known(horizontal(run).stages) or ()]
    head = (
        "stage",
        "updates",
        "planned length",
        "clipping bound G_s",
        "learning rate",
        "slowed by noise, P",
        "variance Delta_b",
    )
    return [
        Course(
            "Stages",
            intro="" if rows else "run.json names none.",
            head=head if rows else (),
            rows=rows,
        )
    ]


def terms(run: Run, noise: float | None, clip: float | None) -> list[tuple[str, str]]:
    about = run.about
    batch, own_noise = number(about.batch), known(horizontal(run).noise_multipliers)
    sizes = [size for c in horizontal(run).members if (size := known(c.examples))]
    rates = sorted({batch / size for size in sizes}) if batch is not None else []
    first = (
        f", in the first stage {plain(noise * clip, 6)}"
        if not own_noise and noise is not None and clip is not None
        else ""
    )
    own = Counter(client_budgets(run, len(known(horizontal(run).epsilons) or ())))
    own_words = ", ".join(
        f"{bound(value)} ({count} edge{'s' if count > 1 else ''})"
        for value, count in sorted(own.items())
    )
    return [
        ("budgets of single edges", own_words or "-"),
        ("clipping bound G_s", _bounds(run)),
        ("noise multiplier z", _multipliers(run)),
        ("noise on each number", f"z G_s{first}, on a sum of clipped gradients"),
        ("expected batch b", plain(batch, 6)),
        (
            "sampling rates q_k = b / n_k",
            " to ".join(dict.fromkeys(plain(q) for q in (rates[0], rates[-1]))) if rates else "-",
        ),
        ("numbers released per gradient", plain(number(about.facts.dimension))),
        (
            "gradients that the edge which spends fastest can pay for",
            plain(number(about.facts.R_c)),
        ),
        ("updates planned, T", plain(number(about.R_s))),
    ]


def _asked_most(run: Run) -> str:
    """Return whose gradients these are, and why they may be more than another edge can pay for."""
    fastest = number(run.about.facts.R_c)
    slower = run.private and fastest is not None and run.steps > fastest
    return "of the edge asked most" + (
        f"; {plain(fastest)} is what the edge that spends fastest can pay for, the one with the "
        "fewest examples"
        if slower
        else ""
    )


def _multipliers(run: Run) -> str:
    """z, or the lowest and the highest where edges have their own."""
    own = sorted(
        z
        for each in known(horizontal(run).noise_multipliers) or ()
        if (z := number(each)) is not None
    )
    return (
        " to ".join(dict.fromkeys(plain(z) for z in (own[0], own[-1])))
        if own
        else plain(number(run.about.noise_multiplier))
    )


def _bounds(run: Run) -> str:
    """The first and the last clipping bound that the run has come to."""
    clips = [clip for stage in arrivals.stages(run) if (clip := number(stage.clip)) is not None]
    return " to ".join(dict.fromkeys(plain(clip) for clip in clips[:1] + clips[-1:])) or "-"


def _stage(stage: Stage, last: float) -> list[str]:
    start, length, clip = known(stage.start) or 0, known(stage.length) or 0, number(stage.clip)
    rate = number(stage.rate)
    return [
        arrivals.numbered(stage),
        f"{plain(start + 1)} to {plain(min(start + length, last))}",
        plain(length),
        "none" if clip == math.inf else plain(clip),
        "falls with t" if rate is None else plain(rate),
        plain(number(stage.slowing), 3),
        plain(number(stage.variance)),
    ]


def plan_told(study: AsynchronousStudy, priced: Plan) -> list[Paragraph]:
    """Return a plan, for people."""
    found: list[Paragraph] = []
    found.append(
        Table(
            "Stages",
            ["stage", "updates", "length", "clip G", "learning rate", "P", "Delta_b"],
            [_planned_stage(s, study) for s in priced.stages],
        )
    )
    if not priced.most:
        found.append(f"no privacy: epsilon is infinite; {study.budget.updates} updates")
        return found
    made = "calibrated" if priced.calibrated else "given"
    found.append(
        f"noise multiplier {priced.noise_multiplier:g} ({made}), expected batch "
        f"{study.method.batch:g}, clip {study.privacy.clip:g}"
    )
    title = "Most gradients of the edge that spends fastest,"
    found.append(most_table(title, "gradients", study, priced))
    found.append(f"signal to noise of one gradient: at most {priced.signal_to_noise:.3f}")
    found.append(
        f"fair share of an edge: {priced.used} gradients, epsilon {epsilon_text(priced.epsilon)}; "
        "a faster one sends more"
    )
    return found


def _planned_stage(stage: PlannedStage, study: AsynchronousStudy) -> list[str]:
    first = stage.start + 1
    last = min(stage.end, study.budget.updates)
    rate = f"{stage.rate:.4g}" if stage.rate is not None else "falls"
    clip = "-" if math.isinf(stage.clip) else f"{stage.clip:.4g}"
    return [
        str(stage.number),
        f"{first} to {last}",
        str(stage.length),
        clip,
        rate,
        f"{stage.slowing:.3g}",
        f"{stage.variance:.4g}",
    ]


TELLER = RegimeReport(
    facts=facts,
    courses=courses,
    terms=terms,
    members=holders,
    figures=arrivals.figures,
    held=held,
    unseen=unseen,
)
