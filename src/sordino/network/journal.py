"""The journal: everything that reached the server, written down before it is acted on.

A server that was killed reads its checkpoint, steps through the journal again, and stands where it
stood. A record is a header (length and CRC-32, 4 bytes each, the lowest first) and an
:class:`Input` in MessagePack. A last record that was torn by the kill is cut off: nobody has acted
on it. When a checkpoint was saved, the journal begins anew; a long one asks for a checkpoint.

Where whole clients are protected, the journal holds their updates without noise, as the server's
memory does: it is readable by its owner alone, and removed when the run is over.

Inputs are numbered from 1 over the whole run, and a checkpoint counts those that it holds. So a
kill between checkpoint and cut does no harm: what the checkpoint holds already is skipped.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from sordino.base.errors import ResumeError
from sordino.base.files import MIB, append_below, open_below, there
from sordino.core.files import replace_file

NAME = "journal.bin"
MOST_INPUTS, MOST_BYTES = 5_000, 256 * MIB
"""A journal that holds more is to begin anew: a server steps through all of it when it is started
again.
"""
_HEADER = struct.Struct("<II")
_MOST = 1 << 30


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Something that reached the server.

    Attributes:
        seq: its number, from 1.
        time: seconds since the run began.
        kind: a message of a site; its step in a secure sum, empty where it takes part in it no
            more; a site that has come, or is gone; one that was there when the
            journal began anew; one that has booked a round; one that refused a task; an alarm; that
            too few sites are left; that tasks were forgotten.
        site: which, from 0; 0 for an alarm and the end.
        body: the message, the alarm's tag, or the reason (UTF-8); empty otherwise.
        number: of the round or the task; 0 otherwise.
    """

    seq: int
    time: float
    kind: Literal[
        "message", "step", "up", "down", "there", "booked", "refused", "woke", "stop", "ahead"
    ]
    site: int
    body: bytes = b""
    number: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Input)


def _packed(each: Input) -> bytes:
    body = _encoder.encode(each)
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def there_after(inputs: Sequence[Input]) -> set[int]:
    """Return the sites that are there after these inputs."""
    found: set[int] = set()
    for each in inputs:
        if each.kind in ("up", "there"):
            found.add(each.site)
        elif each.kind in ("down", "refused"):
            found.discard(each.site)
    return found


class Journal:
    """The journal of a run folder.

    Args:
        durable: whether each input waits for the disk, so that it also outlives a power failure. A
            killed process loses none in either case.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.folder, self.durable = folder, durable
        self._intact = 0
        self._before = list(self._read())
        self._file = append_below(folder, NAME)
        os.fchmod(self._file.fileno(), 0o600)
        self._file.truncate(self._intact)
        self._count, self._bytes = len(self._before), self._intact

    @property
    def large(self) -> bool:
        """True where a checkpoint is due, so that it can begin anew."""
        return self._count >= MOST_INPUTS or self._bytes >= MOST_BYTES

    def before(self, count: int) -> list[Input]:
        """The inputs up to number ``count`` that are still there: a kill came before the cut."""
        return [each for each in self._before if each.seq <= count]

    def after(self, count: int) -> list[Input]:
        """The inputs that came after the first ``count``, in order.

        Raises:
            ResumeError: if one is missing between.
        """
        found = [each for each in self._before if each.seq > count]
        for expected, each in enumerate(found, start=count + 1):
            if each.seq != expected:
                raise ResumeError(
                    f"{self.folder / NAME}: input {expected} is missing (found {each.seq}). "
                    "Restore the run folder from a copy"
                )
        return found

    def refuse_older(self, booked: int, number: int) -> NoReturn:
        """Refuse to go on: the ledger knows of a round that the journal does not lead to. A server
        that adds the noise numbers it by rounds: one that was released must not be released again
        with other answers in it.

        Raises:
            ResumeError: saying so.
        """
        raise ResumeError(
            f"{self.folder}: its ledger knows of round {booked}, and its journal leads to round "
            f"{number}: it is older, or a part of it is missing. What was released since would be "
            "released again with the same noise. Put back the journal that belongs to the ledger, "
            "or begin a new run"
        )

    def append(self, each: Input) -> None:
        """Write an input down."""
        packed = _packed(each)
        self._file.write(packed)
        self._file.flush()
        self._count, self._bytes = self._count + 1, self._bytes + len(packed)
        if self.durable:
            os.fdatasync(self._file.fileno())

    def cut(self, first: Sequence[Input]) -> None:
        """Begin anew with these inputs: a checkpoint holds everything before."""
        self._before = []
        self._file.close()
        packed = [_packed(each) for each in first]
        replace_file(self.folder / NAME, *packed)
        self._count, self._bytes = len(packed), sum(map(len, packed))
        self._file = append_below(self.folder, NAME)
        os.fchmod(self._file.fileno(), 0o600)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def destroy(self) -> None:
        """Close and remove the file: the run is over."""
        self._file.close()
        (self.folder / NAME).unlink(missing_ok=True)

    def _read(self) -> Iterator[Input]:
        if not there(self.folder, NAME):
            return
        with open_below(self.folder, NAME) as file:
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                length, check = _HEADER.unpack(header)
                body = file.read(length) if length < _MOST else b""
                # a file system may leave zeros where a power failure lost what was written
                if not length or len(body) < length or zlib.crc32(body) != check:
                    return
                try:
                    found = _decoder.decode(body)
                except msgspec.MsgspecError as error:
                    raise ResumeError(
                        f"{self.folder / NAME}: an input cannot be read ({error}). Restore the run "
                        "folder from a copy"
                    ) from error
                self._intact = file.tell()
                yield found
