"""Proof of how far a server has gone, kept by its sites: one whose run folder was put back from an
older copy does not know it, and would release rounds again.

With each task and each booking the server sends a seal, HMAC-SHA-256 under a key that it alone has.
A site shows the last ones when it greets. So it proves what it was asked, and no site can say that
without having been asked.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from sordino.base.errors import ResumeError
from sordino.base.files import KIB, read_below, there
from sordino.core.files import replace_file
from sordino.network.frames import Hello

NAME, SIZE = "seals.key", 32
_BYTES = 16

Kind = Literal["task", "round"]


class Progress(NamedTuple):
    """The last task of a site that a server knows of, and the last round that is booked."""

    task: int
    round: int


class ProgressTokens:
    """A server's tokens.

    Args:
        key: secret, of the run.
        run: identifier of the run.
    """

    def __init__(self, key: bytes, run: str) -> None:
        self._key, self._run = key, run

    def of(self, kind: Kind, site: str, number: int) -> bytes:
        """Return the token that a site was asked this task, or to book this round (16 bytes)."""
        said = f"{self._run}\n{kind}\n{site}\n{number}".encode()
        return hmac.digest(self._key, said, "sha256")[:_BYTES]

    def prove_later(
        self, site: str, known: Progress, said: Hello, bridged: Callable[[], bool]
    ) -> bool:
        """Return whether a site proves by its greeting that this server has asked it a later task
        than its run folder leads to (``known``), and the run can go on after that task
        (``bridged``).

        Raises:
            ResumeError: if it proves that, and the run cannot go on.
        """
        kinds: tuple[tuple[Kind, tuple[int, bytes], int], ...] = (
            ("round", said.round, known.round),
            ("task", said.task, known.task),
        )
        for kind, (number, shown), led in kinds:
            if number <= led or not self.hold(kind, site, number, shown):
                continue
            if kind == "task" and bridged():
                return True
            raise ResumeError(
                f"site {site} proves that this server has asked it for {kind} {number}, and the "
                f"run folder leads to {kind} {led} only: it is an older copy, or a power failure "
                "has taken a part of its journal (`serve --durable` prevents that). Going on would "
                "release again what was released. Put back the newest copy of the run folder, or "
                "begin a new run"
            )
        return False

    def hold(self, kind: Kind, site: str, number: int, seal: bytes) -> bool:
        """Return whether this token is right."""
        return number > 0 and hmac.compare_digest(self.of(kind, site, number), seal)


def token(tokens: ProgressTokens | None, kind: Kind, site: str, number: int) -> bytes:
    """Return the token, where there are any."""
    return b"" if tokens is None else tokens.of(kind, site, number)


def kept(folder: Path, run: str) -> ProgressTokens:
    """Return the tokens of a run folder; its key is made when it first is served, and only its
    owner reads it.

    Raises:
        ResumeError: if the key cannot be read.
    """
    if not there(folder, NAME):
        replace_file(folder / NAME, secrets.token_bytes(SIZE))
        (folder / NAME).chmod(0o600)
    key = read_below(folder, NAME, most=KIB)
    if len(key) != SIZE:
        raise ResumeError(f"{folder / NAME}: this is no key of seals. Restore it from a copy")
    return ProgressTokens(key, run)
