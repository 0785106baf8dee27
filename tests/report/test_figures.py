"""Pictures: well-formed, equal for equal input, and drawn from the numbers they were given."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import drawings
from sordino.base.errors import StudyError
from sordino.clients.report import division, learning
from sordino.core.run.reading import Run, load
from sordino.core.statements import MOST_DOTS, Figure, Matrix
from sordino.regimes.synchronous.report import figures
from sordino.report import curves as several
from sordino.report import drawing
from sordino.report.drawing import draw

from .conftest import Maker, readable, rows

SVG = "{http://www.w3.org/2000/svg}"


def curves(run: Run, over: str = "round") -> str | None:
    """Accuracy and epsilon, drawn; None where there is nothing to draw."""
    return next(map(draw, learning(run, "", "", over)), None)


def shown(run: Run) -> dict[str, Figure | Matrix]:
    """The figures of a run in rounds by their keys."""
    return {each.key: each for each in figures(run)}


def partition_figure(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    return draw(division(counts, classes))


def polyline(picture: str, index: int = 0) -> list[tuple[float, float]]:
    """Points of the index-th curve that is drawn in a series colour, in the picture's own units."""
    curves = [
        path.attrib["d"]
        for path in ET.fromstring(picture).iter(f"{SVG}path")
        if re.search(r"fill: none.*stroke: #(0072b2|d55e00|009e73|aa4499)", path.get("style", ""))
        and "clip-path" in path.attrib
    ]
    numbers = [float(n) for n in re.findall(r"-?[\d.]+", curves[index])]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_accuracy_curve_is_an_affine_image_of_the_log(make: Maker) -> None:
    picture = curves(load(make()), "steps")
    assert picture is not None
    (x0, y0), (x1, y1), (x2, y2) = polyline(picture)
    # rounds 1, 3, 5 stand at 2, 7, 12 steps; 41.21 %, 75.01 % and 73.13 % correct
    assert (x1 - x0) / (x2 - x0) == pytest.approx((7 - 2) / (12 - 2), rel=1e-4)
    assert (y1 - y0) / (y2 - y0) == pytest.approx((0.7501 - 0.4121) / (0.7313 - 0.4121), rel=1e-4)
    assert y1 < y0  # up is down in SVG


def test_epsilon_is_drawn_only_where_it_is_a_promise(make: Maker) -> None:
    private = curves(load(make("a")))
    without = curves(load(make("b", form="paper")))
    assert private is not None
    assert without is not None
    assert "epsilon spent" in private
    assert "epsilon spent" not in without
    assert len(polyline(private, 1)) == 5


def test_nothing_to_draw(make: Maker) -> None:
    run = load(make(log=[], status="running", result=None))
    assert list(shown(run)) == ["partition"]  # who holds what is known from the start
    assert several.together([[run]], ["a"], "round") is None


@pytest.mark.parametrize(
    "value", ["x", -1, "inf", pytest.param(1e154, marks=pytest.mark.nightly), 1.7e308, 10**400]
)
def test_odd_values_in_rows_and_plans_stop_no_picture(make: Maker, value: object) -> None:
    odd = [*rows(), {"kind": "late", "round": value}, {"kind": "lost", "round": 2}]
    for key in rows()[0]:
        if key != "kind":
            odd.append({**rows()[4], "round": 6, key: value})
    for key in ("R_c", "R_s"):
        with suppress(StudyError):
            ET.fromstring(draw(shown(load(make(key, **{key: value})))["pace"]))
    run = load(make(log=readable(odd, "synchronous")))
    for each in shown(run).values():
        ET.fromstring(drawings.draw_once(each))
    for over in ("round", "steps"):
        picture = several.together([[run]], ["a"], over)
        ET.fromstring("<none/>" if picture is None else draw(picture))


def test_absences_and_clock_appear_only_when_there_is_something(make: Maker) -> None:
    calm = load(make("calm"))
    assert not {"absences", "clock"} & set(shown(calm))  # every round took one second
    slow = [{**row, "time": row["time"] ** 2} for row in rows()]
    run = load(
        make(
            "slow",
            log=[*slow, {"kind": "lost", "round": 2, "client": 1}, {"kind": "late", "round": "x"}],
        )
    )
    assert {"absences", "clock"} <= set(shown(run))
    picture = draw(shown(run)["absences"])
    assert "lost" in picture
    ET.fromstring(picture)


