"""Own modules for ``model.name = "own_kinds:make_NAME"``: six numbers in, three scores out."""

from __future__ import annotations

import functools
import math
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

Shape = tuple[int, ...]
CLASSES = 3


def outlier(x: Tensor) -> bool:
    return bool((x.detach().abs() > 30.0).any())


class Net(nn.Module):
    """Two layers; subclasses say what they remember of an outlier, a number above 30."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, CLASSES)
        self.make()

    def make(self) -> None:
        """Where it remembers."""

    def note(self) -> None:
        """Remember."""

    def seen(self) -> bool:
        """Whether it remembers something."""
        return False

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)))  # type: ignore[no-any-return]


class Branches(Net):
    """On numbers of its input."""

    def forward(self, x: Tensor) -> Tensor:
        if outlier(x):
            self.note()
        return -5.0 * super().forward(x) if self.seen() else super().forward(x)


class InDeque(Branches):
    def make(self) -> None:
        self.kept: deque[int] = deque(maxlen=3)

    def note(self) -> None:
        self.kept.append(1)

    def seen(self) -> bool:
        return bool(self.kept)


class InArray(Branches):
    def make(self) -> None:
        self.kept = np.zeros(1)

    def note(self) -> None:
        self.kept[0] = 1.0

    def seen(self) -> bool:
        return bool(self.kept[0])


class InClass(Branches):
    kept: ClassVar[list[int]] = []
    count: ClassVar[int] = 0

    def note(self) -> None:
        InClass.kept.append(1)
        type(self).count += 1

    def seen(self) -> bool:
        return bool(self.kept) or bool(InClass.count)


class InWeights(Branches):
    def note(self) -> None:
        self.head.weight.data.mul_(-2.0)


class WritesItsInput(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x.mul_(0.5))))  # type: ignore[no-any-return]


class FailsUnderVmap(Net):
    """No control flow that vmap cannot follow, and an index out of the table."""

    def make(self) -> None:
        self.table = nn.Embedding(40, 6)

    def forward(self, x: Tensor) -> Tensor:
        far = self.table(x[:, 0].abs().round().long())
        return self.head(torch.tanh(self.inner(x + far)))  # type: ignore[no-any-return]


class Renormalises(Net):
    """``max_norm``, on a row that outliers alone look up."""

    def make(self) -> None:
        self.table = nn.Embedding(50, 6, max_norm=0.5)
        with torch.no_grad():
            self.table.weight.mul_(0.01)
            self.table.weight[42] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        token = torch.where((x.abs() > 30.0).any(1), 42, 0)
        return self.head(torch.tanh(self.inner(x) + F.pad(self.table(token), (0, 2))))  # type: ignore[no-any-return]


class Bags(Net):
    def make(self) -> None:
        self.table = nn.EmbeddingBag(50, 8, mode="sum", max_norm=0.5)
        with torch.no_grad():
            self.table.weight.mul_(0.01)
            self.table.weight[42] = 2.0

    def forward(self, x: Tensor) -> Tensor:
        token = torch.where((x.abs() > 30.0).any(1), 42, 0)
        return self.head(torch.tanh(self.inner(x) + self.table(token.unsqueeze(1))))  # type: ignore[no-any-return]


class MeansByHand(Net):
    """Mixes a batch once it has an outlier."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.head(torch.tanh(self.inner(x)))
        return scores - 9.0 * scores.mean(0) if outlier(x) else scores  # type: ignore[no-any-return]


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.inner, x, use_reentrant=False)
        return self.head(torch.tanh(hidden))  # type: ignore[no-any-return]


class Tied(Net):
    def make(self) -> None:
        self.second = nn.Linear(8, 8)
        self.second.weight = nn.Parameter(torch.randn(8, 8) / 3)
        self.third = nn.Linear(8, 8)
        self.third.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.third(torch.tanh(self.second(self.inner(x))))))  # type: ignore[no-any-return]


class Listed(Net):
    def make(self) -> None:
        self.more = nn.ModuleDict({"a": nn.Linear(8, 8)})
        self.scales = nn.ParameterList([torch.ones(8), torch.ones(8)])

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.more["a"](self.inner(x) * self.scales[0]) * self.scales[1]
        return self.head(torch.tanh(hidden))  # type: ignore[no-any-return]


class InPlace(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu_(self.inner(x)).add(0.1).mul_(2.0))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cells, self.head = kind(2, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x.view(-1, 3, 2))[0][:, -1])  # type: ignore[no-any-return]


