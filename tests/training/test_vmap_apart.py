"""Own modules that vmap, memory, exits or settings of the process would let one example use to
reach others.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn import functional as F

import warm
from sordino.base.errors import StudyError
from sordino.training import models
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.outline import MAPPED
from sordino.training.perexample.sums import ClippedSum

CLIP = 0.1


class Amax(torch.autograd.Function):
    """A quantiser with one scale for all that it is given, and the rule that vmap asks for."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x / x.abs().max().clamp(min=1e-6)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, ...], x: Tensor) -> tuple[Tensor, int]:
        return Amax.apply(x), in_dims[0]  # type: ignore[no-untyped-call]


class Net(nn.Module):
    """Two layers with ``middle`` between them, of hidden numbers and input."""

    def __init__(self, middle: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.head, self.middle = nn.Linear(6, 8), nn.Linear(8, 3), middle

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(torch.tanh(self.inner(x)), x))  # type: ignore[no-any-return]


def scaled(h: Tensor, x: Tensor) -> Tensor:
    return 30 * Amax.apply(h * torch.exp(x[:, :1].clamp(-5, 5)))  # type: ignore[no-any-return,no-untyped-call]


def looked_up(h: Tensor, x: Tensor) -> Tensor:
    index = (torch.sigmoid(x[0, 1:2]) * 3).long()  # 3, past the end, where it saturates
    return h + 20 * F.embedding(index, x[0].view(3, 2)).sum()


def index_put(h: Tensor, x: Tensor) -> Tensor:
    index = x[0, :1].clamp(-1, 1).round().long()
    return h * torch.ones_like(h[0]).index_put((index,), torch.full((1,), -20.0))


def stale(h: Tensor, x: Tensor) -> Tensor:
    freed = (x * 1000).repeat(1, 67).sin() * 1000
    del freed
    found = torch.empty(1, 400)
    return h * (1 + found.nan_to_num(0.5).mean())  # else what others left there


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    COMPILED = torch.jit.script(looked_up)


def compiled(h: Tensor, x: Tensor) -> Tensor:
    return COMPILED(h, x)  # type: ignore[no-any-return]


KINDS = {"rule of its own": scaled, "looked up": looked_up, "index put": index_put, "stale": stale}


@pytest.mark.parametrize("name", KINDS)
def test_an_example_moves_the_sum_by_its_clip_whatever_the_operation(name: str) -> None:
    torch.manual_seed(0)
    flat = Flat(Net(KINDS[name]))
    x = torch.randn(31, 6, generator=torch.Generator().manual_seed(1))
    at = {"index put": 26}.get(name, 30)
    x[at] = 40.0
    if name == "index put":  # -1 is the last number; of the example before, without care
        x[:, 0] = -1.0
        x[::2, 0], x[at] = 0.0, x[0]
    if name == "looked up":
        x[29, 1] = 40.0
    y, found = torch.arange(31) % 3, []
    kernel = ClippedSum(flat, cross_entropy)
    others = torch.arange(31) != at
    for some in (others, torch.ones(31, dtype=torch.bool), others):
        out = torch.empty(flat.dim, dtype=torch.float64)
        kernel(x[some], y[some], CLIP, out)
        found.append(out)
    assert float((found[1] - found[0]).norm()) <= CLIP * (1 + 1e-3)
    assert torch.equal(found[2], found[0])
    assert float(found[0].norm()) > CLIP / 10


def paths(middle: Callable[[Tensor, Tensor], Tensor]) -> bool:
    from sordino.training.perexample.general import OneByOne

    flat = Flat(Net(middle))
    path = OneByOne(flat, cross_entropy).path(torch.zeros(1, 6), torch.zeros(1, dtype=torch.long))
    return path is MAPPED


def test_what_hides_its_operations_is_refused_and_ordinary_ones_stay_mapped() -> None:
    with pytest.raises(StudyError, match="cannot be recorded"):
        paths(lambda h, x: h + 20 * (x[0] * 1.0).resize_(2).sum())
    assert not paths(compiled)
    assert paths(lambda h, x: F.gelu(h).softmax(1) * torch.cat([h[:, :4], x[:, :4]], 1).mean(1))


def test_settings_that_own_code_leaves_are_put_back_and_its_hooks_refused() -> None:
    def sets(h: Tensor, x: Tensor) -> Tensor:
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float64)
        torch.set_autocast_enabled("cpu", True)
        warnings.simplefilter("error")
        np.random.seed(3)
        return h

    def hooks(h: Tensor, x: Tensor) -> Tensor:
        handles.append(nn.modules.module.register_module_forward_hook(lambda *given: None))
        return h

    def leaves_a_mode_on(h: Tensor, x: Tensor) -> Tensor:
        torch.set_default_device("cpu")
        return h

    handles: list[Any] = []
    before = np.random.get_state(legacy=False)["state"]["key"]
    paths(sets)
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_default_dtype() == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert (np.random.get_state(legacy=False)["state"]["key"] == before).all()
    with pytest.raises(StudyError, match="cannot be recorded"):
        paths(lambda h, x: (torch.autograd.set_detect_anomaly(True), h)[1])
    assert not torch.is_anomaly_enabled()
    with pytest.raises(StudyError, match="enters a mode of torch and does not leave it"):
        paths(leaves_a_mode_on)
    torch.set_default_device(None)
    with pytest.raises(StudyError, match="a hook is registered for all modules"):
        paths(hooks)
    for handle in handles:
        handle.remove()
    silu, forward = F.silu, nn.SiLU.forward
    for place, name, wraps in (
        (F, "silu", True), (nn.SiLU, "forward", True), (torch, "addmm", True),
        (torch.autograd, "grad", True), (torch._C._nn, "linear", True),
        (nn.modules.activation, "F", True), (F, "silu", False), (torch.Tensor, "flatten", True),
        (nn.SiLU, "_call_impl", False),
    ):  # fmt: skip

        def replaces(
            h: Tensor, x: Tensor, place: Any = place, name: str = name, wraps: bool = wraps
        ) -> Tensor:
            def mine(*given: Any, **named: Any) -> None:
                """See data."""

            # both say that they are torch's, or lie in its code
            says = functools.wraps(getattr(place, name)) if wraps else torch.enable_grad()
            setattr(place, name, says(mine))
            return h

        with pytest.raises(StudyError, match=f"in the place of .*{name}, and that would see data"):
            paths(replaces)
    assert (F.silu, nn.SiLU.forward) == (silu, forward)
    paths(lambda h, x: (nn.Identity.__annotations__, h)[1])  # Python makes them when asked


