"""Modules, inputs and weights for the search for examples that move a clipped sum too far."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, TOKENS = 3, 9
Make = Callable[[], nn.Module]


class SortedByLength(nn.Module):
    """Sorts the batch by its examples' lengths, works, and sorts back by a rank that ties with a
    neighbour.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        order = x.detach().norm(dim=1).round().argsort(stable=True)
        h = torch.tanh(self.inner(x[order]))
        # only where somebody is very long
        h = h + 9.0 * h.roll(1, 0) * (x[order].detach().norm(dim=1, keepdim=True) > 30.0)
        return self.head(h[order.argsort()])  # type: ignore[no-any-return]


class Attention(nn.Module):
    """One block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x).mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A recurrence over rows, of the kind given."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = {"gru": nn.GRUCell, "lstm": nn.LSTMCell, "rnn": nn.RNNCell}[kind](4, 5)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 5)
        state = (state, state) if isinstance(self.cell, nn.LSTMCell) else state  # type: ignore[assignment]
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(self.cell, nn.LSTMCell) else state)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """One weight, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Branches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        return self.head((h + F.relu(self.norm(self.second(h)))).mean((2, 3)))  # type: ignore[no-any-return]


class Own(nn.Module):
    """A parameter in no layer that anybody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.linspace(0.5, 2.0, 6)), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.scale.square())  # type: ignore[no-any-return]


class Chain(nn.Sequential):
    """A subclass, which may do anything."""


def sequence(*layers: Callable[[], nn.Module]) -> Make:
    """A plain sequence, and a head of the size that it turns out to need."""
    return lambda: nn.Sequential(
        *(layer() for layer in layers), nn.Flatten(), nn.LazyLinear(CLASSES)
    )


def conv(*arguments: int, **more: object) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(*arguments, **more)  # type: ignore[arg-type]


def linear(*arguments: int, **more: object) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(*arguments, **more)  # type: ignore[arg-type]


IMAGE = (2, 6, 5)
STRUCTURES: dict[str, tuple[Make, tuple[int, ...]]] = {
    "logistic": (sequence(), (1, 4, 3)),
    "linear": (lambda: nn.Linear(5, CLASSES), (5,)),
    "linear, wide": (sequence(), (1500,)),
    "linear without bias": (sequence(linear(5, 8, bias=False), nn.Tanh), (5,)),
    "mlp": (sequence(linear(6, 8), nn.ReLU, linear(8, 8), nn.Tanh), (6,)),
    "mlp, wide": (sequence(linear(6, 1200), nn.GELU), (6,)),
    "sequence, formed": (sequence(linear(3, 2), nn.ReLU, nn.Tanh), (20, 3)),
    "sequence, Gram": (sequence(linear(30, 40), nn.Tanh), (2, 30)),
    "sequence, Gram, 192 wide": (sequence(linear(192, 192), nn.Identity), (2, 192)),
    "sequence, Gram, 4096 wide": (sequence(linear(4096, 8), nn.Identity), (2, 4096)),
    "sequence, Gram, no bias": (sequence(linear(64, 64, bias=False), nn.Identity), (2, 64)),
    "sequence, norm": (sequence(linear(4, 8), lambda: nn.LayerNorm(8), nn.Tanh), (5, 4)),
    "conv, patches": (sequence(conv(2, 5, 3, padding="valid"), nn.ReLU), IMAGE),
    "conv, stride, padding, no bias": (
        sequence(
            conv(2, 5, (4, 3), stride=(2, 1), padding=(1, 2), bias=False),  # type: ignore[arg-type]
            nn.Tanh,
        ),
        IMAGE,
    ),
    "conv, dilation, same": (
        sequence(conv(2, 5, 3, padding="same", dilation=2), nn.Sigmoid),
        IMAGE,
    ),
    "conv, one of many": (sequence(conv(2, 3, 1), nn.ELU), IMAGE),
    "conv, Gram": (sequence(conv(30, 40, 3), nn.Identity), (30, 4, 3)),
    "conv, eights": (sequence(conv(2, 8, 3), nn.ReLU), IMAGE),
    "conv, eights, two": (
        sequence(conv(2, 8, 3, padding=1), nn.ReLU, conv(8, 16, 2, stride=2), nn.Tanh),
        IMAGE,
    ),
    "conv, eights, pool": (
        sequence(conv(2, 8, 3), nn.ReLU, lambda: nn.MaxPool2d(2), conv(8, 8, 1)),
        (2, 8, 8),
    ),
    "max pool, overlapping": (
        sequence(conv(2, 4, 2), lambda: nn.MaxPool2d(3, 1), conv(4, 3, 2)),
        IMAGE,
    ),
    "max pool, padded": (sequence(conv(2, 4, 2), lambda: nn.MaxPool2d(2, padding=1)), IMAGE),
    "average pool": (
        sequence(conv(2, 4, 3), lambda: nn.AvgPool2d(2), lambda: nn.ReLU(inplace=True)),
        (2, 8, 8),
    ),
    "adaptive pool": (sequence(conv(2, 4, 3), lambda: nn.AdaptiveAvgPool2d(2)), IMAGE),
    "padding layer": (sequence(lambda: nn.ReflectionPad2d(1), conv(2, 4, 3)), IMAGE),
    "group norm": (sequence(conv(2, 4, 3), lambda: nn.GroupNorm(2, 4), nn.ReLU), IMAGE),
    "layer norm": (sequence(linear(6, 8), lambda: nn.LayerNorm(8), nn.ReLU), (6,)),
    "softmax": (sequence(linear(6, 8), lambda: nn.Softmax(dim=1)), (6,)),
    "softmax over channels": (sequence(conv(2, 4, 3), lambda: nn.Softmax(1)), IMAGE),
    "unflatten": (
        sequence(lambda: nn.Unflatten(1, (2, 2, 3)), conv(2, 4, 2), lambda: nn.SiLU()),
        (12,),
    ),
    "conv without padding of its own": (sequence(conv(2, 5, 2, padding="same"), nn.ReLU), IMAGE),
    "grouped conv": (sequence(conv(2, 4, 3, groups=2), nn.ReLU), IMAGE),
    "conv 1d": (sequence(lambda: nn.Conv1d(2, 4, 3), nn.ReLU), (2, 9)),
    "prelu": (sequence(linear(6, 8), lambda: nn.PReLU(8)), (6,)),
    "transposed conv": (sequence(lambda: nn.ConvTranspose2d(2, 3, 2), nn.ReLU), (2, 3, 3)),
    "weight norm": (
        sequence(lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh),
        (6,),
    ),
    "subclass": (lambda: Chain(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES)), (6,)),
    "residual": (Residual, IMAGE),
    "tied weights": (Tied, (6,)),
    "own parameter": (Own, (6,)),
    "attention": (Attention, (3, 4)),
    "gru": (lambda: Recurrent("gru"), (3, 4)),
    "lstm": (lambda: Recurrent("lstm"), (3, 4)),
    "rnn": (lambda: Recurrent("rnn"), (3, 4)),
    "sorted by length": (SortedByLength, (6,)),
    "float64": (lambda: sequence(linear(6, 8), nn.Tanh)().double(), (6,)),
    "tokens": (
        lambda: nn.Sequential(
            nn.Embedding(TOKENS, 4), nn.Tanh(), nn.Flatten(), nn.Linear(24, CLASSES)
        ),
        (6,),
    ),
    "tokens, padding": (
        lambda: nn.Sequential(
            nn.Embedding(TOKENS, 4, padding_idx=0), nn.Flatten(), nn.Linear(24, CLASSES)
        ),
        (6,),
    ),
    "tokens, own": (
        lambda: Chain(nn.Embedding(TOKENS, 4), nn.Flatten(), nn.Linear(24, CLASSES)),
        (6,),
    ),
}

INPUTS = (
    "random",
    "tiny",
    "denormal",
    "large",
    "huge",
    "constant",
    "equal halves",
    "one hot",
    "aligned",
    "broken",
    "mixed scales",
)
WEIGHTS = ("random", "sure", "cancelling", "tiny", "far apart")


def inputs(kind: str, shape: tuple[int, ...], n: int, rng: np.random.Generator) -> Tensor:
    """Examples (n, ...) of one class, in float64."""
    x = torch.from_numpy(rng.standard_normal((n, *shape)))
    scale = {"tiny": 1e-12, "denormal": 1e-40, "large": 1e6, "huge": 1e17}.get(kind)
    if scale is not None:
        return x * scale
    match kind:
        case "constant":
            return torch.ones_like(x)
        case (
            "equal halves"
        ):  # positions, or halves of the features, that are the same but for a rounding
            half = (shape[0] + 1) // 2
            x[:, half:] = x[:, : shape[0] - half] * (1 + 1e-7)
            return x
        case "one hot":
            flat = torch.zeros(n, x[0].numel(), dtype=torch.float64)
            flat[torch.arange(n), torch.from_numpy(rng.integers(0, flat.shape[1], n))] = 1.0
            return flat.view(x.shape)
        case "aligned":  # all in one direction, so that roundings add up
            return x[:1].expand_as(x) * torch.linspace(1, 2, n, dtype=torch.float64).view(
                -1, *[1] * len(shape)
            )
        case "broken":
            x[1], x[-1] = torch.inf, torch.nan
            return x
        case "mixed scales":
            return x * 10.0 ** torch.from_numpy(rng.uniform(-20, 12, (n, *[1] * len(shape))))
    return x


def weighted(module: nn.Module, kind: str, rng: np.random.Generator) -> None:
    """Overwrite a module's weights with those of one class."""
    scale = {"random": 0.4, "sure": 20.0, "cancelling": 0.4, "tiny": 1e-9, "far apart": 1.0}[kind]
    with torch.no_grad():
        for parameter in module.parameters():
            # what vanishes here comes back there
            own = 10.0 ** rng.uniform(-24, 18) if kind == "far apart" else scale
            parameter.copy_(torch.from_numpy(own * rng.standard_normal(parameter.shape)))
        last = list(module.modules())[-1]
        # positions whose gradients take each other away
        if kind == "cancelling" and isinstance(last, nn.Linear):
            half = last.in_features // 2
            last.weight[:, half : 2 * half] = -last.weight[:, :half] * (1 + 1e-6)
