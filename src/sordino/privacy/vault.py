"""Where a federation's charges go: one ledger of the run, or one for each client's data.

A run's own ledger is enough to price the run. A ledger that belongs to the data outlives runs:
two runs over the same data compose. It is named by the data's fingerprint, and its one unit is
the fingerprint, so that it does not matter which number the client has in a study.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from sordino.errors import LedgerError
from sordino.privacy.budget import Budget
from sordino.privacy.event import Event
from sordino.privacy.ledger import START, Charge, Ledger, LedgerExists, Receipt


@dataclass(frozen=True, slots=True)
class Vault:
    """Units of a run, each with its ledger and its name in it."""

    places: Mapping[str, tuple[Ledger, str]]

    @classmethod
    def for_run(cls, path: Path, units: Mapping[str, str]) -> Vault:
        """One ledger for all units (name -> fingerprint), made where there is none yet."""
        ledger = _kept(path, units)
        return cls({unit: (ledger, unit) for unit in units})

    @classmethod
    def for_data(cls, folder: Path, units: Mapping[str, str]) -> Vault:
        """One ledger for each unit's data, in ``folder``."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"{folder}: no folder for ledgers can be made here: {error}") from error
        ledgers: dict[str, Ledger] = {}  # two clients with the very same data share one budget
        try:
            for fingerprint in units.values():
                if fingerprint not in ledgers:
                    ledgers[fingerprint] = _kept(folder / ledger_file(folder, fingerprint).name, {fingerprint: fingerprint})
        except BaseException:
            for ledger in ledgers.values():
                ledger.close()
            raise
        places = {unit: (ledgers[fingerprint], fingerprint) for unit, fingerprint in units.items()}
        return cls(places)

    def charge(self, charges: Sequence[Charge], budget: Budget) -> tuple[Receipt, ...]:
        """Book the charges: all or none within a ledger.

        With several ledgers a refusal part-way leaves the ledgers before it charged for what was
        not released: they over-count.
        """
        groups: dict[int, tuple[Ledger, list[int]]] = {}
        for i, charge in enumerate(charges):
            ledger, _ = self._place(charge.unit)
            groups.setdefault(id(ledger), (ledger, []))[1].append(i)
        receipts: dict[int, Receipt] = {}
        for ledger, places in groups.values():
            named = [replace(charges[i], unit=self._place(charges[i].unit)[1]) for i in places]
            for i, receipt in zip(places, ledger.charge(named, budget), strict=True):
                receipts[i] = replace(receipt, unit=charges[i].unit)
        return tuple(receipts[i] for i in range(len(charges)))

    def spent(self, unit: str, until: int | None = None) -> tuple[tuple[Event, int], ...]:
        """What a unit has spent, up to and with entry ``until`` of its ledger where that is given."""
        ledger, name = self._place(unit)
        return ledger.spent(name, until)

    def epsilon(self, unit: str, delta: float, accountant: str) -> float:
        """What a unit has spent, priced."""
        ledger, name = self._place(unit)
        return ledger.epsilon(name, delta, accountant)

    def head(self) -> tuple[int, str]:
        """Entries in all, and the digest of the last where there is one ledger; of all digests otherwise."""
        ledgers = {id(ledger): ledger for ledger, _ in self.places.values()}.values()
        heads = [ledger.head() for ledger in ledgers]
        if len(heads) == 1:
            return heads[0]
        joined = hashlib.sha256("".join(digest for _, digest in heads).encode()).hexdigest() if heads else START
        return sum(seq for seq, _ in heads), joined

    def close(self) -> None:
        """Close every ledger."""
        for ledger in {id(ledger): ledger for ledger, _ in self.places.values()}.values():
            ledger.close()

    def _place(self, unit: str) -> tuple[Ledger, str]:
        if unit not in self.places:
            raise LedgerError(f"no ledger is kept for {unit!r}")
        return self.places[unit]

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _kept(path: Path, units: Mapping[str, str]) -> Ledger:
    """The ledger in this file, made where there is none, for these units."""
    try:
        return Ledger.create(path, units)
    except LedgerExists:  # long since, or by another run just now
        ledger = Ledger.open(path)
    try:
        ledger.register(units)
    except BaseException:
        ledger.close()
        raise
    return ledger


def ledger_file(folder: Path, fingerprint: str) -> Path:
    """Where the ledger of the data with this fingerprint is, or would be."""
    return folder / f"{_name(fingerprint)}.sqlite"


def _name(fingerprint: str) -> str:
    # A fingerprint may hold anything; a file name may not.
    return fingerprint[:32] if fingerprint.isalnum() else hashlib.sha256(fingerprint.encode()).hexdigest()[:32]
