"""Files appear whole or not at all, and the system's refusals become one message."""

import errno
import json
import sys
from pathlib import Path

import pytest

from sordino.errors import SordinoError, StudyError
from sordino.runtime import files


def test_a_full_disk_keeps_the_old_file_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    files.replace_file(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SordinoError, match=r"no space left on the disk.*resume"):
        files.replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_place_that_may_not_be_written_is_the_users_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StudyError, match="not allowed to write there"), files.said_clearly(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
    with pytest.raises(IsADirectoryError), files.said_clearly(tmp_path):
        raise IsADirectoryError(errno.EISDIR, "other trouble is not dressed up")


def test_json_holds_infinities_as_words_and_nothing_that_is_no_json() -> None:
    text = files.to_json({"a": float("inf"), "b": [float("-inf"), float("nan")], "c": {"d": 1.5}})
    assert json.loads(text) == {"a": "inf", "b": ["-inf", None], "c": {"d": 1.5}}


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_more_files_may_be_open_as_far_as_the_system_allows() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        files.make_room_for(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, before[1])  # enough as it is
        files.make_room_for(400)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (400 + files.SPARE_FILES, before[1])
        if before[1] != resource.RLIM_INFINITY:
            with pytest.raises(StudyError, match=r"the system allows \d+.*privacy\.ledger = \"run\""):
                files.make_room_for(before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
