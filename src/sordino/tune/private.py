"""Constants chosen on private data: a random number of runs, of which only the best is released.

The price of the choice is known, and shown, before anything runs; it is booked for all runs before
the first. The number of runs is secret: nothing of what is left in the end depends on it, but for
the choice that is paid for. So no clock, age, order or count of anything that follows it stands in
a file or is shown: the chosen run says nothing of time, is written anew, and all files get one age.
Somebody who watches the machine meanwhile sees how long it works. The folder of a tuning holds::

    tune.json       what was asked for, what it costs, and in the end what was chosen
    ledger.sqlite   the price, unless the ledger belongs to the data
    best/           the one run that is released, in the end

Until the end, ``.tuning`` holds a secret key, from which the number of trials, the candidate and
the noise of each and the choice among equal scores are drawn, and at most two runs. The ledger
knows the tuning by a digest of that key. It is removed at the end,
key first. A tuning that was killed goes on with the same command: its key and its charges are
there, so nothing is drawn or paid for a second time.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from sordino.base.entropy import System
from sordino.base.errors import BudgetExceeded, LedgerError, ResumeError, StudyError
from sordino.base.files import KIB, overwrite, read_below, there
from sordino.base.fingerprints import refuse_other_data
from sordino.base.frozen import Frozen
from sordino.clients.pricing import priced
from sordino.clients.study import HorizontalStudy
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.files import LOCK, locked, replace_file, said_clearly
from sordino.core.plan import Stages
from sordino.core.prepared import Affordable, PreparedRun, PrepareRun
from sordino.core.run import session
from sordino.core.run.environment import environment
from sordino.core.run.folder import KEY as SECRET
from sordino.core.run.folder import LEDGER
from sordino.core.run.reading import load
from sordino.privacy import Budget, Charge, Composed, Repeated, Selected, accountant
from sordino.privacy.event import Trials
from sordino.privacy.parts import expected, law, missed, name_of, named, number
from sordino.privacy.records.group import of_rows
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.synchronous.regime import REGIME, charges, scheduled
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.tune.grid import Candidate, again

VALIDATION = "accuracy of the final model on its public validation examples"
TEST = "accuracy of the final model on its public test set, which is therefore too high"
PAID = "noisy accuracy of the final model on its private test rows, which pay for it"
NOTE, BEST, HIDDEN = "tune.json", "best", ".tuning"
KEY, STATE = "tuning.key", "state.json"
ENDED = bytes(32)  # in the place of the key: all trials are done
AGAIN = "give the same command again to go on with the tuning"
AGE = 315_532_800.0
"""The age of all files in the end: the first second of 1980, which every archive can hold."""


@dataclass(frozen=True, slots=True, eq=False)
class Tuning:
    """A tuning that can be paid for.

    Attributes:
        studies: of each candidate, as a trial runs it: priced as one of a random number.
        grid: what is tried, as ``KEY=V1,V2``.
        measure: by what the best is chosen.
        law: name of the distribution of the number of trials; ``trials`` the distribution.
        event: what is booked for a client's data (and for private test rows ``tested``).
        own: the same for each client, where clients have epsilons of their own.
        epsilon, delta: of everything together, by ``accountant``: of the client that pays most.
        one: epsilon of a single run with this noise, of the same client.
        noise, without: noise multipliers of a trial, and of the study if nothing were tuned: the
            largest over the clients.
        missed: the chance that a certain candidate is never tried.
    """

    studies: tuple[SynchronousStudy, ...]
    grid: tuple[str, ...]
    measure: str
    law: str
    trials: Trials
    event: Selected
    own: tuple[Selected, ...]
    tested: Selected | None
    epsilon: float
    delta: float
    accountant: str
    one: float
    noise: float
    without: float
    missed: float


def price(
    candidates: Sequence[Candidate], grid: Sequence[str], kind: str, mean: float | None
) -> Tuning:
    """The price of a private choice among candidates.

    Args:
        kind: the law of the number of trials; ``mean`` how many are expected, by default two for
            each candidate.

    Raises:
        StudyError: if the choice cannot be made, or has no proven price.
    """
    for candidate in candidates:
        _refuse(candidate.study)
    mean = 2.0 * len(candidates) if mean is None else mean
    first = candidates[0].study
    trials, measure = law(kind, mean), measured(first)
    name = name_of(first.privacy.accountant, kind, mean)
    trials = (named(name) or ("", trials))[1]  # as the accountant's name has it, to the last digit
    note = {"source": "private", "grid": list(grid), "measure": measure}
    asked = [
        again(
            each.study,
            f"candidate {each.title}",
            privacy={"accountant": name, "ledger": "run"},
            tuned={"chosen": dict(each.chosen), **note},
        )
        for each in candidates
    ]
    played = tuple(
        full for each in asked if isinstance(full := regimes.calibrated(each), SynchronousStudy)
    )
    prices = {(_histories(study), _tested(study, trials)) for study in played}
    if len(prices) > 1:
        raise StudyError(
            "the candidates cost different amounts (noise, sampling rate, or number of steps or of "
            "measurements on private rows differ), and a private choice is priced for equal ones: "
            "vary only keys that leave the price as it is, such as privacy.clip, "
            "method.learning_rate and model.name"
        )
    ((each, tested),), base = prices, accountant(first.privacy.accountant)
    parts = [[Repeated(event, count) for event, count in history] for history in each]
    events = tuple(
        Selected(own[0] if len(own) == 1 else Composed(tuple(own)), trials) for own in parts
    )
    delta, rows = first.privacy.delta or 0.0, first.rows_at_once
    return Tuning(
        studies=played,
        grid=tuple(grid),
        measure=measure,
        law=kind,
        trials=trials,
        event=events[0],
        own=events if played[0].privacy.epsilons is not None else (),
        tested=tested,
        epsilon=max(base.epsilon([(of_rows(event, rows), 1)], delta) for event in set(events)),
        delta=delta,
        accountant=first.privacy.accountant,
        one=max(
            base.epsilon([(of_rows(event, rows), count) for event, count in history], delta)
            for history in set(each)
        ),
        noise=played[0].privacy.noise_multiplier or 0.0,
        without=regimes.calibrated(first).privacy.noise_multiplier or 0.0,
        missed=missed(trials, len(candidates)),
    )


def _refuse(study: HorizontalStudy) -> None:
    privacy = study.privacy
    if not isinstance(study, SynchronousStudy):
        raise StudyError(
            "--on private is for methods that work in rounds: on arrival, how often a client's "
            "data is used depends on the others. Tune on public data"
        )
    if privacy.unit == "none" or privacy.epsilon is None or math.isinf(privacy.epsilon):
        raise StudyError("--on private needs a finite privacy.epsilon, which pays for the choice")
    if named(privacy.accountant) is not None:
        raise StudyError(
            f"privacy.accountant = '{privacy.accountant}' is that of a selection already: give "
            "that of one run, such as 'pld'"
        )
    if privacy.noise_multiplier is not None or study.privacy.noise_multipliers is not None:
        raise StudyError(
            "privacy.noise_multiplier is given, and a private choice calibrates the noise of its "
            "trials so that all of them stay within epsilon: leave it out"
        )
    if privacy.entropy != "system":
        raise StudyError(
            "--on private draws the number of its trials in secret, and each trial needs noise of "
            "its own, which noise from a seed is not: set privacy.entropy = 'system'"
        )
    chosen = study.method.fixed_tau is None and scheduled(study)
    if study.method.adapts_noise or privacy.mechanism.sized or chosen:
        raise StudyError(
            "--on private needs runs whose price is known beforehand: noise that is chosen along "
            "the way, a number of steps that is chosen while noise follows a schedule, or a price "
            "that depends on the model's size, is not"
        )


def measured(study: HorizontalStudy) -> str:
    """By what candidates are told apart: something public, or something paid for.

    Raises:
        StudyError: if there is nothing.
    """
    if study.data.validation:
        return VALIDATION
    if study.data.testing == "private share":
        return PAID
    if study.data.testing != "none":
        return TEST
    own = ": what data.client_validation sets aside is the clients' own"
    raise StudyError(
        "no model of this study is measured on anything that is public or paid for"
        f"{own if study.data.client_validation else ''}. Give data.validation, a public "
        "data.test, or data.test = 'private share'"
    )


def _histories(study: SynchronousStudy) -> tuple[Stages, ...]:
    """Return the most that one run books: for each client where clients differ, else for all."""
    asked, promised = REGIME.schedule(study, ()), REGIME.promised(study, ())
    kinds, found = {}, list[Stages]()
    for first in asked.kinds.values():
        if first not in kinds:
            steps, used = charges(study, promised.affordable(first))
            most = steps if study.method.adapts_steps else used
            kinds[first] = tuple(asked.spending(first, most or 0))
        found.append(kinds[first])
    return tuple(found) if study.privacy.epsilons is not None else (found[0],)


def _tested(study: HorizontalStudy, trials: Trials) -> Selected | None:
    """Return the charge of private test rows; None where there are none."""
    if study.data.testing != "private share":
        return None
    mechanism, _, times = priced(study)
    return Selected(Repeated(mechanism.event(), times), trials)


def told(price: Tuning) -> list[tuple[str, str]]:
    """A price, for people: (what, how much)."""
    mean = expected(price.trials)
    return [
        ("candidates", str(len(price.studies))),
        ("number of trials", f"{price.law}, {mean:g} expected; drawn in secret, told to nobody"),
        ("a certain candidate is never tried", f"with probability {price.missed:.2f}"),
        ("epsilon of all of it together", f"{epsilon_text(price.epsilon)} at {price.delta:g}"),
        ("epsilon of one such run alone", epsilon_text(price.one)),
        ("noise multiplier of a trial", f"{price.noise:g}"),
        ("noise multiplier without tuning", f"{price.without:g}"),
        ("measure", price.measure),
    ]


class TuningNote(Frozen, kw_only=True):
    """``tune.json``.

    Attributes:
        tuning: names this tuning in the ledger.
        asked: digest of the candidates, the law, the measure and the program: what must be the same
            when it goes on.
        status: "running", "done", or "nothing" where no trial was drawn.
        grid, law, expected, measure, epsilon, delta, accountant: the price.
        chosen: values by key, of the best.
        run: its folder.
        data: a fingerprint of all rows that it chooses on, in their order, known before anything is
            booked or drawn.
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
    data: str | None = None