@pytest.mark.parametrize("clients", [0, 1, 3, 30, 31, 1000])
def test_partition_of_any_size_is_well_formed(clients: int) -> None:
    picture = partition_figure([[i % 7, 40, 0] for i in range(clients)], ["a", "b", "c"])
    root = ET.fromstring(picture)
    assert root.tag == f"{SVG}svg"
    assert len(picture) < 300_000
    images = list(root.iter(f"{SVG}image"))
    assert len(images) == (2 if clients > MOST_DOTS else 0)  # the map and its scale


@pytest.mark.parametrize(("clients", "most"), [(1, 1), (31, 60), (61, 60), (200, 60), (1000, 7)])
def test_grouping_clients_keeps_every_example(clients: int, most: int) -> None:
    rows = [[i * 7 % 13, i * 5 % 11, 40 * (i % 3 == 0)] for i in range(clients)]
    bands = drawing.aggregated(rows, most)
    assert len(bands) == min(most, clients)
    sizes = [(i + 1) * clients // len(bands) - i * clients // len(bands) for i in range(len(bands))]
    for label in range(3):
        assert sum(
            size * band[label] for size, band in zip(sizes, bands, strict=True)
        ) == pytest.approx(sum(row[label] for row in rows))


def test_grouped_clients_show_who_holds_which_label() -> None:
    """One label each, dealt in turn: sorted, the map is made of blocks and no band mixes two labels
    but at a border.
    """
    bands = drawing.aggregated(
        [[5 * (i % 4 == label) for label in range(4)] for i in range(400)], 40
    )
    assert sum(max(band) == 5.0 and sum(band) == 5.0 for band in bands) == 40


@pytest.mark.parametrize(
    "rows", [[[1, 2], [3]], [[1, 2, 3, 4]], [[1, 2]] * 31 + [[1]], [[]] * 40, [[0, 0]] * 40]
)
def test_rows_of_another_length_than_the_classes(rows: list[list[int]]) -> None:
    ET.fromstring(partition_figure(rows, ["a", "b"]))


def test_area_of_a_bubble_is_proportional_to_the_count() -> None:
    root = ET.fromstring(partition_figure([[100, 25]], ["a", "b"]))
    widths = []
    for group in root.iter(f"{SVG}g"):
        if group.get("id", "").startswith("PathCollection"):
            for path in group.iter(f"{SVG}path"):
                xs = [float(n) for n in re.findall(r"-?[\d.]+", path.attrib["d"])[::2]]
                widths.append(max(xs) - min(xs))
            break
    assert len(widths) == 2
    assert max(widths) / min(widths) == pytest.approx(2.0, rel=1e-3)


def test_hostile_class_names() -> None:
    picture = partition_figure([[1, 2]], ["<b>&\x00\ud800</b>", "$\\frac{$"])
    ET.fromstring(picture)
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in picture
    assert "$\\frac{$" in picture


def test_legend_tells_long_names_apart(make: Maker) -> None:
    names = [f"{'ALI-DPFL on Fashion-MNIST ' * 4}tau = {tau}" for tau in (1, 10)]
    picture = several.together([[load(make("a"))], [load(make("b"))]], names, "round")
    assert picture is not None
    texts = ["".join(found.itertext()) for found in ET.fromstring(draw(picture)).iter(f"{SVG}text")]
    assert (
        sum(text.endswith("tau = 1") for text in texts)
        == sum(text.endswith("tau = 10") for text in texts)
        == 1
    )


@drawings.anew()
def test_same_bytes_whatever_the_reader_set_up(make: Maker, tmp_path: Path) -> None:
    import matplotlib as mpl

    run = load(make())
    first = [curves(run), partition_figure([[1, 2]], ["a", "b"])]
    with mpl.rc_context({"axes.linewidth": 9.0, "font.size": 30.0, "svg.hashsalt": "else"}):
        second = [curves(run), partition_figure([[1, 2]], ["a", "b"])]
    assert first == second
