"""Who runs with which seed and where, what is there already, and who is at equal privacy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sordino.base.errors import StudyError
from sordino.comparison import result, runner, schedule, tables
from sordino.comparison.schedule import Side, labels, refuse_shared, seeds_of, tasks, usual_folder
from sordino.comparison.tables import content
from sordino.core import study as studies
from sordino.core.files import locked
from sordino.core.records import Environment, simple
from sordino.core.run.reading import load
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS
from sordino.report.comparisons import render


def side(tmp_path: Path, name: str, *changes: str) -> Side:
    path = tmp_path / f"{name}.toml"
    path.write_text(SYNCHRONOUS)
    study = studies.read(path, [f'name="{name}"', "privacy.noise_multiplier=2.0", *changes])
    return Side(name, name, path, study, study)


def member(
    one: Side, epsilon: float | str, claimed: float | None = None, accuracy: float = 0.5
) -> result.Member:
    """A study with one finished run, as its folder would tell it."""
    folder = one.path.parent / "runs" / one.slug / "seed-0"
    folder.mkdir(parents=True)
    privacy = one.study.privacy
    about = {
        "status": "done",
        "unit": privacy.unit,
        "delta": privacy.delta,
        "form": one.study.form,
        "epsilon_budget": privacy.epsilon,
    }
    done = {"accuracy": accuracy, "epsilon": epsilon}
    about["guarantee"] = (
        "A promise." if one.study.form == "sound" else "No privacy guarantee: none."
    )
    extra = {} if claimed is None else {"claimed_epsilon": claimed}
    (folder / "run.json").write_text(
        json.dumps({**about, **extra, "result": done, "warnings": [f"{one.label} warns"]})
    )
    (folder / "study.toml").write_text(studies.write(one.study))
    finite = {} if epsilon == "inf" else {"epsilon": epsilon}
    (folder / "rounds.jsonl").write_text(
        json.dumps({"kind": "round", "round": 1, "accuracy": accuracy, **finite}) + "\n"
    )
    return result.Member(one, {0: load(folder)}, {})


def test_every_study_gets_the_same_seeds(tmp_path: Path) -> None:
    sides = [side(tmp_path, "a", "seed=7"), side(tmp_path, "b")]
    made = tasks(sides, seeds_of(sides[0].study, 2), tmp_path / "out")
    assert [(task.side.label, task.seed, task.study.seed) for task in made] == [
        ("a", 7, 7),
        ("b", 7, 7),
        ("a", 8, 8),
        ("b", 8, 8),
    ]
    assert [str(task.folder.relative_to(tmp_path)) for task in made[:2]] == [
        "out/a/seed-7",
        "out/b/seed-7",
    ]
    assert usual_folder(sides) == Path("runs/compare-a-and-b")
    with pytest.raises(StudyError, match="--seeds must be at least 1; got 0"):
        seeds_of(sides[0].study, 0)


def test_labels_tell_apart_or_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="given twice"):
        labels(["a", "a"], [tmp_path / "x.toml", tmp_path / "." / "x.toml"], ["", ""])
    with pytest.raises(StudyError, match="do not tell them apart"):
        labels(["a", "a"], [tmp_path / "1" / "x.toml", tmp_path / "2" / "x.toml"], ["", ""])


def test_a_budget_that_runs_share_is_refused(tmp_path: Path) -> None:
    refuse_shared([side(tmp_path, "a")])
    with pytest.raises(StudyError, match=r"privacy\.ledger=run"):
        refuse_shared([side(tmp_path, "b", 'privacy.ledger="kept"')])


def test_what_differs_is_named_and_trivia_is_not(tmp_path: Path) -> None:
    one = side(tmp_path, "a").study
    path = tmp_path / "again.toml"
    path.write_text("# a remark\n" + studies.write(one))
    assert runner.differing(studies.read(path), one) == []
    assert runner.differing(one, side(tmp_path, "a", "budget.rounds=21").study) == [
        "budget.rounds is 20 there, 21 here"
    ]


def test_rounds_of_a_log_that_is_being_written(tmp_path: Path) -> None:
    assert runner.rounds_done(tmp_path) == 0
    (tmp_path / "run.json").write_text('{"regime": "synchronous"}')
    (tmp_path / "study.toml").touch()
    (tmp_path / "rounds.jsonl").write_text(
        '{"kind": "round", "round": 3}\n{"kind": "late", "round": 3}\n{"kind": "round", "rou'
    )
    assert runner.rounds_done(tmp_path) == 3


def test_one_comparison_at_a_time(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "out", make=True),
        pytest.raises(StudyError, match="running there"),
        locked(tmp_path / "out", make=True),
    ):
        pass
    with locked(tmp_path / "out"):
        pass


def test_what_a_run_leaves_that_begins_just_now_is_not_swept_away(tmp_path: Path) -> None:
    for name in (".seed-0.0123abcd", ".seed-1.0123abcd"):
        (tmp_path / name).mkdir()
    with locked(tmp_path / ".seed-1.0123abcd"):
        runner.sweep([tmp_path / "seed-0", tmp_path / "seed-1"])
        assert [each.name for each in tmp_path.iterdir()] == [".seed-1.0123abcd"]


@pytest.mark.parametrize(
    ("changes", "epsilon", "said"),
    [
        ([], 3.99, []),
        ([], 3.0, ["not at equal privacy: epsilon 3 against 4 of the same budget"]),
        (["privacy.epsilon=3.0"], 3.0, ["not at equal privacy: epsilon 3 against 4"]),
        (["privacy.delta=1e-4"], 4.0, ["not at equal privacy: delta 0.0001 against 0.001"]),
        (
            ['method={name="fedavg"}', 'privacy={unit="none", sampling_rate=0.2}'],
            "inf",
            ["not at equal privacy: unit none against sample"],
        ),
        (
            ["privacy.accountant=rdp"],
            4.0,
            ["the bounds are of different accountants (rdp against pld)"],
        ),
        (["data.clients=5"], 4.0, ["not on the same data: data.clients differs"]),
    ],
)
def test_unequal_privacy_is_said(
    tmp_path: Path, changes: list[str], epsilon: float | str, said: list[str]
) -> None:
    found = result.difference(
        member(side(tmp_path, "a"), 4.0), member(side(tmp_path, "b", *changes), epsilon), "true"
    )
    assert list(found.notes) == said
    assert found.equal == (not any("equal privacy" in note for note in said))


def test_clients_with_other_epsilons_are_not_at_equal_privacy(tmp_path: Path) -> None:
    own = studies.read(
        side(tmp_path, "a").path, [f"privacy.epsilons={[1.0, *[4.0] * 9]}", 'name="own"']
    )
    one = member(side(tmp_path, "a"), 4.0)
    other = member(Side("own", "own", tmp_path / "a.toml", own, own), 4.0)
    assert result.inequalities(one, one, "true") == []
    assert result.inequalities(one, other, "true") == [
        "not at equal privacy: clients have other epsilons"
    ]


@pytest.mark.parametrize("at", ["true", "claimed"])
def test_a_claim_is_never_shown_as_the_truth(tmp_path: Path, at: result.At) -> None:
    sound = member(side(tmp_path, "sound"), 4.0)
    paper = member(side(tmp_path, "letter", 'method={name="als-dpfl", form="paper"}'), "inf", 4.0)
    found = result.compared(tmp_path / "runs", at, (0,), [sound, paper])
    warned = (
        "letter is NOT private at the epsilon of 4 that it claims: its true epsilon is infinite."
    )
    assert found.overclaims == (warned,)
    assert not found.differences[0].equal
    assert "epsilon ∞ against 4" in found.differences[0].notes[0]
    assert (
        found.differences[0]
        .notes[0]
        .startswith("at the claimed epsilon only" if at == "claimed" else "not at equal privacy")
    )
    table: Any = simple(result.recorded(found))
    assert [(each["epsilon"], each["claimed_epsilon"]) for each in table["studies"]] == [
        (4.0, 4.0),
        ("inf", 4.0),
    ]
    assert table["not_private_as_claimed"] == ["letter"]
    page = render(content(found))
    assert warned in page
    assert (
        ("Not private as claimed</strong>" in page)
        == ("epsilon claimed</th>" in page)
        == (at == "claimed")
    )
    assert "No privacy guarantee</strong>for letter." in page
    assert "one seed: nothing can be concluded" in page
    assert "letter: letter warns" in page


def test_variants_are_every_combination_and_a_comma_within_divides_nothing() -> None:
    assert schedule.variants([]) == [()]
    found = schedule.variants(
        ["method.length=10, 50", 'method.activation={kind="random", p=0.5},"full"']
    )
    assert found == [
        (f"method.length={length}", f"method.activation={whom}")
        for length in (10, 50)
        for whom in ('{kind="random", p=0.5}', '"full"')
    ]
    assert schedule.title(found[0]) == 'length 10, activation {kind="random", p=0.5}'
    for wrong in ("method.length", "=3", "method.length="):
        with pytest.raises(StudyError, match=r"write it as section\.key=value,value"):
            schedule.variants([wrong])


def test_parameters_of_one_method_are_given_to_that_alone(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(SYNCHRONOUS.partition("\n")[2])  # without its name
    changes = ["privacy.noise_multiplier=2.0", "method.tau=5"]
    found = schedule.sides_of(
        [(path, lambda varied: studies.read(path, [*changes, *varied]))],
        ["method.name=ali-dpfl,dp-sgd", "method.tau=1,3"],
    )
    assert [each.label for each in found] == [
        "ali-dpfl on digits",
        "dp-sgd on digits, tau 1",
        "dp-sgd on digits, tau 3",
    ]
    with pytest.raises(StudyError, match=r"method\.thau is not a key"):
        studies.read(path, ["method.name=dp-sgd", "method.thau=1"])


def test_modules_of_ones_own_are_no_other_program(tmp_path: Path) -> None:
    plain, mine, older = (member(side(tmp_path, name), 4.0) for name in ("plain", "mine", "older"))

    def made_by(one: result.Member, **environment: Any) -> result.Member:
        run = replace(one.runs[0], environment=Environment(**environment))
        return result.Member(one.side, {0: run}, {})

    plain, mine = made_by(plain, torch="2"), made_by(mine, torch="2", modules={"rising": "12"})
    assert not result.difference(plain, mine, "true").notes
    older = made_by(older, torch="1", modules={"rising": "34"})
    (told,) = result.difference(mine, older, "true").notes
    assert "(torch, rising in environment.json)" in told


def test_variants_of_one_study_are_told_apart_and_none_is_given_twice() -> None:
    path = Path("study.toml")
    assert schedule.labels(["mine"] * 2, [path] * 2, ["length 10", "length 50"]) == [
        "mine, length 10",
        "mine, length 50",
    ]
    with pytest.raises(StudyError, match="given twice"):
        schedule.labels(["mine"] * 2, [path] * 2, ["length 10"] * 2)


def test_what_is_reported_elsewhere_stands_beside(tmp_path: Path) -> None:
    told = studies.Reported(source="Table 1", error=0.1, mib=2.5)
    one = side(tmp_path, "one")
    found = member(
        replace(one, study=one.study.model_copy(update={"reported": told})), 1.0, accuracy=0.85
    )
    members = (found, member(side(tmp_path, "other"), 1.0))
    table = tables.reported(result.Comparison(tmp_path, "true", (0,), members, (), (), (), ()))
    assert table.rows == [["one", "85.00 %", "90.00 %", "-", "2.50", "-", "-", "Table 1"]]