class _State(Frozen, forbid_unknown_fields=True):
    """Trials done, and the best of them: its folder, its score, and what decides among equals."""

    done: int = 0
    best: str | None = None
    score: float | None = None
    tie: float = -1.0

    def beaten(self, score: float | None, tie: float) -> bool:
        """Return whether another trial is better; one without a score is the worst."""
        mine, other = (-math.inf if each is None else each for each in (self.score, score))
        return (other, tie) > (mine, self.tie)


def tune(price: Tuning, own: studies.Study, folder: Path, say: Callable[[str], None]) -> TuningNote:
    """Book the price, run the trials, and release the best: all of it, or what a kill left of it.

    Args:
        own: the study as it was asked for: whose ledger is charged.
        say: told what happens; never which trial is going on, or how it ended.

    Raises:
        StudyError: if the folder holds something else.
        BudgetExceeded: if the data's ledger cannot pay; nothing is booked then.
    """
    with said_clearly(folder), locked(folder, make=True):
        fresh = not there(folder, NOTE)
        note = _begun(price, folder)
        if note.status != "running":
            _ended(folder)
            return note
        key = _key(folder / HIDDEN, note)
        try:
            if note.data is None:
                _build_all(price, folder / HIDDEN)
            note = _book(price, own, folder, note)
        except (StudyError, LedgerError, BudgetExceeded):
            if fresh:  # nothing is booked, and nothing has run
                shutil.rmtree(folder / HIDDEN)
                (folder / NOTE).unlink()
                if own.privacy.ledger == "run":
                    (folder / LEDGER).unlink(missing_ok=True)
            raise
        say("the price is charged. Which trial is going on, and how many there are, is not shown")
        return _release(folder, note, _trials(price, folder / HIDDEN, key))


