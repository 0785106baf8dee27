"""Every table of a study that chooses by name is a class: a user's own is one file with one
registration, as docs/own-tables.md says.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pixels import pixels
from sordino import data
from sordino.base.errors import DataError, ResumeError, StudyError
from sordino.core import study as studies
from sordino.core.records import plain
from sordino.core.regimes import named
from sordino.core.run import session
from sordino.core.study.base import LATENCIES, Latency
from sordino.core.study.parse import tables
from sordino.data import load, names, sets

DOCUMENT = Path(__file__).parents[1] / "docs" / "own-tables.md"
OTHERS = """
import numpy as np
from sordino.core.study.base import Latency
from sordino.data.partition import Division
from sordino.data.stream import Drift, Opened, Streaming
from sordino.data.stream.opening import Replayed
from sordino.data import Partition, load
from sordino.extend.mechanisms import GaussianNoise
from sordino.mechanisms.gaussian import Gaussian
from sordino.training.optimizer import Optimizer, Sgd
from sordino.regimes.vertical.method import Activation


class Turned(Division):
    def parts(self, shape, columns, parties):
        return tuple(np.arange(int(np.prod(shape)))[i::parties] for i in range(parties))


class Shared(Division):
    def parts(self, shape, columns, parties):
        return tuple(np.arange(10) + 9 * i for i in range(parties))


class Fractions(Division):
    def parts(self, shape, columns, parties):
        return tuple(np.arange(4) + 0.5 for i in range(parties))


class TooFew(Division):
    def parts(self, shape, columns, parties):
        return (np.arange(4),)


class First(Streaming):
    rows: int = 30

    def open(self, wanted):
        train = load("digits").train.take(range(self.rows))
        return Opened(Replayed(train, wanted.seed), train.fingerprint())


class Never(Drift):
    def applied(self, stream, seed):
        return stream


class Even(Activation):
    def active(self, shape, uniform, means):
        return np.broadcast_to(np.arange(shape[1]) % 2 == 0, shape)


class Slow(Optimizer):
    by: float = 2.0

    def begin(self, learning_rate, like):
        return Sgd().begin(learning_rate / self.by, like)


class Twice(Partition):
    def split(self, labels, clients, rng, column=None):
        return tuple(np.arange(len(labels)) for _ in range(clients))


NUMBERS = {"by": 1.0}  # another process has others


class Steep(Optimizer):
    def begin(self, learning_rate, like):
        return Sgd().begin(learning_rate * NUMBERS["by"], like)


class Far(Latency):
    def trip(self, rng):
        return NUMBERS["by"]


class Loud(GaussianNoise):
    def make(self, asked):
        return Louder(clip=asked.clip, noise_multiplier=asked.noise_multiplier)


class Louder(Gaussian):
    def release_counted(self, total, excess, rng):
        noisy, count = super().release_counted(total * NUMBERS["by"], excess, rng)
        return noisy / NUMBERS["by"], count


class Few(Activation):
    def active(self, shape, uniform, means):
        return uniform() < 0.3 * NUMBERS["by"]


class Later(First):
    def open(self, wanted):
        train = load("digits").train.take(range(60))
        return Opened(Replayed(train, int(NUMBERS["by"])), train.fingerprint())


class Held(Optimizer):
    def begin(self, learning_rate, like):
        return Momentum(learning_rate)


class Momentum:
    before = None

    def __init__(self, rate):
        self.rate = rate

    def take(self, weights, gradient, variance):
        held = gradient if Momentum.before is None else Momentum.before
        Momentum.before = 0.9 * held + 0.1 * gradient
        weights -= self.rate * Momentum.before


class Drawn(Latency):
    def trip(self, rng):
        return float(np.random.default_rng().random())


class Learning(GaussianNoise):
    def make(self, asked):
        return Learned(clip=asked.clip, noise_multiplier=asked.noise_multiplier)


class Learned(Gaussian):
    def release_counted(self, total, excess, rng):
        noisy, count = super().release_counted(total * NUMBERS["by"], excess, rng)
        found = noisy / NUMBERS["by"]
        NUMBERS["by"] = 1.0 / float(found.norm())
        return found, count


