"""Every block of code in README, CONTRIBUTING and docs/ is run, or says why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import warm
from blocks import PAGES, ROOT, Block, blocks

ELSEWHERE = {  # who does what these pages say, from top to bottom
    "CONTRIBUTING.md": "tests/test_walk.py",
    "docs/federation.md": "tests/network/test_walk.py",
    "docs/operations.md": "tests/network/test_walk.py",
    "docs/own-mechanism.md": "tests/mechanisms/test_own_mechanism.py",
    "docs/own-method.md": "tests/regimes/test_registry.py",
    "docs/own-regime.md": "tests/test_own_regime.py",
}
REASONS = {  # why blocks are not run, and how many
    ".ci/run does": 3,
    "RUN stands for the reader's own": 1,
    "STUDY and RUN stand for the reader's own": 1,
    "downloads packages": 3,
    "installs packages": 5,
    "it draws the picture of this page": 1,
    "it is a test of its own": 1,
    "its run is that of another page": 2,
    "its study is that of another page": 6,
    "names kits that stand for the reader's own": 1,
    "names studies and runs that stand for the reader's own": 1,
    "needs Fashion-MNIST": 5,
    "needs NVFlare's server and sites": 5,
    "needs SLURM": 1,
    "needs a GPU": 1,
    "needs two machines": 1,
    "needs two users": 1,
    "needs the key of who releases": 2,
    "needs a broker": 1,
    "needs a file of many clients": 1,
    "needs the tables": 1,
    "needs a broker and several machines": 5,
    "serves until it is stopped": 1,
    "takes an hour": 3,
    "takes hours": 9,
    "packages/sordino-nvflare/tests does": 1,
}


def of(page: str) -> list[Block]:
    return blocks((ROOT / page).read_text(encoding="utf-8"))


def follow(page: str, folder: Path, when: str) -> None:
    """What a page says, in a process that has imported everything."""
    (folder / "examples").symlink_to(ROOT / "examples")
    done = warm.run([sys.executable, "-m", "player", page, str(folder), when], timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("page", [page for page in PAGES if of(page)])
def test_what_a_page_says_works(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path, "parse" if page in ELSEWHERE else "quick")


@pytest.mark.nightly
@pytest.mark.parametrize("page", [page for page in PAGES if any(each.slow for each in of(page))])
def test_what_a_page_says_works_slowly(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path, "slow" if page in ELSEWHERE else "nightly")


def test_no_block_is_skipped_silently() -> None:
    found: dict[str, int] = {}
    for page in PAGES:
        for block in of(page):
            if block.reason is not None:
                found[block.reason] = found.get(block.reason, 0) + 1
    assert found == REASONS


@pytest.mark.parametrize("page", ELSEWHERE)
def test_who_is_said_to_do_a_page_does_it(page: str) -> None:
    script = (ROOT / ELSEWHERE[page]).read_text(encoding="utf-8")
    assert Path(page).name in script
