r"""Membership inference with shadow runs: the likelihood-ratio attack, LiRA (Carlini et al. 2022).

The attack of ``sordino audit --attack lira``. Runs of one study are made over random halves of its
records. What is looked at in a final model is how sure it is of a record's own label y, on a scale
where it is about Gaussian,

    phi  =  log( p_y / (1 - p_y) )  =  s_y - log sum over k != y of exp(s_k),

with s the model's scores and p their softmax. From shadow runs, whose halves the attacker knows,
come the mean of phi for every record in runs with it (mu_1) and in runs without it (mu_0), and one
deviation each (s_1, s_0) for all records together: a few shadow runs do not tell a deviation for
each. The score of a record in a run whose half is not known is

    online     log N(phi; mu_1, s_1) - log N(phi; mu_0, s_0)
    offline    (phi - mu_0) / s_0,   from shadow runs without the record alone.

Two bounds of epsilon follow, from runs that served no other score and no threshold:

* Clopper and Pearson's (:mod:`sordino.audit.bounds`) at one threshold, chosen on the shadow runs,
  each scored by the others. It counts guesses about records of one run as if they were independent,
  which one model's noise makes them only nearly.
* that of one run (:func:`sordino.audit.bounds.one_run`), which needs no such thing: every coin is
  fair and of its own, and what is guessed follows from the models. Several runs are one: a coin
  bears on one of them only.

**The runs.** Every run is the study's own, with its ledger, by the ordinary engine. A record that a
run's coin leaves out adds nothing to any sum and is counted in n all the same: that is the
adjacency which the ledger books (one contribution replaced by none), and public sizes tell nothing
of coins. Only the final model is looked at. (Where clients release a noisy count of clipped
gradients as well, a record left out moves it by 1/2; no model depends on that count.)

A folder of shadow runs belongs to one study and one program: another one has a folder of its own.

Shapes: phi and coins (runs, records).

References:
    Carlini, Chien, Nasr, Song, Terzis, Tramer 2022, Membership Inference Attacks From First
    Principles. Steinke, Nasr, Jagielski 2023, Privacy Auditing with One (1) Training Run.
"""

from __future__ import annotations

import hashlib
import io
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from sordino.audit.bounds import Scores, best_threshold, counted, guessed, one_run
from sordino.audit.canaries import ABSENT, MembersSum
from sordino.audit.intervals import alone, played
from sordino.base.arrays import Bools, Floats, Ints
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.files import check_below, readable
from sordino.clients import regime as horizontal
from sordino.clients.assemble import loss_of, model
from sordino.clients.division import Federation, federation
from sordino.clients.study import HorizontalStudy
from sordino.clients.world import HorizontalWorld
from sordino.core import study as studies
from sordino.core.files import replace_file
from sordino.core.run.environment import charge_key_prefix
from sordino.core.statements import Figure, Panel, Series, look
from sordino.training.client import ModelKernels
from sordino.training.evaluate import Evaluator
from sordino.training.flat import Flat
from sordino.training.perexample.sums import Examples, MeanGradient

Form = Literal["online", "offline"]
FORMS: tuple[Form, ...] = ("online", "offline")
RATES = (0.01, 0.001)
"""Rates of false alarms at which the rate of hits is told."""
SHARES = (0.01, 0.05)
"""Shares of the records that are guessed for the bound of one run."""
FEWEST = 4
"""Shadow runs: with fewer, no run is left to score another by."""
STUDY = "study.toml"
MODEL = "model.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Observations of records in runs.

    Attributes:
        phi: (runs, records), of the final models.
        coins: (runs, records), whether a record was in a run; fair and independent.
    """

    phi: Scores
    coins: Bools

    def take(self, runs: Ints | slice) -> Observed:
        """Some of the runs."""
        return Observed(self.phi[runs], self.coins[runs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """The outcome of an attack.

    Attributes:
        form: of the score.
        hits: rate of hits at each of :data:`RATES`.
        area: under the curve of hits over false alarms; 1/2 tells nothing.
        low: lower bound of epsilon at delta from the rates at one threshold.
        low_run: lower bound that does not count guesses as independent.
        guesses: about how many coins.
        curve: points (false alarms, hits), from (0, 0) to (1, 1).
    """

    form: Form
    hits: tuple[float, ...]
    area: float
    low: float
    low_run: float
    guesses: int
    curve: tuple[tuple[float, float], ...]


def confidence(scores: Floats, labels: Ints) -> Scores:
    """phi (n,) of scores (n, K) and labels (n,), K from 2.

    >>> confidence(np.log([[0.8, 0.2]]), np.array([0])).round(4)  # log 4
    array([1.3863])
    """
    rows = np.arange(len(labels))
    others = scores.astype(np.float64).copy()
    others[rows, labels] = -np.inf
    top = others.max(1)
    rest = top + np.log(np.exp(others - top[:, None]).sum(1))
    found: Scores = scores[rows, labels] - rest
    return found


def _of(shadows: Observed, there: bool) -> tuple[Scores, float]:
    """Means (records,) over runs with the records, or without, and the deviation from them.

    A record that no run has, or that all have, takes the other kind's mean, moved by the mean
    difference of both kinds.
    """
    mask = shadows.coins if there else ~shadows.coins
    count = mask.sum(0)
    mean = np.where(mask, shadows.phi, 0.0).sum(0) / np.maximum(count, 1)
    if not count.all():
        other = np.where(mask, 0.0, shadows.phi).sum(0) / np.maximum(len(mask) - count, 1)
        both = (count > 0) & (count < len(mask))
        move = float((mean - other)[both].mean()) if both.any() else 0.0
        mean = np.where(count > 0, mean, other + move)
    # each record's mean takes one degree of freedom
    free = max(int(np.maximum(count - 1, 0).sum()), 1)
    rest = np.where(mask & (count > 1), shadows.phi - mean, 0.0)
    return mean, max(float(np.sqrt(np.square(rest).sum() / free)), 1e-12)


def scored(shadows: Observed, phi: Scores, form: Form) -> Scores:
    """Scores (records,) of one run's phi (records,); higher where a record seems to be in."""
    out, spread_out = _of(shadows, there=False)
    far = (phi - out) / spread_out
    if form == "offline":
        return far
    inside, spread_in = _of(shadows, there=True)
    near = (phi - inside) / spread_in
    found: Scores = 0.5 * (far**2 - near**2) + np.log(spread_out / spread_in)
    return found


