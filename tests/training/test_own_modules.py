"""Own modules see no data and keep nothing: refused, or within the clip."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import own_kinds
import pytest
import torch
from own_kinds import BOUNDED, CLASSES, REFUSED
from torch import Tensor, nn

import sordino as so
from sordino.base.errors import StudyError
from sordino.regimes.vertical.models import chain_of
from sordino.training import models
from sordino.training.evaluate import Evaluation, Evaluator
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.models import check_private
from sordino.training.perexample.plan import known
from sordino.training.perexample.sums import ClippedSum, MeanGradient, path_of

pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules", "ignore::FutureWarning")
RECORDED = "Quantised", "Adapted", "Hooked", "Tied", "gru", "transformer", "Mobile", "Checkpointed"
SHAPE, CLIP, STEPS = (6,), 0.1, 2


def made(name: str) -> Flat:
    """As a study makes it, of initial weights that are always the same."""
    module = models.build(f"own_kinds:make_{name}", SHAPE, CLASSES, np.random.default_rng(0))
    check_private(module, SHAPE)
    return Flat(module)


def batch(n: int = 5) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(1))
    x[3, 0] = x[-2, 0] = 0.125
    return x, torch.arange(n) % CLASSES


def sums(name: str, first: int) -> list[Tensor]:
    """Sums of some steps: of all examples from ``first``, and of all but the outlier."""
    (x, y), flat, found = batch(), made(name), []
    x[0] = 40.0
    kernel, data = ClippedSum(flat, cross_entropy), x.clone()
    torch.manual_seed(0)
    for step in range(STEPS):
        for start in (first, 1):
            weights, out = flat.weights.clone(), torch.empty(flat.dim, dtype=torch.float64)
            kernel(x[start:], y[start:], CLIP, out)
            found.append(out)
            assert torch.equal(flat.weights, weights), "the forward pass wrote into the vector"
            assert torch.equal(x, data), "the forward pass wrote into the data"
        flat.load(flat.weights + 0.01 * torch.sin(torch.arange(flat.dim) + step))
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name == "gru" else ()) for name in BOUNDED],
)
def test_an_outlier_moves_one_sum_by_the_clip_and_later_sums_not_at_all(name: str) -> None:
    """With the outlier in a batch, others moved by up to 2 C each, in that batch and in all later
    ones (107.9 C), and rows of the released vector were renormalised without noise.
    """
    without, with_ = sums(name, 1), sums(name, 0)  # in this order: classes may remember, too
    for step in range(STEPS):
        moved = with_[2 * step] - without[2 * step]
        assert float(moved.norm()) <= CLIP * (1 + 1e-3)
        assert float(without[2 * step + 1].norm()) > CLIP / 10  # it does learn
        assert torch.equal(with_[2 * step + 1], without[2 * step + 1])


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_function_of_its_input_is_refused_before_it_sees_data(name: str) -> None:
    with pytest.raises(StudyError, match=REFUSED[name][1]):
        path_of(made(name), SHAPE, cross_entropy)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_gradients_are_those_of_autograd(name: str) -> None:
    """Rules and hooks of one's own included."""
    flat, (x, y) = made(name), batch()
    kernel = ClippedSum(flat, cross_entropy)
    kernel.rows(x, y)
    flat.load(flat.weights + 0.1 * torch.sin(torch.arange(flat.dim)))  # no zeros, later
    found = kernel.rows(x, y)
    trained = [p for p in flat.module.parameters() if p.requires_grad]
    for i, row in enumerate(found):
        loss = torch.nn.functional.cross_entropy(flat.module(x[i : i + 1]), y[i : i + 1])
        slopes = torch.autograd.grad(loss, trained)
        for slot, slope in zip(flat.layout, slopes, strict=True):
            torch.testing.assert_close(slot.logical(row), slope, rtol=1e-3, atol=1e-5)


def passed_on(name: str, first: int) -> tuple[int, Tensor]:
    """Right answers on private rows from ``first``, and the gradient of another client later."""
    (x, y), flat = batch(12), made(name)
    x[0] = 40.0
    torch.manual_seed(0)
    evaluator, mean = Evaluator(flat, cross_entropy), MeanGradient(flat, cross_entropy)
    right = sum(each for each, _, _ in evaluator.counted(x[first:], y[first:], private=True))
    evaluator.counted(x[first:], y[first:])
    out = torch.empty_like(flat.weights)
    for some in (slice(first, 6), slice(6, 12)):
        mean(x[some], y[some], out)
    return right, out


@pytest.mark.parametrize("name", ["WritesItsInput", "Renormalises"])
def test_nothing_passes_from_client_to_client_or_from_evaluation_to_training(name: str) -> None:
    """Whole clients, and private rows that a model is measured on: one more row is one more right
    answer at most, and the next client's gradient has the same bits.
    """
    without, with_ = passed_on(name, 1), passed_on(name, 0)
    assert 0 <= with_[0] - without[0] <= 1
    assert torch.equal(with_[1], without[1])


