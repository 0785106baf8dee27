"""Models: sizes, seeds, fit, and the refusal of what cannot be made private."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.base.errors import StudyError
from sordino.data import scaled
from sordino.training import models
from sordino.training.evaluate import Evaluation, Evaluator
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy, multiclass_hinge
from sordino.training.models import check_private


def evaluation(flat: Flat, x: Tensor, y: Tensor) -> Evaluation:
    return Evaluation.of(Evaluator(flat, cross_entropy).counted(x, y))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("logistic", (1, 28, 28), 7_850),
        ("svm", (1, 28, 28), 7_850),
        ("mlp", (1, 28, 28), 159_010),
        ("cnn", (1, 28, 28), 26_010),
        ("cnn-large", (1, 28, 28), 582_026),
        ("cifar-cnn", (3, 32, 32), 488_586),
        ("cnn-small", (1, 28, 28), 4_380),
    ],
)
def test_sizes_seeds_and_privacy(name: str, shape: tuple[int, ...], parameters: int) -> None:
    module = models.build(name, shape, 10, rng())
    state = torch.random.get_rng_state()
    assert Flat(module).dim == parameters
    check_private(module, shape)
    same, other = (Flat(models.build(name, shape, 10, rng(seed))).weights for seed in (0, 1))
    assert torch.equal(same, Flat(module).weights)
    assert not torch.equal(same, other)
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator is left alone


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "cnn",
            (1, 8, 8),
            r"needs images of at least 15x15 pixels; the data's examples have shape \(1, 8, 8\)",
        ),
        ("cnn", (12,), "needs images"),
        ("cnm", (1, 28, 28), "did you mean 'cnn'"),
        ("nowhere.at.all:make", (4,), "No module named"),
        ("math:nothing", (4,), "has no attribute"),
        ("math:pi", (4,), "is no function"),
        ("builtins:max", (4,), r"making it for shape \(4,\) and 10 classes failed"),
        ("builtins:slice", (4,), r"returned slice, not a torch\.nn\.Module"),
    ],
)
def test_what_does_not_fit_is_said(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        models.build(name, shape, 10, rng())


def test_a_factory_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import math\nfrom torch import nn\n"
        "def net(shape, classes): return nn.Sequential(nn.Flatten(), "
        "nn.Linear(math.prod(shape), classes))\n"
        "def narrow(shape, classes): return nn.Sequential(nn.Flatten(), "
        "nn.Linear(math.prod(shape), 3))\n"
        "def wrong(shape, classes): return nn.Linear(5, classes)\n"
        "def late(shape, classes): return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    one, same, other = (
        Flat(models.build("mine:late", (9,), 10, rng(i))).weights for i in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert Flat(models.build("mine:net", (1, 4, 4), 10, rng())).dim == 170
    with pytest.raises(
        StudyError, match=r"gives scores of shape \(3,\) for one example; the data has 10 classes"
    ):
        models.build("mine:narrow", (1, 4, 4), 10, rng())
    with pytest.raises(StudyError, match=r"does not fit examples of shape \(16,\)"):
        models.build("mine:wrong", (16,), 10, rng())
    sys.modules.pop("mine", None)


class Centred(nn.Module):
    """Batch norm by hand: no layer to know it by."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x - x.mean(0))  # type: ignore[no-any-return]


