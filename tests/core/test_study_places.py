"""The files that a study names are found from every folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from command import sordino
from sordino.base.errors import StudyError
from sordino.core import files
from sordino.core import study as studies
from sordino.regimes.synchronous.study import TEMPLATE

SMALL = (
    "data.clients=3",
    "budget.rounds=2",
    "budget.steps=4",
    "privacy.accountant=rdp",
    "privacy.sampling_rate=0.5",
)
SETS = [word for change in SMALL for word in ("--set", change)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a study, its data and a ledger beside it, which is not the current one."""
    folder = tmp_path / "home"
    folder.mkdir()
    rng = np.random.default_rng(0)
    np.savez(folder / "rows.npz", x=rng.random((90, 4)).astype(np.float32), y=np.arange(90) % 3)
    text = TEMPLATE.replace('name = "digits" ', 'file = "rows.npz" ')
    text = text.replace('features = "scattering"', "")
    (folder / "study.toml").write_text(text.replace('ledger = "run"', 'ledger = "kept"'))
    (tmp_path / "elsewhere").mkdir()
    return folder


def test_a_run_begins_goes_on_and_repeats_from_any_folder(home: Path) -> None:
    elsewhere = home.parent / "elsewhere"
    begun = sordino(elsewhere, "run", "../home/study.toml", "--out", "run", "-q", *SETS)
    assert begun.returncode == 0, begun.stderr
    assert (home / "kept").is_dir()
    assert sordino(home, "run", "--resume", "../elsewhere/run", "-q").returncode == 0
    again = sordino(home.parent, "plan", "elsewhere/run/study.toml")  # this file gives it again
    assert again.returncode == 0, again.stderr


def test_a_path_on_the_command_line_starts_where_it_is_typed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)
    path = home / "study.toml"
    assert studies.read(path).data.file == home / "rows.npz"
    typed = studies.read(path, ["data.file=mine.npz"])
    assert typed.data.file == home.parent / "mine.npz"
    written = studies.read(path, as_written=True)
    assert written.data.file == Path("rows.npz")
    assert written.privacy.ledger == "kept"


def test_what_comes_through_a_pipe_starts_at_the_current_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    out, into = os.pipe()
    os.write(into, (home / "study.toml").read_bytes())
    os.close(into)
    assert studies.read(Path(f"/dev/fd/{out}")).data.file == home / "rows.npz"
    os.close(out)


def test_a_ledger_of_the_current_folder_is_not_forgotten(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)
    Path("kept").mkdir()
    with pytest.raises(StudyError, match="would forget what was spent"):
        studies.read(home / "study.toml")
    (home / "kept").mkdir()
    assert studies.read(home / "study.toml").privacy.ledger == str(home / "kept")


def test_of_two_runs_that_begin_at_once_one_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draft, taken = Path(".draft"), Path("runs/a-001")
    for folder in (draft, taken):
        folder.mkdir(parents=True)
        (folder / "run.json").touch()
    with pytest.raises(StudyError, match="exists already"):
        files.take(draft, taken, taken, "a")
    assert files.take(draft, taken, None, "a") == Path("runs/a-002")
