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
"""

from __future__ import annotations

import json
import math
import re
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save

from sordino import build as builder
from sordino import study as studies
from sordino.errors import BudgetExceeded, ResumeError, StudyError
from sordino.learning.flat import Flat
from sordino.message import Vector
from sordino.privacy import accountant
from sordino.runtime import checkpoint
from sordino.runtime.files import replace_file, said_clearly, to_json
from sordino.runtime.recorder import CHECKPOINTS, LOG, Recorder
from sordino.runtime.watch import Moment, Play
from sordino.study import Study

Row = dict[str, Any]

ASSUMPTIONS = (
    "The sizes of the clients' data sets are public: they weigh the average and set the expected batch.",
    "Which examples a batch holds stays secret inside a client; amplification by sampling rests on it.",
    "This is a simulation: batches and noise come from the study's seed, and whoever knows the seed can subtract the noise.",
    "Arithmetic is in floating point; the analysis is for real numbers. Clipping keeps a margin for rounding; noise has last bits.",
    "Choosing clip, learning rate or anything else by looking at results on the same private data is not accounted for.",
    "The test set is public and used for reporting only.",
)
OF_EDGES = (
    "The sizes of the edges' data sets are public: with the expected batch b they set the sampling rates b / n_k.",
    "When an edge answers, and how often, is public, and taken to depend on nothing in its data.",
)
OF_CLIENTS = (
    "The aggregator is trusted with single bounded updates, or sees only their sum (secure aggregation); all else sees the noisy sum.",
    "Which clients a cohort holds, and how many, stays secret; amplification by sampling rests on it. Checkpoints know: keep them.",
    "The number of clients and their weights are public and fixed: they make the divisor of every sum.",
)
WORDS = {
    "sample": ("any client sends", "training example is added to or removed from that client's data"),
    "client": ("the aggregator publishes", "client with all its data is added to or removed from the federation"),
}
ADJACENCY = {"sample": "add or remove one example", "client": "add or remove one client with all its data", "none": "none"}
VALIDATION = "The validation examples set aside from the training data are treated as public."
DIVISION = "How this public data set was divided among the clients (sizes and label counts) is shown, and treated as public."
PAPER = "The paper's literal form was asked for; it sends quantities computed from raw data without noise."


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
        epsilon: highest over the clients, from the ledger.
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
    folder = _free(out, study.name)
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    with said_clearly(folder):
        draft.mkdir(parents=True)
    try:
        run = secrets.token_hex(8)
        built = builder.build(study, draft, run)
        full = built.study
        _refuse_hopeless(built)
        about = describe(built, run)
        replace_file(draft / "study.toml", studies.write(full).encode())
        replace_file(draft / "run.json", to_json(about, indent=1).encode())
        replace_file(draft / "environment.json", to_json(builder.environment(full), indent=1).encode())
        built.simulation.vault.close()
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return _play(folder, about, show, announce, started)


def resume(folder: Path, show: Callable[[Row], None], announce: Callable[[Row], None]) -> Outcome:
    """Go on with a run that was stopped, or say again how a finished one ended."""
    started = time.monotonic()
    return _play(folder, _about(folder), show, announce, started)


def describe(built: builder.Built, run: str) -> Row:
    """What stands in ``run.json``."""
    study, plan, sim = built.study, built.plan, built.simulation
    privacy = study.privacy
    assumptions = [*OF_CLIENTS, *ASSUMPTIONS[2:]] if privacy.unit == "client" else list(ASSUMPTIONS)
    if study.regime == "asynchronous":
        assumptions = [*OF_EDGES, *ASSUMPTIONS[1:]]
    if study.data.validation or study.data.client_validation:
        assumptions.append(VALIDATION)
    # Label counts are raw data, and so are sizes where whole clients are protected and weigh the same.
    labels = study.data.file is None or privacy.unit == "none"
    sizes = labels or privacy.unit == "sample" or getattr(study.method, "weights", "size") == "size"
    if labels and privacy.unit != "none":
        assumptions.append(DIVISION)
    return {
        "format": 1,
        "run": run,
        "name": study.name,
        "method": study.method.name,
        "form": study.form,
        "regime": study.regime,
        "status": "running",
        "classes": list(built.classes),
        "clients": [
            {
                "client": i,
                "unit": unit,
                "examples": int(counts.sum()) if sizes else None,
                "labels": counts.tolist() if labels else [],
            }
            for i, (unit, counts) in enumerate(zip(sim.units, built.counts, strict=True))
        ],
        "unit": privacy.unit,
        "adjacency": ADJACENCY[privacy.unit],
        "epsilon_budget": math.inf if privacy.epsilon is None else privacy.epsilon,
        "claimed_epsilon": plan.claimed,
        "epsilons": getattr(privacy, "epsilons", None),  # of each edge, where they differ
        "delta": privacy.delta,
        "accountant": privacy.accountant,
        "dimension": built.flat.dim,
        "clip": sim.clip if privacy.unit != "none" else None,
        "noise_multiplier": plan.noise_multiplier,
        "noise_multipliers": getattr(privacy, "noise_multipliers", None),  # likewise
        "sampling_rate": getattr(privacy, "sampling_rate", None),
        "learning_rate": getattr(study.method, "learning_rate", None),
        "batch": getattr(study.method, "batch", None),
        "staleness": getattr(study, "stalest", None),
        "R_c": plan.steps if privacy.unit != "client" else None,  # there, rounds are what is charged
        "R_s": study.horizon,
        "stages": [asdict(stage) for stage in plan.stages],
        "payable": sim.payable,
        "guarantee": guarantee(study, None),
        "assumptions": assumptions,
        "warnings": list(plan.warnings),
        "result": None,
    }


def guarantee(study: Study, epsilon: float | None) -> str:
    """The promise in one sentence; with ``epsilon`` what was spent, without it the budget."""
    privacy = study.privacy
    if privacy.unit == "none":
        return "No privacy guarantee: the clients' updates were computed without noise, and epsilon is infinite."
    if study.method.unpriced is not None:
        return f"No privacy guarantee: epsilon is infinite. {PAPER}"
    if study.form == "paper":
        true = "far above what it claims" if epsilon is None else f"{epsilon:.4g}"
        return f"No privacy guarantee worth the name: the mechanism's literal form was asked for, and its true epsilon is {true}."
    # Where releases decide how many steps are taken, what was spent is no bound in itself: only the budget was fixed in advance.
    chosen = getattr(study.method, "fixed_tau", 1) is None
    value = privacy.epsilon if epsilon is None or chosen else epsilon
    shown = "inf" if value is None or math.isinf(value) else f"{math.ceil(value * 1e5) / 1e5:.12g}"  # rounded up, never down
    what, change = WORDS[privacy.unit]
    verb = "will differ by at most" if epsilon is None else "differs by at most" if chosen else "differs by"
    return (
        f"What {what} {verb} (epsilon = {shown}, delta = {privacy.delta:g}) in the sense of differential privacy"
        f" when one {change}, by the {privacy.accountant} accountant,"
        " whatever else an observer knows and with all other clients against it."
    )


def _play(folder: Path, about: Row, show: Callable[[Row], None], announce: Callable[[Row], None], started: float) -> Outcome:
    study = studies.read(folder / "study.toml")
    built = builder.build(study, folder, about["run"], about["payable"])
    sim = built.simulation
    saved = checkpoint.read(folder / CHECKPOINTS, sim)
    moment: Moment = built.first if saved is None else saved.moment
    length = 0 if saved is None else saved.log_length
    if (folder / LOG).exists() and (folder / LOG).stat().st_size < length:
        raise ResumeError(f"{folder / LOG}: shorter than at the last checkpoint. Restore it from a copy; nothing was changed")
    announce({**about, "rounds_done": moment.number})
    refused: BudgetExceeded | None = None
    if moment.ended is None:
        with Recorder(
            folder,
            length=length,
            every=study.checkpoint_stride,
            show=show,
        ) as recorder:
            try:
                moment = sim.run(moment, recorder)
            except BudgetExceeded as refusal:
                refused = refusal
    if refused is not None:
        sim.vault.close()
        raise refused
    outcome = _finish(folder, about, built, moment, time.monotonic() - started)
    sim.vault.close()
    return outcome


def _finish(folder: Path, about: Row, built: builder.Built, moment: Moment, seconds: float) -> Outcome:
    """Write the model and the result."""
    sim, study = built.simulation, built.study
    replace_file(folder / "model.safetensors", save(_named(built.flat, moment.model), metadata={"model": study.model.name}))
    spent = _spent(sim)
    epsilon = math.inf if study.privacy.unit == "none" else max(spent.values())
    outcome = Outcome(
        run=str(folder),
        method=study.method.name,
        regime=study.regime,
        rounds=moment.number,
        steps=moment.steps,
        accuracy=_last_accuracy(folder / LOG),
        epsilon=epsilon,
        delta=study.privacy.delta,
        accountant=study.privacy.accountant,
        unit=study.privacy.unit,
        seconds=seconds if about["result"] is None else about["result"]["seconds"],
        why=moment.ended or "",
    )
    seq, digest = sim.vault.head()
    result = {
        "rounds": outcome.rounds,
        "steps": outcome.steps,
        "accuracy": outcome.accuracy,
        "epsilon": outcome.epsilon,
        "seconds": outcome.seconds,
        "why": outcome.why,
        "spent": list(spent.values()) if study.privacy.unit != "none" else None,
    }
    done = {
        **about,
        "status": "done",
        "guarantee": guarantee(study, epsilon),
        "ledger": {"seq": seq, "digest": digest, "scope": "run" if study.privacy.ledger == "run" else "data"},
        "result": result,
    }
    replace_file(folder / "run.json", to_json(done, indent=1).encode())
    return outcome


def _spent(sim: Play) -> dict[str, float]:
    """What each unit of the ledger has spent, epsilon; equal histories are priced once."""
    histories = {unit: sim.vault.spent(unit) for unit in dict.fromkeys(sim.units)}
    chosen = accountant(sim.budget.accountant)
    prices = {history: chosen.epsilon(history, sim.budget.delta) for history in set(histories.values())}
    return {unit: prices[history] for unit, history in histories.items()}


def _named(flat: Flat, vector: Vector) -> dict[str, Any]:
    """The vector as the model's named parameters."""
    tensor = torch.from_numpy(vector)
    return {slot.name: slot.logical(tensor).contiguous().numpy() for slot in flat.layout}


def _last_accuracy(log: Path) -> float | None:
    rows: list[Row] = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    found = [row["accuracy"] for row in rows if row.get("accuracy") is not None]
    return float(found[-1]) if found else None


def _about(folder: Path) -> Row:
    try:
        about: Row = json.loads((folder / "run.json").read_text())
    except FileNotFoundError:
        raise StudyError(f"{folder}: this is no run folder: it has no run.json") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ResumeError(f"{folder / 'run.json'}: cannot be read ({error}). Restore it from a copy") from error
    return about


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
        unit = {"client": "round"}.get(privacy.unit, "local step" if built.study.regime == "synchronous" else "gradient")
        lever = "sampling_rate" if built.study.regime == "synchronous" else "method.batch"
        raise BudgetExceeded(
            f"privacy.epsilon = {privacy.epsilon} does not pay for a single {unit} at noise_multiplier = {privacy.noise_multiplier}"
            f" (or the data's ledger has spent it). Raise noise_multiplier or lower {lever}"
        )
