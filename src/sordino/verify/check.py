"""One look at everything, with one clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sordino.base.errors import LedgerError, SordinoError, StudyError
from sordino.base.files import there
from sordino.base.fingerprints import KEYED
from sordino.base.parsing import json_of, toml_of
from sordino.core import begun, checkpoint, sealed
from sordino.core.built import ELSEWHERE
from sordino.core.built import UNIT as TEST
from sordino.core.recorder import CHECKPOINTS, METRICS
from sordino.data.sets import is_ours
from sordino.privacy import Entry, Event, Ledger, accountant
from sordino.privacy.chain import BEGIN, RECORDS, SEAL, Note
from sordino.privacy.rounding import epsilon_text
from sordino.privacy.storage import Clock, said, seen_by_others
from sordino.report.page import PAGE
from sordino.verify.found import Kept, Terms, Unit, Verdict
from sordino.verify.places import ABOUT, STUDY, places, table, terms_of
from sordino.verify.stated import (
    at_least,
    at_place,
    bound_of,
    called,
    close,
    differing,
    exceeded,
    in_words,
    number_of,
    numbers_in,
)

Row = dict[str, Any]
Spent = tuple[tuple[Event, int], ...]


class Check:
    """One look at everything, with one clock."""

    def __init__(self, clock: Clock, digest: str | None = None) -> None:
        self.clock, self.digest, self.verdict = clock, digest, Verdict()
        self.prices: dict[Any, float] = {}
        self.found = False  # the digest that was noted elsewhere

    def left(self) -> float:
        """Seconds that are left."""
        return max(0.01, self.clock.left())

    def price(self, ledger: Ledger, unit: str, terms: Terms, until: int | None = None) -> float:
        """What was charged on a unit itself."""
        with said(ledger.path, self.clock):
            return self.priced(ledger, unit, terms, ledger.spent(unit, until))

    def priced(self, ledger: Ledger, unit: str, terms: Terms, history: Spent) -> float:
        """A history's epsilon; equal ones are priced once."""
        with said(ledger.path, self.clock):
            self.clock.check()
            if (history, terms) not in self.prices:
                try:
                    self.prices[history, terms] = accountant(terms.accountant).epsilon(
                        history, terms.delta
                    )
                except (ArithmeticError, RecursionError, TypeError, MemoryError) as error:
                    # whatever a forger thinks of
                    raise LedgerError(
                        f"{ledger.path}: what {unit!r} has spent cannot be priced ({error})"
                    ) from error
            return self.prices[history, terms]

    def bounds(self, ledger: Ledger) -> Mapping[str, Sequence[Spent]]:
        """Of a ledger's sets that know records: what their records have spent in all together."""
        with said(ledger.path, self.clock):
            if not ledger.notes(RECORDS):
                return {}
            from sordino.privacy.records import bounds  # arrays take a while to import

            try:
                return bounds(ledger, self.clock.check)
            except (
                ArithmeticError,
                LookupError,
                RecursionError,
                TypeError,
                ValueError,
                AttributeError,
                MemoryError,
            ) as error:
                raise LedgerError(
                    f"{ledger.path}: what its records have spent cannot be read ({error!r})"
                ) from error

    def ledger(self, path: Path) -> Kept | None:
        """Walk a ledger and price all its units; None, and a problem, if that cannot be done."""
        try:
            with Ledger.open(path, readonly=True, seconds=self.left()) as ledger:
                return self.walk(ledger)
        except SordinoError as error:
            self.verdict.problems.append(at_place(path, error))
            return None

    def walk(self, ledger: Ledger, terms: Terms | None = None) -> Kept:
        found = ledger.verify()
        self.found |= self.digest is not None and ledger.holds(self.digest)
        begins = ledger.notes(BEGIN)
        if terms is None and begins:
            terms = terms_of(begins[-1])[1]
        labels = {**called(begins), **ledger.labels()}
        together = {} if terms is None else self.bounds(ledger)

        def most_of(unit: str) -> float | None:
            if terms is None:
                return None
            own = self.price(ledger, unit, terms)
            return max(
                (own, *(self.priced(ledger, unit, terms, each) for each in together.get(unit, ())))
            )

        units = tuple(Unit(unit, labels.get(unit), most_of(unit)) for unit in ledger.units())
        kept = Kept(ledger.path, found.entries, found.digest, terms, units)
        self.verdict.ledgers.append(kept)
        with said(ledger.path, self.clock):
            self.verdict.problems += [
                f"{ledger.path}: entry {entry.seq} charges {entry.unit}, a set of records, and no "
                "run made it: no history of these records counts it until the next run over this "
                "ledger begins, and what was certified since is too low"
                for entry in self.outside(ledger)
            ]
        return kept

    def outside(self, ledger: Ledger) -> Sequence[Entry]:
        """Charges on sets of records that no run made, and that their records do not count."""
        if not ledger.notes(RECORDS):
            return ()
        from sordino.privacy.records import outside  # arrays take a while to import

        return outside(ledger)

    def run(self, folder: Path) -> None:
        """Hold a run folder against its ledger, or its ledgers."""
        self.verdict.sealed = False
        try:
            about, paths = table(folder / ABOUT, json_of), places(folder)
        except SordinoError as error:
            self.verdict.problems.append(str(error))
            return
        with ExitStack() as stack:
            opened = []
            for path in paths:
                try:
                    ledger = stack.enter_context(
                        Ledger.open(path, readonly=True, seconds=self.left())
                    )
                    opened.append(self.noted(ledger, str(about.get("run"))))
                except SordinoError as error:
                    self.verdict.problems.append(at_place(path, error))
            if opened:
                try:
                    self.hold(folder, about, opened)
                except SordinoError as error:
                    self.verdict.problems.append(at_place(folder, error))

    def noted(self, ledger: Ledger, run: str) -> tuple[Ledger, Note, Note | None]:
        """A ledger that is whole, with the beginning and the seal of the run."""
        begin = ledger.noted(BEGIN, run)
        self.walk(ledger, None if begin is None else terms_of(begin)[1])
        if begin is None:
            raise LedgerError(
                f"it knows nothing of run {run[:80]!r}, which {ABOUT} names: it is the "
                "ledger of another run, or was made anew"
            )
        return ledger, begin, ledger.noted(SEAL, run)

    def hold(
        self, folder: Path, about: Row, opened: list[tuple[Ledger, Note, Note | None]]
    ) -> None:
        """Everything that the folder says, against what stands in the chain."""
        (_, begin, seal), problems = opened[0], self.verdict.problems
        study, terms = terms_of(begin)
        privacy, before = study["privacy"], begin.facts
        problems += [f"{folder / STUDY}: {each}" for each in self.study(folder, study)]
        problems += [
            f"{folder / ABOUT}: {each}"
            for each in differing(before.get("promise"), begun.promise(about))
        ]
        spent = dict(self.spent(opened, terms, own=privacy.get("ledger") == "run"))
        data = study.get("data")
        if privacy.get("ledger") != "run" or (
            isinstance(data, dict) and data.get("person") is not None
        ):
            tests = {unit: epsilon for unit, epsilon in spent.items() if unit == TEST}
            clients = {unit: epsilon for unit, epsilon in spent.items() if unit != TEST}
            spent = at_least(clients, numbers_in(about, "spent")) | at_least(
                tests, numbers_in(about, "test_epsilon")
            )
        plain = privacy.get("unit") == "none"
        self.verdict.epsilon = (
            math.inf
            if plain
            else bound_of(max(spent.values(), default=None), before.get("promise"))
        )
        self.verdict.terms, self.verdict.sealed = terms, seal is not None
        self.shown(study, opened[0][0], own=privacy.get("ledger") == "run")
        if seal is not None and not plain:
            problems += [f"{folder}: {each}" for each in exceeded(begin.facts, seal.facts, privacy)]
        tested = None if plain else spent.pop(TEST, None)
        self.checkpoint(folder, opened)
        if seal is None:
            self.unsealed(folder, about)
            return
        self.result(folder, about, {} if plain else spent)
        stated = about.get("result")
        if tested is not None and not close(
            stated.get("test_epsilon") if isinstance(stated, dict) else None, tested
        ):
            problems.append(
                f"{folder / ABOUT}: result.test_epsilon is not what the ledger gives: "
                f"{epsilon_text(tested)}"
            )
        problems += [
            f"{folder / ABOUT}: {each}"
            for each in differing(seal.facts.get("run"), sealed.run(about), self.verdict.epsilon)
        ]
        known = _sealed(seal.facts)
        files = {
            name: self.file(folder, name)
            for name in sealed.FILES
            if name in (*known, METRICS if there(folder, METRICS) else "")
            or name not in sealed.LATER
        }
        problems += [
            f"{folder / name}: not the file that was sealed when the run ended"
            for name in sealed.changed(seal.facts, files)
        ]
        head = about.get("ledger")
        if not isinstance(head, dict) or not _stands(opened[0][0], head):
            problems.append(
                f"{folder / ABOUT}: ledger.seq or ledger.digest is no link of the chain: entries "
                "were cut off, or it was changed"
            )
        kept = "run" if privacy.get("ledger") == "run" else "data"
        if isinstance(head, dict) and head.get("scope") != kept:
            problems.append(
                f"{folder / ABOUT}: ledger.scope is {head.get('scope')!r}, and the run began with "
                f"a ledger of the {kept}: it was changed"
            )
        if there(folder, PAGE):
            self.verdict.remarks.append(
                f"{folder / PAGE} is not judged: `sordino report` writes it again from these files"
            )

    def study(self, folder: Path, before: Row) -> Iterator[str]:
        now = table(folder / STUDY, toml_of)
        for each in (before, now):
            each.pop("execution", None)
        yield from differing(dict(begun.flat(before)), dict(begun.flat(now)))

    def spent(
        self, opened: list[tuple[Ledger, Note, Note | None]], terms: Terms, *, own: bool
    ) -> Iterator[tuple[str, float]]:
        """Each promised unit's epsilon, of all its ledger's entries, or up to the seal.

        Without a seal nothing is stated that it could be compared with: then it is what the records
        have spent in all sets.
        """
        for ledger, begin, seal in opened:
            units = begin.facts.get("units")
            most = {
                unit.name: unit.epsilon
                for kept in self.verdict.ledgers
                if kept.path == ledger.path
                for unit in kept.units
            }
            for unit, name in units.items() if isinstance(units, dict) else ():
                if seal is None and (known := most.get(str(name))) is not None:
                    yield unit, known
                    continue
                yield (
                    unit,
                    self.price(ledger, str(name), terms, None if own or seal is None else seal.seq),
                )

    def result(self, folder: Path, about: Row, spent: Mapping[str, float]) -> None:
        """Epsilon, of all and of each, as stated and as added up here."""
        result = about.get("result")
        stated = result if isinstance(result, dict) else {}
        where, given = f"{folder / ABOUT}: result", self.verdict.epsilon
        if given is not None and not close(stated.get("epsilon"), given):
            self.verdict.problems.append(
                f"{where}.epsilon is {in_words(stated.get('epsilon'))}; the ledger gives "
                f"{epsilon_text(given)}"
            )
        listed = stated.get("spent")
        each = sorted(map(number_of, listed)) if isinstance(listed, list) else []
        if len(each) != len(spent) or not all(map(close, each, sorted(spent.values()))):
            self.verdict.problems.append(
                f"{where}.spent lists {len(each)} units, at most "
                f"{in_words(max(each, default=None))}; the ledger gives {len(spent)}, at most "
                f"{in_words(max(spent.values(), default=None))}"
            )

    def unsealed(self, folder: Path, about: Row) -> None:
        """A run without a seal may say nothing of how it ended."""
        if about.get("result") is not None or about.get("status") == "done":
            self.verdict.problems.append(
                f"{folder / ABOUT}: it says that the run ended, and the ledger holds no seal of "
                "it: the result was never sealed, or entries were cut off"
            )
        self.verdict.remarks.append(
            "This run has no seal: it is running, or was stopped. Its log and model are not "
            "held by the ledger yet"
        )
        if not there(folder, CHECKPOINTS, checkpoint.NAME):
            self.verdict.remarks.append(
                f"{folder / CHECKPOINTS} has no checkpoint: if it is resumed, this run plays from "
                "its first round again"
            )

    def checkpoint(self, folder: Path, opened: list[tuple[Ledger, Note, Note | None]]) -> None:
        """Where the ledgers stood at the last checkpoint, they still stand."""
        for unit, (seq, digest) in checkpoint.heads(folder / CHECKPOINTS).items():
            if not any(ledger.stands((seq, digest)) for ledger, _, _ in opened):
                self.verdict.problems.append(
                    f"{folder / CHECKPOINTS}: at the checkpoint the ledger of {unit[:80]} "
                    f"had {seq} entries, and it lacks the last of them"
                )

    def shown(self, study: Row, ledger: Ledger, *, own: bool) -> None:
        """Say whether the ledger shows private rows to whoever guesses them."""
        data = study.get("data")
        name, file = (data.get("name"), data.get("file")) if isinstance(data, dict) else ("", "")
        if not own:
            if (warning := seen_by_others(ledger.path.parent)) is not None:
                self.verdict.remarks.append(warning)
            return
        if file is None and is_ours(str(name)):
            return
        prints = {unit: each for unit, each in ledger.units().items() if each != unit}
        if all(each.startswith((KEYED, *ELSEWHERE)) for each in prints.values()):
            self.verdict.remarks.append(
                "The rows are not compared here: their fingerprints are keyed, and `sordino run "
                "--resume` compares them where the key is"
            )
        else:
            self.verdict.remarks.append(
                f"warning: {ledger.path}: an earlier version wrote digests of private rows without "
                "a key: who knows all rows but one can test guesses of it. Do not show this folder"
            )

    def file(self, folder: Path, name: str) -> str:
        """The digest of a file; what cannot be read has none."""
        with said(folder / name, self.clock):
            try:
                return sealed.file_digest(folder, name, self.clock.check)
            except StudyError:
                return "none"


def _stands(ledger: Ledger, head: Row) -> bool:
    """Whether a ledger has the link that a run was sealed with."""
    seq, digest = head.get("seq"), head.get("digest")
    return isinstance(seq, int) and isinstance(digest, str) and ledger.stands((seq, digest))


def _sealed(facts: Row) -> Row:
    """Digests of files, by name, as a seal holds them."""
    found = facts.get("files")
    return found if isinstance(found, dict) else {}
