"""Class drift on a file: every row at most once, in the file's order within its class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.base.errors import DataError
from sordino.core import regimes as builder
from sordino.core import study as studies
from sordino.data.stream import drift
from sordino.data.stream.drift import ClassDrift, GradualDrift
from sordino.data.stream.table import TableStream
from sordino.regimes.vertical.run import Events

ROWS = 9000


def labels(rows: int = ROWS, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(3, rows, p=[0.5, 0.3, 0.2])


def table(folder: Path, y: np.ndarray, *, owners: bool = False, seed: int = 5) -> TableStream:
    """Row i is (i, -i), of the person i // 2."""
    lines = [f"{i},{-i},{label},p{i // 2}" for i, label in enumerate(y.tolist())]
    path = folder / "rows.csv"
    path.write_text("\n".join(["a,b,label,who", *lines]) + "\n")
    if not owners:
        path.write_text("\n".join(["a,b,label", *(line.rpartition(",")[0] for line in lines)]))
    return TableStream(path, classes=("0", "1", "2"), entity="who" if owners else None, seed=seed)


@pytest.mark.parametrize("drift", [ClassDrift(every=50), GradualDrift(every=70)])
def test_classes_come_as_drawn_and_rows_of_a_class_in_their_order_once(
    tmp_path: Path, drift: ClassDrift | GradualDrift
) -> None:
    y = labels()
    stream = drift.applied(table(tmp_path, y), 5)
    count = 4000
    piece = stream.read(0, count)
    assert (len(piece), stream.length, stream.classes) == (count, None, ("0", "1", "2"))
    for label in range(3):
        rows = piece.x[piece.y == label, 0].astype(int)
        assert rows.tolist() == np.flatnonzero(y == label)[: len(rows)].tolist()
    assert (piece.x[:, 1] == -piece.x[:, 0]).all()
    p = drift.probabilities(5, 3, 0, count)
    z = (np.bincount(piece.y) - p.sum(0)) / np.sqrt((p * (1 - p)).sum(0))
    assert np.abs(z).max() < 4.5
    # stage by stage, too: the file's own shares would not pass
    stages = np.eye(3)[piece.y].reshape(-1, 50, 3).mean(1)
    wanted = p.reshape(-1, 50, 3).mean(1)
    assert np.abs(stages - wanted).mean() < 0.5 * np.abs(stages - [0.5, 0.3, 0.2]).mean()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2500), st.integers(0, 1500)), min_size=1, max_size=5))
def test_any_cut_gives_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    drift = ClassDrift(every=30)
    whole = drift.applied(table(folder, labels(5000), owners=True), 0).read(0, 4000)
    assert whole.entity is not None
    first = drift.applied(table(folder, labels(5000), owners=True), 0)
    for start, count in cuts:
        piece = first.read(start, count)
        stop = min(start + count, len(whole))
        assert np.array_equal(piece.x, whole.x[start:stop])
        assert np.array_equal(piece.y, whole.y[start:stop])
        assert piece.entity is not None
        assert len(piece.entity) == len(piece)


def test_it_ends_where_a_class_has_no_row_left(tmp_path: Path) -> None:
    y = labels(600)
    drift = ClassDrift(every=20)
    stream = drift.applied(table(tmp_path, y), 0)
    whole = stream.read(0, 5000)
    used = np.bincount(whole.y, minlength=3)
    assert (used <= np.bincount(y)).all()
    assert (used == np.bincount(y)).any()
    assert len(stream.read(len(whole), 10)) == 0
    assert len(stream.read(len(whole) + 700, 10)) == 0
    assert len(stream.read(len(whole) - 3, 10)) == 3
    by_ten = drift.applied(table(tmp_path, y), 0)
    parts = [by_ten.read(start, 10).x for start in range(0, 5000, 10)]
    assert np.array_equal(np.concatenate(parts), whole.x)


def test_a_file_that_is_sorted_by_class_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift, "MOST", 2 * 5000)
    stream = ClassDrift(every=50).applied(table(tmp_path, np.sort(labels())), 0)
    with pytest.raises(DataError, match=r"rows\.csv: 6000 rows wait for more of class '[12]'"):
        stream.read(0, 100)


def test_a_study_of_a_file_drifts(tmp_path: Path) -> None:
    table(tmp_path, labels(2000))
    study = tmp_path / "study.toml"
    study.write_text(
        f"""
        name = "file with drift"
        seed = 3
        [data]
        file = "{tmp_path / "rows.csv"}"
        stream = "file"
        classes = ["0", "1", "2"]
        parties = 2
        scale = 1000
        drift = {{ kind = "classes", every = 50 }}
        [method]
        name = "dlr"
        [privacy]
        unit = "none"
        [budget]
        events = 500
        """
    )
    simulation = builder.build(studies.read(study), tmp_path, "run").simulation
    assert isinstance(simulation, Events)
    found = simulation.stream.read(0, 500)
    expected = ClassDrift(every=50).applied(table(tmp_path, labels(2000), seed=3), 3).read(0, 500)
    assert np.array_equal(found.y, expected.y)
    assert np.allclose(found.x * 1000, expected.x)
