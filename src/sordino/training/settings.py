"""Settings of the process and random generators around calls of a user's own code.

What one call leaves behind would reach the next one: a coarser product, another default type, a
hook for all modules, a mode of torch that nobody left. So each call begins with the settings that
the process had, and they are put back behind it. So are attributes of classes and functions, which
stay in the process when a copy of a module is thrown away (:mod:`sordino.training.copies`).

A warning could tell of one example (numpy warns of a logarithm of zero). So warnings of own code
are not shown.

Memory that nobody initialised (``torch.empty``) holds what lay there before: private rows. Within
a call torch fills it, with NaN where it can. What numpy leaves uninitialised (``np.empty``) cannot
be filled.
"""

from __future__ import annotations

import decimal
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as hooked
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sordino.errors import StudyError
from sordino.training.copies import put_back

_deterministic: Any = torch.utils.deterministic
_saved: Any = torch._C._autograd
_HOOKS: list[dict[Any, Any]] = [
    each
    for name, each in vars(hooked).items()
    if name.startswith("_global") and isinstance(each, dict)
]
_TINY = 5e-324
_CUDA = ("cuda",) if torch.backends.cuda.is_built() else ()  # type: ignore[no-untyped-call]

Setting = tuple[Callable[[], Any], Callable[[Any], object]]


def _hooks() -> object:
    """Hooks of all modules; mostly there are none."""
    return [*map(dict, _HOOKS)] if any(_HOOKS) else None


def _set_hooks(told: list[dict[Any, Any]] | None) -> None:
    for i, each in enumerate(_HOOKS):
        each.clear()
        each.update(told[i] if told else {})
    if told is None:
        hooked._global_is_full_backward_hook = None


def _set_saved(told: tuple[Any, Any] | None) -> None:
    while (top := _saved._top_saved_tensors_default_hooks(False)) not in (None, told):
        _saved._pop_saved_tensors_default_hooks()
    if top is None and told is not None:
        _saved._push_saved_tensors_default_hooks(*told)


def _set_saving(disabled: str | None) -> None:
    if disabled is None:
        _saved._saved_tensors_hooks_enable()
    else:
        _saved._saved_tensors_hooks_disable(disabled)


def _device() -> Any:
    return vars(torch._GLOBAL_DEVICE_CONTEXT).get("device_context")


def _set_device(told: Any) -> None:
    torch.set_default_device(None if told is None else told.device)


def _functions() -> tuple[Any, ...]:
    count = torch._C._len_torch_function_stack()
    return tuple(map(torch._C._get_function_stack_at, range(count))) if count else ()


def _dispatched() -> tuple[Any, ...]:
    count = torch._C._len_torch_dispatch_stack()
    return tuple(map(torch._C._get_dispatch_stack_at, range(count))) if count else ()


def _leave(entered: Callable[[], tuple[Any, ...]], kind: Any, told: tuple[Any, ...]) -> None:
    """Leave modes that own code entered: as their class does where torch wrote that."""
    while (now := entered()) and now != told:
        if type(now[-1]).__module__.startswith("torch."):
            with suppress(Exception):  # it was entered in C
                type(now[-1]).__exit__(now[-1], None, None, None)
        if entered() == now:
            kind.__exit__(now[-1], None, None, None)
    for mode in told[len(now) :]:
        kind.__enter__(mode)


def _filters(told: tuple[Any, ...]) -> None:
    warnings.filters[:] = told  # type: ignore[index]  # it is a list
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _flag(name: str, put: str | None = None) -> list[Setting]:
    """A setting in C, where this torch has it."""
    get = getattr(torch._C, f"_get_{name}", None)
    return [] if get is None else [(get, getattr(torch._C, put or f"_set_{name}"))]


def _precisions() -> Iterator[Setting]:
    """Of products in float32, by backend and operation: newer than the one for matrices."""
    if not hasattr(torch._C, "_get_fp32_precision_getter"):
        return
    places = product(("mkldnn", *_CUDA), ("all", "conv", "rnn", "matmul"))
    for at in (("generic", "all"), *places):
        yield (
            partial(torch._C._get_fp32_precision_getter, *at),
            partial(torch._C._set_fp32_precision_setter, *at),
        )


