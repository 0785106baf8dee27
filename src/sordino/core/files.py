"""Files and folders that a run writes: whole or not at all, under a lock.

A kill or a full disk never leaves half of a file. Two processes that write into one folder would
destroy it; two lives of one site would say two things under one charge, and hide two inputs under
the masks of one seed. So whatever writes into a folder over a time holds it (:func:`locked`): a run
from its draft to its end (also one of a server or a site), a tuning, a comparison, a reproduction,
and who writes a report again. Readers take no lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sordino.base.errors import DiskFull, StudyError, WorkerGone
from sordino.base.files import FULL, KIB, append_below, fresh_below, read_below


@contextmanager
def said_clearly(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into one message that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(path) from error
        denied = PermissionError, FileExistsError
        places = FileNotFoundError, NotADirectoryError, IsADirectoryError
        odd = errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL
        if isinstance(error, denied + places) or error.errno in odd:
            raise StudyError(
                f"{path}: nothing can be written there ({error.strerror}). Choose another "
                "folder with --out"
            ) from error
        raise


@contextmanager
def resumable(folder: Path, again: str | None = None) -> Iterator[None]:
    """Say how to go on with the run in ``folder``: after a full disk, an interruption, or when a
    worker is gone.

    Args:
        again: how, in words; `sordino run --resume` if left out.
    """
    remedy = again or f"continue with `sordino run --resume {folder}`"
    try:
        yield
    except DiskFull as error:
        raise DiskFull(error.place, remedy) from error
    except (KeyboardInterrupt, WorkerGone) as error:
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


LOCK = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
"""Errors of the system where a file system has no locks."""
_held: set[int] = set()  # handles of the locks of this very process


def write_new(path: Path, text: str) -> None:
    """Write a file that a user named.

    Raises:
        StudyError: if it exists or cannot be written.
    """
    if path.exists():
        raise StudyError(f"{path}: exists already; choose another name")
    with said_clearly(path), path.open("x", encoding="utf-8") as file:
        file.write(text)


def _forget() -> None:
    """Let go of the locks of the process that this one was forked from: they are not ours."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def locked(folder: Path, *, make: bool = False) -> Iterator[None]:
    """Hold a folder against all others that would write there.

    The locks are the system's. They end with this process, however that ends, and no process that
    is started or forked here shares them. One is on the folder itself, which holds on this machine
    whatever is removed inside; one on the file ``.lock``, which holds between machines where their
    file system's locks do. The file says which process has it, and is removed at the end; one that
    a kill has left means nothing. The folder may be renamed meanwhile.

    Args:
        make: whether to make the folder where there is none.

    Raises:
        StudyError: if another process or thread has it, or its file system knows no locks.
    """
    with said_clearly(folder):
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            handle = _taken(folder, place)
        except BaseException:
            os.close(place)
            raise
    _held.update((handle, place))
    try:
        yield
    finally:
        if handle in _held:  # else we are a forked child, and the lock is the parent's
            _held.difference_update((handle, place))
            with suppress(OSError):  # the folder was removed, or the disk is gone
                os.unlink(LOCK, dir_fd=place)
            os.close(handle)
            os.close(place)


def _taken(folder: Path, place: int) -> int:
    """A handle of the file of the lock, once that and the opened folder are locked."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        while True:
            with append_below(folder, LOCK) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(FileNotFoundError):  # another machine had it, and has just removed it
                    if os.path.samestat(os.stat(LOCK, dir_fd=place), os.fstat(file.fileno())):
                        file.truncate(0)
                        file.write(f"{os.getpid()}\n".encode())
                        file.flush()
                        return os.dup(file.fileno())  # has the lock, too, and stays open
    except BlockingIOError:
        raise StudyError(
            f"{folder}: another process{_owner(folder)} is running there. Wait until it ends, or "
            "choose another folder; nothing was changed"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise StudyError(
            f"{folder}: its file system has no locks ({error.strerror}), and without one a second "
            "process could write there at the same time. Choose a folder on another file system"
        ) from error


def _owner(folder: Path) -> str:
    """The process that holds a folder, in words; nothing if that is not known."""
    try:
        found = read_below(folder, LOCK, most=KIB).strip()
    except (OSError, StudyError):
        return ""
    return f" ({int(found)})" if found.isdigit() else ""


def take(draft: Path, folder: Path, out: Path | None, name: str) -> Path:
    """The name that a new folder takes: another run that was begun meanwhile may have taken it."""
    while True:
        try:
            draft.rename(folder)
            return folder
        except OSError:
            if not folder.exists():
                raise
            folder = free(out, name)  # refuses what the user named


def free(out: Path | None, name: str) -> Path:
    """A folder that does not exist yet."""
    if out is not None:
        if out.exists():
            raise StudyError(
                f"{out}: this output folder exists already. Choose another with --out, or go "
                f"on with `sordino run --resume {out}`"
            )
        return out
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "run"
    number = 1
    while (folder := Path("runs") / f"{slug}-{number:03d}").exists():
        number += 1
    return folder
