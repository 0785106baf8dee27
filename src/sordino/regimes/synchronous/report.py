"""The page of a run in rounds, and the words of its plan.

>>> coded([2, 2, 3])
['2 in rounds 1 to 2', '3 in round 3']
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from sordino.clients.pricing import BATCHES, SAMPLINGS, most_table, samplings_told
from sordino.clients.records import horizontal
from sordino.clients.report import TELLER as OF_CLIENTS
from sordino.clients.report import clock, evaluated, holdings, learning, places
from sordino.core import statements
from sordino.core.plan import Plan
from sordino.core.records import known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Figure, Mark, Panel, Series, Table, over_rounds, points, trace
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.synchronous.records import Synchronous
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.report.words import plain

MOST_ROUNDS = 10**7  # rounds that late and lost answers are counted in
KINDS = "late", "lost"
SMOOTH = 10  # rounds that the estimate of signal to noise is averaged over

TAU = "tau, the local steps that each client took in a round."
PACE = (
    " The dashed pace uses up steps and rounds together; above it steps run out first, "
    "below it rounds do."
)
CLIPPED_UPDATES = "Share of clients whose update was cut to the bound"
CLIPPED_GRADIENTS = "Share of gradients cut to the clipping norm"
CLIPPED = (
    ", as it was released, with noise. Near 100 % the norm is small and most of the signal is cut; "
    "near 0 % it is large and noise is wasted."
)
SIGNAL = (
    "Estimated length of the signal in one {of}, divided by that of its noise; mean "
    f"of the last {SMOOTH} rounds. Much below 1, it moves the model mostly at random, and only the "
    "sum over clients and rounds learns. 0 means that no signal was seen above the noise."
)
ABSENT = (
    "Late answers came after their round was closed: paid for, not used. Lost clients never "
    "answered: the ledger counts them as if they had."
)
WAITED = (
    "Simulated seconds until each round was closed. A steep piece is a round that waited for "
    "somebody slow."
)


def figures(run: Run) -> Iterator[Figure | statements.Matrix]:
    """Yield the figures of a run in rounds, those that have something to show."""
    of_clients = run.of_clients
    told = evaluated(run) + " A round is one exchange with the server."
    yield from learning(run, "over rounds", told)
    if not of_clients:
        paid = (
            "The same over local steps. Privacy is paid for by the step, communication by the "
            "round."
        )
        yield from learning(run, "over local steps", paid, "steps")
    yield from _pace(run)
    what, cut = ("updates", CLIPPED_UPDATES) if of_clients else ("gradients", CLIPPED_GRADIENTS)
    panel = Panel(
        label="clipped (%)",
        series=[trace(run, "clipped", 100, colour="purple")],
        limits=(0.0, 100.0),
    )
    label = "Clipped gradients per round"
    yield from over_rounds(run, "clipped", f"Clipped {what}", f"{cut}{CLIPPED}", panel, label=label)
    xs, ratios = points(run.rounds, "round", "snr")
    powers = statements.smoothed([y * abs(y) for y in ratios], SMOOTH)
    ratio = Series(x=xs, y=[max(power, 0.0) ** 0.5 for power in powers], colour="green")
    panel = Panel(label="signal / noise", series=[ratio], limits=(0.0, None))
    told = SIGNAL.format(of="round" if of_clients else "step of a client")
    yield from over_rounds(run, "signal", "Signal to noise", told, panel)
    yield from _absences(run)
    yield from clock(run, WAITED)
    yield from holdings(run)


def _pace(run: Run) -> Iterator[Figure]:
    """Yield local steps per round, with the even pace R_c / R_s."""
    xs, tau = points(run.rounds, "round", "tau")
    if not xs:
        return
    paid, rounds = number(run.about.facts.R_c), number(run.about.R_s)
    marks = []
    if paid and rounds and math.isfinite(even := paid / rounds):
        marks.append(Mark(even, f"pace R_c / R_s = {even:.3g}", legend=True))
    steps = Series(x=[xs[0] - 1, *xs], y=[tau[0], *tau], kind="step", holds="before")
    panel = Panel(label="tau", series=[steps], marks=marks, limits=(0.0, None), whole=True)
    caption = TAU + ("" if run.of_clients else PACE)
    yield from over_rounds(run, "pace", "Local steps per round", caption, panel)


def _absences(run: Run) -> Iterator[Figure]:
    """Yield late and lost answers per round, one upon the other."""
    late, lost = (Counter(filter(None, places(run, kind, MOST_ROUNDS))) for kind in KINDS)
    missing = {
        int(x): int(y) for x, y in zip(*points(run.rounds, "round", "missing"), strict=True) if y
    }
    if not late and not lost and not missing:
        return
    last = int(max([*run.values("round"), *missing, *late, *lost]))
    xs, edges = range(1, last + 1), [x - 0.5 for x in range(1, last + 2)]
    below, above, step = ([kind.get(x, 0) for x in xs] for kind in (late, lost, missing))
    series = [
        Series(kind="histogram", name="late", x=edges, y=below),
        Series(kind="histogram", name="lost", colour="orange", x=edges, y=above, base=below),
    ]
    if missing:
        name, steps = "missing when the round closed", [step[0], *step]
        series.append(
            Series(kind="step", holds="around", name=name, colour="ink", x=[0, *xs], y=steps)
        )
    title = "Late and lost answers"
    panel = Panel(label="answers", series=series, limits=(0.0, None), whole=True)
    yield from over_rounds(run, "absences", title, ABSENT, panel, label=f"{title} per round")


def coded(values: Sequence[int]) -> list[str]:
    """Run-length coding in words."""
    found, first = [], 1
    for value, same in groupby(values):
        last = first + len(list(same)) - 1
        place = f"round {first}" if first == last else f"rounds {first} to {last}"
        found.append(f"{value} in {place}")
        first = last + 1
    return found


def facts(run: Run) -> list[statements.Fact]:
    planned = f"of {plain(run.about.facts.R_c)} planned"
    drawn = "of a client drawn in each round"
    return [("local steps", str(run.steps), drawn if run.of_clients else planned)]


def courses(run: Run) -> list[statements.Course]:
    lines = coded([int(tau) for tau in run.values("tau")])
    if run.number and not lines:  # at a site, which is told steps alone
        return []
    intro = "tau:" if lines else "No round is closed yet."
    return [statements.Course("Local steps, round by round", intro=intro, lines=lines)]


def terms(run: Run, noise: float | None, clip: float | None) -> list[tuple[str, str]]:
    about, deviation = run.about, "-"
    if noise is not None and clip is not None:
        deviation = f"sigma C = {plain(noise * clip, 6)}, on a sum of clipped contributions"
    charge, batches = "round" if run.of_clients else "step", known(horizontal(run).batches)
    return [
        *_shared(run),
        ("clipping norm C", plain(clip, 6)),
        ("noise multiplier sigma", plain(noise, 6)),
        ("noise on each number", deviation),
        (
            ("sampling rate q", plain(horizontal(run).sampling_rate, 6))
            if batches is None
            else (f"{_in_turn(run.of_clients)} of a pass, in a public order", plain(batches))
        ),
        (f"numbers released per {charge}", plain(about.facts.dimension)),
        ("local steps planned, R_c", plain(about.facts.R_c)),
        ("rounds planned, R_s", plain(about.R_s)),
    ]


def _shared(run: Run) -> list[tuple[str, str]]:
    """Return the terms of a sum whose noise clients share."""
    told = known(run.about.facts.shared) if isinstance(run.about.facts, Synchronous) else None
    if told is None:
        return []
    log = number(told.overflow)
    return [
        ("noise", f"shared by the clients; {plain(told.honest)} of them honest"),
        ("contributions below which a sum is not opened", plain(told.fewest)),
        ("opened sums", f"modulo 2^{plain(told.bits)}, {known(told.rounding)} rounding"),
        ("step of the grid", plain(told.step, 6)),
        ("noise of one client, in steps", plain(told.deviation, 6)),
        ("chance of any overflow", "-" if log is None else f"below 2^{math.ceil(log)}"),
    ]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the grid: a q and a tau at the study's epsilon and rounds.

    Attributes:
        sampling_rate: q.
        tau: local steps in each round.
        steps: tau times the rounds.
        noise_multiplier: calibrated sigma.
        relative_noise: sigma / (q n), in units of 1e-6 of C per example.
        compute: examples that one client of average size works through.
    """

    sampling_rate: float
    tau: int
    steps: int
    noise_multiplier: float
    relative_noise: float
    compute: float


