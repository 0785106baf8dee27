"""One process at a time writes into a folder; readers and copies are in nobody's way."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import warnings
from pathlib import Path

import pytest

from sordino.base.errors import ResumeError, StudyError
from sordino.core import study as studies
from sordino.core.files import LOCK, locked
from sordino.core.records import Row
from sordino.core.run import session
from sordino.core.run.verify import verify
from sordino.regimes.synchronous.study import TEMPLATE
from sordino.report import write, write_comparison

FAST = ["data.clients=4", "budget.rounds=4", "budget.steps=8", "execution.checkpoint_every=1"]


def quiet(told: object) -> None:
    """Show nothing."""


def test_while_a_run_goes_on_nobody_else_writes_into_its_folder(tmp_path: Path) -> None:
    path, folder = tmp_path / "study.toml", tmp_path / "run"
    refused: list[StudyError] = []
    path.write_text(TEMPLATE)

    def in_the_midst(row: Row) -> None:
        if refused or row.kind != "round":
            return
        for other in (lambda: session.resume(folder, quiet, quiet), lambda: write(folder)):
            with pytest.raises(StudyError, match="is running there") as error:
                other()
            assert not isinstance(error.value, ResumeError)  # after which some begin anew
            assert str(folder) in str(error.value)
            assert f"({os.getpid()})" in str(error.value)
            refused.append(error.value)
        write_comparison([folder], tmp_path / "elsewhere.html")
        shutil.copytree(folder, tmp_path / "copy")

    done = session.begin(studies.read(path, FAST), folder, in_the_midst, quiet)
    assert len(refused) == 2
    assert not (folder / LOCK).exists()
    assert (tmp_path / "copy" / LOCK).exists()  # as a kill leaves it, or who copies a live folder
    write(folder)
    assert not verify(folder).problems
    copied = session.resume(tmp_path / "copy", quiet, quiet)
    assert (copied.rounds, copied.spent) == (done.rounds, done.spent)
    model = "model.safetensors"
    assert (tmp_path / "copy" / model).read_bytes() == (folder / model).read_bytes()


def test_a_finished_folder_that_moves_or_cannot_be_written_is_read_without_a_lock(
    tmp_path: Path,
) -> None:
    path, folder = tmp_path / "study.toml", tmp_path / "run"
    path.write_text(TEMPLATE)
    session.begin(studies.read(path, FAST), folder, quiet, quiet)
    with locked(folder):  # readers ask for nothing
        folder = folder.rename(tmp_path / "moved")
        (folder / LOCK).unlink()  # by somebody who takes it for a thing of the past
        assert not verify(folder).problems
        write_comparison([folder], tmp_path / "elsewhere.html")
        with pytest.raises(StudyError, match="is running there"):
            write(folder)
    assert not (folder / LOCK).exists()  # under its new name


def test_a_fork_neither_shares_a_lock_nor_ends_it(tmp_path: Path) -> None:
    ends: list[int] = []
    with locked(tmp_path):
        for leaves in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
                child = os.fork()
            if child == 0:
                if leaves:
                    os.kill(os.getpid(), 9)
                time.sleep(30)
                os._exit(1)
            ends.append(child)
        os.waitpid(ends.pop(), 0)
        with pytest.raises(StudyError, match="is running there"), locked(tmp_path):
            pass
    try:
        with locked(tmp_path):  # while the other one is still there
            pass
    finally:
        os.kill(ends[0], 9)
        os.waitpid(ends[0], 0)


def test_nothing_is_written_through_a_link_in_the_place_of_the_lock(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    for link in (Path.symlink_to, Path.hardlink_to):
        folder = tmp_path / link.__name__
        folder.mkdir()
        link(folder / LOCK, tmp_path / "other")
        with pytest.raises(StudyError, match="link"), locked(folder):
            pass
    assert (tmp_path / "other").read_text() == "mine"


def test_where_the_file_system_has_no_locks_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*given: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    said = "Choose a folder on another file system"
    with pytest.raises(StudyError, match=said), locked(tmp_path):
        pass
