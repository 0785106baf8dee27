"""Reading a run folder, at any moment of its life.

A report must be possible for a run that is finished, that was killed, or that goes on while it
is read. So a log without a row is read, and so is a log whose last line is only half written; rows
of a kind that this version does not know are counted and left alone. What cannot be missing is what
says what was promised: ``run.json`` and ``study.toml``.

A row or a file that does not fit its record is named: the line or the key, what belongs there, and
what stands there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sordino.base import files
from sordino.base.errors import StudyError
from sordino.core import records, regimes
from sordino.core.records import (
    About,
    Client,
    End,
    Environment,
    Metrics,
    O,
    Refused,
    Result,
    Round,
    Row,
    Unknown,
    at,
    known,
    number,
)
from sordino.core.regimes import Vocabulary
from sordino.core.run.folder import ABOUT, ENVIRONMENT, LOG, METRICS, STUDY

NEEDED = (ABOUT, STUDY)
LONGEST = 64 * files.MIB
"""Bytes of a row of the log."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A run as its folder tells it.

    Attributes:
        folder: where it lies.
        about: ``run.json``.
        study: ``study.toml``, word for word.
        environment: ``environment.json``; empty if there is none.
        rounds: rows of rounds, in the order of the log.
        others: all other rows.
        damaged: why the log ends early, or None.
        metrics: ``metrics.json``; None if there is none.
    """

    folder: Path
    about: About
    study: str
    environment: Environment
    rounds: tuple[Round, ...]
    others: tuple[Row | Unknown, ...]
    damaged: str | None
    metrics: Metrics | None = None

    @property
    def name(self) -> str:
        return known(self.about.name) or self.folder.name

    @property
    def method(self) -> str:
        """Its name, as tables of its paper have it where run.json knows."""
        return known(self.about.facts.title) or known(self.about.method) or "-"

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of its regime, and of what its labels are."""
        words = regimes.vocabulary(self.about.regime)
        return regimes.of_numbers(words) if known(at(self.about.facts, "span")) else words

    @property
    def done(self) -> bool:
        return self.about.status == "done"

    @property
    def result(self) -> Result:
        """Return how it ended; empty until then."""
        return known(self.about.result) or Result()

    @property
    def clients(self) -> tuple[Client, ...]:
        """Return who takes part, as far as they are listed."""
        return self.about.facts.members

    @property
    def headcount(self) -> int:
        """Return how many take part."""
        return self.about.facts.headcount

    @property
    def budget(self) -> float:
        """Epsilon that may be spent; infinite without privacy."""
        found = number(self.about.epsilon_budget)
        return math.inf if found is None else found

    @property
    def of_clients(self) -> bool:
        """Return whether whole clients are protected."""
        return self.about.unit == "client"

    @property
    def private(self) -> bool:
        """Return whether anything is promised at all.

        Closed by default: a unit, a delta, a finite epsilon and the sound form must be stated.
        """
        delta = number(self.about.delta)
        stated = known(self.about.unit) not in (None, "", "none") and self.about.form == "sound"
        promised = stated and delta is not None and 0 <= delta < 1 and math.isfinite(self.budget)
        return promised and (self.epsilon is None or math.isfinite(self.epsilon))

    @property
    def epsilon(self) -> float | None:
        """Spent by the client that spent most: the highest of all rows and the result."""
        stated = [self.result.epsilon, *(row.epsilon for row in self.rounds)]
        found = max((value for each in stated if (value := number(each)) is not None), default=None)
        return math.inf if found is not None and self.about.unit == "none" else found

    @property
    def chosen(self) -> bool:
        """Return whether spending is chosen by looking at releases, by the run or by others, who
        ended it or still can: only the budget is a bound then.
        """
        others = self.result.early is True or (self.about.others is True and not self.done)
        return self.private and (self.about.chosen is True or others)

    @property
    def guaranteed(self) -> float | None:
        """Epsilon that is a bound: the highest stated, or the budget where releases chose that."""
        return max(self.budget, self.epsilon or 0.0) if self.chosen else self.epsilon

    @property
    def spent(self) -> float | None:
        """Epsilon that the result states, exactly; without a result, the highest of the rows."""
        found = number(self.result.epsilon)
        return self.epsilon if found is None or self.about.unit == "none" else found

    @property
    def claimed(self) -> float | None:
        """Epsilon that the paper claims; what was spent where nothing else is claimed."""
        found = number(self.about.claimed_epsilon)
        return self.spent if found is None else found

    @property
    def accuracy(self) -> float | None:
        """In [0, 1], on the test set, of the model handed out, or the last one; or of a stream."""
        found = number(self.result.accuracy)
        if found is None and self.vocabulary.accuracy.streamed:
            return next((1.0 - error for error in reversed(self.values("accumulated"))), None)
        return found if found is not None else next(iter(reversed(self.values("accuracy"))), None)

    @property
    def measured(self) -> float | None:
        """Of the model handed out, or the last one: accuracy, or the error of numbers."""
        key = self.vocabulary.accuracy.key
        if key == "accuracy":
            return self.accuracy
        found = number(at(self.result, key))
        return found if found is not None else next(iter(reversed(self.values(key))), None)

    @property
    def best(self) -> float | None:
        """The best of all rows that were measured; None on a stream."""
        measure = self.vocabulary.accuracy
        found = [] if measure.streamed else self.values(measure.key)
        return (min if measure.falling else max)(found, default=None)

    @property
    def number(self) -> int:
        """Rounds, or updates, so far; a row of the log may stand for many updates."""
        return int(max(self.values("round"), default=0))

    @property
    def steps(self) -> int:
        """Local steps, or gradients, of the client that did most."""
        return int(max(self.values("steps"), default=0))

    @property
    def ended(self) -> str | None:
        """Return what ended or stopped the run, in words; None while nothing did."""
        if why := known(self.result.why):
            return why
        last = next((row for row in reversed(self.others) if isinstance(row, End | Refused)), None)
        return None if last is None else known(last.why) or last.kind

    def values(self, key: str) -> list[float]:
        """The finite numbers under ``key``, of the rounds that have one."""
        return [
            value
            for row in self.rounds
            if (value := number(at(row, key))) is not None and math.isfinite(value)
        ]

    def count(self, kind: str) -> int:
        """Rows of another kind: late, lost, refused, ..."""
        return sum(row.kind == kind for row in self.others)


