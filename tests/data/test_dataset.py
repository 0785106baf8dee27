"""Datasets refuse what does not fit, scale by public constants only, and are known by their
bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sordino.base.errors import DataError, StudyError
from sordino.data import Corpus, Dataset, hold_out, load, per_client_validation, scaled

RNG = np.random.default_rng(2)


def small(n: int = 6, **changes: Any) -> Dataset:
    fields: dict[str, Any] = {
        "name": "small",
        "x": np.arange(n * 4, dtype=np.uint8).reshape(n, 1, 2, 2),
        "y": np.arange(n) % 2,
        "classes": ("a", "b"),
    }
    return Dataset(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((6, 2))}, "must be uint8 .* or float32, found float64"),
        ({"x": np.zeros(6, np.float32)}, "a row for each example"),
        ({"y": np.zeros(5, np.int64)}, r"6 examples, but labels of shape \(5,\)"),
        ({"y": np.zeros(6, np.int32)}, "labels must be int64, found int32"),
        ({"y": np.full(6, 2)}, r"labels must lie in 0\.\.1 \(2 classes\), found 2\.\.2"),
        ({"y": np.full(6, -1)}, r"found -1\.\.-1"),
        ({"client": np.zeros(3, np.int64)}, r"6 examples, but client numbers of shape \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        small(**changes)


def test_a_corpus_is_of_one_kind() -> None:
    with pytest.raises(
        DataError,
        match=r"training examples are \w+ of shape \(1, 2, 2\), test examples \w+ of shape \(4,\)",
    ):
        Corpus(small(), small(x=np.zeros((6, 4), np.uint8)))
    with pytest.raises(DataError, match="do not have the same classes"):
        Corpus(small(), small(classes=("a", "c")))


def test_scaling_is_the_formula_and_nothing_of_the_data() -> None:
    x = RNG.integers(0, 256, (50, 3, 4, 4), dtype=np.uint8)
    assert scaled(x).dtype == np.float32
    assert np.array_equal(scaled(x), ((x / 255 - 0.5) / 0.5).astype(np.float32))
    # An example's features depend on that example alone: any statistic of the data would show here.
    assert np.array_equal(scaled(x)[:1], scaled(x[:1]))
    features = RNG.normal(size=(5, 3)).astype(np.float32)
    assert scaled(features) is features


def test_take_keeps_order_and_clients() -> None:
    part = small(client=np.arange(6)).take([4, 1])
    assert part.client is not None
    assert part.client.tolist() == [4, 1]
    assert part.x[:, 0, 0, 0].tolist() == [16, 4]
    assert len(small().take([])) == 0


def test_fingerprint_knows_bytes_not_names() -> None:
    base = small().fingerprint()
    assert base == small(name="renamed", classes=("x", "y"), client=np.arange(6)).fingerprint()
    x = small().x.copy()
    x[3, 0, 1, 1] ^= 1
    others = [
        small(x=x),
        small(y=(np.arange(6) + 1) % 2),
        small(x=small().x.reshape(6, 1, 4, 1)),
        small(x=small().x.astype(np.float32)),
        small().take([1, 0, 2, 3, 4, 5]),
        small().take(range(5)),
    ]
    assert len({base, *(d.fingerprint() for d in others)}) == 7
    assert base == small(x=np.asfortranarray(small().x)).fingerprint()


def test_digits_are_scikit_learns() -> None:
    corpus = load("digits")
    assert (len(corpus.train), len(corpus.test)) == (1437, 360)
    assert corpus.train.shape == (1, 8, 8)
    raw = load_digits()
    expected = sorted(
        (int(y), (x / 16).astype(np.float32).tobytes())
        for x, y in zip(raw.images, raw.target, strict=True)
    )
    found = [
        (int(y), x.tobytes())
        for d in (corpus.train, corpus.test)
        for x, y in zip(d.x, d.y, strict=True)
    ]
    assert sorted(found) == expected
    assert corpus.train.fingerprint() == load("digits").train.fingerprint()
    # Pinned: if the split ever moved, test rows of old runs would train new ones.
    assert corpus.test.y[:12].tolist() == [0, 5, 9, 1, 9, 7, 8, 4, 1, 0, 7, 8]


def test_hold_out_divides() -> None:
    data = load("digits").train
    rest, validation = hold_out(data, 200, np.random.default_rng(0))
    assert (len(rest), len(validation)) == (1237, 200)
    both = sorted(x.tobytes() for d in (rest, validation) for x in d.x)
    assert both == sorted(x.tobytes() for x in data.x)
    again = hold_out(data, 200, np.random.default_rng(0))[1]
    assert again.fingerprint() == validation.fingerprint()
    for count in (0, len(data)):
        with pytest.raises(StudyError, match="choose between 1 and 1436"):
            hold_out(data, count, np.random.default_rng(0))


def test_per_client_validation_stays_inside_the_client() -> None:
    parts = (np.arange(100), np.arange(100, 130), np.array([200]))
    train, validation = per_client_validation(parts, 0.2, np.random.default_rng(0))
    assert [len(v) for v in validation] == [20, 6, 0]
    for part, t, v in zip(parts, train, validation, strict=True):
        assert np.array_equal(np.sort(np.concatenate([t, v])), part)
        assert np.all(np.diff(t) > 0)
    assert validation[0].tolist() not in (list(range(20)), list(range(80, 100)))
