"""What is just allowed and what is just refused; and small functions on which prices of records
rest, by table.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant

from sordino.base.errors import LedgerError, StudyError
from sordino.privacy import grid, loss, parts, renyi
from sordino.privacy.accounting import accountant, fixed_order
from sordino.privacy.budget import Budget, epsilon_after, left_out, most_steps, noise_multiplier
from sordino.privacy.event import (
    Chosen,
    Composed,
    Event,
    Gaussian,
    Grouped,
    NegativeBinomial,
    NonPrivate,
    Nothing,
    Poisson,
    PoissonSampled,
    Pure,
    Repeated,
    SampledRows,
    Selected,
    decode,
    encode,
)
from sordino.privacy.formats import NEWEST
from sordino.privacy.parts import law, named
from sordino.privacy.pure import Kind
from sordino.privacy.records import classes, people, store
from sordino.privacy.records.classes import (
    Class,
    Group,
    Pool,
    apart,
    bridged,
    choices,
    closed,
    coarser,
    covered,
    either,
    histories,
    maximal,
    of_groups,
)
from sordino.privacy.records.group import (
    bare,
    composed,
    grouped,
    of_rows,
    steps,
    together,
    translated,
    weight,
    whole,
)
from sordino.privacy.records.identity import Records, digests, groups, membership
from sordino.privacy.records.price import SHOWN, contains, fewer
from sordino.privacy.rounding import epsilon_text

G = Gaussian(noise_multiplier=2.0)
LEAST = 5e-324
ABOVE_ONE = math.nextafter(1.0, 2.0)

# --- events

TEXTS: dict[str, Event] = {
    '{"type":"Gaussian","noise_multiplier":0.0}': Gaussian(0.0),
    '{"type":"Pure","epsilon":0.0}': Pure(-0.0),
    '{"type":"PoissonSampled","sampling_rate":1.0,"event":{"type":"Nothing"}}': PoissonSampled(
        1, Nothing()
    ),
    '{"type":"SampledRows","sampling_rate":0.5,"rows":1024,"event":{"type":"Nothing"}}': (
        SampledRows(0.5, np.int64(1024), Nothing())  # type: ignore[arg-type]
    ),
    '{"type":"SampledRows","sampling_rate":1.0,"rows":1,"event":{"type":"Nothing"}}': SampledRows(
        1, 1, Nothing()
    ),
    '{"type":"Composed","events":[{"type":"Nothing"}]}': Composed(
        [Nothing()]  # type: ignore[arg-type]
    ),
    '{"type":"Repeated","event":{"type":"Nothing"},"count":0}': Repeated(Nothing(), 0),
    '{"type":"Chosen","order":1.0000000000000002,"event":{"type":"Nothing"}}': Chosen(
        ABOVE_ONE, Nothing()
    ),
    '{"type":"Grouped","event":{"type":"Nothing"},"size":1}': Grouped(Nothing(), 1),
    '{"type":"Selected","event":{"type":"Nothing"},"trials":{"type":"NegativeBinomial","eta":100.0,'
    '"gamma":0.5}}': Selected(Nothing(), NegativeBinomial(100, 0.5)),
    '{"type":"Selected","event":{"type":"Nothing"},"trials":{"type":"Poisson","mean":1000000.0}}': (
        Selected(Nothing(), Poisson(1e6))
    ),
    '{"type":"NonPrivate","reason":"raw"}': NonPrivate("raw"),
    '{"type":"Nothing"}': Nothing(),
}


@pytest.mark.parametrize("text", TEXTS)
def test_each_event_has_its_text_and_cannot_be_changed(text: str) -> None:
    event = TEXTS[text]
    assert encode(event) == text
    assert decode(text) == event
    assert hash(decode(text)) == hash(event)
    with pytest.raises(LedgerError):
        decode(text[:-1] + ',"more":1}')
    with pytest.raises(AttributeError):
        setattr(event, (event.__struct_fields__ or ("more",))[0], 1)
    for part in (getattr(event, "trials", None),):
        if part is not None:
            with pytest.raises(AttributeError):
                setattr(part, part.__struct_fields__[0], 1)
            assert hash(part)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(-LEAST), lambda: Pure(-LEAST),
        lambda: PoissonSampled(0.0, G), lambda: PoissonSampled(ABOVE_ONE, G),
        lambda: SampledRows(0.5, 0, G), lambda: SampledRows(0.5, 1025, G),
        lambda: SampledRows(0.0, 1, G),
        lambda: Repeated(G, -1), lambda: Chosen(1.0, G), lambda: Chosen(math.inf, G),
        lambda: Grouped(G, 0),
        lambda: NegativeBinomial(-1.0, 0.5),
        lambda: NegativeBinomial(math.nextafter(100.0, 200.0), 0.5),
        lambda: NegativeBinomial(1.0, 0.0), lambda: NegativeBinomial(1.0, 1.0),
        lambda: Poisson(0.0), lambda: Poisson(math.nextafter(1e6, 2e6)), lambda: Poisson(math.nan),
        lambda: law("geometric", 1.0), lambda: law("geometric", math.nextafter(1e6, 2e6)),
    ],
)  # fmt: skip
def test_what_is_just_impossible_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(StudyError):
        make()


def test_what_is_just_possible_is_not() -> None:
    NegativeBinomial(math.nextafter(-1.0, 0.0), LEAST)
    NegativeBinomial(0.0, math.nextafter(1.0, 0.0))
    Poisson(LEAST)
    PoissonSampled(LEAST, G)
    law("geometric", ABOVE_ONE)
    law("logarithmic", 1e6)
    assert fixed_order("rdp@1") is fixed_order("rdp@1.0") is fixed_order("rdp@1024.1") is None
    assert (fixed_order("rdp@1024"), fixed_order("rdp@1.1")) == (1024.0, 1.1)
    assert named("pld-best-of-geometric@") is named("pld-best-of-geometric") is named("pld") is None
    assert named("pld-best-of-odd@3") is named("pld@3") is None


def test_a_long_text_is_shown_to_a_length() -> None:
    with pytest.raises(LedgerError) as refused:
        decode("x" * 300)
    assert str(refused.value).endswith("'" + "x" * 300 + "'")
    with pytest.raises(LedgerError) as refused:
        decode("x" * 302)
    assert str(refused.value).endswith("'" + "x" * 300 + "'")


# --- budgets


def test_epsilons_at_the_borders_of_their_texts() -> None:
    told = [1.001e-4, 1e-4, 9.99e-5, 1e15, 9.99e14, -0.5, -1e-5, 0.0]
    shown = ["0.0001001", "1e-4", "9.99e-5", "1e+15", "999000000000000", "-0.5", "-1e-5", "0"]
    assert [epsilon_text(each) for each in told] == shown
    assert epsilon_text(1.23451, 2) == "1.3"
    assert (
        epsilon_text(1e300, decimals=1)
        == repr(int(1e300) - int(1e300) % 1)[:0] + "1" + "0" * 300 + ".0"
    )


@pytest.mark.parametrize("name", ["pld", "rdp", "rdp-classic", "rdp@8", "pld-best-of-poisson@3"])
def test_questions_at_the_borders(name: str) -> None:
    by = accountant(name)
    for delta in (0.0, -0.1) if "best" in name else (0.0, -0.1, 1.0, math.nan):
        with pytest.raises(StudyError, match="delta must lie between"):
            by.epsilon([(G, 1)], delta)
    assert 0.0 < by.delta([(G, 1)], 0.0) <= 1.0
    assert by.delta([(G, 1)], math.inf) == 0.0
    with pytest.raises(StudyError):
        by.epsilon([(G, -1)], 1e-5)
    if "best" not in name:
        with pytest.raises(StudyError, match="must not be negative"):
            by.delta([(G, 1)], -LEAST)
    many = [(PoissonSampled(0.01, G), 400)]
    assert by.epsilon(many, 1e-5) == by.epsilon(many, 1e-5, quick=False)
    if name.startswith("pld"):
        assert by.epsilon(many, 1e-5) < by.epsilon(many, 1e-5, quick=True)


def test_orders_are_those_of_others() -> None:
    """Of dp-accounting, and one more; the classic ones of the papers."""
    theirs = rdp_privacy_accountant.DEFAULT_RDP_ORDERS
    assert [*renyi.ORDERS] == [*theirs, 2048.0]
    assert [*renyi.CLASSIC_ORDERS] == [*map(float, range(2, 64)), 128.0, 256.0, 512.0]


def test_what_cannot_be_computed_has_no_bound() -> None:
    kind = Kind(1.0, 1e-160)
    assert math.isinf(renyi.divergences(((kind, 1),), (4.5,))[0])
    assert renyi.fixed_delta(((kind, 1),), 1.0, 4.5) == 1.0
    assert math.isinf(renyi.fixed_epsilon(((kind, 1),), 1e-5, 4.5))


def test_numbers_of_trials_and_groups_at_their_borders() -> None:
    even = NegativeBinomial(1.0, 0.5)
    assert [parts.number(even, uniform, round) for uniform in (0.0, 0.4999, 0.5, 0.75)] == [
        1, 1, 2, 3,
    ]  # fmt: skip
    assert parts._factor(0.5, 3) > math.fsum(math.exp(0.5 * i) for i in range(3))
    assert parts._factor(1e-6, 100_000) > math.expm1(0.1) / math.expm1(1e-6)
    assert parts._factor(0.0, 100_000) > 100_000.0
    assert math.isinf(parts._factor(800.0, 3))
    by, base = accountant("rdp"), ((G, 1),)
    least = parts._ratio(by, base, even)
    assert parts.best_delta(by, base, even, math.nextafter(least, 0.0)) == 1.0
    assert parts.best_delta(by, base, even, least) < 1.0


def test_losses_that_are_infinite_at_times() -> None:
    one = grid.Side(0.5, -1, np.array([0.2, 0.3, 0.4]), 0.1)
    other = grid.Side(0.5, 2, np.array([0.5, 0.25]), 0.25)
    twice, both = one.power(2), one.compose(other)
    assert twice.infinite == pytest.approx(0.19, rel=1e-12)
    assert twice.lowest == -2
    assert twice.masses == pytest.approx([0.04, 0.12, 0.25, 0.24, 0.16])
    assert both.lowest == 1
    assert both.infinite == pytest.approx(0.325)
    assert both.masses == pytest.approx([0.1, 0.2, 0.275, 0.1])
    assert one.compose(grid.Side(0.5, 3, np.array([0.5]), 0.0)).masses == pytest.approx(
        [0.1, 0.15, 0.2]
    )
    for epsilon in (0.0, 0.2, 0.5, 9.0):
        wanted = 0.1 + 0.4 * max(0.0, -math.expm1(epsilon - 0.5))
        assert one.delta(epsilon) == pytest.approx(wanted)
        if 0.0 < epsilon < 0.5:
            assert one.epsilon(wanted) == pytest.approx(epsilon)
    assert one.epsilon(0.09) == math.inf
    assert one.epsilon(0.9) == 0.0


def test_the_fine_bound_is_asked_for_unless_told_otherwise() -> None:
    by, base = accountant("pld"), ((PoissonSampled(0.02, G), 300),)
    chosen = ((Selected(Repeated(*base[0]), Poisson(2.0)), 1),)
    in_groups = ((Grouped(base[0][0], 2), 300),)
    for price, given in (
        (partial(parts.best_epsilon, by, base, Poisson(2.0)), 1e-5),
        (partial(parts.selected_epsilon, by, chosen), 1e-5),
        (partial(parts.grouped_epsilon, by, in_groups), 1e-5),
        (partial(loss.epsilon, ((Kind(0.02, 2.0), 300),)), 1e-5),
    ):
        assert price(given) == price(given, quick=False) < price(given, quick=True)


def test_no_promise_and_no_steps_are_refused() -> None:
    about = {"sampling_rate": 0.1, "delta": 1e-5, "accountant": "rdp"}
    for epsilon, count in ((0.0, 5), (math.inf, 5), (1.0, 0)):
        with pytest.raises(StudyError, match="noise can be calibrated for"):
            noise_multiplier(epsilon=epsilon, steps=count, **about)  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="no noise multiplier up to 1000000 brings 1 steps"):
        noise_multiplier(sampling_rate=1.0, steps=1, epsilon=1e-9, delta=1e-12, accountant="rdp")
    assert noise_multiplier(epsilon=1.0, steps=1, **about) > 0.0  # type: ignore[arg-type]
    for least in (1e6, 3.0001, 1e-4):

        def release(sigma: float, least: float = least) -> Event:
            return Nothing() if sigma >= least else NonPrivate("raw")

        found = noise_multiplier(epsilon=1.0, steps=1, **about, release=release)  # type: ignore[arg-type]
        assert found == least
    just = accountant("rdp").epsilon([(PoissonSampled(0.1, G), 1)], 1e-5)
    assert noise_multiplier(epsilon=just, steps=1, **about) == 2.0  # type: ignore[arg-type]
    assert most_steps(G, epsilon=0.0, delta=1e-5, accountant="rdp") == 0
    with pytest.raises(StudyError, match="must not be negative"):
        most_steps(G, epsilon=-LEAST, delta=1e-5, accountant="rdp")
    assert Budget(1.0, 1e-5).accountant == "pld"


def test_a_curve_ends_with_the_fine_bound() -> None:
    step, by = PoissonSampled(0.01, G), accountant("pld")
    told = epsilon_after(step, (100, 400), delta=1e-5, accountant="pld")
    assert told == (by.epsilon([(step, 100)], 1e-5, quick=True), by.epsilon([(step, 400)], 1e-5))


def test_what_is_left_out_is_worth_a_word_from_a_thousandth_on() -> None:
    for numbers, said in ((2.0**62, 0), (2.0**76, 1)):
        assert len(left_out(1e-5, 1.0, numbers=numbers)) == said
    (words,) = left_out(1e-5, 1.0, numbers=2.0**76)
    assert f"{2.0**-19 * (1 + math.e):.2g}" in words
    assert left_out(1e-5, 1.0, numbers=0.0) == ()


# --- prices of records


def test_groups_at_the_borders() -> None:
    assert grouped(G, 64) == Gaussian(2.0 / 64)
    assert isinstance(grouped(G, 65), NonPrivate)
    assert grouped(SampledRows(0.1, 4, G), 256) == SampledRows(0.1, 1024, G)
    assert isinstance(grouped(SampledRows(0.1, 5, G), 205), NonPrivate)
    assert grouped(Nothing(), 99) == Nothing()
    assert grouped(Pure(0.0), 3) == Pure(0.0)
    assert grouped(Pure(0.1), 3) == Pure(math.nextafter(0.1 * 3, math.inf))
    assert grouped(Grouped(G, 3), 2) == Grouped(G, 6)
    for sigma in (0.1, 0.23, 0.43, 3.3):  # a third of some, three times, is more
        shared = grouped(Gaussian(sigma), 3).noise_multiplier  # type: ignore[union-attr]
        assert shared * 3 <= sigma
        assert shared >= sigma / 3 * (1 - 1e-15)
        assert Kind(0.1, sigma, rows=3).together.sigma * 3 <= sigma
    sampled = grouped(PoissonSampled(0.5, PoissonSampled(0.5, G)), 2)
    assert sampled == PoissonSampled(
        -math.expm1(2 * math.log1p(-0.25)) * (1.0 + 1e-12), Gaussian(1.0)
    )
    assert grouped(PoissonSampled(1.0, G), 2) == PoissonSampled(1.0, Gaussian(1.0))
    assert grouped(Selected(G, Poisson(2.0)), 2) == Selected(Gaussian(1.0), Poisson(2.0))


def test_events_of_whole_releases_and_back() -> None:
    sampled, own = PoissonSampled(0.5, PoissonSampled(0.5, G)), PoissonSampled(0.5, Chosen(8.0, G))
    assert whole(sampled) == SampledRows(0.25, 1, G)
    assert whole(own) == own
    assert whole(Composed((sampled, G))) == Composed((SampledRows(0.25, 1, G), G))
    assert bare(Repeated(SampledRows(0.25, 1, G), 3)) == Repeated(PoissonSampled(0.25, G), 3)
    assert bare(SampledRows(0.25, 2, G)) == SampledRows(0.25, 2, G)
    assert of_rows(sampled, 1) == sampled
    assert of_rows(sampled, 3) == SampledRows(0.25, 3, G)
    assert together([[sampled, G, G]], 2) == (SampledRows(0.25, 2, G), Gaussian(1.0), Gaussian(1.0))
    assert together([[G, G], [G, Pure(1.0)]], 1) == (G, G, Pure(1.0))
    assert together([[PoissonSampled(1.0, G)], [G]], 2) == (
        PoissonSampled(1.0, Gaussian(1.0)), Gaussian(1.0),
    )  # fmt: skip
    assert composed([G]) == G
    assert composed([G, G]) == Composed((G, G))
    assert composed([]) == Composed(())


def test_steps_of_adjacency() -> None:
    sampled = PoissonSampled(0.5, G)
    for event, two in (
        (G, Gaussian(1.0)), (Nothing(), Nothing()), (sampled, Grouped(sampled, 2)),
        (PoissonSampled(1.0, G), PoissonSampled(1.0, Gaussian(1.0))),
        (PoissonSampled(1.0, sampled), Grouped(PoissonSampled(1.0, sampled), 2)),
        (SampledRows(0.5, 2, G), Grouped(SampledRows(0.5, 2, G), 2)),
        (SampledRows(1.0, 2, G), SampledRows(1.0, 4, G)),
        (Composed((G, sampled)), Grouped(Composed((G, sampled)), 2)), (Composed((G,)),
        Composed((Gaussian(1.0),))),
        (Repeated(sampled, 3), Grouped(Repeated(sampled, 3), 2)), (Chosen(8.0, G),
        Grouped(Chosen(8.0, G), 2)),
        (Selected(sampled, Poisson(1.0)), Grouped(Selected(sampled, Poisson(1.0)), 2)),
        (Grouped(G, 2), Grouped(Grouped(G, 2), 2)),
    ):  # fmt: skip
        assert steps(event, 1) == event
        assert steps(event, 2) == two
    assert translated({(G, "person", 1): 2, (G, "person", 2): 1}, "person") == (
        (G, 2), (Gaussian(1.0), 1),
    )  # fmt: skip
    assert translated({(sampled, "person", 2): 1}, "sample") == ((Grouped(sampled, 2), 1),)
    assert translated({(G, "sample", 1): 0, (G, "client", 2): 3}, "sample") == (
        (Gaussian(0.5), 3),
    )  # fmt: skip
    assert translated({(SampledRows(0.5, 1, G),
    "person", 1): 1, (sampled, "sample", 1): 4}, "person") == (
        (sampled, 5),
    )  # fmt: skip


def test_what_histories_weigh() -> None:
    for event, cost in (
        (G, 0.25), (Gaussian(0.0), 1e12), (Gaussian(2e-6), 2.5e11), (Pure(3.0), 9.0), (Pure(1e7),
        1e12),
        (PoissonSampled(0.5, G), 0.0625), (SampledRows(0.1, 3, G), 0.0025),
        (Composed((G, Pure(1.0))), 1.25),
        (Repeated(G, 3), 0.75), (Grouped(G, 3), 2.25), (Chosen(8.0, G), 0.5),
        (Selected(G, Poisson(1.0)), 0.5),
        (NonPrivate("raw"), 1e12), (Nothing(), 0.0),
    ):  # fmt: skip
        assert weight({(event, "sample", 1): 1}) == pytest.approx(cost, rel=1e-14)
        assert weight({(event, "sample", 3): 2, (G, "client", 1): 1}) == pytest.approx(
            18 * cost + 0.25
        )


def of(*counts: int, **more: object) -> Class:
    """A class with these counts of one release, each of another kind."""
    kinds = ("client", "entity", "sample")
    return Class(
        tuple(((G, kind, 1), count) for kind, count in zip(kinds, counts, strict=False) if count),
        **more,  # type: ignore[arg-type]
    )


def test_the_nearest_classes_are_merged_first() -> None:
    apart_ = [of(each) for each in (1, 30, 2, 11, 60, 10)]
    for most, wanted in (
        (6, [[0], [1], [2], [3], [4], [5]]), (5, [[0, 2], [3], [5], [1], [4]]),
        (4, [[0, 2], [3, 5], [1], [4]]), (3, [[0, 2], [3, 5], [1, 4]]),
    ):  # fmt: skip
        found, places = coarser(apart_, most)
        members = [[i for i, at in enumerate(places) if at == n] for n in range(len(found))]
        assert sorted(members) == sorted(wanted)
        for one, who in zip(found, members, strict=True):
            assert one == of(max(apart_[i].counts[G, "client", 1] for i in who))
    persons = [of(1), of(1, person=True), of(1, named=True)]
    assert coarser(persons, 1) == (
        sorted_as(persons),
        [sorted_as(persons).index(one) for one in persons],
    )
    live = [of(1, live=frozenset({((1,), 1)})), of(1), of(9)]
    assert coarser(live, 2)[0] == [of(9), live[0]]
    assert coarser(apart_, 7) == (apart_, [0, 1, 2, 3, 4, 5])


def sorted_as(some: list[Class]) -> list[Class]:
    return sorted(some, key=lambda one: one.kind)


def test_what_covers_two_classes() -> None:
    one, other = of(1, 5, live=frozenset({((1,), 1)})), of(3, 0, 2, live=frozenset({((2,), 1)}))
    both = frozenset({((1,), 1), ((2,), 1)})
    assert either(one, other) == of(3, 5, 2, live=both)
    assert bridged(one, other) == of(4, 5, 2, live=both)
    assert either(of(person=True), of(named=True)) == of(person=True, named=True)
    assert either(of(), of(person=True)).person
    assert either(of(named=True), of()).named
    ways = Class(ways=(of(3).frozen, of(1, 1).frozen))
    assert covered(ways) == of(3, 1)
    assert covered(one) is one


def test_pools_number_classes_and_halve_them() -> None:
    pool = Pool([of(), of(1)])
    assert (pool.blank, pool.put(of(1)), pool.put(of(2)), pool.put(of(2))) == (0, 1, 2, 2)
    assert Pool([of(7)]).blank == 1
    numbers = np.array([1, 2, pool.put(of(50)), pool.put(of(51)), 1], np.uint32)
    assert pool.halve(numbers)
    assert [pool.classes[i] for i in numbers.tolist()] == [of(2), of(2), of(51), of(51), of(2)]
    alike = np.array([pool.put(of(1, person=True)), pool.put(of(1))], np.uint32)
    assert not pool.halve(alike)
    settled, kept, sizes = pool.settled(numbers, 9)
    assert kept == [of(), of(2), of(51)]
    assert (settled.tolist(), sizes) == ([1, 1, 2, 2, 1], [0, 3, 2])
    settled, kept, sizes = pool.settled(numbers, 2)
    assert (kept, settled.tolist(), sizes) == ([of(), of(51)], [1] * 5, [0, 5])
    tidy = np.array([0, 1, 2], np.uint32)
    small = Pool([of(), of(1), of(2)])
    assert small.settled(tidy, 9)[0] is tidy
    again = np.array([2, 2], np.uint32)
    assert small.settled(again, 9)[0].tolist() == [1, 1]


def test_ways_to_be_in_sets() -> None:
    four = ((1, 2, 3, 4), 1)
    assert len(choices([four, four], person=False)) == 16
    assert len(choices([four, four, ((5, 6), 1)], person=False)) == 16
    assert choices([four, four, ((5, 6), 1)], person=False)[0] == ((1,), (1,), (5, 6))
    assert choices([((1, 2), 1), ((3,), 1)], person=False) == [((1,), (3,)), ((2,), (3,))]
    assert choices([four, ((7,), 2)], person=True) == [((1, 2, 3, 4), (7,))]
    assert apart([((1, 2), 3), ((5,), 1)], False, {2, 5}) == [((2,), 3), ((5,), 1)]
    assert apart([((1, 2), 3)], False, {1, 2}) == [((1,), 3), ((2,), 3)]
    assert apart([((1, 2), 3)], True, {1, 2}) == [((1, 2), 3)]
    assert apart([((1, 2), 3)], False, ()) == [((1, 2), 3)]


def charged(number: int) -> tuple[str, dict[Event, int]]:
    """What was charged on a set: as many of a sampled release as it has for a number."""
    return "sample", {PoissonSampled(0.5, G): number, G: 1}


def test_counts_of_groups() -> None:
    sampled, rows = PoissonSampled(0.5, G), SampledRows(0.5, 1, G)
    assert of_groups([((3,), 1)], charged) == {(sampled, "sample", 1): 3, (G, "sample", 1): 1}
    assert of_groups([((3,), 2)], charged) == {(rows, "sample", 2): 3, (G, "sample", 2): 1}
    assert of_groups([((2, 3), 2)], charged) == {(sampled, "sample", 2): 3, (G, "sample", 2): 1}
    assert of_groups([((2,), 1), ((3,), 1)], charged) == {
        (sampled, "sample", 1): 5, (G, "sample", 1): 2,
    }  # fmt: skip
    found = histories(of(4, live=frozenset({((2, 3), 1)})), charged)
    assert found == [{(G, "client", 1): 4, (sampled, "sample", 1): 3, (G, "sample", 1): 1}]
    assert len(histories(Class(ways=(of(3).frozen, of(0, 4).frozen)), charged)) == 2


def test_groups_that_are_charged_no_more_are_frozen() -> None:
    """One way is what is sure; of two, of which neither covers the other, both are kept."""

    def either_of(number: int) -> tuple[str, dict[Event, int]]:
        return "sample", {G: 2, Pure(1.0 if number == 2 else 2.0): 1}

    one = closed(Class(live=frozenset({((2,), 1)})), frozenset({2}), either_of)
    sure, first = ((G, "sample", 1), 2), ((Pure(1.0), "sample", 1), 1)
    assert one == Class((sure, first))
    two = closed(Class(live=frozenset({((2, 3), 1), ((4,), 1)})), frozenset({2, 3}), either_of)
    assert two.frozen == (sure,)
    assert sorted(two.ways, key=repr) == [(first,), (((Pure(2.0), "sample", 1), 1),)]
    assert two.live == {((4,), 1)}
    assert closed(two, frozenset({3}), either_of) is two


def test_histories_that_cover_others() -> None:
    def counts(*each: int) -> Counter[tuple[Event, str, int]]:
        return of(*each).counts

    assert maximal([counts(1), counts(3), counts(2), counts(0, 1)], 9) == [counts(3), counts(0, 1)]
    three = [counts(5, 0, 0), counts(0, 4, 0), counts(0, 0, 3)]
    assert maximal(three, 3) == three
    assert maximal(three, 2) == [counts(5, 4, 0), counts(0, 0, 3)]
    assert maximal(three, 1) == [counts(5, 4, 3)]
    assert maximal([], 1) == []
    many = [counts(each) for each in range(1, 1026)]
    assert maximal(many[:1024], 2000) == [counts(1024)]
    assert len(maximal(many, 2000)) == 1025  # too many to be compared


def test_few_ways_stay_and_many_become_one() -> None:
    alone: dict[tuple[Group, ...], list[int]] = {(((i,), 1),): [i] for i in range(SHOWN)}
    assert fewer(alone) is alone
    more = {**alone, (((20, 21), 2), ((22,), 5)): [99], (((23,), 1), ((24,), 1)): [98]}
    cover = tuple(((each,), 5) for each in (20, 21, 22, 23, 24))
    assert fewer(more) == {**alone, cover: [99, 98]}
    large = {**alone, (((20, 21), 3),): [99], (((5,), 7),): [97]}
    assert fewer(large) == large


def test_limits_of_what_is_kept_apart() -> None:
    assert (SHOWN, classes.MOST_WAYS, people.MOST_CLASSES, store._PART) == (16, 16, 4096, 2**22)


def test_a_history_that_has_all_charges_of_a_set() -> None:
    own = ((PoissonSampled(0.5, G), 3),)
    rows = SampledRows(0.5, 1, G)
    assert contains(Counter({(rows, "sample", 2): 3}), "sample", own)
    assert contains(
        Counter({(rows, "sample", 2): 1, (PoissonSampled(0.5, G), "sample", 1): 2}), "sample", own
    )
    assert not contains(Counter({(rows, "sample", 2): 2}), "sample", own)
    assert not contains(Counter({(rows, "client", 2): 3}), "sample", own)


# --- who is who


def test_names_of_sets() -> None:
    words = np.arange(24, dtype=np.uint64).reshape(6, 4)
    people = np.array([[1, 7], [1, 7], [2, 8], [3, 9], [3, 9], [3, 9]], np.uint64)
    rows = Records("client:0", "sample", words)
    persons = Records("client:0", "person", words, people=people)
    assert rows.names == Records("b", "sample", words[::-1]).names
    assert persons.names == Records("b", "person", words[::-1], people=people[::-1]).names
    assert len(set(rows.names)) == 2
    assert len(set(persons.names)) == 4
    told = {*rows.names, *persons.names}
    changed = words.copy()
    changed[:, 3] += np.uint64(1)  # the features of an earlier version's pair
    for other in (
        Records("a", "client", words), Records("a", "sample", words[:5]),
        Records("a", "person", words, people=people + np.uint64(1)),
        Records("a", "sample", words, people=people),
    ):  # fmt: skip
        assert not told & {*other.names}
    assert Records("a", "sample", changed).names[0] == rows.names[0]
    assert Records("a", "sample", changed).names[1] != rows.names[1]
    assert rows.names == STORED_NAMES[:2]
    assert persons.names == STORED_NAMES[2:]
    key = bytes(range(16))
    assert int(digests(key, words)[1, 2]) == STORED_DIGEST
    under = persons.under(key)
    assert (under.rows == digests(key, words)).all()
    assert under.people is not None
    assert not (under.people == digests(key, people)).any()
    joined = Records.together([persons, rows])
    assert (len(joined.rows), joined.kind) == (12, "person")
    assert joined.people is not None
    assert len(joined.people) == 6
    assert Records.together([rows, rows]).people is None
    assert (rows.most, rows.summed, rows.units, rows.aside) == (1, False, 1, False)


STORED_NAMES = (
    "samples bf942f6a68fdc38ba7b21b4a",
    "samples b60f1055c0d5af5e9991519d",
    "persons c86e687b8cbd887392af5ca3",
    "persons f9c86af8989c33d39d5c51de",
    "persons 29904b2bbf84ff1f22943e64",
    "persons fedd3ac3b3110d4d6ffa3f90",
)
STORED_DIGEST = 1150498673602195242


def test_patterns_are_those_of_a_plain_book() -> None:
    rng = np.random.default_rng(4)
    for n, who, sets in ((40, 9, 3), (300, 40, 5), (5, 5, 1), (60, 3, 9)):
        entity, at = rng.integers(0, who, n) * 7, rng.integers(0, sets, n)
        book: dict[int, Counter[int]] = {}
        for one, place in zip(entity.tolist(), at.tolist(), strict=True):
            book.setdefault(one, Counter())[place] += 1
        entities, which, patterns = membership(entity, at, sets)
        assert entities.tolist() == sorted(book)
        assert len(set(patterns)) == len(patterns)
        for one, number in zip(entities.tolist(), which.tolist(), strict=True):
            assert patterns[number] == tuple(sorted(book[one].items()))
        # by their sets first, and those with fewer sets before those with more
        firsts = [[place for place, _ in each] for each in patterns if len(each) == 1]
        assert firsts == sorted(firsts)
    nobody = np.empty(0, np.int64)
    assert membership(nobody, nobody, 2)[2] == []


def test_groups_of_patterns() -> None:
    words = np.zeros((3, 2), np.uint64)

    def records(kind: str, **more: object) -> Records:
        return Records("u", kind, words, **more)  # type: ignore[arg-type]

    kinds = [records("sample"), records("label"), records("client"), records("label")]
    pairs = ((0, 5), (1, 1), (2, 1), (3, 2))
    assert groups(pairs, [30, 10, 20, 40], kinds, False) == {((20, 30), 1), ((10, 40), 1)}
    people = np.zeros((3, 1), np.uint64)
    summed = [
        records("sample", most=3, summed=True), records("sample", most=2, summed=True, units=2),
        records("sample", most=4), records("client", units=3), records("client"),
    ]  # fmt: skip
    every = tuple((place, 1) for place in range(5))
    assert groups(every, [5, 4, 3, 2, 1], summed, True) == {((4, 5), 7), ((3,), 4), ((1, 2), 4)}
    assert groups(((0, 3),), [5], summed, True) == {((5,), 3)}
    with pytest.raises(LedgerError, match="counts as 4 rows here, and everybody is priced as 3"):
        groups(((0, 4),), [5], summed, True)
    assert groups(((0, 9),), [5], [records("person", people=people)], True) == {((5,), 1)}
    for one in (records("person"), records("sample", people=people)):
        with pytest.raises(LedgerError, match=r"raise data\.person_rows"):
            groups(((0, 2),), [5], [one], True)


# --- tables


def test_names_of_sets_that_a_run_has_several_of() -> None:
    assert [store.nth("samples 1f", n, aside=False) for n in (0, 1, 2)] == [
        "samples 1f", "samples 1f (2)", "samples 1f (3)",
    ]  # fmt: skip
    assert store.nth("samples 1f", 1, aside=True) == "samples 1f (test)"
    for name, is_nth in (
        ("samples 1f", False),
        ("samples 1f (2)", True),
        ("samples 1f r (2)", True),
    ):
        assert store.is_nth(name) == is_nth
        assert not store.Set(1, name, "sample", True, (), ()).aside
    assert store.Set(1, "samples 1f (test) run", "sample", True, (), ()).aside


def test_tables_of_records_are_read_as_they_were_written() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        assert not store.knows_records(db)
        for sql in NEWEST.tables.values():
            db.execute(sql)
        assert not store.knows_records(db)
        store.prepare(db, apart=True)
        assert store.knows_records(db)
        assert (store.meta(db, "key"), store.meta(db, "version")) == ("", "0")
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as other:
            other.execute(NEWEST.tables["record_meta"])
            store.prepare(other, apart=False)
            assert len(bytes.fromhex(store.meta(other, "key"))) == 16
        with pytest.raises(ValueError, match="has no thing"):
            store.meta(db, "thing")
        names = ["samples 1f", "samples 1f (2)", "samples 1f run", "samples 1e", "samples 1f!"]
        kept = [
            store.Set(i, name, "sample", i % 2 == 1, ((G, i),), ("a",) * i)
            for i, name in enumerate(names, 1)
        ]
        for each in kept:
            store.put_set(db, each)
        assert store.sets(db) == kept
        assert store.sets(db, live=True) == kept[::2]
        assert store.same_members(db, "samples 1f (2)") == names[:3]
        assert store.holders(db, "samples 1f (2)") == ["a", "a"]
        known = [
            Class(), of(1, 2, live=frozenset({((1, 2), 3)})), of(4, person=True, named=True),
            Class(of(1).frozen, ways=(of(0, 2).frozen, of(0, 0, 3).frozen)), Class(named=True),
            Class((), ways=(of(0, 2).frozen, ())),
        ]  # fmt: skip
        store.put_classes(db, known, [1, 2, 3, 4, 5, 6])
        store.put_classes(db, known, [1, 2, 3, 4, 5, 6])
        assert store.classes(db) == (known, [1, 2, 3, 4, 5, 6])
        blank = store.Book(np.empty(0, np.uint64), np.empty(0, np.uint32))
        empty = store.Index(blank, blank, blank.owners)
        assert blank.find(np.array([3], np.uint64)).tolist() == [-1]
        long = np.arange(700_000, dtype=np.uint64)  # more than a value holds
        whole_ = store.Index(store.Book(long, long.astype(np.uint32)), blank, blank.owners)
        before = store.digest(db)
        store.put_index(db, whole_, empty)
        again = store.index(db)
        assert (again.rows.digests == long).all()
        assert (again.rows.owners == long).all()
        assert len(again.people.digests) == len(again.classes) == 0
        pieces = "SELECT name, part, length(content) FROM record_arrays ORDER BY name, part"
        assert db.execute(pieces).fetchall() == [
            ("row digests", 0, 1 << 22), ("row digests", 1, 5_600_000 - (1 << 22)),
            ("row owners", 0, 2_800_000),
        ]  # fmt: skip
        assert store.digest(db) != before
        assert (
            whole_.rows.find(np.array([0, 699_999, 700_000], np.uint64)) == [0, 699_999, -1]
        ).all()


def test_nobody_who_comes_changes_nothing() -> None:
    blank = store.Book(np.empty(0, np.uint64), np.empty(0, np.uint32))
    index = store.Index(blank, blank, blank.owners)
    for persons in (False, True):
        after, who, merged = store.found(index, np.empty((0, 2), np.uint64), 0, people=persons)
        assert (after, who.tolist(), merged) == (index, [], {})
    after, who, _ = store.found(index, np.array([[5], [6]], np.uint64), 3, people=True)
    assert (who.tolist(), after.classes.tolist()) == ([0, 1], [3, 3])
    assert len(after.rows.digests) == 0
    same, who, _ = store.found(after, np.array([[6], [5]], np.uint64), 4, people=True)
    assert same is after
    assert who.tolist() == [1, 0]
