"""Static local regret, compiled: against a dense float64 twin and against autograd, for any
networks, windows, rates, masks and calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from sordino.regimes.vertical.compiled.replayed import numbers
from sordino.regimes.vertical.engines.net import Chain, Net
from sordino.regimes.vertical.engines.observed import Observed, Rates
from sordino.regimes.vertical.engines.static import BLOCK, Static

Array = NDArray[np.float32]
Double = NDArray[np.float64]
Layers = list[list[Double]]

PAPER = Net((Chain((196, 64), True),) * 4, Chain((256, 256, 10)))
DEEP = Net(
    (Chain((7, 33, 20, 5)), Chain((40, 9), True), Chain((3, 2, 17), True), Chain((1, 1))),
    Chain((32, 50, 34, 6)),
)
BARE = Net((Chain((5, 3)),), Chain((3, 4)))


@dataclass(frozen=True, eq=False)
class Case:
    """A network, its weights (the server's last) and events for it."""

    net: Net
    weights: list[Array]
    x: Array
    y: NDArray[np.int64]
    active: NDArray[np.bool_]
    rates: Rates

    def static(self, length: int, half: bool = False) -> Static:
        made = Static(self.net, length, self.rates, half=half)
        made.start(self.weights[-1], self.weights[:-1])
        return made

    def run(self, static: Static, start: int = 0, stop: int | None = None) -> Observed:
        return static.run(self.x[start:stop], self.y[start:stop], self.active[start:stop])


def cased(net: Net, events: int, seed: int, rate: float = 0.1, share: float = 0.7) -> Case:
    rng = np.random.default_rng(seed)
    weights = [
        np.concatenate([drawn(rng, *layer) for layer in chain.layers])
        for chain in (*net.parties, net.server)
    ]
    x = rng.standard_normal((events, sum(net.features))).astype(np.float32)
    y = rng.integers(0, net.server.widths[-1], events)
    active = rng.random((events, len(net.parties))) < share
    rates = rate * rng.random(len(net.parties) + 1)
    return Case(net, weights, x, y, active, Rates(float(rates[-1]), tuple(map(float, rates[:-1]))))


def drawn(rng: np.random.Generator, inputs: int, outputs: int) -> Array:
    return rng.uniform(-1, 1, (inputs + 1) * outputs).astype(np.float32) * np.float32(
        (2 / inputs) ** 0.5
    )


def unflat(chain: Chain, vector: Array) -> Layers:
    """[weight, bias] of each layer."""
    layers, at = [], 0
    for inputs, outputs in chain.layers:
        size = inputs * outputs
        layers.append(
            [
                vector[at : at + size].reshape(outputs, inputs).astype(float),
                vector[at + size : at + size + outputs].astype(float),
            ]
        )
        at += size + outputs
    return layers


def outputs_of(layers: Layers, x: Double, last: bool, kinks: list[float]) -> list[Double]:
    """The input and what comes after each layer and its ReLU; how near to zero a ReLU's input was
    goes to ``kinks``.
    """
    found = [x]
    for place, (weight, bias) in enumerate(layers, 1):
        z = found[-1] @ weight.T + bias
        if last or place < len(layers):
            kinks.append(float(np.abs(z).min()))
            z = np.maximum(z, 0)
        found.append(z)
    return found


def gradients(
    layers: Layers, found: list[Double], slope: Double, last: bool
) -> tuple[Layers, Double]:
    """Sums over the rows of each layer's gradients, and the slopes of the input."""
    made: Layers = []
    for place in range(len(layers) - 1, -1, -1):
        if last or place < len(layers) - 1:
            slope = slope * (found[place + 1] > 0)
        made.insert(0, [slope.T @ found[place], slope.sum(0)])
        slope = slope @ layers[place][0]
    return made, slope


@dataclass(frozen=True, eq=False)
class Ran:
    """What a twin saw, and the weights after it (the server's last)."""

    kinks: list[float]
    predictions: list[int]
    margins: list[float]
    losses: list[float]
    regret: list[float]
    weights: list[Double]


def twin(case: Case, length: int, half: bool = False) -> Ran:
    """In float64, the whole window anew at every event; ``margins`` between the two largest
    scores.
    """
    chains = [*case.net.parties, case.net.server]
    layers = [unflat(chain, vector) for chain, vector in zip(chains, case.weights, strict=True)]
    edges = np.cumsum([0, *case.net.features])
    cuts = np.cumsum(case.net.embeddings)[:-1]
    rates = [*case.rates.parties, case.rates.server]
    seen = Ran([], [], [], [], [], [])
    for t in range(len(case.x)):
        window = slice(max(0, t + 1 - length), t + 1)
        x, y = case.x[window].astype(float), case.y[window]
        found = [
            outputs_of(layers[m], x[:, edges[m] : edges[m + 1]], chain.last, seen.kinks)
            for m, chain in enumerate(case.net.parties)
        ]
        found.append(
            outputs_of(
                layers[-1], sent(np.hstack([one[-1] for one in found]), half), False, seen.kinks
            )
        )
        scores = found[-1][-1]
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        own = np.eye(scores.shape[1])[y]
        made, v = gradients(layers[-1], found[-1], p - own, False)
        steps = [made]
        for m, slope in enumerate(np.split(sent(v, half), cuts, axis=1)):
            steps.insert(
                m,
                gradients(layers[m], found[m], slope, chains[m].last)[0]
                if case.active[t, m]
                else [],
            )
        top = np.sort(scores[-1])
        seen.predictions.append(int(scores[-1].argmax()))
        seen.margins.append(float(top[-1] - top[-2]) if len(top) > 1 else 1.0)
        seen.losses.append(-float(np.log(p[-1, y[-1]])))
        seen.regret.append(
            sum(float((part**2).sum()) for step in steps for layer in step for part in layer)
            / length**2
        )
        for m, step in enumerate(steps):
            for ours, gradient in zip(layers[m], step, strict=False):
                for part, by in zip(ours, gradient, strict=True):
                    part -= rates[m] / length * by
    seen.weights.extend(
        np.concatenate([part.ravel() for layer in one for part in layer]) for one in layers
    )
    return seen


def sent(x: Double, half: bool) -> Double:
    return x.astype(np.float16).astype(float) if half else x


def modules(case: Case) -> Iterator[nn.Sequential]:
    """The parties and then the server, in float64."""
    for chain, vector in zip([*case.net.parties, case.net.server], case.weights, strict=True):
        parts: list[nn.Module] = []
        for place, layer in enumerate(chain.layers, 1):
            parts += (
                [nn.Linear(*layer), nn.ReLU()]
                if chain.last or place < len(chain.layers)
                else [nn.Linear(*layer)]
            )
        made = nn.Sequential(*parts).double()
        nn.utils.vector_to_parameters(torch.from_numpy(vector).double(), made.parameters())
        yield made


def autograd(case: Case, length: int) -> Ran:
    *parties, server = made = list(modules(case))
    x, y = torch.from_numpy(case.x).double(), torch.from_numpy(case.y)
    cuts = list(accumulate(case.net.features))[:-1]
    rates = [*case.rates.parties, case.rates.server]
    seen = Ran([], [], [], [], [], [])
    for t in range(len(x)):
        window = slice(max(0, t + 1 - length), t + 1)
        pieces = torch.tensor_split(x[window], cuts, 1)
        scores = server(
            torch.cat([party(piece) for party, piece in zip(parties, pieces, strict=True)], 1)
        )
        losses = nn.functional.cross_entropy(scores, y[window], reduction="none")
        who = [bool(on) for on in case.active[t]] + [True]
        moved = [
            (p, rate)
            for module, rate, on in zip(made, rates, who, strict=True)
            if on
            for p in module.parameters()
        ]
        found = torch.autograd.grad(losses.sum() / length, [p for p, _ in moved])
        top = scores[-1].detach().topk(min(2, scores.shape[1])).values
        seen.predictions.append(int(scores[-1].argmax()))
        seen.margins.append(float(top[0] - top[-1]))
        seen.losses.append(losses[-1].item())
        seen.regret.append(sum(g.square().sum().item() for g in found))
        with torch.no_grad():
            for (p, rate), g in zip(moved, found, strict=True):
                p.sub_(g, alpha=rate)
    seen.weights.extend(
        nn.utils.parameters_to_vector(module.parameters()).detach().numpy() for module in made
    )
    return seen


def equal(
    case: Case,
    length: int,
    seen: list[Observed],
    static: Static,
    true: Ran,
    tolerance: float = 2e-4,
) -> None:
    np.testing.assert_allclose(
        np.concatenate([s.losses for s in seen]), true.losses, rtol=tolerance, atol=tolerance
    )
    np.testing.assert_allclose(
        np.concatenate([s.regret for s in seen]),
        true.regret,
        rtol=5 * tolerance,
        atol=tolerance * tolerance,
    )
    sure = np.array(true.margins) > 10 * tolerance
    np.testing.assert_array_equal(
        np.concatenate([s.predictions for s in seen])[sure], np.array(true.predictions)[sure]
    )
    server, parties = static.weights()
    for ours, theirs, first in zip([*parties, server], true.weights, case.weights, strict=True):
        assert ours.dtype == np.float32
        moved = float(np.abs(theirs - first).max())
        np.testing.assert_allclose(ours, theirs, atol=tolerance * moved + 1e-6)


chains = st.lists(st.integers(1, 40), min_size=2, max_size=4).map(tuple)


@st.composite
def nets(draw: st.DrawFn) -> Net:
    parties = tuple(
        Chain(draw(chains), draw(st.booleans())) for _ in range(draw(st.integers(1, 4)))
    )
    inner = draw(st.lists(st.integers(1, 40), max_size=2))
    return Net(
        parties,
        Chain((sum(chain.widths[-1] for chain in parties), *inner, draw(st.integers(1, 20)))),
    )


@settings(max_examples=60, deadline=None)
@given(
    net=nets(), length=st.integers(1, 23), events=st.integers(0, 40), seed=st.integers(0, 99),
    rate=st.sampled_from([0.0, 0.01, 0.3]), share=st.sampled_from([0.0, 0.5, 1.0]),
    cut=st.integers(0, 40),
)  # fmt: skip
@example(net=DEEP, length=10, events=2 * BLOCK + 5, seed=0, rate=0.2, share=0.6, cut=BLOCK + 1)
@example(net=BARE, length=BLOCK + 20, events=3 * BLOCK, seed=1, rate=0.2, share=0.6, cut=7)
def test_events_are_those_of_the_dense_twin(
    net: Net, length: int, events: int, seed: int, rate: float, share: float, cut: int
) -> None:
    case = cased(net, events, seed, rate, share)
    static, true = case.static(length), twin(case, length)
    # where a ReLU's input is as good as zero, rounding decides about its slope
    assume(min(true.kinks, default=1.0) > 1e-6)
    equal(case, length, [case.run(static, 0, cut), case.run(static, cut)], static, true)


@pytest.mark.parametrize(
    ("net", "length", "events"), [(DEEP, 4, 60), (DEEP, 11, 90), (PAPER, 10, 200)]
)
def test_events_are_those_of_autograd(net: Net, length: int, events: int) -> None:
    case = cased(net, events, 3, 0.05)
    static = case.static(length)
    equal(case, length, [case.run(static)], static, autograd(case, length))


def test_rounding_does_not_build_up() -> None:
    net = Net((Chain((12, 8), True), Chain((9, 6, 5))), Chain((13, 16, 4)))
    case = cased(net, 4000, 5, 0.05)
    # something to learn: what is drawn at random sends the weights on a walk
    case.y[:] = np.abs(case.x[:, :4]).argmax(1)
    static, true = case.static(10), twin(case, 10)
    seen = [case.run(static, at, at + 500) for at in range(0, 4000, 500)]
    equal(case, 10, seen, static, true, 1e-3)


def distance(static: Static, true: Ran) -> float:
    server, parties = static.weights()
    return max(
        float(np.abs(ours - theirs).max())
        for ours, theirs in zip([*parties, server], true.weights, strict=True)
    )


@pytest.mark.parametrize(("net", "length"), [(BARE, 1), (DEEP, 3), (DEEP, 10)])
def test_what_travels_is_rounded_to_16_bits(net: Net, length: int) -> None:
    case = cased(net, 4, 7, 0.5, 1.0)
    rounded, whole = case.static(length, half=True), case.static(length)
    seen, other = case.run(rounded), case.run(whole)
    true, plain = twin(case, length, half=True), twin(case, length)
    between = max(
        float(np.abs(a - b).max()) for a, b in zip(true.weights, plain.weights, strict=True)
    )
    assert distance(rounded, true) < between / 30 > distance(whole, plain)
    np.testing.assert_allclose(seen.losses, true.losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(seen.regret, true.regret, rtol=1e-5)
    assert not np.array_equal(seen.losses, other.losses)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
@example(
    [0x477FE000, 0x477FEFFF, 0x477FF000, 0xC77FF000, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001]
)  # 65504, 65520, infinities, NaN
@example(
    [
        0x33000000,
        0x33000001,
        0x33C00000,
        0x387FE000,
        0x387FF000,
        0x38800000,
        0x80000000,
        0x00000001,
        0x3F801000,
        0x3F803000,
    ]
)  # ties
@settings(deadline=None)
def test_rounding_is_that_of_16_bit_floats(bits: list[int]) -> None:
    x = np.array(bits, np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        true = x.astype(np.float16).astype(np.float32)
    made = x.copy()
    numbers.halved(made)
    known = ~np.isnan(x)
    assert np.isnan(made[~known]).all()
    np.testing.assert_array_equal(made[known].view(np.uint32), true[known].view(np.uint32))


def test_embeddings_too_large_for_16_bits_are_infinite() -> None:
    case = cased(BARE, 2, 0)
    case.weights[0][:] = 1e5
    np.testing.assert_array_equal(np.isfinite(case.run(case.static(3, half=True)).losses), False)
    assert np.isfinite(case.run(case.static(3)).losses).all()


@settings(max_examples=20, deadline=None)
@given(
    net=nets(),
    length=st.integers(1, 23),
    cuts=st.tuples(st.integers(0, 90), st.integers(0, 90)),
    half=st.booleans(),
    seed=st.integers(0, 9),
)
@example(net=DEEP, length=BLOCK, cuts=(30, 90), half=True, seed=0)
def test_goes_on_bit_for_bit(
    net: Net, length: int, cuts: tuple[int, int], half: bool, seed: int
) -> None:
    case = cased(net, 120, seed)
    first, second = sorted(cuts)
    unbroken, other = case.static(length, half), case.static(length, half)
    case.run(unbroken, 0, first)
    kept, (server, parties) = unbroken.pack(), unbroken.weights()
    # what is left of another run, even one that diverged
    other.run(case.x[:50] * np.float32(1e30), case.y[:50], case.active[:50])
    other.unpack(server, parties, kept)
    for start, stop in ((first, second), (second, 120)):
        ours, theirs = case.run(other, start, stop), case.run(unbroken, start, stop)
        for name in ("predictions", "losses", "regret"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    same(other, unbroken)


def same(a: Static, b: Static) -> None:
    (server, parties), (other, others) = a.weights(), b.weights()
    for ours, theirs in zip([*parties, server], [*others, other], strict=True):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    for key, value in b.pack().items():
        np.testing.assert_array_equal(a.pack()[key], value)


def test_who_is_passive_stays_as_it_was() -> None:
    case = cased(DEEP, 100, 2)
    case.active[:, 1:3] = False
    static = case.static(5)
    seen = case.run(static)
    server, parties = static.weights()
    assert [
        np.array_equal(a, b) for a, b in zip([*parties, server], case.weights, strict=True)
    ] == [False, True, True, False, False]
    assert (seen.seconds > 0).all()


def test_what_was_given_is_not_changed_and_what_is_returned_is_a_copy() -> None:
    case = cased(DEEP, 80, 4)
    before = [case.x.copy(), *(vector.copy() for vector in case.weights)]
    static = case.static(5)
    case.run(static)
    for a, b in zip([case.x, *case.weights], before, strict=True):
        np.testing.assert_array_equal(a, b)
    server, parties = static.weights()
    kept = static.pack()
    for array in (server, *parties, *kept.values()):
        array[:] = 1
    again = case.static(5)
    case.run(again)
    same(static, again)


BAD = [
    ({"x": np.zeros((3, 5))}, ValueError, "features: float64"),
    (
        {"x": np.zeros((3, 4), np.float32)},
        ValueError,
        r"features: float32 \(3, 4\), not float32 \(n, 5\)",
    ),
    ({"x": np.zeros(5, np.float32)}, ValueError, "features"),
    ({"y": np.zeros(3, np.int32)}, ValueError, "labels: int32"),
    ({"y": np.zeros(2, np.int64)}, ValueError, r"labels: int64 \(2,\), not int64 \(3,\)"),
    ({"y": np.array([0, 4, 1])}, IndexError, "a label is 4; there are 4 classes"),
    ({"y": np.array([0, -1, 1])}, IndexError, "a label is -1"),
    ({"active": np.ones((3, 1))}, ValueError, "active: float64"),
    ({"active": np.ones((3, 2), bool)}, ValueError, "active"),
]


@pytest.mark.parametrize(("change", "kind", "message"), BAD)
def test_bad_events_change_nothing(
    change: Mapping[str, NDArray[np.generic]], kind: type[Exception], message: str
) -> None:
    case = cased(BARE, 20, 0)
    static, other = case.static(4), case.static(4)
    good: dict[str, NDArray[np.generic]] = {
        "x": case.x[:3],
        "y": case.y[:3],
        "active": case.active[:3],
    }
    case.run(static)
    case.run(other)
    with pytest.raises(kind, match=message):
        static.run(**{**good, **change})  # type: ignore[arg-type]
    same(static, other)


def test_bad_weights_and_windows_change_nothing() -> None:
    case = cased(BARE, 20, 0)
    static, other = case.static(4), case.static(4)
    case.run(static)
    case.run(other)
    party, server = case.weights
    with pytest.raises(ValueError, match="weights of 2 parties for a network of 1"):
        static.start(server, [party, party])
    with pytest.raises(
        ValueError, match=r"weights of the server: float32 \(15,\), not float32 \(16,\)"
    ):
        static.start(server[1:], [party])
    with pytest.raises(ValueError, match="weights of party 0: float64"):
        static.start(server, [party.astype(float)])
    with pytest.raises(ValueError, match="a window of 4 kept examples, where at most 3 stay of 4"):
        static.unpack(server, [party], {"x": case.x[:4], "y": case.y[:4]})
    with pytest.raises(IndexError, match="a label is 9"):
        static.unpack(server, [party], {"x": case.x[:1], "y": np.array([9])})
    with pytest.raises(KeyError, match="y"):
        static.unpack(server, [party], {"x": case.x[:1]})
    same(static, other)


@pytest.mark.parametrize(
    ("net", "length", "rates", "message"),
    [
        (Net((), Chain((3, 4))), 1, Rates(0.1, ()), "without parties"),
        (Net((Chain((5,)),), Chain((5, 4))), 1, Rates(0.1, (0.1,)), r"widths \(5,\) of party 0"),
        (
            Net(BARE.parties, Chain((4, 4))),
            1,
            Rates(0.1, (0.1,)),
            r"widths \(4, 4\) for embeddings \(3,\)",
        ),
        (Net(BARE.parties, Chain((3, 4), True)), 1, Rates(0.1, (0.1,)), "ends with a ReLU"),
        (BARE, 0, Rates(0.1, (0.1,)), "a window of 0 examples"),
        (BARE, 1, Rates(0.1, (0.1, 0.2)), "2 rates for 1 parties"),
        (BARE, 1, Rates(float("nan"), (0.1,)), "rates are finite"),
        (BARE, 1, Rates(0.1, (-0.1,)), "rates are finite"),
    ],
)
def test_what_cannot_be_built(net: Net, length: int, rates: Rates, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Static(net, length, rates, half=False)
