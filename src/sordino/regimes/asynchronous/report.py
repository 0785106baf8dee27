"""The page of a run of arrivals, its figures, and the words of its plan.

The x axis of figures counts updates; dotted lines are borders of stages, numbered above.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sordino.clients import report as clients
from sordino.clients.pricing import BATCHES, most_table, samplings_told
from sordino.clients.records import Stage, horizontal
from sordino.core import statements
from sordino.core.plan import Plan
from sordino.core.records import Stale, known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Figure, Mark, Panel, Series, Table, over_rounds, points
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.asynchronous.method import Stage as PlannedStage
from sordino.regimes.asynchronous.records import AsynchronousRound
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.report.words import bound, plain

MOST_BARS = 30
MOST_BINS = 60
MOST_STEPS = 400
MOST_COUNTED = 10**7  # staleness and counts beyond these were never measured
MOST_UPDATES = 10**9


NORM = "Length of a gradient: the root of the mean square since the last row of the log."
NOISY = (
    "Length of a released gradient, without its noise: the root of the mean square since the last "
    "row, less what noise adds on average; a triangle where nothing was left."
)
BOUND = (
    " The dashed bound G_s cuts gradients of single examples, which are longer than their mean: a "
    "curve near it shows that much is cut; one below it need not mean that nothing is."
)
STALE = (
    "How many updates were made while a gradient was under way. tau_max is what learning rates are "
    "planned for; staler gradients are paid for and not applied."
)
GONE = (
    "Edges that did not work: some had vanished with their task and came back, some have "
    "spent their budget and will not."
)
EACH = (
    "What the ledger has charged each edge when the run ended, with what was reserved and not "
    "used. The line is its own budget; an edge that reaches it leaves."
)
RATE = "gamma_t, by which the server multiplies a gradient: known before the run."
TIME = "Simulated seconds until each update was done. Where it is steep, few answers came in."


def facts(run: Run) -> list[statements.Fact]:
    about, said, found = run.about, horizontal(run), histogram(run)
    begun, planned = len(stages(run)), len(known(said.stages) or ())
    mean = f"mean staleness: {plain(_mean(found) if found else None, 3)}"
    facts = [
        ("gradients of one edge", str(run.steps), _asked_most(run)),
        ("expected batch b", plain(about.batch), "examples of a gradient"),
        ("tau_max", plain(said.staleness), mean),
        ("stages", str(begun), f"of {planned} planned"),
    ]
    if run.private:
        facts.append(("noise multiplier z", _multipliers(run), f"clipping bound {_bounds(run)}"))
    return [fact for fact in facts if fact[1] != "-"]


def courses(run: Run) -> list[statements.Course]:
    last = number(run.about.R_s) or math.inf
    rows = [_stage(stage, last) for stage in known(horizontal(run).stages) or ()]
    if not rows:
        return [statements.Course("Stages", intro="run.json names none.")]
    head = (
        "stage",
        "updates",
        "planned length",
        "clipping bound G_s",
        "learning rate",
        "slowed by noise, P",
        "variance Delta_b",
    )
    return [statements.Course("Stages", head=head, rows=rows)]


def terms(run: Run, noise: float | None, clip: float | None) -> list[tuple[str, str]]:
    about, said, batch = run.about, horizontal(run), number(run.about.batch)
    sizes = clients.sizes_of(run)
    rates = sorted({batch / size for size in sizes}) if batch is not None else []
    first = ""
    if not known(said.noise_multipliers) and noise is not None and clip is not None:
        first = f", in the first stage {plain(noise * clip, 6)}"
    own = Counter(clients.client_budgets(run, len(known(said.epsilons) or ())))
    budgets = ", ".join(
        f"{bound(value)} ({count} edge{'s' if count > 1 else ''})"
        for value, count in sorted(own.items())
    )
    payable = "gradients that the edge which spends fastest can pay for"
    return [
        ("budgets of single edges", budgets or "-"),
        ("clipping bound G_s", _bounds(run)),
        ("noise multiplier z", _multipliers(run)),
        ("noise on each number", f"z G_s{first}, on a sum of clipped gradients"),
        ("expected batch b", plain(batch, 6)),
        ("sampling rates q_k = b / n_k", _range(rates)),
        ("numbers released per gradient", plain(about.facts.dimension)),
        (payable, plain(about.facts.R_c)),
        ("updates planned, T", plain(about.R_s)),
    ]


def _range(values: Sequence[float]) -> str:
    """
    >>> _range([0.5, 1.0, 2.0]), _range([2.0, 2.0]), _range([])
    ('0.5 to 2', '2', '-')
    """
    return " to ".join(dict.fromkeys(map(plain, (*values[:1], *values[-1:])))) or "-"


def _mean(counts: Counter[int]) -> float:
    """Return the mean staleness of gradients that are counted by it."""
    return sum(tau * n for tau, n in counts.items()) / counts.total()


def _asked_most(run: Run) -> str:
    """Return whose gradients these are, and why they may be more than another edge can pay for."""
    fastest, most = number(run.about.facts.R_c), "of the edge asked most"
    if not run.private or fastest is None or run.steps <= fastest:
        return most
    return (
        f"{most}; {plain(fastest)} is what the edge that spends fastest can pay for, the one with "
        "the fewest examples"
    )


def _multipliers(run: Run) -> str:
    """z, or the lowest and the highest where edges have their own."""
    stated = map(number, known(horizontal(run).noise_multipliers) or ())
    own = sorted(z for z in stated if z is not None)
    return _range(own) if own else plain(run.about.noise_multiplier)


def _bounds(run: Run) -> str:
    """The first and the last clipping bound that the run has come to."""
    return _range([clip for stage in stages(run) if (clip := number(stage.clip)) is not None])


def _stage(stage: Stage | PlannedStage, last: float) -> list[str]:
    start, length, clip = known(stage.start) or 0, known(stage.length) or 0, number(stage.clip)
    rate = number(stage.rate)
    return [
        numbered(stage),
        f"{plain(start + 1)} to {plain(min(start + length, last))}",
        plain(length),
        "none" if clip == math.inf else plain(clip),
        "falls with t" if rate is None else plain(rate),
        plain(stage.slowing, 3),
        plain(stage.variance),
    ]


def plan_told(study: AsynchronousStudy, plan: Plan) -> list[statements.Paragraph]:
    """Return a plan, for people."""
    updates = study.budget.updates
    head = ["stage", "updates", "length", "clip G", "learning rate", "P", "Delta_b"]
    stages = Table("Stages", head, [_stage(each, updates) for each in plan.stages])
    if not plan.most:
        return [stages, f"no privacy: epsilon is infinite; {updates} updates"]
    made = "calibrated" if plan.calibrated else "given"
    batch = "passes in a public order, in batches of" if study.ordered else "expected batch"
    title = "Most gradients of the edge that spends fastest,"
    return [
        stages,
        f"noise multiplier {plan.noise_multiplier:g} ({made}), {batch} "
        f"{study.method.batch:g}, clip {study.privacy.clip:g}",
        *samplings_told(plan, BATCHES, f"batches of at least {study.method.batch:g} examples"),
        most_table(title, "gradients", study, plan),
        f"signal to noise of one gradient: at most {plan.signal_to_noise:.3f}",
        f"fair share of an edge: {plan.used} gradients, epsilon {epsilon_text(plan.epsilon)}; "
        "a faster one sends more",
    ]


def figures(run: Run) -> Iterator[Figure | statements.Matrix]:
    """Yield the figures of a run of arrivals, those that have something to show."""
    borders = marks(run)
    staged = " Dotted lines are borders of stages, numbered above." if borders else ""
    reserved = (
        " Budgets are charged in blocks before they are used, so it rises in steps."
        if run.private
        else ""
    )
    yield from clients.learning(
        run, "over updates", clients.evaluated(run) + reserved + staged, marks=borders
    )
    yield from norms(run)
    yield from staleness(run)
    yield from rates(run, RATE + staged)
    yield from spending(run)
    yield from presence(run)
    yield from clients.clock(run, TIME)
    yield from clients.holdings(run)


def stages(run: Run) -> list[Stage]:
    """The stages that the run has come to, as planned."""
    planned = known(horizontal(run).stages) or ()
    return [
        stage
        for stage in planned
        if (start := known(stage.start)) is not None and start < max(run.number, 1)
    ]


def numbered(stage: Stage | PlannedStage) -> str:
    """A stage's number."""
    return "?" if (found := known(stage.number)) is None else str(found)


