"""A run folder: its files, the log and the checkpoints while it plays, and what in them differs
from what its ledger holds.

A run that goes on over another study, other data, other code or an older ledger could release what
was released before with the same noise on other numbers, whose difference is free of noise; or it
could forget what was spent. So all of that is noted in the chain of the ledger before the first
release, and the end of the run is sealed there. What differs is named and refused by resuming, and
named by verifying: both ask :class:`RunFolder`.

Keys of ``[execution]`` other than those in the environment (device, threads) may be changed: they
say what is looked at and saved, and change nothing that is released.

A checkpoint is a moment of a simulation as one file: vectors in safetensors, the rest as JSON in
its header, tagged by the regime whose state it is. The file is replaced whole, so it holds one
moment or the one before, never a mixture. With it stands the length that the log had at that
moment: on resuming, what the log has beyond it is cut off and played again. So does the head of
every ledger: one that has lost it is older.

What a run needs to go on may tell of private rows: windows of examples, names of entities, who was
drawn. So only the owner reads it, and of a run that has ended nothing of it is kept: see
:class:`Ended`. Folders of runs that have ended are shown to others.

A thousand edges may hold a thousand models, 100 MB of them for a small CNN. They are written from
where they lie, and read a few at a time: the library would write them from a copy, and read them
all from one mapping that counts as memory, too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from safetensors import safe_open

from sordino.base import modules as code
from sordino.base.errors import LedgerError, ResumeError, SordinoError, StudyError
from sordino.base.files import (
    MOST_JSON,
    Malformed,
    append_below,
    check_below,
    folder_below,
    object_of,
    open_below,
    read_below,
    readable,
    refuse_odd,
    there,
    toml_of,
)
from sordino.base.frozen import Frozen
from sordino.core import records, regimes
from sordino.core import study as studies
from sordino.core.files import replace_file, said_clearly
from sordino.core.records import About, Begin, Misfit, Row, Seal, dumped, fitted, known, number
from sordino.core.study.base import Study
from sordino.core.world import EncodedSnapshot, RunPlayer, Snapshot
from sordino.privacy import Ledger
from sordino.privacy.chain import BEGIN, canonical
from sordino.privacy.session import data_ledger, refuse_missing

# Theory of operation.
#
# A run folder is written in three phases, and each line below is durable before the next begins:
#
#   begin   in a draft beside the folder's place, under the folder's lock:
#           the ledger, and the secret key that noise is drawn from, if there is one;
#           study.toml, run.json, environment.json, each replaced whole;
#           the note BEGIN in the ledger: study, environment, promise, a digest of the key;
#           the draft takes the folder's name.
#           So a folder that can be seen has a ledger that knows it, and bad input leaves nothing.
#   play    for each round: its charges, in one transaction; then the work that they pay for; then
#           its row, appended to rounds.jsonl. Now and then a checkpoint: first the log is flushed
#           to the disk, then the checkpoint is replaced, with the length of the log and the last
#           link of each ledger.
#           So a checkpoint never counts rows or charges that a power failure can take.
#   end     a last checkpoint, which holds the model and no row of anybody; metrics.json; the
#           model; the note SEAL in the ledger: digests of the files, what run.json will say, what
#           was spent; run.json with the place of the seal; the key is destroyed.
#           So what is handed out is sealed, and a run that was killed in between ends again with
#           the same seal, or is refused.
#
# A ledger of data lies elsewhere and knows several runs; the order is the same.
#
# Going on asks in the order of cost. The folder's files against the note, read without walking the
# chain; the key; then, when data is loaded, the same along the chain; what the data gave (sizes,
# clients, digests) against the promise of the note; the last link at the checkpoint against each
# ledger; the length of the log. Then the log is cut at the checkpoint and its rest played again:
# from the same addresses of randomness it releases the same bytes, and the ledger knows their
# charges by key.

STUDY, ABOUT, ENVIRONMENT = "study.toml", "run.json", "environment.json"
LEDGER, KEY, PAGE = "ledger.sqlite", "entropy.key", "report.html"
LOG, METRICS, MODEL, CHECKPOINTS = (
    "rounds.jsonl",
    "metrics.json",
    "model.safetensors",
    "checkpoints",
)
CHECKPOINT = f"{CHECKPOINTS}/latest.safetensors"


SEALED = (STUDY, ENVIRONMENT, LOG, METRICS, MODEL, CHECKPOINT)
"""Files whose digests the seal of a run holds. Of ``run.json`` it holds the keys, and of
``study.toml`` the note of the beginning does, too. The ledger, the secret key and the report are in
no seal.
"""
OPTIONAL = (METRICS, CHECKPOINT)
"""Those of them that a run may lack: not every one has public rows that measure the model."""

LATER = ("status", "guarantee", "ledger", "result")  # keys of run.json that say how a run ended
MADE = ("begun", "ended", "data")  # that say when and on what it was made, and promise nothing
# where a study's own modules lie, which may be moved; what they hold is part of the environment
CODE = "modules"
WORDS = ("adjacency", "assumptions", "warnings")  # that later versions may word otherwise
REMEDY = "Put back what is named above as it was, or begin a new run with what is new"
SHOWN = 300  # characters of a value that a note holds as it is; of a longer one it holds the digest
NEEDED = ("run", "payable", "warnings", "result")  # keys of run.json that going on needs
_PIECE = 1 << 20


Table = Mapping[str, object]
Heads = Mapping[str, tuple[int, str]]
"""Of each unit's ledger the number of its last link, and the digest."""
Show = Callable[[Row], None]
N = TypeVar("N", Begin, Seal)


