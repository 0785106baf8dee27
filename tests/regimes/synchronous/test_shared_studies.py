"""Studies whose clients share the noise: what fits, what it costs, what is said of it, and runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import ARRIVAL, CLIENT, EVENTS, NOISY, SAMPLE, study_of
from sordino.base.errors import StudyError
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.run import reading, session
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import Ledger, PoissonSampled
from sordino.privacy.event import Gaussian as Booked
from sordino.regimes.synchronous import report
from sordino.regimes.synchronous.aggregate import SharedSum
from sordino.regimes.synchronous.method import Terms
from sordino.regimes.synchronous.methods import DpSgd
from sordino.regimes.synchronous.regime import rule

Q = 0.2
SHARED = 'privacy.noise="shared"'


def shared_study(folder: Path, *changes: str, case: str = "dp-sgd") -> Any:
    own = CLIENT if case == "dp-fedavg" else [*SAMPLE, "method.tau=1", "data.clients=4"]
    if case == "ali-dpfl":
        own = [*SAMPLE, "budget.steps=2"]
    return study_of(("synchronous", case, [*own, SHARED, *changes]), folder)


REFUSED = {
    "privacy.honest=5": "must lie between privacy.honest = 5 and the 4 clients",
    "privacy.fewest=5": "privacy.fewest = 5: it must lie between privacy.honest = 4",
    "privacy.fewest=3": "privacy.fewest = 3: it must lie between privacy.honest = 4",
    "privacy.bits=15": "privacy.bits must lie between 16 and 63",
    "privacy.bits=64": "privacy.bits must lie between 16 and 63",
    "method.tau=2": "a round has one local step",
    "method.optimizer=adam": "method.optimizer works on each client's own",
    'privacy.mechanism={kind="haar"}': "plain Gaussian mechanism",
    'privacy.mechanism={kind="k-norm"}': "plain Gaussian mechanism",
    'privacy.noise="own", privacy.honest=2': "about sums whose noise the clients share",
    "data.clients=1": "at least two clients",
    "participation.cohort=3": "every round would be void",
    "method.name=ali-dpfl": "a round has one local step",
    "privacy.noise=none": "privacy.noise = 'none' is not known",
}


@pytest.mark.parametrize("changes", list(REFUSED))
def test_studies_that_do_not_fit_are_refused(changes: str, tmp_path: Path) -> None:
    told = changes.split(", ") if changes.startswith("privacy.noise=") else [changes]
    if "ali" in changes:
        told = ["budget.steps=4"]
    with pytest.raises(StudyError, match=REFUSED[changes]):
        shared_study(tmp_path, *told, case="ali-dpfl" if "ali" in changes else "dp-sgd")


def test_a_modulus_that_is_too_small_books_nothing(tmp_path: Path) -> None:
    asked = shared_study(tmp_path, "privacy.bits=16", "model.name=mlp")
    with pytest.raises(StudyError, match="the modulus is too small"):
        regimes.plan(asked)
    with pytest.raises(StudyError, match="the modulus is too small"):
        session.begin(asked, tmp_path / "run", lambda _: None, lambda _: None)
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


def test_a_schedule_that_the_modulus_cannot_hold_books_nothing(tmp_path: Path) -> None:
    """The first rounds have a grid, and the last ones, with less noise, have none."""
    changes = ["privacy.bits=16", "method.noise_decay=1000", "budget.rounds=5"]
    asked = shared_study(tmp_path, *changes, case="dynamic-dp-sgd")
    with pytest.raises(StudyError, match="the modulus is too small"):
        session.begin(asked, tmp_path / "run", lambda _: None, lambda _: None)
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


@pytest.mark.parametrize(("regime", "method"), [("asynchronous", "mapa"), ("vertical", "dlr")])
def test_other_regimes_have_no_sum(regime: str, method: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"privacy\.noise is not a key .* no sum|there is no sum"):
        study_of((regime, method, [SHARED]), tmp_path)


def test_methods_that_read_single_clients_are_refused(tmp_path: Path) -> None:
    told = [*SAMPLE, SHARED, "data.validation=50", "privacy.accountant=rdp@8"]
    with pytest.raises(StudyError, match="follows numbers of each client"):
        study_of(("synchronous", "adap-dpfl", told), tmp_path)
    with pytest.raises(StudyError, match="literal form"):
        study_of(("synchronous", "ali-dpfl", [*SAMPLE, SHARED, "method.form=paper"]), tmp_path)
    told = [*CLIENT, SHARED, "method.clipping=adaptive"]
    with pytest.raises(StudyError, match="follows a noisy count"):
        study_of(("synchronous", "dp-fedavg", told), tmp_path)


def test_a_clip_that_a_server_may_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two clips, one may have twice the steps of noise that the other has."""
    grids = [
        SharedNoise(most=(72.0,) * 10, dimension=7850, honest=10, rounds=158).grid(
            2.0 ** (i / 64), 1
        )
        for i in range(64)
    ]
    steps = [each.deviation for each in grids]
    assert max(steps) > 1.9 * min(steps)
    monkeypatch.setattr(DpSgd, "adapts_clip", True)
    with pytest.raises(StudyError, match="on which grid the others round"):
        shared_study(tmp_path)


