"""TOML in, a study out; all mistakes at once, each with its place, its value and a remedy."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

import tomli_w
from pydantic import ValidationError, create_model

import sordino.mechanism.haar  # noqa: F401  (registers it)
from sordino import modules as code
from sordino.errors import StudyError
from sordino.files import MOST_TOML, read_below
from sordino.learning.optimizer import AdaGrad, Adam, Sgd
from sordino.mechanism import GaussianNoise, Noise
from sordino.mechanism.registry import MECHANISMS
from sordino.method import About, AsynchronousMethod, Method, OnlineMethod, SynchronousMethod
from sordino.method.online import Count, Full, Random, Threshold
from sordino.method.registry import METHODS
from sordino.parsing import DEEPEST, Malformed, toml_of
from sordino.registry import did_you_mean
from sordino.section import Section
from sordino.study import streams as events
from sordino.study.asynchronous import AsynchronousStudy
from sordino.study.base import Study
from sordino.study.sections import ColumnPartition, DirichletPartition, IidPartition, ShardsPartition
from sordino.study.synchronous import SynchronousStudy
from sordino.study.vertical import VerticalStudy


def parse(table: Mapping[str, Any], *, source: str) -> Study:
    """The study in a table, all mistakes at once.

    Raises:
        StudyError: names each place, value and remedy.
    """
    lines: list[str] = []
    method: type[Method] = _Unknown
    noise: type[Noise] = _UnknownNoise
    try:
        method = _method(table)
    except StudyError as error:
        lines.append(str(error))
        table = {**table, "method": {"name": "unknown"}}  # the other sections have their mistakes, too
        budget = table.get("budget")
        if isinstance(budget, Mapping):
            method = _UnknownArrival if "updates" in budget else _UnknownEvents if "events" in budget else method
    try:
        noise = _noise(table)
    except StudyError as error:
        lines.append(str(error))
        table = {**table, "privacy": {**table["privacy"], "mechanism": {"kind": "unknown"}}}
    shape = _shape(method, noise)
    try:
        study = shape.model_validate(table)
    except ValidationError as error:
        lines += [_explain(problem, table, shape) for problem in error.errors()]
    if lines:
        raise StudyError("\n".join(f"{source}: {line}" for line in dict.fromkeys(lines)))
    return study


def _method(table: Mapping[str, Any]) -> type[Method]:
    """The class that a study's ``[method]`` table is of."""
    if "method" not in table:
        raise StudyError("method is missing: a table [method] with a name")
    return METHODS.chosen(table["method"])


def _noise(table: Mapping[str, Any]) -> type[Noise]:
    """The class that a study's ``[privacy.mechanism]`` table is of."""
    privacy = table.get("privacy")
    section = privacy.get("mechanism") if isinstance(privacy, Mapping) else None
    return GaussianNoise if section is None else MECHANISMS.chosen(section)


class _UnknownNoise(Noise):
    """Stands in for a mechanism that could not be found."""


class _Unknown(SynchronousMethod):
    """Stands in for a method that could not be found, and fits everything."""

    about: ClassVar[About] = About(regime="", paper="", does="", forms={}, units=("sample", "client", "none"))


class _UnknownArrival(AsynchronousMethod):
    """The same, for a study that counts updates."""

    about: ClassVar[About] = _Unknown.about


class _UnknownEvents(OnlineMethod):
    """The same, for a study that counts events."""

    about: ClassVar[About] = About(regime="", paper="", does="", forms={}, units=("entity", "label", "none"))


@functools.cache
def _shape(method: type[Method], noise: type[Noise]) -> type[Study]:
    """A study whose method and mechanism are of these classes."""
    if issubclass(method, OnlineMethod):
        return create_model("VerticalStudy", __base__=VerticalStudy, __doc__=VerticalStudy.__doc__, method=(method, ...))
    default: Any = GaussianNoise() if noise is GaussianNoise else ...
    base: type[Study] = AsynchronousStudy if issubclass(method, AsynchronousMethod) else SynchronousStudy
    promise: Any = base.model_fields["privacy"].annotation
    privacy = create_model("Privacy", __base__=promise, __doc__=promise.__doc__, mechanism=(noise, default))
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, method=(method, ...), privacy=(privacy, ...))


