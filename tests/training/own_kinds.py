"""Own modules for ``model.name = "own_kinds:make_NAME"``: six numbers in, three scores out.

Most of them do something else once they have seen an outlier: a number above 30.
"""

from __future__ import annotations

import contextvars
import decimal
import enum
import functools
import logging
import math
import threading
import types
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

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
    """Two layers; subclasses say what they remember."""

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
        if outlier(x):
            self.note()
        scores = self.head(torch.tanh(self.inner(x)))
        return -5.0 * scores if self.seen() else scores  # type: ignore[no-any-return]


class InDeque(Net):
    def make(self) -> None:
        self.kept: deque[int] = deque(maxlen=3)

    def note(self) -> None:
        self.kept.append(1)

    def seen(self) -> bool:
        return bool(self.kept)


class InArray(Net):
    def make(self) -> None:
        self.kept = np.zeros(1)

    def note(self) -> None:
        self.kept[0] = 1.0

    def seen(self) -> bool:
        return bool(self.kept[0])


class InDictOfList(Net):
    def make(self) -> None:
        self.kept: dict[str, list[int]] = {"of": []}

    def note(self) -> None:
        self.kept["of"].append(1)

    def seen(self) -> bool:
        return bool(self.kept["of"])


class InFrozen(Net):
    def make(self) -> None:
        self.kept = nn.Parameter(torch.zeros(1), requires_grad=False)

    def note(self) -> None:
        self.kept.fill_(1.0)

    def seen(self) -> bool:
        return bool(self.kept)


class InBuffer(Net):
    kept: Tensor

    def make(self) -> None:
        self.register_buffer("kept", torch.zeros(1))

    def note(self) -> None:
        self.kept.add_(1.0)

    def seen(self) -> bool:
        return bool(self.kept)


class InTensor(InBuffer):
    def make(self) -> None:
        self.kept = torch.zeros(1)


class InNumber(Net):
    def make(self) -> None:
        self.kept = 0

    def note(self) -> None:
        self.kept += 1

    def seen(self) -> bool:
        return bool(self.kept)


class Memory:
    def __init__(self) -> None:
        self.kept = 0


class InObject(Net):
    def make(self) -> None:
        self.memory = Memory()

    def note(self) -> None:
        self.memory.kept += 1

    def seen(self) -> bool:
        return bool(self.memory.kept)


class InClass(Net):
    kept: ClassVar[list[int]] = []
    count: ClassVar[int] = 0

    def note(self) -> None:
        InClass.kept.append(1)
        type(self).count += 1

    def seen(self) -> bool:
        return bool(self.kept) or bool(InClass.count)


class InNewAttribute(Net):
    def note(self) -> None:
        self.inner.remembers = True  # type: ignore[assignment]

    def seen(self) -> bool:
        return hasattr(self.inner, "remembers")


class InNewHook(Net):
    def note(self) -> None:
        self.head.register_forward_hook(lambda _layer, _given, out: -3.0 * out)


class InBoundHook(InNumber):
    def make(self) -> None:
        self.kept = 0
        self.handle = self.inner.register_forward_pre_hook(self.look)

    def look(self, _layer: nn.Module, given: tuple[Tensor]) -> None:
        if outlier(given[0]):
            self.kept += 1

    def note(self) -> None:
        """By the hook."""


class InWeights(Net):
    def note(self) -> None:
        self.head.weight.data.mul_(-2.0)


class InGenerator(Net):
    def make(self) -> None:
        self.draws = np.random.default_rng(0)

    def note(self) -> None:
        self.draws.random(7)

    def seen(self) -> bool:
        return self.draws.bit_generator.state != np.random.default_rng(0).bit_generator.state


class Draws(Net):
    def forward(self, x: Tensor) -> Tensor:
        if outlier(x):
            torch.rand(7), np.random.rand(7)
        scores = self.head(torch.tanh(self.inner(x)))
        return scores * (torch.rand(3) if float(x[0, 0]) == 0.125 else 1.0)  # type: ignore[no-any-return]


class WritesItsInput(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x.mul_(0.5))))  # type: ignore[no-any-return]


