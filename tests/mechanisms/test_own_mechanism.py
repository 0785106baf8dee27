"""Mechanisms are known by name; a user's own is one file with one registration, as
docs/own-mechanism.md says.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.core.run import session
from sordino.mechanisms.gaussian import Gaussian, within
from sordino.mechanisms.kinds import MECHANISMS, Noise, known, register
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS
from sordino.training.perexample.clipping import Shortened

DOCUMENT = Path(__file__).parents[2] / "docs" / "own-mechanism.md"


def study(tmp_path: Path, *changes: str) -> studies.Study:
    (tmp_path / "study.toml").write_text(SYNCHRONOUS)
    return studies.read(
        tmp_path / "study.toml", ["data.clients=4", "budget.rounds=4", "budget.steps=8", *changes]
    )


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_the_documented_mechanism_keeps_its_contract_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    mechanism, check = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "tilted.py").write_text(mechanism)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("tilted", None)
    before = dict(known())
    try:
        exec(check, {})
        told = ['method={name="dp-sgd"}']
        if unit == "client":
            told = [
                'method={name="dp-fedavg"}',
                'privacy={unit="client", epsilon=4.0, delta=0.01, sampling_rate=0.5}',
            ]
        plain = session.begin(
            study(tmp_path, *told), tmp_path / "plain", lambda _: None, lambda _: None
        )
        table = 'privacy.mechanism={kind="tilted:Tilted", last=3.0}'
        outcome = session.begin(
            study(tmp_path, *told, table), tmp_path / "run", lambda _: None, lambda _: None
        )
        assert outcome.epsilon == plain.epsilon
        assert (tmp_path / "run" / "rounds.jsonl").read_bytes() != (
            tmp_path / "plain" / "rounds.jsonl"
        ).read_bytes()
        assert (
            session.resume(tmp_path / "run", lambda _: None, lambda _: None).epsilon
            == outcome.epsilon
        )
        with pytest.raises(StudyError, match=r"mechanism\.last: .*greater than 0"):
            study(tmp_path, *told, 'privacy.mechanism={kind="tilted:Tilted", last=0.0}')
    finally:
        for name in set(known()) - set(before):
            del sys.modules[known()[name].__module__]
            MECHANISMS.forget(name)


CAREFUL = """
from dataclasses import dataclass
from typing import Literal
import torch
from sordino.extend.mechanisms import Gaussian, Noise, add_gaussian, shortened

failed = []

class Careful(Noise):
    kind: Literal["careful"] = "careful"
    call: str = ""
    most: float = 0.0

    def make(self, asked):
        return Made(self, asked.clip, asked.noise_multiplier)

@dataclass(frozen=True)
class Made:
    table: Careful
    clip: float
    noise_multiplier: float
    measure = "own"
    margin = 0.99

    @property
    def vector_multiplier(self):
        return self.noise_multiplier

    def tried(self, call, rows):
        if call == self.table.call and rows.norm() > self.table.most and rows.min() != rows.max():
            failed.append(call)
            raise BaseException("long")  # as a panic of Rust

    def norms(self, rows):
        self.tried("norms", rows)
        return rows.double().norm(dim=1).nan_to_num(nan=torch.inf)

    def event(self):
        return Gaussian(noise_multiplier=self.noise_multiplier)

    def scaled(self, clip, noise_multiplier):
        return Made(self.table, clip, noise_multiplier)

    def bounded(self, vector):
        self.tried("bounded", vector)
        return shortened(vector, float(vector.double().norm()), self.clip)

    def release_counted(self, total, excess, rng):
        sigma = self.noise_multiplier
        return add_gaussian(total, rng, clip=self.clip, noise_multiplier=sigma), None