class Counting(nn.Module):
    """Keeps a running mean of the data."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.mean(0)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
            r"layer '1' \(BatchNorm1d\) mixes .* use torch\.nn\.GroupNorm",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
            r"layer '1' \(Dropout\) draws its own random numbers",
        ),
        (Centred(), "changing one example changes another's scores"),
        (Counting(), "changes 'seen'"),
    ],
)
def test_what_cannot_be_private_is_refused_by_name(module: nn.Module, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        check_private(module, (4,))


def test_a_model_with_nothing_to_learn_is_refused() -> None:
    with pytest.raises(StudyError, match="no trainable parameters"):
        Flat(nn.PReLU(0))


def test_losses_equal_torch_and_their_definitions() -> None:
    scores = torch.randn(50, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 6, (50,))
    rivals = [scores[i, [j for j in range(6) if j != int(labels[i])]].max() for i in range(50)]
    margins = 1 + torch.stack(rivals) - scores[range(50), labels]
    hinge = margins.clamp(min=0)
    entropy = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    for loss, wanted in ((cross_entropy, entropy), (multiclass_hinge, hinge)):
        values, slopes = loss.slope(scores.detach(), labels)
        assert torch.allclose(values, wanted.detach())
        (expected,) = torch.autograd.grad(wanted.sum(), scores, retain_graph=True)
        assert torch.allclose(slopes, expected)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    "module",
    [
        models.build("cnn", (1, 12 + 6, 18), 10, rng()),
        nn.Sequential(
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.ReLU(),
            nn.Conv2d(1, 3, 3),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.ReLU(),
            nn.Linear(27, 10),
        ),
        nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(324, 10)),
        nn.Sequential(
            nn.Conv2d(1, 4, (3, 2), (2, 1), (1, 0), (1, 2), bias=False),
            nn.MaxPool2d((2, 3), padding=1),
            nn.Conv2d(4, 10, (5, 6)),
        ),
        nn.Sequential(
            nn.Conv2d(1, 4, 2, padding="same"),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding="same", groups=2),
            nn.MaxPool2d(18),
        ),
        nn.Sequential(
            nn.Conv2d(1, 10, 3, padding=1, padding_mode="circular"),
            nn.MaxPool2d(4, ceil_mode=True),
            nn.AvgPool2d(5),
        ),
        nn.Sequential(
            nn.Conv2d(1, 4, 3, padding="valid"), nn.GroupNorm(2, 4), nn.Conv2d(4, 10, 16)
        ),
    ],
    ids=[
        "cnn",
        "pools",
        "rectified input",
        "odd shapes",
        "groups and same",
        "circular and ceil",
        "norm between",
    ],
)
def test_evaluation_equals_the_plain_module_and_leaves_the_data_alone(
    module: nn.Sequential,
) -> None:
    x, y = torch.randn(601, 1, 18, 18), torch.randint(0, 10, (601,))
    before = x.clone()
    if isinstance(module[-1], nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
        module = nn.Sequential(*module, nn.Flatten(), nn.Linear(math.prod(module(x[:1]).shape), 10))
    with torch.no_grad():
        scores = module(x)
    seen = evaluation(Flat(module), x, y)
    assert torch.equal(x, before)
    assert seen.accuracy == pytest.approx(float((scores.argmax(1) == y).float().mean()), abs=1e-6)
    assert seen.loss == pytest.approx(float(torch.nn.functional.cross_entropy(scores, y)), rel=1e-4)


@pytest.mark.parametrize("name", ["logistic", "cnn", "cnn-small"])
def test_pixels_are_evaluated_as_bytes_to_the_bit_as_model_input(name: str) -> None:
    flat = Flat(models.build(name, (1, 28, 28), 10, rng()))
    pixels = rng(1).integers(0, 256, (450, 1, 28, 28), dtype=np.uint8)
    y, numbers = torch.randint(0, 10, (450,)), torch.from_numpy(scaled(pixels))
    assert evaluation(flat, torch.from_numpy(pixels), y) == evaluation(flat, numbers, y)


@pytest.mark.parametrize("where", ["weights", "image", "overflow"])
def test_evaluation_hides_no_number_that_is_not_finite(where: str) -> None:
    torch.manual_seed(0)
    conv, second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 10, 5)
    module = nn.Sequential(
        conv,
        nn.ReLU(),
        nn.MaxPool2d(2),
        second,
        nn.ReLU(),
        nn.MaxPool2d(3),
        nn.Flatten(),
        nn.Linear(10, 10),
    )
    x, y = torch.randn(30, 1, 18, 18), torch.randint(0, 10, (30,))
    if where == "image":
        x[3, 0, 5, 5] = torch.nan
    else:
        conv.weight.data[1] = torch.nan if where == "weights" else 1e30
        second.weight.data[0, 1] = 1e30  # with an overflow before it, infinity minus infinity
        second.weight.data[0, 1, 0] = -1e30
    with torch.no_grad():
        scores = module(x)
    assert not torch.isfinite(scores).all()
    seen = evaluation(Flat(module), x, y)
    assert seen.accuracy == pytest.approx(float((scores.argmax(1) == y).float().mean()), abs=1e-6)
    assert math.isnan(seen.loss) == math.isnan(float(torch.nn.functional.cross_entropy(scores, y)))
