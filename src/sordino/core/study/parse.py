"""TOML in, a study out; all mistakes at once, each with its place, its value and a remedy. Every
key that a study may have, read off the classes that read studies, for `sordino keys`.

A relative path in a study file starts at the folder of that file, so that a study and its data can
be moved together and run from any folder. A path that was typed with ``--set`` starts at the
current folder, as all paths on a command line do. A study that was read holds full paths: the study
in a run folder finds its data again from everywhere.

What a key means stands in the code once: as the description of its field, or in the list of
attributes in the docstring of its class.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from sordino.base import modules as code
from sordino.base.errors import StudyError, did_you_mean
from sordino.base.files import DEEPEST, MOST_TOML, Malformed, read_below, readable, toml_of
from sordino.base.registry import REGISTRIES, Registry, Section, below, explained
from sordino.core import regimes
from sordino.core.method import METHODS, Method
from sordino.core.study.base import UNITS, Study

Table = Mapping[str, Any]


def parse(table: Table, *, source: str) -> Study:
    """The study in a table, all mistakes at once.

    Raises:
        StudyError: names each place, value and remedy.
    """
    shape = _shape(_method(table), table)
    try:
        return shape.model_validate({"name": _named_after(table), **table})
    except ValidationError as error:
        # a table of no known class first: other mistakes may follow from it
        problems = sorted(error.errors(), key=lambda each: each["type"] != "registry")
        lines = dict.fromkeys(_explain(problem, table, shape) for problem in problems)
        raise StudyError("\n".join(f"{source}: {line}" for line in lines)) from None


def _named_after(table: Table) -> str:
    """The name of a study that has none: its method, and its data."""
    method = METHODS.spelled_out(table.get("method"))
    data = below(table, "data", "name") or Path(str(below(table, "data", "file") or "")).stem
    if re.fullmatch("[0-9a-f]{16}", str(data)):  # the random name of data that came from memory
        data = "own data"
    words = [str(each).rpartition(":")[2] for each in (below(method, "name"), data) if each]
    return " on ".join(words)[:200] or "study"


def _method(table: Table) -> type[Method] | None:
    """The class that a study's ``[method]`` table is of, if there is one."""
    try:
        return METHODS.chosen(METHODS.spelled_out(table.get("method")))
    except StudyError:
        return None


def tables() -> tuple[Registry[Any], ...]:
    """Every table whose kind is chosen by name, in the order of their places."""
    regimes.known()
    return tuple(sorted(REGISTRIES, key=lambda each: each.place))


def _shape(method: type[Method] | None, table: Table) -> type[Study]:
    """Return what kind of study this is: by its method, else by what its budget counts, else the
    first.
    """
    if method is not None:
        return regimes.named(method.about.regime).study
    budget, known = table.get("budget"), list(regimes.known().values())
    return next(
        (each for each in known if isinstance(budget, Mapping) and each.budget in budget), known[0]
    ).study


def with_value(table: Table, keys: Sequence[str], value: Any) -> dict[str, Any]:
    """Return the same table of tables with another value at one place.

    Raises:
        StudyError: if the place lies below a value.
    """
    key, *below = keys
    if not below:
        return {**table, key: value}
    inner = {} if table.get(key) is None else table[key]
    if not isinstance(inner, Mapping):
        raise StudyError(f"'{key}' is a value, not a section")
    return {**table, key: with_value(inner, below, value)}


def read(
    path: Path,
    changes: Sequence[str] = (),
    *,
    modules: Path | None = None,
    as_written: bool = False,
) -> Study:
    """The study in a file, with ``key=value`` changes applied.

    Which modules it names is told before they are imported.

    Args:
        modules: where they lie; beside the file if left out.
        as_written: leave relative paths as they are, for a study that goes to other machines; else
            see :mod:`sordino.core.study.parse`.

    Raises:
        StudyError: if the file is missing, is no TOML, or is no study.
    """
    code.look_beside(path.parent if modules is None else modules)
    missing = (
        f"there is no such study file. `sordino new {regimes.names()[0]} > study.toml` writes one "
        "to begin with"
    )
    # not a plain file only: a study may come through a pipe
    with readable(path, remedy="Give a study file", missing=missing), path.open("rb") as file:
        content = file.read(MOST_TOML + 1)
    study = _read(content, changes, path, {})
    if as_written:
        return study
    typed = [change.partition("=")[0].strip() for change in changes]
    # what comes through a pipe lies in no folder
    return placed(study, path.parent if path.is_file() else Path(), typed)


