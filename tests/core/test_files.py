"""Files appear whole or not at all, and the system's refusals become one message."""

import errno
import json
from pathlib import Path

import pytest

from sordino.base.errors import SordinoError, StudyError
from sordino.core import files
from sordino.core.records import dumped


def test_a_full_disk_keeps_the_old_file_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    files.replace_file(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SordinoError, match=r"no space left on the disk.*command again"):
        files.replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_place_that_may_not_be_written_is_the_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(StudyError, match="nothing can be written there"),
        files.said_clearly(tmp_path),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")
    with pytest.raises(OSError, match="not dressed up"), files.said_clearly(tmp_path):
        raise OSError(errno.EIO, "other trouble is not dressed up")


def test_json_holds_infinities_as_words_and_nothing_that_is_no_json() -> None:
    text = dumped({"a": float("inf"), "b": [float("-inf"), float("nan")], "c": {"d": 1.5}})
    assert json.loads(text) == {"a": "inf", "b": ["-inf", None], "c": {"d": 1.5}}
