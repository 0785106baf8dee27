"""Labels: one of several classes, one of two, or a number; and whose an example is.

**classes.** Integers (or whole floats, or true/false) are class numbers 0..k-1 as they stand; text
is numbered in sorted order and kept as class names. Which classes exist is treated as public
knowledge, like the list of columns.

**binary.** Exactly two values, whatever they are: numbers as they are, text without regard to case
or surrounding blanks. The second in sorted order counts as the positive one.

**number.** Any finite number. Its range is public and given by the user, never looked up in the
data: labels become t = 2 (y - low) / (high - low) - 1. What is trained on is clamped to [-1, 1];
what models are measured on is not.

**Nothing said.** Then labels are classes, but what looks like something else is refused, not
guessed: fractions; more than :data:`MANY` distinct numbers or texts that are more than a tenth of
the rows; numbers up to more than :data:`MANY` of which fewer than half occur; names that differ
only in case or blanks.

**Stated classes.** Which classes there are is public, so it should not be looked up in private
rows: a label that one row alone has would become an output of the model. A stated list is taken as
it is, with or without rows of each; a label outside of it is refused. Without one the labels that
occur are the classes, and :func:`notice_classes` tells the owner.

Shapes: labels (n,).

>>> encode((np.array(["Yes", "no", "YES "]),), "x.csv", "binary").classes
('no', 'yes')
>>> encode((np.array(["no", "yes"]),), "x.csv", classes=("no", "yes", "maybe")).classes
('no', 'yes', 'maybe')
>>> encode((np.array([0.0, 50.0, 120.0]),), "x.csv", "number", (0.0, 100.0)).parts[0]
array([-1. ,  0. ,  1.4], dtype=float32)
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.data.dataset import Labels, Span
from sordino.data.identity import number_in_text, pointed
from sordino.data.notices import notice

Target = Literal["classes", "binary", "number"]

MOST_CLASSES = 1 << 16
MANY = 20
"""Classes from which on labels may be something else."""
LONGEST_NAME = 60
"""Characters of a client's name that are shown."""

