"""Rounds that protect whole clients: Poisson cohorts, everybody charged, one client moves the
release by no more than is booked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from permitted import permit
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Contribution, Update, Vector
from sordino.core.effect import Arrived, Book, Closed, Log, Send
from sordino.core.effect import Booked as Paid
from sordino.core.records import dumped
from sordino.mechanisms.contract import check_noise
from sordino.mechanisms.gaussian import CountedGaussian, Gaussian
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.mechanisms.knorm import KNorm
from sordino.privacy.event import Gaussian as Booked
from sordino.privacy.event import PoissonSampled
from sordino.regimes.synchronous.aggregate import PrivateSum, State, deviation
from sordino.regimes.synchronous.method import Released, RoundNoise, Terms
from sordino.regimes.synchronous.methods import ClipMemory, DpFedAvg, DpSgd, DynamicDpFedAvg
from sordino.regimes.synchronous.protocol import Synchronous

N, D, Q, Z, S = 40, 3, 0.25, 1.1, 0.6


def terms(rounds: int = 5) -> Terms:
    everybody = (1 / N,) * N
    return Terms(
        dimension=D,
        sizes=(100,) * N,
        weights=everybody,
        sampling_rate=Q,
        learning_rate=0.1,
        clip=S,
        noise=Z,
        rounds=rounds,
        steps=None,
        sigma=Z,
    )


def aggregator(**changes: Any) -> PrivateSum:
    told: dict[str, Any] = {
        "mechanism": CountedGaussian(clip=S, noise_multiplier=Z),
        "shares": (1.0,) * N,
        "units": ("client:0",),
        "sampling_rate": Q,
        "entropy": Seeded(4),
    }
    return PrivateSum(**{**told, **changes})


def release(
    one: PrivateSum, answers: Any, contract: RoundNoise, number: int, dimension: int
) -> Any:
    paid = [permit(one.event(contract), 1, number)]
    return one.release(answers, contract, number, dimension, paid)[0]


def rules(rounds: int = 5, **changes: Any) -> Synchronous:
    told: dict[str, Any] = {
        "method": DpFedAvg(tau=3),
        "aggregator": aggregator(),
        "seed": 1,
        **changes,
    }
    seed = told.pop("seed")
    return Synchronous(terms=terms(rounds), budget=None, entropy=Seeded(seed), **told)


def sends(effects: Any) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, Send)]


def answer(send: Any, delta: Any) -> Arrived:
    vector = np.asarray(delta, np.float32) * np.ones(D, np.float32)
    return Arrived(
        Contribution(
            client=send.site,
            round=send.message.round,
            steps=send.message.steps,
            delta=vector,
            inside=True,
        )
    )


def opened(rule: Synchronous, state: State) -> tuple[State, list[Any]]:
    """The next round, booked."""
    state, effects = rule.begin(state)
    seen = [*effects]
    for effect in effects:
        if isinstance(effect, Book):
            state, more = rule.step(state, Paid((permit(effect.fact, 1, effect.number),)))
            seen += more
    return state, seen


def play(rule: Synchronous, delta: float = 0.1) -> tuple[State, list[Any]]:
    state = rule.start(np.zeros(D, np.float32))
    seen: list[Any] = []
    while state.ended is None:
        state, effects = opened(rule, state)
        seen += effects
        for send in sends(effects):
            state, more = rule.step(state, answer(send, delta))
            seen += more
    return state, seen


def test_each_client_is_drawn_by_itself_with_the_rate_that_is_booked() -> None:
    _, seen = play(rules(400))
    drawn = np.zeros((400, N))
    for send in sends(seen):
        drawn[send.message.round - 1, send.site] = 1
    # Within five standard deviations: the overall rate, each client's, and the variance of the
    # cohort (a fixed one has none).
    assert drawn.mean() == pytest.approx(Q, abs=5 * math.sqrt(Q * (1 - Q) / drawn.size))
    assert np.abs(drawn.mean(0) - Q).max() < 5 * math.sqrt(Q * (1 - Q) / 400)
    assert drawn.sum(1).var() == pytest.approx(N * Q * (1 - Q), rel=0.4)
    together = np.asarray(np.corrcoef(drawn.T))[np.triu_indices(N, 1)]
    assert abs(together.mean()) < 5 / math.sqrt(400 * len(together))


def test_every_round_books_its_event_before_anything_is_sent() -> None:
    _, seen = play(rules())
    kinds = [type(effect) for effect in seen if isinstance(effect, Book | Send | Closed)]
    starts = [i for i, kind in enumerate(kinds) if kind is Book]
    assert [effect.number for effect in seen if isinstance(effect, Book)] == [1, 2, 3, 4, 5]
    assert starts[0] == 0
    assert all(kinds[i - 1] is Closed for i in starts[1:])
    assert {effect.fact for effect in seen if isinstance(effect, Book)} == {
        PoissonSampled(sampling_rate=Q, event=Booked(noise_multiplier=Z))
    }


def test_an_empty_cohort_releases_noise() -> None:
    rule = rules(6, aggregator=aggregator(sampling_rate=1e-9))
    state, seen = play(rule)
    assert not sends(seen)
    assert state.number == 6
    assert len([effect for effect in seen if isinstance(effect, Closed)]) == 6
    assert len([effect for effect in seen if isinstance(effect, Book)]) == 6
    assert np.abs(state.weights).min() > 0


def test_the_divisor_is_the_expected_weight_whoever_answers() -> None:
    noiseless = CountedGaussian(clip=S, noise_multiplier=1e-7)
    shares = tuple(0.25 + 0.75 * i / N for i in range(N))
    one = aggregator(mechanism=noiseless, shares=shares)
    answers = [
        Contribution(i, 1, 3, delta=np.full(D, 0.03 * i, np.float32), inside=True)
        for i in (2, 7, 11)
    ]
    released = release(one, answers, RoundNoise(S, 1e-7), 1, D)
    wanted = sum(shares[i] * 0.03 * i for i in (2, 7, 11)) / (Q * sum(shares))
    assert released.mean == pytest.approx(np.full(D, wanted), rel=1e-5)


@pytest.mark.parametrize(
    "mechanism",
    [Gaussian(clip=1.0, noise_multiplier=1.0), CountedGaussian(clip=1.0, noise_multiplier=1.0)],
)
def test_the_noise_of_a_release_has_the_booked_scale(mechanism: Any) -> None:
    d, contract = 20_000, RoundNoise(0.3, 1.7)
    one = aggregator(mechanism=mechanism)
    scaled = mechanism.scaled(contract.clip, contract.noise_multiplier)
    assert one.event(contract) == PoissonSampled(
        sampling_rate=Q, event=Booked(noise_multiplier=1.7)
    )

    def draw(rng: np.random.Generator) -> torch.Tensor:
        whole = replace(one, entropy=Seeded(int(rng.integers(2**31))))
        return torch.from_numpy(release(whole, [], contract, 1, d).mean * np.float32(Q * N))

    check_noise(draw, scaled.vector_multiplier, contract.clip)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    others=st.integers(0, 5),
    share=st.floats(0.01, 1.0),
    clip=st.floats(1e-3, 10.0),
    size=st.floats(1e-3, 1e3),
    adaptive=st.booleans(),
)
def test_one_client_moves_the_release_by_no_more_than_is_booked(
    seed: int, others: int, share: float, clip: float, size: float, adaptive: bool
) -> None:
    """Neighbours by brute force: the same noise, one client more; the whitened pair (mean, count)
    moves by at most 1/z.
    """
    rng = np.random.default_rng(seed)
    mechanism = CountedGaussian(clip=clip, noise_multiplier=Z, share=0.3 if adaptive else 1 / 400)
    one = aggregator(mechanism=mechanism, shares=(share,) + (1.0,) * (N - 1))
    contributed = []
    for i in range(others + 1):
        vector, inside = mechanism.bounded(
            torch.from_numpy(rng.standard_normal(D).astype(np.float32)) * size
        )
        contributed.append(
            Contribution(client=i, round=1, steps=3, delta=vector.numpy(), inside=inside)
        )
    contract = RoundNoise(clip, Z)
    with pytest.MonkeyPatch.context() as patch:  # noise is over contents: here they differ
        patch.setattr("sordino.base.entropy.digest", lambda *parts: bytes(32))
        with_it = release(one, contributed, contract, 1, D)
        without = release(one, contributed[1:], contract, 1, D)
    assert with_it.clipped is not None
    assert without.clipped is not None
    weight = Q * (share + N - 1)
    moved = np.linalg.norm((with_it.mean.astype(np.float64) - without.mean) * weight) / (
        mechanism.vector_multiplier * clip
    )
    count = (with_it.clipped - without.clipped) * Q * N / mechanism.count_deviation
    # float32 adds noise and sum: a unit in the last place of numbers of the size of both
    slack = (
        1e-6
        * (np.abs(with_it.mean).max() + np.abs(without.mean).max())
        * weight
        / (mechanism.vector_multiplier * clip)
    )
    assert math.hypot(moved, count) <= 1 / Z * (1 + 1e-6) + slack


MECHANISMS: tuple[Any, ...] = (
    Gaussian(clip=S, noise_multiplier=Z),
    CountedGaussian(clip=S, noise_multiplier=Z, measure="layers"),
    KNorm(clip=S, noise_multiplier=Z, dimension=D),
    HaarGaussian.weighted(
        clip=S, noise_multiplier=Z, basis=Basis.flat(D), weights=(0.01, 3.0, 1.0)
    ),
)


def summed(
    mechanism: Any, deltas: Sequence[Vector], clip: float, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The sum (d,) that a mechanism is given of contributions."""
    given: list[Any] = []

    def release(self: Any, total: torch.Tensor, excess: float, rng: Any) -> Any:
        given.append(total.numpy().copy())
        return total.float(), None

    monkeypatch.setattr(type(mechanism), "release_counted", release)
    one, contract = aggregator(mechanism=mechanism), RoundNoise(clip, Z)
    answers = [Contribution(i, 1, 3, delta, inside=True) for i, delta in enumerate(deltas)]
    one.release(answers, contract, 1, D, [permit(one.event(contract), 1, 1)])
    return given[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_a_site_sends_beyond_the_bound_rounds_no_sum(
    mechanism: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three who collude: a tie, and +A and -A that round it up where another one adds a little."""
    clip, own = 1e-9, np.full(D, 2e-10, np.float32)
    tie = np.float32(2.0**-29 * (1 - 2.0**-20))
    colluding = [np.full(D, each, np.float32) for each in (tie, 2.0**24, -(2.0**24))]
    without = summed(mechanism, [colluding[0], 0 * own, *colluding[1:]], clip, monkeypatch)
    with_it = summed(mechanism, [colluding[0], own, *colluding[1:]], clip, monkeypatch)
    assert with_it - without == pytest.approx(own.astype(np.float64), rel=1e-6)
    assert np.linalg.norm(with_it) < 4e-7  # 100 S, where a wavelet weighs 0.01


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_honest_contribution_keeps_its_bits(
    mechanism: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(3)
    for clip in (1e-9, 0.3, 1e9):
        for size in (0.1, 1.0, 1e6):
            moved = clip * size * draw.standard_normal((40, D)).astype(np.float32)
            scaled = mechanism.scaled(clip, Z)
            bounded = [scaled.bounded(torch.from_numpy(each))[0].numpy() for each in moved]
            found = summed(mechanism, bounded, clip, monkeypatch)
            wanted = np.zeros(D)
            for each in bounded:
                wanted += each
            assert np.array_equal(found, wanted)


def test_cohorts_whose_rounding_could_pass_the_bound_are_refused() -> None:
    with pytest.raises(StudyError, match=r"70000 clients are expected.* proven for 65536"):
        aggregator(shares=(1.0,) * 70_000, sampling_rate=1.0)


def test_a_method_sees_the_release_and_nothing_else() -> None:
    seen: list[Any] = []

    class Nosy(DpFedAvg):
        def fold(self, memory: Any, terms: Terms, answers: Any) -> Any:
            seen.append(answers)
            return memory

        def learn(self, memory: Any, terms: Terms, released: Released) -> Any:
            seen.append(released)
            return memory

    state, effects = play(rules(method=Nosy(tau=3)), delta=0.123)
    assert seen
    assert all(isinstance(item, Released) for item in seen)
    assert not state.answers
    for effect in effects:
        if isinstance(effect, Log):
            assert "0.123" not in dumped(effect.row)


def test_strangers_duplicates_and_models_in_place_of_updates_are_dropped() -> None:
    rule = rules()
    state, effects = opened(rule, rule.start(np.zeros(D, np.float32)))
    first = sends(effects)[0]
    state, _ = rule.step(state, answer(first, 0.1))
    model = Update(client=first.site, round=1, steps=3, weights=np.ones(D, np.float32))
    outsider = next(i for i in range(N) if i not in {send.site for send in sends(effects)})
    for wrong in (
        answer(first, 0.1),
        Arrived(model),
        Arrived(
            Contribution(
                client=outsider, round=1, steps=3, delta=np.ones(D, np.float32), inside=True
            )
        ),
    ):
        after, more = rule.step(state, wrong)
        assert after == state or after.answers == state.answers
        assert isinstance(more[0], Log)
        assert more[0].row.kind == "dropped"


def test_rounds_end_where_the_budget_does() -> None:
    state, seen = play(replace(rules(), affordable_rounds=3))
    assert state.number == 3
    assert len([effect for effect in seen if isinstance(effect, Book)]) == 3
    assert "privacy budget" in (state.ended or "")


def test_adaptive_clipping_is_geometric_and_finds_its_quantile() -> None:
    method = DpFedAvg(clipping="adaptive", quantile=0.3, clip_rate=0.4)
    assert method.learn(
        ClipMemory(2.0), terms(), Released(np.zeros(D, np.float32), 0.5)
    ).clip == pytest.approx(2 * math.exp(-0.4 * 0.2))
    assert method.learn(
        ClipMemory(2.0), terms(), Released(np.zeros(D, np.float32), None)
    ) == ClipMemory(2.0)
    assert DpFedAvg().learn(
        ClipMemory(2.0), terms(), Released(np.zeros(D, np.float32), 0.5)
    ) == ClipMemory(2.0)
    norms, memory, path = np.random.default_rng(0).lognormal(0.0, 1.0, 4000), ClipMemory(10.0), []
    rng = np.random.default_rng(1)
    for _ in range(300):
        noisy = (norms > memory.clip).mean() + 0.05 * rng.standard_normal()
        memory = method.learn(memory, terms(), Released(np.zeros(D, np.float32), float(noisy)))
        path.append(memory.clip)
    assert np.mean(path[150:]) == pytest.approx(np.quantile(norms, 0.3), rel=0.1)


@pytest.mark.parametrize("number", [0, 3, 9])
def test_a_counted_divisor_is_the_noisy_number_of_clients(number: int) -> None:
    """Nothing but the count tells these rounds apart: ten clients are expected in each."""
    quiet = CountedGaussian(clip=S, noise_multiplier=1e-6)  # its count's deviation is 1e-5
    one = aggregator(mechanism=quiet, counted=True)
    given = [Contribution(i, 1, 3, np.full(D, 0.1, np.float32), i % 2 == 0) for i in range(number)]
    found = release(one, given, RoundNoise(S, 1e-6), 1, D)
    np.testing.assert_allclose(found.mean, 0.1 * bool(number), atol=1e-5)
    assert found.clipped is None
    assert found.unit == pytest.approx(1.0 / max(number, 1), rel=1e-4)


def test_the_noise_of_a_counted_mean_follows_the_clients_at_the_booked_price() -> None:
    mechanism = CountedGaussian(clip=S, noise_multiplier=Z, share=0.2)
    one, contract = aggregator(mechanism=mechanism, counted=True), RoundNoise(S, Z)
    assert one.event(contract) == PoissonSampled(sampling_rate=Q, event=Booked(noise_multiplier=Z))
    given = [Contribution(i, 1, 3, np.zeros(D, np.float32), True) for i in range(20)]
    rounds = [release(one, given, contract, number, D) for number in range(1, 501)]
    # the vector alone has sigma_v = Z / sqrt(1 - share), the count sigma_b = Z / sqrt(share)
    noise = np.concatenate([each.mean / each.unit for each in rounds])
    assert np.std(noise) == pytest.approx(Z * S / math.sqrt(0.8), rel=4 / math.sqrt(2 * len(noise)))
    counts = np.array([1.0 / each.unit for each in rounds])
    assert np.mean(counts) == pytest.approx(20.0, abs=4 * Z / math.sqrt(0.2 * 500))
    assert np.std(counts) == pytest.approx(Z / math.sqrt(0.2), rel=4 / math.sqrt(2 * 500))


def test_a_schedule_is_sent_and_booked_as_it_is() -> None:
    method = DynamicDpFedAvg(tau=3, clip_decay=4.0, noise_decay=2.0, stages=3)
    _, seen = play(rules(6, method=method))
    booked = [effect.fact.event.noise_multiplier for effect in seen if isinstance(effect, Book)]  # type: ignore[union-attr]
    assert booked == pytest.approx([Z, Z, Z / math.sqrt(2), Z / math.sqrt(2), Z / 2, Z / 2])
    told = {
        send.message.round: (send.message.clip, send.message.noise_multiplier)
        for send in sends(seen)
    }
    assert told[6] == pytest.approx((S / 4, Z / 2))
    assert told[1] == (S, Z)


def test_weights_learn_the_energies_of_releases_without_their_noise() -> None:
    """All noise and no signal leaves nothing to learn; a signal in one level is found there."""
    d, basis = 64, Basis.flat(64)
    haar = replace(
        HaarGaussian.weighted(
            clip=S, noise_multiplier=Z, basis=basis, weights=(1.0,) * basis.groups
        ),
        learns=1.0,
    )
    one = aggregator(mechanism=haar)
    smooth = torch.ones(d) / math.sqrt(d) * S  # all of it in the base, group 0
    for signal in (False, True):
        seen: tuple[float, ...] = ()
        energies, raw = np.zeros(basis.groups), np.zeros(basis.groups)
        for number in range(1, 401):
            answers = [
                Contribution(client=i, round=number, steps=1, delta=smooth.numpy(), inside=True)
                for i in range(10 * signal)
            ]
            # shape kept, so that rounds can be averaged
            released = release(one, answers, RoundNoise(S, Z), number, d)
            seen = haar.observed((), torch.from_numpy(released.mean), one.unit)
            energies += np.array(seen) / 400
            raw += (
                0.1 * basis.energies(torch.from_numpy(released.mean).unsqueeze(0))[0].numpy() / 400
            )
        noise = basis.noise_energies([one.unit * s for s in haar.deviations]).numpy() * 0.1
        assert np.abs(energies[1:]).max() < 0.2 * noise[1:].max()
        assert raw[1:] == pytest.approx(noise[1:], rel=0.35)
        if signal:
            assert energies[0] == pytest.approx(0.1 * (10 * S * one.unit) ** 2, rel=0.1)
            weights = haar.shaped(tuple(energies)).clip_weights
            assert weights[0] < min(weights[1:])
        else:
            assert abs(energies[0]) < noise[0]
    assert haar.shaped(seen).event() == haar.event()


def test_what_plain_steps_moved_has_the_noise_that_is_taken_off() -> None:
    batch, eta, tau, sigma = Q * 100, 0.1, 3, 2.0
    rule = rules(aggregator=None, method=DpSgd(tau=tau))
    rng = np.random.default_rng(0)
    # one coordinate of every client's steps
    steps = rng.standard_normal((4000, N, tau)) * sigma / batch * eta
    moved = steps.sum(2).mean(1)
    assert moved.std() == pytest.approx(deviation(rule.terms, tau, range(N)) * sigma, rel=0.05)
