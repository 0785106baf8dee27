"""Examples that come with the program, its version, and completion in a shell."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import command
import sordino as package
from command import sordino
from sordino.api import shipped
from sordino.core import study as studies


def test_examples_are_listed_and_copied(tmp_path: Path) -> None:
    listed = sordino(tmp_path, "examples").stdout
    assert "ali-dpfl-digits" in listed
    assert sordino(tmp_path, "examples", "ali-dpfl-digits").returncode == 0
    assert studies.read(tmp_path / "ali-dpfl-digits.toml").method.name == "ali-dpfl"
    assert sordino(tmp_path, "examples", "haar", "--out", "mine").returncode == 0
    assert len(list((tmp_path / "mine").glob("*.toml"))) == 9


def test_a_study_is_copied_with_its_data(tmp_path: Path) -> None:
    done = sordino(tmp_path, "examples", "tables/homes")
    assert done.stderr.split() == ["Copied", "homes.toml", "Copied", "homes.csv"]
    assert sordino(tmp_path, "plan", "homes.toml").returncode == 0
    made = runpy.run_path(str(shipped.folder() / "tables" / "homes.py"))["homes"]()
    assert (tmp_path / "homes.csv").read_text() == made.write_csv(separator=";")
    (tmp_path / "homes.toml").unlink()
    assert "homes.csv: exists already" in sordino(tmp_path, "examples", "tables/homes").stderr
    assert not (tmp_path / "homes.toml").exists()


@pytest.mark.parametrize("name", ["nope", "../pyproject", "/etc", ""])
def test_nothing_else_is_copied(tmp_path: Path, name: str) -> None:
    done = sordino(tmp_path, "examples", name)
    assert done.returncode == 2
    assert "is no example" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "haar").mkdir()
    assert "exists already" in sordino(tmp_path, "examples", "haar").stderr
    (tmp_path / "file").touch()
    assert "Choose another" in sordino(tmp_path, "examples", "haar", "--out", "file/haar").stderr


def test_an_installed_package_has_them_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sordino" / "examples").mkdir(parents=True)
    monkeypatch.setattr(shipped, "HOME", tmp_path / "sordino")
    assert shipped.folder() == tmp_path / "sordino" / "examples"
    (tmp_path / "sordino" / "examples").rmdir()
    assert "has no examples" in sordino(tmp_path, "examples").stderr


def test_version_and_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # no matter which program started the tests, and whether it is a shell
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setattr(command, "parser_of", command.parser_of.__wrapped__)
    versions = sordino(tmp_path, "--version").stdout.splitlines()
    beside = [f"sordino-{name} 0.1.0" for name in ("mqtt", "nvflare", "papers")]
    assert versions == [f"sordino {package.__version__}", *beside]
    assert "--install-completion" in sordino(tmp_path, "--help").stdout
    assert "complete" in sordino(tmp_path, "--show-completion", "bash").stdout
