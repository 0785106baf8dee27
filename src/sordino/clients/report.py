"""The page of runs in which every client has examples of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from sordino.clients.records import LISTED, Crowd, Holder, horizontal
from sordino.core import regimes, statements
from sordino.core.records import Declined, Row, known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Figure, Mark, Panel, over_rounds, trace
from sordino.report.canvas import clean
from sordino.report.words import bound

MOST_CLASSES = 40

UNMEASURED = "no test set: data.test = 'none'"
MANY = (
    "Examples of each label (column) at the {clients} (rows): the darker, the more; none "
    "is left blank. {Clients} are ordered by the label"
    " they hold most of. Dark steps from the upper left to the lower right mean that each "
    "{client} holds few labels; even columns mean"
    " evenly divided data."
)
FEW = (
    "Examples of each label at each {client}: the larger a dot's area, the more. Rows that "
    "look alike mean evenly divided data."
)
SIMULATED = "known because this is a simulation, not released by {clients}"


def unseen(run: Run) -> str | None:
    """Why there is no accuracy, where no model is measured."""
    tested = known(horizontal(run).test)
    return UNMEASURED if tested is not None and tested.kind == "none" else None


def held(run: Run) -> str:
    """Return how many examples all clients have."""
    crowd = known(horizontal(run).crowd)
    sizes = sizes_of(run)
    if not sizes:
        return "numbers of examples are private"
    count = sum(sizes) if crowd is None else known(crowd.examples) or 0
    return f"{count:,} examples".replace(",", "\u202f")


def sizes_of(run: Run) -> list[int]:
    """Return numbers of examples of clients, where they are public; of a crowd, the least and the
    most.
    """
    said = horizontal(run)
    crowd = known(said.crowd)
    told = [each.examples for each in said.members]
    told = told if crowd is None else [crowd.least, crowd.most]
    return [size for each in told if (size := known(each)) is not None]


def holdings(run: Run) -> Iterator[statements.Matrix]:
    """Yield how examples are divided among clients, where labels are counted."""
    held = [known(client.labels) or () for client in horizontal(run).members]
    if any(held):
        names = [called(client) for client in horizontal(run).members]
        yield division(held, known(run.about.facts.classes) or (), run.vocabulary, names)


def division(
    counts: Sequence[Sequence[int]],
    classes: Sequence[str],
    words: regimes.Vocabulary | None = None,
    names: Sequence[str] = (),
) -> statements.Matrix:
    """Return the figure of how many examples of each class (column) each client (row) has.

    >>> division([[3, 0], [1, 2]], ["cat", "dog"]).label
    'Examples of each label at each client'
    """
    words = words or regimes.vocabulary(None)
    many = len(counts) > statements.MOST_DOTS
    return statements.Matrix(
        key="partition",
        title="Who holds what",
        caption=(MANY if many else FEW).format(
            client=words.client, clients=words.clients, Clients=words.clients.capitalize()
        ),
        label=f"Examples of each label at each {words.client}",
        rows=names,
        columns=classes,
        counts=counts,
        y=f"{words.clients}, ordered by the label they hold most of" if many else words.client,
        corner=words.client,
        remark=SIMULATED.format(clients=words.clients),
    )


def learning(
    run: Run, title: str, caption: str, over: str = "round", marks: Sequence[Mark] = ()
) -> Iterator[Figure]:
    """Yield accuracy, and below it epsilon with its budget, over "round" or "steps".

    Args:
        title, caption: what follows the names of the curves.
        marks: where something new begins.
    """
    measure, words = run.vocabulary.accuracy, run.vocabulary
    factor = 100 if measure.percent else 1
    validation = trace(
        run, "validation", 100, x=over, name="validation", colour="green", dash="dashed"
    )
    checked = [validation] if validation.x else []
    test = trace(run, measure.key, factor, x=over, name="test" if checked else "")
    panels, shown = list[Panel](), list[str]()
    if test.x:
        shown.append(measure.told)
        label = f"{measure.told} (%)" if measure.percent else measure.told
        series = [test, *checked]
        panels.append(Panel(label=label, series=series, marks=marks, percent=measure.percent))
    spent = trace(run, "epsilon", x=over, colour="orange")
    if run.private and spent.x:  # without a promise, a finite number would look like one
        shown.append("epsilon")
        lines = [Mark(run.budget, "budget"), *([] if test.x else marks)]
        panels.append(Panel(label="epsilon spent", series=[spent], marks=lines, limits=(0.0, None)))
    if panels:
        counted = {"round": words.round, "steps": words.steps_of_one}[over]
        curves = " and ".join(shown)
        yield Figure(
            key=f"learning-{over}",
            title=f"{measured(run)} {title}",
            caption=caption,
            label=f"{curves[:1].upper()}{curves[1:]} over {counted}",
            x=counted,
            panels=panels,
        )


def measured(run: Run) -> str:
    """Return what a curve over the course of a run shows: the start of a title."""
    measure = run.vocabulary.accuracy
    if not run.values(measure.key):
        return "Epsilon"
    name = measure.told[:1].upper() + measure.told[1:]
    return f"{name} and epsilon" if run.private else name


def evaluated(run: Run) -> str:
    """Return how to read such a curve."""
    words = run.vocabulary
    spent = (
        f"epsilon spent by the {words.client} that spent most; it must stay under the dashed "
        "budget."
    )
    if not run.values(words.accuracy.key):
        return spent.capitalize()
    return f"{words.accuracy.share}, after the {words.rounds} that were evaluated." + (
        f" Below, {spent}" if run.private else ""
    )


def clock(run: Run, caption: str) -> Iterator[Figure]:
    """Yield the virtual time at which rounds closed, unless every round took equally long."""
    line = trace(run, "time")
    lasted = [
        (b - a) / max(y - x, 1.0)
        for (x, a), (y, b) in pairwise([(0.0, 0.0), *zip(line.x, line.y, strict=True)])
    ]
    if lasted and max(lasted) - min(lasted) >= 1e-9 * max(1.0, max(lasted)):
        words = run.vocabulary
        label = f"Virtual time at which each {words.round} was {words.closed}"
        panel = Panel(label="virtual seconds", series=[line], limits=(0.0, None))
        yield from over_rounds(run, "clock", "Virtual time", caption, panel, label=label)


def places(run: Run, kind: str, most: int) -> list[int]:
    """Return the rounds, below ``most``, in which rows of a kind were logged."""
    found = [known(row.round) for row in run.others if isinstance(row, Row) and row.kind == kind]
    return [at for at in found if at is not None and at < most]


def called(client: Holder) -> str:
    """A client by its name, where it has one, else by its number."""
    name, index = known(client.name), known(client.client)
    return clean(name, 60) if name else "" if index is None else str(index)


def holders(run: Run) -> statements.Members:
    """Clients with examples of their own."""
    if (crowd := known(horizontal(run).crowd)) is not None:
        return _crowd(crowd, run.vocabulary)
    words, clients = run.vocabulary, horizontal(run).members
    classes = list(known(run.about.facts.classes) or ())[:MOST_CLASSES]
    head = [words.client, "unit", "examples"]
    rows = [
        [called(c), known(c.unit) or "", "-" if (n := known(c.examples)) is None else str(n)]
        for c in clients
    ]
    if spent := by_client(run):
        head += ["epsilon spent", "budget"]
        for row, cells in zip(rows, spent, strict=True):
            row += cells
    declined = (each for each in run.others if isinstance(each, Declined))
    refused = {known(each.client): clean(known(each.why) or "", 160) for each in declined}
    if spent and refused:  # where the server tells of sites
        head.append("refused, and why")
        for i, row in enumerate(rows):
            row.append(refused.get(i, "-"))
    title, note = f"{len(clients)} {words.clients} and their examples", "Labels are numbers."
    if any(known(each.labels) for each in clients):
        title += " of each label"
        note = f"Known because this is a simulation, not released by {words.clients}."
        head += classes
        for row, each in zip(rows, clients, strict=True):
            row += map(str, (known(each.labels) or ())[: len(classes)])
    elif not known(horizontal(run).span):
        note = "How many of each label there are is private."
    return statements.Members(title, note, head, rows)


def _crowd(crowd: Crowd, words: regimes.Vocabulary) -> statements.Members:
    """More clients than are listed."""
    told = (crowd.clients, crowd.unit, crowd.examples, crowd.least, crowd.most)
    row = ["-" if known(each) is None else str(each) for each in told]
    least, most = (f"{each} examples of a {words.client}" for each in ("fewest", "most"))
    return statements.Members(
        f"{known(crowd.clients)} {words.clients}",
        f"More than {LISTED} {words.clients} are not listed one by one.",
        (words.clients, "unit", "examples", least, most),
        [row],
    )


def by_client(run: Run) -> list[tuple[str, str]]:
    """Return what each client has spent, and may spend, where run.json says so; else nothing."""
    spent = known(run.result.spent)
    if not run.private or spent is None or len(spent) != len(run.clients):
        return []
    values = [number(each) for each in spent]
    budgets = client_budgets(run, len(spent))
    return [(bound(value), bound(own)) for value, own in zip(values, budgets, strict=True)]


def client_budgets(run: Run, count: int) -> list[float]:
    """Return what each edge may spend: its own epsilon, or that of all."""
    own = [number(each) for each in known(horizontal(run).epsilons) or ()]
    stated = [value for value in own if value is not None]
    return stated if len(stated) == len(own) == count else [run.budget] * count


def figures(run: Run) -> Iterator[Figure | statements.Matrix]:
    """Yield accuracy and epsilon over rounds, and how examples are divided."""
    yield from learning(run, f"over {run.vocabulary.rounds}", evaluated(run))
    yield from holdings(run)


TELLER = statements.RegimeReport(members=holders, figures=figures, held=held, unseen=unseen)
