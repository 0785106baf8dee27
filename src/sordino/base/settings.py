r"""Settings of the process: around calls of a user's own code, and of the C library's memory.

Own code that makes or records a model, or takes a local step, may change what the whole process
computes with: the precision of products, the default type, the number of threads. All that is put
back behind it, random generators included.

Memory that nobody initialised (``torch.empty``) holds what lay there before, which may be private
rows. While own code makes a module, torch fills such memory with NaN where it can.

**The allocator** (:func:`tune`). glibc hands every buffer above 128 kB back to the kernel when it
is freed and gets it again, page by page and zeroed, at the next step. A training step allocates the
same buffers thousands of times: per-example gradients of a CIFAR network took 381 ms with glibc's
defaults and 189 ms with these settings.

    M_MMAP_MAX        0         no private mappings: large buffers come from the heap
    M_TRIM_THRESHOLD  1 GB      do not shrink the heap until this much lies free
    M_TOP_PAD         64 MB     grow it in large strides

Who trains calls it, when the data has been loaded: what loading needed for a moment would be kept,
too. The server of a federation does not: it holds a few long vectors for a moment each, and with
these settings it would keep the memory of all of them. Where the C library is another one, nothing
happens.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from inspect import isbuiltin, isfunction, ismodule
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as hooked

from sordino.base.errors import StudyError

_deterministic: Any = torch.utils.deterministic
_TINY = 5e-324
_CUDA = ("cuda",) if torch.backends.cuda.is_built() else ()  # type: ignore[no-untyped-call]

Setting = tuple[Callable[[], Any], Callable[[Any], object]]


def _precisions() -> Iterator[Setting]:
    """Of products in float32, by backend and operation, where this torch has them."""
    if not hasattr(torch._C, "_get_fp32_precision_getter"):
        return
    places = product(("mkldnn", *_CUDA), ("all", "conv", "rnn", "matmul"))
    for at in (("generic", "all"), *places):
        yield (
            partial(torch._C._get_fp32_precision_getter, *at),
            partial(torch._C._set_fp32_precision_setter, *at),
        )


def _filter(held: list[Any]) -> None:
    warnings.filters[:] = held  # type: ignore[index]  # it is a list
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _entered() -> tuple[int, int, object, bool]:
    """Return the modes that would see data, or change results of torch, if they were left on."""
    return (
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        torch._C._autograd._top_saved_tensors_default_hooks(False),
        torch.is_inference_mode_enabled(),
    )


_SETTINGS: tuple[Setting, ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    *_precisions(),  # the next one cannot be read while they contradict it
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (lambda: _TINY * 1.0 == 0.0, torch.set_flush_denormal),
    *(
        (partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind))
        for kind in ("cpu", *_CUDA)
    ),
    *(
        (partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind))
        for kind in ("cpu", *_CUDA)
    ),
    (lambda: list(warnings.filters), _filter),
    (torch.random.get_rng_state, torch.random.set_rng_state),
    (random.getstate, random.setstate),
    (lambda: np.random.get_state(legacy=False), np.random.set_state),
    (np.geterr, lambda held: np.seterr(**held)),
)
"""Getters and setters of what own code may change; the precisions before what is read from them."""


def _functions() -> Iterator[tuple[Any, dict[str, Any], frozenset[str]]]:
    """Yield where torch keeps what layers call by name, with what stands there, and all names."""
    kinds = (each for each in vars(nn).values() if isinstance(each, type))
    files = (each for name, each in sys.modules.items() if name.startswith("torch.nn.modules"))
    for place in (torch, functional, torch.Tensor, torch.autograd, torch._C._nn, *kinds, *files):
        held = vars(place)
        called = {name: each for name, each in held.items() if callable(each) or ismodule(each)}
        yield place, called, frozenset(held)


def _of_torch(found: object) -> bool:
    """Tell what torch itself puts in a place later: by where its code lies, and that of what it
    wraps, not by what it says.
    """
    while isfunction(found) and found.__code__.co_filename.startswith(_HOME):
        if (found := getattr(found, "__wrapped__", None)) is None:
            return True
    return isbuiltin(found)


def _replaced() -> str | None:
    """Put back what own code has put in the place of torch's functions, or before one that a class
    inherits; the last's name, if any.
    """
    last = None
    for place, known, names in _FUNCTIONS:
        if [*map(vars(place).get, known)] != [*known.values()]:
            for name, was in known.items():
                found = vars(place).get(name)
                if found is was:
                    continue
                if _of_torch(found):
                    known[name] = found
                else:
                    setattr(place, name, was)
                    last = f"{place.__name__}.{name}"
        if isinstance(place, type) and len(vars(place)) > len(names):
            for name in vars(place).keys() - names:
                found, before = vars(place)[name], hasattr(super(place, place), name)
                if before and callable(found) and not _of_torch(found):
                    delattr(place, name)
                    last = f"{place.__name__}.{name}"
    return last


_HOME = os.path.join(os.path.dirname(torch.__file__), "")
_FUNCTIONS = tuple(_functions())
_ALONE = threading.RLock()


@contextmanager
def own_code() -> Iterator[None]:
    """Leave settings and global random generators as they were, whatever own code does to them. One
    thread at a time: they are the process's, and first weights are drawn from them.

    Raises:
        StudyError: for hooks of all modules, functions that stand in the place of torch's, and
            modes that are entered and not left: they would see data.
    """
    with _ALONE:
        held, entered = [get() for get, _ in _SETTINGS], _entered()
        try:
            yield
        finally:
            for (_, put), was in zip(_SETTINGS, held, strict=True):
                put(was)
        if (name := _replaced()) is not None:
            raise StudyError(
                f"own code: it puts a function of its own in the place of {name}, and that would "
                "see data; call it by its own name"
            )
        if _entered() != entered:
            raise StudyError(
                "own code: it enters a mode of torch and does not leave it (a default device, a "
                "dispatch mode, hooks of saved tensors); use it as a context, with `with`"
            )
        if any(
            each
            for name, each in vars(hooked).items()
            if name.startswith("_global") and isinstance(each, dict)
        ):
            raise StudyError(
                "own code: a hook is registered for all modules of the process "
                "(torch.nn.modules.module.register_module_..._hook), and it would see data; "
                "register it on the model's own parts"
            )


@contextmanager
def filled_memory() -> Iterator[None]:
    """Fill memory that nobody initialises."""
    mode, fill = torch.get_deterministic_debug_mode(), _deterministic.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    _deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        _deterministic.fill_uninitialized_memory = fill


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4  # malloc.h
_TRAINS = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 1 << 30), (_M_TOP_PAD, 64 << 20))
_WAITS = ((_M_MMAP_THRESHOLD, 1 << 20),)


def tune(*, trains: bool = True) -> bool:
    """Set how the C library allocates; may be called again. Returns whether it took all of that.

    Who trains keeps what was freed, for the next step. Who waits for others hands large arrays back
    at once: else glibc keeps twice the largest that was freed, for each of its threads.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (other C libraries have a mallopt of another meaning)
        mallopt = library.mallopt
    except (OSError, AttributeError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    taken = [mallopt(option, value) == 1 for option, value in (_TRAINS if trains else _WAITS)]
    return all(taken)


def give_back() -> None:
    """Hand back what the C library keeps for later, where it is one that can be asked to (glibc).

    What starts a server or a site (reading kit and study, building objects) needs tens of megabytes
    for a moment; without this they stay with the process for as long as it waits for rounds.
    """
    gc.collect()  # models that were built to find prices, connections that have ended
    with suppress(OSError, AttributeError):  # another C library, as musl
        ctypes.CDLL(None).malloc_trim(0)