def read_run(
    folder: Path,
    changes: Sequence[str] = (),
    *,
    modules: Path | None = None,
    recorded: Mapping[str, str] | None = None,
) -> Study:
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
    with readable(path):
        content = read_below(folder, path.name, most=MOST_TOML)
    return _read(content, changes, path, recorded or {})


def _read(content: bytes, changes: Sequence[str], path: Path, recorded: Mapping[str, str]) -> Study:
    if len(content) > MOST_TOML:
        raise StudyError(
            f"{path}: a study file has at most {MOST_TOML:,} bytes, and this one has more. "
            "Is it a study file?"
        )
    try:
        table = toml_of(content.decode("utf-8"))
    except (UnicodeDecodeError, Malformed) as error:
        raise StudyError(f"{path}: not a TOML file: {error}") from None
    return _checked(table, changes, str(path), recorded)


def of_table(
    table: Table, changes: Sequence[str] = (), *, source: str, modules: Path | None
) -> Study:
    """The study in a table that lies in memory, with ``key=value`` changes applied.

    Args:
        source: what it is called in complaints.
        modules: where modules lie that it names, if they are not installed.

    Raises:
        StudyError: as :func:`read`.
    """
    code.look_beside(modules)
    return placed(_checked(dict(table), changes, source, {}), Path())


def _checked(
    table: dict[str, Any], changes: Sequence[str], source: str, recorded: Mapping[str, str]
) -> Study:
    for change in changes:
        table = _changed(table, change)
    for named in named_modules(table):
        try:
            code.tell(named, recorded)
        except StudyError as error:
            raise StudyError(f"{source}: {named!r}: {error}") from None
    if any(change.partition("=")[0].strip() == "method.name" for change in changes):
        table = _without_other_methods(table)
    return parse(table, source=source)


def _without_other_methods(table: dict[str, Any]) -> dict[str, Any]:
    """Leave out the keys of other methods, for a study whose method was changed."""
    if (method := _method(table)) is None:
        return table  # which is said when it is parsed
    known = {key for each in METHODS.known().values() for key in _keys(each)}
    left_out = known.difference(_keys(method))
    given: Any = METHODS.spelled_out(table["method"])
    return {**table, "method": {k: v for k, v in given.items() if k not in left_out}}


def named_modules(study: Study | Table) -> tuple[str, ...]:
    """Every ``package.module:attribute`` that a study or its tables name: part of what it does."""
    table = study.as_table() if isinstance(study, Study) else study
    known = tables()
    places = (
        *((*registry.keys, registry.key) for registry in known),
        *(registry.keys for registry in known),
        *(("model", key) for key in ("name", "party", "server")),
        ("data", "name"),
    )
    found = [below(table, *place) for place in places]
    return tuple(dict.fromkeys(each for each in found if isinstance(each, str) and ":" in each))


def _changed(table: dict[str, Any], change: str) -> dict[str, Any]:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise StudyError(
            f"--set {change}: write it as section.key=value, for example --set privacy.epsilon=4"
        )
    try:
        value = toml_of(f"value = {text}")["value"]
    except Malformed:
        value = text.strip()  # a bare word is a string: --set model.name=mlp
    *path, last = key.strip().split(".")
    if len(path) >= DEEPEST:
        raise StudyError(
            f"--set {change[:60]}...: a key of {len(path) + 1} parts; the longest has three"
        )
    try:
        return with_value(table, (*path, last), value)
    except StudyError as error:
        raise StudyError(f"--set {change}: {error}") from None


def write(study: Study) -> str:
    """The study as TOML, every value spelled out but those that are not set."""
    return tomli_w.dumps(study.as_table())


def _explain(problem: Table, table: Table, shape: type[Study]) -> str:
    """Return what is wrong with a table that is no study of this shape."""
    location = problem["loc"]
    name = ".".join(map(str, location)) or "study"
    kind, value = problem["type"], problem.get("input")
    if kind == "registry":  # which names its place
        return str(problem["msg"])
    if kind == "extra_forbidden":
        keys, last = _keys(_section_at(location[:-1], table, shape)), str(location[-1])
        hint = did_you_mean(last, keys)
        if name in shape.elsewhere:
            hint = f": {shape.elsewhere[name]}"
        if not hint:  # tables in which a study of this kind has a key so called
            regime = next(each for each in regimes.names() if regimes.named(each).study is shape)
            places = (each.key for each in _section(shape, "", regime) if each.key != name)
            found = dict.fromkeys(each for each in places if each.rpartition(".")[2] == last)
            hint = f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
        return (
            f"{name} is not a key of {shape.article} {shape.kind} "
            f"study{hint or '. Known here: ' + ', '.join(keys)}"
        )
    if name == "method" and kind == "missing":
        return "method is missing: a table [method] with a name"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "literal_error":
        words = [
            word.strip(" '\"")
            for word in str(problem["ctx"]["expected"]).replace(" or ", ",").split(",")
        ]
        if name == "privacy.unit":  # no word is meant by another: each is a promise of its own
            told = "; ".join(f"'{word}' protects {UNITS[word]}" for word in words)
            return f"{name} = {value!r} is not known. It says who is protected: {told}"
        return (
            f"{name} = {value!r} is not known{did_you_mean(str(value), words) or '.'} Known: "
            f"{', '.join(words)}"
        )
    return explained("", problem)


