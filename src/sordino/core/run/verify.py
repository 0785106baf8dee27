"""A ledger that is whole, and a run folder that says what its ledger says.

A ledger file is walked link by link, and every unit in it is priced. A run folder is held against
its ledger: what it promised when it began, how it ended, the study, the log, the model, and the
epsilon that the charges add up to, which is computed here and not taken from any file. What does
not fit is one line: the file, the key, what stands there, and what the ledger gives.

Nothing that is read here is trusted, or taken as code: files have a largest size, and everything
together so many seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from sordino.base.errors import LedgerError, SordinoError, StudyError
from sordino.base.files import json_of, open_below, readable, there, toml_of
from sordino.base.fingerprints import KEYED
from sordino.base.frozen import Frozen
from sordino.base.registry import below
from sordino.core.prepared import ELSEWHERE
from sordino.core.prepared import UNIT as TEST
from sordino.core.records import Count, number
from sordino.core.run.folder import (
    ABOUT,
    CHECKPOINT,
    CHECKPOINTS,
    ENVIRONMENT,
    LEDGER,
    LOG,
    PAGE,
    STUDY,
    Difference,
    RunFolder,
    checkpoint_heads,
    mapping,
    table_in,
)
from sordino.data.sets import is_ours
from sordino.privacy import Entry, Ledger, accountant, encode
from sordino.privacy.chain import BEGIN, OTHERS, PROMISED, RECORDS, ROWS, SEAL, Note
from sordino.privacy.event import History
from sordino.privacy.records import Prices, outside, spendings
from sordino.privacy.rounding import epsilon_text
from sordino.privacy.session import refuse_closed
from sordino.privacy.storage import SECONDS, Clock, ledger_errors, seen_by_others

CLOSE = 1e-6  # relative: accountants of other versions may differ in last digits
GRIDS = 1e-3  # relative: what the order of adding up changes
FORMAT = 1
"""Of what ``sordino ledger`` writes for machines."""

Row = dict[str, Any]
Opened = tuple[Ledger, Note, Note | None]
"""A ledger that is whole, the beginning of the run, and its seal."""


class _Numbered(Frozen):
    """A row of the log of whatever regime: its kind and its number."""

    kind: str = ""
    round: Count = 0


class EpsilonTerms(Frozen):
    """The meaning of an epsilon: at which delta, by which accountant."""

    delta: float
    accountant: str


class Unit(Frozen):
    """A unit of a ledger: its names and what it has spent (None where no delta is known).

    Of a set of records that is what those in it have spent at most, in this set and in all others.
    """

    name: str
    label: str | None
    epsilon: float | None


class VerifiedLedger(Frozen):
    """A ledger whose chain is whole."""

    path: Path
    entries: int
    digest: str
    terms: EpsilonTerms | None
    units: tuple[Unit, ...]


class Verdict(msgspec.Struct):
    """The findings.

    Attributes:
        ledgers: those that are whole.
        problems: what does not fit, one line each; none if all is well.
        remarks: what else should be known.
        epsilon: of a run, what its promised units have spent at most; of ledgers, the highest of
            all units. None without a delta.
        terms: what that epsilon means.
        sealed: whether a run had ended and was sealed; None of ledgers alone.
    """

    ledgers: list[VerifiedLedger] = []
    problems: list[str] = []
    remarks: list[str] = []
    epsilon: float | None = None
    terms: EpsilonTerms | None = None
    sealed: bool | None = None


def verify(path: Path, *, digest: str | None = None, seconds: float = SECONDS) -> Verdict:
    """Look at a ledger file, a run folder, or a folder of ledgers, for ``seconds`` at most.

    ``digest`` is one that was noted elsewhere, which must still stand in a ledger.

    Raises:
        StudyError: if there is nothing of the kind.
    """
    check = _Verification(Clock(seconds), digest)
    verdict = check.verdict
    if (path / ABOUT).exists() or (path / ENVIRONMENT).exists():
        check.run(path)
    else:
        for file in places(path):
            check.ledger(file)
        if path.is_dir() and (warning := seen_by_others(path)) is not None:
            verdict.remarks.append(warning)
        found = [unit.epsilon for kept in verdict.ledgers for unit in kept.units]
        verdict.epsilon = max((each for each in found if each is not None), default=None)
        if check.reserved:
            verdict.remarks.append(
                "epsilon counts what runs could still have spent whose releases chose how much it "
                "is, or others"
            )
        verdict.terms = next((kept.terms for kept in verdict.ledgers if kept.terms), None)
    if digest is not None and not check.found:
        verdict.problems.append(
            f"{path}: no link of the chain has the digest {digest[:64]}: entries were cut "
            "off, or it is another ledger"
        )
    return verdict


def priced(
    path: Path, delta: float | None, name: str | None, seconds: float = SECONDS
) -> list[VerifiedLedger]:
    """Every unit of the ledgers at a path, at another delta or by another accountant if given.

    Raises:
        StudyError: if nobody says at which delta.
        LedgerError: if a ledger is not whole.
    """
    check = _Verification(Clock(seconds))
    for file in places(path):
        with Ledger.open(file, readonly=True, seconds=check.left()) as ledger:
            begins = ledger.notes(BEGIN)
            terms = _terms_of(begins[-1])[1] if begins else None
            if terms is None and delta is None:
                raise StudyError(
                    f"{file}: give --delta: no run that states one began in this ledger"
                )
            own = EpsilonTerms(delta or 0.0, "pld") if terms is None else terms
            by = own.accountant if name is None else ledger.chosen_by(name)
            check.walk(ledger, EpsilonTerms(delta or own.delta, by))
    return check.verdict.ledgers


def places(path: Path) -> list[Path]:
    """The ledger files at a path: the file itself, that of a run folder, or all of a folder.

    Raises:
        StudyError: if there is none.
        LedgerError: if a folder of them may not be read.
    """
    if path.is_file():
        return [path]
    if (path / LEDGER).exists():
        return [path / LEDGER]
    if not (path / ABOUT).exists():
        found = sorted(path.glob("*.sqlite")) if path.is_dir() else []
        if not found:
            raise StudyError(
                f"{path}: there is no run folder, ledger file or folder of ledgers here"
            )
        return found
    run, folder = str(table_in(path / ABOUT, json_of).get("run")), None
    # where the study keeps the ledgers of its data
    kept = below(table_in(path / STUDY, toml_of), "privacy", "ledger")
    if isinstance(kept, str) and kept != "run" and "\0" not in kept:
        folder = Path(kept).expanduser()
        refuse_closed(folder)
        if found := [each for each in sorted(folder.glob("*.sqlite")) if _knows(each, run)]:
            return found
    where = f" (privacy.ledger in its {STUDY} names {folder})" if folder is not None else ""
    raise StudyError(
        f"{path}: it holds no {LEDGER}, and no ledger of its run was found where data is "
        f"kept{where}"
    )


def _knows(path: Path, run: str) -> bool:
    try:
        with Ledger.open(path, readonly=True) as ledger:
            return ledger.noted(BEGIN, run) is not None
    except LedgerError:
        return False


def _terms_of(note: Note) -> tuple[Row, EpsilonTerms]:
    """The study that a run began with, and the terms of its promise.

    Raises:
        LedgerError: if the note holds none.
    """
    what = f"the study in entry {note.seq} (begin {note.name[:80]})"
    with readable(what, LedgerError, "Restore the ledger from a copy"):
        study = toml_of(str(note.facts["study"]))
        privacy = study["privacy"]
        delta = float(privacy.get("delta", 1e-5))
        found = EpsilonTerms(delta, accountant(str(privacy["accountant"])).name)
        if not 0.0 < delta < 1.0:
            raise ValueError(f"delta = {delta}")
    return study, found


class _Verification:
    """One look at everything, with one clock."""

    def __init__(self, clock: Clock, digest: str | None = None) -> None:
        self.clock, self.digest, self.verdict = clock, digest, Verdict()
        self.problems, self.remarks = self.verdict.problems, self.verdict.remarks
        self.prices: dict[Any, float] = {}
        self.most: dict[tuple[Path, str], float] = {}  # of each unit of a ledger that was walked
        self.found = False  # the digest that was noted elsewhere
        self.reserved = False  # whether a run could have spent more

    def left(self) -> float:
        """Seconds that are left."""
        return max(0.01, self.clock.left())

    def price(self, ledger: Ledger, unit: str, terms: EpsilonTerms, history: History) -> float:
        """A history's epsilon; equal ones are priced once."""
        with ledger_errors(ledger.path, self.clock):
            self.clock.check()
            if (history, terms) not in self.prices:
                self.prices[history, terms] = ledger.price(
                    unit, history, terms.delta, terms.accountant
                )
            return self.prices[history, terms]

    def ledger(self, path: Path) -> None:
        """Walk a ledger and price all its units; a problem, if that cannot be done."""
        try:
            with Ledger.open(path, readonly=True, seconds=self.left()) as ledger:
                self.walk(ledger)
        except SordinoError as error:
            self.problems.append(_at_place(path, error))

    def walk(self, ledger: Ledger, terms: EpsilonTerms | None = None) -> None:
        """Walk a ledger that is open, and price all its units.

        Raises:
            LedgerError: if it is not whole.
        """
        found = ledger.verify()
        self.found |= self.digest is not None and ledger.holds(self.digest)
        begins = ledger.notes(BEGIN)
        if terms is None and begins:
            terms = _terms_of(begins[-1])[1]
        # what the last run called units whose names are fingerprints
        units = mapping(begins[-1].facts.get("units") if begins else None)
        labels = {str(name): str(unit) for unit, name in units.items() if name != unit}
        labels |= ledger.labels()
        names = [*ledger.units()]  # before what they have spent: others may add some meanwhile
        # with what runs could still have spent on units, where they chose how much it is
        booked: Mapping[str, Sequence[History]] = {}
        whole: Mapping[str, Sequence[History]] = {}
        if terms is not None:
            what = f"{ledger.path}: what its records have spent, or could still have spent"
            with readable(what, LedgerError), ledger_errors(ledger.path, self.clock):
                booked = spendings(ledger, self.clock.check)
                if rest := Prices(ledger).rest():
                    whole = spendings(ledger, self.clock.check, rest)
        stated = {} if terms is None else _stated(ledger, terms)

        def most_of(unit: str) -> float | None:
            if terms is None:
                return None
            own = (self.price(ledger, unit, terms, each) for each in booked[unit])
            found = self.most[ledger.path, unit] = max((stated.get(unit, 0.0), *own))
            more = (self.price(ledger, unit, terms, each) for each in whole.get(unit, ()))
            return max((found, *more))

        self.reserved |= bool(whole)
        priced = tuple(Unit(unit, labels.get(unit), most_of(unit)) for unit in names)
        self.verdict.ledgers.append(
            VerifiedLedger(ledger.path, found.entries, found.digest, terms, priced)
        )
        with ledger_errors(ledger.path, self.clock):
            if not ledger.notes(RECORDS):
                return
            self.problems += [
                f"{ledger.path}: entry {entry.seq} charges {entry.unit}, a set of records, and no "
                "run made it: no history of these records counts it until the next run over this "
                "ledger begins, and what was certified since is too low"
                for entry in outside(ledger)
            ]

    def run(self, folder: Path) -> None:
        """Hold a run folder against its ledger, or its ledgers."""
        self.verdict.sealed = False
        try:
            about, paths = table_in(folder / ABOUT, json_of), places(folder)
        except SordinoError as error:
            self.problems.append(str(error))
            return
        with ExitStack() as stack:
            opened = []
            for path in paths:
                try:
                    ledger = stack.enter_context(
                        Ledger.open(path, readonly=True, seconds=self.left())
                    )
                    opened.append(self.notes_of_run(ledger, str(about.get("run"))))
                except SordinoError as error:
                    self.problems.append(_at_place(path, error))
            if opened:
                try:
                    self.compare(folder, about, opened)
                except SordinoError as error:
                    self.problems.append(_at_place(folder, error))

    def notes_of_run(self, ledger: Ledger, run: str) -> Opened:
        """A ledger that is whole, with the beginning and the seal of the run."""
        begin = ledger.noted(BEGIN, run)
        self.walk(ledger, None if begin is None else _terms_of(begin)[1])
        if begin is None:
            raise LedgerError(
                f"it knows nothing of run {run[:80]!r}, which {ABOUT} names: it is the "
                "ledger of another run, or was made anew"
            )
        return ledger, begin, ledger.noted(SEAL, run)

    def compare(self, folder: Path, about: Row, opened: list[Opened]) -> None:
        """Everything that the folder says, against what stands in the chain."""
        (ledger, begin, seal), place = opened[0], RunFolder(folder)
        study, terms = _terms_of(begin)
        privacy, data = study["privacy"], mapping(study.get("data"))
        local, plain = privacy.get("ledger") == "run", privacy.get("unit") == "none"
        self.differ(place.changed_since_begin(begin.facts, about))
        clients = dict(self.spent(opened, terms, local=local))
        tested = {TEST: clients.pop(TEST)} if TEST in clients else {}
        if not local or data.get("person") is not None:
            clients = _at_least(clients, _numbers_in(about, "spent"))
            tested = _at_least(tested, _numbers_in(about, "test_epsilon"))
        most = max((*clients.values(), *tested.values()), default=None)
        sealed = None if seal is None else seal.facts.get("run")
        others = seal is None and bool(begin.facts.get(OTHERS))  # who can still end it
        bound = _bound_of(most, begin.facts.get("promise"), sealed, others=others)
        self.verdict.epsilon = math.inf if plain else bound
        self.verdict.terms, self.verdict.sealed = terms, seal is not None
        self.guessable(study, ledger, local=local)
        if 1 < (most_rows := _rows_elsewhere(study, ledger)) != begin.facts.get(ROWS, 1):
            self.problems.append(
                f"{ledger.path}: a version before priced a person of {most_rows} rows as one row "
                "here, so every epsilon of this folder is too low: the sites' own ledgers are right"
            )
        if seal is not None and not plain:
            self.problems += [
                f"{folder}: {each}" for each in _exceeded(begin.facts, seal.facts, privacy)
            ]
        self.checkpoint(folder, opened)
        if seal is None:
            self.unsealed(folder, about)
            return
        said = self.result(folder, about, {} if plain else clients, {} if plain else tested)
        digests = {name: self.file(place, name) for name in place.to_digest(seal.facts)}
        self.differ(place.changed_since_seal(seal.facts, about, digests), said)
        self.head(folder, about.get("ledger"), ledger, "run" if local else "data", seal.seq)
        if not self.problems:
            self.order(folder)
        if there(folder, PAGE):
            self.remarks.append(
                f"{folder / PAGE} is not judged: `sordino report` writes it again from these files"
            )

    def order(self, folder: Path) -> None:
        """Refuse a log whose rounds fall: what was released before was released again, under the
        charges of the first time. It is read without its regime, which may not be known here.
        """
        last = 0
        with open_below(folder, LOG) as log:
            for line in log:
                try:
                    row = msgspec.json.decode(line, type=_Numbered)
                except (msgspec.MsgspecError, RecursionError):
                    self.problems.append(f"{folder / LOG}: a line cannot be read")
                    return
                now = row.round if row.kind == "round" else last
                if now < last:
                    self.problems.append(
                        f"{folder / LOG}: round {now} follows {last}, so the run was set back and "
                        "released again what the ledger counts once"
                    )
                    return
                last = now

    def differ(self, found: Sequence[Difference], said: Collection[str] = ()) -> None:
        """Note differences, but for keys that were ``said`` with what they add up to."""
        self.problems += [each.against_ledger for each in found if each.key not in said]

    def spent(
        self, opened: list[Opened], terms: EpsilonTerms, *, local: bool
    ) -> Iterator[tuple[str, float]]:
        """Each promised unit's epsilon: what its records have spent in all sets; in a ledger of
        the data, to which others add, that of its own entries up to the seal.
        """
        for ledger, begin, seal in opened:
            until = None if local or seal is None else seal.seq
            for unit, called in mapping(begin.facts.get("units")).items():
                name = str(called)
                known = self.most.get((ledger.path, name)) if until is None else None
                if known is None:
                    with ledger_errors(ledger.path, self.clock):
                        known = self.price(ledger, name, terms, ledger.spent(name, until))
                yield unit, known

    def result(
        self, folder: Path, about: Row, spent: Mapping[str, float], tested: Mapping[str, float]
    ) -> set[str]:
        """Hold epsilon, of all and of each, as stated against what adds up here; the keys that do
        not fit.
        """
        stated = mapping(about.get("result"))
        where, given, found = f"{folder / ABOUT}: ", self.verdict.epsilon, dict[str, str]()
        if given is not None and not _close(stated.get("epsilon"), given):
            found["result.epsilon"] = (
                f"is {_in_words(stated.get('epsilon'))}; the ledger gives {epsilon_text(given)}"
            )
        each = _numbers_in(about, "spent")
        if len(each) != len(spent) or not all(map(_close, each, sorted(spent.values()))):
            found["result.spent"] = (
                f"lists {len(each)} units, at most "
                f"{_in_words(max(each, default=None))}; the ledger gives {len(spent)}, at most "
                f"{_in_words(max(spent.values(), default=None))}"
            )
        for epsilon in tested.values():
            if not _close(stated.get("test_epsilon"), epsilon):
                found["result.test_epsilon"] = (
                    f"is not what the ledger gives: {epsilon_text(epsilon)}"
                )
        self.problems += [f"{where}{key} {why}" for key, why in found.items()]
        return {*found}

    def head(self, folder: Path, head: object, ledger: Ledger, scope: str, sealed: int) -> None:
        """The place at which a run was sealed, against the chain."""
        stated = mapping(head)
        match stated.get("seq"), stated.get("digest"):
            case int(seq), str(digest) if seq >= sealed and ledger.stands((seq, digest)):
                pass
            case _:
                self.problems.append(
                    f"{folder / ABOUT}: ledger.seq or ledger.digest is no link of the chain from "
                    "the seal on: entries were cut off, or it was changed"
                )
        if isinstance(head, dict) and head.get("scope") != scope:
            self.problems.append(
                f"{folder / ABOUT}: ledger.scope is {head.get('scope')!r}, and the run began with "
                f"a ledger of the {scope}: it was changed"
            )

    def unsealed(self, folder: Path, about: Row) -> None:
        """A run without a seal may say nothing of how it ended."""
        if about.get("result") is not None or about.get("status") == "done":
            self.problems.append(
                f"{folder / ABOUT}: it says that the run ended, and the ledger holds no seal of "
                "it: the result was never sealed, or entries were cut off"
            )
        self.remarks.append(
            "This run has no seal: it is running, or was stopped. Its log and model are not "
            "held by the ledger yet"
        )
        if not there(folder, *CHECKPOINT.split("/")):
            self.remarks.append(
                f"{folder / CHECKPOINTS} has no checkpoint: if it is resumed, this run plays from "
                "its first round again"
            )

    def checkpoint(self, folder: Path, opened: list[Opened]) -> None:
        """Hold the ledgers against where they stood at the last checkpoint."""
        for unit, (seq, digest) in checkpoint_heads(folder).items():
            if not any(ledger.stands((seq, digest)) for ledger, _, _ in opened):
                self.problems.append(
                    f"{folder / CHECKPOINTS}: at the checkpoint the ledger of {unit[:80]} "
                    f"had {seq} entries, and it lacks the last of them"
                )

    def guessable(self, study: Row, ledger: Ledger, *, local: bool) -> None:
        """Say whether the ledger shows private rows to whoever guesses them."""
        data = mapping(study.get("data"))
        if not local:
            if (warning := seen_by_others(ledger.path.parent)) is not None:
                self.remarks.append(warning)
            return
        if data and data.get("file") is None and is_ours(str(data.get("name"))):
            return
        prints = {unit: each for unit, each in ledger.units().items() if each != unit}
        keyed = all(each.startswith((KEYED, *ELSEWHERE)) for each in prints.values())
        self.remarks.append(
            "The rows are not compared here: their fingerprints are keyed, and `sordino run "
            "--resume` compares them where the key is"
            if keyed
            else f"warning: {ledger.path}: an earlier version wrote digests of private rows "
            "without a key: who knows all rows but one can test guesses of it. Do not show this "
            "folder"
        )

    def file(self, place: RunFolder, name: str) -> str:
        """The digest of a file; what cannot be read has none."""
        with ledger_errors(place.path / name, self.clock):
            try:
                return place.digest(name, self.clock.check)
            except StudyError:
                return "none"


