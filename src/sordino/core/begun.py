"""What a run begins with, as its ledger notes it, and whether it still stands when the run goes on.

A run that goes on over another study, other data, other code or an older ledger could release what
was released before with the same noise on other numbers, whose difference is free of noise; or it
could forget what was spent. So all of that is noted in the chain before the first release, and what
differs is named and refused.

Keys of ``[execution]`` other than those in the environment (device, threads) may be changed: they
say what is looked at and saved, and change nothing that is released.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import UNSET

from sordino.base.errors import LedgerError, ResumeError
from sordino.base.files import refuse_odd
from sordino.base.parsing import Malformed, toml_of
from sordino.core.records import Begin, Misfit, fitted, simple
from sordino.core.study.base import Study
from sordino.core.surroundings import ENDED, KEY, asked, environment
from sordino.privacy import Ledger
from sordino.privacy.chain import BEGIN, canonical
from sordino.privacy.session import refuse_closed

LEDGER = "ledger.sqlite"
LATER = ("status", "guarantee", "ledger", "result")  # keys of run.json that say how a run ended
MADE = ("begun", "ended", "data")  # that say when and on what it was made, and promise nothing
# where a study's own modules lie, which may be moved; what they hold is part of the environment
CODE = "modules"
REMEDY = "Put back what is named above as it was, or begin a new run with what is new"
SHOWN = 300  # characters of a value that a note holds as it is; of a longer one it holds the digest
# Parts of the environment that may differ when a run goes on. Noise is replayed on sums that
# another library, device or number of threads rounds otherwise, so their difference would be free
# of noise: none of these. For the program itself its number stands (NUMERICS).
FREE = frozenset({"sordino", "code"})

Row = dict[str, object]


def facts(folder: Path, study: Study, about: Mapping[str, object]) -> Begin:
    """What a run begins with: study, environment, promise, and a digest of its secret key."""
    key = _key(folder)
    return Begin(
        study=asked(study),
        environment=environment(study),
        promise=promise(about),
        key=UNSET if key is None else _digest(key),
    )


def read(folder: Path, facts: Mapping[str, object]) -> Begin:
    """What a ledger's note says that a run began with.

    Raises:
        LedgerError: if it lacks a part.
    """
    try:
        return fitted(facts, Begin)
    except Misfit as error:
        raise LedgerError(
            f"{folder}: the ledger's note of how this run began lacks a part ({error}). "
            "Restore the ledger from a copy"
        ) from error


def _key(folder: Path) -> bytes | None:
    path = folder / KEY
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _digest(key: bytes) -> str:
    return hashlib.sha256(b"sordino key:" + key).hexdigest()


def refuse_another_key(folder: Path, before: Begin, *, ended: bool) -> None:
    """Hold the secret key that noise comes from against the one that the run began with.

    A run that has ``ended`` needs it no more.

    With another key, releases that were booked once would be released a second time, under noise of
    their own.

    Raises:
        ResumeError: if it is another, or missing.
    """
    if before.key is UNSET:
        return
    found = _key(folder)
    if (found == ENDED and ended) or (found is not None and _digest(found) == before.key):
        return
    what = (
        "missing"
        if found is None
        else "destroyed, as when a run has ended"
        if found == ENDED
        else "not the one that the run began with"
    )
    raise ResumeError(
        f"{folder / KEY}: the secret key is {what}. Releases that were already charged would be "
        "repeated with other noise: put back the whole run folder from a copy, or begin a new run"
    )


def promise(about: Mapping[str, object]) -> Row:
    """What ``run.json`` says before the run ends, as a note holds it."""
    return held({key: value for key, value in about.items() if key not in (*LATER, *MADE, CODE)})


def held(values: Mapping[str, object]) -> Row:
    """Values as a note holds them: small ones as they are, of large ones the digest.

    >>> held({"epsilon": 0.5, "result": {"why": "T"}})
    {'epsilon': 0.5, 'result.why': 'T'}
    """
    found = {}
    for key, value in flat(plain(values)):
        text = canonical(value)
        found[key] = (
            value if len(text) <= SHOWN else "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        )
    return found


def plain(values: Mapping[str, object]) -> Row:
    """Values as JSON holds them: lists for tuples, infinity as a word."""
    return {str(key): simple(value) for key, value in values.items()}


def flat(table: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """The values of a table of tables, with dotted keys."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def noted(folder: Path, study: Study, run: str) -> Begin:
    """What a ledger of this run says that it began with.

    Raises:
        ResumeError: if no ledger knows the run.
        LedgerError: if its note lacks a part.
    """
    own = study.privacy.ledger == "run"
    kept = folder if own else Path(study.privacy.ledger).expanduser()
    if own:
        refuse_odd(folder / LEDGER)
    if own and not (folder / LEDGER).is_file():
        raise ResumeError(
            f"{folder / LEDGER}: the ledger is missing, and it records all releases. Restore it "
            "from a copy, or begin a new run; a new ledger would forget what the run has spent"
        )
    if not own:
        refuse_closed(kept)
    for path in [folder / LEDGER] if own else sorted(kept.glob("*.sqlite")):
        with Ledger.open(path, readonly=True) as ledger:
            note = ledger.noted(BEGIN, run)
            if note is not None:
                return read(folder, note.facts)
    where = folder / LEDGER if own else kept
    raise ResumeError(
        f"{where}: no ledger here knows of run {run}, which run.json names: it was made anew, "
        "replaced by another, or belongs to another run. Put back the ledger that the run began "
        "with, or begin a new run"
    )


