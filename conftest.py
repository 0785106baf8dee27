"""Examples in docstrings run in a folder of their own, where they may leave files; the runs of a
comparison are forks (tests/warm.py). Pages of tests have empty pictures.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

MEMORY, ROOM = Path("/dev/shm"), 4 << 30


def pytest_configure() -> None:
    """Folders of tests lie in memory, where there is room: no test waits for a disk, which takes
    milliseconds for every charge of a ledger.
    """
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Give the memory back where all tests passed, at the end: modules that a test has registered
    lie in its folder, and later tests read them again.
    """
    config: Any = session.config
    if exitstatus == 0 and not hasattr(config, "workerinput") and not config.option.basetemp:
        shutil.rmtree(config._tmp_path_factory.getbasetemp(), ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, too: pages have empty pictures, whatever a test has left (command.py)."""
    if not isinstance(item, pytest.DoctestItem):
        from command import paint

        paint(False)


@pytest.fixture
def painted() -> None:
    """Pages of this test have their pictures whole."""
    from command import paint

    paint()


@pytest.fixture(autouse=True)
def _own_folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        import warm

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sordino.base.processes.subprocess", warm)
