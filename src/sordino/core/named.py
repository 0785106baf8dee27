"""Code of others that a run folder names: where it lies, and the study that is read with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sordino.base.errors import SordinoError, StudyError
from sordino.base.files import read_below
from sordino.base.parsing import object_of
from sordino.core import records, regimes
from sordino.core import study as studies
from sordino.core.records import Maybe, Misfit, Module, Record, fitted, known
from sordino.core.study.base import Study


class _Named(Record, frozen=True, kw_only=True):
    """The modules of a ``run.json``."""

    modules: Maybe[dict[str, Module]] = None


def study_of(
    folder: Path,
    recorded: Mapping[str, Module],
    modules: Path | None = None,
    changes: Sequence[str] = (),
) -> Study:
    """The study of a run folder; a module that it names must be the one that was recorded when it
    was begun.

    Args:
        modules: where modules lie that it names, if they were moved since.

    Raises:
        ResumeError: if that has changed.
    """
    digests = {name: str(known(each.sha256)) for name, each in recorded.items()}
    files = [Path(known(each.file) or "") for each in recorded.values() if known(each.beside)]
    beside = (
        files[0].parent.parent
        if files and files[0].name == "__init__.py"
        else files[0].parent
        if files
        else None
    )
    return studies.read_run(folder, changes, modules=modules or beside, recorded=digests)


def acquaint(
    folder: Path,
    found: Mapping[str, object],
    modules: Path | None = None,
) -> None:
    """Where the ``run.json`` in a folder is of a regime that is not known: import the modules that
    its study names, and tell of them first. This runs their code.

    Raises:
        StudyError: if the study cannot be read.
        ResumeError: if a module has changed.
    """
    if found.get("regime") in (None, *regimes.names()):
        return
    try:
        named = fitted({"modules": found.get("modules")}, _Named)
    except Misfit:  # which is said when all of it is read
        return
    study_of(folder, known(named.modules) or {}, modules)


def about(
    folder: Path, modules: Path | None = None, error: type[SordinoError] = StudyError
) -> records.About:
    """The ``run.json`` of a folder, of whatever regime; see :func:`acquaint`.

    Raises:
        SordinoError: of this kind, if it cannot be read.
    """
    path = folder / "run.json"
    try:
        content = read_below(folder, path.name)
    except (FileNotFoundError, NotADirectoryError):
        raise StudyError(f"{folder}: this is no run folder: it has no run.json") from None
    found = object_of(content, path, error)
    acquaint(folder, found, modules)
    return records.about_of(found, path, error)
