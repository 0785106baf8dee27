"""The page of a run of events: figures, key numbers, releases, and parties.

The x axis of figures counts events; dotted lines are events at which the world changed at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean
from typing import Literal

from sordino.core import statements
from sordino.core.records import known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Figure, Mark, Panel, Series, over_rounds, points, trace
from sordino.regimes.vertical.records import PartyFacts, VerticalRound, vertical
from sordino.report.words import amount, bound, estimated, percent, plain

MIB = 2**20
MOST_MARKS = 40
MOST_BARS = 30

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
WHOSE = {"labels": "label", "entities": "entity, all of it"}
PROMISED = {"label": "the label", "entity": "the entity as a whole"}


def figures(run: Run) -> Iterator[Figure]:
    """Yield the figures of a run of events, those that have something to show."""
    length = stretch(run)
    mean = " in the events since the last row of the log" + (
        "" if length is None else f", {plain(length)} at a time"
    )
    yield from errors(run, mean)
    yield from regret(run, mean)
    yield from activation(run)
    yield from traffic(run)
    yield from times(run)
    yield from prices(run)


def marks(run: Run) -> list[Mark]:
    """Return where the world changed at once; nothing where changes are too many."""
    places = [
        number(place)
        for row in run.rounds
        if isinstance(row, VerticalRound)
        for place in known(row.changes) or ()
    ]
    found = sorted({at for at in places if at is not None and 0 < at < math.inf})
    if len(found) > MOST_MARKS:
        return []
    return [Mark(at, "the world changed", axis="x", style="dotted", legend=True) for at in found]


def stretch(run: Run) -> float | None:
    """Return how many events are between two rows, most of the time."""
    lengths = [b - a for a, b in pairwise([0.0, *run.values("round")]) if b > a]
    return max(lengths, key=lengths.count) if lengths else None


def errors(run: Run, mean: str) -> Iterator[Figure]:
    """Yield the run-time error between rows, and the error over everything so far."""
    changes, drift = marks(run), str(vertical(run).drift)
    marked = MARKED.format(how=DRIFTS.get(drift, "")) if changes else UNMARKED.get(drift, "")
    series = [
        trace(run, "error", 100, name="run-time error"),
        trace(run, "accumulated", 100, name="accumulated error", colour="orange"),
    ]
    panel = Panel(label="wrong (%)", series=series, marks=changes, limits=(0, None), percent=True)
    caption = ERROR.format(each=mean) + marked + estimated([run])
    label = "Run-time error and accumulated error over the stream"
    yield from over_rounds(run, "errors", "Error over the stream", caption, panel, label=label)


def regret(run: Run, mean: str) -> Iterator[Figure]:
    """Yield the squared gradient of the window, its mean between rows, and its sum so far."""
    xs, means = points(run.rounds, "round", "regret")
    sums, seen = trace(run, "regret_sum"), [y for y in means if y > 0]
    if not seen or not sums.x:
        return
    kind = "static" if run.about.method == "slr" else "dynamic"
    protected = run_protects(run) and known(vertical(run).open) is None
    caption = REGRET.format(each=mean, what=_followed(run), kind=kind) + NOISY * protected
    wide = max(seen) > statements.DECADES * min(seen)
    above = Panel(
        label="mean ‖∇S‖²",
        series=[Series(x=xs, y=[y if y > 0 else math.nan for y in means], colour="green")],
        marks=marks(run),
        limits=(None if wide else 0, None),
        log=wide,
    )
    below, label = Panel(label="sum so far", series=[sums], limits=(0, None)), "Local regret"
    where = f"{label} over the stream"
    yield from over_rounds(run, "regret", label, caption, above, below, label=where)


def stacked(
    xs: Sequence[float],
    parts: Iterable[tuple[str, Sequence[float], statements.Colour]],
    kind: Literal["bar", "histogram", "area"],
    texts: Mapping[str, Sequence[str]],
) -> Iterator[Series]:
    """Yield parts (name, heights, colour) one upon another, with ``texts`` by name."""
    floor = [0.0] * len(xs)
    for name, heights, colour in parts:
        base, told = floor[: len(heights)], texts.get(name, ())
        yield Series(x=xs, y=heights, name=name, kind=kind, colour=colour, base=base, texts=told)
        floor = [low + height for low, height in zip(base, heights, strict=True)]


def bars(heights: Sequence[float], texts: Sequence[str], marks: Sequence[Mark] = ()) -> Panel:
    """Return a panel of bars that lie, with a text each."""
    series = Series(x=range(len(heights)), y=heights, kind="bar", texts=texts)
    return Panel(label="", series=[series], marks=marks)


def activation(run: Run) -> Iterator[Figure]:
    """Yield in what share of the events each party was active, passive, or did not answer."""
    found = totals(run)
    if found is None or not found.active or not found.events:
        return
    shares, count = list(zip(found.active, found.silent, strict=True)), len(found.active)
    many = count > MOST_BARS
    if many:
        shares.sort(reverse=True)
    active, silent = ([100 * share for share in each] for each in zip(*shares, strict=True))
    passive = [max(100.0 - a - s, 0.0) for a, s in zip(active, silent, strict=True)]
    parts: tuple[tuple[str, list[float], statements.Colour], ...] = (
        ("active", active, "blue"),
        ("passive, answered", passive, "quiet"),
        ("did not answer", silent, "orange"),
    )
    texts = {"active": [f"{share:.3g}" for share in active]} if count <= 12 else {}
    places = [i - 0.5 for i in range(count + 1)] if many else [float(i) for i in range(count)]
    seen = [part for part in parts if max(part[1]) >= 1e-9]
    series = list(stacked(places, seen, "histogram" if many else "bar", texts))
    yield Figure(
        key="activation",
        title="Who was active",
        caption=ACTIVE + SILENT.get(str(vertical(run).missing), ""),
        label="How often each party was active, and did not answer",
        x=f"{count} parties, the most active first" if many else "party",
        limits=(-0.6, count - 0.4),
        names=() if many else [str(i) for i in range(count)],
        panels=[Panel(label="share of events (%)", series=series, limits=(0, 100))],
    )


def traffic(run: Run) -> Iterator[Figure]:
    """Yield MiB so far: payload up, payload down, and framing, one upon another."""
    kinds: dict[str, tuple[str, statements.Colour]] = {
        "up": ("payload up", "blue"),
        "down": ("payload down", "green"),
        "framing": ("framing", "quiet"),
    }
    curves = [points(run.rounds, "round", key) for key in kinds]
    xs = [0.0, *curves[0][0]]
    if len(xs) < 2 or any(len(ys) + 1 != len(xs) for _, ys in curves):
        return
    sent = [[0.0, *(high / MIB for high in ys)] for _, ys in curves]
    parts = [
        (f"{name} {amount(heights[-1], 3)} MiB", heights, colour)
        for (name, colour), heights in zip(kinds.values(), sent, strict=True)
    ]
    again = known(vertical(run).resends) or 1
    caption = TRAFFIC.format(bits=plain(vertical(run).precision))
    caption += AGAIN.format(count=plain(again)) if again > 1 else ""
    head = [run.vocabulary.round, *(f"{name}, MiB so far" for name, _ in kinds.values())]
    series, table = list(stacked(xs, parts, "area", {})), (head, list(zip(xs, *sent, strict=True)))
    panel, label = Panel(label="MiB so far", series=series, limits=(0, None)), "Bytes sent"
    where = f"{label} over the stream"
    yield from over_rounds(run, "traffic", label, caption, panel, label=where, table=table)


def times(run: Run) -> Iterator[Figure]:
    """Yield seconds of computation of active parties, passive ones and the server."""
    found = totals(run)
    if found is None or not any(found.durations):
        return
    events = max(found.events, 1.0)
    texts = [f"{plain(each, 3)} s, {_short(each / events)} an event" for each in found.durations]
    yield Figure(
        key="times",
        title="Computation",
        caption=TIMES,
        label="Time that computations took",
        x="seconds",
        names=("active parties", "passive parties", "server"),
        lying=True,
        panels=[bars(found.durations, texts)],
    )


def prices(run: Run) -> Iterator[Figure]:
    """Yield epsilon of labels, of each party's features and of whole entities, if finite."""
    stated = released(run)
    if not run.private or not any(math.isfinite(epsilon) for _, epsilon, _ in stated):
        return
    unit = str(known(run.about.unit))
    why = "; ".join(dict.fromkeys(what for _, epsilon, what in stated if math.isinf(epsilon)))
    caption = PRICES.format(promised=PROMISED.get(unit, unit))
    caption += (OPEN.format(why=why) if why else "") + (COMPOSED if unit == "entity" else "")
    lengths = [each if math.isfinite(each) else 0.0 for _, each, _ in stated]
    texts = [bound(each, 4) if math.isfinite(each) else "∞, not protected" for _, each, _ in stated]
    yield Figure(
        key="prices",
        title="Epsilon of what is released",
        caption=caption,
        label="Epsilon of what is released",
        x="epsilon",
        names=[name for name, _, _ in stated],
        lying=True,
        panels=[bars(lengths, texts, [Mark(run.budget, "budget", axis="x")])],
    )


