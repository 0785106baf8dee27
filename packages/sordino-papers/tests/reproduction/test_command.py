"""``sordino reproduce`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import sordino


def test_the_catalogue_is_listed(tmp_path: Path) -> None:
    done = sordino(tmp_path, "reproduce", "LIST", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["ali-dpfl-table-2"]["item"] == "Table II"
    left_out = {name for name, row in rows.items() if not row["runs"]}
    assert left_out == {"ali-dpfl-table-3", "ali-dpfl-table-4"}
    some = sordino(tmp_path, "reproduce", "list", "als-dpfl", "--json")
    assert {row["name"] for row in json.loads(some.stdout)} == {
        name for name in rows if name.startswith("als-dpfl-")
    }


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("mapa-figure-44",), "is no entry of the catalogue"),
        (("all", "--scale", "large"), "--scale must be quick, standard or full; got 'large'"),
        (("MAPA_figure_4",), "did you mean 'mapa-figure-4'?"),
        (("Haar-",), "did you mean 'haar'?"),
        (("all", "--seeds", "0"), "--seeds must be from 1 to 1000; got 0"),
        (("all", "--seeds", "100000000"), "--seeds must be from 1 to 1000; got 100000000"),
    ],
)
def test_what_cannot_be_asked_for_is_named(
    tmp_path: Path, typed: tuple[str, ...], told: str
) -> None:
    done = sordino(tmp_path, "reproduce", *typed)
    assert done.returncode == 2
    assert told in done.stderr


def test_what_is_there_is_judged_without_runs(tmp_path: Path) -> None:
    done = sordino(tmp_path, "reproduce", "als-dpfl-figure-4", "--judge", "--json")
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(done.stdout)["entries"]
    assert [claim["verdict"] for claim in entry["claims"]] == ["not run"]
    page = (tmp_path / "reproduction" / "reproduction" / "als-dpfl.md").read_text()
    assert "no runs to compare" in page
    assert "Only 0 of 6 runs are there." in page
