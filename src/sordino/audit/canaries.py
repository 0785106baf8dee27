"""A study under ``sordino audit --attack canaries``: one client, one run, many canaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sordino import data as datasets
from sordino.audit.bounds import Scores
from sordino.audit.intervals import Interval, Row
from sordino.audit.mechanisms import Subject, releases
from sordino.audit.planted import (
    ABSENT,
    Coins,
    MembersSum,
    Promised,
    Watched,
    dirac,
    likelihoods,
    refuse_uneven,
    trained,
)
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.clients import regime as horizontal
from sordino.clients.division import Federation, federation, loss_of, model
from sordino.clients.pricing import Trial
from sordino.clients.study import HorizontalStudy, SampledPromise
from sordino.mechanisms.gaussian import Bounded, Gaussian, Learning
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.training.client import Examples, ModelKernels
from sordino.training.dpsgd import PrivateClient
from sordino.training.evaluate import Evaluator
from sordino.training.flat import Flat
from sordino.training.optimizer import Sgd
from sordino.training.perexample import ClippedSum, MeanGradient

MOST = 16_000
"""Canaries of a run; more make the bound a little better and the run slower."""
FINE = 2000
"""Numbers of a vector from which on its wavelets are looked at many at once."""
PART = 0.5
"""Canaries that are examples, for each example of the client."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A study's first client, ready to be audited.

    Attributes:
        study: calibrated.
        flat: the model with its initial weights.
        start: these weights (d,).
        noise: the study's mechanism.
        divided: its data. Raw.
        rate: q of the first client.
        rounds, steps: how often it answers, and tau; 1 where the method chooses it on the way.
    """

    study: HorizontalStudy
    flat: Flat
    start: torch.Tensor
    noise: Bounded
    divided: Federation
    rate: float
    rounds: int
    steps: int


def prepared(study: HorizontalStudy) -> Prepared:
    """A study's first client.

    Raises:
        StudyError: if its clients do not release sums of clipped gradients with Gaussian noise of
            one size.
    """
    if study.privacy.unit != "sample":
        raise StudyError(
            f"privacy.unit = {study.privacy.unit!r}: --attack canaries plants examples, and works "
            "where examples are protected. Use a study with privacy.unit = 'sample', such as "
            "dp-sgd, or --attack mechanism, which needs no study"
        )
    regime = horizontal.of(study)
    if not isinstance(study.privacy, SampledPromise):
        raise StudyError(
            f"method.name = {study.method.name!r}: --attack canaries runs clients that take part "
            "in rounds. --attack mechanism looks at this study's releases one by one"
        )
    if study.method.unpriced is not None:
        raise StudyError(
            f"method.name = {study.method.name!r}: {study.method.unpriced}, which nothing has to "
            "be planted for: no epsilon is promised. Use form = 'sound'"
        )
    full, divided, flat, noise = _calibrated(study)
    if regime.schedule(full, divided.sizes).staged:
        raise StudyError(
            "privacy: --attack canaries keeps clip and noise as they are from the first round to "
            "the last; leave the schedule out"
        )
    refuse_uneven(noise)
    price = regime.price(full, divided.sizes, flat.dim)
    charges = full.horizon if price.used is None else price.used
    steps = getattr(full.method, "tau", None) or 1
    rounds = max(charges // steps, 1)
    rate = regime.rates(full, divided.sizes)[0]
    return Prepared(full, flat, flat.weights.clone(), noise, divided, rate, rounds, steps)


def _calibrated(study: HorizontalStudy) -> tuple[HorizontalStudy, Federation, Flat, Bounded]:
    """Return the study with its noise filled in, its data, its model and its first mechanism."""
    divided, regime = federation(study), horizontal.of(study)
    full = regime.calibrate(regime.sized(study, divided), divided.sizes)
    flat = Flat(model(full, divided.test.shape, divided.test.outputs))
    return full, divided, flat, mechanism_of(full, divided, flat)


def rows(study: HorizontalStudy, canaries: int, name: str) -> Sequence[Row]:
    """White box and black box; see :class:`~sordino.audit.intervals.Rows`."""
    ready = prepared(study)
    return [
        lambda alpha: white_box(ready, canaries, alpha, name),
        lambda alpha: black_box(ready, canaries, alpha, name),
    ]


def white_box(found: Prepared, canaries: int, alpha: float, name: str) -> Interval:
    """One run with Dirac canaries, by an adversary who sees every release."""
    m = min(canaries, found.flat.dim, MOST)
    coins, part = _coins(found, "dirac", m), found.divided.parts[0]
    rng = Seeded(found.study.seed).at("audit", "canaries", "places")
    kernel, examples = dirac(found.flat, loss_of(found.study), part, coins, rng)
    watched = Watched(found.noise, kernel.without, kernel.places)
    _, promised = _run(found, kernel, watched, examples, "dirac", f"{name}, every release seen")
    return promised.interval(likelihoods(watched.seen, found.rate), coins, alpha)


def black_box(found: Prepared, canaries: int, alpha: float, name: str) -> Interval:
    """One run with canaries that are examples, by an adversary who sees the final model alone.

    A canary is noise with a random label: each of its numbers is the lowest or the highest of all
    test examples. No other example teaches what it does, so it is told from others better than a
    mislabelled example. Its score is how much the run has lowered its loss.

    Raises:
        StudyError: if the study has no public test examples, or its labels are numbers.
    """
    part, test = found.divided.parts[0], found.divided.test
    if not len(test) or len(test.classes) < 2 or found.study.data.testing == "private share":
        raise StudyError(
            "data.test: canaries are made in the range of public test examples of two classes or "
            "more; set data.test = 'file' or 'public share'"
        )
    m = min(canaries, max(int(PART * len(part)), 1))
    rng = Seeded(found.study.seed).at("audit", "canaries", "examples")
    ends = np.array([test.x.min(), test.x.max()])
    noise = ends[rng.integers(0, 2, (m, *part.x.shape[1:]))]
    labels = rng.integers(0, len(test.classes), m)
    coins = _coins(found, "examples", m)
    x = np.concatenate([part.x, noise])
    y = np.concatenate([part.y, np.where(coins, labels, ABSENT)])
    examples = Examples(torch.from_numpy(x), torch.from_numpy(y))
    kernel = MembersSum(found.flat, loss_of(found.study))
    name = f"{name}, model at the end"
    end, promised = _run(found, kernel, found.noise, examples, "examples", name)
    before, after = (_losses(found, w, noise, labels) for w in (found.start, end))
    return promised.interval(before - after, coins, alpha)


def _coins(found: Prepared, kind: str, m: int) -> Coins:
    rng = Seeded(found.study.seed).at("audit", "canaries", "coins", kind)
    coins: Coins = rng.random(m) < 0.5
    return coins


BOX = {"dirac": "white box", "examples": "black box"}
"""What the adversary of each kind of canary sees."""


def _run(
    found: Prepared,
    kernel: MembersSum,
    mechanism: Bounded,
    examples: Examples,
    kind: str,
    name: str,
) -> tuple[torch.Tensor, Promised]:
    """Play the client's rounds; its weights at the end, and the row that its ledger promises."""
    method, privacy = found.study.method, found.study.privacy
    seed = int(Seeded(found.study.seed).at("audit", "canaries", "run", kind).integers(2**62))
    client = PrivateClient(
        index=0,
        unit="client:0",
        examples=examples,
        mechanism=mechanism,
        sampling_rate=found.rate,
        learning_rate=getattr(method, "learning_rate", 0.1),
        optimizer=getattr(method, "optimizer", None) or Sgd(),
        kernels=ModelKernels(found.flat, kernel, MeanGradient(found.flat, loss_of(found.study))),
        entropy=Seeded(seed),
    )
    weights, spent = trained(client, found.start, found.rounds, found.steps)
    how, delta = f"one run, {BOX[kind]}", privacy.delta or 1e-5
    return weights, Promised(name, "sample", how, spent, delta, privacy.accountant)


def _losses(
    found: Prepared, weights: torch.Tensor, x: datasets.Features, y: datasets.Labels
) -> Scores:
    found.flat.load(weights.to(found.flat.weights))
    loss = loss_of(found.study)
    losses = loss(Evaluator(found.flat, loss).scores(torch.tensor(x)), torch.from_numpy(y))
    kept: Scores = losses.numpy().astype(np.float64)
    return kept


def own_mechanism(study: HorizontalStudy) -> Subject:
    """A study's mechanism at its own noise, for an audit of one release in two worlds.

    Raises:
        StudyError: if the study promises nothing, or its mechanism is somebody's own.
    """
    if study.privacy.unit == "none":
        raise StudyError("privacy.unit = 'none': there is no mechanism to audit")
    full, _, flat, made = _calibrated(study)
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