@pytest.mark.parametrize(
    ("regime", "method", "changes"),
    [
        ("synchronous", "dp-sgd", [*SAMPLE, "method.tau=1", "data.clients=4", SHARED]),
        ("synchronous", "dp-fedavg", [*CLIENT, SHARED]),
        ("synchronous", "dp-sgd", SAMPLE),
        ("synchronous", "dp-fedavg", CLIENT),
        ("asynchronous", "mapa", ARRIVAL),
        ("vertical", "dlr", [*EVENTS, "privacy.unit=entity", NOISY, "privacy.updates=frozen"]),
    ],
)
def test_a_delta_finer_than_the_proof_is_warned_of(
    regime: str, method: str, changes: list[str], tmp_path: Path
) -> None:
    def warned(*more: str) -> list[str]:
        priced, _ = regimes.plan(study_of((regime, method, [*changes, *more]), tmp_path))
        return [each for each in priced.warnings if "finer than the proof" in each]

    assert not warned()
    assert len(warned("privacy.delta=1e-30")) == 1
    assert len(warned("privacy.epsilon=60")) == 1


def test_its_price_is_that_of_one_gaussian_and_dp_accounting_agrees(tmp_path: Path) -> None:
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    told = ["budget.rounds=30", "privacy.sampling_rate=0.1", "privacy.honest=3"]
    priced, _ = regimes.plan(shared_study(tmp_path, *told))
    alone, _ = regimes.plan(shared_study(tmp_path, *told[:2], 'privacy.noise="own"'))
    assert priced.epsilon == alone.epsilon
    accountant = PLDAccountant()
    event = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.5))
    accountant.compose(event, 30)
    assert priced.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert priced.shared is not None
    sigma = priced.shared.deviation * math.sqrt(3) / priced.shared.moved
    assert sigma == pytest.approx(1.5)
    assert sigma >= 1.5


def test_the_plan_and_the_promise_say_whose_noise_it_is(tmp_path: Path) -> None:
    asked = shared_study(tmp_path, "privacy.honest=3", "privacy.fewest=4", "privacy.bits=28")
    session.begin(asked, tmp_path / "run", lambda _: None, lambda _: None)
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "up to 1 of the clients together" in told["guarantee"]
    assert any("sum modulo 2^28" in each for each in told["assumptions"])
    shared = told["shared"]
    assert [shared[name] for name in ("honest", "fewest", "bits")] == [3, 4, 28]
    assert shared["overflow"] <= -40
    rows = report.terms(reading.load(tmp_path / "run"), 1.5, 1.0)
    assert ("noise", "shared by the clients; 3 of them honest") in rows
    assert any(what == "chance of any overflow" for what, _ in rows)
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        event = PoissonSampled(0.2, Booked(noise_multiplier=1.5))
        assert all(ledger.spent(unit) == ((event, 2),) for unit in ledger.units())
        assert len(ledger.units()) == 4


def test_by_default_it_holds_against_no_other_client_and_says_so(tmp_path: Path) -> None:
    from sordino.core.statements import guarantee

    said = guarantee(shared_study(tmp_path), None)
    assert "not against another client" in said
    assert "honest" not in guarantee(shared_study(tmp_path, 'privacy.noise="own"'), None)


@pytest.mark.parametrize(
    "case", ["dp-sgd", "dynamic-dp-sgd", "ali-dpfl", "als-dpfl", "dp-fedavg", "pe-dpfl"]
)
def test_every_method_that_fits_runs(case: str, tmp_path: Path) -> None:
    if case == "als-dpfl":
        asked = study_of(("synchronous", case, [*SAMPLE, "budget.steps=2", SHARED]), tmp_path)
    elif case == "pe-dpfl":
        asked = study_of(("synchronous", case, [*CLIENT, SHARED]), tmp_path)
    else:
        asked = shared_study(tmp_path, case=case)
    done = session.begin(asked, tmp_path / "run", lambda _: None, lambda _: None)
    assert done.accuracy is not None
    again = session.begin(asked, tmp_path / "again", lambda _: None, lambda _: None)
    names = "model.safetensors"
    assert (tmp_path / "run" / names).read_bytes() == (tmp_path / "again" / names).read_bytes()
    assert again.epsilon == done.epsilon


