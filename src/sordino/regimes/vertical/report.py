"""What a run of events consists of: key numbers, releases, parties, how to read pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from sordino.core.records import known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Course, Fact, Members, RegimeReport
from sordino.regimes.vertical import figures as stream
from sordino.regimes.vertical.records import Party, vertical
from sordino.regimes.vertical.totals import totals
from sordino.report.costs import amount
from sordino.report.words import bound, estimated, percent, plain

ERROR = (
    "Run-time error is the share of wrong predictions{each}; every event is predicted before it is "
    "learned from. Accumulated error is the same over all events so far, the number that the run "
    "is judged by; it moves slowly, for early mistakes stay in it."
)
MARKED = (
    " At each dotted line the world changed at once{how}: the higher the jump and the "
    "longer the way down, the worse a method follows."
)
DRIFTS = {
    "classes": " (new shares of the classes)",
    "swap": " (two classes changed their names)",
    "features": " (gain and offset of the features)",
}
UNMARKED = {
    "classes": " The shares of the classes change all the time, too often to be marked.",
    "gradual": " The shares of the classes move all the time.",
    "swap": " Classes change their names too often to be marked.",
    "features": " Gain and offset of the features change as it goes on.",
}
REGRET = (
    "Above, the mean{each} of ‖∇S_t‖², the squared length of the gradient that the weights of "
    "server and parties follow. S_t is {what}. Below, its sum so far, the {kind} local regret: the "
    "flatter it becomes, the closer the method is to a point that moves no more; a straight line "
    "means that it gets no closer."
)
NOISY = " The noise in gradients is part of it."
ACTIVE = (
    "An active party gets a derivative and learns from the event, unless its model is frozen; a "
    "passive one answers with its embedding and learns nothing. Activity is what learning costs "
    "parties, in messages down and in work."
)
SILENT = {
    "last": " Where a passive party does not answer, its last embedding stands in.",
    "zeros": " Where a passive party does not answer, zeros stand in.",
    "skip": " Where a passive party does not answer, the event is not learned from.",
}
TRAFFIC = (
    "Embeddings up, derivatives down, {bits} bits a number; framing is what messages need besides: "
    "names, lengths, queries. Everybody sends up, only active parties get something down."
)
AGAIN = " Each event sends the last {count} embeddings again."
TIMES = (
    "Forward and backward passes and steps of active parties, forward passes of passive ones, and "
    "the server's work, each added up over parties. Measured while it ran: another machine, or "
    "another day, gives other numbers."
)
PRICES = (
    "What is planned to be released of one entity over the whole stream, priced for each unit of "
    "the ledger. The dashed line is the budget of what is promised, {promised}."
)
OPEN = " Bars that are missing are infinite: {why}."
COMPOSED = " An entity as a whole composes its label and its features at every party."
PROMISED = {"label": "the label", "entity": "the entity as a whole"}


def pictures(run: Run) -> Iterable[tuple[str, str | None, str, str]]:
    """Title, picture if there is one, how to read it, mark."""
    about, said, private = run.about, vertical(run), known(run.about.unit) not in (None, "none")
    length, changes, drift = stream.stretch(run), stream.marks(run), str(said.drift)
    each = " in the events since the last row of the log" + (
        "" if length is None else f", {plain(length)} at a time"
    )
    change = MARKED.format(how=DRIFTS.get(drift, "")) if changes else UNMARKED.get(drift, "")
    yield (
        "Error over the stream",
        stream.errors(run),
        ERROR.format(each=each) + change + estimated([run]),
        "",
    )
    local = REGRET.format(
        each=each, what=_followed(run), kind="static" if about.method == "slr" else "dynamic"
    )
    yield (
        "Local regret",
        stream.regret(run),
        local + (NOISY if private and known(said.open) is None else ""),
        "",
    )
    yield "Who was active", stream.activation(run), ACTIVE + SILENT.get(str(said.missing), ""), ""
    again = known(said.resends) or 1
    sent = TRAFFIC.format(bits=plain(number(said.precision))) + (
        AGAIN.format(count=plain(again)) if again > 1 else ""
    )
    yield "Bytes sent", stream.traffic(run), sent, ""
    yield "Computation", stream.times(run), TIMES, ""
    yield "Epsilon of what is released", stream.prices(run), _priced(run), ""


def _followed(run: Run) -> str:
    """S_t, in words."""
    window, alpha = number(vertical(run).window) or 1.0, number(vertical(run).alpha) or 1.0
    if window == 1:
        return "the loss of the event itself"
    if run.about.method == "slr":
        return f"the mean loss of the last {plain(window)} events at the weights of now"
    weighed = "all alike" if alpha == 1 else f"each {plain(alpha)} times as heavy as the next"
    return (
        f"the mean of the last {plain(window)} events' losses, {weighed}, each at the weights "
        "of its time"
    )


def _priced(run: Run) -> str:
    unit = str(known(run.about.unit))
    said = PRICES.format(promised=PROMISED.get(unit, unit))
    why = "; ".join(
        dict.fromkeys(what for _, epsilon, what in stream.released(run) if math.isinf(epsilon))
    )
    return said + (OPEN.format(why=why) if why else "") + (COMPOSED if unit == "entity" else "")


def _facts(run: Run) -> list[Fact]:
    found, whole, recent = totals(run), run.values("accumulated"), run.values("error")
    private, length = known(run.about.unit) not in (None, "none"), stream.stretch(run)
    how = ", estimated" if private else ""
    facts = [
        ("accumulated error", percent(whole[-1] if whole else None), f"of all events so far{how}"),
        (
            "run-time error",
            percent(recent[-1] if recent else None),
            f"of the last {plain(length)} events{how}",
        ),
    ]
    if found is not None:
        shares = (
            f"{100 * min(found.active):.3g} to {100 * max(found.active):.3g} % by party"
            if found.active
            else "-"
        )
        facts.append(("activity", percent(found.activity), shares))
        parts = (
            f"up {amount(found.up, 3)}, down {amount(found.down, 3)}, framing "
            f"{amount(found.framing, 3)}"
        )
        facts.append(("sent", f"{amount(found.mebibytes)} MiB", parts))
        if found.unused:
            facts.append(
                ("events not used", plain(found.unused), "their entities' budget was spent")
            )
        if found.dropped:
            facts.append(("messages dropped", plain(found.dropped), "late, or not to be read"))
    if private and exposed(run) is not None:
        facts.append(("epsilon of features", "∞", "not protected"))
    return facts


def _courses(run: Run) -> list[Course]:
    about, said = run.about, vertical(run)
    window, alpha = number(said.window), number(said.alpha)
    rows = [
        (
            "method",
            f"{run.method}{'' if window in (None, 1) else f', window of {plain(window)} events'}",
        ),
        (
            "attenuation alpha",
            plain(alpha) if window not in (None, 1) and alpha not in (None, 1) else "-",
        ),
        (
            "past gradients",
            "at the server alone: a party steps by its newest over W"
            if known(said.buffer) == "server"
            else "-",
        ),
        (
            "learning rate",
            "divided by √t at event t" if known(said.schedule) == "inverse-root" else "-",
        ),
        ("activation", _activation(known(said.activation) or {})),
        ("stream", known(said.stream) or "-"),
        ("drift", known(said.drift) or "-"),
        ("examples in an event", plain(number(about.batch))),
        ("bits of a number on its way", plain(number(said.precision))),
        (
            "without an answer",
            {"last": "the last embedding", "zeros": "zeros", "skip": "no learning"}.get(
                str(said.missing), "-"
            ),
        ),
        (
            "played",
            {
                "loop": "by one compiled loop",
                "graph": "as one graph of both halves",
                "messages": "message by message",
                "compiled": "by compiled code",  # of versions before the loop
            }.get(str(said.path), "-"),
        ),
    ]
    found = [Course("What was played", rows=[row for row in rows if row[1] != "-"])]
    if stated := stream.released(run):
        table = [(name, bound(epsilon), what) for name, epsilon, what in stated]
        kept = exposed(run) or "Label and features are protected, each as far as the table says."
        at = (
            f" Epsilon as planned, at delta = {plain(number(about.delta))}, by the "
            f"{known(about.accountant) or '-'} accountant."
        )
        found.append(
            Course(
                "What is released of an entity",
                kept + at,
                head=("of an entity", "epsilon", "what"),
                rows=table,
                wordy=True,
            )
        )
    return found


def _activation(value: Mapping[str, object]) -> str:
    match value.get("kind"):
        case "full":
            return "every party in every event"
        case "random":
            return f"each party with probability {plain(number(value.get('p')))}"
        case "count":
            return f"{plain(number(value.get('k')))} parties, drawn anew for every event"
        case "event":
            gamma, units = plain(number(value.get("threshold"))), _units(value)
            return f"where the mean of a party's features is above {gamma}{units}"
    return str(value.get("kind") or "-")


def _units(value: Mapping[str, object]) -> str:
    """What a threshold counts in, where it is not features as they come."""
    mean, deviation = number(value.get("mean")), number(value.get("deviation"))
    if mean is None and deviation is None:
        return ""
    return (
        f", in units of features with mean {plain(mean or 0.0)} and deviation "
        f"{plain(1.0 if deviation is None else deviation)}"
    )


def _terms(run: Run, noise: float | None, clip: float | None) -> list[tuple[str, str]]:
    payable = known(run.about.payable)
    noisy = clip is not None and noise is not None and noise > 0
    return [
        ("who is not protected", exposed(run) or "-"),
        ("epsilon of one response", bound(number(vertical(run).label_epsilon))),
        ("bound of an embedding, C", plain(clip, 6)),
        (
            "noise on each number of an embedding",
            f"2 z C = {plain(2 * noise * clip, 6)}" if noisy and noise and clip else "-",
        ),
        ("events that an entity can pay for", plain(payable[0] if payable else None)),
        ("events planned", plain(number(run.about.R_s))),
    ]


def _members(run: Run) -> Members:
    clients, found = vertical(run).members, totals(run)
    head = ["party", "features", "embedding", "parameters"]
    rows = [
        [
            str(i if known(each.client) is None else each.client),
            *map(plain, map(number, (each.features, each.embedding, each.parameters))),
        ]
        for i, each in enumerate(clients)
    ]
    if found is not None and rows:
        head += ["active", "did not answer", "MiB up", "MiB down"]
        up = _shared(found.up, clients, [1.0 - s for s in found.silent])
        down = _shared(found.down, clients, found.active)
        for row, *cells in zip(rows, found.active, found.silent, up, down, strict=True):
            row += [percent(cells[0]), percent(cells[1]), amount(cells[2]), amount(cells[3])]
    note = "MiB are payload, without framing." if found is not None else ""
    return Members(f"{len(rows)} parties: what they hold and what they did", note, head, rows)


def _shared(whole: float, clients: Sequence[Party], shares: Iterable[float]) -> list[float]:
    """Each party's part of what was sent: by how often it sent, and the length of its embedding."""
    widths = [
        (known(each.embedding) or 0) * share for each, share in zip(clients, shares, strict=True)
    ]
    total = math.fsum(widths)
    return [whole * width / total if total > 0 else 0.0 for width in widths]


def exposed(run: Run) -> str | None:
    """What a promise leaves open, and why; None where it holds for all that is released."""
    why = known(vertical(run).open)
    return (
        f"Features are not protected: {why}. Epsilon of every party's features is infinite."
        if why
        else None
    )


TELLER = RegimeReport(
    facts=_facts,
    courses=_courses,
    terms=_terms,
    members=_members,
    pictures=pictures,
    held=lambda run: "with different features",
    exposed=exposed,
    costs=totals,
)
