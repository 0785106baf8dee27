"""What a module carries from one forward pass to the next, where it can be seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_MACHINERY = frozenset(vars(nn.Module()))

State = dict[str, Any]


def state(module: nn.Module) -> State:
    """Buffers, and parts' attributes that are tensors, numbers, strings or containers: copies."""
    found: State = {name: value.detach().clone() for name, value in module.named_buffers()}
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if key not in _MACHINERY:
                found[f"{name}.{key}".lstrip(".")] = _copy(value)
    return found


def changed(before: State, module: nn.Module) -> str | None:
    """The name of something that is no longer as it was; None if all is."""
    after = state(module)
    names = [*before, *(name for name in after if name not in before)]
    return next((name for name in names if not _same(before.get(name), after.get(name))), None)


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, list | dict | set) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (
            one.shape == other.shape
            and one.dtype == other.dtype
            and torch.equal(one.nan_to_num(), other.nan_to_num())
        )
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, int | float | str | bytes | bool | tuple | set | None):
        return bool(one is other or one == other)
    return one is other
