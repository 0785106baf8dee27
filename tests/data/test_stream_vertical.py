"""Features divided among parties: each in one place, in slices, groups of columns and regions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.base.errors import StudyError
from sordino.data.partition import Columns, Regions, Slices

NAMES = ("age", "height", "weight", "pulse", "dose")


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data())
def test_slices_cover_all_features_once(shape: list[int], data: st.DataObject) -> None:
    features = int(np.prod(shape))
    parties = data.draw(st.integers(1, features))
    parts = Slices().parts(tuple(shape), None, parties)
    assert len(parts) == parties
    assert np.concatenate(parts).tolist() == list(range(features))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.data())
def test_regions_are_rectangles_of_all_channels(
    channels: int, height: int, width: int, data: st.DataObject
) -> None:
    rows, columns = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    parts = Regions(rows=rows, columns=columns).parts(
        (channels, height, width), None, rows * columns
    )
    assert len(parts) == rows * columns
    assert sorted(np.concatenate(parts).tolist()) == list(range(channels * height * width))
    owner = np.empty(channels * height * width, int)
    for party, part in enumerate(parts):
        assert part.tolist() == sorted(part.tolist())
        owner[part] = party
    planes = owner.reshape(channels, height, width)
    assert (planes == planes[0]).all()
    # Party r, c of the grid: the row says r, the column says c, and both only grow.
    down, across = np.divmod(planes[0], columns)
    assert (down == down[:, :1]).all()
    assert (across == across[:1]).all()
    for line in (down[:, 0], across[0]):
        assert set(np.diff(line).tolist()) <= {0, 1}
        assert np.ptp(np.bincount(line)) <= 1


@given(
    st.permutations(range(5)), st.lists(st.booleans(), min_size=5, max_size=5), st.integers(1, 4)
)
def test_columns_by_name_or_number(order: list[int], by_name: list[bool], cut: int) -> None:
    asked = [NAMES[i] if named else i for i, named in zip(order, by_name, strict=True)]
    parts = Columns(groups=(tuple(asked[:cut]), tuple(asked[cut:]))).parts((5,), NAMES, 2)
    assert [part.tolist() for part in parts] == [order[:cut], order[cut:]]


def test_columns_may_stay_unused() -> None:
    assert [part.tolist() for part in Columns(groups=(("dose",), (0,))).parts((5,), NAMES, 2)] == [
        [4],
        [0],
    ]


def test_faults_are_named() -> None:
    with pytest.raises(StudyError, match="6 parties cannot divide 5 features"):
        Slices().parts((5,), NAMES, 6)
    with pytest.raises(
        StudyError, match=r"no feature 'hieght'; did you mean 'height'\? Features: age, height"
    ):
        Columns(groups=(("hieght",),)).parts((5,), NAMES, 1)
    with pytest.raises(StudyError, match="no feature 5; features are numbered 0 to 4"):
        Columns(groups=((5,),)).parts((5,), NAMES, 1)
    with pytest.raises(StudyError, match="no feature -1"):
        Columns(groups=((-1,),)).parts((5,), NAMES, 1)
    with pytest.raises(StudyError, match="'age' is a name, but this data has no names"):
        Columns(groups=(("age",),)).parts((5,), None, 1)
    with pytest.raises(StudyError, match=r"only images .* have regions"):
        Regions(rows=1, columns=2).parts((5,), NAMES, 2)
    with pytest.raises(StudyError, match="a grid of 3 x 5 does not fit an image of 4 x 4 pixels"):
        Regions(rows=3, columns=5).parts((1, 4, 4), None, 15)
    with pytest.raises(StudyError, match="each party needs at least one feature"):
        Columns(groups=(("age",), ()))
    with pytest.raises(StudyError, match="rows"):
        Regions(rows=0, columns=2)
