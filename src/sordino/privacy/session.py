"""Where a federation's charges go: a ledger of the run, or of the data, which outlives runs.

A run's own ledger is enough to price the run. Its units are whatever the run calls them.

A ledger of the data knows records. A unit of a run is a *set* of them there, named by who is in it,
so that it does not matter which client or run somebody is in: what is charged on a set counts for
everybody in it, and what is held against the budget is the whole history of those who are
(:mod:`sordino.privacy.records`).
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.base.errors import BudgetExceeded, LedgerError, ResumeError, StudyError
from sordino.base.fingerprints import refuse_other_data
from sordino.privacy.accounting import accountant
from sordino.privacy.budget import Budget
from sordino.privacy.chain import BEGIN, DATA, OTHERS, PLANNED, PROMISED, ROWS, SEAL, Charge, Head
from sordino.privacy.event import Event, History, encode
from sordino.privacy.ledger import Ledger, closed_if_refused
from sordino.privacy.permit import Permit

if TYPE_CHECKING:
    from sordino.privacy.records import Prices, Records

NAME = "ledger.sqlite"
PLAN = "plan"
"""The run that a plan begins in a copy of a ledger."""


class _UndoneError(Exception):
    """The end of a transaction that keeps nothing."""


@dataclass(frozen=True, slots=True)
class LedgerSession:
    """Units of a run, each with its name in the ledger.

    Attributes:
        ledger: the one file.
        names: of each unit in it.
        prices: of its units, and of the records in them where the ledger knows records.
        run: who opened its sets, in a ledger of the data; empty in a run's own.
        data: a fingerprint of all rows of the run, in their order.
        rows: of one person, that a charge on a unit covers: of units whose records are elsewhere,
            so that no price knows who has how many.
    """

    ledger: Ledger
    names: Mapping[str, str]
    prices: Prices
    run: str = ""
    data: str = ""
    rows: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def for_run(
        cls,
        path: Path,
        units: Mapping[str, str],
        *,
        labels: Mapping[str, str] | None = None,
        begun: bool = False,
        run: str = "",
        data: str = "",
        rows: Mapping[str, int] | None = None,
    ) -> LedgerSession:
        """A ledger of one run for these units (name -> fingerprint), made where there is none.

        ``labels`` are names for people, by unit; ``data`` is a fingerprint of all rows of the
        ``run``, the public ones too; ``rows`` are those of the attribute.

        Raises:
            ResumeError: for a run that has ``begun`` with other data, or whose ledger is missing.
        """
        from sordino.privacy.records import Prices  # arrays take a while to import

        if not begun:
            ledger = Ledger.open_or_create(path, units, labels)
        else:
            refuse_missing(path)
            with closed_if_refused(Ledger.open(path)) as ledger:
                kept, called = ledger.units(), ledger.labels()
                for unit in (*kept, *units):
                    who = f"{unit} ({called[unit]})" if unit in called else unit
                    known, given = kept.get(unit, ""), units.get(unit, "")
                    if given != f"elsewhere/{known}":  # as earlier versions wrote it
                        refuse_other_data(path, who, known, given)
                ledger.refuse_other_data(run, data)
        names = {unit: unit for unit in units}
        return cls(ledger, names, Prices(ledger), data=data, rows=rows or {})

    @classmethod
    def for_data(
        cls,
        folder: Path,
        run: str,
        records: Sequence[Records],
        others: Mapping[str, str] | None = None,
        *,
        begun: bool = False,
        key: bytes | None = None,
        data: str = "",
    ) -> LedgerSession:
        """The ledger of the data in ``folder``, made if there is none, with a run's sets opened.

        Only its owner may read it. ``others`` are units that no record is priced by, and what names
        them; ``key`` is that of its digests, where it is not to stand in the ledger; ``data`` is a
        fingerprint of all rows of the run, in their order, of which the names of sets know nothing.

        Raises:
            ResumeError: for a run that has ``begun`` with other data, or where there is no ledger,
                or none that knows its records.
        """
        from sordino.privacy.records import Prices, open_sets

        path = data_ledger(folder)
        if begun:
            refuse_missing(path)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StudyError(
                f"privacy.ledger: {folder}: no folder for ledgers can be made here "
                f"({error.strerror}). Name another folder"
            ) from error
        names = dict(others or {})
        units = {name: name for name in names.values()}
        with closed_if_refused(Ledger.open_or_create(path, units, secret=True)) as ledger:
            names = open_sets(ledger, run, records, known=begun, key=key, data=data) | names
        return cls(ledger, names, Prices(ledger, run), run, data)

    @classmethod
    def for_plan(
        cls, folder: Path | None, records: Sequence[Records], promised: Mapping[str, Budget]
    ) -> LedgerSession:
        """The session that a run with these records and promises would begin now with the ledger in
        ``folder``, over a copy in memory; None stands for a ledger of the run.
        """
        from sordino.privacy.records import Prices, open_sets

        path = None if folder is None else data_ledger(folder)
        if path is None or not path.exists():
            copy = Ledger.scratch(None)
        else:
            with Ledger.open(path, readonly=True) as ledger:
                copy = Ledger.scratch(ledger)
        found = cls(copy, open_sets(copy, PLAN, records), Prices(copy, PLAN), PLAN)
        own = {unit: most for unit, most in promised.items() if unit in found.names}
        copy.note(BEGIN, PLAN, {PROMISED: found._binding(own)})
        return found

    @contextmanager
    def undone(self) -> Iterator[None]:
        """A transaction that keeps nothing: for what would be if something was charged."""
        with suppress(_UndoneError), self.ledger.transaction():
            yield
            raise _UndoneError

    def charge(
        self, charges: Sequence[Charge], budget: Budget | Mapping[str, Budget]
    ) -> tuple[Permit, ...]:
        """Book the charges, durably, all or none: within one budget, or that of each unit."""
        named = [
            replace(
                charge,
                unit=self._name(charge.unit),
                event=self._of_person(charge.unit, charge.event),
            )
            for charge in charges
        ]
        units = {name: unit for unit, name in self.names.items()}
        most = budget if isinstance(budget, Budget) else self._least(budget)
        with self.ledger.transaction():
            admit = partial(self.prices.admit, units, self.run) if self.run else None
            permits = self.ledger.charge(named, most, admit)
            self._refuse_unplanned({charge.unit for charge in named})
        return tuple(
            permit.named(charge.unit) for permit, charge in zip(permits, charges, strict=True)
        )

    def _refuse_unplanned(self, names: Iterable[str]) -> None:
        """Refuse charges that a run has not planned which others can end early: runs over the same
        records count its plan.

        Raises:
            BudgetExceeded: naming the set.
        """
        begin = self.ledger.noted(BEGIN, self.run) if self.run else None
        if begin is None or not begin.facts.get(OTHERS):
            return
        planned = self.ledger.planned(self.run)
        # what all runs have booked is quickly known, and hardly ever more than the plan
        near = [
            name
            for name in names
            if name in planned and not Counter(self.ledger.booked(name)) <= planned[name]
        ]
        done = self.ledger.charged_by(self.run) if near else {}
        for name in near:
            if not done[name] <= planned[name]:
                raise BudgetExceeded(
                    f"{self.ledger.path}: run {self.run} plans no such charge on {name}, or not as "
                    "many, and others count what it plans"
                )

    def _least(self, budgets: Mapping[str, Budget]) -> dict[str, Budget]:
        """The least of the budgets of each name in the ledger: units with the same records have
        one.
        """
        found: dict[str, Budget] = {}
        for unit, budget in budgets.items():
            name = self._name(unit)
            found[name] = min(budget, found.get(name, budget), key=lambda each: each.epsilon)
        return found

    @property
    def _most(self) -> int:
        """The most rows of one person that a charge covers, where all rows are elsewhere."""
        return max(self.rows.values(), default=1)

    def _of_person(self, unit: str, event: Event) -> Event:
        """A release for one row of a unit, as it bounds all those of a person that are there."""
        from sordino.privacy.records.group import of_rows

        return of_rows(event, self.rows.get(unit, 1))

    def spent(self, unit: str, until: int | None = None) -> History:
        """Return what was booked on a unit itself, to entry ``until``; data ledgers count more."""
        return self.ledger.spent(self._name(unit), until)

    def histories(self, unit: str, until: int | None = None) -> tuple[History, ...]:
        """Return the histories of its records; the unit's price is the highest of theirs."""
        return next(self.each([(unit, until)]))

    def each(self, asked: Iterable[tuple[str, int | None]]) -> Iterator[tuple[History, ...]]:
        """Yield the histories of many units, each to an entry if one is given."""
        return self.prices.histories((self._name(unit), until) for unit, until in asked)

    def epsilon(self, unit: str, delta: float, name: str) -> float:
        """Return epsilon of what a unit has spent: the highest among its records."""
        chosen = accountant(name)
        return max((chosen.epsilon(spent, delta) for spent in self.histories(unit)), default=0.0)

    def check(self, unit: str, budget: Budget, until: int | None = None) -> float:
        """A bound on what a unit has spent, or the refusal: see :meth:`Budget.check`."""
        return max(map(partial(budget.check, unit), self.histories(unit, until)), default=0.0)

    def remaining(
        self, events: Mapping[str, Event], budgets: Mapping[str, Budget]
    ) -> dict[str, int | None]:
        """Return how often each unit's event may still be charged on all units alike, for what each
        holds; None where nothing limits it. Of units that are kept elsewhere nothing is said.
        """
        charged: dict[str, list[Event]] = {}
        for unit, event in events.items():
            if unit in self.names:
                one = self._of_person(unit, event)
                charged.setdefault(self.names[unit], []).append(one)
        here = [unit for unit in events if unit in self.names]
        left = self.prices.remaining(charged, self._least({unit: budgets[unit] for unit in here}))
        return {unit: left[self.names[unit]] for unit in here}

    def at_odds(self, budgets: Mapping[str, Budget]) -> bool:
        """Tell whether a record is in units that are promised different budgets."""
        return self.prices.at_odds(
            (self.names[unit], most) for unit, most in budgets.items() if unit in self.names
        )

    def blame(self, units: Iterable[str]) -> str | None:
        """Why nothing can be paid for on one of these units after a release without a bound;
        :meth:`Prices.blame`.
        """
        if not self.run:
            return None
        here = [unit for unit in units if unit in self.names]
        found = (self.prices.blame(spent) for unit in here for spent in self.histories(unit))
        return next((why for why in found if why is not None), self.prices.waits)

    def head(self) -> tuple[int, str]:
        """Number and digest of the last entry."""
        return self.ledger.head()

    def finish(self) -> None:
        """The run has ended: its charges are history. A ledger of the run alone stays as it is."""
        from sordino.privacy.records import close_sets

        close_sets(self.ledger, self.run)

    def begin(
        self,
        run: str,
        facts: Mapping[str, Any],
        promised: Mapping[str, Budget],
        planned: Mapping[str, History] | None = None,
        *,
        others: bool = False,
    ) -> None:
        """Note in the ledger what a run begins with, what its units are promised, which charges on
        each are ``planned``, and whether ``others`` decide when it ends.

        Charges of other runs are held against the promises of those that have begun. One that the
        records' histories exceed already binds nobody.
        """
        units = {unit: self._name(unit) for unit in promised}
        kept = self._binding(promised) if self.run or len({*promised.values()}) > 1 else {}
        noted = {**facts, "units": units, DATA: self.data}
        noted |= {ROWS: self._most} if self._most > 1 else {}
        charges: dict[str, list[list[Any]]] = {}
        for unit, history in (planned or {}).items():
            charges.setdefault(self._name(unit), []).extend(
                [encode(self._of_person(unit, event)), count] for event, count in history
            )
        noted |= {PLANNED: charges} if charges else {}
        noted |= {OTHERS: True} if others else {}
        with self.ledger.transaction():  # nobody else begins between the two
            if self.run:
                self.refuse_choosing(run, chosen=_chooses(noted))
            noted |= {PROMISED: kept} if self.run or kept else {}
            self.ledger.note(BEGIN, run, noted)
            if self.run and charges:  # from now on all others count the plan
                called = {name: unit for unit, name in self.names.items()}
                own = {
                    name: most for name, most in self._least(promised).items() if name in charges
                }
                self.prices.admit(called, self.run, own, planned=True)

    def _binding(self, promised: Mapping[str, Budget]) -> dict[str, list[Any]]:
        """The promises to sets that their records' histories do not exceed already."""
        return {
            name: [most.epsilon, most.delta, most.accountant]
            for name, most in self._least(promised).items()
            if math.isfinite(most.epsilon) and self.prices.within(name, most)
        }

    def refuse_choosing(self, run: str, *, chosen: bool) -> None:
        """Refuse that two runs at once use records of which one chooses by looking how often: how
        much the other can spend would follow from that (:mod:`~sordino.privacy.reserve`).

        Raises:
            StudyError: naming the run that has not ended.
        """
        from sordino.privacy.records.price import FINISH

        for other in sorted(self.prices.sharing(self.names.values()) - {run}):
            begin = self.ledger.noted(BEGIN, other)
            if begin is not None and (chosen or _chooses(begin.facts)):
                raise StudyError(
                    f"{self.ledger.path}: run {other} has not ended and uses the same records, and "
                    f"the {'new' if chosen else 'old'} run, or who can end it, chooses by what it "
                    "releases how much it spends, so what is left for the other one would follow "
                    f"from private data. {FINISH}"
                )

    def did_all(self, run: str) -> bool:
        """Tell whether a run has charged all that it planned, on some unit of each kind, and no
        more on any.
        """
        planned, done = self.ledger.planned(run), self.ledger.charged_by(run)
        if any(not done[name] <= plan for name, plan in planned.items()):
            return False
        whole = [plan for name, plan in planned.items() if done[name] == plan]
        return all(plan in whole for plan in planned.values())

    def begun(self, run: str) -> dict[str, Any]:
        """Return what the run began with.

        Raises:
            ResumeError: if the ledger knows no such run, naming whose it is.
        """
        found = self.ledger.noted(BEGIN, run)
        if found is None:
            raise ResumeError(
                f"{self.ledger.path}: this ledger (of {next(iter(self.names), 'nobody')}) knows "
                f"nothing of run {run}: it was made anew, replaced by another, or belongs to other "
                "data. Put back the ledger and the data that the run began with, or begin a new run"
            )
        if found.facts.get(ROWS, 1) != self._most and self.sealed(run) is None:
            raise ResumeError(
                f"{self.ledger.path}: a version before began this run, and priced a person as one "
                "row here, so that every epsilon of this folder is too low; those of the sites are "
                "right. End the study with that version and state what the sites' proofs say, or "
                "begin a new run"
            )
        return found.facts

    def seal(self, run: str, facts: Mapping[str, Any]) -> None:
        """Note in the ledger how a run ended: nothing it released can be told otherwise then.

        Raises:
            ResumeError: if it was sealed before with other facts.
        """
        self.ledger.note(SEAL, run, facts)

    def sealed(self, run: str) -> dict[str, Any] | None:
        """Return how the run ended, if the ledger knows."""
        found = self.ledger.noted(SEAL, run)
        return None if found is None else found.facts

    def heads(self) -> dict[str, Head]:
        """Number and digest of the ledger's last link, by one of its units."""
        return {next(iter(self.names)): self.ledger.head()}

    def refuse_older(self, heads: Mapping[str, Head]) -> None:
        """Hold the ledger against heads noted before: entries may only have been added.

        Raises:
            ResumeError: naming the ledger that lacks one.
        """
        for unit, head in heads.items():
            if unit not in self.names:
                raise ResumeError(
                    f"the checkpoint knows a ledger of {unit!r}, which this study does not "
                    "have. Restore the run folder from a copy"
                )
            if not self.ledger.stands(head):
                raise ResumeError(
                    f"{self.ledger.path}: older than the checkpoint, or another ledger: it has no "
                    f"entry {head[0]} with digest {head[1][:16]}…. What was released since would "
                    "be forgotten: put back the ledger that belongs to the checkpoint, or begin a "
                    "new run"
                )

    def moved(self, before: Path, after: Path) -> None:
        """Open the file again, which was closed, where a folder has got another name."""
        path = self.ledger.path
        self.ledger.reopen(after / path.name if path.parent == before else path)

    def close(self) -> None:
        """Close the file."""
        self.ledger.close()

    def _name(self, unit: str) -> str:
        if unit not in self.names:
            raise LedgerError(f"no ledger is kept for {unit!r}")
        return self.names[unit]

    def __enter__(self) -> LedgerSession:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _chooses(begin: Mapping[str, Any]) -> bool:
    """Tell whether a run does not say at its beginning how much it spends: its releases decide, or
    others do.
    """
    chosen = (begin.get("promise") or {}).get("chosen")
    return bool(chosen or (begin.get(OTHERS) and not begin.get(PLANNED)))


