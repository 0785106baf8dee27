"""A run from its study file to its finished folder, and its resumption after a kill.

A run folder holds everything and can be moved::

    study.toml          complete and calibrated
    run.json            what was promised, to whom, under which assumptions; the result
    environment.json    what the bits of the result depend on
    ledger.sqlite       what was released (unless the ledger belongs to the data)
    rounds.jsonl        one row a round
    metrics.json        how good the final model is on public rows, where it has any
    checkpoints/        where to go on from
    model.safetensors   the model that is handed out
    report.html

The folder is made under another name and renamed when the study, the data and the model have
proved to fit together: bad input leaves nothing behind.

What a run begins with is noted in its ledger before the first release, and how it ended is sealed
there (:mod:`sordino.core.begun`, :mod:`sordino.core.sealed`). A run goes on only as it was
begun.
"""

from __future__ import annotations

import math
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET
from msgspec.structs import replace
from safetensors.numpy import save

from sordino.base.errors import BudgetExceeded, HeldBack, ResumeError
from sordino.base.package import companions_here
from sordino.core import assemble as builder
from sordino.core import begun, checkpoint, folders, made, recorded, records, sealed
from sordino.core import study as studies
from sordino.core.built import PUBLIC, UNIT, Builds, Built
from sordino.core.files import replace_file, resumable, said_clearly
from sordino.core.promise import (
    adjacency,
    assumptions,
    guarantee,
    guaranteed,
    looked,
    remarks,
    uncovered,
)
from sordino.core.recorder import (
    CHECKPOINTS,
    LOG,
    METRICS,
    Recorder,
    last_told,
    length_of,
    why_refused,
)
from sordino.core.records import About, Place, Result, Row, Spent, known, number
from sordino.core.study.base import Study
from sordino.core.surroundings import destroyed, forget, surrounded
from sordino.core.watch import Moment
from sordino.privacy import Budget, Charge, LedgerSession, NonPrivate
from sordino.training.settings import tune


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

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


@dataclass(frozen=True, slots=True)
class Going:
    """A run that begins or goes on: ``run.json``, how many rounds were done before, its folder."""

    about: About
    rounds_done: int
    folder: Path


