"""What ``sordino ledger`` tells machines: frozen records with the number of their format."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sordino.privacy import Entry, encode
from sordino.verify.found import Kept, Terms, Verdict

FORMAT = 1


class EntryTold(msgspec.Struct, frozen=True, kw_only=True):
    """One charge: as it stands in the ledger, its event as the object that its text is."""

    seq: int
    unit: str
    event: dict[str, object]
    count: int
    why: str
    round: int
    digest: str


class UnitTold(msgspec.Struct, frozen=True, kw_only=True):
    """A unit: what people call it, and what it has spent; None without a delta."""

    label: str | None
    epsilon: float | None


class VerdictTold(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at ledgers and run folders found; see :class:`~sordino.verify.found.Verdict`."""

    format: int = FORMAT
    ok: bool
    entries: int
    digest: str | None
    epsilon: float | None
    delta: float | None
    accountant: str | None
    sealed: bool | None
    units: dict[str, UnitTold]
    problems: tuple[str, ...]
    remarks: tuple[str, ...]


class PricedTold(msgspec.Struct, frozen=True, kw_only=True):
    """What each unit has spent, at one delta and by one accountant."""

    format: int = FORMAT
    delta: float
    accountant: str
    epsilon: dict[str, float | None]


def entry_told(entry: Entry) -> EntryTold:
    """A charge for machines."""
    return EntryTold(
        seq=entry.seq,
        unit=entry.unit,
        event=msgspec.json.decode(encode(entry.event), type=dict[str, object]),
        count=entry.count,
        why=entry.why,
        round=entry.round,
        digest=entry.digest,
    )


def verdict_told(verdict: Verdict) -> VerdictTold:
    """A verdict for machines."""
    return VerdictTold(
        ok=not verdict.problems,
        entries=sum(kept.entries for kept in verdict.ledgers),
        digest=verdict.ledgers[0].digest if len(verdict.ledgers) == 1 else None,
        epsilon=verdict.epsilon,
        delta=None if verdict.terms is None else verdict.terms.delta,
        accountant=None if verdict.terms is None else verdict.terms.accountant,
        sealed=verdict.sealed,
        units={
            unit.name: UnitTold(label=unit.label, epsilon=unit.epsilon)
            for kept in verdict.ledgers
            for unit in kept.units
        },
        problems=tuple(verdict.problems),
        remarks=tuple(verdict.remarks),
    )


def priced_told(terms: Terms, ledgers: Sequence[Kept]) -> PricedTold:
    """Prices for machines."""
    return PricedTold(
        delta=terms.delta,
        accountant=terms.accountant,
        epsilon={unit.name: unit.epsilon for kept in ledgers for unit in kept.units},
    )
