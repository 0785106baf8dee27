"""Proof of how far a server has gone, kept by its sites: one whose run folder was put back from an
older copy does not know it, and would release rounds again.

With each task and each booking the server sends a seal, HMAC-SHA-256 under a key that it alone has.
A site shows the last ones when it greets. So it proves what it was asked, and no site can say that
without having been asked.
"""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path
from typing import Literal, NamedTuple

from sordino.base.errors import ResumeError
from sordino.base.files import KIB, read_below, there
from sordino.core.files import replace_file

NAME, SIZE = "seals.key", 32
_BYTES = 16

Kind = Literal["task", "round"]


class Far(NamedTuple):
    """How far a server has gone with a site: the last task, and the last round that is booked."""

    task: int
    round: int


class Seals:
    """The server's seals.

    Args:
        key: secret, of the run.
        run: identifier of the run.
    """

    def __init__(self, key: bytes, run: str) -> None:
        self._key, self._run = key, run

    def of(self, kind: Kind, site: str, number: int) -> bytes:
        """The seal that a site was asked this task, or to book this round (16 bytes)."""
        said = f"{self._run}\n{kind}\n{site}\n{number}".encode()
        return hmac.digest(self._key, said, "sha256")[:_BYTES]

    def hold(self, kind: Kind, site: str, number: int, seal: bytes) -> bool:
        """Whether this seal is right."""
        return number > 0 and hmac.compare_digest(self.of(kind, site, number), seal)


def seal(seals: Seals | None, kind: Kind, site: str, number: int) -> bytes:
    """The seal, where there are any."""
    return b"" if seals is None else seals.of(kind, site, number)


def kept(folder: Path, run: str) -> Seals:
    """The seals of a run folder; its key is made when it first is served, and only its owner reads
    it.

    Raises:
        ResumeError: if the key cannot be read.
    """
    if not there(folder, NAME):
        replace_file(folder / NAME, secrets.token_bytes(SIZE))
        (folder / NAME).chmod(0o600)
    key = read_below(folder, NAME, most=KIB)
    if len(key) != SIZE:
        raise ResumeError(f"{folder / NAME}: this is no key of seals. Restore it from a copy")
    return Seals(key, run)
