"""What a look at ledgers and run folders finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Terms:
    """What an epsilon means: at which delta, by which accountant."""

    delta: float
    accountant: str


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a ledger: its names and what it has spent (None where no delta is known).

    Of a set of records that is what those in it have spent at most, in this set and in all others.
    """

    name: str
    label: str | None
    epsilon: float | None


@dataclass(frozen=True, slots=True)
class Kept:
    """A ledger whose chain is whole."""

    path: Path
    entries: int
    digest: str
    terms: Terms | None
    units: tuple[Unit, ...]


@dataclass(slots=True)
class Verdict:
    """What was found.

    Attributes:
        ledgers: those that are whole.
        problems: what does not fit, one line each; none if all is well.
        remarks: what else should be known.
        epsilon: of a run, what its promised units have spent at most; of ledgers, the highest of
            all units. None without a delta.
        terms: what that epsilon means.
        sealed: whether a run had ended and was sealed; None of ledgers alone.
    """

    ledgers: list[Kept] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    epsilon: float | None = None
    terms: Terms | None = None
    sealed: bool | None = None
