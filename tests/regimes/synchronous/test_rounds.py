"""The simulator: charged before released, late and lost accounted for, resumed to the same end.

Clients here are tiny: they answer with weights moved by their own number, and write down what
the ledger held when they were asked. So the order of charge and release can be seen.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.base.entropy import Seeded
from sordino.base.message import Train, Update
from sordino.clients.world import HorizontalWorld, round_trips
from sordino.core.records import Row, plain
from sordino.core.run import folder as log
from sordino.core.study.base import LATENCIES, Constant, Lognormal, World
from sordino.core.world import KernelSnapshot
from sordino.privacy import Budget, Event, Gaussian, LedgerSession, Permit, PoissonSampled
from sordino.regimes.synchronous.method import ServerOptimizer, Terms
from sordino.regimes.synchronous.methods import DpSgd
from sordino.regimes.synchronous.protocol import Synchronous

STEP = PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=1.0))
N = 5


@dataclass
class Toy:
    """A client that only counts."""

    index: int
    ledgers: LedgerSession
    # round, steps, steps in the ledger when asked
    worked: list[tuple[int, int, int]] = field(default_factory=list)

    def price(self, task: Train) -> tuple[tuple[Event, int], ...]:
        return ((STEP, task.steps),)

    def answer(self, task: Train, permits: Sequence[Permit]) -> Update:
        assert [(r.event, r.count, r.round) for r in permits] == [(STEP, task.steps, task.round)]
        self.worked.append(
            (
                task.round,
                task.steps,
                sum(count for _, count in self.ledgers.spent(f"client:{self.index}")),
            )
        )
        noise = (
            Seeded(7)
            .at("client", self.index, "round", task.round)
            .standard_normal(3)
            .astype(np.float32)
        )
        return Update(
            client=self.index, round=task.round, steps=task.steps, weights=task.weights + noise
        )


@dataclass
class Watch:
    """Keeps rows and moments; dies when told to."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    moments: list[tuple[KernelSnapshot[Any], int]] = field(default_factory=list)
    die_after: int | None = None

    def row(self, row: Row) -> None:
        self.rows.append(plain(row))
        if self.die_after is not None and len(self.rows) >= self.die_after:
            raise KeyboardInterrupt

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: KernelSnapshot[Any]) -> None:
        self.moments.append((moment, len(self.rows)))


def evaluate(weights: np.ndarray) -> Mapping[str, float]:
    return {"accuracy": float(abs(weights).sum())}


@contextmanager
def world(
    folder: Path, **options: Any
) -> Iterator[tuple[HorizontalWorld[Any], KernelSnapshot[Any]]]:
    ledgers = LedgerSession.for_run(
        folder / "ledger.sqlite", {f"client:{i}": f"data {i}" for i in range(N)}
    )
    steps = options.pop("steps", 30)
    terms = Terms(
        dimension=3,
        sizes=(100,) * N,
        weights=(1 / N,) * N,
        sampling_rate=0.1,
        learning_rate=0.1,
        clip=1.0,
        noise=1.0,
        rounds=options.pop("rounds", 8),
        steps=steps,
    )
    regime = Synchronous(
        method=DpSgd(tau=2, momentum=0.5, server=options.pop("server", None)),
        terms=terms,
        budget=np.full(N, steps),
        entropy=Seeded(3),
        cohort=options.pop("cohort", None),
        deadline=options.pop("deadline", None),
    )
    budget = options.pop("budget", Budget(epsilon=50.0, delta=1e-5, accountant="rdp"))
    simulation = HorizontalWorld(
        regime=regime,
        clients=[Toy(i, ledgers) for i in range(N)],
        ledgers=ledgers,
        budget=budget,
        budgets=[budget] * N,
        affordable_steps=[steps] * N,
        units=[f"client:{i}" for i in range(N)],
        trips=round_trips(
            World(latency=options.pop("latency", Lognormal(shape=1.0)), **options.pop("away", {})),
            Seeded(3),
        ),
        evaluate=evaluate,
        stride=1,
        method="toy",
        charge_key_prefix=options.pop("charge_key_prefix", "run/here"),
    )
    assert not options
    try:
        yield simulation, KernelSnapshot.initial(regime.start(np.zeros(3, np.float32)))
    finally:
        ledgers.close()


def booked(simulation: HorizontalWorld[Any]) -> list[int]:
    return [sum(count for _, count in simulation.ledgers.spent(unit)) for unit in simulation.units]


def worked(simulation: HorizontalWorld[Any]) -> list[tuple[int, int, int]]:
    return [entry for client in simulation.clients for entry in client.worked]


def test_every_release_was_booked_before(tmp_path: Path) -> None:
    with world(tmp_path) as (simulation, start):
        end = simulation.run(start, Watch())
        assert end.state.ended is not None
        assert len(worked(simulation)) == 8 * N
        for number, steps, held in worked(simulation):
            assert held == number * steps  # the ledger already held this round's steps
        assert booked(simulation) == [16] * N


def test_virtual_time_is_that_of_the_slowest(tmp_path: Path) -> None:
    latency = Constant(typical=3.0, step=0.5)
    with world(tmp_path, latency=latency) as (simulation, start):
        assert simulation.run(start, Watch()).time == pytest.approx(8 * (3.0 + 2 * 0.5))


