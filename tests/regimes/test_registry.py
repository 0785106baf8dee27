"""Methods are known by name; a user's own is one file with one registration, as docs/own-method.md
says.
"""

import re
import tomllib
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.core.method import About, check_method, imported, known, register
from sordino.core.records import Row
from sordino.core.run import session
from sordino.regimes.asynchronous.records import AsynchronousRound
from sordino.regimes.asynchronous.study import TEMPLATE as ASYNCHRONOUS
from sordino.regimes.synchronous.method import Choice, Remaining, SynchronousMethod, Terms
from sordino.regimes.synchronous.records import SynchronousRound
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS

DOCUMENT = Path(__file__).parents[2] / "docs" / "own-method.md"


def study(tmp_path: Path, *changes: str) -> studies.Study:
    path = tmp_path / "study.toml"
    path.write_text(re.sub(r"\[method\]\n(.+\n)+", "[method]\n", SYNCHRONOUS))
    return studies.read(path, ["data.clients=4", "budget.rounds=6", "budget.steps=12", *changes])


def test_the_documented_method_runs_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, _ = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "patient.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    name = "method.name=patient:Patient"
    taus = []

    def row(told: Row) -> None:
        if isinstance(told, SynchronousRound):
            taus.append(told.tau)

    check_method(imported("patient:Patient").model_validate({}))
    outcome = session.begin(
        study(tmp_path, name, "method.most=3"), tmp_path / "run", row, lambda _: None
    )
    assert outcome.method == "patient:Patient"
    assert outcome.epsilon <= 4.0
    assert taus[0] == 1
    assert max(int(str(tau)) for tau in taus) <= 3
    with pytest.raises(StudyError, match=r"method\.most: .*greater than or equal to 1; got 0"):
        study(tmp_path, name, "method.most=0")
    with pytest.raises(
        StudyError, match=r"method\.mots is not a key of a synchronous study; did you mean 'most'"
    ):
        study(tmp_path, name, "method.mots=1")


def test_the_documented_method_of_arrivals_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, block = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "cooling.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    rates = []

    def row(told: Row) -> None:
        if isinstance(told, AsynchronousRound):
            rates.append(told.rate)

    check_method(imported("cooling:Cooling").model_validate({}))
    path = tmp_path / "study.toml"
    path.write_text(
        re.sub(
            r"\[method\]\n(.+\n)+", '[method]\nname = "cooling:Cooling"\nbatch = 60\n', ASYNCHRONOUS
        )
    )
    outcome = session.begin(
        studies.read(path, ["budget.updates=100"]), tmp_path / "run", row, lambda _: None
    )
    assert outcome.method == "cooling:Cooling"
    assert outcome.epsilon <= 4.0
    assert (rates[0], rates[-1]) == (0.2, 0.2 / 2**9)
    assert len(set(rates)) == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Method", "No module named 'nowhere'.*package.module:Class"),
        ("sordino.regimes.synchronous.method:Nowhere", "has no attribute 'Nowhere'"),
        ("sordino.regimes.synchronous.method:Terms", "is no Method"),
        ("sordino.regimes.synchronous.method:SynchronousMethod", "is no Method with an about"),
        (":X", "Empty module name"),
        (".a:X", "relative import"),
        ("ali-dpf", r"is not known; did you mean 'ali-dpfl'\? Known: .*dp-sgd"),
    ],
)
def test_a_method_that_is_not_there_is_said_beside_the_other_mistakes(
    tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(StudyError, match=rf"(?s){message}.*data\.clients"):
        study(tmp_path, f'method.name="{name}"', "data.clients=0")


def test_a_mistaken_method_is_not_mistaken_for_another() -> None:
    table = tomllib.loads(SYNCHRONOUS)
    for method, message in (
        ({"name": "fedavgg"}, r"did you mean 'fedavg'\?"),
        ({"name": [1]}, r"method\.name must be a string; got \[1\]"),
        (3, r"method = 3 must be a name or a table"),
    ):
        with pytest.raises(StudyError, match=message) as caught:
            studies.parse(
                {**table, "method": method, "privacy": {"unit": "none", "sampling_rate": 0.1}},
                source="s",
            )
        assert len(str(caught.value).splitlines()) == 1


def test_a_method_says_what_it_is_and_no_two_have_one_name() -> None:
    before = dict(known())

    class Silent(SynchronousMethod):
        name: Literal["silent"] = "silent"

    class Impostor(SynchronousMethod):
        about: ClassVar[About] = About(
            regime="synchronous", paper="", does="", forms={"sound": True}
        )
        name: Literal["dp-sgd"] = "dp-sgd"

        def choose(self, memory: object, terms: Terms, left: Remaining) -> Choice:
            return Choice(1)

    with pytest.raises(StudyError, match=r"Silent: a method needs a name .* and an about"):
        register(Silent)
    with pytest.raises(StudyError, match="the method 'dp-sgd' is DpSgd already"):
        register(Impostor)
    assert dict(known()) == before
    # a module that is imported again is no second method
    assert register(before["dp-sgd"]) is before["dp-sgd"]
