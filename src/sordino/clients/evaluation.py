"""The measures of models on public rows: the metrics of scikit-learn, as they suit the task, from a
confusion matrix and sorted scores, for to import that library takes seconds and 110 MiB.

Nothing of that is noisy, so nothing of it may see a private row. Shapes: scores (n, classes), or
(n, 1) where labels are numbers; labels (n,).

>>> scores = np.array([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
>>> found = of_classes(scores, np.array([0, 1, 1]), ("no", "yes"))
>>> round(found.accuracy, 3), round(found.auroc, 3), found.confusion
(0.667, 1.0, ((1, 0), (1, 1)))

References:
    Guo, Pleiss, Sun, Weinberger 2017, On Calibration of Modern Neural Networks, ICML (the expected
    calibration error).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import UNSET

from sordino.base.arrays import Array, Bools, Floats, Ints
from sordino.clients.records import LISTED
from sordino.core.records import FORMAT, Metrics, OfClass, OfOwner, Owners, known
from sordino.data.dataset import Span

BINS = 15
WORST = 0.1


def of_classes(
    scores: Array,
    labels: Ints,
    classes: Sequence[str],
    *,
    loss: float | None = None,
    probable: bool = True,
) -> Metrics:
    """Metrics of a classifier.

    Args:
        probable: whether the softmax of scores is meant to be a probability.
    """
    exact, size = scores.astype(np.float64), len(classes)
    told, present = exact.argmax(1), np.unique(labels)
    matrix = np.bincount(labels * size + told, minlength=size * size).reshape(size, size)
    right, rows, named = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    precision, recall = right / np.maximum(named, 1), right / np.maximum(rows, 1)
    f1 = 2 * right / np.maximum(named + rows, 1)
    odds = _odds(exact, probable=probable)
    ranked = [_ranked(labels == c, odds[:, c]) for c in range(size)]
    two = size == 2
    if two:
        auroc, average = ranked[1]
    else:
        auroc, average = (_mean([each[i] for each in ranked]) for i in (0, 1))
    return Metrics(
        format=FORMAT,
        task="binary" if two else "classes",
        rows=len(labels),
        loss=UNSET if loss is None else loss,
        accuracy=float(right.sum() / len(labels)),
        balanced_accuracy=float(recall[present].mean()),
        f1=float(f1[present].mean()),
        auroc=auroc,
        average_precision=average,
        calibration_error=calibration_error(_softmax(exact), labels) if probable else None,
        classes=tuple(
            OfClass(
                name=str(name),
                rows=int(rows[c]),
                precision=float(precision[c]),
                recall=float(recall[c]) if c in present else None,
                f1=float(f1[c]) if c in present else None,
                auroc=ranked[c][0],
                average_precision=ranked[c][1],
            )
            for c, name in enumerate(classes)
        ),
        confusion=tuple(tuple(row) for row in matrix.tolist()),
    )


def of_numbers(scores: Array, labels: Array, span: Span, *, loss: float | None = None) -> Metrics:
    """Metrics of a regression, in units of the label; both arrays are in those of half a range."""
    told, true = in_units(scores[:, 0], span), in_units(labels, span)
    missed, spread = ((told - true) ** 2).sum(), ((true - true.mean()) ** 2).sum()
    explained = 1.0 - missed / spread if spread else float(not missed)
    return Metrics(
        format=FORMAT,
        task="number",
        rows=len(labels),
        loss=UNSET if loss is None else loss,
        rmse=math.sqrt(missed / len(true)),
        mae=float(np.abs(told - true).mean()),
        r2=float(explained) if len(true) > 1 else None,
    )


def in_units(values: Array, span: Span) -> Floats:
    """Numbers in units of half a range as they were."""
    low, high = span
    found: Floats = low + (values.astype(np.float64) + 1.0) * (high - low) / 2
    return found


def by_rows(
    scores: Array, labels: Array, owner: Ints, names: Sequence[str], span: Span | None
) -> Owners | None:
    """Return how each client is served on test rows of its own, ``owner`` (n,); None for one
    client.
    """
    numbers, place = np.unique(owner, return_inverse=True)
    if span is None:
        measured = (scores.argmax(1) == labels).astype(np.float64)
    else:
        measured = (in_units(scores[:, 0], span) - in_units(labels, span)) ** 2
    rows = np.bincount(place)
    values = np.bincount(place, measured) / rows
    values = values if span is None else np.sqrt(values)
    return _owners("rows", names, numbers, rows, values, lowest=span is None)


def by_labels(metrics: Metrics, counts: Array, names: Sequence[str]) -> Owners | None:
    """Return the accuracy that each client can expect: the recall of each class, weighted by how
    often the client has it. ``counts`` (clients, classes) must be public.
    """
    recall = np.array([known(one.recall) for one in known(metrics.classes) or ()], np.float64)
    seen = ~np.isnan(recall)
    rows = counts[:, seen].sum(axis=1)
    numbers = np.flatnonzero(rows)
    values = counts[numbers][:, seen] @ recall[seen] / rows[numbers]
    return _owners("labels", names, numbers, counts[numbers].sum(axis=1), values, lowest=True)


def _owners(
    by: str, names: Sequence[str], numbers: Ints, rows: Ints, values: Floats, *, lowest: bool
) -> Owners | None:
    """Return the figures of two clients or more, (n,) each; the worst are the lowest, or the
    highest of errors. Of many clients none is listed.
    """
    if len(values) < 2:
        return None
    ordered, worst = np.sort(values), math.ceil(WORST * len(values))
    listed = zip(numbers.tolist(), rows.tolist(), values.tolist(), strict=True)
    named = dict(enumerate(names))
    each = tuple(
        OfOwner(name=named.get(number, str(number)), rows=count, value=value)
        for number, count, value in (listed if len(values) <= LISTED else ())
    )
    return Owners(
        by=by,
        each=each,
        worst_decile=float((ordered[:worst] if lowest else ordered[-worst:]).mean()),
        spread=float(values.std()),
    )


def calibration_error(shares: Floats, labels: Ints) -> float | None:
    """Expected calibration error of the likeliest class: mean distance, over rows, between how sure
    a model is and how often it is right, within :data:`BINS` equal bins; None where it is not sure
    of anything, for a score is not a number.
    """
    if not np.isfinite(shares).all():
        return None
    sure, right = shares.max(1), shares.argmax(1) == labels
    bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    apart = np.bincount(bins, sure - right, minlength=BINS)
    return float(np.abs(apart).sum() / len(labels))


def _ranked(positive: Bools, score: Floats) -> tuple[float | None, float | None]:
    """AUROC and average precision of one class against all others; None without both. Rows of
    equal score are at one threshold.
    """
    if positive.all() or not positive.any() or not np.isfinite(score).all():
        return None, None
    _, place = np.unique(-score, return_inverse=True)  # thresholds, the highest first
    hits, falls = np.bincount(place, positive), np.bincount(place, ~positive)
    reached = hits.cumsum()
    area = falls @ (reached - hits / 2) / (reached[-1] * falls.sum())
    precision = reached / (reached + falls.cumsum())
    return float(area), float(hits @ precision / reached[-1])


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def _odds(scores: Floats, *, probable: bool) -> Floats:
    """The score of each class against all others, (n, classes): the logarithm of its odds, which
    ranks rows as its probability does and does not saturate; or the distance to the best other.

    An only class has no others: 0 for every row.
    """
    found = np.zeros_like(scores)
    if scores.shape[1] == 1:
        return found
    for c in range(scores.shape[1]):
        others = np.delete(scores, c, axis=1)
        found[:, c] = scores[:, c] - (
            np.logaddexp.reduce(others, axis=1) if probable else others.max(1)
        )
    return found


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    shares: Floats = powers / powers.sum(1, keepdims=True)
    return shares
