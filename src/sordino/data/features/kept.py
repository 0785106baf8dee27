"""Features in the user's cache: of published data sets, and what made-up pictures gave."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

import numpy as np

from sordino.base.files import cache_folder
from sordino.base.owned import PART, is_own_file, own_folder
from sordino.data.features.front import Examples

VERSION = 5
"""Of the program's own front ends: a new one for other features."""

_SUM = 32


def place_of(what: str) -> Path:
    """Where bytes are kept that are determined by ``what`` and by the program's front ends."""
    key = hashlib.sha256(f"{VERSION}{what}".encode()).hexdigest()[:32]
    return cache_folder() / "features" / f"{key}.npy"


def kept(place: Path, shape: tuple[int, ...]) -> Examples | None:
    """What a file of features holds, read where it lies; None if it is not there or not whole, or
    somebody else can have written it.
    """
    try:
        with own_folder(place.parent, make=False) as held:
            if not is_own_file(place.name, held):
                return None
        found = np.lib.format.open_memmap(place, mode="c")
        with place.open("rb") as file:
            file.seek(-_SUM, os.SEEK_END)
            told = file.read()
    except Exception:  # readers of headers have many errors for damaged bytes
        return None
    whole = found.shape == shape and found.dtype == np.uint8 and _sum(found) == told
    return found if whole else None


def keep(place: Path, features: Examples) -> None:
    """Keep features and their digest; where that cannot be done they are made again next time."""
    if features.dtype != np.uint8:
        return
    with contextlib.suppress(OSError), own_folder(place.parent, make=True):
        part = place.with_suffix(f".{secrets.token_hex(8)}{PART}")
        try:
            with part.open("xb") as file:
                np.save(file, features, allow_pickle=False)
                file.write(_sum(features))
            part.chmod(0o600)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)


def _sum(features: Examples) -> bytes:
    """A digest: a power failure may leave a file of the right length that holds other bytes."""
    return hashlib.sha256(np.ascontiguousarray(features).data).digest()
