"""Strict tables: unknown keys and wrong kinds are refused with their place and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from sordino.extend.commands import did_you_mean
from sordino.extend.runs import StudyError


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a file of the catalogue."""


P = TypeVar("P", bound=Part)


def converted(table: object, kind: type[P], place: str) -> P:
    """A table that was read, as a part of this kind.

    Raises:
        StudyError: naming ``place``, the key within it and what stands there.
    """
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise StudyError(f"{place}: {_said(str(error), kind)}") from None


def chosen(told: object, kinds: Sequence[type[P]], place: str, what: str) -> P:
    """The part whose class is chosen by its first key: ``{column = "tau"}`` is of ``Column``.

    Raises:
        StudyError: if it is no table with exactly one such key.
    """
    heads = {kind.__struct_fields__[0]: kind for kind in kinds}
    if not isinstance(told, Mapping):
        raise StudyError(f"{place}: {what} must be a table; got {told!r}")
    named = [key for key in told if key in heads]
    if not named:
        near = next(filter(None, (did_you_mean(str(key), heads) for key in told)), "")
        raise StudyError(
            f"{place}: {what} has none of the keys that say which one it is{near or '.'} "
            f"Known: {', '.join(heads)}"
        )
    # an option of one kind may be called as the first key of another: `until` has a `column`
    fitting = [key for key in named if set(told) <= set(heads[key].__struct_fields__)]
    return converted(told, heads[(fitting or named)[0]], f"{place} ({what})")


def _said(error: str, kind: type[Part]) -> str:
    """The decoder's message with a remedy."""
    unknown = re.match(r"Object contains unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?", error)
    if unknown is None:
        message, _, where = error.partition(" - at `$")
        return f"{where.strip('.`') or 'it'}: {message}"
    key, where = unknown[1], unknown[2]
    names = sorted(set(_names(kind)))
    return (
        f"{where + '.' if where else ''}{key} is no key that is known there"
        f"{did_you_mean(key, names) or '.'} Leave it out or correct it"
    )


def _names(kind: Any) -> Iterator[str]:
    """All keys of a part and of the parts in it."""
    for field in msgspec.structs.fields(kind):
        yield field.name
        for inner in _parts(field.type):
            yield from _names(inner)


def _parts(annotation: Any) -> Iterator[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _parts(inner)