def test_ten_sums_of_noise_of_their_own_have_more_of_it(tmp_path: Path) -> None:
    """The noise of a whole run that is nearly all noise."""
    lengths = {}
    for kind in ("own", "shared"):
        told = ["data.clients=9", "method.learning_rate=1.0", f'privacy.noise="{kind}"']
        asked = shared_study(tmp_path, *told, "privacy.noise_multiplier=100", "budget.steps=2")
        (tmp_path / kind).mkdir()
        built = regimes.build(asked, tmp_path / kind, "run")
        first: Any = built.first
        end: Any = built.simulation.run(first, _Nobody())
        lengths[kind] = np.linalg.norm(end.state.weights - first.state.weights)
    # of 650 numbers twice: five deviations, for the draws follow the version
    assert lengths["own"] / lengths["shared"] == pytest.approx(3.0, rel=0.25)


class _Nobody:
    def row(self, row: Any) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


def test_drop_outs_make_rounds_void_and_charges_stay(tmp_path: Path) -> None:
    told = [
        "budget.rounds=12",
        "budget.steps=12",
        "participation.deadline=2.0",
        "world.dropout=0.3",
        "world.rejoin=1.0",
        "privacy.honest=3",
        "privacy.epsilon=50",
    ]
    asked = shared_study(tmp_path, *told)
    session.begin(asked, tmp_path / "run", lambda _: None, lambda _: None)
    told_rows = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in told_rows]
    closed = [each for each in rows if each["kind"] == "round"]
    void = [each for each in closed if "void" in (each.get("note") or "")]
    assert 0 < len(void) < len(closed)
    assert all(each["answered"] < 3 for each in void)
    assert all(each["answered"] >= 3 for each in closed if each not in void)
    kept: Any = studies.read(tmp_path / "run" / "study.toml")
    assert kept.privacy.noise == "shared"


def test_weights_and_bounds_are_public_and_within_one(tmp_path: Path) -> None:
    asked = shared_study(tmp_path, "method.weights=equal", "data.clients=3")
    sizes = (100, 50, 200)
    found = asked.contribution_weights(sizes)
    assert found == [0.5, 1.0, 0.25]
    fixed = rule(asked, sizes, 10)
    assert all(
        most <= weight * size for most, weight, size in zip(fixed.most, found, sizes, strict=True)
    )
    # the mean of what everybody would send is that of DP-SGD: sum_i p_i g_i / (q n_i)
    terms = Terms(
        dimension=10,
        sizes=sizes,
        weights=(1 / 3,) * 3,
        sampling_rate=Q,
        learning_rate=0.5,
        clip=1.0,
        noise=1.5,
        rounds=6,
        steps=6,
    )
    total = SharedSum.of(asked, sizes, terms.weights, fixed)
    rate, eta = asked.privacy.sampling_rate, asked.method.learning_rate
    for i, size in enumerate(sizes):
        unit = total.scale * found[i]  # what a gradient of client i is in the model
        assert unit == pytest.approx(-eta / (3 * rate * size))


def test_the_plan_says_what_is_opened_and_warns_of_a_coarse_grid(tmp_path: Path) -> None:
    asked = shared_study(tmp_path, "privacy.honest=2", "privacy.fewest=3")
    priced, _ = regimes.plan(asked)
    lines = [each for each in regimes.of(asked).told(asked, priced) if isinstance(each, str)]
    assert any("shared by 4 clients: enough with 2 honest parts" in each for each in lines)
    assert any("fewer than 3 is not opened" in each for each in lines)
    assert any("modulo 2^32" in each and "overflows: below 2^-" in each for each in lines)
    assert not any("coarse" in each for each in priced.warnings)
    coarse, _ = regimes.plan(shared_study(tmp_path, "privacy.bits=16"))
    assert any("raise privacy.bits" in each for each in coarse.warnings)
    assert coarse.shared is not None
    assert coarse.shared.growth > 1.05
    alone, _ = regimes.plan(shared_study(tmp_path, 'privacy.noise="own"'))
    assert alone.shared is None
