"""Every deal is disjoint and repeatable, keeps its minimum, and is as uneven as asked."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sordino.base.errors import StudyError
from sordino.data import Dirichlet, Partition, Parts, deal, label_counts
from sordino.data.partition import Column, Iid, Shards, _evened_out

Labels = npt.NDArray[np.int64]
BALANCED: Labels = np.repeat(np.arange(10), 600)


def draw(
    partition: Partition, labels: Labels, clients: int, seed: int, column: Labels | None = None
) -> Parts:
    return deal(partition, labels, clients, np.random.default_rng(seed), column)


def check_deal(parts: Parts, examples: int, clients: int, *, covers: bool = True) -> None:
    assert len(parts) == clients
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < examples
    assert not covers or len(together) == examples
    for part in parts:
        assert part.dtype == np.int64
        assert np.all(np.diff(part) > 0)
        assert len(part) > 0


def label_entropy(labels: Labels, parts: Parts) -> float:
    """Mean entropy (nats) of the clients' label distributions: log 10 where all see all classes
    alike.
    """
    counts = label_counts(labels, parts, 10).astype(float)
    p = counts / counts.sum(axis=1, keepdims=True)
    return float(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=1).mean())


label_arrays = st.builds(
    lambda size, classes, seed: np.random.default_rng(seed).integers(classes, size=size),
    st.integers(1, 400), st.integers(1, 7), st.integers(0, 2**32),
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(labels=label_arrays, clients=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_iid_parts_are_equal(labels: Labels, clients: int, seed: int) -> None:
    assume(clients <= len(labels))
    parts = draw(Iid(), labels, clients, seed)
    check_deal(parts, len(labels), clients)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(max_examples=60, deadline=None)
@given(
    labels=label_arrays,
    clients=st.integers(1, 40),
    minimum=st.integers(1, 12),
    beta=st.floats(1e-320, 1.7e308, allow_subnormal=True),
    seed=st.integers(0, 2**32),
)
def test_dirichlet_keeps_its_minimum(
    labels: Labels, clients: int, minimum: int, beta: float, seed: int
) -> None:
    assume(clients * minimum <= len(labels))
    parts = draw(Dirichlet(beta=beta, minimum=minimum), labels, clients, seed)
    check_deal(parts, len(labels), clients)
    assert min(map(len, parts)) >= minimum


@settings(max_examples=40, deadline=None)
@given(
    labels=label_arrays,
    clients=st.integers(1, 10),
    each=st.integers(1, 10),
    spare=st.integers(0, 9),
    seed=st.integers(0, 2**32),
)
def test_shards_are_dealt_once(
    labels: Labels, clients: int, each: int, spare: int, seed: int
) -> None:
    fragments = clients * each + spare
    assume(fragments <= len(labels))
    parts = draw(Shards(fragments=fragments, each=each), labels, clients, seed)
    check_deal(parts, len(labels), clients, covers=spare == 0)


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(beta=0.3), Shards()])
def test_same_generator_same_deal(partition: Partition) -> None:
    one, same, other = (draw(partition, BALANCED, 10, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_unevenness_grows_as_beta_falls() -> None:
    def over_seeds(partition: Partition) -> float:
        return float(
            np.mean(
                [label_entropy(BALANCED, draw(partition, BALANCED, 10, seed)) for seed in range(12)]
            )
        )

    entropies = [over_seeds(Dirichlet(beta=beta)) for beta in (0.05, 0.2, 1.0, 5.0, 100.0)]
    assert entropies == sorted(entropies)
    assert all(b - a > 0.05 for a, b in pairwise(entropies))
    assert entropies[-1] == pytest.approx(over_seeds(Iid()), abs=0.02)
    assert entropies[-1] == pytest.approx(np.log(10), abs=0.03)
    assert entropies[0] < 1.2


def test_first_class_follows_its_dirichlet_law() -> None:
    """No client is full yet, so p_1 ~ Dir(beta): mean 1/N and variance (1/N)(1-1/N)/(N beta + 1),
    by its closed form.
    """
    beta, clients, draws = 0.5, 5, 4000
    sizes = np.array([20_000, 100_000])
    shares = np.array(
        [
            Dirichlet(beta=beta)._counts(sizes, clients, np.random.default_rng(s))[0] / sizes[0]
            for s in range(draws)
        ]
    )
    variance = 0.2 * 0.8 / (clients * beta + 1)
    # Standard error of a mean is 0.0034: five of them (one false alarm in 3e5 for each client).
    assert np.abs(shares.mean(axis=0) - 0.2).max() < 5 * np.sqrt(variance / draws)
    # Relative error of a variance estimate here is about 0.03; beta halved or doubled moves it by
    # 0.3 and more.
    assert shares.var(axis=0) == pytest.approx(np.full(clients, variance), rel=0.15)


def test_a_class_is_shuffled_before_it_is_cut() -> None:
    """Files are often sorted by writer or date: neighbours must not end up together."""
    (largest, *_) = sorted(
        draw(Dirichlet(beta=0.5), np.zeros(1000, np.int64), 4, 0), key=len, reverse=True
    )
    runs = 1 + np.count_nonzero(np.diff(largest) > 1)
    assert runs > 20


def test_absurdly_even_is_even() -> None:
    assert np.all(label_counts(BALANCED, draw(Dirichlet(beta=1.7e308), BALANCED, 10, 0), 10) == 60)


def test_full_clients_take_no_further_part() -> None:
    """Nobody who holds n/N already gets more: the last class met decides who overshoots."""
    for seed in range(50):
        counts = Dirichlet(beta=0.05)._counts(np.full(10, 600), 10, np.random.default_rng(seed))
        before = np.cumsum(counts, axis=0) - counts
        assert counts[before >= 600].sum() == 0
        assert np.array_equal(counts.sum(axis=1), np.full(10, 600))


@pytest.mark.parametrize(
    ("beta", "clients", "minimum"),
    [(0.05, 1000, 10), (1e-9, 1000, 10), (0.05, 6000, 1), (0.05, 600, 10)],
)
def test_many_clients_are_answered_in_seconds(beta: float, clients: int, minimum: int) -> None:
    labels = np.repeat(np.arange(10), 6000) if clients == 1000 else BALANCED
    start = time.process_time()
    parts = draw(Dirichlet(beta=beta, minimum=minimum), labels, clients, 0)
    assert time.process_time() - start < 5
    check_deal(parts, len(labels), clients)
    assert min(map(len, parts)) >= minimum


def test_evening_out_takes_from_the_largest_and_is_repeatable() -> None:
    def parts() -> list[Labels]:
        return [np.arange(0, 50), np.arange(50, 90), np.arange(90, 91), np.empty(0, np.int64)]

    first, second = _evened_out(parts(), 10), _evened_out(parts(), 10)
    assert [len(p) for p in first] == [31, 40, 10, 10]
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert np.array_equal(np.sort(np.concatenate(first)), np.arange(91))


def test_shards_give_few_labels() -> None:
    shuffled = np.random.default_rng(9).permutation(BALANCED)
    parts = draw(Shards(fragments=20, each=2), shuffled, 10, 3)  # fragments of 300: two to a class
    assert (label_counts(shuffled, parts, 10) > 0).sum(axis=1).max() <= 2
    assert {len(p) for p in parts} == {600}
    parts = draw(Shards(), BALANCED, 10, 3)
    assert {len(p) for p in parts} == {600}
    assert label_entropy(BALANCED, parts) < label_entropy(BALANCED, draw(Iid(), BALANCED, 10, 3))


def test_column_groups_by_client() -> None:
    column = np.array([7, 2, 7, 2, 5], dtype=np.int64)
    parts = draw(Column(), np.zeros(5, np.int64), 3, 0, column)
    assert [p.tolist() for p in parts] == [[1, 3], [4], [0, 2]]


def test_label_counts() -> None:
    labels = np.array([0, 1, 1, 2])
    counts = label_counts(labels, (np.array([0, 1, 2]), np.array([3])), 4)
    assert counts.tolist() == [[1, 2, 0, 0], [0, 0, 1, 0]]
    assert label_counts(labels, (), 4).shape == (0, 4)


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (Iid(), 101, "101 clients, but only 100 training examples; use at most 100 clients"),
        (
            Dirichlet(beta=1.0),
            11,
            r"11 clients with at least 10 examples each need 110, there are 100; use minimum "
            r"<= 9 or at most 10 clients",
        ),
        (
            Shards(fragments=10, each=2),
            6,
            r"need 12, there are 10; use each <= 1 or fragments >= 12",
        ),
        (Shards(fragments=101, each=1), 5, "101 fragments of only 100 examples"),
        (Column(), 5, r"name the column in data.client_column"),
    ],
)
def test_impossible_deals_are_refused(partition: Partition, clients: int, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        draw(partition, np.arange(100) % 10, clients, 0)


def test_bad_parameters_are_refused() -> None:
    for beta in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(StudyError, match="beta"):
            Dirichlet(beta=beta)
    with pytest.raises(StudyError, match="minimum"):
        Dirichlet(beta=1.0, minimum=0)
    with pytest.raises(StudyError, match="fragments"):
        Shards(fragments=0, each=1)
    with pytest.raises(
        StudyError,
        match=r"the client column has 2 clients, the study asks for 3; set data.clients = 2",
    ):
        draw(Column(), np.zeros(4, np.int64), 3, 0, np.array([0, 1, 0, 1]))
