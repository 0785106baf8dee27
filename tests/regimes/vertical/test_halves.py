"""Halves that exchange messages are one network: the same weights as one joint graph with an
explicit list of what came before.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from permitted import permit
from sordino.base import entropy
from sordino.base.entropy import Seeded
from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Derivative, numbers, packed
from sordino.mechanisms.gaussian import Single
from sordino.privacy import Allowance
from sordino.regimes.vertical import models
from sordino.regimes.vertical.halves import HalfSettings, Party, PartyNoise, Server
from sordino.regimes.vertical.method import Dlr, OnlineMethod, Slr
from sordino.regimes.vertical.study import SplitModel

CLASSES, PARTIES = 3, 3
FEATURES = (4, 16, 2)
NOTHING = PartyNoise()


def networks(seed: int = 0) -> tuple[nn.Module, list[nn.Module]]:
    """A server and three parties of different kinds: ReLU, a convolution normalised within an
    example, tanh with a constant layer.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        image = nn.Sequential(
            nn.Unflatten(1, (1, 4, 4)),
            nn.Conv2d(1, 4, 3),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(16, 3),
        )
        constant = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        constant[0].requires_grad_(False)
        parties: list[nn.Module] = [models.linear_layers((4, 5, 2), last=True), image, constant]
        return nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, CLASSES)), parties


def half(values: Tensor, bits: int) -> Tensor:
    return values if bits == 32 else values.to(torch.float16).to(torch.float32)


@dataclass
class Twin:
    """Everything in one graph, with every gradient or example of the past in a list."""

    server: nn.Module
    parties: list[nn.Module]
    rates: tuple[float, ...]  # the server's first
    length: int
    alpha: float
    replays: bool
    bits: int
    frozen: Sequence[int] = ()
    buffered: bool = True
    fades: bool = False
    time: int = 0
    rows: int = 1  # examples in the mean: what travels is each one's own derivative
    # newest first; of each participant
    past: list[list[list[Tensor]]] = field(default_factory=list)
    examples: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sent, start = [], 0
        for module, width in zip(self.parties, FEATURES, strict=True):
            h = module(x[:, start : start + width])
            start += width
            rounded = h + (half(h, self.bits) - h).detach()
            if rounded.requires_grad:
                rounded.register_hook(lambda v: half(v * self.rows, self.bits) / self.rows)
            sent.append(rounded)
        scores = self.server(torch.cat(sent, 1))
        return F.cross_entropy(scores, y), scores

    def window(self, place: int) -> list[list[list[Tensor]]]:
        return self.past[:1] if place and not self.buffered else self.past

    def event(self, x: Tensor, y: Tensor, active: Sequence[bool]) -> tuple[Tensor, float]:
        self.rows = len(x) * (self.length if self.replays else 1)
        own, scores = self.loss(x, y)
        objective = own
        if self.replays:
            self.examples = [(x, y), *self.examples][: self.length]
            joined = (
                torch.cat([kept for kept, _ in self.examples]),
                torch.cat([kept for _, kept in self.examples]),
            )
            objective = self.loss(*joined)[0] * (len(self.examples) / self.length)
        who = [self.server, *self.parties]
        parameters = [[p for p in module.parameters() if p.requires_grad] for module in who]
        grads = torch.autograd.grad(objective, [p for group in parameters for p in group])
        now, start = [], 0
        for place, group in enumerate(parameters):
            learns = place == 0 or (active[place - 1] and place - 1 not in self.frozen)
            now.append(
                [g if learns else torch.zeros_like(g) for g in grads[start : start + len(group)]]
            )
            start += len(group)
        self.past = [now, *self.past][: 1 if self.replays else self.length]
        whole = 1.0 if self.replays else sum(self.alpha**i for i in range(self.length))
        self.time += 1
        falls = math.sqrt(self.time) if self.fades else 1.0
        with torch.no_grad():
            for place, group in enumerate(parameters):
                if place and (not active[place - 1] or place - 1 in self.frozen):
                    continue
                for k, parameter in enumerate(group):
                    step = sum(
                        (
                            self.alpha**i * then[place][k]
                            for i, then in enumerate(self.window(place))
                        ),
                        start=torch.zeros(()),
                    )
                    parameter.sub_(step, alpha=self.rates[place] / whole / falls)
        return scores.detach().argmax(1), float(own.detach())


def paid(party: Party) -> Allowance:
    """For one appearance."""
    return Allowance([permit(party.price, unit=party.unit)])


