"""Where a federation's charges go: one ledger of the run, or one for each client's data.

A run's own ledger is enough to price the run. A ledger that belongs to the data outlives runs:
two runs over the same data compose. It is named by the data's fingerprint, and its one unit is
the fingerprint, so that it does not matter which number the client has in a study.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from sordino.errors import LedgerError, ResumeError
from sordino.privacy.budget import Budget
from sordino.privacy.chain import BEGIN, SEAL, START, Charge, Head, Note, Receipt
from sordino.privacy.event import Event
from sordino.privacy.ledger import Ledger
from sordino.privacy.storage import LedgerExists


@dataclass(frozen=True, slots=True)
class Vault:
    """Units of a run, each with its ledger and its name in it."""

    places: Mapping[str, tuple[Ledger, str]]

    @classmethod
    def for_run(cls, path: Path, units: Mapping[str, str], *, labels: Mapping[str, str] | None = None, begun: bool = False) -> Vault:
        """One ledger for all units (name -> fingerprint), made where there is none yet; ``labels`` are names for people, by unit.

        Raises:
            ResumeError: for a run that has ``begun`` with other data, or whose ledger is missing.
        """
        ledger = _begun(path, units) if begun else _kept(path, units, labels)
        return cls({unit: (ledger, unit) for unit in units})

    @classmethod
    def for_data(cls, folder: Path, units: Mapping[str, str], *, begun: bool = False) -> Vault:
        """One ledger for each unit's data, in ``folder``.

        Raises:
            ResumeError: for a run that has ``begun`` and whose data has no ledger here.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"{folder}: no folder for ledgers can be made here: {error}") from error
        ledgers: dict[str, Ledger] = {}  # two clients with the very same data share one budget
        try:
            for unit, fingerprint in units.items():
                if fingerprint not in ledgers:
                    path = folder / ledger_file(folder, fingerprint).name
                    if begun and not path.is_file():
                        raise ResumeError(
                            f"{unit}: {folder} keeps no ledger of its data. The data is not what the run began with, or the ledger was"
                            " taken away: put back what is missing, or begin a new run"
                        )
                    ledgers[fingerprint] = _kept(path, {fingerprint: fingerprint})
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

    def ledgers(self) -> Iterator[tuple[Ledger, dict[str, str]]]:
        """Every ledger once, with its units here and their names in it."""
        found: dict[int, tuple[Ledger, dict[str, str]]] = {}
        for unit, (ledger, name) in self.places.items():
            found.setdefault(id(ledger), (ledger, {}))[1][unit] = name
        yield from found.values()

    def begin(self, run: str, facts: Mapping[str, Any], promised: Sequence[str]) -> None:
        """Note in every ledger what a run begins with, and which of its units it promises something to."""
        kept = set(promised)
        for ledger, units in self.ledgers():
            ledger.note(BEGIN, run, {**facts, "units": {unit: name for unit, name in units.items() if unit in kept}})

    def begun(self, run: str) -> dict[str, Any]:
        """What the run began with.

        Raises:
            ResumeError: if a ledger knows no such run, naming whose it is.
        """
        notes = [self._noted(BEGIN, run, ledger, units) for ledger, units in self.ledgers()]
        return notes[0].facts if notes else {}

    def _noted(self, kind: str, run: str, ledger: Ledger, units: Mapping[str, str]) -> Note:
        found = ledger.noted(kind, run)
        if found is None:
            raise ResumeError(
                f"{ledger.path}: this ledger (of {next(iter(units), 'nobody')}) knows nothing of run {run}: it was made anew, replaced by"
                " another, or belongs to other data. Put back the ledger and the data that the run began with, or begin a new run"
            )
        return found

    def seal(self, run: str, facts: Mapping[str, Any]) -> None:
        """Note in every ledger how a run ended; what it released before it was sealed cannot be told otherwise any more.

        Raises:
            ResumeError: if it was sealed before with other facts.
        """
        for ledger, _ in self.ledgers():
            ledger.note(SEAL, run, facts)

    def sealed(self, run: str) -> dict[str, Any] | None:
        """How the run ended, if any ledger knows."""
        found = (ledger.noted(SEAL, run) for ledger, _ in self.ledgers())
        return next((note.facts for note in found if note is not None), None)

    def heads(self) -> dict[str, Head]:
        """Number and digest of every ledger's last link, by one of its units."""
        return {next(iter(units)): ledger.head() for ledger, units in self.ledgers()}

    def refuse_older(self, heads: Mapping[str, Head]) -> None:
        """Hold the ledgers against heads that were noted before: entries may have been added since, none taken away or changed.

        Raises:
            ResumeError: naming the ledger that lacks one.
        """
        for unit, head in heads.items():
            if unit not in self.places:
                raise ResumeError(
                    f"the checkpoint knows a ledger of {unit!r}, which this study does not have. Restore the run folder from a copy"
                )
            ledger, _ = self._place(unit)
            if not ledger.stands(head):
                raise ResumeError(
                    f"{ledger.path}: older than the checkpoint, or another ledger: it has no entry {head[0]} with digest {head[1][:16]}…."
                    " What was released since would be forgotten: put back the ledger that belongs to the checkpoint, or begin a new run"
                )

    def close(self) -> None:
        """Close every ledger."""
        for ledger, _ in self.ledgers():
            ledger.close()

    def _place(self, unit: str) -> tuple[Ledger, str]:
        if unit not in self.places:
            raise LedgerError(f"no ledger is kept for {unit!r}")
        return self.places[unit]

    def __enter__(self) -> Vault:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _begun(path: Path, units: Mapping[str, str]) -> Ledger:
    """The ledger of a run that has begun, which must be there and of the same data."""
    if not path.is_file():
        raise ResumeError(
            f"{path}: the ledger is missing, and with it the record of what was released. Put it back from a copy, or begin a new run;"
            " a new ledger would forget what the run has spent"
        )
    ledger = Ledger.open(path)
    try:
        kept, labels = ledger.units(), ledger.labels()
        for unit in (*kept, *units):
            if kept.get(unit) != units.get(unit):
                who = f"{unit} ({labels[unit]})" if unit in labels else unit
                raise ResumeError(
                    f"{path}: the data of {who} is not what the run began with: its fingerprint was {kept.get(unit, 'none')[:12]},"
                    f" is {units.get(unit, 'none')[:12]}. Put back the data, or begin a new run"
                )
    except BaseException:
        ledger.close()
        raise
    return ledger


def _kept(path: Path, units: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Ledger:
    """The ledger in this file, made where there is none, for these units."""
    try:
        return Ledger.create(path, units, labels)
    except LedgerExists:  # long since, or by another run just now
        ledger = Ledger.open(path)
    try:
        ledger.register(units, labels)
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
