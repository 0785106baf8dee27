"""Wavelet noise with every optimizer, unit, schedule and form: accepted and priced, or refused with
the reason; and a bound of gradients from public examples.
"""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.core.regimes import plan
from sordino.core.run import session

# the paper's setting (section 6.1), where nothing else is said
PAPERS = """\
name = "wavelets"
seed = 0
[data]
name = "digits"
clients = 100
partition = { kind = "iid" }
[model]
name = "logistic"
[method]
name = "dp-sgd"
tau = 1
[privacy]
unit = "sample"
epsilon = 500.0
delta = 1e-5
clip = 1.0
noise_multiplier = 1.5
sampling_rate = 0.1
clipped_fraction = false
[budget]
rounds = 300
"""
SHORT = ["data.clients=5", "budget.rounds=2"]


def study(tmp_path: Path, *changes: str) -> studies.Study:
    path = tmp_path / "study.toml"
    path.write_text(PAPERS)
    return studies.read(path, list(changes))


def run(tmp_path: Path, name: str, *changes: str) -> Path:
    folder = tmp_path / name
    session.begin(study(tmp_path, *changes), folder, lambda _: None, lambda _: None)
    return folder


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def booked(folder: Path) -> list[dict[str, Any]]:
    """Every kind of event in the ledger."""
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        return [json.loads(text) for (text,) in db.execute("SELECT DISTINCT event FROM entries")]


def mechanism(**keys: str) -> str:
    inside = ", ".join(f'{key}="{value}"' for key, value in {"kind": "haar", **keys}.items())
    return f"privacy.mechanism={{{inside}}}"


NOISES = [
    {},
    {"blocks": "layers"},
    {"weights": "paper"},
    {"weights": "optimal"},
    {"weights": "learned"},
    {"clipping": "per-level"},
    {"clipping": "per-level", "weights": "paper"},
    {"clipping": "per-level", "weights": "learned", "blocks": "layers"},
    {"form": "paper"},
    {"form": "paper", "clipping": "per-level"},
    {"form": "paper", "clipping": "per-level", "weights": "paper"},
    {"form": "paper", "weights": "paper"},
    {"form": "paper", "weights": "learned"},
    {"form": "paper", "weights": "optimal"},
]
METHODS = [
    ("sample", "dp-sgd"),
    ("sample", "dynamic-dp-sgd"),
    ("client", "dp-fedavg"),
    ("client", "dynamic-dp-fedavg"),
]


def refusal(unit: str, optimizer: str, noise: dict[str, str]) -> str | None:
    """Why a combination must be refused."""
    weights, printed = noise.get("weights"), noise.get("form") == "paper"
    if printed and weights in ("optimal", "learned"):
        return "is not in the paper"
    if printed and noise.get("clipping") and unit == "client":
        return "clips gradients inside a client"
    if printed and weights == "paper" and not noise.get("clipping"):
        return "what a level is clipped to"
    if weights == "learned" and unit == "sample" and optimizer != "sgd":
        return "only plain SGD steps show"
    return None


@pytest.mark.parametrize(("unit", "method"), METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_every_combination_is_priced_or_refused_with_its_reason(
    tmp_path: Path, unit: str, method: str, optimizer: str
) -> None:
    for noise in NOISES:
        changes = [
            f'method={{name="{method}", optimizer={{kind="{optimizer}"}}}}',
            f"privacy.unit={unit}",
            mechanism(**noise),
            "data.validation=100",
        ]
        why = refusal(unit, optimizer, noise)
        if why is not None:
            with pytest.raises(StudyError, match=why):
                study(tmp_path, *changes)
            continue
        assert study(tmp_path, *changes).privacy.mechanism.kind == "haar"  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["ali-dpfl", "als-dpfl", "adap-dpfl"])
