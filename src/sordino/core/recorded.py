"""What a run folder says of its run, for who goes on with it: promise, study and own modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sordino.base import modules as code
from sordino.base.errors import ResumeError, StudyError
from sordino.base.files import read_below
from sordino.base.parsing import object_of
from sordino.core import begun, named, records
from sordino.core import study as studies
from sordino.core.records import About, known, number
from sordino.core.study.base import Study

NEEDED = ("run", "payable", "warnings", "result")


def about_of(folder: Path, modules: Path | None = None) -> About:
    """``run.json`` of a run folder, without how the run ended, which its seal says.

    Args:
        modules: where modules lie that its study names, if they were moved since.

    Raises:
        StudyError: if this is no run folder.
        ResumeError: if the file does not say what it should.
    """
    try:
        content = read_below(folder, "run.json")
    except (FileNotFoundError, NotADirectoryError):
        raise StudyError(f"{folder}: this is no run folder: it has no run.json") from None
    except OSError as error:
        raise StudyError(f"{folder / 'run.json'}: cannot be read ({error.strerror})") from error
    found = object_of(content, folder / "run.json", ResumeError)
    if missing := [key for key in NEEDED if key not in found]:
        raise ResumeError(
            f"{folder / 'run.json'}: it has no {' and no '.join(missing)}. Restore it from a copy"
        )
    named.acquaint(folder, found, modules)
    return records.about_of(_unended(found), folder / "run.json", ResumeError)


def _unended(found: Mapping[str, object]) -> dict[str, object]:
    """``run.json`` without how the run ended, which its seal says; but for how long that took."""
    result = found.get("result")
    seconds = number(result.get("seconds")) if isinstance(result, dict) else None
    kept = {key: value for key, value in found.items() if key not in begun.LATER}
    return {
        **kept,
        "result": None if result is None else {} if seconds is None else {"seconds": seconds},
    }


def study_of(
    folder: Path, about: About, modules: Path | None = None, changes: Sequence[str] = ()
) -> Study:
    """The study of a run folder; a module that it names must be the one that it was begun with.

    Raises:
        ResumeError: if that has changed.
    """
    return named.study_of(folder, known(about.modules) or {}, modules, changes)


def modules_of(study: Study) -> dict[str, records.Module] | None:
    """The modules that the study names, for who goes on with it."""
    lying = code.lying(studies.named_modules(study))
    found = {
        name: records.Module(file=str(each.file or ""), sha256=each.digest, beside=beside)
        for name, (each, beside) in lying.items()
    }
    return found or None
