"""Events of the loop against the rules written out in float64, against autograd, and against
themselves in other pieces.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from sordino.regimes.vertical.halves import Played
from sordino.regimes.vertical.loop import BLOCK, Array, Loop, Rule, _half
from sordino.regimes.vertical.models import Chain, Net

Double = NDArray[np.float64]
Bools = NDArray[np.bool_]
Labels = NDArray[np.int64]
Events = tuple[Array, Labels, Bools]

SMALL = (Chain((3, 5), True), Chain((7, 9, 4), True), Chain((4, 6, 17)), Chain((26, 11, 5)))
ONE = (Chain((2, 3), True), Chain((3, 2)))
DEEP = (*(Chain((9, 32, 64, 98, 128), True),) * 2, Chain((256, 256, 128, 64, 32, 2)))
WIDE = (
    Chain((20, 40)),
    Chain((1, 1), True),
    Chain((33, 16, 31), True),
    Chain((16, 16), True),
    Chain((88, 3)),
)
PAPER = (*(Chain((196, 64), True),) * 4, Chain((256, 256, 10)))


def features(net: Net) -> tuple[int, ...]:
    return tuple(chain.widths[0] for chain in net[:-1])


def sent_by(net: Net) -> tuple[int, ...]:
    return tuple(chain.widths[-1] for chain in net[:-1])


def weights(net: Net, seed: int) -> tuple[Array, list[Array]]:
    rng = np.random.default_rng(seed)

    def of(chain: Chain) -> Array:
        parts = [
            rng.uniform(-1, 1, size) / inputs**0.5
            for inputs, outputs in chain.layers
            for size in (inputs * outputs, outputs)
        ]
        return np.concatenate(parts).astype(np.float32)

    return of(net[-1]), [of(party) for party in net[:-1]]


def named(server: Array, parties: list[Array]) -> dict[str, Array]:
    return {"server": server, **{f"party{m}": values for m, values in enumerate(parties)}}


def stream(net: Net, n: int, seed: int, share: float = 1.0) -> Events:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, sum(features(net)))).astype(np.float32)
    return x, rng.integers(0, net[-1].widths[-1], n), rng.random((n, len(net[:-1]))) < share


def rates(net: Net, seed: int, size: float = 0.1) -> tuple[float, ...]:
    rng = np.random.default_rng(seed)
    server, *parties = rng.uniform(0.1, 1, len(net[:-1]) + 1) * size
    return (*map(float, parties), float(server))


def half(values: Double) -> Double:
    return values.astype(np.float32).astype(np.float16).astype(np.float64)


@dataclass
class Twin:
    """The rules as they are written: dense gradients, a list of the last l of them, float64."""

    net: Net
    rule: Rule
    rates: tuple[float, ...]
    half: bool
    w: list[Double]  # parties, then the server
    running: bool = (
        False  # a sum that is kept up, where a window of whole gradients would take too long
    )
    window: deque[list[Double]] = field(default_factory=deque)
    total: list[Double] = field(default_factory=list)

    @staticmethod
    def of(
        net: Net,
        rule: Rule,
        rates: tuple[float, ...],
        seed: int,
        half: bool = False,
        running: bool = False,
    ) -> Twin:
        server, parties = weights(net, seed)
        return Twin(
            net, rule, rates, half, [w.astype(np.float64) for w in (*parties, server)], running
        )

    def event(self, x: Array, label: int, active: Bools) -> tuple[int, float, float]:
        """Prediction, loss, and |S|^2."""
        sent = half if self.half else np.array
        passes = [
            forward(c, w, part)
            for c, w, part in zip(self.net[:-1], self.w, split(x, features(self.net)), strict=False)
        ]
        embeddings = np.concatenate([sent(outputs[-1]) for outputs in passes])
        served = forward(self.net[-1], self.w[-1], embeddings)
        scores = served[-1]
        p = np.exp(scores - scores.max())
        p /= p.sum()
        slope = p.copy()
        slope[label] -= 1
        g_server, v = backward(self.net[-1], self.w[-1], served, slope)
        gradients = []
        for m, (chain, w, outputs, down) in enumerate(
            zip(self.net[:-1], self.w, passes, split(v, sent_by(self.net)), strict=False)
        ):
            g, _ = backward(chain, w, outputs, sent(down))
            gradients.append(g if active[m] else 0 * g)
        averaged = self.averaged([*gradients, g_server])
        for m, (step, average) in enumerate(zip(self.rates, averaged, strict=True)):
            if m == len(active) or active[m]:
                self.w[m] = self.w[m] - step * average
        return int(scores.argmax()), float(-np.log(p[label])), float(sum(a @ a for a in averaged))

    def averaged(self, gradients: list[Double]) -> list[Double]:
        length, alpha = self.rule.length, self.rule.alpha
        whole = sum(alpha**i for i in range(length))
        self.window.appendleft(gradients)
        dropped = self.window.pop() if len(self.window) > length else None
        if self.running:
            old = self.total or [0 * g for g in gradients]
            gone = dropped or [0 * g for g in gradients]
            self.total = [
                alpha * t + g - alpha**length * d
                for t, g, d in zip(old, gradients, gone, strict=True)
            ]
            return [t / whole for t in self.total]
        return [
            np.asarray(sum(alpha**i * g[m] for i, g in enumerate(self.window))) / whole
            for m in range(len(gradients))
        ]

    def run(self, x: Array, y: Labels, active: Bools) -> tuple[Labels, Double, Double]:
        seen = [self.event(*event) for event in zip(x, y, active, strict=True)]
        return (
            np.array([s[0] for s in seen]),
            np.array([s[1] for s in seen]),
            np.array([s[2] for s in seen]),
        )


def split(values: NDArray[np.floating], widths: tuple[int, ...]) -> list[Double]:
    ends = np.cumsum((0, *widths))
    return [values[a:b].astype(np.float64) for a, b in pairwise(ends)]


def layers(chain: Chain, w: Double) -> list[tuple[Double, Double]]:
    found, at = [], 0
    for inputs, outputs in chain.layers:
        end = at + inputs * outputs
        found.append((w[at:end].reshape(outputs, inputs), w[end : end + outputs]))
        at = end + outputs
    return found


def rectified(chain: Chain, number: int) -> bool:
    return chain.last or number < len(chain.layers) - 1


def forward(chain: Chain, w: Double, x: Double) -> list[Double]:
    outputs = [x]
    for number, (weight, bias) in enumerate(layers(chain, w)):
        z = weight @ outputs[-1] + bias
        outputs.append(np.maximum(z, 0) if rectified(chain, number) else z)
    return outputs


def backward(
    chain: Chain, w: Double, outputs: list[Double], slope: Double
) -> tuple[Double, Double]:
    parts: list[Double] = []
    for number, (weight, _) in reversed(list(enumerate(layers(chain, w)))):
        if rectified(chain, number):
            slope = slope * (outputs[number + 1] > 0)
        parts = [np.outer(slope, outputs[number]).ravel(), slope, *parts]
        slope = weight.T @ slope
    return np.concatenate(parts), slope


def begun(
    net: Net,
    rule: Rule,
    rates: tuple[float, ...],
    seed: int,
    half: bool = False,
    block: int = BLOCK,
) -> Loop:
    loop = Loop(net, rule, rates, half=half, block=block)
    loop.start(named(*weights(net, seed)))
    return loop


def pieces(events: Events, cuts: list[int]) -> list[Events]:
    ends = [0, *sorted(min(cut, len(events[0])) for cut in cuts), len(events[0])]
    return [(events[0][a:b], events[1][a:b], events[2][a:b]) for a, b in pairwise(ends)]


def joined(seen: list[Played]) -> tuple[Labels, Double, Double]:
    return tuple(
        np.concatenate([getattr(s, name) for s in seen])
        for name in ("predictions", "losses", "regret")
    )  # type: ignore[return-value]


def all_weights(loop: Loop) -> Array:
    server, *parties = loop.weights().values()
    return np.concatenate([*parties, server])


def compare(twin: Twin, loop: Loop, events: Events, cuts: list[int], reach: float = 2e-6) -> None:
    predictions, losses, regret = joined([loop.play(*piece) for piece in pieces(events, cuts)])
    wanted = twin.run(*events)
    assert np.abs(all_weights(loop) - np.concatenate(twin.w)).max() <= reach
    assert np.allclose(losses, wanted[1], rtol=1e-5, atol=reach)
    assert np.array_equal(predictions, wanted[0])
    # gradients may cancel in their average: what rounding leaves is measured by what was averaged
    assert np.allclose(regret, wanted[2], rtol=3e-6, atol=2e-6 * wanted[2].max(initial=0))


@settings(max_examples=25, deadline=None)
@given(
    net=st.sampled_from([SMALL, ONE, WIDE]),
    length=st.integers(1, 50),
    alpha=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    n=st.integers(0, 60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    block=st.sampled_from([1, 3, 16]),
    seed=st.integers(0, 10**6),
)
def test_equals_the_rule_in_float64(
    net: Net,
    length: int,
    alpha: float,
    share: float,
    n: int,
    cuts: list[int],
    block: int,
    seed: int,
) -> None:
    rule, steps = Rule(length, alpha), rates(net, seed)
    compare(
        Twin.of(net, rule, steps, seed),
        begun(net, rule, steps, seed, block=block),
        stream(net, n, seed, share),
        cuts,
    )


@pytest.mark.parametrize("length", [1, 7])
def test_equals_the_rule_on_deep_chains(length: int) -> None:
    rule, steps = Rule(length, 0.9), rates(DEEP, 1)
    compare(
        Twin.of(DEEP, rule, steps, 1), begun(DEEP, rule, steps, 1), stream(DEEP, 40, 1, 0.7), [17]
    )


@pytest.mark.parametrize("length", [10, pytest.param(150, marks=pytest.mark.nightly)])
def test_equals_the_rule_on_the_network_of_the_paper(length: int) -> None:
    rule, steps = Rule(length, 0.97), rates(PAPER, 2, 0.05)
    twin = Twin.of(PAPER, rule, steps, 2, running=True)
    compare(twin, begun(PAPER, rule, steps, 2), stream(PAPER, 2 * length + 70, 2, 0.8), [40], 5e-6)


def test_rounding_does_not_add_up() -> None:
    """After 2500 events the weights are as near to float64's as after 60, up to what learning
    itself makes of a difference.
    """
    rule, steps = Rule(20, 0.95), rates(SMALL, 3, 0.02)
    twin, loop = Twin.of(SMALL, rule, steps, 3), begun(SMALL, rule, steps, 3)
    events = stream(SMALL, 2500, 3, 0.6)
    compare(twin, loop, events, [500, 1500], 2e-5)


def modules(net: Net, seed: int) -> list[nn.Sequential]:
    """Parties, then the server, in float64."""
    server, parties = weights(net, seed)
    made = []
    for chain, w in zip(net, (*parties, server), strict=True):
        parts: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(chain.layers):
            parts += [
                nn.Linear(inputs, outputs),
                *([nn.ReLU()] if rectified(chain, number) else []),
            ]
        module = nn.Sequential(*parts).double()
        nn.utils.vector_to_parameters(torch.from_numpy(w).double(), module.parameters())
        made.append(module)
    return made


@pytest.mark.parametrize(
    ("net", "length", "alpha"), [(SMALL, 1, 1.0), (SMALL, 4, 0.7), (WIDE, 30, 1.0)]
)
def test_equals_autograd(net: Net, length: int, alpha: float) -> None:
    steps, (x, y, active) = rates(net, 4), stream(net, 50, 4, 0.6)
    loop, (*parties, server) = begun(net, Rule(length, alpha), steps, 4), modules(net, 4)
    whole = sum(alpha**i for i in range(length))
    kept = [deque[torch.Tensor](maxlen=length) for _ in range(len(parties) + 1)]
    for t in range(len(y)):
        parts = torch.split(torch.from_numpy(x[t]).double(), list(features(net)))
        scores = server(
            torch.cat([party(part) for party, part in zip(parties, parts, strict=True)])
        )
        nn.functional.cross_entropy(scores[None], torch.tensor([y[t]])).backward()  # type: ignore[no-untyped-call]
        for m, module in enumerate((*parties, server)):
            learns = m == len(parties) or bool(active[t, m])
            gradient = torch.cat(
                [p.grad.ravel() for p in module.parameters() if p.grad is not None]
            )
            kept[m].appendleft(gradient if learns else torch.zeros_like(gradient))
            step = steps[m] / whole
            if learns:
                change = torch.stack([alpha**i * g for i, g in enumerate(kept[m])]).sum(0)
                with torch.no_grad():
                    moved = nn.utils.parameters_to_vector(module.parameters()) - step * change
                    nn.utils.vector_to_parameters(moved, module.parameters())
            module.zero_grad()
    loop.play(x, y, active)
    wanted = torch.cat(
        [nn.utils.parameters_to_vector(module.parameters()) for module in (*parties, server)]
    )
    assert np.abs(all_weights(loop) - wanted.detach().numpy()).max() <= 2e-6


@pytest.mark.parametrize("seed", range(6))
def test_travels_as_half(seed: int) -> None:
    """A number that lies between two 16-bit floats may go the other way than in float64: few do,
    and none by more than one of them.
    """
    rule, steps, events = Rule(3, 0.8), rates(WIDE, seed, 0.5), stream(WIDE, 6, seed, 0.8)
    rounding, exact = Twin.of(WIDE, rule, steps, seed, half=True), Twin.of(WIDE, rule, steps, seed)
    loop = begun(WIDE, rule, steps, seed, half=True)
    seen, wanted, _ = loop.play(*events), rounding.run(*events), exact.run(*events)
    off, apart = (np.abs(all_weights(loop) - np.concatenate(twin.w)) for twin in (rounding, exact))
    assert np.median(off) < 1e-7
    assert np.median(apart) > 2e-7
    assert off.max() < 5e-3
    assert np.allclose(seen.losses, wanted[1], rtol=1e-3, atol=1e-4)


def test_rounding_is_that_of_16_bit_floats() -> None:
    """Every float of 16 bits, the middle between it and the next one, and the floats beside it."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        middles = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
        beside = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
        values = np.concatenate(
            [halves, middles, *beside, np.array([1e-8, 65519.996, 65520, 3e38], np.float32)]
        )
        wanted = values.astype(np.float16).astype(np.float32)
    found = np.array([_half(value) for value in values], np.float32)
    there = ~np.isnan(values)
    assert np.isnan(found[~there]).all()
    assert np.array_equal(found[there].view(np.uint32), wanted[there].view(np.uint32))