def test_the_printed_form_has_no_steps_that_releases_choose(tmp_path: Path, method: str) -> None:
    """They counted as what they happened to be, for the run and for later ones."""
    asked = [f"method={method}", "privacy.unit=sample", "privacy.accountant=rdp@8"]
    with pytest.raises(StudyError, match="chooses by what it releases how much it spends"):
        study(tmp_path, *asked, mechanism(form="paper"))
    assert study(tmp_path, *asked, mechanism()).form == "sound"


@pytest.mark.parametrize("sigma", [1.0, 1.5, 3.0])
@pytest.mark.parametrize(("unit", "method"), METHODS)
def test_the_papers_clients_rounds_and_noises_are_planned_at_their_true_price(
    tmp_path: Path, unit: str, method: str, sigma: float
) -> None:
    """A hundred clients, three hundred rounds; the printed form claims what the sound one gives."""
    asked = [f'method={{name="{method}"}}', f"privacy.unit={unit}"]
    asked.append(f"privacy.noise_multiplier={sigma}")
    sound = plan(study(tmp_path, *asked, mechanism()))[0]
    plain = plan(study(tmp_path, *asked))[0]
    printed = plan(study(tmp_path, *asked, mechanism(form="paper")))[0]
    assert len(sound.curve) == 300
    assert sound.epsilon == plain.epsilon == printed.claimed
    assert 0.5 < sound.epsilon < 500
    assert printed.epsilon > 1e5


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_adaptive_optimizers_train_on_wavelet_noise(tmp_path: Path, optimizer: str) -> None:
    kind = f'method.optimizer={{kind="{optimizer}"}}'
    folder = run(tmp_path, optimizer, *SHORT, kind, mechanism(weights="paper"))
    assert 0.0 <= told(folder)["result"]["accuracy"] <= 1.0
    assert [each["event"]["noise_multiplier"] for each in booked(folder)] == [1.5]


@pytest.mark.parametrize(("unit", "method"), METHODS)
def test_levels_clipped_one_by_one_are_booked_at_what_was_asked_for(
    tmp_path: Path, unit: str, method: str
) -> None:
    stages = ", stages=2, noise_decay=1.5" if "dynamic" in method else ""
    folder = run(
        tmp_path,
        "run",
        *SHORT,
        f'method={{name="{method}"{stages}}}',
        f"privacy.unit={unit}",
        mechanism(clipping="per-level", blocks="layers"),
    )
    found = sorted(each["event"]["noise_multiplier"] for each in booked(folder))
    assert found == ([1.0, 1.5] if stages else [1.5])
    assert all(each["sampling_rate"] == 0.1 for each in booked(folder))


@pytest.mark.parametrize("weights", ["uniform", "paper"])
def test_printed_bounds_on_levels_are_booked_at_their_true_price(
    tmp_path: Path, weights: str
) -> None:
    noise = mechanism(form="paper", clipping="per-level", weights=weights)
    folder = run(tmp_path, "run", *SHORT, noise)
    d, (event,) = 650, booked(folder)  # 64 features, 10 classes
    top = math.ceil(math.log2(d))
    f, m = math.sqrt((2 + top) / 2), 2**top
    squares = m**2 + sum(4**level for level in range(1, top + 1))
    wanted = 1.5 / (f * math.sqrt(top + 1 if weights == "paper" else squares))
    assert event["event"]["noise_multiplier"] == pytest.approx(wanted, rel=1e-9)
    assert told(folder)["claimed_epsilon"] < told(folder)["result"]["epsilon"]


def test_keys_that_came_later_leave_the_noise_of_other_studies_alone(tmp_path: Path) -> None:
    from sordino.core.run.environment import shape

    plain = shape(study(tmp_path, mechanism()))
    assert "clipping" not in plain
    assert "per-level" in shape(study(tmp_path, mechanism(clipping="per-level")))


# --- a bound from public examples


PROXY = [*SHORT, "data.validation=200", 'method.clipping="proxy"']


