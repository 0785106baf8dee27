r"""Words that tell records apart, whatever the file they stand in looks like.

A budget belongs to records, and a record comes along in another order of rows or columns, under
other column names, with its label coded otherwise, in another file format, at another client. So a
row becomes three words of 64 bits that know none of that:

    all(row)         sum over all its columns, label and owners too, of h(value)   mod 2^64
    features(row)    the same sum over its features alone
    unlabelled(row)  the same sum over all its columns but the label

A sum has no order (an additive multiset hash; Clarke et al. 2003, "Incremental multiset hash
functions"). h mixes the bits of a value as a 32-bit float, so that 3 in an integer column, 3.0 in
another and "3" in a CSV file are one value; text that is no number is hashed as text. A row is
recognised where any word is, whichever of the two rows it is a word of: ``all`` where another
column became the label, ``features`` where a column of owners was coded anew or left out, and
``unlabelled`` where the label was coded anew, whatever columns name clients, persons or entities in
either run. Without such columns it is ``features``. Images are rows of pixels.

**One value however it is written** (:func:`readings`): a gap is NaN, whether a file leaves the cell
empty, quotes it, or has one of the words that other programs write there; 3,5 is 3.5; a moment at
midnight is its day; a time of day or a duration is its microseconds; and a number that half
precision holds is the shortest text that says it there, for so pandas writes it. Whoever takes two
values for one only pays too much.

**Versions before** read some cells otherwise, and their ledgers know rows by what came of it. So
each column adds several words: today's, and then those of versions before, (n, w); where all are
alike there is one, (n, 1), which stands for all when columns are added up. A row is recognised
where any of them is. Nothing else in this program says what a row, a person or an entity is known
by: tables, streams, links and public rows all ask here.

**What this mistakes.** Rows that hold the same values in another order look the same: two images
with equal histograms, two one-hot rows. They are taken for one record, and its price is then too
high, never too low. **What it cannot see**: a row whose values changed, be it rounding, scaling or
a column more. Where that happens, name a person column (``data.person``).

Shapes: features (n, ...), what columns add (n, w), words (n, 2 m) in pairs.

>>> a = features(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 3.0]], np.float32))
>>> bool(a[0] == a[1]), bool(a[0] == a[2])
(True, False)
>>> bool(column(np.array([3, 4]))[0] == column(["3", "x"])[0])
True
>>> len({int(word) for word in column([None, "", "NA", "#N/A", "None", float("nan")])[:, 0]})
1
>>> bool(column(np.array([0.345703125]))[0, 0] == column(["0.3457"])[0, 0])
True
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Context, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sordino.data.dataset import Array, Indices, Single, Words, single

if TYPE_CHECKING:
    import polars as pl

Cells = Array | Sequence[object]
Reading = float | str

NOTHING = np.zeros((1, 1), np.uint64)
"""The sum of no columns, for any number of rows."""

_AT_ONCE = 1 << 16  # values mixed at once
_BEFORE = 4  # versions that read cells otherwise than today's
_LONGEST = 400
_GAP = re.compile(  # as R, pandas, Julia, SAS, Excel, C and databases write it
    r"|[.?]|--?|[+-]?nan|nat|n/a|n\.a\.|\\n|[<(\[]?(na|null|nil|none|missing|blank)[>)\]]?"
    r"|#(n/?a|n/a n/a|nv|n/d|null!|value!|ref!|name\?|num!|div/0!)|-?1\.#(ind|qnan|snan)",
    re.ASCII | re.IGNORECASE,
)
_CLOCK = re.compile(  # with days, as Python and pandas write them, and hours as Excel does
    r"(?:([+-]?\d{1,9}) days?)?(?:,? ?([+-]?)(\d{1,9}):([0-5]\d)(?::([0-5]\d)(?:[.,](\d+))?)?)?",
    re.ASCII | re.IGNORECASE,
)
_BYTES = re.compile(  # as Python writes them
    r"""b(['"])(?:(?!\1)[ -\[\]-~]|\\[\\'tnr]|\\x[0-9a-f]{2})*\1"""
)
_ZONE = re.compile(r" (UTC|GMT)$", re.ASCII)
_COMMA = re.compile(r"^([+-]?\d*),(\d+)$", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def _mixed(bits: Words) -> Words:
    """Steele, Lea and Flood 2014 (SplitMix64): each bit turns half of the bits of the answer."""
    z = (bits + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _numbers(values: Array) -> tuple[Words, Words]:
    """h of numbers, of the same shape: as they are read today, and before; one array if alike."""
    found = single(values) + np.float32(0.0)  # -0.0 becomes 0.0
    bits = found.view(np.uint32)
    before = _mixed(bits.astype(np.uint64))
    shorter, changed = _halves()
    places = np.flatnonzero(changed[bits >> _TAIL] & (bits & ((1 << _TAIL) - 1) == 0))
    if not places.size:
        return before, before
    today = before.copy()
    short = shorter[bits.reshape(-1)[places] >> _TAIL]
    today.reshape(-1)[places] = _mixed(short.view(np.uint32).astype(np.uint64))
    return today, before


_TAIL = 13  # bits of a float32 that a float16 lacks at its end


@lru_cache(1)
def _halves() -> tuple[Single, npt.NDArray[np.bool_]]:
    """By the bits of a float32 without its tail, which is 0: what the shortest text says that half
    precision reads as the same number, where it has it; and whether that is another number.
    """
    exact = (np.arange(1 << (32 - _TAIL), dtype=np.uint32) << _TAIL).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        half = exact.astype(np.float16)
        held = np.isfinite(exact) & (half == exact) & (exact != 0)
    wide, half = np.abs(exact[held].astype(np.float64)), np.abs(half[held])
    short = wide.copy()
    for digits in range(4, -1, -1):  # behind the first; four are always enough
        places = digits - np.floor(np.log10(wide))
        up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
        scaled = wide * up / down
        for whole in (np.floor(scaled + 0.5), np.rint(scaled)):  # of two as near, the even one
            rounded = whole / up * down
            with np.errstate(over="ignore"):
                same = rounded.astype(np.float16) == half
            short[same] = rounded[same]
    shorter = exact.copy()
    shorter[held] = np.copysign(short, exact[held])
    return shorter, held & (shorter != exact)


_NAN = _mixed(np.array([math.nan], np.float32).view(np.uint32).astype(np.uint64))[0]


def features(x: Array) -> Words:
    """The sums over the features of every row, (n, w)."""
    flat = x.reshape(len(x), math.prod(x.shape[1:]))
    if flat.dtype.kind == "f" and np.isnan(flat).any():
        return columns(*flat.T)
    out = np.empty((len(flat), 2), dtype=np.uint64)
    rows = max(1, _AT_ONCE // max(1, flat.shape[1]))
    table = _numbers(np.arange(256))[0] if flat.dtype == np.uint8 else None
    for start in range(0, len(flat), rows):
        block = flat[start : start + rows]
        today, before = _numbers(block) if table is None else (words := table[block], words)
        sums = out[start : start + rows]
        sums[:, 1] = before.sum(axis=1, dtype=np.uint64)
        sums[:, 0] = sums[:, 1] if today is before else today.sum(axis=1, dtype=np.uint64)
    return _narrow(np.repeat(out, [1, _BEFORE], axis=1))


def series(values: pl.Series) -> Words:
    """h of a column of a table, under whatever rules it is read, (n, w)."""
    if values.dtype.is_numeric():
        return column(values.cast(float).fill_null(math.nan).to_numpy())
    return column(values.to_list())


def columns(*several: Cells) -> Words:
    """The sum of h of several columns, (n, w)."""
    return sum(map(column, several), NOTHING)


def column(values: Cells) -> Words:
    """h of one column, (n, w): of numbers, where NaN is a gap, or of other cells, where None is."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "buif":
        (today, first), gaps = _numbers(values), np.isnan(values)
        filled = [np.where(gaps, _NAN, each) for each in (today, first)]  # -NaN is what x86 makes
        return _narrow(np.stack([*filled, filled[1], first, first], axis=1))
    return _looked_up(values, _cells)


