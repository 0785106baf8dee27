"""Settings for all tests: no deadlines, since machines differ; the same examples in every run of
CI; what is compiled for one test is there for those that need the same.
"""

import gc
import os
import re
import shutil
import sys
import tempfile
from typing import Any

import pytest
from hypothesis import settings

gc.disable()  # until all is collected: to look through what only grows takes a quarter of that time

# processes that tests start by the hundred would each compile all sources once more
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

MEMORY = "/dev/shm"  # a ledger waits for its disk at each charge, and tests make ten thousands
if (
    "TMPDIR" not in os.environ
    and os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > 4 << 30
):
    _FILES = tempfile.TemporaryDirectory(prefix="sordino-", dir=MEMORY, ignore_cleanup_errors=True)
    os.environ["TMPDIR"], tempfile.tempdir = _FILES.name, None

# the user's own key of fingerprints is not for tests; processes that they start inherit this one
_KEYS = tempfile.TemporaryDirectory(prefix="sordino-key-")
os.environ["SORDINO_DATA_KEY"] = os.path.join(_KEYS.name, "data.key")

settings.register_profile("sordino", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "sordino")

collect_ignore = ["warmed.py"]  # whose import plays two runs, and which has no example
GROUPS = {  # what is compiled takes seconds, in every process anew
    "events": re.compile(r"vertical|ogd|slr|dlr"),
    "training": re.compile(r"tests/(training|audit)/"),
}
WAITS = ("tests/network/", "packages/sordino-mqtt/", "packages/sordino-nvflare/")
LONG = ("tests/report/", "tests/docs/", "tests/cli/test_compare", "tests/core/")


def group(nodeid: str) -> str:
    """Tests that one process plays, one after another: those that compile the same kernels, else
    those of one file, which share their fixtures.
    """
    for name, belongs in GROUPS.items():
        if belongs.search(nodeid):
            return name
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the work, what compiles comes first, and beside it what waits for
    other processes half of its time. What takes long is next: none is left with it.
    """

    def late(item: pytest.Item) -> int:
        found = group(item.nodeid)
        if found in GROUPS:
            return 0
        return 1 if found.startswith(WAITS) else 2 if found.startswith(LONG) else 3

    if hasattr(config, "workerinput"):
        items.sort(key=late)


FROZEN = [0]
"""How many modules there were when all objects were last taken out of what is looked through."""


def freeze() -> None:
    """What is imported by now stays: to look through it for garbage takes half a second each time,
    and parties that are killed have it done.
    """
    gc.freeze()
    FROZEN[0] = len(sys.modules)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is collected stays, too."""
    gc.collect()
    freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Tests import large libraries, such as a compiler. Nothing is collected here: a file that an
    earlier test has left open would be held against this one.
    """
    if len(sys.modules) > FROZEN[0] + 100:
        freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two more than there are cores: tests of networks wait for deadlines, silences and other
    processes half of their time.
    """
    from xdist.plugin import pytest_xdist_auto_num_workers as cores

    count: int = cores(config)
    return count + 2 if config.option.markexpr == "not nightly" else count


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Processes that share the work (``-n``) are given whole groups; long searches are not, each of
    which takes minutes.
    """
    if config.option.markexpr != "not nightly":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Grouped(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return Grouped(config, log)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a comparison are forks: each process of its own would import for six seconds."""
    import warm
    from sordino.base import processes

    monkeypatch.setattr(processes, "subprocess", warm)
