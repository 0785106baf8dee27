"""The pictures of a run in which events come one after another, and parties see a part of each.

Like :mod:`sordino.report.figures`: numbers in, SVG text out, None where there is nothing to show.
The x axis counts events; dotted lines mark events at which the world changed at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from sordino.core.figures import DECADES, points
from sordino.core.records import known, number
from sordino.core.run.reading import Run
from sordino.regimes.vertical.records import VerticalRound, vertical
from sordino.regimes.vertical.totals import MIB, totals
from sordino.report.axes import Mark, draw_marks, from_zero, logarithmic, of_percent
from sordino.report.canvas import BLUE, GREEN, INK, ORANGE, QUIET, canvas, figure, svg
from sordino.report.costs import amount
from sordino.report.words import bound, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_MARKS = 40
MOST_BARS = 30


def marks(run: Run) -> list[Mark]:
    """Events at which the world changed at once; none where there are too many to be told apart."""
    told = [
        number(place)
        for row in run.rounds
        if isinstance(row, VerticalRound)
        for place in known(row.changes) or ()
    ]
    found = sorted({at for at in told if at is not None and 0 < at < math.inf})
    return [Mark(at) for at in found] if len(found) <= MOST_MARKS else []


def stretch(run: Run) -> float | None:
    """How many events lie between two rows, most of the time."""
    lengths = [b - a for a, b in pairwise([0.0, *run.values("round")]) if b > a]
    return max(lengths, key=lengths.count) if lengths else None


def errors(run: Run) -> str | None:
    """Run-time error of each stretch, and of everything so far."""
    xs, recent = points(run.rounds, "round", "error")
    ws, whole = points(run.rounds, "round", "accumulated")
    if not xs and not ws:
        return None
    with canvas("errors"):
        drawn, (axis,) = figure(1, 3.0)
        axis.plot(
            xs,
            [100 * y for y in recent],
            color=BLUE,
            linewidth=1.2,
            marker=_dots(xs),
            markersize=3,
            label="run-time error",
        )
        axis.plot(
            ws,
            [100 * y for y in whole],
            color=ORANGE,
            marker=_dots(ws),
            markersize=3,
            label="accumulated error",
        )
        heights = [100 * y for y in (*recent, *whole)]
        axis.set_ylim(min(0.0, 1.05 * min(heights)), max(1.08 * max(heights), 1.0))
        of_percent(axis)
        axis.set_ylabel("wrong (%)")
        _finish([axis], run, max([*xs, *ws]))
        _key(axis, 3)
        return svg(drawn, "Run-time error and accumulated error over the stream")


def regret(run: Run) -> str | None:
    """Squared gradient of the window, mean of each stretch, and its sum so far."""
    xs, means = points(run.rounds, "round", "regret")
    ws, sums = points(run.rounds, "round", "regret_sum")
    seen = [y for y in means if y > 0]
    if not seen or not sums:
        return None
    with canvas("regret"):
        drawn, (above, below) = figure(2, 3.9)
        if max(seen) > DECADES * min(seen):
            logarithmic(above, 0.6 * min(seen), 1.6 * max(seen))
        else:
            above.set_ylim(0, 1.1 * max(seen))
        above.plot(
            xs,
            [y if y > 0 else math.nan for y in means],
            color=GREEN,
            linewidth=1.2,
            marker=_dots(xs),
            markersize=3,
        )
        above.set_ylabel("mean ‖∇S‖²")
        below.plot(ws, sums, color=BLUE, marker=_dots(ws), markersize=3)
        below.set_ylim(0, 1.08 * max(*sums, 1e-12))
        below.set_ylabel("sum so far")
        _finish([above, below], run, max([*xs, *ws]))
        _key(above, 1)
        drawn.align_ylabels()
        return svg(drawn, "Local regret over the stream")


def activation(run: Run) -> str | None:
    """In what share of the events each party was active, answered passively, or did not answer."""
    found = totals(run)
    if found is None or not found.active or not found.events:
        return None
    many = len(found.active) > MOST_BARS
    if many:
        parts = sorted(zip(found.active, found.silent, strict=True), reverse=True)
        active, silent = ([100 * part[i] for part in parts] for i in (0, 1))
    else:
        active, silent = _percent(found.active, found.silent)
    both = [100.0 - each for each in silent]
    with canvas("activation"):
        drawn, (axis,) = figure(1, 2.7)
        for top, floor, colour, thick, name in (
            (active, [0.0] * len(active), BLUE, 0.9, "active"),
            (both, active, QUIET, 0.35, "passive, answered"),
            ([100.0] * len(active), both, ORANGE, 0.9, "did not answer"),
        ):
            heights = [high - low for high, low in zip(top, floor, strict=True)]
            if max(heights) < 1e-9:
                continue
            look: dict[str, Any] = {"color": colour, "alpha": thick, "label": name}
            if many:
                edges = [i - 0.5 for i in range(len(active) + 1)]
                axis.stairs(top, edges, baseline=floor, fill=True, **look)
            else:
                axis.bar(range(len(active)), heights, bottom=floor, width=0.7, **look)
        if not many:
            _number(axis, active)
        axis.set_xlabel(f"{len(active)} parties, the most active first" if many else "party")
        axis.set_xlim(-0.6, len(active) - 0.4)
        axis.set_ylim(0, 100)
        axis.set_ylabel("share of events (%)")
        drawn.legend(loc="outside lower left", ncols=3, columnspacing=1.2, handlelength=1.6)
        return svg(drawn, "How often each party was active, and did not answer")


def _number(axis: Axes, shares: Sequence[float]) -> None:
    """Each bar's party below it and, where there is room, its share above."""
    for i, share in enumerate(shares if len(shares) <= 12 else ()):
        axis.annotate(
            f"{share:.3g}",
            (i, share),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            size=8.5,
        )
    names = [str(i) for i in range(len(shares))]
    axis.set_xticks(range(len(shares)), names, fontsize=9 if len(shares) < 21 else 7.5)
    axis.grid(False, axis="x")