class Average(GaussianNoise):
    def make(self, asked):
        return Averaged(clip=asked.clip, noise_multiplier=asked.noise_multiplier)


class Averaged(Gaussian):
    seen = None

    def bounded(self, vector):
        held = vector.norm() if Averaged.seen is None else Averaged.seen
        Averaged.seen = 0.9 * held + 0.1 * vector.norm()
        return super().bounded(vector / Averaged.seen)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    halves, spirals = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (tmp_path / "halves.py").write_text(halves)
    (tmp_path / "spirals.py").write_text(spirals)
    (tmp_path / "others.py").write_text(OTHERS)
    yield tmp_path
    for name in ("halves", "others", "spirals"):
        sys.modules.pop(name, None)
    sets.forget("spirals")
    for registry in tables():
        for name in ("halves", "sometimes"):
            registry.forget(name)


def study(folder: Path, regime: str, *changes: str) -> studies.Study:
    (folder / "study.toml").write_text(pixels(named(regime).template))
    return studies.read(folder / "study.toml", changes)


def test_the_documented_data_set_is_read_by_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    (folder / "data" / "spirals").mkdir(parents=True)
    np.savez(
        folder / "data" / "spirals" / "spirals.npz",
        x=rng.normal(size=(500, 2)),
        y=rng.integers(0, 2, 500),
    )
    asked = ("data.clients=3", "model.name=logistic", "budget.rounds=1", "budget.steps=1")
    own = ('data.name="spirals:SPIRALS"', "data.partition=iid")
    read = study(folder, "synchronous", *own, *asked)
    assert studies.named_modules(read) == ("spirals:SPIRALS",)
    monkeypatch.setenv("SORDINO_DATA", str(folder / "nowhere"))
    with pytest.raises(DataError, match=r"the data set spirals was not found(.|\n)*lacks|no such"):
        session.begin(read, folder / "run", lambda _: None, lambda _: None)
    monkeypatch.setenv("SORDINO_DATA", str(folder / "data"))
    session.begin(read, folder / "run", lambda _: None, lambda _: None)
    about = json.loads((folder / "run" / "run.json").read_text())
    assert about["classes"] == ["left", "right"]
    assert sum(each["examples"] for each in about["clients"]) == 400
    # whatever its module says, this program does not know whether these rows are published
    assert "data" not in about
    assert not any(each.get("labels") for each in about["clients"])
    assert about["modules"]["spirals"]["beside"]
    assert "spirals" in names()
    for name, message in (
        ("spirals:read", "is no Published with read"),
        ("spirals:NOTHING", "has no attribute 'NOTHING'"),
    ):
        with pytest.raises(DataError, match=message):
            load(name)
    with pytest.raises(DataError, match="data set 'usps': it needs a function that reads it"):
        sets.register(replace(sets.PUBLISHED["usps"], read=None))
    for name in ("digits", "mnist"):
        with pytest.raises(DataError, match="is known already"):
            sets.register(replace(sets.PUBLISHED["spirals"], name=name))


def test_the_documented_partition_and_latency_run_and_are_named_in_the_record(folder: Path) -> None:
    asked = (
        "data.clients=3",
        'data.partition={kind="halves:Halves", share=0.3}',
        "budget.rounds=2",
        "budget.steps=4",
    )
    read = study(
        folder, "synchronous", *asked, 'world.latency={kind="halves:Sometimes", typical=2.0}'
    )
    assert studies.named_modules(read) == ("halves:Halves", "halves:Sometimes")
    assert studies.parse(tomllib.loads(studies.write(read)), source="again") == read
    outcome = session.begin(read, folder / "run", lambda _: None, lambda _: None)
    assert outcome.epsilon <= 4.0
    assert "halves" in data.PARTITIONS.known()
    assert "sometimes" in LATENCIES.known()
    with pytest.raises(
        StudyError, match=r"data\.partition\.share: input should be less than 1; got 2"
    ):
        study(folder, "synchronous", 'data.partition={kind="halves:Halves", share=2}')
    with pytest.raises(
        StudyError,
        match=r"data\.partition\.shre is not a key of a synchronous study; did you mean 'share'",
    ):
        study(folder, "synchronous", 'data.partition={kind="halves:Halves", shre=2}')


