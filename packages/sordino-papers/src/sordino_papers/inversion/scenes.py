"""A study under the attack: which images, batches, noise and price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sordino.extend.commands import StudyError
from sordino.extend.runs import (
    Bounded,
    ClippedSum,
    Dataset,
    Federation,
    Flat,
    HorizontalStudy,
    Labels,
    PoissonSampled,
    Schedule,
    Seeded,
    accountant,
    federation,
    load_weights,
    loss_of,
    mechanism_of,
    model,
    poisson,
    regime,
    scaled,
)
from sordino_papers.inversion.attempt import Attack, Level, Scene, Target, correlation
from sordino_papers.inversion.gradient import Matrix, first_layer, mean_slopes

MOST_IMAGES = 20


@dataclass(frozen=True, slots=True)
class NoiseLevel:
    """One noise level as asked for: a multiplier, MAPA's eps_0 (``claimed``), or the study's."""

    sigma: float | None = None
    claimed: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Attacked:
    """One model of a study, ready to be attacked.

    Attributes:
        study: calibrated.
        flat: the model with its weights.
        noise: the study's mechanism.
        levels: from the least noise to the most, MAPA's last.
        divided: its data. Raw.
        accountant, delta: what the levels' epsilons mean.
    """

    study: HorizontalStudy
    flat: Flat
    noise: Bounded
    levels: tuple[Level, ...]
    divided: Federation
    accountant: str
    delta: float


def attacked(
    study: HorizontalStudy, asked: Sequence[NoiseLevel], weights: Path | None = None
) -> Attacked:
    """A study's model, data and noise levels; ``weights`` are a trained model's, else initial.

    Raises:
        StudyError: if the attack has nothing to work on.
    """
    if study.privacy.unit == "client":
        raise StudyError(
            f"method.name = {study.method.name!r}: --attack inversion reads gradients, and this "
            "method's clients send whole updates. Use a study whose clients take noisy gradient "
            "steps, such as dp-sgd"
        )
    if study.data.features is not None:
        raise StudyError(
            f"data.features = '{study.data.features.kind}': --attack inversion reads pixels from a "
            "gradient, and here the model sees features. Leave "
            "data.features out"
        )
    divided = federation(study)
    rules = regime.of(study)
    full = rules.calibrate(rules.sized(study, divided), divided.sizes)
    shape = divided.test.shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise StudyError(
            f"data: its examples have shape {shape}; --attack inversion needs images "
            "(channels, height, width)"
        )
    if not len(divided.test) or full.data.testing == "private share":
        raise StudyError(
            f"data.test = '{full.data.testing}': --attack inversion starts from the mean images of "
            "a public test set; set data.test = 'file' or 'public share'"
        )
    if divided.test.span is not None:
        raise StudyError(
            "data.target = 'number': --attack inversion shows images by their class, and labels "
            "are numbers"
        )
    flat = Flat(model(full, shape, divided.test.outputs))
    first_layer(flat, shape, full.model.name)
    if weights is not None:
        load_weights(flat, weights)
    noise = mechanism_of(full, divided, flat)
    used = rules.price(full, divided.sizes, flat.dim).used
    levels = _levels(
        full,
        noise,
        full.horizon if used is None else used,
        rules.schedule(full, divided.sizes),
        asked,
    )
    return Attacked(
        full, flat, noise, tuple(levels), divided, full.privacy.accountant, _delta(full)
    )


def _delta(study: HorizontalStudy) -> float:
    return study.privacy.delta or 1e-5


def _levels(
    study: HorizontalStudy,
    noise: Bounded,
    steps: int,
    charges: Schedule,
    asked: Sequence[NoiseLevel],
) -> list[Level]:
    """Return the requested levels, with prices: the study's mechanism by rising noise, then MAPA's.

    The own noise of a study of MAPA's or AUDP's paper form is MAPA's.
    """
    claims: float | None = getattr(study.method, "iteration_epsilon", None)
    literal = study.method.unpriced is not None and claims is not None
    if literal:
        asked = [NoiseLevel(claimed=claims) if one == NoiseLevel() else one for one in asked]
    own = 0.0 if study.privacy.unit == "none" else study.privacy.noise_multiplier or 0.0
    found = []
    for sigma in sorted(
        {own if one.sigma is None else one.sigma for one in asked if one.claimed is None}
    ):
        once, whole = _costs(study, noise, steps, charges, sigma)
        found.append(
            Level(sigma=sigma, own=NoiseLevel() in asked and sigma == own, once=once, whole=whole)
        )
    for claimed in sorted({one.claimed for one in asked if one.claimed is not None}, reverse=True):
        mine = literal and claimed == claims
        found.append(Level(sigma=None, claimed=claimed, own=mine, once=math.inf, whole=math.inf))
    return found


def _costs(
    study: HorizontalStudy, noise: Bounded, steps: int, charges: Schedule, sigma: float
) -> tuple[float, float]:
    """Epsilon of one release and of all planned, at another noise multiplier, as it is booked."""
    if sigma == 0.0:
        return math.inf, math.inf
    privacy, delta = study.privacy, _delta(study)
    chosen, true = accountant(privacy.accountant), noise.scaled(noise.clip, sigma).event()
    unit = max(charges.noisy, key=lambda each: charges.noisy[each].sampling_rate)
    rate = charges.noisy[unit].sampling_rate
    event = PoissonSampled(sampling_rate=rate, event=true)
    once = chosen.epsilon([(event, 1)], delta)
    if study.method.unpriced is not None:
        return once, math.inf
    return once, math.inf if math.isinf(once) else chosen.epsilon(
        charges.released(unit, true, sigma, steps), delta
    )


def scenes(found: Attacked, images: int) -> list[Scene]:
    """The attack on each of so many training images, alone and in its client's expected batch.

    Alone is also what is left for somebody who knows all other examples of the batch and subtracts
    them: the adversary whom differential privacy is about.
    """
    return [_scene(found, images, alone) for alone in (True, False)]


def _scene(found: Attacked, images: int, alone: bool) -> Scene:
    study, flat, divided = found.study, found.flat, found.divided
    shape, classes = divided.test.shape, len(divided.test.classes)
    loss, entropy = loss_of(study), Seeded(study.seed)

    def drawn(what: str, number: int) -> np.random.Generator:
        return entropy.at("audit", "inversion", what, number)

    rates = regime.of(study).rates(study, divided.sizes)
    chosen = choose([part.y for part in divided.parts], classes, images)
    targets = [
        _target(divided.parts[who], place, rates[who], alone, drawn("batch", i))
        for i, (who, place) in enumerate(chosen)
    ]
    public = torch.from_numpy(scaled(divided.test.x))
    labels = torch.from_numpy(divided.test.y)
    attack = Attack(
        clipped=ClippedSum(flat, loss),
        noise=found.noise,
        layer=first_layer(flat, shape, study.model.name),
        slopes=mean_slopes(flat, loss, public, labels, classes),
        dimension=flat.dim,
    )
    attempts = [attack.attempt(targets, level, partial(drawn, "noise")) for level in found.levels]
    originals = np.stack([target.x[0].flatten().numpy().astype(np.float64) for target in targets])
    guesses = np.stack([_mean_image(public, labels, int(target.y[0])) for target in targets])
    return Scene(
        model=study.model.name,
        alone=alone,
        batch=float(np.mean([len(target.y) for target in targets])),
        shape=shape,
        labels=tuple(divided.test.classes[int(target.y[0])] for target in targets),
        originals=originals,
        guesses=guesses,
        guessed=tuple(
            correlation(guess, truth) for guess, truth in zip(guesses, originals, strict=True)
        ),
        attempts=tuple(attempts),
    )


def choose(labels: Sequence[Labels], classes: int, images: int) -> list[tuple[int, int]]:
    """Which examples to attack, as (client, place): the first of every label, then the second, ...

    >>> choose([np.array([1, 1]), np.array([0, 1, 0])], 2, 4)
    [(1, 0), (0, 0), (1, 2), (0, 1)]
    """
    of_label: list[list[tuple[int, int]]] = [[] for _ in range(classes)]
    for client, ys in enumerate(labels):
        for place, label in enumerate(ys.tolist()):
            if len(of_label[label]) < images:
                of_label[label].append((client, place))
    turn = [each[i] for i in range(images) for each in of_label if i < len(each)]
    return turn[:images]


def _target(
    part: Dataset, place: int, rate: float, alone: bool, rng: np.random.Generator
) -> Target:
    """The example at ``place`` and, unless it is alone, a Poisson sample of the others."""
    others = [] if alone else [i for i in poisson(len(part), rate, rng).tolist() if i != place]
    batch = part.take([place, *others])
    return Target(torch.from_numpy(scaled(batch.x)), torch.from_numpy(batch.y), rate * len(part))


def _mean_image(x: torch.Tensor, y: torch.Tensor, label: int) -> Matrix:
    of_label = x[y == label]
    found: Matrix = (of_label if len(of_label) else x).mean(0).flatten().numpy().astype(np.float64)
    return found


def with_model(study: HorizontalStudy, name: str) -> HorizontalStudy:
    """The same study with another model."""
    return study.model_copy(update={"model": study.model.model_copy(update={"name": name})})
