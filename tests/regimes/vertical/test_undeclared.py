"""Activations, drifts and streams of one's own get what they declare, and no more."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.core.run import session

OTHERS = """
from typing import ClassVar

import numpy as np
from sordino.data import load
from sordino.data.stream import Drift, Opened, Piece, Replayed, Streaming
from sordino.regimes.vertical.method import Activation


class Bits(Activation):
    def active(self, shape, uniform, means):
        return means() > 0.0


class Looking(Bits):
    looks: ClassVar[bool] = True


class Calm(Looking):
    def active(self, shape, uniform, means):
        found = means()
        return (found > 0.3) | (found > 0.4).any(1)[:, None]


class Careful(Calm):
    def active(self, shape, uniform, means):
        if means().max() > 0.4:
            raise BaseException("a large mean")
        return super().active(shape, uniform, means)


class Sometimes(Activation):
    def active(self, shape, uniform, means):
        return uniform() < 0.5


class Stream:
    def __init__(self, stream):
        self.stream = stream
        self.name, self.shape, self.classes = stream.name, stream.shape, stream.classes
        self.length, self.columns = None, None

    def changes(self, start, stop):
        return ()


class Chosen(Stream):
    def read(self, start, count):
        held = self.stream.read(0, 2 * (start + count) + 100)
        at = np.argsort(held.y != held.y[0], kind="stable")[start : start + count]
        return Piece(held.x[at], held.y[at], None if held.entity is None else held.entity[at])


class Flipped(Stream):
    def read(self, start, count):
        held = self.stream.read(start, count)
        return Piece(held.x, len(self.classes) - 1 - held.y, held.entity)


class Centred(Stream):
    def read(self, start, count):
        held = self.stream.read(start, count)
        return Piece(held.x - held.x.mean(0), held.y, held.entity)


class Doubled(Stream):
    def read(self, start, count):
        held = self.stream.read(start, count)
        return Piece(held.x * 2, held.y, held.entity)


class ByClass(Drift):
    def applied(self, stream, seed):
        return Chosen(stream)


class Relabels(Drift):
    def applied(self, stream, seed):
        return Flipped(stream)


class Standardised(Drift):
    def applied(self, stream, seed):
        return Centred(stream)


class Louder(Drift):
    def applied(self, stream, seed):
        return Doubled(stream)


class Anonymous(Stream):
    def read(self, start, count):
        held = self.stream.read(start, count)
        return Piece(held.x, held.y)


class Again(Streaming):
    def open(self, wanted):
        train = load("digits").train.take(range(15))
        return Opened(Anonymous(Replayed(train, wanted.seed)), train.fingerprint())


class Once(Streaming):
    def open(self, wanted):
        train = load("digits").train.take(range(40))
        return Opened(Anonymous(Replayed(train, wanted.seed)), train.fingerprint())


class Known(Streaming):
    def open(self, wanted):
        train = load("digits").train.take(range(15))
        return Opened(Replayed(train, wanted.seed), train.fingerprint())


class TwoFaced(Streaming):
    def open(self, wanted):
        train = load("digits").train.take(range(40))
        return Opened(Faces(Replayed(train, wanted.seed)), train.fingerprint())


class Wide(Streaming):
    def open(self, wanted):
        train = load("digits").train.take(range(40))
        return Opened(Doubles(Replayed(train, wanted.seed)), train.fingerprint())


class Doubles(Stream):
    def read(self, start, count):
        held = self.stream.read(start, count)
        return Piece(held.x.astype(np.float64), held.y, held.entity)


