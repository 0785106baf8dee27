"""Studies with a front end: what clients have, what a plan knows, and whose budget it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.base.errors import StudyError
from sordino.clients.division import federation
from sordino.clients.study import HorizontalStudy
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.run import session
from sordino.core.statements import assumptions
from sordino.data.scattering import RandomConvolutions
from sordino.data.sets import Halves, Published, forget, register
from sordino_papers.inversion.scenes import attacked

FRONT = {"kind": "random", "filters": 6, "size": 3, "pool": 2}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def quiet(_: object) -> None:
    """Nobody looks."""


def table(data: dict[str, Any], **privacy: Any) -> dict[str, Any]:
    return {
        "name": "front ends",
        "data": {"clients": 3, **data},
        "model": {"name": "logistic"},
        "method": {"name": "dp-sgd" if privacy else "fedavg", "learning_rate": 0.5, "tau": 1},
        "privacy": privacy or {"unit": "none", "sampling_rate": 0.3},
        "budget": {"rounds": 4},
    }


def study(found: dict[str, Any]) -> HorizontalStudy:
    parsed = studies.parse(found, source="a test")
    assert isinstance(parsed, HorizontalStudy)
    return parsed


def test_clients_have_the_features_of_their_examples() -> None:
    front = RandomConvolutions(filters=6, size=3, pool=2)
    raw, seen = (
        federation(study(table({"name": "digits", **more}))) for more in ({}, {"features": FRONT})
    )
    assert seen.sizes == raw.sizes
    for one, other in zip((*seen.parts, seen.test), (*raw.parts, raw.test), strict=True):
        assert np.array_equal(one.x, front.features(other.x))
        assert np.array_equal(one.y, other.y)
        assert one.fingerprint() == other.fingerprint()


def test_features_of_what_somebody_else_names_are_not_kept(tmp_path: Path) -> None:
    """A name is no proof that rows are public."""

    def given(folder: Path, published: Published) -> Halves:
        x, y = np.zeros((30, 1, 8, 8), np.uint8), np.arange(30) % 2
        return (x, y), (x[:4], y[:4])

    register(Published("patients", ("no", "yes"), ((),), read=given))
    try:
        federation(study(table({"name": "patients", "features": FRONT})))
        assert not list((tmp_path / "cache").rglob("*.npy"))
        federation(study(table({"name": "digits", "features": FRONT})))
        assert list((tmp_path / "cache").rglob("*.npy"))
    finally:
        forget("patients")


def test_plan_knows_the_size_of_the_model_without_the_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RandomConvolutions, "features", None)
    sampled = {"unit": "sample", "epsilon": 4.0, "delta": 1e-3, "clip": 1.0, "sampling_rate": 0.2}
    own = {"name": "digits", "clients": 3, "features": FRONT}
    with pytest.raises(TypeError):  # whoever asks for features would see it
        federation(study(table(own, **sampled)))
    plan, _ = regimes.plan(study(table(own, **sampled)))
    raw, _ = regimes.plan(study(table({**own, "features": None}, **sampled)))
    assert plan.signal_to_noise is not None
    assert raw.signal_to_noise is not None
    assert plan.signal_to_noise != raw.signal_to_noise


def test_another_front_end_is_no_way_around_a_budget(tmp_path: Path) -> None:
    kept = {
        "unit": "sample",
        "epsilon": 2.0,
        "delta": 1e-3,
        "clip": 1.0,
        "sampling_rate": 0.2,
        "noise_multiplier": 1.5,
        "ledger": str(tmp_path / "kept"),
    }
    first = study(table({"name": "digits"}, **kept))
    session.begin(first, tmp_path / "raw", quiet, quiet)
    left, _ = regimes.plan(study(table({"name": "digits", "features": FRONT}, **kept)))
    assert [each.spent for each in left.left] == [
        each.spent for each in regimes.plan(first)[0].left
    ]
    assert all(each.spent > 0.5 for each in left.left)


def test_report_says_what_the_model_sees() -> None:
    said = " ".join(assumptions(study(table({"name": "digits", "features": FRONT}))))
    assert "data.features = 'random' (filters 6, size 3, pool 2, seed 0)" in said


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ("scaterring", "did you mean 'scattering'"),
        ({"kind": "scattering", "J": 9}, "data.features.J"),
        ({"kind": "scattering", "j": 2}, "data.features.j"),
        ({"kind": "random", "size": 9}, "at least 12 pixels"),
    ],
)
def test_mistakes_name_the_key(features: object, why: str) -> None:
    with pytest.raises(StudyError, match=why):
        regimes.plan(study(table({"name": "digits", "features": features})))


def test_front_ends_are_for_clients_with_examples() -> None:
    events = {
        "name": "events",
        "data": {"name": "digits", "parties": 2, "features": "random"},
        "model": {"party": "linear", "server": "linear"},
        "method": {"name": "ogd"},
        "privacy": {"unit": "none"},
        "budget": {"events": 10},
    }
    with pytest.raises(StudyError, match=r"data\.features"):
        studies.parse(events, source="a test")


def test_gradients_of_features_are_not_inverted_into_images() -> None:
    sampled = {"unit": "sample", "epsilon": 4.0, "delta": 1e-3, "clip": 1.0, "sampling_rate": 0.2}
    with pytest.raises(StudyError, match=r"data\.features = 'random'"):
        attacked(study(table({"name": "digits", "features": FRONT}, **sampled)), ())