def load(folder: Path, *, last: int | None = None) -> Run:
    """Read a run folder.

    Args:
        last: bytes of the log that are read, from its end; all of it unless given. The last row
            says how a run stands.

    Raises:
        StudyError: if it is none, or one of the files it must have cannot be read.
    """
    if not folder.is_dir():
        raise StudyError(
            f"{folder}: there is no such run folder. Give the folder that `sordino run` named"
        )
    if missing := [name for name in NEEDED if not files.there(folder, name)]:
        raise StudyError(f"{folder}: this is no run folder: it has no {' and no '.join(missing)}")
    about = read_about(folder)
    rounds, others, damaged = _log(folder / LOG, about.regime, last)
    return Run(
        folder=folder,
        about=about,
        study=_text(folder / STUDY),
        environment=_optional(folder / ENVIRONMENT, Environment) or Environment(),
        rounds=rounds,
        others=others,
        damaged=damaged,
        metrics=_optional(folder / METRICS, Metrics),
    )


def read_about(folder: Path) -> About:
    """Return the ``run.json`` of a folder; none of its code runs.

    Raises:
        StudyError: if it is missing or cannot be read.
    """
    return records.about(_text(folder / ABOUT), folder / ABOUT)


def _optional(path: Path, kind: type[O]) -> O | None:
    if not files.there(path.parent, path.name):
        return None
    return records.record_of(_text(path), path, kind)


def _text(path: Path) -> str:
    with files.readable(path):
        return files.read_below(path.parent, path.name).decode("utf-8")


def _log(
    path: Path, regime: str, last: int | None
) -> tuple[tuple[Round, ...], tuple[Row | Unknown, ...], str | None]:
    """Rounds, other rows, and what is wrong with the log, read up to the first damaged line."""
    rounds: list[Round] = []
    others: list[Row | Unknown] = []
    damaged = None
    for i, line in enumerate(_lines(path, last), start=1):
        if not line.strip():
            continue
        where = f"line {i} of {path.name}"
        try:
            row = records.row(line, regime)
        except records.Misfit as error:
            damaged = f"{where}: {error}; what follows is left out"
            break
        except files.Malformed:
            # without its end of line: it is being written, or the run was killed
            half = not line.endswith(b"\n") and len(line) < LONGEST
            said = "is half written" if half else "is damaged; what follows is left out"
            damaged = f"{where} {said}"
            break
        if isinstance(row, Round):
            rounds.append(row)
        else:
            others.append(row)
    return tuple(rounds), tuple(others), damaged


def _lines(path: Path, last: int | None) -> Iterator[bytes]:
    """Lines of a file with their ends; of the last bytes only, the first of them may be half."""
    if not files.there(path.parent, path.name):
        return
    with files.readable(path):
        file = files.open_below(path.parent, path.name)
    with file:
        left = os.fstat(file.fileno()).st_size  # what is written meanwhile is for the next reader
        files.refuse_larger(left, path, files.MOST_LOG)
        if last is not None and left > last:
            file.seek(left - last)
            left = last - len(file.readline(last))
        while left > 0 and (line := file.readline(min(left, LONGEST))):
            left -= len(line)
            yield line
