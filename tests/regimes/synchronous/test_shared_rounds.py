"""Rounds whose noise the clients share: what is asked, opened, refused and booked."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from permitted import permit, permits
from sordino.base.entropy import Seeded
from sordino.base.errors import LocalProtocolError
from sordino.base.message import Contribution, Masked, Train, Update, decode, encode
from sordino.base.residues import lifted, packed, reduced, unpacked
from sordino.core.effect import (
    Arrived,
    Begin,
    Book,
    Closed,
    Left,
    Log,
    Open,
    Overtaken,
    Send,
    Summed,
    Wake,
    Woke,
)
from sordino.core.effect import Booked as Paid
from sordino.mechanisms.gaussian import Gaussian
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import PoissonSampled
from sordino.privacy.event import Gaussian as Booked
from sordino.regimes.synchronous.aggregate import SharedSum, State
from sordino.regimes.synchronous.method import Terms
from sordino.regimes.synchronous.methods import AliDpfl, DpFedAvg, DpSgd
from sordino.regimes.synchronous.protocol import Synchronous
from sordino.training import models
from sordino.training.client import ModelKernels, PrivateClient
from sordino.training.flat import Flat
from sordino.training.local import Part, SummedClient, SummedLocalClient
from sordino.training.loss import cross_entropy
from sordino.training.optimizer import Sgd
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

N, H, D, BITS, Q, SIGMA = 5, 3, 4, 32, 0.2, 1.5
RULE = SharedNoise(most=(10.0,) * N, dimension=D, honest=H, rounds=6, bits=BITS)
GRID = RULE.grid(1.0, SIGMA)


def rules(*, whole: bool = False, deadline: float | None = None, method: Any = None) -> Synchronous:
    terms = Terms(
        dimension=D,
        sizes=(100,) * N,
        weights=(1 / N,) * N,
        sampling_rate=Q,
        learning_rate=0.5,
        clip=1.0,
        noise=SIGMA,
        rounds=6,
        steps=None if whole else 6,
        sigma=SIGMA,
    )
    adder = SharedSum(
        rule=RULE, weights=terms.weights, scale=-2.0, sampling_rate=Q, whole=whole, fewest=H
    )
    return Synchronous(
        method=method or (DpFedAvg(tau=3) if whole else DpSgd()),
        terms=terms,
        budget=None if whole else np.full(N, 6),
        affordable_rounds=6 if whole else None,
        entropy=Seeded(0),
        adder=adder,
        deadline=deadline,
    )


def sent(client: int, number: int, steps: list[int]) -> Arrived:
    """Whole steps of the grid, as they travel."""
    return Arrived(Masked(client, number, packed(reduced(np.array(steps), BITS), BITS)))


def tells(rule: Synchronous, state: State, *events: Any) -> tuple[State, list[Any]]:
    seen: list[Any] = []
    for event in events:
        state, effects = rule.step(state, event)
        seen += effects
    return state, seen


def of(kind: type[Any], effects: Any) -> list[Any]:
    return [each for each in effects if isinstance(each, kind)]


def began(rule: Synchronous) -> tuple[State, list[Any]]:
    return tells(rule, rule.start(np.zeros(D, np.float32)), Begin())


def row(effects: list[Any]) -> Any:
    (found,) = of(Log, effects)
    return found.row


def test_a_round_opens_the_sum_of_all_and_moves_the_model_by_it() -> None:
    rule = rules()
    state, asked = began(rule)
    assert [each.site for each in of(Send, asked)] == list(range(N))
    assert all(each.message.steps == 1 for each in of(Send, asked))
    state, seen = tells(rule, state, *(sent(i, 1, [i, -i, 1, 2**30]) for i in (3, 0, 4, 1)))
    assert not of(Open, seen)
    state, (opens,) = tells(rule, state, sent(2, 1, [2, -2, 1, 2**30]))
    assert (opens.number, opens.clients) == (1, (0, 1, 2, 3, 4))
    wrapped = 5 * 2**30 - 2**32  # beyond 2^31, it comes round
    state, seen = tells(rule, state, Summed(1, opens.clients, opens.values))
    moved = -2.0 * GRID.step * np.array([10, -10, 5, wrapped])
    assert np.allclose(state.weights, moved.astype(np.float32))
    assert of(Closed, seen)
    assert (row(seen).answered, row(seen).missing, row(seen).note) == (5, 0, None)
    assert (state.total, state.arrived, state.opening) == (None, (), False)


def test_any_order_of_arrival_gives_the_same_bits() -> None:
    found = []
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        rule = rules()
        state, _ = began(rule)
        rng = np.random.default_rng(0)
        steps = rng.integers(-(2**29), 2**29, (N, D)).tolist()
        state, (opens,) = tells(rule, state, *(sent(i, 1, steps[i]) for i in order))
        state, _ = tells(rule, state, Summed(1, opens.clients, opens.values))
        found.append(state.weights.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("came", [0, 1, H - 1])
def test_a_sum_of_fewer_than_the_honest_is_never_opened(came: int) -> None:
    rule = rules(deadline=2.0)
    state, asked = began(rule)
    (wake,) = of(Wake, asked)
    state, seen = tells(rule, state, *(sent(i, 1, [1] * D) for i in range(came)))
    assert seen == []
    state, seen = tells(rule, state, Woke(wake.tag))
    assert not of(Open, seen)
    assert of(Closed, seen)
    assert f"{came} of the {H} contributions" in row(seen).note
    assert not state.weights.any()
    assert state.steps.tolist() == [1] * N  # what was asked for is paid for


def test_a_deadline_opens_what_came_and_divides_by_it() -> None:
    rule = rules(deadline=2.0)
    state, asked = began(rule)
    state, seen = tells(rule, state, *(sent(i, 1, [8] * D) for i in (0, 2, 4)))
    state, (opens,) = tells(rule, state, Woke(of(Wake, asked)[0].tag))
    assert opens.clients == (0, 2, 4)
    # nothing more is added, and nothing closes it but the sum
    state, seen = tells(rule, state, sent(1, 1, [9] * D), Woke("round 1"), Left(1), Left(3, True))
    assert not of(Open, seen)
    assert not of(Closed, seen)
    assert not rule.expects(state, 1, 1)
    state, seen = tells(rule, state, Summed(1, opens.clients, opens.values))
    assert np.allclose(state.weights, -2.0 * GRID.step * 24 * N / 3, rtol=1e-6)
    assert state.absent == {1, 3}


@pytest.mark.parametrize("clients", [(), (0, 1, 2), (0, 1, 2, 3)])
def test_a_sum_that_is_lost_or_of_others_leaves_the_model(clients: tuple[int, ...]) -> None:
    rule = rules()
    state, _ = began(rule)
    state, (opens,) = tells(rule, state, *(sent(i, 1, [1] * D) for i in range(N)))
    kept, nothing = tells(rule, state, Summed(2, opens.clients, opens.values))
    assert (nothing, kept) == ([], state)
    state, seen = tells(rule, state, Summed(1, clients, opens.values))
    assert "could not be opened" in row(seen).note
    assert not state.weights.any()
    assert not state.opening


@pytest.mark.parametrize("came", [0, H, N])
def test_where_a_server_has_lost_rounds_its_open_sum_is_void(came: int) -> None:
    """Nobody opened it, so it is masks alone: to move the model by it would destroy the model."""
    rule = rules()
    state, _ = began(rule)
    rng = np.random.default_rng(0)
    masked = rng.integers(-(2**31), 2**31, (came, D)).tolist()
    state, _ = tells(rule, state, *(sent(i, 1, masked[i]) for i in range(came)))
    state, seen = tells(rule, state, Overtaken(4, steps=(4,) * N))
    assert not state.weights.any()
    assert row(seen).note.endswith("void")
    assert (state.number, state.open, state.opening) == (4, False, False)


def test_what_is_no_contribution_to_the_open_round_changes_nothing() -> None:
    rule = rules()
    first, _ = began(rule)
    good = sent(0, 1, [1] * D)
    state, _ = tells(rule, first, good)
    short = Arrived(Masked(1, 1, b"\0" * (4 * D - 1)))
    model = Arrived(Update(client=1, round=1, steps=1, weights=np.zeros(D, np.float32)))
    delta = np.zeros(D, np.float32)
    raw = Arrived(Contribution(client=1, round=1, steps=1, delta=delta, inside=True))
    for event in (good, sent(1, 2, [1] * D), sent(9, 1, [1] * D), short, model, raw):
        after, effects = rule.step(state, event)
        assert after is state
        assert type(row(list(effects))).__name__ == "Dropped"


def test_where_too_few_are_within_reach_nobody_is_asked_or_charged() -> None:
    for whole in (False, True):
        rule = rules(whole=whole, deadline=2.0)
        state = msgspec.structs.replace(
            rule.start(np.zeros(D, np.float32)), absent=frozenset(range(H - 1, N))
        )
        state, seen = tells(rule, state, Begin())
        assert not of(Send, seen)
        assert not of(Book, seen)
        assert not state.steps.any()
        state, seen = tells(rule, state, Woke(of(Wake, seen)[0].tag))
        assert of(Closed, seen)
    rule = rules()
    state = msgspec.structs.replace(
        rule.start(np.zeros(D, np.float32)), absent=frozenset(range(H - 1, N))
    )
    state, seen = tells(rule, state, Begin())
    assert state.ended is not None
    assert f"fewer than {H}" in state.ended


def test_whole_clients_are_all_booked_and_all_asked() -> None:
    rule = rules(whole=True)
    state, (book,) = began(rule)
    assert book == Book(1, PoissonSampled(Q, Booked(noise_multiplier=SIGMA)))
    state, asked = tells(rule, state, Paid((permit(book.fact, 1, 1),)))
    assert [each.site for each in of(Send, asked)] == list(range(N))
    assert not rule.secret


def test_an_adaptive_method_takes_one_step() -> None:
    """Even where its budget would pay for more, no round has two."""
    rule = rules(method=AliDpfl())
    rule = replace(rule, terms=replace(rule.terms, steps=50), budget=np.full(N, 50))
    _, asked = began(rule)
    assert {each.message.steps for each in of(Send, asked)} == {1}


def test_a_masked_message_survives_the_wire() -> None:
    said = Masked(3, 7, packed(reduced(np.array([1, -1, 0, 2**31 - 1]), BITS), BITS))
    assert decode(encode(said), dimension=D) == said


# Clients.


def kernels() -> ModelKernels:
    flat = Flat(models.build("logistic", (6,), 3, np.random.default_rng(0)))
    return ModelKernels(flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy))


def examples(count: int = 60) -> Examples:
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.standard_normal((count, 6)).astype(np.float32))
    return Examples(x, torch.from_numpy(rng.integers(0, 3, count)))


def summed(sigma: float = 1e-3, weight: float = 1.0, honest: int = 1) -> SummedClient:
    rule = SharedNoise(most=(60.0,), dimension=kernels().flat.dim, honest=honest, rounds=1)
    return SummedClient(
        index=0,
        unit="client:0",
        examples=examples(),
        mechanism=Gaussian(clip=0.5, noise_multiplier=sigma),
        sampling_rate=Q,
        kernels=kernels(),
        part=Part(client=0, rule=rule, weight=weight, entropy=Seeded(9)),
        entropy=Seeded(5),
    )


def task(d: int, **changes: Any) -> Train:
    told: dict[str, Any] = {"round": 1, "steps": 1, "weights": np.full(d, 0.01, np.float32)}
    return Train(**{**told, **changes})


@pytest.mark.parametrize("weight", [1.0, 0.37])
def test_what_a_client_sends_is_its_sum_of_clipped_gradients(weight: float) -> None:
    """With next to no noise: the step that DP-SGD with noise of its own takes on the same batch."""
    one = summed(weight=weight)
    own = PrivateClient(
        index=0,
        unit="client:0",
        examples=one.examples,
        mechanism=Gaussian(clip=0.5, noise_multiplier=1e-3),
        sampling_rate=Q,
        learning_rate=1.0,
        optimizer=Sgd(),
        kernels=one.kernels,
        entropy=Seeded(5),
    )
    asked = task(one.kernels.flat.dim)
    step = own.answer(asked, permits(own.price(asked))).weights - asked.weights
    masked = one.answer(asked, permits(one.price(asked)))
    grid = one.part.rule.grid(0.5, 1e-3)
    total = SharedSum(
        rule=one.part.rule, weights=(1.0,), scale=1, sampling_rate=Q, whole=False, fewest=1
    )
    residues = total.added(None, masked)
    assert residues is not None
    expected = -step * own.expected_batch * weight
    assert np.abs(grid.opened(residues) - expected).max() < 8 * 0.5e-3
    assert np.abs(expected).max() > 0.1
    assert one.answer(asked, permits(one.price(asked))) == masked


@pytest.mark.parametrize("bits", [16, 20, 32])
@pytest.mark.parametrize("weight", [1.0, 0.37])
def test_one_example_moves_what_is_sent_by_no_more_than_is_booked(
    bits: int, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the machine computes it: the same draws with an example, which may be huge, and with one
    that contributes nothing.
    """
    monkeypatch.setattr("sordino.base.entropy.digest", lambda *parts: bytes(32))
    one = summed(sigma=1.0, weight=weight)
    rule = replace(one.part.rule, bits=bits)
    one = replace(one, part=replace(one.part, rule=rule), sampling_rate=1.0)
    grid, farthest = rule.grid(0.5, 1.0), 0.0
    for place, scale in itertools.product(range(6), (1e-3, 1.0, 1e4, 1e30)):
        found = []
        for factor in (scale, math.nan):
            x = one.examples.x.clone()
            x[place] *= factor
            client = replace(one, examples=Examples(x, one.examples.y))
            asked = task(rule.dimension, round=place + 1)
            said = client.answer(asked, permits(client.price(asked), place + 1))
            found.append(unpacked(said.values, rule.dimension, bits))
        change = lifted(found[0] - found[1], bits)
        farthest = max(farthest, float(np.linalg.norm(change)))
    assert 0.5 * weight / grid.step * 0.9 < farthest <= grid.moved