def run_protects(run: Run) -> bool:
    """Return whether the run promises something."""
    return known(run.about.unit) not in (None, "none")


def _followed(run: Run) -> str:
    """Return S_t, in words."""
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


def _short(seconds: float) -> str:
    """
    >>> _short(0.00387), _short(4.88e-06), _short(2.5)
    ('3.87 ms', '4.88 µs', '2.5 s')
    """
    for scale, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(statements.Costs):
    """Costs of all events so far.

    Rows hold bytes and seconds since the beginning, but shares of the events since the row before;
    so the former are read off the last row, and the latter are weighed by events.

    Attributes:
        events: that were used.
        unused: whose entities had no budget left.
        dropped: messages that were no part of anything.
        active, silent: share of the events in which each party was active, or did not answer.
        durations: seconds of active parties, passive parties and the server.
    """

    events: float
    unused: float
    dropped: float
    active: tuple[float, ...]
    silent: tuple[float, ...]
    durations: tuple[float, float, float]


def totals(run: Run) -> Totals | None:
    """Return the totals of a run; None where its rows say nothing of messages."""
    sent = [run.values(key) for key in ("up", "down", "framing")]
    if not any(sent):
        return None
    rows = [row for row in run.rounds if isinstance(row, VerticalRound)]
    parties, events, unused, before = len(run.clients), 0.0, 0.0, 0.0
    active, silent = [0.0] * parties, [0.0] * parties
    for row in rows:
        end, left_out = float(known(row.round) or 0), float(known(row.unused) or 0)
        used, before = max(end - before - left_out, 0.0), end
        events, unused = events + used, unused + left_out
        for total, told in ((active, row.active), (silent, row.silent)):
            for party, share in enumerate(_shares(known(told) or (), parties)):
                total[party] += used * share
    shares = tuple(each / max(events, 1.0) for each in active)
    up, down, framing = (max(values, default=0.0) / MIB for values in sent)
    actives, passives, server = (
        max(run.values(f"{who}_seconds"), default=0.0) for who in ("active", "passive", "server")
    )
    return Totals(
        events=events,
        unused=unused,
        dropped=math.fsum(known(row.dropped) or 0 for row in rows),
        active=shares,
        silent=tuple(each / max(events, 1.0) for each in silent),
        up=up,
        down=down,
        framing=framing,
        seconds=actives + passives,
        activity=fmean(shares) if shares else None,
        durations=(actives, passives, server),
    )


