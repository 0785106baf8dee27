"""How good the model is that a run hands out: tables and pictures, as they suit the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sordino.core.records import Metrics, OfClass, Owners, at, known, number
from sordino.core.runs import Run
from sordino.core.teller import Course, Drawn
from sordino.report.canvas import BLUE, INK, ORANGE, canvas, clean, figure, svg
from sordino.report.words import percent, plain

MOST_BARS, MOST_CELLS, MOST_NUMBERS = 40, 30, 12
"""Classes whose bars are drawn, whose confusions are, and whose confusions are written out."""
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


def judged(run: Run) -> Iterator[Course]:
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
    """How evenly clients are served."""
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


def pictures(run: Run) -> Iterator[Drawn]:
    """Recall and precision of each class, and which classes are taken for which."""
    found = run.metrics
    classes = () if found is None else known(found.classes) or ()
    if found is None or not classes:
        return
    names = [clean(known(each.name) or "", 24) for each in classes]
    if len(classes) <= MOST_BARS:
        yield (
            "How well each class is told",
            bars(names, classes),
            "Recall: of the test rows of a class, those that are taken for it. Precision: of the "
            "rows taken for it, those that are of it.",
            "",
        )
    matrix = known(found.confusion) or ()
    if len(classes) <= MOST_CELLS and matrix:
        yield (
            "What is taken for what",
            confusion(names, matrix),
            "Each row is a true class: the darker a cell, the larger the share of its test rows "
            "that is taken for the class of the column. On the diagonal they are told right.",
            "",
        )


def bars(names: Sequence[str], classes: Sequence[OfClass]) -> str:
    """Recall and precision of each class, in percent, as SVG text."""
    with canvas("by-class"):
        drawn, (axis,) = figure(1, 0.8 + 0.34 * len(names))
        axis.grid(visible=False, axis="y")
        for label, shift, colour in (("recall", -0.2, BLUE), ("precision", 0.2, ORANGE)):
            shares = [100 * (number(getattr(each, label)) or 0.0) for each in classes]
            places = [i + shift for i in range(len(names))]
            axis.barh(places, shares, height=0.36, color=colour, label=label)
        axis.set_yticks(range(len(names)), list(names))
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_xlim(0, 100)
        axis.set_xlabel("test rows (%)")
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0)
        return svg(drawn, "Recall and precision of each class")


def confusion(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """Shares of true classes (rows) that are taken for classes (columns), as SVG text."""
    shares = [[n / max(sum(row), 1) for n in row] for row in matrix]
    with canvas("confusion"):
        side = 0.4 * len(names) + 1.4
        drawn, (axis,) = figure(1, min(max(side, 2.4), 5.6))
        axis.grid(visible=False)
        axis.set_facecolor("#fbfbf8")  # on a dark page the darkest cells would vanish
        axis.imshow(shares, cmap="cividis_r", vmin=0, vmax=1, interpolation="nearest")
        if len(names) <= MOST_NUMBERS:
            for i, row in enumerate(matrix):
                for j, n in enumerate(row):
                    axis.text(
                        j, i, str(n), ha="center", va="center", size=8.5,
                        color="#ffffff" if shares[i][j] > 0.55 else "#1b1e22",
                    )  # fmt: skip
        turned = sum(map(len, names)) > 40
        axis.set_xticks(
            range(len(names)), list(names), rotation=40 if turned else 0,
            ha="right" if turned else "center", rotation_mode="anchor",
        )  # fmt: skip
        axis.set_yticks(range(len(names)), list(names))
        axis.tick_params(length=0, labelcolor=INK)
        axis.set_xlabel("taken for")
        axis.set_ylabel("true class")
        return svg(drawn, "Test rows of each true class, by the class they are taken for")