MOST_CLIENTS = 20
COHORTS = (
    "with Poisson cohorts, which holds only if nobody learns who takes part (not where a round "
    "takes whoever is there)"
)


def advised(
    study: SynchronousStudy,
    cells: Sequence[Cell],
    caps: Mapping[int, float],
    steps: int,
    passes: Mapping[int, Mapping[str, float]],
) -> list[statements.Paragraph]:
    """Return sampling rates and tau at the study's epsilon, for people.

    Args:
        caps: the noise multiplier by the most rows of one person.
        steps: that are planned.
        passes: multipliers with and without secret sampling, by the batches of a pass.
    """
    rows = [
        [
            f"{c.sampling_rate:g}",
            str(c.tau),
            str(c.steps),
            f"{c.noise_multiplier:.3f}",
            f"{1e6 * c.relative_noise:.1f}",
            f"{c.compute:,.0f}",
        ]
        for c in cells
    ]
    head = ["q", "tau", "steps", "sigma", "sigma/(q n) x 1e6", "examples per client"]
    title = (
        f"epsilon {epsilon_text(study.privacy.epsilon)} in {study.budget.rounds} rounds: what "
        "sampling rate and tau would give"
    )
    return [
        Table(title, head, rows),
        "sigma/(q n) is the noise of an averaged step relative to the data. Lower is better. "
        "The last column is the computing cost.",
        *_advised_passes(study, steps, passes),
        *_advised_rows(study, caps),
    ]