def refuse_changes(folder: Path, study: Study, about: Mapping[str, object], before: Begin) -> None:
    """Hold study, promise and environment against what a run began with.

    Raises:
        ResumeError: naming each key that differs.
    """
    try:
        then = dict(flat(toml_of(before.study)))
    except Malformed as error:
        raise LedgerError(
            f"{folder}: the ledger's note of how this run began holds no study that can be read"
        ) from error
    now = dict(flat(toml_of(asked(study))))
    lines = [f"{folder / 'study.toml'}: {each}" for each in differences(then, now)]
    lines += [
        f"{folder / 'run.json'}: {each}" for each in differences(before.promise, promise(about))
    ]
    here = {key: value for key, value in environment(study).items() if key not in FREE}
    there = {key: value for key, value in before.environment.items() if key not in FREE}
    lines += [f"environment: {each}" for each in differences(there, here)]
    if lines:
        raise ResumeError(
            "\n".join((*lines, f"{folder}: a run can be resumed only without changes. {REMEDY}"))
        )


def refuse_another(folder: Path, about: Mapping[str, object], before: Begin) -> None:
    """Hold what a run was built to again against what it began with, its public data included.

    Raises:
        ResumeError: naming each fact that differs.
    """
    if lines := differences(before.promise, promise(about)):
        raise ResumeError(
            "\n".join(
                (
                    *lines,
                    f"{folder}: its data, or a file that it reads, has changed since the run "
                    f"began. {REMEDY}",
                )
            )
        )


def differences(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Every key whose value differs, in words.

    >>> differences({"privacy.clip": 2.0, "seed": 0}, {"privacy.clip": 1.9, "seed": 0})
    ['privacy.clip was 2.0, is 1.9']
    """
    return [f"{key} was {shown(then, key)}, is {shown(now, key)}" for key in differing(then, now)]


def differing(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Every key whose value differs; one that is not set has no value."""
    return [
        key for key in dict.fromkeys((*then, *now)) if _text(then.get(key)) != _text(now.get(key))
    ]


def shown(table: Mapping[str, object], key: str) -> str:
    """A value in a message."""
    if table.get(key) is None:
        return "not set"
    text = _text(table[key])
    return text if len(text) <= 80 else text[:80] + "…"


def _text(value: object) -> str:
    try:
        return canonical(value)
    except (ValueError, TypeError):  # dates and infinities, which TOML has, and JSON has not
        return repr(value)
