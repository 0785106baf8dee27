"""Folders of the user's cache, and when they are trusted.

What lies there is used as it is, so a folder or a file must belong to the user and be writable by
nobody else, and neither may be a link.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PART = ".part"
"""How the name of a file that is still written ends."""
STALE = 3600.0
"""Seconds after which a file with such a name was left behind by a process that was killed."""
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def is_own(seen: os.stat_result) -> bool:
    """Whether this belongs to the user, and nobody else can write to it."""
    return seen.st_uid == os.geteuid() and not seen.st_mode & _OTHERS


def is_own_file(name: str, held: int) -> bool:
    """Whether a plain file of the user's own has this name in an opened folder.

    Raises:
        OSError: if there is none.
    """
    seen = os.stat(name, dir_fd=held, follow_symlinks=False)
    return stat.S_ISREG(seen.st_mode) and is_own(seen)


@contextmanager
def own_folder(place: Path, *, make: bool) -> Iterator[int]:
    """A handle of a folder, if it can be trusted.

    Args:
        place: the folder.
        make: whether to make it where there is none, and to sweep it (:func:`sweep`).

    Raises:
        OSError: if it is not there, or others can write to it.
    """
    if make:
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
    held = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not is_own(os.fstat(held)):
            raise PermissionError(f"{place}: others can write here")
        if make:
            sweep(held)
        yield held
    finally:
        os.close(held)


def sweep(held: int) -> None:
    """Remove from an opened folder what killed processes left behind half-written."""
    for name in os.listdir(held):
        if name.endswith(PART):
            with suppress(OSError):
                if time.time() - os.stat(name, dir_fd=held, follow_symlinks=False).st_mtime > STALE:
                    os.unlink(name, dir_fd=held)
