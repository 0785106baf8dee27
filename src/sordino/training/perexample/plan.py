r"""One forward and one backward pass, written out, for modules that are plain sequences.

Autograd would form the weights' gradients once for the whole batch, where they are of no
use, and per-example ones a second time. A sequence of known layers needs no autograd: the
plan runs every stage forward, walks back to the activations, and hands each
layer that owns parameters its output gradient. Nothing is computed twice, and the weights'
gradients are formed once, already clipped.

Only layers that are known to keep examples apart (:func:`known`) are taken. One without
parameters that has no stage of its own is run by autograd, alone. Anything else makes
:func:`compiled` return None, and examples are differentiated by themselves
(:mod:`sordino.training.perexample.general`); so do weights used twice, hooks, and subclasses
of known layers, whose ``forward`` may be anything.

A batch whose buffers exceed the cache by far is worked off in pieces of about 40 MB; the sum is
the same.

Shapes: x (n, ...) with images as (n, channels, height, width) in any memory format.

**Layers that are known to work on every example of a batch by itself.** A fast path runs a batch
through a module at once and takes example i's gradient from row i. That is right only if row i of
every layer's output depends on row i of its input alone, for every batch that can ever come, and no
test on a few batches can show it: a module that sorts examples by length and back passes all of
them. So fast paths are for layers whose type says so, taken one by one from this list; every other
module is differentiated example by example (:mod:`.general`).

A layer counts as its type only if nothing has been changed about it: exactly this class, no hooks,
no method of its own, no parametrization, weights that are parameters of exactly torch's type,
settings that are plain numbers and words, no compiled call, no global hooks. Torch hands weights
and settings on beside the examples, and one of a class of its own would be called with them. It has
the parameters of its type, and no others: fast paths write the gradients of these alone.

>>> known(nn.Linear(2, 3)), known(torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)))
(True, False)
>>> alone(nn.Softmax(dim=1), 2), alone(nn.Softmax(dim=0), 2), alone(nn.AvgPool2d(2), 3)
(True, False, False)
>>> alone(nn.MaxPool2d(2), 4), alone(nn.MaxPool2d(2, padding=1, dilation=2), 4)
(True, False)
>>> alone(nn.CircularPad1d(1), 3), alone(nn.CircularPad1d((4, -5)), 3)
(True, False)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as machinery

from sordino.training.flat import Flat
from sordino.training.loss import Loss
from sordino.training.perexample.layers import (
    Convolution,
    Embedding,
    Flatten,
    Linear,
    Normalisation,
    Opaque,
    Owner,
    Relu,
    Stage,
)

PIECE_BYTES = 40e6
_OWNERS = (Linear, Convolution, Normalisation, Embedding)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The stages of a module for inputs of one shape.

    Attributes:
        stages: in order; those before ``first`` own no parameters and need no backward step.
        owners: for each stage, itself if it owns parameters.
        first: index of the first stage with parameters.
        most: examples of a piece at most, for memory.
    """

    stages: tuple[Stage, ...]
    owners: tuple[Owner | None, ...]
    first: int
    most: int

    def forward(self, x: Tensor) -> Tensor:
        """Scores of a batch."""
        if x.ndim == 4:
            x = x.permute(0, 2, 3, 1)
        for stage in self.stages:
            x = stage.forward(x)
        return x.permute(0, 3, 1, 2) if x.ndim == 4 else x

    def slopes(
        self, loss: Loss, x: Tensor, y: Tensor, scale: float
    ) -> tuple[Tensor, Iterator[tuple[Owner, Tensor]]]:
        """Return losses (n,) and, last layer first, each owner with its scaled output gradient.

        The backward pass runs as the pairs are drawn, so that an owner finds its gradient still in
        the cache.
        """
        losses, g = loss.slope(self.forward(x), y)
        # some backward moves write into it
        g = (g.permute(0, 2, 3, 1) if g.ndim == 4 else g).contiguous()
        if scale != 1.0:
            g.mul_(scale)
        return losses, self._backward(g)

    def _backward(self, g: Tensor) -> Iterator[tuple[Owner, Tensor]]:
        for index in range(len(self.stages) - 1, self.first - 1, -1):
            owner = self.owners[index]
            if owner is not None:
                yield owner, g
            if index > self.first:
                g = self.stages[index].backward(g)


def plain_layers(module: nn.Module) -> list[nn.Module] | None:
    """The layers of nested plain sequences in order; None if one may mix examples."""
    found: list[nn.Module] = []

    def walk(part: nn.Module) -> bool:
        if type(part) is nn.Sequential and known(part):
            # a layer that stands there twice counts twice, which ``children`` would not tell
            return all(child is not None and walk(child) for child in part._modules.values())
        found.append(part)
        return known(part)

    return found if walk(module) else None


