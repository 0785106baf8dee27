"""Data in memory is kept in a file with the same rows, whatever it was held in."""

from __future__ import annotations

import stat
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.utils import Bunch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import sordino as so
from sordino.api.given import store
from sordino.base.errors import DataError
from sordino.data import load
from sordino.data.table import ReadOptions

COLUMNS: dict[str, Any] = {
    "age": [30, 41, 52, 63],
    "weight": [1.5, 2.5, 3.5, 4.5],
    "sick": ["yes", "no", "yes", "no"],
}
X = np.arange(24, dtype=np.float32).reshape(4, 6)
Y = np.array([0, 1, 0, 1])


def read(found: dict[str, Any]) -> polars.DataFrame:
    return polars.read_parquet(found["file"])


def test_frames_of_any_library_become_the_same_file(tmp_path: Path) -> None:
    from datasets import Dataset

    wanted = polars.DataFrame(COLUMNS)
    for data in (
        wanted,
        wanted.lazy(),
        pandas.DataFrame(COLUMNS),
        pandas.DataFrame(COLUMNS).astype({"sick": "category"}),
        COLUMNS,
        Dataset.from_dict(COLUMNS),
    ):
        found = store(data, tmp_path, {"label": "sick"})
        assert read(found).equals(wanted), type(data)
        assert found["label"] == "sick"


def test_missing_values_stay_missing(tmp_path: Path) -> None:
    wanted = polars.DataFrame({"a": [1.0, None], "b": ["x", None], "label": [0, 1]})
    frame = pandas.DataFrame({"a": [1.0, float("nan")], "b": ["x", None], "label": [0, 1]})
    assert read(store(frame, tmp_path, {})).equals(wanted)


def test_class_labels_become_their_names(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"a": Value("int64"), "label": ClassLabel(names=["cat", "dog"])})
    data = Dataset.from_dict({"a": [1, 2], "label": [1, 0]}, features=features)
    assert read(store(data, tmp_path, {}))["label"].to_list() == ["dog", "cat"]


def test_pictures_become_arrays_with_channels_first(tmp_path: Path) -> None:
    from datasets import Array3D, Dataset, Features, Value

    x = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    features = Features({"image": Array3D((4, 5, 3), "uint8"), "label": Value("int64")})
    data = Dataset.from_dict({"image": list(x), "label": [1, 0]}, features=features)
    with np.load(store(data.with_format("numpy"), tmp_path, {})["file"]) as held:
        assert held["x"].dtype == np.uint8
        assert np.array_equal(held["x"], x.transpose(0, 3, 1, 2))
        assert held["y"].tolist() == [1, 0]


def test_a_bunch_keeps_names_of_features_and_classes(tmp_path: Path) -> None:
    for as_frame in (False, True):
        bunch = load_iris(as_frame=as_frame)
        found = store(bunch, tmp_path, {})
        frame = read(found)
        assert found["label"] == "target"
        assert frame.columns[:2] == ["sepal length (cm)", "sepal width (cm)"]
        assert frame["target"].unique(maintain_order=True).to_list() == [
            "setosa",
            "versicolor",
            "virginica",
        ]
        assert np.array_equal(frame.drop("target").to_numpy(), load_iris().data)


def test_torch_data_sets_loaders_and_arrays_are_the_same(tmp_path: Path) -> None:
    held = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    files = [
        Path(store(data, tmp_path, {})["file"])
        for data in (held, DataLoader(held, batch_size=2, shuffle=True), (X, Y), so.arrays(X, Y))
    ]
    with np.load(files.pop()) as found:
        assert np.array_equal(found["x"], X)
        assert np.array_equal(found["y"], Y)


def test_whose_an_example_is_divides_the_data(tmp_path: Path) -> None:
    found = store(so.arrays(X, Y, ["a", "b", "a", "b"]), tmp_path, {})
    assert found["client_column"] == "client"
    assert found["partition"] == {"kind": "column"}


def test_only_the_owner_reads_what_is_kept(tmp_path: Path) -> None:
    place = Path(store((X, Y), tmp_path / "new", {})["file"])
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    names = {each.name for each in place.parent.iterdir()}
    assert names == {place.name}  # no drafts
    place.chmod(0o644)
    again = Path(store((X, Y), tmp_path / "new", {})["file"])
    assert stat.S_IMODE(again.stat().st_mode) == 0o600