def _shares(told: Sequence[float], parties: int) -> Sequence[float]:
    """Return one share for each party; zeros where the row has none."""
    kept = [share for each in told if (share := number(each)) is not None and 0 <= share <= 1]
    return kept if len(kept) == parties else [0.0] * parties


def released(run: Run) -> list[tuple[str, float, str]]:
    """Return what has a price: whose, epsilon, what; parties with the same together."""
    rows, stated = list[tuple[str, float, str]](), known(vertical(run).releases) or ()
    epsilons = [math.inf if (e := number(each.epsilon)) is None else e for each in stated]
    priced = [
        (str(known(each.unit)), epsilon, known(each.what) or "-")
        for each, epsilon in zip(stated, epsilons, strict=True)
    ]
    alike = groupby(priced, lambda each: (each[0].startswith("party:"), *each[1:]))
    for (of_features, epsilon, what), same in alike:
        units = [unit for unit, *_ in same]
        names = [_party(units)] if of_features else [WHOSE.get(unit, unit) for unit in units]
        rows += [(name, epsilon, what) for name in names]
    return rows


def _party(units: Sequence[str]) -> str:
    """
    >>> _party(["party:2"]), _party(["party:0", "party:1", "party:2"])
    ('features at party 2', 'features at parties 0 to 2')
    """
    first, *others = (unit.removeprefix("party:") for unit in units)
    return (
        f"features at parties {first} to {others[-1]}" if others else f"features at party {first}"
    )


def _facts(run: Run) -> list[statements.Fact]:
    found, private = totals(run), run_protects(run)
    length, how = plain(stretch(run)), ", estimated" if private else ""
    whole, recent = (
        percent(values[-1] if values else None)
        for values in (run.values("accumulated"), run.values("error"))
    )
    facts = [
        ("accumulated error", whole, f"of all events so far{how}"),
        ("run-time error", recent, f"of the last {length} events{how}"),
    ]
    if found is not None:
        up, down, framing = (amount(each, 3) for each in (found.up, found.down, found.framing))
        shares = "-"
        if found.active:
            low, high = 100 * min(found.active), 100 * max(found.active)
            shares = f"{low:.3g} to {high:.3g} % by party"
        facts += [
            ("activity", percent(found.activity), shares),
            ("sent", f"{amount(found.mebibytes)} MiB", f"up {up}, down {down}, framing {framing}"),
        ]
        if found.unused:
            why = "their entities' budget was spent"
            facts.append(("events not used", plain(found.unused), why))
        if found.dropped:
            facts.append(("messages dropped", plain(found.dropped), "late, or not to be read"))
    if private and exposed(run) is not None:
        facts.append(("epsilon of features", "∞", "not protected"))
    return facts


