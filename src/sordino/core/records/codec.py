"""Records to JSON and back: one codec for the log, ``run.json`` and ``environment.json``.

Infinity is the string "inf" in JSON and a float in a record; NaN is written as null. What is read
is held against the types of its record, and what does not fit is named: key, what belongs there,
what stands there.

>>> row(b'{"kind": "round", "round": 3, "epsilon": "inf", "mu": 0.5}').extra
{'mu': 0.5}
>>> row(b'{"kind": "round", "round": "x"}')
Traceback (most recent call last):
    ...
sordino.core.records.codec.Misfit: round must be a whole number; got 'x'
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar

import msgspec

from sordino.base.errors import SordinoError, StudyError
from sordino.base.parsing import Malformed, json_of, object_of
from sordino.core import regimes
from sordino.core.records.base import Open, Real
from sordino.core.records.metrics import Metrics
from sordino.core.records.rows import KINDS, Round, Row, Unknown
from sordino.core.records.run import FORMAT, About, Environment, Facts

S = TypeVar("S", bound=msgspec.Struct)

WORDS = {
    "array": "a list",
    "object": "an object",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "Real": "a number",
    "float": "a number",
}
_PATH = re.compile(r"\.(\w+)|\[(\d+)\]|(\[\.\.\.\])")


class Misfit(Malformed):
    """JSON that does not fit its record; says where and why."""


def simple(value: object) -> object:
    """A value as JSON can hold it: records as objects, tuples as lists, infinity as a word, no NaN.

    >>> simple({"epsilon": math.inf, "spent": (1.0, math.nan)})
    {'epsilon': 'inf', 'spent': [1.0, None]}
    """
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return ("inf" if value > 0 else "-inf") if math.isinf(value) else value
    if isinstance(value, Mapping):
        return {str(key): simple(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [simple(item) for item in value]
    if isinstance(value, msgspec.Struct):
        return plain(value)
    if is_dataclass(value) and not isinstance(value, type):
        return simple({each.name: getattr(value, each.name) for each in fields(value)})
    return value


def plain(record: msgspec.Struct) -> dict[str, object]:
    """A record as the object that stands in its file.

    >>> plain(Round(round=2, extra={"mu": 0.5}))
    {'kind': 'round', 'round': 2, 'mu': 0.5}
    """
    builtins = msgspec.to_builtins(record, enc_hook=_own)
    found: dict[str, object] = {}
    for key, value in builtins.items():
        if key == "facts" and isinstance(record, About):
            found |= value
        elif key != "extra" or not isinstance(record, Open):
            found[key] = value
    if isinstance(record, Open):
        found |= {key: value for key, value in record.extra.items() if key not in found}
    return {key: simple(value) for key, value in found.items()}


def _own(value: object) -> object:
    """Numbers of NumPy's, which are Python's as well."""
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)
    raise NotImplementedError(f"{type(value).__name__} is nothing that JSON knows")


def text(record: msgspec.Struct, *, indent: int | None = None) -> str:
    """A record as JSON."""
    return dumped(record, indent=indent)


def dumped(value: object, *, indent: int | None = None) -> str:
    """JSON with infinity as the string "inf" and no NaN.

    >>> dumped({"epsilon": float("inf"), "tau": 2})
    '{"epsilon": "inf", "tau": 2}'
    """
    return json.dumps(simple(value), indent=indent, allow_nan=False, ensure_ascii=False)


def row(line: bytes | str, regime: str | None = None) -> Row | Unknown:
    """A row of the log of a run of this regime; of the first one where none is named.

    Raises:
        StudyError: if there is no such regime.
        Malformed: if it is not JSON; :class:`Misfit` if it is no row.
    """
    found = json_of(line)
    if not isinstance(found, dict):
        raise Misfit(f"it must be an object; got {_shown(found)}")
    kind = found.get("kind")
    if kind == "round":
        return _open(found, regimes.row(regime), "kind")
    known = KINDS.get(kind) if isinstance(kind, str) else None
    return Unknown(extra=found) if known is None else _open(found, known, "kind")


def closed(line: bytes | str) -> int | None:
    """The number of the round that a row of the log closes; None of any other row.

    >>> closed(b'{"kind": "round", "round": 3}'), closed(b'{"kind": "late", "round": 3}')
    (3, None)
    >>> closed(b'{"kind": "rou')  # cut short
    """
    try:
        found = json_of(line)
        if not isinstance(found, dict) or found.get("kind") != "round":
            return None
        number = fitted({"kind": "round", "round": found.get("round", 0)}, Round).round
    except Malformed:
        return None
    return number if isinstance(number, int) else 0


def about(content: bytes, place: object, error: type[SordinoError] = StudyError) -> About:
    """What a ``run.json`` says.

    Raises:
        SordinoError: of this kind, naming the place, the key and what stands there.
    """
    return about_of(object_of(content, place, error), place, error)


def about_of(
    found: Mapping[str, object], place: object, error: type[SordinoError] = StudyError
) -> About:
    """What the object in a ``run.json`` says; raises as :func:`about`."""
    try:
        kind = _facts(found.get("regime"))
        facts, rest = _split({key: value for key, value in found.items() if key != "regime"}, kind)
        if (version := rest.get("format", FORMAT)) != FORMAT:
            raise Misfit(
                f"format must be {FORMAT}, which this version reads; got {_shown(version)}"
            )
        if "facts" in rest:
            raise Misfit("facts must not stand there by that name")
        return msgspec.structs.replace(_open(rest, About), facts=fitted(facts, kind))
    except Misfit as misfit:
        raise error(f"{place}: {misfit}. Restore it from a copy") from misfit
    except StudyError as unknown:  # of a regime
        raise error(f"{place}: {unknown}") from None


def _facts(regime: object) -> type[Facts]:
    """What a regime adds to ``run.json``; the first one, where none is said."""
    if regime is not None and not isinstance(regime, str):
        raise Misfit(f"regime must be text; got {_shown(regime)}")
    return regimes.facts(regime)


def environment(
    content: bytes, place: object, error: type[SordinoError] = StudyError
) -> Environment:
    """What an ``environment.json`` says.

    Raises:
        SordinoError: of this kind, naming the place, the key and what stands there.
    """
    try:
        return _open(object_of(content, place, error), Environment)
    except Misfit as misfit:
        raise error(f"{place}: {misfit}. Restore it from a copy") from misfit


def metrics(content: bytes, place: object) -> Metrics:
    """``metrics.json``.

    Raises:
        StudyError: naming ``place`` and what does not fit.
    """
    try:
        return _open(object_of(content, place, StudyError), Metrics)
    except Misfit as misfit:
        raise StudyError(f"{place}: {misfit}. Restore it from a copy") from misfit


def _split(
    found: Mapping[str, object], kind: type[msgspec.Struct]
) -> tuple[dict[str, object], dict[str, object]]:
    """The keys that a record names, and all others."""
    own = {key: value for key, value in found.items() if key in kind.__struct_fields__}
    return own, {key: value for key, value in found.items() if key not in own}


O = TypeVar("O", bound=Open)  # noqa: E741


def _open(found: Mapping[str, object], kind: type[O], tag: str | None = None) -> O:
    """A record that may have further keys."""
    own, others = _split({key: value for key, value in found.items() if key != tag}, kind)
    if "extra" in own:
        others["extra"] = own.pop("extra")
    return msgspec.structs.replace(fitted(own, kind), extra=others)


def fitted(found: Mapping[str, object], kind: type[S]) -> S:
    """JSON that was read, as a record of this kind.

    Raises:
        Misfit: naming the key and what stands there.
    """
    try:
        return msgspec.convert(found, kind, dec_hook=_hook)
    except (msgspec.ValidationError, OverflowError, UnicodeEncodeError) as error:
        # keys may hold halves of surrogates
        raise Misfit(_said(str(error), found)) from error


def _hook(kind: type, value: object) -> object:
    if kind is object:
        return value
    if value in ("inf", "-inf"):
        return math.inf if value == "inf" else -math.inf
    if isinstance(value, Real):
        return value
    raise ValueError("Expected `Real`")


def _said(error: str, found: object) -> str:
    """A message of the decoder in words: the key, what belongs there, what stands there."""
    expected, _, path = error.partition(" - at ")
    key, value, inside = "", found, True
    for name, index, rest in _PATH.findall(path):
        key += rest or (f"[{index}]" if index else f".{name}")
        inside = inside and not rest  # which of an object's values it is the decoder does not say
        if inside and isinstance(value, list):
            value = value[int(index)]
        elif inside and isinstance(value, dict):
            value = value.get(name)
    return f"{key.lstrip('.') or 'it'} must be {_wanted(expected)}; got {_shown(value)}"


def _wanted(expected: str) -> str:
    """
    >>> _wanted("Expected `array | null`, got `int`"), _wanted("Expected `int` >= 0")
    ('a list or null', 'a whole number, at least 0')
    """
    match = re.match(r"Expected `([^`]*)`(?: ([<>])= (-?\d+))?", expected)
    if match is None:
        return f"something else ({expected})"
    kinds = " or ".join(WORDS.get(kind, kind) for kind in match[1].split(" | "))
    return (
        kinds
        if match[2] is None
        else f"{kinds}, at {'least' if match[2] == '>' else 'most'} {match[3]}"
    )


def _shown(value: object) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # a whole number of more digits than Python prints
        return "a number of many digits"
