"""Metrics of the final model: scikit-learn's on the same arrays, kept with the run and sealed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from msgspec import UNSET
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_breast_cancer

from cases import METHODS, MORE, study_of
from sordino.clients.evaluation import by_labels, by_rows, calibration_error, of_classes, of_numbers
from sordino.core import study as studies
from sordino.core.records import Metrics, known
from sordino.core.run import session
from sordino.core.run.reading import Run, load
from sordino.core.run.verify import verify
from sordino.core.study.base import Study
from sordino.report import page

RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 4, 300)
SCORES = RNG.normal(size=(300, 4)) + 1.5 * np.eye(4)[LABELS]
NAMES = ("a", "b", "c", "d")


def test_an_only_class_is_measured() -> None:
    found = of_classes(np.ones((5, 1)), np.zeros(5, np.int64), ("a",))
    assert (found.accuracy, found.auroc, found.confusion) == (1.0, None, ((5,),))


def test_classes_are_measured_as_scikit_learn_does() -> None:
    found, told = of_classes(SCORES, LABELS, NAMES), SCORES.argmax(1)
    shares = torch.softmax(torch.from_numpy(SCORES), 1).numpy()
    assert found.task == "classes"
    assert found.accuracy == pytest.approx(sk.accuracy_score(LABELS, told))
    assert found.balanced_accuracy == pytest.approx(sk.balanced_accuracy_score(LABELS, told))
    assert found.f1 == pytest.approx(sk.f1_score(LABELS, told, average="macro"))
    assert found.auroc == pytest.approx(sk.roc_auc_score(LABELS, shares, multi_class="ovr"))
    one_hot = np.eye(4)[LABELS]
    assert found.average_precision == pytest.approx(sk.average_precision_score(one_hot, shares))
    assert found.confusion == tuple(map(tuple, sk.confusion_matrix(LABELS, told).tolist()))
    report = sk.classification_report(LABELS, told, target_names=NAMES, output_dict=True)
    for each in known(found.classes) or ():
        own = report[str(each.name)]
        assert (each.precision, each.recall) == pytest.approx((own["precision"], own["recall"]))
        assert (each.f1, each.rows) == pytest.approx((own["f1-score"], own["support"]))


def test_of_two_classes_the_second_counts() -> None:
    labels, scores = LABELS % 2, SCORES[:, :2]
    found, margin = of_classes(scores, labels, ("no", "yes")), scores[:, 1] - scores[:, 0]
    assert found.task == "binary"
    assert found.auroc == pytest.approx(sk.roc_auc_score(labels, margin))
    assert found.average_precision == pytest.approx(sk.average_precision_score(labels, margin))


def test_saturated_probabilities_still_rank() -> None:
    far = of_classes(1e4 * SCORES, LABELS, NAMES)
    assert far.auroc == pytest.approx(of_classes(SCORES, LABELS, NAMES).auroc, abs=0.02)


def test_classes_that_do_not_occur_count_in_no_mean() -> None:
    labels = np.where(LABELS == 3, 0, LABELS)
    found = of_classes(SCORES, labels, NAMES)
    recalls = [
        sk.recall_score(labels, SCORES.argmax(1), labels=[c], average="macro") for c in range(3)
    ]
    assert found.balanced_accuracy == pytest.approx(np.mean(recalls))
    last = (known(found.classes) or ())[3]
    assert (last.rows, last.recall, last.auroc) == (0, None, None)


def test_scores_that_are_no_numbers_end_nothing() -> None:
    """A record far out, or a model that has diverged, has them."""
    assert calibration_error(np.full((2, 3), np.nan), np.zeros(2, np.int64)) is None


def test_calibration_is_the_mean_over_bins() -> None:
    shares = torch.softmax(torch.from_numpy(SCORES), 1).numpy()
    sure, right = shares.max(1), shares.argmax(1) == LABELS
    fraction, mean = calibration_curve(right, sure, n_bins=15)
    counts = np.histogram(sure, np.linspace(0, 1, 16))[0]
    expected = (counts[counts > 0] * np.abs(fraction - mean)).sum() / len(sure)
    assert calibration_error(shares, LABELS) == pytest.approx(expected)
    assert of_classes(SCORES, LABELS, NAMES, probable=False).calibration_error is None


def test_numbers_are_in_their_units() -> None:
    true, told = RNG.normal(size=100), RNG.normal(size=(100, 1))
    found = of_numbers(told, true, (100.0, 300.0))
    own, other = 200 + 100 * true, 200 + 100 * told[:, 0]
    assert found.rmse == pytest.approx(sk.root_mean_squared_error(own, other))
    assert found.mae == pytest.approx(sk.mean_absolute_error(own, other))
    assert found.r2 == pytest.approx(sk.r2_score(own, other))
    for each in (told[:2], np.ones((2, 1))):  # equal labels
        assert of_numbers(each, np.ones(2), (0.0, 2.0)).r2 == sk.r2_score([2, 2], each[:, 0] + 1)
    assert found.accuracy is UNSET


def test_clients_by_their_own_rows() -> None:
    owner = RNG.integers(0, 20, 300)
    names = tuple(f"site {i}" for i in range(20))
    found = by_rows(SCORES, LABELS, owner, names, None)
    assert found is not None
    right = pl.DataFrame({"o": owner, "r": SCORES.argmax(1) == LABELS})
    each = right.group_by("o").agg(pl.col("r").mean()).sort("o")["r"].to_numpy()
    assert [one.value for one in known(found.each) or ()] == pytest.approx(each.tolist())
    assert found.worst_decile == pytest.approx(np.sort(each)[:2].mean())
    assert found.spread == pytest.approx(each.std())
    assert by_rows(SCORES, LABELS, np.zeros(300, np.int64), names, None) is None


def test_clients_by_their_labels() -> None:
    """Who has one class alone is served as that class is."""
    metrics = of_classes(SCORES, LABELS, NAMES)
    found = by_labels(metrics, np.eye(4, dtype=np.int64) * 7, ())
    assert found is not None
    recalls = [each.recall for each in known(metrics.classes) or ()]
    assert [one.value for one in known(found.each) or ()] == pytest.approx(recalls)


def ran(study: Study, folder: Path) -> Run:
    session.begin(study, folder / "run", lambda _: None, lambda _: None)
    return load(folder / "run")


def test_a_run_keeps_and_seals_its_metrics(tmp_path: Path) -> None:
    run = ran(study_of(METHODS["dp-sgd"], tmp_path), tmp_path)
    assert isinstance(run.metrics, Metrics)
    assert run.metrics.accuracy == pytest.approx(run.accuracy)
    assert run.metrics.loss == pytest.approx(run.values("loss")[-1])
    clients = known(run.metrics.clients)
    assert clients is not None
    assert (clients.by, len(known(clients.each) or ())) == ("labels", 3)
    drawn = page.render(run)
    for text in ("The final model on the test set", "balanced accuracy", "Confusion matrix"):
        assert text in drawn
    assert not verify(run.folder).problems
    path = run.folder / "metrics.json"
    path.write_text(path.read_text().replace('"rows": 360', '"rows": 361'))
    (problem,) = verify(run.folder).problems
    assert "metrics.json: not the file that was sealed" in problem


def test_a_run_that_has_ended_says_the_same_again(tmp_path: Path) -> None:
    run = ran(study_of(METHODS["dp-sgd"], tmp_path), tmp_path)
    before = (run.folder / "metrics.json").read_bytes()
    session.resume(run.folder, lambda _: None, lambda _: None)
    assert (run.folder / "metrics.json").read_bytes() == before


def test_an_older_run_without_metrics_verifies(tmp_path: Path) -> None:
    """A seal that names no metrics, in a folder without them."""
    study = study_of(METHODS["dp-sgd"], tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.clients.assemble.Assembly.metrics", lambda *_: None)
        run = ran(study, tmp_path)
    assert run.metrics is None
    assert not verify(run.folder).problems
    assert "The final model on" not in page.render(run)


def test_private_test_rows_tell_accuracy_alone(tmp_path: Path) -> None:
    run = ran(study_of(MORE["dp-sgd/cnn, private share"], tmp_path), tmp_path)
    assert run.metrics is None
    assert not (run.folder / "metrics.json").exists()
    assert "every other metric, and every share of a class or a client" in page.render(run)


def test_numbers_have_a_page_of_their_own(tmp_path: Path) -> None:
    changes = ["data.name=diabetes", "model.name=linear"]
    run = ran(study_of(METHODS["audp"], tmp_path, changes), tmp_path)
    assert run.metrics is not None
    assert run.metrics.rmse == pytest.approx(run.measured)
    assert known(run.result.rmse) == run.measured
    drawn = page.render(run)
    assert "test RMSE" in drawn
    assert "R²" in drawn
    assert "accuracy" not in drawn.split("<h2>Study</h2>")[0]
    assert "Confusion matrix" not in drawn
    assert "Who holds what" not in drawn


STUDY = """
name = "breast cancer of two hospitals"
[data]
file = "cancer.csv"
label = "target"
test = "public share"
clients = 2
client_column = "hospital"
partition = "column"
ranges = { "*" = [0, 1] }
[model]
name = "logistic"
[method]
name = "dp-sgd"
learning_rate = 2.0
[privacy]
unit = "sample"
epsilon = 8.0
delta = 1e-3
sampling_rate = 0.2
[budget]
rounds = 30
"""


def test_a_file_with_owners_tells_how_each_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancer = load_breast_cancer(as_frame=True)
    x = (cancer.data - cancer.data.min()) / (cancer.data.max() - cancer.data.min())
    frame = x.assign(
        target=np.where(cancer.target == 1, "benign", "malignant"),
        hospital=np.where(np.arange(len(x)) % 3 == 0, "north", "south"),
    )
    frame.to_csv(tmp_path / "cancer.csv", index=False)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    run = ran(studies.read(tmp_path / "study.toml"), tmp_path)
    assert run.metrics is not None
    assert run.metrics.accuracy is not UNSET
    assert (known(run.metrics.accuracy) or 0) > 0.9
    clients = known(run.metrics.clients)
    assert clients is not None
    assert clients.by == "rows"
    assert [one.name for one in known(clients.each) or ()] == ["north", "south"]
    rows = [known(one.rows) or 0 for one in known(clients.each) or ()]
    assert sum(rows) == run.metrics.rows
    assert json.loads((run.folder / "metrics.json").read_text())["task"] == "binary"
