"""What goes wrong in code that a study names is one error that says where, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import sordino
from sordino.base import modules
from sordino.base.errors import passing_over
from sordino.core.regimes import named

CODE = """
from typing import ClassVar

import msgspec
import numpy as np

from sordino.data import Partition
from sordino.data.partition import Division
from sordino.data.stream import Drift, Opened, Piece, Streaming
from sordino.core.study.base import Latency
from sordino.core.method import About
from sordino.extend.mechanisms import Noise
from sordino.regimes.asynchronous.method import AsynchronousMethod, Stage
from sordino.regimes.synchronous.method import Choice, SynchronousMethod
from sordino.regimes.vertical.method import Activation
from sordino.training.optimizer import Optimizer


def fail():
    return [][1]  # HERE


def nothing():
    return None


RESULT = fail


class Part(Partition):
    def split(self, labels, clients, rng, column=None):
        return RESULT()


class Slow(Latency):
    def trip(self, rng):
        return RESULT()


class Steps(Optimizer):
    def begin(self, learning_rate, like):
        return RESULT()


class Moving(Drift):
    def applied(self, stream, seed):
        return RESULT()


class Rows(Streaming):
    def open(self, wanted):
        return RESULT()


class Few:
    name, shape, classes, length, columns = "few", (8,), ("a", "b"), None, None

    def read(self, start, count):
        given = RESULT()
        return Piece(np.zeros((count, 8)), np.zeros(count, np.int64)) if given is None else given

    def changes(self, start, stop):
        return ()


class Late(Streaming):
    def open(self, wanted):
        return Opened(Few(), "few")


class Parts(Division):
    def parts(self, shape, columns, parties):
        return RESULT()


class Active(Activation):
    def active(self, shape, uniform, means):
        return RESULT()


class Louder(Noise):
    def make(self, asked):
        return RESULT()


class Priced(Noise):
    def event(self, noise_multiplier):
        return RESULT()

    def make(self, asked):
        raise AssertionError


class Method(SynchronousMethod):
    about: ClassVar[About] = About(
        regime="synchronous", paper="", does="", forms={"sound": True}
    )

    def choose(self, memory, terms, left):
        return RESULT()


class Folds(Method):
    def choose(self, memory, terms, left):
        return Choice(1)

    def fold(self, memory, terms, answers):
        return RESULT()


class Arrivals(AsynchronousMethod):
    about: ClassVar[About] = About(
        regime="asynchronous", paper="", does="", forms={"sound": True}
    )

    def stages(self, terms):
        return RESULT()


def net(shape, classes):
    return RESULT()
"""
LINE = CODE.splitlines().index("    return [][1]  # HERE") + 1
SMALL = {
    "synchronous": (
        "data.clients=3",
        "budget.rounds=2",
        "budget.steps=4",
        "privacy.accountant=rdp",
        "model.name=logistic",
    ),
    "asynchronous": (
        "data.clients=3",
        "budget.updates=20",
        "privacy.accountant=rdp",
        "model.name=logistic",
    ),
    "vertical": ("budget.events=40",),
}
CASES = [  # regime, key and value, call, command, what is said of None in its place
    ("synchronous", 'data.partition={kind="own:Part"}', "Part.split", "plan", "must give one"),
    ("synchronous", 'world.latency={kind="own:Slow"}', "Slow.trip", "plan", "must give seconds"),
    (
        "synchronous",
        'method.optimizer={kind="own:Steps"}',
        "Steps.begin",
        "plan",
        "begin gave None; it must give an object with a method take",
    ),
    ("vertical", 'data.drift="own:Moving"', "Moving.applied", "plan", "applied gave None"),
    ("vertical", 'data.stream="own:Rows"', "Rows.open", "plan", "open gave None; it must give Op"),
    ("vertical", 'data.stream="own:Late"', "Few.read", "run", "gave float64 of shape"),
    ("vertical", 'data.parts="own:Parts"', "Parts.parts", "plan", "must give an array of feature"),
    ("vertical", 'method.activation="own:Active"', "Active.active", "run", "active gave None"),
    ("synchronous", 'privacy.mechanism={kind="own:Louder"}', "Louder.make", "plan", "has no clip"),
    ("synchronous", 'privacy.mechanism={kind="own:Priced"}', "Priced.event", "plan", "event gave"),
    ("synchronous", 'method={name="own:Method"}', "Method.choose", "run", "choose gave None"),
    ("synchronous", 'method={name="own:Folds"}', "Folds.fold", "run", "fold gave None"),
    ("asynchronous", 'method={name="own:Arrivals"}', "Arrivals.stages", "plan", "stages gave None"),
    ("synchronous", "model.name=own:net", "net", "plan", "returned NoneType, not a torch"),
]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    modules.look_beside(None)
    sys.modules.pop("own", None)
    modules._told.pop("own", None)
    modules._FINDER.modules.pop("own", None)
    from sordino.core.study.parse import tables

    for registry in tables():
        registry.forget("own")


def told(folder: Path, code: str, regime: str, change: str, command: str, *other: str) -> str:
    (folder / "own.py").write_text(code)
    (folder / "study.toml").write_text(named(regime).template)
    sets = [word for each in (*SMALL[regime], change, *other) for word in ("--set", each)]
    more = ["--out", "run", "--quiet"] if command == "run" else []
    done = sordino(folder, command, "study.toml", *more, *sets)
    assert done.returncode == 2, done.stderr
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("sordino: ")]
    assert command == "run" or not (folder / "run").exists()
    return line


@pytest.mark.parametrize(("regime", "change", "call", "command", "none"), CASES)
def test_an_exception_names_file_line_call_and_message(
    tmp_path: Path, regime: str, change: str, call: str, command: str, none: str
) -> None:
    line = told(tmp_path, CODE, regime, change, command)
    where = f"{tmp_path / 'own.py'}, line {LINE}, in fail, called from {call}: "
    assert where + "IndexError: list index out of range" in line


@pytest.mark.parametrize(("regime", "change", "call", "command", "none"), CASES)
def test_a_value_that_cannot_be_is_named_with_its_call(
    tmp_path: Path, regime: str, change: str, call: str, command: str, none: str
) -> None:
    line = told(
        tmp_path, CODE.replace("RESULT = fail", "RESULT = nothing"), regime, change, command
    )
    assert none in line


def test_the_traceback_is_shown_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_DEBUG", "1")
    with pytest.raises(IndexError):
        told(tmp_path, CODE, "vertical", 'data.parts="own:Parts"', "plan")


@pytest.mark.parametrize(
    ("regime", "change", "lacking"),
    [
        ("synchronous", 'method={name="own:Method"}', "a method choose"),
        ("asynchronous", 'method={name="own:Arrivals"}', "a method stages"),
        ("synchronous", 'privacy.mechanism={kind="own:Louder"}', "a method make"),
        ("vertical", 'data.parts="own:Parts"', "a method parts"),
    ],
)
def test_a_class_that_lacks_a_method_is_refused_with_its_name(
    tmp_path: Path, regime: str, change: str, lacking: str
) -> None:
    name = lacking.removeprefix("a method ")
    line = told(
        tmp_path, CODE.replace(f"def {name}(", f"def other_{name}("), regime, change, "plan"
    )
    assert lacking in line


RAW = """
class Curious(Folds):
    @property
    def wants(self):
        from sordino.extend.methods import Wants

        return Wants(raw=True)