def test_streams_parts_drifts_and_activations_of_ones_own_run(folder: Path) -> None:
    read = study(
        folder, "vertical", "data.parts=others:Turned",
        'data.stream={kind="others:First", rows=20}', "data.drift=others:Never",
        "method.activation=others:Even", "budget.events=40", "world.dropout=0",
        "execution.path=messages",
    )  # fmt: skip
    assert {name.partition(":")[2] for name in studies.named_modules(read)} == {
        "Turned",
        "First",
        "Never",
        "Even",
    }
    rows: list[dict[str, object]] = []
    session.begin(read, folder / "run", lambda row: rows.append(plain(row)), lambda _: None)
    assert rows[-1]["kind"] == "end"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("{kind='columns', groups=[[0], [1], [2], [0]]}", "puts feature 0 at party 3"),
        (
            "others:Shared",
            r"'others:Shared' puts feature 9 at party 1, and has given it before; each feature",
        ),
        ("others:Fractions", r"must give party 0 at least one feature, by numbers from 0 to \d+"),
        ("others:TooFew", "must give an array of feature numbers for each of 4 parties"),
    ],
)
def test_parts_that_cannot_be_are_refused_before_anything_runs(
    folder: Path, parts: str, message: str
) -> None:
    read = study(folder, "vertical", f"data.parts={parts}")
    with pytest.raises(StudyError, match=message):
        session.begin(read, folder / "run", lambda _: None, lambda _: None)
    assert not (folder / "run").exists()


def test_an_optimizer_of_ones_own_takes_its_steps(folder: Path) -> None:
    plain = (
        "data.clients=3",
        "budget.rounds=2",
        "budget.steps=4",
        'method={name="dp-sgd", learning_rate=0.25}',
    )
    slow = (*plain, "method.learning_rate=0.5", 'method.optimizer={kind="others:Slow"}')
    assert studies.named_modules(study(folder, "synchronous", *slow)) == ("others:Slow",)
    session.begin(
        study(folder, "synchronous", *slow), folder / "run", lambda _: None, lambda _: None
    )


ROUNDS = "data.clients=3", "budget.rounds=2", 'method={name="dp-sgd", learning_rate=0.25}'
LABELS = 'privacy={unit="label", epsilon=3.0, delta=1e-5}', "budget.events=40"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ('method.optimizer="others:Held"', "other steps in a second round"),
        ('world.latency="others:Drawn"', "seconds for equal generators"),
        ('privacy.mechanism="others:Learning"', "something else when it was asked again"),
        ('privacy.mechanism="others:Average"', "something else when it was asked again"),
    ],
)
def test_what_remembers_or_draws_by_itself_is_refused_before_anything_runs(
    folder: Path, change: str, told: str
) -> None:
    """One client's gradients moved the update of the next (2.1 C); a run that went on released
    again under one charge, or the same noise on the same sum in another way.
    """
    with pytest.raises(StudyError, match=told):
        session.begin(
            study(folder, "synchronous", *ROUNDS, change),
            folder / "run",
            lambda _: None,
            lambda _: None,
        )
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("regime", "changes"),
    [
        ("synchronous", (*ROUNDS, 'method.optimizer="others:Steep"')),
        ("synchronous", (*ROUNDS, 'world.latency="others:Far"')),
        ("synchronous", (*ROUNDS, 'privacy.mechanism="others:Loud"')),
        ("vertical", (*LABELS, 'method.activation="others:Few"')),
        ("vertical", (*LABELS, 'data.stream="others:Later"')),
    ],
)
def test_a_run_goes_on_with_the_numbers_that_ones_own_code_had(
    folder: Path, regime: str, changes: tuple[str, ...]
) -> None:
    """Numbers drawn when a module is imported: noise of one round lay on one sum in two ways, which
    gave the sum, and labels were answered at two places for one charge.
    """

    def kill(row: object) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        session.begin(study(folder, regime, *changes), folder / "run", kill, lambda _: None)
    sys.modules["others"].NUMBERS["by"] = 2.0
    with pytest.raises(ResumeError, match="what tables of your own do"):
        session.resume(folder / "run", lambda _: None, lambda _: None)
    sys.modules["others"].NUMBERS["by"] = 1.0
    session.resume(folder / "run", lambda _: None, lambda _: None)


