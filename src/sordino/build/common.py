"""What both regimes are built from: the bench, the ledger, the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sordino import data as datasets
from sordino.build.evaluation import UNIT, PaidEvaluation, priced
from sordino.build.federation import Counts, Federation, evaluate, placed, tensors
from sordino.build.surroundings import device, model
from sordino.entropy import Entropy
from sordino.learning.bench import Examples, Workbench
from sordino.learning.evaluate import Evaluator
from sordino.learning.flat import Flat
from sordino.learning.loss import loss_for
from sordino.learning.perexample import ClippedSum, MeanGradient
from sordino.message import Vector
from sordino.plan import Plan
from sordino.privacy import Budget, Vault
from sordino.runtime.files import make_room_for
from sordino.runtime.watch import Moment, Play
from sordino.study import HorizontalStudy, Study

FILES_PER_LEDGER = 3  # SQLite's database, its log and the log's index

Tensors = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """Everything that a run needs, and the moment it begins at. Raw data is in the clients only.

    Attributes:
        study: calibrated.
        plan: its price.
        simulation: who plays it.
        first: the moment before anything happened.
        facts: what run.json says of this regime.
        model: the model's name, and ``named`` its parameters by name, from one vector (d,).
        paid: what privacy is paid for, in the singular, and ``remedy`` what to do if not even one can be.
        evaluation: on rows that are private, if that is asked for.
    """

    study: Study
    plan: Plan
    simulation: Play
    first: Moment
    facts: Mapping[str, Any]
    model: str
    named: Callable[[Vector], dict[str, Any]]
    paid: str
    remedy: str
    evaluation: PaidEvaluation | None = None


def named(flat: Flat, vector: Vector) -> dict[str, Any]:
    """A vector as the model's named parameters."""
    tensor = torch.from_numpy(vector)
    return {slot.name: slot.logical(tensor).contiguous().numpy() for slot in flat.layout}


@dataclass(frozen=True, slots=True, eq=False)
class Hall:
    """What the clients of one process share, and what their models are measured on.

    Attributes:
        bench: model and kernels.
        place: the device.
        test: (n, ...) and (n,), pixels still bytes.
        validation: (n, ...) and (n,), as model input; empty where there is none.
        sizes, counts, classes: of the clients' data.
        fingerprints: of each client's data.
        shaping: of all data that bears on what is released: the clients', and the test and validation sets.
        evaluator: accuracy and loss of the bench's model.
        names: of the clients, where they have any.
        secret: rows that models are measured on at a price, and their fingerprint; then ``test`` is empty.
    """

    bench: Workbench
    place: torch.device
    test: Tensors
    validation: Tensors
    sizes: tuple[int, ...]
    counts: Counts
    classes: tuple[str, ...]
    fingerprints: tuple[str, ...]
    shaping: tuple[str, ...]
    evaluator: Evaluator
    names: tuple[str, ...] = ()
    secret: tuple[Tensors, str] | None = None

    @classmethod
    def of(cls, study: HorizontalStudy, divided: Federation) -> Hall:
        """Everything but the clients' own data."""
        torch.set_num_threads(study.execution.threads)
        place, classes = device(study), divided.test.classes
        flat, loss = Flat(model(study, divided.test.shape, len(classes)).to(place)), loss_for(study.model.name)
        test = placed(divided.test.x, place), torch.from_numpy(divided.test.y).to(place)
        paid, prints = study.data.testing == "private share", tuple(part.fingerprint() for part in divided.parts)
        return cls(
            bench=Workbench(flat, ClippedSum(flat, loss), MeanGradient(flat, loss)),
            place=place,
            test=(test[0][:0], test[1][:0]) if paid else test,
            validation=tensors(divided.validation, place),
            sizes=divided.sizes,
            counts=divided.counts,
            classes=classes,
            fingerprints=prints,
            shaping=(*prints, divided.test.fingerprint(), *([divided.validation.fingerprint()] if divided.validation is not None else [])),
            evaluator=Evaluator(flat, loss),
            names=divided.names,
            secret=(test, divided.test.fingerprint()) if paid else None,
        )

    @property
    def rows(self) -> int:
        """How many examples models are measured on."""
        return len((self.test if self.secret is None else self.secret[0])[1])

    def units(self, fingerprints: Mapping[str, str]) -> dict[str, str]:
        """The ledger's units with their data's fingerprints: the clients', and that of test rows that are paid for."""
        return {**fingerprints, **({} if self.secret is None else {UNIT: self.secret[1]})}

    def evaluation(self, study: HorizontalStudy, ledgers: Vault, entropy: Entropy, lineage: str) -> PaidEvaluation | None:
        """How models are measured on private rows; None where there are none."""
        if self.secret is None:
            return None
        (x, y), _ = self.secret
        mechanism, most, planned = priced(study)

        def right(weights: Vector) -> int:
            self.bench.flat.load(torch.from_numpy(weights).to(self.bench.flat.weights))
            return round(self.evaluator(x, y).accuracy * len(y))

        return PaidEvaluation(
            right=right,
            rows=len(y),
            mechanism=mechanism,
            planned=planned,
            vault=ledgers,
            budget=most,
            entropy=entropy,
            method=study.method.name,
            lineage=lineage,
        )

    def measured(self, paid: PaidEvaluation | None) -> Callable[[Vector], Mapping[str, float]]:
        """What is told of a model: on public rows as it is, on private ones at their price."""
        return self.evaluate if paid is None else lambda weights: {**self.evaluate(weights), **paid(weights)}

    def evaluate(self, weights: Vector) -> Mapping[str, float]:
        """Accuracy and loss of a model."""
        return evaluate(self.bench.flat, self.evaluator, self.test, self.validation, weights)

    def examples(self, part: datasets.Dataset) -> Examples:
        """One client's data, on the device."""
        return Examples(placed(part.x, self.place), torch.from_numpy(part.y).to(self.place))

    def first(self) -> Vector:
        """The initial model, (d,)."""
        weights: Vector = self.bench.flat.weights.cpu().numpy().copy()
        return weights


def vault(study: Study, folder: Path, fingerprints: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Vault:
    """The run's own ledger in ``folder``, or those of the data; ``fingerprints``, and ``labels`` for people, by unit.

    A folder with a ``run.json`` is that of a run which has begun: its ledgers must be there, and are not made again.
    """
    begun = (folder / "run.json").exists()
    if study.privacy.ledger == "run":
        return Vault.for_run(folder / "ledger.sqlite", fingerprints, labels=labels, begun=begun)
    make_room_for(FILES_PER_LEDGER * len(fingerprints))
    return Vault.for_data(Path(study.privacy.ledger).expanduser(), fingerprints, begun=begun)


def budget(study: Study, epsilon: float | None) -> Budget:
    """What is held against the ledger: infinite where nothing is promised, or nothing can be."""
    privacy = study.privacy
    promised = privacy.unit != "none" and study.form == "sound" and epsilon is not None
    return Budget(epsilon=(epsilon or math.inf) if promised else math.inf, delta=privacy.delta or 1e-5, accountant=privacy.accountant)