def test_late_answers_are_booked_but_not_used(tmp_path: Path) -> None:
    watch = Watch()
    with world(tmp_path, deadline=1.0) as (simulation, start):
        simulation.run(start, watch)
        late = [row for row in watch.rows if row["kind"] == "late"]
        asked = sum(row["cohort"] for row in watch.rows if row["kind"] == "round")
        used = sum(row["answered"] for row in watch.rows if row["kind"] == "round")
        assert late
        assert all(row["released"] for row in late)
        assert used == len(worked(simulation)) < asked
        assert sum(booked(simulation)) == 2 * asked


def test_lost_clients_are_booked_not_released_and_come_back(tmp_path: Path) -> None:
    watch = Watch()
    latency = Constant(typical=0.5)
    with world(
        tmp_path, deadline=1.0, latency=latency, away={"dropout": 0.3, "rejoin": 0.5}, rounds=14
    ) as (simulation, start):
        simulation.run(start, watch)
        lost = [row for row in watch.rows if row["kind"] == "lost"]
        asked = sum(row["cohort"] for row in watch.rows if row["kind"] == "round")
        assert lost
        assert not any(row["released"] for row in lost)
        assert [row for row in watch.rows if row["kind"] == "joined"]
        assert sum(booked(simulation)) == 2 * asked
        assert len(worked(simulation)) == asked - len(lost)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deadline": 1.0},
        {"deadline": 1.0, "away": {"dropout": 0.3}},
        {"cohort": 3},
        {"server": ServerOptimizer(kind="yogi", rate=0.5)},
    ],
)
def test_killed_after_any_row_it_ends_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = Watch()
    (tmp_path / "whole").mkdir()
    with world(tmp_path / "whole", **options) as (simulation, start):
        end = simulation.run(start, whole)
        once = booked(simulation)
    for die_after in range(1, len(whole.rows), 3):
        folder = tmp_path / f"killed-{die_after}"
        (folder / "checkpoints").mkdir(parents=True)
        first = Watch(die_after=die_after)
        with world(folder, **options) as (simulation, start), pytest.raises(KeyboardInterrupt):
            simulation.run(start, first)
        with world(folder, **options) as (simulation, start):
            moment, length = first.moments[-1] if first.moments else (start, 0)
            log.write_checkpoint(folder, log.Saved(moment, length, "synchronous", {}))
            saved = log.read_checkpoint(folder, simulation, "synchronous")
            assert saved is not None
            assert isinstance(saved.moment, KernelSnapshot)
            second = Watch(rows=first.rows[: saved.log_length])
            again = simulation.run(saved.moment, second)
            assert again.state.weights.tobytes() == end.state.weights.tobytes()
            assert again.time == end.time
            assert second.rows == whole.rows
            assert booked(simulation) == once
            simulation.ledgers.ledger.verify()


def test_another_environment_books_replayed_rounds_again(tmp_path: Path) -> None:
    first = Watch(die_after=3)
    with world(tmp_path) as (simulation, start), pytest.raises(KeyboardInterrupt):
        simulation.run(start, first)
    with world(tmp_path, charge_key_prefix="run/elsewhere") as (simulation, start):
        simulation.run(start, Watch())
        assert min(booked(simulation)) > 16


def test_refused_when_somebody_else_spent_the_budget_and_nothing_is_released(
    tmp_path: Path,
) -> None:
    tight = Budget(epsilon=3.0, delta=1e-5, accountant="rdp")
    allowed = tight.remaining_steps(STEP, [])
    assert allowed is not None
    watch = Watch()
    with world(tmp_path, budget=tight, steps=allowed + 50, rounds=100) as (simulation, start):
        end = simulation.run(start, watch)
        assert "over the budget of 3" in (end.state.ended or "")
        assert max(booked(simulation)) <= allowed
        assert sum(steps for _, steps, _ in worked(simulation)) == sum(booked(simulation))
        assert [row["kind"] for row in watch.rows[-2:]] == ["refused", "end"]


def test_budget_exhaustion_ends_the_run_with_the_last_round_cut(tmp_path: Path) -> None:
    watch = Watch()
    with world(tmp_path, steps=5) as (simulation, start):
        end = simulation.run(start, watch)
        assert [row["tau"] for row in watch.rows if row["kind"] == "round"] == [2, 2, 1]
        assert "privacy budget" in (end.state.ended or "")


def test_endless_delays_stay_finite(tmp_path: Path) -> None:
    latency = Constant(typical=1e300, step=1e308, spread=50.0)
    with world(tmp_path, latency=latency) as (simulation, start):
        end = simulation.unpack(simulation.run(start, Watch()).pack())
        assert 0 < end.time < 1e14


@pytest.mark.parametrize("kind", ["constant", "exponential", "lognormal", "pareto"])
def test_latencies_have_the_moments_they_name(kind: Any) -> None:
    model = LATENCIES.known()[kind].model_validate(
        {"typical": 2.0, "shape": 3.0 if kind == "pareto" else 0.5}
    )
    draws = np.array([model.draw(Seeded(1), 0, k, 1) for k in range(4000)])
    median = {
        "constant": 2.0,
        "exponential": 2.0 * np.log(2),
        "lognormal": 2.0,
        "pareto": 2.0 * 2 ** (1 / 3),
    }[kind]
    assert np.median(draws) == pytest.approx(median, rel=0.1)
    assert draws.min() > 0
    assert model.model_copy(update={"step": 1.0}).draw(Seeded(1), 0, 5, 3) == pytest.approx(
        model.draw(Seeded(1), 0, 5, 3) + 3.0
    )
