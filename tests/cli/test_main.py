"""Errors that reach the edge of the program."""

from __future__ import annotations

import errno
import os

import pytest

from sordino import cli


def test_a_full_disk_is_one_message_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a/checkpoints")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("sordino: runs/a/checkpoints: No space left on device. Free some space")
    assert "--resume" in said
    assert said.count("\n") == 1


def test_what_nobody_expected_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "runs")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(PermissionError):
        cli.main()