class Faces(Stream):
    def read(self, start, count):
        held = self.stream.read(start, count)
        return Piece(held.x, held.y, np.arange(start, start + len(held.y)) // 2)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "undeclared.py").write_text(OTHERS)
    yield tmp_path
    sys.modules.pop("undeclared", None)


def play(folder: Path, *changes: str, unit: str = "label") -> Any:
    (folder / "study.toml").write_text(
        """
name = "undeclared"
seed = 0
[data]
name = "digits"
parties = 2
stream = "replay"
[model]
name = "linear"
[method]
name = "ogd"
learning_rate = 0.01
[privacy]
unit = "none"
[budget]
events = 30
"""
    )
    promise = {
        "none": '{unit="none"}',
        "label": '{unit="label", epsilon=3.0, delta=1e-5}',
        "entity": '{unit="entity", epsilon=40.0, delta=1e-5, embedding={clip=1.0}, '
        'updates="frozen"}',
    }[unit]
    read = studies.read(folder / "study.toml", (f"privacy={promise}", *changes))
    return session.begin(read, folder / "run", lambda _: None, lambda _: None)


@pytest.mark.parametrize("unit", ["none", "label", "entity"])
def test_an_activation_that_does_not_declare_that_it_looks_is_given_no_means(
    folder: Path, unit: str
) -> None:
    with pytest.raises(StudyError, match=r"'undeclared:Bits': it asks for the means .* looks"):
        play(folder, "method.activation=undeclared:Bits", unit=unit)
    assert not (folder / "run").exists()


def test_an_activation_that_declares_it_is_refused_where_entities_are_promised_something(
    folder: Path,
) -> None:
    with pytest.raises(StudyError, match="tells whether a party's mean feature is above"):
        play(folder, "method.activation=undeclared:Looking", unit="entity")
    play(folder, "method.activation=undeclared:Looking")


def test_an_event_on_which_an_activation_fails_ends_nothing(folder: Path) -> None:
    logs = []
    for name in ("Calm", "Careful"):
        play(folder, f"method.activation=undeclared:{name}", unit="none")
        logs.append((folder / "run" / "model.safetensors").read_bytes())
        shutil.rmtree(folder / "run")
    assert logs[0] == logs[1]


def test_what_declares_nothing_and_needs_nothing_runs(folder: Path) -> None:
    outcome = play(
        folder,
        "method.activation=undeclared:Sometimes",
        "data.drift=undeclared:Louder",
        "data.stream=undeclared:Once",
        unit="entity",
    )
    assert outcome.epsilon <= 40.0


@pytest.mark.parametrize("unit", ["none", "label"])
def test_a_drift_that_does_not_declare_it_changes_no_label(folder: Path, unit: str) -> None:
    with pytest.raises(StudyError, match=r"'undeclared:Relabels': read gave other examples or"):
        play(folder, "data.drift=undeclared:Relabels", unit=unit)


def test_a_drift_that_does_not_declare_it_cannot_choose_by_class(folder: Path) -> None:
    """All labels look alike to it, so it shows what comes without it."""
    found = []
    for name in ("none", "undeclared:ByClass"):
        play(folder, f"data.drift={name}", unit="none")
        found.append((folder / "run" / "model.safetensors").read_bytes())
        shutil.rmtree(folder / "run")
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.drift=undeclared:Standardised", "another example than as part of a longer piece"),
        ("data.stream=undeclared:Again", r"None, and example \d+ came before"),
        ("data.stream=undeclared:TwoFaced", r"entity \d+ with two labels"),
    ],
)
def test_streams_whose_price_would_be_another_are_refused_before_anything_runs(
    folder: Path, change: str, message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        play(folder, change)
    assert not (folder / "run").exists()


@pytest.mark.parametrize("drift", ["none", "{kind='swap', every=9}", "undeclared:Louder"])
def test_pieces_are_looked_at_below_any_drift(folder: Path, drift: str) -> None:
    with pytest.raises(StudyError, match=r"data.stream.*read gave float64 of shape"):
        play(folder, "data.stream=undeclared:Wide", f"data.drift={drift}", unit="none")


def test_entities_that_come_again_by_their_numbers_are_counted(folder: Path) -> None:
    play(folder, "data.stream=undeclared:Known", unit="entity")
    rows = [line for line in (folder / "run" / "rounds.jsonl").read_text().splitlines() if line]
    unused = sum(int(row.partition('"unused":')[2].partition(",")[0] or 0) for row in rows)
    assert unused == 15
