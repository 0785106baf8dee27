"""What :mod:`drawings` takes for the same drawing."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import drawings
from sordino.report.canvas import canvas, figure, svg


def drawn(change: Callable[[Axes], object] = lambda axis: None, salt: str = "a") -> str:
    with canvas(salt):
        found, (axis,) = figure(1, 2.0)
        axis.plot([0, 1, 2], [3, 1, 2], label="a line")
        axis.legend()
        change(axis)
        return svg(found, "a line")


def test_the_same_figure_is_drawn_once_and_looks_as_ever() -> None:
    with drawings.anew():
        plain = drawn(salt="counted")
    with mock.patch.object(drawings, "_draw", wraps=drawings._draw) as draws:
        assert {drawn(salt="counted") for _ in range(9)} == {plain}
        # equal texts need not be one object, which counts as another
        assert 0 < draws.call_count < 4
        assert drawn(salt="another") != plain


NIGHT = pytest.mark.nightly


@pytest.mark.parametrize(
    "change",
    [
        lambda axis: axis.set_title("title"),
        lambda axis: axis.lines[0].set_ydata([3, 1, 2.0001]),
        pytest.param(lambda axis: axis.lines[0].set_color("red"), marks=NIGHT),
        pytest.param(
            lambda axis: axis.legend_.get_texts()[0].set_text("another line"),
            marks=pytest.mark.nightly,
        ),
        lambda axis: axis.xaxis.set_major_formatter(lambda x, at: "1"),
        lambda axis: axis.xaxis.set_major_formatter(lambda x, at: "2"),
        lambda axis: axis.set_ylim(0, 4),
        pytest.param(lambda axis: axis.set_xscale("symlog"), marks=NIGHT),
        pytest.param(lambda axis: axis.figure.set_size_inches(3, 2), marks=NIGHT),
        pytest.param(lambda axis: axis.figure.set_layout_engine("none"), marks=NIGHT),
        pytest.param(
            lambda axis: axis.spines["left"].set_visible(False), marks=pytest.mark.nightly
        ),
        pytest.param(
            lambda axis: axis.xaxis.set_tick_params(labelsize=5), marks=pytest.mark.nightly
        ),
    ],
)
def test_another_figure_is_another_drawing(change: Callable[[Axes], object]) -> None:
    with drawings.anew():
        plain, other = drawn(), drawn(change)
    assert other != plain
    assert (drawn(), drawn(change)) == (plain, other)


def test_the_program_draws_again_outside_of_these_tests() -> None:
    with drawings.anew():
        assert Figure.savefig is drawings._draw
