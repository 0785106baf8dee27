"""A site's last task and its answer, on its own disk: an answer is kept before it is sent.

A site books a task, computes, keeps the answer, and then sends it. Asked the same again, it says
the same bytes again; asked for something else under the same number or an earlier one, it refuses:
two answers under one charge, and under the same noise, would tell what the noise hides.

Two slots are written in turn, each with a counter and a CRC-32: a kill tears one of them at the
most, and the other one holds what stood before. A slot that says what was *taken* is written before
the answer is computed, one with the *answer* before it is sent.

An answer may be without noise, where others protect it: only its owner can read a slot, and when
the run is over no answer is left.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path

import msgspec

from sordino.base.errors import ResumeError
from sordino.base.files import KIB, append_below, open_below, read_below, there
from sordino.core.files import replace_file

NAMES = ("outbox.0", "outbox.1")
_HEADER = struct.Struct("<QII")
_MOST = 1 << 30
NOTE, STEP = "ahead.json", 256
"""The file, and tasks between two notes."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Kept(msgspec.Struct, frozen=True):
    """A site's knowledge of its last task. A field of an older version, such as the secrets of a
    secure sum (``sum``) or a digest of all answers (``chain``), is passed over.

    Attributes:
        run: the federation's run; empty before the first welcome.
        number: of the task; 0 before the first.
        task: SHA-256 (hex) of the task's bytes.
        answer: the answer's bytes; None while it is not computed.
        sent: how many answers there were, this one included; None where that is a secret.
        booked: the last round that was charged to everybody.
        asked, due: a task that was asked and a round that was to be booked, the last ones kept,
             with the server's seals.
        begun: round of the last secure sum that it has sent keys for. Its secrets are in memory
            alone (:mod:`~sordino.network.secure_client`).
    """

    run: str = ""
    number: int = 0
    task: str = ""
    answer: bytes | None = None
    sent: int | None = 0
    booked: int = 0
    asked: tuple[int, bytes] = (0, b"")
    due: tuple[int, bytes] = (0, b"")
    begun: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


def digest(data: bytes) -> str:
    """SHA-256 (hex)."""
    return hashlib.sha256(data).hexdigest()


class AnswerStore:
    """The two slots of a site's folder.

    Args:
        durable: whether each slot waits for the disk, so that it also outlives a power failure.
            Without, an answer that was forgotten is booked again when it is computed again: its
            noise is drawn anew. Where noise is numbered, see :class:`ReplayGuard`.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._durable = durable
        found = [
            (count, kept)
            for name in NAMES
            if (told := _read(folder, name))
            for count, kept in [told]
        ]
        if not found and any(there(folder, name) for name in NAMES):
            written = [name for name in NAMES if (folder / name).stat().st_size]
            if written and written != [NAMES[1]]:  # that slot alone: the very first was torn
                raise ResumeError(
                    f"{folder / written[0]}: what this site said last cannot be read. Restore the "
                    "folder from a copy"
                )
        self._count, self.kept = max(found, key=lambda each: each[0], default=(0, Kept()))
        self._files = [append_below(folder, name) for name in NAMES]
        # positioned writes: a file that is open for appending would put them at its end
        self._handles = [
            os.open(folder / name, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)) for name in NAMES
        ]
        for handle in self._handles:
            os.fchmod(handle, 0o600)
        self._sizes = [os.fstat(handle).st_size for handle in self._handles]

    def keep(self, kept: Kept) -> None:
        """Keep this beside what stood before."""
        body = _encoder.encode(kept)
        self._count += 1
        check = zlib.crc32(self._count.to_bytes(8, "little"), zlib.crc32(body))
        whole = _HEADER.pack(self._count, len(body), check) + body
        slot = self._count % 2
        handle = self._handles[slot]
        os.pwrite(handle, whole, 0)
        if len(whole) < self._sizes[slot]:
            os.ftruncate(handle, len(whole))  # of a longer one, nothing stays
        self._sizes[slot] = len(whole)
        if self._durable:
            os.fdatasync(handle)
        self.kept = kept

    def hold(self, kept: Kept) -> None:
        """Have this stand in memory: a journal tells what came since the last :meth:`keep`."""
        self.kept = kept

    def end(self, *, secret: bool = False) -> None:
        """The run is over: no answer is asked for again, and none is left on the disk; nor, where
        it is a ``secret`` who takes part, which task was the last one, or how often was written.
        """
        own = msgspec.structs.replace(self.kept, answer=None)
        if secret:  # a task of any booked round is past now
            number = max(own.number, own.booked)
            own = msgspec.structs.replace(own, number=number, task="", asked=(0, b""), sent=None)
            self._count = 0
        for _ in NAMES:
            self.keep(own)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        for handle in self._handles:
            os.close(handle)
        self._files, self._handles = [], []


def _read(folder: Path, name: str) -> tuple[int, Kept] | None:
    """Counter and content of a slot; None if it was torn or never written."""
    if not there(folder, name):
        return None
    with open_below(folder, name) as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            return None
        count, length, check = _HEADER.unpack(head)
        body = file.read(length) if length < _MOST else b""
    if len(body) < length or zlib.crc32(body + count.to_bytes(8, "little")) != check:
        return None
    try:
        return count, _decoder.decode(body)
    except msgspec.MsgspecError:
        return None


class _Noted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No task above ``number`` was answered before the system with this ``boot`` ended."""

    number: int = 0
    boot: str = ""


def _boot() -> str:
    """Return an identifier of this start of the system; empty where that is not told."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


class ReplayGuard:
    """The note in a site's folder.

    Attributes:
        lost: tasks up to this number may have been answered and forgotten; 0 where nothing is.

    Raises:
        ResumeError: if the note cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._boot = folder, _boot()
        try:
            found = msgspec.json.decode(read_below(folder, NOTE, most=KIB), type=_Noted)
        except FileNotFoundError:
            found = _Noted()
        except msgspec.MsgspecError as error:
            raise ResumeError(
                f"{folder / NOTE}: cannot be read ({error}). Restore the folder from a copy"
            ) from error
        self._number = found.number
        self.lost = 0 if self._boot and found.boot == self._boot else found.number

    def reach(self, number: int) -> None:
        """Call before a task with this number is answered."""
        if number > self._number:
            self._number = number + STEP
            noted = _Noted(self._number, self._boot)
            replace_file(self._folder / NOTE, msgspec.json.encode(noted))
