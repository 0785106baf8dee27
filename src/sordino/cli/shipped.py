"""``sordino examples``: the studies that come with the program, also with an installed one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from sordino.base.errors import StudyError
from sordino.base.package import HOME
from sordino.cli import say
from sordino.cli.run import AsJson


def examples(
    name: Annotated[
        str | None,
        typer.Argument(help="An example or a folder of examples. Default: list all of them."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to copy it. Default: its name, in this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the shipped example studies, or copy one of them, or a folder of them."""
    home = folder()
    files = sorted(path for path in home.rglob("*.toml") if path.is_file())
    if name is None:
        listed = {str(path.relative_to(home).with_suffix("")): _title(path) for path in files}
        if as_json:
            say.machine(listed)
            return
        say.table("Examples", ["name", "study"], [[key, value] for key, value in listed.items()])
        say.people("`sordino examples NAME` copies one; the name of a folder copies all in it")
        return
    chosen = _chosen(home, name)
    target = Path(chosen.name) if out is None else out
    for copied in _copy(chosen, target):
        say.people(f"Copied {copied}")
    if as_json:
        say.machine({"example": name, "path": str(target)})


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


def _title(path: Path) -> str:
    """What a study is called; empty for a file that is no study."""
    import tomllib

    return str(tomllib.loads(path.read_text(encoding="utf-8")).get("name", ""))


def _chosen(home: Path, name: str) -> Path:
    """The file or folder of this name: one of those that are there, and nothing else."""
    from sordino.base.registry import did_you_mean

    known: dict[str, Path] = {}
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


def _copy(source: Path, target: Path) -> list[Path]:
    """Copy a study with its data file, or a folder; what was written, the study first."""
    from sordino.core.files import said_clearly

    pairs = {target: source}
    if not source.is_dir():
        pairs |= {target.with_name(path.name): path for path in _data(source)}
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


def _data(study: Path) -> list[Path]:
    """The data file that lies beside a study which names it."""
    import tomllib

    name = tomllib.loads(study.read_text(encoding="utf-8")).get("data", {}).get("file")
    return [study.with_name(name)] if name and study.with_name(name).is_file() else []