"""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("norms", ['method={name="dp-sgd", learning_rate=1.0, tau=1}']),
        (
            "bounded",
            [
                'method={name="dp-fedavg"}',
                'privacy={unit="client", epsilon=4.0, delta=0.01, clip=0.2, sampling_rate=0.9}',
            ],
        ),
    ],
)
def test_a_contribution_on_which_a_mechanism_fails_adds_nothing_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, told: list[str]
) -> None:
    """The run ended in the step in which that row was drawn."""
    (tmp_path / "careful.py").write_text(CAREFUL)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("careful", None)

    def played(most: float) -> list[object]:
        table = f'privacy.mechanism={{kind="careful:Careful", call="{call}", most={most}}}'
        asked = study(tmp_path, *told, table)
        done = session.begin(asked, tmp_path / f"{most}", lambda _: None, lambda _: None)
        return [done.rounds, done.epsilon]

    try:
        before = played(1e9)
        assert played(0.0) == before
        assert len(set(sys.modules["careful"].failed)) == 1
    finally:
        del sys.modules["careful"]
        MECHANISMS.forget("careful")


@dataclass(frozen=True, kw_only=True)
class Naive(Gaussian):
    """The obvious bound, which makes NaN of NaN."""

    def bounded(self, vector: Tensor) -> tuple[Tensor, bool]:
        norm = float(vector.double().norm())
        return vector * min(1.0, self.clip / norm), norm <= self.clip

    def shortened_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.bounded(rows.double())[0], rows.double().norm(dim=1)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_contribution_of_which_a_mechanism_makes_nan_adds_nothing(odd: float) -> None:
    """Each number of the sum was NaN, so that it lost those of all others."""
    made = Naive(clip=1.0, noise_multiplier=1.0)
    rows = torch.tensor([[0.6, 0.8], [odd, 1.0], [0.0, 3.0]])
    short = [[0.6, 0.8], [0.0, 0.0], [0.0, 1.0]]
    assert torch.stack([within(made, row)[0] for row in rows]).numpy() == pytest.approx(
        np.array(short)
    )
    found, _ = Shortened.by(made, 1.0).rows(rows)
    assert found.numpy() == pytest.approx(np.array(short))


def test_a_mechanism_that_takes_no_row_is_refused_before_a_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = CAREFUL.replace("norm(dim=1)", "norm()")
    (tmp_path / "careless.py").write_text(source.replace("Careful", "Careless"))
    monkeypatch.syspath_prepend(tmp_path)
    asked = study(
        tmp_path, 'method={name="dp-sgd"}', 'privacy.mechanism={kind="careless:Careless"}'
    )
    try:
        with pytest.raises(StudyError, match=r"norms gave .* tensor of shape \(1,\) for a row of"):
            session.begin(asked, tmp_path / "run", lambda _: None, lambda _: None)
    finally:
        del sys.modules["careless"]
        MECHANISMS.forget("careful")


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ('{kind="haarr"}', r"did you mean 'haar'\? Known: .*gaussian"),
        ('{kind="nowhere:Noise"}', "No module named 'nowhere'.*package.module:Class"),
        ('{kind="sordino.mechanisms.gaussian:Gaussian"}', "is no Noise; see docs/own-mechanism.md"),
        ("{clip=1}", "kind is missing"),
        ("3", "must be a name or a table"),
        ('{kind="haar", weigths="paper"}', "did you mean 'weights'"),
        ('{kind="haar", weights="fair"}', "Known: uniform, paper, optimal"),
    ],
)
def test_a_mechanism_that_is_not_there_is_said_with_the_remedy(
    tmp_path: Path, mechanism: str, message: str
) -> None:
    with pytest.raises(StudyError, match=rf"(?s)privacy\.mechanism.*{message}"):
        study(tmp_path, f"privacy.mechanism={mechanism}")


def test_no_two_mechanisms_have_one_name() -> None:
    class Other(Noise):
        kind: Literal["haar"] = "haar"

    with pytest.raises(StudyError, match="the mechanism 'haar' is HaarNoise already"):
        register(Other)
    assert known()["haar"].__name__ == "HaarNoise"
