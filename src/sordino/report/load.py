"""Reading a run folder, at any moment of its life.

A report must be possible for a run that is finished, that was killed, or that goes on while it
is read. So a log without a row is read, and so is a log whose last line is only half written; rows of
a kind that this version does not know are counted and left alone. What cannot be missing is what
says what was promised: ``run.json`` and ``study.toml``.

Infinity stands in the files as the string "inf"; here it is a float again:

>>> number("inf"), number(0.5), number(None)
(inf, 0.5, None)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.errors import StudyError
from sordino.files import MOST_LOG, read_below, there
from sordino.parsing import Malformed, json_of
from sordino.report import vocabulary
from sordino.report.vocabulary import Vocabulary
from sordino.runtime.recorder import LOG

Row = Mapping[str, Any]

NEEDED = ("run.json", "study.toml")
SHAPES: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(("clients", "classes", "assumptions", "warnings"), (list, "a list")),
    **dict.fromkeys(("stages", "epsilons", "noise_multipliers", "releases"), (list, "a list")),
    **dict.fromkeys(("result", "ledger"), (dict, "an object")),
}


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
    """

    folder: Path
    about: Row
    study: str
    environment: Row
    rounds: tuple[Row, ...]
    others: tuple[Row, ...]
    damaged: str | None

    @property
    def name(self) -> str:
        return str(self.about.get("name") or self.folder.name)

    @property
    def method(self) -> str:
        """Its name, as tables of its paper have it where run.json knows."""
        return str(self.about.get("title") or self.about.get("method") or "-")

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of its regime."""
        return vocabulary.of(self.about.get("regime"))

    @property
    def done(self) -> bool:
        return self.about.get("status") == "done"

    @property
    def budget(self) -> float:
        """Epsilon that may be spent; infinite without privacy."""
        found = number(self.about.get("epsilon_budget"))
        return math.inf if found is None else found

    @property
    def of_clients(self) -> bool:
        """Whether whole clients are protected."""
        return self.about.get("unit") == "client"

    @property
    def private(self) -> bool:
        """Whether anything is promised at all. Closed by default: a unit, a delta, a finite epsilon and the sound form must be stated."""
        delta = number(self.about.get("delta"))
        stated = self.about.get("unit") not in (None, "", "none") and self.about.get("form") == "sound"
        promised = stated and delta is not None and 0 <= delta < 1 and math.isfinite(self.budget)
        return promised and (self.epsilon is None or math.isfinite(self.epsilon))

    @property
    def epsilon(self) -> float | None:
        """Spent by the client that spent most: the highest that any row or the result states, for nothing is ever given back."""
        stated = [(self.about.get("result") or {}).get("epsilon"), *(row.get("epsilon") for row in self.rounds)]
        found = max((value for each in stated if (value := number(each)) is not None), default=None)
        return math.inf if found is not None and self.about.get("unit") == "none" else found

    @property
    def chosen(self) -> bool:
        """Whether what was spent was chosen by looking at releases: then only the budget, which was fixed in advance, is a bound."""
        return self.private and self.about.get("chosen") is True

    @property
    def guaranteed(self) -> float | None:
        """Epsilon that is a bound: the highest that is stated, or the budget where that was chosen by looking."""
        return max(self.budget, self.epsilon or 0.0) if self.chosen else self.epsilon

    @property
    def spent(self) -> float | None:
        """Epsilon that the result states, exactly; of a run without one, the highest of its rows."""
        found = number((self.about.get("result") or {}).get("epsilon"))
        return self.epsilon if found is None or self.about.get("unit") == "none" else found

    @property
    def claimed(self) -> float | None:
        """Epsilon that the paper claims for what it does; what was spent where nothing else is claimed."""
        found = number(self.about.get("claimed_epsilon"))
        return self.spent if found is None else found

    @property
    def accuracy(self) -> float | None:
        """In [0, 1], on the test set: of the model handed out, else of the last one looked at. On a stream: of all its events so far."""
        found = number((self.about.get("result") or {}).get("accuracy"))
        if found is None and self.vocabulary.accuracy.streamed:
            return next((1.0 - error for error in reversed(self.values("accumulated"))), None)
        return found if found is not None else next(iter(reversed(self.values("accuracy"))), None)

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
        """What ended or stopped the run, in words; None while nothing did."""
        if why := (self.about.get("result") or {}).get("why"):
            return str(why)
        last = next((row for row in reversed(self.others) if row.get("kind") in ("end", "refused")), None)
        return None if last is None else str(last.get("why") or last["kind"])

    def values(self, key: str) -> list[float]:
        """The finite numbers under ``key``, of the rounds that have one."""
        return [value for row in self.rounds if (value := number(row.get(key))) is not None and math.isfinite(value)]

    def count(self, kind: str) -> int:
        """Rows of another kind: late, lost, refused, ..."""
        return sum(row.get("kind") == kind for row in self.others)


def load(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        StudyError: if it is none, or one of the files it must have cannot be read.
    """
    if not folder.is_dir():
        raise StudyError(f"{folder}: there is no such run folder. Give the folder that `sordino run` named")
    if missing := [name for name in NEEDED if not there(folder, name)]:
        raise StudyError(f"{folder}: this is no run folder: it has no {' and no '.join(missing)}")
    rounds, others, damaged = _log(folder / LOG)
    return Run(
        folder=folder,
        about=_about(folder / "run.json"),
        study=_text(folder / "study.toml"),
        environment=_object(folder / "environment.json") if there(folder, "environment.json") else {},
        rounds=rounds,
        others=others,
        damaged=damaged,
    )


