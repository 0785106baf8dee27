"""A run from its study file to its finished folder, and its resumption after a kill.

The folder holds everything and can be moved: see :mod:`sordino.core.run.folder`, which also says in
which order it is written. A run goes on only as it was begun.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import math
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from safetensors.numpy import save

from sordino.base.errors import BudgetExceeded, ResumeError, SordinoError
from sordino.base.files import sweep
from sordino.base.fingerprints import KEYED
from sordino.base.frozen import Frozen
from sordino.core import files, records
from sordino.core import regimes as builder
from sordino.core import study as studies
from sordino.core.files import replace_file, resumable, said_clearly
from sordino.core.prepared import ELSEWHERE, PUBLIC, UNIT, PreparedRun, PrepareRun
from sordino.core.records import About, Begin, Place, Result, Seal, Spent, known, number
from sordino.core.run.environment import (
    asked,
    compared,
    destroyed,
    environment,
    forget,
    shape,
    surrounded,
)
from sordino.core.run.folder import (
    ABOUT,
    CHECKPOINTS,
    ENVIRONMENT,
    KEY,
    LOG,
    METRICS,
    MODEL,
    REMEDY,
    STUDY,
    WORDS,
    Difference,
    RunFolder,
    RunLog,
    Saved,
    Show,
    differences,
    last_told,
    length_of,
    modules_of,
    promise,
    read_checkpoint,
    study_of,
)
from sordino.core.statements import adjacency, assumptions, guarantee, guaranteed, looked, uncovered
from sordino.core.study.base import Study
from sordino.core.world import Snapshot
from sordino.data.notices import notice
from sordino.privacy import Budget, Charge, Ledger, LedgerSession, NonPrivate, accountant
from sordino.privacy.records import close_sets
from sordino.privacy.session import NAME


class Outcome(Frozen):
    """The end of a run.

    Attributes:
        run: its folder.
        method: name.
        regime: of the method.
        rounds: rounds closed, or updates done.
        steps: local steps, or gradients, of the client that did most.
        accuracy: of the final model on the test set, in [0, 1].
        epsilon: what is guaranteed: ``spent``, or the budget where that was chosen by looking.
        spent: the highest over the clients, from the ledger.
        delta, accountant, unit: what epsilon means.
        seconds: wall time of this session.
        why: what ended the run.
        rmse: instead of accuracy, where labels are numbers, in their units.
    """

    run: str
    method: str
    regime: str
    rounds: int
    steps: int
    accuracy: float | None
    epsilon: float
    spent: float
    delta: float | None
    accountant: str
    unit: str
    seconds: float
    why: str
    rmse: float | None = None


class Going(Frozen):
    """A run that begins or goes on: ``run.json``, how many rounds were done before, its folder."""

    about: About
    rounds_done: int
    folder: Path


Announce = Callable[[Going], None]


def begin(
    study: Study,
    out: Path | None,
    show: Show,
    announce: Announce,
    *,
    build: PrepareRun = builder.build,
    again: str | None = None,
) -> Outcome:
    """Run a study in a new folder.

    Args:
        build: who makes its objects: a simulation, unless something else is said.
        again: how to go on after an interruption, in words, where `sordino run` is not how.

    Raises:
        StudyError: if it cannot be run; nothing has been written then.
    """
    started = time.monotonic()
    with ExitStack() as held:
        folder, about, built = _new_folder(study, out, build, held)
        with resumable(folder, again):
            return _play(folder, about, show, announce, started, build, built=built)


def _new_folder(
    study: Study, out: Path | None, build: PrepareRun, held: ExitStack
) -> tuple[Path, About, PreparedRun | None]:
    """A new folder, locked until ``held`` ends, what stands in its ``run.json``, and the objects of
    the run, where these need not be built again.
    """
    with said_clearly(Path("runs") if out is None else out):
        folder = files.free(out, study.name)
        draft = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
        draft.mkdir(parents=True)
    run, built = secrets.token_hex(8), None
    try:
        held.enter_context(files.locked(draft))  # and the folder that it becomes
        built = build(study, draft, run, None)
        full, affordable = built.study, built.simulation.affordable_steps
        pays = list(affordable or ())
        if built.own is not None and len(pays) > 1:
            pays = [pays[built.own.index]]
        if pays and max(pays) < 1:
            why = built.simulation.ledgers.blame(built.simulation.units)
            built.simulation.ledgers.finish()
            raise BudgetExceeded(
                f"privacy.epsilon = {full.privacy.epsilon} does not pay for a single {built.paid} "
                f"at noise_multiplier = {built.plan.noise_multiplier} (or the data's ledger has "
                f"spent it). {built.remedy if why is None else why[:1].upper() + why[1:]}"
            )
        about = replace(describe(built, run), begun=_now(full), data=_data_of(built))
        replace_file(draft / STUDY, studies.write(full).encode())
        replace_file(draft / ABOUT, records.dumped(about, indent=1).encode())
        replace_file(draft / ENVIRONMENT, records.dumped(surrounded(full), indent=1).encode())
        begin = Begin(
            study=asked(full),
            environment=environment(full),
            promise=promise(records.plain(about)),
            key=RunFolder(draft).key_digest() or UNSET,
        )
        built.simulation.ledgers.begin(
            run,
            records.plain(begin),
            _promised(built),
            built.planned() if built.agreed or looked(full) else {},
            others=built.agreed,
        )
        built.simulation.ledgers.close()
        # noise is drawn over what the study in the folder says: a resumed run knows nothing else
        kept = built.moves and shape(study_of(draft, known(about.modules))) == shape(full)
        folder = files.take(draft, folder, out, study.name)
    except BaseException:
        held.close()
        shutil.rmtree(draft, ignore_errors=True)
        close_run_sets(study, run, opened=built is not None)
        raise
    if not kept:
        return folder, about, None
    built.simulation.ledgers.moved(draft, folder)
    return folder, about, built


def close_run_sets(study: Study, run: str, *, opened: bool) -> None:
    """Close the sets in a ledger of the data of a run of which no folder stays, or of a tuning;
    ``opened`` says whether it has any for certain.
    """
    folder = Path(study.privacy.ledger).expanduser()
    if study.privacy.ledger == "run" or not (folder / NAME).is_file():
        return
    try:
        with Ledger.open(folder / NAME) as ledger:
            close_sets(ledger, run)
    except (OSError, SordinoError):  # what stopped the run may stop this, too
        if opened:
            notice(
                f"warning: {folder / NAME}: run {run} could not be ended there, and holds sets of "
                f"records open. Write `sordino ledger end {folder} {run}`"
            )


def resume(
    folder: Path,
    show: Show,
    announce: Announce,
    *,
    modules: Path | None = None,
    build: PrepareRun = builder.build,
    again: str | None = None,
) -> Outcome:
    """Go on with a run that was stopped, or say again how a finished one ended.

    Args:
        build, again: as it was begun with.
        modules: where modules lie that the study names, if they were moved since.

    Raises:
        StudyError: if another process has the folder.
    """
    started = time.monotonic()
    lock = files.locked(folder) if folder.is_dir() else nullcontext()
    with resumable(folder, again), lock:
        for place in (folder, folder / CHECKPOINTS):
            sweep(place)
        about = RunFolder(folder).about(modules)
        return _play(folder, about, show, announce, started, build, modules)


def describe(built: PreparedRun, run: str) -> About:
    """Return what stands in ``run.json``: what every run has, and the facts of its regime."""
    study, plan, privacy = built.study, built.plan, built.study.privacy
    affordable_steps = built.simulation.affordable_steps
    return About(
        format=records.FORMAT,
        run=run,
        name=study.name,
        method=study.method.name,
        form=study.form,
        status="running",
        unit=privacy.unit,
        adjacency=adjacency(study),
        epsilon_budget=math.inf if privacy.epsilon is None else privacy.epsilon,
        # whether releases decide what is spent: then only the budget is a bound
        chosen=looked(study),
        others=built.agreed or UNSET,
        claimed_epsilon=plan.claimed,
        delta=privacy.delta,
        accountant=privacy.accountant,
        noise_multiplier=plan.noise_multiplier,
        learning_rate=getattr(study.method, "learning_rate", None),
        batch=getattr(study.method, "batch", None),
        R_s=study.horizon,
        affordable_steps=None if affordable_steps is None else tuple(affordable_steps),
        modules=modules_of(study),
        facts=built.facts,
        guarantee=guarantee(study, None, built.own),
        assumptions=tuple(assumptions(study)),
        warnings=(
            *plan.warnings,
            *(() if built.agreed else uncovered(study)),
            *builder.of(study).remarks(study),
        ),
        result=None,
    )


def _play(
    folder: Path,
    about: About,
    show: Show,
    announce: Announce,
    started: float,
    build: PrepareRun,
    modules: Path | None = None,
    built: PreparedRun | None = None,
) -> Outcome:
    study, place = study_of(folder, known(about.modules), modules), RunFolder(folder)
    run = str(about.run)
    # First what is quickly said, and names what differs; then, along the chain, that this is what
    # every ledger says.
    before = place.note(study, run)
    _refuse_changes(place, study, about, before)
    _refuse_another_key(place, before, ended=True)  # whether it has ended is known below
    if built is None:
        built = build(study, folder, run, known(about.affordable_steps))
    sim = built.simulation
    before = place.fit(sim.ledgers.begun(run), Begin)
    _refuse_changes(place, study, about, before)
    # what it was built to again; facts that a later version adds are in no note of before
    now = promise(records.plain(describe(built, run)))
    then = {key: value for key, value in before.promise.items() if key not in WORDS}
    _refuse(
        differences("", then, {key: now[key] for key in now if key in then}),
        f"{folder}: its data, or a file that it reads, has changed since the run began. {REMEDY}",
    )
    saved = read_checkpoint(folder, sim, study.regime) or Saved(built.first, 0, study.regime, {})
    sim.ledgers.refuse_older(saved.heads)
    moment = saved.moment
    _refuse_another_key(place, before, ended=moment.ended is not None)
    if length_of(folder) < saved.log_length:
        raise ResumeError(
            f"{folder / LOG}: shorter than at the last checkpoint. Restore it from a copy; "
            "nothing was changed"
        )
    announce(Going(about, moment.number, folder))
    if moment.ended is None:
        try:
            with RunLog(folder, saved, study.checkpoint_stride, show, sim.ledgers.heads) as log:
                book_public(run, sim.ledgers)
                moment = sim.run(moment, log)
        except BudgetExceeded:  # once another run has ended, this one can go on
            sim.ledgers.close()
            raise
    outcome = _finish(folder, about, built, moment, time.monotonic() - started)
    sim.ledgers.finish()
    sim.ledgers.close()
    forget(folder)
    return outcome


def _refuse_changes(place: RunFolder, study: Study, about: About, before: Begin) -> None:
    """Hold study, promise and environment against what a run began with.

    Raises:
        ResumeError: naming each key that differs.
    """
    found = place.changed_since_begin(records.plain(before), records.plain(about))
    then = compared(before.environment)
    _refuse(
        [*found, *differences("environment", then, environment(study))],
        f"{place.path}: a run can be resumed only without changes. {REMEDY}",
    )


def _refuse(found: Sequence[Difference], remedy: str) -> None:
    if found:
        raise ResumeError("\n".join((*map(str, found), remedy)))


def _refuse_another_key(place: RunFolder, before: Begin, *, ended: bool) -> None:
    """Hold the secret key that noise comes from against the one that the run began with.

    A run that has ``ended`` needs it no more. With another key, releases that were booked once
    would be released a second time, under noise of their own.

    Raises:
        ResumeError: if it is another, or missing.
    """
    if before.key is UNSET:
        return
    gone, found = destroyed(place.path), place.key_digest()
    if (gone and ended) or found == before.key:
        return
    what = (
        "missing"
        if found is None
        else "destroyed, as when a run has ended"
        if gone
        else "not the one that the run began with"
    )
    raise ResumeError(
        f"{place.path / KEY}: the secret key is {what}. Releases that were already charged would "
        "be repeated with other noise: put back the whole run folder from a copy, or begin a new "
        "run"
    )


def _promised(built: PreparedRun) -> dict[str, Budget]:
    """The promise to each unit: at most so much, in all that its records were ever in."""
    sim = built.simulation
    budgets = getattr(sim, "budgets", None) or (sim.budget,) * len(sim.units)
    found: dict[str, Budget] = {}
    # units may be alike, and so may budgets: of a million clients there is one pair
    pairs = dict(zip(zip(sim.units, map(id, budgets), strict=True), budgets, strict=True))
    for (unit, _), budget in pairs.items():
        found[unit] = min(budget, found.get(unit, budget), key=lambda each: each.epsilon)
    return found | ({} if built.evaluation is None else {UNIT: built.evaluation.budget})


def book_public(run: str, ledgers: LedgerSession) -> None:
    """Book rows that were declared public as public, before anything is computed from them.

    Raises:
        BudgetExceeded: if one of them has a promise of a run that has not ended.
    """
    if PUBLIC in ledgers.names:
        charge = Charge(
            unit=PUBLIC,
            event=NonPrivate(reason="they were declared public, and used without any protection"),
            count=1,
            why="rows that the study declares public",
            method="measure",
            round=0,
            key=f"{run}/public",
        )
        ledgers.charge([charge], Budget(math.inf, 1e-5))


def _finish(
    folder: Path, about: About, built: PreparedRun, moment: Snapshot, seconds: float
) -> Outcome:
    """Write the model and the result, and seal both in the ledger.

    A ledger of the data goes on when a run has ended, and what its records had spent by then cannot
    be added up from it later: a run that was sealed says again what its seal holds.
    """
    sim, run = built.simulation, str(about.run)
    model = save(built.named(moment.model), metadata={"model": built.model})
    place, noted = RunFolder(folder), sim.ledgers.sealed(run)
    before = None if noted is None else place.fit(noted, Seal)
    spent = _spent(built) if before is None else before.spent
    if before is None and (measured := built.metrics(moment.model)) is not None:
        replace_file(folder / METRICS, records.dumped(measured, indent=1).encode())
    outcome, done = _end(folder, about, built, moment, seconds, spent, before)
    seal = place.seal(records.plain(done), model, spent)
    if before is not None:
        _refuse(
            place.changed_since_seal(records.plain(before), records.plain(done), seal.files),
            "The run had ended and was sealed in its ledger. Restore the folder from a copy",
        )
    replace_file(folder / MODEL, model)
    sim.ledgers.seal(run, records.plain(seal))
    seq, digest = sim.ledgers.head()
    sealed = Place(
        seq=seq, digest=digest, scope="run" if built.study.privacy.ledger == "run" else "data"
    )
    replace_file(folder / ABOUT, records.dumped(replace(done, ledger=sealed), indent=1).encode())
    return outcome


def _end(
    folder: Path,
    about: About,
    built: PreparedRun,
    moment: Snapshot,
    seconds: float,
    spent: Spent,
    sealed: Seal | None,
) -> tuple[Outcome, About]:
    """Return how a run ended, or was ``sealed``, and its ``run.json`` without the place in the
    ledger.
    """
    study, plain, before = built.study, built.study.privacy.unit == "none", known(about.result)
    most = math.inf if plain else max((*spent.each, spent.test or 0.0))
    early = built.agreed and not plain and not _complete(built, str(about.run), moment)
    if sealed is not None:  # versions before counted otherwise what was done
        early = sealed.run.get("result.early") is True
    outcome = Outcome(
        run=str(folder),
        method=study.method.name,
        regime=study.regime,
        rounds=moment.number,
        steps=moment.taken,
        accuracy=last_told(folder, study.regime),
        rmse=last_told(folder, study.regime, "rmse"),
        epsilon=guaranteed(study, most, early=early),
        spent=most,
        delta=study.privacy.delta,
        accountant=study.privacy.accountant,
        unit=study.protected,
        seconds=seconds if before is None else number(before.seconds) or 0.0,
        why=moment.ended or "",
    )
    result = Result(
        rounds=outcome.rounds,
        steps=outcome.steps,
        accuracy=outcome.accuracy,
        epsilon=outcome.epsilon,
        seconds=round(outcome.seconds) if _dated(study) else UNSET,
        why=outcome.why,
        spent=None if plain else spent.each,
        test_epsilon=spent.test,
        rmse=UNSET if outcome.rmse is None else outcome.rmse,
        early=early or UNSET,
    )
    return outcome, replace(
        about,
        status="done",
        guarantee=guarantee(study, outcome.epsilon, built.own),
        result=result,
        ended=known(about.ended) or _now(study),
    )


def _complete(built: PreparedRun, run: str, moment: Snapshot) -> bool:
    """Return whether all was done that was planned: by what was charged, or where no plan is noted,
    by the numbers of rounds, which others may have named.
    """
    ledgers = built.simulation.ledgers
    if ledgers.ledger.planned(run):
        return ledgers.did_all(run)
    return builder.of(built.study).complete(built.study, moment)


def _spent(built: PreparedRun) -> Spent:
    """Return what each unit has spent, the highest of its records; price each history once."""
    sim, budget = built.simulation, built.simulation.budget
    chosen = accountant(budget.accountant)
    price = functools.cache(lambda history: chosen.epsilon(history, budget.delta))
    asked = [(unit, None) for unit in dict.fromkeys(sim.units)]
    each = tuple(max(map(price, found), default=0.0) for found in sim.ledgers.each(asked))
    return Spent(each=each, test=None if built.evaluation is None else built.evaluation.spent())


# What ``run.json`` says of time: the second of the beginning and of the end, and how many seconds
# lie between; what takes longer where a secret is larger is not told more finely. A trial of a
# private choice says nothing of time: with it, whoever has the chosen run would estimate how many
# trials there were.


def _dated(study: Study) -> bool:
    return study.tuned is None or study.tuned.source != "private"


def _now(study: Study) -> str | UnsetType:
    """The time, UTC, ISO 8601, to the second; absent where a run may not say it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds") if _dated(study) else UNSET


def _data_of(built: PreparedRun) -> str | UnsetType:
    """One SHA-256 over the fingerprints of published data in a ledger of the run's own.

    Absent of private data, whose digest would tell guesses of its rows apart.
    """
    if built.study.privacy.ledger != "run" or built.agreed:  # sites keep their data
        return UNSET
    prints = built.simulation.ledgers.ledger.units()
    hidden = (each == unit or each.startswith((KEYED, *ELSEWHERE)) for unit, each in prints.items())
    if not prints or any(hidden):  # a set of records has no other print than its name
        return UNSET
    text = "\n".join(f"{unit} {each}" for unit, each in sorted(prints.items()))
    return hashlib.sha256(text.encode()).hexdigest()
