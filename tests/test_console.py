"""Progress: the same facts on a terminal and in a file, and no control characters in the latter."""

from __future__ import annotations

import io
import json
import math
import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.core import records
from sordino.core.regimes import Vocabulary
from sordino.live.console import Display, Fact, Progress, epsilon_of, sparkline
from sordino.regimes.asynchronous.records import WORDS as UPDATES
from sordino.regimes.synchronous.records import WORDS as CLOSED
from sordino.regimes.synchronous.records import SynchronousRound
from sordino.regimes.vertical.records import WORDS as EVENTS


def display(
    *,
    total_rounds: int,
    budget_epsilon: float,
    budget_steps: int | None,
    title: str,
    regime: str = "synchronous",
    stream: TextIO,
    clock: Callable[[], float] = time.monotonic,
) -> Display:
    """Return the display of a run with these limits."""
    return Display(
        progress(
            title=title,
            rounds=total_rounds,
            epsilon=budget_epsilon,
            steps=budget_steps,
            regime=regime,
            clock=clock,
        ),
        stream,
    )


def progress(
    rounds: int,
    epsilon: float,
    steps: int | None = None,
    title: str = "",
    regime: str = "synchronous",
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    about = {
        "name": title,
        "regime": regime,
        "R_s": rounds,
        "R_c": steps,
        "epsilon_budget": None if math.isinf(epsilon) else epsilon,
    }
    return Progress(records.about(json.dumps(about).encode(), Path("run.json")), clock)


def limits(rounds: int, epsilon: float, words: Vocabulary = CLOSED) -> Progress:
    return progress(rounds, epsilon, regime=words.regime)


def run() -> Progress:
    return progress(158, 2.0, 316, "a run")


ROW: dict[str, Any] = {
    "kind": "round",
    "round": 12,
    "tau": 2,
    "steps": 24,
    "accuracy": 0.712,
    "epsilon": 0.531,
    "note": None,
}


def record(row: dict[str, Any], words: Vocabulary = CLOSED) -> Any:
    """A row as the log holds it."""
    return records.row(json.dumps(row), words.regime)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def texts(found: list[Fact]) -> dict[str, str]:
    return {fact.name: fact.text for fact in found}


def test_line() -> None:
    assert (
        run().line(record(ROW), 12.0)
        == "round 12/158  tau 2  steps 24  accuracy 0.712  epsilon 0.531/2.000  12 s left"
    )
    bare = {"round": 3, "epsilon": "inf"}
    assert (
        limits(5, math.inf).line(record({"kind": "round", **bare}), None)
        == "round 3/5  epsilon infinite (no privacy)"
    )
    assert "infinite" in limits(5, 2.0).line(record({"kind": "round", **bare}), None)


@given(st.floats(0.0, 1e6))
def test_what_was_spent_is_never_shown_as_less(spent: float) -> None:
    shown = Fraction(epsilon_of(spent, 2.0).split("/")[0])
    written = Fraction(repr(spent))  # the number as it stands in the log
    assert written <= shown < written + Fraction(1, 1000)


def test_plain_output_has_one_line_a_round_and_no_control_characters() -> None:
    stream, clock = io.StringIO(), Clock()
    with display(
        total_rounds=4,
        budget_epsilon=2.0,
        budget_steps=None,
        title="a\x1b[31m",
        stream=stream,
        clock=clock,
    ) as shown:
        for i in (1, 2):
            clock.now += 3.0
            shown.show(record({**ROW, "round": i, "note": "red \x1b[31m" if i == 2 else None}))
        shown.show(record({"kind": "late", "round": 1, "client": 0}))
        shown.show(record({"kind": "lost", "round": 1, "client": 0}))
        shown.show(record({"kind": "weather"}))
        shown.show(record({"kind": "end", "why": "used up"}))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("round 1/4  ")
    assert not lines[0].endswith("left")  # its three seconds may have been compilation
    assert lines[1].endswith("6 s left")
    assert lines[2:] == ["  red ?[31m", "answers: 1 late, 1 lost", "ended: used up"]
    assert all(unicodedata.category(c) != "Cc" for text in lines for c in text)


def test_refusal_is_said() -> None:
    stream = io.StringIO()
    with display(
        total_rounds=4, budget_epsilon=2.0, budget_steps=8, title="a", stream=stream
    ) as shown:
        shown.show(
            record({"kind": "refused", "round": 2, "why": "client:0 would\npass its budget"})
        )
    assert stream.getvalue() == "refused: client:0 would pass its budget\n"


def test_terminal_gets_one_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with display(
        total_rounds=158,
        budget_epsilon=2.0,
        budget_steps=316,
        title="[red]ALI[/red]",
        stream=stream,
    ) as shown:
        shown.show(record(ROW))
        shown.show(record({**ROW, "round": 13, "accuracy": 0.65, "note": "[bold]x"}))
    text = stream.getvalue()
    assert "[red]ALI[/red]" in text  # a name is no markup
    assert "65.00 %   best 71.20 %" in text
    assert "13/158" in text
    assert "━━━" in text  # a bar
    assert "[bold]x" in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_panel_closes_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    shown = display(
        total_rounds=1, budget_epsilon=math.inf, budget_steps=None, title="a", stream=stream
    )
    with pytest.raises(KeyboardInterrupt), shown:
        raise KeyboardInterrupt
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")
    assert shown.live is None


def test_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with display(
        total_rounds=158, budget_epsilon=2.0, budget_steps=316, title="a", stream=stream
    ) as shown:
        shown.show(record(ROW))
    assert stream.getvalue().startswith("round 12/158")
    assert "\x1b" not in stream.getvalue()


def test_facts_of_an_infinite_budget_draw_no_bar_of_epsilon() -> None:
    seen = limits(10, math.inf)
    seen.take(record({**ROW, "round": 5, "epsilon": "inf"}))
    shown = {fact.name: fact for fact in seen.facts()}
    assert (shown["epsilon"].text, shown["epsilon"].part) == ("infinite (no privacy)", None)
    assert (shown["rounds"].text, shown["rounds"].part) == ("5/10", 0.5)


def test_best_is_kept_and_late_and_lost_are_counted() -> None:
    seen = run()
    for row in (
        {**ROW, "accuracy": 0.8},
        {**ROW, "accuracy": 0.7},
        {"kind": "late"},
        {"kind": "late"},
        {"kind": "lost"},
        {"kind": "new"},
    ):
        seen.take(record(row))
    assert (seen.accuracy, seen.best, seen.counts) == (0.7, 0.8, {"late": 2, "lost": 1})
    assert Fact("answers", "2 late, 1 lost") in seen.facts()


ODD = ["inf", "-inf", -1, 0, 10**15, 10**400, math.nan, None, ""]


def shown_odd(row: dict[str, Any], words: Vocabulary, value: object) -> None:
    """Whoever watches must not be able to end the run: every value that a record may hold is
    shown.
    """
    shown = display(
        total_rounds=3,
        budget_epsilon=2.0,
        budget_steps=4,
        title="t",
        regime=words.regime,
        stream=io.StringIO(),
    )
    for key in row:
        with suppress(records.Misfit):
            shown.show(record({**row, key: value}, words))
        shown.seen.facts()


@pytest.mark.parametrize("value", ODD)
def test_odd_values_stop_no_run(value: object) -> None:
    shown_odd(ROW, CLOSED, value)


ARRIVED: dict[str, Any] = {
    "kind": "round",
    "round": 13650,
    "steps": 2730,
    "stage": 3,
    "clip": 0.25,
    "staleness": 4.0,
    "stalest": 7,
    "accuracy": 0.744,
    "epsilon": 1.849,
}


def test_line_of_updates() -> None:
    said = limits(15000, 2.0, UPDATES).line(record(ARRIVED, UPDATES), 2.0)
    assert (
        said == "update 13650/15000  stage 3  clip 0.25  staleness 4.0  accuracy 0.744  epsilon "
        "1.849/2.000  2 s left"
    )
    free = {**ARRIVED, "clip": None, "epsilon": "inf", "staleness": None}
    assert (
        limits(15000, math.inf, UPDATES)
        .line(record(free, UPDATES), None)
        .startswith("update 13650/15000  stage 3  accuracy 0.744  ")
    )


def test_panel_of_updates() -> None:
    seen = limits(15000, 2.0, UPDATES)
    for row in (
        {**ARRIVED, "staleness": 2.0},
        ARRIVED,
        {"kind": "stale"},
        {"kind": "left"},
        {"kind": "lost"},
        {"kind": "late"},
    ):
        seen.take(record(row, UPDATES))
    shown = texts(seen.facts())
    assert shown["updates"].endswith("13650/15000")
    assert shown["now"] == "stage 3   clip 0.25"
    assert shown["staleness"] == "4  ▄█"
    assert shown["answers"] == "1 too stale, 1 lost, 1 left for good"
    assert not {"rounds", "steps", "tau"} & set(shown)


def test_updates_end_by_their_number_and_a_row_stands_for_many() -> None:
    stream, clock = io.StringIO(), Clock()
    with display(
        total_rounds=200,
        budget_epsilon=2.0,
        budget_steps=10,
        title="a",
        regime="asynchronous",
        stream=stream,
        clock=clock,
    ) as shown:
        for seconds, update in ((20.0, 125), (25.0, 150)):
            clock.now = seconds
            # some edge has sent thrice what was planned for it
            shown.show(record({**ARRIVED, "round": update, "steps": 30}, UPDATES))
    first, second = stream.getvalue().splitlines()
    assert first.startswith("update 125/200  ")
    assert second.endswith("10 s left")  # 25 updates in five seconds, 50 to go


@pytest.mark.parametrize("value", ODD)
def test_odd_values_stop_no_run_of_arrivals(value: object) -> None:
    shown_odd(ARRIVED, UPDATES, value)


PLAYED: dict[str, Any] = {
    "kind": "round",
    "round": 20000,
    "accuracy": 0.897,
    "error": 0.103,
    "accumulated": 0.211,
    "regret": 0.0312,
    "active": [0.5, 0.5],
    "steps": 10020,
    "epsilon": "inf",
}


def test_line_of_events() -> None:
    said = limits(2_000_000, math.inf, EVENTS).line(record(PLAYED, EVENTS), 9.0)
    assert (
        said == "event 20000/2000000  error 0.103  accumulated 0.211  regret 3.1e-02  epsilon "
        "infinite (no privacy)  9 s left"
    )
    spent = record({**PLAYED, "epsilon": 2.5}, EVENTS)
    assert limits(9, 3.0, EVENTS).line(spent, None).endswith("  epsilon 2.500/3.000")


def test_panel_of_events() -> None:
    seen = limits(40000, 3.0, EVENTS)
    for error in (0.8, -0.05, 0.4):  # an estimate from few responded labels may lie below 0
        seen.take(record({**PLAYED, "error": error, "epsilon": 2.5}, EVENTS))
    shown = texts(seen.facts())
    assert shown["events"].endswith("20000/40000")
    assert shown["error"] == "0.4  █▁▄"
    assert shown["now"] == "accumulated 0.211   regret 3.1e-02"
    # no test set, and no best of many looks at it
    assert not {"accuracy", "rounds", "steps", "answers"} & set(shown)


@pytest.mark.parametrize("value", ODD)
def test_odd_values_stop_no_run_of_events(value: object) -> None:
    shown_odd(PLAYED, EVENTS, value)


def test_nothing_seen_yet() -> None:
    shown = texts(run().facts())
    assert shown["accuracy"] == "not evaluated yet"
    assert shown["epsilon"].endswith("-/2.000")
    assert shown["rounds"].endswith("0/158")


def test_time_left_counts_what_was_seen_here_only() -> None:
    # resumed at round 100 of 200: nine rounds after the first in nine seconds, so ninety are left
    clock = Clock()
    seen = progress(200, 2.0, clock=clock)
    for i in range(101, 111):
        clock.now += 1.0
        seen.take(record({**ROW, "round": i}))
    assert seen.left() == pytest.approx(90.0)


def test_share_follows_whichever_runs_out_first() -> None:
    for row, share in (
        (SynchronousRound(round=10, steps=158), 0.5),
        (SynchronousRound(round=79, steps=80), 0.5),
        (SynchronousRound(round=900, steps=80), 1.0),
    ):
        seen = run()
        assert seen.share() == 0.0
        seen.take(row)
        assert seen.share() == share


def test_sparkline_is_monotone_and_starts_at_the_bottom() -> None:
    drawn = sparkline(list(range(1, 9)))
    assert drawn == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0]) == "▁▁"
    assert len(sparkline([1000, 1])) == 2


def test_narrow_encoding_does_not_stop_a_run() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with display(
        total_rounds=1, budget_epsilon=2.0, budget_steps=None, title="é", stream=stream
    ) as shown:
        shown.show(record({**ROW, "note": "ε is small"}))
    stream.seek(0)
    assert "? is small" in stream.read()
