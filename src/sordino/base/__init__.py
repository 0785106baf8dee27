"""The parts below all others; where this program lies, its version, and the packages beside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

HOME = Path(__file__).parents[1]
VERSION = "0.1.0"
NUMERICS = 6
"""Raised with each change of what a study computes, to the last bit: a run goes on, and noise is
drawn again, under one number alone.
"""
PROTOCOL = 1
"""Raised with each change of frames that an older site or server cannot read."""
GROUPS = ("sordino.attacks", "sordino.commands", "sordino.transports")


@cache  # looks into every package that is installed, and a run asks several times
def companions(*groups: str) -> tuple[EntryPoint, ...]:
    """Return what installed packages add by entry points of these groups, or of all."""
    from importlib.metadata import entry_points

    return tuple(each for group in groups or GROUPS for each in entry_points(group=group))


@cache
def companions_here() -> dict[str, str]:
    """The versions of these packages, by name."""
    found = {each.dist for each in companions() if each.dist is not None}
    return {each.name: each.version for each in sorted(found, key=lambda each: each.name)}
