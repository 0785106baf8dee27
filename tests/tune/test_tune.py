"""``sordino tune``: what may be tuned, on what, at which price, and what is left of it."""

from __future__ import annotations

import datetime as dt
import json
import secrets
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino as so
from command import sordino
from sordino.base.entropy import System
from sordino.base.errors import BudgetExceeded, ResumeError, StudyError
from sordino.clients.division import corpus, federation
from sordino.clients.study import HorizontalStudy
from sordino.core import study as studies
from sordino.core.run import session
from sordino.core.run.reading import load
from sordino.core.run.verify import priced as repriced
from sordino.core.run.verify import verify
from sordino.privacy import Budget, Charge, Ledger, LedgerSession, Selected, accountant
from sordino.privacy.event import Composed, NonPrivate
from sordino.privacy.records import open_runs
from sordino.tune import grid, private
from sordino.tune.grid import candidates
from sordino.tune.grid import tuned as chosen
from sordino.tune.private import Tuning, measured, price
from sordino.tune.public import Scored, best, book, moved
from sordino.tune.rules import ruled

STUDY = """
name = "small"
seed = 0
[data]
{data}
clients = 4
[model]
name = "logistic"
[method]
name = "dp-sgd"
tau = 1
learning_rate = 1.0
[privacy]
unit = "sample"
epsilon = 4.0
delta = 1e-3
clip = 1.0
sampling_rate = 0.2
{entropy}
[budget]
rounds = 2
"""
RATES = "method.learning_rate=0.5,2"


def written(at: Path, data: str = 'name = "digits"', entropy: str = "system") -> Path:
    path = at / "study.toml"
    path.write_text(STUDY.format(data=data, entropy=f'entropy = "{entropy}"'), encoding="utf-8")
    return path


def priced(at: Path, *changes: str, law: str = "geometric", mean: float | None = 3.0) -> Tuning:
    return price(candidates(written(at), changes, [RATES]), [RATES], law, mean)


def read(at: Path, *changes: str, **asked: str) -> HorizontalStudy:
    found = studies.read(written(at, **asked), changes)
    assert isinstance(found, HorizontalStudy)
    return found


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--vary", "privacy.epsilon=1,2", "--on", "private"], "changes what is promised"),
        (["--vary", "privacy.noise_multiplier=1,2", "--on", "private"], "what is promised"),
        (["--vary", "data.clients=2,4", "--on", "private"], "changes the data"),
        (["--vary", "seed=1,2", "--on", "private"], "none that can be tuned"),
        (["--vary", "method.learnin_rate=1,2", "--on", "private"], "did you mean"),
        (["--vary", "method.learning_rate=1", "--on", "private"], "one candidate only"),
        (["--vary", "method.learning_rate=1,1.0", "--on", "private"], "the same study"),
        (["--on", "private"], "one candidate only"),
        (["--vary", RATES], "say what the constants are chosen by"),
        (["--vary", RATES, "--rules"], "leave out --vary"),
        (["--vary", RATES, "--on", "digits"], "the study's own data"),
        (["--vary", RATES, "--on", "nowhere"], "no such file"),
        (["--vary", RATES, "--on", "validation"], "sets none aside"),
        (["--vary", RATES, "--on", "private"], "needs --out"),
        (["--vary", RATES, "--on", "private", "--set", "privacy.entropy=seed"], "'system'"),
        (["--vary", RATES, "--on", "private", "--law", "uniform"], "geometric, logarithmic"),
        (["--vary", RATES, "--on", "private", "--trials", "1"], "mean must lie in (1,"),
        (
            ["--vary", "privacy.sampling_rate=0.1,0.2", "--on", "private", "--plan"],
            "cost different amounts",
        ),
        (["--vary", RATES, "--on", "private", "--seeds", "3"], "for public data"),
        (
            ["--vary", RATES, "--on", "private", "--set", "privacy.noise_multiplier=2"],
            "leave it out",
        ),
        (["--rules"], "model 'logistic' behind data.features"),
    ],
)
def test_what_cannot_be_tuned_gets_one_message_and_leaves_nothing(
    tmp_path: Path, typed: list[str], said: str
) -> None:
    written(tmp_path)
    done = sordino(tmp_path, "tune", "study.toml", *typed)
    assert done.returncode == 2
    assert said in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["study.toml"]


