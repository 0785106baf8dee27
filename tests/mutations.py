"""Messages that were made from valid ones, for tests: bytes changed, cut, added or spliced, and
values put in the place of others.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 3, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, float("nan"),
    float("inf"), "", "x" * 3000, "\x1b[2J", b"", b"\x00" * 84, b"\xff" * 84, [], [[]] * 9, {},
    {"kind": "say"},
)  # fmt: skip
EXECUTES = {
    "exec", "compile", "pickle.find_class", "subprocess.Popen", "os.system", "os.exec",
    "os.posix_spawn", "os.fork", "marshal.loads", "socket.connect", "ctypes.dlopen",
}  # fmt: skip
_watching: list[str] | None = None


def _hook(event: str, given: Any) -> None:
    own = event == "ctypes.dlopen" and given == (None,)  # this process itself: loads no library
    if _watching is not None and event in EXECUTES and not own:
        _watching.append(f"{event} {given!r:.200}")


sys.addaudithook(_hook)


@contextmanager
def nothing_executed() -> Iterator[None]:
    """Nothing is compiled, executed, unpickled, started or connected to meanwhile.

    Raises:
        AssertionError: naming what was.
    """
    global _watching
    found: list[str] = []
    _watching = found
    try:
        yield
    finally:
        _watching = None
    assert not found, found


def memory() -> int:
    """Bytes that this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def mutated(valid: Sequence[bytes], dice: random.Random) -> bytes:
    """One frame that was made from these."""
    frame = dice.choice(valid)
    for _ in range(dice.randint(1, 3)):
        frame = dice.choice(WAYS)(frame, valid, dice)
    return frame


def _changed(frame: bytes, valid: Sequence[bytes], dice: random.Random) -> bytes:
    found = bytearray(frame or b"\x00")
    for _ in range(dice.randint(1, 4)):
        found[dice.randrange(len(found))] = dice.randrange(256)
    return bytes(found)


def _cut(frame: bytes, valid: Sequence[bytes], dice: random.Random) -> bytes:
    return frame[: dice.randrange(len(frame) + 1)]


def _added(frame: bytes, valid: Sequence[bytes], dice: random.Random) -> bytes:
    place = dice.randrange(len(frame) + 1)
    return frame[:place] + dice.randbytes(dice.randint(1, 64)) + frame[place:]


def _spliced(frame: bytes, valid: Sequence[bytes], dice: random.Random) -> bytes:
    other = dice.choice(valid)
    return frame[: dice.randrange(len(frame) + 1)] + other[dice.randrange(len(other) + 1) :]


def _other_values(frame: bytes, valid: Sequence[bytes], dice: random.Random) -> bytes:
    """Other values in a map, or in the map that is packed in it."""
    try:
        told = msgspec.msgpack.decode(frame)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return frame
    if not isinstance(told, dict) or not told:
        return frame
    key = dice.choice(sorted(told, key=str))
    if key == "body" and isinstance(told[key], bytes) and dice.random() < 0.8:
        told[key] = _other_values(told[key], valid, dice)
    elif dice.random() < 0.1:
        told["more"] = dice.choice(ODD)
    else:
        told[key] = dice.choice(ODD)
    return msgspec.msgpack.encode(told)


WAYS = (_changed, _cut, _added, _spliced, _other_values, _other_values, _other_values)
