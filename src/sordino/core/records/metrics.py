"""``metrics.json``: how good the model is that a run hands out, on rows that are public."""

from __future__ import annotations

from msgspec import UNSET

from sordino.core.records.base import Count, Maybe, Open, Real, Record


class OfClass(Record, frozen=True, kw_only=True):
    """How well examples of one class are told from all others; shares in [0, 1].

    Attributes:
        name: of the class.
        rows: that are of it.
        precision: of rows that were taken for it, those that are.
        recall: of rows that are of it, those that were taken for it.
        f1: their harmonic mean.
        auroc, average_precision: by the class's score; null where the test set lacks it, or holds
            nothing else.
    """

    name: Maybe[str] = UNSET
    rows: Maybe[Count] = UNSET
    precision: Maybe[Real] = UNSET
    recall: Maybe[Real] = UNSET
    f1: Maybe[Real] = UNSET
    auroc: Maybe[Real] = UNSET
    average_precision: Maybe[Real] = UNSET


class OfOwner(Record, frozen=True, kw_only=True):
    """How well one client is served: accuracy, or root mean squared error, on ``rows`` rows."""

    name: Maybe[str] = UNSET
    rows: Maybe[Count] = UNSET
    value: Maybe[Real] = UNSET


class Owners(Record, frozen=True, kw_only=True):
    """How evenly clients are served.

    Attributes:
        by: "rows", test rows of their own; or "labels", the recall of each class, weighted by how
            often a client has it, where that is public.
        each: by client.
        worst_decile: mean over the tenth of them that is served worst, at least one.
        spread: standard deviation over them.
    """

    by: Maybe[str] = UNSET
    each: Maybe[tuple[OfOwner, ...]] = UNSET
    worst_decile: Maybe[Real] = UNSET
    spread: Maybe[Real] = UNSET


class Metrics(Open, frozen=True, kw_only=True):
    """``metrics.json``. What does not suit the task is absent.

    Attributes:
        format: of the run's records.
        task: "classes", "binary" (two classes) or "number".
        rows: of the test set.
        loss: mean of what the model was trained with.
        accuracy, balanced_accuracy, f1: in [0, 1]; balanced accuracy is the mean recall of the
            classes that occur, f1 their mean, too.
        auroc, average_precision: of the second class, where there are two; else means over the
            classes that occur, each against all others.
        calibration_error: expected, of the likeliest class, in 15 equal bins of its probability;
            null where scores are no probabilities.
        rmse, mae: in units of the label.
        r2: 1 is perfect, 0 as good as the mean of the test labels.
        classes: by class.
        confusion: rows are true classes, columns those that were told.
        clients: how evenly they are served; absent where nothing public tells.
    """

    format: Maybe[Count] = UNSET
    task: Maybe[str] = UNSET
    rows: Maybe[Count] = UNSET
    loss: Maybe[Real] = UNSET
    accuracy: Maybe[Real] = UNSET
    balanced_accuracy: Maybe[Real] = UNSET
    f1: Maybe[Real] = UNSET
    auroc: Maybe[Real] = UNSET
    average_precision: Maybe[Real] = UNSET
    calibration_error: Maybe[Real] = UNSET
    rmse: Maybe[Real] = UNSET
    mae: Maybe[Real] = UNSET
    r2: Maybe[Real] = UNSET
    classes: Maybe[tuple[OfClass, ...]] = UNSET
    confusion: Maybe[tuple[tuple[Count, ...], ...]] = UNSET
    clients: Maybe[Owners] = UNSET