def _rows_elsewhere(study: Row, ledger: Ledger) -> int:
    """Return the rows of one person that a charge is to cover, where all rows lie elsewhere."""
    privacy, rows = mapping(study.get("privacy")), mapping(study.get("data")).get("person_rows")
    if privacy.get("unit") != "sample" or privacy.get("clip_per") == "person":
        return 1
    prints = ledger.units().values()
    here = not prints or any(not each.startswith(ELSEWHERE) for each in prints)
    return 1 if here or not isinstance(rows, int) else rows


def _bound_of(
    spent: float | None, promise: object, sealed: object, *, others: bool
) -> float | None:
    """The epsilon that is a bound: what was spent; at least the budget if releases chose that, or
    ``others`` can, or did.
    """
    stated, ended = mapping(promise), mapping(sealed)
    budget = _number(stated.get("epsilon_budget"))
    chosen = stated.get("chosen") or ended.get("result.early") or others
    within = chosen and stated.get("form") == "sound"
    return spent if spent is None or not within else max(spent, budget)


def _numbers_in(about: Row, key: str) -> list[float]:
    """The numbers that a result states under a key, in order of size."""
    found = below(about, "result", key)
    return sorted(
        map(_number, found if isinstance(found, list) else [] if found is None else [found])
    )


def _at_least(spent: Mapping[str, float], stated: Sequence[float]) -> dict[str, float]:
    """Return what is stated of each unit, if it is no less than what adds up here: its records may
    have more.

    Once a run has ended its records' histories are those of classes, in which later runs are, too.
    That what is stated was not changed since, the comparison with the seal shows. Prices of groups
    are rounded up on grids, which differ a little with the order in which they are added up.
    """
    own = sorted(spent.items(), key=lambda item: item[1])
    if len(stated) != len(own) or not all(
        told >= found * (1.0 - GRIDS) for told, (_, found) in zip(stated, own, strict=True)
    ):
        return dict(spent)
    return {unit: told for told, (unit, _) in zip(stated, own, strict=True)}


