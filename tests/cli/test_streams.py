"""What a command writes where: results to standard output, all else to standard error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import sordino
from sordino.core import study as studies
from sordino.core.run import session
from sordino.privacy import Ledger
from sordino.regimes.synchronous.study import TEMPLATE

PRICE = (
    *("plan", "--epsilon", "2", "--delta", "1e-5", "--sampling-rate", "0.1"),
    *("--noise-multiplier", "2", "--accountant", "rdp"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("streams")
    (at / "study.toml").write_text(TEMPLATE)
    short = ("data.clients=3", "budget.rounds=1", "budget.steps=2", "privacy.accountant=rdp")
    study = studies.read(at / "study.toml", [*short, "model.name=logistic"])
    session.begin(study, at / "run", lambda _: None, lambda _: None)
    Ledger.create(at / "a.sqlite", {"client:0": "0"}).close()
    return at


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "study.toml"), "R_c: most local steps within epsilon"),
        (PRICE, "Most steps within the budget"),
        (("methods",), "ali-dpfl"),
        (("keys",), "privacy.clip"),
        (("keys", "privacy.clip"), "privacy.clip: C, the largest norm"),
        (("examples",), "ali-dpfl-digits"),
        (("data", "list"), "embedded"),
        (("data", "find", "digits"), "embedded"),
        (("data", "partition", "study.toml"), "Examples of each label"),
        (("ledger", "show", "run"), "charges"),
        (("ledger", "verify", "run"), "match the seal in the ledger"),
        (("ledger", "epsilon", "run"), "client:0"),
        (("report", "run"), "Report: run/report.html"),
        (("tune", "study.toml", "--rules", "--plan", "--set", "data.features=scattering"), "clip"),
    ],
)
def test_results_go_to_standard_output_alone(
    folder: Path, words: tuple[str, ...], said: str
) -> None:
    done = sordino(folder, *words)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert said not in done.stderr


@pytest.mark.parametrize("words", [("report", "run"), ("data", "find", "digits")])
def test_with_json_standard_output_is_one_object(folder: Path, words: tuple[str, ...]) -> None:
    done = sordino(folder, *words, "--json")
    json.loads(done.stdout)
    assert sordino(folder, *words).stdout == done.stderr


def test_warnings_go_to_standard_error(folder: Path) -> None:
    done = sordino(folder, "plan", "study.toml", "--set", 'method.form="paper"')
    assert "warning: " in done.stderr
    assert "warning: " not in done.stdout


def test_a_run_tells_its_rows_as_it_goes_and_ends_with_the_result(folder: Path) -> None:
    short = ("data.clients=3", "budget.rounds=1", "budget.steps=2", "privacy.accountant=rdp")
    sets = [word for key in (*short, "model.name=logistic") for word in ("--set", key)]
    done = sordino(folder, "run", "study.toml", "--out", "another", *sets)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("round 1/1") or "ended" in done.stderr
    assert done.stdout.startswith("ali-dpfl: 1 round")
    assert "Report: another/report.html" in done.stdout


def test_the_extra_that_trackers_need_is_named_whole(folder: Path) -> None:
    said = " ".join(sordino(folder, "run", "--help").stdout.replace("│", " ").split())
    assert "pip install 'sordino[track]'" in said


@pytest.mark.usefixtures("painted")
@pytest.mark.parametrize(
    ("kind", "head"),
    [
        pytest.param("svg", b"<svg", marks=pytest.mark.nightly),
        ("pdf", b"%PDF"),
        pytest.param("png", b"\x89PNG", marks=pytest.mark.nightly),
    ],
)
def test_figures_of_a_run_as_files_of_equal_bytes(
    folder: Path, tmp_path: Path, kind: str, head: bytes
) -> None:
    written = []
    for place in ("a", "b"):
        done = sordino(
            folder, "report", "run", "--figures", str(tmp_path / place), "--format", kind
        )
        assert done.returncode == 0, done.stderr
        files = [Path(line) for line in done.stdout.splitlines()]
        assert files == [tmp_path / place / each.name for each in files]
        written.append({file.name: file.read_bytes() for file in files})
    assert f"learning-round.{kind}" in written[0]
    assert all(content.startswith(head) for content in written[0].values())
    assert written[0] == written[1]


def test_figures_are_of_one_run_and_a_known_format(folder: Path) -> None:
    several = sordino(folder, "report", "run", "run", "--figures", "f")
    assert "--figures is for one run" in several.stderr
    odd = sordino(folder, "report", "run", "--figures", "f", "--format", "gif")
    assert odd.returncode == 2
    assert "'gif' is not one of" in odd.stderr
    assert not (folder / "f").exists()