def test_candidates_that_measure_private_rows_more_often_have_no_one_price(tmp_path: Path) -> None:
    path, vary = (
        written(tmp_path, 'file = "x.csv"\ntest = "private share"'),
        ["budget.rounds=40,25"],
    )
    steps = ["method={name='ali-dpfl'}", "budget.steps=40", "execution.evaluate_every=1"]
    with pytest.raises(StudyError, match="number of steps or of measurements on private rows"):
        price(candidates(path, steps, vary), vary, "geometric", 3.0)
    steps[-1] = "execution.evaluate_every=100"
    assert price(candidates(path, steps, vary), vary, "geometric", 3.0).tested is not None


@pytest.mark.usefixtures("forked")
def test_on_public_data_no_private_row_is_read(tmp_path: Path) -> None:
    written(tmp_path, 'file = "there-is-no-such-file.csv"\ntest = "none"')
    asked = ("tune", "study.toml", "--vary", "method.learning_rate=0.001,2", "--on", "digits")
    done = sordino(tmp_path, *asked, "--workers", "1", "-q", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["chosen"] == {"method.learning_rate": 2.0}
    study = studies.read(tmp_path / "small-tuned.toml")
    assert study.tuned is not None
    assert (study.tuned.source, study.tuned.data, study.tuned.trials) == ("public", "digits", 2)
    assert study.data.file == tmp_path / "there-is-no-such-file.csv"
    assert "exists already" in sordino(tmp_path, *asked).stderr


@pytest.mark.usefixtures("forked")
def test_examples_that_are_declared_public_are_public_data(tmp_path: Path) -> None:
    path = written(tmp_path, 'name = "digits"\nvalidation = 200')
    asked = ["--vary", "method.learning_rate=0.001,2", "--on", "validation", "--workers", "1", "-q"]
    done = sordino(tmp_path, "tune", "study.toml", *asked)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "runs" / "tune-small-on-validation" / "validation.npz") as kept:
        held = federation(read(tmp_path, data='name = "digits"\nvalidation = 200')).validation
        assert held is not None
        assert np.array_equal(kept["x"], held.x)
    study = studies.read(tmp_path / "small-tuned.toml")
    assert study.tuned is not None
    assert "declared public" in (study.tuned.data or "")
    assert path.exists()
    none = sordino(tmp_path, "tune", "study.toml", *asked, "--set", "data.validation=0")
    assert none.returncode == 2
    # with another seed, what is kept there is private
    other = sordino(tmp_path, "tune", "study.toml", *asked, "--set", "seed=1", "--out", "new.toml")
    assert other.returncode == 2
    assert "holds other examples" in other.stderr


def test_a_plan_on_declared_examples_writes_nothing(tmp_path: Path) -> None:
    written(tmp_path, 'name = "digits"\nvalidation = 200')
    asked = ["--vary", RATES, "--on", "validation", "--workers", "1", "-q"]
    done = sordino(tmp_path, "tune", "study.toml", *asked, "--plan")
    assert done.returncode == 0, done.stderr
    assert "2 trials" in done.stdout
    assert [each.name for each in tmp_path.iterdir()] == ["study.toml"]


