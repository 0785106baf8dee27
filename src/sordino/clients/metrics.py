"""The quality of a model on public rows: scikit-learn's metrics, as they suit the task.

Nothing here is noisy, so nothing here may see a private row.

Shapes: scores (n, classes), or (n, 1) where labels are numbers; labels (n,).

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
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from sordino.core.records import FORMAT, Metrics, OfClass, OfOwner, Owners
from sordino.data.dataset import Span

BINS = 15
WORST = 0.1

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]


def of_classes(
    scores: NDArray[Any],
    labels: Whole,
    classes: Sequence[str],
    *,
    loss: float | None = None,
    probable: bool = True,
) -> Metrics:
    """Metrics of a classifier.

    Args:
        probable: whether the softmax of scores is meant to be a probability.
    """
    from sklearn import metrics as sk

    exact = scores.astype(np.float64)
    told, present = exact.argmax(1), np.unique(labels)
    matrix = (
        sk.confusion_matrix(labels, told, labels=np.arange(len(classes)))
        if len(classes) > 1
        else np.array([[len(labels)]])  # of which scikit-learn warns
    )
    precision, recall, f1, _ = sk.precision_recall_fscore_support(
        labels, told, labels=np.arange(len(classes)), zero_division=0.0
    )
    odds = _odds(exact, probable=probable)
    ranked = [_ranked(labels == c, odds[:, c]) for c in range(len(classes))]
    two = len(classes) == 2
    if two:
        auroc, average = ranked[1]
    else:
        auroc, average = (_mean([each[i] for each in ranked]) for i in (0, 1))
    return Metrics(
        format=FORMAT,
        task="binary" if two else "classes",
        rows=len(labels),
        loss=UNSET if loss is None else loss,
        accuracy=float(sk.accuracy_score(labels, told)),
        balanced_accuracy=float(recall[present].mean()),
        f1=float(f1[present].mean()),
        auroc=auroc,
        average_precision=average,
        calibration_error=calibration_error(_softmax(exact), labels) if probable else None,
        classes=tuple(
            OfClass(
                name=str(name),
                rows=int(matrix[c].sum()),
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


def of_numbers(
    scores: NDArray[Any], labels: NDArray[Any], span: Span, *, loss: float | None = None
) -> Metrics:
    """Metrics of a regression, in units of the label; both arrays are in those of half a range."""
    from sklearn import metrics as sk

    told, true = in_units(scores[:, 0], span), in_units(labels, span)
    return Metrics(
        format=FORMAT,
        task="number",
        rows=len(labels),
        loss=UNSET if loss is None else loss,
        rmse=float(sk.root_mean_squared_error(true, told)),
        mae=float(sk.mean_absolute_error(true, told)),
        r2=float(sk.r2_score(true, told)) if len(true) > 1 else None,
    )


def in_units(values: NDArray[Any], span: Span) -> Numbers:
    """Numbers in units of half a range as they were."""
    low, high = span
    found: Numbers = low + (values.astype(np.float64) + 1.0) * (high - low) / 2
    return found


def by_rows(
    scores: NDArray[Any],
    labels: NDArray[Any],
    owner: Whole,
    names: Sequence[str],
    span: Span | None,
) -> Owners | None:
    """Return how each client is served on test rows of its own, ``owner`` (n,); None for one
    client.
    """
    each = []
    for number in np.unique(owner):
        rows = np.flatnonzero(owner == number)
        if span is None:
            value = float((scores[rows].argmax(1) == labels[rows]).mean())
        else:
            apart = in_units(scores[rows, 0], span) - in_units(labels[rows], span)
            value = float(np.sqrt((apart**2).mean()))
        name = names[number] if number < len(names) else str(number)
        each.append(OfOwner(name=name, rows=len(rows), value=value))
    return _owners("rows", each, lowest=span is None)


def by_labels(metrics: Metrics, counts: NDArray[Any], names: Sequence[str]) -> Owners | None:
    """Return the accuracy that each client can expect: the recall of each class, weighted by how
    often the client has it. ``counts`` (clients, classes) must be public.
    """
    known = np.array([np.nan if c.recall in (None, UNSET) else c.recall for c in _classes(metrics)])
    seen = ~np.isnan(known)
    each = []
    for number, row in enumerate(counts):
        rows = row[seen].astype(np.float64)
        if rows.sum():
            value = float(rows @ known[seen] / rows.sum())
            name = names[number] if number < len(names) else str(number)
            each.append(OfOwner(name=name, rows=int(row.sum()), value=value))
    return _owners("labels", each, lowest=True)


def _owners(by: str, each: Sequence[OfOwner], *, lowest: bool) -> Owners | None:
    """Return the figures of two clients or more; the worst are the lowest, or the highest of
    errors.
    """
    if len(each) < 2:
        return None
    values = np.sort(np.array([one.value for one in each], np.float64))
    worst = math.ceil(WORST * len(values))
    return Owners(
        by=by,
        each=tuple(each),
        worst_decile=float((values[:worst] if lowest else values[-worst:]).mean()),
        spread=float(values.std()),
    )


def _classes(metrics: Metrics) -> tuple[OfClass, ...]:
    return metrics.classes if isinstance(metrics.classes, tuple) else ()


def calibration_error(shares: Numbers, labels: Whole) -> float | None:
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


def _ranked(positive: NDArray[np.bool_], score: Numbers) -> tuple[float | None, float | None]:
    """AUROC and average precision of one class against all others; None without both."""
    from sklearn import metrics as sk

    if positive.all() or not positive.any() or not np.isfinite(score).all():
        return None, None
    return float(sk.roc_auc_score(positive, score)), float(
        sk.average_precision_score(positive, score)
    )


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def _odds(scores: Numbers, *, probable: bool) -> Numbers:
    """The score of each class against all others, (n, classes): the logarithm of its odds, which
    ranks rows as its probability does and does not saturate; or the distance to the best other.

    An only class has no others: 0 for every row.
    """
    found = np.zeros_like(scores)
    if scores.shape[1] == 1:
        return found
    for c in range(scores.shape[1]):
        others = np.delete(scores, c, axis=1)
        top = others.max(1)
        if probable:
            top = top + np.log(np.exp(others - top[:, None]).sum(1))
        found[:, c] = scores[:, c] - top
    return found


def _softmax(scores: Numbers) -> Numbers:
    raised = np.exp(scores - scores.max(1, keepdims=True))
    shares: Numbers = raised / raised.sum(1, keepdims=True)
    return shares