def _cells(distinct: Sequence[object]) -> list[list[int]]:
    """h of cells, as each version has it."""
    read = list(map(readings, distinct))
    several = dict.fromkeys(each for found in read for each in found)
    numbers = [each for each in several if isinstance(each, float)]
    texts: dict[Reading, int] = {each: _hashed(each) for each in several if isinstance(each, str)}
    today, before = (
        texts | dict(zip(numbers, words.tolist(), strict=True))
        for words in _numbers(np.array(numbers))
    )
    return [[today[first], *(before[each] for each in others)] for first, *others in read]


def _looked_up(values: Cells, words_of: Callable[[Sequence[Any]], list[list[int]]]) -> Words:
    """Words of cells, (n, w), of which each distinct one is looked at once."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "surrogateescape")
    cells = values.tolist() if isinstance(values, np.ndarray) else values
    places = {cell: place for place, cell in enumerate(dict.fromkeys(cells))}
    words = np.array(words_of(list(places)) or [[0]], np.uint64)
    return _narrow(words)[np.array([places[cell] for cell in cells], np.int64)]


def _narrow(words: Words) -> Words:
    """Words (n, w), or (n, 1) where all of each row's are one."""
    return words[:, :1] if (words == words[:, :1]).all() else words


def readings(cell: object) -> tuple[Reading, Reading, Reading, Reading, Reading]:
    """The content of a cell, a text or a number, of which NaN is a gap: as it is read today, as
    versions read it on 2026-11-24 from 14:32 UTC on, that day before, on the 23rd from 15:53 on,
    and before.

    >>> readings("-NaN")[:3], readings("3,5"), readings("2020-01-01T00:00:00Z")[0]
    ((nan, nan, nan), (3.5, 3.5, 3.5, '3,5', '3,5'), '2020-01-01')
    >>> readings("0:00:01")[:2], readings("1 days 00:00:00.5")[0], readings("2020-01-01 UTC")[0]
    ((1000000.0, '0:00:01'), 86400500000.0, '2020-01-01')
    """
    text = "nan" if cell is None else str(cell).rstrip("\0").strip()
    first = _number(text)
    second = _number(pointed(text)) if text and first == first else math.nan
    third = _third(written(cell), second)
    return _today(third), third, second, first, "" if cell is None else first


