"""Correlated noise: what a record moves, as the machine computes it, is what is booked."""

import itertools
import json
import math
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular  # type: ignore[import-untyped]
from scipy.signal import lfilter  # type: ignore[import-untyped]

from correlations import matrix, shift
from sordino.base.entropy import Seeded
from sordino.base.errors import ResumeError, StudyError
from sordino.mechanisms.contract import ContractBroken, check_noise
from sordino.mechanisms.correlated import SLACK, CorrelatedGaussian, Correlation, Memory, _grid
from sordino.mechanisms.grid import Grid

Kind = Literal["banded", "blt"]
KINDS: tuple[Kind, ...] = ("banded", "blt")
Floats = NDArray[np.float64]


def made(kind: Kind, separation: int = 4, passes: int = 3, share: float = 0.0) -> Any:
    correlation = Correlation(kind=kind, separation=separation, passes=passes)
    return CorrelatedGaussian(clip=0.7, noise_multiplier=1.3, correlation=correlation, share=share)


def stream(mechanism: Any, sums: Floats, seed: int = 0) -> tuple[Floats, Floats]:
    """What is released of sums (n, d) in whole steps of the grid, and the whole numbers N."""
    n, d = sums.shape
    grid = _grid(mechanism.correlation, mechanism.clip, mechanism.deviation_multiplier, d)
    memory, released, drawn = None, np.empty((n, d)), np.empty((n, d))
    for t, total in enumerate(sums):
        rng = Seeded(seed).at("noise", t)
        before = zetas(memory, mechanism)
        noisy, _, memory = mechanism.release_after(torch.tensor(total), 0.0, rng, memory, t)
        whole = np.rint(np.clip(total / grid.step, -(2.0**51), 2.0**51))
        released[t] = whole + newest(memory, before, mechanism)
        assert np.array_equal(noisy.numpy(), (released[t] * grid.step).astype(np.float32))
        drawn[t] = Grid(1.0, grid.deviation).drawn(np.zeros(d), Seeded(seed).at("noise", t))
    return released, drawn


def zetas(memory: Memory | None, mechanism: Any) -> Floats | float:
    """The part of the first buffer that is of earlier steps."""
    if memory is None or mechanism.correlation.kind == "banded" or not memory.rows:
        return 0.0
    found: Floats = mechanism.correlation.buffers[0][0] * memory.rows[0][0]
    return found


def newest(memory: Memory, before: Floats | float, mechanism: Any) -> Floats:
    banded = mechanism.correlation.kind == "banded"
    row = memory.rows[0].astype(np.float64) if banded else memory.rows[0][0] - before
    found: Floats = np.rint(row)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_inverse_of_a_dense_matrix(kind: Kind) -> None:
    """C zeta is the noise that was drawn, up to rounding, and C^-1 of that is zeta to 1e-12."""
    mechanism, n = made(kind, separation=6, passes=5), 30
    zeta, drawn = stream(mechanism, np.zeros((n, 50)))
    dense = matrix(mechanism.correlation, n)
    rounding = dense @ zeta - drawn
    assert np.abs(rounding).max() <= 0.5 + 1e-6
    again = solve_triangular(dense, drawn + rounding, lower=True)
    assert np.abs(again - zeta).max() <= 1e-12 * np.abs(zeta).max()
    assert np.abs(solve_triangular(dense, drawn, lower=True) - zeta).max() < 4.0


def patterns(n: int, separation: int) -> list[tuple[int, ...]]:
    """All sets of steps at least so far apart."""
    return [
        each
        for size in range(1, -(-n // separation) + 1)
        for each in itertools.combinations(range(n), size)
        if all(b - a >= separation for a, b in itertools.pairwise(each))
    ]


def worst(correlation: Correlation, n: int, separation: int) -> float:
    """Most that any record has moved at any moment, over what was charged since it came first: a
    pass at a time, and for a band no more than the times that it came.
    """
    dense, most = np.abs(matrix(correlation, n)), 0.0
    each = correlation.moved(1.0, 0.0)
    for pattern in patterns(n, separation):
        moved = dense[:, list(pattern)].cumsum(axis=1)
        for t in range(pattern[0], n):
            times = sum(u <= t for u in pattern)
            passes = (t - pattern[0]) // correlation.separation + 1
            paid = times if correlation.kind == "banded" else passes
            length = float(np.square(moved[: t + 1, times - 1]).sum())
            most = max(most, length / (paid * each * each))
    return most


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("separation", "passes"), [(1, 5), (2, 5), (3, 4), (5, 3), (7, 2)])
def test_no_pattern_moves_more_than_it_has_paid(kind: Kind, separation: int, passes: int) -> None:
    correlation = Correlation(kind=kind, separation=separation, passes=passes)
    n = separation * passes
    assert worst(correlation, n, separation) <= 1.0 + 1e-12
    assert worst(correlation, n, separation) > 0.99  # and some pattern all of it


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("separation", "passes"), [(2, 5), (3, 4), (5, 3)])
def test_one_step_nearer_is_more_than_was_paid(kind: Kind, separation: int, passes: int) -> None:
    correlation = Correlation(kind=kind, separation=separation, passes=passes)
    assert worst(correlation, separation * passes, separation - 1) > 1.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_the_noise_that_c_gives_back_has_the_scale_that_is_booked(kind: Kind, share: float) -> None:
    """Whitened by C, noise is independent, and as wide as a record's moves times sigma."""
    mechanism, n, d = made(kind, share=share), 12, 3000
    dense = matrix(mechanism.correlation, n)

    def draw(rng: np.random.Generator, factor: float = 1.0) -> torch.Tensor:
        memory, released = None, np.empty((n, d))
        for t in range(n):
            noisy, _, memory = mechanism.release_after(torch.zeros(d), 0.0, rng, memory, t)
            released[t] = noisy.double().numpy()
        return torch.from_numpy((dense @ released).ravel() * factor)

    booked = mechanism.event().noise_multiplier / math.sqrt(1.0 - share)
    length = mechanism.correlation.moved(mechanism.clip, 0.0)
    check_noise(draw, booked, length)
    for factor in (2 / 3, 3 / 2):
        with pytest.raises(ContractBroken):
            check_noise(partial(draw, factor=factor), booked, length)