def _advised_rows(study: SynchronousStudy, caps: Mapping[int, float]) -> list[statements.Paragraph]:
    """Return the noise by the most rows of one person, with the rows that are kept, where public
    numbers say so.
    """
    if not caps:
        return []
    data = study.data
    head = ["data.person_rows", "sigma", "pays from, times the rows"]
    rows = [[str(k), f"{s:.3f}", f"{s / caps[1]:.2f}"] for k, s in caps.items()]
    said = (
        "A larger number pays if it keeps so many times the rows that one row of each person "
        "keeps. Judge that by what is public of such data, and not by these rows: "
        "data.person_histogram says how many persons have how many rows."
    )
    shares = {k: kept for k in caps if (kept := data.kept(k)) is not None}
    if shares:
        head += ["rows kept", "sigma / rows kept"]
        for each, (k, share) in zip(rows, shares.items(), strict=True):
            each += [f"{share:.1%}", f"{caps[k] / share:.2f}"]
        best = min(shares, key=lambda k: (caps[k] / shares[k], k))
        said = (
            f"By data.person_histogram, person_rows = {best} has the least noise beside the rows "
            f"that are kept, {shares[best]:.0%} of all."
        )
    title = "the most rows of one person, at this sampling rate and number of steps"
    return [
        Table(title, head, rows),
        said,
        f"privacy.clip_per = 'person' draws persons and has sigma {caps[1]:.3f} for any number of "
        "rows: each person then counts as one row that is the sum of theirs.",
    ]


def plan_told(study: SynchronousStudy, plan: Plan) -> list[statements.Paragraph]:
    """Return a plan, for people."""
    if math.isinf(plan.epsilon) and not plan.most:
        return [f"no privacy: epsilon is infinite; {plan.rounds} rounds"]
    made = "calibrated" if plan.calibrated else "given"
    charged = "rounds" if study.privacy.unit == "client" else "local steps"
    end = "the privacy budget" if plan.ends == "privacy" else "the round budget"
    taken = f"{plan.used} {charged} in {len(plan.curve)} of {plan.rounds} rounds"
    batches, turns = f"sampling rate {study.privacy.sampling_rate:g}", _in_turn(study.aggregated)
    if study.batches is not None:
        batches = f"passes of {study.batches} {turns} in a public order"
    count = study.batches or max(round(1.0 / study.privacy.sampling_rate), 1)
    return [
        f"noise multiplier {plan.noise_multiplier:g} ({made}), {batches}, clip "
        f"{study.privacy.clip:g}",
        *samplings_told(plan, COHORTS if study.aggregated else BATCHES, f"{count} {turns}"),
        *_plan_clients(plan),
        *_plan_shared(study, plan),
        most_table(f"R_c: most {charged}", charged, study, plan),
        _plan_curve(plan),
        *_plan_noise(study, plan),
        f"{end} ends the run: {taken}, epsilon {epsilon_text(plan.epsilon)}",
    ]