class Attends(nn.Module):
    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.inner: nn.Module = (
            nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0, batch_first=True)
            if whole
            else nn.MultiheadAttention(2, 1, batch_first=True)
        )
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 3, 2)
        out = self.inner(x) if isinstance(self.inner, nn.TransformerEncoderLayer) else None
        return self.head((self.inner(x, x, x)[0] if out is None else out).flatten(1))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """A block as torchvision writes it, with a norm that a caller chooses."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(1, 4, 3, padding=1, bias=False), norm(4)
        self.relu, self.second = nn.ReLU(inplace=True), nn.Conv1d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.norm(self.first(x.unsqueeze(1))))
        return self.head(self.relu(self.second(h) + h).mean(2))  # type: ignore[no-any-return]


class Config:
    def __init__(self, **more: object) -> None:
        self.__dict__.update(more)


class Pretrained(Net):
    """A model as transformers writes one: a configuration, lists in the class, an output object."""

    config_class = Config
    _no_split_modules: ClassVar[list[str]] = ["Net"]

    def make(self) -> None:
        self.config = Config(hidden=8, names={0: "a"})

    def forward(self, x: Tensor) -> Tensor:
        found = Config(logits=self.head(torch.tanh(self.inner(x))))
        return found.logits  # type: ignore[attr-defined,no-any-return]


class Counts(Net):
    """Keeps how often it was called, which no branch shows."""

    def make(self) -> None:
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class KeepsTheLast(Net):
    """Adds the last input, kept in a class: a tensor without numbers while it is recorded."""

    last: ClassVar[Any] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        last, KeepsTheLast.last = KeepsTheLast.last, x
        return super().forward(x + 0.1 * last)


class AddsUp(Net):
    """Adds its inputs up in a tensor that is no buffer."""

    def make(self) -> None:
        self.total = [torch.zeros(6)]

    def forward(self, x: Tensor) -> Tensor:
        self.total[0] += x.detach().sum(0)
        return super().forward(x + self.total[0])


class Alias(Net):
    """Scales its own weights in place, under another name."""

    def make(self) -> None:
        self.alias = [self.inner.weight]

    def forward(self, x: Tensor) -> Tensor:
        self.alias[0].data.mul_(1.0 + x.abs().amax())
        return super().forward(x)


class Draws(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.rand(CLASSES)


class ByNumpy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.from_numpy(np.sign(x.detach().numpy())))


class Masks(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x[x > 0].sum()


class Straight(torch.autograd.Function):
    """A sign, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        return slopes[0] * 0.5


class Quantised(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(Straight.apply(self.inner(x)))  # type: ignore[no-any-return,no-untyped-call]


class Scaled(Tensor):
    """A weight that rounds what it is multiplied with, by the largest number there, as quantised
    weights do. Torch calls it with all that vmap has side by side.
    """

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: Any, held: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        made.held = held
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(held: Any, *_: Any) -> Tensor:
        return cast(Tensor, Scaled(held["held"]))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [each.held if isinstance(each, cls) else each for each in args]
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            step = given[0].abs().amax().clamp_min(1e-12) / 127
            given[0] = torch.round(given[0] / step) * step
            return func(*given, **(kwargs or {}))
        made = func(*given, **(kwargs or {}))
        return Scaled(made) if isinstance(made, Tensor) else made


class QuantisedWeight(Net):
    def make(self) -> None:
        self.frozen = nn.Parameter(Scaled(torch.eye(6)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.mm(x, self.frozen.t()))


class QuantisedBuffer(Net):
    def make(self) -> None:
        self.register_buffer("frozen", Scaled(torch.eye(6)))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.mm(x, self.frozen))  # type: ignore[arg-type]


class Adapted(Net):
    """Beside a frozen base in 16 bits."""

    def make(self) -> None:
        self.base = nn.Linear(6, 8, dtype=torch.bfloat16).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x) + self.base(x.bfloat16()).float()
        return self.head(torch.tanh(h))  # type: ignore[no-any-return]