def marks(run: Run) -> list[Mark]:
    """Return where stages begin, numbered; nothing where there is only one."""
    begun = stages(run)
    return [
        Mark(float(known(stage.start) or 0), numbered(stage), axis="x", style="dotted")
        for stage in (begun if len(begun) > 1 else ())
    ]


def _over_updates(
    run: Run, key: str, title: str, caption: str, panel: Panel, label: str
) -> Iterator[Figure]:
    """Yield a figure of one panel over all updates so far."""
    limits = (0, 1.02 * max(run.number, 1))
    yield from over_rounds(run, key, title, caption, panel, label=label, limits=limits)


def norms(run: Run) -> Iterator[Figure]:
    """Yield the length of gradients, noise taken off, against the clipping bound."""
    xs, ys = points(run.rounds, "round", "norm")
    if not xs:
        return
    stated = [(number(stage.start), number(stage.clip)) for stage in stages(run)]
    clips = [(x, c) for x, c in stated if x is not None and c is not None and 0 < c < math.inf]
    heights = [y for y in ys if y > 0] + [clip for _, clip in clips]
    spread = bool(heights) and max(heights) > statements.DECADES * min(heights)
    low = min(heights) / 2 if spread else 0.0
    title, caption = "Gradient norm", NORM
    series = [Series(x=xs, y=[y if y > 0 else math.nan for y in ys], name="without noise")]
    if clips:
        title, caption = "Gradient norm and clipping bound", NOISY + BOUND
        starts, bounds = zip(*clips, strict=True)
        series.append(
            Series(
                kind="step",
                name="clipping bound G_s",
                colour="orange",
                dash="dashed",
                x=[*starts, float(run.number)],
                y=[*bounds, bounds[-1]],
            )
        )
    if unseen := [x for x, y in zip(xs, ys, strict=True) if y <= 0]:
        name, lows = "nothing above the noise", [low] * len(unseen)
        series.append(Series(kind="dots", name=name, colour="quiet", x=unseen, y=lows))
    panel = Panel(label="norm", series=series, marks=marks(run), limits=(low, None), log=spread)
    yield from _over_updates(run, "norms", title, caption, panel, f"{title} over updates")