def traffic(run: Run) -> str | None:
    """MiB so far: payload up, payload down, and framing, one upon another."""
    kinds = (
        ("up", "payload up", BLUE),
        ("down", "payload down", GREEN),
        ("framing", "framing", QUIET),
    )
    curves = [points(run.rounds, "round", key) for key, _, _ in kinds]
    xs = [0.0, *curves[0][0]]
    if len(xs) < 2 or any(len(ys) + 1 != len(xs) for _, ys in curves):
        return None
    with canvas("traffic"):
        drawn, (axis,) = figure(1, 2.7)
        floor = [0.0] * len(xs)
        for (_, name, colour), (_, sent) in zip(kinds, curves, strict=True):
            top = [low + high / MIB for low, high in zip(floor, [0.0, *sent], strict=True)]
            share = f"{name} {amount(top[-1] - floor[-1], 3)} MiB"
            axis.fill_between(xs, floor, top, color=colour, alpha=0.85, linewidth=0, label=share)
            floor = top
        axis.set_ylim(0, 1.08 * max(*floor, 1e-12))
        axis.set_ylabel("MiB so far")
        from_zero(axis, max(xs), run.vocabulary.round)
        drawn.legend(loc="outside lower left", ncols=3, columnspacing=1.2, handlelength=1.2)
        sums = zip(xs, *([0.0, *(sent / MIB for sent in ys)] for _, ys in curves), strict=True)
        head = [run.vocabulary.round, *(f"{name}, MiB so far" for _, name, _ in kinds)]
        return svg(drawn, "Bytes sent over the stream", {"head": head, "rows": list(sums)})


def times(run: Run) -> str | None:
    """Seconds of computation of active parties, passive ones and the server."""
    found = totals(run)
    if found is None or not any(found.durations):
        return None
    names, each = ("active parties", "passive parties", "server"), max(found.events, 1.0)
    with canvas("times"):
        drawn, (axis,) = figure(1, 1.9)
        axis.barh(range(3), found.durations, height=0.6, color=[BLUE, QUIET, ORANGE])
        for i, seconds in enumerate(found.durations):
            _beside(axis, seconds, i, f"{plain(seconds, 3)} s, {_short(seconds / each)} an event")
        _rows(axis, names, 1.5 * max(found.durations))
        axis.set_xlabel("seconds")
        return svg(drawn, "Time that computations took")


