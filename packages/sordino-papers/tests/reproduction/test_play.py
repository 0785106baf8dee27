"""A small catalogue from its files to its page: runs are shared, kept, and judged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sordino.extend.runs import StudyError, runner
from sordino.extend.runs import write as write_study
from sordino_papers import cells, play, worker
from sordino_papers.entry import entries
from sordino_papers.measures import Column
from sordino_papers.pages import write
from sordino_papers.results import (
    Damaged,
    Results,
    collected,
    loaded,
    number,
    read,
    seconds_of,
    without_repeats,
)
from sordino_papers.tables import data_of, shown_as, tables

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
[scale.standard]
points = ["2"]
length = "a tenth"
[[published]]
series = "two"
x = "2"
value = 61.5
[[claim]]
text = "More rounds are better"
where = "Section 1"
rule = { no_worse = "two", than = ["one"], margin = 1.0 }
headline = true
why = "It learns longer."
[[claim]]
text = "More rounds are better, as said"
where = "Section 2"
rule = { no_worse = "two", than = ["one"], margin = 1.0 }
repeats = "Section 1"
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

    def played(jobs: list[runner.Job], at_once: int, *, ended: Any, **other: object) -> None:
        for job in jobs:
            runner.work(job.command[-1])
            ended(job.key, None)

    monkeypatch.setattr("sordino.comparison.runner.play", played)


def test_some_cells_may_have_seeds_of_their_own(home: Path, tmp_path: Path) -> None:
    also = "[[also]]\nseries = ['one']\nseeds = 1\n[[also]]\nseries = ['two']\nx = ['2']\nseeds = 3"
    (home / "ali-dpfl-table-1.toml").write_text(ENTRY + also)
    (entry,) = entries(["ali-dpfl-table-1"], home)
    for asked, seeds in ((None, [3, 3, 4, 5]), (2, [3, 3, 4, 4])):
        grid = cells.grid(entry, "standard", asked, home, nothing)
        assert [run.seed for run in play.needed([grid], tmp_path)] == seeds


@pytest.mark.usefixtures("here")
def test_a_catalogue_is_run_once_and_judged(home: Path, tmp_path: Path) -> None:
    grids = [
        cells.grid(entry, "standard", home=home, here=nothing) for entry in entries(["all"], home)
    ]
    out = tmp_path / "out"
    runs = play.needed(grids, out)
    assert len(runs) == 4  # two series with two seeds, in both entries
    said: list[str] = []
    assert not play.play(runs, 2, False, said.append)
    assert said[-1].startswith("4/4  ali-dpfl-table-1: ")
    assert not play.play(runs, 2, False, said.append)
    assert said[-1] == "4 of 4 runs were finished before"

    # a run that another version left half done is made anew
    half = runs[0].folder / "run.json"
    half.write_text(half.read_text().replace('"done"', '"running"'))
    made = runs[0].folder / "environment.json"
    made.write_text(made.read_text().replace('"code": "', '"code": "other'))
    assert not play.play(runs, 1, True, said.append)

    found = [Results(grid, out, {}) for grid in grids]
    pairs = [(each, collected(each)) for each in found]
    (entry, _) = entries(["all"], home)
    full = Results(cells.grid(entry, "full", home=home, here=nothing), out, {})
    partly = Results(cells.grid(entry, "full", 4, home=home, here=nothing), out, {})
    assert without_repeats([partly, full]) == [full]
    write(out, pairs, [(full, collected(full))], "sordino reproduce all")
    told = json.loads((out / "entries" / "ali-dpfl-table-2.json").read_text())
    assert told["seeds"] == [3, 4]
    assert 0.0 < told["seconds"] < 60.0
    assert told["data"] == {"": "digits"}
    assert not told["on_the_papers_data"]
    assert told["left_out"] == ["3: left out at scale standard"]
    assert [cell["epsilon"] <= 8.0 for cell in told["cells"]] == [True, True]
    claim, _ = told["claims"]
    assert claim["verdict"] in ("holds", "cannot be told")
    assert claim["forms"][0]["comparisons"][0]["count"] == 2
    assert claim["paper"] == claim["sound"] == claim["verdict"]
    markdown = (out / "reproduction" / "ali-dpfl.md").read_text()
    assert "| two rounds, as printed | 61.5 |" in markdown
    assert "Not run: the rest (it is a picture)." in markdown
    assert "[At full scale](#table-i-at-full-scale): cannot be told. |" in markdown
    assert "## Table I at full scale\n" in markdown
    assert "Only 4 of 8 runs are there." in markdown
    first = (out / "reproduction.md").read_text()
    assert (
        "| [Table I](reproduction/ali-dpfl.md#table-i-at-full-scale) | 4 of 8, 0.0 minutes" in first
    )
    assert "| ALI-DPFL: More rounds are better (Section 1) |" in first
    assert "| no: digits | a tenth | It learns longer. |" in first
    counted = "holds" if claim["verdict"] == "holds" else "cannot be told"
    row = [str(2 * (each == counted)) for each in ("holds", "does not hold", "cannot be told")]
    assert f"| [ALI-DPFL](reproduction/ali-dpfl.md) | {' | '.join(row)} | 0 | 2 |" in first
    page = (out / "index.html").read_text()
    assert page.count("<svg") == 6
    assert "digits (not the paper&#39;s data)" in page


@pytest.mark.usefixtures("here")
def test_full_scale_judges_a_claim_that_says_so_once_it_was_run(home: Path, tmp_path: Path) -> None:
    path = home / "ali-dpfl-table-1.toml"
    path.write_text(ENTRY.replace("headline = true", 'headline = true\njudged_at = "full"'))
    (entry,) = entries(["ali-dpfl-table-1"], home)
    small, full = (
        cells.grid(entry, scale, home=home, here=nothing) for scale in ("standard", "full")
    )
    for grid, length, item in (
        (small, "a tenth", "table-i"),
        (full, "all", "table-i-at-full-scale"),
    ):
        assert not play.play(play.needed([grid], tmp_path), 1, True, lambda text: None)
        both = [
            (each, collected(each)) for each in (Results(g, tmp_path, {}) for g in (small, full))
        ]
        write(tmp_path, both[:1], both[1:] if grid is full else [], "sordino reproduce all")
        assert (
            f"| no: digits | {length} | It learns longer."
            in (tmp_path / "reproduction.md").read_text()
        )
        page = (tmp_path / "reproduction" / "ali-dpfl.md").read_text()
        assert f"](#{item}) | More rounds are better (Section 1) |" in page
    assert "[At standard scale](#table-i): " in page


def test_a_folder_with_another_run_is_refused(home: Path, tmp_path: Path) -> None:
    grid = cells.grid(entries(["all"], home)[0], "quick", home=home, here=nothing)
    (run, *_) = play.needed([grid], tmp_path)
    run.folder.mkdir(parents=True)
    (run.folder / "run.json").write_text('{"name": "another", "status": "done"}')
    (run.folder / "study.toml").write_text("")
    with pytest.raises(StudyError, match="holds another run than"):
        play.play([run], 1, True, lambda text: None)


@pytest.mark.usefixtures("here")
def test_what_is_damaged_is_named_and_the_rest_goes_on(home: Path, tmp_path: Path) -> None:
    (entry,) = entries(["ali-dpfl-table-1"], home)
    grid = cells.grid(entry, "quick", 1, home=home, here=nothing)
    out = tmp_path / "out"
    first, second = play.needed([grid], out)
    assert not play.play([second], 1, True, lambda text: None)
    seconds_of(second.folder).write_bytes(b"\xff no number")
    first.folder.mkdir(parents=True)
    (first.folder / "run.json").write_text('{"name": ')
    draft = first.folder.parent / f".{first.folder.name}.1a2b"
    draft.mkdir()
    said: list[str] = []
    wrong = play.play([first, second], 1, False, said.append)
    assert said[0] == "1 of 2 runs were finished before"
    assert said[1].startswith("2/2  ali-dpfl-table-1: one round, 2, seed 3: failed: ")
    assert not draft.exists()
    for failed in (wrong, {}):
        told = collected(Results(grid, out, failed))
        (failure,) = told.failures
        assert failure.startswith("one round, 2, seed 3: ")
        assert f"Or remove {first.folder}, and the same command makes it anew" in failure
        assert told.seconds >= 0.0
        assert [cell.numbers[0].mean is None for cell in told.cells] == [True, False]


@pytest.mark.usefixtures("here")
def test_an_unforeseen_error_ends_one_run_only(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = entries(["ali-dpfl-table-1"], home)
    grid = cells.grid(entry, "quick", 1, home=home, here=nothing)
    runs = play.needed([grid], tmp_path)

    def make(study: str, folder: str, images: int | None, broker: str) -> None:
        if folder == str(runs[0].folder):
            raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("sordino_papers.worker.make", make)
    monkeypatch.setattr(runner, "batches", lambda numbers, at_once: [tuple(numbers)])
    failed = play.play(runs, 1, True, lambda text: None)
    assert failed == {runs[0].folder: "ZeroDivisionError: division by zero"}


def test_a_damaged_attack_is_named(tmp_path: Path) -> None:
    (tmp_path / worker.ATTACK).write_text("{")
    with pytest.raises(Damaged, match=r"attack.json: cannot be read"):
        read(tmp_path)


def test_infinite_numbers_have_no_spread() -> None:
    found = number("PSNR", {0: math.inf, 1: math.inf})
    assert (found.mean, found.sd) == (math.inf, None)
    assert shown_as(found, Column("stage")) == "∞"


def test_other_data_is_said_of_its_panels_only(home: Path, tmp_path: Path) -> None:
    panels = """