MISSING = {"last": "the last embedding", "zeros": "zeros", "skip": "no learning"}
PLAYED = {
    "loop": "by one compiled loop",
    "graph": "as one graph of both halves",
    "messages": "message by message",
    "compiled": "by compiled code",  # of versions before the loop
}


def _courses(run: Run) -> list[statements.Course]:
    about, said = run.about, vertical(run)
    window, alpha = number(said.window), number(said.alpha)
    several = window not in (None, 1)
    buffer = "at the server alone: a party steps by its newest over W"
    rows = {
        "method": f"{run.method}{f', window of {plain(window)} events' if several else ''}",
        "attenuation alpha": plain(alpha) if several and alpha not in (None, 1) else "-",
        "past gradients": buffer if known(said.buffer) == "server" else "-",
        "learning rate": "divided by √t at event t"
        if known(said.schedule) == "inverse-root"
        else "-",
        "activation": _activation(known(said.activation) or {}),
        "stream": known(said.stream) or "-",
        "drift": known(said.drift) or "-",
        "examples in an event": plain(about.batch),
        "bits of a number on its way": plain(said.precision),
        "without an answer": MISSING.get(str(said.missing), "-"),
        "played": PLAYED.get(str(said.path), "-"),
    }
    found = [
        statements.Course("What was played", rows=[row for row in rows.items() if row[1] != "-"])
    ]
    if stated := released(run):
        table = [(name, bound(epsilon), what) for name, epsilon, what in stated]
        kept = exposed(run) or "Label and features are protected, each as far as the table says."
        at = (
            f" Epsilon as planned, at delta = {plain(about.delta)}, by the "
            f"{known(about.accountant) or '-'} accountant."
        )
        title, head = "What is released of an entity", ("of an entity", "epsilon", "what")
        found.append(statements.Course(title, kept + at, head=head, rows=table, wordy=True))
    return found


def _activation(value: Mapping[str, object]) -> str:
    match value.get("kind"):
        case "full":
            return "every party in every event"
        case "random":
            return f"each party with probability {plain(value.get('p'))}"
        case "count":
            return f"{plain(value.get('k'))} parties, drawn anew for every event"
        case "event":
            gamma, units = plain(value.get("threshold")), _units(value)
            return f"where the mean of a party's features is above {gamma}{units}"
    return str(value.get("kind") or "-")


def _units(value: Mapping[str, object]) -> str:
    """Return the units of a threshold, where it is not features as they come."""
    mean, deviation = number(value.get("mean")), number(value.get("deviation"))
    if mean is None and deviation is None:
        return ""
    return (
        f", in units of features with mean {plain(mean or 0.0)} and deviation "
        f"{plain(1.0 if deviation is None else deviation)}"
    )


def _terms(run: Run, noise: float | None, clip: float | None) -> list[tuple[str, str]]:
    affordable = known(run.about.affordable_steps)
    covered = f"2 z C = {plain(2 * noise * clip, 6)}" if noise and noise > 0 and clip else "-"
    return [
        ("who is not protected", exposed(run) or "-"),
        ("epsilon of one response", bound(number(vertical(run).label_epsilon))),
        ("bound of an embedding, C", plain(clip, 6)),
        ("noise on each number of an embedding", covered),
        ("events that an entity can pay for", plain(affordable[0] if affordable else None)),
        ("events planned", plain(run.about.R_s)),
    ]


def _members(run: Run) -> statements.Members:
    clients, found = vertical(run).members, totals(run)
    head = ["party", "features", "embedding", "parameters"]
    rows = [
        [
            str(i if known(each.client) is None else each.client),
            *map(plain, (each.features, each.embedding, each.parameters)),
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
    return statements.Members(
        f"{len(rows)} parties: what they hold and what they did", note, head, rows
    )


def _shared(whole: float, clients: Sequence[PartyFacts], shares: Iterable[float]) -> list[float]:
    """Return each party's part of what was sent, by how often and how long its embeddings were."""
    widths = [
        (known(each.embedding) or 0) * share for each, share in zip(clients, shares, strict=True)
    ]
    total = math.fsum(widths)
    return [whole * width / total if total > 0 else 0.0 for width in widths]


def exposed(run: Run) -> str | None:
    """Return what a promise leaves open, and why; None where it holds for everything."""
    why = known(vertical(run).open)
    return (
        f"Features are not protected: {why}. Epsilon of every party's features is infinite."
        if why
        else None
    )


TELLER = statements.RegimeReport(
    facts=_facts,
    courses=_courses,
    terms=_terms,
    members=_members,
    figures=figures,
    held=lambda run: "with different features",
    exposed=exposed,
    costs=totals,
)
