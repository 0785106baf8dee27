"""Throw-away copies of a module, so that nothing that a forward pass writes can stay.

A forward pass is code of somebody's own. It may write into its parameters (``max_norm`` of an
embedding), its buffers, a deque, an array or any other attribute, on some inputs only: no trial
shows it. What it writes is raw data. So a module never works on data itself. Copies of it do, and
each is thrown away with all that was written to it:

* Parameters and buffers of a copy are copies. The vector of weights that is trained and released
  (:class:`~sordino.training.flat.Flat`) is out of every copy's reach.
* Attributes are copied deeply, hooks and bound methods included.
* Classes, functions and members of enumerations are shared. Their own attributes are put back
  before each copy is made, and behind own code (:mod:`sordino.training.settings`): of all that the
  module leads to, and of torch's classes of its parts. They outlive a run. So the next model would
  begin with what the last example of this one left.
* Whatever else a copy would share must be constant. So a function that holds something changeable
  (in its closure or its defaults), or assigns to a global name, is refused, and so are caches and
  whatever cannot be copied. Functions and classes that own code finds by a global name count, too,
  alone or in a table. What looks for names that no reading of the code shows (an import within a
  function, ``globals``) is refused.

Four things stay the responsibility of a module's author: other changeable objects that code finds
by a global name, global names of installed packages, objects outside of Python, and settings of
the process that are not in :mod:`sordino.training.settings`.

>>> module = nn.Linear(2, 1)
>>> copied = Copies(module).copy()
>>> _ = copied.weight.data.zero_()
>>> bool(module.weight.any())
True
"""

from __future__ import annotations

import copy
import operator
import types
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from sordino import modules
from sordino.errors import StudyError
from sordino.training.reached import (
    CARRIERS,
    UNTOUCHED,
    Found,
    constant,
    hidden,
    opaque,
    origin,
    reached,
)

_MACHINERY = frozenset(vars(nn.Module()))
_STANDARD = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__")
_RESTORED = {
    kind.__setstate__
    for kind in (nn.Module, nn.Conv2d, nn.MultiheadAttention, nn.TransformerEncoderLayer)
}
"""What only fills in attributes that older files lack."""
_GONE = object()


def put_back() -> None:
    """Undo what own code left in classes and functions since a model was made."""
    for kept in tuple(_used.values()):
        kept.put_back()


def begin_anew() -> None:
    """Before a model is made: the state of classes and functions is the first one."""
    put_back()
    _used.clear()


class Copies:
    """A module, and how to copy it.

    The module itself must not be called on data.

    Raises:
        StudyError: naming what cannot be copied, or would be shared by copies.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tensors = [*module.parameters(), *module.buffers()]
        for part in module.modules():
            if isinstance(part, torch.jit.ScriptModule) or part._compiled_call_impl is not None:
                raise StudyError(
                    f"model: a part of it ({type(part).__name__}) is compiled, so it cannot be "
                    "copied; give the module as it was before torch.compile or torch.jit"
                )
        self._parts = [_Part(part) for part in module.modules() if _plain(type(part))]
        try:
            ours = reached(module)
            self._kept = _Kept(value for _, value in ours.values())
            made = self.copy()
        except StudyError:
            raise
        except Exception as error:  # whatever an attribute's copying raises
            raise StudyError(
                f"model: it cannot be copied ({modules.told_of(error)}), and every example gets a "
                "copy, so that nothing of it stays; leave out of the module what cannot be copied"
            ) from error
        _refuse_shared(ours, reached(made))

    def copy(self, given: Mapping[int, Tensor] | None = None) -> nn.Module:
        """A copy; ``given`` are parameters by the ``id`` of those in whose place they stand."""
        _used[id(self._kept)] = self._kept
        self._kept.put_back()
        memo: dict[int, Any] = {} if given is None else dict(given)
        for tensor in self._tensors:
            if id(tensor) not in memo:
                memo[id(tensor)] = _cloned(tensor)
        for part in self._parts:
            part.begin(memo)
        for part in self._parts:
            part.fill(memo)
        found: nn.Module = copy.deepcopy(self._module, memo)
        return found


def _cloned(tensor: Tensor) -> Tensor:
    cloned = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(cloned, requires_grad=tensor.requires_grad)
    return cloned


def _plain(kind: type[nn.Module]) -> bool:
    """Whether instances are their ``__dict__`` and no more, as ``copy`` would find, too."""
    own = any(getattr(kind, name, None) is not getattr(nn.Module, name, None) for name in _STANDARD)
    slots = any(vars(each).get("__slots__") for each in kind.__mro__)
    return not own and not slots and kind.__setstate__ in _RESTORED


class _Part:
    """A plain part of a module, copied as ``copy.deepcopy`` would, in a fifth of the time."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._kind = module, type(module)
        self._constant: dict[str, Any] = {}
        self._empty: list[tuple[str, int, type[Any]]] = []
        self._others: list[tuple[str, Any]] = []
        for name, value in vars(module).items():
            if constant(value):
                self._constant[name] = value
            elif name in _MACHINERY and type(value) in (dict, OrderedDict, set) and not value:
                self._empty.append((name, id(value), type(value)))
            else:
                self._others.append((name, value))

    def begin(self, memo: dict[int, Any]) -> None:
        """Put a copy of this part into ``memo``, with what refers to nothing else."""
        made = memo[id(self._module)] = self._kind.__new__(self._kind)
        into = made.__dict__
        into.update(self._constant)
        for name, key, kind in self._empty:
            into[name] = memo[key] = kind()

    def fill(self, memo: dict[int, Any]) -> None:
        """Give the copy the rest of its attributes."""
        into = memo[id(self._module)].__dict__
        for name, value in self._others:
            if name in _MACHINERY and type(value) is dict:
                into[name] = {
                    key: memo[id(each)] if id(each) in memo else copy.deepcopy(each, memo)
                    for key, each in value.items()
                }
            else:
                into[name] = copy.deepcopy(value, memo)


