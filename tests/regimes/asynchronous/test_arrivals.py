"""Whole asynchronous runs: the same study gives the same run, killed anywhere it gives the same
end, and the ledger never under-counts.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.base.errors import StudyError
from sordino.clients.world import HorizontalWorld
from sordino.core import regimes as builder
from sordino.core import study as studies
from sordino.core.prepared import PreparedRun
from sordino.core.records import Row, dumped
from sordino.core.run import folder as log
from sordino.core.world import KernelSnapshot
from sordino.privacy import Gaussian, PoissonSampled, accountant
from sordino.regimes.asynchronous import assemble
from sordino.training.perexample.sums import Paths

STUDY = """
name = "arrivals"
[data]
name = "digits"
clients = 4
[model]
name = "logistic"
[method]
name = "mapa"
batch = 30
gap = 0.4
[privacy]
unit = "sample"
epsilon = 4.0
delta = 1e-3
[budget]
updates = 120
[world]
latency = { kind = "lognormal", shape = 0.8, spread = 0.5 }
[execution]
evaluate_every = 10
"""

WORLDS = [
    (),
    ('world.latency={kind="cyclic"}',),
    ("world.dropout=0.1", 'world.latency={kind="pareto", shape=1.5}'),
    ("participation.buffer=3", "participation.staleness_weight=0.5", "method.average=0.9"),
    ("participation.staleness=2", "budget.tasks=30"),
    ("privacy.epsilons=[1.0, 2.0, 3.0, 4.0]",),
    ('method={name="audp", batch=30}',),
    ('method={name="audp", batch=30, form="paper"}',),
    ('method={name="mapa", batch=30, form="paper", iteration_epsilons=[0.1, 0.2, 0.3, 0.4]}',),
    ('method={name="asgd", batch=30}', 'privacy={unit="none"}'),
    ('method={name="csgd", batch=30}', 'privacy={unit="none"}'),
]


class Watch:
    """Keeps rows and packed moments; dies after so many rows of updates."""

    def __init__(self, die_after: int | None = None, rows: list[Any] | None = None) -> None:
        self.rows: list[Any] = list(rows or [])
        self.saved: list[tuple[Any, int]] = []
        self.die_after = die_after

    def row(self, row: Row) -> None:
        self.rows.append(json.loads(dumped(row)))

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: KernelSnapshot[Any]) -> None:
        self.saved.append((moment.pack(), len(self.rows)))
        if self.die_after is not None and len(self.saved) == self.die_after:
            raise KeyboardInterrupt


def made(
    folder: Path, *changes: str, run: str = "run", affordable_steps: list[int] | None = None
) -> PreparedRun:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(STUDY)
    built = builder.build(
        studies.read(folder / "study.toml", changes), folder, run, affordable_steps
    )
    assert isinstance(built.simulation, HorizontalWorld)
    return built


def booked(world: HorizontalWorld[Any]) -> list[int]:
    return [sum(count for _, count in world.ledgers.spent(unit)) for unit in world.units]


def booked_of(world: HorizontalWorld[Any], edge: int) -> int:
    return booked(world)[edge]


@pytest.mark.parametrize("changes", WORLDS, ids=[" ".join(w)[:40] or "plain" for w in WORLDS])
def test_killed_anywhere_it_comes_to_the_same_end(tmp_path: Path, changes: tuple[str, ...]) -> None:
    built, whole = made(tmp_path / "whole", *changes), Watch()
    world: Any = built.simulation
    end = world.run(built.first, whole)
    affordable_steps, once = world.affordable_steps, booked(world)
    world.ledgers.close()
    for die_after in (1, 4, len(whole.saved) - 1) if not changes else (4,):
        folder = tmp_path / f"killed-{die_after}"
        built, first = made(folder, *changes), Watch(die_after)
        with pytest.raises(KeyboardInterrupt):
            built.simulation.run(built.first, first)
        built.simulation.ledgers.close()
        built = made(folder, *changes, affordable_steps=affordable_steps)
        world = built.simulation
        (packed, length) = first.saved[-1]
        (folder / "checkpoints").mkdir()
        log.write_checkpoint(folder, log.Saved(world.unpack(packed), length, "asynchronous", {}))
        saved = log.read_checkpoint(folder, world, "asynchronous")
        assert saved is not None
        second = Watch(rows=first.rows[:length])
        again = world.run(saved.moment, second)
        assert again.model.tobytes() == end.model.tobytes()
        assert again.time == end.time
        assert second.rows == whole.rows
        assert booked(world) == once
        world.ledgers.ledger.verify()
        world.ledgers.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "changes", WORLDS[:6], ids=[" ".join(w)[:40] or "plain" for w in WORLDS[:6]]
)
def test_every_gradient_is_booked_before_it_is_computed_and_nobody_passes_its_budget(
    tmp_path: Path, changes: tuple[str, ...]
) -> None:
    built, watch = made(tmp_path / "run", *changes), Watch()
    world: Any = built.simulation
    recorded = [Recorded(edge, partial(booked_of, world, edge.index)) for edge in world.clients]
    world = replace(world, clients=recorded)
    end = world.run(built.first, watch)
    assert end.ended is not None
    for edge, (given, count) in enumerate(zip(end.state.given, booked(world), strict=True)):
        assert recorded[edge].computed <= given <= count  # over-counted, never under-counted
        assert count <= world.regime.budget[edge]
        assert count - given <= world.block + world.block // 4
    for unit, own in zip(world.units, world.budgets, strict=True):
        assert world.ledgers.epsilon(unit, own.delta, own.accountant) <= own.epsilon


class Recorded:
    """An edge that looks at the ledger before it answers."""

    def __init__(self, edge: Any, booked: Callable[[], int]) -> None:
        self.edge, self.booked, self.computed = edge, booked, 0

    def answer(self, task: Any, permit: Any) -> Any:
        self.computed += 1
        assert self.booked() >= self.computed
        return self.edge.answer(task, permit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.edge, name)


def test_cyclic_delays_make_every_gradient_as_stale_as_there_are_others(tmp_path: Path) -> None:
    built, watch = made(tmp_path / "run", 'world.latency={kind="cyclic"}'), Watch()
    built.simulation.run(built.first, watch)
    seen: Counter[int] = Counter()
    for row in watch.rows:
        seen.update(dict(row.get("histogram", [])))
    assert seen == {0: 1, 1: 1, 2: 1, 3: 117}


def test_edges_with_budgets_of_their_own_get_noise_of_their_own(tmp_path: Path) -> None:
    built = made(
        tmp_path / "run", "privacy.epsilons=[1.0, 2.0, 3.0, 4.0]", 'world.latency={kind="cyclic"}'
    )
    world: Any = built.simulation
    sigmas = [edge.mechanism.noise_multiplier for edge in world.clients]
    assert sigmas == sorted(sigmas, reverse=True)
    assert len(set(sigmas)) == 4
    world.run(built.first, Watch())
    spent = [world.ledgers.epsilon(unit, 1e-3, "pld") for unit in world.units]
    assert spent == pytest.approx([1.0, 2.0, 3.0, 4.0], rel=0.1)
    assert all(value <= target for value, target in zip(spent, (1.0, 2.0, 3.0, 4.0), strict=True))


def test_models_that_several_edges_hold_are_kept_once(tmp_path: Path) -> None:
    built = made(
        tmp_path / "run", 'world.latency={kind="cyclic"}', "data.clients=40", "method.batch=5"
    )
    watch = Watch(die_after=1)
    world: Any = built.simulation
    with pytest.raises(KeyboardInterrupt):
        world.run(built.first, watch)
    packed, _ = watch.saved[0]
    versions = [name for name in packed.vectors if name.startswith("version.")]
    assert len(versions) == 11  # 30 edges still hold the first model
    assert len({id(task.weights) for task in world.unpack(packed).state.tasks.values()}) == 11
    packed.vectors["version.0"] = packed.vectors["version.0"][:1]
    with pytest.raises(ValueError, match="different lengths"):
        world.unpack(packed)


def test_a_trace_is_played_and_its_mistakes_are_named(tmp_path: Path) -> None:
    from sordino.base.errors import StudyError
    from sordino.core.study.base import read_trace

    path = tmp_path / "delays.csv"
    path.write_text("client,seconds\n" + "".join(f"{i % 4},{0.5 + i % 4}\n" for i in range(12)))
    assert read_trace(path, 4)[2] == (2.5, 2.5, 2.5)
    built, watch = made(tmp_path / "run", f'world.latency={{kind="trace", file="{path}"}}'), Watch()
    end: Any = built.simulation.run(built.first, watch)
    assert end.state.given[0] > end.state.given[3]  # until it has spent its budget
    with pytest.raises(StudyError, match="nothing was measured of client 4"):
        read_trace(path, 5)
    for line, message in (
        ("0,-1", "must be positive"),
        ("x,1", "must be numbers"),
        ("0", "must be numbers"),
    ):
        path.write_text(f"client,seconds\n{line}\n")
        with pytest.raises(StudyError, match=f"line 2.*{message}"):
            read_trace(path, 1)
    path.write_text("a,b\n")
    with pytest.raises(StudyError, match="needs the columns client and seconds"):
        read_trace(path, 1)
    with pytest.raises(StudyError, match=r"world\.latency\.file.*cannot be read"):
        read_trace(tmp_path / "none.csv", 1)


def test_the_first_layer_alone_is_noised_only_if_asked_for(tmp_path: Path) -> None:
    literal = 'method={name="mapa", batch=30, form="paper", noised="first-layer"}'
    built = made(tmp_path / "run", literal, "model.name=mlp")
    world: Any = built.simulation
    assert world.clients[0].noised == 64 * 200 + 200
    end = world.run(built.first, Watch())
    assert np.isinf(world.ledgers.epsilon("client:0", 1e-3, "pld"))
    assert end.number == 120


def test_the_papers_form_takes_each_edges_own_epsilon_and_the_least_sets_the_schedule(
    tmp_path: Path,
) -> None:
    own = 'method={name="mapa", batch=30, form="paper", iteration_epsilons=[0.4, 0.1, 0.2, 0.3]}'
    world: Any = made(tmp_path / "run", own).simulation
    assert [edge.iteration_epsilon for edge in world.clients] == [0.4, 0.1, 0.2, 0.3]
    least = 'method={name="mapa", batch=30, form="paper", iteration_epsilon=0.1}'
    alike: Any = made(tmp_path / "alike", least).simulation
    assert world.regime.schedule == alike.regime.schedule
    bound: Any = made(tmp_path / "bound", least.replace("}", ", bound=7}")).simulation
    assert bound.regime.schedule[0].clip == 7.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("method.form=paper", "privacy.epsilons=[1, 2, 3, 4]"), "method.iteration_epsilons"),
        (("method.form=paper", "privacy.noise_multipliers=[1, 2, 3, 4]"), "no effect"),
        (("method.form=paper", "method.batch=7.5"), "a whole number"),
        (("method.form=paper", "method.iteration_epsilons=[1, 2]"), "one for each edge"),
        (("method.iteration_epsilons=[1, 2, 3, 4]",), "privacy.epsilons"),
    ],
)
def test_what_one_form_would_leave_unused_is_refused(
    tmp_path: Path, changes: tuple[str, ...], said: str
) -> None:
    with pytest.raises(StudyError, match=said):
        made(tmp_path / "run", *changes)


@pytest.mark.parametrize("model", ["logistic", "svm"])
@pytest.mark.parametrize("method", ['{name="mapa", batch=30, gap=0.4}', '{name="asgd", batch=30}'])
def test_the_compiled_call_and_the_general_path_give_the_same_run(
    tmp_path: Path, model: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [
        f'model.name="{model}"',
        f"method={method}",
        *(['privacy={unit="none"}'] if "asgd" in method else []),
    ]
    # weights of both ways differ in their last bits, and noise is drawn over the bits
    monkeypatch.setattr(assemble, "hidden", lambda task, total: ())
    fast = made(tmp_path / "fast", *changes)
    quick = fast.simulation.run(fast.first, Watch())
    monkeypatch.setattr(Paths, "in_place", lambda self, examples, chosen: None)
    slow = made(tmp_path / "slow", *changes)
    general = slow.simulation.run(slow.first, Watch())
    assert quick.model == pytest.approx(general.model, abs=2e-5)
    assert np.abs(quick.model).max() > 0.1


def test_a_second_run_over_the_same_data_has_only_what_is_left(tmp_path: Path) -> None:
    kept = f'privacy.ledger="{tmp_path / "kept"}"'
    cyclic = 'world.latency={kind="cyclic"}'
    first = made(
        tmp_path / "one",
        kept,
        cyclic,
        "privacy.noise_multiplier=2.0",
        "privacy.epsilon=3.0",
        run="one",
    )
    world: Any = first.simulation
    end = world.run(first.first, Watch())
    assert end.number == 120
    world.ledgers.close()
    second = made(
        tmp_path / "two",
        kept,
        cyclic,
        "privacy.noise_multiplier=2.0",
        "privacy.epsilon=3.0",
        "budget.updates=2000",
        run="two",
    )
    world = second.simulation
    before = [world.ledgers.epsilon(unit, 1e-3, "pld") for unit in world.units]
    assert min(before) > 0.5
    end = world.run(second.first, Watch())
    assert "every edge has spent" in (end.ended or "")
    assert end.number < 2000
    for unit in world.units:
        assert 2.8 < world.ledgers.epsilon(unit, 1e-3, "pld") <= 3.0


def test_an_edge_that_is_away_keeps_all_of_its_blocks_over_a_restart(tmp_path: Path) -> None:
    changes = (
        "world.dropout=0.3",
        "execution.evaluate_every=1",
        "budget.updates=400",
        "privacy.accountant=rdp",
        "privacy.noise_multiplier=3.0",
        "privacy.epsilon=20",
    )
    built, whole = made(tmp_path / "run", *changes, "seed=2"), Watch()
    world: Any = built.simulation
    end = world.run(built.first, whole)
    affordable_steps = world.affordable_steps
    world.ledgers.close()
    found = []
    for packed, _ in whole.saved:
        rest = json.loads(packed.rest)
        held = {edge for edge, *_ in rest["state"]["tasks"]}
        blocks = {int(edge): own for edge, own in rest["blocks"].items()}
        given = rest["state"]["given"]
        if any(
            len(own) > 1 and edge not in held and given[edge] + 1 < own[1][0]
            for edge, own in blocks.items()
        ):
            found.append(packed)
    assert found  # or the seed must change
    built = made(tmp_path / "run", *changes, "seed=2", affordable_steps=affordable_steps)
    world = built.simulation
    again = world.run(world.unpack(found[0]), Watch())
    world.ledgers.close()
    assert again.model.tobytes() == end.model.tobytes()


def test_two_runs_over_one_ledger_share_no_noise(tmp_path: Path) -> None:
    sent = []
    for name in ("a", "b"):
        built = made(
            tmp_path / name,
            f"privacy.ledger='{tmp_path / 'kept'}'",
            "privacy.noise_multiplier=3.0",
            run=name,
        )
        world: Any = built.simulation
        watch = Watch()
        sent.append(world.run(built.first, watch).model)
        world.ledgers.close()
    assert not np.array_equal(*sent)


def test_edges_with_equal_data_share_what_their_ledger_has_left(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [[*rng.normal(size=3), int(i % 2)] for i in range(80)]
    lines = ["f0,f1,f2,label,who"] + [
        ",".join(map(str, [*row, who])) for who in "ab" for row in rows
    ]
    (tmp_path / "twins.csv").write_text("\n".join(lines))
    file = tmp_path / "twins.csv"
    data = (
        f'data={{file="{file}", test="none", client_column="who", clients=2, '
        'partition={kind="column"}}'
    )
    built = made(tmp_path / "run", data, f"privacy.ledger='{tmp_path / 'kept'}'", "method.batch=10")
    world: Any = built.simulation
    end = world.run(built.first, Watch())
    world.ledgers.close()
    assert end.ended is not None


def test_an_infinite_epsilon_of_one_edge_lifts_no_other_edges_limit(tmp_path: Path) -> None:
    changes = (
        'privacy.epsilon="inf"',
        'privacy.epsilons=[0.5, "inf", "inf", "inf"]',
        "privacy.noise_multiplier=2.0",
    )
    built, watch = made(tmp_path / "run", *changes), Watch()
    world: Any = built.simulation
    end = world.run(built.first, watch)
    assert end.number == 120
    assert end.state.gone == {0}
    world.ledgers.close()


def test_endless_delays_stay_finite(tmp_path: Path) -> None:
    for name, latency in (
        ("p", 'kind="pareto", shape=0.001'),
        ("l", 'kind="lognormal", shape=400'),
    ):
        built, watch = made(tmp_path / name, f"world.latency={{{latency}}}"), Watch()
        world: Any = built.simulation
        world.unpack((world.run(built.first, watch)).pack())
        world.ledgers.close()


def test_what_cannot_be_reckoned_with_is_said_and_what_was_given_is_taken(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="clipping bounds or lengths of stages"):
        made(tmp_path / "theta", "method.theta=1e-200")
    with pytest.raises(StudyError, match=r"world\.dropout = 1"):
        made(tmp_path / "gone", "world.dropout=1.0")
    built = made(tmp_path / "noise", "privacy.noise_multipliers=[1.0, 2.0, 3.0, 4.0]")
    world: Any = built.simulation
    assert [edge.mechanism.noise_multiplier for edge in world.clients] == [1.0, 2.0, 3.0, 4.0]
    world.ledgers.close()


def test_a_plan_shows_the_edge_that_spends_most(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    changes = (
        'data.partition={kind="dirichlet", beta=0.1}',
        "method.batch=10",
        "privacy.epsilon=8.0",
        "privacy.epsilons=[0.3, 8.0, 8.0, 8.0]",
    )
    study: Any = studies.read(path, changes)
    priced, sizes = builder.plan(study)
    full: Any = builder.calibrated(study)
    regime: Any = builder.of(study)
    edges = zip(regime.rates(study, sizes), full.multipliers, strict=True)
    each = [
        accountant("pld").epsilon([(PoissonSampled(rate, Gaussian(z)), regime.share(full))], 1e-3)
        for rate, z in edges
    ]
    assert priced.epsilon == pytest.approx(max(each), rel=1e-9)
