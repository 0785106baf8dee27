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

>>> encode((np.array(["Yes", "no", "YES "]),), "x.csv", "binary")[1]
('no', 'yes')
>>> encode((np.array(["no", "yes"]),), "x.csv", classes=("no", "yes", "maybe"))[1]
('no', 'yes', 'maybe')
>>> encode((np.array([0.0, 50.0, 120.0]),), "x.csv", "number", (0.0, 100.0))[0][0]
array([-1. ,  0. ,  1.4], dtype=float32)
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sordino.base.errors import DataError
from sordino.data.dataset import Array, Labels, Names, Single, Span, listed
from sordino.data.identity import number_in_text, spelled
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


def encode(
    parts: Sequence[Array],
    place: str,
    target: Target | None = None,
    label_range: Span | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[tuple[Array, ...], Names]:
    """Labels as ``target`` says they are, or as classes where nothing is said and nothing speaks
    against it; the ``classes`` that there are, where they are stated.

    Args:
        parts: labels of the parts of a data set (training, test), each (n,).

    Returns:
        Of each part class numbers, int64, or numbers, float32, in units of half a range; and a name
        for each class number, none for numbers.

    Raises:
        DataError: where they are something else, with what to set.
    """
    labels = _Labels(np.concatenate(parts), place, len(parts[0]))
    values: Array
    names: Names = ()
    if target == "number":
        assert label_range is not None  # which the study's table has checked
        values = labels.numbers(label_range)
    elif classes is not None:
        values, names = labels.stated(classes, binary=target == "binary"), tuple(classes)
    elif target == "binary":
        values, names = labels.two()
    else:
        if target is None:
            labels.refuse_odd()
        values, names = labels.classes()
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    return tuple(np.split(values, cuts)), names


def clamped(values: Array) -> Array:
    """Scaled numbers, none outside of the range."""
    return np.clip(values, np.float32(-1.0), np.float32(1.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Labels of all parts, one after another.

    Attributes:
        values: as they are written.
        place: the file, for refusals.
        first: how many the first part has.
    """

    values: Array
    place: str
    first: int

    @property
    def kind(self) -> str:
        """Of numbers or text, as numpy calls it."""
        return self.values.dtype.kind

    def refuse(self, bad: Array, fault: str) -> None:
        """Refuse the first of the labels that are ``bad`` (n,)."""
        if (rows := np.flatnonzero(bad)).size:
            row = int(rows[0])
            where = f"row {row}" if row < self.first else f"row {row - self.first} of the test set"
            label = self.values[row].item()
            found = f"has the label {label!r}" if label not in ("", b"") else "has no label"
            raise DataError(f"{self.place}: {where} (the first is 0) {found}{fault}")

    def numbers(self, label_range: Span) -> Single:
        """Numbers in units of half a range."""
        if self.kind not in "buif":
            raise DataError(
                f"{self.place}: data.target = 'number', and labels hold {self.values.dtype}, not "
                "numbers; leave data.target out for classes"
            )
        low, high = label_range
        exact = self.values.astype(np.float64)
        self.refuse(~np.isfinite(exact), "; every label must be finite. Drop the row")
        with np.errstate(over="ignore"):
            scaled = (2.0 * ((exact - low) / (high - low)) - 1.0).astype(np.float32)
        self.refuse(
            ~np.isfinite(scaled),
            f", which is too far from data.label_range = [{low:g}, {high:g}] to be measured. "
            "Correct or drop the row",
        )
        return scaled

    def stated(self, classes: Sequence[str], *, binary: bool) -> Labels:
        """Numbers of the stated classes."""
        number, values = class_numbers(classes, binary=binary), self.values
        if self.kind == "f":
            self._refuse_fractions()
            values = values.astype(np.int64)
        written, places = np.unique(values, return_inverse=True)
        known = np.array(
            [-1 if (found := number(each)) is None else found for each in self._texts(written)],
            np.int64,
        )
        numbers: Labels = known[places.reshape(-1)]
        self.refuse(
            numbers < 0,
            f", and data.classes lists {_listed(classes)}. Add it there if it is public that there "
            "is such a class, or drop the row",
        )
        return numbers

    def two(self) -> tuple[Labels, Names]:
        """Numbers of two values, text without regard to case and blanks, and their names."""
        values = self.values
        if self.kind in "SU":
            values = np.array([text.strip().casefold() for text in self._texts().tolist()])
            self.refuse(values == "", "")
        elif self.kind == "f":
            self.refuse(~np.isfinite(values), ", which is no finite number; drop the row")
        names, numbers = np.unique(values, return_inverse=True)
        if len(names) != 2:
            shown = listed(names.tolist(), 5)
            raise DataError(
                f"{self.place}: data.target = 'binary' needs labels of two values, and there "
                f"{'is' if len(names) == 1 else 'are'} {len(names)} ({shown}); {_SAY}"
            )
        even = self.kind == "f" and bool((names == np.round(names)).all())
        return numbers.astype(np.int64), tuple(
            str(int(name) if even else name) for name in names.tolist()
        )

    def classes(self) -> tuple[Labels, Names]:
        """Class numbers as they stand, or numbers of texts in sorted order, and names."""
        if self.kind == "f":
            self._refuse_fractions()
        if self.kind not in "buifSU":
            raise DataError(
                f"{self.place}: labels must be class numbers or text, found {self.values.dtype}"
            )
        if self.kind not in "uif":
            texts = self._texts()
            self.refuse(texts == "", "")
            names, numbers = np.unique(texts, return_inverse=True)
            return numbers.astype(np.int64), tuple(names.tolist())
        if (largest := int(self.values.max())) >= MOST_CLASSES:  # before it overflows an int64
            raise DataError(
                f"{self.place}: label {largest} would mean {largest + 1} classes; number the "
                "classes 0, 1, 2, ... or use text"
            )
        self.refuse(self.values < 0, "; class numbers start at 0 (use 0 and 1, not -1 and 1)")
        return self.values.astype(np.int64), tuple(map(str, range(largest + 1)))

    def refuse_odd(self) -> None:
        """Refuse labels that look like something other than classes."""
        values, text = self.values, self.kind in "SU"
        if self.kind not in "uifSU":
            return
        if self.kind == "f":
            fractions = np.isfinite(values) & (values != np.round(values))
            self.refuse(fractions, f", which is no class number: {_SAY}")
        names = np.unique(self._texts() if text else values)
        if len(names) > max(MANY, len(values) / 10):
            raise DataError(
                f"{self.place}: the labels of {len(values)} rows have {len(names)} distinct "
                f"values, which is many for classes: {_SAY}"
            )
        if text:
            _refuse_alike(names, self.place)
        elif np.isfinite(names[-1]):
            most = int(names[-1]) + 1
            if MANY < most <= MOST_CLASSES and 2 * len(names) < most:
                raise DataError(
                    f"{self.place}: a label of {most - 1} means {most} classes, and {len(names)} "
                    f"of them occur: {_SAY}; or number the classes 0, 1, 2, ... without gaps"
                )

    def _texts(self, values: Array | None = None) -> Array:
        try:
            return (self.values if values is None else values).astype(str)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.place}: labels must be class numbers or text, but some are bytes that are "
                "not ASCII"
            ) from error

    def _refuse_fractions(self) -> None:
        values = self.values
        bad = ~np.isfinite(values) | (values != np.round(values)) | (np.abs(values) > 2**53)
        self.refuse(bad, "; labels must be class numbers or text")


def _refuse_alike(names: Array, place: str) -> None:
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
        return spelled(label.casefold() if binary else label)

    numbers = {plain(name): number for number, name in enumerate(classes)}
    if len(numbers) < len(classes):
        raise DataError(
            f"data.classes names one class twice: {_listed(classes)}; give each class one name"
        )
    if not any(map(number_in_text, map(str.strip, classes))):
        numbers = {**{str(number): number for number in range(len(classes))}, **numbers}
    return lambda label: numbers.get(plain(label))


def notice_classes(classes: Sequence[str]) -> None:
    """Tell the owner of private rows that classes were read from them, and what to state."""
    stated = listed([f'"{shown_name(name)}"' for name in classes], MANY)
    notice(
        "the classes were read from private rows, which no epsilon covers. If it is public that "
        f"there are these and no others, state them in [data]: classes = [{stated}]"
    )


def _listed(names: Sequence[str]) -> str:
    return listed([repr(shown_name(name)) for name in names], MANY)


def refuse_nobody(values: Array, role: str, place: str) -> None:
    """Refuse a row of nobody, a NaN where it says whose it is, and fractions: whole numbers that
    were rounded to them, with one of single precision or of more than 64 bits, may be one.

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
    if values.dtype.kind == "f":
        raise DataError(
            f"{place}: row 0 (the first is 0) has the {role} {values[0]}, a fraction, to which "
            "another number may have been rounded; make the column whole numbers or text "
            f"(data.{role})"
        )


def encode_clients(parts: Sequence[Array]) -> tuple[tuple[Labels, ...], Names]:
    """Owners numbered 0.. in sorted order, the same numbers in training and test, and their names,
    each once, fit to show.

    Names are text from a file: control characters go, white space becomes one blank, and what is
    long is cut.

    >>> encode_clients([np.array(["b", "a\\x1b[31m", "b"])])
    ((array([1, 0, 1]),), ('a[31m', 'b'))
    """
    values, numbers = np.unique(np.concatenate(list(parts)), return_inverse=True)
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    shown: dict[str, None] = {}
    for number, value in enumerate(values):
        name = shown_name(str(value)) or f"client {number}"
        while name in shown:
            numbered = f"{name[: LONGEST_NAME - 12]} ({number})"
            name = f"{name}'" if f"{name} ({number})" in shown else numbered
        shown[name] = None
    return tuple(np.split(numbers.astype(np.int64), cuts)), tuple(shown)


def shown_name(text: str) -> str:
    """A name from a file on one line, plain, of :data:`LONGEST_NAME` characters at most."""
    kept = (c for c in text if c.isspace() or unicodedata.category(c)[0] != "C")
    clean = " ".join("".join(kept).split())
    return clean if len(clean) <= LONGEST_NAME else f"{clean[: LONGEST_NAME - 1]}…"
