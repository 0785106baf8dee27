"""A study under ``sordino audit --attack canaries``: one run, many canaries at one client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sordino import data as datasets
from sordino.audit.bounds import Scores
from sordino.audit.intervals import Interval, alone
from sordino.audit.mechanisms import Subject, releases
from sordino.audit.planted import (
    ABSENT,
    Coins,
    MembersSum,
    Planted,
    Watched,
    attacked,
    dirac,
    likelihoods,
    likelihoods_in_order,
)
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Vector
from sordino.clients import regime as horizontal
from sordino.clients.division import Federation, federation, loss_of, model
from sordino.clients.pricing import Trial
from sordino.clients.simulation import Simulation
from sordino.clients.study import HorizontalStudy
from sordino.core.prepared import PreparedRun
from sordino.mechanisms.gaussian import Bounded, Gaussian, Learning
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.training.client import ModelKernels
from sordino.training.evaluate import Evaluator
from sordino.training.flat import Flat
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

MOST = 16_000
"""Canaries of a run; more make the bound a little better and the run slower."""
FINE = 2000
"""Numbers of a vector from which on its wavelets are looked at many at once."""
PART = 0.5
"""Canaries that are examples, for each example of the client."""


def refuse(study: HorizontalStudy) -> None:
    """Refuse a study in which no example can be planted.

    Raises:
        StudyError: if it does not protect examples, promises nothing, or chooses its noise on the
            way.
    """
    if study.privacy.unit != "sample":
        raise StudyError(
            f"privacy.unit = {study.privacy.unit!r}: --attack canaries plants examples, and no "
            "epsilon is promised for single ones. Use a study with privacy.unit = 'sample', such "
            "as dp-sgd, or --attack mechanism, which needs no study"
        )
    if study.method.unpriced is not None:
        raise StudyError(
            f"method.name = {study.method.name!r}: {study.method.unpriced}, which nothing has to "
            "be planted for: no epsilon is promised. Use form = 'sound'"
        )
    if study.method.adapts_noise:
        raise StudyError(
            f"method.name = {study.method.name!r}: --attack canaries reads releases whose noise is "
            "known before the run, and this method chooses it on the way"
        )


def white_box(study: HorizontalStudy, canaries: int, alpha: float, name: str) -> Interval:
    """One run with Dirac canaries at the first client, by an adversary who sees all it releases.

    Raises:
        StudyError: if its noise differs from number to number.
    """
    study = alone(study)
    divided = federation(study)

    def plant(built: PreparedRun) -> Planted:
        client, flat = _first(built)
        coins = _coins(study, "dirac", min(canaries, flat.dim, MOST))
        rng = Seeded(study.seed).at("audit", "canaries", "places")
        kernel, examples = dirac(flat, loss_of(study), divided.parts[0], coins, rng)
        seen = Watched(client.mechanism, kernel.without, kernel.places)
        kernels = ModelKernels(flat, kernel, client.kernels.mean)
        planted = replace(client, examples=examples, kernels=kernels, mechanism=seen)
        rate, passes, real = client.sampling_rate, client.passes, len(divided.parts[0])

        def scores(_: Vector) -> Scores:
            if passes is None:
                return likelihoods(seen.seen, rate)
            return likelihoods_in_order(seen, real, passes.batches)

        return _with_first(built, planted), scores, coins

    return attacked(study, divided, plant, (name, "sample", "white box"), alpha)


def black_box(study: HorizontalStudy, canaries: int, alpha: float, name: str) -> Interval:
    """One run with canaries that are examples, by an adversary who sees the final model alone.

    A canary is noise with a random label: each of its numbers is the lowest or the highest of all
    test examples. No other example teaches what it does, so it is told from others better than a
    mislabelled example. Its score is how much the run has lowered its loss.

    Raises:
        StudyError: if the study has no public test examples, or its labels are numbers.
    """
    study = alone(study)
    divided = federation(study)
    part, test = divided.parts[0], divided.test
    if not len(test) or len(test.classes) < 2 or study.data.testing == "private share":
        raise StudyError(
            "data.test: canaries are made in the range of public test examples of two classes or "
            "more; set data.test = 'file' or 'public share'"
        )
    m = min(canaries, max(int(PART * len(part)), 1))
    rng = Seeded(study.seed).at("audit", "canaries", "examples")
    ends = np.array([test.x.min(), test.x.max()])
    noise = ends[rng.integers(0, 2, (m, *part.x.shape[1:]))]
    labels = rng.integers(0, len(test.classes), m)
    coins, loss = _coins(study, "examples", m), loss_of(study)
    x = np.concatenate([part.x, noise])
    y = np.concatenate([part.y, np.where(coins, labels, ABSENT)])
    examples = Examples(torch.from_numpy(x), torch.from_numpy(y))

    def plant(built: PreparedRun) -> Planted:
        client, flat = _first(built)

        def lost(weights: Vector) -> Scores:
            flat.load(torch.from_numpy(weights))
            scores = Evaluator(flat, loss).scores(torch.tensor(noise))
            return loss(scores, torch.from_numpy(labels)).numpy().astype(np.float64)

        kernels = ModelKernels(flat, MembersSum(flat, loss), client.kernels.mean)
        planted = _with_first(built, replace(client, examples=examples, kernels=kernels))
        return planted, lambda end: lost(built.first.model) - lost(end), coins

    return attacked(study, divided, plant, (name, "sample", "black box"), alpha)


def _coins(study: HorizontalStudy, kind: str, m: int) -> Coins:
    rng = Seeded(study.seed).at("audit", "canaries", "coins", kind)
    return rng.random(m) < 0.5


def _first(built: PreparedRun) -> tuple[Any, Flat]:
    """Return the first client of a run, and the model that all share."""
    assert isinstance(built.simulation, Simulation)
    client = built.simulation.clients[0]
    flat: Flat = client.kernels.flat
    return client, flat


def _with_first(built: PreparedRun, client: Any) -> PreparedRun:
    """Return the run with another first client."""
    assert isinstance(built.simulation, Simulation)
    clients = [client, *built.simulation.clients[1:]]
    return replace(built, simulation=replace(built.simulation, clients=clients))


def own_mechanism(study: HorizontalStudy) -> Subject:
    """A study's mechanism at its own noise, for an audit of one release in two worlds.

    Raises:
        StudyError: if the study promises nothing, or its mechanism is somebody's own.
    """
    if study.privacy.unit == "none":
        raise StudyError("privacy.unit = 'none': there is no mechanism to audit")
    divided, regime = federation(study), horizontal.of(study)
    full = regime.calibrate(regime.sized(study, divided), divided.sizes)
    flat = Flat(model(full, divided.test.shape, divided.test.outputs))
    made = mechanism_of(full, divided, flat)
    asked = full.privacy.mechanism
    try:
        draw = releases(made)
    except TypeError as error:
        raise StudyError(
            f"privacy.mechanism.kind = {asked.kind!r}: {error}. "
            "Leave the study out to see the mechanisms that come with the package"
        ) from None
    return Subject(
        name=f"the study's {asked.kind}",
        sound=asked.form == "sound",
        unit=full.privacy.unit,
        claimed=asked.for_dimension(flat.dim).event(made.noise_multiplier),
        booked=made.event(),
        draw=draw,
        cheap=type(made) is Gaussian or (isinstance(made, HaarGaussian) and flat.dim > FINE),
    )


def mechanism_of(study: HorizontalStudy, divided: Federation, flat: Flat) -> Bounded:
    """Return the study's first mechanism; a Gaussian of its clip where it promises nothing."""
    if study.privacy.unit == "none":
        return Gaussian(clip=study.privacy.clip, noise_multiplier=1.0)
    loss = loss_of(study)
    public = (torch.empty(0), torch.empty(0, dtype=torch.int64))
    if divided.validation is not None:
        public = (
            torch.from_numpy(datasets.scaled(divided.validation.x)),
            torch.from_numpy(divided.validation.y),
        )
    kernels = ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss))
    made = horizontal.of(study).mechanism(study, divided.sizes, Trial.of(kernels, public))
    return made.shaped(()) if isinstance(made, Learning) else made
