r"""A study under the attack: which images, batches, noise and price, and what comes of them.

A release here is what a client lets out of itself in one local step
(:mod:`sordino.training.client`): per-example clipping in the mechanism's own norm, the sum over a
batch, the mechanism's noise, the expected batch as divisor. Without noise (sigma = 0) clipping
stays. With MAPA's noise it is the vector of :func:`sordino.mechanisms.knorm.exponential_norm` with
mean norm Delta S / eps_0 on the average, Delta S = 2 C / b (Li et al., section 5.1), which is 2 C /
eps_0 on the sum.

The same image meets the same random numbers at every level: what differs is how large the noise is.

Released gradients fix an image only up to brightness and contrast once noise has drowned their
scale, so both measures forgive these:

    r     Pearson's correlation over the pixels
    PSNR  10 log10( range(x)^2 / min_{a >= 0, b} mean (a x^ + b - x)^2 ),   in dB

The least mean square is var(x) (1 - max(r, 0)^2), so PSNR grows with r; a flat guess has r = 0.

>>> import numpy as np
>>> x = np.array([0.0, 1.0, 2.0, 1.0])
>>> round(correlation(3.0 * x + 5.0, x), 6), correlation(np.zeros(4), x)
(1.0, 0.0)
>>> round(psnr(np.zeros(4), x), 2), psnr(x, x)
(9.03, inf)

**Images from a gradient**: a linear first layer gives them away. Scores s = W x + b have, for one
example, the gradient

    dW = g x^T,   db = g,   g = dl/ds     so    A = [dW | db] = g [x; 1]^T     (rows, pixels + 1)

and x stands in it unprotected. Four ways to read it, with v[:-1] / v[-1] understood at the end:

    ratio      v = A[o] of the row with the largest |db[o]| (Phong et al. 2018, section 3)
    rows       v = sum_o db[o] A[o]: all rows, by least squares
    rank one   v = first right singular vector of A: the best rank-one fit, so the likeliest x
               under equal noise on every number where nothing is known of g
    matched    v = g^T A with g known up to its length

g is nearly known: who receives the gradient knows the model, the loss and thereby how the scores of
an example of label y are pulled (up for y, down for the rivals). Here it is the mean slope of
public examples of that label. For a batch, A = sum_i c_i g_i [x_i; 1]^T with clipping factors c_i;
with G the slopes (labels, rows) of the labels in it,

    V = pinv(G^T) A        rows of V: a positive multiple of [x; 1] for each label

takes the images apart again, exactly where G is exact and no label comes twice; of a label that
comes twice it gives a mixture. ``matched`` is the one that is used where the rows are the classes
(logistic, svm): it is the only one of the four that tells the examples of a batch apart, and it
lasts longest under noise; ``rank one`` elsewhere (mlp). Trained weights pull examples of one label
less alike: 0.99 below becomes 0.58 after 300 steps. Mean correlation over 30 Fashion-MNIST images,
C = 1, initial weights:

    |              | logistic |      |          |         | svm   |      |          |         |
    | sigma, batch | ratio    | rows | rank one | matched | ratio | rows | rank one | matched |
    | 0, 1         | 1.00     | 1.00 | 1.00     | 1.00    | 1.00  | 1.00 | 1.00     | 1.00    |
    | 0.01, 1      | 0.91     | 0.88 | 0.92     | 0.92    | 0.81  | 0.88 | 0.92     | 0.89    |
    | 0.03, 1      | 0.25     | 0.32 | 0.52     | 0.65    | 0.17  | 0.27 | 0.47     | 0.57    |
    | 0.1, 1       | 0.04     | 0.04 | 0.03     | 0.26    | 0.01  | 0.02 | 0.00     | 0.21    |
    | 0, 9 labels  | 0.54     | 0.53 | 0.08     | 0.99    | 0.46  | 0.58 | 0.50     | 0.68    |

The attacker is granted the labels in the batch: with little noise the signs of db tell them (Zhao
et al. 2020).

Shapes: A (rows, pixels + 1), slopes (labels, rows), images (pixels,) or (labels, pixels); all up to
scale.

>>> x, g = np.array([0.25, 1.0]), np.array([-0.6, 0.2, 0.4])
>>> seen = np.outer(g, [*x, 1.0])
>>> rank_one(seen).round(6).tolist()
[0.25, 1.0]
>>> matched(seen, np.array([[-1.0, 0.5, 0.5]])).round(6).tolist()  # not quite g
[[0.25, 1.0]]

References:
    Phong, Aono, Hayashi, Wang, Moriai 2018, Privacy-Preserving Deep Learning via Additively
    Homomorphic Encryption. Zhao, Mopuri, Bilen 2020, iDLG: Improved Deep Leakage from Gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.extend.commands import StudyError
from sordino.extend.runs import (
    Bounded,
    ClippedSum,
    Dataset,
    Evaluator,
    Federation,
    Flat,
    HorizontalStudy,
    Labels,
    Loss,
    PoissonSampled,
    Schedule,
    Seeded,
    Slot,
    accountant,
    bound_of,
    exponential_norm,
    federation,
    load_weights,
    loss_of,
    mechanism_of,
    model,
    poisson,
    regime,
    scaled,
)

Matrix = np.ndarray[Any, np.dtype[np.float64]]

_NEGLIGIBLE = 1e-3  # singular values of the slopes below this part of the largest are noise


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """The linear layer that sees the pixels.

    Attributes:
        weight: where its weights lie in the vector, (rows, pixels).
        bias: where its biases lie, (rows,).
        scores: whether its outputs are the model's scores, so that its rows are the classes.
    """

    weight: Slot
    bias: Slot
    scores: bool

    def of(self, gradient: Tensor) -> Matrix:
        """A = [dW | db] of a gradient (d,)."""
        both = torch.cat([self.weight.of(gradient), self.bias.of(gradient).unsqueeze(1)], 1)
        found: Matrix = both.cpu().numpy().astype(np.float64)
        return found


def first_layer(flat: Flat, shape: tuple[int, ...], name: str) -> FirstLayer:
    """The first layer of a model, if it is linear and sees the pixels of ``shape`` as they are.

    Raises:
        StudyError: if it is not.
    """
    probe = torch.linspace(
        -1.0, 1.0, 2 * math.prod(shape), dtype=flat.weights.dtype, device=flat.weights.device
    ).view(2, *shape)
    seen: list[tuple[nn.Linear, Tensor]] = []

    def look(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(layer, nn.Linear) and torch.equal(given[0], probe.flatten(1)):
            seen.append((layer, output))

    hooks = [
        part.register_forward_hook(look)
        for part in flat.module.modules()
        if isinstance(part, nn.Linear)
    ]
    try:
        with torch.no_grad():
            scores = flat.module(probe)
    finally:
        for hook in hooks:
            hook.remove()
    for layer, output in seen:
        weight = flat.slot(layer.weight)
        bias = None if layer.bias is None else flat.slot(layer.bias)
        if weight is not None and bias is not None:
            return FirstLayer(
                weight, bias, output.shape == scores.shape and torch.equal(output, scores)
            )
    raise StudyError(
        f"model.name = {name!r}: --attack inversion reads images off a linear first layer with "
        "biases, and this model has none on the pixels. Use logistic, svm or mlp (--set "
        "model.name=logistic)"
    )


def mean_slopes(flat: Flat, loss: Loss, x: Tensor, y: Tensor, classes: int) -> Matrix:
    """g of each label (classes, classes), under the model's weights.

    Its mean over public examples x (n, ...) with labels y (n,).

    A label that no example pulls is taken to be pulled up against all others alike.
    """
    slopes = loss.slope(Evaluator(flat, loss).scores(x), y.cpu())[1].numpy().astype(np.float64)
    found = np.full((classes, classes), 1.0 / classes) - np.eye(classes)
    for label in range(classes):
        of_label = slopes[y.cpu().numpy() == label]
        if len(of_label) and np.linalg.norm(mean := of_label.mean(0)) > 0.0:
            found[label] = mean
    return found


def rank_one(seen: Matrix) -> Matrix:
    """x from the best rank-one fit, a multiple of [x; 1]; the fit itself where that is 0."""
    found: Matrix = np.linalg.svd(seen, full_matrices=False)[2][0]
    return found[:-1] / (found[-1] or 1.0)


def matched(seen: Matrix, slopes: Matrix) -> Matrix:
    """An image (labels, pixels) for each of the slopes (labels, rows).

    What multiplies [x; 1] is known to be positive, so its sign is not read off the noisy last
    column.
    """
    found = np.linalg.pinv(slopes.T, rcond=_NEGLIGIBLE) @ seen
    scale = np.abs(found[:, -1:])
    image: Matrix = found[:, :-1] / np.where(scale > 0.0, scale, 1.0)
    return image


def recovered(
    gradient: Tensor, layer: FirstLayer, slopes: Matrix, labels: Tensor, target: int
) -> Matrix:
    """The image (pixels,) of label ``target`` in a released gradient (d,).

    By the estimator that is best for the layer.

    Args:
        gradient: as released; its scale does not matter.
        layer: where to look.
        slopes: of every label, (classes, classes).
        labels: of the examples in the batch, (n,); granted to the attacker.
        target: one of them.
    """
    seen = layer.of(gradient)
    if not layer.scores:
        return rank_one(seen)
    present = np.unique(labels.cpu().numpy())
    found: Matrix = matched(seen, slopes[present])[int(np.searchsorted(present, target))]
    return found


MOST_IMAGES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Noise level and its price.

    Attributes:
        sigma: noise multiplier of the study's mechanism; 0 for none; None for MAPA's noise.
        claimed: eps_0 of MAPA's noise; None for the study's mechanism.
        own: whether this is the study's own noise.
        once: epsilon of one release, on a Poisson sample as the ledger books it.
        whole: epsilon of as many releases as the study plans.
    """

    sigma: float | None
    claimed: float | None = None
    own: bool = False
    once: float
    whole: float


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A batch in which the first example is the one to recover.

    Attributes:
        x: the batch as model input (n, ...). Raw.
        y: its labels (n,).
        divisor: expected batch of the client whose data it is, in examples.
    """

    x: Tensor
    y: Tensor
    divisor: float


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """Outcome at one noise level.

    Attributes:
        level: the noise.
        images: (targets, pixels), each up to brightness and contrast.
        correlations: with the originals.
        psnr: in dB, at the best brightness and contrast.
    """

    level: Level
    images: Matrix
    correlations: tuple[float, ...]
    psnr: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """One model attacked through one kind of batch.

    Attributes:
        model: its name.
        alone: whether every target was alone in its batch; else it lay in a Poisson sample of its
            client's data.
        batch: mean size of the batches.
        shape: of an image.
        labels: names of the targets' labels.
        originals: (targets, pixels). Raw.
        guesses: (targets, pixels), what the label alone gives: the mean public image of it.
        guessed: their correlations with the originals.
        attempts: from the least noise to the most.
    """

    model: str
    alone: bool
    batch: float
    shape: tuple[int, ...]
    labels: tuple[str, ...]
    originals: Matrix
    guesses: Matrix
    guessed: tuple[float, ...]
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attack:
    """Target of an attacker, and what he knows.

    Attributes:
        clipped: the kernel, over the model's present weights.
        noise: the study's mechanism, which says what a gradient is clipped in.
        layer: where the pixels go in.
        slopes: of every label, (classes, classes); see
            :func:`~sordino_papers.inversion.scenes.mean_slopes`.
        dimension: d.
    """

    clipped: ClippedSum
    noise: Bounded
    layer: FirstLayer
    slopes: Matrix
    dimension: int

    def release(self, target: Target, level: Level, rng: np.random.Generator) -> Tensor:
        """The gradient (d,) that a client lets out for this batch at this level."""
        exact = torch.empty(self.dimension, dtype=torch.float64)
        self.clipped(target.x, target.y, bound_of(self.noise), exact)
        total = exact.to(torch.float32)
        if level.claimed is not None:
            total += exponential_norm(self.dimension, 2.0 * self.noise.clip / level.claimed, rng)
        elif level.sigma:
            total, _ = self.noise.scaled(self.noise.clip, level.sigma).release_counted(
                total, 0.0, rng
            )
        return total / target.divisor

    def attempt(
        self,
        targets: Sequence[Target],
        level: Level,
        randomness: Callable[[int], np.random.Generator],
    ) -> Attempt:
        """Release every target at one level and recover it; ``randomness`` is each one's noise."""
        images, correlations, lost = [], [], []
        for number, target in enumerate(targets):
            seen = self.release(target, level, randomness(number))
            image = recovered(seen, self.layer, self.slopes, target.y, int(target.y[0]))
            truth = target.x[0].flatten().numpy().astype(np.float64)
            images.append(image)
            correlations.append(correlation(image, truth))
            lost.append(psnr(image, truth))
        return Attempt(level, np.stack(images), tuple(correlations), tuple(lost))