@pytest.mark.usefixtures("forked")
def test_runs_on_a_file_that_has_changed_since_are_not_used_again(tmp_path: Path) -> None:
    written(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("a.npz", "b.npz"):
        y = rng.integers(0, 3, 200)
        np.savez(tmp_path / name, x=rng.normal(y[:, None], 1.0, (200, 5)), y=y)
    asked = ["--vary", RATES, "--on", "a.npz", "--declared-public", "--workers", "1", "-q"]
    planned = sordino(tmp_path, "tune", "study.toml", *asked, "--plan")
    assert planned.returncode == 0, planned.stderr
    assert not (tmp_path / "runs").exists()
    done = sordino(tmp_path, "tune", "study.toml", *asked)
    assert done.returncode == 0, done.stderr
    again = sordino(tmp_path, "tune", "study.toml", *asked, "--out", "again.toml")
    assert again.returncode == 0, again.stderr
    shutil.copy(tmp_path / "b.npz", tmp_path / "a.npz")
    other = sordino(tmp_path, "tune", "study.toml", *asked, "--out", "other.toml")
    assert other.returncode == 2
    assert "has changed since" in other.stderr
    assert not (tmp_path / "other.toml").exists()


def test_a_tuned_study_says_so_before_and_after(tmp_path: Path) -> None:
    path = written(tmp_path, entropy="seed")
    note = """
[tuned]
source = "public"
chosen = { "method.learning_rate" = 1.0 }
grid = ["method.learning_rate=1,2"]
data = "fashion-mnist"
measure = "accuracy"
seeds = [0, 1]
trials = 4
"""
    path.write_text(path.read_text(encoding="utf-8") + note, encoding="utf-8")
    sentence = "method.learning_rate = 1 was chosen on public data (fashion-mnist)"
    assert sentence in sordino(tmp_path, "plan", "study.toml").stdout
    done = sordino(tmp_path, "run", "study.toml", "--out", "run", "-q")
    assert sentence in done.stderr
    assert sentence in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    with pytest.raises(StudyError, match=r"was chosen as 1\.0, and the study says 3\.0"):
        studies.read(path, ["method.learning_rate=3.0"])
    with pytest.raises(StudyError, match="was tuned already"):
        candidates(path, [], [RATES.replace("0.5,2", "1,1.0")])


def test_a_front_end_can_be_chosen_and_is_written(tmp_path: Path) -> None:
    kinds = [f"{{kind='scattering', J={scales}}}" for scales in (1, 2)]
    found = candidates(written(tmp_path), [], [f"data.features={','.join(kinds)}"])
    price(found, [], "geometric", 3.0)
    path = tmp_path / "new.toml"
    path.write_text(studies.write(chosen(found[1], {"source": "public"})), encoding="utf-8")
    again = studies.read(path)
    assert again.tuned is not None
    assert again.tuned.chosen["data.features"]["J"] == 2
    with pytest.raises(StudyError, match=r"data\.features was chosen as"):
        studies.read(path, [f"data.features={kinds[0]}"])


def test_a_grid_is_tried_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "MOST", 3)
    with pytest.raises(StudyError, match="has 4 candidates, and at most 3"):
        candidates(written(tmp_path), [], ["method.learning_rate=1,2,3,4"])


def test_a_file_must_be_declared_public(tmp_path: Path) -> None:
    study = read(tmp_path)
    (tmp_path / "other.csv").write_text("a,b,label\n1,2,x\n3,4,y\n", encoding="utf-8")
    other = str(tmp_path / "other.csv")
    with pytest.raises(StudyError, match="--declared-public"):
        moved(study, other, declared=False)
    found = moved(study, other, declared=True)
    assert (str(found.data.file), found.data.testing) == (other, "public share")
    assert (found.privacy.entropy, found.privacy.epsilon) == ("seed", 4.0)
    own = read(tmp_path, data=f'file = "{other}"')
    (tmp_path / "link.csv").hardlink_to(other)
    for name in (other, str(tmp_path / "link.csv")):
        with pytest.raises(StudyError, match="a file of the study's own data"):
            moved(own, name, declared=True)


def test_persons_in_a_public_file_are_persons_and_no_feature(tmp_path: Path) -> None:
    """Candidates had the number of the patient as a feature, and the ledger knew no person."""

    def table(name: str, first: int) -> str:
        each = 2 if first == 1 else 4  # rows of a person: of public ones any number
        rows = [f"{i % 7},{i * first},{(i + first) // each},{'xy'[i % 2]}\n" for i in range(80)]
        (tmp_path / name).write_text("a,b,who,label\n" + "".join(rows), encoding="utf-8")
        return str(tmp_path / name)

    mine = 'file = "{}"\nperson = "who"\nperson_rows = 2'
    change = f"privacy.ledger={tmp_path / 'kept'}"
    own = read(tmp_path, change, data=mine.format(table("mine.csv", 1)))
    study = moved(own, table("other.csv", 31), declared=True)  # some of the persons
    assert corpus(study).train.columns == corpus(own).train.columns == ("a", "b")
    book(own, str(tmp_path / "other.csv"), declared=True)
    with pytest.raises(BudgetExceeded, match="they were declared public"):
        session.begin(own, tmp_path / "run", lambda _: None, lambda _: None)
    clients = own.data.model_copy(update={"person": None, "client_column": "who"})
    with pytest.raises(StudyError, match=r"'who' says whose a row is .*: drop it"):
        moved(own.model_copy(update={"data": clients}), str(tmp_path / "other.csv"), declared=True)


