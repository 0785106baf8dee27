"""Constants chosen on private data: a random number of runs, of which only the best is released.

The price is booked for all of them before the first. The folder of a tuning then holds::

    tune.json       what was asked for, what it costs, and in the end what was chosen
    ledger.sqlite   the price, unless the ledger belongs to the data
    best/           the one run that is released, in the end

Until the end, ``.tuning`` holds a secret key, from which the number of trials, the candidate of
each and the choice among equal scores are drawn, and at most two runs. It is removed at the end,
key first. A tuning that was killed goes on with the same command: its key and its charges are
there, so nothing is drawn or paid for a second time.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sordino.compare.folders import held
from sordino.engine import assemble, session
from sordino.engine import study as studies
from sordino.engine.files import replace_file, said_clearly
from sordino.engine.runs import load
from sordino.engine.study.base import Study
from sordino.engine.surroundings import environment
from sordino.entropy import System
from sordino.errors import BudgetExceeded, ResumeError, StudyError
from sordino.files import KIB, read_below, there
from sordino.privacy import Budget, Charge
from sordino.privacy.trials import number
from sordino.tune.price import VALIDATION, Price

NOTE, BEST, HIDDEN = "tune.json", "best", ".tuning"
KEY, STATE = "tuning.key", "state.json"
ENDED = bytes(32)  # in the place of the key: all trials are done
AGAIN = "give the same command again to go on with the tuning"
NOBODY = "no trial was drawn: nothing is released, and the price stays booked"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """``tune.json``.

    Attributes:
        tuning: names this tuning in the ledger.
        asked: digest of the candidates, the law, the measure and the program: what must be the same
            when it goes on.
        status: "running", "done", or "nothing" where no trial was drawn.
        grid, law, expected, measure, epsilon, delta, accountant: the price.
        chosen: values by key, of the best.
        run: its folder.
    """

    tuning: str
    asked: str
    status: str
    grid: tuple[str, ...]
    law: str
    measure: str
    epsilon: float
    delta: float
    accountant: str
    chosen: dict[str, object] | None = None
    run: str | None = None


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trials done, and the best of them: its number, its score, and what decides among equals."""

    done: int = 0
    best: int | None = None
    score: float | None = None
    tie: float = -1.0

    def beaten(self, score: float | None, tie: float) -> bool:
        """Whether another trial is better; one without a score is worse than any other."""
        mine, other = (-math.inf if each is None else each for each in (self.score, score))
        return (other, tie) > (mine, self.tie)


def tune(price: Price, own: Study, folder: Path, say: Callable[[str], None]) -> Told:
    """Book the price, run the trials, and release the best: all of it, or what a kill left of it.

    Args:
        own: the study as it was asked for: whose ledger is charged.
        say: told what happens; never which trial is going on, or how it ended.

    Raises:
        StudyError: if the folder holds something else.
        BudgetExceeded: if the data's ledger cannot pay; nothing is booked then.
    """
    with said_clearly(folder), held(folder):
        note = _begun(price, folder)
        if note.status != "running":
            return note
        hidden = folder / HIDDEN
        hidden.mkdir(mode=0o700, exist_ok=True)
        try:
            _book(price, own, folder, note)
        except BudgetExceeded:
            shutil.rmtree(hidden)
            (folder / NOTE).unlink()
            raise
        say("the price is booked. Which trial is going on, and how many there are, is not shown")
        state = _trials(price, hidden)
        return _release(folder, note, state)


def _begun(price: Price, folder: Path) -> Told:
    """The note of this tuning, made where there is none."""
    asked = _asked(price)
    if there(folder, NOTE):
        note = msgspec.json.decode(read_below(folder, NOTE), type=Told)
        if note.asked != asked:
            raise ResumeError(
                f"{folder}: holds another tuning (other candidates, law or measure, or another "
                "version of the program or its libraries). Choose another --out; nothing was "
                "changed"
            )
        return note
    if any(folder.iterdir()):
        raise StudyError(f"{folder}: this folder is not empty. Choose another with --out")
    note = Told(
        tuning=secrets.token_hex(8),
        asked=asked,
        status="running",
        grid=price.grid,
        law=price.law,
        measure=price.measure,
        epsilon=price.epsilon,
        delta=price.delta,
        accountant=price.accountant,
    )
    _keep(folder / NOTE, note)
    return note


def _asked(price: Price) -> str:
    said = [studies.write(study) for study in price.studies]
    said += [price.law, repr(price.trials), price.measure]
    said += [str(sorted(environment(study).items())) for study in price.studies[:1]]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _keep(path: Path, what: msgspec.Struct) -> None:
    replace_file(path, msgspec.json.format(msgspec.json.encode(what), indent=1))