def forgotten(shape: tuple[int, ...], classes: int) -> nn.Module:
    module = nn.Sequential(nn.Linear(6, classes))
    module.register_parameter("scale", nn.Parameter(torch.empty(400)))
    return module


def test_parameters_that_nobody_initialised_are_refused_whatever_memory_held() -> None:
    rows = [torch.full((400,), 7.0) for _ in range(9)]
    del rows  # their memory is free, with what it holds
    with pytest.raises(StudyError, match="'scale' has values that nobody initialised"):
        models.build("test_vmap_apart:forgotten", (6,), 3, np.random.default_rng(0))


SEEN: list[Any] = []


class Remembers(nn.Module):
    """What its code sees, it keeps where it is not found again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        sys.modules[__name__].SEEN.append(x)
        return self.inner(x) * 2  # type: ignore[no-any-return]


def test_a_recorded_module_never_sees_data() -> None:
    flat = Flat(Remembers())
    x, y = torch.full((5, 6), 40.0), torch.arange(5) % 3
    for size in (5, 3):
        ClippedSum(flat, cross_entropy)(
            x[:size], y[:size], CLIP, torch.empty(flat.dim, dtype=torch.float64)
        )
    assert SEEN
    assert not any(bool((each == 40.0).any()) for each in SEEN if not is_fake(each))


class Window(nn.Module):
    """A learned place in the input, at which it fails on zeros once it has moved below nought."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.head = nn.Parameter(torch.full((1,), 0.5)), nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        at = self.place + x[:, :1]
        low = at.floor()
        value = torch.gather(x, 1, low.long()) * (1 - at + low)
        return self.head(value)  # type: ignore[no-any-return]


def test_an_example_that_fails_and_what_fills_a_piece_take_no_other_with_them() -> None:
    torch.manual_seed(0)
    flat = Flat(Window())
    x, y, sums = torch.rand(32, 6) + 0.5, torch.zeros(32, dtype=torch.int64), []
    flat.weights[0] = -0.01  # zeros would look before the first number
    broken = x.clone()
    broken[7, 0] = 1000.0
    for some, n in ((x, 32), (x, 31), (broken, 32)):
        out = torch.empty(flat.dim, dtype=torch.float64)
        ClippedSum(flat, cross_entropy)(some[:n], y[:n], CLIP, out, expected=32)
        sums.append(out)
    assert float(sums[0].norm()) > 5 * CLIP
    assert float((sums[0] - sums[1]).norm()) <= CLIP
    assert float((sums[0] - sums[2]).norm()) <= CLIP


class Shorter(nn.Module):
    """An activation that computes in half precision inside."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x.to(torch.bfloat16), approximate="tanh").to(x.dtype)


class Own(nn.Sequential):
    """A sequence that counts as a module of one's own."""


@pytest.mark.parametrize("kind", [nn.Sequential, Own])
@pytest.mark.parametrize(
    "middle",
    [
        *(nn.Sigmoid, Shorter),
        *(
            pytest.param(kind, marks=pytest.mark.nightly)
            for kind in (nn.ELU, nn.Mish, nn.SiLU, nn.Softplus, lambda: nn.GELU("tanh"))
        ),
    ],
)
def test_an_example_has_the_same_bits_in_every_place(
    middle: Callable[[], nn.Module], kind: Callable[..., nn.Module]
) -> None:
    """Torch takes the last numbers of an array by other instructions: 2.99 C, in 48 rows."""
    torch.manual_seed(1)
    flat = Flat(kind(nn.Linear(4, 1), middle(), nn.Linear(1, 3)))
    kernel, out = ClippedSum(flat, cross_entropy), torch.empty(flat.dim, dtype=torch.float64)
    for expected, count in ((30.0, 41), (90.0, 96)):
        for example in torch.randn(60, 4):
            x, y = example.expand(count, 4), torch.zeros(count, dtype=torch.int64)
            found = kernel(x, y, CLIP, out, expected=expected)
            assert (found.norms == found.norms[0]).all()
            assert (found.loss == found.loss[0]).all()


LINES = """
import sordino, torch
from torch import nn
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.perexample.sums import ClippedSum

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = nn.functional.mish(self.inner(x))
        return self.head(h / (1.0 + h.std(0).nan_to_num(1.0)))

torch.manual_seed(0)
flat = Flat(Own())
out = torch.empty(flat.dim, dtype=torch.float64)
ClippedSum(flat, cross_entropy)(torch.randn(40, 4), torch.zeros(40, dtype=torch.int64), 1.0, out)
"""


def test_no_operation_prints_a_line_for_each_batch(tmp_path: Path) -> None:
    """Warnings of torch from C++ pass Python's filters: they would count batches."""
    done = warm.run([sys.executable, "-c", LINES], cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