def _section_at(location: Sequence[object], table: object, section: type[Section]) -> type[Section]:
    """The class of the table at this place of a study's table."""
    for part in location:
        field, table = section.model_fields[str(part)], below(table, str(part))
        if (registry := _registry(field)) is None:
            (section,) = sections_in(field.annotation)
        else:
            section = registry.chosen(registry.spelled_out(table))
    return section


def _registry(field: FieldInfo) -> Registry[Any] | None:
    """The registry of the classes that a table may be of, if it has one."""
    return next((each for each in field.metadata if isinstance(each, Registry)), None)


def _keys(section: type[Section]) -> list[str]:
    """The keys that a table may have."""
    return [field.alias or name for name, field in section.model_fields.items()]


def sections_in(annotation: Any) -> list[type[Section]]:
    """The sections in the type of a field."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections_in(part)]


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
    return full.with_privacy({"ledger": str(path)})


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


WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "table",
}
BOUNDS = (("exclusiveMinimum", "above"), ("minimum", "at least"))
UPPER = (("exclusiveMaximum", "below"), ("maximum", "at most"))
_ENTRY = re.compile(r"^ {4}(\w[\w, ]*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a study.

    Attributes:
        key: its place, with dots.
        regimes: whose studies have it.
        only: kinds of its table that have it, such as methods; empty where all of them do.
        type: in words.
        default: as TOML writes it; None where a study must say it or leaves it unset.
        needed: whether a study must have it, if its table is there.
        bounds: of its value, in words.
        about: what it means.
    """

    key: str
    regimes: tuple[str, ...]
    only: tuple[str, ...]
    type: str
    default: str | None
    needed: bool
    bounds: str
    about: str


def keys(chosen: str | None = None) -> list[Key]:
    """The keys of all studies, of those of one regime, or those at or below one place.

    Args:
        chosen: a regime, a key, the name of a table, or the last part of a key.

    Raises:
        StudyError: if nothing is called so.
    """
    studies = {name: regime.study for name, regime in regimes.known().items()}
    whole = (each for name, study in studies.items() for each in _section(study, "", name))
    found = list(_merged(whole))
    if chosen is None:
        return found
    if chosen in regimes.names():
        return [each for each in found if chosen in each.regimes]
    asked = [each for each in found if each.key == chosen or each.key.startswith(f"{chosen}.")]
    asked = asked or [each for each in found if each.key.rpartition(".")[2] == chosen]
    if not asked:
        places = {each.key for each in found} | {each.key.rpartition(".")[2] for each in found}
        hint = did_you_mean(chosen, sorted(places | set(regimes.names())))
        raise StudyError(
            f"{chosen!r} is no regime and no key of a study{hint or '.'} `sordino keys` lists all"
        )
    return asked


@cache
def _schema(section: type[Section]) -> dict[str, Any]:
    return section.model_json_schema()  # a hint for a key looks through a hundred, 3 ms each


def _section(section: type[Section], before: str, regime: str) -> Iterator[Key]:
    """The keys of a table and of all tables below it; of a table with kinds, those of each."""
    schema = _schema(section)
    for name, field in section.model_fields.items():
        key = field.alias or name
        told, place = schema["properties"][key], f"{before}{key}"
        inner = sections_in(field.annotation)
        if (registry := _registry(field)) is not None:
            yield from _kinds(registry, told, regime)
        elif inner:
            yield from _section(inner[0], f"{place}.", regime)
        else:
            about = told.get("description") or _documented(section, name)
            yield Key(
                key=place,
                regimes=(regime,),
                only=(),
                type=_type(told, schema.get("$defs", {})),
                default=None if told.get("default") is None else _toml(told["default"]),
                # a study without a name is named after its method and data
                needed=key in schema.get("required", ()) and place != "name",
                bounds=_bounds(told),
                about=about,
            )