def test_a_client_answers_nothing_but_one_paid_step() -> None:
    one = summed(sigma=1.0)
    asked = task(one.kernels.flat.dim)
    assert one.price(asked) == ((PoissonSampled(Q, Booked(noise_multiplier=1.0)), 1),)
    with pytest.raises(LocalProtocolError, match="the ledger charged"):
        one.answer(asked, [])
    for changes in ({"steps": 2}, {"wants_first": True}, {"loss_bound": 1.0}):
        more = task(one.kernels.flat.dim, **changes)
        with pytest.raises(LocalProtocolError, match="only the sum of one step"):
            one.price(more)


def whole(**changes: Any) -> SummedLocalClient:
    rule = SharedNoise(most=(1.0,), dimension=kernels().flat.dim, honest=1, rounds=200)
    return SummedLocalClient(
        index=0,
        unit="client:0",
        examples=examples(10),
        learning_rate=0.5,
        batch=5,
        proximal=0.0,
        optimizer=Sgd(),
        kernels=kernels(),
        entropy=Seeded(5),
        mechanism=Gaussian(clip=1.0, noise_multiplier=1e-4),
        sampling_rate=0.3,
        part=Part(client=0, rule=rule, weight=1.0, entropy=Seeded(9)),
        **changes,
    )


def test_a_client_draws_itself_with_the_rate_that_is_booked_and_sends_noise_otherwise() -> None:
    one = whole()
    rule = one.part.rule
    grid, lengths = rule.grid(1.0, 1e-4), []
    total = SharedSum(rule=rule, weights=(1.0,), scale=1, sampling_rate=0.3, whole=True, fewest=1)
    for number in range(1, 201):
        asked = task(rule.dimension, round=number, steps=2, clip=1.0, noise_multiplier=1e-4)
        said = one.answer(asked, permits(one.price(asked), number))
        residues = total.added(None, said)
        assert residues is not None
        lengths.append(float(np.linalg.norm(grid.opened(residues))))
    noise = 1e-4 * math.sqrt(rule.dimension)
    drawn = np.array(lengths) > 10 * noise
    assert np.array(lengths)[~drawn].max() < 3 * noise
    assert np.array(lengths)[~drawn].min() > 0.2 * noise
    assert drawn.mean() == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / 200))


def test_a_client_whose_time_is_seen_works_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not drawn would answer sooner; what it sends is the same bytes."""
    trained, train = list[int](), SummedLocalClient.train

    def trains(own: SummedLocalClient, asked: Train) -> torch.Tensor:
        trained.append(asked.round)
        return train(own, asked)

    monkeypatch.setattr(SummedLocalClient, "train", trains)
    said = []
    for one in (whole(), whole(watched=True)):
        terms = {"steps": 2, "clip": 1.0, "noise_multiplier": 1e-4}
        asks = [task(one.part.rule.dimension, round=n, **terms) for n in range(1, 21)]
        said.append([one.answer(a, permits(one.price(a), a.round)).values for a in asks])
    assert said[0] == said[1]
    assert 0 < len(trained) - 20 < 20
    assert trained[-20:] == list(range(1, 21))