def test_a_candidate_that_failed_is_not_the_best() -> None:
    found = [Scored("a", (0.5,)), Scored("b", (0.9,), ("seed 1: lost",)), Scored("c", (0.5,))]
    assert best(found) == 0
    with pytest.raises(StudyError, match="every candidate failed"):
        best([found[1]])


def booked(folder: Path) -> dict[str, list[Any]]:
    with Ledger.open(folder / "ledger.sqlite", readonly=True) as ledger:
        return {unit: list(ledger.spent(unit)) for unit in ledger.units()}


def tuned(
    at: Path, found: Tuning, monkeypatch: pytest.MonkeyPatch, trials: int
) -> private.TuningNote:
    monkeypatch.setattr(private, "drawn", lambda *_: trials)
    return private.tune(found, read(at), at / "out", lambda _: None)


def test_the_ledger_holds_the_stated_price_and_only_the_best_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = priced(tmp_path)
    assert 3.9 < found.epsilon <= 4.0
    assert found.one < found.epsilon
    assert found.noise > found.without
    done = tuned(tmp_path, found, monkeypatch, 3)
    folder = tmp_path / "out"
    assert sorted(each.name for each in folder.iterdir()) == ["best", "ledger.sqlite", "tune.json"]
    charges = booked(folder)
    assert sorted(charges) == [f"client:{i}" for i in range(4)]
    for spent in charges.values():
        assert accountant("pld").epsilon(spent, 1e-3) == found.epsilon
    run = load(folder / "best")
    assert max(run.values("epsilon")) == pytest.approx(found.epsilon)
    assert run.result.epsilon == 4.0  # which trial it is was chosen by looking
    assert done.chosen in ({"method.learning_rate": 0.5}, {"method.learning_rate": 2.0})
    assert "nor how many there were" in "".join(run.about.assumptions or ())
    again = tuned(tmp_path, found, monkeypatch, 99)  # is done: draws nothing, books nothing
    assert again == done
    assert booked(folder) == charges
    verified = sordino(tmp_path, "ledger", "verify", "out/best")
    assert verified.returncode == 0, verified.stderr
    refused = sordino(tmp_path, "run", "out/best/study.toml")
    assert "another run would be another release" in refused.stderr
    with pytest.raises(Exception, match="holds another tuning"):
        private.tune(priced(tmp_path, law="logarithmic"), read(tmp_path), folder, lambda _: None)


def ages(folder: Path) -> dict[str, float]:
    """How much older than the newest change in a folder everything in it is, or says that it is."""
    paths = [folder, *sorted(folder.rglob("*"))]
    newest = max(path.stat().st_ctime for path in paths)
    found: dict[str, float] = {}
    for path in paths:
        name, seen = str(path.relative_to(folder)), path.stat()
        found |= {f"{name} changed": newest - seen.st_ctime, f"{name} written": seen.st_mtime}
        found |= {f"{name} size": seen.st_size, f"{name} blocks": seen.st_blocks}
        if path.name == "run.json":
            told = json.loads(path.read_text())
            found["seconds"] = told["result"].get("seconds", 0.0)
            for key in ("begun", "ended"):
                at = dt.datetime.fromisoformat(told.get(key, "1970-01-01T00:00:00+00:00"))
                found[key] = newest - at.timestamp() if key in told else 0.0
    return found