def _book(price: Price, own: Study, folder: Path, note: Told) -> None:
    """Charge every client's data, and private test rows, for all trials together.

    A charge that stands already is not booked again: its key names the tuning.
    """
    # nothing is drawn here, so no key is needed
    changed = {"noise_multiplier": price.noise, "entropy": "seed"}
    privacy = own.privacy.model_copy(update=changed)
    study = own.model_copy(update={"privacy": privacy})
    built = assemble.build(study, folder, note.tuning)
    simulation = built.simulation
    try:
        session.book_public(note.tuning, simulation)
        events = dict.fromkeys(simulation.units, price.event)
        if price.tested is not None:
            events["test"] = price.tested
        charges = [
            Charge(
                unit=unit,
                event=event,
                count=1,
                why="the best of a random number of runs",
                method="tune",
                round=0,
                key=f"{note.tuning}/tune/{unit}",
            )
            for unit, event in events.items()
        ]
        limit = math.inf if own.privacy.epsilon is None else own.privacy.epsilon
        simulation.vault.charge(charges, Budget(limit, price.delta, price.accountant))
        simulation.vault.finish()
    finally:
        simulation.vault.close()


def _trials(price: Price, hidden: Path) -> _State:
    """Run what is left to run; how it came out is known in ``hidden`` only."""
    key = _key(hidden)
    state = (
        msgspec.json.decode(read_below(hidden, STATE), type=_State)
        if there(hidden, STATE)
        else _State()
    )
    if key == ENDED:
        return state
    entropy = System(key)
    for trial in range(state.done, drawn(price, entropy)):
        _clear(hidden, state, trial)
        study = price.studies[int(entropy.at("candidate", trial).integers(len(price.studies)))]
        score = _score(price, study, hidden / str(trial))
        tie = float(entropy.at("tie", trial).random())
        state = (
            _State(trial + 1, trial, score, tie)
            if state.beaten(score, tie)
            else msgspec.structs.replace(state, done=trial + 1)
        )
        replace_file(hidden / STATE, msgspec.json.encode(state))
    _clear(hidden, state, None)
    return state


def drawn(price: Price, entropy: System) -> int:
    """How many trials there are: a secret."""
    uniform = float(entropy.at("trials").random())
    return number(
        price.trials, uniform, lambda mean: int(entropy.at("trials", "poisson").poisson(mean))
    )


def _score(price: Price, study: Study, folder: Path) -> float | None:
    """Run one trial, or go on with it; its score, if there is one."""
    if (folder / "run.json").is_file():
        session.resume(folder, _nobody, _nobody, again=AGAIN)
    else:
        session.begin(study, folder, _nobody, _nobody, again=AGAIN)
    run = load(folder)
    if price.measure == VALIDATION:
        found = next(iter(reversed(run.values("validation"))), None)
    else:
        found = run.accuracy
    return found if found is not None and math.isfinite(found) else None


def _nobody(what: object) -> None:
    """Tell nobody."""


def _clear(hidden: Path, state: _State, going: int | None) -> None:
    """Remove every run but the best so far and the one that goes on."""
    kept = {str(each) for each in (state.best, going) if each is not None}
    for path in hidden.iterdir():
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _key(hidden: Path) -> bytes:
    """The secret key of a tuning: made when it begins, read when it goes on."""
    path = hidden / KEY
    if there(hidden, KEY):
        return read_below(hidden, KEY, most=KIB)
    if there(hidden, STATE):
        raise ResumeError(
            f"{path}: the secret key of this tuning is missing. Put it back from a copy, or begin "
            "a new tuning, which pays again"
        )
    key = secrets.token_bytes(32)
    replace_file(path, key)
    path.chmod(0o600)
    return key


def _release(folder: Path, note: Told, state: _State) -> Told:
    """Hand out the best run, and destroy what tells of the others."""
    hidden, best = folder / HIDDEN, folder / BEST
    if state.best is None:
        done = msgspec.structs.replace(note, status="nothing")
    else:
        if not best.exists():
            (hidden / str(state.best)).rename(best)
        _at_once(best)
        chosen = studies.read_run(best).tuned
        assert chosen is not None
        done = msgspec.structs.replace(note, status="done", chosen=chosen.chosen, run=BEST)
    with (hidden / KEY).open("r+b") as file:  # the key first: without it nobody draws again
        file.write(ENDED)
        file.flush()
        os.fsync(file.fileno())
    _keep(folder / NOTE, done)
    shutil.rmtree(hidden)
    return done


def _at_once(best: Path) -> None:
    """Every file as old as every other: their ages would tell how many trials there were."""
    now = time.time()
    for path in (*best.rglob("*"), best):
        os.utime(path, (now, now))