class _Kept:
    """Attributes of what copies share, as they were at first."""

    def __init__(self, found: Iterable[Any]) -> None:
        own: list[Any] = []
        known: list[Any] = []
        self._others: list[tuple[Any, str, object]] = []
        for owner in found:
            if not isinstance(owner, CARRIERS) or not type(owner).__dictoffset__:
                continue
            kind = owner if isinstance(owner, (type, types.FunctionType)) else type(owner)
            if origin(kind) == "known":
                known.append(owner)
                continue
            own.append(owner)
            for name, value in vars(owner).items():
                if name in UNTOUCHED or constant(value) or isinstance(value, CARRIERS):
                    continue
                try:
                    self._others.append((owner, name, copy.deepcopy(value)))
                except Exception as error:  # whatever its copying raises
                    raise StudyError(
                        f"model: {kind.__name__}.{name} ({type(value).__name__}) cannot be copied "
                        f"({modules.told_of(error)}); leave it out of the class"
                    ) from error
        known.sort(key=lambda each: each is nn.Module)  # the last one
        self._owners, self._own = own + known, len(own)
        self._first = [dict(vars(owner)) for owner in self._owners]
        self._look()

    def _look(self) -> None:
        self._last = [dict(vars(owner)) for owner in self._owners]
        self._values = [value for each in self._last[: self._own] for value in each.values()]

    def _same(self) -> bool:
        spaces = [*map(vars, self._owners)]
        values = chain.from_iterable([space.values() for space in spaces[: self._own]])
        try:  # a change of torch's classes may be to something equal, of others not
            return (
                len(self._last[-1]) == len(spaces[-1])  # nn.Module has a hundred: count them
                and self._last[:-1] == spaces[:-1]
                and all(map(operator.is_, values, self._values))
            )
        except Exception:  # whatever comparing raises
            return False

    def put_back(self) -> None:
        """Undo what was assigned, added or changed."""
        same = self._same()
        if not same:
            for owner, first in zip(self._owners, self._first, strict=True):
                now = dict(vars(owner))
                for name in now.keys() - first.keys() - UNTOUCHED:
                    _base(owner).__delattr__(owner, name)
                for name, value in first.items():
                    if now.get(name, _GONE) is not value:
                        _base(owner).__setattr__(owner, name, value)
        for owner, name, value in self._others:
            _base(owner).__setattr__(owner, name, copy.deepcopy(value))
        if self._others or not same:
            self._look()


_used: dict[int, _Kept] = {}
"""Of which copies were made since a model was made."""


def _base(owner: object) -> Any:
    """What sets an attribute past the owner's own code."""
    return type if isinstance(owner, type) else object


def _refuse_shared(ours: Found, made: Found) -> None:
    for key, (place, value) in made.items():
        if isinstance(value, types.FunctionType) and (what := hidden(value)) is not None:
            raise StudyError(
                f"model: {place} {what}. That outlasts a copy of the module, so it would "
                "carry raw data from example to example; leave it out"
            )
        if key in ours and not isinstance(value, CARRIERS):
            raise StudyError(
                f"model: {place} ({type(value).__name__}) is shared by the module and its copies, "
                "so what one example writes there would reach others; make it an attribute of the "
                "module, or a constant such as a tuple"
            )
        if opaque(type(value)):
            raise StudyError(
                f"model: {place} ({type(value).__name__}) is not written in Python, so nobody can "
                "see what its copies share; make of it a tensor, an array or a list"
            )