def _sealed(begin: Row, seal: Row) -> list[tuple[str, Any, float]]:
    """Return every client of a run, its name in the ledger, and what the seal says it had spent."""
    units, each = mapping(begin.get("units")), below(seal, "spent", "each")
    clients = sorted((unit for unit in units if unit != TEST), key=lambda one: (len(one), one))
    if not isinstance(each, list) or len(clients) != len(each):
        return []
    return [(one, units[one], _number(spent)) for one, spent in zip(clients, each, strict=True)]


def _stated(ledger: Ledger, terms: EpsilonTerms) -> dict[str, float]:
    """Return the most that runs with these terms had spent on each unit when they were sealed.

    Where two clients with different epsilons hold a record, their run counts what both released;
    the record's histories do not, once the run has ended.
    """
    found: dict[str, float] = {}
    for seal in ledger.notes(SEAL):
        begin = ledger.noted(BEGIN, seal.name)
        with suppress(LedgerError, StudyError):  # a note of a version that wrote another study
            if begin is not None and _terms_of(begin)[1] == terms:
                for _, name, spent in _sealed(begin.facts, seal.facts):
                    found[str(name)] = max(spent, found.get(str(name), 0.0))
    return found


def _exceeded(begin: Row, seal: Row, privacy: Row) -> Iterator[str]:
    """Every client that was promised less than its records have spent when the run was sealed.

    What was promised stands in the note of the beginning, or, of versions before, in the study.
    """
    if below(begin, "promise", "form") != "sound":
        return
    own, kept = privacy.get("epsilons"), begin.get(PROMISED)
    for client, name, spent in _sealed(begin, seal):
        index = client.removeprefix("client:")
        if isinstance(kept, dict):
            found = kept.get(name)
            most = _number(found[0] if isinstance(found, list) and found else "inf")
        elif isinstance(own, list) and index.isdigit() and int(index) < len(own):
            most = _number(own[int(index)])
        else:
            most = _number(privacy.get("epsilon", "inf"))
        if most * (1 + CLOSE) < spent < math.inf:  # what has no bound, no run states one of
            yield (
                f"{client[:80]} was promised an epsilon of at most {epsilon_text(most)}, and its "
                f"records had spent {epsilon_text(spent)} when the run was sealed"
            )


