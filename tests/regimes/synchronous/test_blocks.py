"""Whole clients that take part in blocks, in turn: who is asked when, what is charged, and that the
aggregator's noise goes on from round to round.

Prices are held against the closed form of the Gaussian mechanism (Balle and Wang 2018, theorem 8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file

from permitted import permit
from sordino import privacy
from sordino.base.entropy import Seeded
from sordino.base.errors import LocalProtocolError, StudyError
from sordino.base.message import Contribution
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.run import session
from sordino.core.run.folder import CHECKPOINT
from sordino.core.world import EncodedSnapshot
from sordino.mechanisms.correlated import CorrelatedGaussian, Correlation, Memory
from sordino.network.demo import lay_out
from sordino.privacy import Ledger
from sordino.regimes.synchronous.aggregate import PrivateSum
from sordino.regimes.synchronous.audit import clients as attack
from sordino.regimes.synchronous.method import RoundNoise
from sordino.training.local import LocalClient
from sordino.training.passes import Blocks

CLIENTS, BLOCKS, ROUNDS, DELTA = 7, 3, 8, 1e-5
STUDY = f"""
name = "blocks"
[data]
name = "digits"
clients = {CLIENTS}
partition = {{ kind = "iid" }}
[model]
name = "logistic"
[method]
name = "dp-fedavg"
tau = 2
learning_rate = 0.5
[privacy]
unit = "client"
epsilon = 8.0
delta = {DELTA}
clip = 0.5
sampling = "passes"
batches = {BLOCKS}
[budget]
rounds = {ROUNDS}
"""
LATE = [
    "participation.deadline=1.5",
    'world.latency={kind="exponential", typical=1.0}',
    "world.dropout=0.3",
]


def study_of(folder: Path, *changes: str) -> Any:
    (folder / "study.toml").write_text(STUDY)
    return studies.read(folder / "study.toml", changes)


def nobody(_: object) -> None:
    """Listen to nothing."""


def delta_of(epsilon: float, sigma: float, times: int) -> float:
    mu = math.sqrt(times) / sigma
    ends = [math.erfc((epsilon / mu + side * mu / 2) / math.sqrt(2)) / 2 for side in (-1, 1)]
    return ends[0] - math.exp(epsilon) * ends[1]


@pytest.mark.parametrize("changes", [[], LATE], ids=["all answer", "some late or gone"])
def test_each_pass_is_charged_once_and_asks_each_client_once(
    changes: Sequence[str], tmp_path: Path
) -> None:
    study, asked, real = study_of(tmp_path, *changes), dict[int, list[int]](), LocalClient.answer

    def seen(one: Any, task: Any, permits: Any) -> Any:
        asked.setdefault(one.index, []).append(task.round)
        return real(one, task, permits)

    plan, _ = regimes.of(study).plan(study)
    sigma, passes = plan.noise_multiplier, 3  # of 8 rounds, the last pass is not ended
    assert delta_of(8.0, sigma, passes) <= DELTA < delta_of(8.0, sigma - 2e-3, passes)
    assert plan.samplings["passes"] == sigma > plan.samplings["poisson"]
    with mock.patch.object(LocalClient, "answer", seen):
        session.begin(study, tmp_path / "run", nobody, nobody)
    for client, rounds in asked.items():
        assert all((number - 1) % BLOCKS == client % BLOCKS for number in rounds)
        assert all(after - before >= BLOCKS for before, after in pairwise(rounds))
    if not changes:
        assert sum(map(len, asked.values())) == 3 + 2 + 2 + 3 + 2 + 2 + 3 + 2
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        booked = [(each.event, each.count, each.round) for each in ledger.entries()]
    assert booked == [(privacy.Gaussian(sigma), 1, number) for number in (1, 2, 3)]


def test_a_budget_ends_a_run_between_two_passes(tmp_path: Path) -> None:
    study = study_of(tmp_path, "privacy.noise_multiplier=0.9")
    plan, _ = regimes.of(study).plan(study)
    assert plan.steps is not None
    passes = plan.steps // BLOCKS
    assert delta_of(8.0, 0.9, passes) <= DELTA < delta_of(8.0, 0.9, passes + 1)
    assert plan.steps % BLOCKS == 0 < plan.steps < ROUNDS


def one_sum(**changes: Any) -> PrivateSum:
    noise = Correlation(kind="banded", separation=BLOCKS, passes=3)
    told: dict[str, Any] = {
        "mechanism": CorrelatedGaussian(clip=0.5, noise_multiplier=2.0, correlation=noise),
        "shares": (1.0,) * CLIENTS,
        "units": ("clients",),
        "sampling_rate": 1.0 / BLOCKS,
        "blocks": Blocks(BLOCKS),
        "entropy": Seeded(4),
    }
    return PrivateSum(**{**told, **changes})


CONTRACT = RoundNoise(0.5, 2.0)


def given(client: int, number: int, d: int) -> Contribution:
    delta = np.full(d, 1e-3, np.float32)
    return Contribution(client=client, round=number, steps=1, delta=delta, inside=True)


def test_between_sites_a_sum_has_permits_of_its_block_and_its_round() -> None:
    units = tuple(f"block:{i % BLOCKS}" for i in range(CLIENTS))
    one = one_sum(units=units, blocks=Blocks(BLOCKS, apart=True))
    own, earlier = (permit(privacy.Gaussian(2.0), 1, number, "block:1") for number in (5, 2))
    other = permit(privacy.Gaussian(2.0), 1, 5, "block:0")
    one.release([given(4, 5, 9)], CONTRACT, 5, 9, [own])
    for permits in ([earlier], [other], [own, other], []):
        with pytest.raises(LocalProtocolError, match="ledger charged"):
            one.release([given(4, 5, 9)], CONTRACT, 5, 9, permits)


def test_a_sum_has_nobody_whose_turn_it_is_not_and_no_permit_of_another_pass() -> None:
    one = one_sum()
    first, second = (permit(privacy.Gaussian(2.0), 1, number, "clients") for number in (1, 2))
    one.release([given(4, 5, 9)], CONTRACT, 5, 9, [second])
    with pytest.raises(LocalProtocolError, match="is not the turn of client 3"):
        one.release([given(4, 5, 9), given(3, 5, 9)], CONTRACT, 5, 9, [second])
    with pytest.raises(LocalProtocolError, match="ledger charged"):
        one.release([given(4, 5, 9)], CONTRACT, 5, 9, [first])


def test_a_client_refuses_a_round_that_is_not_its_turn(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    full = regimes.of(study).calibrated(study)
    built = regimes.of(full).build(full, tmp_path, "run", None)
    simulation: Any = built.simulation
    rules, client = simulation.regime, simulation.clients[1]
    sigma = full.privacy.noise_multiplier
    paid = permit(privacy.Gaussian(sigma), 1, 1, "clients")
    task = rules.dearest_task(2)
    task = type(task)(round=2, steps=2, weights=built.first.model, clip=0.5, noise_multiplier=sigma)
    client.answer(task, [paid])
    assert rules.objection(1, task) is None
    for number in (1, 3):
        other = type(task)(**{**vars_of(task), "round": number})
        assert rules.objection(1, other) == f"round {number} is not its turn"
        with pytest.raises(LocalProtocolError, match="is not the turn of client 1"):
            client.answer(type(task)(**{**vars_of(task), "round": number}), [paid])
    with pytest.raises(LocalProtocolError, match="ledger charged"):
        client.answer(type(task)(**{**vars_of(task), "round": 5}), [paid])  # of pass 2
    simulation.ledgers.close()


def vars_of(task: Any) -> dict[str, Any]:
    return {name: getattr(task, name) for name in task.__struct_fields__}


def total(rounds: int, d: int, remembers: bool) -> Any:
    """The sum of the releases of rounds to which nobody contributed, (d,), in units of the sum."""
    one, found, memory = one_sum(), np.zeros(d), None
    for number in range(1, rounds + 1):
        paid = [permit(privacy.Gaussian(2.0), 1, one.blocks.number(number), "clients")]  # type: ignore[union-attr]
        released, after = one.release([], CONTRACT, number, d, paid, (), memory)
        found += released.mean.astype(np.float64) * one.divisor
        memory = after if remembers else None
    return found


def test_noise_goes_on_from_round_to_round() -> None:
    """The sum of nine rounds has the deviation of the dense matrix, and not 2/3 or 3/2 of it."""
    column = np.array([1.0, 0.5, 0.375, *[0.0] * 6])
    dense = np.array([[column[t - u] if t >= u else 0.0 for u in range(9)] for t in range(9)])
    share = 1.0 - one_sum().mechanism.share  # type: ignore[attr-defined]
    exact = np.linalg.norm(np.linalg.inv(dense).sum(axis=0)) * np.linalg.norm(column)
    wanted, d = 0.5 * 2.0 / math.sqrt(share) * exact, 20_000
    found = total(9, d, remembers=True).std()
    assert found == pytest.approx(wanted, rel=5 / math.sqrt(2 * d))
    assert total(9, d, remembers=False).std() > 1.5 * wanted


@pytest.mark.parametrize("kind", ["banded", "blt"])
def test_a_run_that_goes_on_from_a_checkpoint_releases_the_same_bytes(
    kind: str, tmp_path: Path
) -> None:
    study = study_of(tmp_path, f"privacy.correlation={kind}", "execution.checkpoint_every=1", *LATE)
    session.begin(study, tmp_path / "whole", nobody, nobody)

    class Killed(Exception):
        pass

    def kills(row: Any) -> None:
        if getattr(row, "round", 0) == 5 and row.kind == "round":
            raise Killed

    with pytest.raises(Killed):
        session.begin(study, tmp_path / "killed", kills, nobody)
    session.resume(tmp_path / "killed", nobody, nobody)
    one, two = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "killed"))
    assert all(np.array_equal(values, two[name]) for name, values in one.items())
    end = (tmp_path / "killed" / CHECKPOINT).read_bytes()
    assert b"noise." not in end  # of a run that has ended, nobody can take the noise off


def test_the_memory_of_noise_is_in_checkpoints_and_comes_back(tmp_path: Path) -> None:
    study = study_of(tmp_path, "privacy.correlation=banded")
    full = regimes.of(study).calibrated(study)
    built = regimes.of(full).build(full, tmp_path, "run", None)
    simulation: Any = built.simulation
    rules = simulation.regime
    rows = tuple(np.arange(4, dtype=np.int32) + i for i in range(2))
    noise = Memory(5, 5, (0.5, 2.0, 4), "token", rows)
    state = rules.start(np.zeros(4, np.float32))
    state = type(state)(**{**vars_of(state), "noise": noise})
    again = rules.unpacked(state.pack()).noise
    assert (again.number, again.taken, again.terms, again.token) == (5, 5, (0.5, 2.0, 4), "token")
    assert [row.tolist() for row in again.rows] == [row.tolist() for row in rows]
    packed = state.pack()
    for name in ("velocity", "average", "steps"):
        vectors = {**packed.vectors, name: packed.vectors[name][:1]}
        with pytest.raises(ValueError, match="different lengths"):
            rules.unpacked(EncodedSnapshot(vectors, packed.rest))
    built.simulation.ledgers.close()


@pytest.mark.parametrize("kind", ["none", "blt"])
def test_an_attack_on_a_run_stays_below_what_is_booked(kind: str, tmp_path: Path) -> None:
    study = study_of(tmp_path, f"privacy.correlation={kind}", "privacy.clipped_fraction=false")
    found = attack(study, 400, 0.05, "run")
    assert 0.4 < found.low < found.claimed <= 8.0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["method.clipping=adaptive", "privacy.correlation=blt"], "changes the bound"),
        (["privacy.noise=shared"], "the noise of a pass is each client's own"),
        (["method.name=dynamic-dp-fedavg"], "changes the noise on the way"),
    ],
)
def test_what_has_no_price_is_refused(changes: Sequence[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=why):
        study_of(tmp_path, *changes)


@pytest.mark.parametrize(("kind", "more"), [("blt", True), ("banded", False)])
def test_a_site_that_stops_paying_has_lost_no_more_than_it_booked_where_a_network_carries_it(
    kind: Literal["blt", "banded"], more: bool, tmp_path: Path
) -> None:
    """It takes part 39 times of 40, and the aggregator's stream goes on: by the matrix itself, its
    length there against that of the whole stream, of which each turn is charged its part.
    """
    b, passes = 5, 40
    column = Correlation(kind=kind, separation=b, passes=passes).column(b * passes)

    def square(times: int) -> float:
        found = np.zeros(b * passes)
        for turn in range(times):
            found[turn * b :] += column[: b * (passes - turn)]
        return float(found @ found)

    assert (square(39) / 39 > square(passes) / passes * (1 + 1e-9)) == more
    study = study_of(tmp_path, "data.clients=3", f"privacy.correlation={kind}")
    if not more:
        lay_out(study, tmp_path / "out", scripted=False)
        return
    with pytest.raises(StudyError, match="correlation = 'blt' with whole clients"):
        lay_out(study, tmp_path / "out", scripted=False)
