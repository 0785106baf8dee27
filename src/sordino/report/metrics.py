"""Quality of the model that a run hands out: tables and figures, as they suit the task."""

from __future__ import annotations

from collections.abc import Iterator

from sordino.core.figures import Colour, Figure, Matrix, Panel, Series
from sordino.core.records import Metrics, OfClass, Owners, at, known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Course
from sordino.report.canvas import clean
from sordino.report.words import percent, plain

MOST_BARS, MOST_CELLS = 40, 30
"""Classes whose bars are drawn, and whose confusions are."""
MOST_CLIENTS = 60
NAMES = (
    ("accuracy", "accuracy", "rows that are told right"),
    ("balanced_accuracy", "balanced accuracy", "mean over classes of the rows told right"),
    ("f1", "F1, mean over classes", "harmonic mean of precision and recall"),
    ("auroc", "area under the ROC curve", "a row of the class scores above one that is not"),
    ("average_precision", "average precision", "precision, over all thresholds"),
    ("calibration_error", "calibration error", "between how sure and how often right; 0 is best"),
)
ERRORS = (
    ("rmse", "root mean squared error", "in units of the label"),
    ("mae", "mean absolute error", "in units of the label"),
    ("r2", "R²", "1 is perfect; 0 is what the mean of the test labels gives"),
)
PRIVATE = (
    "Its test rows are private. Of them nothing is told but the noisy accuracy, which is paid for: "
    "every other metric, and every share of a class or a client, would have a price of its own."
)
BY = {
    "rows": "on test rows of its own",
    "labels": "expected: the recall of each class, weighted by how often the {client} has it",
}


def tables(run: Run) -> Iterator[Course]:
    """Tables of the final model's metrics; a sentence where its test rows are private."""
    found = run.metrics
    if found is None:
        test = at(run.about.facts, "test")
        if getattr(test, "kind", None) == "private share":
            yield Course("The final model on the test set", PRIVATE)
        return
    rows = [*_shares(found), *_errors(found)]
    rows.append(("loss", plain(number(found.loss)), "mean over rows"))
    yield Course(
        "The final model on the test set",
        f"Measured on {known(found.rows)} public rows, without noise.",
        head=("metric", "value", "what it is"),
        rows=[row for row in rows if row[1] != "-"],
        wordy=True,
    )
    if (classes := known(found.classes)) and len(classes) <= MOST_BARS:
        yield Course("By class", head=_HEAD, rows=[_of_class(each) for each in classes])
    if (clients := known(found.clients)) is not None:
        yield _served(run, clients)


_HEAD = ("class", "test rows", "precision", "recall", "F1", "ROC area")


def _of_class(each: OfClass) -> tuple[str, ...]:
    shares = (each.precision, each.recall, each.f1, each.auroc)
    return (
        clean(known(each.name) or "", 60),
        str(known(each.rows)),
        *(percent(number(share)) for share in shares),
    )


def _shares(found: Metrics) -> Iterator[tuple[str, str, str]]:
    for key, name, what in NAMES:
        yield name, percent(number(getattr(found, key))), what


def _errors(found: Metrics) -> Iterator[tuple[str, str, str]]:
    for key, name, what in ERRORS:
        yield name, plain(number(getattr(found, key))), what


def _served(run: Run, found: Owners) -> Course:
    """Return the table of how evenly clients are served."""
    words, share = run.vocabulary, run.vocabulary.accuracy.percent
    told = percent if share else plain
    name = "accuracy" if share else "root mean squared error"
    how = BY.get(known(found.by) or "", "").format(client=words.client)
    each = sorted(
        known(found.each) or (), key=lambda one: number(one.value) or 0.0, reverse=not share
    )
    return Course(
        f"How well each {words.client} is served",
        f"{name.capitalize()} {how}; the worst first. Mean of the tenth that is served worst: "
        f"{told(number(found.worst_decile))}; standard deviation over {words.clients}: "
        f"{told(number(found.spread))}."
        + (f" The first {MOST_CLIENTS} are shown." if len(each) > MOST_CLIENTS else ""),
        head=(words.client, "rows", name),
        rows=[
            (clean(known(one.name) or "", 60), str(known(one.rows)), told(number(one.value)))
            for one in each[:MOST_CLIENTS]
        ],
    )


def figures(run: Run) -> Iterator[Figure | Matrix]:
    """Recall and precision of each class, and which classes are taken for which."""
    found = run.metrics
    classes = () if found is None else known(found.classes) or ()
    if found is None or not classes:
        return
    names = [clean(known(each.name) or "", 24) for each in classes]
    if len(classes) <= MOST_BARS:
        kinds: tuple[tuple[str, Colour, list[object]], ...] = (
            ("recall", "blue", [each.recall for each in classes]),
            ("precision", "orange", [each.precision for each in classes]),
        )
        yield Figure(
            key="by-class",
            title="How well each class is told",
            caption="Recall: of the test rows of a class, those that are taken for it. Precision: "
            "of the rows taken for it, those that are of it.",
            label="Recall and precision of each class",
            x="test rows (%)",
            lying=True,
            names=names,
            panels=[
                Panel(
                    label="",
                    limits=(0.0, 100.0),
                    series=[
                        Series(
                            kind="bar",
                            name=name,
                            colour=colour,
                            x=range(len(names)),
                            y=[100 * (number(share) or 0.0) for share in shares],
                        )
                        for name, colour, shares in kinds
                    ],
                )
            ],
        )
    matrix = known(found.confusion) or ()
    if len(classes) <= MOST_CELLS and matrix:
        yield Matrix(
            key="confusion",
            title="What is taken for what",
            caption="Each row is a true class: the darker a cell, the larger the share of its test "
            "rows that is taken for the class of the column. On the diagonal they are told right.",
            label="Test rows of each true class, by the class they are taken for",
            rows=names,
            columns=names,
            counts=matrix,
            x="taken for",
            y="true class",
            kind="shares",
        )