def test_nothing_tells_how_many_trials_there_were_but_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # all trials score alike, and the first is chosen of however many there are
    vary = "method.learning_rate=1e-9,2e-9"
    keys = (System(bytes([k]) * 32) for k in range(256))
    lots = ([key.at("tie", trial).random() for trial in range(7)] for key in keys)
    key = bytes([next(k for k, own in enumerate(lots) if own[0] == max(own))]) * 32
    monkeypatch.setattr(secrets, "token_bytes", lambda n=32: key[:n])
    written(tmp_path)
    numbers, left, told, seen = (7, 1, 3), [], [], []
    for number in numbers:
        monkeypatch.setattr(private, "drawn", lambda *_, number=number: number)
        done = sordino(
            tmp_path, "tune", "study.toml", "--on", "private", "--vary", vary, "--out", "out",
            "--json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        out = tmp_path / "out"
        left.append({str(p): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()})
        told.append((done.stdout, done.stderr))
        seen.append(ages(out))
        out.rename(tmp_path / f"out of {number}")
    for name, values in {name: [each[name] for each in seen] for name in seen[0]}.items():
        # more than a tenth of a second, and in proportion: an age of several trials
        related = np.ptp(values) > 0.1 and np.corrcoef(numbers, values)[0, 1] ** 2 > 0.5
        assert not related, f"{name}: {values} after {numbers} trials"
    for files in left[1:]:
        assert files.keys() == left[0].keys()
        assert not [name for name in files if files[name] != left[0][name]]
    assert len(set(told)) == 1


def test_a_tuning_that_was_killed_goes_on_and_pays_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, begin, calls = priced(tmp_path), session.begin, []

    def killed(*given: Any, **named: Any) -> Any:
        calls.append(given[1])
        outcome = begin(*given, **named)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(session, "begin", killed)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, found, monkeypatch, 3)
    charges = booked(tmp_path / "out")
    key = (tmp_path / "out" / ".tuning" / private.KEY).read_bytes()
    assert found.event in [event for event, _ in charges["client:0"]]
    tuned(tmp_path, found, monkeypatch, 3)
    assert len(calls) == 3  # the second had ended: it is not run again
    assert booked(tmp_path / "out") == charges
    assert key != private.ENDED
    assert not (tmp_path / "out" / ".tuning").exists()


def test_a_tuning_goes_on_over_the_same_rows_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger of the data knows records in any order; a trial's noise covers them in one."""
    rng, file = np.random.default_rng(0), tmp_path / "rows.csv"
    lines = [f"{a:.4f},{b:.4f},{int(a > b)}" for a, b in rng.normal(size=(40, 2))]
    file.write_text("\n".join(["a,b,label", *lines]))
    data = f'file = "{file}"\ntest = "none"\nclasses = ["0", "1"]'
    own = [f'privacy.ledger="{tmp_path / "kept"}"', "privacy.epsilon=400"]
    at = written(tmp_path, data)
    own.append("data.validation=8")
    found = price(candidates(at, own, [RATES]), [RATES], "geometric", 3.0)

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(private, "_trials", killed)
        with pytest.raises(KeyboardInterrupt):
            private.tune(found, studies.read(at, own), tmp_path / "out", print)
    file.write_text("\n".join(["a,b,label", *lines[::-1]]))
    with pytest.raises(ResumeError, match="the data of this tuning is not what"):
        private.tune(found, studies.read(at, own), tmp_path / "out", print)


def test_a_tuning_killed_while_it_releases_draws_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, keep = priced(tmp_path), private._keep

    def killed(path: Path, what: Any) -> None:
        if what.status == "done":
            raise KeyboardInterrupt
        keep(path, what)

    monkeypatch.setattr(private, "_keep", killed)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, found, monkeypatch, 1)
    before = load(tmp_path / "out" / "best").about.run
    monkeypatch.setattr(private, "_keep", keep)
    assert tuned(tmp_path, found, monkeypatch, 5).status == "done"
    assert load(tmp_path / "out" / "best").about.run == before


