"""Contributions in pieces: written out, and their Haar energies without, against float64 cascades of the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from sordino.errors import StudyError
from sordino.mechanism import Measuring, Piecewise
from sordino.mechanism.haar import Basis, HaarGaussian, piecewise, pyramids, uniform
from sordino.mechanism.haar import split as splits
from sordino.mechanism.pieces import Outer, Piece, Pieces, Rows, Turned

N = 3
GUARD = 64
EPS = 2.0**-23
ABOVE = 2.0**-12  # norms are rounded up by a bound of their error


@dataclass(frozen=True)
class Drawn:
    """Pieces somebody might have, and blocks over them."""

    pieces: Pieces
    basis: Basis
    seed: int


def numbers(rng: np.random.Generator, *shape: int) -> Tensor:
    """In the middle of a buffer of NaN: a number read from beside them would show."""
    whole = np.full(2 * GUARD + math.prod(shape), np.nan, np.float32)
    whole[GUARD:-GUARD] = rng.standard_normal(math.prod(shape))
    return torch.from_numpy(whole[GUARD:-GUARD].reshape(shape))


def made(kind: str, offset: int, outputs: int, inner: int, rng: np.random.Generator) -> Piece:
    match kind:
        case "rows":
            return Rows(offset=offset, values=numbers(rng, N, outputs * inner))
        case "turned":
            return Turned(offset=offset, values=numbers(rng, N, inner, outputs))
        case _:
            return Outer(offset=offset, left=numbers(rng, N, outputs), right=numbers(rng, N, inner))


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    seed = draw(st.integers(0, 2**32 - 1))
    rng, at, parts, sizes = np.random.default_rng(seed), 0, [], []
    inner = st.one_of(st.integers(1, 40), st.integers(1, 12).map(lambda k: 16 * k), st.integers(1, 5).map(lambda k: 32 * k))
    for _ in range(draw(st.integers(1, 5))):
        gap = draw(st.sampled_from([0, 0, 0, 1, 16, 45]))
        piece = made(draw(st.sampled_from(["rows", "turned", "outer"])), at + gap, draw(st.integers(1, 40)), draw(inner), rng)
        outputs, many = piece.lines
        parts.append(piece)
        sizes.append(gap + outputs * many)
        at += sizes[-1]
    sizes[-1] += draw(st.sampled_from([0, 0, 7, 70]))
    total = sum(sizes)
    cut = draw(st.integers(1, total))
    blocks = draw(st.sampled_from([[total], sizes, [size for size in (cut, total - cut) if size]]))
    return Drawn(Pieces.of(N, total, rng.permutation(np.array(parts, object)).tolist()), Basis.of(blocks), seed)


def places(pieces: Pieces) -> tuple[splits.Place, ...]:
    return tuple(splits.Place(piece.offset, *piece.lines) for piece in pieces.parts)


def by_hand(pieces: Pieces) -> Tensor:
    """Rows in float64, number by number."""
    rows = torch.zeros(pieces.count, pieces.dimension, dtype=torch.float64)
    for piece in pieces.parts:
        outputs, inner = piece.lines
        for o in range(outputs):
            for k in range(inner):
                match piece:
                    case Rows():
                        number = piece.values[:, k].double()
                    case Turned():
                        number = piece.values[:, k, o].double()
                    case Outer():
                        number = piece.left[:, o].double() * piece.right[:, k].double()
                rows[:, piece.offset + o * inner + k] = number
    return rows


def at_depth(pieces: Pieces, basis: Basis, depth: int) -> Tensor:
    """Energies with groups of 2^depth, whether that is worth it or not."""
    where = places(pieces)
    found = splits._split(basis.blocks, where, depth, tuple(splits._inside(basis.blocks, where, depth)))
    return torch.from_numpy(piecewise._energies(pieces, found, basis.blocks, basis.groups))


@given(case=drawn())
def test_pieces_are_written_where_they_belong(case: Drawn) -> None:
    wanted = by_hand(case.pieces)
    whole = torch.full((N, case.pieces.dimension + 9), torch.nan)
    rows = case.pieces.rows(slice(None), torch.full((N, case.pieces.dimension), torch.nan))
    assert torch.allclose(rows.double(), wanted, rtol=EPS, atol=0)
    some = case.pieces.rows(slice(1, 3), whole[1:, 4:-5])
    assert torch.equal(some, rows[1:])
    assert torch.isnan(whole[0]).all()
    assert torch.isnan(whole[:, :4]).all()
    assert torch.isnan(whole[:, -5:]).all()


@given(case=drawn(), depth=st.integers(1, splits.DEEPEST))
@pytest.mark.nightly
def test_energies_of_pieces_equal_those_of_rows(case: Drawn, depth: int) -> None:
    rows = by_hand(case.pieces)
    wanted, seen = case.basis.energies(rows), at_depth(case.pieces, case.basis, depth)
    # a coefficient may be the small difference of large sums: its error is in proportion to the row
    assert bool(((seen.sqrt() - wanted.sqrt()).abs() <= 8 * EPS * rows.norm(dim=1, keepdim=True)).all())
    rng = np.random.default_rng(case.seed)
    squares = torch.from_numpy(rng.uniform(0.2, 5.0, case.basis.groups)).square()
    assert torch.allclose(seen.mv(squares).sqrt(), wanted.mv(squares).sqrt(), rtol=16 * EPS, atol=0)


@given(case=drawn())
def test_norms_are_those_of_rows_where_it_is_worth_it(case: Drawn) -> None:
    weights = tuple(np.random.default_rng(case.seed).uniform(0.2, 5.0, case.basis.groups).tolist())
    seen = case.basis.piecewise_norms(case.pieces, weights)
    rows = case.pieces.rows(slice(None), torch.empty(N, case.pieces.dimension))
    if splits.split(case.basis.blocks, places(case.pieces)) is None:
        assert seen is None
    else:
        assert seen is not None
        assert seen.dtype == torch.float32
        assert torch.allclose(seen, case.basis.weighted_norms(rows, weights), rtol=ABOVE, atol=0)


@given(case=drawn(), depth=st.integers(1, splits.DEEPEST))
def test_every_group_is_either_inside_or_written_and_every_written_number_comes_once(case: Drawn, depth: int) -> None:
    where, blocks = places(case.pieces), case.basis.blocks
    found = splits._split(blocks, where, depth, tuple(splits._inside(blocks, where, depth)))
    groups = found.places.tolist()
    for one in found.inside:
        groups += [one.first + line * one.step + group for line in range(where[one.piece].outputs) for group in range(one.groups)]
    assert sorted(groups) == list(range(found.groups))
    written = [number for start, end in found.gaps for number in range(start, end)]
    for runs in found.runs:
        written += [to + k for _, _, many, to in runs.tolist() for k in range(many)]
    assert sorted(written) == list(range(found.written))


@pytest.mark.parametrize("depth", range(1, splits.DEEPEST + 1))
@pytest.mark.parametrize("outputs", [2, 8, 16, 23, 48])
def test_loops_keep_to_their_buffers(depth: int, outputs: int) -> None:
    def guarded(*shape: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        whole = np.full(2 * GUARD + math.prod(shape), 7.0, np.float32)
        return whole[GUARD:-GUARD].reshape(shape), whole

    rng, span = np.random.default_rng(0), 1 << depth
    inner, lead = 3 * span, span - 1
    coarse, whole = guarded(N, 3 * outputs)
    fine = np.zeros((N, depth))
    pyramids.turned(depth)(numbers(rng, N, inner * outputs).numpy(), outputs, lead, 2, 1, 3, coarse, fine)
    pyramids.outer(numbers(rng, N, outputs).numpy(), numbers(rng, N, inner).numpy(), depth, lead, 2, 1, 3, coarse, fine)
    for group in range(3 * outputs):  # the first of every three belongs to somebody else
        assert bool((coarse[:, group] == 7.0).all()) == (group % 3 == 0)
    assert (whole[:GUARD] == 7.0).all()
    assert (whole[-GUARD:] == 7.0).all()
    assert np.isfinite(coarse).all()
    assert np.isfinite(fine).all()


def small(offset: int = 0) -> tuple[Pieces, Basis]:
    """A convolution with bias and a linear layer with bias, after ``offset`` numbers of something else."""
    rng = np.random.default_rng(2)
    kinds = [("rows", 1, offset), ("turned", 16, 128), ("rows", 1, 16), ("outer", 8, 96), ("rows", 1, 8)]
    parts, at = [], 0
    for kind, outputs, inner in kinds:
        parts.append(made(kind, at, outputs, inner, rng))
        at += outputs * inner
    return Pieces.of(N, at, parts), Basis.flat(at)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("offset", [0, 5])
def test_one_number_that_is_not_finite_makes_its_norm_infinite(value: float, which: int, offset: int) -> None:
    places_ = [3, 127, 128 * 16 - 1, 7, 40, 90]
    for at in places_:
        pieces, basis = small(offset)
        tensor = [one for piece in pieces.parts for one in piece.tensors][which]
        if tensor.numel():
            tensor[1].view(-1)[at % tensor[1].numel()] = value
            norms = basis.piecewise_norms(pieces, uniform(basis))
            assert norms is not None
            assert torch.isfinite(norms).tolist() == [True, False, True]


def test_norms_beyond_what_can_be_squared_are_infinite() -> None:
    for factor, finite in ((1e18, True), (1e19, False), (1e25, False)):
        pieces, basis = small()
        outer = next(piece for piece in pieces.parts if isinstance(piece, Outer))
        outer.left[1] *= factor / float(outer.left[1].norm() * outer.right[1].norm())
        norms = basis.piecewise_norms(pieces, (1.5,) * basis.groups)
        assert norms is not None
        assert torch.isfinite(norms).tolist() == [True, finite, True]


@pytest.mark.parametrize(("left", "right"), [(1e-28, 1e28), (1e28, 1e-28), (1e-37, 1e30), (1.0, 1.0)])
def test_factors_far_from_one_lose_nothing(left: float, right: float) -> None:
    pieces, basis = small()
    outer = next(piece for piece in pieces.parts if isinstance(piece, Outer))
    outer.left.mul_(left)
    outer.right.mul_(right)
    norms = basis.piecewise_norms(pieces, uniform(basis))
    assert norms is not None
    assert torch.allclose(norms.double(), by_hand(pieces).norm(dim=1), rtol=ABOVE, atol=0)
    assert (norms.double() >= by_hand(pieces).norm(dim=1) * (1 - EPS)).all()


@pytest.mark.parametrize("alternating", [False, True])
def test_long_pieces_of_equal_numbers_lose_no_digits(alternating: bool) -> None:
    """A million equal squares added one by one in float32 would be off in the third digit."""
    outputs, inner = 32, 2**16
    values = torch.full((1, inner, outputs), 0.1)
    if alternating:
        values[:, 1::2] *= -1.0
    outer = Outer(offset=outputs * inner, left=torch.full((1, outputs), 0.3), right=values[:, :, 0].clone())
    pieces, basis = Pieces.of(1, 2 * outputs * inner, [Turned(offset=0, values=values), outer]), Basis.flat(2 * outputs * inner)
    norms = basis.piecewise_norms(pieces, uniform(basis))
    tenth, third = float(torch.tensor(0.1).double()), float(torch.tensor(0.3).double())
    assert norms is not None
    assert float(norms) == pytest.approx(math.sqrt(outputs * inner) * tenth * math.hypot(1.0, third), rel=ABOVE)


def test_other_types_and_small_shares_go_by_rows() -> None:
    pieces, basis = small()
    assert basis.piecewise_energies(pieces) is not None
    double = [Rows(offset=0, values=torch.zeros(N, 1, dtype=torch.float64)), *pieces.parts[1:]]
    assert Basis.flat(pieces.dimension).piecewise_energies(Pieces.of(N, pieces.dimension, double)) is None
    rows = Rows(offset=0, values=torch.zeros(N, pieces.dimension))
    assert basis.piecewise_energies(Pieces.of(N, pieces.dimension, [rows])) is None
    with pytest.raises(StudyError, match="made for vectors of 5 numbers"):
        Basis.flat(5).piecewise_energies(pieces)


def test_only_a_mechanism_that_takes_pieces_is_piecewise() -> None:
    pieces, basis = small()
    haar = HaarGaussian.weighted(clip=1.0, noise_multiplier=1.0, basis=basis, weights=tuple(1.0 + g for g in range(basis.groups)))
    assert isinstance(haar, Piecewise)
    norms, rows = haar.piecewise_norms(pieces), pieces.rows(slice(None), torch.empty(N, pieces.dimension))
    assert norms is not None
    assert torch.allclose(norms, haar.norms(rows), rtol=ABOVE, atol=0)

    class Own:
        margin = 1.0

        def norms(self, rows: Tensor) -> Tensor:
            return rows.abs().amax(1)

    own: object = Own()
    assert isinstance(own, Measuring)
    assert not isinstance(own, Piecewise)
