"""The bytes of a data file, compressed or not, and what to say when they are not all there.

A download that broke off is the commonest fault of a data file, and the reader must not
turn half a file into a smaller data set: the ledger would then bind a budget to data that
nobody has. So every reader states in advance how many bytes it expects, asks this class
for exactly those, and at the end asks for the end. Compression is recognised by the first
bytes, not by the name, and its checksum is verified because the stream is always read to
its end.

Memory: pieces of 64 KiB are expanded as they are asked for, 1 MiB at a time, straight into the
caller's array. A header that announces an absurd size is refused before anything is allocated:
no gzip stream expands more than about 1032 times. What is read whole expands at most to what
:func:`sordino.base.files.allowed` allows: a small file cannot fill the memory.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from sordino.base.errors import DataError
from sordino.base.files import allowed, open_plain, too_large

AGAIN = "The file is damaged or incomplete: get it again"

_PIECE = 1 << 16
_STEP = 1 << 20
_GZIP = b"\x1f\x8b"
_BZIP2 = b"BZh"
_GZIP_EXPANDS = 1_100
_BZIP2_EXPANDS = 25_000


class _Expander(Protocol):
    """One compressed stream, expanded in steps of at most :data:`_STEP` bytes."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def step(self, data: bytes, /) -> bytes: ...

    @property
    def pending(self) -> bool:
        """Whether another step gives more without more data."""
        ...


class _Wrapped:
    """What the standard library's two expanders have alike."""

    _inner: Any

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        rest: bytes = self._inner.unused_data
        return rest


class _Gzip(_Wrapped):
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)
        self._tail = b""
        self.pending = False

    def step(self, data: bytes, /) -> bytes:
        plain: bytes = self._inner.decompress(self._tail + data, _STEP)
        self._tail = self._inner.unconsumed_tail
        # A full step may have left something inside, even where all input is consumed.
        self.pending = not self._inner.eof and (bool(self._tail) or len(plain) == _STEP)
        return plain


class _Bzip2(_Wrapped):
    def __init__(self) -> None:
        self._inner = bz2.BZ2Decompressor()

    @property
    def pending(self) -> bool:
        return not (self._inner.eof or self._inner.needs_input)

    def step(self, data: bytes, /) -> bytes:
        plain: bytes = self._inner.decompress(data, _STEP)
        return plain


class Source:
    """A data file read once, from front to back."""

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        """Look at the file's first bytes.

        Args:
            whole: whether its content is to be held in memory, and hence must not expand without
                limit.
        """
        self.path = path
        self.expands = 1
        self._most = self._allowed() if whole else None
        self._given = 0
        self._pieces = self._open()
        self._rest = b""
        self._at = 0

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
        out = bytearray(size)
        filled = self._into(memoryview(out))
        return bytes(out[:filled])

    def exactly(self, size: int, what: str) -> bytes:
        """``size`` bytes of ``what``, or a DataError that counts what was found."""
        found = self.read(size)
        if len(found) < size:
            raise self.damaged(
                f"expected {size} bytes of {what}", f"the file ends after {len(found)} of them"
            )
        return found

    def fill(self, out: memoryview, what: str) -> None:
        """Fill ``out`` (bytes) with ``what``, or say how many bytes were found."""
        filled = self._into(out)
        if filled < len(out):
            raise self.damaged(
                f"expected {len(out)} bytes of {what}", f"the file ends after {filled} of them"
            )

    def end(self, what: str) -> None:
        """Insist that nothing follows ``what``; also verifies the checksum of a compressed file."""
        if self.read(1):
            raise self.damaged(f"expected the end of the file after {what}", "more bytes follow")

    def drain(self) -> None:
        """Read to the end, so that a compressed file's own checksum is verified."""
        while self.read(_PIECE):
            pass

    def whole(self) -> bytes:
        """Everything that is left, if it is not too much."""
        if self._most is None:
            self._most = self._allowed()
        return b"".join([self._rest[self._at :], *self._pieces])

    def check_room(self, size: int, what: str) -> None:
        """Refuse a header that announces more than the file can possibly hold."""
        held = self.path.stat().st_size
        if size > held * self.expands:
            raise self.damaged(
                f"expected {size} bytes of {what}, as the header says",
                f"the file has only {held} bytes",
            )

    def damaged(self, expected: str, found: str) -> DataError:
        """The one form in which a damaged file is reported."""
        return DataError(f"{self.path}: {expected}, but {found}. {AGAIN}")

    def _into(self, out: memoryview) -> int:
        filled = 0
        while filled < len(out):
            if self._at == len(self._rest):
                self._rest, self._at = next(self._pieces, b""), 0
                if not self._rest:
                    break
            take = min(len(out) - filled, len(self._rest) - self._at)
            out[filled : filled + take] = self._rest[self._at : self._at + take]
            filled += take
            self._at += take
        return filled

    def _allowed(self) -> int:
        try:
            return allowed(self.path.stat().st_size)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _count(self, more: int) -> None:
        self._given += more
        if self._most is not None and self._given > self._most:
            raise DataError(
                too_large(self.path, "it expands to more than", self._given - more, self._most)
            )

    def _open(self) -> Iterator[bytes]:
        # Not a generator itself: the file's kind must be known before the first read.
        try:
            with open_plain(self.path) as file:
                head = file.read(4)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
        if head.startswith(_GZIP):
            self.expands = _GZIP_EXPANDS
            return self._expanded(_Gzip, "gzip")
        if head.startswith(_BZIP2):
            self.expands = _BZIP2_EXPANDS
            return self._expanded(_Bzip2, "bzip2")
        return self._stored()

    def _stored(self) -> Iterator[bytes]:
        try:
            with open_plain(self.path) as file:
                while piece := file.read(_PIECE):
                    yield piece
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _expanded(self, fresh: Callable[[], _Expander], kind: str) -> Iterator[bytes]:
        engine = fresh()
        for piece in self._stored():
            block = piece
            while block or engine.pending:
                if engine.eof:  # compressed files may be concatenated
                    engine = fresh()
                try:
                    plain = engine.step(block)
                except (zlib.error, OSError, EOFError, ValueError) as error:
                    raise self.damaged(
                        f"expected a {kind} stream", f"expanding it failed ({error})"
                    ) from error
                if plain:  # an empty piece would read as the end
                    self._count(len(plain))
                    yield plain
                block = engine.unused_data if engine.eof else b""
        if not engine.eof:
            raise self.damaged(
                f"expected a complete {kind} stream", "it breaks off before its end mark"
            )