_SETTINGS: tuple[Setting, ...] = (
    (_device, _set_device),  # a mode, too: before them
    (_functions, partial(_leave, _functions, TorchFunctionMode)),
    (_dispatched, partial(_leave, _dispatched, TorchDispatchMode)),
    (partial(_saved._top_saved_tensors_default_hooks, False), _set_saved),
    (_saved._saved_tensors_hooks_get_disabled_error_message, _set_saving),
    (_hooks, _set_hooks),
    (torch.get_default_dtype, torch.set_default_dtype),
    *_precisions(),  # the next one cannot be read while they contradict it
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    *_flag("mkldnn_enabled"),
    *_flag("nnpack_enabled"),
    *_flag("flash_sdp_enabled", "_set_sdp_use_flash"),
    *_flag("math_sdp_enabled", "_set_sdp_use_math"),
    *_flag("mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (
        lambda: _deterministic.fill_uninitialized_memory,
        lambda fill: setattr(_deterministic, "fill_uninitialized_memory", fill),
    ),
    (lambda: (*warnings.filters,), _filters),
    (np.geterr, lambda told: np.seterr(**told)),
    (np.get_printoptions, lambda told: np.set_printoptions(**told)),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (lambda: _TINY * 1.0 == 0.0, torch.set_flush_denormal),
    *(
        (partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind))
        for kind in ("cpu", *_CUDA)
    ),
    *(
        (partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind))
        for kind in ("cpu", *_CUDA)
    ),
)
"""How to read and set what own code may change."""
_GETTERS = [get for get, _ in _SETTINGS]


@contextmanager
def filled_memory() -> Iterator[None]:
    """Fill memory that nobody initialises."""
    mode, fill = torch.get_deterministic_debug_mode(), _deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        # of operations that have no deterministic form, or no fast rule for vmap
        for told in (".*deterministic", "There is a performance drop"):
            warnings.filterwarnings("ignore", told)
        torch.set_deterministic_debug_mode("warn")
        _deterministic.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            _deterministic.fill_uninitialized_memory = fill


@contextmanager
def same_settings() -> Iterator[None]:
    """Around own code: fill memory that nobody initialises, show no warning, and put settings and
    attributes of classes back behind it.
    """
    with filled_memory(), _PutBack(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        warnings.showwarning = _silent  # type: ignore[assignment]
        try:
            yield
        finally:
            put_back()


def _silent(*_told: object) -> None:
    """Show no warning, not even where own code has filters of its own."""


class _PutBack:
    """Puts settings back behind own code."""

    def __enter__(self) -> None:
        self._context = decimal.getcontext()
        decimal.setcontext(self._context.copy())
        self._held = _read()

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        decimal.setcontext(self._context)
        if _read() != self._held:
            _restore(self._held)
        if error is not None and not isinstance(error, (KeyboardInterrupt, Exception)):
            # such as SystemExit: not for an example to decide
            raise RuntimeError(f"{type(error).__name__} in own code: {error}") from error


def _read() -> list[Any]:
    try:
        return [get() for get in _GETTERS]
    except Exception:  # torch's settings can contradict each other
        return [_readable(get) for get, _ in _SETTINGS]


def _readable(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except Exception:  # whatever torch raises
        return None


def _restore(held: list[Any]) -> None:
    for _ in range(2):  # one may change another
        for (get, put), was in zip(_SETTINGS, held, strict=True):
            if _readable(get) != was:
                with suppress(Exception):  # compared below
                    put(was)
    if _read() != held:
        raise StudyError(
            "model: it changes settings of torch or numpy in a way that cannot be put back; leave "
            "them alone in forward"
        )


@contextmanager
def own_code(device: torch.device) -> Iterator[None]:
    """Leave settings and global random generators as they were, whatever own code does to them."""
    held = random.getstate(), np.random.get_state()
    try:
        with (
            same_settings(),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            set_generators(device)
            yield
    finally:
        random.setstate(held[0])
        np.random.set_state(held[1])


@contextmanager
def own_call(device: torch.device, *, fill: bool = True) -> Iterator[None]:
    """The same for one call within :func:`own_code`: it begins as every other call does.

    Without ``fill``, for code that is known to take no memory that nobody initialises.
    """
    set_generators(device)
    if not fill:
        _deterministic.fill_uninitialized_memory = False
    try:
        with _PutBack():
            yield
    finally:
        _deterministic.fill_uninitialized_memory = True


def set_generators(device: torch.device) -> None:
    """Let a module that draws random numbers draw the same whatever was drawn before."""
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        torch.cuda.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
