"""Tables of hospitals: public rules for columns, and labels that are numbers, through an agreement;
and the page that says what a site's own ledger has left.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import command
from federations import Federation, laid
from sordino.base.errors import SordinoError
from sordino.core import plan
from sordino.network import kit, storage
from sordino.network.demo import DemoFederation, lay_out
from sordino.network.kit import Agreed
from sordino.network.site import JoinOptions, opened
from sordino.network.storage import JOURNAL

from .conftest import Makes

STUDY = """name = "tables"
[data]
file = "rows.csv"
label = "outcome"
clients = 2
test = "file"
test_file = "public.csv"
categories = { ward = ["a", "b"] }
missing = { age = 50 }
ranges = { age = [0, 100] }
LABELS
[model]
name = "MODEL"
[method]
name = "dp-sgd"
tau = 1
learning_rate = 0.1
[privacy]
unit = "sample"
epsilon = 50.0
delta = 1e-3
accountant = "rdp"
clip = 1.0
sampling_rate = 0.2
noise_multiplier = 1.0
[budget]
rounds = 4
"""
FEDERATION = """name = "hospitals"
server = "127.0.0.1:4433"
study = "study.toml"
minimum = 2
[data]
shape = [3]
columns = ["ward", "age", "dose"]
CLASSES
[[site]]
name = "north"
examples = 40
[[site]]
name = "south"
examples = 50
"""
NUMBERS = ('target = "number"\nlabel_range = [0, 10]', "linear", "")
CLASSES = ('target = "binary"', "logistic", 'classes = ["no", "yes"]')


def rows(count: int, *, number: bool) -> pl.DataFrame:
    rng = np.random.default_rng(count)
    age = rng.uniform(1, 99, count).round(1)
    return pl.DataFrame(
        {
            "ward": rng.choice(["a", "b"], count),
            "age": [None if i == 3 else float(each) for i, each in enumerate(age)],
            "dose": rng.normal(size=count).round(3),
            # text without regard to case, as the study says
            "outcome": age / 10 if number else np.where(age > 50, "Yes", "NO"),
        }
    )


def tables(folder: Path, labels: str, model: str, classes: str) -> DemoFederation:
    """Kits of two hospitals, whose files have the agreed columns in another order each."""
    (folder / "study.toml").write_text(STUDY.replace("LABELS", labels).replace("MODEL", model))
    path = folder / "FEDERATION.toml"
    path.write_text(FEDERATION.replace("CLASSES", classes))
    kit.provision(path, folder / "kits", dt.datetime.now(dt.UTC))
    sites = []
    for name, count, order in (("north", 40, [2, 3, 0, 1]), ("south", 50, [3, 1, 2, 0])):
        found = rows(count, number=model == "linear")
        found.select(found.columns[i] for i in order).write_csv(folder / f"{name}.csv")
        sites.append((folder / "kits" / name, folder / f"{name}.csv"))
    return DemoFederation(folder / "kits" / "server", folder / "south.csv", tuple(sites))


@pytest.mark.parametrize("form", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_sites_encode_their_own_columns_by_the_agreed_rules(
    form: tuple[str, str, str], tmp_path: Path, swift: None
) -> None:
    found = tables(tmp_path, *form)
    *_, own = opened(JoinOptions(kit=found.sites[0][0], data=found.sites[0][1]))
    assert own.columns == ("ward=a", "ward=b", "age", "age is missing", "dose")
    assert own.x[3].tolist()[2:4] == [0.0, 1.0]
    assert (own.span is None) == (form is CLASSES)
    test = Agreed(found.server).network.test(found.test)
    assert test is not None
    assert test.x.shape == (50, 5)
    played = Federation(laid=found)
    played.start()
    played.wait()
    assert not played.failed
    assert {each.rounds for each in played.done.values()} == {4}


@pytest.mark.parametrize(
    ("form", "old", "new", "told"),
    [
        (CLASSES, '["ward", "age", "dose"]', '["ward", "years", "dose"]', "'age'"),
        (CLASSES, 'classes = ["no", "yes"]', "", "name the classes"),
        (NUMBERS, "shape = [3]", 'shape = [3]\nclasses = ["0", "1"]', "labels are numbers"),
    ],
)
def test_an_agreement_that_does_not_fit_its_rules_makes_no_kits(
    form: tuple[str, str, str], old: str, new: str, told: str, tmp_path: Path
) -> None:
    tables(tmp_path, *form)
    path = tmp_path / "FEDERATION.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(SordinoError, match=told):
        kit.provision(path, tmp_path / "other", dt.datetime.now(dt.UTC))


def test_a_demo_divides_a_table_with_rules(tmp_path: Path) -> None:
    found = tables(tmp_path, *NUMBERS)
    study = Agreed(found.server).study
    data = study.data.model_copy(
        update={"file": tmp_path / "north.csv", "test_file": tmp_path / "south.csv"}
    )
    demo = lay_out(
        study.model_copy(update={"data": data}), tmp_path / "demo", scripted=False, minimum=1
    )
    agreed, *_, own = opened(JoinOptions(kit=demo.sites[0][0], data=demo.sites[0][1]))
    assert agreed.agreement.data.columns == ("dose", "ward=a", "ward=b", "age", "age is missing")
    assert own.x.shape == (20, 5)
    assert np.abs(own.y).max() <= 1.0


RUN = """name = "before"
[data]
file = "DATA"
clients = 1
test = "none"
[model]
name = "logistic"
[method]
name = "dp-sgd"
tau = 2
learning_rate = 0.1
[privacy]
unit = "sample"
epsilon = 50.0
delta = 1e-3
accountant = "rdp"
clip = 1.0
sampling_rate = 0.2
noise_multiplier = 1.0
ledger = "LEDGER"
[budget]
rounds = 8
"""


def test_the_page_before_joining_counts_what_the_ledger_has_spent(tmp_path: Path) -> None:
    site, data = laid(tmp_path, "synchronous", scripted=False).sites[0]
    ledger = tmp_path / "ledger"
    study = RUN.replace("DATA", str(data)).replace("LEDGER", str(ledger))
    (tmp_path / "before.toml").write_text(study)

    def page(file: Path, limit: float) -> str:
        asked = ("--ledger", str(ledger), "--epsilon-limit", f"{limit}", "--plan")
        shown = command.sordino(tmp_path, "join", str(site), "--data", str(file), *asked)
        assert not shown.returncode, shown.screen
        return " ".join(shown.stdout.split())

    assert "Spent so far: nothing" in page(data, 4.0)
    assert not ledger.exists()
    done = command.sordino(tmp_path, "run", "before.toml", "--quiet")
    assert not done.returncode, done.screen
    before = (ledger / "ledger.sqlite").read_bytes()
    assert "Spent so far: epsilon 4.7" in (whole := page(data, 50.0))
    assert "pays for all 16 local steps that the study plans at epsilon 6.5" in whole
    short = page(data, 5.0)
    assert "of 5, by all runs on these rows" in short
    assert "pays for 2 of the 16 local steps that the study plans, in at most 1 round at" in short
    assert "pays for none of the 16" in page(data, 4.0)
    # a column that was changed by a little makes other rows, and the operator hears of it
    with np.load(data) as held:
        np.savez(tmp_path / "moved.npz", x=held["x"] + np.float32(0.001), y=held["y"])
    moved = page(tmp_path / "moved.npz", 9.0)
    assert "none of these 50 rows is in the ledger" in moved
    assert "holds 50 others" in moved
    assert "pays for all 16" in moved
    assert (ledger / "ledger.sqlite").read_bytes() == before


@pytest.mark.parametrize("name", ["synchronous", "asynchronous", "events"])
def test_a_federation_takes_no_more_disk_than_its_plan_says(
    name: str, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journals are cut early, so that the answers of an open round are most of one."""
    monkeypatch.setattr(plan, "JOURNAL", 4_000)
    monkeypatch.setattr(storage, "MOST_BYTES", 4_000)
    found = federate(name)
    most = {"journal": 0}

    def told(kernel: object) -> None:
        most["journal"] = max(most["journal"], (found.server / JOURNAL).stat().st_size)

    found.told = told
    found.start()
    found.wait()
    stated = Agreed(found.laid.server).network.disk()
    assert stated is not None
    assert 0 < most["journal"] <= stated.journal
    for folder, limit in (
        (found.server, stated.server),
        (found.folder(found.names[0]), stated.site),
    ):
        assert sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) <= limit