def written(cell: object) -> str:
    """A cell as text, as a CSV file would have it; a gap is empty.

    >>> written(None), written(" a"), written(b"red"), written(1.5)
    ('', 'a', 'red', '1.5')
    """
    text = cell.decode("utf-8", "surrogateescape") if isinstance(cell, bytes) else cell
    return "" if text is None else str(text).replace("\0", " ").strip()


def _today(before: Reading) -> Reading:
    """The content of a cell that was read as ``before``."""
    if isinstance(before, float):
        return before
    if (clock := _CLOCK.fullmatch(before)) is None:
        return _moment(_ZONE.sub("", "\n".join(before.splitlines())))
    days, sign, hours, minutes, seconds, fraction = (each or "0" for each in clock.groups())
    time = 3600 * int(hours) + 60 * int(minutes) + int(seconds)
    part = 10**6 * time + int(fraction[:6].ljust(6, "0"))
    return float(86400 * 10**6 * int(days) + (-part if sign == "-" else part))


def _third(text: str, before: Reading) -> Reading:
    """The content of a text for the third version, that was read as ``before``."""
    if isinstance(before, float):
        return before
    if _GAP.fullmatch(text):
        return math.nan
    if isinstance(number := _number(text.replace(",", ".", 1)), float):
        return number
    return _moment(text)


def _moment(text: str) -> str:
    """The one way that a moment is written; other text stays as it is.

    >>> _moment("2020-01-01T12:30+0100"), _moment("20")
    ('2020-01-01 11:30:00', '20')
    """
    try:
        moment = datetime.fromisoformat(text if text[:1].isdigit() else "")
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return text
    return moment.isoformat(" ").removesuffix(" 00:00:00")


def _number(text: str) -> Reading:
    """The number that a text says, or the text; a truth value is 1 or 0, as Parquet keeps it."""
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return float(text)
    except ValueError:
        return text


def _hashed(text: str) -> int:
    data = text.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@lru_cache(1 << 16)
def entity(name: str) -> int:
    """A number below 2^63 for a person's name, by that name alone.

    A number has one name however it is written, so that no other value in a column, which makes
    its numbers fractions or text, renames it. So have a moment, a time of day and a duration, and
    bytes, which pandas writes as Python does.

    >>> len({entity(name) for name in ("12", " 12.0", "1.2e1", "012")})
    1
    >>> entity("12345678901234567") == entity("12345678901234568")
    False
    >>> entity("2020-01-01 00:00:00") == entity("2020-01-01"), entity("b'P1'") == entity("P1")
    (True, True)
    """
    text = written(name)
    if _BYTES.fullmatch(text):
        text = written(ast.literal_eval(text))
    plain = _plainly(pointed(text))
    said = plain if number_in_text(plain) else _today(plain)
    return _hashed(said if isinstance(said, str) else format(said, ".0f")) >> 1


def _plainly(name: str) -> str:
    """The one way that a number, or a truth value, is written; text stays as it is."""
    if name.lower() in ("true", "false"):
        return "1" if name.lower() == "true" else "0"
    return number_in_text(name) or name