def number(value: Any) -> float | None:
    """A number of a row: "inf" is infinite; what is no number is None."""
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer that no float holds
        return math.inf if value > 0 else -math.inf
    return None if math.isnan(found) else found


def _text(path: Path) -> str:
    try:
        return read_below(path.parent, path.name).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read ({error}). Restore it from a copy") from error


def _object(path: Path) -> Row:
    try:
        found = json_of(_text(path))
    except Malformed as error:
        raise StudyError(f"{path}: is not JSON ({error}). Restore it from a copy") from error
    if not isinstance(found, dict):
        raise StudyError(f"{path}: holds {type(found).__name__} where an object belongs. Restore it from a copy")
    return found


def _about(path: Path) -> Row:
    """``run.json``, with every part that a page walks through of the shape it must have."""
    about = _object(path)
    for key, (shape, word) in SHAPES.items():
        if about.get(key) is not None and not isinstance(about[key], shape):
            raise StudyError(f"{path}: {key} must be {word}; got {str(about[key])[:40]!r}. Restore it from a copy")
    for i, client in enumerate(about.get("clients") or []):
        if not isinstance(client, dict) or not _counts(client.get("labels") or []):
            raise StudyError(
                f"{path}: clients[{i}] must be an object whose labels are counts; got {str(client)[:40]!r}. Restore it from a copy"
            )
    return about


def _counts(labels: Any) -> bool:
    return isinstance(labels, list) and all(type(n) is int and 0 <= n < 2**53 for n in labels)


def _log(path: Path) -> tuple[tuple[Row, ...], tuple[Row, ...], str | None]:
    """Rounds, other rows, and what is wrong with the log. Reading stops at the first damaged line."""
    rounds: list[Row] = []
    others: list[Row] = []
    try:
        lines = read_below(path.parent, path.name, most=MOST_LOG).split(b"\n")
    except FileNotFoundError:
        lines = []
    for i, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json_of(line)
        except Malformed:
            half = i == len(lines)  # without its end of line: it is being written, or the run was killed
            where = f"line {i} of {path.name}"
            return tuple(rounds), tuple(others), f"{where} is half written" if half else f"{where} is damaged; what follows is left out"
        if isinstance(row, dict):
            (rounds if row.get("kind") == "round" else others).append(row)
    return tuple(rounds), tuple(others), None