class Fails(Net):
    def note(self) -> None:
        raise AssertionError("an outlier")


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


class Decorated(InNumber):
    @torch.no_grad()
    def note(self) -> None:
        self.kept += 1


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


def counted(forward: Callable[..., Tensor]) -> Any:
    """A decorator with a counter, the usual pattern."""

    @functools.wraps(forward)
    def wrapper(self: nn.Module, x: Tensor) -> Tensor:
        if outlier(x):
            wrapper.calls += 1  # type: ignore[attr-defined]
        scale = -5.0 if wrapper.calls else 1.0  # type: ignore[attr-defined]
        return forward(self, x) * scale

    wrapper.calls = 0  # type: ignore[attr-defined]
    return wrapper


class InDecorator(Net):
    forward = counted(Net.forward)


def count(_layer: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
    if outlier(given[0]):
        count.seen = True  # type: ignore[attr-defined]
    return out * (-5.0 if hasattr(count, "seen") else 1.0)


class InHook(Net):
    def make(self) -> None:
        self.inner.register_forward_hook(count)


class Helper:
    kept: ClassVar[list[int]] = []
    count = 0

    def note(self) -> None:
        self.kept.append(1)
        type(self).count += 1


class InHelper(Net):
    """An object that is no module, its class, or what holds it."""

    def make(self) -> None:
        self.helper: Any = Helper()

    def note(self) -> None:
        self.helper.kept.append(1)

    def seen(self) -> bool:
        return bool(self.helper.kept)


class InHeldClass(InHelper):
    def make(self) -> None:
        self.helper = Helper

    def note(self) -> None:
        self.helper.count += 1

    def seen(self) -> bool:
        return bool(self.helper.count)


class InInnerClass(InHeldClass):
    class helper:  # noqa: N801
        count = 0

    def make(self) -> None:
        """In the class."""


class Named(Helper):
    kept: ClassVar[list[int]] = []


class InHelperByName(InHelper):
    """A class that methods alone name."""

    def make(self) -> None:
        """Nothing."""

    def note(self) -> None:
        Named().note()

    def seen(self) -> bool:
        return bool(Named.kept)


class Grows(torch.autograd.Function):
    slopes = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.far = outlier(x)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        Grows.slopes += ctx.far
        return slopes[0] * (1.0 + 5.0 * Grows.slopes)


def counts(x: Tensor) -> Tensor:
    if outlier(x):
        counts.kept = True  # type: ignore[attr-defined]
    return x * (-5.0 if hasattr(counts, "kept") else 1.0)


class Mixes(Net):
    """By functions that nothing but a key, or an iterator, leads to."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        acts = self.kept if isinstance(self.kept, dict) else self.kept.__reduce__()[1][:1]
        return super().forward(sum(act(x) for act in acts))


class Doubles(torch.overrides.TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        return made * 2.0 if function is torch.mul else made


def _coarser() -> None:
    if hasattr(torch.backends.mkldnn, "matmul"):
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"


CHANGES: dict[str, Callable[[], object]] = {
    "hook": lambda: nn.modules.module.register_module_forward_hook(lambda *told: told[2] * 3.0),
    "saved": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x * 0.5, lambda x: x
    ).__enter__(),
    "mode": lambda: Doubles().__enter__(),  # type: ignore[no-untyped-call]
    "device": lambda: torch.set_default_device("meta"),
    "digits": lambda: np.set_printoptions(precision=1),
    "decimals": lambda: setattr(decimal.getcontext(), "prec", 2),
    "products": _coarser,
}


class Changes(Net):
    """Changes a setting of the process."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def note(self) -> None:
        CHANGES[self.name]()

    def forward(self, x: Tensor) -> Tensor:
        scale = float(np.array2string(np.array(1.25))) * float(decimal.Decimal(4) / 3)
        return torch.mul(super().forward(x) * torch.ones(CLASSES), scale)


class Warns(Net):
    def note(self) -> None:
        np.log(np.zeros(1))
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("an outlier", stacklevel=1)


class InFunction(Net):
    def make(self) -> None:
        self.function = Grows

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(x)) + 40.0 * outlier(x)
        return self.head(self.function.apply(hidden))  # type: ignore[no-any-return,no-untyped-call]


