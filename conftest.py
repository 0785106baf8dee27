"""Examples in docstrings run in a folder of their own, where they may leave files."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path)
