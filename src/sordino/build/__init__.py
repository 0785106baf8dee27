"""The one place where a study becomes objects."""

from __future__ import annotations

import functools
import hashlib
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sordino
from sordino import data as datasets
from sordino import study as studies
from sordino.build.mechanism import mechanism
from sordino.entropy import Seeded
from sordino.errors import StudyError
from sordino.learning import models
from sordino.learning.allocator import tune
from sordino.learning.bench import Examples, Workbench
from sordino.learning.check import check_private
from sordino.learning.client import Client
from sordino.learning.dpsgd import PrivateClient
from sordino.learning.evaluate import Evaluator
from sordino.learning.flat import Flat
from sordino.learning.local import LocalClient, LocalWork, NoisyModelClient
from sordino.learning.loss import loss_for
from sordino.learning.perexample import ClippedSum, MeanGradient
from sordino.learning.sgd import PlainClient
from sordino.mechanism import Bounded, Learning
from sordino.message import Vector
from sordino.method import Terms
from sordino.method.client_level import ClientLevel
from sordino.plan import Plan, calibrate, charged_per_round, price, schedule, scheduled_steps, shares, step_event
from sordino.privacy import Budget, Vault, accountant
from sordino.regime.aggregate import PrivateSum
from sordino.regime.synchronous import Synchronous
from sordino.runtime.files import make_room_for
from sordino.runtime.latency import Churn, Latency
from sordino.runtime.simulate import Moment, Simulation
from sordino.study import Study

FILES_PER_LEDGER = 3  # SQLite's database, its log and the log's index

Counts = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """A study's data, divided among its clients.

    Attributes:
        parts: the training set of each client.
        test: the standard test set, used for reporting only.
        validation: examples set aside to choose by, before partitioning or from each client, or None.
        counts: label counts, of shape (clients, classes).
    """

    parts: tuple[datasets.Dataset, ...]
    test: datasets.Dataset
    validation: datasets.Dataset | None
    counts: Counts

    @property
    def sizes(self) -> tuple[int, ...]:
        """n_i of every client."""
        return tuple(len(part) for part in self.parts)


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """Everything that a run needs, and the moment it begins at. Raw data is in the clients only."""

    study: Study
    counts: Counts
    classes: tuple[str, ...]
    plan: Plan
    simulation: Simulation
    flat: Flat
    first: Moment


def federation(study: Study) -> Federation:
    """Load the data and divide it."""
    wanted, entropy = study.data, Seeded(study.seed)
    corpus = datasets.load(
        wanted.name or "", file=wanted.file, test_file=wanted.test_file, label=wanted.label, client_column=wanted.client_column
    )
    train, validation = corpus.train, None
    if wanted.validation:
        train, validation = datasets.hold_out(train, wanted.validation, entropy.at("validation"))
    indices = _partition(wanted.partition).split(train.y, wanted.clients, entropy.at("partition"), column=train.client)
    if wanted.client_validation:
        indices, held = datasets.per_client_validation(indices, wanted.client_validation, entropy.at("client validation"))
        validation = train.take(np.sort(np.concatenate(held)))
    counts = datasets.label_counts(train.y, indices, len(train.classes))
    return Federation(tuple(train.take(part) for part in indices), corpus.test, validation, counts)


def _partition(section: studies.Partition) -> datasets.Partition:
    match section:
        case studies.IidPartition():
            return datasets.Iid()
        case studies.DirichletPartition(beta=beta, minimum=minimum):
            return datasets.Dirichlet(beta=beta, minimum=minimum)
        case studies.ShardsPartition(fragments=fragments, each=each):
            return datasets.Shards(fragments=fragments, each=each)
        case studies.ColumnPartition():
            return datasets.Column()


def device(study: Study) -> torch.device:
    """The device to compute on; "auto" takes a GPU where there is one."""
    name = study.execution.device
    try:
        return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise StudyError(f"execution.device = {name!r}: {str(error).splitlines()[0]}") from error


