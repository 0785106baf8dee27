"""A run from its study file to its finished folder, and back again after a kill.

A run folder holds everything and can be moved::

    study.toml          complete and calibrated
    run.json            what was promised, to whom, under which assumptions; the result
    environment.json    what the bits of the result depend on
    ledger.sqlite       what was released (unless the ledger belongs to the data)
    rounds.jsonl        one row a round
    checkpoints/        where to go on from
    model.safetensors   the model that is handed out
    report.html

The folder is made under another name and renamed when the study, the data and the model have
proved to fit together: bad input leaves nothing behind.

What a run begins with is noted in its ledger before the first release, and how it ended is sealed there
(:mod:`sordino.build.begun`, :mod:`sordino.build.sealed`). A run goes on only as it was begun.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from sordino import build as builder
from sordino import modules as code
from sordino import study as studies
from sordino.build import begun, sealed
from sordino.build.common import PUBLIC
from sordino.build.evaluation import UNIT
from sordino.build.promise import adjacency, assumptions, guarantee, guaranteed, looked, remarks
from sordino.build.surroundings import destroyed, forget
from sordino.errors import BudgetExceeded, ResumeError, StudyError
from sordino.files import open_below, read_below
from sordino.learning.allocator import tune
from sordino.parsing import object_of
from sordino.privacy import Budget, Charge, NonPrivate, accountant
from sordino.runtime import checkpoint
from sordino.runtime.files import replace_file, said_clearly, to_json
from sordino.runtime.recorder import CHECKPOINTS, LOG, Recorder
from sordino.runtime.watch import Moment, Play
from sordino.study import Study

Row = dict[str, Any]

NEEDED = ("run", "payable", "warnings", "result")


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
        epsilon: what is guaranteed: the highest over the clients, from the ledger, or the budget where that was chosen by looking.
        spent: the highest over the clients, from the ledger.
        delta, accountant, unit: what epsilon means.
        seconds: wall time of this session.
        why: what ended the run.
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


def begin(study: Study, out: Path | None, show: Callable[[Row], None], announce: Callable[[Row], None]) -> Outcome:
    """Run a study in a new folder.

    Raises:
        StudyError: if it cannot be run; nothing has been written then.
    """
    started = time.monotonic()
    folder, about = _founded(study, out)  # what it built, data and all, is let go of before the run builds its own
    return _play(folder, about, show, announce, started)


def _founded(study: Study, out: Path | None) -> tuple[Path, Row]:
    """A new folder, and what stands in its ``run.json``."""
    with said_clearly(Path("runs") if out is None else out):
        folder = _free(out, study.name)
        draft = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
        draft.mkdir(parents=True)
    try:
        run = secrets.token_hex(8)
        built = builder.build(study, draft, run)
        full = built.study
        try:
            _refuse_hopeless(built)
        except BudgetExceeded:
            built.simulation.vault.finish()
            raise
        about = describe(built, run)
        replace_file(draft / "study.toml", studies.write(full).encode())
        replace_file(draft / "run.json", to_json(about, indent=1).encode())
        replace_file(draft / "environment.json", to_json(builder.environment(full), indent=1).encode())
        promised = [*built.simulation.units, *(() if built.evaluation is None else (UNIT,))]
        built.simulation.vault.begin(run, begun.facts(draft, full, about), list(dict.fromkeys(promised)))
        built.simulation.vault.close()
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return folder, about


def resume(folder: Path, show: Callable[[Row], None], announce: Callable[[Row], None], *, modules: Path | None = None) -> Outcome:
    """Go on with a run that was stopped, or say again how a finished one ended.

    Args:
        modules: where modules lie that the study names, if they were moved since.
    """
    started = time.monotonic()
    return _play(folder, _about(folder), show, announce, started, modules)


def describe(built: builder.Built, run: str) -> Row:
    """What stands in ``run.json``: what every run has, and the facts of its regime."""
    study, plan, privacy = built.study, built.plan, built.study.privacy
    return {
        "format": 1,
        "run": run,
        "name": study.name,
        "method": study.method.name,
        "form": study.form,
        "regime": study.regime,
        "status": "running",
        "unit": privacy.unit,
        "adjacency": adjacency(study),
        "epsilon_budget": math.inf if privacy.epsilon is None else privacy.epsilon,
        "chosen": looked(study),  # whether releases decide what is spent: then only the budget is a bound
        "claimed_epsilon": plan.claimed,
        "delta": privacy.delta,
        "accountant": privacy.accountant,
        "noise_multiplier": plan.noise_multiplier,
        "learning_rate": getattr(study.method, "learning_rate", None),
        "batch": getattr(study.method, "batch", None),
        "R_s": study.horizon,
        "payable": built.simulation.payable,
        "modules": _code(study),
        **built.facts,
        "guarantee": guarantee(study, None),
        "assumptions": assumptions(study),
        "warnings": [*plan.warnings, *remarks(study)],
        "result": None,
    }


def _play(
    folder: Path,
    about: Row,
    show: Callable[[Row], None],
    announce: Callable[[Row], None],
    started: float,
    modules: Path | None = None,
) -> Outcome:
    study = study_of(folder, about, modules)
    # First what is quickly said, and names what differs; then, along the chain, that this is what every ledger says.
    before = begun.noted(folder, study, about["run"])
    begun.refuse_changes(folder, study, about, before)
    begun.refuse_another_key(folder, before, ended=True)  # whether it has ended is known below
    built = builder.build(study, folder, about["run"], about["payable"])
    sim = built.simulation
    before = sim.vault.begun(about["run"])
    begun.refuse_changes(folder, study, about, before)
    begun.refuse_another(folder, describe(built, about["run"]), before)
    saved = checkpoint.read(folder / CHECKPOINTS, sim)
    sim.vault.refuse_older({} if saved is None else saved.heads)
    moment: Moment = built.first if saved is None else saved.moment
    if moment.ended is None and destroyed(folder) and (why := _refusal(folder)) is not None:
        raise BudgetExceeded(why)
    begun.refuse_another_key(folder, before, ended=moment.ended is not None)
    length = 0 if saved is None else saved.log_length
    if _length(folder) < length:
        raise ResumeError(f"{folder / LOG}: shorter than at the last checkpoint. Restore it from a copy; nothing was changed")
    announce({**about, "rounds_done": moment.number})
    refused: BudgetExceeded | None = None
    tune()  # not before the data is loaded: what loading needed for a moment goes back to the system
    if moment.ended is None:
        _book_public(about["run"], sim)
        with Recorder(
            folder,
            length=length,
            every=study.checkpoint_stride,
            begun=moment.number,
            show=show,
            heads=sim.vault.heads,
        ) as recorder:
            try:
                moment = sim.run(moment, recorder)
            except BudgetExceeded as refusal:
                refused = refusal
    if refused is not None:
        sim.vault.finish()
        sim.vault.close()
        forget(folder)  # a ledger never gets back what was spent: this run goes no further
        raise refused
    outcome = _finish(folder, about, built, moment, time.monotonic() - started)
    sim.vault.finish()
    sim.vault.close()
    forget(folder)
    return outcome


def _book_public(run: str, sim: Play) -> None:
    """Book rows that were set aside and declared public as what they are, before a model is measured on them."""
    if PUBLIC in sim.vault.names:
        charge = Charge(
            unit=PUBLIC,
            event=NonPrivate(reason="they were declared public, and models were measured on them exactly"),
            count=1,
            why="rows that the study declares public",
            method="measure",
            round=0,
            key=f"{run}/public",
        )
        sim.vault.charge([charge], Budget(math.inf, sim.budget.delta, sim.budget.accountant))


def _finish(folder: Path, about: Row, built: builder.Built, moment: Moment, seconds: float) -> Outcome:
    """Write the model and the result, and seal both in the ledger.

    A ledger of the data goes on when a run has ended, and what its records had spent by then cannot be added up from it later: a run
    that was sealed says again what its seal holds.
    """
    sim = built.simulation
    model = save(built.named(moment.model), metadata={"model": built.model})
    before = sim.vault.sealed(about["run"])
    spent = _spent_now(built) if before is None else sealed.spent(folder, before)
    outcome, done = _end(folder, about, built, moment, seconds, spent)
    seal = sealed.facts(folder, done, model, spent)
    if before is not None:
        sealed.refuse_another_end(folder, before, seal)
    replace_file(folder / sealed.MODEL, model)
    sim.vault.seal(about["run"], seal)
    seq, digest = sim.vault.head()
    done["ledger"] = {"seq": seq, "digest": digest, "scope": "run" if built.study.privacy.ledger == "run" else "data"}
    replace_file(folder / "run.json", to_json(done, indent=1).encode())
    return outcome


def _end(folder: Path, about: Row, built: builder.Built, moment: Moment, seconds: float, spent: sealed.Spent) -> tuple[Outcome, Row]:
    """How a run ended, and what its ``run.json`` says then, but for its place in the ledger."""
    study, plain = built.study, built.study.privacy.unit == "none"
    most = math.inf if plain else max((*spent.each, spent.test or 0.0))
    outcome = Outcome(
        run=str(folder),
        method=study.method.name,
        regime=study.regime,
        rounds=moment.number,
        steps=moment.steps,
        accuracy=_last_accuracy(folder),
        epsilon=guaranteed(study, most),
        spent=most,
        delta=study.privacy.delta,
        accountant=study.privacy.accountant,
        unit=study.privacy.unit,
        seconds=seconds if about["result"] is None else about["result"]["seconds"],
        why=moment.ended or "",
    )
    result = {
        "rounds": outcome.rounds,
        "steps": outcome.steps,
        "accuracy": outcome.accuracy,
        "epsilon": outcome.epsilon,
        "seconds": outcome.seconds,
        "why": outcome.why,
        "spent": None if plain else list(spent.each),
        "test_epsilon": spent.test,
    }
    return outcome, {**about, "status": "done", "guarantee": guarantee(study, outcome.epsilon), "result": result}


def _spent_now(built: builder.Built) -> sealed.Spent:
    """What each unit of the ledger has spent, the highest among its records; equal histories are priced once."""
    sim = built.simulation
    histories = {unit: sim.vault.histories(unit) for unit in dict.fromkeys(sim.units)}
    chosen = accountant(sim.budget.accountant)
    prices = {history: chosen.epsilon(history, sim.budget.delta) for history in {each for own in histories.values() for each in own}}
    each = tuple(max((prices[history] for history in own), default=0.0) for own in histories.values())
    return sealed.Spent(each, None if built.evaluation is None else built.evaluation.spent())


def _length(folder: Path) -> int:
    """Bytes of the log."""
    try:
        with open_below(folder, LOG) as log:
            return os.fstat(log.fileno()).st_size
    except FileNotFoundError:
        return 0


def _rows(folder: Path) -> Iterator[Row]:
    """The rows of the log."""
    try:
        with open_below(folder, LOG) as log:
            for number, line in enumerate(log, start=1):
                yield object_of(line, f"{folder / LOG}: line {number}", ResumeError)
    except FileNotFoundError:
        return


def _last_accuracy(folder: Path) -> float | None:
    found = None
    for row in _rows(folder):
        found = found if row.get("accuracy") is None else row["accuracy"]
    return None if found is None else float(found)


def _refusal(folder: Path) -> str | None:
    """Why the budget let the run go no further, if the log ends with that."""
    found = None
    for row in _rows(folder):
        found = str(row.get("why")) if row.get("kind") == "refused" else None
    return found


def _about(folder: Path) -> Row:
    try:
        content = read_below(folder, "run.json")
    except (FileNotFoundError, NotADirectoryError):
        raise StudyError(f"{folder}: this is no run folder: it has no run.json") from None
    except OSError as error:
        raise StudyError(f"{folder / 'run.json'}: cannot be read ({error.strerror})") from error
    about = object_of(content, folder / "run.json", ResumeError)
    if missing := [key for key in NEEDED if key not in about]:
        raise ResumeError(f"{folder / 'run.json'}: it has no {' and no '.join(missing)}. Restore it from a copy")
    return about


def study_of(folder: Path, about: Row, modules: Path | None = None, changes: Sequence[str] = ()) -> Study:
    """The study of a run folder; a module that it names must be the one that it was begun with.

    Raises:
        ResumeError: if that has changed.
    """
    recorded = about.get("modules") or {}
    known = recorded if isinstance(recorded, dict) else {}
    digests = {str(name): str(each.get("sha256")) for name, each in known.items() if isinstance(each, dict)}
    files = [Path(str(each["file"])) for each in known.values() if isinstance(each, dict) and each.get("beside")]
    beside = files[0].parent.parent if files and files[0].name == "__init__.py" else files[0].parent if files else None
    return studies.read_run(folder, changes, modules=modules or beside, recorded=digests)


def _code(study: Study) -> Row | None:
    """The modules that the study names, for who goes on with it."""
    return code.found(studies.named_modules(study)) or None


def _free(out: Path | None, name: str) -> Path:
    """A folder that does not exist yet."""
    if out is not None:
        if out.exists():
            raise StudyError(
                f"{out}: this output folder exists already. Choose another with --out, or go on with `sordino run --resume {out}`"
            )
        return out
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "run"
    number = 1
    while (folder := Path("runs") / f"{slug}-{number:03d}").exists():
        number += 1
    return folder


def _refuse_hopeless(built: builder.Built) -> None:
    payable = built.simulation.payable
    if payable is not None and max(payable) < 1:
        privacy = built.study.privacy
        why, remedy = built.simulation.vault.blame(), built.remedy
        raise BudgetExceeded(
            f"privacy.epsilon = {privacy.epsilon} does not pay for a single {built.paid}"
            f" at noise_multiplier = {built.plan.noise_multiplier} (or the data's ledger has spent it)."
            f" {remedy if why is None else why[:1].upper() + why[1:]}"
        )
