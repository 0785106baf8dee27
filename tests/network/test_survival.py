"""Processes that are killed, stopped, frozen, doubled or cannot write, and lines that fail, at
random moments, over every regime and transport: each run ends, no ledger lies below a capture of
what was sent, nothing is applied twice, and the journal of the server leads to the same model.

The seed is printed where a test fails; FAULTS_SEED draws other moments, FAULTS another number.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import study_of
from lives import FAULTS, FROZE, KILLED, RESTORED, TERMINATED, Faults, Nursery, Relay
from memory import Net
from mosquitto import NEEDED
from sordino.base.entropy import Transcript
from sordino.core import study as studies
from sordino.core.records import known
from sordino.core.run import reading
from sordino.core.run.folder import KEY
from sordino.core.study.base import Study
from sordino.network import demo
from sordino.network.kernel import KernelOptions, LiveKernel
from sordino.network.kit import Agreed
from sordino.network.server import ServerOptions, prepare_server
from sordino.network.server_session import ServerSession
from sordino.network.storage import Input, _packed
from sordino.network.sums import LiveSums, Sums
from sordino.network.transport import Mailbox
from sordino.privacy import Ledger
from sordino_mqtt import broker

EVENTS = """
name = "Events"
[data]
name = "digits"
parties = 2
stream = "replay"
[model]
name = "mlp"
embedding = 4
hidden = 8
[method]
name = "slr"
learning_rate = 0.05
length = 3
activation = { kind = "random", p = 0.5 }
[privacy]
unit = "entity"
epsilon = 64.0
delta = 1e-6
label_epsilon = 4.0
embedding = { clip = 1.0 }
updates = "noisy"
[budget]
events = 400
[execution]
path = "messages"
evaluate_every = 25
checkpoint_every = 1
"""
LONGER = {
    "synchronous": ["budget.rounds=60", "privacy.epsilon=200"],
    "client": ["budget.rounds=60", "privacy.epsilon=200"],
    "asynchronous": ["budget.updates=300", "privacy.epsilon=200"],
    "shared": ["budget.rounds=40", "privacy.epsilon=200"],
}
REGIMES = (*LONGER, "vertical")
LONGER["passes"] = ["budget.rounds=60", "privacy.epsilon=200"]
KINDS = [
    pytest.param(regime, transport, marks=NEEDED if transport == "mqtt" else ())
    for regime in REGIMES
    for transport in ("websocket", "mqtt")
]
PATIENCE = {"short": 0.2, "long": 5.0}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


def small(folder: Path, regime: str, *changes: str) -> Study:
    """A study that takes some seconds."""
    if regime != "vertical":
        return study_of(folder, regime, [*LONGER[regime], *changes])
    path = folder / "events.toml"
    path.write_text(EVENTS)
    return studies.read(path, changes)


def endured(
    nursery: Nursery,
    folder: Path,
    regime: str,
    transport: Any,
    faults: int,
    seed: int,
    *changes: str,
    kinds: Sequence[str] = FAULTS,
    patience: str = "short",
    steps: int = 30,
) -> int:
    """One federation that meets faults; how many it met."""
    folder.mkdir()
    laid = demo.lay_out(
        small(folder, regime, *changes),
        folder / "out",
        scripted=False,
        minimum=2 if regime != "vertical" else None,
        transport=transport,
    )
    for path in laid.server.parent.glob("*/agreement.toml"):
        path.write_text(
            re.sub(r"patience = \S+", f"patience = {PATIENCE[patience]}", path.read_text())
        )
    lines = transport == "websocket" and kinds == FAULTS
    starts, agreement = None, Agreed(laid.server).agreement
    if transport == "mqtt":
        starts = partial(broker.start, laid.server.parent, folder / "broker.txt", agreement)
    found = Faults(
        nursery=nursery,
        laid=laid,
        folder=folder,
        seed=seed,
        left=faults,
        kinds=kinds,
        steps=steps,
        start_broker=starts,
        relay=Relay(int(agreement.server.rpartition(":")[2])) if lines else None,
    )
    found.run(1200.0)
    refuse_two_states(found)
    refuse_below(found, regime)
    refuse_another_end(found, folder)
    return len(found.met)


def refuse_two_states(found: Faults) -> None:
    """Nothing was applied twice, and each life stepped to the states of the one before."""
    answers = [(each.site, each.number) for each in found.inputs() if each.kind == "message"]
    assert len(set(answers)) == len(answers), found.told()
    for count, states in found.states().items():
        assert len(states) == 1, (count, found.told())


def refuse_below(found: Faults, regime: str) -> None:
    """No ledger, of a site or the server, holds less than what was sent; of a site whose folder was
    put back, less than what the server has: what never arrived there, nobody can tell it.
    """
    heard = [(each.site, each.number) for each in found.inputs() if each.kind == "message"]
    for index, (kit, _) in enumerate(found.laid.sites):
        said = found.said(kit.name)
        assert {number for site, number in heard if site == index} <= set(said), found.told()
        back = kit.name in found.restored
        for number, bodies in said.items():
            assert len(bodies) == 1 or back, (kit.name, number, found.told())
        for run, unit in ((kit / "run", None), (found.laid.server / "run", f"client:{index}")):
            booked = charged(run / "ledger.sqlite", unit)
            if regime == "vertical":  # a charge is of all that the stream shows of an entity once
                assert booked, found.told()
                continue
            numbers = [
                first + i
                for first, count in booked
                for i in range(count if regime == "asynchronous" else 1)
            ]
            wanted = {number for site, number in heard if site == index} if back else set(said)
            if regime == "passes":  # of 3 batches, by tasks of 2 steps; lost ones skip some
                assert len(set(numbers)) >= math.ceil(2 * len(said) / 3), (kit.name, found.told())
                continue
            # some twice: what a life had booked and not sent, the next one books again
            assert wanted <= set(numbers), (kit.name, found.told())
            if regime == "asynchronous" and unit is None and not back:  # the task in flight
                met = sum(who == kit.name for who, _, _ in found.met)
                assert len(numbers) - len(set(numbers)) <= met, (kit.name, found.told())


def charged(ledger: Path, unit: str | None) -> list[tuple[int, int]]:
    """Round and count of what was charged to a unit, or to the only one that there is."""
    with Ledger.open(ledger, readonly=True) as found:
        entries = list(found.entries())
    named = [each for each in entries if each.unit == unit] or entries
    return [(each.round, each.count) for each in named]


class Again:
    """A journal that holds everything that reached the server."""

    large = False

    def __init__(
        self, inputs: list[Input], history: Transcript | None, began: Sequence[Input]
    ) -> None:
        self._inputs, self.history = inputs, history
        if history is not None and began:
            history.digest = began[0].body

    def after(self, count: int) -> list[Input]:
        return self._inputs[count:]

    def before(self, count: int) -> list[Input]:
        return []

    def enter(self, inputs: Sequence[Input]) -> None:
        if self.history is not None:
            for each in inputs:
                self.history.add(_packed(each))

    def close(self) -> None: ...

    def destroy(self) -> None: ...


class Blind:
    """A watcher that keeps nothing."""

    saved = 0

    def row(self, row: Any) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...

    def hurry(self) -> None: ...


def refuse_another_end(found: Faults, folder: Path) -> None:
    """All inputs, stepped through from the first one by a new server, lead to the same model."""
    agreed, run = Agreed(found.laid.server), found.laid.server / "run"
    name, again = str(known(reading.load(run).about.run)), folder / "again"
    again.mkdir()
    if found.key:
        (again / KEY).write_bytes(found.key)
    nobody: Any = None
    secret = agreed.study.privacy.entropy == "system"
    options = ServerOptions(agreed=agreed, opens=nobody)
    made = prepare_server(options)(agreed.study, again, name, None)
    serving: Any = made.simulation
    world: Any = serving.inner
    moment = world.resumed(made.first)
    courier = ServerSession(Net(), Mailbox(), agreed, dimension=moment.model.size, run=name)
    summing = agreed.summing
    kind: type[LiveKernel[Any]] = LiveKernel if summing is None else LiveSums
    kernel: LiveKernel[Any] = kind(
        world,
        moment,
        Blind(),
        KernelOptions(
            session=courier,
            sums=None if summing is None else Sums(courier, agreed, summing),
            journal=Again(  # type: ignore[arg-type]
                found.inputs(), world.regime.history if secret else None, found.history()
            ),
        ),
    )
    try:
        last = kernel.run()
    finally:
        serving.ledgers.close()
    from safetensors.numpy import load_file

    kept = load_file(run / "model.safetensors")
    for key, values in made.named(last.model).items():
        assert np.array_equal(values, kept[key]), (key, found.told())


@pytest.mark.nightly
def test_four_kills_leave_no_trace(nursery: Nursery, tmp_path: Path) -> None:
    """As far as the run is long enough for them."""
    short, run = "budget.events=30", tmp_path / "run"
    met = endured(nursery, run, "vertical", "websocket", 4, 1, short, kinds=(KILLED,), steps=8)
    assert met >= 2


@pytest.mark.nightly
@pytest.mark.parametrize("patience", PATIENCE)
@pytest.mark.parametrize(("regime", "transport"), KINDS)
def test_three_hundred_faults_leave_no_trace(
    regime: str, transport: str, patience: str, nursery: Nursery, tmp_path: Path
) -> None:
    """15 for each regime, transport and patience: 300."""
    left, seed = int(os.environ.get("FAULTS", "15")), int(os.environ.get("FAULTS_SEED", "0"))
    while left > 0:
        seed += 1
        left -= endured(
            nursery, tmp_path / str(seed), regime, transport, left, seed, patience=patience
        )


@pytest.mark.nightly
@pytest.mark.parametrize("regime", REGIMES)
def test_ten_faults_with_folders_that_are_put_back_lose_nothing_that_arrived(
    regime: str, nursery: Nursery, tmp_path: Path
) -> None:
    """The site is told what it has forgotten, and books it, or is charged as everybody is. A party
    of events is told nothing, and goes on from what it knows: each entity is charged for once.
    """
    left, seed = int(os.environ.get("FAULTS", "10")), int(os.environ.get("FAULTS_SEED", "0"))
    kinds = (KILLED, TERMINATED, FROZE, RESTORED, RESTORED, RESTORED)
    while left > 0:
        seed += 1
        where = tmp_path / str(seed)
        left -= endured(nursery, where, regime, "websocket", left, seed, kinds=kinds)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["banded", "blt"])
def test_ten_kills_leave_no_trace_of_correlated_noise(
    kind: str, nursery: Nursery, tmp_path: Path
) -> None:
    """Whose memory each site keeps to itself, and loses with its life."""
    left, seed = 10, int(os.environ.get("FAULTS_SEED", "0"))
    while left > 0:
        seed += 1
        where, noise = tmp_path / str(seed), f"privacy.correlation={kind}"
        left -= endured(
            nursery, where, "passes", "websocket", left, seed, noise, kinds=(KILLED,), steps=10
        )
