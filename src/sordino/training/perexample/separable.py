r"""Layers that are known to work on every example of a batch by itself.

A fast path runs a batch through a module at once and takes example i's gradient from row i. That is
right only if row i of every layer's output depends on row i of its input alone, for every batch
that can ever come, and no test on a few batches can show it: a module that sorts examples by length
and back passes all of them. So fast paths are for layers whose type says so, taken one by one from
this list; every other module is differentiated example by example (:mod:`.general`).

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
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as machinery

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
