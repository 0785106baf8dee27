"""Words for people, of a study and of a run: the guarantee in one sentence and what it rests on,
and a regime's sentences, tables and figures.

A regime says what it has; the page does without the rest, and :mod:`sordino.report` alone draws.

A figure is one panel, or several above each other with a common x axis:

>>> accuracy = Series(x=(1, 2), y=(50.0, 60.0))
>>> figure = Figure(
...     key="accuracy",
...     title="Accuracy",
...     caption="Share of the test set that is classified correctly.",
...     label="Accuracy over rounds",
...     x="round",
...     panels=(Panel(label="accuracy (%)", series=(accuracy,), marks=(Mark(90.0, "goal"),)),),
... )
>>> figure.end
2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
from msgspec import UNSET

from sordino.base.errors import StudyError
from sordino.core import regimes
from sordino.core.plan import Balance
from sordino.core.records import PERSON, Round, at, known, number
from sordino.core.run.reading import Run
from sordino.core.study.base import Study, tuned_sentence
from sordino.privacy import LedgerSession
from sordino.privacy.rounding import epsilon_text
from sordino.privacy.session import PLAN

DECADES = 20.0
"""From this ratio of highest to lowest on, an axis is logarithmic."""
MOST_DOTS = 30
"""Rows of a matrix that are drawn as dots."""

Kind = Literal["line", "points", "step", "area", "bar", "histogram", "dots"]
Colour = Literal[
    "blue", "orange", "green", "purple", "sky", "yellow", "indigo", "grey", "red", "ink", "quiet"
]
Dash = Literal["solid", "dashed", "dotted", "dash-dot"]
PALETTE: tuple[Colour, ...] = get_args(Colour)[:8]
DASHES: tuple[Dash, ...] = get_args(Dash)


def look(number: int) -> tuple[Colour, Dash]:
    """Return colour and dash of one of many series, different for each of the first 32.

    >>> look(0), look(9)
    (('blue', 'solid'), ('orange', 'dashed'))
    """
    return PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of one kind over a common x axis.

    Attributes:
        x: places; of a histogram the edges of its bins, one more than there are values.
        y: values; not-a-number leaves a gap. With a ``base``, the height above it.
        name: in the legend; empty for a series that needs none.
        kind: how the values are drawn.
        colour: as it has in every figure of a page.
        base: where bars, areas and histograms begin, 0 unless given: the sum of what is below.
        holds: where a step holds its value: up to its x, from its x on, or around it.
        dash: of a line; not solid where it is a bound or a plan and no measurement.
        filled: of a histogram; else its outline is drawn.
        texts: at the end of each bar, or above it.
        spread: the lowest and the highest at each x: a band around a line, bars at points.
        open: which points are bounds and no measurements, if any.
    """

    x: Sequence[float]
    y: Sequence[float]
    name: str = ""
    kind: Kind = "line"
    colour: Colour = "blue"
    base: Sequence[float] | None = None
    holds: Literal["before", "after", "around"] = "after"
    dash: Dash = "solid"
    filled: bool = True
    texts: Sequence[str] = ()
    spread: tuple[Sequence[float], Sequence[float]] | None = None
    open: Sequence[bool] = ()