def prices(run: Run) -> str | None:
    """Epsilon of labels, of each party's features and of whole entities, if finite."""
    stated = released(run)
    finite = [(name, epsilon) for name, epsilon, _ in stated if math.isfinite(epsilon)]
    if not run.private or not finite:
        return None
    longest = max(run.budget, *(epsilon for _, epsilon in finite))
    with canvas("prices"):
        drawn, (axis,) = figure(1, 1.1 + 0.38 * len(stated))
        for i, (_, epsilon, _) in enumerate(stated):
            priced = math.isfinite(epsilon)
            axis.barh(i, epsilon if priced else 0.0, height=0.6, color=BLUE)
            _beside(
                axis,
                epsilon if priced else 0.0,
                i,
                bound(epsilon, 4) if priced else "∞, not protected",
            )
        axis.axvline(run.budget, color=INK, linestyle="--", linewidth=1)
        axis.annotate(
            "budget",
            (run.budget, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2, 1),
            textcoords="offset points",
            ha="center",
            size=8.5,
        )
        _rows(axis, [name for name, _, _ in stated], 1.25 * longest)
        axis.set_xlabel("epsilon")
        return svg(drawn, "Epsilon of what is released")


def released(run: Run) -> list[tuple[str, float, str]]:
    """What has a price: whose, epsilon, what; neighbouring parties with the same together."""
    entries = [
        (str(known(each.unit)), number(each.epsilon), known(each.what) or "-")
        for each in known(vertical(run).releases) or ()
    ]
    found = [
        (unit, math.inf if epsilon is None else epsilon, what) for unit, epsilon, what in entries
    ]
    told = []
    for (at_party, epsilon, what), group in groupby(
        found, key=lambda each: (each[0].startswith("party:"), each[1], each[2])
    ):
        units = [unit for unit, _, _ in group]
        if at_party:
            told.append((_party(units), epsilon, what))
        else:
            told += [
                (
                    {"labels": "label", "entities": "entity, all of it"}.get(unit, unit),
                    epsilon,
                    what,
                )
                for unit in units
            ]
    return told


def _party(units: Sequence[str]) -> str:
    """
    >>> _party(["party:2"]), _party(["party:0", "party:1", "party:2"])
    ('features at party 2', 'features at each party, 0 to 2')
    """
    numbers = [unit.removeprefix("party:") for unit in units]
    return (
        f"features at party {numbers[0]}"
        if len(numbers) == 1
        else f"features at each party, {numbers[0]} to {numbers[-1]}"
    )


def _percent(*shares: Sequence[float]) -> list[list[float]]:
    return [[100 * share for share in each] for each in shares]


def _rows(axis: Axes, names: Sequence[str], longest: float) -> None:
    """Names beside horizontal bars, the first on top."""
    axis.set_yticks(range(len(names)), list(names))
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlim(0, longest or 1.0)
    axis.grid(False, axis="y")
    axis.tick_params(axis="y", length=0)


def _short(seconds: float) -> str:
    """
    >>> _short(0.00387), _short(4.88e-06), _short(2.5)
    ('3.87 ms', '4.88 µs', '2.5 s')
    """
    scale, unit = next(
        each
        for each in ((1e6, "µs"), (1e3, "ms"), (1.0, "s"))
        if seconds * each[0] < 999.5 or each[0] == 1.0
    )
    return f"{seconds * scale:.3g} {unit}"


def _beside(axis: Axes, length: float, row: int, said: str) -> None:
    """Words at the end of a horizontal bar."""
    axis.annotate(
        said, (length, row), xytext=(4, 0), textcoords="offset points", va="center", size=9
    )


def _dots(xs: Sequence[float]) -> str:
    return "o" if len(xs) < 40 else ""


def _finish(axes: Sequence[Axes], run: Run, last: float) -> None:
    """The axis of events, with changes of the world."""
    from_zero(axes[-1], last, run.vocabulary.round)
    changes = marks(run)
    draw_marks(axes, changes)
    if changes:
        axes[0].plot([], [], color=QUIET, linestyle=":", linewidth=1.1, label="the world changed")


def _key(axis: Axes, columns: int) -> None:
    """The legend above the picture, if there is anything to tell apart."""
    if axis.get_legend_handles_labels()[1]:
        axis.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=columns,
            borderaxespad=0.2,
            columnspacing=0.9,
            handlelength=1.2,
            handletextpad=0.5,
        )
