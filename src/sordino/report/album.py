"""Which pictures a run gets, with their titles and how to read them; each regime has its own album."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sordino.engine.records import known
from sordino.report import arrivals, course, events, figures, partition
from sordino.report.canvas import inline
from sordino.report.load import Run

Drawn = tuple[str, str | None, str, str]
"""Title, picture if there is one, how to read it, mark."""

EVALUATED = "{share}, after the {rounds} that were evaluated."
SPENT = " Below, epsilon spent by the {client} that spent most; it must stay under the dashed budget."
PACE = " The dashed pace uses up steps and rounds together; above it steps run out first, below it rounds do."
MANY = (
    "Examples of each label (column) at the {clients} (rows): the darker, the more; none is left blank. {Clients} are ordered by the label"
    " they hold most of. Dark steps from the upper left to the lower right mean that each {client} holds few labels; even columns mean"
    " evenly divided data."
)
FEW = "Examples of each label at each {client}: the larger a dot's area, the more. Rows that look alike mean evenly divided data."
SIMULATED = "known because this is a simulation, not released by {clients}"
NORM = "Length of a gradient: the root of the mean square since the last row of the log."
NOISY = (
    "Length of a released gradient, without its noise: the root of the mean square since the last row, less what noise adds on average;"
    " a triangle where nothing was left."
)
BOUND = (
    " The dashed bound G_s cuts gradients of single examples, which are longer than their mean: a curve near it shows that much is cut;"
    " one below it need not mean that nothing is."
)
STALE = (
    "How many updates were made while a gradient was under way. tau_max is what learning rates are planned for; staler"
    " gradients are paid for and not applied."
)
GONE = "Edges that did not work: some had vanished with their task and came back, some have spent their budget and will not."
EACH = (
    "What the ledger has booked for each edge when the run ended, with what was reserved and not used. The line is its own budget;"
    " an edge that reaches it leaves."
)
RATE = "gamma_t, by which the server multiplies a gradient: known before the run."


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure: title, inline SVG (safe to embed), how to read it, and what must be known about where it comes from."""

    title: str
    svg: Any
    caption: str
    mark: str = ""


def pictures(run: Run) -> list[Picture]:
    """The figures of a run, those that have something to show."""
    drawn = ALBUMS.get(run.vocabulary.regime, rounds)(run)
    return [Picture(title, markup(picture), caption, mark) for title, picture, caption, mark in drawn if picture is not None]


def rounds(run: Run) -> Iterable[Drawn]:
    """Of a run in rounds."""
    what = _what(run)
    yield f"{what} over rounds", figures.learning(run, "round"), _accuracy(run) + " A round is one exchange with the server.", ""
    yield (
        f"{what} over local steps",
        None if run.of_clients else figures.learning(run, "steps"),
        "The same over local steps. Privacy is paid for by the step, communication by the round.",
        "",
    )
    pace = "tau, the local steps that each client took in a round."
    yield "Local steps per round", figures.pace(run), pace + ("" if run.of_clients else PACE), ""
    yield (
        "Clipped updates" if run.of_clients else "Clipped gradients",
        figures.share_clipped(run),
        ("Share of clients whose update was cut to the bound" if run.of_clients else "Share of gradients cut to the clipping norm")
        + ", as it was released, with noise. Near 100 % the norm is small and most of the signal is cut; near 0 % it is large and noise"
        " is wasted.",
        "",
    )
    yield (
        "Signal to noise",
        figures.signal(run),
        f"Estimated length of the signal in one {'round' if run.of_clients else 'step of a client'}, divided by that of its noise;"
        f" mean of the last {figures.SMOOTH} rounds. Much below 1, it moves the model mostly at random, and only the sum over clients"
        " and rounds learns. 0 means that no signal was seen above the noise.",
        "",
    )
    yield (
        "Late and lost answers",
        figures.absences(run),
        "Late answers came after their round was closed: paid for, not used. Lost clients never answered:"
        " the ledger counts them as if they had.",
        "",
    )
    waited = "Simulated seconds until each round was closed. A steep piece is a round that waited for somebody slow."
    yield "Virtual time", figures.clock(run), waited, ""
    yield _holdings(run)


def updates(run: Run) -> Iterable[Drawn]:
    """Of a run of arrivals."""
    staged = " Dotted lines are borders of stages, numbered above." if arrivals.marks(run) else ""
    reserved = " Budgets are booked in blocks before they are used, so it rises in steps." if run.private else ""
    yield f"{_what(run)} over updates", arrivals.progress(run), _accuracy(run) + reserved + staged, ""
    bounded = bool(arrivals.bounds(run))
    title = "Gradient norm and clipping bound" if bounded else "Gradient norm"
    yield title, arrivals.norms(run), NOISY + BOUND if bounded else NORM, ""
    yield "Staleness", arrivals.staleness(run), STALE, ""
    yield "Learning rate", arrivals.rates(run), RATE + staged, ""
    yield "Epsilon of each edge", arrivals.spending(run), EACH, ""
    yield "Edges away and gone", arrivals.presence(run), GONE, ""
    yield "Virtual time", figures.clock(run), "Simulated seconds until each update was done. Where it is steep, few answers came in.", ""
    yield _holdings(run)


ALBUMS: dict[str, Callable[[Run], Iterable[Drawn]]] = {"synchronous": rounds, "asynchronous": updates, "vertical": events.pictures}


def _what(run: Run) -> str:
    if not run.values("accuracy"):
        return "Epsilon"
    return "Accuracy and epsilon" if run.private else "Accuracy"


def _accuracy(run: Run) -> str:
    words = run.vocabulary
    if not run.values("accuracy"):
        return f"Epsilon spent by the {words.client} that spent most; it must stay under the dashed budget."
    return EVALUATED.format(share=words.accuracy.share, rounds=words.rounds) + (SPENT.format(client=words.client) if run.private else "")


def _holdings(run: Run) -> Drawn:
    words, held = run.vocabulary, [known(client.labels) or () for client in known(run.horizontal.clients) or ()]
    if not any(held):
        return "", None, "", ""
    names = [course.called(client) for client in known(run.horizontal.clients) or ()]
    picture = partition.partition_figure(held, known(run.about.facts.classes) or (), words, names)
    caption = MANY if len(held) > partition.MOST_BUBBLES else FEW
    told = caption.format(client=words.client, clients=words.clients, Clients=words.clients.capitalize())
    return "Who holds what", picture, told, SIMULATED.format(clients=words.clients)


def markup(picture: str) -> Any:
    """The SVG that we drew ourselves, marked as safe to embed."""
    from markupsafe import Markup

    return Markup(inline(picture))
