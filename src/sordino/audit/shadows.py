"""A study under ``sordino audit --attack lira``: runs over random halves of its own records.

Every run is the study's own, with its ledger, by the ordinary engine. A record that a run's coin
leaves out adds nothing to any sum and is counted in n all the same: that is the adjacency which the
ledger books (one contribution replaced by none), and public sizes tell nothing of coins. Only the
final model is looked at. (Where clients release a noisy count of clipped gradients as well, a
record left out moves it by 1/2; no model depends on that count.)

A folder of shadow runs belongs to one study and one program: another one has a folder of its own.
"""

from __future__ import annotations

import hashlib
import io
import math
import tempfile
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from sordino.audit.intervals import alone, played
from sordino.audit.lira import Observed, confidence
from sordino.audit.planted import ABSENT, MembersSum
from sordino.base.arrays import Bools
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.files import check_below, readable
from sordino.clients import regime as horizontal
from sordino.clients.division import Federation, federation, loss_of, model
from sordino.clients.simulation import Simulation
from sordino.clients.study import HorizontalStudy
from sordino.core import study as studies
from sordino.core.files import replace_file
from sordino.core.run.environment import charge_key_prefix
from sordino.training.client import ModelKernels
from sordino.training.evaluate import Evaluator
from sordino.training.flat import Flat
from sordino.training.perexample.sums import Examples, MeanGradient

STUDY = "study.toml"
MODEL = "model.safetensors"


class MembersMean(MeanGradient):
    """The mean gradient of those examples of a batch that are there."""

    def of(self, examples: Examples, chosen: Tensor, out: Tensor) -> Tensor:
        present = chosen[examples.y[chosen] != ABSENT]
        if not len(present):
            out.zero_()
            return out.new_zeros(())
        return super().of(examples, present, out)


@dataclass(frozen=True, slots=True, eq=False)
class Shadows:
    """A study and the folder of its shadow runs.

    Attributes:
        study: as asked for, with a ledger of each run's own.
        divided: its data. Raw.
        folder: where what runs show is kept.
    """

    study: HorizontalStudy
    divided: Federation
    folder: Path

    @property
    def records(self) -> int:
        """Return the number of records that coins are tossed for: all training examples."""
        return sum(self.divided.sizes)

    def coins(self, run: int) -> Bools:
        """Which records (records,) are in a run; client by client."""
        rng = Seeded(self.study.seed).at("audit", "lira", "coins", run)
        return rng.random(self.records) < 0.5

    def file(self, run: int) -> Path:
        """Return the file of what a finished run has shown."""
        return self.folder / f"run-{run:04d}.npz"

    def left(self, runs: int) -> list[int]:
        """Runs that are not finished yet."""
        return [run for run in range(runs) if not self.file(run).is_file()]


def shadows(study: HorizontalStudy, folder: Path) -> Shadows:
    """A study's shadow runs, below this folder.

    Raises:
        StudyError: if records are not what the study protects, or it has no classes.
    """
    if study.privacy.unit == "client":
        raise StudyError(
            "privacy.unit = 'client': --attack lira asks which examples were in a run, and here "
            "whole clients are protected. Use --attack canaries, or a study with privacy.unit = "
            "'sample'"
        )
    if study.clips_persons:
        raise StudyError(
            "privacy.clip_per = 'person': --attack lira asks which rows were in a run, and here "
            "persons are drawn. Use --attack canaries, who are persons of one row"
        )
    if study.privacy.unit == "sample" and study.method.unpriced is not None:
        raise StudyError(
            f"method.name = {study.method.name!r}: {study.method.unpriced}; no epsilon is promised "
            "that an attack could refute. Use form = 'sound'"
        )
    if study.data.span is not None:
        raise StudyError(
            "data.target = 'number': --attack lira reads how sure a model is of a class. Use a "
            "study of classes"
        )
    own = alone(study)
    return Shadows(
        own, federation(own), folder / charge_key_prefix(own, "shadows").replace("/", "-")
    )