def correlation(guess: Matrix, truth: Matrix) -> float:
    """r in [-1, 1] of two images (pixels,); 0 where one of them is flat."""
    a, b = guess - guess.mean(), truth - truth.mean()
    # squares must not overflow
    a, b = a / max(float(np.abs(a).max()), 1e-300), b / max(float(np.abs(b).max()), 1e-300)
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return min(max(float(a @ b) / scale, -1.0), 1.0) if scale > 0.0 else 0.0


def psnr(guess: Matrix, truth: Matrix) -> float:
    """Peak signal to noise in dB at the best brightness and contrast; infinite without loss."""
    spread = float(np.ptp(truth))
    lost = float(truth.var()) * (1.0 - max(correlation(guess, truth), 0.0) ** 2)
    return 10.0 * math.log10(spread * spread / lost) if lost > 1e-12 * spread * spread else math.inf


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


def _mean_image(x: Tensor, y: Tensor, label: int) -> Matrix:
    of_label = x[y == label]
    found: Matrix = (of_label if len(of_label) else x).mean(0).flatten().numpy().astype(np.float64)
    return found


def with_model(study: HorizontalStudy, name: str) -> HorizontalStudy:
    """The same study with another model."""
    return study.model_copy(update={"model": study.model.model_copy(update={"name": name})})