@dataclass
class Split:
    """The halves under test, and messages handed over by hand."""

    server: Server
    parties: list[Party]
    number: int = 0

    @property
    def all(self) -> list[Any]:
        return [self.server, *self.parties]

    def event(self, x: Tensor, y: Tensor, active: Sequence[bool]) -> Any:
        self.number += 1
        sent, start = [], 0
        for party, speaks in zip(self.parties, active, strict=True):
            width = (
                FEATURES[party.index]
                if len(FEATURES) == len(self.parties)
                else x.shape[1] // len(self.parties)
            )
            message = party.embed(self.number, x[:, start : start + width], speaks, paid(party))
            start += width
            assert (message.party, message.event, message.active) == (
                party.index,
                self.number,
                speaks,
            )
            sent.append(numbers(message, len(message.values) * 8 // message.bits))
        made = self.server.learn(
            self.number, sent, y, [m for m, speaks in enumerate(active) if speaks]
        )
        assert [d.party for d in made.derivatives] == [
            m for m, speaks in enumerate(active) if speaks
        ]
        for derivative in made.derivatives:
            assert self.parties[derivative.party].learn(derivative) == (
                not self.parties[derivative.party].frozen
            )
        return made


def split(
    plan: HalfSettings,
    rates: Sequence[float],
    *,
    noise: PartyNoise = NOTHING,
    frozen: Sequence[int] = (),
) -> Split:
    server, parties = networks()
    made = [
        Party(m, module, FEATURES[m], plan, rates[m + 1], noise, m in frozen)
        for m, module in enumerate(parties)
    ]
    return Split(Server(server, plan, rates[0]), made)


def drawn(seed: int, batch: int) -> tuple[Tensor, Tensor]:
    rng = Seeded(seed).at("example")
    x = torch.from_numpy(rng.standard_normal((batch, sum(FEATURES))).astype(np.float32))
    return x, torch.from_numpy(rng.integers(CLASSES, size=batch))


def parameters_of(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


masks = st.lists(st.tuples(*[st.booleans()] * PARTIES), min_size=1, max_size=10)
rates = st.tuples(*[st.sampled_from([0.02, 0.1, 0.4])] * (PARTIES + 1))


@settings(max_examples=20)
@given(
    method=st.sampled_from(["ogd", "dlr", "slr"]),
    masks=masks,
    length=st.integers(1, 5),
    alpha=st.floats(0.1, 1.0),
    batch=st.integers(1, 3),
    bits=st.sampled_from([16, 32]),
    rates=rates,
    frozen=st.sets(st.integers(0, 2), max_size=2),
    buffered=st.booleans(),
    fades=st.booleans(),
)
def test_message_by_message_is_one_network(
    method: str,
    masks: list[tuple[bool, ...]],
    length: int,
    alpha: float,
    batch: int,
    bits: int,
    rates: tuple[float, ...],
    frozen: set[int],
    buffered: bool,
    fades: bool,
) -> None:
    if method == "ogd":
        length, alpha = 1, 1.0
    buffered = buffered or method == "slr"
    schedule: Literal["inverse-root"] | None = "inverse-root" if fades else None
    online: OnlineMethod = Slr(length=length, batch=batch, schedule=schedule)
    if method != "slr":
        buffer: Literal["server"] | None = None if buffered else "server"
        online = Dlr(length=length, alpha=alpha, batch=batch, buffer=buffer, schedule=schedule)
    plan = HalfSettings(online, bits)
    own = split(plan, rates, frozen=sorted(frozen))
    twin = Twin(
        *networks(),
        rates=rates,
        length=length,
        alpha=alpha,
        replays=method == "slr",
        bits=bits,
        frozen=sorted(frozen),
        buffered=buffered,
        fades=fades,
    )
    for seed, active in enumerate(masks):
        x, y = drawn(seed, batch)
        made = own.event(x, y, active)
        predictions, loss = twin.event(x, y, active)
        assert made.loss == pytest.approx(loss, rel=1e-3 if bits == 16 else 1e-4)
        scores = twin_margin(twin, x)
        for found, expected, margin in zip(made.predictions, predictions, scores, strict=True):
            # after the step, a rough look at how sure it was
            assert found == expected or margin < 1e-2
        squares = [
            float(sum(((twin_sum(twin, p, k)) ** 2).sum() for k in range(len(twin.past[0][p]))))
            for p in range(PARTIES + 1)
        ]
        shown = [
            own.server.square(own.number),
            *(party.square(own.number) for party in own.parties),
        ]
        assert shown == pytest.approx(squares, rel=2e-2 if bits == 16 else 1e-3, abs=1e-5)
    tolerance = 3e-3 if bits == 16 else 2e-5
    for mine, theirs in zip(own.all, [twin.server, *twin.parties], strict=True):
        torch.testing.assert_close(
            parameters_of(mine.flat.module), parameters_of(theirs), rtol=0, atol=tolerance
        )


def twin_margin(twin: Twin, x: Tensor) -> list[float]:
    with torch.no_grad():
        best = twin.loss(x, torch.zeros(len(x), dtype=torch.int64))[1].topk(2, 1).values
    return [float(v) for v in best[:, 0] - best[:, 1]]


def twin_sum(twin: Twin, who: int, k: int) -> Tensor:
    whole = 1.0 if twin.replays else sum(twin.alpha**i for i in range(twin.length))
    return (
        sum(
            (twin.alpha**i * then[who][k] for i, then in enumerate(twin.window(who))),
            start=torch.zeros(()),
        )
        / whole
    )


def test_the_linear_model_is_multinomial_logistic_regression_on_all_features() -> None:
    """By plain SGD in float64, with the biases of all halves as one: it moves as often as there are
    halves.
    """
    rng, eta, parties = np.random.default_rng(0), 0.05, 4
    plan = HalfSettings(Dlr(length=1, alpha=1.0, batch=2), 32)
    made = [models.party(SplitModel(name="linear"), 3, CLASSES) for _ in range(parties)]
    server = models.server(SplitModel(name="linear"), CLASSES * parties, CLASSES)
    own = Split(
        Server(server, plan, eta),
        [Party(m, module, 3, plan, eta, NOTHING, False) for m, module in enumerate(made)],
    )
    W = np.concatenate(
        [
            module.weight.detach().double().numpy()
            for module in made
            if isinstance(module, nn.Linear)
        ],
        1,
    )
    b = np.sum(
        [module.bias.detach().double().numpy() for module in made if isinstance(module, nn.Linear)],
        0,
    )
    for _ in range(60):
        x, y = rng.standard_normal((2, 12)).astype(np.float32), rng.integers(CLASSES, size=2)
        scores = x @ W.T + b
        share = np.exp(scores - scores.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        found = own.event(torch.from_numpy(x), torch.from_numpy(y), [True] * parties)
        assert found.predictions.tolist() == scores.argmax(1).tolist()
        assert found.loss == pytest.approx(-np.log(share[[0, 1], y]).mean(), rel=1e-4)
        slope = (share - np.eye(CLASSES)[y]) / 2
        W, b = W - eta * slope.T @ x, b - eta * (parties + 1) * slope.sum(0)
    halves = [party.flat.module for party in own.parties]
    W_found = torch.cat([module.weight for module in halves if isinstance(module, nn.Linear)], 1)
    np.testing.assert_allclose(W_found.detach().numpy(), W, atol=1e-5)


@pytest.mark.parametrize("bits", [16, 32])
def test_what_travels_is_the_derivative_of_each_examples_own_loss(bits: int) -> None:
    """Scores so sure that of the mean over a window 16 bits would leave one digit; of each
    example's own slope they leave three.
    """
    length, score = 400, 10.0  # 1 - p = 4.5e-5, and float16 goes in steps of 6e-8 there
    plan = HalfSettings(Slr(length=length), bits)
    server = Server(models.server(SplitModel(name="linear"), 2, 2), plan, 0.1)
    sent = np.zeros((length, 2), np.float32)
    sent[0] = score, 0.0
    (answer,) = server.learn(
        1, [sent.reshape(-1)], torch.zeros(1, dtype=torch.int64), [0]
    ).derivatives
    v = numbers(answer, 2 * length).reshape(length, 2)
    miss = 1.0 / (1.0 + math.exp(score))
    np.testing.assert_allclose(v[0], [-miss, miss], rtol=5e-3)
    assert not v[1:].any()


def test_a_derivative_counts_once_and_for_its_own_event() -> None:
    plan = HalfSettings(Dlr(length=3, alpha=0.9), 32)
    own = split(plan, (0.1,) * 4)
    own.event(*drawn(0, 1), [True, True, True])
    party, x = own.parties[0], drawn(1, 1)[0][:, :4]

    def answer(event: int, *, who: int = 0) -> Derivative:
        return Derivative(who, event, 32, packed(np.ones(2, np.float32), 32))

    def kept() -> list[bytes]:
        return [value.tobytes() for value in party.pack().values()]

    before = kept()
    assert not party.learn(answer(1))  # a second time
    party.embed(2, x, True, paid(party))
    for wrong in (answer(1), answer(3), answer(-2), answer(2, who=1)):
        assert not party.learn(wrong)
    for broken in (
        Derivative(0, 2, 32, bytes(4)),
        Derivative(0, 2, 64, bytes(16)),
        Derivative(0, 2, 16, bytes(8)),
        Derivative(0, 2, 32, packed(np.array([np.nan, 0.0], np.float32), 32)),
        Derivative(0, 2, 32, packed(np.array([np.inf, 0.0], np.float32), 32)),
        Derivative(0, 2, 32, b""),
    ):
        with pytest.raises(RemoteProtocolError):
            party.learn(broken)
    assert kept() == before
    assert party.learn(answer(2))  # the good one still counts
    assert kept() != before
    before = kept()
    assert not party.learn(answer(2))
    party.embed(3, x, False, paid(party))
    assert not party.learn(answer(3))  # a passive party waits for nothing
    assert kept() == before


@pytest.mark.parametrize("again", [False, True])
def test_what_was_packed_goes_on_as_if_nothing_had_happened(again: bool) -> None:
    plan = HalfSettings(Slr(length=3, batch=2) if again else Dlr(length=3, alpha=0.9, batch=2), 16)
    one, other = split(plan, (0.1,) * 4), split(plan, (0.1,) * 4)
    pattern = [
        (True, False, True),
        (False, False, True),
        (True, True, False),
        (False, False, False),
    ]
    for seed in range(9):
        if seed == 5:
            for mine, theirs in zip(one.all, other.all, strict=True):
                theirs.unpack(copy.deepcopy(mine.pack()))
                short = mine.pack() | {"ring": mine.pack()["ring"][:, 1:]}
                with pytest.raises(ValueError, match="a window has shape"):
                    copy.deepcopy(theirs).unpack(short)
            other.number = one.number
        one.event(*drawn(seed, 2), pattern[seed % 4])
        if seed >= 5:
            other.event(*drawn(seed, 2), pattern[seed % 4])
    for mine, theirs in zip(one.all, other.all, strict=True):
        for name, value in mine.pack().items():
            assert value.tobytes() == theirs.pack()[name].tobytes(), name


CLIP, Z = 0.5, 1.7


def covered(*, embedding: bool = True, update: bool = True, key: str = "a") -> PartyNoise:
    single = Single(clip=CLIP, noise_multiplier=Z)
    entropy = Seeded(7, key)
    return PartyNoise(
        embedding=single if embedding else None,
        update=single if update else None,
        embedding_draws=entropy.stream("embedding"),
        update_draws=entropy.stream("update"),
    )


@pytest.mark.parametrize("again", [False, True])
def test_embeddings_go_out_shortened_and_with_the_noise_that_is_booked(again: bool) -> None:
    """Every row by itself, also where a window of them is sent: 2/3 or 3/2 of the scale would be
    seen.
    """
    plan = HalfSettings(Slr(length=4) if again else Dlr(length=4, alpha=1.0), 32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Linear(2, 40)
    party = Party(0, module, 2, plan, 0.1, covered(update=False), False)
    rows, sums = [], np.zeros((plan.rows, 40))
    for event in range(1, 400):
        message = party.embed(event, torch.tensor([[3.0, -4.0]]), False, paid(party))
        rows.append(numbers(message, plan.rows * 40).reshape(plan.rows, 40).astype(np.float64))
        sums += rows[-1]
    clean = module(torch.tensor([[3.0, -4.0]])).detach().double().numpy()
    clean *= min(1.0, CLIP / np.linalg.norm(clean))
    late = np.stack(rows[4:])  # the window is full
    noise = (late - clean) / (2 * CLIP * Z)
    count = noise.size
    assert abs(noise.mean()) < 5 / math.sqrt(count)
    # 2/3 of the scale is 0.44, 3/2 is 2.25
    assert abs(noise.var() - 1.0) < 5 * math.sqrt(2 / count)
    assert np.abs(
        np.corrcoef(noise.reshape(len(late), -1)[:30]) - np.eye(30)
    ).max() < 7 / math.sqrt(plan.rows * 40)
    for wrong in (2 / 3, 3 / 2):
        assert abs((noise * wrong).var() - 1.0) > 5 * math.sqrt(2 / count)


def test_noise_is_numbered_by_event_and_differs_between_embedding_and_update() -> None:
    plan = HalfSettings(Dlr(length=1, alpha=1.0), 32)
    x = drawn(0, 1)[0][:, :4]

    def sent(event: int) -> bytes:
        party = Party(0, networks()[1][0], 4, plan, 0.1, covered(), False)
        return party.embed(event, x, True, paid(party)).values

    assert sent(1) == sent(1)
    assert sent(1) != sent(2)


@pytest.mark.parametrize("again", [False, True])
def test_a_row_moves_an_update_by_what_is_booked_at_most_and_hardly_less(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brute force: the noise is the same, so the difference of two parties' first windows is that
    of their shortened gradients.
    """
    monkeypatch.setattr(entropy, "digest", lambda *parts: bytes(32))
    plan = HalfSettings(
        Slr(length=2 if again else 1) if again else Dlr(length=2 if again else 1, alpha=1.0), 32
    )
    widest, noise = 0.0, covered()
    for seed in range(60):
        ends = []
        rng = Seeded(seed).at("rows")
        own, other = (
            torch.from_numpy(rng.standard_normal((1, 16)).astype(np.float32) * size)
            for size in (1.0, 100.0)
        )
        v = rng.standard_normal(3 * plan.rows).astype(np.float32) * 1e3
        for x in (own, other, -own):
            party = Party(1, networks()[1][1], 16, plan, 1.0, noise, False)
            before = party.flat.weights.clone()
            party.embed(1, x, True, paid(party))
            assert party.learn(Derivative(1, 1, 32, packed(v, 32)))
            ends.append((before - party.flat.weights).double())
        for left, right in ((0, 1), (0, 2), (1, 2)):
            widest = max(widest, float(torch.linalg.vector_norm(ends[left] - ends[right])))
        deviation = float((ends[0]).std())
        assert 0.5 < deviation / (2 * CLIP * Z) < 1.5  # noise there is, on all of it
    assert widest <= 2 * CLIP * (1 + 1e-4)
    assert widest > 1.2 * CLIP  # and it is not that nothing moves


def test_a_window_of_covered_gradients_has_each_noise_once() -> None:
    """What leaves a window is what entered it: no fresh noise, and no raw gradient."""
    plan = HalfSettings(Dlr(length=3, alpha=0.5), 32)
    party = Party(0, networks()[1][0], 4, plan, 1.0, covered(embedding=False), False)
    seen: list[Tensor] = []
    release = Single.release

    def spy(self: Single, v: Tensor, rng: np.random.Generator) -> Tensor:
        seen.append(release(self, v, rng).clone())
        return seen[-1].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Single, "release", spy)
        for event in range(1, 6):
            before = party.flat.weights.clone()
            party.embed(event, drawn(event, 1)[0][:, :4], True, paid(party))
            party.learn(Derivative(0, event, 32, packed(np.ones(2, np.float32), 32)))
            newest = seen[::-1][:3]
            expected = sum((0.5**i * g for i, g in enumerate(newest)), start=torch.zeros(())) / 1.75
            torch.testing.assert_close(before - party.flat.weights, expected, rtol=1e-4, atol=1e-4)
    assert len(seen) == 5


def test_a_frozen_party_answers_and_never_moves() -> None:
    plan = HalfSettings(Dlr(length=2, alpha=0.5), 32)
    own = split(plan, (0.1,) * 4, frozen=(0, 1, 2))
    before = [party.flat.weights.clone() for party in own.parties]
    server = own.server.flat.weights.clone()
    for seed in range(5):
        own.event(*drawn(seed, 1), [True, True, False])
    assert all(
        torch.equal(party.flat.weights, then)
        for party, then in zip(own.parties, before, strict=True)
    )
    assert not torch.equal(own.server.flat.weights, server)
    assert [party.square(5) for party in own.parties] == [0.0, 0.0, 0.0]


@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20
    )
)
def test_sixteen_bits_round_as_numpy_does(values: list[float]) -> None:
    array = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        expected = array.astype(np.float16)
    message = Derivative(0, 1, 16, packed(array, 16))
    if np.isfinite(expected).all():
        assert numbers(message, len(values)).tolist() == expected.astype(np.float32).tolist()
    else:
        with pytest.raises(RemoteProtocolError, match="not finite"):
            numbers(message, len(values))
    assert numbers(Derivative(0, 1, 32, packed(array, 32)), len(values)).tolist() == array.tolist()
