"""The K-norm mechanism: what it books is what it does, and what the papers' noise does instead."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

import command
from accountants import gaussian_delta
from pixels import pixels
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.core import regimes as build
from sordino.core import study as studies
from sordino.core.run import session
from sordino.mechanisms.contract import ContractBroken, check_pure_noise, looks_k_norm
from sordino.mechanisms.kinds import KNormNoise, NoiseRequest
from sordino.mechanisms.knorm import ExponentialNorm, KNorm
from sordino.privacy import Ledger, NonPrivate, PoissonSampled, Pure, accountant
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS

DRAWS = 2000
"""Of one dimension, where scales are hardest to tell apart (0.148 between the distributions), 1500
are enough to see two thirds of the scale with all but a millionth of the chance.
"""


@pytest.mark.parametrize("dimension", [1, 2, 40, 2000])
def test_it_keeps_its_contract(dimension: int) -> None:
    mechanism = KNorm(clip=0.7, noise_multiplier=1.3, dimension=dimension)
    check_pure_noise(
        lambda rng: mechanism.release_counted(torch.zeros(dimension), 0.0, rng)[0],
        mechanism.event().epsilon,
        mechanism.clip,
        DRAWS,
    )


@pytest.mark.parametrize("dimension", [1, 2, 40])
@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_the_contract_sees_another_scale(dimension: int, factor: float) -> None:
    mechanism = KNorm(clip=0.7, noise_multiplier=1.3, dimension=dimension)
    with pytest.raises(ContractBroken, match="not the density"):
        check_pure_noise(
            lambda rng: factor * mechanism.release_counted(torch.zeros(dimension), 0.0, rng)[0],
            mechanism.event().epsilon,
            mechanism.clip,
            DRAWS,
        )


def test_the_contract_sees_noise_of_the_papers_length_and_of_a_crooked_direction() -> None:
    literal = ExponentialNorm(clip=1.0, noise_multiplier=1.0, dimension=3)
    with pytest.raises(ContractBroken, match="not the density"):
        check_pure_noise(
            lambda rng: literal.release_counted(torch.zeros(3), 0.0, rng)[0],
            math.sqrt(2.0 / 3.0),
            1.0,
            DRAWS,
        )
    right = KNorm(clip=1.0, noise_multiplier=2.0, dimension=3)

    # as the paper's own program draws directions
    def cube(rng: np.random.Generator) -> torch.Tensor:
        way = rng.random(3) - 0.5
        return torch.from_numpy(way / np.linalg.norm(way) * right.length(rng))

    with pytest.raises(ContractBroken, match="not the density"):
        check_pure_noise(cube, right.event().epsilon, 1.0, draws=8000)  # 7400 for a millionth


@pytest.mark.parametrize("dimension", [1, 7, 650])
def test_its_noise_on_one_number_is_the_multiplier(dimension: int) -> None:
    for kind in (KNorm, ExponentialNorm):
        mechanism = kind(clip=3.0, noise_multiplier=0.8, dimension=dimension)
        rng = Seeded(5).at("lengths")
        lengths = np.array([mechanism.length(rng) for _ in range(40_000)])
        mean = float((lengths**2).mean())
        deviation = float((lengths**2).std()) / math.sqrt(len(lengths))
        assert abs(mean - 0.8**2 * dimension) < 6.1 * deviation
        assert deviation < 0.05 * mean


@given(st.integers(1, 10**6), st.floats(1e-3, 1e6))
def test_epsilon_and_multiplier_are_two_names_of_one_scale(dimension: int, sigma: float) -> None:
    mechanism = KNorm(clip=1.0, noise_multiplier=sigma, dimension=dimension)
    epsilon = mechanism.event().epsilon
    # both are E ||eta||^2
    assert dimension * (dimension + 1) / epsilon**2 == pytest.approx(dimension * sigma**2)
    assert mechanism.scaled(2.0, 2 * sigma).event().epsilon == pytest.approx(epsilon / 2)
    assert mechanism.vector_multiplier == sigma


@given(
    st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=60), st.sampled_from([1e-3, 1.0, 50.0])
)
def test_no_contribution_moves_the_sum_further_than_its_clip(
    numbers: list[float], clip: float
) -> None:
    """Brute force: every set of contributions against every one that lacks one of them."""
    mechanism = KNorm(clip=clip, noise_multiplier=1.0, dimension=3)
    rows = [
        torch.tensor(numbers[i : i + 3], dtype=torch.float32) for i in range(0, len(numbers) - 2, 3)
    ]
    rows.append(torch.tensor([math.nan, 1.0, math.inf]))
    bounded = torch.stack([mechanism.bounded(row)[0] for row in rows]).double()
    for left_out in range(len(rows)):
        kept = torch.cat([bounded[:left_out], bounded[left_out + 1 :]])
        assert float(torch.linalg.vector_norm(bounded.sum(0) - kept.sum(0))) <= clip * (1 + 1e-9)


@pytest.mark.parametrize("dimension", [1, 2, 30])
def test_on_samples_the_loss_stays_within_epsilon(dimension: int) -> None:
    mechanism = KNorm(clip=2.0, noise_multiplier=1.5, dimension=dimension)
    epsilon, moved = mechanism.event().epsilon, torch.zeros(dimension, dtype=torch.float64)
    moved[0] = mechanism.clip
    rng = Seeded(3).at("loss")
    noise = torch.stack(
        [
            mechanism.release_counted(torch.zeros(dimension, dtype=torch.float64), 0.0, rng)[0]
            for _ in range(5000)
        ]
    )
    loss = (
        epsilon
        * (torch.linalg.vector_norm(noise - moved, dim=1) - torch.linalg.vector_norm(noise, dim=1))
        / mechanism.clip
    )
    assert float(loss.abs().max()) <= epsilon * (1 + 1e-6)
    if dimension == 1:
        assert float(loss.max()) == pytest.approx(epsilon)  # tight


def test_no_answer_is_likelier_by_more_than_epsilon_in_counts() -> None:
    """Counts of answers beside either sum, in one dimension, where a scale of two thirds shows: 6.1
    standard errors.
    """
    mechanism, n = KNorm(clip=1.0, noise_multiplier=2.0, dimension=1), 10_000
    epsilon, rng = mechanism.event().epsilon, Seeded(4).at("counts")
    zero = torch.zeros(1, dtype=torch.float64)
    draws = torch.cat([mechanism.release_counted(zero, 0.0, rng)[0] for _ in range(2 * n)]).numpy()
    for factor, holds in ((1.0, True), (2 / 3, False)):
        here, there = factor * draws[:n], factor * draws[n:] + mechanism.clip
        kept = []
        for low, high in itertools.pairwise((-math.inf, -1.0, 0.0, 1.0, 2.0, math.inf)):
            a, b = (int(((x > low) & (x <= high)).sum()) for x in (here, there))
            for more, less in ((a, b), (b, a)):
                error = math.sqrt(more + math.exp(2 * epsilon) * less)
                kept.append(more <= math.exp(epsilon) * less + 6.1 * error)
        assert all(kept) == holds


def test_the_papers_noise_gives_its_data_away() -> None:
    """Answers within a tenth of a unit of the sum: one in ten with this sum, none with the
    neighbour's, in ten dimensions.
    """
    dimension, rng = 10, Seeded(6).at("near")
    # claims epsilon 1
    mechanism = ExponentialNorm(
        clip=1.0, noise_multiplier=math.sqrt(2.0 / dimension), dimension=dimension
    )
    neighbour = torch.zeros(dimension)
    neighbour[0] = 1.0
    here, there = (
        torch.stack([mechanism.release_counted(total, 0.0, rng)[0] for _ in range(6000)])
        for total in (torch.zeros(dimension), neighbour)
    )
    near = [
        int((torch.linalg.vector_norm(answers, dim=1) < 0.1).sum()) for answers in (here, there)
    ]
    assert near[0] > 450
    assert near[1] == 0
    # were there 21 to be expected, none would be seen once in 1e9
    assert math.log(near[0] / 21) > 3.0
    booked = mechanism.event()
    assert isinstance(booked, NonPrivate)
    assert "density has no bound at 0" in booked.reason
    assert math.isinf(accountant("pld").epsilon([(booked, 1)], 1e-5))
    # there it is Laplace
    assert ExponentialNorm(clip=1.0, noise_multiplier=math.sqrt(2.0), dimension=1).event() == Pure(
        epsilon=1.0
    )


def test_in_many_dimensions_it_behaves_like_a_gaussian_of_its_multiplier() -> None:
    """A numerical agreement that no accountant uses: delta at d = 7850, epsilon_0 = 88.6, which
    proves next to nothing.
    """
    dimension, n, rng = 7850, 1_000_000, np.random.default_rng(7)
    epsilon = math.sqrt(dimension)
    length = rng.standard_gamma(dimension, n) / epsilon
    along = rng.standard_normal(n)
    cosine = along / np.sqrt(along**2 + 2.0 * rng.standard_gamma((dimension - 1) / 2.0, n))
    loss = epsilon * (np.sqrt(length**2 - 2.0 * length * cosine + 1.0) - length)
    assert abs(loss).max() <= epsilon
    for x, printed in ((1.0, 0.1270), (2.0, 0.0209)):
        gained = np.maximum(-np.expm1(x - loss), 0.0)
        error = 6.1 * gained.std() / math.sqrt(n)
        gaussian = gaussian_delta(math.sqrt(dimension) / epsilon, x)
        assert abs(gained.mean() - gaussian) < error + 1e-3 * gaussian
        assert gaussian == pytest.approx(printed, abs=2e-4)
    assert KNorm.claimed(
        math.sqrt((dimension + 1) / dimension), dimension
    ).epsilon == pytest.approx(epsilon)
    proved = accountant("pld").epsilon(
        [(PoissonSampled(sampling_rate=0.01, event=Pure(epsilon=epsilon)), 100)], 1e-5
    )
    assert proved > 500.0


def test_a_release_adds_to_its_input_and_leaves_it_alone() -> None:
    total = torch.arange(5, dtype=torch.float32)
    mechanism = KNorm(clip=1.0, noise_multiplier=1.0, dimension=5)
    noisy, count = mechanism.release_counted(total, 3.0, Seeded(0).at("x"))
    noise, _ = mechanism.release_counted(torch.zeros(5), 0.0, Seeded(0).at("x"))
    assert count is None
    assert torch.equal(total, torch.arange(5, dtype=torch.float32))
    assert torch.allclose(noisy, total + noise)


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"noise_multiplier": math.nan}])
def test_refuses_what_is_no_mechanism(wrong: dict[str, Any]) -> None:
    for kind in (KNorm, ExponentialNorm):
        with pytest.raises(StudyError, match="must be a"):
            kind(**{"clip": 1.0, "noise_multiplier": 1.0, "dimension": 3, **wrong})
    with pytest.raises(StudyError, match="noise for 3 numbers"):
        KNorm(clip=1.0, noise_multiplier=1.0, dimension=3).release_counted(
            torch.zeros(4), 0.0, Seeded(0).at("x")
        )
    asked = NoiseRequest(unit="sample", clip=1.0, noise_multiplier=1.0, parameters=(3, 4))
    with pytest.raises(StudyError, match="dimension is 9, but the model has 7"):
        KNormNoise(dimension=9).make(asked)
    with pytest.raises(StudyError, match="depends on the model's size"):
        KNormNoise().event(1.0)


# --- whole runs -----------------------------------------------------------------------------------

PURE = 'privacy.mechanism={kind="k-norm"}'


def study(tmp_path: Path, *changes: str) -> Any:
    (tmp_path / "study.toml").write_text(pixels(SYNCHRONOUS))
    small = [
        "data.clients=4",
        "budget.rounds=4",
        "budget.steps=8",
        "model.name=logistic",
        'method={name="dp-sgd", tau=2}',
    ]
    return studies.read(tmp_path / "study.toml", [*small, *changes])


def sordino(*arguments: str) -> str:
    done = command.sordino(Path.cwd(), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr if "show" in arguments else done.stdout


def quiet(told: object) -> None:
    """Show nothing."""


@pytest.mark.parametrize("accountant_name", ["pld", "rdp-classic"])
def test_a_run_books_the_pure_releases_it_makes(tmp_path: Path, accountant_name: str) -> None:
    outcome = session.begin(
        study(tmp_path, PURE, f"privacy.accountant={accountant_name}"),
        tmp_path / "run",
        quiet,
        quiet,
    )
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    kept: Any = studies.read(tmp_path / "run" / "study.toml")
    assert kept.privacy.mechanism == KNormNoise(dimension=about["dimension"])
    assert about["dimension"] == 650
    assert about["warnings"] == []
    epsilon = math.sqrt(651) / about["noise_multiplier"]
    step = PoissonSampled(sampling_rate=0.2, event=Pure(epsilon=epsilon))
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        for unit in ledger.units():
            assert ledger.spent(unit) == ((step, 8),)
    assert outcome.steps == 8
    assert outcome.epsilon == pytest.approx(accountant(accountant_name).epsilon([(step, 8)], 1e-3))
    assert 3.99 < outcome.epsilon <= 4.0
    assert session.resume(tmp_path / "run", quiet, quiet).epsilon == outcome.epsilon
    assert (
        json.loads(sordino("ledger", "verify", str(tmp_path / "run"), "--json"))["epsilon"]
        == outcome.epsilon
    )
    assert f"pure, epsilon {epsilon_text(epsilon)}, Poisson sampled at 0.2" in sordino(
        "ledger", "show", str(tmp_path / "run")
    )


def test_with_little_noise_it_learns(tmp_path: Path) -> None:
    """epsilon_0 = 127 for a step: by proof nothing, in fact like a Gaussian of sigma 0.2."""
    changes = ["privacy.noise_multiplier=0.2", "privacy.epsilon=1e6", "budget.rounds=15"]
    outcome = session.begin(study(tmp_path, PURE, *changes), tmp_path / "run", quiet, quiet)
    assert outcome.accuracy is not None
    assert outcome.accuracy > 0.7
    assert 127.0 < outcome.epsilon < 1e6


def test_whole_clients_and_a_schedule_are_booked_alike(tmp_path: Path) -> None:
    clients = [
        'method={name="dp-fedavg"}',
        f'privacy={{unit="client", epsilon=4.0, delta=0.01, sampling_rate=0.5, {PURE[8:]}}}',
    ]
    outcome = session.begin(study(tmp_path, *clients), tmp_path / "clients", quiet, quiet)
    assert 3.9 < outcome.epsilon <= 4.0
    falling = session.begin(
        study(tmp_path, 'method={name="dynamic-dp-sgd"}', PURE), tmp_path / "falling", quiet, quiet
    )
    assert 3.9 < falling.epsilon <= 4.0
    with Ledger.open(tmp_path / "falling" / "ledger.sqlite", readonly=True) as ledger:
        assert len({event for event, _ in ledger.spent("client:0")}) > 1


def test_the_papers_noise_runs_and_is_booked_as_what_it_is(tmp_path: Path) -> None:
    table = 'privacy.mechanism={kind="k-norm", form="paper"}'
    outcome = session.begin(study(tmp_path, table), tmp_path / "run", quiet, quiet)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert math.isinf(outcome.epsilon)
    assert about["guarantee"].startswith("No privacy guarantee")
    (warning,) = about["warnings"]
    assert "NOT private: it claims epsilon = 3.99" in warning
    assert "gives epsilon = inf (noise of exponential length" in warning
    true = build.calibrated(study(tmp_path, PURE)).privacy.noise_multiplier
    assert true is not None
    assert about["noise_multiplier"] == pytest.approx(true * math.sqrt(2.0 / (650 * 651)), rel=1e-2)


def test_plan_and_advice_know_its_price(tmp_path: Path) -> None:
    asked = study(tmp_path, PURE)
    (tmp_path / "asked.toml").write_text(studies.write(asked))
    shown = json.loads(sordino("plan", str(tmp_path / "asked.toml"), "--json"))
    priced, _ = build.plan(asked)
    assert (
        shown["noise_multiplier"]
        == priced.noise_multiplier
        == build.calibrated(asked).privacy.noise_multiplier
    )
    assert shown["epsilon"] == priced.curve[-1] <= 4.0
    plain, _ = build.plan(study(tmp_path))
    assert priced.noise_multiplier > 5.0 * plain.noise_multiplier
    cells = json.loads(sordino("plan", str(tmp_path / "asked.toml"), "--advise", "--json"))
    assert min(cell["noise_multiplier"] for cell in cells) > 3.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (['method={name="adap-dpfl"}', "privacy.accountant=rdp@8"], "reckons with Gaussian noise"),
        (
            ['method={name="dp-fedavg", clipping="adaptive"}', 'privacy.unit="client"'],
            "releases none",
        ),
    ],
)
def test_methods_that_count_on_another_noise_are_refused(
    tmp_path: Path, changes: list[str], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        study(tmp_path, *changes, PURE)


def test_a_dimension_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="dimension is 12, but the model has 650"):
        session.begin(
            study(tmp_path, 'privacy.mechanism={kind="k-norm", dimension=12}'),
            tmp_path / "run",
            quiet,
            quiet,
        )
    assert not (tmp_path / "run").exists()


ARRIVALS = """
name = "arrivals"
[data]
name = "digits"
clients = 3
[model]
name = "logistic"
[method]
name = "audp"
batch = 40
[privacy]
unit = "sample"
epsilon = 4.0
delta = 1e-3
[budget]
updates = 30
"""


@pytest.mark.parametrize("form", ["sound", "paper"])
def test_edges_on_arrival_book_it_alike(tmp_path: Path, form: str) -> None:
    (tmp_path / "study.toml").write_text(ARRIVALS)
    asked = studies.read(
        tmp_path / "study.toml", [f'privacy.mechanism={{kind="k-norm", form="{form}"}}']
    )
    outcome = session.begin(asked, tmp_path / "run", quiet, quiet)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    with Ledger.open(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        booked = {event for unit in ledger.units() for event, _ in ledger.spent(unit)}
    for event in booked:
        assert isinstance(event, PoissonSampled)
        assert (
            event.event == KNorm.claimed(about["noise_multiplier"], 650)
            if form == "sound"
            else isinstance(event.event, NonPrivate)
        )
    assert math.isinf(outcome.epsilon) == (form == "paper")


def test_directions_of_the_contract_have_the_tolerance_of_so_many() -> None:
    n = 4_000
    lengths = stats.gamma.ppf((np.arange(n) + 0.5) / n, 1.0)
    for errors, right in ((0.0, True), (5.0, True), (8.0, False)):
        ups = round((n + errors * math.sqrt(n)) / 2)
        signs = np.random.default_rng(0).permutation(np.repeat([1.0, -1.0], [ups, n - ups]))
        assert looks_k_norm(torch.from_numpy((lengths * signs)[:, None])) == right
    # along the axes alone: the means are right, and the first numbers are not those of a circle
    lengths = stats.gamma.ppf((np.arange(n) + 0.5) / n, 2.0)
    turns = np.random.default_rng(1).permutation(np.arange(n)) / n
    for turned, right in ((turns, True), (np.round(4.0 * turns) / 4.0, False)):
        circle = np.stack([np.cos(math.tau * turned), np.sin(math.tau * turned)], axis=1)
        assert looks_k_norm(torch.from_numpy(lengths[:, None] * circle)) == right
        assert not looks_k_norm(torch.from_numpy(1.2 * lengths[:, None] * circle))