def number_in_text(text: str) -> str | None:
    """The one way that a number is written, to its last digit; None for what is no number.

    >>> number_in_text("12.0"), number_in_text("-0"), number_in_text("1.50e1"), number_in_text("a")
    ('12', '0', '15', None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    value = Decimal(text)
    if not value:
        return "0"
    if abs(value.adjusted()) > _LONGEST:
        return None
    return format(Context(prec=len(text)).normalize(value), "f")


def pointed(text: str) -> str:
    """Text; a number with a decimal comma with a point.

    >>> pointed("38,5"), pointed("a,b")
    ('38.5', 'a,b')
    """
    return _COMMA.sub(r"\1.\2", text) if "," in text else text


def spelled(text: str) -> str:
    """Text without blanks around it; a number in the one way that it is written, so that 3, 3.0 and
    "3" are one.

    >>> spelled(" red "), spelled("3.0"), spelled("3,50"), spelled("TRUE"), spelled("NaN")
    ('red', '3', '3.5', 'true', 'nan')
    """
    text = pointed(text.strip())
    if text.lower() in ("true", "false", "nan"):
        return text.lower()
    return number_in_text(text) or text


def persons(values: Cells) -> Words:
    """Words for each row's person, (n, w), as streams know entities: 12 is one in CSV and in
    Parquet. Versions until 2026-11-24, 20:30 UTC, knew numbers alone, and those until the 23rd took
    each name as it is written.
    """
    short = isinstance(values, np.ndarray) and values.dtype == np.float32  # as CSV files have it

    def words_of(names: Sequence[Any]) -> list[list[int]]:
        return [
            [
                entity(str(np.float32(each) if short else each)),
                _hashed(_plainly(written(str(each)))) >> 1,
                _hashed(str(each).strip()) >> 1,
            ]
            for each in names
        ]

    return _looked_up(values, words_of)


def by_person(who: Words) -> tuple[Indices, Indices]:
    """The order (n,) in which the rows of each person stand together, persons by their first rows,
    and where each of m persons begins and the last one ends, (m + 1,).

    >>> order, starts = by_person(np.array([7, 3, 7], np.uint64))
    >>> order.tolist(), starts.tolist()
    ([0, 2, 1], [0, 2, 3])
    """
    _, first, person = np.unique(who, return_index=True, return_inverse=True)
    order = np.argsort(first[person.reshape(-1)], kind="stable")
    starts = np.flatnonzero(np.diff(who[order])) + 1 if len(who) else np.zeros(0, np.int64)
    return order, np.concatenate([[0], starts, [len(who)]])


def first_rows(who: Words, most: int) -> Indices:
    """Places of the first ``most`` rows of each person, ascending; ``who`` (n,) names persons.

    Which rows of a person stay depends on that person's rows alone, so that one person more or less
    changes nothing for all others.

    >>> first_rows(np.array([7, 5, 7, 7, 5], np.uint64), 2).tolist()
    [0, 1, 2, 4]
    """
    order, starts = by_person(who)
    place = np.arange(len(who)) - np.repeat(starts[:-1], np.diff(starts))
    return np.sort(order[place < most])


def in_share(who: Words, fraction: float) -> npt.NDArray[np.bool_]:
    """Tell for each row (n,) whether its person is in a share of all persons, which depends on
    nobody else.

    >>> in_share(np.array([7, 5, 7, 7, 5], np.uint64), 0.5).tolist()
    [False, True, False, False, True]
    """
    return _mixed(who) < np.uint64(int(fraction * 2.0**64))


def at_one(who: Words, client: Indices) -> Indices:
    """The client (n,) at which each person has all rows: one of those where the person has any,
    which depends neither on anybody else nor on how many rows there are.

    >>> at_one(np.array([7, 5, 7, 7, 5], np.uint64), np.array([0, 0, 1, 2, 1])).tolist()
    [1, 1, 1, 1, 1]
    """
    names, person = np.unique(who, return_inverse=True)
    pairs = np.unique(np.stack([person.reshape(-1), client], 1), axis=0)
    first, several = np.unique(pairs[:, 0], return_index=True, return_counts=True)[1:]
    chosen = first + (names % several.astype(np.uint64)).astype(np.int64)
    found: Indices = pairs[chosen, 1][person.reshape(-1)]
    return found


def words(own: Words, label: Words, owners: Words = NOTHING, *former: Words) -> Words:
    """Pairs of words, (n, 2 m): of all columns, and of the features alone. First today's pair, and
    then every other by which versions before knew a row; last, where columns name owners, of all
    columns but the label, and of the features.

    Args:
        own: the sum of h of the features, (n, w).
        label: that of the label.
        owners: that of all columns that say whose a row is.
        former: that of label and owners, as versions before took them.
    """
    pairs: list[Words] = []
    for whole in (own + owners + label, *(own + other for other in former)):
        for one in np.stack([whole, np.broadcast_to(own, whole.shape)], axis=2).swapaxes(0, 1):
            if not any(np.array_equal(one, pair) for pair in pairs):
                pairs.append(one)
    if owners is not NOTHING:
        pairs.append(np.concatenate([(own + owners)[:, :1], own[:, :1]], axis=1))
    return np.concatenate(pairs, axis=1)
