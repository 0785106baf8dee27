"""The study file: complete round trips, and every mistake said at once with place, value and
remedy.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.regimes.asynchronous.study import TEMPLATE as ASYNCHRONOUS
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS

GOOD = tomllib.loads(SYNCHRONOUS)


def changed(**sections: Any) -> dict[str, Any]:
    """The template with keys of its sections replaced; a value of ... removes the key."""
    table = {key: dict(value) if isinstance(value, dict) else value for key, value in GOOD.items()}
    for section, keys in sections.items():
        if isinstance(keys, dict):
            inner = {**table.get(section, {}), **keys}
            table[section] = {key: value for key, value in inner.items() if value is not ...}
        else:
            table[section] = keys
    return table


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(EXAMPLES.glob("**/*.toml")) if path.name != "federation.toml"],
    ids=lambda path: path.name,
)
def test_examples_are_studies(path: Path) -> None:
    study = studies.read(path)
    assert studies.parse(tomllib.loads(studies.write(study)), source="written") == study


def test_writing_and_reading_gives_the_same_study_with_every_default_spelled_out() -> None:
    study = studies.parse(GOOD, source="study")
    table = tomllib.loads(studies.write(study))
    assert studies.parse(table, source="again") == study
    assert table["execution"]["checkpoint_every"] == 10
    assert table["method"]["batch_bound"] == "weighted"


@pytest.mark.parametrize(
    "name", ['quo"te', "back\\slash", "new\nline", "tab\t", "nul\x00", "ünï ε"]
)
def test_strange_names_survive(name: str) -> None:
    study = studies.parse(changed(name=name), source="s")
    assert tomllib.loads(studies.write(study))["name"] == name


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"privacy": {"epsilom": 2.0}},
            r"privacy\.epsilom is not a key of a synchronous study; did you mean 'epsilon'\?",
        ),
        (
            {"method": {"gama": 1.0}},
            r"method\.gama is not a key of a synchronous study; did you mean 'gamma'\?",
        ),
        (
            {"method": {"tau": 3}},
            r"method\.tau is not a key of a synchronous study\. Known here: .*learning_rate, "
            r".*gamma",
        ),
        (
            {"prvacy": {"x": 1}},
            r"prvacy is not a key of a synchronous study; did you mean 'privacy'\?",
        ),
        (
            {"data": {"partition": {"kind": "dirichlet", "bta": 1}}},
            r"data\.partition\.bta .*did you mean 'beta'",
        ),
        (
            {"method": {"name": "ali-dpl"}},
            r"method\.name = 'ali-dpl' is not known; did you mean 'ali-dpfl'\?",
        ),
        (
            {"data": {"partition": {"kind": "dirichlett"}}},
            r"data\.partition\.kind = 'dirichlett' is not known; did you mean 'dirichlet'",
        ),
        ({"privacy": {"unit": ...}}, r"privacy\.unit is missing"),
        ({"privacy": {"epsilon": ...}}, "needs epsilon: a privacy guarantee has no default"),
        ({"privacy": {"delta": ...}}, "needs delta"),
        ({"privacy": {"delta": 1.0}}, r"privacy\.delta: .*less than 1; got 1"),
        ({"privacy": {"delta": 0.0}}, r"privacy\.delta: .*greater than 0"),
        (
            {"privacy": {"noise_multiplier": 0.0}},
            "noise_multiplier must be positive for a finite epsilon; got 0.0",
        ),
        (
            {"privacy": {"noise_multiplier": -1.1}},
            "noise_multiplier must be positive for a finite epsilon; got -1.1",
        ),
        (
            {"privacy": {"sampling_rate": 0.0}},
            r"privacy\.sampling_rate: .*greater than or equal to 0\.0*1; got 0",
        ),
        (
            {"privacy": {"sampling_rate": 1.01}},
            r"privacy\.sampling_rate: .*less than or equal to 1; got 1.01",
        ),
        ({"privacy": {"epsilon": -2}}, r"privacy\.epsilon: .*greater than 0; got -2"),
        (
            {"privacy": {"accountant": "gdp"}},
            r"privacy\.accountant: accountant 'gdp' is not known.*Known: pld, rdp, rdp-classic",
        ),
        ({"privacy": {"unit": "none", "epsilon": 2.0}}, "unit 'none' promises nothing"),
        (
            {"privacy": {"unit": "client"}},
            "protects single examples: privacy.unit must be 'sample'; got 'client'",
        ),
        (
            {"method": {"name": "fedavg", "learning_rate": 0.1, "average": 0, "momentum": 0}},
            "adds no noise and gives no guarantee",
        ),
        ({"data": {"name": ...}}, "give either name .* or file"),
        ({"data": {"clients": 0}}, r"data\.clients: .*greater than or equal to 1; got 0"),
        ({"data": {"partition": {"kind": "column"}}}, "needs client_column"),
        ({"world": {"dropout": 0.1}}, "world.dropout needs participation.deadline"),
        ({"participation": {"cohort": 11}}, "cohort is 11, but there are 10 clients"),
        ({"budget": {"rounds": "many"}}, r"budget\.rounds: .*got 'many'"),
    ],
)
def test_every_mistake_names_place_value_and_remedy(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        studies.parse(changed(**sections), source="study.toml")


def test_all_mistakes_are_reported_at_once() -> None:
    table = changed(
        privacy={"sampling_rate": 2.0, "delt": 1}, data={"clients": -1}, method={"learning_rate": 0}
    )
    with pytest.raises(StudyError) as caught:
        studies.parse(table, source="study.toml")
    for place in ("privacy.sampling_rate", "privacy.delt", "data.clients", "method.learning_rate"):
        assert place in str(caught.value)


def test_set_changes_any_key(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(SYNCHRONOUS)
    study: Any = studies.read(
        path,
        [
            "privacy.epsilon=8",
            "model.name=logistic",
            "data.partition={ kind = 'iid' }",
            "execution.threads=2",
        ],
    )
    assert study.privacy.epsilon == 8
    assert study.model.name == "logistic"
    assert study.data.partition.kind == "iid"
    assert study.execution.threads == 2
    with pytest.raises(StudyError, match="write it as section"):
        studies.read(path, ["privacy.epsilon"])
    with pytest.raises(StudyError, match="'name' is a value, not a section"):
        studies.read(path, ["name.x=1"])


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="there is no such study file"):
        studies.read(tmp_path / "none.toml")
    with pytest.raises(StudyError, match=r"Is a directory.*Give a study file"):
        studies.read(tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ")
    with pytest.raises(StudyError, match="not a TOML file"):
        studies.read(broken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "privacy.sampling_rate=0.1",
            "is not a key of an asynchronous study: each edge's follows from method.batch",
        ),
        ("budget.rounds=5", "say budget.updates"),
        ("method.tetha=0.3", "did you mean 'theta'"),
        ("privacy.epsilons=[1.0]", "privacy.epsilons has 1 numbers; data.clients is 5"),
        (
            "privacy.epsilons=[1.0, 1.0, 1.0, 1.0, 9.0]",
            "must not pass epsilon = 4; the largest is 9",
        ),
        ('world.latency={ kind = "trace" }', "world.latency.file"),
        ("method.theta=1.0", "less than 1"),
        ("privacy.unit=client", "protects single examples"),
        ('privacy={unit="none"}', "for no privacy use method 'asgd'"),
        ('method={name="asgd"}', "or use method 'audp' or 'mapa'"),
    ],
)
def test_mistakes_in_a_study_of_arrivals_name_place_and_remedy(
    tmp_path: Path, change: str, message: str
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(ASYNCHRONOUS)
    with pytest.raises(StudyError, match=re.escape(message)):
        studies.read(path, [change])


def test_an_unknown_method_leaves_the_other_keys_of_its_regime_alone(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(ASYNCHRONOUS)
    with pytest.raises(StudyError) as told:
        studies.read(path, ["method.name=mapaa"])
    assert str(told.value).count("\n") == 0


def test_studies_of_both_regimes_come_back_from_their_own_text(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(ASYNCHRONOUS)
    read = studies.read(path, ["privacy.epsilons=[1.0, 2.0, 3.0, 4.0, 4.0]"])
    assert isinstance(read, AsynchronousStudy)
    assert studies.parse(tomllib.loads(studies.write(read)), source="again") == read