def _number(value: object) -> float:
    found = number(math.inf if value == "inf" else value)
    return math.nan if found is None else found


def _close(stated: object, given: object) -> bool:
    return math.isclose(_number(stated), _number(given), rel_tol=CLOSE)


def _in_words(value: object) -> str:
    found = _number(value)
    return "not a number" if math.isnan(found) else epsilon_text(found)


def _at_place(path: Path, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(str(path)) else f"{path}: {text}"


# The same for machines, as JSON has it, with the number of its format.


def entry_record(entry: Entry, columns: Sequence[str]) -> Row:
    """Return a charge as it stands in its ledger, its event as the object that its text is."""
    names = (name for name in columns if name not in ("method", "key", "prev"))
    row = {name: getattr(entry, name) for name in names}
    return row | {"event": json_of(encode(entry.event))}


def verdict_record(verdict: Verdict) -> Row:
    """Return a verdict; ``digest`` is the head of the ledger, where there is one ledger only."""
    kept, terms = verdict.ledgers, verdict.terms
    return {
        "format": FORMAT,
        "ok": not verdict.problems,
        "entries": sum(each.entries for each in kept),
        "digest": kept[0].digest if len(kept) == 1 else None,
        "epsilon": verdict.epsilon,
        "delta": None if terms is None else terms.delta,
        "accountant": None if terms is None else terms.accountant,
        "sealed": verdict.sealed,
        "units": {
            unit.name: {"label": unit.label, "epsilon": unit.epsilon}
            for each in kept
            for unit in each.units
        },
        "problems": verdict.problems,
        "remarks": verdict.remarks,
    }


def prices_record(terms: EpsilonTerms, ledgers: Sequence[VerifiedLedger]) -> Row:
    """Return what each unit has spent, at one delta and by one accountant."""
    return {
        "format": FORMAT,
        "delta": terms.delta,
        "accountant": terms.accountant,
        "epsilon": {unit.name: unit.epsilon for kept in ledgers for unit in kept.units},
    }
