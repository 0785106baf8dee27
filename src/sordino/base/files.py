"""Safe access to files that another person may have made.

A run folder travels: it is sent, unpacked and read by somebody who did not write it. In such a
folder

* a symbolic link may lead out of it, so that reading shows and writing overwrites a file elsewhere,
* a pipe or a device may stand where a file belongs, so that opening waits for ever,
* a file may be larger than memory.

Everything below a run folder is opened through this module: no link is followed from the folder on
(the folder itself may be one: whoever names it chose it), only plain files are opened, and a file
is read up to a stated size. Each step is opened below the one before (``openat``), so none can be
exchanged for a link meanwhile. Libraries that open by path (SQLite, safetensors) are given a path
that :func:`check_below` has looked at: this holds against a folder that was made by somebody, not
against a program that changes it at the same time with the user's own rights.

**Folders of the user's cache** are trusted where nobody else can write (:func:`own_folder`). What
lies there is used as it is, so a folder or a file must belong to the user and be writable by nobody
else, and neither may be a link.

**JSON and TOML.** The parsers of the standard library recurse, so a few kilobytes of brackets end
them with a RecursionError, and what was nested just less ends whoever walks through it later.
Numbers of many digits raise a bare ValueError, and a key of ten thousand dotted parts makes
``tomllib`` take memory that grows with their square. So depth and size are bounded first.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from sordino.base.errors import SordinoError, StudyError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MOST_JSON = 64 * MIB
"""Bytes of a JSON document."""
MOST_LOG = 4 * GIB
"""Bytes of a log of rows."""
MOST_TOML = 256 * KIB
"""Bytes of a study file."""

EXPANDS = 100
"""By how many times its size a compressed file may exceed :data:`FREE`, unless that is raised."""
FREE = GIB
"""Bytes that any file may expand to."""
LIMIT = "SORDINO_READ_LIMIT"
"""The environment variable that raises what a data file may expand to, in bytes."""

PART = ".part"
"""The end of the name of a file that is still written."""
STALE = 3600.0
"""Seconds after which a file with such a name was left behind by a process that was killed."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the system where no space is left for a file."""

_CALM = os.O_NONBLOCK | os.O_CLOEXEC
_SECOND = (
    "this file has another name elsewhere (a hard link), which writing would change as "
    "well. Replace it by a copy of itself"
)
_REMEDY = (
    "Links inside a run folder are not followed; replace it by a plain file, or do not use "
    "this folder"
)


@contextmanager
def readable(
    place: object,
    kind: type[SordinoError] = StudyError,
    remedy: str = "Restore it from a copy",
    missing: str = "",
) -> Iterator[None]:
    """Say of a file that cannot be read, or is ``missing``, which one it is, and what to do.

    Damaged bytes have readers raise anything.

    Raises:
        SordinoError: of this kind, in place of all errors that are none of this program's.
    """
    try:
        yield
    except SordinoError:
        raise
    except Exception as error:
        if missing and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise kind(f"{place}: {missing}") from None
        why = getattr(error, "strerror", None) or str(error)[:200] or type(error).__name__
        raise kind(f"{place}: cannot be read ({why}). {remedy}") from error


