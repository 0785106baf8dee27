"""Whether a ledger is whole, and whether a run folder says what its ledger says.

A ledger file is walked link by link, and every unit in it is priced. A run folder is held against its ledger: what it
promised when it began, how it ended, the study, the log, the model, and the epsilon that the charges add up to, which is
computed here and not taken from any file. What does not fit is one line: the file, the key, what stands there, and what the
ledger gives.

Nothing that is read here is trusted, or taken as code: files have a largest size, and everything together so many seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino.build import begun, sealed
from sordino.build.evaluation import UNIT as TEST
from sordino.errors import LedgerError, SordinoError, StudyError
from sordino.files import read_below
from sordino.parsing import json_of, toml_of
from sordino.privacy import Event, Ledger, accountant
from sordino.privacy.chain import BEGIN, RECORDS, SEAL, Note
from sordino.privacy.rounding import epsilon_text
from sordino.privacy.storage import SECONDS, Clock, said
from sordino.privacy.vault import refuse_closed
from sordino.runtime import checkpoint
from sordino.runtime.recorder import CHECKPOINTS

ABOUT, STUDY = "run.json", "study.toml"
LARGEST = 64 << 20  # bytes of a JSON or TOML file that is read whole
CLOSE = 1e-6  # relative: accountants of other versions may differ in last digits

Row = dict[str, Any]
Spent = tuple[tuple[Event, int], ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """What an epsilon means: at which delta, by which accountant."""

    delta: float
    accountant: str


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a ledger: its name, what people call it, and what it has spent (None where nobody said at which delta).

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
        epsilon: of a run, what its promised units have spent at most; of ledgers, the highest of all units. None without a delta.
        terms: what that epsilon means.
        sealed: whether a run had ended and was sealed; None of ledgers alone.
    """

    ledgers: list[Kept] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    epsilon: float | None = None
    terms: Terms | None = None
    sealed: bool | None = None


def verify(path: Path, *, digest: str | None = None, seconds: float = SECONDS) -> Verdict:
    """Look at a ledger file, a run folder, or a folder of ledgers, for ``seconds`` at most.

    ``digest`` is one that was noted elsewhere, which must still stand in a ledger.

    Raises:
        StudyError: if there is nothing of the kind.
    """
    check = _Check(Clock(seconds), digest)
    if (path / ABOUT).exists():
        check.run(path)
    else:
        for file in places(path):
            check.ledger(file)
        known = [unit.epsilon for kept in check.verdict.ledgers for unit in kept.units if unit.epsilon is not None]
        check.verdict.epsilon = max(known, default=None)
        check.verdict.terms = next((kept.terms for kept in check.verdict.ledgers if kept.terms is not None), None)
    if digest is not None and not check.found:
        check.verdict.problems.append(
            f"{path}: no link of the chain has the digest {digest[:64]}: entries were cut off, or it is another ledger"
        )
    return check.verdict


def priced(path: Path, delta: float | None, name: str | None, seconds: float = SECONDS) -> list[Kept]:
    """Every unit of the ledgers at a path, at another delta or by another accountant than the last run's where they are given.

    Raises:
        StudyError: if nobody says at which delta.
        LedgerError: if a ledger is not whole.
    """
    check = _Check(Clock(seconds))
    for file in places(path):
        with Ledger.open(file, readonly=True, seconds=check.left()) as ledger:
            begins = ledger.notes(BEGIN)
            terms = terms_of(begins[-1])[1] if begins else None
            if terms is None and delta is None:
                raise StudyError(f"{file}: give --delta: no run that states one began in this ledger")
            own = Terms(delta or 0.0, "pld") if terms is None else terms
            check.walk(ledger, Terms(delta or own.delta, name or own.accountant))
    return check.verdict.ledgers


def places(path: Path) -> list[Path]:
    """The ledger files at a path: the file itself, that of a run folder, or all of a folder.

    Raises:
        StudyError: if there is none.
        LedgerError: if a folder of them may not be read.
    """
    if path.is_file():
        return [path]
    if (path / begun.LEDGER).exists():
        return [path / begun.LEDGER]
    if (path / ABOUT).exists():
        about, folder = table(path / ABOUT, json_of), data_folder(path)
        if folder is not None:
            refuse_closed(folder)
        found = [] if folder is None else [each for each in sorted(folder.glob("*.sqlite")) if _knows(each, str(about.get("run")))]
        if not found:
            where = f" (privacy.ledger in its {STUDY} names {folder})" if folder is not None else ""
            raise StudyError(f"{path}: it holds no {begun.LEDGER}, and no ledger of its run was found where data is kept{where}")
        return found
    found = sorted(path.glob("*.sqlite")) if path.is_dir() else []
    if not found:
        raise StudyError(f"{path}: there is no run folder, ledger file or folder of ledgers here")
    return found