def test_the_name_of_what_is_kept_does_not_tell_equal_rows(tmp_path: Path) -> None:
    """Two folders of runs showed by the name of the file whether the runs had the same rows."""
    one, two, other = (
        Path(store((x, Y), tmp_path, {})["file"]) for x in (X, X.copy(), X + np.float32(1))
    )
    assert one.name != two.name
    assert one.samefile(two)  # kept once
    assert not one.samefile(other)


@pytest.mark.nightly  # processes
def test_a_comparison_over_data_in_memory_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    study = so.Study(
        method={"name": "dp-sgd", "tau": 1},
        model={"name": "logistic"},
        data={"name": "digits", "clients": 2},
        privacy={"unit": "sample", "epsilon": 5.0, "delta": 1e-3, "sampling_rate": 0.5},
        budget={"rounds": 1},
    )
    for _ in range(2):
        so.compare([study], data, seeds=1, out="both", workers=1, progress=False)
    assert len({Path(each).stat().st_ino for each in Path("runs/data").glob("*.npz")}) == 1


def test_test_rows_go_into_a_file_of_their_own(tmp_path: Path) -> None:
    found = store((X, Y), tmp_path, {"test": (X[:2] + 1, Y[:2])})
    assert found["test"] == "file"
    with np.load(found["test_file"]) as held:
        assert np.array_equal(held["x"], X[:2] + 1)
    assert store((X, Y), tmp_path, {"test": "public share"})["test"] == "public share"


@pytest.mark.parametrize(
    ("data", "keys", "said"),
    [
        (polars.DataFrame(COLUMNS), {}, "no column 'label': say label="),
        ("people.csv", {}, "str is no data"),
        ((X, Y[:2]), {}, "one entry for each example"),
        ([(X[0], 1), (X[1, :3], 0)], {}, "all examples must have one shape"),
        ([X[0], X[1]], {}, None),
        ([], {}, "empty"),
        (iter([1]), {}, "is no data that can be taken"),
        ({"a": [1, 2], "label": [1]}, {}, "cannot be made a table"),
        (polars.LazyFrame(COLUMNS).drop("none"), {}, "lazy frame cannot be computed"),
    ],
)
def test_what_cannot_be_taken_is_told(
    tmp_path: Path, data: Any, keys: dict[str, Any], said: str | None
) -> None:
    with pytest.raises(so.StudyError, match=said):
        store(data, tmp_path / "data", keys)
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").iterdir())


def test_numbers_that_no_table_holds_are_told(tmp_path: Path) -> None:
    with pytest.raises(so.StudyError, match=r"row 0 .* of 'a' holds complex: convert or drop"):
        store({"a": np.array([1j, 2j]), "label": [0, 1]}, tmp_path, {})


def test_other_data_takes_no_persons_protection_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {"age": [1.0, 2.0], "patient": [1, 1], "label": [0, 1]}
    polars.DataFrame(rows).write_parquet("visits.parquet")
    study = so.Study(
        data={"file": "visits.parquet", "person": "patient", "person_rows": 2, "clients": 1},
        model="logistic",
        method=so.DpSgd(learning_rate=0.5),
        privacy=so.Privacy(unit="sample", epsilon=2.0, delta=1e-3, sampling_rate=0.5),
        budget=so.Budget(rounds=1),
    )
    assert study.on(rows).table["data"]["person"] == "patient"
    assert "person" not in study.on(rows, person=None).table["data"]
    with pytest.raises(so.StudyError, match=r"no column 'patient' \(data\.person\)"):
        so.run(study, {"age": [1.0, 2.0], "label": [0, 1]}, progress=False)


