"""How far a site may have answered, on its disk before it answers: for sites whose noise is
numbered by events.

To wait for the disk at every event would let it set the pace. So a site notes, once for many tasks,
a number that it will not pass without another note, and waits for the disk then. A process that is
killed loses nothing: the system has what it wrote. A machine that fails may lose what a site wrote
last. What it may have answered and has forgotten is not answered again: on another model it would
be another release, with other noise (:func:`sordino.base.entropy.over`), under the same charge.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from sordino.base.errors import ResumeError
from sordino.base.files import KIB, read_below
from sordino.core.files import replace_file

NAME, STEP = "ahead.json", 256
"""The file, and tasks between two notes."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Noted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No task above ``number`` was answered before the system with this ``boot`` ended."""

    number: int = 0
    boot: str = ""


def _boot() -> str:
    """Which start of the system this is; empty where that is not told."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


class Ahead:
    """The note in a site's folder.

    Attributes:
        lost: tasks up to this number may have been answered and forgotten; 0 where nothing is.

    Raises:
        ResumeError: if the note cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._boot = folder, _boot()
        try:
            found = msgspec.json.decode(read_below(folder, NAME, most=KIB), type=_Noted)
        except FileNotFoundError:
            found = _Noted()
        except msgspec.MsgspecError as error:
            raise ResumeError(
                f"{folder / NAME}: cannot be read ({error}). Restore the folder from a copy"
            ) from error
        self._number = found.number
        self.lost = 0 if self._boot and found.boot == self._boot else found.number

    def reach(self, number: int) -> None:
        """Call before a task with this number is answered."""
        if number > self._number:
            self._number = number + STEP
            noted = _Noted(self._number, self._boot)
            replace_file(self._folder / NAME, msgspec.json.encode(noted))
