"""Machine code on the user's disk.

It is what this program runs, so it is read only where nobody else can have written it: folder and
file must belong to the user and be writable by nobody else, and neither may be a link. A file that
is damaged, or made for another machine, is not used. Where nothing can be written, code is made
anew in each process.

``SORDINO_COMPILED`` names another folder; empty, nothing is kept.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from sordino.files import cache_folder
from sordino.native import image, meaning, processor
from sordino.native.image import Image
from sordino.owned import PART, is_own, own_folder

FOLDER = "SORDINO_COMPILED"
"""The environment variable that names the folder."""
FORMAT = b"sordino code 1\n"
MOST = 64 << 20
"""Bytes of a file that is read."""
_SUM = hashlib.sha256().digest_size


def folder() -> Path | None:
    """Where code is kept; None if nowhere."""
    own = os.environ.get(FOLDER)
    if own is None:
        return cache_folder() / "compiled"
    try:
        return Path(own).expanduser() if own else None
    except RuntimeError:  # nobody's home
        return None


@cache
def _compilers() -> str:
    """A digest of the modules that turn a function into an image."""
    here = Path(__file__).parent
    return "".join(
        meaning.of_source(str(here / f"{name}.py")) for name in ("build", "entry", "image")
    )


def key(own: str, kinds: Sequence[str]) -> str:
    """The name under which code is kept, from a function's digest and the types of arguments."""
    described = repr((own, tuple(kinds), _compilers(), processor.described()))
    return hashlib.sha256(described.encode()).hexdigest()[:40]


def find(name: str) -> Callable[..., Any] | None:
    """The function that is kept under this name; None if there is none that can be trusted."""
    with suppress(OSError, msgspec.MsgspecError, ValueError):
        raw = _read(name)
        if raw is not None:
            return ready(msgspec.msgpack.decode(raw, type=Image))
    return None


def ready(made: Image) -> Callable[..., Any] | None:
    """A function in memory; None where that cannot be."""
    if not image.laid_out():
        return None
    try:
        return image.loaded(made)
    except OSError:
        return None


def keep(name: str, made: Image) -> None:
    """Keep code under this name, if there is a place; a half-written file never has the name."""
    body = msgspec.msgpack.encode(made)
    part = f"{name}.{secrets.token_hex(8)}{PART}"
    with suppress(OSError), _opened(make=True) as place:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(part, flags, 0o600, dir_fd=place), "wb") as file:
                file.write(FORMAT + _sum(name, body) + body)
            os.rename(part, name, src_dir_fd=place, dst_dir_fd=place)
        except OSError:
            with suppress(OSError):
                os.unlink(part, dir_fd=place)


def _read(name: str) -> bytes | None:
    with _opened(make=False) as place:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=place), "rb") as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode) or not is_own(seen) or seen.st_size > MOST:
                return None
            raw = file.read(MOST)
    start = len(FORMAT) + _SUM
    whole = raw[:start] == FORMAT + _sum(name, raw[start:])
    return raw[start:] if whole else None


def _sum(name: str, body: bytes) -> bytes:
    """Under another name the same bytes are another machine's, or another function's."""
    return hashlib.sha256(name.encode() + body).digest()


@contextmanager
def _opened(*, make: bool) -> Iterator[int]:
    """The folder, if it can be trusted.

    Raises:
        OSError: if it is not there, or others can write to it.
    """
    place = folder()
    if place is None:
        raise FileNotFoundError("no code is kept")
    with own_folder(place, make=make) as held:
        yield held