def _begun(price: Tuning, folder: Path) -> TuningNote:
    """The note of this tuning, made where there is none."""
    asked = _asked(price)
    if there(folder, NOTE):
        note = msgspec.json.decode(read_below(folder, NOTE), type=TuningNote)
        if note.asked != asked:
            raise ResumeError(
                f"{folder}: holds another tuning (other candidates, law or measure, or another "
                "version of the program or its libraries). Choose another --out; nothing was "
                "changed"
            )
        if note.data is not None:
            return note
    hidden = folder / HIDDEN
    # a key alone was left by a kill before anything was asked of the ledger
    known = (folder / LOCK, hidden, hidden / KEY)
    if not there(folder, NOTE) and any(path not in known for path in folder.rglob("*")):
        raise StudyError(f"{folder}: this folder is not empty. Choose another with --out")
    hidden.mkdir(mode=0o700, exist_ok=True)
    key = secrets.token_bytes(32)
    replace_file(hidden / KEY, key)
    (hidden / KEY).chmod(0o600)
    note = TuningNote(
        tuning=_name(key),
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


def _name(key: bytes) -> str:
    """Return the tuning's name in the ledger: another key is another tuning, which pays."""
    return hashlib.sha256(b"sordino tuning:" + key).hexdigest()[:16]


def _asked(price: Tuning) -> str:
    said = [*map(studies.write, price.studies), price.law, repr(price.trials), price.measure]
    said.append(str(sorted(environment(price.studies[0]).items())))
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def _keep(path: Path, what: msgspec.Struct) -> None:
    replace_file(path, msgspec.json.format(msgspec.json.encode(what), indent=1))


def _build_all(price: Tuning, hidden: Path) -> None:
    """Build each candidate once: what is refused is refused before it is paid for, and whatever the
    trials that chance draws.
    """
    with TemporaryDirectory(dir=hidden) as made:
        for place, study in enumerate(price.studies):
            folder = Path(made) / str(place)
            folder.mkdir()
            built = regimes.build(study.with_privacy({"entropy": "seed"}), folder, "trial")
            built.simulation.ledgers.close()


def _book(price: Tuning, own: studies.Study, folder: Path, note: TuningNote) -> TuningNote:
    """Charge every client's data, and private test rows, for all trials together; the note, which
    knows the data then.

    A charge that stands already is not booked again: its key names the tuning. No set stays open,
    whatever comes of it.

    Raises:
        ResumeError: if the tuning began with other data.
    """
    # nothing is drawn here, so no key is needed
    trial = price.studies[0].privacy
    changed = {
        "noise_multiplier": trial.noise_multiplier,
        "noise_multipliers": trial.noise_multipliers,
        "entropy": "seed",
    }
    built = None
    try:
        built = regimes.build(own.with_privacy(changed), folder, note.tuning)
        simulation = built.simulation
        if note.data is None:
            note = replace(note, data=simulation.ledgers.data)
            _keep(folder / NOTE, note)
        refuse_other_data(folder / NOTE, "this tuning", note.data or "", simulation.ledgers.data)
        with simulation.ledgers.ledger.transaction():  # all of it, or nothing
            session.book_public(note.tuning, simulation.ledgers)
            simulation.ledgers.charge(*_charges(price, own, simulation.units, note))
    finally:
        if built is not None:
            built.simulation.ledgers.close()
        session.close_run_sets(own, note.tuning, opened=built is not None)
    return note


def _charges(
    price: Tuning, own: studies.Study, units: Sequence[str], note: TuningNote
) -> tuple[list[Charge], dict[str, Budget]]:
    """Return the charges of every unit, and its budget."""
    whole = math.inf if own.privacy.epsilon is None else own.privacy.epsilon
    events, most = dict.fromkeys(units, price.event), dict.fromkeys(units, whole)
    if price.own:  # clients with epsilons of their own
        assert isinstance(own, SynchronousStudy)
        events = dict(zip(units, price.own, strict=True))
        most = dict(zip(units, own.epsilons, strict=True))
    if price.tested is not None:
        events["test"], most["test"] = price.tested, whole
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
    return charges, {
        unit: Budget(limit, price.delta, price.accountant) for unit, limit in most.items()
    }


def _trials(price: Tuning, hidden: Path, key: bytes) -> _State:
    """Run what is left to run; how it came out is known in ``hidden`` only."""
    state = _State()
    if there(hidden, STATE):
        state = msgspec.json.decode(read_below(hidden, STATE), type=_State)
    if key == ENDED:
        return state
    entropy = System(key)
    for trial in range(state.done, drawn(price, entropy)):
        # which messages may show: it does not tell which trial it is
        name = hmac.digest(key, f"folder {trial}".encode(), "sha256").hex()[:16]
        _clear(hidden, state, name)
        study = price.studies[int(entropy.at("candidate", trial).integers(len(price.studies)))]
        score = _score(price, study, hidden / name, _drawing(key, trial))
        tie = float(entropy.at("tie", trial).random())
        state = replace(state, done=trial + 1)
        if state.beaten(score, tie):
            state = replace(state, best=name, score=score, tie=tie)
        replace_file(hidden / STATE, msgspec.json.encode(state))
    _clear(hidden, state, None)
    return state


def drawn(price: Tuning, entropy: System) -> int:
    """Return the number of trials: a secret."""
    uniform = float(entropy.at("trials").random())
    return number(
        price.trials, uniform, lambda mean: int(entropy.at("trials", "poisson").poisson(mean))
    )


def _score(price: Tuning, study: studies.Study, folder: Path, build: PrepareRun) -> float | None:
    """Run one trial, or go on with it; its score, if there is one."""
    if (folder / "run.json").is_file():
        session.resume(folder, _nobody, _nobody, build=build, again=AGAIN)
    else:
        session.begin(study, folder, _nobody, _nobody, build=build, again=AGAIN)
    run = load(folder)
    found = run.accuracy
    if price.measure == VALIDATION:
        found = next(iter(reversed(run.values("validation"))), None)
    return found if found is not None and math.isfinite(found) else None


def _nobody(what: object) -> None:
    """Tell nobody."""


def _clear(hidden: Path, state: _State, going: str | None) -> None:
    """Remove every run but the best so far and the one that goes on."""
    kept = (state.best, going)
    for path in hidden.iterdir():
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _key(hidden: Path, note: TuningNote) -> bytes:
    """The secret key of a tuning: with another one, other trials would run than were paid for."""
    path = hidden / KEY
    key = read_below(hidden, KEY, most=KIB) if there(hidden, KEY) else None
    if key is None or (key != ENDED and _name(key) != note.tuning):
        raise ResumeError(
            f"{path}: the secret key of this tuning is {'missing' if key is None else 'another'}. "
            "Put it back from a copy, or begin a new tuning, which pays again"
        )
    return key


def _drawing(key: bytes, trial: int) -> PrepareRun:
    """Return the builder of a trial, whose noise comes from the tuning's key."""

    def build(study: studies.Study, folder: Path, run: str, steps: Affordable) -> PreparedRun:
        if not there(folder, SECRET):
            replace_file(folder / SECRET, hmac.digest(key, f"trial {trial}".encode(), "sha256"))
            (folder / SECRET).chmod(0o600)
        return regimes.build(study, folder, run, steps)

    return build


def _release(folder: Path, note: TuningNote, state: _State) -> TuningNote:
    """Hand out the best run, and destroy what tells of the others."""
    hidden, best = folder / HIDDEN, folder / BEST
    if state.best is None:
        done = replace(note, status="nothing")
    else:
        if not best.exists():
            _copy(hidden / state.best, hidden / BEST)
            (hidden / BEST).rename(best)
        chosen = studies.read_run(best).tuned
        assert chosen is not None
        done = replace(note, status="done", chosen=chosen.chosen, run=BEST)
    if there(folder, LEDGER):
        _copy(folder / LEDGER, folder / LEDGER)
    overwrite(hidden / KEY, ENDED)  # the key first: without it nobody draws again
    _keep(folder / NOTE, done)
    _ended(folder)
    return done


def _copy(source: Path, to: Path) -> None:
    """Write a file, or a folder of files, anew: no file keeps its age or its place on the disk.

    What is inside needs no change. Every trial has a ledger of its own and says nothing of time, so
    a run is the same whichever trial it was.
    """
    if source.is_dir():
        to.mkdir()
        for path in sorted(source.iterdir()):
            _copy(path, to / path.name)
        return
    mode = source.stat().st_mode
    replace_file(to, source.read_bytes())
    to.chmod(mode)


def _ended(folder: Path) -> None:
    """Remove what tells of the other trials, and what a kill left of it."""
    if there(folder, HIDDEN):
        shutil.rmtree(folder / HIDDEN)
    ageless(folder)


def ageless(folder: Path) -> None:
    """Give every file of a tuning, and the folder, one age: theirs would tell how long it took."""
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink():
            os.utime(path, (AGE, AGE))