def data_folder(folder: Path) -> Path | None:
    """Where a run folder's study keeps the ledgers of its data; None if nowhere."""
    privacy = table(folder / STUDY, toml_of).get("privacy")
    kept = privacy.get("ledger") if isinstance(privacy, dict) else None
    return Path(kept).expanduser() if isinstance(kept, str) and kept != "run" and "\0" not in kept else None


def _knows(path: Path, run: str) -> bool:
    try:
        with Ledger.open(path, readonly=True) as ledger:
            return ledger.noted(BEGIN, run) is not None
    except LedgerError:
        return False


def table(path: Path, read: Callable[[str], Any]) -> Row:
    """The table in a JSON or TOML file.

    Raises:
        StudyError: if there is none that can be read.
    """
    try:
        found = read(read_below(path.parent, path.name, most=LARGEST).decode())
    except (ValueError, RecursionError, OSError) as error:
        raise StudyError(f"{path}: cannot be read ({str(error)[:200]}). Restore it from a copy") from error
    if not isinstance(found, dict):
        raise StudyError(f"{path}: it must hold one table of keys and values. Restore it from a copy")
    return found


def terms_of(note: Note) -> tuple[Row, Terms]:
    """The study that a run began with, and the terms of its promise.

    Raises:
        LedgerError: if the note holds none.
    """
    try:
        study = toml_of(str(note.facts["study"]))
        privacy = study["privacy"]
        delta = float(privacy.get("delta", 1e-5))
        found = Terms(delta, accountant(str(privacy["accountant"])).name)
        if not 0.0 < delta < 1.0:
            raise ValueError(f"delta = {delta}")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, StudyError) as error:
        raise LedgerError(f"entry {note.seq} (begin {note.name[:80]}) holds no study that can be read: {error!r}") from error
    return study, found