class Mark(msgspec.Struct, frozen=True):
    """A line across a panel.

    Attributes:
        at: its place on the axis.
        text: beside the line, or in the legend.
        axis: which axis ``at`` is on; a mark on x goes through all panels.
        style: dotted where something new begins, dashed for a bound, solid for a mean.
        legend: whether the text stands in the legend.
    """

    at: float
    text: str = ""
    axis: Literal["x", "y"] = "y"
    style: Dash = "dashed"
    legend: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Series above one x axis.

    Attributes:
        label: of the y axis, with its unit.
        series: what is drawn, in this order.
        marks: lines across.
        limits: of the y axis. An end that is None is chosen from the values; 0 stays in sight.
        log: whether the y axis is logarithmic.
        percent: whether values are shares, so that the axis ends at 0 and at 100.
        whole: whether only whole numbers stand at the axis.
    """

    label: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    limits: tuple[float | None, float | None] = (None, None)
    log: bool = False
    percent: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One picture of a page.

    Attributes:
        key: its name, of letters and hyphens; unique on a page.
        title, caption: above and below it; the caption says how to read it.
        label: for readers who do not see it.
        panels: one above the other.
        x: label of the x axis.
        limits: of the x axis; from 0 to the last x unless given.
        log: whether the x axis, of lying bars that of their values, is logarithmic.
        ticks: numbers on that axis, with their texts; chosen from the values unless given.
        names: of the places 0, 1, 2, ... where series are bars.
        lying: whether bars lie, one for each name, the first on top.
        remark: where the numbers come from, where that must be said.
        note: a few words inside, at the right.
        table: head and rows of the numbers, where the series themselves do not tell them.
        width: inches.
        height: of one panel, in inches.
    """

    key: str
    title: str
    caption: str
    label: str
    panels: Sequence[Panel]
    x: str
    limits: tuple[float, float] | None = None
    log: bool = False
    ticks: Sequence[tuple[float, str]] = ()
    names: Sequence[str] = ()
    lying: bool = False
    remark: str = ""
    note: str = ""
    table: tuple[Sequence[str], Sequence[Sequence[object]]] | None = None
    width: float = 5.6
    height: float = 1.6

    @property
    def end(self) -> float:
        """The last x of all series."""
        return max((x for panel in self.panels for one in panel.series for x in one.x), default=0.0)


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """Counts by row and column.

    Attributes:
        key, title, caption, label, remark: as of a :class:`Figure`.
        rows, columns: their names; rows without names are numbered.
        counts: one for each row and column.
        x, y: labels of the axes.
        corner: what the rows are, the head of their column in a table.
        kind: whether a count is seen as the share of its row, or as the number that it is.
    """

    key: str
    title: str
    caption: str
    label: str
    rows: Sequence[str]
    columns: Sequence[str]
    counts: Sequence[Sequence[int]]
    x: str = ""
    y: str = ""
    corner: str = ""
    kind: Literal["shares", "numbers"] = "numbers"
    remark: str = ""

    @property
    def many(self) -> bool:
        """True if rows of numbers are too many for dots: they are put in order, as a map."""
        return len(self.counts) > MOST_DOTS


Curve = tuple[list[float], list[float]]
LARGEST = 1e100
"""Numbers beyond it are not drawn: margins of an axis and means of a few of them overflow."""


def points(rows: Sequence[Round], x: str, y: str) -> Curve:
    """The rows that have both numbers, and can be drawn, as two lists.

    >>> rows = [Round(round=1, loss=0.5), Round(round=2), Round(round=3, loss=1e308)]
    >>> points(rows, "round", "loss")
    ([1.0], [0.5])
    """
    pairs = [(number(at(row, x)), number(at(row, y))) for row in rows]
    kept = [
        (a, b)
        for a, b in pairs
        if a is not None and b is not None and abs(a) <= LARGEST and abs(b) <= LARGEST
    ]
    return [a for a, _ in kept], [b for _, b in kept]


def trace(
    run: Run,
    key: str,
    factor: float = 1.0,
    *,
    x: str = "round",
    name: str = "",
    colour: Colour = "blue",
    dash: Dash = "solid",
) -> Series:
    """Return a number of the rows of a run, times a factor, as a line over another of them."""
    xs, ys = points(run.rounds, x, key)
    return Series(x=xs, y=[factor * y for y in ys], name=name, colour=colour, dash=dash)


def over_rounds(
    run: Run,
    key: str,
    title: str,
    caption: str,
    *panels: Panel,
    label: str = "",
    limits: tuple[float, float] | None = None,
    table: tuple[Sequence[str], Sequence[Sequence[object]]] | None = None,
) -> Iterator[Figure]:
    """Yield a figure over the rounds of a run, where it has values; its label is its title unless
    given.
    """
    if any(series.x for panel in panels for series in panel.series):
        yield Figure(
            key=key,
            title=title,
            caption=caption,
            label=label or title,
            x=run.vocabulary.round,
            panels=panels,
            limits=limits,
            table=table,
        )


