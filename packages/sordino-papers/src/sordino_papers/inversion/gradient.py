r"""Images from a gradient: what a linear first layer gives away.

Scores s = W x + b have, for one example, the gradient

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
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.extend.commands import StudyError
from sordino.extend.runs import Evaluator, Flat, Loss, Slot

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