class _Check:
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
                    self.prices[history, terms] = accountant(terms.accountant).epsilon(history, terms.delta)
                except (ArithmeticError, RecursionError, TypeError, MemoryError) as error:  # whatever a forger thinks of
                    raise LedgerError(f"{ledger.path}: what {unit!r} has spent cannot be priced ({error})") from error
            return self.prices[history, terms]

    def bounds(self, ledger: Ledger) -> Mapping[str, Sequence[Spent]]:
        """Of the sets of a ledger that knows records, what those in them have spent in all sets together."""
        with said(ledger.path, self.clock):
            if not ledger.notes(RECORDS):
                return {}
            from sordino.privacy.records import bounds  # arrays take a while to import

            try:
                return bounds(ledger, self.clock.check)
            except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, AttributeError, MemoryError) as error:
                raise LedgerError(f"{ledger.path}: what its records have spent cannot be read ({error!r})") from error

    def ledger(self, path: Path) -> Kept | None:
        """Walk a ledger and price all its units; None, and a problem, if that cannot be done."""
        try:
            with Ledger.open(path, readonly=True, seconds=self.left()) as ledger:
                return self.walk(ledger)
        except SordinoError as error:
            self.verdict.problems.append(_at(path, error))
            return None

    def walk(self, ledger: Ledger, terms: Terms | None = None) -> Kept:
        found = ledger.verify()
        self.found |= self.digest is not None and ledger.holds(self.digest)
        begins = ledger.notes(BEGIN)
        if terms is None and begins:
            terms = terms_of(begins[-1])[1]
        labels = {**_called(begins), **ledger.labels()}
        together = {} if terms is None else self.bounds(ledger)

        def most_of(unit: str) -> float | None:
            if terms is None:
                return None
            own = self.price(ledger, unit, terms)
            return max((own, *(self.priced(ledger, unit, terms, each) for each in together.get(unit, ()))))

        units = tuple(Unit(unit, labels.get(unit), most_of(unit)) for unit in ledger.units())
        kept = Kept(ledger.path, found.entries, found.digest, terms, units)
        self.verdict.ledgers.append(kept)
        return kept

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
                    ledger = stack.enter_context(Ledger.open(path, readonly=True, seconds=self.left()))
                    opened.append(self.noted(ledger, str(about.get("run"))))
                except SordinoError as error:
                    self.verdict.problems.append(_at(path, error))
            if opened:
                try:
                    self.hold(folder, about, opened)
                except SordinoError as error:
                    self.verdict.problems.append(_at(folder, error))

    def noted(self, ledger: Ledger, run: str) -> tuple[Ledger, Note, Note | None]:
        """A ledger that is whole, with the beginning and the seal of the run."""
        begin = ledger.noted(BEGIN, run)
        self.walk(ledger, None if begin is None else terms_of(begin)[1])
        if begin is None:
            raise LedgerError(
                f"it knows nothing of run {run[:80]!r}, which {ABOUT} names: it is the ledger of another run, or was made anew"
            )
        return ledger, begin, ledger.noted(SEAL, run)

    def hold(self, folder: Path, about: Row, opened: list[tuple[Ledger, Note, Note | None]]) -> None:
        """Everything that the folder says, against what stands in the chain."""
        (_, begin, seal), problems = opened[0], self.verdict.problems
        study, terms = terms_of(begin)
        privacy, before = study["privacy"], begin.facts
        problems += [f"{folder / STUDY}: {each}" for each in self.study(folder, study)]
        problems += [f"{folder / ABOUT}: {each}" for each in _stated(before.get("promise"), begun.promise(about))]
        spent = dict(self.spent(opened, terms, own=privacy.get("ledger") == "run"))
        data = study.get("data")
        if privacy.get("ledger") != "run" or (isinstance(data, dict) and data.get("person") is not None):
            tests = {unit: epsilon for unit, epsilon in spent.items() if unit == TEST}
            clients = {unit: epsilon for unit, epsilon in spent.items() if unit != TEST}
            spent = _at_least(clients, _listed(about, "spent")) | _at_least(tests, _listed(about, "test_epsilon"))
        plain = privacy.get("unit") == "none"
        self.verdict.epsilon = math.inf if plain else _bound(max(spent.values(), default=None), before.get("promise"))
        self.verdict.terms, self.verdict.sealed = terms, seal is not None
        tested = None if plain else spent.pop(TEST, None)
        self.checkpoint(folder, opened)
        if seal is None:
            self.unsealed(folder, about)
            return
        self.result(folder, about, {} if plain else spent)
        stated = about.get("result")
        if tested is not None and not _close(stated.get("test_epsilon") if isinstance(stated, dict) else None, tested):
            problems.append(f"{folder / ABOUT}: result.test_epsilon is not what the ledger gives: {epsilon_text(tested)}")
        problems += [f"{folder / ABOUT}: {each}" for each in _stated(seal.facts.get("run"), sealed.run(about), self.verdict.epsilon)]
        files = {name: self.file(folder / name) for name in sealed.FILES}
        problems += [f"{folder / name}: not the file that was sealed when the run ended" for name in sealed.changed(seal.facts, files)]
        head = about.get("ledger")
        if not isinstance(head, dict) or (privacy.get("ledger") == "run" and not opened[0][0].holds(str(head.get("digest")))):
            problems.append(f"{folder / ABOUT}: ledger.digest is no link of the chain: entries were cut off, or it was changed")

    def study(self, folder: Path, before: Row) -> Iterator[str]:
        now = table(folder / STUDY, toml_of)
        for each in (before, now):
            each.pop("execution", None)
        yield from _stated(dict(begun.flat(before)), dict(begun.flat(now)))

    def spent(self, opened: list[tuple[Ledger, Note, Note | None]], terms: Terms, *, own: bool) -> Iterator[tuple[str, float]]:
        """Each promised unit's epsilon: of all that its own ledger holds, or up to the seal in a ledger that outlives the run.

        Without a seal nothing is stated that it could be compared with: then it is what the records have spent in all sets.
        """
        for ledger, begin, seal in opened:
            units = begin.facts.get("units")
            most = {unit.name: unit.epsilon for kept in self.verdict.ledgers if kept.path == ledger.path for unit in kept.units}
            for unit, name in units.items() if isinstance(units, dict) else ():
                if seal is None and (known := most.get(str(name))) is not None:
                    yield unit, known
                    continue
                yield unit, self.price(ledger, str(name), terms, None if own or seal is None else seal.seq)

    def result(self, folder: Path, about: Row, spent: Mapping[str, float]) -> None:
        """Epsilon, of all and of each, as stated and as added up here."""
        result = about.get("result")
        stated = result if isinstance(result, dict) else {}
        where, given = f"{folder / ABOUT}: result", self.verdict.epsilon
        if given is not None and not _close(stated.get("epsilon"), given):
            self.verdict.problems.append(f"{where}.epsilon is {_words(stated.get('epsilon'))}; the ledger gives {epsilon_text(given)}")
        listed = stated.get("spent")
        each = sorted(map(_number, listed)) if isinstance(listed, list) else []
        if len(each) != len(spent) or not all(map(_close, each, sorted(spent.values()))):
            self.verdict.problems.append(
                f"{where}.spent lists {len(each)} units, at most {_words(max(each, default=None))};"
                f" the ledger gives {len(spent)}, at most {_words(max(spent.values(), default=None))}"
            )

    def unsealed(self, folder: Path, about: Row) -> None:
        """A run without a seal may say nothing of how it ended."""
        if about.get("result") is not None or about.get("status") == "done":
            self.verdict.problems.append(
                f"{folder / ABOUT}: it says that the run ended, and the ledger holds no seal of it: the result was never sealed, or"
                " entries were cut off"
            )
        self.verdict.remarks.append("This run has no seal: it is running, or was stopped. Its log and model are not held by the ledger yet")

    def checkpoint(self, folder: Path, opened: list[tuple[Ledger, Note, Note | None]]) -> None:
        """Where the ledgers stood at the last checkpoint, they still stand."""
        for unit, (seq, digest) in checkpoint.heads(folder / CHECKPOINTS).items():
            if not any(ledger.stands((seq, digest)) for ledger, _, _ in opened):
                self.verdict.problems.append(
                    f"{folder / CHECKPOINTS}: at the checkpoint the ledger of {unit[:80]} had {seq} entries, and it lacks the last of them"
                )

    def file(self, path: Path) -> str:
        """Of a file; what cannot be read has none."""
        with said(path, self.clock):
            try:
                return sealed.file_digest(path, self.clock.check)
            except StudyError:
                return "none"