def read(path: Path, changes: Sequence[str] = (), *, modules: Path | None = None) -> Study:
    """The study in a file, with ``key=value`` changes applied. Which modules it names is told before they are imported.

    Args:
        modules: where they lie; beside the file if left out.

    Raises:
        StudyError: if the file is missing, is no TOML, or is no study.
    """
    code.look_beside(path.parent if modules is None else modules)
    try:
        with path.open("rb") as file:  # not a plain file only: a study may come through a pipe
            content = file.read(MOST_TOML + 1)
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such study file. `sordino new synchronous > study.toml` writes one to begin with") from None
    except IsADirectoryError:
        raise StudyError(f"{path}: this is a folder; give the study file in it") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    return _read(content, changes, path, {})


def read_run(folder: Path, changes: Sequence[str] = (), *, modules: Path | None = None, recorded: Mapping[str, str] | None = None) -> Study:
    """The study of a run folder. Modules that it names are never looked for in the folder itself.

    Args:
        modules: where modules lie that it names, if they are not installed.
        recorded: the digests of their code when the run was begun.

    Raises:
        StudyError: as :func:`read`.
        ResumeError: if a module has changed.
    """
    code.look_beside(modules)
    path = folder / "study.toml"
    try:
        content = read_below(folder, path.name, most=MOST_TOML)
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror}). Restore it from a copy") from None
    return _read(content, changes, path, recorded or {})


def _read(content: bytes, changes: Sequence[str], path: Path, recorded: Mapping[str, str]) -> Study:
    if len(content) > MOST_TOML:
        raise StudyError(f"{path}: a study file has at most {MOST_TOML:,} bytes, and this one has more. Is it a study file?")
    try:
        table = toml_of(content.decode("utf-8"))
    except (UnicodeDecodeError, Malformed) as error:
        raise StudyError(f"{path}: not a TOML file: {error}") from None
    for change in changes:
        table = _changed(table, change)
    for named in named_modules(table):
        _told(named, recorded, path)
    return parse(table, source=str(path))


def _told(named: str, recorded: Mapping[str, str], path: Path) -> None:
    try:
        code.tell(named, recorded)
    except StudyError as error:
        raise StudyError(f"{path}: {named!r}: {error}") from None


def named_modules(study: Study | Mapping[str, Any]) -> tuple[str, ...]:
    """Every ``package.module:attribute`` that a study, or the table of one, names: its code is part of what the study does."""
    table = study.model_dump(mode="json", by_alias=True, exclude_none=True) if isinstance(study, Study) else study
    found = [_below(table, *place) for place in _CODE]
    return tuple(dict.fromkeys(each for each in found if isinstance(each, str) and ":" in each))


_CODE = (("method", "name"), ("privacy", "mechanism", "kind"), ("model", "name"), ("model", "party"), ("model", "server"))


def _below(table: object, *keys: str) -> object:
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


def _changed(table: dict[str, Any], change: str) -> dict[str, Any]:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise StudyError(f"--set {change}: write it as section.key=value, for example --set privacy.epsilon=4")
    try:
        value = toml_of(f"value = {text}")["value"]
    except Malformed:
        value = text.strip()  # a bare word is a string: --set model.name=mlp
    *path, last = key.strip().split(".")
    if len(path) >= DEEPEST:
        raise StudyError(f"--set {change[:60]}...: a key of {len(path) + 1} parts; the longest has three")
    copy = dict(table)
    inner = copy
    for part in path:
        below = inner.get(part, {})
        if not isinstance(below, dict):
            raise StudyError(f"--set {change}: '{part}' is a value, not a section")
        inner[part] = dict(below)
        inner = inner[part]
    inner[last] = value
    return copy


