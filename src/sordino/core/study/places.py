"""Where the files that a study names lie.

A relative path in a study file starts at the folder of that file, so that a study and its data can
be moved together and run from any folder. A path that was typed with ``--set`` starts at the
current folder, as all paths on a command line do. A study that was read holds full paths: the study
in a run folder finds its data again from everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from sordino.base.errors import StudyError
from sordino.base.section import Section
from sordino.core.study.base import Study

S = TypeVar("S", bound=Section)
LEDGER = "privacy.ledger"


def placed(study: Study, folder: Path, typed: Collection[str] = ()) -> Study:
    """The study with full paths.

    Args:
        folder: of the study file.
        typed: keys that were given on the command line.

    Raises:
        StudyError: if the ledger of the data would be a new one beside the study, and the current
            folder holds one of the same name.
    """
    here, home = Path.cwd(), folder.resolve()

    def base(key: str) -> Path:
        set_here = any(key == each or key.startswith(f"{each}.") for each in typed)
        return here if set_here else home

    full, ledger = _full(study, base), study.privacy.ledger
    if ledger == "run" or Path(ledger).expanduser().is_absolute():
        return full
    path = base(LEDGER) / ledger
    if not path.exists() and (other := here / ledger).is_dir():
        raise StudyError(
            f"{LEDGER} = {ledger!r} means {path}, which is not there, and there is {other}. A new "
            "ledger would forget what was spent: give the full path of the ledger"
        )
    privacy = full.privacy.model_copy(update={"ledger": str(path)})
    return full.model_copy(update={"privacy": privacy})


def _full(section: S, base: Callable[[str], Path], before: str = "") -> S:
    """The same table with full paths, in the tables below it, too."""
    changed: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        key, value = f"{before}{field.alias or name}", getattr(section, name)
        if isinstance(value, Path) and not value.is_absolute():
            changed[name] = base(key) / value
        elif isinstance(value, Section) and (inner := _full(value, base, f"{key}.")) is not value:
            changed[name] = inner
    return section.model_copy(update=changed) if changed else section