def _bound(spent: float | None, promise: object) -> float | None:
    """The epsilon that is a bound: what was spent; or, where releases chose that, at least the budget that was fixed in advance."""
    told = promise if isinstance(promise, dict) else {}
    budget = _number(told.get("epsilon_budget"))
    return spent if spent is None or not told.get("chosen") or told.get("form") != "sound" or math.isinf(budget) else max(spent, budget)


def _listed(about: Row, key: str) -> list[float]:
    """The numbers that a result states under a key, in order of size."""
    result = about.get("result")
    found = result.get(key) if isinstance(result, dict) else None
    return sorted(map(_number, found if isinstance(found, list) else [] if found is None else [found]))


def _at_least(spent: Mapping[str, float], stated: Sequence[float]) -> dict[str, float]:
    """What is stated of each unit, where it is no less than what the unit's own entries come to: its records may have been in more.

    Once a run has ended its records' histories are those of classes, in which later runs are, too. That what is stated
    was not changed since, the seal shows.
    """
    own = sorted(spent.items(), key=lambda item: item[1])
    if len(stated) != len(own) or not all(told >= found or _close(told, found) for told, (_, found) in zip(stated, own, strict=True)):
        return dict(spent)
    return {unit: told for told, (unit, _) in zip(stated, own, strict=True)}


def _called(begins: Sequence[Note]) -> dict[str, str]:
    """What the last run called units whose names are fingerprints."""
    units = begins[-1].facts.get("units") if begins else None
    return {str(name): str(unit) for unit, name in units.items() if name != unit} if isinstance(units, dict) else {}


def _stated(ledger: object, file: Mapping[str, Any], epsilon: float | None = None) -> Iterator[str]:
    """Every key of a file that differs from what the ledger holds of it."""
    given = ledger if isinstance(ledger, dict) else {}
    for key in begun.differing(given, file):
        if key in ("result.epsilon", "result.spent") and epsilon is not None and not _close(given.get(key), file.get(key)):
            continue  # said already, with what the ledger adds up to
        yield f"{key} is {begun.shown(file, key)}; the ledger says {begun.shown(given, key)}"


def _number(value: object) -> float:
    if isinstance(value, str):
        return math.inf if value == "inf" else math.nan
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    return float(value) if isinstance(value, float) or abs(value) < 10**300 else math.nan


def _close(stated: object, given: object) -> bool:
    return math.isclose(_number(stated), _number(given), rel_tol=CLOSE)


def _words(value: object) -> str:
    number = _number(value)
    return "not a number" if math.isnan(number) else epsilon_text(number)


def _at(path: Path, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(str(path)) else f"{path}: {text}"