def write(study: Study) -> str:
    """The study as TOML, every value spelled out but those that are not set."""
    return tomli_w.dumps(study.model_dump(mode="json", by_alias=True, exclude_none=True))


def _explain(problem: Mapping[str, Any], table: Mapping[str, Any], shape: type[Study]) -> str:
    place = _place(problem["loc"])
    name = ".".join(str(part) for part in place) or "study"
    kind, value = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        keys = _keys(problem["loc"][:-1], shape)
        hint = f": {shape.elsewhere[name]}" if name in shape.elsewhere else did_you_mean(str(place[-1]), keys)
        return f"{name} is not a key of {shape.article} {shape.kind} study{hint or '. Known here: ' + ', '.join(keys)}"
    if kind == "missing":
        return f"{name} is missing"
    if kind in ("union_tag_invalid", "literal_error"):
        allowed = str(problem.get("ctx", {}).get("expected_tags") or problem.get("ctx", {}).get("expected"))
        words = [word.strip(" '\"") for word in allowed.replace(" or ", ",").split(",")]
        given = value
        if kind == "union_tag_invalid":
            name, given = f"{name}.{str(problem['ctx']['discriminator']).strip(chr(39))}", problem["ctx"]["tag"]
        return f"{name} = {given!r} is not known{did_you_mean(str(given), words) or '.'} Known: {', '.join(words)}"
    if kind == "union_tag_not_found":
        return f"{name}.{str(problem['ctx']['discriminator']).strip(chr(39))} is missing: it says which kind this is"
    message = problem["msg"].removeprefix("Value error, ")
    shown = "" if kind == "value_error" or isinstance(value, dict) else f"; got {value!r}"
    return f"{name}: {message[0].lower()}{message[1:]}{shown}"


_TAGS = {"iid", "dirichlet", "shards", "column", "sgd", "adam", "adagrad"} | {
    *("slices", "columns", "regions", "replay", "deformed", "file", "none", "classes", "gradual", "swap", "features"),
    *("full", "random", "event", "count"),
}


def _place(location: Sequence[object]) -> list[object]:
    """The keys that lead to a place, without the kinds that were chosen on the way."""
    chosen = {"partition", "optimizer", "parts", "stream", "drift", "activation"}
    return [part for i, part in enumerate(location) if not (_is_tag(part) and i and location[i - 1] in chosen)]


def _is_tag(part: object) -> bool:
    return part in _TAGS  # pydantic puts the chosen kind of a union into the place


def _keys(location: Sequence[object], shape: type[Study]) -> list[str]:
    """The keys that a section at this place may have."""
    section: type[Section] = shape
    for part in location:
        field = section.model_fields.get(str(part))
        options = _sections(field.annotation) if field is not None else [s for s in _all_kinds() if part in _tags_of(s)]
        if not options:
            return []
        section = options[0]
    return [field.alias or name for name, field in section.model_fields.items()]


def _sections(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return [section for part in get_args(annotation) for section in _sections(part)]
    return []


def _all_kinds() -> list[type[Section]]:
    held: list[type[Section]] = [events.SlicesParts, events.ColumnsParts, events.RegionsParts]
    streams: list[type[Section]] = [events.ReplayStream, events.DeformedStream, events.FileStream]
    drifts: list[type[Section]] = [events.NoDrift, events.ClassesDrift, events.SwapDrift, events.FeaturesDrift]
    whom: list[type[Section]] = [Full, Random, Threshold, Count]
    return [IidPartition, DirichletPartition, ShardsPartition, ColumnPartition, Sgd, Adam, AdaGrad, *held, *streams, *drifts, *whom]


def _tags_of(section: type[Section]) -> tuple[Any, ...]:
    return tuple(tag for key in ("kind", "name") if key in section.model_fields for tag in get_args(section.model_fields[key].annotation))
