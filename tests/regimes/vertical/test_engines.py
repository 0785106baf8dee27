"""Three ways to play events: the loop, one graph, message by message. One meaning, to float32
rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from sordino.core import regimes as builder
from sordino.core import study as studies
from sordino.privacy import Allowance
from sordino.regimes.vertical import halves, loop
from sordino.regimes.vertical.halves import Graph
from sordino.regimes.vertical.loop import Loop
from sordino.regimes.vertical.messages import Messages
from sordino.regimes.vertical.method import Threshold
from sordino.regimes.vertical.run import Events

STUDY = """
name = "engines"
[data]
name = "digits"
parties = 3
[model]
name = "mlp"
embedding = 8
hidden = 16
[method]
name = "ogd"
learning_rate = 0.05
learning_rates = [0.05, 0.02, 0.1]
[privacy]
unit = "none"
[budget]
events = 1500
"""
DLR = '{name="dlr", length=7, alpha=0.9, learning_rate=0.05'
SLR = '{name="slr", length=4, learning_rate=0.05'
RANDOM = 'activation={kind="random", p=0.4}'
HERE = "tests.regimes.vertical.test_engines"
OWN = f'model={{name="own", party="{HERE}:party", server="{HERE}:server", embedding=8}}'


def party(features: int, embedding: int) -> nn.Module:
    """As the paper's, and something that no chain has."""
    return nn.Sequential(nn.Linear(features, embedding), nn.ReLU(), nn.Identity())


def server(embeddings: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(sum(embeddings), 16), nn.ReLU(), nn.Linear(16, classes))


def world(folder: Path, *changes: str) -> Events:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(STUDY)
    simulation = builder.build(
        studies.read(folder / "study.toml", changes), folder, "run"
    ).simulation
    assert isinstance(simulation, Events)
    return simulation


def paid(made: Events) -> Allowance:
    """For one appearance of every entity."""
    return Allowance(
        made.ledgers.charge(
            [request.charge for request in made.appearances.charges([("test", 1, 1, 1)])],
            made.unlimited,
        )
    )


def same(one: Any, other: Any, atol: float) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("method", ['{name="ogd", learning_rate=0.05', DLR, SLR])
def test_every_path_gives_the_same_weights_and_numbers(tmp_path: Path, method: str) -> None:
    asked = f"method={method}}}"
    plain = world(tmp_path / "a", asked)
    handed = world(tmp_path / "b", asked, 'execution.path="messages"')
    joint = world(tmp_path / "c", asked, OWN)
    engines: list[Any] = [each.engine() for each in (plain, joint, handed)]
    kinds = [Graph if method is SLR else Loop, Graph, Messages]
    assert [type(engine) for engine in engines] == kinds
    engines[1].unpack(engines[1].pack() | engines[0].weights())
    done = 0
    for count in (1, 2, 60, 137):
        read = plain.stream.read(done, count)
        active = np.random.default_rng(done).random((count, 3)) < 0.6
        done += count
        played = [
            engine.run(read.x, read.y, active, np.zeros_like(active), paid(plain))
            for engine in engines
        ]
        for other in played[1:]:
            # scores that are all but equal
            assert (other.predictions == played[0].predictions).mean() > 0.98
            np.testing.assert_allclose(other.losses, played[0].losses, rtol=2e-3, atol=2e-4)
            np.testing.assert_allclose(other.regret, played[0].regret, rtol=5e-3, atol=1e-5)
        for engine in engines[1:]:
            same(engines[0].weights(), engine.weights(), 5e-5)


def test_numbers_of_16_bits_are_rounded_in_the_same_place_on_every_path(tmp_path: Path) -> None:
    """Of a window that is no power of two, the mean's derivative rounds elsewhere than each
    example's own: by thousandths.
    """
    asked = (
        'method={name="slr", length=10, learning_rate=0.5, activation="full"}',
        "world.precision=16",
    )
    worlds = (
        world(tmp_path / "a", *asked),
        world(tmp_path / "b", *asked, 'execution.path="messages"'),
        world(tmp_path / "c", *asked, OWN),
    )
    graph, handed, joint = engines = [each.engine() for each in worlds]
    before: Any = graph.weights()
    joint.unpack(joint.pack() | before)
    read = worlds[0].stream.read(0, 1)
    for engine in engines:
        engine.run(read.x, read.y, np.ones((1, 3), bool), np.zeros((1, 3), bool), paid(worlds[0]))
    for name, values in graph.weights().items():
        moved = np.abs(values - before[name]).max()
        assert moved > 1e-3
        for other in (handed, joint):
            np.testing.assert_allclose(
                other.weights()[name], values, rtol=0, atol=2e-5 * moved, err_msg=name
            )