def test_what_a_kill_leaves_at_the_very_end_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, remove, folder = priced(tmp_path), shutil.rmtree, tmp_path / "out"

    def killed(path: Path, **named: Any) -> None:
        if Path(path).name == private.HIDDEN:
            raise KeyboardInterrupt
        remove(path, **named)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, found, monkeypatch, 2)
    monkeypatch.setattr(shutil, "rmtree", remove)
    assert (folder / ".tuning" / private.STATE).exists()  # how many trials there were
    assert tuned(tmp_path, found, monkeypatch, 2).status == "done"
    assert not (folder / ".tuning").exists()
    # nor does the time between the booking and the end tell it
    assert len({path.stat().st_mtime for path in folder.rglob("*")}) == 1


def test_without_its_key_a_tuning_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folder = priced(tmp_path), tmp_path / "out"
    monkeypatch.setattr(private, "_trials", lambda *_: pytest.fail("no trial is to run"))
    with pytest.raises(pytest.fail.Exception):
        private.tune(found, read(tmp_path), folder, lambda _: None)
    charges, key = booked(folder), (folder / ".tuning" / private.KEY).read_bytes()
    for other, said in ((bytes([7]) * 32, "is another"), (None, "is missing")):
        if other is None:
            shutil.rmtree(folder / ".tuning")
        else:
            (folder / ".tuning" / private.KEY).write_bytes(other)
        with pytest.raises(ResumeError, match=said):
            private.tune(found, read(tmp_path), folder, lambda _: None)
        assert booked(folder) == charges
    assert key.hex() not in (folder / "tune.json").read_text(encoding="utf-8")


def test_a_copy_that_is_put_back_releases_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, trials, folder = priced(tmp_path), private._trials, tmp_path / "out"

    def copied(*given: Any) -> Any:
        shutil.copytree(folder, tmp_path / "copy")
        return trials(*given)

    monkeypatch.setattr(private, "_trials", copied)
    first = tuned(tmp_path, found, monkeypatch, 3)
    model = (folder / "best" / "model.safetensors").read_bytes()
    monkeypatch.setattr(private, "_trials", trials)
    shutil.rmtree(folder)
    (tmp_path / "copy").rename(folder)
    assert tuned(tmp_path, found, monkeypatch, 3) == first
    assert (folder / "best" / "model.safetensors").read_bytes() == model


