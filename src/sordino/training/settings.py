"""Settings of the process and random generators around calls of a user's own code.

What one call leaves behind would reach the next one: a coarser product, another default type, a
filter of warnings. So each call begins with the settings that the process had, and they are put
back behind it.

Memory that nobody initialised (``torch.empty``) holds what lay there before: private rows. Within
a call torch fills it, with NaN where it can. What numpy leaves uninitialised (``np.empty``) cannot
be filled.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

_deterministic: Any = torch.utils.deterministic

_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (
        lambda: _deterministic.fill_uninitialized_memory,
        lambda fill: setattr(_deterministic, "fill_uninitialized_memory", fill),
    ),
    (lambda: (*warnings.filters,), lambda told: _filters(told)),
    (np.geterr, lambda told: np.seterr(**told)),
    *(
        (partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind))
        for kind in ("cpu", "cuda")
    ),
    *(
        (partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind))
        for kind in ("cpu", "cuda")
    ),
)
"""How to read and set what own code may change."""


def _filters(told: tuple[Any, ...]) -> None:
    warnings.filters[:] = told  # type: ignore[index]  # it is a list
    warnings._filters_mutated()  # type: ignore[attr-defined]


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
    """Fill memory that nobody initialises, and put settings back behind a call of own code."""
    with filled_memory(), _put_back():
        yield


@contextmanager
def _put_back() -> Iterator[None]:
    held = [get() for get, _ in _SETTINGS]
    try:
        yield
    except (KeyboardInterrupt, Exception):
        raise
    except BaseException as error:  # such as SystemExit: not for an example to decide
        raise RuntimeError(f"{type(error).__name__} in own code: {error}") from error
    finally:
        for (get, put), was in zip(_SETTINGS, held, strict=True):
            if get() != was:
                put(was)


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
        with _put_back():
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