_SAY = (
    "set data.target = 'number' with data.label_range = [low, high] to predict numbers, or "
    "data.target = 'classes' if these are classes"
)

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Labels of the parts of a data set (training, test), each (n,).

    Attributes:
        parts: class numbers, int64; or numbers, float32, in units of half a range.
        classes: a name for each class number; none for numbers.
        span: the range of numbers, in the label's own units.
    """

    parts: tuple[Column, ...]
    classes: tuple[str, ...]
    span: Span | None = None


def encode(
    parts: Sequence[Column],
    place: str,
    target: Target | None = None,
    label_range: Span | None = None,
    classes: Sequence[str] | None = None,
) -> Encoded:
    """Labels as ``target`` says they are, or as classes where nothing is said and nothing speaks
    against it; the ``classes`` that there are, where they are stated.

    Raises:
        DataError: where they are something else, with what to set.
    """
    if target == "number":
        return _numbers(parts, place, label_range)
    if classes is not None:
        return _stated(parts, place, tuple(classes), binary=target == "binary")
    if target == "binary":
        return _two(parts, place)
    if target is None:
        _refuse_odd(parts, place)
    numbers, classes = encode_labels(parts, place)
    return Encoded(numbers, classes)


def _numbers(parts: Sequence[Column], place: str, label_range: Span | None) -> Encoded:
    if label_range is None:
        raise DataError(
            f"{place}: data.target = 'number' needs data.label_range = [low, high], public bounds "
            "of the label that do not come from this data: looked up in it, they would tell of "
            "single rows"
        )
    low, high = label_range
    found = []
    for values in parts:
        if values.dtype.kind not in "buif":
            raise DataError(
                f"{place}: data.target = 'number', and labels hold {values.dtype}, not numbers; "
                "leave data.target out for classes"
            )
        exact = values.astype(np.float64)
        if (bad := np.flatnonzero(~np.isfinite(exact))).size:
            raise DataError(
                f"{place}: row {int(bad[0])} has the label {values[bad[0]]}; every label must be "
                "finite. Drop the row"
            )
        with np.errstate(over="ignore"):
            scaled = (2.0 * ((exact - low) / (high - low)) - 1.0).astype(np.float32)
        if (bad := np.flatnonzero(~np.isfinite(scaled))).size:
            raise DataError(
                f"{place}: row {int(bad[0])} has the label {values[bad[0]]}, which is too far from "
                f"data.label_range = [{low:g}, {high:g}] to be measured. Correct or drop the row"
            )
        found.append(scaled)
    return Encoded(tuple(found), (), (low, high))


def clamped(values: Column) -> Column:
    """Scaled numbers, none outside of the range."""
    return np.clip(values, np.float32(-1.0), np.float32(1.0))


_TRUTH = ("true", "false")


def class_numbers(classes: Sequence[str], *, binary: bool = False) -> Callable[[str], int | None]:
    """Return the function from a label as written to its number among stated classes, or None.

    A number counts as a number however it is written: no other row decides how it is read. Whole
    numbers from 0 on count, too, where no class is named by a number.

    Args:
        classes: their names.
        binary: whether letters count alike in both cases.

    Raises:
        DataError: if two names are one.

    >>> number = class_numbers(("ill", "well"))
    >>> number("well"), number(" 1.0"), number("dead")
    (1, 1, None)
    """

    def plain(label: str) -> str:
        label = label.strip()
        text = pointed(label.casefold() if binary else label)
        return number_in_text(text) or (text.lower() if text.lower() in _TRUTH else text)

    numbers = {plain(name): number for number, name in enumerate(classes)}
    if len(numbers) < len(classes):
        raise DataError(
            f"data.classes names one class twice: {_listed(classes)}; give each class one name"
        )
    if not any(map(number_in_text, map(str.strip, classes))):
        numbers = {**{str(number): number for number in range(len(classes))}, **numbers}
    return lambda label: numbers.get(plain(label))


def _stated(
    parts: Sequence[Column], place: str, classes: tuple[str, ...], *, binary: bool
) -> Encoded:
    """Numbers of the stated classes."""
    number, found = class_numbers(classes, binary=binary), []
    for values in parts:
        if values.dtype.kind == "f":
            _whole_numbers(values, place)
            labels = values.astype(np.int64).tolist()
        else:
            _refuse_bytes((values,), place)
            labels = values.tolist()
        numbers = [number(str(label)) for label in labels]
        if None in numbers:
            row = numbers.index(None)
            raise DataError(
                f"{place}: row {row} (the first is 0) has the label {str(values[row])!r}, and "
                f"data.classes lists {_listed(classes)}. Add it there if it is public that there "
                "is such a class, or drop the row"
            )
        found.append(np.array(numbers, np.int64))
    return Encoded(tuple(found), classes)


def notice_classes(classes: Sequence[str]) -> None:
    """Tell the owner of private rows that classes were read from them, and what to state."""
    stated = ", ".join(f'"{shown_name(name)}"' for name in classes[:MANY])
    more = f", and {len(classes) - MANY} more" if len(classes) > MANY else ""
    notice(
        "the classes were read from private rows, which no epsilon covers. If it is public that "
        f"there are these and no others, state them in [data]: classes = [{stated}{more}]"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, map(shown_name, names[:MANY])))
    return shown + (f" and {len(names) - MANY} more" if len(names) > MANY else "")


def _two(parts: Sequence[Column], place: str) -> Encoded:
    if any(values.dtype.kind in "SU" for values in parts):
        _refuse_bytes(parts, place)
        parts = [np.array([str(each).strip().casefold() for each in values]) for values in parts]
        _refuse_empty(parts, place)
    else:
        for values in parts:
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise DataError(f"{place}: a label is no finite number; drop its row")
    names = np.unique(np.concatenate([np.asarray(values) for values in parts]))
    if len(names) != 2:
        shown = ", ".join(str(name) for name in names[:5]) + (", …" if len(names) > 5 else "")
        raise DataError(
            f"{place}: data.target = 'binary' needs labels of two values, and there "
            f"{'is' if len(names) == 1 else 'are'} {len(names)} ({shown}); {_SAY}"
        )
    whole = names.dtype.kind == "f" and bool((names == np.round(names)).all())
    return Encoded(
        tuple(np.searchsorted(names, values).astype(np.int64) for values in parts),
        tuple(str(int(name) if whole else name) for name in names.tolist()),
    )


def _refuse_odd(parts: Sequence[Column], place: str) -> None:
    """Refuse labels that look like something other than classes."""
    if any(values.dtype.kind not in "uifSU" for values in parts):
        return
    text = any(values.dtype.kind in "SU" for values in parts)
    if text:
        _refuse_bytes(parts, place)
    for values in parts:
        fractions = (
            values.dtype.kind == "f"
            and (bad := np.flatnonzero(np.isfinite(values) & (values != np.round(values)))).size
        )
        if fractions:
            raise DataError(
                f"{place}: row {int(bad[0])} has the label {values[bad[0]]}, which is no class "
                f"number: {_SAY}"
            )
    rows = sum(map(len, parts))
    whole = np.concatenate([values.astype(str) if text else values for values in parts])
    names = np.unique(whole)
    if len(names) > max(MANY, rows / 10):
        raise DataError(
            f"{place}: the labels of {rows} rows have {len(names)} distinct values, which is many "
            f"for classes: {_SAY}"
        )
    if not text and np.isfinite(names[-1]):
        most = int(names[-1]) + 1
        if MANY < most <= MOST_CLASSES and 2 * len(names) < most:
            raise DataError(
                f"{place}: a label of {most - 1} means {most} classes, and {len(names)} of them "
                f"occur: {_SAY}; or number the classes 0, 1, 2, ... without gaps"
            )
    if text:
        _refuse_alike(names, place)


def _refuse_alike(names: Column, place: str) -> None:
    """Refuse two names that differ only in case or blanks."""
    seen: dict[str, str] = {}
    for name in map(str, names):
        other = seen.setdefault(name.strip().casefold(), name)
        if other != name:
            raise DataError(
                f"{place}: the labels {other!r} and {name!r} differ only in case or blanks. Spell "
                "them alike; or set data.target = 'binary', which takes them for one, or "
                "'classes', which keeps them apart"
            )


def _refuse_bytes(parts: Sequence[Column], place: str) -> None:
    for values in parts:
        try:
            values.astype(str)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{place}: labels must be class numbers or text, but some are bytes that are not "
                "ASCII"
            ) from error


def _refuse_empty(parts: Sequence[Column], place: str) -> None:
    for values in parts:
        if (empty := np.flatnonzero(values == "")).size:
            raise DataError(f"{place}: row {int(empty[0])} has no label")


def encode_labels(
    parts: Sequence[npt.NDArray[Any]], place: str
) -> tuple[tuple[Labels, ...], tuple[str, ...]]:
    """Class numbers for each of ``parts`` (training, test) under one list of class names."""
    for values in parts:
        if values.dtype.kind == "f":
            _whole_numbers(values, place)
    if odd := [values.dtype for values in parts if values.dtype.kind not in "buifSU"]:
        raise DataError(f"{place}: labels must be class numbers or text, found {odd[0]}")
    if all(values.dtype.kind in "uif" for values in parts):
        for values in parts:
            if (most := int(values.max())) >= MOST_CLASSES:  # before it overflows an int64
                raise DataError(
                    f"{place}: label {most} would mean {most + 1} classes; number the "
                    "classes 0, 1, 2, ... or use text"
                )
        numbers = tuple(values.astype(np.int64) for values in parts)
        for values in numbers:
            row = int(np.argmin(values))
            if values[row] < 0:
                raise DataError(
                    f"{place}: row {row} has the label {values[row]}; class numbers start at "
                    "0 (use 0 and 1, not -1 and 1)"
                )
        largest = max(int(values.max()) for values in numbers)
        return numbers, tuple(str(i) for i in range(largest + 1))
    _refuse_bytes(parts, place)
    texts = [values.astype(str) for values in parts]
    _refuse_empty(texts, place)
    names = np.unique(np.concatenate(texts))
    return tuple(np.searchsorted(names, values).astype(np.int64) for values in texts), tuple(
        str(name) for name in names
    )


def refuse_nobody(values: npt.NDArray[Any], role: str, place: str) -> None:
    """Refuse a row of nobody, a NaN where it says whose it is, and numbers beyond 2^53 that are
    rounded, by a fraction in their column or by more than 64 bits: two may be one.

    Raises:
        DataError: with the first such row.
    """
    nobody = np.isnan(values) if values.dtype.kind == "f" else np.zeros(0, bool)
    if values.dtype.kind == "U" and role == "person":  # whose numbers are read as text
        nobody = np.isin(values, ("nan", "NaN"))
    if (bad := np.flatnonzero(nobody)).size:
        raise DataError(
            f"{place}: row {int(bad[0])} (the first is 0) has no {role} (data.{role}); drop the row"
        )
    if values.dtype.kind == "f" and (bad := np.flatnonzero(np.abs(values) > 2**53)).size:
        raise DataError(
            f"{place}: row {int(bad[0])} (the first is 0) has the {role} {values[bad[0]]}, which "
            f"was rounded, as others may have been to the same; make them text (data.{role})"
        )


def encode_clients(parts: Sequence[npt.NDArray[Any]]) -> tuple[Labels, ...]:
    """Owners numbered 0.. in sorted order, the same numbers in training and test."""
    _, numbers = np.unique(np.concatenate(list(parts)), return_inverse=True)
    cuts = np.cumsum([len(values) for values in parts])[:-1]
    return tuple(np.split(numbers.astype(np.int64), cuts))


def client_names(parts: Sequence[npt.NDArray[Any]]) -> tuple[str, ...]:
    """Return the names of the owners of :func:`encode_clients`, by number: each once, fit to show.

    Names are text from a file: control characters go, white space becomes one blank, and what is
    long is cut.

    >>> client_names([np.array(["b", "a\\x1b[31m", "b"])])
    ('a[31m', 'b')
    """
    shown: dict[str, None] = {}
    for number, value in enumerate(np.unique(np.concatenate(list(parts)))):
        name = shown_name(str(value)) or f"client {number}"
        while name in shown:
            name = (
                f"{name[: LONGEST_NAME - 12]} ({number})"
                if f"{name} ({number})" not in shown
                else f"{name}'"
            )
        shown[name] = None
    return tuple(shown)


def shown_name(text: str) -> str:
    """A name from a file on one line, plain, of :data:`LONGEST_NAME` characters at most."""
    clean = " ".join(
        "".join(
            " " if c.isspace() else c
            for c in text
            if c.isspace() or unicodedata.category(c)[0] != "C"
        ).split()
    )
    return clean if len(clean) <= LONGEST_NAME else f"{clean[: LONGEST_NAME - 1]}…"


def _whole_numbers(values: npt.NDArray[Any], place: str) -> None:
    bad = np.flatnonzero(
        ~np.isfinite(values) | (values != np.round(values)) | (np.abs(values) > 2**53)
    )
    if bad.size:
        raise DataError(
            f"{place}: row {int(bad[0])} has the label {values[bad[0]]}; labels must be "
            "class numbers or text"
        )