def curve_of(inside: Scores, outside: Scores) -> tuple[Floats, Floats]:
    """Rates of false alarms and of hits (k,) over all thresholds, from none to all."""
    both = np.concatenate([inside, outside])
    order = np.argsort(-both, kind="stable")
    member = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])[order]
    # equal scores lie on one side of every threshold
    ends = np.append(np.flatnonzero(np.diff(both[order])), len(both) - 1)
    hits, alarms = np.cumsum(member)[ends], np.cumsum(1.0 - member)[ends]
    zero = np.zeros(1)
    return (
        np.concatenate([zero, alarms / max(len(outside), 1)]),
        np.concatenate([zero, hits / max(len(inside), 1)]),
    )


def hits_at(alarms: Floats, hits: Floats, rate: float) -> float:
    """The highest rate of hits with at most this rate of false alarms."""
    return float(hits[alarms <= rate].max())


def inferred(
    shadows: Observed, targets: Observed, form: Form, delta: float, alpha: float
) -> Inferred:
    """An attack on runs, by shadow runs.

    Args:
        shadows: runs whose coins the attacker knows.
        targets: runs whose coins are guessed; they are looked at last and once.
        form: of the score.
        delta: at which epsilons are told.
        alpha: either bound is wrong with at most this probability.

    Raises:
        StudyError: for fewer than :data:`FEWEST` shadow runs, or no run to attack.
    """
    if len(shadows.phi) < FEWEST or not len(targets.phi):
        raise StudyError(
            f"an attack with shadow runs needs at least {FEWEST} of them, and a run to attack; got "
            f"{len(shadows.phi)} and {len(targets.phi)}"
        )
    runs = np.arange(len(shadows.phi))
    own = np.stack(
        [scored(shadows.take(runs[runs != s]), shadows.phi[s], form) for s in runs.tolist()]
    )
    threshold = best_threshold(own[shadows.coins], own[~shadows.coins], "any", delta, alpha / 2.0)
    scores = np.stack([scored(shadows, phi, form) for phi in targets.phi])
    inside, outside = scores[targets.coins], scores[~targets.coins]
    alarms, hits = curve_of(inside, outside)
    flat, coins = scores.ravel(), targets.coins.ravel()
    numbers = [max(int(share * len(flat)), 1) for share in SHARES]
    part = alpha / 2.0 / len(SHARES)
    # some 200 points of the curve, close together where there are few false alarms
    shown = np.unique(np.geomspace(1, len(alarms), 200).astype(np.int64) - 1)
    return Inferred(
        form=form,
        hits=tuple(hits_at(alarms, hits, rate) for rate in RATES),
        area=float(np.trapezoid(hits, alarms)),
        low=counted(inside, outside, threshold).bound("any", delta, alpha / 2.0),
        low_run=max(one_run(len(flat), r, guessed(flat, coins, r), delta, part) for r in numbers),
        guesses=len(flat),
        curve=tuple(zip(alarms[shown].tolist(), hits[shown].tolist(), strict=True)),
    )


def lira_figure(found: Sequence[Inferred]) -> Figure:
    """Hits over false alarms, a line for each form of the attack: an attacker who may hardly ever
    be wrong stands at the left end.
    """
    ends = 1e-4, 1.0  # of both axes of rates
    guess = Series(x=ends, y=ends, colour="quiet", dash="dashed")
    lines = [
        Series(
            x=[alarms for alarms, _ in one.curve],
            y=[hits for _, hits in one.curve],
            name=f"{one.form}: area {one.area:.3f}",
            colour=look(i)[0],
        )
        for i, one in enumerate(found)
    ]
    return Figure(
        key="lira",
        title="Membership inference",
        caption="",
        label="Membership inference: hits over false alarms",
        x="rate of false alarms",
        limits=ends,
        log=True,
        panels=[Panel(label="rate of hits", series=[guess, *lines], limits=ends, log=True)],
        table=(
            ("form", "false alarms", "hits"),
            [[one.form, *map(str, point)] for one in found for point in one.curve],
        ),
        height=3.2,
    )


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
        assert isinstance(simulation, HorizontalWorld)
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