[[panel]]
key = "a"
label = "A"
data = [{ name = "MNIST", needs = "mnist", papers = true, changes = ["data.name='digits'"] }]
[[panel]]
key = "b"
label = "B"
data = [{ name = "digits" }]
[[claim]]
text = "Also on A"
where = "Section 2"
rule = { no_worse = "two", than = ["one"], margin = 1.0, panel = ["a"] }
"""
    (home / "ali-dpfl-table-1.toml").write_text(
        ENTRY.replace('series = "two"\nx', 'panel = "a"\nseries = "two"\nx') + panels
    )
    (entry,) = entries(["ali-dpfl-table-1"], home)
    grid = cells.grid(entry, "quick", home=home, here=lambda name: True)
    assert data_of(grid) == "MNIST; digits (not the paper's data)"
    told = collected(Results(grid, tmp_path, {}))
    assert [claim.on_other_data for claim in told.claims] == [True, True, False]


def test_wrong_changes_name_their_cell(home: Path) -> None:
    path = home / "ali-dpfl-table-1.toml"
    path.write_text(ENTRY.replace("budget.rounds=1", "budget.round=1"))
    with pytest.raises(StudyError, match=r"ali-dpfl-table-1, one round, 2: .*budget"):
        cells.grid(entries(["ali-dpfl-table-1"], home)[0], "quick", home=home)


def test_data_that_is_here_is_preferred(home: Path) -> None:
    grid = cells.grid(entries(["all"], home)[0], "full", home=home, here=lambda name: True)
    taken = grid.data[""]
    assert taken is not None
    assert taken.papers
    assert len(grid.cells) == 4


def test_a_panel_may_have_points_of_its_own(home: Path) -> None:
    """Claims, tables and what is said of the data leave out what it does not have."""
    path = home / "ali-dpfl-table-1.toml"
    panels = """