class Difference(NamedTuple):
    """A key, or a whole file, that is not what the ledger holds.

    Attributes:
        place: the file, or what else has the key.
        key: with dots; "" of a whole file.
        then, now: values in words.
    """

    place: str
    key: str
    then: str = ""
    now: str = ""

    def __str__(self) -> str:
        if not self.key:
            return f"{self.place}: not the file that the run ended with"
        where = f"{self.place}: " if self.place else ""
        return f"{where}{self.key} was {self.then}, is {self.now}"

    @property
    def against_ledger(self) -> str:
        """The same, of a folder that is only looked at."""
        if not self.key:
            return f"{self.place}: not the file that was sealed when the run ended"
        return f"{self.place}: {self.key} is {self.now}; the ledger says {self.then}"


def differences(place: object, then: Table, now: Table) -> list[Difference]:
    """Every key whose value differs; one that is not set has no value.

    >>> print(*differences("study", {"privacy.clip": 2.0, "seed": 0}, {"privacy.clip": 1.9}))
    study: privacy.clip was 2.0, is 1.9 study: seed was 0, is not set
    """
    return [
        Difference(str(place), key, _shown(then, key), _shown(now, key))
        for key in dict.fromkeys((*then, *now))
        if _text(then.get(key)) != _text(now.get(key))
    ]


def _shown(table: Table, key: str) -> str:
    if table.get(key) is None:
        return "not set"
    text = _text(table[key])
    return text if len(text) <= 80 else text[:80] + "…"


def _text(value: object) -> str:
    try:
        return canonical(value)
    except (ValueError, TypeError):  # dates and infinities, which TOML has, and JSON has not
        return repr(value)


