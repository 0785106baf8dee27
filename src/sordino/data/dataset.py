"""Labelled examples, held as they came, and the only way pixels become numbers.

**The problem.** Everything after this file treats the training examples as private.
Whatever is computed from them and then used in the open (a mean, a variance, a largest
value) is a release, and a release that nobody booked breaks the guarantee. Standardising
features with the training set's own mean and deviation, which nearly every tutorial does,
is such a release.

**Therefore** :func:`scaled` uses public constants only. A pixel ``v`` of 8 bits becomes

    (v / 255 - 0.5) / 0.5        in [-1, 1]

whatever the images are. Features that are already numbers (``float32``) stay as they
were given. If their ranges differ wildly, divide by constants that are known without
looking at the data, such as a sensor's full scale or a legal maximum: the setting ``scale``
of :class:`~sordino.data.table.ReadOptions` does so.

**Shapes.** ``x`` is (examples, channels, height, width) for images and (examples,
features) for tables; ``y`` is (examples,). Pixels stay ``uint8`` for as long as possible:
a quarter of the memory, and one float copy at the moment of use.

**Fingerprint.** A privacy budget belongs to data, not to a file name. ``fingerprint`` is
the SHA-256 of type, shape and bytes of ``x`` and ``y``; renaming the file, the classes or
the clients does not buy a new budget. It recognises a run's own data. What recognises single
records, in whatever order or file they come, are their ``words``.

>>> import numpy as np
>>> x = np.array([[0, 255], [51, 102]], np.uint8)
>>> tiny = Dataset("tiny", x, np.array([1, 0]), ("no", "yes"))
>>> len(tiny), tiny.shape
(2, (2,))
>>> scaled(tiny.x)
array([[-1. ,  1. ],
       [-0.6, -0.2]], dtype=float32)
>>> tiny.take([1]).y
array([0])
>>> tiny.fingerprint()[:12]
'6005204f4757'
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.base.fingerprints import Fingerprints

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Single = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]
Features = Bytes | Single
Labels = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Names = tuple[str, ...]
Shape = tuple[int, ...]
Span = tuple[float, float]
"""Low and high."""

_PIXEL = ((np.arange(256, dtype=np.float64) / 255 - 0.5) / 0.5).astype(np.float32)
_ROWS_AT_ONCE = 1 << 16
OF_ROWS = ("x", "y", "client", "words", "people", "origin")  # arrays with an entry for each row


class ClientRanges(NamedTuple):
    """Examples that lie one client after another.

    Attributes:
        bounds: where each client's begin, and the end of the last one's, (clients + 1,).
        prints: the fingerprint of each client's examples, 32 bytes each.
    """

    bounds: Indices
    prints: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Examples with class labels, or with numbers to predict.

    Attributes:
        name: what reports call it.
        x: ``uint8`` pixels or ``float32`` features, (examples, ...).
        y: class numbers, int64, 0 <= y < len(classes); with ``span`` numbers, float32, in units of
            half of that range: -1 is its low end, 1 its high end.
        classes: a name for each class number; none for numbers.
        client: whose each example is, as a number, where the file says so.
        words: what each example is recognised by, (examples, 2 m), and ``people`` whose it is,
            (examples, w), where a person is named: see :mod:`sordino.data.identity`.
        owners: what these numbers are called, fit to be shown.
        origin: the examples that ``x`` are features of, (examples, ...); None where ``x`` are the
            examples themselves. A budget belongs to the examples, so the fingerprint is theirs.
        columns: names of the features, where they have any.
        span: low and high of the numbers to predict, public; None for classes.
        blocks: where they lie client after client, and were written so by this program.
    """

    name: str
    x: Features
    y: Array
    classes: Names
    client: Labels | None = None
    words: Words | None = None
    people: Words | None = None
    owners: Names = ()
    origin: Features | None = None
    columns: Names = ()
    span: Span | None = None
    blocks: ClientRanges | None = None

    def __post_init__(self) -> None:
        """Refuse what no later room could make sense of."""
        if self.x.dtype not in (np.uint8, np.float32):
            raise DataError(
                f"{self.name}: features must be uint8 (pixels) or float32, found {self.x.dtype}"
            )
        if self.x.ndim < 2:
            raise DataError(
                f"{self.name}: features must have a row for each example, found an array of "
                f"shape {self.x.shape}"
            )
        kind = np.int64 if self.span is None else np.float32
        named = ("labels", self.y, kind), ("client numbers", self.client, np.int64)
        for what, values, wanted in named:
            if values is None:
                continue
            if values.dtype != wanted:
                raise DataError(
                    f"{self.name}: {what} must be {np.dtype(wanted)}, found {values.dtype}"
                )
            if values.shape != (len(self.x),):
                raise DataError(
                    f"{self.name}: {len(self.x)} examples, but {what} of shape {values.shape}"
                )
        if self.span is not None:
            if self.classes or not np.isfinite(self.y).all():
                raise DataError(f"{self.name}: labels must be finite numbers without classes")
        elif len(self.y) and not (int(self.y.min()) >= 0 and int(self.y.max()) < len(self.classes)):
            raise DataError(
                f"{self.name}: labels must lie in 0..{len(self.classes) - 1} ({len(self.classes)} "
                f"classes), found {int(self.y.min())}..{int(self.y.max())}"
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> Shape:
        """Shape of one example."""
        return self.x.shape[1:]

    @property
    def outputs(self) -> int:
        """Scores that a model gives for an example: one for each class, or one number."""
        return len(self.classes) if self.span is None else 1

    def take(self, indices: Indices | Sequence[int] | slice) -> Dataset:
        """The examples at ``indices``, in that order, as a dataset of its own; not copied for a
        slice.
        """
        at = indices if isinstance(indices, slice) else np.asarray(indices, dtype=np.int64)
        rows = {name: getattr(self, name) for name in OF_ROWS}
        taken = {name: values[at] for name, values in rows.items() if values is not None}
        return replace(self, blocks=None, **taken)

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the examples; the chapter above says what it leaves out on purpose."""
        return _digests(self, np.array([0, len(self)])).hex()


def _digests(whole: Dataset, bounds: Indices) -> bytes:
    """SHA-256 of the examples between bounds, one after another."""
    begun, found = hashlib.sha256(b"sordino-dataset-1"), list[bytes]()
    kinds = []
    for values in (whole.x if whole.origin is None else whole.origin, whole.y):
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        rest = "".join(f", {each}" for each in values.shape[1:]) or ","
        flat = np.ascontiguousarray(little).reshape(-1).view(np.uint8).data
        kinds.append((f"{values.dtype.name}(", f"{rest})", flat, values[:1].nbytes))
    for first, last in pairwise(bounds.tolist()):
        digest = begun.copy()
        for before, after, flat, width in kinds:
            digest.update(f"{before}{last - first}{after}".encode())
            digest.update(flat[first * width : last * width])
        found.append(digest.digest())
    return b"".join(found)


LET_GO = 128
"""Clients whose mapped pages are kept."""


def let_go(values: Array) -> None:
    """Give the pages of a mapped array back to the system; they are read again when needed."""
    held: Any = values
    while isinstance(held, np.ndarray):
        held = held.base
    if isinstance(held, mmap.mmap):
        held.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True, eq=False)
class ByClient(Sequence[Dataset]):
    """The examples of each client. None is taken out of ``whole`` before it is asked for.

    Attributes:
        whole: examples of all clients.
        bounds: where each client's begin, and the end of the last one's, (clients + 1,).
        order: numbers of the examples in the order of the clients; None where they lie so.
    """

    whole: Dataset
    bounds: Indices
    order: Indices | None = None
    _taken: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def sizes(self) -> tuple[int, ...]:
        """n_i of every client."""
        return tuple(np.diff(self.bounds).tolist())

    @property
    def fingerprints(self) -> Fingerprints:
        """The fingerprint of each client's examples."""
        blocks = self.whole.blocks
        if self.order is None and blocks is not None:
            return Fingerprints(blocks.prints)
        if self.order is None:
            return Fingerprints(_digests(self.whole, self.bounds))
        return Fingerprints(b"".join(bytes.fromhex(part.fingerprint()) for part in self))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return tuple(self[i] for i in range(*client.indices(len(self))))
        at = self._place(client)
        if not isinstance(self.whole.x, np.memmap):
            return self.whole.take(at)
        found = self.whole.take(np.arange(at.start, at.stop) if isinstance(at, slice) else at)
        self._took()
        return found

    def rows(self, client: int) -> tuple[Features, Array, Words | None]:
        """Return ``x``, ``y`` and ``people`` of a client: all that training needs, and in a fifth
        of the time of the dataset, which counts where a round draws a thousand of a million.
        """
        at, whole = self._place(client), self.whole
        if not isinstance(whole.x, np.memmap):
            return whole.x[at], whole.y[at], None if whole.people is None else whole.people[at]
        self._took()
        people = None if whole.people is None else _copied(whole.people, at)
        return _copied(whole.x, at), _copied(whole.y, at), people

    def _place(self, client: int) -> slice | Indices:
        number = range(len(self))[client]
        first, last = self.bounds[number : number + 2].tolist()
        return slice(first, last) if self.order is None else self.order[first:last]

    def _took(self) -> None:
        if next(self._taken) % LET_GO == 0:
            self.let_go()

    def let_go(self) -> None:
        """Give the pages of mapped examples back to the system."""
        for values in (self.whole.x, self.whole.y, self.whole.words, self.whole.people):
            if isinstance(values, np.memmap):
                let_go(values)


def _copied(values: Array, at: slice | Indices) -> Array:
    return values.view(np.ndarray)[at].copy()  # a mapped array takes microseconds to cut


def rows(parts: Sequence[Dataset], client: int) -> tuple[Features, Array, Words | None]:
    """Return ``x``, ``y`` and ``people`` of a client; see :meth:`ByClient.rows`."""
    if isinstance(parts, ByClient):
        return parts.rows(client)
    return parts[client].x, parts[client].y, parts[client].people


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """A training set, and a test set that no method ever trains or chooses on."""

    train: Dataset
    test: Dataset

    def __post_init__(self) -> None:
        """Train and test must be of the same kind."""
        one, other = self.train, self.test
        if one.shape != other.shape or one.x.dtype != other.x.dtype:
            raise DataError(
                f"{one.name}: training examples are {one.x.dtype} of shape {one.shape}, test "
                f"examples {other.x.dtype} of shape {other.shape}"
            )
        if self.train.classes != self.test.classes or self.train.span != self.test.span:
            raise DataError(
                f"{self.train.name}: training and test set do not have the same classes"
            )


def listed(names: Sequence[object], most: int = 12) -> str:
    """Names for a message; of many the first, and how many more there are.

    >>> listed("abc", 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def scaled(x: Array) -> Single:
    """Model input from stored features, by public constants; ``float32`` passes uncopied."""
    # A table look-up rounds once from float64 and makes exactly one float copy.
    return np.take(_PIXEL, x) if x.dtype == np.uint8 else x


def single(values: Array) -> Single:
    """Real numbers as ``float32``, which pass uncopied; what is too large becomes infinite.

    They are rounded to ``float64`` first, for a column of whole numbers is of that type as soon as
    one of them is a fraction: all others would be rounded twice then, and once before.

    >>> whole = np.array([2**61 + 2**37 + 1])
    >>> bool(single(whole)[0] == single(whole.astype(np.float64))[0])
    True
    """
    exact = np.can_cast(values.dtype, np.float32)
    wide = values if exact else values.astype(np.float64, copy=False)
    with np.errstate(over="ignore"):
        return wide.astype(np.float32, copy=False)


def refuse_non_finite(x: Single, place: str, columns: Sequence[str] = (), first: int = 0) -> None:
    """Refuse a feature of ``x`` (n, ...) that is NaN or infinite.

    Args:
        x: rows from ``first`` on.
        place: the file, for a refusal.
        columns: names of the features.
        first: number of the first row.

    Raises:
        DataError: naming the first such row and column.
    """
    for start in range(0, len(x), _ROWS_AT_ONCE):
        block = x[start : start + _ROWS_AT_ONCE]
        good = np.isfinite(block)
        if good.all():
            continue
        row, *rest = (int(i) for i in np.argwhere(~good)[0])
        column = repr(columns[rest[0]]) if columns and len(rest) == 1 else ", ".join(map(str, rest))
        raise DataError(
            f"{place}: row {first + start + row} (the first is 0), column {column} is "
            f"{block[(row, *rest)]}; every feature must be finite. Drop the row, or fill the gap "
            "with a constant that does not depend on the data"
        )
