"""The window of past gradients: the recursion is the definition, however events are skipped, and
its rounding does not add up.
"""

from __future__ import annotations

import copy
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sordino.base.entropy import Seeded
from sordino.regimes.vertical.halves import Window, total
from sordino.training.flat import Flat

RATE = 0.3


def flat() -> Flat:
    """A convolution, whose weights are stored in another order than they are used, and a bias."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Flat(nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2)))


def gradients(of: Flat, number: int) -> list[torch.Tensor]:
    rng = Seeded(0).at(number)
    return [
        torch.from_numpy(rng.standard_normal(p.shape)).to(p.dtype) for p in of.module.parameters()
    ]


def vector(
    of: Flat, parts: list[torch.Tensor]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Parameter by parameter into one vector, each by its own name: an independent way into the
    layout.
    """
    found = torch.zeros(of.dim, dtype=of.weights.dtype)
    for slot, part in zip(of.layout, parts, strict=True):
        slot.logical(found).copy_(part)
    return found.double().numpy()


def defined(
    past: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float64]]],
    event: int,
    length: int,
    alpha: float,
    dim: int,
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """sum_{i<l} alpha^i g^{t-i} / sum_{i<l} alpha^i."""
    found = np.zeros(dim)
    for i in range(length):
        found += alpha**i * past.get(event - i, np.zeros(dim))
    return found / sum(alpha**i for i in range(length))


@given(
    gaps=st.lists(st.integers(0, 9), min_size=1, max_size=25),
    length=st.integers(1, 7),
    alpha=st.floats(0.05, 1.0),
    eager=st.booleans(),
)
def test_the_recursion_is_the_definition(
    gaps: list[int], length: int, alpha: float, eager: bool
) -> None:
    """``gaps``: how many events pass by without a gradient before one that has one; ``eager``
    passes them one at a time.
    """
    own = flat()
    window = Window(own, length, alpha, RATE)
    past, event = dict[int, np.ndarray[tuple[int, ...], np.dtype[np.float64]]](), 0
    weights = own.weights.double().numpy().copy()
    for gap in gaps:
        for passed in range(event + 1, event + gap + 1) if eager else ():
            window.pass_by(passed)
        event += gap + 1
        parts = gradients(own, event)
        past[event] = vector(own, parts)
        window.learn(event, list(parts))
        expected = defined(past, event, length, alpha, own.dim)
        assert window.square == pytest.approx(float(expected @ expected), rel=1e-4)
        weights -= RATE * expected
        np.testing.assert_allclose(own.weights.numpy(), weights, rtol=0, atol=2e-5)
    window.pass_by(event + length)
    assert window.square == 0.0


def test_a_parameter_without_a_gradient_has_zero_and_a_cover_comes_before_the_window() -> None:
    own = flat()
    window = Window(own, 3, 0.5, RATE)
    parts = gradients(own, 1)
    window.learn(1, [*parts[:3], None])
    window.learn(2, list(parts), cover=lambda g: 2.0 * g)
    first, second = vector(own, [*parts[:3], torch.zeros_like(parts[3])]), 2.0 * vector(own, parts)
    expected = (second + 0.5 * first) / total(3, 0.5)
    assert window.square == pytest.approx(float(expected @ expected), rel=1e-5)


@pytest.mark.parametrize(
    ("length", "alpha"), [(50, 1.0), pytest.param(7, 0.5, marks=pytest.mark.nightly)]
)
def test_rounding_does_not_add_up(length: int, alpha: float) -> None:
    """float32 against sums in float64, over more than ten thousand events of which some had no
    gradient.
    """
    own = flat()
    window = Window(own, length, alpha, RATE)
    ring = deque[np.ndarray[tuple[int, ...], np.dtype[np.float64]]](maxlen=length)
    rng = Seeded(3).at("gradients")
    powers = alpha ** np.arange(length)
    sizes = [p.shape for p in own.module.parameters()]
    worst = 0.0
    for event in range(1, 10_500):
        if event % 3 == 0:
            window.pass_by(event)
            ring.appendleft(np.zeros(own.dim))
        else:
            parts = [
                torch.from_numpy(rng.standard_normal(size).astype(np.float32)) for size in sizes
            ]
            own.weights.zero_()  # what is left in them afterwards is the step alone
            window.learn(event, list(parts))
            ring.appendleft(vector(own, parts))
        if event % 3 and (event % 97 == 0 or event > 10_400):
            expected = powers[: len(ring)] @ np.stack(ring) / powers.sum()
            found = -own.weights.double().numpy() / RATE
            worst = max(worst, float(np.abs(found - expected).max()) * powers.sum())
    # gradients are about 1; an error that grew with events would be a hundred times that
    assert worst < 4e-6 * np.sqrt(length)


def test_what_was_packed_goes_on_as_if_nothing_had_happened() -> None:
    """At any place in the ring, and with events that were passed by and not yet counted."""
    for stop in range(1, 9):
        own = flat()
        window = Window(own, 4, 0.9, RATE)
        for event in range(1, stop + 1):
            if event % 3:
                window.learn(event, list(gradients(own, event)))
        copied = Flat(copy.deepcopy(own.module))
        other = Window(copied, 4, 0.9, RATE)
        other.unpack({name: value.copy() for name, value in window.pack().items()})
        for event in range(stop + 2, stop + 9):
            for one, where in ((window, own), (other, copied)):
                one.learn(event, list(gradients(where, event)))
        assert torch.equal(own.weights, copied.weights)
        assert window.square == other.square