def _marked(examples: Examples, there: Bools) -> Examples:
    """Return a client's examples, those marked that are not there, by ``there`` (n,)."""
    present = torch.from_numpy(there).to(examples.y.device)
    return Examples(examples.x, torch.where(present, examples.y, ABSENT))


def observe(found: Shadows, run: int) -> None:
    """Make one run, and write down what its model shows of all records; nothing if it is there."""
    if found.file(run).is_file():
        return
    study, parts, privacy = found.study, found.divided.parts, found.study.privacy
    halves = np.split(found.coins(run), np.cumsum(found.divided.sizes)[:-1])
    prints = tuple(
        hashlib.sha256(part.fingerprint().encode() + half.tobytes()).hexdigest()
        for part, half in zip(parts, halves, strict=True)
    )
    divided, loss = replace(found.divided, prints=prints), loss_of(study)
    with tempfile.TemporaryDirectory() as folder:
        regime = horizontal.of(study)
        built = regime.assembled(study, divided, Path(folder), f"shadow {run}", None)
        simulation = built.simulation
        assert isinstance(simulation, Simulation)
        flat = simulation.clients[0].kernels.flat
        kernels = ModelKernels(flat, MembersSum(flat, loss), MembersMean(flat, loss))
        clients = [
            replace(client, examples=_marked(client.examples, half), kernels=kernels)
            for client, half in zip(simulation.clients, halves, strict=True)
        ]
        end = played(replace(built, simulation=replace(simulation, clients=clients)))
        price = partial(
            simulation.ledgers.epsilon, delta=privacy.delta or 0.0, name=privacy.accountant
        )
        spent = math.inf if privacy.unit == "none" else max(map(price, set(simulation.units)))
        simulation.ledgers.close()
    flat = Flat(model(study, divided.test.shape, divided.test.outputs))
    flat.load(torch.from_numpy(end.model))
    scores = Evaluator(flat, loss).scores
    phi = [confidence(scores(torch.tensor(part.x)).double().numpy(), part.y) for part in parts]
    kept = io.BytesIO()
    np.savez(kept, phi=np.concatenate(phi), epsilon=np.array(spent))
    found.folder.mkdir(parents=True, exist_ok=True)
    replace_file(found.file(run), kept.getvalue())


def observed(found: Shadows, runs: int) -> tuple[Observed, float]:
    """Return what all finished runs show, and the highest epsilon in their ledgers."""
    phi, epsilon = [], 0.0
    for run in range(runs):
        with np.load(found.file(run)) as kept:
            phi.append(kept["phi"])
            epsilon = max(epsilon, float(kept["epsilon"]))
    coins = np.stack([found.coins(run) for run in range(runs)])
    return Observed(np.stack(phi), coins), epsilon


@cache
def _of_process(folder: str, modules: str) -> Shadows:
    study = studies.read(Path(folder) / STUDY, modules=Path(modules))
    assert isinstance(study, HorizontalStudy)
    return shadows(study, Path(folder))


def work(folder: str, modules: str, number: int) -> None:
    """Make the run of this number, in a process of its own.

    Args:
        folder: below which runs lie; ``modules`` that of modules.
    """
    observe(_of_process(folder, modules), number)


def load_weights(flat: Flat, path: Path) -> None:
    """Overwrite the model's weights with those in a file that a run left.

    Raises:
        StudyError: if there is none, or it is of another model.
    """
    finish = f"Finish the run with `sordino run --resume {path.parent}`, or audit its study.toml"
    missing = f"there is no trained model. {finish}"
    remedy = "Restore it from a copy, or audit the run's study.toml"
    with readable(path, remedy=remedy, missing=missing):
        saved = load_file(check_below(path.parent, path.name))
    found = {name: tuple(values.shape) for name, values in saved.items()}
    if found != {slot.name: slot.shape for slot in flat.layout}:
        raise StudyError(
            f"{path}: its parameters {found} are not those of the study's model; leave model "
            "and data as they were in the run"
        )
    for slot in flat.layout:
        slot.logical(flat.weights).copy_(torch.from_numpy(saved[slot.name]))