def _kinds(registry: Registry[Any], told: Table, regime: str) -> Iterator[Key]:
    kinds = {
        name: kind
        for name, kind in registry.known().items()
        if getattr(getattr(kind, "about", None), "regime", regime) == regime
    }
    default = told.get("default")
    usual = default.get(registry.key) if isinstance(default, Mapping) else registry.usual
    place = f"{registry.place}.{registry.key}"
    yield Key(
        key=place,
        regimes=(regime,),
        only=(),
        type=", ".join(map(_toml, kinds)),
        default=None if usual is None else _toml(usual),
        needed=True,
        bounds="or package.module:Class",
        about=f"which {registry.noun}; see {registry.page}",
    )
    every: dict[Key, list[str]] = {}
    for name, kind in kinds.items():
        for each in _section(kind, f"{registry.place}.", regime):
            if each.key != place:
                every.setdefault(each, []).append(name)
    for each, names in every.items():
        yield each if len(names) == len(kinds) else replace(each, only=(*names, *each.only))


def _merged(found: Iterator[Key]) -> Iterator[Key]:
    """Keys that several regimes have alike, once."""
    alike: dict[Key, list[Key]] = {}
    for each in found:
        alike.setdefault(replace(each, regimes=(), only=()), []).append(each)
    for group in alike.values():
        whose = dict.fromkeys(name for each in group for name in each.regimes)
        only = dict.fromkeys(name for each in group for name in each.only)
        yield replace(group[0], regimes=tuple(whose), only=tuple(only))


def _documented(section: type[Section], name: str) -> str:
    """Return what the docstring of a class, or of one that it extends, says of an attribute."""
    for each in section.__mro__:
        _, _, listed = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")
        for names, said in _ENTRY.findall(listed):
            if name in re.split(r",\s*", names):
                return " ".join(said.split()).replace("``", "`")
    return ""


def _type(told: Table, known: Table) -> str:
    if "anyOf" in told:
        return " or ".join(
            _type(each, known) for each in told["anyOf"] if each.get("type") != "null"
        )
    if "const" in told:
        return _toml(told["const"])
    if "enum" in told:
        return ", ".join(map(_toml, told["enum"]))
    if told.get("format") == "path":
        return "path"
    if told.get("type") == "array":
        inside: Table = told.get("items", {})
        return f"list of: {_type(inside, known)}" if inside else "list"
    return WORDS.get(str(told.get("type")), "any value")


def _bounds(told: Table) -> str:
    """The bounds in a schema, of a list those of its numbers."""
    parts = [told, *told.get("anyOf", ()), told.get("items", {})]
    parts += [each.get("items", {}) for each in told.get("anyOf", ())]
    words = [
        next(
            (f"{word} {_toml(part[key])}" for part in parts for key, word in side if key in part),
            "",
        )
        for side in (BOUNDS, UPPER)
    ]
    return ", ".join(filter(None, words))


def _toml(value: object) -> str:
    """A value as a study file writes it."""
    if isinstance(value, Mapping):
        inside = ", ".join(
            f"{key} = {_toml(each)}" for key, each in value.items() if each is not None
        )
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str | int):  # a bool is an int
        return json.dumps(value, ensure_ascii=False)
    return f"{value:g}"


def markdown(found: Sequence[Key]) -> str:
    """The reference as a page, a table for each table of a study."""
    lines = [
        "# Keys of a study",
        "",
        "`sordino keys --markdown` writes this page. `sordino keys KEY` shows one key, and "
        "`sordino keys --json` gives the list to programs.",
        "",
        "A key that is not *needed* and has no default is not set unless the study sets it. "
        "*Only* names the regimes, or the methods and kinds, that have the key.",
    ]
    last = None
    every = len(regimes.names())
    for each in sorted(found, key=lambda key: key.key.rpartition(".")[0]):
        table, _, key = each.key.rpartition(".")
        if table != last:
            lines += ["", f"## `[{table}]`" if table else "## The study itself", ""]
            lines += [
                "| key | type | default | bounds | only | what it means |",
                "|---|" + "---|" * 5,
            ]
            last = table
        only = each.only or (each.regimes if len(each.regimes) < every else ())
        default = "" if each.default is None else f"`{each.default}`"
        if each.needed and not default:
            default = "needed"
        cells = (f"`{key}`", each.type, default, each.bounds, ", ".join(only), each.about)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
