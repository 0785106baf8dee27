"""Clients with epsilons of their own: noise, budget, weight and ledger of each."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from command import sordino
from sordino.base.errors import StudyError
from sordino.clients.division import federation
from sordino.clients.world import HorizontalWorld
from sordino.core import study as studies
from sordino.core.regimes import build, calibrated
from sordino.core.run.reading import load
from sordino.privacy import Gaussian, Ledger, PoissonSampled, accountant
from sordino.regimes.synchronous.protocol import Synchronous
from sordino.regimes.synchronous.regime import weights
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.training.client import PrivateClient

STUDY = """
name = "own epsilons"
seed = 0
[data]
name = "digits"
clients = 4
[model]
name = "logistic"
[method]
name = "{method}"
learning_rate = 1.0
{more}
[privacy]
unit = "{unit}"
epsilon = 4.0
{epsilons}
delta = 1e-3
clip = 1.0
sampling_rate = 0.2
{privacy}
[budget]
rounds = 3
"""
OWN = (0.5, 1.0, 4.0, 4.0)


def read(
    at: Path,
    *changes: str,
    epsilons: str = f"epsilons = {list(OWN)}",
    method: str = "dp-sgd",
    more: str = "tau = 1",
    unit: str = "sample",
    privacy: str = "",
) -> SynchronousStudy:
    path = at / "study.toml"
    path.write_text(
        STUDY.format(epsilons=epsilons, method=method, more=more, unit=unit, privacy=privacy),
        encoding="utf-8",
    )
    found = studies.read(path, changes)
    assert isinstance(found, SynchronousStudy)
    return found


def test_each_client_adds_and_books_the_noise_of_its_own_epsilon(tmp_path: Path) -> None:
    study = calibrated(read(tmp_path))
    sigmas = study.multipliers
    assert sigmas[0] > sigmas[1] > sigmas[2] == sigmas[3]
    done = sordino(tmp_path, "run", "study.toml", "--out", "run", "-q", "--json")
    assert done.returncode == 0, done.stderr
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        for client, (epsilon, sigma) in enumerate(zip(OWN, sigmas, strict=True)):
            spent = ledger.spent(f"client:{client}")
            assert {event for event, _ in spent} == {PoissonSampled(0.2, Gaussian(sigma))}
            assert 0.97 * epsilon < accountant("pld").epsilon(spent, 1e-3) <= epsilon
    run = load(tmp_path / "run")
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(4.0, rel=0.01)
    assert "from 0.5 to 4 (privacy.epsilons)" in " ".join(run.about.assumptions or ())
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "epsilon spent" in page
    verified = sordino(tmp_path, "ledger", "verify", "run")
    assert verified.returncode == 0, verified.stderr


@pytest.mark.usefixtures("forked")
def test_plan_and_compare_show_every_epsilon(tmp_path: Path) -> None:
    study = read(tmp_path)
    said = sordino(tmp_path, "plan", "study.toml").stdout
    assert "Each client's own epsilon" in said
    told = json.loads(sordino(tmp_path, "plan", "study.toml", "--json").stdout)
    assert [client[0] for client in told["clients"]] == list(OWN)
    assert sum(client[2] for client in told["clients"]) == pytest.approx(1.0)
    assert told["epsilon"] == pytest.approx(4.0, rel=0.01)
    assert told["steps"] >= study.budget.rounds
    short = ["--set", "budget.rounds=1", "--set", "privacy.accountant=rdp"]
    compared = sordino(
        tmp_path, "compare", "study.toml", "--seeds", "1", "--workers", "1", "-q", *short
    )
    assert "of clients: 0.5 (1), 1 (1), 4 (2)" in " ".join(compared.stdout.split())


def test_the_average_weighs_by_the_precision_of_the_noise(tmp_path: Path) -> None:
    study = calibrated(read(tmp_path))
    sizes = federation(study).sizes
    own, sigmas = weights(study, sizes), study.multipliers
    for p, q, m, n, s, t in zip(own, own[1:], sizes, sizes[1:], sigmas, sigmas[1:], strict=False):
        assert p / q == pytest.approx((m / n) * (t / s) ** 2)
    alike = calibrated(read(tmp_path, epsilons="epsilons = [4.0, 4.0, 4.0, 4.0]"))
    plain = calibrated(read(tmp_path, epsilons=""))
    assert alike.privacy.noise_multiplier == plain.privacy.noise_multiplier
    assert weights(alike, sizes) == pytest.approx(weights(plain, sizes))


def test_equal_epsilons_learn_what_one_for_all_learns(tmp_path: Path) -> None:
    told: list[object] = []
    for epsilons in ("", "epsilons = [4.0, 4.0, 4.0, 4.0]"):
        study = calibrated(read(tmp_path, epsilons=epsilons))
        folder = tmp_path / f"at{len(told)}"
        folder.mkdir()
        built = build(study, folder, "run")
        simulation = built.simulation
        assert isinstance(simulation, HorizontalWorld)
        assert [simulation.budgets[i].epsilon for i in range(4)] == [4.0] * 4
        assert isinstance(simulation.regime, Synchronous)
        terms = simulation.regime.terms
        told.append(
            (terms.noise, [terms.deviation(i) for i in range(4)], simulation.affordable_steps)
        )
        simulation.ledgers.close()
    assert told[0] == told[1]


def test_a_client_holds_its_own_budget(tmp_path: Path) -> None:
    built = build(calibrated(read(tmp_path)), tmp_path, "run")
    simulation = built.simulation
    assert isinstance(simulation, HorizontalWorld)
    assert [simulation.budgets[i].epsilon for i in range(4)] == list(OWN)
    noises = [
        client.mechanism.noise_multiplier
        for client in simulation.clients
        if isinstance(client, PrivateClient)
    ]
    assert noises == list(calibrated(read(tmp_path)).multipliers)
    simulation.ledgers.close()


def test_adaptive_tau_counts_the_noise_of_every_client(tmp_path: Path) -> None:
    study = calibrated(read(tmp_path, "budget.steps=6", method="ali-dpfl", more=""))
    built = build(study, tmp_path, "run")
    simulation = built.simulation
    assert isinstance(simulation, HorizontalWorld)
    assert isinstance(simulation.regime, Synchronous)
    terms = simulation.regime.terms
    assert terms.steps is not None
    assert terms.steps >= 6
    sigmas = study.multipliers
    for client, sigma in enumerate(sigmas):
        wanted = sigma * 1.0 / (0.2 * terms.sizes[client])
        assert terms.deviation(client) == pytest.approx(wanted, rel=0.01)
    assert math.isclose(sum(terms.weights), 1.0)
    simulation.ledgers.close()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"epsilons": "epsilons = [1.0, 2.0]"}, "has 2 numbers; data.clients is 4"),
        ({"epsilons": "epsilons = [1.0, 2.0, 3.0, 5.0]"}, "must not pass epsilon = 4"),
        ({"epsilons": "epsilons = [1.0, 2.0, 3.0, inf]"}, "must be finite"),
        ({"epsilons": "epsilons = [1.0, 2.0, 3.0, 0.0]"}, "greater than 0"),
        ({"privacy": "noise_multiplier = 1.0"}, "leave it out"),
        ({"epsilons": "", "privacy": "noise_multipliers = [1.0, 1.0, 1.0, 1.0]"}, "go with"),
        (
            {"method": "dp-fedavg", "unit": "client", "more": "tau = 1\nbatch = 10"},
            "unit is 'client'",
        ),
        ({"method": "ali-dpfl", "more": 'form = "paper"'}, "literal form"),
        ({"method": "dynamic-dp-sgd", "more": "tau = 1"}, "one noise for all clients"),
        ({"method": "dynamic-dp-sgd", "more": "noise_decay = 1.0"}, "one noise for all"),
        ({"privacy": 'mechanism = { kind = "haar" }'}, "mechanism 'haar'"),
        ({"privacy": 'noise = "shared"'}, "noise 'shared'"),
    ],
)
def test_where_noise_is_not_a_clients_own_it_is_refused(
    tmp_path: Path, asked: dict[str, str], said: str
) -> None:
    with pytest.raises(StudyError, match=r"epsilons|noise_multiplier") as raised:
        read(tmp_path, **asked)
    assert said in str(raised.value)


def test_without_a_promise_nobody_has_an_epsilon(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="unit is 'none'"):
        read(tmp_path, "privacy.epsilon=inf", method="fedavg", unit="none")


def test_advice_is_for_one_noise(tmp_path: Path) -> None:
    read(tmp_path)
    assert (
        "leave privacy.epsilons out" in sordino(tmp_path, "plan", "study.toml", "--advise").stderr
    )
