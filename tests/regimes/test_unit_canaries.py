"""Canaries of every unit: below the ledger where all is well, above it with too little noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino.audit.intervals import Interval, rows
from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.mechanisms import grid
from sordino.mechanisms.response import RandomisedResponse

FOLDER = Path(__file__).parents[2] / "examples/audit"
ALPHA = 1e-3  # releases change with the program's text, and a test must not fail by chance


def attacked(unit: str, *changes: str, canaries: int = 600) -> Interval:
    study = studies.read(FOLDER / f"{unit}.toml", changes)
    (row,) = rows(study, canaries, study.name)
    return row(ALPHA)


SHORT = {
    "clients": ("budget.rounds=15", "model.name=logistic"),
    "arrivals": ("budget.updates=30", "model.name=logistic"),
    "labels": ("budget.events=600",),
    "entities": ("budget.events=600",),
}
UNITS = {"clients": "client", "arrivals": "sample", "labels": "label", "entities": "entity"}


@pytest.mark.parametrize("unit", SHORT)
def test_a_run_stays_below_its_ledger_and_is_seen(unit: str) -> None:
    found = attacked(unit, *SHORT[unit])
    assert found.unit == UNITS[unit]
    assert found.verdict == "holds"
    assert found.ledger == pytest.approx(4.0 if unit == "labels" else 8.0, rel=0.01)
    assert found.low > 0.02 * found.ledger
    assert found.releases == 600


@pytest.mark.parametrize(
    "unit", ["clients", pytest.param("arrivals", marks=pytest.mark.nightly), "labels"]
)
def test_an_attack_spends_nothing_of_a_lasting_ledger(unit: str, tmp_path: Path) -> None:
    lasting = tmp_path / "lasting"
    stream = ("data.stream=replay",) if unit == "labels" else ()  # a lasting ledger has no other
    attacked(unit, *SHORT[unit], *stream, f"privacy.ledger={lasting}", canaries=100)
    assert not lasting.exists()


def test_a_label_is_seen_nearly_as_well_as_its_ledger_says() -> None:
    # answers are those of every path; for so many events the compiled one is worth its loading
    found = attacked("labels", "budget.events=3000", "execution.path=auto", canaries=3000)
    assert found.low <= found.ledger <= 1.25 * found.low


def _quieter(share: float) -> Callable[..., Any]:
    def add(*given: Any, noise_multiplier: float, **more: Any) -> Any:
        return grid_add(*given, noise_multiplier=share * noise_multiplier, **more)

    grid_add = grid.add_gaussian
    return add


LITTLE = {
    "clients": ("privacy.epsilon=1",),
    "arrivals": ("privacy.epsilon=1",),
    "entities": ("privacy.epsilon=1", "privacy.label_epsilon=0.02"),
}
"""One run with few canaries shows no more than an epsilon of two."""


@pytest.mark.parametrize(
    "unit",
    [pytest.param(unit, marks=() if unit == "clients" else pytest.mark.nightly) for unit in LITTLE],
)
def test_a_tenth_of_the_noise_that_is_booked_is_found(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = _quieter(0.1)
    monkeypatch.setattr(grid, "add_gaussian", less)
    found = attacked(unit, *SHORT[unit], *LITTLE[unit])
    assert found.ledger == pytest.approx(1.0, rel=0.05)
    assert found.verdict == "BROKEN"


def test_answers_that_are_too_true_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = RandomisedResponse.respond_for

    def truer(self: RandomisedResponse, labels: Any, *given: Any) -> Any:
        return own(RandomisedResponse(epsilon=3.0, classes=self.classes), labels, *given)

    monkeypatch.setattr(RandomisedResponse, "respond_for", truer)
    assert attacked("labels", *SHORT["labels"], "privacy.epsilon=1").verdict == "BROKEN"


def test_answers_at_every_event_add_up() -> None:
    fresh = ("privacy.memoised=false", "privacy.appearances=2", "privacy.epsilon=4.0")
    found = attacked("labels", *SHORT["labels"], *fresh)
    assert found.verdict == "holds"
    assert found.low > 0.02 * found.ledger


@pytest.mark.parametrize(
    ("unit", "changes", "message"),
    [
        ("clients", ["method.clipping=adaptive"], "under one bound"),
        ("clients", ["method.weights=size"], "under one bound"),
        ("clients", ["participation.deadline=3.0"], "whose answers all arrive"),
        ("arrivals", ['privacy.mechanism={ kind = "haar" }'], "same noise on every number"),
        ("arrivals", ["method.name=asgd", 'privacy={ unit = "none" }'], "no epsilon is promised"),
        ("entities", ["privacy.updates=noisy"], "embeddings are sent once"),
        ("entities", ['method.activation={ kind = "random", p = 0.5 }'], "activation = 'full'"),
        ("labels", ['privacy={ unit = "none" }'], "nothing is promised"),
    ],
)
def test_studies_that_canaries_do_not_fit_are_refused(
    unit: str, changes: list[str], message: str
) -> None:
    with pytest.raises(StudyError) as refused:
        attacked(unit, *SHORT[unit], *changes)
    assert message in str(refused.value)
