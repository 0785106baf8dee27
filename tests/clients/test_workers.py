"""A run has the same bytes for any number of workers; no kill loses anything."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from cases import CLIENT, METHODS, MORE, SAMPLE, study_of
from sordino.clients.workers import Workers, workers
from sordino.core import regimes
from sordino.core.run import session

MANY = {
    **{name: case for name, case in {**METHODS, **MORE}.items() if case[0] != "vertical"},
    "dp-sgd/shared": ("synchronous", "dp-sgd", [*SAMPLE, "method.tau=1", 'privacy.noise="shared"']),
    "dp-fedavg/shared": ("synchronous", "dp-fedavg", [*CLIENT, 'privacy.noise="shared"']),
    "dp-sgd/system": ("synchronous", "dp-sgd", [*SAMPLE, 'privacy.entropy="system"']),
}
FEW = (
    "ali-dpfl/longer",
    "dp-sgd/shards, late",
    "dp-fedavg/haar",
    "dp-fedavg/shared",
    "mapa/mlp, late",
)
EACH = [
    pytest.param(name, marks=() if name in FEW else pytest.mark.nightly, id=name) for name in MANY
]
"""Rounds, late answers, whole clients, shared noise and arrivals; all others nightly."""


def nobody(_: object) -> None:
    """Listen to nothing."""


def play(folder: Path, name: str, group: Workers | None, row: Any = nobody) -> Path:
    """Run a case, with the same name of the run and the same secret key each time."""
    build = regimes.build if group is None else group.build
    with (
        mock.patch("secrets.token_hex", side_effect=lambda n: "0" * (2 * n)),
        mock.patch("secrets.token_bytes", side_effect=bytes),
        mock.patch.object(session, "_now", return_value="2026-01-01T00:00:00+00:00"),
        mock.patch.object(session, "time", SimpleNamespace(monotonic=lambda: 0.0)),
    ):
        session.begin(study_of(MANY[name], folder.parent), folder, row, nobody, build=build)
    return folder


def contents(folder: Path) -> dict[str, Any]:
    """All that a run folder holds; of the ledger all tables, for a file of SQLite has room."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        rows = list(ledger.iterdump())
    return {
        "ledger": rows,
        **{path.name: path.read_bytes() for path in files if "sqlite" not in path.name},
    }


@pytest.fixture(scope="module", params=[2, 3])
def group(request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Workers that play one run after another."""
    with workers(request.param) as found:
        assert found is not None
        yield found


ALONE: dict[str, dict[str, Any]] = {}
"""The runs of one process."""


@pytest.mark.parametrize("name", EACH)
def test_any_number_of_workers_gives_the_same_bytes(
    tmp_path: Path, group: Workers, name: str
) -> None:
    if name not in ALONE:
        ALONE[name] = contents(play(tmp_path / "alone", name, None))
    there = contents(play(tmp_path / "together", name, group))
    assert there.keys() == ALONE[name].keys()
    assert [key for key in there if there[key] != ALONE[name][key]] == []
