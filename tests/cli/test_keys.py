"""The reference of all keys, what it is made of, and the hints that use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import sordino
from sordino.core.study.parse import keys
from sordino.regimes.synchronous.study import TEMPLATE

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_command_writes() -> None:
    written = sordino(ROOT, "keys", "--markdown").stdout
    assert (ROOT / "docs" / "keys.md").read_text(encoding="utf-8") == written, (
        "store it again: sordino keys --markdown > docs/keys.md"
    )


def test_every_key_says_what_it_means() -> None:
    found = keys()
    assert not [key.key for key in found if not key.about or not key.type]
    assert {"execution.device", "execution.checkpoint_every", "data.test_file"} <= {
        key.key for key in found
    }


def test_a_key_has_its_default_its_bounds_and_those_who_have_it() -> None:
    (clip,) = keys("privacy.clip")
    assert (clip.default, clip.bounds, clip.needed) == ("1", "at least 1e-12, at most 1e+12", False)
    assert clip.regimes == ("synchronous", "asynchronous")
    (gamma,) = keys("gamma")
    assert (gamma.key, gamma.only) == ("method.gamma", ("ali-dpfl",))
    (rounds,) = keys("rounds")
    assert rounds.needed
    assert rounds.bounds == "at least 1, at most 10000000"


def test_programs_get_json_and_a_mistyped_key_a_hint(tmp_path: Path) -> None:
    (told,) = json.loads(sordino(tmp_path, "keys", "budget.rounds", "--json").stdout)
    assert told["key"] == "budget.rounds"
    assert told["type"] == "whole number"
    shown = sordino(tmp_path, "keys", "budget.rounds").stdout
    assert "default: needed" in shown
    lost = sordino(tmp_path, "keys", "roundz")
    assert lost.returncode == 2
    assert "did you mean 'rounds'?" in lost.stderr


def test_mistakes_are_told_together_with_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(TEMPLATE)
    mistakes = ("rounds=3", "privacy.unit=patient", "model.name=mpl", "data.name=digit")
    sets = [word for change in mistakes for word in ("--set", change)]
    said = sordino(tmp_path, "plan", "study.toml", *sets).stderr
    assert "did you mean 'budget.rounds'?" in said
    assert "did you mean 'mlp'?" in said
    assert "did you mean 'digits'?" in said
    assert "'client' protects each client with all its examples" in said
    assert "did you mean 'client'" not in said  # another promise is no slip of the keyboard


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ((), "ali-dpfl on digits"),
        (("method={name='dp-sgd', learning_rate=1}",), "dp-sgd on digits"),
        (("name=mine",), "mine"),
    ],
)
def test_a_study_without_a_name_is_named_after_method_and_data(
    tmp_path: Path, changes: tuple[str, ...], name: str
) -> None:
    from sordino.core import study as studies

    assert sordino(tmp_path, "new", "--out", "study.toml").returncode == 0
    assert studies.read(tmp_path / "study.toml", changes).name == name
