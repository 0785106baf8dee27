"""The links of a ledger, chained by digest.

A ledger is one sequence of links, numbered 1, 2, 3, and so on. A link is a charge (:class:`Entry`)
or a note (:class:`Note`): a unit that is kept from here on, the beginning of a run, the seal of a
run that ended. The digest of a link covers all that it says, its number and the digest of the link
before; the first one continues a digest of the format (:mod:`sordino.privacy.formats`). So nothing
that a ledger says can be changed, taken out or put in between without breaking the chain. That the
*last* links were cut off shows only against a digest that is kept elsewhere: in a checkpoint, in
``run.json``, in a report.

The file has no other source of facts: what it says besides (an index, a count) is never read.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from sordino.base.errors import LedgerError
from sordino.base.files import object_of
from sordino.privacy.event import Event, decode, encode

if TYPE_CHECKING:
    from sordino.privacy.formats import LedgerFormat

MOST = 2**40  # of one number in an entry: a file of millions of them still adds up within 64 bits
UNIT, BEGIN, SEAL, RECORDS = "unit", "begin", "seal", "records"
KINDS = (UNIT, BEGIN, SEAL, RECORDS)
OUTSIDE = "outside"
"""Key of a note of records: the last entry up to which charges on sets that no run made are counted
for every record that may have been in them."""
CLOSED = "closed"
"""Key of a note of records: the run that had ended, with all booked that it could still have
spent. Notes of versions before have none."""
PROMISED = "promised"
"""Key of a note of a run's beginning: of each set of records, epsilon, delta and accountant of the
budget that nobody may exceed until the run has ended. Notes of versions before have none."""

DATA = "data"
"""Key of a note of a run's beginning: a fingerprint of all rows that it was built from, in their
order, which must be the same when it goes on. Notes of versions before have none."""
PLANNED = "planned"
"""Key of a beginning: charges on each unit that are planned, as pairs of event and count, where a
plan says that. An earlier version wrote how many charges, and by how much the least noise of a
schedule is below that of the first charge."""
OTHERS = "others"
"""Key of a beginning: whether others decide when the run ends, as in a federation."""
ROWS = "rows"
"""Key of a beginning: rows of one person that a charge covers, where all rows are elsewhere."""

Row = tuple[Any, ...]
Head = tuple[int, str]
Units = dict[str, tuple[str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Charged:
    """A release. A new field, which older formats lack, has a default; it is a text or a number.

    Attributes:
        unit: whose data.
        event: what is done with it.
        count: how often.
        why: in words.
        method: name of the method.
        round: number of the round.
        key: names this release and no other, over all runs.
    """

    unit: str
    event: Event
    count: int
    why: str
    method: str
    round: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge(_Charged):
    """A release that is about to happen."""

    def __post_init__(self) -> None:
        # SQLite keeps numpy's integers as bytes, which add up to next to nothing, and True and 2.0
        # as integers, which hash otherwise: what is kept must be what was hashed.
        for field in fields(self):
            if field.name != "event":
                check = _whole if field.type in {"int", int} else _text
                object.__setattr__(self, field.name, check(field.name, getattr(self, field.name)))
        decode(encode(self.event))  # what nobody could read again is not written


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(_Charged):
    """A charge in the ledger."""

    seq: int
    prev: str
    digest: str


SHOWN_COLUMNS = ("seq", "unit", "round", "count", "event", "method", "why", "key", "digest")
"""Columns of an entry in tables, in this order: ``so.Ledger.to_polars`` has all of them, ``sordino
ledger show`` all but three. Its JSON has those of the ledger's own format, but for three.
"""


@dataclass(frozen=True, slots=True)
class Note:
    """A fact in the ledger that is no charge.

    Attributes:
        seq: its number in the chain.
        kind: one of :data:`KINDS`.
        name: the unit's, or the run's. Of each kind, a name is noted once.
        content: canonical JSON, an object.
        prev, digest: of the link before, and its own.
    """

    seq: int
    kind: str
    name: str
    content: str
    prev: str
    digest: str

    @property
    def facts(self) -> dict[str, Any]:
        """The content, read."""
        found: dict[str, Any] = json.loads(self.content)
        return found


NOTE = tuple(field.name for field in fields(Note))
"""Columns of a note, in the order of the digest."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A ledger whose chain is whole.

    Attributes:
        entries: how many charges it holds.
        digest: of its last link.
    """

    entries: int
    digest: str


def canonical(value: object) -> str:
    """The one JSON text of a value: equal values have equal text.

    >>> canonical({"b": 1, "a": [0.1, "x"]})
    '{"a":[0.1,"x"],"b":1}'
    """
    return json.dumps(
        value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False
    )


def digest(body: Sequence[object]) -> str:
    """SHA-256 (hex) of what a link says."""
    # What was tampered with may hold anything, bytes too: it must still hash to something, and to
    # something else.
    return hashlib.sha256(
        json.dumps(list(body), ensure_ascii=True, separators=(",", ":"), default=repr).encode()
    ).hexdigest()


class Walk:
    """Goes along a chain and believes nothing in it that it has not checked.

    Attributes:
        place: what messages call the file.
        format: of the file.
        head: number and digest of the last link that was checked.
        units: units noted so far, with the fingerprints of their data and their labels.
        totals: what each of them was charged; ``last`` the number of its last charge, if any.
    """

    def __init__(self, place: object, form: LedgerFormat, units: Units | None = None) -> None:
        self.place, self.format = place, form
        self.head: Head = (0, form.start)
        self.units: Units = {} if units is None else units
        self.totals: dict[str, dict[Event, int]] = {unit: {} for unit in self.units}
        self.last: dict[str, int] = {}

    def over(self, rows: Iterator[tuple[bool, Row]]) -> Iterator[Entry | Note]:
        """The links in ``rows`` (whether each is a charge, and its columns), checked one by one.

        Raises:
            LedgerError: naming the first link that does not fit.
        """
        for charge, row in rows:
            seq, prev = self.head
            if row[0] != seq + 1:
                raise LedgerError(
                    f"{self.place}: entry {seq + 1} is missing: the chain goes on with entry "
                    f"{row[0]}"
                )
            if row[-2] != prev:
                raise LedgerError(
                    f"{self.place}: entry {seq + 1} does not continue the entry before it: "
                    "one of the two was changed"
                )
            found = digest(row[:-1])
            if row[-1] != found:
                said = dict(zip(self.format.names, row, strict=True)) if charge else {}
                about = f"{said['unit']}, round {said['round']}" if charge else f"{row[1]} {row[2]}"
                raise LedgerError(
                    f"{self.place}: entry {seq + 1} ({_short(about)}) was changed after it "
                    "was written"
                )
            link = self._entry(row) if charge else self._note(row)
            self.head = (seq + 1, found)
            yield link

    def add(self, unit: str, event: Event, count: int, seq: int) -> None:
        """Count the charge of entry ``seq``."""
        totals = self.totals[unit]
        totals[event] = totals.get(event, 0) + count
        self.last[unit] = seq

    def _entry(self, row: Row) -> Entry:
        where = f"{self.place}: entry {row[0]}"
        if [type(value) for value in row] != self.format.types:
            raise LedgerError(
                f"{where} does not hold what a charge holds: text and whole numbers. Restore "
                "the ledger from a copy"
            )
        try:
            link = self.format.read(row)
        except LedgerError as error:
            raise LedgerError(f"{where}: {error}") from error
        if not 1 <= link.count <= MOST:
            raise LedgerError(
                f"{where} says that a release happened {link.count} times; it must be from 1 to "
                f"{MOST}"
            )
        if link.unit not in self.units:
            raise LedgerError(
                f"{where} charges {_short(link.unit)!r}, which no entry before it registers"
            )
        self.add(link.unit, link.event, link.count, link.seq)
        return link

    def _note(self, row: Row) -> Note:
        seq, kind, name, content = row[:4]
        where = f"{self.place}: entry {seq}"
        if not all(isinstance(each, str) for each in (kind, name, content)) or kind not in KINDS:
            raise LedgerError(
                f"{where} is of a kind that this version does not know: {_short(kind)!r}"
            )
        facts = object_of(content, f"{where} ({kind} {_short(name)})", LedgerError)
        if kind == UNIT:
            fingerprint, label = facts.get("fingerprint"), facts.get("label")
            if (
                not isinstance(fingerprint, str)
                or not isinstance(label, str | None)
                or name in self.units
            ):
                raise LedgerError(
                    f"{where} registers {_short(name)!r} without one fingerprint, or for the "
                    "second time"
                )
            self.units[name], self.totals[name] = (fingerprint, label), {}
        return Note(seq, kind, name, content, row[4], row[5])


_STRANGE = re.compile(r"[^\x20-\x7e\xa0-\U0010ffff]")


def _short(value: object, most: int = 80) -> str:
    """Return what a message can show of something that anybody may have written."""
    text = _STRANGE.sub("?", str(value)[: most + 1])
    return text if len(text) <= most else text[:most] + "…"


def _whole(name: str, value: object) -> int:
    try:
        number = int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise LedgerError(f"{name} of a charge must be a whole number; got {value!r}") from None
    if abs(number) > MOST:
        raise LedgerError(f"{name} of a charge must be at most {MOST}; got {number}")
    return number


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or value.encode(errors="replace").decode() != value:
        raise LedgerError(f"{name} of a charge must be text; got {value!r}")
    return str(value)
