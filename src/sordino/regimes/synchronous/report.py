"""What the page tells of a run in rounds.

>>> coded([2, 2, 3])
['2 in rounds 1 to 2', '3 in round 3']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from sordino.clients.records import horizontal
from sordino.clients.report import held, holders, holdings, unseen
from sordino.core.records import known, number
from sordino.core.runs import Run
from sordino.core.teller import Course, Drawn, Fact, Teller
from sordino.regimes.synchronous.records import Synchronous
from sordino.report import figures
from sordino.report.album import evaluated, measured
from sordino.report.words import plain

PACE = (
    " The dashed pace uses up steps and rounds together; above it steps run out first, "
    "below it rounds do."
)


def pictures(run: Run) -> Iterable[Drawn]:
    """Of a run in rounds."""
    what = measured(run)
    yield (
        f"{what} over rounds",
        figures.learning(run, "round"),
        evaluated(run) + " A round is one exchange with the server.",
        "",
    )
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
        (
            "Share of clients whose update was cut to the bound"
            if run.of_clients
            else "Share of gradients cut to the clipping norm"
        )
        + ", as it was released, with noise. Near 100 % the norm is small and most of the signal "
        "is cut; near 0 % it is large and noise is wasted.",
        "",
    )
    yield (
        "Signal to noise",
        figures.signal(run),
        "Estimated length of the signal in one "
        f"{'round' if run.of_clients else 'step of a client'}, divided by that of its noise; mean "
        f"of the last {figures.SMOOTH} rounds. Much below 1, it moves the model mostly at random, "
        "and only the sum over clients and rounds learns. 0 means that no signal was seen above "
        "the noise.",
        "",
    )
    yield (
        "Late and lost answers",
        figures.absences(run),
        "Late answers came after their round was closed: paid for, not used. Lost clients never "
        "answered: the ledger counts them as if they had.",
        "",
    )
    waited = (
        "Simulated seconds until each round was closed. A steep piece is a round that waited "
        "for somebody slow."
    )
    yield "Virtual time", figures.clock(run), waited, ""
    yield holdings(run)


def coded(values: Sequence[int]) -> list[str]:
    """Run-length coding in words."""
    found, at = [], 1
    for value, same in groupby(values):
        length = sum(1 for _ in same)
        found.append(
            f"{value} in round {at}"
            if length == 1
            else f"{value} in rounds {at} to {at + length - 1}"
        )
        at += length
    return found


def facts(run: Run) -> list[Fact]:
    planned = (
        "of a client drawn in each round"
        if run.of_clients
        else f"of {plain(number(run.about.facts.R_c))} planned"
    )
    return [("local steps", str(run.steps), planned)]


def courses(run: Run) -> list[Course]:
    lines = coded([int(tau) for tau in run.values("tau")])
    return [
        Course(
            "Local steps, round by round",
            intro="tau:" if lines else "No round is closed yet.",
            lines=lines,
        )
    ]


def terms(run: Run, noise: float | None, clip: float | None) -> list[tuple[str, str]]:
    about = run.about
    each = (
        "-"
        if noise is None or clip is None
        else f"sigma C = {plain(noise * clip, 6)}, on a sum of clipped contributions"
    )
    return [
        *_shared(run),
        ("clipping norm C", plain(clip, 6)),
        ("noise multiplier sigma", plain(noise, 6)),
        ("noise on each number", each),
        ("sampling rate q", plain(number(horizontal(run).sampling_rate), 6)),
        (
            f"numbers released per {'round' if run.of_clients else 'step'}",
            plain(number(about.facts.dimension)),
        ),
        ("local steps planned, R_c", plain(number(about.facts.R_c))),
        ("rounds planned, R_s", plain(number(about.R_s))),
    ]


def _shared(run: Run) -> list[tuple[str, str]]:
    """Of a sum whose noise clients share."""
    told = known(run.about.facts.shared) if isinstance(run.about.facts, Synchronous) else None
    if told is None:
        return []
    log = number(told.overflow)
    return [
        ("noise", f"shared by the clients; {plain(number(told.honest))} of them honest"),
        ("contributions below which a sum is not opened", plain(number(told.fewest))),
        ("opened sums", f"modulo 2^{plain(number(told.bits))}, {known(told.rounding)} rounding"),
        ("step of the grid", plain(number(told.step), 6)),
        ("noise of one client, in steps", plain(number(told.deviation), 6)),
        ("chance of any overflow", "-" if log is None else f"below 2^{math.ceil(log)}"),
    ]


TELLER = Teller(
    facts=facts,
    courses=courses,
    terms=terms,
    members=holders,
    pictures=pictures,
    held=held,
    unseen=unseen,
)
