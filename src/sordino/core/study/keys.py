"""Every key that a study may have, read off the classes that read studies: for `sordino keys`.

What a key means stands in the code once: as the description of its field, or in the list of
attributes in the docstring of its class.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sordino.base.errors import StudyError
from sordino.base.registry import Registry, Section, did_you_mean
from sordino.core import regimes
from sordino.core.study.parse import sections_in, tables

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
    found = list(_merged(each for name in regimes.names() for each in _regime(name)))
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


def places_of(last: str, shape: type[Section]) -> list[str]:
    """Return where a study of this kind has a key whose last part is this, with dots."""
    name = next(each for each in regimes.names() if regimes.named(each).study is shape)
    return list(dict.fromkeys(k.key for k in _regime(name) if k.key.rpartition(".")[2] == last))


def _regime(name: str) -> Iterator[Key]:
    found = {each.place: each for each in tables()}
    return _section(regimes.named(name).study, "", name, found)


def _section(
    section: type[Section], before: str, regime: str, found: Mapping[str, Registry[Any]]
) -> Iterator[Key]:
    """The keys of a table and of all tables below it; of a table with kinds, those of each."""
    schema = section.model_json_schema()
    for key, told in schema["properties"].items():
        place = f"{before}{key}"
        name = next(n for n, each in section.model_fields.items() if key in (n, each.alias))
        inner = sections_in(section.model_fields[name].annotation)
        if place in found:
            yield from _kinds(found[place], told, regime, found)
        elif inner:
            yield from _section(inner[0], f"{place}.", regime, found)
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


def _kinds(
    registry: Registry[Any],
    told: Mapping[str, Any],
    regime: str,
    found: Mapping[str, Registry[Any]],
) -> Iterator[Key]:
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
        for each in _section(kind, f"{registry.place}.", regime, found):
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


def _type(told: Mapping[str, Any], known: Mapping[str, Any]) -> str:
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
        inside: Mapping[str, Any] = told.get("items", {})
        return f"list of: {_type(inside, known)}" if inside else "list"
    return WORDS.get(str(told.get("type")), "any value")


def _bounds(told: Mapping[str, Any]) -> str:
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
        default = "needed" if each.needed and each.default is None else _code(each.default)
        cells = (f"`{key}`", each.type, default, each.bounds, ", ".join(only), each.about)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _code(text: str | None) -> str:
    return "" if text is None else f"`{text}`"