def begin(
    study: Study,
    out: Path | None,
    show: Callable[[Row], None],
    announce: Callable[[Going], None],
    *,
    build: Builds = builder.build,
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
        # What it built, data and all, is let go of before the run builds its own.
        folder, about = _founded(study, out, build, held)
        with resumable(folder, again):
            return _play(folder, about, show, announce, started, build)


def _founded(study: Study, out: Path | None, build: Builds, held: ExitStack) -> tuple[Path, About]:
    """A new folder, locked until ``held`` ends, and what stands in its ``run.json``."""
    with said_clearly(Path("runs") if out is None else out):
        folder = folders.free(out, study.name)
        draft = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
        draft.mkdir(parents=True)
    try:
        held.enter_context(folders.locked(draft))  # and the folder that it becomes
        run = secrets.token_hex(8)
        built = build(study, draft, run)
        full = built.study
        try:
            _refuse_hopeless(built)
        except BudgetExceeded:
            built.simulation.ledgers.finish()
            raise
        about = replace(describe(built, run), begun=made.now(full), data=made.data_of(built))
        replace_file(draft / "study.toml", studies.write(full).encode())
        replace_file(draft / "run.json", records.text(about, indent=1).encode())
        found = replace(surrounded(full), companions=companions_here() or UNSET)
        replace_file(draft / "environment.json", records.text(found, indent=1).encode())
        built.simulation.ledgers.begin(
            run, records.plain(begun.facts(draft, full, records.plain(about))), _promised(built)
        )
        built.simulation.ledgers.close()
        folder = folders.take(draft, folder, out, study.name)
    except BaseException:
        held.close()
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return folder, about


def resume(
    folder: Path,
    show: Callable[[Row], None],
    announce: Callable[[Going], None],
    *,
    modules: Path | None = None,
    build: Builds = builder.build,
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
    lock = folders.locked(folder) if folder.is_dir() else nullcontext()
    with resumable(folder, again), lock:
        about = recorded.about_of(folder, modules)
        return _play(folder, about, show, announce, started, build, modules)


def describe(built: Built, run: str) -> About:
    """What stands in ``run.json``: what every run has, and the facts of its regime."""
    study, plan, privacy = built.study, built.plan, built.study.privacy
    payable = built.simulation.payable
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
        claimed_epsilon=plan.claimed,
        delta=privacy.delta,
        accountant=privacy.accountant,
        noise_multiplier=plan.noise_multiplier,
        learning_rate=getattr(study.method, "learning_rate", None),
        batch=getattr(study.method, "batch", None),
        R_s=study.horizon,
        payable=None if payable is None else tuple(payable),
        modules=recorded.modules_of(study),
        facts=built.facts,
        guarantee=guarantee(study, None, built.own),
        assumptions=tuple(assumptions(study)),
        warnings=(
            *plan.warnings,
            *(() if built.agreed else uncovered(study)),
            *remarks(study),
        ),
        result=None,
    )


def _play(
    folder: Path,
    about: About,
    show: Callable[[Row], None],
    announce: Callable[[Going], None],
    started: float,
    build: Builds,
    modules: Path | None = None,
) -> Outcome:
    study = recorded.study_of(folder, about, modules)
    run, promised = str(about.run), records.plain(about)
    # First what is quickly said, and names what differs; then, along the chain, that this is what
    # every ledger says.
    before = begun.noted(folder, study, run)
    begun.refuse_changes(folder, study, promised, before)
    begun.refuse_another_key(folder, before, ended=True)  # whether it has ended is known below
    built = build(study, folder, run, known(about.payable))
    sim = built.simulation
    before = begun.read(folder, sim.ledgers.begun(run))
    begun.refuse_changes(folder, study, promised, before)
    begun.refuse_another(folder, records.plain(describe(built, run)), before)
    saved = checkpoint.read(folder / CHECKPOINTS, sim, study.regime)
    sim.ledgers.refuse_older({} if saved is None else saved.heads)
    moment: Moment = built.first if saved is None else saved.moment
    if (
        moment.ended is None
        and destroyed(folder)
        and (why := why_refused(folder, study.regime)) is not None
    ):
        raise BudgetExceeded(why)
    begun.refuse_another_key(folder, before, ended=moment.ended is not None)
    length = 0 if saved is None else saved.log_length
    if length_of(folder) < length:
        raise ResumeError(
            f"{folder / LOG}: shorter than at the last checkpoint. Restore it from a copy; "
            "nothing was changed"
        )
    announce(Going(about, moment.number, folder))
    refused: BudgetExceeded | None = None
    # not before the data is loaded: what loading needed for a moment goes back to the system
    tune()
    if moment.ended is None:
        with Recorder(
            folder,
            regime=study.regime,
            length=length,
            every=study.checkpoint_stride,
            begun=moment.number,
            show=show,
            heads=sim.ledgers.heads,
        ) as recorder:
            try:
                book_public(run, sim.ledgers)
                moment = sim.run(moment, recorder)
            except BudgetExceeded as refusal:
                refused = refusal
    if isinstance(refused, HeldBack):  # once the other run has ended, this one can go on
        sim.ledgers.close()
        raise refused
    if refused is not None:
        sim.ledgers.finish()
        sim.ledgers.close()
        forget(folder)  # a ledger never gets back what was spent: this run goes no further
        if destroyed(folder):  # else it may be gone through again, to the same refusal
            checkpoint.remove(folder / CHECKPOINTS)
        raise refused
    outcome = _finish(folder, about, built, moment, time.monotonic() - started)
    sim.ledgers.finish()
    sim.ledgers.close()
    forget(folder)
    return outcome


def _promised(built: Built) -> dict[str, Budget]:
    """The promise to each unit: at most so much, in all that its records were ever in."""
    sim = built.simulation
    budgets = getattr(sim, "budgets", None) or (sim.budget,) * len(sim.units)
    found: dict[str, Budget] = {}
    for unit, budget in zip(sim.units, budgets, strict=True):  # units may be alike: all clients
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


def _finish(folder: Path, about: About, built: Built, moment: Moment, seconds: float) -> Outcome:
    """Write the model and the result, and seal both in the ledger.

    A ledger of the data goes on when a run has ended, and what its records had spent by then cannot
    be added up from it later: a run that was sealed says again what its seal holds.
    """
    sim, run = built.simulation, str(about.run)
    model = save(built.named(moment.model), metadata={"model": built.model})
    noted = sim.ledgers.sealed(run)
    before = None if noted is None else sealed.read(folder, noted)
    spent = sealed.spent_now(built) if before is None else before.spent
    if before is None and (measured := built.metrics(moment.model)) is not None:
        replace_file(folder / METRICS, records.text(measured, indent=1).encode())
    outcome, done = _end(folder, about, built, moment, seconds, spent)
    seal = sealed.facts(folder, records.plain(done), model, spent)
    if before is not None:
        sealed.refuse_another_end(folder, before, seal)
    replace_file(folder / sealed.MODEL, model)
    sim.ledgers.seal(run, records.plain(seal))
    seq, digest = sim.ledgers.head()
    place = Place(
        seq=seq, digest=digest, scope="run" if built.study.privacy.ledger == "run" else "data"
    )
    replace_file(folder / "run.json", records.text(replace(done, ledger=place), indent=1).encode())
    return outcome


def _end(
    folder: Path, about: About, built: Built, moment: Moment, seconds: float, spent: Spent
) -> tuple[Outcome, About]:
    """How a run ended, and what its ``run.json`` says then, but for its place in the ledger."""
    study, plain, before = built.study, built.study.privacy.unit == "none", known(about.result)
    most = math.inf if plain else max((*spent.each, spent.test or 0.0))
    outcome = Outcome(
        run=str(folder),
        method=study.method.name,
        regime=study.regime,
        rounds=moment.number,
        steps=moment.steps,
        accuracy=last_told(folder, study.regime),
        rmse=last_told(folder, study.regime, "rmse"),
        epsilon=guaranteed(study, most),
        spent=most,
        delta=study.privacy.delta,
        accountant=study.privacy.accountant,
        unit=study.privacy.unit,
        seconds=seconds if before is None else number(before.seconds) or 0.0,
        why=moment.ended or "",
    )
    result = Result(
        rounds=outcome.rounds,
        steps=outcome.steps,
        accuracy=outcome.accuracy,
        epsilon=outcome.epsilon,
        seconds=made.seconds_of(study, outcome.seconds),
        why=outcome.why,
        spent=None if plain else spent.each,
        test_epsilon=spent.test,
        rmse=UNSET if outcome.rmse is None else outcome.rmse,
    )
    return outcome, replace(
        about,
        status="done",
        guarantee=guarantee(study, outcome.epsilon, built.own),
        result=result,
        ended=known(about.ended) or made.now(study),
    )


def _refuse_hopeless(built: Built) -> None:
    payable = built.simulation.payable
    if payable is not None and max(payable) < 1:
        privacy = built.study.privacy
        why, remedy = built.simulation.ledgers.blame(built.simulation.units), built.remedy
        raise BudgetExceeded(
            f"privacy.epsilon = {privacy.epsilon} does not pay for a single {built.paid} at "
            f"noise_multiplier = {built.plan.noise_multiplier} (or the data's ledger has spent "
            f"it). {remedy if why is None else why[:1].upper() + why[1:]}"
        )
