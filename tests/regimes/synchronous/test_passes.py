"""Passes in a public order: what a record takes part in, what is charged, and what a site refuses.

Prices are held against the closed form of the Gaussian mechanism (Balle and Wang 2018, theorem 8):
k releases of multiplier sigma are one of sigma / sqrt(k).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from permitted import permit
from sordino import privacy
from sordino.base.entropy import Seeded
from sordino.base.errors import LocalProtocolError, StudyError
from sordino.base.message import Train, TrainInOrder, Update
from sordino.clients import pricing
from sordino.core import records, regimes
from sordino.core import study as studies
from sordino.core.run import reading, session
from sordino.core.statements import Table
from sordino.mechanisms.gaussian import Gaussian
from sordino.privacy import Ledger
from sordino.training import models
from sordino.training.client import ModelKernels, PrivateClient
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.optimizer import Sgd
from sordino.training.passes import Passes
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

SIGMA, DELTA = 3.0, 1e-5
STUDY = """
name = "passes"
[data]
name = "digits"
clients = 3
partition = { kind = "iid" }
[model]
name = "logistic"
[method]
name = "dp-sgd"
tau = 3
learning_rate = 0.5
[privacy]
unit = "sample"
epsilon = 8.0
delta = 1e-5
sampling = "passes"
batches = 5
[budget]
rounds = 7
"""


def study_of(folder: Path, *changes: str, text: str = STUDY) -> Any:
    (folder / "study.toml").write_text(text)
    return studies.read(folder / "study.toml", changes)


def delta_of(epsilon: float, sigma: float, times: int) -> float:
    mu = math.sqrt(times) / sigma
    ends = [math.erfc((epsilon / mu + side * mu / 2) / math.sqrt(2)) / 2 for side in (-1, 1)]
    return ends[0] - math.exp(epsilon) * ends[1]


def charges(folder: Path) -> dict[str, list[tuple[Any, int]]]:
    found: dict[str, list[tuple[Any, int]]] = {}
    with Ledger.open(folder / "ledger.sqlite", readonly=True) as ledger:
        for each in ledger.entries():
            found.setdefault(each.unit, []).append((each.event, each.count))
    return found


@pytest.mark.parametrize(
    "changes",
    [
        ["method.name=dp-sgd"],
        ["method.name=ali-dpfl", "budget.steps=21"],
        ["method.name=als-dpfl", "budget.steps=21"],
    ],
    ids=["dp-sgd", "ali-dpfl", "als-dpfl"],
)
def test_a_study_is_charged_a_gaussian_a_pass_and_no_more(
    changes: Sequence[str], tmp_path: Path
) -> None:
    text = STUDY if "dp-sgd" in changes[0] else STUDY.replace("tau = 3\n", "")
    study = study_of(tmp_path, *changes, text=text)
    plan, _ = regimes.of(study).plan(study)
    sigma, passes = plan.noise_multiplier, 5  # of 21 steps, the last pass is begun only
    assert delta_of(8.0, sigma, passes) <= DELTA < delta_of(8.0, sigma - 2e-3, passes)
    assert plan.steps == 25
    session.begin(study, tmp_path / "run", lambda row: None, lambda going: None)
    run = reading.load(tmp_path / "run")
    taken = records.number(run.result.steps)
    assert taken is not None
    booked = charges(tmp_path / "run")
    assert set(booked) == {"client:0", "client:1", "client:2"}
    for spent in booked.values():
        assert spent == [(privacy.Gaussian(sigma), 1)] * math.ceil(taken / 5)
    epsilon = float(json.loads((tmp_path / "run" / "run.json").read_text())["result"]["epsilon"])
    exact = delta_of(epsilon, sigma, math.ceil(taken / 5))
    assert 0.98 * DELTA < exact <= DELTA


def test_a_person_counts_as_all_rows_at_once_and_stands_in_one_batch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    who = rng.permutation(np.repeat(np.arange(60), 3))
    lines = ["who,a,b,label"]
    lines += [f"{w},{rng.normal():.4f},{rng.normal():.4f},{rng.integers(2)}" for w in who]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    study = study_of(
        tmp_path,
        f'data={{file="{tmp_path / "rows.csv"}", test="none", person="who", person_rows=3}}',
        "data.clients=1",
    )
    plan, _ = regimes.of(study).plan(study)
    sigma = plan.noise_multiplier
    assert delta_of(8.0, sigma / 3, 5) <= DELTA < delta_of(8.0, sigma / 3 - 2e-3, 5)
    full = regimes.of(study).calibrated(study)
    built = regimes.of(full).build(full, tmp_path, "run", None)
    simulation: Any = built.simulation
    (client,) = simulation.clients
    passes, count = client.passes, len(client.examples)
    batches = [set(passes.batch(step, count).tolist()) for step in range(5)]
    assert sum(map(len, batches)) == count == len(set.union(*batches)) == 180
    owner = passes.who
    for one, two in ((a, b) for i, a in enumerate(batches) for b in batches[:i]):
        assert not set(owner[list(one)]) & set(owner[list(two)])
    built.simulation.ledgers.close()


def test_persons_are_dealt_evenly_and_no_batch_has_more_rows_than_is_told() -> None:
    """Also where each person has as many rows as there are batches, one after another."""
    even = Passes(10, np.repeat(np.arange(400, dtype=np.uint64), 10), 10)
    assert [len(even.batch(step, 4000)) for step in range(10)] == [400] * 10
    rng = np.random.default_rng(3)
    for _ in range(300):
        b, k, persons = rng.integers(1, [8, 6, 30])
        many = np.where(np.arange(persons) % b == rng.integers(b), k, rng.integers(1, k + 1))
        who = np.repeat(np.arange(persons, dtype=np.uint64), many)
        passes = Passes(int(b), who, int(k))
        sizes = [len(passes.batch(step, len(who))) for step in range(b)]
        assert sum(sizes) == len(who)
        assert max(sizes) <= passes.most(len(who))


class Seen(Gaussian):
    """The raw sums, kept for the test; nothing is released, so the model stays where it is."""

    def release_counted(self, total: Any, excess: float, rng: Any) -> Any:
        SUMS.append(total.clone())
        return torch.zeros(len(total)), None


SUMS: list[Any] = []
N, BATCHES = 11, 4


def client(x: Any, y: Any) -> PrivateClient:
    flat = Flat(models.build("logistic", (4,), 3, np.random.default_rng(0)))
    return PrivateClient(
        index=0,
        unit="client:0",
        optimizer=Sgd(),
        examples=Examples(torch.from_numpy(x), torch.from_numpy(y)),
        mechanism=Seen(clip=0.5, noise_multiplier=SIGMA),
        sampling_rate=1 / BATCHES,
        learning_rate=0.1,
        kernels=ModelKernels(
            flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy)
        ),
        entropy=Seeded(5),
        passes=Passes(BATCHES),
    )


PERMITS = [permit(privacy.Gaussian(SIGMA), 1, number) for number in range(1, 5)]


def task(one: PrivateClient, number: int, taken: int, steps: int) -> TrainInOrder:
    weights = np.full(one.kernels.flat.dim, 0.01, np.float32)
    return TrainInOrder(round=number, steps=steps, weights=weights, taken=taken)


def sums(x: Any, y: Any) -> list[Any]:
    """The raw sums of three passes, in tasks of different lengths."""
    SUMS.clear()
    one, taken = client(x, y), 0
    for number, steps in enumerate((3, 1, 5, 3), 1):
        assert isinstance(one.answer(task(one, number, taken, steps), PERMITS), Update)
        taken += steps
    return list(SUMS)


def test_each_record_changes_one_sum_in_every_pass_whatever_its_value() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(N, 4)).astype(np.float32), rng.integers(0, 3, N)
    before, steps = sums(x, y), 3 * BATCHES
    assert len(before) == steps
    for row in range(N):
        other = x.copy()
        other[row] = rng.normal(size=4) * 10.0 ** rng.integers(-3, 4)
        changed = [not torch.equal(a, b) for a, b in zip(before, sums(other, y), strict=True)]
        places = np.flatnonzero(changed)
        assert len(places) == 3
        assert (places // BATCHES).tolist() == [0, 1, 2]  # once a pass
        assert (np.diff(places) == BATCHES).all()  # and b steps apart


def test_a_step_too_early_is_refused_before_anything_is_computed() -> None:
    rng = np.random.default_rng(2)
    one = client(rng.normal(size=(N, 4)).astype(np.float32), rng.integers(0, 3, N))
    one.answer(task(one, 1, 0, 3), PERMITS)
    SUMS.clear()
    with pytest.raises(LocalProtocolError, match=r"begins at step 2 .* has come to step 3"):
        one.answer(task(one, 2, 2, 2), PERMITS)
    with pytest.raises(LocalProtocolError, match="task 2: the ledger charged None"):
        one.answer(task(one, 2, 3, 2), PERMITS[:1])  # its second step is in the next pass
    with pytest.raises(LocalProtocolError, match="task 1: the ledger charged None"):
        one.answer(task(one, 2, 3, 1), [permit(privacy.Gaussian(2 * SIGMA))])
    with pytest.raises(LocalProtocolError, match="Train does not say which batch is next"):
        one.answer(Train(round=2, steps=1, weights=task(one, 2, 3, 1).weights), PERMITS)
    assert not SUMS
    one.answer(task(one, 2, 3, 2), PERMITS)
    assert len(SUMS) == 2


def test_rounds_of_chosen_length_never_meet_a_record_twice_within_b_steps(tmp_path: Path) -> None:
    """As clients of a whole run see it, some of them late or away."""
    study = study_of(
        tmp_path,
        "method.name=ali-dpfl",
        "budget.rounds=12",
        "budget.steps=30",
        "participation.cohort=2",
        "participation.deadline=2.0",
        "world.dropout=0.3",
        'world.latency={kind="exponential", typical=1.0}',
        text=STUDY.replace("tau = 3\n", ""),
    )
    full = regimes.of(study).calibrated(study)
    built = regimes.of(full).build(full, tmp_path, "run", None)
    met: dict[tuple[int, int], list[int]] = {}

    def watched(one: Any) -> Any:
        class Order(Passes):
            def batch(self, step: int, count: int) -> Any:
                found = super().batch(step, count)
                for row in found.tolist():
                    met.setdefault((one.index, row), []).append(step)
                return found

        return replace(one, passes=Order(one.passes.batches))

    simulation: Any = built.simulation
    clients = [watched(each) for each in simulation.clients]
    replace(simulation, clients=clients).run(built.first, Blind())
    simulation.ledgers.close()
    gaps = [b - a for steps in met.values() for a, b in pairwise(steps)]
    assert gaps
    assert min(gaps) >= 5
    assert Counter(gap % 5 for gap in gaps).keys() == {0}


EDGES = """
name = "edges"
[data]
name = "digits"
clients = 3
partition = { kind = "dirichlet", beta = 1.0 }
[model]
name = "logistic"
[method]
name = "mapa"
batch = 40
[privacy]
unit = "sample"
epsilon = 8.0
delta = 1e-5
sampling = "passes"
[budget]
updates = 60
[world]
latency = { kind = "exponential", typical = 1.0 }
"""


def test_a_plan_of_edges_is_that_of_the_edge_with_most_passes(tmp_path: Path) -> None:
    """It was that of the first one: 1.35 for 8.79, where 20 gradients are a pass of 400 rows and
    twenty of 20.
    """
    changes = ["method.batch=20", "privacy.noise_multiplier=2.0", "privacy.epsilon=50"]
    study = study_of(tmp_path, *changes, text=EDGES)
    regime: Any = regimes.of(study)
    plan = regime.price(study, (400, 100, 20), 650)
    assert plan.used == 20
    assert 0.98 * DELTA < delta_of(plan.epsilon, 2.0, 20) <= DELTA
    assert delta_of(50.0, 2.0, plan.steps) <= DELTA < delta_of(50.0, 2.0, plan.steps + 1)


def test_edges_walk_through_their_rows_however_stale_their_answers_are(tmp_path: Path) -> None:
    study = study_of(tmp_path, text=EDGES)
    full: Any = regimes.of(study).calibrated(study)
    built = regimes.of(full).build(full, tmp_path, "run", None)
    simulation: Any = built.simulation
    met, taken = dict[tuple[int, int], list[int]](), Counter[int]()

    def watched(one: Any) -> Any:
        class Order(Passes):
            def batch(self, step: int, count: int) -> Any:
                found = super().batch(step, count)
                taken[one.index] = max(taken[one.index], step + 1)
                for row in found.tolist():
                    met.setdefault((one.index, row), []).append(step)
                return found

        return replace(one, passes=Order(one.passes.batches))

    clients = [watched(each) for each in simulation.clients]
    replace(simulation, clients=clients).run(built.first, Blind())
    simulation.ledgers.close()
    for one in clients:
        batches = one.passes.batches
        assert batches == len(one.examples) // 40
        assert one.expected_batch == pytest.approx(len(one.examples) / batches)
        gaps = {b - a for (i, _), s in met.items() if i == one.index for a, b in pairwise(s)}
        assert gaps
        assert all(gap % batches == 0 for gap in gaps)  # a whole pass is missed where one is stale
        spent = charges(tmp_path)[f"client:{one.index}"]
        assert len(spent) >= math.ceil(taken[one.index] / batches)
        assert set(spent) == {(privacy.Gaussian(one.mechanism.noise_multiplier), 1)}


class Blind:
    """A watcher that keeps nothing."""

    def row(self, row: Any) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["privacy.sampling=poisson", "privacy.sampling_rate=0.2"], "batches = 5 is of passes"),
        (["privacy.sampling_rate=0.1"], "follows from batches = 5"),
        (["privacy.noise=shared", "method.tau=1"], "the noise of a pass is each client's own"),
        (["method.name=dynamic-dp-sgd"], "changes the noise on the way"),
    ],
)
def test_what_a_pass_has_no_price_for_is_refused(
    changes: list[str], why: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=why):
        study_of(tmp_path, *changes)


def test_a_plan_has_both_prices(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    plan, _ = regimes.of(study).plan(study)
    drawn = privacy.noise_multiplier(
        sampling_rate=0.2, steps=21, epsilon=8.0, delta=DELTA, accountant="pld"
    )
    share = prefix_deviation(5, 21) / math.sqrt(21)
    correlated = pytest.approx(plan.noise_multiplier * share, rel=1e-6)
    wanted = {"poisson": drawn, "passes": plan.noise_multiplier, "correlated": correlated}
    assert plan.samplings == wanted
    text = STUDY.replace('sampling = "passes"\nbatches = 5', "sampling_rate = 0.2")
    other = study_of(tmp_path, text=text)
    assert regimes.of(other).plan(other)[0].samplings == plan.samplings
    advice = regimes.of(study).advise(study, lambda done, of: None)
    (table,) = (each for each in advice.told if isinstance(each, Table) and "batches" in each.head)
    assert [row[0] for row in table.rows] == ["4", "5", "6", "10", "20"]  # 21 steps
    assert table.rows[1] == [
        "5",
        "5",
        *(f"{plan.samplings[name]:.3f}" for name in pricing.SAMPLINGS),
    ]


@pytest.mark.parametrize(("rate", "kinds"), [(2e-4, 3), (5e-6, 0)])
def test_a_plan_of_rare_samples_needs_no_passes(tmp_path: Path, rate: float, kinds: int) -> None:
    """It was refused, with advice about a correlation that the study did not have."""
    text = STUDY.replace('sampling = "passes"\nbatches = 5', f"sampling_rate = {rate}")
    study = study_of(tmp_path, text=text)
    assert len(regimes.of(study).plan(study)[0].samplings) == kinds


def prefix_deviation(bands: int, steps: int) -> float:
    """Of the sum of correlated noise, by dense matrices, in units of sigma C."""
    column = np.array([math.comb(2 * j, j) / 4.0**j for j in range(bands)])
    matrix = np.zeros((steps, steps))
    for j in range(bands):
        matrix += np.diag(np.full(steps - j, column[j]), -j)
    sums = np.tril(np.ones((steps, steps))) @ np.linalg.inv(matrix)
    return float(np.linalg.norm(column) * np.linalg.norm(sums[-1]))