@pytest.mark.parametrize(
    ("method", "more"),
    [
        (DLR, ()),
        (SLR, (OWN,)),
        (DLR, (OWN, "method.batch=3", "budget.events=700")),
        pytest.param(SLR, (), marks=pytest.mark.nightly),
        pytest.param(DLR, (OWN,), marks=pytest.mark.nightly),
        pytest.param(SLR, (OWN, "method.batch=3", "budget.events=700"), marks=pytest.mark.nightly),
    ],
)
def test_packed_and_unpacked_it_goes_on_bit_for_bit(
    tmp_path: Path, method: str, more: tuple[str, ...]
) -> None:
    made = world(tmp_path / "a", f"method={method}, {RANDOM}}}", "world.precision=16", *more)
    engine, batch = made.engine(), made.batch
    for place, count in ((0, 40), (40, 60)):
        read = made.stream.read(place * batch, count * batch)
        active, _ = made.activity.drawn(read.x, place, count)
        engine.run(read.x, read.y, active, np.zeros_like(active), paid(made))
    other = made.engine()
    other.unpack({name: values.copy() for name, values in engine.pack().items()})
    read = made.stream.read(100 * batch, 200 * batch)
    active, _ = made.activity.drawn(read.x, 100, 200)
    first, second = (
        each.run(read.x, read.y, active, np.zeros_like(active), paid(made))
        for each in (engine, other)
    )
    assert (first.predictions == second.predictions).all()
    assert (first.regret == second.regret).all()
    assert all((values == other.weights()[name]).all() for name, values in engine.weights().items())


def test_batches_as_one_graph_and_by_messages_are_the_same(tmp_path: Path) -> None:
    for method in (DLR, SLR):
        asked = (f"method={method}, batch=4, {RANDOM}}}", "budget.events=300")
        joint = world(tmp_path / "a", *asked)
        handed = world(tmp_path / "b", *asked, 'execution.path="messages"')
        read = joint.stream.read(0, 4 * 120)
        active, _ = joint.activity.drawn(read.x, 0, 120)
        engines = [joint.engine(), handed.engine()]
        one, two = (
            engine.run(read.x, read.y, active, np.zeros_like(active), paid(joint))
            for engine in engines
        )
        assert (one.predictions == two.predictions).mean() > 0.98
        np.testing.assert_allclose(one.losses, two.losses, rtol=1e-3, atol=1e-4)
        same(engines[0].weights(), engines[1].weights(), 2e-5)
        for made in (joint, handed):
            made.ledgers.close()
        for place in ("a", "b"):
            for file in (tmp_path / place).iterdir():
                file.unlink()


@pytest.mark.parametrize(
    ("method", "own"),
    [
        (f'{DLR}, buffer="server"', 'buffer="server"'),
        (f'{DLR}, schedule="inverse-root"', 'schedule="inverse-root"'),
        pytest.param(
            '{name="ogd", learning_rate=0.5, schedule="inverse-root"',
            'schedule="inverse-root"',
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_what_the_loop_has_no_rule_for_is_played_as_one_graph_and_by_messages_alike(
    tmp_path: Path, method: str, own: str
) -> None:
    """Algorithm 3 as printed, and the rate of Theorem 2; each differs from what it is not."""
    asked = (f"method={method}, {RANDOM}}}", "budget.events=300")
    joint = world(tmp_path / "a", *asked)
    handed = world(tmp_path / "b", *asked, 'execution.path="messages"')
    other = world(tmp_path / "c", asked[0].replace(f", {own}", ""), asked[1])
    engines = [made.engine() for made in (joint, handed, other)]
    assert isinstance(engines[0], Graph)
    read = joint.stream.read(0, 300)
    active, _ = joint.activity.drawn(read.x, 0, 300)
    one, two, three = (
        engine.run(read.x, read.y, active, np.zeros_like(active), paid(joint)) for engine in engines
    )
    np.testing.assert_allclose(one.losses, two.losses, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(one.regret, two.regret, rtol=5e-3, atol=1e-5)
    same(engines[0].weights(), engines[1].weights(), 2e-5)
    assert np.abs(one.losses - three.losses).max() > 0.01


def test_a_threshold_in_units_of_standardised_features_is_one_of_features() -> None:
    means = np.array([[-0.9, -0.7, -0.62, -0.61, 0.4]], np.float32)

    def active(**given: float) -> list[bool]:
        found: list[bool] = Threshold(**given).active((1, 5), nothing, lambda: means)[0].tolist()
        return found

    def nothing() -> NDArray[np.float64]:
        raise AssertionError("nothing is drawn")

    mnist = {"mean": 2 * 0.1307 - 1, "deviation": 2 * 0.3081}
    assert active(threshold=0.2, **mnist) == [False, False, False, True, True]
    assert active(threshold=0.2, **mnist) == active(threshold=-0.61536)
    assert active(threshold=-np.inf, **mnist) == [True] * 5
    assert active(threshold=0.0, deviation=3.0) == active(threshold=0.0)


def test_compiled_code_counts_seconds_where_all_engines_do() -> None:
    assert (loop.FORWARD, loop.BACKWARD, loop.SERVER) == (
        halves.FORWARD,
        halves.BACKWARD,
        halves.SERVER,
    )
