"""What the page tells of runs in which every client has examples of its own."""

from __future__ import annotations

from collections.abc import Iterable

from sordino.clients.records import Holder, horizontal
from sordino.core.records import known, number
from sordino.core.runs import Run
from sordino.core.teller import Drawn, Members, Teller
from sordino.report import figures, partition
from sordino.report.album import evaluated, measured
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
    """How many examples all clients have."""
    members = horizontal(run).members
    sizes = [size for each in members if (size := known(each.examples)) is not None]
    return f"{sum(sizes):,} examples".replace(",", "\u202f")


def holdings(run: Run) -> Drawn:
    """How examples are divided among clients."""
    words, held = (
        run.vocabulary,
        [known(client.labels) or () for client in horizontal(run).members],
    )
    if not any(held):
        return "", None, "", ""
    names = [called(client) for client in horizontal(run).members]
    picture = partition.partition_figure(held, known(run.about.facts.classes) or (), words, names)
    caption = MANY if len(held) > partition.MOST_BUBBLES else FEW
    told = caption.format(
        client=words.client, clients=words.clients, Clients=words.clients.capitalize()
    )
    return "Who holds what", picture, told, SIMULATED.format(clients=words.clients)


def called(client: Holder) -> str:
    """A client by its name, where it has one, else by its number."""
    name, index = known(client.name), known(client.client)
    return clean(name, 60) if name else "" if index is None else str(index)


def holders(run: Run) -> Members:
    """Clients with examples of their own."""
    words, clients, classes = (
        run.vocabulary,
        horizontal(run).members,
        list(known(run.about.facts.classes) or ())[:MOST_CLASSES],
    )
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
        simulated
        if counted
        else "Labels are numbers."
        if known(horizontal(run).span)
        else "How many of each label there are is private.",
        (
            words.client,
            "unit",
            "examples",
            *(("epsilon spent", "budget") if spent else ()),
            *(classes if counted else ()),
        ),
        rows,
    )


def by_client(run: Run) -> list[tuple[str, str]]:
    """What each client has spent, and may spend, where run.json says so; else nothing."""
    spent = known(run.result.spent)
    if not run.private or spent is None or len(spent) != len(run.clients):
        return []
    values = [number(each) for each in spent]
    budgets = client_budgets(run, len(spent))
    return [(bound(value, 5), bound(own)) for value, own in zip(values, budgets, strict=True)]


def client_budgets(run: Run, count: int) -> list[float]:
    """What each edge may spend: its own epsilon, or that of all."""
    own = [number(each) for each in known(horizontal(run).epsilons) or ()]
    stated = [value for value in own if value is not None]
    return stated if len(stated) == len(own) == count else [run.budget] * count


def pictures(run: Run) -> Iterable[Drawn]:
    """Accuracy and epsilon over rounds, and how examples are divided."""
    words = run.vocabulary
    yield f"{measured(run)} over {words.rounds}", figures.learning(run, "round"), evaluated(run), ""
    yield holdings(run)


TELLER = Teller(members=holders, pictures=pictures, held=held, unseen=unseen)
