"""Schedules of the asynchronous methods against the numbers that were printed or worked out by
hand.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.regimes.asynchronous.method import Asgd, Audp, Csgd, EdgeTerms, Mapa, feasible

LR = EdgeTerms(dimension=7850, edges=5, batch=12, clip=1.0, noise=1.0, staleness=5, updates=15_000)
GUESS = {"smoothness": 1.0, "deviation": 1.0, "gap": 2.3}


@pytest.mark.parametrize(
    ("d", "b", "slowing", "length"),
    [
        (7850, 12, 73, 32_000),
        (7850, 120, 1, 598),
        (26_010, 240, 1, 727),
    ],  # worked out for the sound form
)
def test_first_stage_of_the_sound_form(d: int, b: int, slowing: int, length: int) -> None:
    stage = Mapa(**GUESS).stages(replace(LR, dimension=d, batch=b))[0]
    assert round(stage.slowing) == slowing
    assert stage.length == pytest.approx(length, rel=0.01)


def test_stages_of_the_papers_form_are_those_of_its_constants() -> None:
    stages = Mapa(form="paper").stages(replace(LR, updates=400_000))
    assert [stage.end for stage in stages[:10]] == [
        1,
        3,
        10,
        36,
        138,
        546,
        2215,
        9486,
        48_116,
        355_421,
    ]
    assert stages[8].clip == pytest.approx(5.24, abs=0.01)
    assert 2 * stages[0].clip / 12 == pytest.approx(223.6, abs=0.1)  # DS_0 of Eq. (12)


def test_literal_bound_of_theorem_3_holds_with_equality() -> None:
    ds = 2 * Mapa(form="paper").stages(LR)[0].clip / LR.batch
    assert (1 - 4 * 30.0**2 / (12 * ds) ** 2) ** 2 == pytest.approx(1 - 1e-3)


@given(
    st.floats(0.05, 0.95),
    st.floats(1, 500),
    st.floats(0.1, 5),
    st.integers(1, 100_000),
    st.integers(0, 1000),
    st.floats(0.01, 100),
)
def test_stages_follow_equations_15_and_16(
    theta: float, batch: float, z: float, d: int, tau: int, clip: float
) -> None:
    terms = EdgeTerms(
        dimension=d, edges=5, batch=batch, clip=clip, noise=z, staleness=tau, updates=10_000
    )
    stages = Mapa(theta=theta, **GUESS).stages(terms)
    assert stages[0].clip == clip
    for stage in stages:
        ds = 2 * stage.clip / batch
        variance = 1.0 / batch + d * z**2 * (stage.clip / batch) ** 2
        slowing = max(8 * variance / ((tau + 1) * batch**2 * ds**2 * theta**2), 1.0)
        assert stage.variance == pytest.approx(variance)
        assert stage.slowing == pytest.approx(slowing)
        assert stage.rate == pytest.approx(1 / (2 * slowing * (tau + 1)))
        exact = min(4 * slowing**2 * (tau + 1) ** 2 * 2.3 / variance, 2.0**53)
        assert stage.length == max(math.ceil(exact), 1) or stage.length == pytest.approx(
            exact, rel=1e-9
        )
    for stage, following in itertools.pairwise(stages):
        assert following.clip == pytest.approx(theta * stage.clip)
        assert following.start == stage.end
    assert stages[-1].start < terms.updates <= stages[-1].end


def test_what_would_make_a_schedule_feasible_does_and_little_less_does_not() -> None:
    method = Mapa(**GUESS)
    assert method.stages(LR)[0].end > LR.updates
    batch, noise = feasible(method, LR)
    assert batch is not None
    assert noise is not None
    assert (
        method.stages(replace(LR, batch=batch))[0].end
        <= LR.updates
        < method.stages(replace(LR, batch=0.9 * batch))[0].end
    )
    assert (
        method.stages(replace(LR, noise=noise))[0].end
        <= LR.updates
        < method.stages(replace(LR, noise=1.1 * noise))[0].end
    )


def test_learning_rates_of_table_2() -> None:
    constants = {"smoothness": 10.0, "deviation": 30.0, "radius": 50.0}
    t = 99
    root = math.sqrt(t + 1) * 30 / (50 * math.sqrt(12))
    for method, inverse in ((Csgd(**constants), 10 + root), (Asgd(**constants), 10 * 36 + root)):
        assert 1 / method.rate(LR, method.stages(LR)[0], t) == pytest.approx(inverse)
    audp = Audp(**constants)
    (stage,) = audp.stages(LR)
    assert 1 / audp.rate(LR, stage, t) == pytest.approx(
        10 * 6 + math.sqrt(stage.variance + 1) * math.sqrt(t)
    )
    literal = Audp(form="paper", **constants)
    (stage,) = literal.stages(LR)
    assert 2 * stage.clip / 12 == pytest.approx(8 / 12)  # DS = 8 / b
    assert stage.variance == pytest.approx(900 / 12 + 2 * (8 / 12 / 0.1) ** 2)