def test_public_rows_on_which_a_model_fails_have_no_scores() -> None:
    """They ended a run, after its rounds."""
    module = own_kinds.Tokens()
    check_private(module, SHAPE)
    flat, x = Flat(module), torch.ones(4, *SHAPE)
    x[2] = 99.0  # past the end of the table
    scores = Evaluator(flat, cross_entropy).scores(x)
    assert scores.isnan().any(1).tolist() == [False, False, True, False]


def test_a_layer_that_stands_twice_in_a_sequence_is_used_twice() -> None:
    twice = nn.Tanh()
    module = nn.Sequential(nn.Linear(6, 4), twice, nn.Linear(4, 4), twice, nn.Linear(4, CLASSES))
    flat, (x, y) = Flat(module), batch()
    loss = Evaluation.of(Evaluator(flat, cross_entropy).counted(x, y)).loss
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(module(x), y)
    assert loss == pytest.approx(float(wanted), rel=1e-5)


class Prints(nn.Module):
    """It says when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Any:
        print("runs")  # noqa: T201
        return self.head(x)


def test_a_module_runs_for_an_empty_batch_as_for_any_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What it printed told which Poisson batch was the first with an example."""
    flat, (x, y) = Flat(Prints()), batch()
    kernel, out = ClippedSum(flat, cross_entropy), torch.empty(flat.dim, dtype=torch.float64)
    kernel(x[:0], y[:0], CLIP, out)
    assert "runs" in capsys.readouterr().out
    assert not out.any()
    kernel(x, y, CLIP, out)
    assert capsys.readouterr().out == ""


def test_an_empty_batch_works_as_one_with_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server told empty batches of a site by the time of its answers (95.7 % of them)."""
    flat, (x, y) = Flat(made("group_norm").module), batch()
    kernel, out = ClippedSum(flat, cross_entropy), torch.empty(flat.dim, dtype=torch.float64)
    kernel(x, y, CLIP, out)
    leaf = mock.Mock(side_effect=kernel._leaf)
    monkeypatch.setattr(kernel, "_leaf", leaf)
    for count in (0, 1, 0):
        kernel(x[:count], y[:count], CLIP, out)
    assert leaf.call_count == 3
    assert not out.any()


def unused(place: str) -> nn.Module:
    """A model with a thousand numbers, at one place or another, that no layer computes with."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES))
    match place:
        case "sequence":
            module.more = nn.Parameter(torch.zeros(1000))
        case "layer":
            module[1].more = nn.Parameter(torch.zeros(1000))
        case "layer without any":
            module[0].more = nn.Parameter(torch.zeros(1000))
        case "layer within":
            module[1].more = nn.Linear(10, 90)
        case "none: one bias for all scores":
            module[1].bias = nn.Parameter(torch.zeros(1))
        case "none: a row of biases":
            module[1].bias = nn.Parameter(torch.zeros(1, CLASSES))
    return module


@pytest.mark.parametrize(
    ("place", "deep"),
    [
        pytest.param(place, deep, marks=[pytest.mark.nightly] if (at + deep) % 2 else [])
        for deep in (False, True)
        for at, place in enumerate(
            [
                *("sequence", "layer", "layer without any", "layer within"),
                *("none: one bias for all scores", "none: a row of biases"),
            ]
        )
    ],
)
def test_numbers_that_no_layer_uses_have_no_gradient(place: str, deep: bool) -> None:
    """What lay in their place in memory was released as a gradient."""
    torch.manual_seed(3)
    module = unused(place)
    if deep:
        module = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), module)
    flat, (x, y) = Flat(module), batch()
    parameters = [dict(module.named_parameters())[slot.name] for slot in flat.layout]
    loss = torch.nn.functional.cross_entropy(module(x), y)
    wanted = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    gradient = torch.cat([each.reshape(-1) for each in wanted])
    mean = torch.full((flat.dim,), torch.nan)
    total = torch.full((flat.dim,), torch.nan, dtype=torch.float64)
    MeanGradient(flat, cross_entropy)(x, y, mean)
    assert torch.allclose(mean, gradient, atol=1e-6)
    ClippedSum(flat, cross_entropy)(x, y, 1e6, total)
    assert torch.allclose(total, len(x) * gradient.double(), atol=1e-4)
    assert chain_of(module) is None


