"""Examples in docstrings run in a folder of their own, where they may leave files; the runs of a
comparison are forks (tests/warm.py).
"""

import os
import shutil
from pathlib import Path

import pytest

MEMORY, ROOM = Path("/dev/shm"), 4 << 30


def pytest_configure() -> None:
    """Folders of tests lie in memory, where there is room: no test waits for a disk, which takes
    milliseconds for every charge of a ledger.
    """
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture(autouse=True)
def _own_folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        import warm

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sordino.comparison.runner.subprocess", warm)