def staleness(run: Run) -> Iterator[Figure]:
    """Yield how many gradients were so many updates behind."""
    applied, refused = histogram(run), too_stale(run)
    if not applied and not refused:
        return
    bound = number(horizontal(run).staleness)
    longest = max([*applied, *refused])
    largest = shown_to(applied + refused, bound)
    width = max(math.ceil((largest + 1) / MOST_BINS), 1)
    edges = [i * width - 0.5 for i in range(largest // width + 2)]
    series = []
    if applied:
        counts = _binned(applied, edges)
        series.append(Series(kind="histogram", name="applied", x=edges, y=counts))
    if refused:
        name, counts = "too stale, not applied", _binned(refused, edges)
        series.append(Series(kind="histogram", name=name, colour="orange", x=edges, y=counts))
    lines, end = [], max(largest, 1)
    if applied:
        mean = _mean(applied)
        lines.append(Mark(mean, f"mean {mean:.3g}", axis="x", style="solid", legend=True))
    if bound is not None and math.isfinite(bound):
        within = bound <= 1.6 * end
        end = max(end, int(bound)) if within else end
        text = f"tau_max {bound:.0f}" + ("" if within else ", to the right of this")
        lines.append(Mark(bound + 0.5, text, axis="x", legend=True))
    beyond = sum(n for tau, n in (applied + refused).items() if tau > largest)
    panel = Panel(label="gradients", series=series, marks=lines, limits=(0.0, None), whole=True)
    yield Figure(
        key="staleness",
        title="Staleness",
        caption=STALE,
        label="How stale gradients were",
        x="staleness tau, in updates",
        panels=[panel],
        limits=(-0.5 - 0.02 * largest, 1.06 * end + 0.5),
        note=f"{beyond} more, up to {longest} →" if longest > largest else "",
    )


def histogram(run: Run) -> Counter[int]:
    """Applied gradients by staleness, over the whole run."""
    found: Counter[int] = Counter()
    for row in run.rounds:
        for tau, count in known(row.histogram) or () if isinstance(row, AsynchronousRound) else ():
            if max(tau, count) < MOST_COUNTED:
                found[tau] += count
    return found


def shown_to(counts: Counter[int], bound: float | None) -> int:
    """Where an axis ends: at the largest staleness, or short of few that lie far beyond.

    >>> few = Counter({4: 995, 900: 5})
    >>> shown_to(Counter({4: 99, 9: 1}), 5), shown_to(few, 5), shown_to(few, 20)
    (9, 8, 20)
    """
    largest, left = max(counts), 0.01 * counts.total()
    usual = largest
    while (left := left - counts[usual]) >= 0:
        usual -= 1
    if largest <= 3 * max(usual, 1):
        return largest
    beyond = 0 if bound is None or math.isinf(bound) else int(bound)
    return max(2 * usual, min(beyond, largest), 1)


def too_stale(run: Run) -> Counter[int]:
    """Gradients that were not applied, by staleness."""
    taus = (known(row.staleness) for row in run.others if isinstance(row, Stale))
    return Counter(tau for tau in taus if tau is not None and tau < MOST_COUNTED)


def presence(run: Run) -> Iterator[Figure]:
    """Yield edges that were away for a while or left for good, unless all stayed to the end."""
    count = run.headcount
    kinds = ("lost", "joined", "left")
    lost, joined, left = (sorted(clients.places(run, kind, MOST_UPDATES)) for kind in kinds)
    if not lost and (not left or left[0] > 0.98 * run.number):
        return
    last = max(run.number, *lost[-1:], *left[-1:], 1)
    stride = max(math.ceil(last / MOST_STEPS), 1)
    xs = [*range(0, last, stride), last]
    steps = [*xs, last + stride]
    gone = [bisect_right(left, x) for x in xs]
    away = [max(bisect_right(lost, x) - bisect_right(joined, x), 0) for x in xs]
    series = []
    if left:
        name = "left for good: budget spent"
        series.append(Series(kind="histogram", name=name, colour="quiet", x=steps, y=gone))
    if lost:
        name = "away for a while"
        series.append(
            Series(kind="histogram", name=name, colour="orange", x=steps, y=away, base=gone)
        )
    most = max(a + g for a, g in zip(away, gone, strict=True))
    whole = [Mark(count, f"all {count}", legend=True)] if count and most > 0.6 * count else []
    lines, counted = [*whole, *marks(run)], f"edges, of {count}"
    panel = Panel(label=counted, series=series, marks=lines, limits=(0.0, None), whole=True)
    label = "Edges that were away or had left, over updates"
    yield from _over_updates(run, "presence", "Edges away and gone", GONE, panel, label)


def spending(run: Run) -> Iterator[Figure]:
    """Yield epsilon of each edge against its budget; nothing without a result, or for one edge."""
    stated = known(run.result.spent) or ()
    spent = [
        value for each in stated if (value := number(each)) is not None and math.isfinite(value)
    ]
    if not run.private or len(spent) < 2 or len(spent) != len(stated):
        return
    pairs = list(zip(clients.client_budgets(run, len(spent)), spent, strict=True))
    if not (few := len(pairs) <= MOST_BARS):
        pairs.sort(reverse=True)
    stride = math.ceil(len(pairs) / MOST_STEPS)  # of more edges, the most of each few neighbours
    parts = [pairs[i : i + stride] for i in range(0, len(pairs), stride)]
    budgets = [max(budget for budget, _ in part) for part in parts]
    used = [max(spent for _, spent in part) for part in parts]
    edges = [min(i * stride, len(pairs)) - 0.5 for i in range(len(parts) + 1)]
    limit = Series(
        kind="histogram", name="its budget", colour="ink", filled=False, x=edges, y=budgets
    )
    shown = Series(kind="histogram", name="spent", x=edges, y=used)
    if few:
        shown = Series(kind="bar", name="spent", x=range(len(pairs)), y=used)
    yield Figure(
        key="spending",
        title="Epsilon of each edge",
        caption=EACH,
        label="Epsilon spent by each edge, and its budget",
        x="edge" if few else f"{len(pairs)} edges, ordered by budget and by what they spent",
        panels=[Panel(label="epsilon", series=[shown, limit], limits=(0.0, None))],
        names=[str(i) for i in range(len(pairs))] if few else (),
        limits=(-0.6, len(pairs) - 0.4),
    )


def rates(run: Run, caption: str = RATE) -> Iterator[Figure]:
    """Yield the learning rate, unless it never changes."""
    xs, ys = points(run.rounds, "round", "rate")
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if y > 0]
    if not pairs or max(y for _, y in pairs) <= min(y for _, y in pairs) * (1 + 1e-9):
        return
    xs, ys = (list(each) for each in zip(*pairs, strict=True))
    staged = len(stages(run)) > 1
    line = Series(x=xs, y=ys, colour="green", kind="step" if staged else "line", holds="before")
    panel = Panel(label="learning rate", series=[line], marks=marks(run), log=True)
    title = "Learning rate"
    yield from _over_updates(run, "rates", title, caption, panel, f"{title} over updates")


def _binned(counts: Mapping[int, int], edges: Sequence[float]) -> list[int]:
    """Return how many there are of values between two edges."""
    found = np.histogram([*counts], edges, weights=[*counts.values()])[0]
    return [int(each) for each in found]


TELLER = replace(clients.TELLER, facts=facts, courses=courses, terms=terms, figures=figures)