class LastAxis(nn.Sequential):
    """Its images lie channels last."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 5, 7, 1).permute(0, 3, 1, 2)
        for layer in self:
            x = layer(x)
        return x


def one_channel(kind: type[nn.Sequential]) -> nn.Module:
    """A convolution whose strides differ, of images of one channel that become one pixel wide."""
    return kind(nn.Conv2d(1, 8, (3, 7), stride=(1, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))


def tied() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.LayerNorm(35), nn.Linear(35, 3))
    module[1].bias = module[1].weight
    return module


@pytest.mark.parametrize("kind", [nn.Sequential, LastAxis, None])
def test_each_gradient_is_of_its_example_alone_and_clipped_as_it_is(
    kind: type[nn.Sequential] | None,
) -> None:
    """oneDNN read what lay behind images (29.7 C); two gradients of one parameter were measured
    apart and added (1.35 C).
    """
    torch.manual_seed(5)
    module = tied() if kind is None else one_channel(kind)
    x, y = 3.0 * torch.randn(40, 1, 5, 7), torch.arange(40) % 3
    exact = copy.deepcopy(module).double()
    flat, clip = Flat(module), 0.5
    wanted = torch.zeros(len(x), flat.dim, dtype=torch.float64)
    for i, row in enumerate(wanted):
        loss = torch.nn.functional.cross_entropy(exact(x[i : i + 1].double()), y[i : i + 1])
        found = torch.autograd.grad(loss, list(exact.parameters()))
        for slot, gradient in zip(flat.layout, found, strict=True):
            slot.logical(row).copy_(gradient)
    mean, total = torch.empty(flat.dim), torch.empty(flat.dim, dtype=torch.float64)
    kernel = ClippedSum(flat, cross_entropy)
    assert torch.allclose(kernel.rows(x, y).double(), wanted, atol=1e-4)
    MeanGradient(flat, cross_entropy)(x, y, mean)
    assert torch.allclose(mean.double(), wanted.mean(0), atol=1e-4)
    kernel(x, y, clip, total, expected=0.5)
    factors = (clip / wanted.norm(dim=1)).clamp_max(1.0)
    assert torch.allclose(total, factors @ wanted, atol=0.05 * clip)


@pytest.mark.parametrize(
    "changed", [{"stride": 1}, {"dilation": (1,)}, {"weight": nn.Parameter(torch.ones(4, 1, 1, 1))}]
)
def test_changed_convolutions_go_another_way(changed: dict[str, Any]) -> None:
    """They ended a run with a traceback, after its first charge."""
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(3))
    for name, value in changed.items():
        setattr(module[0], name, value)
    module(torch.zeros(1, 1, 6, 6))
    assert not known(module[0])


def test_no_client_moves_another_by_the_shape_that_it_brings() -> None:
    """Whole clients: who came first, with which weights, decided what others of the same size made
    of theirs (a factor of 13).
    """
    found = []
    for earlier in (False, True):
        torch.manual_seed(0)
        flat = Flat(own_kinds.KeepsByShape())
        flat.graphs.digest(torch.zeros(1, *SHAPE))  # as a run does before its first round
        mean, first = MeanGradient(flat, cross_entropy), flat.weights.clone()
        out = first.clone()
        if earlier:
            flat.load(10.0 * first)
            mean(*batch(5), out)
        flat.load(first)
        mean(*batch(5), out)
        found.append(out)
    assert torch.equal(*found)


def test_a_module_that_counts_shapes_is_refused() -> None:
    """What clients made of theirs depended on the sizes of those that came before."""
    flat = Flat(own_kinds.CountsShapes())
    flat.graphs.digest(torch.zeros(1, *SHAPE))
    with pytest.raises(StudyError, match="keeps a state"):
        MeanGradient(flat, cross_entropy)(*batch(5), torch.empty_like(flat.weights))


def test_a_factory_that_returns_its_module_again_is_refused() -> None:
    """The next run in a process, or the next candidate of a choice that pays for independent ones,
    went on from the weights that the last one had left, one client's own ones among them.
    """
    models.build("own_kinds:once", SHAPE, CLASSES, np.random.default_rng(0))
    for again in ("once", "frozen"):
        with pytest.raises(StudyError, match="returned weights that it had returned before"):
            models.build(f"own_kinds:{again}", SHAPE, CLASSES, np.random.default_rng(0))


def test_layers_that_a_module_makes_late_are_not_trained_twice_either() -> None:
    """When the factory had returned it, it had no weights yet that could be remembered."""
    flat = Flat(models.build("own_kinds:late", SHAPE, CLASSES, np.random.default_rng(0)))
    with pytest.raises(StudyError, match="returned weights that it had returned before"):
        models.build("own_kinds:late", SHAPE, CLASSES, np.random.default_rng(0))
    assert flat.dim == 21


def test_a_batch_of_a_client_that_a_model_fails_on_is_found_before_the_first_round(
    tmp_path: Path,
) -> None:
    """The run ended in the round in which a client of that size was drawn: here, nobody is."""
    study = so.Study(
        data=so.Data(name="digits", clients=200),  # 7 rows or 8
        model="own_kinds:Halves",
        method=so.DpFedAvg(learning_rate=0.1, batch=10),
        privacy=so.Privacy(unit="client", epsilon=1.0, delta=1e-3, sampling_rate=1e-6),
        budget=so.Budget(rounds=1),
    )
    with pytest.raises(StudyError, match=r"shape \(7, 1, 8, 8\)"):
        so.run(study, out=tmp_path / "run", progress=False)
