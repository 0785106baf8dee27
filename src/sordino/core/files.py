"""Writing files so that a kill or a full disk never leaves half of one."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sordino.base.errors import DiskFull, StudyError
from sordino.base.files import FULL, fresh_below


@contextmanager
def said_clearly(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into one message that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(path) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StudyError(
                f"{path}: not allowed to write there. Choose another folder with --out"
            ) from error
        if error.errno in (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.EEXIST,
            errno.EISDIR,
            errno.ENAMETOOLONG,
            errno.ELOOP,
            errno.EINVAL,
        ):
            raise StudyError(
                f"{path}: nothing can be written there ({error.strerror}). Choose another "
                "folder with --out"
            ) from error
        raise


@contextmanager
def resumable(folder: Path, again: str | None = None) -> Iterator[None]:
    """Say of a full disk, and of an interruption, how to go on with the run in ``folder``.

    Args:
        again: how, in words; `sordino run --resume` if left out.
    """
    remedy = again or f"continue with `sordino run --resume {folder}`"
    try:
        yield
    except DiskFull as error:
        raise DiskFull(error.place, remedy) from error
    except KeyboardInterrupt as error:
        error.add_note(f"{remedy[:1].upper()}{remedy[1:]}")
        raise
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull(error.filename or folder, remedy) from error


def replace_file(
    path: Path, *data: bytes | memoryview, below: Path | None = None, mode: int = 0o666
) -> None:
    """Put ``data``, piece by piece, at ``path``: the old bytes or the new ones, never a mixture.

    They are durable on return.

    Args:
        below: the folder from which on no link is followed; the file's own folder if left out.
        mode: rights on the file, of which the user's mask takes some.

    Raises:
        StudyError: if a link, or anything but a plain file, stands there.
    """
    folder = path.parent if below is None else below
    names = path.relative_to(folder).parts
    with said_clearly(path), fresh_below(folder, *names, mode=mode) as file:
        file.writelines(data)
