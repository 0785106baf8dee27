"""Whatever the way in which a stream is read, example t is the same; and what a stored data set
replayed is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.base.errors import DataError, StudyError
from sordino.data import Dataset, load, scaled
from sordino.data.stream import Deformed, Piece, Replayed, Stream
from sordino.data.stream.drift import ClassDrift, FeatureDrift, GradualDrift, SwapDrift
from sordino.data.stream.opening import Strength
from sordino.data.stream.table import TableStream

TOTAL = 3_300


def small(rows: int = 7, classes: int = 3) -> Dataset:
    x = np.random.default_rng(1).integers(0, 256, (rows, 2, 4, 5), dtype=np.uint8)
    return Dataset("small", x, np.arange(rows) % classes, tuple("abcdefgh"[:classes]))


def replayed() -> Stream:
    return Replayed(small(), 3)


def deformed() -> Stream:
    return Deformed(small(), 3, strength=Strength(fields=4))


def table(folder: Path = Path()) -> Stream:
    return TableStream(folder / "t.csv", classes=("0", "1", "2"), entity="who")


MAKERS: dict[str, Callable[[], Stream]] = {
    "replayed": replayed,
    "replayed, classes": lambda: ClassDrift(every=7).applied(replayed(), 0),
    "replayed, gradual": lambda: GradualDrift(every=70).applied(replayed(), 0),
    "replayed, swap": lambda: SwapDrift(every=11).applied(replayed(), 5),
    "replayed, features": lambda: FeatureDrift(every=100).applied(replayed(), 5),
    "deformed": deformed,
    "deformed, classes": lambda: ClassDrift(every=50).applied(deformed(), 0),
    "deformed, all": lambda: SwapDrift(every=700).applied(
        FeatureDrift(every=10, sudden=True).applied(
            GradualDrift(every=50).applied(deformed(), 0), 1
        ),
        2,
    ),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    lines = [
        f"{v:.5f},{rng.integers(3)},p{rng.integers(9)},{'x' * 0}{rng.integers(99)}"
        for v in rng.normal(size=TOTAL)
    ]
    (folder / "t.csv").write_text("\n".join(["dose,label,who,age", *lines]) + "\n")
    return folder


@cache
def whole(name: str) -> Piece:
    return MAKERS[name]().read(0, TOTAL + 1_250)


def same(part: Piece, all_: Piece, start: int, count: int) -> None:
    stop = min(start + count, len(all_))
    assert len(part) == max(0, stop - start)
    assert np.array_equal(part.x, all_.x[start:stop])
    assert np.array_equal(part.y, all_.y[start:stop])
    assert (part.entity is None) == (all_.entity is None)
    if part.entity is not None and all_.entity is not None:
        assert np.array_equal(part.entity, all_.entity[start:stop])


READS = st.lists(
    st.tuples(st.integers(0, TOTAL + 50), st.integers(0, 1_200)), min_size=1, max_size=6
)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=15)
@given(reads=READS)
def test_any_stretch_is_the_same_stretch(name: str, reads: list[tuple[int, int]]) -> None:
    stream = MAKERS[name]()
    for start, count in reads:
        same(stream.read(start, count), whole(name), start, count)


@settings(max_examples=25)
@given(
    reads=READS, stretch=st.sampled_from([200, 1000, 1 << 20]), at_once=st.sampled_from([7, 20_000])
)
def test_any_stretch_of_a_file_is_the_same_stretch(
    file: Path, reads: list[tuple[int, int]], stretch: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.data.stream.table.STRETCH", stretch)
        patch.setattr("sordino.data.stream.table.TEXT_ROWS", at_once)
        everything = table(file).read(0, TOTAL + 1)
        assert len(everything) == TOTAL
        stream = table(file)
        for start, count in reads:
            same(stream.read(start, count), everything, start, count)


@pytest.mark.parametrize("name", MAKERS)
def test_pieces_are_the_readers_own(name: str) -> None:
    """Writing into one changes nothing that comes later."""
    stream = MAKERS[name]()
    piece = stream.read(0, 40)
    piece.x[:] = 0
    piece.y[:] = 0
    if piece.entity is not None:
        piece.entity[:] = -1
    same(stream.read(0, 40), whole(name), 0, 40)


@pytest.mark.parametrize("name", MAKERS)
def test_pieces_are_what_a_model_takes(name: str) -> None:
    stream, piece = MAKERS[name](), MAKERS[name]().read(0, TOTAL)
    assert piece.x.dtype == np.float32
    assert piece.y.dtype == np.int64
    assert piece.x.shape == (TOTAL, 40)
    assert stream.classes == ("a", "b", "c")
    assert set(piece.y.tolist()) == {0, 1, 2}
    assert stream.length is None
    assert (piece.entity is None) == name.startswith("deformed")


def test_each_epoch_shows_each_row_once_in_another_order() -> None:
    data = load("digits").train
    n, stream = len(data), Replayed(data, 4)
    first, second = stream.read(0, n).entity, stream.read(n, n).entity
    assert first is not None
    assert second is not None
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(n))
    assert (first == second).mean() < 0.02
    # Another seed is another order; the same row is the same person wherever it comes.
    other = Replayed(data, 5).read(0, n)
    assert other.entity is not None
    assert (first == other.entity).mean() < 0.02
    assert np.array_equal(other.x, scaled(data.x[other.entity]).reshape(n, 64))
    assert np.array_equal(other.y, data.y[other.entity])


def test_epochs_have_no_end() -> None:
    assert len(Replayed(small(), 0).read(10**12, 5)) == 5


def test_entities_are_clients_where_the_data_says_so() -> None:
    data = small()
    owned = Dataset(data.name, data.x, data.y, data.classes, np.arange(7) // 3)
    rows, people = Replayed(data, 9).read(0, 50).entity, Replayed(owned, 9).read(0, 50).entity
    assert rows is not None
    assert people is not None
    assert np.array_equal(people, rows // 3)


def test_nothing_to_show_is_refused() -> None:
    empty = small().take([])
    for make in (Replayed, Deformed):
        with pytest.raises(DataError, match="small: a stream needs at least one example"):
            make(empty, 0)


def test_class_drift_needs_a_choice_of_examples(file: Path) -> None:
    stream = SwapDrift(every=3).applied(replayed(), 0)
    for drift in (ClassDrift(), GradualDrift()):
        told = f"{stream.name}: the drift '{drift.kind}' draws an example of a wanted class"
        with pytest.raises(StudyError, match=re.escape(told)):
            drift.applied(stream, 0)
    # Labels and features of a file may change.
    changed = SwapDrift(every=5).applied(FeatureDrift(every=9).applied(table(file), 0), 0)
    assert changed.columns == ("dose", "age")
    assert len(changed.read(0, 100)) == 100
