"""Numba, as this program uses it: the options that all kernels share, and where their code is kept.

A kernel is a function at module level below ``@compiled()``. Three rules keep it sound:

* It calls kernels and names constants of its own file alone: kept code is made anew when that file
  changes, and only then.
* Its module is imported where there is something to compute: numba takes 0.7 s and 120 MB.
* What numba keeps is run as it is, so its folder is the user's alone. ``SORDINO_COMPILED`` names
  another one than ``~/.cache/sordino/compiled``, by its whole path (one below the working folder
  could have come with a study); empty, nothing is kept.

Where code cannot be kept, or kept code cannot be read, it is compiled in memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sordino.base import VERSION
from sordino.base.errors import StudyError
from sordino.base.files import cache_folder, own_folder

FOLDER = "SORDINO_COMPILED"
"""The environment variable that names the folder of kept code."""
Run = TypeVar("Run", bound=Callable[..., Any])
_SETTINGS = Path(".numba_config.yaml")
_listeners: list[Callable[[], None]] = []


def compiled(**options: Any) -> Callable[[Run], Run]:
    """Compile a function for the types it is called with; it releases the interpreter's lock.

    Args:
        options: of ``numba.njit``, such as ``fastmath``.

    Raises:
        StudyError: as :func:`refuse_settings`.
    """
    refuse_settings()
    from numba import njit
    from numba.core import config

    config._config_fname = os.devnull  # numba would look for settings at each compilation

    def decorated(run: Run) -> Run:
        if config.DISABLE_JIT:  # type: ignore[attr-defined]  # as for a debugger: Python runs the loop
            return run
        kernel: Any = njit(nogil=True, **options)(run)
        kernel._cache = _cache(kernel)
        found: Run = kernel
        return found

    return decorated


def refuse_settings() -> None:
    """Refuse to compute in a folder that has settings for numba.

    Numba reads them in the working folder, whoever wrote them, and they change what is computed.

    Raises:
        StudyError: naming the file, and what to do.
    """
    if os.path.lexists(_SETTINGS):
        raise StudyError(
            f"{_SETTINGS.absolute()}: the compiler would take settings from this file, which "
            "change what is computed. Move it away or work in another folder; settings of your "
            "own are variables of the environment (NUMBA_...)"
        )


@contextmanager
def watched(listener: Callable[[], None]) -> Iterator[None]:
    """Call ``listener`` before the first kernel that must be compiled, and not again."""
    _listeners.append(listener)
    try:
        yield
    finally:
        if listener in _listeners:
            _listeners.remove(listener)


def _folder() -> Path | None:
    """Return the folder of this version's code; None if there is none that is the user's alone."""
    named = os.environ.get(FOLDER)
    if named == "":
        return None
    settings = [item for item in sorted(os.environ.items()) if item[0].startswith("NUMBA_")]
    version = hashlib.sha256(repr((VERSION, settings)).encode()).hexdigest()[:16]
    try:
        folder = Path(named).expanduser() if named else cache_folder() / "compiled"
        if not folder.is_absolute():
            return None
        with own_folder(folder, make=True), own_folder(folder / version, make=True) as held:
            return folder / version if os.fstat(held).st_mode & 0o077 == 0 else None
    except (OSError, RuntimeError):  # nobody's home
        return None


def _cache(kernel: Any) -> _Cache:
    """Return the cache of a kernel; it keeps nothing where there is no folder to write to."""
    from numba.core import config as settings

    config: Any = settings  # its names are made when it is loaded
    if (folder := _folder()) is None:
        return _Cache(None, None)
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        kernel.enable_caching()  # in that folder, or in another one that can be written to, if any
    except RuntimeError:
        return _Cache(None, None)
    finally:
        config.CACHE_DIR = before
    own = Path(kernel._cache.cache_path).is_relative_to(folder)
    return _Cache(kernel._cache, folder / "lock" if own else None)


class _Cache:
    """A kernel's cache, read and written by one process at a time, that raises nothing.

    Two processes that keep code for different types at once would otherwise give both the same file
    name, and find the code of the other under it.
    """

    def __init__(self, cache: Any, lock: Path | None) -> None:
        self._cache, self._lock = cache, lock

    def load_overload(self, *arguments: Any) -> Any:
        """Return the code for some types; None if it must be compiled."""
        found = self._alone("load_overload", arguments)
        while found is None and _listeners:
            _listeners.pop()()
        return found

    def save_overload(self, *arguments: Any) -> None:
        """Keep the code for some types, if that can be done."""
        self._alone("save_overload", arguments)

    def _alone(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if self._lock is None:
            return None
        try:
            with self._lock.open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return getattr(self._cache, name)(*arguments)
        except Exception:  # a full disk, a damaged file
            with suppress(OSError):
                self._cache.flush()
            return None
