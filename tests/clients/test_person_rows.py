"""A cap on the rows of a person: with one row each, a person costs what a row costs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import sordino as so
from command import sordino
from sordino.base.errors import BudgetExceeded, StudyError
from sordino.clients.division import federation
from sordino.clients.study import HorizontalStudy
from sordino.core import study as studies
from sordino.core.run import session
from sordino.core.run.verify import verify
from sordino.core.statements import uncovered
from sordino.data.identity import first_rows
from sordino.data.notices import noticed

STUDY = """
name = "visits"
[data]
file = "visits.csv"
person = "patient"
clients = 2
client_column = "hospital"
partition = "column"
{more}
[model]
name = "logistic"
[method]
name = "dp-sgd"
learning_rate = 0.5
[privacy]
unit = "sample"
epsilon = 4.0
delta = 1e-3
sampling_rate = 0.2
noise_multiplier = 2.0
[budget]
rounds = 4
"""


HOSPITALS = 'categories = {{ hospital = ["north", "south"] }}'
OTHERWISE = "run", "begun", "ended", "ledger", "data"
"""Keys of run.json in which any two runs differ."""


def visits(path: Path, patients: list[int]) -> None:
    rng = np.random.default_rng(0)
    n = len(patients)
    frame = pl.DataFrame(
        {
            "age": rng.normal(size=n),
            "dose": rng.normal(size=n),
            "patient": patients,
            "hospital": ["north" if i % 3 else "south" for i in range(n)],
            "label": rng.integers(0, 2, n),
        }
    )
    frame.write_csv(path)


def study(folder: Path, patients: list[int], more: str) -> HorizontalStudy:
    visits(folder / "visits.csv", patients)
    (folder / "study.toml").write_text(STUDY.format(more=more))
    found = studies.read(folder / "study.toml")
    assert isinstance(found, HorizontalStudy)
    return found


def spent(folder: Path, patients: list[int], more: str) -> float:
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return session.begin(
            study(folder, patients, more), folder / "run", lambda _: None, lambda _: None
        ).epsilon


def test_one_row_each_costs_what_a_row_costs(tmp_path: Path) -> None:
    """Across clients, too: patient 0 has rows at both hospitals."""
    single = list(range(60))
    several = [*single, *[0] * 4, *[7] * 3]
    row = spent(tmp_path / "a", single, "person_rows = 1")
    assert spent(tmp_path / "b", several, "person_rows = 1") == pytest.approx(row)
    with pytest.raises(BudgetExceeded, match="up to 30 examples of one person share one budget"):
        spent(tmp_path / "c", several, "person_rows = 30")


@pytest.mark.parametrize(
    "change",
    [
        "",
        "privacy.noise_multiplier = 9.0",
        "privacy.accountant = 'rdp'",
        "method.name = 'ali-dpfl'",
        "method.name = 'dynamic-dp-sgd'",
        "privacy.epsilons = [3.0, 4.0]",
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_plan_of_persons_is_what_the_run_does(tmp_path: Path, change: str) -> None:
    """Noise, epsilon and steps: there is one price, and calibrated noise pays for all rounds."""
    study(tmp_path, [i // 3 for i in range(180)], "person_rows = 3")
    text = (tmp_path / "study.toml").read_text().replace("noise_multiplier = 2.0\n", "")
    (tmp_path / "study.toml").write_text(text)
    asked = so.Study.read(
        tmp_path / "study.toml", *([change.replace(" = ", "=", 1)] * bool(change))
    )
    plan, run = so.plan(asked), so.run(asked, out=tmp_path / "run", progress=False)
    assert len(run.rounds) >= 3
    assert run.epsilon == pytest.approx(plan.epsilon, rel=1e-3)
    assert "each person" in run.report.read_text()
    assert not verify(run.folder).problems
    about = json.loads((run.folder / "run.json").read_text())
    less = [each / 2 for each in about["result"]["spent"]]  # a third is what a row spends
    about["result"] |= {"epsilon": max(less), "spent": less}
    (run.folder / "run.json").write_text(json.dumps(about))
    verdict = verify(run.folder)
    assert verdict.epsilon == pytest.approx(run.epsilon, rel=1e-3)
    assert any("result.epsilon is" in each for each in verdict.problems)


def test_a_person_is_a_unit_with_a_name_of_its_own(tmp_path: Path) -> None:
    """The same study as with unit "sample", in every number; and no unit without persons."""
    before = study(tmp_path, [i // 3 for i in range(180)], "person_rows = 3")
    text = (tmp_path / "study.toml").read_text().replace('"sample"', '"person"')
    (tmp_path / "study.toml").write_text(text)
    assert studies.read(tmp_path / "study.toml") == before
    assert studies.read(tmp_path / "study.toml").protected == "person"
    (tmp_path / "study.toml").write_text(
        text.replace('person = "patient"\n', "").replace("person_rows = 3\n", "")
    )
    with pytest.raises(StudyError, match=r"name it in data\.person"):
        studies.read(tmp_path / "study.toml")


QUICK = ("--set", "privacy.accountant=rdp")  # mixtures of many rows take seconds by pld


def test_advice_weighs_the_rows_of_a_person(tmp_path: Path) -> None:
    study(tmp_path, [i // 3 for i in range(180)], "person_rows = 4")
    done = sordino(tmp_path, "plan", "study.toml", "--advise", *QUICK)
    assert done.returncode == 0
    told = done.screen
    found = re.findall(r"^\W*(\d+)\W+(\d+\.\d{3})\W+(\d+\.\d{2})\W*$", told, re.M)
    assert [int(k) for k, _, _ in found] == [1, 2, 3, 4, 5, 8, 12, 20]
    sigmas = [float(sigma) for _, sigma, _ in found]
    for rows, sigma in ((1, sigmas[0]), (4, sigmas[3])):
        exact = so.privacy.noise_multiplier(
            sampling_rate=0.2, steps=4, epsilon=4.0, delta=1e-3, accountant="rdp", rows=rows
        )
        assert sigma == pytest.approx(exact, abs=1e-3)


def test_advice_knows_the_rows_that_are_kept_by_public_numbers_alone(tmp_path: Path) -> None:
    """Half of the persons have a row, the others ten: person_rows by noise beside rows kept."""
    study(tmp_path, [i // 3 for i in range(180)], "person_rows = 4")
    stated = "data.person_histogram=[[1, 50], [10, 50]]"
    done = sordino(tmp_path, "plan", "study.toml", "--advise", "--set", stated, *QUICK)
    found = re.findall(
        r"^\W*(\d+)\W+(\d+\.\d{3})\W+(\d+\.\d{2})\W+([\d.]+)%\W+(\d+\.\d{2})\W*$", done.screen, re.M
    )
    assert [float(kept) for *_, kept, _ in found] == pytest.approx(
        [100 * (1 + min(10, k)) / 11 for k in (1, 2, 3, 4, 5, 8, 12, 20)], abs=0.06
    )
    best = min(found, key=lambda row: float(row[1]) / float(row[3]))
    assert f"person_rows = {best[0]} has the least noise" in " ".join(done.screen.split())


@pytest.mark.parametrize(
    "change",
    ["", "privacy.noise = 'shared'", "method.name = 'ali-dpfl'", "privacy.accountant = 'rdp'"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_persons_are_clipped_at_the_price_of_a_row(tmp_path: Path, change: str) -> None:
    """Noise, epsilon and events are those of a study of as many rows as there are persons."""
    price = []
    for folder, patients, more in (
        ("a", list(range(60)), "person_rows = 1"),
        ("b", [i // 3 for i in range(180)], "person_rows = 9"),
    ):
        (tmp_path / folder).mkdir()
        study(tmp_path / folder, patients, more)
        changes = [change.replace(" = ", "=", 1)] * bool(change)
        if folder == "b":
            changes.append("privacy.clip_per='person'")
        text = (tmp_path / folder / "study.toml").read_text()
        for old, new in (("noise_multiplier = 2.0\n", ""), ('unit = "sample"', 'unit = "person"')):
            text = text.replace(old, new)
        (tmp_path / folder / "study.toml").write_text(text)
        asked = so.Study.read(tmp_path / folder / "study.toml", *changes)
        plan, run = so.plan(asked), so.run(asked, out=tmp_path / folder / "run", progress=False)
        assert run.unit == "person"
        assert run.epsilon == pytest.approx(plan.epsilon, rel=1e-3)
        charged = set(run.ledger.to_polars()["event"])
        price.append((plan.price.noise_multiplier, plan.epsilon, sum(plan.sizes), charged))
    assert price[0] == price[1]
    assert "how many rows somebody has is not" in (tmp_path / "b/run/report.html").read_text()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nothing_tells_how_many_rows_somebody_has(tmp_path: Path) -> None:
    """Where persons are drawn and clipped: two runs in which one person has a row less."""
    told = []
    for rows in (180, 179):
        (tmp_path / str(rows)).mkdir()
        patients = [i // 9 * 3 + i % 3 for i in range(rows)]
        study(tmp_path / str(rows), patients, "person_rows = 9")
        path = tmp_path / str(rows) / "study.toml"
        change = "privacy.unit=person", "privacy.clip_per=person", "privacy.clip=0.1"
        run = so.run(so.Study.read(path, *change), out=tmp_path / str(rows) / "run", progress=False)
        about = json.loads((tmp_path / str(rows) / "run" / "run.json").read_text())
        told.append({key: about[key] for key in sorted(about.keys() - {*OTHERWISE, "result"})})
        assert "numbers of examples are private" in run.report.read_text()
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            ('privacy.unit = "sample"', 'person = "patient"', "person_rows = 1"),
            "needs privacy.unit",
        ),
        (("form",), "literal form"),
    ],
)
def test_a_clip_of_persons_needs_persons(tmp_path: Path, change: tuple[str, ...], why: str) -> None:
    text = STUDY.format(more="person_rows = 1").replace(
        "[privacy]", '[privacy]\nclip_per = "person"'
    )
    for gone in change:
        text = text.replace(gone + "\n", "")
    if change == ("form",):
        text = text.replace("[budget]", 'mechanism = { kind = "haar", form = "paper" }\n[budget]')
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(StudyError, match=why):
        studies.read(tmp_path / "study.toml")


def test_noise_that_follows_releases_has_no_price_for_several_rows(tmp_path: Path) -> None:
    """A plan promised 16 steps, and the run took none."""
    study(tmp_path, [i // 3 for i in range(180)], "person_rows = 3")
    adap = "method.name=adap-dpfl", "privacy.accountant=rdp@8"
    with pytest.raises(StudyError, match=r"several rows of a person: set privacy\.clip_per"):
        studies.read(tmp_path / "study.toml", adap)
    studies.read(tmp_path / "study.toml", (*adap, "privacy.clip_per=person"))


def test_the_cap_holds_over_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    patients = [*range(40), *[3] * 10]
    told: list[str] = []
    with noticed(told.append):
        divided = federation(study(tmp_path, patients, "person_rows = 2"))
    words = np.concatenate([part.people[:, 0] for part in divided.parts if part.people is not None])
    assert np.unique(words, return_counts=True)[1].max() == 2
    assert sum(divided.sizes) == 41
    assert "9 of 50 rows are left out" in told[0]


def test_rows_that_stay_depend_on_their_own_person_alone() -> None:
    rng = np.random.default_rng(1)
    who = rng.integers(0, 9, 80).astype(np.uint64)
    kept = first_rows(who, 3)
    for gone in range(9):
        others = np.flatnonzero(who != gone)
        left = others[first_rows(who[others], 3)]
        assert left.tolist() == [i for i in kept if who[i] != gone]


def test_a_cap_needs_persons(tmp_path: Path) -> None:
    text = STUDY.format(more="person_rows = 1").replace('person = "patient"\n', "")
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(StudyError, match=r"no column says whose a row is: name it in person"):
        studies.read(tmp_path / "study.toml")


@pytest.mark.parametrize("aside", ["validation = 5", "client_validation = 0.2"])
def test_no_person_trains_and_is_public(tmp_path: Path, aside: str) -> None:
    path = tmp_path / "study.toml"
    for more in ("", "person_rows = 2\n"):
        path.write_text(STUDY.format(more=more + aside))
        with pytest.raises(StudyError, match=r"whose other rows train: set person_rows = 1"):
            studies.read(path)
    path.write_text(STUDY.format(more="person_rows = 1\n" + aside))
    studies.read(path)


@pytest.mark.parametrize(
    ("aside", "kind", "unit", "said"),
    [
        ("client_validation = 0.2", "iid", "client", True),
        ("validation = 5", "column", "client", True),
        ('test = "public share"', "column", "client", True),
        ('test = "public share"', "iid", "client", False),  # no client holds these rows
        ("client_validation = 0.2", "iid", "sample", False),
        ("", "column", "client", False),
    ],
)
def test_a_whole_client_is_told_that_no_epsilon_covers_rows_set_aside(
    tmp_path: Path, aside: str, kind: str, unit: str, said: bool
) -> None:
    """Models are measured on them exactly, and the guarantee was of a client with all its data."""
    column = 'client_column = "site"\n' if kind == "column" else ""
    method = "dp-fedavg" if unit == "client" else "dp-sgd"
    path = tmp_path / "study.toml"
    path.write_text(
        f'[budget]\nrounds = 2\n[data]\nfile = "x.csv"\nclasses = ["0", "1"]\n{column}{aside}\n'
        f'partition = {{ kind = "{kind}" }}\n[model]\nname = "logistic"\n[method]\n'
        f'name = "{method}"\n[privacy]\nunit = "{unit}"\nepsilon = 4\ndelta = 1e-5\n'
        "sampling_rate = 0.5\n"
    )
    told = uncovered(studies.read(path))
    assert any("holds for the rows that it trains on" in each for each in told) == said


@pytest.mark.parametrize("kind", ["iid", "column"])
def test_how_many_rows_somebody_has_decides_about_no_other_persons_client(
    tmp_path: Path, kind: str
) -> None:
    """Rows were dealt, so that one row more dealt all of them otherwise: sizes, which are numbers
    of persons and public, told how many rows somebody has.
    """
    column = 'client_column = "hospital"\npartition = "column"\n'
    text = STUDY if kind == "column" else STUDY.replace(column, f"{HOSPITALS}\n")
    (tmp_path / "study.toml").write_text(
        text.format(more="person_rows = 3").replace("[budget]", 'clip_per = "person"\n[budget]')
    )
    where = []
    for extra in ([], [6], range(30)):  # most have rows at both hospitals
        visits(tmp_path / "visits.csv", [*range(30), 0, *range(30), *extra])
        found = studies.read(tmp_path / "study.toml")
        assert isinstance(found, HorizontalStudy)
        where.append([set(part.people[:, 0].tolist()) for part in federation(found).parts])  # type: ignore[index]
    assert where[0] == where[1] == where[2]
    assert sum(map(len, where[0])) == 30
