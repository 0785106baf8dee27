"""A study from Python is the study of the file that it writes."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import sordino as so
from digits import small
from sordino.core import study as studies

DIGITS = Path(__file__).parents[2] / "examples" / "ali-dpfl-digits.toml"


def test_the_file_that_it_writes_is_the_same_study(tmp_path: Path) -> None:
    study = small()
    path = study.write(tmp_path / "study.toml")
    assert studies.read(path) == study.checked
    assert so.Study.read(path) == study
    with pytest.raises(so.StudyError, match="exists already"):
        study.write(path)


def test_a_file_is_read_with_changes() -> None:
    study = so.Study.read(DIGITS, "privacy.epsilon=1")
    assert study.table["privacy"]["epsilon"] == 1.0
    assert study.checked == studies.read(DIGITS, ["privacy.epsilon=1"])


def test_dictionaries_names_and_typed_tables_are_one_study() -> None:
    plain = so.Study(
        data={"name": "digits", "clients": 3},
        model={"name": "logistic"},
        method={"name": "dp-sgd", "learning_rate": 0.5, "tau": 1},
        privacy={"unit": "sample", "epsilon": 2, "delta": 1e-3, "sampling_rate": 0.1},
        budget={"rounds": 2},
    )
    assert plain == small()
    assert hash(plain) == hash(small())


def test_replace_changes_what_is_named_and_nothing_else() -> None:
    study = small()
    other = study.replace({"privacy.epsilon": 1.0, "method.tau": 2}, seed=4)
    assert other.table["privacy"]["epsilon"] == 1.0
    assert other.table["method"]["tau"] == 2
    assert other.table["seed"] == 4
    assert study == small()
    back = other.replace({"privacy.epsilon": 2.0, "method.tau": 1}, seed=0)
    assert back == study


def test_a_name_that_was_made_follows_what_it_names() -> None:
    assert small().name == "dp-sgd on digits"
    other = small().replace(method=so.AliDpfl(learning_rate=0.5))
    assert other.name == "ali-dpfl on digits"
    assert small(name="mine").replace(method=so.AliDpfl(learning_rate=0.5)).name == "mine"


def test_all_mistakes_are_told_at_once_with_place_and_value() -> None:
    with pytest.raises(so.StudyError) as told:
        small(data={"name": "digits", "clients": 0}, budget={"rounds": "many"}, model="mpl")
    said = str(told.value)
    assert "data.clients" in said
    assert "got 0" in said
    assert "budget.rounds" in said


def test_a_typed_table_tells_its_mistakes_as_a_file_does() -> None:
    with pytest.raises(so.StudyError, match=r"Privacy\.sampling_rate: .*got 3"):
        so.Privacy(unit="sample", epsilon=1.0, delta=1e-5, sampling_rate=3)
    with pytest.raises(so.StudyError, match="has no default"):
        so.Privacy(unit="sample", sampling_rate=0.1)
    with pytest.raises(so.StudyError, match=r"Budget\.round\b"):
        so.Budget(round=3)  # type: ignore[call-arg]


def test_every_regime_can_be_written() -> None:
    arrivals = so.Study(
        data=so.asynchronous.Data(name="digits", clients=3),
        model="logistic",
        method="asgd",
        privacy=so.asynchronous.Privacy(unit="none"),
        budget=so.asynchronous.Budget(updates=5),
    )
    assert arrivals.checked.regime == "asynchronous"
    events = so.Study(
        data=so.vertical.Data(name="digits"),
        method=so.vertical.Ogd(learning_rate=0.1),
        privacy=so.vertical.Privacy(unit="none"),
        budget=so.vertical.Budget(events=5),
    )
    assert events.checked.regime == "vertical"


def test_what_a_notebook_shows_is_escaped() -> None:
    shown = small(name="<script>alert(1)</script>")._repr_html_()
    assert "<script>" not in shown
    assert "privacy.epsilon" in shown


def test_importing_it_imports_nothing_that_is_heavy() -> None:
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, sordino; print([m for m in ('torch', 'numpy', 'pydantic', 'polars') "
            "if m in sys.modules], len(sys.modules) < 80)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "[] True"


def test_every_function_has_an_example_that_doctest_runs() -> None:
    found = [each for each in map(partial(getattr, so), so.__all__) if inspect.isfunction(each)]
    assert len(found) >= 7
    for function in (*found, so.Study, so.Ledger, so.mechanism):
        assert ">>> " in (function.__doc__ or ""), function


def test_every_name_is_there_and_imported_for_type_checkers_too() -> None:
    source = ast.parse(Path(so.__file__).with_suffix(".pyi").read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sordino")
        for alias in node.names
    }
    assert set(so.__all__) - {"__version__"} == imported
    for name in so.__all__:
        assert getattr(so, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(so, "nothing")  # noqa: B009