@pytest.mark.parametrize(
    "noise",
    [
        'privacy.mechanism={kind="gaussian"}',
        'privacy.mechanism={kind="gaussian", clipping="per-layer"}',
        mechanism(weights="paper"),
        mechanism(clipping="per-level"),
        mechanism(form="paper"),
    ],
)
def test_the_bound_is_the_median_norm_of_public_gradients_whatever_was_asked_for(
    tmp_path: Path, noise: str
) -> None:
    clips = []
    for name, asked in (("one", 0.5), ("two", 7.0)):
        folder = run(tmp_path, name, *PROXY, noise, f"privacy.clip={asked}")
        clips.append(told(folder)["clip"])
    assert clips[0] == clips[1]
    assert math.isfinite(clips[0])
    assert clips[0] > 0


def test_the_median_is_taken_in_the_norm_that_gradients_are_clipped_in(tmp_path: Path) -> None:
    """Weights that grow tenfold make the norm and its median grow as much; and half of the public
    gradients are within the median.
    """
    import torch

    from sordino.base.entropy import Seeded
    from sordino.clients.pricing import Trial
    from sordino.mechanisms.gaussian import Gaussian
    from sordino.mechanisms.haar.basis import Basis
    from sordino.mechanisms.haar.gaussian import HaarGaussian
    from sordino.regimes.synchronous.regime import gradient_clip
    from sordino.training import models
    from sordino.training.client import ModelKernels
    from sordino.training.flat import Flat
    from sordino.training.loss import cross_entropy
    from sordino.training.perexample.sums import ClippedSum, MeanGradient

    flat = Flat(models.build("logistic", (1, 8, 8), 10, Seeded(0).at("model")))
    kernels = ModelKernels(flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy))
    rng = torch.Generator().manual_seed(0)
    x, y = torch.rand(301, 1, 8, 8, generator=rng), torch.randint(0, 10, (301,), generator=rng)
    trial = Trial.of(kernels, (x, y))
    norms = kernels.clipped.rows(x, y).norm(dim=1)
    found = gradient_clip(Gaussian(clip=3.0, noise_multiplier=1.0), trial)
    assert found == pytest.approx(float(norms.median()), rel=1e-3)
    basis = Basis.flat(flat.dim)
    tenfold = HaarGaussian.weighted(
        clip=3.0, noise_multiplier=1.0, basis=basis, weights=(10.0,) * basis.groups
    )
    assert gradient_clip(tenfold, trial) == pytest.approx(10 * found, rel=1e-3)


def test_a_schedule_begins_at_the_public_median(tmp_path: Path) -> None:
    method = 'method={name="dynamic-dp-sgd", clipping="proxy", clip_decay=4.0, stages=2}'
    fixed = run(tmp_path, "fixed", *PROXY)
    moving = run(tmp_path, "moving", *SHORT, "data.validation=200", method)
    assert told(moving)["clip"] == told(fixed)["clip"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (['method.clipping="proxy"'], "needs public examples"),
        ([*PROXY, "privacy.noise=shared"], "agree on its grid from privacy.clip"),
        (
            [
                *SHORT,
                "data.validation=200",
                'method={name="dp-fedavg", clipping="proxy"}',
                "privacy.unit=client",
                mechanism(form="paper"),
            ],
            "bounds the gradients of single examples",
        ),
    ],
)
def test_a_bound_from_public_examples_is_refused_where_it_cannot_be(
    tmp_path: Path, changes: list[str], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        study(tmp_path, *changes)


def test_every_noise_is_in_the_list_of_combinations() -> None:
    """So that a new value of a key cannot be forgotten."""
    from sordino.mechanisms.kinds import HaarNoise

    seen = {(key, value) for noise in NOISES for key, value in noise.items()}
    for key in ("blocks", "weights", "clipping", "form"):
        values = HaarNoise.model_fields[key].annotation
        flat = itertools.chain.from_iterable(
            getattr(part, "__args__", (part,)) for part in getattr(values, "__args__", ())
        )
        for value in flat:
            if isinstance(value, str) and value != HaarNoise.model_fields[key].default:
                assert (key, value) in seen