@functools.cache
def _code() -> str:
    """Digest of this package's sources: an order of summation that changed is another environment, whatever the version says."""
    found = hashlib.sha256()
    root = Path(sordino.__file__).parent
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def environment(study: Study) -> dict[str, Any]:
    """What the bits of a result depend on besides the study."""
    return {
        "sordino": sordino.__version__,
        "code": _code(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": version("numba"),
        "machine": platform.machine(),
        "system": platform.system(),
        "device": str(device(study)),
        "threads": study.execution.threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def model(study: Study, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """The study's model, initialised from its seed, checked to be trainable privately."""
    module = models.build(study.model.name, shape, classes, Seeded(study.seed).at("model"))
    if study.method.private:
        check_private(module, shape)
    return module


def plan(study: Study) -> tuple[Plan, Federation]:
    """The price of a study, with its data loaded but nothing trained."""
    divided = federation(study)
    flat = Flat(model(study, divided.test.shape, len(divided.test.classes)))
    priced, loss = price(study, divided.sizes, flat.dim), loss_for(study.model.name)
    if study.privacy.unit == "none":
        return priced, divided
    bench = Workbench(flat, ClippedSum(flat, loss), MeanGradient(flat, loss))
    full = calibrate(study)
    noise = mechanism(full, divided.sizes, bench, _tensors(divided.validation, torch.device("cpu")))
    return announced(priced, full, noise, max(divided.sizes)), divided


def announced(priced: Plan, study: Study, noise: Bounded, largest: int) -> Plan:
    """The plan with what a mechanism's literal form claims beside what it gives."""
    sigma, true, where = priced.noise_multiplier, noise.event().noise_multiplier, "privacy.mechanism.form"
    privacy = study.privacy
    if isinstance(study.method, ClientLevel) and not study.method.aggregated:
        true, where = sigma / (largest * study.method.tau), "method.form"
    if true >= sigma * (1.0 - 1e-9) or priced.used is None or privacy.delta is None:
        return priced
    spent = [(step_event(privacy.sampling_rate, true), priced.used)]
    worth = accountant(privacy.accountant).epsilon(spent, privacy.delta)
    warning = (
        f"{where} = 'paper' is NOT private: it claims epsilon = {priced.epsilon:.4g} (noise multiplier {sigma:.4g})"
        f" and gives epsilon = {worth:.4g} (noise multiplier {true:.3g}); the ledger books what it gives"
    )
    return replace(priced, warnings=(*priced.warnings, warning))


def build(study: Study, folder: Path, run: str, payable: Sequence[int] | None = None) -> Built:
    """The simulation of a calibrated study. The ledger is opened (or made) in ``folder``.

    ``payable`` is what each client could pay for when the run began, if it began before: its
    own charges must not be counted against it twice.
    """
    torch.set_num_threads(study.execution.threads)
    divided, place, entropy = federation(study), device(study), Seeded(study.seed)
    module = model(study, divided.test.shape, len(divided.test.classes)).to(place)
    flat = Flat(module)
    loss = loss_for(study.model.name)
    bench = Workbench(flat, ClippedSum(flat, loss), MeanGradient(flat, loss))
    priced = price(study, divided.sizes, flat.dim)
    privacy = study.privacy
    whole = aggregated(study)
    units, fingerprints = _units(whole, [part.fingerprint() for part in divided.parts])
    sizes, counts, classes = divided.sizes, divided.counts, divided.test.classes
    test, validation = _tensors(divided.test, place), _tensors(divided.validation, place)
    parts = list(divided.parts)
    del divided  # the pixels are kept once: each part is let go of when it has become a client's tensors
    noise = mechanism(study, sizes, bench, validation) if privacy.unit != "none" else None
    if noise is not None:
        priced = announced(priced, study, noise, max(sizes))
    clients = _clients(study, parts, bench, place, noise)
    tune()  # not before the data is loaded: what loading needed for a moment goes back to the system
    vault = _vault(study, folder, fingerprints)
    promised = privacy.unit != "none" and study.form == "sound" and privacy.epsilon is not None
    budget = Budget(
        epsilon=(privacy.epsilon or math.inf) if promised else math.inf, delta=privacy.delta or 1e-5, accountant=privacy.accountant
    )
    pays = _payable(study, priced, vault, units, budget) if payable is None else tuple(payable)
    terms = _terms(study, sizes, flat.dim, pays, noise)
    regime = Synchronous(
        method=study.method,
        terms=terms,
        budget=None if whole else pays,
        payable=_payable_rounds(study, pays, whole),
        aggregator=_aggregator(study, sizes, noise) if noise is not None and whole else None,
        learner=noise if isinstance(noise, Learning) else None,
        entropy=entropy,
        cohort=study.participation.cohort,
        deadline=study.participation.deadline,
        momentum=study.method.momentum,
        decay=study.method.average,
    )
    surroundings = hashlib.sha256(repr(sorted(environment(study).items())).encode()).hexdigest()[:8]
    latency = study.world.latency
    simulation = Simulation(
        regime=regime,
        clients=clients,
        vault=vault,
        budget=budget,
        units=units,
        latency=Latency(kind=latency.kind, typical=latency.typical, shape=latency.shape, step=latency.step, spread=latency.spread),
        churn=Churn(dropout=study.world.dropout, rejoin=study.world.rejoin),
        entropy=entropy,
        evaluate=partial(_evaluate, flat, Evaluator(flat, loss), test, validation),
        due=lambda number: number % study.execution.evaluate_every == 0,
        method=study.method.name,
        lineage=f"{run}/{surroundings}",
    )
    first = Moment(regime.start(flat.weights.cpu().numpy().copy()))
    return Built(study, counts, classes, priced, simulation, flat, first)


def aggregated(study: Study) -> bool:
    """Whether whole clients are protected by noise on their sum."""
    return isinstance(study.method, ClientLevel) and study.method.aggregated


def _units(together: bool, fingerprints: list[str]) -> tuple[list[str], dict[str, str]]:
    """Each client's unit in the ledger, and whose data each unit is.

    Where whole clients are protected, every round charges all of them alike: they share one unit.
    """
    if together:
        joined = hashlib.sha256("".join(fingerprints).encode()).hexdigest()
        return ["clients"] * len(fingerprints), {"clients": joined}
    units = [f"client:{i}" for i in range(len(fingerprints))]
    return units, dict(zip(units, fingerprints, strict=True))


def _aggregator(study: Study, sizes: tuple[int, ...], noise: Bounded) -> PrivateSum:
    return PrivateSum(
        mechanism=noise,
        shares=tuple(shares(study, sizes)),
        sampling_rate=study.privacy.sampling_rate,
        entropy=Seeded(study.seed),
    )


def _vault(study: Study, folder: Path, fingerprints: Mapping[str, str]) -> Vault:
    if study.privacy.ledger == "run":
        return Vault.for_run(folder / "ledger.sqlite", fingerprints)
    make_room_for(FILES_PER_LEDGER * len(fingerprints))
    return Vault.for_data(Path(study.privacy.ledger).expanduser(), fingerprints)


def _clients(study: Study, parts: list[datasets.Dataset], bench: Workbench, place: torch.device, noise: Bounded | None) -> list[Client]:
    """The clients; ``parts`` is emptied on the way."""
    privacy, rate, eta = study.privacy, study.privacy.sampling_rate, study.method.learning_rate
    clients: list[Client] = []
    parts.reverse()
    while parts:
        part, i = parts.pop(), len(clients)
        examples, entropy = Examples(_placed(part.x, place), torch.from_numpy(part.y).to(place)), Seeded(study.seed)
        steps = study.method.optimizer
        if noise is None:
            clients.append(
                PlainClient(
                    index=i, examples=examples, sampling_rate=rate, learning_rate=eta, optimizer=steps, bench=bench, entropy=entropy
                )
            )
        elif isinstance(study.method, ClientLevel):
            work = LocalWork(
                index=i,
                examples=examples,
                learning_rate=eta,
                gradient_clip=privacy.clip if study.form == "paper" else None,
                batch=study.method.batch,
                proximal=study.method.proximal,
                optimizer=steps,
                bench=bench,
                entropy=entropy,
            )
            told = {field.name: getattr(work, field.name) for field in fields(work)}
            if study.method.aggregated:
                clients.append(LocalClient(**told, mechanism=noise, sampling_rate=rate))
            else:
                clients.append(NoisyModelClient(**told, noise_multiplier=noise.noise_multiplier))
        else:
            clients.append(
                PrivateClient(
                    index=i,
                    examples=examples,
                    mechanism=noise,
                    sampling_rate=rate,
                    learning_rate=eta,
                    optimizer=steps,
                    bench=bench,
                    entropy=entropy,
                )
            )
    return clients


def _payable(study: Study, priced: Plan, vault: Vault, units: list[str], budget: Budget) -> tuple[int, ...] | None:
    """Steps that each client can still pay for, given what its ledger already holds.

    A paper's literal form keeps to the R_c it would have if its raw constants cost nothing.
    """
    if priced.steps is None or study.privacy.noise_multiplier is None:
        return None
    whole = aggregated(study)
    if isinstance(study.method, ClientLevel) and not whole:
        return None  # noisy models, whose price nobody could pay
    if study.form == "paper" or study.privacy.ledger == "run":
        return (priced.steps,) * (1 if whole else len(units))
    spent = [vault.spent(unit) for unit in dict.fromkeys(units)]
    if len(schedule(study)) > 1:
        return tuple(scheduled_steps(study, budget.accountant, before) for before in spent)
    event = step_event(study.privacy.sampling_rate, study.privacy.noise_multiplier)
    left = [budget.remaining_steps(event, before) for before in spent]
    return tuple(priced.steps if steps is None else steps for steps in left)


def _payable_rounds(study: Study, pays: tuple[int, ...] | None, whole: bool) -> int | None:
    """Rounds that everybody can pay for, where rounds differ in price or are what is charged; None where steps are counted."""
    if pays is None:
        return None
    if whole:
        return pays[0]
    return min(pays) // (charged_per_round(study) or 1) if len(schedule(study)) > 1 else None


def _terms(study: Study, sizes: tuple[int, ...], dimension: int, payable: tuple[int, ...] | None, noise: Bounded | None) -> Terms:
    total = sum(sizes)
    sigma = study.privacy.noise_multiplier or 0.0 if study.privacy.unit != "none" else 0.0
    equal = study.method.weights == "equal"
    return Terms(
        dimension=dimension,
        sizes=sizes,
        weights=tuple(1.0 / len(sizes) if equal else n / total for n in sizes),
        sampling_rate=study.privacy.sampling_rate,
        learning_rate=study.method.learning_rate,
        clip=math.inf if noise is None else noise.clip,
        noise=0.0 if noise is None else noise.vector_multiplier,
        rounds=study.budget.rounds,
        steps=None if payable is None or aggregated(study) else min(payable),
        sigma=sigma,
        epsilon=study.privacy.epsilon if study.privacy.epsilon is not None and study.form == "sound" else math.inf,
        delta=study.privacy.delta or 0.0,
        accountant=study.privacy.accountant,
    )


def _tensors(part: datasets.Dataset | None, place: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    if part is None:
        return torch.empty(0), torch.empty(0, dtype=torch.int64)
    return _placed(datasets.scaled(part.x), place), torch.from_numpy(part.y).to(place)


def _placed(x: np.ndarray[Any, Any], place: torch.device) -> torch.Tensor:
    found = torch.from_numpy(x).to(place)
    return found.contiguous(memory_format=torch.channels_last) if found.ndim == 4 else found


def _evaluate(
    flat: Flat,
    evaluator: Evaluator,
    test: tuple[torch.Tensor, torch.Tensor],
    validation: tuple[torch.Tensor, torch.Tensor],
    weights: Vector,
) -> Mapping[str, float]:
    flat.load(torch.from_numpy(weights).to(flat.weights))
    seen = evaluator(*test)
    row = {"accuracy": seen.accuracy, "loss": seen.loss}
    if len(validation[1]):
        row["validation"] = evaluator(*validation).accuracy
    return row