[[panel]]
key = "few"
label = "few"
points = ["2"]
[[panel.data]]
name = "few digits"
[[panel]]
key = "many"
label = "many"
points = ["3"]
[[panel.data]]
name = "many digits"
[[claim]]
text = "With 3 clients, too"
where = "Section 3"
rule = { no_worse = "two", than = ["one"], margin = 1.0, x = ["3"] }
"""
    path.write_text(ENTRY.replace("[scale.standard]", f"{panels}[scale.standard]"))
    (entry,) = entries(["ali-dpfl-table-1"], home)
    results = Results(cells.grid(entry, "full", home=home, here=nothing), home, {})
    assert [results.grid.points_of(panel) for panel in results.grid.panels] == [["2"], ["3"]]
    assert [table.head for table in tables(results)] == [["clients", "2"], ["clients", "3"]]
    claims = {claim.where: claim for claim in collected(results).claims}
    assert len(claims["Section 1"].forms[0].comparisons) == 2
    assert len(claims["Section 3"].forms[0].comparisons) == 1
    assert claims["Section 3"].data == "many digits"
    few = cells.grid(entry, "standard", home=home, here=nothing)
    assert few.panels == ["few"]


THROUGH = """key = "two"
broker = "scripted"
changes = [
    "method={name='mapa', batch=30}",
    "budget={updates=20}",
    "privacy={unit='sample', epsilon=8.0, delta=1e-3}",
]"""


def test_a_series_through_a_broker_is_left_out_where_there_is_none(home: Path) -> None:
    path = home / "ali-dpfl-table-1.toml"
    path.write_text(ENTRY.replace('key = "two"', THROUGH))
    (entry,) = entries(["ali-dpfl-table-1"], home)
    grid = cells.grid(entry, "quick", home=home, here=nothing)
    assert grid.series == ["one"]
    assert "two rounds: needs Mosquitto, which is not installed" in grid.left_out
    assert collected(Results(grid, home, {})).claims[0].verdict == "not run"
    both = cells.grid(entry, "quick", home=home, here=lambda name: name == cells.BROKER)
    assert [cell.broker for cell in both.cells] == ["", "scripted"]
    through = both.cells[1]
    assert through.study.name == f"reproduction {cells.digest_of(through.study)}"
    assert through.digest.endswith("-scripted")


@pytest.mark.skipif(not cells.present(cells.BROKER), reason="needs mosquitto")
@pytest.mark.nightly
def test_a_scripted_run_through_a_broker_is_the_simulation(home: Path, tmp_path: Path) -> None:
    path = home / "ali-dpfl-table-1.toml"
    path.write_text(ENTRY.replace('key = "two"', THROUGH))
    (entry,) = entries(["ali-dpfl-table-1"], home)
    study = cells.grid(entry, "quick", 1, home).cells[-1].study
    (tmp_path / "study.toml").write_text(write_study(study))
    found = []
    for way in ("", "scripted"):
        worker.make(str(tmp_path / "study.toml"), str(tmp_path / f"run-{way}"), None, way)
        found.append(loaded(tmp_path / f"run-{way}"))
    assert found[0].accuracy == found[1].accuracy
    assert found[0].rounds[-2].loss == found[1].rounds[-2].loss


def test_points_and_forms_leave_a_fixed_series_as_it_is(home: Path) -> None:
    path = home / "ali-dpfl-table-1.toml"
    path.write_text(ENTRY.replace('label = "one round"', 'label = "one round"\nfixed = true'))
    grid = cells.grid(entries(["ali-dpfl-table-1"], home)[0], "full", home=home, here=nothing)
    digests = {
        series: [cell.digest for cell in grid.cells if cell.place.series == series]
        for series in ("one", "two")
    }
    assert len(digests["one"]) == 2
    assert len(set(digests["one"])) == 1
    assert len(set(digests["two"])) == 2


def test_an_attack_on_noise_without_a_price_is_kept(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        STUDY.replace('"dp-sgd"\nlearning_rate = 1.0\ntau = 1', '"mapa"\nform = "paper"')
        .replace("sampling_rate = 0.2\n", "")
        .replace("rounds", "updates")
    )
    worker.make(str(study), str(tmp_path / "attack"), images=1)
    found = read(tmp_path / "attack")
    assert isinstance(found, worker.Found)
    assert found.once is None
    assert -1.0 <= found.correlation <= 1.0


def test_processes_get_fewer_runs_towards_the_end() -> None:
    found = list(runner.batches(range(24), 2))
    assert [len(batch) for batch in found] == [4, 3, 2, 2, 2, *[1] * 11]
    assert [number for batch in found for number in batch] == list(range(24))


@pytest.mark.nightly
def test_runs_are_made_in_processes(home: Path, tmp_path: Path) -> None:
    grid = cells.grid(entries(["all"], home)[0], "quick", home=home, here=nothing)
    assert not play.play(play.needed([grid], tmp_path), 2, True, lambda text: None)


def test_quick_is_standard_with_few_seeds_and_its_own_changes(home: Path) -> None:
    path = home / "ali-dpfl-table-1.toml"
    more = "[scale.quick]\nlength = 'half of a tenth'\nchanges = ['budget.rounds=3']\n"
    path.write_text(ENTRY.replace("seeds = 2", "seeds = 5") + more)
    (entry,) = entries(["ali-dpfl-table-1"], home)
    grid = cells.grid(entry, "quick", home=home, here=nothing)
    assert grid.points == ["2"]
    assert grid.seeds == (3, 4, 5)
    studies: list[Any] = [cell.study for cell in grid.cells]
    assert [study.budget.rounds for study in studies] == [3, 3]
    assert entry.at("quick").length == "half of a tenth"
    path.write_text(ENTRY + "[scale.quick]\nleft_out = 'it takes long'\n")
    (entry,) = entries(["ali-dpfl-table-1"], home)
    told = collected(Results(cells.grid(entry, "quick", home=home, here=nothing), home, {}))
    assert told.left_out == ("Table I: it takes long",)
    assert {claim.verdict for claim in told.claims} == {"not run"}