def test_what_could_not_begin_leaves_nothing(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{i % 5},p{i // 2},{'xy'[i % 2]}\n" for i in range(80))
    (tmp_path / "mine.csv").write_text("a,b,who,label\n" + rows, encoding="utf-8")
    theirs = "a,b,who,label\n" + rows.replace("p", "q")
    (tmp_path / "theirs.csv").write_text(theirs, encoding="utf-8")
    data = f'file = "{tmp_path / "mine.csv"}"\ntest_file = "{tmp_path / "theirs.csv"}"'
    path = written(tmp_path, data + '\nperson = "who"\nperson_rows = 2')
    found = price(candidates(path, [], [RATES]), [RATES], "geometric", 3.0)
    study = studies.read(path)
    assert 0.99 < found.epsilon / (study.privacy.epsilon or 0.0) <= 1.0  # of a person's two rows
    assert isinstance(found.event, Selected)
    dear = Selected(Composed((found.event.event,) * 4), found.trials)
    with pytest.raises(BudgetExceeded, match="over the budget"):
        private.tune(replace(found, event=dear), study, tmp_path / "out", lambda _: None)
    assert not list((tmp_path / "out").iterdir())


def test_a_candidate_that_is_refused_is_so_before_the_price_is_charged(tmp_path: Path) -> None:
    """It ended the tuning when chance drew it, and the whole price stayed charged."""
    models = "model.name=logistic,cnn"  # of digits, which have 8 x 8 pixels
    found = price(candidates(written(tmp_path), [], [models]), [models], "geometric", 3.0)
    with pytest.raises(StudyError, match="needs images of at least 15x15"):
        private.tune(found, read(tmp_path), tmp_path / "out", lambda _: None)
    assert not list((tmp_path / "out").iterdir())


def test_without_a_trial_nothing_is_released_and_the_price_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = priced(tmp_path, law="poisson", mean=2.0)
    assert tuned(tmp_path, found, monkeypatch, 0).status == "nothing"
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "ledger.sqlite",
        "tune.json",
    ]
    assert all(booked(tmp_path / "out").values())


def test_the_number_of_trials_comes_from_the_secret_key(tmp_path: Path) -> None:
    found = priced(tmp_path)
    numbers = [private.drawn(found, System(bytes([k]) * 32)) for k in range(40)]
    assert numbers == [private.drawn(found, System(bytes([k]) * 32)) for k in range(40)]
    assert len(set(numbers)) > 3
    assert min(numbers) == 1


def test_a_ledger_of_the_data_pays_for_the_choice_and_refuses_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(160, 4)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(160) % 2)
    data = f"data={{file='{tmp_path / 'own.npz'}', clients=4, validation=40}}"
    changes = data, f"privacy.ledger={tmp_path / 'kept'}"
    own, found = read(tmp_path, *changes), priced(tmp_path, *changes)
    monkeypatch.setattr(private, "drawn", lambda *_: 1)
    private.tune(found, own, tmp_path / "out", lambda _: None)
    with Ledger.open(tmp_path / "kept" / "ledger.sqlite", readonly=True) as ledger:
        spent = Counter(entry.event for entry in ledger.entries())
    assert spent.pop(found.event) == 4
    assert [type(event) for event in spent] == [NonPrivate]  # examples that are declared public
    with pytest.raises(BudgetExceeded, match="over the budget"):
        private.tune(found, own, tmp_path / "second", lambda _: None)
    assert not list((tmp_path / "second").iterdir())
    with Ledger.open(tmp_path / "kept" / "ledger.sqlite", readonly=True) as ledger:
        assert sum(1 for _ in ledger.entries()) == 5
        assert open_runs(ledger) == []


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("method={name='ali-dpfl'}", "budget.rounds=3"),
        ("method={name='als-dpfl'}", "budget.rounds=3", "budget.steps=8"),
        ("privacy.epsilons=[0.5, 1.0, 4.0, 4.0]",),
        ("privacy.epsilons=[0.5, 4.0, 4.0, 4.0]", "method={name='ali-dpfl'}"),
        ("privacy.noise=shared", "privacy.honest=2"),
        ("participation.cohort=2", "budget.rounds=5"),
        ("method={name='dp-fedavg'}", "privacy.unit=client", "data.clients=20"),
    ],
)
def test_no_trial_spends_more_than_was_booked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: tuple[str, ...]
) -> None:
    monkeypatch.setattr(private, "drawn", lambda *_: 1)
    found = priced(tmp_path, *changes)
    assert found.epsilon <= 4.0
    private.tune(found, read(tmp_path, *changes), tmp_path / "out", lambda _: None)
    charges, one = booked(tmp_path / "out"), accountant("pld")
    spent = booked(tmp_path / "out" / "best")
    assert list(spent) == list(charges)
    for unit, ((event, count),) in charges.items():
        assert count == 1
        assert one.epsilon(spent[unit], 1e-3) <= one.epsilon([(event.event, 1)], 1e-3)
    # the one that is released may have asked a client less often than others
    assert (load(tmp_path / "out" / "best").guaranteed or 0.0) >= found.epsilon
    assert (verify(tmp_path / "out" / "best").epsilon or 0.0) >= found.epsilon
    with so.Ledger.open(tmp_path / "out" / "best") as ledger:  # which stated one trial's
        assert ledger.epsilon(1e-3) > 0.99 * found.epsilon
    other = repriced(tmp_path / "out" / "best", None, "rdp")
    assert max(each.epsilon or 0.0 for kept in other for each in kept.units) > 0.99 * found.epsilon