def _stage(layer: nn.Module, flat: Flat, like: Tensor, free: bool) -> Stage | None:
    """The stage for a layer; None if there is none.

    Args:
        like: an input of one example, channels last if an image; tokens are integers.
        free: its input may be overwritten.
    """
    axes, tokens = like.ndim - 1, not like.is_floating_point()
    if tokens or isinstance(layer, nn.Embedding):
        if not (tokens and axes == 1 and isinstance(layer, nn.Embedding)):
            return None
        return Embedding(layer, flat) if Embedding.supports(layer) else None
    match layer:
        case nn.ReLU():
            return Relu(flat.weights, free)
        case nn.Flatten(start_dim=1, end_dim=end) if end in (-1, axes):
            return Flatten()
        case nn.Linear():
            return Linear(layer, flat) if axes in (1, 2) else None
        case nn.Conv2d():
            return Convolution(layer, flat) if axes == 3 and Convolution.supports(layer) else None
        case nn.GroupNorm():
            return Normalisation(layer, flat) if axes == 3 else None
        case nn.LayerNorm():
            fits = axes != 3 and len(layer.normalized_shape) <= axes
            return Normalisation(layer, flat) if fits else None
    return Opaque(layer) if alone(layer, 1 + axes) else None


def compiled(flat: Flat, shape: tuple[int, ...], tokens: bool = False) -> Plan | None:
    """The plan of a module for inputs of ``shape`` or ``tokens``; None: the general path."""
    layers = plain_layers(flat.module)
    if layers is None:
        return None
    parameters = [each for layer in layers for each in layer.parameters()]
    if len(set(parameters)) < len(parameters) or None in map(flat.slot, parameters):
        return None
    probe = flat.weights.new_zeros((1, *shape), dtype=torch.int64 if tokens else None)
    if probe.ndim == 4:
        probe = probe.permute(0, 2, 3, 1)
    stages: list[Stage] = []
    owners: list[Owner | None] = []
    numbers = 0
    with torch.no_grad():
        for layer in layers:
            free = bool(stages) and isinstance(stages[-1], Linear | Convolution)
            if (stage := _stage(layer, flat, probe, free)) is None:
                return None
            stages.append(stage)
            owner = stage if isinstance(stage, _OWNERS) else None
            owners.append(owner if any(True for _ in layer.parameters()) else None)
            try:
                probe = stage.forward(probe)
            except (RuntimeError, ValueError, IndexError):
                # a layer that cannot run on one example, or does not fit: not for us to say
                return None
            if len(probe) != 1:
                return None
            numbers += probe.numel() + (stage.kept if isinstance(stage, Convolution) else 0)
    first = next(index for index, owner in enumerate(owners) if owner is not None)
    most = max(1, int(PIECE_BYTES / (numbers * flat.weights.element_size())))
    return Plan(tuple(stages), tuple(owners), first, most)


_PARAMETERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("weight", "bias"),
    nn.Conv2d: ("weight", "bias"),
    nn.GroupNorm: ("weight", "bias"),
    nn.LayerNorm: ("weight", "bias"),
    nn.Embedding: ("weight",),
}
"""Of the types that have some."""
_EVERYWHERE = (
    nn.ReLU, nn.ReLU6, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU,
    nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Threshold, nn.Identity,
)  # fmt: skip
"""Element by element: inputs of any shape."""

_BY_AXES: dict[type[nn.Module], int] = {
    nn.AvgPool1d: 3, nn.AvgPool2d: 4, nn.AvgPool3d: 5,
    nn.MaxPool1d: 3, nn.MaxPool2d: 4, nn.MaxPool3d: 5,
    nn.AdaptiveAvgPool1d: 3, nn.AdaptiveAvgPool2d: 4, nn.AdaptiveAvgPool3d: 5,
    nn.AdaptiveMaxPool1d: 3, nn.AdaptiveMaxPool2d: 4, nn.AdaptiveMaxPool3d: 5,
    nn.LPPool1d: 3, nn.LPPool2d: 4, nn.ZeroPad2d: 4,
    nn.ConstantPad1d: 3, nn.ConstantPad2d: 4, nn.ConstantPad3d: 5,
    nn.ReflectionPad1d: 3, nn.ReflectionPad2d: 4,
    nn.ReplicationPad1d: 3, nn.ReplicationPad2d: 4, nn.ReplicationPad3d: 5,
    nn.CircularPad1d: 3, nn.CircularPad2d: 4,
    nn.PixelShuffle: 4, nn.PixelUnshuffle: 4, nn.Softmax2d: 4, nn.Unfold: 4, nn.Fold: 3,
}  # fmt: skip
"""Within the last axes: with one axis less, the first would not count examples but channels."""