def dealt(given: Any, examples: int) -> None:
    """Deal to two clients by a partition that gives this."""
    partition: Any = SimpleNamespace(split=lambda *_, **__: given)
    data.deal(partition, np.zeros(examples, np.int64), 2, np.random.default_rng(0), None)


def test_no_example_may_be_dealt_to_two_clients(folder: Path) -> None:
    with pytest.raises(StudyError, match=r"none of them twice"):
        session.begin(
            study(folder, "synchronous", 'data.partition={kind="others:Twice"}'),
            folder / "run",
            lambda _: None,
            lambda _: None,
        )
    with pytest.raises(StudyError, match=r"gave 1 clients examples; data\.clients is 2"):
        dealt((np.arange(3), np.arange(0)), 3)


@pytest.mark.parametrize(
    ("regime", "place", "key", "name"),
    [
        ("synchronous", "data.partition", "kind", "iid"),
        ("synchronous", "data.partition", "kind", "halves:Halves"),
        ("synchronous", "world.latency", "kind", "exponential"),
        ("synchronous", "world.latency", "kind", "halves:Sometimes"),
        ("synchronous", "method.optimizer", "kind", "adam"),
        ("synchronous", "method.optimizer", "kind", "others:Slow"),
        ("synchronous", "privacy.mechanism", "kind", "gaussian"),
        ("synchronous", "method", "name", "dp-sgd"),
        ("vertical", "data.parts", "kind", "others:Turned"),
        ("vertical", "data.stream", "kind", "others:First"),
        ("vertical", "data.drift", "kind", "others:Never"),
        ("vertical", "method.activation", "kind", "others:Even"),
    ],
)
def test_a_name_alone_stands_for_a_table_with_nothing_else_in_it(
    folder: Path, regime: str, place: str, key: str, name: str
) -> None:
    short = study(folder, regime, f'{place}="{name}"')
    assert short == study(folder, regime, f'{place}={{{key}="{name}"}}')
    assert studies.named_modules(short) == ((name,) if ":" in name else ())


@pytest.mark.parametrize("registry", tables(), ids=lambda registry: registry.place)
def test_every_table_names_what_is_known_where_a_name_is_wrong(
    registry: object, folder: Path
) -> None:
    place, key = registry.place, registry.key  # type: ignore[attr-defined]
    regime = (
        "vertical"
        if place in ("data.parts", "data.stream", "data.drift", "method.activation")
        else "synchronous"
    )
    for name, message in (
        ("nowhere:X", "No module named 'nowhere'"),
        ("others:OTHERS", "has no attribute"),
        ("wrng", "is not known"),
    ):
        with pytest.raises(StudyError, match=message) as told:
            study(folder, regime, f'{place}={{{key}="{name}"}}')
        assert len(str(told.value).splitlines()) == 1
        assert f"{place}.{key} = '{name}'" in str(told.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "one array"),
        ((None, None), "whole numbers"),
        (([0.0, 1.0], [2.0]), "whole numbers"),
        ((np.array([True, False]), [1]), "whole"),
    ],
)
def test_what_a_partition_of_ones_own_gives_is_looked_at(given: Any, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        dealt(given, 4)


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, "x", None])
def test_a_latency_of_ones_own_that_gives_no_time_is_refused_before_anything_runs(
    seconds: Any,
) -> None:
    class Odd(Latency):
        kind: str = "odd"

        def trip(self, rng: np.random.Generator) -> float:
            found: float = seconds
            return found

    with pytest.raises(StudyError, match="it must give seconds: a number, at least 0"):
        Odd()
