"""JSON and TOML from files of others, with limits.

The parsers of the standard library recurse, so a few kilobytes of brackets end them with a
RecursionError, and what was nested just less ends whoever walks through it later. Numbers of many
digits raise a bare ValueError, and a key of ten thousand dotted parts makes ``tomllib`` take memory
that grows with their square. So depth and size are bounded first.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from sordino.base.errors import SordinoError, StudyError

DEEPEST = 64
"""Most levels of nested lists and tables; the deepest that this program writes has about 8."""

_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*+"')
_DOTTED = re.compile(r"(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+)" + f"{{{DEEPEST}}}")


class Malformed(ValueError):
    """Text that is no JSON or TOML, or beyond the limits; says why."""


def json_of(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        Malformed: if it is none, or nested deeper than :data:`DEEPEST`.
    """
    try:
        words = text.decode("utf-8") if isinstance(text, bytes) else text
        if (
            words.count("[") + words.count("{") > DEEPEST
            and (depth := _depth(_STRINGS.sub('""', words))) > DEEPEST
        ):
            raise Malformed(f"it is nested {depth} deep, and at most {DEEPEST} are read")
        return json.loads(words)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from error


def object_of(
    content: bytes, place: object, kind: type[SordinoError] = StudyError
) -> dict[str, Any]:
    """The object in a JSON document; the error, of ``kind``, names ``place`` otherwise."""
    try:
        found = json_of(content)
    except Malformed as error:
        raise kind(
            f"{place}: is not JSON that can be read ({error}). Restore it from a copy"
        ) from error
    if not isinstance(found, dict):
        raise kind(
            f"{place}: holds {type(found).__name__} where an object belongs. Restore it from a copy"
        )
    return found


def toml_of(text: str) -> dict[str, Any]:
    """The table in a TOML text.

    Raises:
        Malformed: if it is none, or nested deeper than :data:`DEEPEST`.
    """
    if (long := _DOTTED.search(text)) is not None:
        raise Malformed(f"a key of more than {DEEPEST} parts: {long[0][:40]}...")
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise Malformed(f"it is nested too deep; at most {DEEPEST} are read") from error
    except ValueError as error:  # TOMLDecodeError, and numbers that Python does not convert
        raise Malformed(str(error)) from error
    level: list[Any] = [table]
    for _ in range(DEEPEST + 1):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return table
    raise Malformed(f"it is nested more than {DEEPEST} deep, and at most {DEEPEST} are read")


def _depth(text: str) -> int:
    """The deepest nesting of brackets in a text without strings."""
    depth = deepest = 0
    for found in re.finditer(r"[\[{\]}]", text):
        depth += 1 if found[0] in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
