"""Classes come as often as their drawn probabilities say; labels change places; features stay
invertible.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.data import Dataset, load
from sordino.data.stream import Deformed, Replayed
from sordino.data.stream.drift import ClassDrift, FeatureDrift, GradualDrift, NoDrift, SwapDrift


def lines(rows: int = 60, classes: int = 4) -> Dataset:
    """Example i is (i, i, ..., i)."""
    x = np.repeat(np.arange(rows, dtype=np.float32)[:, None], 6, axis=1)
    return Dataset("lines", x, np.arange(rows) % classes, tuple("abcdefgh"[:classes]))


def drawn(seed: int, classes: int, number: int) -> np.ndarray:
    weights = Seeded(seed).stream("stream", "class probabilities").at(number).random(classes)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("every", [1, 50, 333])
def test_probabilities_are_uniform_draws_normalised(every: int) -> None:
    found = ClassDrift(every=every).probabilities(7, 5, 40, 900)
    for at in range(40, 900, 29):
        assert np.allclose(found[at - 40], drawn(7, 5, at // every), atol=1e-15)


def test_gradual_probabilities_lie_on_lines_between_draws() -> None:
    found = GradualDrift(every=20).probabilities(7, 5, 13, 200)
    for at in range(13, 200, 7):
        share = at % 20 / 20
        assert np.allclose(
            found[at - 13],
            (1 - share) * drawn(7, 5, at // 20) + share * drawn(7, 5, at // 20 + 1),
            atol=1e-15,
        )
    assert np.abs(np.diff(found, axis=0)).max() <= 1 / 20 + 1e-12


@pytest.mark.parametrize(
    "drift", [ClassDrift(every=50), GradualDrift(every=50), ClassDrift(every=3000)]
)
@pytest.mark.parametrize("maker", [Replayed, Deformed])
def test_classes_come_as_often_as_they_should(
    drift: ClassDrift | GradualDrift, maker: type[Replayed] | type[Deformed]
) -> None:
    """Chi-square of the labels against the drawn probabilities, and of the rows within a class
    against equal shares.
    """
    images = load("digits").train.take(range(200))
    count = 30_000
    piece = drift.applied(maker(images, 11), 0).read(0, count)
    p = drift.probabilities(11, 10, 0, count)
    # Sum over classes of (observed - expected)^2 / expected, over groups of 600 events, has about 9
    # degrees of freedom each.
    observed = np.eye(10)[piece.y].reshape(-1, 600, 10).sum(axis=1)
    expected = p.reshape(-1, 600, 10).sum(axis=1)
    statistic = ((observed - expected) ** 2 / expected).sum()
    # Within a group probabilities differ, which only makes the statistic smaller; so this side is
    # the one to test.
    assert stats.chi2.sf(statistic, 9 * len(observed)) > 1e-4
    # Centred, per class: sum of (1[y = c] - p) has variance sum p (1 - p).
    z = (observed.sum(axis=0) - expected.sum(axis=0)) / np.sqrt((p * (1 - p)).sum(axis=0))
    assert np.abs(z).max() < 4.5
    # The drift is there at all: equal shares would not pass.
    assert stats.chi2.sf(((observed - 60) ** 2 / 60).sum(), 9 * len(observed)) < 1e-12
    if piece.entity is not None:
        own = images.y == 3
        seen = np.bincount(piece.entity, minlength=200)[own]
        assert stats.chi2.sf(((seen - seen.mean()) ** 2 / seen.mean()).sum(), own.sum() - 1) > 1e-4


def test_a_class_without_examples_never_comes() -> None:
    data = lines(40, 4)
    some = data.take(np.flatnonzero(data.y != 3))
    piece = ClassDrift(every=10).applied(Replayed(some, 2), 0).read(0, 20_000)
    assert set(piece.y.tolist()) == {0, 1, 2}
    p = ClassDrift(every=10).probabilities(2, 4, 0, 20_000)[:, :3]
    p = p / p.sum(axis=1, keepdims=True)
    z = (np.bincount(piece.y) - p.sum(axis=0)) / np.sqrt((p * (1 - p)).sum(axis=0))
    assert np.abs(z).max() < 4.5


def test_stationary_rows_are_drawn_evenly() -> None:
    rows = Deformed(load("digits").train.take(range(50)), 3).read(0, 20_000).y
    expected = np.bincount(load("digits").train.y[:50], minlength=10) / 50 * 20_000
    assert (
        stats.chi2.sf(((np.bincount(rows, minlength=10) - expected) ** 2 / expected).sum(), 9)
        > 1e-4
    )


@settings(max_examples=30)
@given(st.integers(2, 6), st.integers(0, 99), st.integers(1, 9))
def test_swaps_exchange_two_labels_at_a_time(classes: int, seed: int, every: int) -> None:
    plain = Replayed(lines(60, classes), 1)
    swapped = SwapDrift(every=every).applied(plain, seed)
    before, after = plain.read(0, 300), swapped.read(0, 300)
    assert np.array_equal(before.x, after.x)
    assert np.array_equal(before.entity, after.entity)  # type: ignore[arg-type]
    assert np.array_equal(before.y[:every], after.y[:every])
    for first in range(0, 300, every):
        now = dict(
            zip(
                before.y[first : first + every].tolist(),
                after.y[first : first + every].tolist(),
                strict=True,
            )
        )
        # One label for each class within a stretch, and no two classes share one.
        assert all(
            now[a] == b
            for a, b in zip(
                before.y[first : first + every], after.y[first : first + every], strict=True
            )
        )
        assert len(set(now.values())) == len(now)


def test_each_swap_is_of_exactly_two_labels() -> None:
    plain, seen = Replayed(lines(60, 5), 1), []
    swapped = SwapDrift(every=600).applied(plain, 8)
    for first in (0, 600, 800, 1200, 1800):
        a, b = plain.read(first, 200).y, swapped.read(first, 200).y
        seen.append([int(b[a == c][0]) for c in range(5)])
    assert seen[0] == [0, 1, 2, 3, 4]
    assert [sum(x != y for x, y in zip(*pair, strict=True)) for pair in pairwise(seen)] == [
        2,
        0,
        2,
        2,
    ]
    assert swapped.changes(0, 1800) == (600, 1200)
    assert swapped.changes(600, 1801) == (600, 1200, 1800)


def test_changes_are_marked_where_they_can_be() -> None:
    stream = Replayed(lines(), 0)
    assert NoDrift().applied(stream, 0) is stream
    assert stream.changes(0, 10**6) == ()
    # Every 50 events: too many to mark. Each 1000: the multiples, but not the beginning.
    assert ClassDrift(every=50).applied(stream, 0).changes(0, 10**6) == ()
    assert ClassDrift(every=1000).applied(stream, 0).changes(0, 3001) == (1000, 2000, 3000)
    assert ClassDrift(every=1000).applied(stream, 0).changes(1000, 2000) == (1000,)
    assert GradualDrift(every=1000).applied(stream, 0).changes(0, 3001) == ()
    at_once = FeatureDrift(every=600, sudden=True)
    assert at_once.applied(stream, 0).changes(0, 1300) == (600, 1200)
    assert at_once.applied(stream, 0).changes(600, 1200) == (600,)
    assert FeatureDrift(every=600).applied(stream, 0).changes(0, 1400) == ()
    both = SwapDrift(every=1500).applied(ClassDrift(every=1000).applied(stream, 0), 0)
    assert both.changes(0, 2500) == (1000, 1500, 2000)


@settings(max_examples=40)
@given(every=st.integers(1, 40), sudden=st.booleans(), seed=st.integers(0, 5))
def test_features_keep_a_positive_gain(every: int, sudden: bool, seed: int) -> None:
    drift = FeatureDrift(every=every, strength=0.7, sudden=sudden)
    plain = Replayed(lines(), 1)
    before, after = plain.read(0, 200).x, drift.applied(plain, seed).read(0, 200).x
    place = np.array([block for block, part in enumerate(drift.slices(6)) for _ in range(6)[part]])
    assert place.tolist() == sorted(place.tolist())
    assert len(place) == 6
    gain, offset = drift.lines(seed, range(200))[:, :, place]
    assert np.allclose(after, gain * before + offset, rtol=1e-6, atol=1e-6)
    assert gain.min() >= np.exp(-0.7) - 1e-12
    assert gain.max() <= np.exp(0.7) + 1e-12
    assert np.abs(offset).max() <= 0.7
    steps = np.abs(np.diff(gain, axis=0)).max(axis=1)
    if sudden:
        assert set((np.flatnonzero(steps > 0) + 1).tolist()) <= {
            t for t in range(200) if t % every == 0
        }
    else:
        # In a straight line: no step is longer than the whole way in `every` steps, and the first
        # event is unchanged.
        assert steps.max() <= (np.exp(0.7) - np.exp(-0.7)) / every + 1e-9
        assert np.array_equal(after[0], before[0])


def test_a_feature_change_ends_where_the_next_begins() -> None:
    drift = FeatureDrift(every=100)
    jump = FeatureDrift(every=100, sudden=True)
    ends, jumps = drift.lines(0, [0, 100, 200])[0], jump.lines(0, [0, 100])[0]
    assert np.allclose(ends[1:], jumps)
    assert np.allclose(ends[0], 1)
    middle = drift.lines(0, [150])[0][0]
    assert np.allclose(middle, (ends[1] + ends[2]) / 2)


def test_faults_are_named() -> None:
    for make in (ClassDrift, GradualDrift, FeatureDrift, SwapDrift):
        with pytest.raises(StudyError, match="every"):
            make(every=0)
    with pytest.raises(StudyError, match="every"):
        SwapDrift()  # type: ignore[call-arg]
    for strength in (float("nan"), -0.1, 21.0):
        with pytest.raises(StudyError, match="strength"):
            FeatureDrift(every=5, strength=strength)
    with pytest.raises(StudyError, match="needs two classes, there is one"):
        SwapDrift(every=2).applied(Replayed(lines(6, 1), 0), 0)