def test_half_overflows_and_vanishes() -> None:
    """An embedding too large for 16 bits is infinite, one too small zero; a zero's slope is still
    sent down.
    """
    net = (Chain((1, 2), True), Chain((2, 2)))
    w = np.array([1, 2, 0, 0], np.float32), np.array([1, 0, 0, 1, 0, 0], np.float32)
    loop = Loop(net, Rule(1, 1.0), (1.0, 0.0), half=True)
    loop.start(named(w[1], [w[0]]))
    events = np.array([[1e-9]], np.float32), np.array([0]), np.array([[True]])
    assert loop.play(*events).losses[0] == pytest.approx(np.log(2))
    assert loop.weights()["party0"][2:] == pytest.approx([0.5, -0.5])
    loop.start(named(w[1], [w[0]]))
    # sends 40000 and infinity, and zero times that is no number
    seen = loop.play(np.array([[40000.0]], np.float32), *events[1:])
    assert np.isnan(seen.losses[0])
    assert np.isnan(loop.weights()["party0"]).any()


@settings(max_examples=12, deadline=None)
@given(
    net=st.sampled_from([SMALL, WIDE]),
    length=st.integers(1, 40),
    share=st.sampled_from([0.4, 1.0]),
    half=st.booleans(),
    cuts=st.lists(st.integers(0, 70), min_size=1, max_size=3),
    seed=st.integers(0, 10**6),
)
def test_a_fresh_object_goes_on_bit_for_bit(
    net: Net, length: int, share: float, half: bool, cuts: list[int], seed: int
) -> None:
    rule, steps, events = Rule(length, 0.9), rates(net, seed), stream(net, 70, seed, share)
    unbroken = broken = begun(net, rule, steps, seed, half)
    for piece in pieces(events, cuts):
        fresh = Loop(net, rule, steps, half=half)
        fresh.unpack(broken.pack())
        one, other = unbroken.play(*piece), fresh.play(*piece)
        for name in ("predictions", "losses", "regret"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        assert np.array_equal(all_weights(unbroken), all_weights(fresh))
        broken = fresh
    one_window, other_window = unbroken.pack(), broken.pack()
    assert one_window.keys() == other_window.keys()
    assert all(np.array_equal(one_window[name], other_window[name]) for name in one_window)
    assert {str(value.dtype) for value in one_window.values()} <= {
        "float32",
        "int64",
        "uint8",
        "bool",
    }


def test_weights_come_back_as_they_were_given() -> None:
    server, parties = weights(WIDE, 6)
    loop = begun(WIDE, Rule(2, 0.5), rates(WIDE, 6), 6)
    got, *others = loop.weights().values()
    assert np.array_equal(got, server)
    assert all(np.array_equal(a, b) for a, b in zip(others, parties, strict=True))
    loop.play(*stream(WIDE, 5, 6))
    assert np.array_equal(got, server)  # a copy
    loop.start(named(server, parties))
    fresh = begun(WIDE, Rule(2, 0.5), rates(WIDE, 6), 6)
    assert np.array_equal(
        loop.play(*stream(WIDE, 5, 7)).losses, fresh.play(*stream(WIDE, 5, 7)).losses
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_shows_and_spares_the_passive(value: float) -> None:
    """It reaches all weights that learn from it, and none of a party that never does."""
    loop, (x, y, active) = begun(SMALL, Rule(3, 0.9), rates(SMALL, 8), 8), stream(SMALL, 40, 8)
    active[:, 1] = False
    before = loop.weights()["party1"]
    x[20, 0] = x[20, 4] = value
    seen = loop.play(x, y, active)
    server, *parties = loop.weights().values()
    assert np.isnan(seen.losses[21:]).all()
    assert np.isfinite(seen.losses[:20]).all()
    assert np.isnan(server).any()
    assert np.isnan(parties[0]).any()
    assert np.isnan(parties[2]).any()
    assert np.array_equal(parties[1], before)


def test_first_of_equal_scores_is_predicted() -> None:
    loop = Loop(ONE, Rule(1, 1.0), (0.0, 0.0), half=False)
    loop.start(named(np.zeros(8, np.float32), [np.zeros(9, np.float32)]))
    seen = loop.play(*stream(ONE, 3, 0))
    assert seen.predictions.tolist() == [0, 0, 0]
    assert seen.losses == pytest.approx(np.log(2))


def test_time_is_attributed() -> None:
    loop, events = begun(SMALL, Rule(5, 0.9), rates(SMALL, 9), 9), stream(SMALL, 200, 9)
    began = time.perf_counter()
    seen = loop.play(*events)
    assert (seen.seconds > 0).all()
    assert seen.seconds.sum() <= time.perf_counter() - began


X, Y, ACTIVE = stream(SMALL, 4, 10)


@pytest.mark.parametrize(
    ("events", "error", "says"),
    [
        ((X, np.array([0, 1, 5, 0]), ACTIVE), IndexError, r"0\.\.4, found 0\.\.5"),
        ((X, np.array([0, -1, 2, 0]), ACTIVE), IndexError, r"found -1\.\.2"),
    ],
)
def test_refuses_and_changes_nothing(events: Events, error: type[Exception], says: str) -> None:
    loop = begun(SMALL, Rule(3, 0.9), rates(SMALL, 10), 10)
    loop.play(X, Y, ACTIVE)
    before, window = all_weights(loop), loop.pack()
    with pytest.raises(error, match=says):
        loop.play(*events)
    assert np.array_equal(all_weights(loop), before)
    assert all(np.array_equal(values, window[name]) for name, values in loop.pack().items())


def test_rows_in_any_memory() -> None:
    """Read-only, or with gaps."""
    wide = np.repeat(X, 2, axis=1)[:, ::2]
    wide.flags.writeable = False
    one, other = (begun(SMALL, Rule(3, 0.9), rates(SMALL, 11), 11) for _ in range(2))
    assert np.array_equal(one.play(wide, Y, ACTIVE).losses, other.play(X, Y, ACTIVE).losses)
    assert np.array_equal(all_weights(one), all_weights(other))


def test_refuses_other_windows() -> None:
    loop = begun(SMALL, Rule(3, 0.9), rates(SMALL, 12), 12)
    loop.play(X, Y, ACTIVE)
    window = loop.pack()
    late = {**window, "window.when.0": window["window.when.0"] + 1}
    short = {**window, "window.a.0": window["window.a.0"][:, 1:]}
    absent = {name: values for name, values in window.items() if name != "window.u.1"}
    one_less = {**window, "window.when.3": window["window.when.3"][1:]}
    other = {**window, "party1": window["party0"]}
    for kept in (late, short, absent, one_less, other):
        with pytest.raises((ValueError, KeyError)):
            loop.unpack(kept)