def data_ledger(folder: Path) -> Path:
    """The one file of a data ledger.

    Raises:
        LedgerError: if the folder holds ledgers of files, which knew no records.
        StudyError: if it is no folder.
    """
    path = folder / NAME
    if folder.exists() and not folder.is_dir():
        raise StudyError(
            f"privacy.ledger: {folder}: this is a file, so no folder for ledgers can be "
            "made here. Name another folder"
        )
    refuse_closed(folder)
    there = sorted(folder.glob("*.sqlite"))  # looked at once: somebody may make it just now
    if path not in there and (old := there):
        raise LedgerError(
            f"{folder}: its ledgers ({old[0].name}, …) were kept for files, so it is not known "
            "which records they charged. Keep them, and give another folder: what they have spent "
            "is not known there"
        )
    return path


def refuse_closed(folder: Path) -> None:
    """Tell a folder of ledgers that may not be read from one that holds none.

    Raises:
        LedgerError: if it may not be read.
    """
    try:
        if folder.is_dir():
            os.listdir(folder)
            (folder / NAME).exists()
    except PermissionError as error:
        raise LedgerError(
            f"{folder}: no permission to read this folder. Give this user read and write permission"
        ) from error


def refuse_missing(path: Path) -> None:
    """Refuse where the ledger of a run that has begun is no longer there."""
    if not path.is_file():
        raise ResumeError(
            f"{path}: the ledger is missing, and it records all releases. Restore it from a copy, "
            "or begin a new run; a new ledger would forget what the run has spent"
        )