def test_a_count_has_its_part_of_the_price() -> None:
    mechanism = made("blt", share=0.25)
    shares = (1 / mechanism.deviation_multiplier) ** 2 + (0.5 / mechanism.count_deviation) ** 2
    assert shares == pytest.approx(1 / mechanism.noise_multiplier**2)

    def draw(rng: np.random.Generator) -> torch.Tensor:
        return torch.tensor(
            [mechanism.release_counted(torch.zeros(1), 0.0, rng)[1] for _ in range(4000)]
        )

    check_noise(draw, mechanism.count_deviation, 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_neighbours_move_no_more_on_the_grid(kind: Kind) -> None:
    """A search for contributions, places and roundings that move most, given one past."""
    mechanism, rng = made(kind, separation=4, passes=3), np.random.default_rng(1)
    n, d = 12, 40
    grid = _grid(mechanism.correlation, mechanism.clip, mechanism.deviation_multiplier, d)
    most, root = 0.0, math.sqrt(d)
    paid = mechanism.correlation.moved(mechanism.clip / grid.step + root, SLACK * root)
    for trial in range(60):
        one = rng.normal(size=(n, d)) * mechanism.clip
        # the edge of rounding, half a step off, where a hair decides
        one = (np.rint(one / grid.step) + 0.5 - 1e-9 * (trial % 2)) * grid.step
        seen, _ = stream(mechanism, one, seed=trial)
        pattern = [trial % 4 + 4 * k for k in range(3)]
        other, direction = one.copy(), rng.choice([-1.0, 1.0], size=d) / root
        for place in pattern:
            other[place] += direction * mechanism.clip
        moved = shift(mechanism, seen, one, other)
        until = [(moved[: place + 4] ** 2).sum() for place in pattern]
        for times, square in enumerate(until, 1):
            most = max(most, square / (times * paid * paid))
    assert 0.98 < most <= 1.0
    assert grid.deviation >= mechanism.noise_multiplier * paid  # so each time costs sigma


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_kept_and_goes_on_with_the_same_bytes(kind: Kind) -> None:
    mechanism = made(kind)
    sums = torch.randn(7, 30, generator=torch.Generator().manual_seed(3))

    def play(stop: int | None) -> list[bytes]:
        memory, out = None, []
        for t, total in enumerate(sums):
            if t == stop and memory is not None:
                before = {name: row.copy() for name, row in memory.arrays().items()}
                memory = Memory.of(before)
            noisy, _, memory = mechanism.release_after(total, 0.0, Seeded(1).at(t), memory, t)
            out.append(noisy.numpy().tobytes())
        return out

    assert play(None) == play(3)


def test_a_later_format_of_a_memory_is_refused() -> None:
    _, _, memory = made("blt").release_after(torch.zeros(3), 0.0, Seeded(1).at(1), None, 0)
    kept = memory.arrays()
    kept["about"] = np.frombuffer(kept["about"].tobytes().replace(b"[1,", b"[9,", 1), np.uint8)
    with pytest.raises(ResumeError, match="format"):
        Memory.of(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_that_does_not_fit_is_refused(kind: Kind) -> None:
    """Compiled loops would read what lies behind a row, and put it into the noise."""
    _, _, memory = made(kind).release_after(torch.zeros(8), 0.0, Seeded(1).at(1), None, 0)
    kept = memory.arrays()
    row = kept["row.0"]
    for wrong in (row[..., :4].copy(), row[..., None], row.astype(np.float32), row.reshape(-1)[:0]):
        with pytest.raises(ValueError, match="must have 8 numbers"):
            Memory.of({**kept, "row.0": wrong})


def test_a_stored_memory_is_read() -> None:
    """As version 1 of the format has it."""
    about = b'[1,5,5,[0.7,1.3,2],"0a"]'
    kept = {"about": np.frombuffer(about, np.uint8), "row.0": np.array([[1.5, 2.0], [3.0, -4.0]])}
    memory = Memory.of(kept)
    assert (memory.number, memory.taken, memory.terms) == (5, 5, (0.7, 1.3, 2))
    assert memory.token == "0a"
    assert memory.arrays()["about"].tobytes() == about
    _, _, after = made("blt").release_after(torch.zeros(2), 0.0, Seeded(0).at(0), memory, 5)
    assert (after.number, after.taken) == (6, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_begins_anew_where_steps_are_missing_or_terms_change(kind: Kind) -> None:
    mechanism, d = made(kind), 20
    fresh, _, _ = mechanism.release_after(torch.zeros(d), 0.0, Seeded(0).at(9), None, 5)
    _, _, memory = mechanism.release_after(torch.zeros(d), 0.0, Seeded(0).at(8), None, 3)
    gap, _, after = mechanism.release_after(torch.zeros(d), 0.0, Seeded(0).at(9), memory, 5)
    assert torch.equal(gap, fresh)
    assert (after.number, after.taken) == (6, 1)
    next_, _, _ = mechanism.release_after(torch.zeros(d), 0.0, Seeded(0).at(9), memory, 4)
    assert not torch.equal(next_, fresh)
    smaller = mechanism.scaled(0.35, mechanism.noise_multiplier)
    _, _, after = smaller.release_after(torch.zeros(d), 0.0, Seeded(0).at(9), memory, 4)
    assert after.taken == 1


def test_a_matrix_lasts_its_passes() -> None:
    mechanism, memory, taken = made("blt", separation=2, passes=2), None, []
    for t in range(6):
        _, _, memory = mechanism.release_after(torch.zeros(2), 0.0, Seeded(0).at(t), memory, t)
        taken.append(memory.taken)
    assert taken == [1, 2, 3, 4, 1, 2]


def test_what_no_grid_carries_is_refused() -> None:
    with pytest.raises(StudyError, match="banded noise"):
        Correlation(kind="banded", separation=10_000, passes=1)
    with pytest.raises(StudyError, match=r"privacy\.batches"):
        Correlation(kind="blt", separation=0, passes=1)


def test_the_noise_of_very_many_steps_is_known_without_room_for_them() -> None:
    """A plan of 1e10 steps ended in a MemoryError."""
    noise, steps = Correlation(kind="banded", separation=5, passes=1), 10**10
    each = noise.moved(1.0, 0.0) / noise.column(5).sum()
    assert noise.together(steps) == pytest.approx(each * math.sqrt(steps), rel=1e-6)


def test_one_batch_is_independent_noise() -> None:
    """With b = 1 a band of one: C = 1."""
    correlation = Correlation(kind="banded", separation=1, passes=9)
    assert correlation.moved(1.0, 0.0) == pytest.approx(1.0)
    assert correlation.spread == 1.0


REFEREE = json.loads((Path(__file__).parent / "jax_privacy.json").read_text())


@pytest.mark.parametrize("case", REFEREE["cases"], ids=lambda case: f"b={case['separation']}")
def test_matrices_against_jax_privacy(case: dict[str, Any]) -> None:
    """Figures of jax_privacy 2.0.0, a mean error and a sensitivity for matrices of this program,
    and the error of its own optimised BLT.
    """
    b, passes = case["separation"], case["passes"]
    banded = Correlation(kind="banded", separation=b, passes=passes)
    assert banded.column(8) == pytest.approx(case["root"], abs=2.0**-16)
    products = {}
    for correlation in (banded, Correlation(kind="blt", separation=b, passes=passes)):
        squares, mean = case[correlation.kind]
        assert correlation.moved(1.0, 0.0) ** 2 * passes == pytest.approx(squares, rel=1e-6)
        inverse = np.linalg.inv(matrix(correlation, b * passes))
        rows = np.square(np.cumsum(inverse, axis=0)).sum(axis=1)
        assert rows.mean() == pytest.approx(mean, rel=1e-6)
        products[correlation.kind] = squares * mean
    theirs = math.prod(case["optimized_blt"])
    assert products["blt"] <= 1.002 * theirs
    assert products["blt"] <= 1.09 * products["banded"]


@pytest.mark.parametrize(
    ("separation", "passes", "steps", "ratio"),
    [(10, 16, 158, 29.2 / 71.1), (40, 4, 158, 0.2962), (200, 10, 2000, 0.1285)],
)
def test_errors_of_prefix_sums_over_independent_noise(
    separation: int, passes: int, steps: int, ratio: float
) -> None:
    """Root mean square errors of prefix sums at one price, over those of independent noise."""
    correlation = Correlation(kind="banded", separation=separation, passes=passes)
    prefix = lfilter([1.0], correlation.column(separation), np.ones(steps))  # of A C^-1
    rows = np.square(prefix).cumsum()
    error = correlation.moved(1.0, 0.0) * math.sqrt(rows.mean())
    assert error / math.sqrt((steps + 1) / 2) == pytest.approx(ratio, rel=5e-3)