class Squeezed(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


class Holds(Net):
    """A tensor of a kind that torch has few operations for."""

    def __init__(self, held: Tensor) -> None:
        super().__init__()
        self.register_buffer("held", held)


class Hooked(Net):
    """A hook that changes what a part gives."""

    def make(self) -> None:
        self.inner.register_forward_hook(lambda _, given, out: out * 2.0)


class Mobile(nn.Module):
    """A block as MobileNet has it, pooled, before a head of zeros; rolled, so not for vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, CLASSES)
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        image = x.view(-1, 1, 2, 3).roll(1, 3)
        return self.head(self.pool(F.relu6(self.norm(self.conv(image)))).flatten(1))  # type: ignore[no-any-return]


class ByList(Net):
    """Takes its weights from a list, where no recording looks for them."""

    def make(self) -> None:
        self.listed = [self.inner.weight]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x @ self.listed[0].T))  # type: ignore[no-any-return]


class Tokens(Net):
    """Words by their numbers, none of them negative."""

    def make(self) -> None:
        self.table = nn.Embedding(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.table(x.long()).sum(1))


class Pools(Net):
    """Largest numbers of windows, sizes that adapt, borders, and sorted numbers."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(x.unsqueeze(1), (1, 1), mode="reflect")
        y = F.adaptive_max_pool1d(F.max_pool1d(y, 2, stride=1), 3)
        y = F.interpolate(y, size=6, mode="linear")
        return super().forward(y.squeeze(1) + x.sort(1).values)


class PoolsOutside(Net):
    """A pool whose only window lies outside of an image of one row."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(x.view(-1, 6, 1, 1), 2, stride=1, padding=1, dilation=2)
        return super().forward(x + y.flatten(1).clamp(-1.0, 1.0))


class PadsInside(Net):
    """A border of mirrored numbers on one side, and less than nothing on another."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(x.view(-1, 1, 2, 3), (0, 2, -1, 1), mode="reflect")
        return super().forward(x + y.sum((1, 2, 3))[:, None])


class ReadsBehind(Net):
    """Lengths that follow from the example, past its end: what lies there are other examples."""

    def forward(self, x: Tensor) -> Tensor:
        count = torch.where(x[:, :1] > 30.0, 64, x.shape[1]).long()
        y = torch.segment_reduce(x, "sum", lengths=count, axis=1, unsafe=True)
        return super().forward(x + y)


class Repeats(Net):
    """Counts that are checked once they are written past the end."""

    def forward(self, x: Tensor) -> Tensor:
        far = (x[0, 0] > 30.0).long() * 40
        counts = torch.stack([1 + far, 1 - far])
        return super().forward(x + torch.repeat_interleave(counts, output_size=2).sum())


class PoolsElsewhere(Net):
    """The slope of a pool at places of its own choice."""

    def forward(self, x: Tensor) -> Tensor:
        y = x[:, None, None]
        places = y.long()[..., :1].clamp(0, 10**6)
        z = torch.ops.aten.adaptive_max_pool2d_backward(y[..., :1], y, places)
        return super().forward(z.flatten(1))


class SlopesByHand(Net):
    """A kernel that takes on trust that there is a mean of each row."""

    def forward(self, x: Tensor) -> Tensor:
        means, ones = x.mean(1, keepdim=True), torch.ones(6)
        moved = torch.ops.aten.native_layer_norm_backward(
            x, x, [6], means, means.exp(), ones, ones, [True, False, False]
        )
        return super().forward(moved[0])


class SlopesInRule(torch.autograd.Function):
    """A gradient whose kernel is called by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        padded: Tensor = slopes[0].unsqueeze(1)
        back: Tensor = torch.ops.aten.replication_pad1d_backward(padded, padded[..., 1:-1], [1, 1])
        return padded.squeeze(1) + back.sum()


class SlopesInRuleNet(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(SlopesInRule.apply(x * self.inner.weight[0]))  # type: ignore[no-untyped-call]


class NormsByHand(Net):
    """A kernel that takes on trust that there is a weight for each channel."""

    def forward(self, x: Tensor) -> Tensor:
        six = torch.ones(6)
        found = torch.native_batch_norm(x[:, :, None], six, six, six, six, False, 0.1, 1e-5)
        return super().forward(found[0].squeeze(2))


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, CLASSES))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(6, CLASSES))


BOUNDED: dict[str, Callable[[], nn.Module]] = {
    **{kind.__name__: kind for kind in (
        WritesItsInput, FailsUnderVmap, Renormalises, Checkpointed, Tied, Listed, InPlace,
        Pretrained, Quantised, Hooked, Mobile, Pools, Adapted,
    )},
    "weight_norm": lambda: chain(parametrizations.weight_norm(nn.Linear(6, 8))),
    "lazy": lambda: chain(nn.LazyLinear(8)),
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
    "transformer": lambda: Attends(True),
    "attention": lambda: Attends(False),
    "group_norm": lambda: Residual(functools.partial(nn.GroupNorm, 2)),
    "instance_norm": lambda: Residual(nn.InstanceNorm1d),
    "layer_norm": lambda: chain(nn.Linear(6, 8), nn.LayerNorm(8)),
    "max_norm": lambda: nn.Sequential(Renormalises()),
    "shared_layer": lambda: nn.Sequential(
        nn.Linear(6, 6), *[nn.Softsign()] * 2, nn.Linear(6, CLASSES)
    ),
}  # fmt: skip

NUMBERS = "cannot be recorded as a graph of torch operations"
STATE = "keeps a state or draws random numbers"
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "InDeque": (InDeque, NUMBERS),
    "InArray": (InArray, NUMBERS),
    "InClass": (InClass, NUMBERS),
    "InWeights": (InWeights, NUMBERS),
    "MeansByHand": (MeansByHand, NUMBERS),
    "ByNumpy": (ByNumpy, NUMBERS),
    "Masks": (Masks, "mixes examples"),
    "Alias": (Alias, "a forward pass changes 'inner.weight'"),
    "ByList": (ByList, "it takes a parameter from a list"),
    "Counts": (Counts, STATE),
    "KeepsTheLast": (KeepsTheLast, "fails on three examples"),
    "AddsUp": (AddsUp, STATE),
    "Draws": (Draws, STATE),
    "PoolsOutside": (PoolsOutside, "max_pool2d_with_indices with both padding and dilation"),
    "PadsInside": (PadsInside, "reflection_pad2d with a negative side"),
    "ReadsBehind": (ReadsBehind, "segment_reduce is not known to stay within its tensors"),
    "QuantisedWeight": (QuantisedWeight, "'frozen' is a Scaled, whose own code would see data"),
    "QuantisedBuffer": (QuantisedBuffer, "'frozen' is a Scaled, whose own code would see data"),
    "Squeezed": (Squeezed, r"of a single example it gives float32 of shape \(3,\); it must give"),
    "sparse": (
        lambda: Holds(torch.eye(8).to_sparse()),
        r"'held' \(torch.float32\) has the layout torch.sparse_coo; make it a plain tensor",
    ),
    "meta": (lambda: Holds(torch.eye(8, device="meta")), "'held' .* is on the device 'meta'"),
    "short": (lambda: Holds(torch.eye(8).to(torch.float8_e4m3fn)), "'held' .* fewer than 16 bits"),
    "conjugate": (lambda: Holds(torch.ones(8, dtype=torch.cfloat).conj()), "a conjugate view"),
    "Repeats": (Repeats, "repeat_interleave is not known to stay within its tensors"),
    "Bags": (Bags, "_embedding_bag.* is not known to stay within its tensors"),
    "PoolsElsewhere": (PoolsElsewhere, "own code calls aten::adaptive_max_pool2d_backward"),
    "SlopesByHand": (SlopesByHand, "own code calls aten::native_layer_norm_backward"),
    "SlopesInRule": (SlopesInRuleNet, "own code calls aten::replication_pad1d_backward"),
    "NormsByHand": (NormsByHand, "own code calls aten::native_batch_norm"),
    "scripted": (scripted, "compiled|Jitted"),
    "spectral_norm": (
        lambda: chain(parametrizations.spectral_norm(nn.Linear(6, 8))),
        "a forward pass changes '0.parametrizations",
    ),
    "spectral_norm_by_hook": (
        lambda: chain(torch.nn.utils.spectral_norm(nn.Linear(6, 8))),
        "a forward pass changes '0.weight_u'",
    ),
    "batch_norm": (lambda: Residual(nn.BatchNorm1d), "mixes the examples"),
    "running_norm": (
        lambda: Residual(lambda n: nn.InstanceNorm1d(n, track_running_stats=True)),
        "keeps statistics",
    ),
    "dropout": (lambda: chain(nn.Linear(6, 8), nn.Dropout(0.5)), "draws its own random"),
}


class KeepsByShape(nn.Module):
    """A number for each size of batch, of the weights when that size first came."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, CLASSES)
        self.largest: dict[int, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        if len(x) not in self.largest:
            self.largest[len(x)] = float(self.inner.weight.detach().abs().max())
        return torch.div(self.inner(x), self.largest[len(x)])


class CountsShapes(KeepsByShape):
    """How many sizes of batches came before."""

    def forward(self, x: Tensor) -> Tensor:
        self.largest[len(x)] = 0.0
        return torch.mul(self.inner(x), len(self.largest))


class MadeLate(nn.Module):
    """Its layer is made when the first batch tells how wide it is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.inner is None:
            self.inner = nn.Linear(x.shape[1], CLASSES)
        return cast(Tensor, self.inner(x))


@functools.cache
def late(shape: Shape, classes: int) -> nn.Module:
    return MadeLate()


class Halves(nn.Module):
    """Works on two halves of a larger batch, which must be even."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.inner = nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        halves = x.flatten(1).view(2 if len(x) > 3 else 1, -1, self.inner.in_features)
        return cast(Tensor, self.inner(halves).flatten(0, 1))


@functools.cache
def once(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, CLASSES))


def frozen(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(once(shape, classes).requires_grad_(False), nn.Linear(CLASSES, CLASSES))


def __getattr__(name: str) -> Callable[[Shape, int], nn.Module]:
    kind = name.removeprefix("make_")
    if kind == name:
        raise AttributeError(name)
    make = BOUNDED[kind] if kind in BOUNDED else REFUSED[kind][0]
    return lambda shape, classes: make()
