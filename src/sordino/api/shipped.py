"""The studies that come with the program, also with an installed one."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

from sordino.base import HOME
from sordino.base.errors import StudyError, did_you_mean
from sordino.core.files import said_clearly


def listed() -> dict[str, str]:
    """Return the names of the examples, and what each study is called."""
    home = folder()
    files = sorted(path for path in home.rglob("*.toml") if path.is_file())
    return {  # no name for a file that is no study
        str(path.relative_to(home).with_suffix("")): str(_table(path).get("name", ""))
        for path in files
    }


def folder() -> Path:
    """Where the examples lie: in the package, or beside the sources of a checkout.

    Raises:
        StudyError: if they are in neither.
    """
    package = HOME.resolve()
    for found in (package / "examples", package.parents[1] / "examples"):
        if found.is_dir():
            return found
    raise StudyError(f"{package}: this installation has no examples; install the package again")


def _table(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def chosen(name: str) -> Path:
    """The file or folder of this name: one of those that are there, and nothing else."""
    home, known = folder(), dict[str, Path]()
    for path in sorted(home.rglob("*")):
        place = path.relative_to(home)
        if path.is_dir() and not path.name.startswith("__"):
            known[place.as_posix()] = path
        elif path.suffix == ".toml":
            known[place.as_posix()] = known[place.with_suffix("").as_posix()] = path
    if name.rstrip("/") not in known:
        raise StudyError(
            f"{name!r} is no example{did_you_mean(name, known) or '.'} `sordino examples` lists "
            "them"
        )
    return known[name.rstrip("/")]


def copy(source: Path, target: Path) -> list[Path]:
    """Copy a study with its data file, or a folder; what was written, the study first."""
    pairs = {target: source}
    if not source.is_dir():
        name = _table(source).get("data", {}).get("file")
        if name and (beside := source.with_name(name)).is_file():
            pairs[target.with_name(beside.name)] = beside
    for each in pairs:
        if each.exists():
            raise StudyError(f"{each}: exists already; choose another place with --out")
    with said_clearly(target):
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            for each, path in pairs.items():
                shutil.copyfile(path, each)
    return list(pairs)