def _in_turn(whole: bool) -> str:
    """The parts of a pass."""
    return "blocks of clients" if whole else "batches"


def _advised_passes(
    study: SynchronousStudy, steps: int, passes: Mapping[int, Mapping[str, float]]
) -> list[statements.Paragraph]:
    """Return what batches without secret sampling would give, by how many a pass has."""
    if not passes:
        return []
    rows = [
        [str(count), str(-(-steps // count)), *(f"{each[name]:.3f}" for name in SAMPLINGS)]
        for count, each in passes.items()
    ]
    better = [count for count, each in passes.items() if each["correlated"] < each["poisson"]]
    found = (
        "Correlated noise in passes is better than Poisson sampling with "
        f"{', '.join(map(str, better))} batches of a pass"
        if better
        else "Poisson sampling has less noise than passes with each number of batches here"
    )
    return [
        Table(
            f"epsilon {epsilon_text(study.privacy.epsilon)} in {steps} steps, with and without "
            "secret sampling: noise that adds up over all steps, as a noise multiplier",
            ["batches", "passes", *SAMPLINGS],
            rows,
        ),
        f"{found}, at this epsilon and number of steps. Where batches cannot be kept secret, the "
        "price of Poisson sampling is false, and there is no such choice.",
    ]


def _plan_clients(priced: Plan) -> list[Table]:
    """Return what each client spends, adds and counts for, where that differs."""
    rows = [
        [str(client), epsilon_text(epsilon), statements.number_text(sigma), f"{100 * weight:.3g} %"]
        for client, (epsilon, sigma, weight) in enumerate(priced.clients[:MOST_CLIENTS])
    ]
    more = len(priced.clients) - len(rows)
    title = "Each client's own epsilon" + (f"; {more} more are not shown" if more else "")
    head = ["client", "epsilon", "noise multiplier", "weight in the average"]
    return [Table(title, head, rows)] if rows else []


def _plan_shared(study: SynchronousStudy, priced: Plan) -> list[str]:
    """Return whose noise a sum has, and the grid that it is counted on."""
    grid = priced.shared
    if grid is None:
        return []
    return [
        f"noise shared by {len(grid.reach)} clients: enough with {study.honest} honest parts; a "
        f"sum of fewer than {study.fewest} is not opened. The server sees who contributes and the "
        "opened sums, no single contribution",
        f"sums modulo 2^{grid.bits} in steps of 2^{math.log2(grid.step):.0f}, {grid.rounding} "
        f"rounding ({100 * (grid.growth - 1):.2g} % more noise), {grid.deviation:.4g} steps of "
        "noise from each; chance that any number overflows: below "
        f"2^{math.ceil(grid.overflow):.0f}",
    ]


def _plan_curve(priced: Plan) -> Table:
    """Epsilon after the first round, each quarter of the rounds, and the last."""
    rounds = len(priced.curve)
    shown = sorted({0, rounds // 4, rounds // 2, 3 * rounds // 4, rounds - 1})
    what = "epsilon" if priced.claimed is None else "claimed epsilon"
    rows = [[str(k + 1), epsilon_text(priced.curve[k])] for k in shown]
    return Table(f"{what} after round, at the planned pace", ["round", what], rows)


def _plan_noise(study: SynchronousStudy, priced: Plan) -> list[str]:
    """Expected batch, or cohort, and how strong the noise is."""
    if priced.batches is None or priced.signal_to_noise is None or priced.relative_noise is None:
        return []
    (low, middle, high), most = priced.batches, f"at most {priced.signal_to_noise:.3f}"
    if study.privacy.unit == "client":
        cohort = f"expected cohort: {middle:.1f} clients"
        return [f"{cohort}; signal to noise of a round: {most}"]
    batch = f"{low:.1f} (smallest client), {middle:.1f} (median), {high:.1f} (largest)"
    told = [f"expected batch: {batch}"]
    if priced.shared is not None:
        return [*told, f"signal to noise of the sum of all clients: {most}"]
    relative = f"sigma/(q n): {priced.relative_noise:.2g}"
    return [
        *told,
        f"signal to noise of one step at the median client: {most}",
        f"noise of an averaged step relative to the data, {relative}",
    ]


TELLER = replace(OF_CLIENTS, facts=facts, courses=courses, terms=terms, figures=figures)