class Drawn(Folds):
    @property
    def realised(self):
        return True
"""
FALLS = """
class Louder(Method):
    def choose(self, memory, terms, left):
        return Choice(1)

    def round_noise(self, memory, terms, number):
        from sordino.extend.methods import RoundNoise

        return RoundNoise(terms.clip, terms.sigma / number)


from sordino.api.synchronous import DpFedAvg


class Falls(DpFedAvg):
    about: ClassVar[About] = About(
        regime="synchronous", paper="", does="", forms={"sound": True}, units=("client",)
    )
    adapts_noise: ClassVar[bool] = True
"""
CLIENT = CODE.replace('forms={"sound": True}', 'forms={"sound": True}, units=("client",)')
UNIT = "its about says that it protects 'client': set units = ('sample',) there"
PASSES = 'privacy={unit="sample", epsilon=4, delta=1e-3, sampling="passes", batches=4}'


@pytest.mark.parametrize(
    ("code", "regime", "changes", "said"),
    [
        (CLIENT, "synchronous", ['method={name="own:Folds"}', "privacy.unit=client"], UNIT),
        (CLIENT, "asynchronous", ['method={name="own:Arrivals"}', "privacy.unit=client"], UNIT),
        (CODE + RAW, "synchronous", ['method={name="own:Curious"}', PASSES], "as one release"),
        (CODE + RAW, "synchronous", ['method={name="own:Drawn"}', PASSES], "as one release"),
        (
            CODE + FALLS,
            "synchronous",
            ['method={name="own:Falls"}', "privacy.unit=client", "privacy.accountant=rdp@4"],
            "earlier releases decide about the noise",
        ),
    ],
)
def test_a_method_of_ones_own_promises_no_more_than_its_class_does(
    tmp_path: Path, code: str, regime: str, changes: list[str], said: str
) -> None:
    """A method that said it protects clients clipped examples, and passes left raw numbers out."""
    assert said in told(tmp_path, code, regime, changes[0], "plan", *changes[1:])


def test_noise_that_no_schedule_says_ends_a_run_before_it_is_charged(tmp_path: Path) -> None:
    """It could follow releases, and was priced as if it did not."""
    (tmp_path / "own.py").write_text(CODE + FALLS)
    (tmp_path / "study.toml").write_text(named("synchronous").template)
    changes = *SMALL["synchronous"], 'method={name="own:Louder"}'
    sets = [word for each in changes for word in ("--set", each)]
    done = sordino(tmp_path, "run", "study.toml", "--out", "run", "--quiet", *sets)
    assert done.returncode == 2
    assert "round_noise gave RoundNoise" in done.stderr
    assert '"round":2' not in (tmp_path / "run" / "rounds.jsonl").read_text()


@pytest.mark.parametrize(
    "line",
    [
        "from sordino.engine.method import About",
        "from sordino.federation.sampled import SampledMethod",
        "from sordino.mechanism import Noise",
        "import sordino.errors",
        "from sordino.message import Train",
        "from sordino.core.method import NoSuchName",
    ],
)
def test_a_place_of_another_version_is_said_with_where_it_is_now(tmp_path: Path, line: str) -> None:
    code = CODE.replace("import msgspec\n", f"import msgspec\n{line}\n")
    said = told(tmp_path, code, "synchronous", 'method={name="own:Method"}', "plan")
    assert said.startswith("sordino: study.toml: method.name = 'own:Method': ")
    assert f"{tmp_path / 'own.py'}, line 5, in <module>: " in said
    assert said.count("sordino.extend") == 1
    assert "methods, mechanisms, regimes" in said


def test_a_record_may_raise_anything_and_an_interrupt_ends_the_run() -> None:
    with passing_over():
        raise BaseException("a panic of Rust")
    with pytest.raises(KeyboardInterrupt), passing_over():
        raise KeyboardInterrupt