def smoothed(values: Sequence[float], last: int) -> list[float]:
    """Each value's mean with those before it, so many at most.

    >>> smoothed([1.0, 0.0, 0.5], 2)
    [1.0, 0.5, 0.25]
    """
    parts = (values[max(0, i - last + 1) : i + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in parts]


class Table(msgspec.Struct, frozen=True):
    """A table of words: a title, the names of the columns, and the rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


Paragraph = str | Table


class Advice(msgspec.Struct, frozen=True):
    """Other choices that a study has at its price: a cell for each choice, for machines, and the
    same for people.
    """

    cells: Sequence[object]
    told: Sequence[Paragraph]


def number_text(value: float | None, digits: int = 4) -> str:
    """A number for people.

    >>> number_text(None), number_text(float("inf")), number_text(0.53125, 3)
    ('-', 'inf', '0.531')
    """
    if value is None:
        return "-"
    return "inf" if math.isinf(value) else f"{value:.{digits}g}"


Fact = tuple[str, str, str]
"""Name, value, remark."""


class Course(msgspec.Struct, frozen=True):
    """A section of the page: how the run went on.

    Lines are one paragraph; a table has a head and rows, or pairs and no head.

    ``wordy`` tables hold sentences.
    """

    title: str
    intro: str = ""
    lines: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    wordy: bool = False


class Members(msgspec.Struct, frozen=True):
    """The participants: a line to open the table by, a note, the table."""

    summary: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a run besides privacy, where its regime counts messages.

    Attributes:
        up, down, framing: MiB.
        seconds: of computation at those who take part.
        activity: share of the work that they took part in, on average.
    """

    up: float
    down: float
    framing: float
    seconds: float
    activity: float | None

    @property
    def mebibytes(self) -> float:
        """All that was sent, MiB."""
        return self.up + self.down + self.framing


def _units(run: Run) -> Members:
    """Return who took part, by number and unit of the ledger."""
    clients = run.clients
    return Members(
        f"{len(clients)} {run.vocabulary.clients}",
        "",
        (run.vocabulary.client, "unit"),
        [["" if UNSET is c.client else str(c.client), known(c.unit) or ""] for c in clients],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeReport:
    """The parts of a page that a regime has to tell.

    Attributes:
        facts: what to see first.
        courses: how it went on.
        terms: of its guarantee, given sigma and C.
        members: who took part.
        figures: of its course, as data.
        held: what those who took part hold, in a few words.
        unseen: why there is no accuracy, where that is so.
        exposed: what its promise leaves open, and why; None where it holds for all that is
            released.
        costs: of messages; None where they are not counted.
    """

    facts: Callable[[Run], list[Fact]] = lambda run: []
    courses: Callable[[Run], list[Course]] = lambda run: []
    terms: Callable[[Run, float | None, float | None], list[tuple[str, str]]] = lambda run, s, c: []
    members: Callable[[Run], Members] = _units
    figures: Callable[[Run], Iterable[Figure | Matrix]] = lambda run: ()
    held: Callable[[Run], str] = lambda run: ""
    unseen: Callable[[Run], str | None] = lambda run: None
    exposed: Callable[[Run], str | None] = lambda run: None
    costs: Callable[[Run], Costs | None] = lambda run: None


SIMULATED = (
    "This is a simulation: batches and noise come from the study's seed, and a person who "
    "knows the seed can subtract the noise."
)
FLOATS = (
    "What is released lies on a public grid, with noise in whole numbers whose distribution is "
    "proved. Sums and norms are in floating point: the clip keeps a margin that is proved to cover "
    "their rounding, if one example's values leave the bits of others alone."
)
LOOKING = (
    "If clip, learning rate or anything else was chosen from results on the same private "
    "data, epsilon does not cover that choice."
)
OTHERS = (
    "If anything else was chosen from results on the same private data, epsilon does not cover "
    "that choice."
)
DRAWN = (
    "Batches and noise come from AES-256 under a secret key of the operating system. Where "
    "releases must be repeatable (a simulation, a party that trains its own half of a model), the "
    "key lies in the run's folder until the run ends: who reads it can subtract the noise. Then it "
    "is destroyed."
)
RECOGNISED = (
    "The data's ledger recognises a record by all of its values, or by all of its features, in "
    "whatever file and order they stand. It does not recognise a record with changed values, "
    "unless data.person identifies its person."
)
RELEASED = {
    "sample": "Everything that the clients send and the server publishes",
    "client": "Everything that the aggregator publishes",
    "label": "Everything that the server sends and publishes",
    "entity": "Everything that the parties and the server send and publish",
}
ADJACENCY = {
    "sample": "one example's contribution replaced by none (sizes are public)",
    "client": "one client's contribution, with all its data, replaced by none (sizes and the "
    "number of clients are public)",
    "label": "replace one entity's label",
    "entity": "replace one entity's label and its features at every party",
    "none": "none",
}
PAPER = (
    "The study asks for the paper's literal form. It sends values without noise, or with "
    "noise that gives no bound."
)


class SiteScope(msgspec.Struct, frozen=True):
    """The part of a run that one site of a network speaks for.

    Attributes:
        index: which site, from 0.
        released: what its promise is about; it knows nothing of what others release.
        unprotected: why what it has is not protected; None where it is.
    """

    index: int
    released: str
    unprotected: str | None = None


def adjacency(study: Study) -> str:
    """Which data sets are neighbours, in words."""
    return PERSON if study.of_persons else ADJACENCY[study.privacy.unit]


def guarantee(study: Study, epsilon: float | None, own: SiteScope | None = None) -> str:
    """The promise in words; with ``epsilon`` what was spent, without it the budget.

    Args:
        own: whose promise it is, where it is that of one site of a network.
    """
    privacy = study.privacy
    if own is not None and own.unprotected is not None and privacy.unit != "none":
        return (
            f"No privacy guarantee for what this site has: {own.unprotected}, and epsilon is "
            "infinite."
        )
    if privacy.unit == "none":
        return regimes.of(study).plain
    if study.method.unpriced is not None:
        return f"No privacy guarantee: epsilon is infinite. {PAPER}"
    if study.form == "paper":
        true = "far above what it claims" if epsilon is None else epsilon_text(epsilon)
        return (
            "No privacy guarantee: the study asks for the literal form of a mechanism; its true "
            f"epsilon is {true}."
        )
    value = privacy.epsilon if epsilon is None else guaranteed(study, epsilon)
    shown = "inf" if value is None else epsilon_text(value, 6)
    evaluated = ", and every evaluation on private test rows," if study.pays_to_test else ""
    regime = regimes.of(study)
    usual = regime.released(study) or RELEASED[privacy.unit]
    released = usual if own is None else own.released
    what, verb = f"{released}{evaluated}", "will be" if epsilon is None else "is"
    return (
        f"{what} {verb} (epsilon = {shown}, delta = {privacy.delta:g})-differentially private, by "
        f"the {privacy.accountant} accountant. Neighbouring data sets: {adjacency(study)}. "
        f"{regime.against(study)}"
    )


def of_other_runs(
    study: Study, ledgers: LedgerSession, held: Sequence[Balance], planned: str
) -> list[str]:
    """Return what a plan says of other runs over the same records.

    Args:
        ledgers: over a copy of the ledger.
        held: what it has for each unit.
        planned: the charges of one unit, and how many.
    """
    found = list[str]()
    try:
        ledgers.refuse_choosing(PLAN, chosen=looked(study))
    except StudyError as refusal:
        found.append(f"the run would be refused now: {refusal}")
    found += [] if ledgers.prices.waits is None else [ledgers.prices.waits]
    worst, total = min(held, key=lambda each: each.rank), max(each.total for each in held)
    if worst.spent and worst.steps != 0:
        states = f"after {planned} it will state epsilon {epsilon_text(total)}"
        if looked(study):
            states = "it chooses how much it spends, so it will state its whole budget"
        found.append(
            f"records have spent epsilon {epsilon_text(worst.spent)} in earlier runs, which this "
            f"one counts: {states}"
        )
    return found


def looked(study: Study) -> bool:
    """Return whether releases decide how many steps are taken, or with how much noise, or which of
    several trials on private data a run was: how often a client was asked differs from trial to
    trial.

    What was spent in the end is then a value chosen by looking, and no bound in itself: only the
    budget was fixed in advance, and the ledger stops the run before it (Rogers et al. 2016, on
    filters and odometers).
    """
    method, tuned = study.method, study.tuned
    best = tuned is not None and tuned.source == "private"
    return study.privacy.unit != "none" and (best or method.adapts_steps or method.adapts_noise)


def guaranteed(study: Study, spent: float, *, early: bool = False) -> float:
    """The epsilon that is a bound: what was spent, or the budget where releases chose that, or
    others, who saw releases and ended the run ``early`` or asked when they liked.
    """
    budget = math.inf if study.privacy.epsilon is None else study.privacy.epsilon
    chosen = early or looked(study)
    return max(budget, spent) if chosen and study.form == "sound" else spent


def assumptions(study: Study) -> list[str]:
    """Return what the guarantee, or the run, rests on."""
    found = regimes.of(study).assumptions(study)
    if study.privacy.ledger != "run":
        found = [*found, RECOGNISED]
    if study.tuned is not None:
        said = f"{tuned_sentence(study.tuned, study.privacy.accountant)} {OTHERS}"
        found = [said if each == LOOKING else each for each in found]
    return [
        DRAWN if each == SIMULATED and study.privacy.entropy == "system" else each for each in found
    ]


UNSTATED = (
    "which classes there are was read from the private rows (data.classes is not stated), and no "
    "epsilon covers that: a label that a single row has becomes an output of the model. State "
    "classes = [...] in [data] if the list is public"
)


DEALT = (
    "private rows are dealt to clients by their labels (data.partition), and no epsilon covers "
    "that: the numbers of rows of clients are public, and one other label changes them. This is "
    'allowed with privacy.entropy = "seed" only; the kinds "iid" and "column" tell no labels'
)


ASIDE = (
    "rows of clients are set aside and treated as public (data.validation, client_validation, "
    "test), and no epsilon covers that: models are measured on them exactly, and what is promised "
    "to a whole client holds for the rows that it trains on"
)


def uncovered(study: Study) -> list[str]:
    """List what is taken from private rows and not covered by the guarantee."""
    unit, data = study.privacy.unit, study.data
    if unit == "none":
        return []
    aside = unit == "client" and data.shows_clients
    return [UNSTATED] * data.reads_classes + [DEALT] * data.deals_by_label + [ASIDE] * aside
