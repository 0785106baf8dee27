"""Mechanisms are known by name; a user's own is one file with one registration, as
docs/own-mechanism.md says.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Literal

import pytest

from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.core.run import session
from sordino.mechanisms.kinds import MECHANISMS, Noise, known, register
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS

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