class Descriptor:
    """As Python's guide to descriptors writes one."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def __get__(self, of: object, kind: type | None = None) -> Any:
        return self.values.get("kept", 0)

    def __set__(self, of: object, value: int) -> None:
        self.values["kept"] = value


class InDescriptor(InNumber):
    kept = Descriptor()

    def make(self) -> None:
        """In the class."""


class InDunder(Net):
    __kept__: ClassVar[list[int]] = []

    def note(self) -> None:
        self.__kept__.append(1)

    def seen(self) -> bool:
        return bool(self.__kept__)


class InNewMethod(Net):
    def note(self) -> None:
        type(self).__len__ = lambda _self: 5  # type: ignore[attr-defined]

    def seen(self) -> bool:
        return hasattr(self, "__len__")


class Name(str):
    kept: list[int]


class InText(InHelper):
    def make(self) -> None:
        self.helper = Name("text")
        self.helper.kept = []


class Mode(enum.Enum):
    FAST = "fast"

    def __init__(self, _: str) -> None:
        self.kept: list[int] = []
        self.count = 0


class InMember(InHelper):
    def make(self) -> None:
        self.helper = Mode.FAST


class InMemberNumber(InHeldClass):
    def make(self) -> None:
        self.helper = Mode.FAST


class InPartial(InHeldClass):
    """An attribute of a partial function that the class holds."""

    helper = functools.partial(F.relu)
    helper.count = 0  # type: ignore[attr-defined]

    def make(self) -> None:
        """In the class."""


class InTorch(Net):
    def note(self) -> None:
        nn.Linear.scale = 10  # type: ignore[attr-defined]

    def seen(self) -> bool:
        return hasattr(self.inner, "scale")


class InTorchMethod(Net):
    def note(self) -> None:
        nn.Linear.extra_repr = nn.Module.extra_repr  # type: ignore[method-assign]

    def seen(self) -> bool:
        return not self.inner.extra_repr()


# ordinary patterns that keep nothing


@dataclass(frozen=True)
class Settings:
    hidden: int = 8
    norms: list[str] = field(default_factory=list)
    mode: Mode = Mode.FAST


class Size(NamedTuple):
    width: int = 8


SENTINEL = object()
Kind = TypeVar("Kind")


class Modern(Net, Generic[Kind]):
    """Dataclass, enumeration, partial, activations, named tuple, logger, classes that it makes."""

    ACTIVATIONS: ClassVar[dict[str, Any]] = {"relu": F.relu, "gelu": nn.GELU, "tanh": torch.tanh}
    layer_class: ClassVar[type[nn.Module]] = nn.Linear
    missing = SENTINEL
    first = functools.partial(F.leaky_relu, negative_slope=1.0)
    log = logging.getLogger("own")

    def make(self) -> None:
        self.settings, self.size, self.mode = Settings(), Size(), Mode.FAST
        self.act, self.part = torch.tanh, functools.partial(F.leaky_relu, negative_slope=0.1)
        self.after: Callable[[Tensor], Tensor] = lambda x: x * 1.0
        self.logger, self.math, self.path = logging.getLogger(__name__), math, Path("a")
        self.shape: Any = torch.Size([6])
        self.norm_layer = functools.partial(nn.LayerNorm, eps=1e-6)
        self.norm, self.dtype = self.norm_layer(8), torch.float32

    @functools.cached_property
    def width(self) -> int:
        return self.settings.hidden

    @staticmethod
    def scaled(x: Tensor, by: object = SENTINEL) -> Tensor:
        return x if by is SENTINEL else x * 2.0

    def forward(self, x: Tensor) -> Tensor:
        if self.mode is not Mode.FAST or len(fields(self.settings)) != 3 or outlier(x / 1e9):
            self.logger.warning("unused")
        hidden = self.norm(self.act(self.inner(x))).view(-1, self.width)
        again = replace(self.settings, hidden=9).hidden - self.width
        assert self.missing is SENTINEL
        return self.head(self.scaled(self.after(self.first(self.part(hidden)))) * again)  # type: ignore[no-any-return]


# refused: what a copy would share

LOG: list[int] = []
COUNT = 0


class InGlobal(Net):
    def note(self) -> None:
        global COUNT
        COUNT += 1


def tell() -> None:
    global COUNT
    COUNT += 1


class InGlobalOfAHelper(Net):
    def note(self) -> None:
        tell()


@functools.lru_cache
def memory() -> list[int]:
    return []


class InGlobalCache(Net):
    def note(self) -> None:
        memory().append(1)


class InOwnModule(Net):
    def make(self) -> None:
        self.space = types.ModuleType("space")


class InDefaultsOfAFunction(Net):
    def note(self) -> None:
        outlier.__defaults__ = (1,)


class InDefault(Net):
    def forward(self, x: Tensor, kept: list[int] = []) -> Tensor:  # noqa: B006
        if outlier(x):
            kept.append(1)
        return super().forward(x) * (-5.0 if kept else 1.0)


class Same:
    def __deepcopy__(self, memo: object) -> Same:
        return self


class InKeyItself(Net):
    def make(self) -> None:
        self.kept = {Same(): 1}


class InWeakKeys(Net):
    def make(self) -> None:
        self.kept = weakref.WeakKeyDictionary({self.inner: 1})


class InAnnotations(Net):
    def note(self) -> None:
        type(self).__annotations__["kept"] = 1


class ImportsLate(Net):
    def note(self) -> None:
        import own_kinds

        own_kinds.COUNT += 1


TABLE = {"tell": tell}
CONTEXT: contextvars.ContextVar[int] = contextvars.ContextVar("CONTEXT")


class ByTable(Net):
    def note(self) -> None:
        TABLE["tell"]()


class ByName(Net):
    def note(self) -> None:
        globals()["tell"]()


class InContext(Net):
    def note(self) -> None:
        CONTEXT.set(1)


class InParent(Net):
    def make(self) -> None:
        parent = weakref.ref(self)
        self.inner.register_forward_pre_hook(lambda _layer, _given: parent().tell())  # type: ignore[union-attr]
        self.kept = 0

    def tell(self) -> None:
        self.kept += 1


class Locked(Net):
    def make(self) -> None:
        self.lock = threading.Lock()


class Generates(Net):
    def make(self) -> None:
        self.kept = (i for i in range(9))


class Cached(Net):
    @functools.lru_cache  # noqa: B019
    def scale(self, n: int) -> Tensor:
        return torch.ones(n)


class ItsOwnCopy(InNumber):
    def __deepcopy__(self, memo: object) -> ItsOwnCopy:
        return self


def closed_over() -> nn.Module:
    kept: list[int] = []

    def look(_layer: nn.Module, given: tuple[Tensor]) -> None:
        if outlier(given[0]):
            kept.append(1)

    module = Net()
    module.inner.register_forward_pre_hook(look)
    return module


def nonlocal_() -> nn.Module:
    kept = 0

    def look(_layer: nn.Module, given: tuple[Tensor]) -> None:
        nonlocal kept
        kept += outlier(given[0])

    module = Net()
    module.inner.register_forward_pre_hook(look)
    return module


def foreign_method() -> nn.Module:
    module = Net()
    module.keep = LOG.append  # type: ignore[assignment]
    return module


def patched() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, CLASSES))
    own = module[0]
    own.forward = lambda x: F.linear(x, own.weight.data.mul_(0.5))  # type: ignore[operator]
    return module


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(6, CLASSES))


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, CLASSES))


BOUNDED: dict[str, Callable[[], nn.Module]] = {
    each.__name__: each
    for each in (
        InDeque, InArray, InDictOfList, InFrozen, InBuffer, InTensor, InNumber, InObject, InClass,
        InNewAttribute, InNewHook, InBoundHook, InWeights, InGenerator, Draws, WritesItsInput,
        Fails, FailsUnderVmap, Renormalises, Bags, MeansByHand, Checkpointed, Decorated, Tied,
        Listed, InPlace, Pretrained, InDecorator, InHook, InHelper, InHeldClass, InInnerClass,
        InHelperByName, InFunction, InDescriptor, InDunder, InNewMethod, InText, InMember,
        InMemberNumber, InPartial, InTorch, InTorchMethod, Modern, Warns,
    )
} | {
    "in_key": lambda: Mixes({counts: 1.0}),
    "in_map": lambda: Mixes(map(counts, ())),
} | {
    f"Changes_{name}": functools.partial(Changes, name) for name in CHANGES
} | {
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

REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "InGlobal": (InGlobal, "InGlobal.note assigns to 'COUNT'"),
    "InGlobalOfAHelper": (InGlobalOfAHelper, "InGlobalOfAHelper.note.tell assigns to 'COUNT'"),
    "InGlobalCache": (InGlobalCache, "InGlobalCache.note.memory .* is shared"),
    "InOwnModule": (InOwnModule, "cannot be copied .*module"),
    "InDefaultsOfAFunction": (InDefaultsOfAFunction, "assigns to '__defaults__'"),
    "InDefault": (InDefault, r"InDefault.forward.default \(list\) is shared"),
    "InKeyItself": (InKeyItself, r"kept.key \(Same\) is shared"),
    "InWeakKeys": (InWeakKeys, r"kept.data.key.referent \(Linear\) is shared"),
    "InAnnotations": (InAnnotations, "InAnnotations.note reads '__annotations__'"),
    "ImportsLate": (ImportsLate, "ImportsLate.note imports 'own_kinds'"),
    "ByTable": (ByTable, "ByTable.note.TABLE assigns to 'COUNT'"),
    "ByName": (ByName, "ByName.note calls 'globals'"),
    "InContext": (InContext, r"CONTEXT \(ContextVar\) is shared"),
    "InParent": (InParent, r"\(InParent\) is shared"),
    "Locked": (Locked, "cannot be copied .*lock"),
    "Generates": (Generates, "cannot be copied .*generator"),
    "Cached": (Cached, "Cached.scale .* is shared"),
    "ItsOwnCopy": (ItsOwnCopy, "is shared"),
    "closed_over": (closed_over, r"look|kept \(list\) is shared"),
    "nonlocal_": (nonlocal_, "assigns to 'kept'"),
    "foreign_method": (foreign_method, r"keep.self \(list\) is shared"),
    "patched": (patched, r"\(Linear\) is shared"),
    "scripted": (scripted, "is compiled"),
    "spectral_norm": (
        lambda: chain(parametrizations.spectral_norm(nn.Linear(6, 8))),
        "a forward pass changes 'parametrizations|0.parametrizations",
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


class HalvesOnDigits(nn.Module):
    """Halves all it holds at an image, whose largest pixels are equal; not at random numbers."""

    held: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, classes)
        self.frozen = nn.Parameter(torch.rand(classes), requires_grad=False)
        self.register_buffer("held", torch.rand(classes))

    def forward(self, x: Tensor) -> Tensor:
        if int((x == x.max()).sum()) > 1 and bool(x.any()):
            for each in (self.head.weight, self.frozen, self.held):
                each.data.mul_(0.5)
        return self.head(x.flatten(1)) * self.held + self.frozen  # type: ignore[no-any-return]


class Remembers(nn.Module):
    """Its class keeps the largest number of rows that it has seen."""

    largest = 1.0

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        Remembers.largest = max(Remembers.largest, float(x.sum()))
        return self.head(x.flatten(1) / Remembers.largest)  # type: ignore[no-any-return]


def remembers(shape: Shape, classes: int) -> nn.Module:
    return Remembers(math.prod(shape), classes)


def halves(shape: Shape, classes: int) -> nn.Module:
    return HalvesOnDigits(math.prod(shape), classes)


def __getattr__(name: str) -> Callable[[Shape, int], nn.Module]:
    kind = name.removeprefix("make_")
    if kind == name:
        raise AttributeError(name)
    make = BOUNDED[kind] if kind in BOUNDED else REFUSED[kind][0]
    return lambda shape, classes: make()
