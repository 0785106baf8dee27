"""Labels that are numbers, in every method that sums clipped gradients or updates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.linear_model import LinearRegression
from sklearn.metrics import root_mean_squared_error

from cases import METHODS, study_of
from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.core.run import session
from sordino.data import load
from sordino.tune.grid import candidates

NUMBERS = ["data.name=diabetes", "model.name=linear"]
HORIZONTAL = [name for name, case in METHODS.items() if case[0] != "vertical"]


def ended(name: str, folder: Path, *changes: str) -> dict[str, Any]:
    study = study_of(METHODS[name], folder, [*NUMBERS, *changes])
    session.begin(study, folder / "run", lambda _: None, lambda _: None)
    lines = (folder / "run" / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return next(row for row in reversed(rows) if "rmse" in row)


@pytest.mark.parametrize("name", HORIZONTAL)
def test_every_method_learns_numbers(name: str, tmp_path: Path) -> None:
    last = ended(name, tmp_path)
    assert "accuracy" not in last
    assert math.isfinite(last["rmse"])
    weights = load_file(tmp_path / "run" / "model.safetensors")
    test = load("diabetes").test
    (w,), (b,) = ([v for k, v in weights.items() if k.endswith(s)] for s in ("weight", "bias"))
    told = 25 + 321 / 2 * (1 + (test.x @ w.T + b)[:, 0].astype(np.float64))
    true = 25 + 321 / 2 * (1 + test.y.astype(np.float64))
    assert last["rmse"] == pytest.approx(root_mean_squared_error(true, told), rel=1e-4)


def test_without_noise_it_is_least_squares(tmp_path: Path) -> None:
    found = ended(
        "fedavg",
        tmp_path,
        "budget.rounds=300",
        "method.learning_rate=0.3",
        "privacy.sampling_rate=1.0",
        "data.clients=1",
        "privacy.clip=1000.0",
        "execution.evaluate_every=300",
    )
    corpus = load("diabetes")
    best = LinearRegression().fit(corpus.train.x, corpus.train.y)
    rmse = 321 / 2 * root_mean_squared_error(corpus.test.y, best.predict(corpus.test.x))
    assert found["rmse"] == pytest.approx(rmse, rel=0.02)


def test_the_run_says_what_its_labels_are(tmp_path: Path) -> None:
    ended("dp-sgd", tmp_path)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["span"] == [25.0, 346.0]
    assert about["classes"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.name=logistic"], r"is for classes, and labels are numbers: use 'linear'"),
        (["model.name=svm"], r"is for classes, and labels are numbers"),
        (['data.partition={kind="dirichlet", beta=1}'], r"deals by class, and labels are numbers"),
        (["data.client_validation=0.1"], r"judged by accuracy, and labels are numbers"),
        (['data.target="number"'], r"target and label_range are for a file of your own"),
        (["data.scale=2"], r"data\.scale is not a key .*: say data\.ranges"),
    ],
)
def test_what_does_not_fit_numbers_is_refused(
    changes: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=message):
        study_of(METHODS["dp-sgd"], tmp_path, [*NUMBERS, *changes])


FILE = "file = 'x.csv'\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("target = 'number'", r"target 'number' needs label_range = \[low, high\]"),
        ("label_range = [0, 1]", r"label_range is of labels that are numbers: set target"),
        ("target = 'number'\nlabel_range = [2, 1]", r"label_range must be \[low, high\]"),
        (
            "target = 'number'\nlabel_range = [0, 1]\ntest = 'private share'",
            r"a number is never quite right",
        ),
        ("ranges = 'quantiles'", r"data\.ranges: 'quantiles' is learned from the rows"),
        ("missing = { age = 'mean' }", r"data\.missing: age = 'mean' is learned from the rows"),
        ("missing = 'median'", r"'median' is learned from the rows, which nobody books"),
        ("ranges = { age = [5, 5] }", r"ranges\.age must be \[low, high\] with low < high"),
        ("categories = { a = [] }", r"categories\.a needs a list of its values"),
        ("categories = { a = ['x', 'x '] }", r"categories\.a: 'x' is listed twice"),
        (
            "categories = { a = ['x'] }\nmissing = { a = 1 }",
            r"a stands in categories and in missin",
        ),
        ("unknown = 'other'", r"unknown is about categories, and there are none"),
        ("ranges = { label = [0, 1] }", r"'label' is the label, and no feature"),
        ("scale = 'standard'", r"say data\.ranges, public low and high of columns"),
    ],
)
def test_rules_are_checked_before_any_row_is_read(data: str, message: str, tmp_path: Path) -> None:
    study_of(METHODS["dp-sgd"], tmp_path)
    text = (tmp_path / "study.toml").read_text()
    head, _, rest = text.partition("[data]\n")
    kept = [line for line in rest.splitlines() if not line.startswith(('name = "digits', "feat"))]
    (tmp_path / "study.toml").write_text(f"{head}[data]\n{FILE}{data}\n" + "\n".join(kept))
    with pytest.raises(StudyError, match=message):
        studies.read(tmp_path / "study.toml", ["method.name=dp-sgd", 'data.partition={kind="iid"}'])


def test_constants_are_not_chosen_by_an_accuracy_that_is_none(tmp_path: Path) -> None:
    study_of(METHODS["dp-sgd"], tmp_path)
    asked = ["method.name=dp-sgd", 'data.partition={kind="iid"}', *NUMBERS]
    with pytest.raises(StudyError, match="candidates are told apart by accuracy"):
        candidates(tmp_path / "study.toml", asked, ["method.learning_rate=0.5,1"])
