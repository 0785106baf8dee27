"""Fingerprints of data: plain digests of published rows, keyed ones of all others.

**The problem.** A digest of private rows tells guesses apart: who knows all rows but one computes
the digest for each guess of the last, and the one that is equal is right. No noise stands before
it. So nothing that is written or sent holds a digest of private rows, nor a number that follows
from one without a key.

**Therefore** what stands in a run folder, a kit or a proof is HMAC-SHA-256 of the digest under a
secret key of the user's, and of the run's name, so that two runs over the same rows do not show it
either. The key is one file of 32 bytes, which only its owner may read. It is made on first use at
``~/.local/state/sordino/data.key`` (below ``XDG_STATE_HOME`` where that is set), or where
``SORDINO_DATA_KEY`` says. It lies in no folder of a run, because run folders are shown to others.
Who resumes a run on another machine takes the key along; nobody else needs it.

Inside a process plain digests are good: the seed of simulated noise is made from them. Data sets
that this program publishes by name have plain digests everywhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sordino.base.errors import ResumeError, StudyError
from sordino.base.files import fresh_below, publish, read_plain

PLACE = "SORDINO_DATA_KEY"
"""The environment variable that says where the key is."""
KEYED = "hmac-sha256:"
"""The beginning of keyed fingerprints; then come a name of the key and the digest."""
SIZE = 32
"""Bytes of a key."""


def place() -> Path:
    """The file of the user's key.

    Raises:
        StudyError: if no place for it is known.
    """
    if named := os.environ.get(PLACE):
        return Path(named).expanduser()
    base = os.environ.get("XDG_STATE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "sordino" / "data.key"
    try:
        return Path.home() / ".local" / "state" / "sordino" / "data.key"
    except RuntimeError:
        raise StudyError(
            f"this user has no home folder for the key of fingerprints: say with {PLACE} which "
            "file it is, outside of run folders"
        ) from None


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprints(Sequence[str]):
    """SHA-256 of each of many things (hex), which is kept in 32 bytes; then some others.

    >>> list(Fingerprints(bytes(SIZE), ("site:a",))) == ["00" * SIZE, "site:a"]
    True
    """

    digests: bytes
    others: tuple[str, ...] = ()

    def and_others(self, *more: str) -> Fingerprints:
        """Return these, and then some more."""
        return Fingerprints(self.digests, (*self.others, *more))

    def __len__(self) -> int:
        return len(self.digests) // SIZE + len(self.others)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        number, many = range(len(self))[at], len(self.digests) // SIZE
        if number >= many:
            return self.others[number - many]
        return self.digests[number * SIZE : (number + 1) * SIZE].hex()

    def __iter__(self) -> Iterator[str]:
        for some in self._texts():
            yield from (some[at : at + 2 * SIZE] for at in range(0, len(some), 2 * SIZE))
        yield from self.others

    def joined(self) -> str:
        """SHA-256 (hex) of all of them, one after another without their lengths."""
        found = hashlib.sha256()
        for some in (*self._texts(), *self.others):
            found.update(some.encode())
        return found.hexdigest()

    def _texts(self) -> Iterator[str]:
        for start in range(0, len(self.digests), SIZE << 12):
            yield self.digests[start : start + (SIZE << 12)].hex()


def joined(parts: Iterable[str]) -> str:
    """A digest of texts; the length of each is part of it."""
    found, texts = hashlib.sha256(), map(str.encode, parts)
    while some := list(islice(texts, 1 << 12)):
        found.update(b"".join([b"%d:%b" % (len(text), text) for text in some]))
    return found.hexdigest()


def keyed(fingerprint: str) -> str:
    """A fingerprint of private data as it may be written and sent; see :func:`keying`."""
    return keying()(fingerprint)


def keying(run: str = "", *, make: bool = True) -> Callable[[str], str]:
    """Return what turns plain digests of private data into fingerprints that may be written.

    Args:
        run: the run that they are for; the same rows look different in every run.
        make: whether to make the key where there is none.

    Raises:
        ResumeError: if there is no key, and none is to be made.
        StudyError: if the key cannot be read or made.
    """
    key = user_key(make=make)
    begins = f"{KEYED}{_of(key, 'sordino name of the key').hex()[:8]}:"
    purpose = f"sordino fingerprint\n{run}\n"
    return lambda plain: begins + _of(key, purpose + plain).hex()


def record_key(run: str, *, make: bool = True) -> bytes:
    """The key of the records in a run's own ledger, which lies in the run folder without it."""
    return _of(user_key(make=make), f"sordino records\n{run}")[:16]


def refuse_other_data(path: Path, who: str, before: str, now: str) -> None:
    """Hold one fingerprint against another.

    Raises:
        ResumeError: if they are of other data, or made with other keys.
    """
    if before == now:
        return
    both = before.startswith(KEYED) and now.startswith(KEYED)
    names = {each.removeprefix(KEYED).partition(":")[0] for each in (before, now)}
    if both and len(names) == 2:  # with two keys they tell nothing of data
        raise ResumeError(
            f"{path}: the fingerprint of {who} was made with another key than {place()}, so nobody "
            "can tell whether the data is what the run began with. Copy the key from where the run "
            f"began, or say with {PLACE} where it is"
        )
    raise ResumeError(
        f"{path}: the data of {who} is not what the run began with: its fingerprint differs, which "
        "knows the order of rows and columns, the model's first weights and operations, what a "
        "front end gives, and what tables of your own do with made-up numbers, too. Put back what "
        "changed, or begin a new run; seed what your code draws"
    )


def user_key(*, make: bool = True) -> bytes:
    """The key of the user's fingerprints.

    Raises:
        ResumeError: if there is none, and none is to be made.
        StudyError: if it cannot be read or made.
    """
    path = place()
    if not make and not path.exists():
        raise ResumeError(
            f"{path}: the key of fingerprints is missing, without which nobody can tell whether "
            "the data is what the run began with. Copy it from the machine where the run began, or "
            f"say with {PLACE} where it is"
        )
    try:
        return secret_file(path)
    except OSError as error:
        raise StudyError(
            f"{path}: the key of fingerprints cannot be read or made ({error.strerror}). Say with "
            f"{PLACE} which file it is, outside of run folders"
        ) from error


def key_seen_by_others() -> str | None:
    """A warning if others than the owner may read the user's key, or write it."""
    path = place()
    if not path.exists() or not path.stat().st_mode & 0o077:
        return None
    return (
        f"warning: {path}: other users of this machine have rights on the key of fingerprints, "
        "with which they can test guesses of private rows in every run folder. Take the rights "
        f"away: chmod go= {path}"
    )


def secret_file(path: Path) -> bytes:
    """The secret bytes in a file that only its owner may read, made where there is none.

    Raises:
        OSError: if it cannot be read or made.
        StudyError: if it holds something else.
    """
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{secrets.token_hex(8)}.key")
        try:
            with fresh_below(path.parent, draft.name, mode=0o600) as file:
                file.write(secrets.token_bytes(SIZE))
            with suppress(FileExistsError):  # another process was faster
                publish(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    found = read_plain(path, 1 << 10)
    if len(found) != SIZE:
        raise StudyError(f"{path}: this is no secret key of {SIZE} bytes. Restore it from a copy")
    return found


def _of(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