_MAX = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)

_ALONG = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU)
"""Along one axis, which must not be the first."""

_KINDS: tuple[Any, ...] = (
    nn.Sequential, *_PARAMETERS, *_EVERYWHERE, *_BY_AXES, *_ALONG, nn.Flatten, nn.Unflatten
)  # fmt: skip
_FORWARD: dict[Any, Callable[..., Any]] = {kind: kind.forward for kind in _KINDS}
"""As they were when this was imported."""

_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
"""Of a module, and with "_global" before them, of all modules."""

_OF_ALL = vars(nn.Module()) | {"_compiled_call_impl": None}
"""The attributes that every module of torch has."""


def known(layer: nn.Module) -> bool:
    """Return whether a layer is of a listed type, and does what its type does."""
    kind: Any = type(layer)
    if kind.forward is not _FORWARD.get(kind) or any(
        callable(getattr(kind, name, None)) for name in vars(layer)
    ):
        return False
    has, usual = layer._parameters, _PARAMETERS.get(kind, ())
    if any(name not in usual or (p is not None and not _plain(p)) for name, p in has.items()):
        return False
    # none of the types has buffers: one would stand in a parameter's place
    if (layer._modules and kind is not nn.Sequential) or layer._buffers:
        return False
    weight, bias = has.get("weight"), has.get("bias")
    if weight is not None and weight is bias:
        return False  # what is clipped is the sum of two gradients, and not each of them
    shaped = bias is None or (weight is not None and bias.shape == weight.shape[:1])
    if kind is nn.Linear and not shaped:
        return False  # such as one number for all outputs
    if kind is nn.Conv2d and not _usual(layer, weight):
        return False
    if not all(
        _setting(value) if name not in _OF_ALL else type(value) is type(_OF_ALL[name])
        for name, value in vars(layer).items()
    ):
        return False
    hooked = any(getattr(layer, name) or getattr(machinery, f"_global{name}") for name in _HOOKS)
    return not hooked and layer._compiled_call_impl is None


def _usual(layer: nn.Module, weight: nn.Parameter | None) -> bool:
    """Return whether the settings of a convolution are pairs, and fit its weight.

    Of images that lie channels last, oneDNN (torch 2.13) reads other memory if they have one
    channel and the strides differ: an example's gradient is then not its own (29.7 C). It ends the
    process where there is more padding than kernel beside a narrow image. Graphs are given tensors
    that lie row by row.
    """
    settings: Any = vars(layer)
    pairs = [settings.get(name) for name in ("stride", "dilation", "padding")]
    if weight is None or settings["kernel_size"] != tuple(weight.shape[2:]):
        return False
    if not all(type(each) is str or (type(each) is tuple and len(each) == 2) for each in pairs):
        return False
    stride, _, padding = pairs
    if type(padding) is tuple and any(map(operator.ge, padding, weight.shape[2:])):
        return False
    return weight.shape[1] > 1 or stride[0] == stride[1]


def _setting(value: object) -> bool:
    """Return whether a value is a number, a word or nothing, or a row of such."""
    if type(value) in (tuple, list, torch.Size):
        return all(map(_setting, value))  # type: ignore[call-overload]
    return value is None or (
        isinstance(value, int | float | str | np.generic)
        and type(value).__module__ in ("builtins", "numpy")
    )


def _plain(parameter: nn.Parameter) -> bool:
    """Return whether autograd calls nobody with the gradients of a parameter."""
    hooks = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    return type(parameter) is nn.Parameter and not hooks


def alone(layer: nn.Module, axes: int) -> bool:
    """Return whether a known layer without parameters keeps examples apart on so many axes."""
    kind = type(layer)
    if not known(layer) or getattr(layer, "return_indices", False):
        return False
    if kind in _MAX and not np.all(np.equal(getattr(layer, "dilation", 0), 1)):
        return False  # with padding, a window may lie outside of the image (graph.py)
    if kind in _BY_AXES and np.any(np.less(getattr(layer, "padding", 0), 0)):
        return False  # torch leaves memory as it was, or writes behind its tensors
    if kind in _EVERYWHERE:
        return True
    if kind in _BY_AXES:
        return axes == _BY_AXES[kind]
    if isinstance(layer, nn.Flatten):
        return layer.start_dim >= 1
    if isinstance(layer, nn.Unflatten):
        return isinstance(layer.dim, int) and layer.dim >= 1
    if kind in _ALONG:
        axis = getattr(layer, "dim", None)
        return isinstance(axis, int) and -axes <= axis < axes and axis % axes != 0
    return False


def exact_products() -> bool:
    """Return whether torch multiplies matrices at full precision, as the bound's proof assumes."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # settings of single backends contradict it
        return False
