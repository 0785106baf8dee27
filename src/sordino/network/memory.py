"""Memory that a process needs no more, handed back to the operating system."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def give_back() -> None:
    """Hand back what the C library keeps for later, where it is one that can be asked to (glibc).

    What starts a site (reading its kit and study, building its objects) needs tens of megabytes
    for a moment; without this they stay with the process for as long as it waits for rounds.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library, as musl
        return None
