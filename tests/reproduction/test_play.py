"""A small catalogue from its files to its page: runs are shared, kept, and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sordino.comparison.runner import Job
from sordino.errors import StudyError
from sordino.reproduction import cells, files, play, worker
from sordino.reproduction.results import Results, collected
from sordino.reproduction.write import Reproduced, write

STUDY = """
seed = 3
[data]
name = "digits"
clients = 2
[model]
name = "logistic"
[method]
name = "dp-sgd"
learning_rate = 1.0
tau = 1
[privacy]
unit = "sample"
epsilon = 8.0
delta = 1e-3
clip = 1.0
sampling_rate = 0.2
accountant = "rdp"
[budget]
rounds = 2
"""
ENTRY = """
paper = "ali-dpfl"
item = "Table I"
title = "A table"
study = "small"
seeds = 2
[[data]]
name = "MNIST"
needs = "mnist"
papers = true
[[data]]
name = "digits"
[[shown]]
measure = "accuracy"
kind = "lines"
[[shown]]
measure = { curve = "accuracy" }
kind = "curves"
[[series]]
key = "one"
label = "one round"
changes = ["budget.rounds=1"]
[[series]]
key = "two"
label = "two rounds"
[x]
label = "clients"
values = [{ label = "2" }, { label = "3", changes = ["data.clients=3"] }]
[scale.quick]
points = ["2"]
[[published]]
series = "two"
x = "2"
value = 61.5
[[claim]]
text = "More rounds are better"
where = "Section 1"
rule = { no_worse = "two", than = ["one"], margin = 1.0 }
[[not_run]]
what = "the rest"
why = "it is a picture"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A catalogue with two entries that need the same runs."""
    folder = tmp_path / "catalogue"
    (folder / "studies").mkdir(parents=True)
    (folder / "studies" / "small.toml").write_text(STUDY)
    for name in ("ali-dpfl-table-1", "ali-dpfl-table-2"):
        (folder / f"{name}.toml").write_text(ENTRY)
    return folder


def nothing(name: str) -> bool:
    return False


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are made in this process: to start one takes longer than these runs."""

    def played(jobs: list[Job], at_once: int, *, ended: Any, **other: object) -> None:
        for job in jobs:
            monkeypatch.setattr("sys.argv", job.command)
            worker.main()
            ended(job.key, None)

    monkeypatch.setattr("sordino.comparison.runner.play", played)


@pytest.mark.usefixtures("here")
def test_a_catalogue_is_run_once_and_judged(home: Path, tmp_path: Path) -> None:
    grids = [
        cells.grid(entry, "quick", home=home, here=nothing) for entry in files.chosen(["all"], home)
    ]
    out = tmp_path / "out"
    runs = play.needed(grids, out)
    assert len(runs) == 4  # two series with two seeds, in both entries
    said: list[str] = []
    seen = play.play(runs, 2, (), False, said.append)
    assert not seen.failed
    assert said[-1].startswith("4/4  ali-dpfl-table-1: ")
    again = play.play(runs, 2, (), False, said.append)
    assert said[-1] == "4 of 4 runs were finished before"
    assert not again.seconds

    # a run that another version left half done is made anew
    half = runs[0].folder / "run.json"
    half.write_text(half.read_text().replace('"done"', '"running"'))
    made = runs[0].folder / "environment.json"
    made.write_text(made.read_text().replace('"code": "', '"code": "other'))
    assert not play.play(runs, 1, (), True, said.append).failed

    found = [Results(grid, out, {}) for grid in grids]
    pairs = [Reproduced(each, collected(each)) for each in found]
    write(out, pairs, "sordino reproduce all")
    told = json.loads((out / "entries" / "ali-dpfl-table-2.json").read_text())
    assert told["seeds"] == [3, 4]
    assert 0.0 < told["seconds"] < 60.0
    assert told["data"] == {"": "digits"}
    assert not told["on_the_papers_data"]
    assert told["left_out"] == ["3: left out at scale quick"]
    assert [cell["epsilon"] <= 8.0 for cell in told["cells"]] == [True, True]
    (claim,) = told["claims"]
    assert claim["verdict"] in ("holds", "cannot be told")
    assert claim["forms"][0]["comparisons"][0]["count"] == 2
    markdown = (out / "reproduction.md").read_text()
    assert "| two rounds, as printed | 61.5 |" in markdown
    assert "Not run: the rest (it is a picture)." in markdown
    page = (out / "index.html").read_text()
    assert page.count("<svg") == 4
    assert "digits (not the paper&#39;s data)" in page


def test_a_folder_with_another_run_is_refused(home: Path, tmp_path: Path) -> None:
    grid = cells.grid(files.chosen(["all"], home)[0], "quick", home=home, here=nothing)
    (run, *_) = play.needed([grid], tmp_path)
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_text('{"name": "another", "status": "done"}')
    (run.folder / "study.toml").write_text("")
    with pytest.raises(StudyError, match="holds another run than"):
        play.play([run], 1, (), True, lambda text: None)


def test_wrong_changes_name_their_cell(home: Path) -> None:
    path = home / "ali-dpfl-table-1.toml"
    path.write_text(ENTRY.replace("budget.rounds=1", "budget.round=1"))
    with pytest.raises(StudyError, match=r"ali-dpfl-table-1, one round, 2: .*budget"):
        cells.grid(files.chosen(["ali-dpfl-table-1"], home)[0], "quick", home=home)


def test_data_that_is_here_is_preferred(home: Path) -> None:
    grid = cells.grid(files.chosen(["all"], home)[0], "full", home=home, here=lambda name: True)
    taken = grid.data[""]
    assert taken is not None
    assert taken.papers
    assert len(grid.cells) == 4


def test_processes_get_fewer_runs_towards_the_end(home: Path, tmp_path: Path) -> None:
    grid = cells.grid(files.chosen(["all"], home)[0], "full", 6, home=home, here=nothing)
    runs = dict(enumerate(play.needed([grid], tmp_path)))
    counts = [len(batch) for batch in play.batches(runs, 2)]
    assert counts == [4, 3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert sum(counts) == len(runs) == 24


@pytest.mark.nightly
def test_runs_are_made_in_processes(home: Path, tmp_path: Path) -> None:
    grid = cells.grid(files.chosen(["all"], home)[0], "quick", home=home, here=nothing)
    assert not play.play(play.needed([grid], tmp_path), 2, (), True, lambda text: None).failed
