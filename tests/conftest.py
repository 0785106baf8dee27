"""Settings for all tests: no deadlines, since machines differ; the same examples in every run of
CI; what is compiled for one test is there for those that need the same.
"""

import gc
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings

from sordino.base.files import cache_folder

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

# where a test has another home or cache, nothing is compiled anew
os.environ.setdefault("SORDINO_COMPILED", str(cache_folder() / "compiled"))

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


HALVED = frozenset(
    [
        "test_an_example_has_the_same_gradient_whatever_the_size_of_its_batch",
        "test_an_outlier_moves_one_sum_by_the_clip_and_later_sums_not_at_all",
        "test_killed_anywhere_it_comes_to_the_same_end",
        "test_a_live_run_ends_with_one_model_everywhere",
        "test_a_run_folder_tells_no_guess_of_a_row",
        "test_a_run_stays_below_its_ledger_and_is_seen",
        "test_a_site_that_drops_out_in_any_step_is_recovered_from",
        "test_a_site_that_is_put_back_after_the_end_learns_what_it_has_forgotten",
        "test_a_site_that_multiplies_its_answers_is_flagged_and_the_run_goes_on",
        "test_any_number_of_workers_gives_the_same_bytes",
        "test_equals_a_loop_over_examples",
        "test_every_byte_that_is_counted_was_sent",
        "test_no_example_moves_a_sum_further_than_the_clip",
        "test_odd_values_in_rows_and_plans_stop_no_picture",
        "test_odd_values_in_rows_stop_no_picture",
        "test_one_broken_example_does_not_spoil_the_others",
        "test_one_more_example_moves_a_sum_no_further_than_the_clip",
        "test_renyi_divergences_are_bounded_in_both_directions",
        "test_the_contract_sees_another_scale",
    ]
)
"""Searches through many like cases: every other one is for the nightly run."""
SEEN = Counter[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave every other case of a long search to the nightly run."""
    test = item.nodeid.partition("[")[0]
    if test.rpartition("::")[2] in HALVED:
        SEEN[test] += 1
        if SEEN[test] % 2 == 0:
            item.add_marker("nightly")


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """What tests fork from imports and compiles once, while all processes collect tests."""
    import warm

    warm.share()


FROZEN = [0]
"""How many modules there were when all objects were last taken out of what is looked through."""


def freeze() -> None:
    """What is imported by now stays: to look through it for garbage takes half a second each time,
    and parties that are killed have it done.
    """
    gc.freeze()
    FROZEN[0] = len(sys.modules)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """What is collected stays, too. Processes that share the work find what is compiled."""
    gc.collect()
    freeze()
    gc.enable()
    if hasattr(session.config, "workerinput"):
        import warm

        warm.ready()


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