def cache_folder() -> Path:
    """The user's cache: downloads, and what is made again where it is missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG specification says that a relative path is to be ignored
        try:
            base = Path.home() / ".cache"
        except RuntimeError:  # a user without a home, as in a container
            base = Path("/nonexistent")
    return base / "sordino"


def open_below(folder: Path, *names: str) -> BinaryIO:
    """A plain file below ``folder``, for reading; no link is followed on the way.

    Raises:
        FileNotFoundError: if it is not there.
        StudyError: for a link, a pipe, a device or a folder in its place.
    """
    return os.fdopen(_opened(folder, names, os.O_RDONLY), "rb")


def read_below(folder: Path, *names: str, most: int = MOST_JSON) -> bytes:
    """The bytes of a plain file below ``folder``.

    Raises:
        FileNotFoundError: if it is not there.
        StudyError: as :func:`open_below`, and if it has more than ``most`` bytes.
    """
    with open_below(folder, *names) as file:
        return _limited(file, folder.joinpath(*names), most)


def append_below(folder: Path, *names: str) -> BinaryIO:
    """A plain file below ``folder``, made where there is none, for writing at its end.

    Raises:
        StudyError: as :func:`open_below`; and if the file has a second name, for what is written
            would change that, too.
    """
    file = os.fdopen(_opened(folder, names, os.O_RDWR | os.O_CREAT | os.O_APPEND), "ab")
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise StudyError(f"{folder.joinpath(*names)}: {_SECOND}")
    return file


def there(folder: Path, *names: str) -> bool:
    """Tell whether anything stands at this place below ``folder``, a broken link included."""
    return os.path.lexists(folder.joinpath(*names))


def check_below(folder: Path, *names: str) -> Path:
    """The path of a plain file below ``folder``, for a library that opens it by path.

    Raises:
        FileNotFoundError: if there is none.
        StudyError: as :func:`open_below`.
    """
    os.close(_opened(folder, names, os.O_RDONLY))
    return folder.joinpath(*names)


def refuse_odd(path: Path) -> None:
    """Refuse anything but a plain file of one name, or nothing.

    For a library that opens the file by path and locks it.

    It is looked at and not opened: closing a file gives up every lock that this process has on it.
    A second name is that of another place, unless it is the hidden one beside it under which the
    file was made.

    Raises:
        StudyError: for a link, a pipe, a device, a folder, or a hard link.
    """
    try:
        about = path.lstat()
    except FileNotFoundError:
        return
    _refuse_mode(path, about.st_mode)
    if about.st_nlink > 1:
        drafts = [
            each
            for each in os.scandir(path.parent)
            if each.name.startswith(f".{path.name}.") and each.inode() == about.st_ino
        ]
        # Looked at again: whoever made the file may have dropped the hidden name since, and before
        # the folder was read.
        if path.lstat().st_nlink > 1 + len(drafts):
            raise StudyError(f"{path}: {_SECOND}")


def folder_below(folder: Path, *names: str) -> Path:
    """A folder below ``folder``, made where there is none.

    Raises:
        StudyError: if a link or something else stands there.
    """
    for at in range(len(names)):
        inner = folder.joinpath(*names[: at + 1])
        with suppress(FileExistsError):
            inner.mkdir()
        _refuse_mode(inner, inner.lstat().st_mode, stat.S_IFDIR)
    return folder.joinpath(*names)


@contextmanager
def fresh_below(folder: Path, *names: str, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file below ``folder`` for writing.

    It takes its name, durably, when the block ends well, and leaves nothing otherwise.

    Until then it has a random name that nobody can foresee, and it is made, never opened: what
    waits there is not written to.

    Args:
        mode: rights on it, of which the user's mask takes some.

    Raises:
        StudyError: if a link or anything but a plain file stands at the name or on the way to it.
    """
    part = f".{names[-1]}.{secrets.token_hex(8)}{PART}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | _CALM
    with _parent(folder, names) as parent:
        handle = os.open(part, flags, mode, dir_fd=parent)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _refuse_odd(folder.joinpath(*names), parent)
            os.replace(part, names[-1], src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with suppress(OSError):  # the disk is gone
                os.unlink(part, dir_fd=parent)
            raise


def overwrite(path: Path, content: bytes) -> None:
    """Write over the first bytes of a file where they lie, durably."""
    with path.open("r+b") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def publish(fresh: Path, path: Path) -> None:
    """Give a finished file its name, durably, and never over another.

    Raises:
        FileExistsError: if something has the name.
    """
    try:
        os.link(fresh, path)
    except FileExistsError:
        raise
    except OSError as error:  # a file system without hard links
        if path.exists():
            raise FileExistsError from error
        fresh.rename(path)
    with _folder(path.parent.resolve()) as folder:
        os.fsync(folder)


def open_plain(path: Path) -> BufferedReader:
    """A plain file of the user's own, for reading.

    Links are followed: whoever named the file chose where they lead.

    Raises:
        OSError: if it cannot be opened; OSError, too, for pipes, devices and folders, with the word
            for it.
    """
    handle = os.open(path, os.O_RDONLY | _CALM)
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            raise OSError(errno.EINVAL, f"{_kind(mode)} stands where a file belongs", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a file of the user's own.

    Raises:
        OSError: as :func:`open_plain`.
        StudyError: if it has more than ``most`` bytes.
    """
    with open_plain(path) as file:
        return _limited(file, path, most)


def allowed(held: int) -> int:
    """Bytes that a data file of ``held`` bytes may expand to.

    What memory has free, and no more than :data:`EXPANDS` times its own size beyond :data:`FREE`;
    instead of both, what ``SORDINO_READ_LIMIT`` says.

    Raises:
        StudyError: if that is no number.
    """
    if text := os.environ.get(LIMIT):
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise StudyError(
                f"{LIMIT} = {text!r} must be a whole number of bytes, such as {16 * GIB}"
            )
        return int(text)
    return min(max(FREE, EXPANDS * held), _memory())


def too_large(path: Path | str, what: str, size: int, most: int) -> str:
    """Return the message about a file that would not fit."""
    return (
        f"{path}: {what} {size:,} bytes, and at most {most:,} are read. If the file is what it "
        f"should be and memory is large enough, set {LIMIT} to a larger number of bytes"
    )


def refuse_larger(size: int, path: Path, most: int) -> None:
    """Refuse a file of more bytes than its kind has.

    Raises:
        StudyError: if ``size`` is more than ``most``.
    """
    if size > most:
        raise StudyError(
            f"{path}: it has {size:,} bytes, and a file of its kind at most {most:,}. "
            "Restore it from a copy"
        )


def _memory() -> int:
    """Bytes that the system can still give, or has, where it does not say."""
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * KIB
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limited(file: BinaryIO, path: Path, most: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    refuse_larger(size, path, most)
    return file.read(size)  # what is written at its end meanwhile belongs to the next reader


def _opened(folder: Path, names: tuple[str, ...], flags: int) -> int:
    """A handle of a plain file."""
    path = folder.joinpath(*names)
    with _parent(folder, names) as parent:
        try:
            handle = os.open(names[-1], flags | os.O_NOFOLLOW | _CALM, 0o666, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
                _refuse_odd(path, parent)
            raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        _refuse_mode(path, os.fstat(handle).st_mode)
    except StudyError:
        os.close(handle)
        raise
    return handle


@contextmanager
def _parent(folder: Path, names: tuple[str, ...]) -> Iterator[int]:
    """A handle of the folder that the last name stands in."""
    if not names or any(name in ("", ".", "..") or "/" in name for name in names):
        raise ValueError(f"{names} are not names below a folder")
    flags = os.O_RDONLY | os.O_DIRECTORY | _CALM
    held = os.open(folder, flags)
    try:
        for at, name in enumerate(names[:-1], start=1):
            try:
                inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=held)
            except OSError as error:
                place = folder.joinpath(*names[:at])
                if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
                    mode = os.stat(name, dir_fd=held, follow_symlinks=False).st_mode
                    _refuse_mode(place, mode, stat.S_IFDIR)
                raise OSError(error.errno, error.strerror, str(place)) from error
            os.close(held)
            held = inner
        yield held
    finally:
        os.close(held)


def _refuse_odd(path: Path, parent: int) -> None:
    """Refuse anything but a plain file, or nothing, at the last name of a path."""
    try:
        _refuse_mode(path, os.stat(path.name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return


def _refuse_mode(path: Path, mode: int, kind: int = stat.S_IFREG) -> None:
    """Refuse anything but a plain file, or but a folder."""
    if stat.S_IFMT(mode) != kind:
        wanted = "file" if kind == stat.S_IFREG else "folder"
        raise StudyError(f"{path}: {_kind(mode)} stands where a {wanted} belongs. {_REMEDY}")


def _kind(mode: int) -> str:
    words = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
        stat.S_IFREG: "a file",
    }
    return words.get(stat.S_IFMT(mode), "a device")


def trusted(about: os.stat_result) -> bool:
    """Tell whether this belongs to the user, and nobody else can write to it."""
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextmanager
def own_folder(place: Path, *, make: bool) -> Iterator[int]:
    """A handle of a folder, if it can be trusted.

    Args:
        place: the folder.
        make: whether to make it where there is none, and to remove what killed processes left.

    Raises:
        OSError: if it is not there, or others can write to it.
    """
    if make:
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
    with _folder(place) as held:
        if not trusted(os.fstat(held)):
            raise PermissionError(f"{place}: others can write here")
        if make:
            _sweep(held, STALE)
        yield held


@contextmanager
def _folder(place: Path) -> Iterator[int]:
    """A handle of a folder that is no link."""
    held = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield held
    finally:
        os.close(held)


def sweep(place: Path) -> None:
    """Remove what killed processes left half-written in a folder, to which nobody else writes."""
    with suppress(OSError), _folder(place) as held:  # there may be none
        _sweep(held)


def _sweep(held: int, stale: float = 0.0) -> None:
    """Remove from an opened folder what killed processes left half-written ``stale`` seconds ago:
    it may hold raw rows.
    """
    for name in os.listdir(held):
        if name.startswith(".") and name.endswith(PART):
            with suppress(OSError):
                age = time.time() - os.stat(name, dir_fd=held, follow_symlinks=False).st_mtime
                if age >= stale:
                    os.unlink(name, dir_fd=held)


DEEPEST = 64
"""Most levels of nested lists and tables; the deepest that this program writes has about 8."""

_DOTTED = re.compile(r"(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+)" + f"{{{DEEPEST}}}")


_DEEP = f"it is nested more than {DEEPEST} deep, and no more is read"


class Malformed(ValueError):
    """Text that is no JSON or TOML, or beyond the limits; says why."""


def json_of(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        Malformed: if it is none, names a key twice, or is nested deeper than :data:`DEEPEST`.
    """
    try:
        words = text.decode("utf-8") if isinstance(text, bytes) else text
        found = json.loads(words, object_pairs_hook=_each_once)
    except RecursionError as error:
        raise Malformed(_DEEP) from error
    except ValueError as error:
        raise Malformed(str(error)) from error
    if words.count("[") + words.count("{") > DEEPEST:  # as few texts have
        _refuse_deep(found)
    return found


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:  # a reader that takes the first value is told something else
            raise ValueError(f"it names {key[:80]!r} twice")
        found[key] = value
    return found


def object_of(
    content: str | bytes, place: object, kind: type[SordinoError] = StudyError
) -> dict[str, Any]:
    """The object in a JSON document; the error, of ``kind``, names ``place`` otherwise."""
    try:
        found = json_of(content)
    except Malformed as error:
        raise kind(
            f"{place}: is not JSON that can be read ({error}). Restore it from a copy"
        ) from error
    if not isinstance(found, dict):
        raise kind(
            f"{place}: holds {type(found).__name__} where an object belongs. Restore it from a copy"
        )
    return found


def toml_of(text: str) -> dict[str, Any]:
    """The table in a TOML text.

    Raises:
        Malformed: if it is none, or nested deeper than :data:`DEEPEST`.
    """
    if (long := _DOTTED.search(text)) is not None:
        raise Malformed(f"a key of more than {DEEPEST} parts: {long[0][:40]}...")
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise Malformed(_DEEP) from error
    except ValueError as error:  # TOMLDecodeError, and numbers that Python does not convert
        raise Malformed(str(error)) from error
    _refuse_deep(table)
    return table


def _refuse_deep(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise Malformed(_DEEP)
