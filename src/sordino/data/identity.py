r"""Words that tell records apart, whatever the file they stand in looks like.

A budget belongs to records, and a record comes along in another order of rows or columns, under
other column names, with its label coded otherwise, in another file format, at another client. So a
row becomes two words of 64 bits that know none of that:

    all(row)        sum over all its columns, the label and the owner too, of h(value)   mod 2^64
    features(row)   the same sum over its features alone

A sum has no order (an additive multiset hash; Clarke et al. 2003, "Incremental multiset hash
functions"). h mixes the bits of a value as a 32-bit float, so that 3 in an integer column, 3.0 in
another and "3" in a CSV file are one value; text that is no number is hashed as text. A gap
is NaN, whether a file leaves the cell empty, quotes it, or says NaN. A row is
recognised where either word is: ``all`` where another column became the label, ``features`` where
the label was coded anew. Images are rows of pixels.

**What this mistakes.** Rows that hold the same values in another order look the same: two images
with equal histograms, two one-hot rows. They are taken for one record, and its price is then too
high, never too low. **What it cannot see**: a row whose values changed, be it rounding, scaling or
a column more. Where that happens, name a person column (``data.person``).

Shapes: features (n, ...), words (n,) or (n, 2).

>>> a = features(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 3.0]], np.float32))
>>> bool(a[0] == a[1]), bool(a[0] == a[2])
(True, False)
>>> bool(column(np.array([3, 4]))[0] == column(np.array(["3", "x"]))[0])
True
"""

from __future__ import annotations

import hashlib
import re
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sordino.data.dataset import single

Words = npt.NDArray[np.uint64]

_AT_ONCE = 1 << 16  # values mixed at once
_LONGEST = 400
_COMMA = re.compile(r"^([+-]?\d*),(\d+)$", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def _mixed(bits: Words) -> Words:
    """Steele, Lea and Flood 2014 (SplitMix64): each bit turns half of the bits of the answer."""
    z = (bits + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _numbers(values: npt.NDArray[Any], *, former: bool = False) -> Words:
    """h of numbers, of the same shape."""
    found = single(values) + np.float32(0.0)  # -0.0 becomes 0.0
    if not former:
        found[np.isnan(found)] = np.nan  # 0/0 has its sign bit set on x86
    return _mixed(found.view(np.uint32).astype(np.uint64))


def features(x: npt.NDArray[Any]) -> Words:
    """The sums over the features of every row, (n,)."""
    flat = x.reshape(len(x), -1)
    out = np.empty(len(flat), dtype=np.uint64)
    rows = max(1, _AT_ONCE // max(1, flat.shape[1]))
    table = _numbers(np.arange(256)) if flat.dtype == np.uint8 else None
    for start in range(0, len(flat), rows):
        block = flat[start : start + rows]
        words = table[block] if table is not None else _numbers(block)
        out[start : start + rows] = words.sum(axis=1, dtype=np.uint64)
    return out


def column(values: npt.NDArray[Any], *, former: bool = False) -> Words:
    """h of one column of numbers or text, (n,)."""
    if values.dtype.kind in "buif":
        return _numbers(values, former=former)
    names, places = np.unique(values.astype(str), return_inverse=True)
    cells = [_cell(str(name), former=former) for name in names]
    return np.array(cells, dtype=np.uint64)[places]


def both(values: npt.NDArray[Any]) -> Words:
    """h of one column, (n, 2): today's, and that by which ledgers before numerics 3 know rows. That
    one tells ways to write a gap apart, and a number with a decimal comma from one with a point.
    """
    return np.stack([column(values), column(values, former=True)], axis=1)


def _cell(text: str, *, former: bool = False) -> int:
    """h of a cell as text. What :func:`spelled` takes for one has one h, and so has every gap."""
    text = text.strip() if former else pointed(text.strip()) or "nan"
    if text.lower() in ("true", "false"):  # as CSV writes what Parquet keeps as a truth value
        text = "1" if text.lower() == "true" else "0"
    try:
        number = float(text)
    except ValueError:
        return _hashed(text)
    return int(_numbers(np.array([number]), former=former)[0])


def _hashed(text: str) -> int:
    data = text.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@lru_cache(1 << 16)
def entity(name: str) -> int:
    """A number below 2^63 for a person's name, by that name alone.

    A number has one name however it is written, so that no other value in a column, which makes
    its numbers fractions or text, renames it.

    >>> len({entity(name) for name in ("12", " 12.0", "1.2e1", "012")})
    1
    >>> entity("12345678901234567") == entity("12345678901234568")
    False
    """
    return _hashed(_plainly(name.strip())) >> 1


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
    return _COMMA.sub(r"\1.\2", text)


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


def persons(values: npt.NDArray[Any]) -> Words:
    """A word for each row's person, as streams know entities: 12 is one in CSV and in Parquet."""
    names, places = np.unique(values, return_inverse=True)
    texts = (
        name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)
        for name in names.tolist()
    )
    return np.array([entity(text) for text in texts], dtype=np.uint64)[places]


def first_rows(who: Words, most: int) -> npt.NDArray[np.int64]:
    """Places of the first ``most`` rows of each person, ascending; ``who`` (n,) names persons.

    Which rows of a person stay depends on that person's rows alone, so that one person more or less
    changes nothing for all others.

    >>> first_rows(np.array([7, 5, 7, 7, 5], np.uint64), 2).tolist()
    [0, 1, 2, 4]
    """
    order = np.argsort(who, kind="stable")
    _, starts, sizes = np.unique(who[order], return_index=True, return_counts=True)
    place = np.arange(len(who)) - np.repeat(starts, sizes)
    return np.sort(order[place < most]).astype(np.int64)


def at_one(who: Words, client: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The client (n,) at which each person has all rows: that of one of the person's rows, which
    depends on nobody else's.

    >>> at_one(np.array([7, 5, 7, 7, 5], np.uint64), np.array([0, 0, 1, 2, 1])).tolist()
    [1, 1, 1, 1, 1]
    """
    names, person, rows = np.unique(who, return_inverse=True, return_counts=True)
    order = np.argsort(person.reshape(-1), kind="stable")
    chosen = np.cumsum(rows) - rows + (names % rows.astype(np.uint64)).astype(np.int64)
    found: npt.NDArray[np.int64] = client[order[chosen]][person.reshape(-1)]
    return found


def words(x: npt.NDArray[Any], *others: npt.NDArray[Any]) -> Words:
    """(n, 2): of all columns (the features and ``others``), and of the features alone.

    Args:
        x: features (n, ...), or what :func:`column` gives of each added up, (n,).
    """
    own = x.copy() if x.dtype == np.uint64 else features(x)
    whole = own.copy()
    for other in others:
        whole += column(other)
    return np.stack([whole, own], axis=1)