class _Lies(Dataset[tuple[torch.Tensor, int]]):
    """Says that it has more items than it has."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i > 5:
            raise IndexError(i)
        return torch.zeros(3), i % 2


def sparse(x: Any) -> Any:
    return pytest.importorskip("scipy.sparse").csr_matrix(x)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (_Lies(), "item 6 of the 8 of the data set cannot be read"),
        ((X + 1j, Y), "x must hold real numbers, found complex64"),
        ((X.astype("M8[s]"), Y), "x must hold real numbers, found datetime64"),
        ((X.astype(str), Y), "x must hold real numbers, found text"),
        ((X.astype(str).astype(object), Y), "x must hold real numbers, found text"),
        ((np.ma.masked_greater(X, 3), Y), "x has masked entries"),
        (([[1, 2], [3]], [0, 1]), "x cannot be made an array"),
        ((3, 4), "one is a number"),
        ((sparse(X), Y), "x is sparse"),
        ((torch.from_numpy(X).to_sparse(), Y), "x is a sparse tensor"),
        ((torch.empty(4, 6, device="meta"), Y), "device 'meta'"),
        ((X, np.array([None, "a", "a", "b"], object)), "row 0 .* has no label"),
        ((X, Y, np.array(["a", float("nan"), "a", "b"], object)), "row 1 .* has no client"),
        ({1: [1, 2], "1": [3, 4], "label": [0, 1]}, "two columns are called '1'"),
        (Bunch(data=X, target=Y, feature_names=["a", "b"]), "2 feature_names for 6 columns"),
        (Bunch(data=X, target=Y, feature_names=list("abcdea")), "two columns are called 'a'"),
        (Bunch(data=X), "no 'target'"),
        (pandas.Series([1, 2]), "Series is no data"),
        (polars.Series([1, 2]), "Series is no data"),
    ],
)
def test_nothing_is_lost_without_a_word(data: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=told):
        store(data, tmp_path, {})


def test_lists_and_pictures_of_hugging_face_are_named(tmp_path: Path) -> None:
    import datasets

    held = {"words": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]}
    data = datasets.Dataset.from_dict(held)
    with pytest.raises(DataError, match="say image='words'"):
        store(data, tmp_path, {})
    taken = np.load(store(data, tmp_path, {"image": "words"})["file"])["x"]
    np.testing.assert_array_equal(taken, held["words"])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_tensors_of_any_kind_are_taken(kind: torch.dtype, tmp_path: Path) -> None:
    x = torch.from_numpy(X).to(kind).requires_grad_()
    np.testing.assert_array_equal(np.load(store((x, Y), tmp_path, {})["file"])["x"], X)


def test_columns_without_names_are_named_by_their_numbers(tmp_path: Path) -> None:
    found = store(pandas.DataFrame([[1.5, 0], [2.5, 1]]), tmp_path, {"label": 1})
    assert found["label"] == "1"
    assert read(found).columns == ["0", "1"]


def test_a_row_of_nobody_is_refused(tmp_path: Path) -> None:
    owners = np.array([0.0, float("nan"), 1.0, 1.0])
    found = store((X, Y, owners), tmp_path, {})
    with pytest.raises(DataError, match=r"row 1 .* has no client_column"):
        load("own", file=Path(found["file"]), how=ReadOptions(client_column="client"))
    with pytest.raises(DataError, match=r"row 1 .* has no client"):
        store((X, Y, owners.tolist()), tmp_path, {})


@pytest.mark.parametrize("make", [dict, pandas.DataFrame])
@pytest.mark.parametrize("gap", ["NaN", "sNaN"])
def test_a_decimal_that_is_no_number_is_a_gap(make: Any, gap: str, tmp_path: Path) -> None:
    table = make({"a": [Decimal(gap), Decimal("1.5")], "label": [0, 1]})
    assert read(store(table, tmp_path, {}))["a"].to_list() == [None, 1.5]


def test_persons_that_a_fraction_has_rounded_are_refused(tmp_path: Path) -> None:
    """Where 2^53 is the first, no other number shows that 2^53 + 1 was rounded to it."""
    table = {"a": [1.0, 2.0, 3.0], "label": [0, 1, 1], "who": [2**53, 2**53 + 1, 1.5]}
    place = Path(store(table, tmp_path, {})["file"])
    with pytest.raises(DataError, match=r"row 0 .* has the person .*, a fraction"):
        load("own", file=place, how=ReadOptions(person="who"))
