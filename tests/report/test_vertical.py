"""Pictures and words of a run of events, of which every party sees a part."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import drawings
from sordino.base.errors import StudyError
from sordino.core import regimes
from sordino.core.records import About, Environment, plain
from sordino.core.run.reading import Run, load
from sordino.core.statements import smoothed
from sordino.regimes.vertical import report as events
from sordino.regimes.vertical.records import PartyFacts, Vertical, VerticalRound
from sordino.regimes.vertical.report import MIB, totals
from sordino.report import comparisons, curves, write, write_comparison
from sordino.report.drawing import draw
from sordino.report.page import pictures, render

from .conftest import LABELS, Maker, arrival_rows, event_rows, readable, under_privacy
from .test_asynchronous import texts
from .test_figures import SVG, polyline
from .test_page import read

KEYS = ("errors", "regret", "activation", "traffic", "times", "prices")


def shown(run: Run) -> dict[str, Any]:
    return {figure.key: figure for figure in events.figures(run)}


def picture(run: Run, key: str) -> str | None:
    """The figure with this key, drawn."""
    found = shown(run)
    return draw(found[key]) if key in found else None


def dotted(drawn: str | None) -> int:
    """How many lines mark a change."""
    assert drawn is not None
    return sum(
        "stroke-dasharray" in path.get("style", "") and "clip-path" in path.attrib
        for path in ET.fromstring(drawn).iter(f"{SVG}path")
    )


def test_error_curves_are_an_affine_image_of_the_log(play: Maker) -> None:
    rows = event_rows()[:-1]
    drawn = picture(load(play()), "errors")
    assert drawn is not None
    recent, whole = polyline(drawn, 0), polyline(drawn, 1)
    assert len(recent) == len(whole) == 100
    scale = (recent[0][1] - recent[50][1]) / (rows[0]["error"] - rows[50]["error"])
    zero = recent[0][1] - scale * rows[0]["error"]
    for (_, above), (_, below), row in zip(recent, whole, rows, strict=True):
        assert above == pytest.approx(zero + scale * row["error"], abs=1e-3)
        assert below == pytest.approx(zero + scale * row["accumulated"], abs=1e-3)
    assert scale < 0  # up is down in SVG


def test_changes_of_the_world_are_marked_unless_there_are_too_many(play: Maker) -> None:
    run = load(play())
    assert [mark.at for mark in events.marks(run)] == [1000, 2000, 3000]
    assert dotted(picture(run, "errors")) == 3
    assert dotted(picture(run, "regret")) == 6  # in both panels
    assert "the world changed" in texts(picture(run, "errors"))
    many = [{**row, "changes": [row["round"] - 7.0]} for row in event_rows()[:-1]]
    crowded = load(play("many", log=many))
    assert events.marks(crowded) == []
    assert dotted(picture(crowded, "errors")) == 0
    told = {picture.title: picture.caption for picture in pictures(crowded)}
    assert "too often to be marked" in told["Error over the stream"]


SHARES = st.lists(st.floats(0, 1), min_size=2, max_size=2)


@given(
    st.lists(
        st.tuples(st.integers(1, 50), SHARES, SHARES, st.integers(0, 3)), min_size=1, max_size=8
    )
)
def test_totals_are_means_over_all_events(
    parts: list[tuple[int, list[float], list[float], int]],
) -> None:
    rows, at = [], 0
    each: list[tuple[float, float]] = []
    for used, active, silent, unused in parts:
        at += used + unused
        rows.append(
            VerticalRound(
                round=at,
                active=tuple(active),
                silent=tuple(silent),
                unused=unused,
                up=at * MIB,
                down=0,
                framing=5,
            )
        )
        each += [(active[1], silent[0])] * used
    found = totals(
        Run(
            Path(),
            About(facts=Vertical(clients=(PartyFacts(), PartyFacts()))),
            "",
            Environment(),
            tuple(rows),
            (),
            None,
        )
    )
    assert found is not None
    assert found.events == len(each)
    assert found.unused == sum(part[3] for part in parts)
    assert found.active[1] == pytest.approx(fmean(a for a, _ in each))
    assert found.silent[0] == pytest.approx(fmean(s for _, s in each))
    assert found.mebibytes == pytest.approx(at + 5 / MIB)


def test_no_messages_no_totals(make: Maker) -> None:
    run = load(make())
    assert totals(run) is None
    assert not list(comparisons.costs([[run]], ["a"]))
    assert comparisons.cost_cells([run]) == ["-", "-", "-"]


def test_bars_say_who_was_active_and_who_did_not_answer(play: Maker) -> None:
    run = load(play())
    assert {"100", "50", "25", "did not answer"} <= set(texts(picture(run, "activation")))
    answering = [{**row, "silent": [0.0] * 3} for row in event_rows()[:-1]]
    assert "did not answer" not in texts(picture(load(play("all", log=answering)), "activation"))
    crowd = [{**row, "active": [0.5] * 400, "silent": [0.1] * 400} for row in event_rows()[:-1]]
    many = load(play("crowd", log=crowd, clients=[{"client": i} for i in range(400)]))
    drawn = picture(many, "activation")
    assert "400 parties, the most active first" in texts(drawn)
    assert drawn is not None
    assert len(drawn) < 150_000


def test_bytes_and_seconds_are_those_of_the_last_row(play: Maker) -> None:
    run = load(play())
    assert {"payload up 7.81 MiB", "payload down 3.91 MiB", "framing 1.95 MiB"} <= set(
        texts(picture(run, "traffic"))
    )
    assert {"0.4 s, 100 µs an event", "0.2 s, 50 µs an event", "0.08 s, 20 µs an event"} <= set(
        texts(picture(run, "times"))
    )


def test_prices_are_drawn_as_far_as_they_are_finite(play: Maker) -> None:
    run = load(play(log=under_privacy(event_rows()), **LABELS))
    said = texts(picture(run, "prices"))
    assert {"label", "features at parties 0 to 2", "3", "∞, not protected", "budget"} <= set(said)
    assert picture(load(play("free")), "prices") is None
    literal = load(play("paper", log=under_privacy(event_rows()), **LABELS, form="paper"))
    assert picture(literal, "prices") is None  # a finite bar would look like a promise


def test_neighbouring_parties_with_the_same_price_are_told_together(play: Maker) -> None:
    entries = [
        ("party:0", 2.0, "a"),
        ("party:1", 2.0, "a"),
        ("party:2", "inf", "b"),
        ("entities", 9.0, "c"),
    ]
    run = load(
        play(
            releases=[
                {"unit": unit, "epsilon": epsilon, "what": what} for unit, epsilon, what in entries
            ]
        )
    )
    assert events.released(run) == [
        ("features at parties 0 to 1", 2.0, "a"),
        ("features at party 2", math.inf, "b"),
        ("entity, all of it", 9.0, "c"),
    ]


def test_the_page_speaks_of_events_and_parties(play: Maker) -> None:
    _, text, _ = read(write(play()))
    for shown in (
        "DLR-Random, sound form, vertical events",
        "accuracy over the stream 39.30 %",
        "events 4000 of 4000 planned",
        "of the last 40 events",
        "activity 58.33 % 25 to 100 % by party",
        "13.67 MiB",
        "parties 3 with different features",
        "3 parties: what they hold and what they did",
        "2 196 64 12608 25.00 % 37.50 %",
        "each party with probability 0.5",
        "two classes changed their names",
        "0.95 times as heavy as the next",
        "its last embedding stands in",
    ):
        assert shown in text, shown
    body = text.split(" Study ")[0].lower()
    for word in (
        "test set",
        "test accuracy",
        "client",
        "round",
        "local steps",
        "best:",
        "examples of each label",
    ):
        assert word not in body, word


def test_what_is_not_protected_is_said_with_the_guarantee(play: Maker) -> None:
    html, text, _ = read(write(play(log=under_privacy(event_rows()), **LABELS)))
    sentence = "Features are not protected: embeddings are sent without noise."
    assert (
        html.index(LABELS["guarantee"][:30]) < html.index(sentence) < html.index('class="numbers"')
    )
    assert "epsilon of features ∞ not protected" in text
    assert "who is protected each entity's label" in text
    assert (
        "label 2.99999 randomised response at epsilon = 3, once features at parties 0 to "
        "2 ∞ embeddings" in text
    )
    assert (
        "it is an estimate, unbiased but for entities whose response was learned from before"
        in text
    )
    closed = {**LABELS, "open": None, "releases": LABELS["releases"][:1]}
    _, text, _ = read(write(play("closed", log=under_privacy(event_rows()), **closed)))
    assert "not protected" not in text.split(" Study ")[0]


def test_while_it_runs_accuracy_is_that_of_all_events_so_far(play: Maker) -> None:
    rows = event_rows()[:7]
    run = load(play(log=rows, status="running", result=None))
    assert run.accuracy == pytest.approx(1 - rows[-1]["accumulated"])
    assert "280 events are played" in render(run)
    assert "No event is played yet." in render(
        load(play("new", log=[], status="running", result=None))
    )


@pytest.mark.parametrize(
    ("method", "window", "followed"),
    [
        ("ogd", 1, "the loss of the event itself"),
        ("slr", 10, "at the weights of now"),
        ("dlr", 10, "at the weights of its time"),
    ],
)
def test_regret_is_told_as_what_the_method_follows(
    play: Maker, method: str, window: int, followed: str
) -> None:
    caption = shown(load(play(method=method, window=window)))["regret"].caption
    assert followed in caption
    assert ("static local regret" in caption) == (method == "slr")


@drawings.anew()
def test_nothing_to_draw_and_equal_folders_equal_pages(play: Maker) -> None:
    empty = load(play("empty", log=[], status="running", result=None))
    assert not shown(empty)
    assert render(load(play("one/run"))) == render(load(play("another/run")))


ODD: tuple[Any, ...] = ("x", -1, "inf", 10**400, None, [1], {}, ["x", None, -3])


@pytest.mark.parametrize(
    "value",
    [*ODD[:4], *(pytest.param(each, marks=pytest.mark.nightly) for each in ODD[4:7]), ODD[7]],
)
def test_odd_values_in_rows_stop_no_picture(play: Maker, value: Any) -> None:
    odd = event_rows()[:3]
    odd += [{**odd[2], "round": 160, key: value} for key in odd[0] if key != "kind"]
    run = load(play(log=readable(odd, "vertical"), **LABELS))
    for key in KEYS:
        ET.fromstring(picture(run, key) or "<none/>")


@pytest.mark.parametrize("value", ODD[2:7])
def test_odd_facts_stop_no_page(play: Maker, value: Any) -> None:
    kept = (
        "run",
        "name",
        "regime",
        "status",
        "clients",
        "classes",
        "assumptions",
        "warnings",
        "result",
        "ledger",
        "guarantee",
        "stages",
    )
    facts: dict[str, Any] = dict.fromkeys(
        key for key in plain(load(play("whole")).about) if key not in kept
    )
    odd = [(key, value) for key in facts] + [
        ("releases", [{"unit": value, "what": value, "epsilon": value}, value])
    ]
    for i, (key, each) in enumerate(odd):
        folder = play(str(i), log=event_rows()[:3], **{**LABELS, key: each})
        try:
            run = load(folder)
        except StudyError as error:
            assert re.search(rf"run\.json: {key}.* must be .*; got .*Restore", str(error))  # noqa: PT017
            continue
        assert "Error over the stream" in render(run)
        assert comparisons.cost_cells([run])[0] != "-"


def test_a_long_stream_has_grouped_digits(play: Maker) -> None:
    assert "1\u202f000\u202f000" in texts(
        picture(load(play(log=event_rows(2_000_000, 20_000))), "errors")
    )


def test_several_streams_are_held_against_each_other_by_their_error(
    play: Maker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    private = play("private", log=under_privacy(event_rows()), **LABELS, name="private")
    out = tmp_path_factory.mktemp("out") / "c.html"
    write_comparison([play("a", name="a"), private], out)
    _, text, _ = read(out)
    assert "accuracy over the stream" in text
    assert "run-time error (%)" in text
    assert "Over events" in text
    assert "13.67 MiB, active 58.3 %" in text
    assert "Over activations" not in text
    assert "epsilon spent" not in text  # all of it at once: a table tells
    assert "Features are not protected" in text
    drawn = curves.together([[load(play("c"))], [load(private)]], ["c", "p"], "round")
    assert drawn is not None
    assert len(polyline(draw(drawn), 0)) == 100


def test_over_epsilon_a_stream_is_one_point_and_one_without_a_promise_a_level(play: Maker) -> None:
    private = [load(play(f"p{i}", log=under_privacy(event_rows()), **LABELS)) for i in (0, 1)]
    free = [load(play("f"))]
    drawn = curves.together([private, free], ["p", "f"], "epsilon")
    assert "f (ε = ∞)" in texts(drawn)
    assert "accuracy over the stream (%)" in texts(drawn)
    assert curves.together([free], ["f"], "epsilon") is None


def test_a_page_of_two_regimes_says_both(play: Maker, arrive: Maker) -> None:
    both = [load(play("a")), load(arrive("b", log=arrival_rows()))]
    html = comparisons.render_comparison(both)
    assert "Over updates or events" in html
    assert "Accuracy on the test set, or in the events of the last five rows of the log" in html
    assert "accuracy (%)" in html
    assert "run-time error" not in html
    assert (
        regimes.shared(map(regimes.vocabulary, ("synchronous", "asynchronous", "vertical"))).rounds
        == "rounds, updates or events"
    )


def test_costs_are_means_over_the_runs_of_a_study(play: Maker) -> None:
    twice = [{**row, "up": 3 * row["up"]} if "up" in row else row for row in event_rows()]
    runs = [load(play("a")), load(play("b", log=twice))]
    assert comparisons.cost_cells(runs) == [f"{(11.71875 + 27.34375) / 2:.2f}", "58.3 %", "0.6"]
    assert "21.48 MiB, active 58.3 %" in texts(draw(next(comparisons.costs([runs], ["x"]))))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(1, 5))
def test_smoothing_keeps_means(values: list[float], last: int) -> None:
    found = smoothed(values, last)
    assert found[0] == values[0]
    assert found == pytest.approx(
        [fmean(values[max(0, i + 1 - last) : i + 1]) for i in range(len(values))]
    )