def as_noted(values: Table) -> dict[str, object]:
    """Values as a note holds them: small ones as they are, of large ones the digest.

    >>> as_noted({"epsilon": 0.5, "result": {"why": "T"}})
    {'epsilon': 0.5, 'result.why': 'T'}
    """
    found = {}
    for key, value in flat({str(key): records.simple(each) for key, each in values.items()}):
        text = canonical(value)
        found[key] = (
            value if len(text) <= SHOWN else "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        )
    return found


def flat(table: Table, before: str = "") -> Iterator[tuple[str, object]]:
    """The values of a table of tables, with dotted keys."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def promise(about: Table) -> dict[str, object]:
    """The keys of ``run.json`` that stand before the run ends, as a note holds them."""
    return as_noted(
        {key: value for key, value in about.items() if key not in (*LATER, *MADE, CODE)}
    )


def outcome(about: Table) -> dict[str, object]:
    """The keys of a ``run.json`` that a seal holds: not the later place in the ledger, nor time."""
    found = as_noted({key: value for key, value in about.items() if key not in ("ledger", "ended")})
    found.pop("result.seconds", None)
    return found


class RunFolder(Frozen):
    """A run folder, held against what its ledger says of it.

    Nothing in it is trusted: files are plain ones of bounded size, and notes are read key by key.
    """

    path: Path

    def changed_since_begin(self, note: Table, about: Table) -> list[Difference]:
        """Every key of study and promise that is not what the run began with.

        Args:
            note: the facts of BEGIN.
            about: the object in ``run.json``.

        Raises:
            LedgerError: if the note holds no study.
            StudyError: if ``study.toml`` cannot be read.
        """
        what = f"{self.path}: the study in the ledger's note of how this run began"
        with readable(what, LedgerError, "Restore the ledger from a copy"):
            then = toml_of(str(note["study"]))
        path = self.path / STUDY
        now = table_in(path, toml_of)
        for each in (then, now):
            each.pop("execution", None)
        return [
            *differences(path, dict(flat(then)), dict(flat(now))),
            *differences(self.path / ABOUT, mapping(note.get("promise")), promise(about)),
        ]

    def changed_since_seal(
        self, seal: Table, about: Table, digests: Mapping[str, str]
    ) -> list[Difference]:
        """Every key of ``run.json``, and every file, that is not what the run ended with.

        Args:
            seal: the facts of SEAL.
            digests: of the files, by name.
        """
        files = mapping(seal.get("files"))
        return [
            *differences(self.path / ABOUT, mapping(seal.get("run")), outcome(about)),
            *(
                Difference(str(self.path / name), "")
                for name in dict.fromkeys((*files, *digests))
                if files.get(name) != digests.get(name)
            ),
        ]

    def to_digest(self, seal: Table) -> list[str]:
        """The files whose digests a seal holds, and those that it must hold if they are there.

        Of a checkpoint that it does not hold nothing is said.
        """
        sealed = mapping(seal.get("files"))
        return [
            name
            for name in SEALED
            if name in sealed
            or name not in OPTIONAL
            or (name == METRICS and there(self.path, METRICS))
        ]

    def digest(self, name: str, late: Callable[[], None] = lambda: None) -> str:
        """SHA-256 (hex) of a plain file; ``late`` is asked at times, and may stop it.

        Raises:
            StudyError: if it is no plain file, or cannot be read.
        """
        found = hashlib.sha256()
        with readable(self.path / name), open_below(self.path, *name.split("/")) as file:
            while piece := file.read(_PIECE):
                found.update(piece)
                late()
        return found.hexdigest()

    def seal(self, done: Table, model: bytes, spent: records.Spent) -> Seal:
        """The seal of a run that ended with ``done`` and this model, which is written later."""
        files = {
            name: self.digest(name)
            for name in SEALED
            if name != MODEL and (self.path / name).exists()
        }
        files[MODEL] = hashlib.sha256(model).hexdigest()
        return Seal(files=files, run=outcome(done), spent=spent)

    def key_digest(self) -> str | None:
        """The digest of the run's secret key; None if there is none."""
        path = self.path / KEY
        if not path.is_file() or path.is_symlink():
            return None
        return hashlib.sha256(b"sordino key:" + path.read_bytes()).hexdigest()

    def note(self, study: Study, run: str) -> Begin:
        """Return what a ledger of this run says that it began with; the chain is not walked.

        Raises:
            ResumeError: if no ledger knows the run.
            LedgerError: if its note lacks a part.
        """
        kept = study.privacy.ledger
        path = self.path / LEDGER if kept == "run" else data_ledger(Path(kept).expanduser())
        refuse_odd(path)
        refuse_missing(path)
        with Ledger.open(path, readonly=True) as opened:
            if (found := opened.noted(BEGIN, run)) is not None:
                return self.fit(found.facts, Begin)
        raise ResumeError(
            f"{path}: no ledger here knows of run {run}, which run.json names: it was made anew, "
            "replaced by another, or belongs to another run. Put back the ledger that the run "
            "began with, or begin a new run"
        )

    def fit(self, facts: Table, kind: type[N]) -> N:
        """A note of the ledger about this run, read.

        Raises:
            LedgerError: if it lacks a part.
        """
        try:
            return fitted(facts, kind)
        except Misfit as error:
            what = "how this run began" if kind is Begin else "how this run ended"
            raise LedgerError(
                f"{self.path}: the ledger's note of {what} lacks a part ({error}). Restore the "
                "ledger from a copy"
            ) from error

    def about(self, modules: Path | None = None) -> About:
        """``run.json`` for who goes on with the run, without how it ended, which its seal says.

        Args:
            modules: where modules lie that its study names, if they were moved since.

        Raises:
            StudyError: if this is no run folder.
            ResumeError: if the file does not say what it should.
        """
        path, found = self.path / ABOUT, _object(self.path, modules, ResumeError)
        if missing := [key for key in NEEDED if key not in found]:
            raise ResumeError(
                f"{path}: it has no {' and no '.join(missing)}. Restore it from a copy"
            )
        result = found["result"]
        seconds = number(mapping(result).get("seconds"))
        kept = {key: value for key, value in found.items() if key not in LATER}
        kept["result"] = None if result is None else {} if seconds is None else {"seconds": seconds}
        return records.about_of(kept, path, ResumeError)


def mapping(value: object) -> Mapping[str, Any]:
    """Return a table that was read, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def table_in(path: Path, read: Callable[[str], Any]) -> dict[str, Any]:
    """Return the table in a JSON or TOML file.

    Raises:
        StudyError: if there is none that can be read.
    """
    with readable(path):
        found = read(read_below(path.parent, path.name, most=MOST_JSON).decode())
    if not isinstance(found, dict):
        raise StudyError(
            f"{path}: it must hold one table of keys and values. Restore it from a copy"
        )
    return found


def study_of(
    folder: Path,
    recorded: Mapping[str, records.Module] | None,
    modules: Path | None = None,
    changes: Sequence[str] = (),
) -> Study:
    """The study of a run folder; a module that it names must be the one that was recorded when it
    was begun.

    Args:
        recorded: the modules of its ``run.json``.
        modules: where modules lie that it names, if they were moved since.

    Raises:
        ResumeError: if that has changed.
    """
    found = recorded or {}
    digests = {name: str(known(each.sha256)) for name, each in found.items()}
    files = [Path(known(each.file) or "") for each in found.values() if known(each.beside)]
    beside = None
    if files:
        beside = files[0].parent.parent if files[0].name == "__init__.py" else files[0].parent
    return studies.read_run(folder, changes, modules=modules or beside, recorded=digests)


def about_of(folder: Path, modules: Path | None = None) -> About:
    """The ``run.json`` of a folder.

    Where it is of a regime that is not known, the modules that its study names are told of and
    imported. This runs their code.

    Raises:
        StudyError: if it cannot be read.
        ResumeError: if a module has changed.
    """
    return records.about_of(_object(folder, modules, StudyError), folder / ABOUT)


def _object(folder: Path, modules: Path | None, error: type[SordinoError]) -> dict[str, object]:
    path = folder / ABOUT
    if not there(folder, path.name):
        raise StudyError(f"{folder}: this is no run folder: it has no run.json")
    with readable(path):
        content = read_below(folder, path.name)
    found = object_of(content, path, error)
    if found.get("regime") not in (None, *regimes.names()):
        try:
            listed = found.get("modules")
            named = fitted({} if listed is None else listed, dict[str, records.Module])
        except Misfit:  # which is said when all of it is read
            return found
        study_of(folder, named, modules)
    return found


def modules_of(study: Study) -> dict[str, records.Module] | None:
    """The modules that the study names, for who goes on with it."""
    lying = code.lying(studies.named_modules(study))
    found = {
        name: records.Module(file=str(each.file or ""), sha256=each.digest, beside=beside)
        for name, (each, beside) in lying.items()
    }
    return found or None


Array = np.ndarray[Any, Any]
M = TypeVar("M")

FORMAT, FORMAT_ENDED = 5, 6
"""Of a run that goes on, and of one that has ended. Earlier versions wrote 5 for both."""
NAMES = {
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}
AT_ONCE = 64  # vectors read from one mapping of the file


class Saved(Frozen, Generic[M], eq=False, forbid_unknown_fields=True):
    """A moment, and what else stood then.

    Attributes:
        moment: of the simulation.
        log_length: bytes that the log had.
        regime: whose state the moment holds.
        heads: number and digest of the last link of each ledger, by one of its units. A ledger
            without it is an older one.
        format: of the file.
    """

    moment: M
    log_length: int
    regime: str
    heads: Heads
    format: int = FORMAT


class Ended(Frozen, eq=False, forbid_unknown_fields=True):
    """All that is kept of a run that has ended, a :class:`sordino.core.world.Snapshot`: its model
    (d,), which stands among the vectors, and how far it came.
    """

    number: int
    taken: int = msgspec.field(name="steps")
    ended: str
    model: Any = UNSET

    def pack(self) -> EncodedSnapshot:
        """Return it as it is kept on disk."""
        rest = msgspec.json.encode(replace(self, model=UNSET))
        return EncodedSnapshot({"model": self.model}, rest)


def write_checkpoint(folder: Path, saved: Saved[Snapshot]) -> None:
    """Replace the folder's checkpoint."""
    moment, number, mode = saved.moment, FORMAT, 0o600
    if moment.ended is not None:
        moment = Ended(moment.number, moment.taken, moment.ended, moment.model)
        number, mode = FORMAT_ENDED, 0o666
    packed = moment.pack()
    header = replace(saved, moment=msgspec.Raw(packed.rest), format=number)
    pieces = _pieces(packed.vectors, {"state": msgspec.json.encode(header).decode()})
    replace_file(folder / CHECKPOINT, *pieces, below=folder, mode=mode)


def _pieces(vectors: Mapping[str, Array], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors file: length of the header (8 bytes, lowest first), header as JSON, numbers."""
    header: dict[str, object] = {"__metadata__": metadata}
    pieces: list[bytes | memoryview] = []
    end = 0
    for name, vector in vectors.items():
        little = np.ascontiguousarray(vector).astype(
            vector.dtype.newbyteorder("<"), casting="equiv", copy=False
        )
        numbers = little.reshape(-1).view(np.uint8).data  # its own memory
        begin, end = end, end + len(numbers)
        header[name] = {
            "dtype": NAMES[vector.dtype.name],
            "shape": vector.shape,
            "data_offsets": (begin, end),
        }
        pieces.append(numbers)
    told = msgspec.json.encode(header)
    told += b" " * (-len(told) % 8)  # the format asks that the numbers begin at a multiple of 8
    return [len(told).to_bytes(8, "little"), told, *pieces]


def _vectors(path: Path) -> tuple[dict[str, Array], bytes]:
    """The vectors of a file and the state in its header."""
    with safe_open(path, framework="numpy") as file:
        names, state = list(file.keys()), (file.metadata() or {})["state"].encode()
    vectors: dict[str, Array] = {}
    for start in range(0, len(names), AT_ONCE):
        with safe_open(path, framework="numpy") as file:
            vectors |= {name: file.get_tensor(name) for name in names[start : start + AT_ONCE]}
    return vectors, state


def _checkpoint(folder: Path) -> Path | None:
    try:
        return check_below(folder, *CHECKPOINT.split("/"))
    except FileNotFoundError:
        return None


def read_checkpoint(folder: Path, play: RunPlayer, regime: str) -> Saved[Snapshot] | None:
    """The folder's checkpoint, or None if it has none yet; ``play`` is of this regime.

    Raises:
        ResumeError: if it cannot be read, or holds a state of another regime; nothing is guessed.
    """
    if (path := _checkpoint(folder)) is None:
        return None
    with readable(path, ResumeError, "Restore it from a copy, or begin a new run"):
        vectors, state = _vectors(path)
        version = msgspec.json.decode(state, type=dict[str, msgspec.Raw]).get("format")
        if version is None or bytes(version).decode() not in (str(FORMAT), str(FORMAT_ENDED)):
            found = None if version is None else bytes(version).decode()
            raise ResumeError(
                f"{path}: written in format {found}; this version reads formats {FORMAT} and "
                f"{FORMAT_ENDED}. Begin a new run"
            )
        header: Any = msgspec.json.decode(state, type=Saved[msgspec.Raw])
        if header.regime != regime:
            raise ResumeError(
                f"{path}: it holds a state of regime {header.regime!r}, and the run is of regime "
                f"{regime!r}. Restore it from a copy, or begin a new run"
            )
        if header.format == FORMAT_ENDED:
            end = msgspec.json.decode(header.moment, type=Ended)
            moment: Snapshot = replace(end, model=vectors["model"])
        else:
            moment = play.unpack(EncodedSnapshot(vectors, bytes(header.moment)))
    return Saved(moment, header.log_length, header.regime, header.heads)


def checkpoint_heads(folder: Path) -> Heads:
    """Return where the ledgers stood at the folder's checkpoint; nothing if it has none yet.

    Raises:
        ResumeError: if it cannot be read.
    """
    if (path := _checkpoint(folder)) is None:
        return {}
    with readable(path, ResumeError), safe_open(path, framework="numpy") as file:
        return msgspec.json.decode(file.metadata()["state"].encode(), type=Saved[msgspec.Raw]).heads


class RunLog:
    """Appends rows to ``rounds.jsonl`` and saves a checkpoint every so many rounds.

    The log is flushed to the disk before a checkpoint that counts its bytes.

    Args:
        saved: where the run goes on; the log is cut at its length.
        every: rounds between two checkpoints, counted from 0 wherever a run goes on.
        show: shown every row.
        heads: says where the ledgers stand.
    """

    def __init__(
        self,
        folder: Path,
        saved: Saved[Snapshot],
        every: int,
        show: Show,
        heads: Callable[[], Heads],
    ) -> None:
        self.folder, self.every, self.show, self.heads = folder, every, show, heads
        self.saved, self.regime, self._hurried = saved.moment.number, saved.regime, False
        with said_clearly(folder / LOG):
            self.file = append_below(folder, LOG)
            self.file.truncate(saved.log_length)
            self.file.seek(saved.log_length)
            folder_below(folder, CHECKPOINTS)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *raised: object) -> None:
        with said_clearly(self.folder / LOG):
            self.file.close()

    def row(self, row: Row) -> None:
        """Append one row and show it."""
        with said_clearly(self.folder / LOG):
            self.file.write(dumped(row).encode() + b"\n")
            self.file.flush()
        self.show(row)

    def hurry(self) -> None:
        """Let a checkpoint be due as soon as there is a moment that can be saved."""
        self._hurried = True

    def due(self, number: int, ended: str | None) -> bool:
        """Return whether a checkpoint is due, as always at the end."""
        early = number // self.every == self.saved // self.every
        return ended is not None or not early or (self._hurried and number != self.saved)

    def save(self, moment: Snapshot) -> None:
        """Save a checkpoint where one is due."""
        if not self.due(moment.number, moment.ended):
            return
        self.saved, self._hurried = moment.number, False
        with said_clearly(self.folder / LOG):
            self.file.flush()
            os.fsync(self.file.fileno())
        saved = Saved(moment, self.file.tell(), self.regime, self.heads())
        write_checkpoint(self.folder, saved)


def length_of(folder: Path) -> int:
    """Bytes of the log; none if there is none yet."""
    try:
        with open_below(folder, LOG) as log:
            return os.fstat(log.fileno()).st_size
    except FileNotFoundError:
        return 0


def rows(folder: Path, regime: str) -> Iterator[Row | records.Unknown]:
    """The rows of the log.

    Raises:
        ResumeError: naming the line that cannot be read.
    """
    try:
        with open_below(folder, LOG) as log:
            for count, line in enumerate(log, start=1):
                try:
                    yield records.row(line, regime)
                except Malformed as error:
                    raise ResumeError(
                        f"{folder / LOG}: line {count}: cannot be read ({error}). Restore it "
                        "from a copy"
                    ) from error
    except FileNotFoundError:
        return


def last_told(folder: Path, regime: str, key: str = "accuracy") -> float | None:
    """The last accuracy, or other number, that the log tells; None if it tells none."""
    told = [
        value for row in rows(folder, regime) if (value := number(records.at(row, key))) is not None
    ]
    return told[-1] if told else None
