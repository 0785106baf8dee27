"""Pictures and words of a run in which gradients are applied as they arrive."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from typing import Any

import pytest

import drawings
from sordino.base.errors import StudyError
from sordino.clients.report import client_budgets
from sordino.core import regimes
from sordino.core.run.reading import Run, load
from sordino.core.statements import Figure
from sordino.regimes.asynchronous import report as arrivals
from sordino.report import curves, write, write_comparison
from sordino.report.drawing import draw

from .conftest import Maker, arrival_rows, readable, rows
from .test_figures import SVG, polyline
from .test_page import read


def drawn(run: Run, key: str) -> str | None:
    """A figure as SVG text; None where there is nothing to show."""
    return next((draw(each) for each in arrivals.figures(run) if each.key == key), None)


def texts(picture: Figure | str | None) -> list[str]:
    assert picture is not None
    picture = picture if isinstance(picture, str) else draw(picture)
    return ["".join(found.itertext()) for found in ET.fromstring(picture).iter(f"{SVG}text")]


def outline(picture: str | None, colour: str) -> list[tuple[float, float]]:
    """Corners of the first path of a colour that is clipped to the axes."""
    assert picture is not None
    for path in ET.fromstring(picture).iter(f"{SVG}path"):
        if (
            re.search(rf"(fill|stroke): {colour}", path.get("style", ""))
            and "clip-path" in path.attrib
        ):
            numbers = [float(n) for n in re.findall(r"-?[\d.]+", path.attrib["d"])]
            return list(zip(numbers[::2], numbers[1::2], strict=True))
    raise AssertionError(f"nothing of colour {colour}")


def test_stages_are_marked_where_they_begin_and_only_those_that_were_reached(arrive: Maker) -> None:
    run = load(arrive())
    assert [(mark.at, mark.text) for mark in arrivals.marks(run)] == [
        (0.0, "1"),
        (100.0, "2"),
        (200.0, "3"),
    ]
    said = texts(draw(next(iter(arrivals.figures(run)))))
    assert {"1", "2", "3", "update"} <= set(said)
    one = load(arrive("one", stages=[{"number": 1, "start": 0, "length": 9999, "clip": 1.0}]))
    assert arrivals.marks(one) == []


def test_bound_is_a_staircase_on_a_logarithmic_axis_where_decades_apart(arrive: Maker) -> None:
    log = [{**row, "norm": 0.01} if row["kind"] == "round" else row for row in arrival_rows()]
    corners = outline(drawn(load(arrive(log=log)), "norms"), "#d55e00")
    heights = sorted({round(y, 2) for _, y in corners})
    assert len(heights) == 3
    # halved twice: equal steps
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], rel=1e-2)
    linear = load(arrive("linear"))
    heights = sorted({round(y, 2) for _, y in outline(drawn(linear, "norms"), "#d55e00")})
    assert heights[1] - heights[0] == pytest.approx(2 * (heights[2] - heights[1]), rel=1e-2)


def test_rows_without_a_signal_are_said_and_leave_a_gap(arrive: Maker) -> None:
    assert "nothing above the noise" in texts(drawn(load(arrive()), "norms"))
    seen = [{**row, "norm": 0.5} if row["kind"] == "round" else row for row in arrival_rows()]
    assert "nothing above the noise" not in texts(drawn(load(arrive("seen", log=seen)), "norms"))
    blind = [{**row, "norm": 0.0} if row["kind"] == "round" else row for row in arrival_rows()]
    assert "nothing above the noise" in texts(drawn(load(arrive("blind", log=blind)), "norms"))


def test_staleness_is_summed_over_all_rows(arrive: Maker) -> None:
    run = load(arrive())
    assert arrivals.histogram(run) == {3: 120, 4: 60, 5: 120}
    assert arrivals.too_stale(run) == {9: 1}
    said = texts(drawn(run, "staleness"))
    assert {"mean 4", "tau_max 5", "applied", "too stale, not applied"} <= set(said)


def test_a_bound_far_away_and_a_few_far_beyond_do_not_crush_the_picture(arrive: Maker) -> None:
    assert "tau_max 1000, to the right of this" in texts(
        drawn(load(arrive(staleness=1000)), "staleness")
    )
    log = [*arrival_rows(), {"kind": "stale", "round": 299, "client": 0, "staleness": 4000}]
    assert "1 more, up to 4000 →" in texts(drawn(load(arrive("far", log=log)), "staleness"))
    assert arrivals.shown_to(Counter({0: 5}), None) == 0


def test_who_is_away_and_who_has_left(arrive: Maker) -> None:
    run = load(arrive())
    gone = outline(drawn(run, "presence"), "#6b7280")
    away = outline(drawn(run, "presence"), "#d55e00")
    assert min(x for x, _ in away) <= min(x for x, _ in gone)
    calm = [row for row in arrival_rows() if row["kind"] not in ("lost", "joined", "left")]
    assert drawn(load(arrive("calm", log=calm)), "presence") is None
    last = [*calm, {"kind": "left", "round": 299, "client": 0}]
    # as the run ended: nothing to see
    assert drawn(load(arrive("last", log=last)), "presence") is None


@pytest.mark.parametrize("count", [2, 5, 30, 31, 1000])
def test_every_edge_stands_against_its_own_budget(arrive: Maker, count: int) -> None:
    own = [0.5 if i < count // 2 else 2.0 for i in range(count)]
    result = {"epsilon": 2.0, "spent": [0.9 * each for each in own]}
    run = load(arrive(clients=[{"client": i} for i in range(count)], epsilons=own, result=result))
    assert client_budgets(run, count) == own
    picture = drawn(run, "spending")
    assert picture is not None
    assert len(picture) < 100_000
    assert {"spent", "its budget"} <= set(texts(picture))
    assert ("edge" in texts(picture)) == (count <= arrivals.MOST_BARS)


def test_no_promise_no_picture_of_spending(arrive: Maker) -> None:
    without: list[dict[str, Any]] = [
        {"unit": "none"},
        {"form": "paper"},
        {"result": None},
        {"result": {"spent": [1.0]}},
    ]
    for i, changes in enumerate(without):
        assert drawn(load(arrive(str(i), **changes)), "spending") is None


def test_a_rate_that_never_changes_is_no_picture(arrive: Maker) -> None:
    log = [{**row, "rate": 0.1} if row["kind"] == "round" else row for row in arrival_rows()]
    assert drawn(load(arrive(log=log)), "rates") is None
    (x0, y0), *_, (x1, y1) = polyline(drawn(load(arrive("falls")), "rates") or "")
    assert x0 < x1
    assert y0 < y1


def test_nothing_to_draw(arrive: Maker) -> None:
    run = load(arrive(log=[], status="running", result=None))
    assert [figure.key for figure in arrivals.figures(run)] == ["partition"]


@pytest.mark.parametrize(
    "value",
    [
        "x", -1, "inf", 10**400, [[-1, 2]],
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ([1], [[1]], {"a": 1}, None)),
    ],
)  # fmt: skip
def test_odd_values_in_rows_and_plans_stop_no_picture(arrive: Maker, value: object) -> None:
    odd = arrival_rows()
    for key in odd[0]:
        if key != "kind":
            odd.append({**odd[0], "round": 299, key: value})
    for kind in ("lost", "joined", "left", "stale"):
        odd.append({"kind": kind, "round": value, "staleness": value})
    stages = [
        {"number": value, "start": 0, "length": value, "clip": value, "rate": value},
        {"start": value, "clip": 1.0},
    ]
    plans = {
        "stages": stages,
        "epsilons": [value],
        "staleness": value,
        "batch": value,
        "R_s": value,
    }
    for i, changes in enumerate([{}, *({key: plan} for key, plan in plans.items())]):
        folder = arrive(str(i), log=readable(odd, "asynchronous"), **changes)
        try:
            run = load(folder)
        except StudyError as error:
            assert re.search(r"run\.json: .* must be .*; got .*Restore", str(error))  # noqa: PT017
            continue
        for figure in arrivals.figures(run):
            ET.fromstring(drawings.draw_once(figure))
        assert write(folder).is_file()


def test_page_speaks_of_updates_and_edges(arrive: Maker) -> None:
    html, text, _ = read(write(arrive()))
    for said in (
        "mapa, sound form, asynchronous updates",
        "updates 300 of 300 planned",
        "gradients of one edge 60",
        "expected batch b 12",
        "tau_max 5 mean staleness: 4",
        "stages 3 of 4 planned",
        "noise multiplier z 2.5",
        "edges 5 300 examples",
        "3 201 to 300 5000 0.25 0.1",
        "falls with t",
        "each single example of an edge's data",
        "sampling rates q_k = b / n_k 0.2",
        "updates planned, T 300",
        "Staleness",
        "Epsilon of each edge",
        "Edges away and gone",
    ):
        assert said in text, said
    assert not re.search(r"\brounds?\b|local step|\btau:", re.sub(r"rounds\.jsonl", "", text)), (
        "a word of the other regime"
    )
    drawn = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
    assert len(drawn) == 7
    ids = [
        found.attrib["id"]
        for picture in drawn
        for found in ET.fromstring(picture).iter()
        if "id" in found.attrib
    ]
    assert len(ids) == len(set(ids))


def test_edges_with_budgets_of_their_own_have_noise_of_their_own(arrive: Maker) -> None:
    own = {"epsilons": [0.5, 0.5, 2.0, 2.0, 2.0], "noise_multipliers": [8.5, 8.5, 2.5, 2.5, 2.5]}
    _, text, _ = read(write(arrive(**own)))
    assert "budgets of single edges 0.5 (2 edges), 2 (3 edges)" in text
    assert text.count("noise multiplier z 2.5 to 8.5") == 2
    assert "z G_s, on a sum of clipped gradients" in text


def test_page_without_privacy(arrive: Maker) -> None:
    log = [
        {**row, "clip": None, "epsilon": "inf"} if row["kind"] == "round" else row
        for row in arrival_rows(staged=False)
    ]
    stages = [
        {
            "number": 1,
            "start": 0,
            "length": 300,
            "clip": "inf",
            "rate": None,
            "variance": 0.1,
            "slowing": 1.0,
        }
    ]
    promised = {
        "unit": "none",
        "epsilon_budget": "inf",
        "delta": None,
        "noise_multiplier": 0.0,
        "method": "asgd",
    }
    folder = arrive(log=log, stages=stages, guarantee="No privacy guarantee: none.", **promised)
    _, text, _ = read(write(folder))
    assert "Gradient norm" in text
    assert "Gradient norm and clipping bound" not in text
    assert "noise multiplier" not in text
    assert "Epsilon of each edge" not in text


def test_running_and_empty_pages_in_updates(arrive: Maker) -> None:
    _, text, _ = read(
        write(arrive(log=arrival_rows()[:3], status="running", result=None, ledger=None))
    )
    assert "30 updates are done" in text
    assert "Spent when the last update of the log was done: epsilon = 0.2" in text
    _, text, _ = read(write(arrive("empty", log=[], status="running", result=None, ledger=None)))
    assert "No update is done yet." in text


def test_comparisons_of_one_regime_and_of_two(arrive: Maker, make: Maker) -> None:
    arriving = [arrive("a", name="one"), arrive("b", name="two")]
    _, text, _ = read(write_comparison(arriving, arriving[0] / "c.html"))
    assert "Over updates" in text
    assert "gradients of one edge" in text
    assert " sampling " not in text  # a column without a number
    _, text, _ = read(
        write_comparison([arriving[0], make("s", rows(), name="three")], arriving[0] / "d.html")
    )
    assert "Over rounds or updates" in text
    assert "three ali-dpfl done" in text


def test_no_privacy_is_a_level_over_epsilon(arrive: Maker) -> None:
    private = load(arrive("p"))
    free = load(
        arrive("f", unit="none", epsilon_budget="inf", result={"accuracy": 0.9, "epsilon": "inf"})
    )
    picture = curves.together([[private], [free]], ["mapa", "asgd"], "epsilon")
    assert "asgd (ε = ∞)" in texts(picture)
    assert "mapa" in texts(picture)
    assert picture is not None
    level = {y for _, y in polyline(draw(picture), 1)}
    assert len(level) == 1
    assert curves.together([[free]], ["asgd"], "epsilon") is None  # nothing to hold it against
    letter = load(arrive("l", form="paper", result={"accuracy": 0.9, "epsilon": 50.0}))
    assert not any(
        "letter" in said
        for said in texts(curves.together([[private], [letter]], ["mapa", "letter"], "epsilon"))
    )


@pytest.mark.parametrize(
    "words", [regimes.vocabulary(name) for name in ("synchronous", "asynchronous", "vertical")]
)
def test_every_vocabulary_is_whole(words: regimes.Vocabulary) -> None:
    assert regimes.vocabulary(words.regime) is words
    assert regimes.shared([words, words]) is words
    assert all(
        getattr(words, name)
        for name in words.__slots__
        if name not in ("steps_end", "counted", "lacking")
    )


def test_a_regime_that_is_not_known_is_one_error_and_none_at_all_counts_rounds(make: Maker) -> None:
    with pytest.raises(StudyError, match="regime 'weather' is not known"):
        load(make(regime="weather"))
    run = load(make("b", regime=None))
    assert run.vocabulary is regimes.vocabulary("synchronous")
    assert not math.isnan(run.number)
