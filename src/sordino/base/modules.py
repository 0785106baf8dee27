"""Modules that a study names: beside its file or installed, announced before being imported.

A study says ``package.module:attribute`` for a model, a method or a mechanism of its owner's.
Importing runs that code with all rights of whoever runs the study, so

* one line on standard error names the file and its digest before anything of it runs; what runs is
  compiled from that file, never taken from a cache beside it;
* it is found **beside the study file** (``mine.py``, or a package ``mine/__init__.py``) or
  **installed**; nothing else beside the study can be imported, by nobody: the folder is never put
  on ``sys.path``, and a ``json.py`` next to a study is a file like any other. Code of several files
  is a package, whose parts import each other relatively (``from . import part``);
* a name that is both is refused, for it would depend on the machine which of the two runs;
* where a study is only read, to report on it or to compare it, nothing is imported that was not
  already (:func:`nothing_new`).

What was imported is part of the environment of a run: a run is not resumed with other code.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, ModuleType

from sordino.base.errors import ResumeError, StudyError
from sordino.base.frozen import Frozen

OPTION = "--modules"
OURS = ("", "sordino")


class Module(Frozen):
    """The code that a name stands for.

    Attributes:
        name: the first part of its dotted name.
        file: its file, or the ``__init__.py`` of a package; None where Python has it built in.
        digest: SHA-256 of the file, or of every source file of a package with its place in it.
    """

    name: str
    file: Path | None
    digest: str


_folder: ContextVar[Path | None] = ContextVar("folder", default=None)
_closed: ContextVar[bool] = ContextVar("closed", default=False)
_told: dict[str, Module] = {}


def look_beside(folder: Path | None) -> None:
    """From now on, look for the modules that studies name in this folder, too."""
    _folder.set(None if folder is None else folder.resolve())


def study_folder() -> Path | None:
    """Return the folder in which modules are looked for, too."""
    return _folder.get()


@contextmanager
def nothing_new() -> Iterator[None]:
    """While a study is only read: import no module that was not imported for a study before."""
    token = _closed.set(True)
    try:
        yield
    finally:
        _closed.reset(token)


def attribute(path: str) -> object:
    """Return the object at ``package.module:attribute``; its module is told of, then imported once.

    Raises:
        ImportError, AttributeError, ValueError, TypeError: as Python's own import.
        StudyError: if the name means two modules, or nothing new may be imported.
    """
    place, _, name = path.partition(":")
    return getattr(_imported(place), name)


def told() -> Mapping[str, Module]:
    """Every module that was imported because a study named it, by the first part of its name."""
    return dict(_told)


def tell(path: str, recorded: Mapping[str, str] | None = None) -> None:
    """Say which code ``package.module:attribute`` would run, once; import nothing.

    Args:
        recorded: the digests that a run was begun with, if it is gone on with.

    Raises:
        StudyError: as :func:`attribute`.
        ResumeError: if the code is another than the run was begun with.
    """
    top = _top(path)
    if _closed.get():
        return
    found = _find(top)
    if recorded and top in recorded and (found is None or found.digest != recorded[top]):
        where = (
            "is not found"
            if found is None
            else f"({found.file}) has changed: sha256 {found.digest}, not {recorded[top]}"
        )
        raise ResumeError(
            f"the run was begun with a module {top} that {where}. Restore it, and say where it "
            f"lies with {OPTION} FOLDER if it was moved; or begin a new run"
        )
    if found is not None and top not in _told:
        _say(found)


def raised(error: BaseException) -> str | None:
    """Where in code that a study names an exception came from, and what it says; None if it did not
    come from there.

    The line is the last one in that code; the call is the first, which the program made.
    """
    homes = {
        each.file.parent if each.file.name == "__init__.py" else each.file
        for each in _told.values()
        if each.file is not None
    }
    frames = [
        (code.co_filename, line, code.co_qualname)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not homes.isdisjoint(((path := Path((code := frame.f_code).co_filename)), *path.parents))
    ]
    if not frames:
        return None
    file, line, name = frames[-1]
    called = "" if frames[0][2] == name else f", called from {frames[0][2]}"
    message = " ".join(str(error).split())
    said = f"{type(error).__name__}{': ' if message else ''}{message}"
    return f"{file}, line {line}, in {name}{called}: {said}"


def told_of(error: BaseException) -> str:
    """Return the text of an exception, with its place where it came from code that a study
    names."""
    return raised(error) or " ".join(str(error).split()) or type(error).__name__


@contextmanager
def told_in_its_place() -> Iterator[None]:
    """While a study is checked: a ValueError of code that it names says its file and line.

    A bare one would be taken for a complaint about a value of the study.
    """
    try:
        yield
    except ValueError as error:
        if (said := raised(error)) is None:
            raise
        raise ValueError(said) from error


def digests(paths: Iterable[str]) -> dict[str, str]:
    """The digest of the code behind each ``package.module:attribute``, by package; no import."""
    return {name: found.digest for name, (found, _) in lying(paths).items()}


def lying(paths: Iterable[str]) -> dict[str, tuple[Module, bool]]:
    """The module behind each ``package.module:attribute``, and whether it is beside the study."""
    record: dict[str, tuple[Module, bool]] = {}
    for path in paths:
        top = _top(path)
        if (module := _find(top)) is not None:
            record[top] = module, top in _FINDER.modules or _own(top) is not None
    return record


def sources(file: Path) -> dict[str, Path]:
    """The source files that a module consists of, by their place in it; no links."""
    if file.name != "__init__.py":
        return {file.name: file}
    inside = sorted(
        each for each in file.parent.rglob("*.py") if each.is_file() and not each.is_symlink()
    )
    return {each.relative_to(file.parent).as_posix(): each for each in inside}


def digest_of(file: Path) -> str:
    """SHA-256 of a module's file, or of a package's sources and their places."""
    if file.name != "__init__.py":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    found = hashlib.sha256()
    for place, each in sources(file).items():
        inside = each.read_bytes()
        found.update(f"{place}\n{len(inside)}\n".encode() + inside)
    return found.hexdigest()


def _top(path: str) -> str:
    """Return the first part of the dotted name in ``package.module:attribute``."""
    return path.partition(":")[0].partition(".")[0]


def _imported(place: str) -> ModuleType:
    top = _top(place)
    found = _find(top)
    if _closed.get() and top not in _told and top not in OURS:
        where = "" if found is None or found.file is None else f" ({found.file})"
        raise StudyError(
            f"it names the module {top}{where}, whose code is not run just to read a study (only "
            f"{OPTION} FOLDER, where a command has it, does that)"
        )
    if found is not None and top not in _told:
        _say(found)
    _provide(found)
    try:
        if top in OURS:
            return importlib.import_module(place)
        from sordino.base.settings import own_code  # torch takes a while to import

        with own_code():  # what it sets at its top level would hold for the whole run
            return importlib.import_module(place)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "sordino":
            raise  # not the program's
        raise StudyError(
            f"{raised(error) or error}. This place is inside of sordino, where places change with "
            "versions. Code of your own imports from sordino.extend: methods, mechanisms, regimes, "
            "tables, network, runs or pages (docs/own-method.md shows one)"
        ) from error


def _say(found: Module) -> None:
    where = f"{found.file}, sha256 {found.digest}"
    if found.file is None:
        where = "built into Python, or no single file"
    sys.stderr.write(f"This study imports and runs the code of {found.name} ({where})\n")
    sys.stderr.flush()
    _told[found.name] = found


def _find(top: str) -> Module | None:
    """The module of this name; None if there is none, for Python to say so, or if it is ours."""
    if top in OURS:
        return None
    beside, installed = _own(top), _installed(top)
    known = _told.get(top)
    if known is not None and beside is not None and digest_of(beside) != known.digest:
        raise StudyError(
            f"{top} is {known.file} already, and another study means {beside}; rename one of them"
        )
    if known is not None:
        return known
    if (
        beside is not None
        and installed is not None
        and not (installed.origin and Path(installed.origin).resolve() == beside.resolve())
    ):
        raise StudyError(
            f"{top} means two things, {beside} and the installed {installed.origin or top}; "
            "rename the file beside the study"
        )
    if beside is not None:
        return Module(top, beside, digest_of(beside))
    if installed is None:
        return None
    file = Path(installed.origin) if installed.has_location and installed.origin else None
    return Module(top, file, "" if file is None else digest_of(file))


def _own(top: str) -> Path | None:
    """The file beside the study."""
    folder = _folder.get()
    if folder is None or not top.isidentifier():
        return None
    return next(
        (file for file in (folder / top / "__init__.py", folder / f"{top}.py") if file.is_file()),
        None,
    )


def _installed(top: str) -> importlib.machinery.ModuleSpec | None:
    if (loaded := sys.modules.get(top)) is not None:
        return getattr(loaded, "__spec__", None)
    for finder in sys.meta_path:
        if finder is not _FINDER and (spec := finder.find_spec(top, None)) is not None:
            return spec
    return None


class _Source(importlib.machinery.SourceFileLoader):
    """Compiles what stands in the file: a cache beside it could hold other code."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _StudyModules:
    """Finds modules beside studies that were told of, by the hashed source files alone."""

    def __init__(self) -> None:
        self.modules: dict[str, Path] = {}  # by their dotted names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.modules:
            return None
        if (file := self.modules.get(name)) is None:
            raise ModuleNotFoundError(f"No module named {name!r} beside the study", name=name)
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, file, loader=_Source(name, str(file)), submodule_search_locations=inside
        )


_FINDER = _StudyModules()


def _provide(found: Module | None) -> None:
    """Let Python find a module that is not installed."""
    if (
        found is None
        or found.file is None
        or found.name in sys.modules
        or _installed(found.name) is not None
    ):
        return
    files = sources(found.file) if found.file.name == "__init__.py" else {"__init__": found.file}
    for place, file in files.items():  # a package after a module of its name, which it hides
        name = ".".join((found.name, *Path(place).with_suffix("").parts))
        _FINDER.modules[name.removesuffix(".__init__")] = file
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)  # it knows nothing that another finder knows
