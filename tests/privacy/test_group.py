"""Group privacy against closed forms, and what a release of one unit says about another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from accountants import gaussian_delta, pure_delta
from sordino.privacy import (
    Chosen,
    Composed,
    Event,
    Gaussian,
    Grouped,
    NonPrivate,
    Nothing,
    PoissonSampled,
    Pure,
    Repeated,
    accountant,
)
from sordino.privacy.records import store
from sordino.privacy.records.classes import Class, Group, coarser
from sordino.privacy.records.group import MOST, grouped, of_client, replaced, translated
from sordino.privacy.records.price import SHOWN, fewer

DELTA = 1e-5
NAMES = ("pld", "rdp")
SAMPLED = PoissonSampled(sampling_rate=0.02, event=Gaussian(noise_multiplier=2.0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("sigma", [1.0, 4.0, 20.0])
def test_a_group_on_the_curve_is_never_below_the_exact_one(
    name: str, size: int, sigma: float
) -> None:
    """k records move a Gaussian's statistic k times as far: that is exact. The formula on the curve
    is a bound above it.
    """
    shown = accountant(name).epsilon([(Grouped(Gaussian(noise_multiplier=sigma), size), 1)], DELTA)
    assert gaussian_delta(sigma / size, shown) <= DELTA
    exact = accountant(name).epsilon([(grouped(Gaussian(noise_multiplier=sigma), size), 1)], DELTA)
    assert exact <= shown <= 2.0 * exact + 0.1
    back = accountant(name).delta([(Grouped(Gaussian(noise_multiplier=sigma), size), 1)], shown)
    assert gaussian_delta(sigma / size, shown) <= back <= DELTA * 1.01


def test_a_group_of_pure_releases_is_their_sum() -> None:
    for name in NAMES:
        shown = accountant(name).epsilon([(Grouped(Pure(epsilon=0.5), 3), 1)], DELTA)
        assert pure_delta(1.5, shown) <= DELTA
        assert shown <= 1.5 * 1.01
    assert grouped(Pure(epsilon=0.5), 3) == Pure(epsilon=math.nextafter(1.5, 2.0))


def exact_sampled(rate: float, sigma: float, size: int, epsilon: float) -> float:
    """delta of one release in which each of ``size`` records is drawn by itself: the mixture over
    how many were (Ganesh 2024).
    """
    x, step = np.linspace(-12.0 * sigma, size + 12.0 * sigma, 400_001, retstep=True)
    density = [
        np.exp(-((x - i) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
        for i in range(size + 1)
    ]
    mixed = sum(
        math.comb(size, i) * rate**i * (1 - rate) ** (size - i) * density[i]
        for i in range(size + 1)
    )
    both = (
        np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * step
        for one, other in ((mixed, density[0]), (density[0], mixed))
    )
    return float(max(both))


@pytest.mark.parametrize(("rate", "sigma", "size"), [(0.1, 2.0, 3), (0.3, 1.0, 2)])
def test_a_sampled_group_is_never_below_the_exact_mixture(
    rate: float, sigma: float, size: int
) -> None:
    one = PoissonSampled(sampling_rate=rate, event=Gaussian(noise_multiplier=sigma))
    for event in (grouped(one, size), Grouped(one, size)):
        shown = accountant("pld").epsilon([(event, 1)], 1e-4)
        assert exact_sampled(rate, sigma, size, shown) <= 1e-4 * (1 + 1e-6)
    single = accountant("pld").epsilon([(one, 1)], 1e-4)
    # one record's price is not enough for a group: the test can fail
    assert exact_sampled(rate, sigma, size, single) > 1e-4


def test_a_group_of_any_size_is_priced_at_once() -> None:
    """A ledger of somebody else may name any number: terms were added up one by one."""
    assert [accountant(name).epsilon([(Grouped(SAMPLED, 10**12), 1)], DELTA) for name in NAMES] == [
        math.inf,
        math.inf,
    ]
    assert accountant("rdp").delta([(Grouped(SAMPLED, 10**12), 1)], 8.0) == 1.0
    assert accountant("rdp").delta([(Grouped(Pure(epsilon=0.1), 3), 1)], 8.0) == 0.0


def test_parts_of_different_sizes_compose() -> None:
    for name in NAMES:
        one = accountant(name)
        both = one.epsilon([(Grouped(SAMPLED, 2), 100), (SAMPLED, 50)], DELTA)
        assert both >= one.epsilon([(Grouped(SAMPLED, 2), 100)], DELTA)
        assert both <= one.epsilon([(Grouped(SAMPLED, 2), 150)], DELTA) * (1 + 1e-9)
        assert math.isinf(one.epsilon([(Grouped(NonPrivate(reason="x"), 2), 1)], DELTA))
        assert one.epsilon([(Grouped(SAMPLED, 2), 0)], DELTA) == 0.0


def test_what_is_known_of_a_group_of_each_event() -> None:
    gauss = Gaussian(noise_multiplier=3.0)
    assert grouped(gauss, 1) is gauss
    assert grouped(Repeated(gauss, 4), 3) == Repeated(Gaussian(noise_multiplier=1.0), 4)
    assert grouped(Composed((gauss, Nothing())), 3) == Composed(
        (Gaussian(noise_multiplier=1.0), Nothing())
    )
    sampled = grouped(
        PoissonSampled(sampling_rate=0.5, event=PoissonSampled(sampling_rate=0.5, event=gauss)), 3
    )
    assert isinstance(sampled, PoissonSampled)
    assert sampled.sampling_rate == pytest.approx(1 - 0.75**3)
    assert grouped(PoissonSampled(sampling_rate=1.0, event=gauss), 3).sampling_rate == 1.0  # type: ignore[union-attr]
    for lost in (grouped(Chosen(order=8.0, event=gauss), 2), grouped(gauss, MOST + 1)):
        assert isinstance(lost, NonPrivate)
    assert replaced(gauss) == Gaussian(noise_multiplier=1.5)
    assert replaced(SAMPLED) == Grouped(SAMPLED, 2)


@pytest.mark.parametrize(
    ("kind", "booked", "found"),
    [
        ("sample", "sample", SAMPLED),
        ("sample", "client", Grouped(SAMPLED, 2)),
        ("sample", "entity", SAMPLED),
        ("sample", "label", None),
        ("entity", "sample", Grouped(SAMPLED, 2)),
        ("entity", "client", Grouped(SAMPLED, 2)),
        ("entity", "label", None),
        ("label", "label", SAMPLED),
        ("label", "sample", Grouped(SAMPLED, 2)),
        ("label", "entity", None),
    ],
)
def test_what_one_unit_says_about_another(kind: str, booked: str, found: Event | None) -> None:
    assert translated({(SAMPLED, booked, 1): 7}, kind) == (
        ((found, 7),) if found is not None else ()
    )


def test_a_client_has_no_bound_once_its_records_were_in_other_releases() -> None:
    gauss, own = Gaussian(noise_multiplier=30.0), ((SAMPLED, 4),)
    assert of_client(own, []) == of_client(own, [{(SAMPLED, "client", 1): 4}]) == own
    assert of_client(own, [{(gauss, "label", 1): 9, (Nothing(), "sample", 1): 1}]) == own
    for other in (
        {(SAMPLED, "client", 1): 5},
        {(SAMPLED, "client", 2): 1},
        {(SAMPLED, "client", 1): 4, (gauss, "client", 1): 1},
        {(gauss, "sample", 1): 1},
        {(gauss, "entity", 1): 1},
    ):
        assert isinstance(of_client(own, [{}, other])[-1][0], NonPrivate)  # type: ignore[list-item]


def test_no_more_classes_are_merged_than_must_be() -> None:
    release = Gaussian(noise_multiplier=2.0)
    classes = [Class((((release, "sample", 1), count),)) for count in (1, 2, 10, 11, 30, 60)]
    assert len(coarser(classes[:2], 1)[0]) == 1
    found, places = coarser(classes, 5)
    assert len(found) == 5
    assert all(found[at].counts >= one.counts for at, one in zip(places, classes, strict=True))


def test_ways_that_are_merged_are_covered_by_one_that_has_all_of_their_sets() -> None:
    ways: dict[tuple[Group, ...], list[int]] = {(((i,), 1),): [i] for i in range(10)}
    ways |= {(((i, i + 1), 2),): [20 + i] for i in range(10, 20)}
    found = fewer(ways)
    assert len(found) == 11 <= SHOWN
    assert ((tuple(range(10, 21)), 2),) in found
    for key, members in ways.items():
        (cover,) = (where for where, who in found.items() if set(members) <= set(who))
        assert {each for sets, _ in key for each in sets} <= {x for sets, _ in cover for x in sets}
        assert max(size for _, size in key) <= max(size for _, size in cover)


def test_a_row_that_joins_entities_leads_to_the_first_of_each() -> None:
    rows = store.Book(np.arange(10, 16, dtype=np.uint64), np.arange(6, dtype=np.uint32))
    before = store.Index(rows, store.Book(rows.digests[:0], rows.owners[:0]), rows.owners * 0)
    words = np.array([[10, 11], [13, 14], [14, 15], [20, 12]], np.uint64)
    after, who, merged = store.found(before, words, 7, people=False)
    assert who.tolist() == [0, 3, 3, 2]
    assert {first: sorted(others) for first, others in merged.items()} == {0: [1], 3: [4, 5]}
    assert after.rows.find(np.array([10, 11, 12, 13, 14, 15, 20], np.uint64)).tolist() == [
        0, 0, 2, 3, 3, 3, 2,
    ]  # fmt: skip
