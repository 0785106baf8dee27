"""The names of run folders."""

from __future__ import annotations

import re
from pathlib import Path

from sordino.errors import StudyError


def take(draft: Path, folder: Path, out: Path | None, name: str) -> Path:
    """The name that a new folder takes: another run that was begun meanwhile may have taken it."""
    while True:
        try:
            draft.rename(folder)
            return folder
        except OSError:
            if not folder.exists():
                raise
            folder = free(out, name)  # refuses what the user named


def free(out: Path | None, name: str) -> Path:
    """A folder that does not exist yet."""
    if out is not None:
        if out.exists():
            raise StudyError(
                f"{out}: this output folder exists already. Choose another with --out, or go "
                f"on with `sordino run --resume {out}`"
            )
        return out
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "run"
    number = 1
    while (folder := Path("runs") / f"{slug}-{number:03d}").exists():
        number += 1
    return folder