def test_each_client_pays_by_its_own_epsilon_or_nobody_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "privacy.epsilons=[0.5, 1.0, 4.0, 4.0]"
    changes = (own, f"privacy.ledger={tmp_path / 'kept'}")
    monkeypatch.setattr(private, "drawn", lambda *_: 1)
    found = priced(tmp_path, *changes)
    private.tune(found, read(tmp_path, *changes), tmp_path / "out", lambda _: None)
    kept = tmp_path / "kept" / "ledger.sqlite"
    with Ledger.open(kept, readonly=True) as ledger:
        spent = [accountant("pld").epsilon(ledger.spent(u), 1e-3) for u in ledger.units()]
    assert all(
        0.98 * most < each <= most
        for each, most in zip(sorted(spent), [0.5, 1.0, 4.0, 4.0], strict=True)
    )
    with pytest.raises(Exception, match="over the budget"):
        private.tune(found, read(tmp_path, *changes), tmp_path / "second", lambda _: None)
    with Ledger.open(kept, readonly=True) as ledger:
        assert [accountant("pld").epsilon(ledger.spent(u), 1e-3) for u in ledger.units()] == spent
    units = {"client:0": "a", "client:1": "b"}
    budgets = {"client:0": Budget(4.0, 1e-3), "client:1": Budget(1.0, 1e-3)}
    charges = [
        Charge(unit=unit, event=found.own[2], count=1, why="", method="tune", round=0, key=unit)
        for unit in units
    ]
    with LedgerSession.for_run(tmp_path / "own.sqlite", units) as ledgers:
        with pytest.raises(Exception, match=r"client:1: .* over the budget of 1 "):
            ledgers.charge(charges, budgets)
        assert not ledgers.spent("client:0")
    given = "privacy.noise_multipliers=[9.0, 9.0, 9.0, 9.0]"
    with pytest.raises(StudyError, match="leave it out"):
        priced(tmp_path, own, given)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('name = "digits"\nvalidation = 50', "public validation examples"),
        ('name = "digits"', "therefore too high"),
        ('file = "x.csv"\ntest = "private share"', "which pay for it"),
    ],
)
def test_what_candidates_are_measured_on(tmp_path: Path, data: str, said: str) -> None:
    assert said in measured(read(tmp_path, data=data))


def test_a_measure_that_nobody_pays_for_is_refused(tmp_path: Path) -> None:
    data = 'file = "x.csv"\ntest = "none"\nclient_validation = 0.1'
    with pytest.raises(StudyError, match="the clients' own"):
        measured(read(tmp_path, data=data))


def test_private_test_rows_pay_for_every_trial_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 400)
    x = random.normal(size=(400, 5)).astype(np.float32) + y[:, None]
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    data = f'file = "{tmp_path / "mine.npz"}"\ntest = "private share"'
    path = written(tmp_path, data)
    found = price(candidates(path, [], [RATES]), [RATES], "geometric", 3.0)
    assert found.tested is not None
    monkeypatch.setattr(private, "drawn", lambda *_: 2)
    private.tune(found, studies.read(path), tmp_path / "out", lambda _: None)
    charges = booked(tmp_path / "out")
    assert charges["test"] == [(found.tested, 1)]
    assert accountant("pld").epsilon(charges["test"], 1e-3) <= 4.0
    run = load(tmp_path / "out" / "best")
    assert 3.0 < float(str(run.result.test_epsilon)) <= 4.0  # one evaluation less than planned


def test_rules_follow_the_noise(tmp_path: Path) -> None:
    features = 'name = "digits"\nfeatures = "scattering"'
    found, _ = ruled(read(tmp_path, data=features))
    less, _ = ruled(read(tmp_path, "privacy.epsilon=1.0", data=features))
    rate: Callable[[Any], float] = lambda study: study.method.learning_rate  # noqa: E731
    assert found.privacy.clip == 0.225  # 324 normalised features of variance 1/16: length 4.5
    assert rate(less) < rate(found)
    assert found.tuned is not None
    assert found.tuned.chosen == {"privacy.clip": 0.225, "method.learning_rate": rate(found)}
    together, _ = ruled(read(tmp_path, "privacy.noise=shared", data=features))
    assert rate(together) == pytest.approx(2 * rate(found), rel=0.01)  # of four clients
    slow, _ = ruled(read(tmp_path, "method.momentum=0.5", data=features))
    assert rate(slow) == pytest.approx(rate(found) / 2, rel=0.01)
    with pytest.raises(StudyError, match="a finite privacy"):
        ruled(read(tmp_path, "privacy.epsilon=inf", "privacy.noise_multiplier=1", data=features))
