"""Loops over examples, compiled: one linear layer in place, and weighted sums of rows.

Every loop takes one example after another through the same instructions, so what it computes of one
depends neither on the others nor on its place. With ``reassoc`` the compiler may add up a dot
product in vectors, in an order that follows from the number of terms alone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sordino.base.compiled import compiled

# those of sordino.training.perexample.clipping: kept code sees the constants of its own file alone
TOGETHER = 96  # examples that are added up in float32
LONGEST = 1e19  # longer gradients contribute nothing
BLOCK = 1024  # squares that are added up in float32
VANISHING = 2.0**-126  # what a square may be off by where it is denormal

NO_EXAMPLE, NO_CLASS = 1, 2
STRETCH = 2048  # numbers of a sum that are worked on while they are in the first cache


@compiled(fastmath={"contract", "reassoc"})
def _dot(a: Any, b: Any) -> Any:
    total = np.float32(0)
    for k in range(a.size):
        total += a[k] * b[k]
    return total


@compiled()
def _square(row: Any) -> float:
    """Return |row|^2, off by a part in 16 000 at most."""
    total = row.size * VANISHING
    for start in range(0, row.size, BLOCK):
        part = row[start : start + BLOCK]
        total += np.float64(_dot(part, part))
    return float(total)


@compiled()
def squares(rows: Any, out: Any) -> None:
    """Write |row|^2 of rows (n, k) to ``out`` (n,), float64."""
    for i in range(out.size):
        out[i] = _square(rows[i])


@compiled(fastmath={"contract"})
def _add(out: Any, factor: Any, row: Any) -> None:
    for k in range(out.size):
        out[k] += factor * row[k]


@compiled()
def _move(part: Any, total: Any, fresh: bool) -> None:
    """Add a part to ``total``, overwritten if ``fresh``; the part starts anew."""
    for k in range(total.size):
        total[k] = part[k] if fresh else total[k] + part[k]
        part[k] = np.float32(0)


@compiled()
def _entropy(scores: Any, label: int) -> Any:
    """Return the cross entropy of an example; its scores (classes,) become its slopes."""
    top, own = scores[0], scores[label]
    for c in range(1, scores.size):
        top = max(top, scores[c])
    others = np.float32(0)
    for c in range(scores.size):
        scores[c] = math.exp(scores[c] - top)
        others += scores[c] if c != label else np.float32(0)
    total = others + scores[label]
    for c in range(scores.size):
        scores[c] /= total
    scores[label] = -others / total  # p - 1 without its cancellation
    return np.float32(math.log(total)) + (top - own)


@compiled()
def _hinge(scores: Any, label: int) -> Any:
    """Return the multi-class hinge likewise: of equal rivals the first counts, NaN beats all."""
    rival, which = np.float32(-np.inf), 0
    for c in range(scores.size):
        if c != label and (scores[c] > rival or scores[c] != scores[c]):
            rival, which = scores[c], c
    margin = np.float32(1) + rival - scores[label]
    for c in range(scores.size):
        scores[c] = np.float32(0)
    if margin > 0:
        scores[which], scores[label] = np.float32(1), np.float32(-1)
    return np.float32(0) if margin <= 0 else margin


@compiled(error_model="numpy")  # a norm of zero is divided by
def linear(
    x: Any, middle: Any, scale: Any, labels: Any, chosen: Any, weight: Any, bias: Any, hinge: bool,
    private: bool, room: float, sums: Any, shifts: Any, norms: Any, losses: Any,
) -> int:  # fmt: skip
    """Add up what one linear layer's gradients (g a^T, g) are, each times min(1, room / its norm).

    Args:
        x: examples (n, features); model input is (x - middle) * scale.
        middle: float32.
        scale: float32.
        labels: (n,), int64.
        chosen: indices of the batch (b,), int64.
        weight: (classes, features), float32.
        bias: (classes,), or (0,) for none.
        hinge: whether the loss is the multi-class hinge, else cross entropy.
        private: examples that cannot be computed add nothing; else nothing is shortened.
        room: s C.
        sums: (classes, features), float64, overwritten.
        shifts: like the bias, float64, overwritten.
        norms: (b,), overwritten: infinite for examples that cannot be computed.
        losses: (b,), overwritten.

    Returns:
        ``NO_EXAMPLE`` if an index is that of no example, and nothing is written; ``NO_CLASS``
        if a label is no class, else 0.
    """
    for i in range(chosen.size):
        if not 0 <= chosen[i] < labels.size:
            return NO_EXAMPLE
    classes, features = weight.shape
    row, scores = np.empty(features, np.float32), np.empty(classes, np.float32)
    part, shift = np.zeros(weight.shape, np.float32), np.zeros(bias.size, np.float32)
    for c in range(classes):
        _move(part[c], sums[c], True)
    _move(shift, shifts, True)
    wrong = 0
    for i in range(chosen.size):
        number, label = x[chosen[i]], labels[chosen[i]]
        there = 0 <= label < classes
        wrong = wrong if there else NO_CLASS
        for k in range(features):
            row[k] = (np.float32(number[k]) - middle) * scale
        for c in range(classes):
            scores[c] = _dot(weight[c], row)
        for c in range(bias.size):
            scores[c] += bias[c]
        label = label if there else 0
        loss = _hinge(scores, label) if hinge else _entropy(scores, label)
        slope = 0.0
        for c in range(classes):
            slope += np.float64(scores[c]) ** 2
        norm = math.sqrt(slope * (_square(row) + (1.0 if bias.size else 0.0)))
        finite = there and norm <= LONGEST
        norms[i] = norm if finite else np.inf
        losses[i] = loss if there else np.nan
        if finite or not private:
            factor = np.float32(min(room / norm, 1.0) if private else 1.0)
            for c in range(classes):
                _add(part[c], factor * scores[c], row)
            for c in range(bias.size):
                shift[c] += factor * scores[c]
        if i % TOGETHER == TOGETHER - 1 or i == chosen.size - 1:
            for c in range(classes):
                _move(part[c], sums[c], i < TOGETHER)
            _move(shift, shifts, i < TOGETHER)
    return wrong


@compiled(fastmath={"contract"})
def _step(weights: Any, minus: Any, total: Any, count: float) -> None:
    """Add ``minus`` times the mean; product and sum are rounded together, as torch does it."""
    for k in range(weights.size):
        weights[k] += minus * np.float32(total[k] / count)


@compiled(error_model="numpy")
def steps(
    x: Any, middle: Any, scale: Any, labels: Any, batches: Any, weight: Any, bias: Any, hinge: bool,
    minus: Any, sums: Any, shifts: Any, norms: Any, losses: Any,
) -> int:  # fmt: skip
    """Take a step of one linear layer on each of ``batches`` (tau, b), int64, without privacy.

    Args:
        minus: minus the learning rate, float32.
        sums, shifts, norms, losses: room, as for :func:`linear`, whose arguments the others are.

    Returns:
        What :func:`linear` returned of the first batch where that is not 0; no step follows.
    """
    for t in range(len(batches)):
        wrong = linear(
            x, middle, scale, labels, batches[t], weight, bias, hinge, False, 0.0, sums, shifts,
            norms, losses,
        )  # fmt: skip
        if wrong:
            return wrong
        for c in range(len(weight)):
            _step(weight[c], minus, sums[c], float(norms.size))
        _step(bias, minus, shifts, float(norms.size))
    return 0


@compiled(fastmath={"contract"})
def add_rows(rows: Any, weights: Any, total: Any) -> None:
    """Add sum_i weights_i rows_i to ``total`` (d,), row after row, of float32 rows (n, d).

    A library would write the rows out in float64 first, which takes four times as long as the sum.
    Products and sums are float64, each rounded once, or a product and its sum together.
    """
    for start in range(0, total.size, STRETCH):
        out = total[start : start + STRETCH]
        for i in range(len(rows)):
            _add(out, weights[i], rows[i, start : start + STRETCH])
