"""How batches are cut into pieces, and which layers, settings and stores take which path."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sordino.base.errors import StudyError
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.outline import FAST, SINGLE
from sordino.training.perexample import clipping, layers, loops, plan
from sordino.training.perexample.clipping import (
    ClippedBatch,
    Layers,
    factors,
    filled,
    joined,
    leaves,
    parts,
    rows_of,
    squares,
    summable,
)
from sordino.training.perexample.general import OneByOne
from sordino.training.perexample.sums import (
    ClippedSum,
    Examples,
    MeanGradient,
    Paths,
    Single,
    path_of,
)

# --- pieces


def test_leaves_are_cut_where_the_numbers_are_halved() -> None:
    def cut(numbers: list[int], low: int, high: int) -> list[list[int]]:
        if len(numbers) <= 96 or high - low == 1:
            return [numbers] if numbers else []
        middle = (low + high) // 2
        left = [each for each in numbers if each < middle]
        return cut(left, low, middle) + cut(numbers[len(left) :], middle, high)

    rng = np.random.default_rng(0)
    for count, below in ((96, 96), (97, 97), (97, 5000), (400, 1024), (400, 1025), (1000, 1001)):
        chosen = torch.from_numpy(rng.permutation(below)[:count])
        found = [each.tolist() for each in leaves(chosen)]
        if count <= 96:
            assert found == [chosen.tolist()]
        else:
            ordered = sorted(chosen.tolist())
            assert found == cut(ordered, 0, 2 ** ordered[-1].bit_length())
    assert [len(each) for each in leaves(torch.full((100,), 5))] == [100]
    assert list(leaves(torch.arange(0))) == []


def test_rows_of_a_piece() -> None:
    told = [
        (0.0, 9),
        (1.0, 31),
        (23.0, 99),
        (25.0, 99),
        (25.0, 63),
        (25.0, 64),
        (50.0, 999),
        (96.0, 999),
    ]
    assert [rows_of(*each) for each in told] == [32, 32, 32, 64, 32, 64, 64, 96]  # fmt: skip


def test_parts_are_of_one_size() -> None:
    for rows, most, size in (
        (20, 0, 1),
        (20, 1, 1),
        (20, 9, 5),
        (20, 10, 10),
        (20, 99, 20),
        (7, 6, 1),
    ):
        found = parts(rows, most)
        assert found == [slice(start, start + size) for start in range(0, rows, size)]


def test_a_piece_is_filled_with_copies_of_its_first_example() -> None:
    some = torch.tensor([[1.0], [2.0], [3.0]])
    for places, wanted in (
        ([0, 1, 2], [1, 2, 3, 1, 1]), ([0, 1, 2, 3], [1, 2, 3, 1, 1]),
        ([0, 2, 4], [1, 1, 2, 1, 3]), ([2, 3, 4], [1, 1, 1, 2, 3]),
    ):  # fmt: skip
        made = filled(some, 5, torch.tensor(places))
        assert made.flatten().tolist() == wanted
        assert made.data_ptr() != some.data_ptr()


def test_quantities_of_leaves_come_back_in_the_order_of_the_batch() -> None:
    chosen, like = torch.tensor([5, 0, 9, 3]), torch.zeros(1)
    halves = [
        ClippedBatch(torch.tensor([0.0, 3.0]), 1.0, torch.tensor([10.0, 13.0])),
        ClippedBatch(torch.tensor([5.0, 9.0]), 1.0, torch.tensor([15.0, 19.0])),
    ]
    found = joined(halves, 1.0, like, chosen)
    assert found.norms.tolist() == [5.0, 0.0, 9.0, 3.0]
    assert found.loss.tolist() == [15.0, 10.0, 19.0, 13.0]
    assert joined(halves[:1], 1.0, like, chosen) is halves[0]
    assert joined([], 1.0, like, chosen).norms.tolist() == []


class _Elsewhere(str):
    type = "elsewhere"


class _There(torch.Tensor):
    """Numbers that say that they are on no processor, so that its compiled loops are not taken."""

    device = property(lambda self: _Elsewhere("cpu"))


@pytest.mark.parametrize("k", [1, 1023, 1024, 1025, 2048, 3000])
@pytest.mark.parametrize("there", [False, True])
def test_squares_are_as_large_as_they_say_and_no_larger(k: int, there: bool) -> None:
    rows = torch.randn(3, k, generator=torch.Generator().manual_seed(k))
    rows[1] = 0.0
    exact = rows.double().square().sum(1) + k * 2.0**-126
    found = squares(rows.as_subclass(_There) if there else rows).as_subclass(torch.Tensor)
    assert found.dtype == torch.float64
    assert torch.allclose(found, exact, rtol=1e-6, atol=0.0)
    wide = squares(rows.double())
    assert torch.allclose(wide, rows.double().square().sum(1), rtol=1e-14, atol=1e-300)
    assert float(wide[1]) == k * torch.finfo(torch.float64).tiny


def test_factors_and_what_counts_as_clipped() -> None:
    norms = torch.tensor([0.0, 0.5, 2.0, math.inf], dtype=torch.float64)
    assert factors(norms, 1.0, 0.5, torch.float64).tolist() == [1.0, 1.0, 0.25, 0.0]
    assert ClippedBatch(torch.tensor([0.5, 1.0, 1.5]), 1.0, norms).clipped == 1
    assert Layers(3.0).each(4) == 1.5


def test_batches_that_may_be_too_large_are_refused_at_the_border() -> None:
    summable(2.0**19)
    with pytest.raises(StudyError, match="at most 524288 can be summed"):
        summable(2.0**19 + 1.0)
    assert (clipping.TOGETHER, clipping.VECTOR, clipping.UNKNOWN) == (96, 32, 16)
    assert (clipping.MARGIN, clipping.LONGEST, clipping.MOST) == (1 - 2**-9, 1e19, 2**20)
    assert (clipping.BLOCK, clipping.VANISHING) == (1024, 2.0**-126)


def test_pieces_fit_the_memory_that_they_say() -> None:
    for d, most in ((10**9, 1), (16_000_000, 1), (8_000_000, 2), (1000, 16_000)):
        flat: Any = SimpleNamespace(dim=d, weights=torch.zeros(1), layout=[])
        assert OneByOne(flat, cross_entropy).most == most
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    made = plan.compiled(Flat(module), (3, 4, 4))
    assert made is not None
    numbers = 16 + 4 * (27 + 4) + 16 + 16 + 5  # outputs, and what is kept of patches
    assert made.most == int(40e6 / (4 * numbers))
    assert [owner is not None for owner in made.owners] == [True, False, False, True]
    behind = plan.compiled(Flat(nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(6, 2))), (2, 3))
    assert behind is not None
    assert behind.first == 2


# --- layers


def test_layers_keep_examples_apart_on_so_many_axes() -> None:
    pairs: dict[nn.Module, set[int]] = {
        nn.Identity(): set(range(2, 7)),
        nn.GELU(): set(range(2, 7)),
    }
    for made, axes in (
        ((nn.AvgPool1d(2), nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(2), nn.AdaptiveMaxPool1d(2)), 3),
        ((nn.LPPool1d(2, 2), nn.ConstantPad1d(1, 0.0), nn.ReflectionPad1d(1)), 3),
        ((nn.ReplicationPad1d(1), nn.CircularPad1d(1), nn.Fold((2, 2), 1)), 3),
        ((nn.AvgPool2d(2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d(2)), 4),
        ((nn.LPPool2d(2, 2), nn.ZeroPad2d(1), nn.ConstantPad2d(1, 0.0), nn.ReflectionPad2d(1)), 4),
        (
            (nn.ReplicationPad2d(1), nn.CircularPad2d(1), nn.PixelShuffle(2), nn.PixelUnshuffle(2)),
            4,
        ),
        ((nn.Softmax2d(), nn.Unfold(2)), 4),
        ((nn.AvgPool3d(2), nn.MaxPool3d(2), nn.AdaptiveAvgPool3d(2), nn.AdaptiveMaxPool3d(2)), 5),
        ((nn.ConstantPad3d(1, 0.0), nn.ReplicationPad3d(1)), 5),
    ):
        pairs |= {each: {axes} for each in made}
    for kind in (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU):
        pairs[kind(dim=0)] = set()
        pairs[kind(dim=1)] = {2, 3, 4, 5, 6}
        pairs[kind(dim=2)] = {3, 4, 5, 6}
        pairs[kind(dim=-3)] = {4, 5, 6}  # of three axes it is the first
    pairs[nn.Softmax()] = set()
    pairs[nn.Flatten()], pairs[nn.Flatten(0)] = set(range(2, 7)), set()
    pairs[nn.Unflatten(1, (2, 2))], pairs[nn.Unflatten(0, (2, 2))] = set(range(2, 7)), set()
    pairs[nn.MaxPool1d(2, dilation=2)] = pairs[nn.MaxPool2d(2, return_indices=True)] = set()
    pairs[nn.MaxPool2d(2, dilation=(1, 2))] = pairs[nn.ConstantPad2d((1, 1, -1, 0), 0.0)] = set()
    pairs[nn.Linear(2, 2)] = pairs[nn.Dropout()] = set()
    for layer, wanted in pairs.items():
        assert {axes for axes in range(2, 7) if plan.alone(layer, axes)} == wanted, layer


def convolution(**changed: Any) -> nn.Conv2d:
    made = nn.Conv2d(changed.pop("channels", 2), 4, 3)
    vars(made).update(changed)
    return made


def test_which_convolutions_are_usual() -> None:
    for good in (
        {}, {"padding": (2, 2)}, {"padding": "same"}, {"stride": (1, 2)}, {"dilation": (2, 1)},
        {"channels": 1, "stride": (2, 2)},
    ):  # fmt: skip
        assert plan.known(convolution(**good)), good
    for bad in (
        {"kernel_size": (3, 2)}, {"padding": (3, 0)}, {"padding": (0, 3)}, {"padding": (1,)},
        {"stride": 1}, {"stride": (1, 1, 1)}, {"dilation": [1, 1]}, {"padding": 1},
        {"channels": 1, "stride": (1, 2)},
    ):  # fmt: skip
        assert not plan.known(convolution(**bad)), bad


def test_what_makes_a_layer_unknown() -> None:
    def linear(change: Any) -> nn.Module:
        made = nn.Linear(3, 3)
        change(made)
        return made

    nothing = lambda *_: None  # noqa: E731
    changes: list[Any] = [
        lambda one: one.register_parameter("more", nn.Parameter(torch.zeros(1))),
        lambda one: one.register_buffer("more", torch.zeros(1)),
        lambda one: one.register_module("more", nn.ReLU()),
        lambda one: setattr(one, "bias", one.weight),
        lambda one: setattr(one, "bias", nn.Parameter(torch.zeros(1))),
        lambda one: setattr(one, "note", torch.zeros(1)),
        lambda one: setattr(one, "note", [1, "a", torch.zeros(1)]),
        lambda one: setattr(one, "training", 1),
        lambda one: setattr(one, "_compiled_call_impl", 7),
        lambda one: one.register_forward_hook(nothing),
        lambda one: one.register_forward_pre_hook(nothing),
        lambda one: one.register_full_backward_hook(nothing),
        lambda one: one.register_full_backward_pre_hook(nothing),
        lambda one: one.weight.register_hook(nothing),
        lambda one: one.weight.register_post_accumulate_grad_hook(nothing),
        lambda one: one.register_parameter("weight", None),
    ]
    for number, change in enumerate(changes):
        assert not plan.known(linear(change)), number
    for fine in (
        lambda one: setattr(one, "note", [1, "a", None, (2.5, np.float32(1))]),
        lambda one: one.register_parameter("bias", None),
        lambda one: one.eval(),
    ):
        assert plan.known(linear(fine))
    assert plan.known(nn.Sequential(nn.ReLU()))
    removed = nn.modules.module.register_module_forward_hook(nothing)
    try:
        assert not plan.known(nn.ReLU())
    finally:
        removed.remove()
    assert plan.known(nn.ReLU())


def test_which_layers_have_a_stage() -> None:
    def taken(shape: tuple[int, ...], *parts_: nn.Module, tokens: bool = False) -> bool:
        return plan.compiled(Flat(nn.Sequential(*parts_)), shape, tokens) is not None

    assert taken((3,), nn.Linear(3, 2))
    assert taken((4, 3), nn.Linear(3, 2))
    assert not taken((2, 4, 3), nn.Linear(3, 2))  # images lie channels last here
    assert taken((2, 6, 6), nn.Conv2d(2, 4, 3))
    assert not taken((2, 6), nn.Conv2d(2, 4, 3))
    assert taken((4, 3), nn.LayerNorm((4, 3)))
    assert not taken((3,), nn.LayerNorm((4, 3)))
    assert not taken((2, 4, 3), nn.LayerNorm(3))
    assert taken((4, 3, 3), nn.GroupNorm(2, 4))
    assert not taken((4, 3), nn.GroupNorm(2, 4))
    assert taken((4, 3), nn.Flatten(), nn.Linear(12, 2))
    assert taken((4, 3), nn.Flatten(1, 2), nn.Linear(12, 2))
    assert taken((5,), nn.Embedding(9, 3), tokens=True)
    assert not taken((5, 2), nn.Embedding(9, 3), tokens=True)
    assert not taken((5,), nn.Embedding(9, 3))
    assert not taken((5,), nn.Linear(5, 3), tokens=True)
    for table in (
        nn.Embedding(9, 3, max_norm=1.0), nn.Embedding(9, 3, scale_grad_by_freq=True),
        nn.Embedding(9, 3, sparse=True),
    ):  # fmt: skip
        assert not taken((5,), table, tokens=True)
    assert not taken((2, 6, 6), nn.Conv2d(2, 4, 3, groups=2))
    assert not taken((2, 6, 6), nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"))


def test_zeros_around_an_image() -> None:
    def around(**how: Any) -> object:
        return layers.padding(nn.Conv2d(2, 4, how.pop("size", 3), **how))

    assert around() == around(padding="valid") == (0, 0)
    assert around(padding=(2, 1)) == (2, 1)
    assert around(padding="same", dilation=(2, 1)) == (2, 1)
    assert around(padding="same", size=(2, 3)) is around(padding="same", size=(3, 4)) is None
    assert around(padding="same", size=(3, 2), dilation=(1, 2)) == (1, 1)


def test_the_cheaper_form_is_taken() -> None:
    assert [layers.cheaper(p, 2, 2) for p in (3, 4)] == [True, False]  # at 4 they cost the same
    told = [
        (p, layers.cheaper(p, 20, 30), layers.cheaper(p, 27, 8), layers.cheaper(p, 270, 400))
        for p in range(1, 60)
    ]
    assert [sum(each) for each in list(zip(*told, strict=True))[1:]] == [
        sum(p * p * (i + o) + p * i * o < (p + 16) * i * o for p in range(1, 60))
        for i, o in ((20, 30), (27, 8), (270, 400))
    ]
    # 3 positions of 6 numbers to 6: 36 products of Gram's form, as many as the gradient has numbers
    for positions, formed in ((2, False), (3, True), (4, True)):
        flat = Flat(nn.Sequential(nn.Linear(6, 6)))
        stage = layers.Linear(flat.module[0], flat)  # type: ignore[index]
        stage.forward(torch.ones(2, positions, 6))
        found, _ = stage.collect(torch.ones(2, positions, 6))
        assert isinstance(found, layers.Written) == formed


# --- paths


def test_which_stores_are_read_in_place() -> None:
    flat = Flat(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)))
    single = Single.of(flat, cross_entropy)
    assert single is not None
    x, y = torch.zeros(4, 2, 3), torch.zeros(4, dtype=torch.int64)
    assert single.reads(x, y)
    assert single.reads(x.to(torch.uint8), y)
    for a, b in (
        (x.double(), y), (x, y.int()), (x.transpose(0, 1), y),
        (x, torch.zeros(8, dtype=y.dtype)[::2]),
        (x[:, :, 0].flatten(), y), (x, y[:3]), (torch.zeros(4, 7), y),
        (x.clone().requires_grad_(), y),
    ):  # fmt: skip
        assert not single.reads(a, b)
    paths, examples = Paths(flat, cross_entropy), Examples(x, y)
    assert paths.in_place(examples, torch.arange(2)) is not None
    for chosen in (torch.arange(0), torch.arange(2).int(), torch.zeros(1, 1, dtype=torch.int64)):
        assert paths.in_place(examples, chosen) is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nobody = nn.Linear(0, 3)
    for module in (
        nn.Sequential(nn.Flatten(2), nn.Linear(6, 3)), nn.Sequential(nn.Flatten(), nobody),
        nn.Sequential(nn.Linear(6, 3)), nn.Sequential(nn.Flatten(1, 1), nn.Linear(6, 3)),
    ):  # fmt: skip
        assert Single.of(Flat(module), cross_entropy) is None
    assert path_of(flat, (6,), cross_entropy) == SINGLE
    assert path_of(Flat(nn.Sequential(nn.Linear(6, 3))), (6,), cross_entropy) == FAST


def test_how_many_examples_there_are() -> None:
    some = Examples(torch.zeros(7, 2), torch.zeros(7, dtype=torch.int64))
    assert len(some) == 7
    assert len(replace(some, starts=torch.tensor([0, 3, 7]))) == 2


def test_an_empty_mean_is_zero_and_pieces_of_a_mean_add_up() -> None:
    flat = Flat(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    mean, out = MeanGradient(flat, cross_entropy), torch.full((flat.dim,), 7.0)
    assert float(mean(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), out)) == 0.0
    assert not out.any()
    x, y = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)), torch.arange(7) % 2
    whole, loss = torch.empty(flat.dim), mean(x, y, out)
    made = mean._paths.find(x)
    assert made is not None
    mean._paths._fast[(3,), x.dtype] = replace(made, most=3)
    assert float(mean(x, y, whole)) == pytest.approx(float(loss), rel=1e-6)
    assert torch.allclose(whole, out, atol=1e-6)


def test_all_places_of_a_piece_are_used_and_weights_stay() -> None:
    flat = Flat(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    before, kernel = flat.weights.clone(), ClippedSum(flat, cross_entropy)
    out = torch.empty(flat.dim, dtype=torch.float64)
    for expected, rows in ((1.0, 32), (40.0, 64), (900.0, 96)):
        kernel(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64), 1.0, out, expected=expected)
        told, places = next(found for key, found in kernel._shapes.items() if key[-1] == rows)
        assert told == rows
        assert places.tolist() == list(range(rows))
    assert torch.equal(flat.weights, before)


def test_pieces_are_worked_off_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, true = [], plan.Plan.slopes

    def slopes(*given: Any) -> Any:
        seen.append(torch.get_num_threads())
        return true(*given)

    monkeypatch.setattr(plan.Plan, "slopes", slopes)
    flat = Flat(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    kernel, out = ClippedSum(flat, cross_entropy), torch.empty(flat.dim, dtype=torch.float64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        kernel(torch.ones(5, 3), torch.zeros(5, dtype=torch.int64), 1.0, out)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_sums_of_one_layer_are_overwritten_whatever_stood_there() -> None:
    """Also where nobody is drawn, and where one example is more than is added up at once."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(97, 3)).astype(np.float32)
    labels, weight = np.arange(97) % 2, rng.normal(size=(2, 3)).astype(np.float32)
    bias, one, none = np.zeros(2, np.float32), np.float32(1), np.float32(0)

    def added(chosen: Any) -> tuple[Any, Any]:
        sums, shifts = np.full((2, 3), 7.0), np.full(2, 7.0)
        norms, losses = np.empty((2, len(chosen)), np.float32)
        wrong = loops.linear(
            x,
            none,
            one,
            labels,
            chosen,
            weight,
            bias,
            False,
            False,
            0.0,
            sums,
            shifts,
            norms,
            losses,
        )
        assert wrong == 0
        return sums, shifts

    every = np.arange(97)
    assert not any(part.any() for part in added(every[:0]))
    for count in (96, 97):
        each = [added(every[i : i + 1]) for i in range(count)]
        for part, found in enumerate(added(every[:count])):
            assert np.allclose(found, sum(one[part] for one in each), atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(5, 3), (2, 9)])
def test_norms_by_products_are_raised_by_the_bound_of_their_rounding(
    inputs: int, outputs: int, bias: bool
) -> None:
    """Of positions that take each other away nothing is left but this bound."""
    a = torch.ones(1, 2, inputs)
    g = torch.stack([torch.ones(outputs), -torch.ones(outputs)]).unsqueeze(0)
    reach = 2.0 * math.sqrt((inputs + bias) * outputs)
    roundings = inputs + outputs + 2**2 + 8
    found = layers.squared_norms(a, g, bias=bias)
    assert float(found) == pytest.approx(4 * roundings * 2.0**-53 * reach**2, rel=1e-12, abs=0.0)
