"""Clipping and noise for a loop of one's own: bounded, of the scale that is charged, paid first."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import sordino as so
from sordino.mechanisms.contract import looks_standard_normal

CLIP = 0.5


class Unpaid:
    """In the place of a ledger: charges cost time that a search for sensitivity has no use for."""

    def charge(self, event: so.privacy.Event, **terms: Any) -> None: ...


def made(**changed: Any) -> so.mechanism:
    terms = {"ledger": Unpaid(), "epsilon": 9.0, "delta": 1e-5, "clip": CLIP, **changed}
    return so.mechanism(**terms)


def test_noise_has_the_scale_that_is_charged_and_no_other() -> None:
    add_noise = made(noise_multiplier=3.0)
    noise = torch.as_tensor(add_noise(np.zeros((7, 20_000))))
    for wrong, fits in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        assert looks_standard_normal(noise / (wrong * 3.0 * CLIP)) is fits
    assert add_noise.event == so.privacy.Gaussian(3.0)
    again = torch.as_tensor(add_noise(np.zeros((7, 20_000))))
    assert (again == noise).float().mean() < 1e-3


@given(
    st.integers(0, 60),
    st.integers(1, 40),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e8, 1e18]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**32 - 1),
)
def test_one_row_moves_the_sum_by_the_clip_at_most(
    n: int, d: int, scale: float, kind: type[np.floating[Any]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((n + 1, d)) * scale * rng.exponential(size=(n + 1, 1))).astype(kind)
    sums: list[NDArray[np.float32]] = [
        made(noise_multiplier=1e-9)(part)
        for part in (rows, np.delete(rows, rng.integers(n + 1), 0))
    ]
    rounding = 4e-8 * max(map(np.linalg.norm, sums))  # a release is float32
    assert np.linalg.norm(sums[0].astype(float) - sums[1]) <= CLIP * (1 + 1e-6) + rounding


def test_rows_without_a_direction_count_as_nothing() -> None:
    rows = np.array([[np.nan, 0], [np.inf, 1], [1e30, 0], [0.3, 0.4]])
    total = made(noise_multiplier=1e-9)(rows)
    assert total == pytest.approx([0.3, 0.4], rel=3e-3)  # within the bound: nearly as it is
    assert isinstance(made(noise_multiplier=1.0)(torch.zeros(0, 4)), torch.Tensor)
    for wrong in (np.zeros(3), np.zeros((2, 2), int)):
        with pytest.raises(so.DataError, match="one row for each record"):
            made(noise_multiplier=1.0)(wrong)
    for terms in ({"clip": 0.0}, {"noise_multiplier": 0.0}, {"sampling_rate": 2.0}, {"steps": 0}):
        with pytest.raises(so.StudyError):
            made(**{"noise_multiplier": 1.0, **terms})


def test_a_release_is_paid_before_it_and_refused_when_nothing_is_left(tmp_path: Path) -> None:
    with so.Ledger.create(tmp_path / "clinic.sqlite", ["clinic"]) as ledger:
        add_noise = made(
            ledger=ledger, noise_multiplier=2.0, sampling_rate=0.1, epsilon=1.0, steps=3
        )
        most = ledger.remaining(add_noise.event, epsilon=1.0, delta=1e-5)
        assert most is not None
        batch = add_noise.sample(10_000)
        assert 800 < len(batch) < 1200
        assert not np.array_equal(batch, add_noise.sample(10_000))
        for _ in range(most - most % 3):
            add_noise.sample(1)
            add_noise(np.ones((4, 2), np.float32))
        assert sum(entry.count for entry in ledger.entries()) == most - most % 3
        add_noise.sample(1)
        with pytest.raises(so.BudgetExceeded):
            add_noise(np.ones((4, 2), np.float32))
        assert ledger.epsilon(1e-5) <= 1.0
        assert {entry.event for entry in ledger.entries()} == {
            so.privacy.PoissonSampled(0.1, so.privacy.Gaussian(2.0))
        }


def test_a_row_counts_the_same_whoever_else_is_there() -> None:
    """At the border of what is too long, in both orders of memory: a norm's last bit decides."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        row = rng.standard_normal(200)
        row *= 1e19 * (1 + rng.integers(-4, 4) * 1e-16) / np.linalg.norm(row)
        for order in ("C", "F"):
            alone, other = (
                made(noise_multiplier=1e-9)(np.array([row, 0 * row][:n], order=order))
                for n in (1, 2)
            )
            assert np.linalg.norm(alone - other) < 1e-3


def test_what_is_paid_for_once_is_released_once(monkeypatch: pytest.MonkeyPatch) -> None:
    add_noise = made(noise_multiplier=2.0, sampling_rate=0.1, steps=10)
    with pytest.raises(so.StudyError, match="a sample of its own"):
        add_noise(np.zeros((1, 2)))
    add_noise.sample(10)
    add_noise(np.zeros((1, 2)))
    with pytest.raises(so.StudyError, match="a sample of its own"):  # such as another layer
        add_noise(np.zeros((1, 2)))
    assert copy.copy(add_noise) is copy.deepcopy(add_noise) is add_noise
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(add_noise)
    with pytest.raises(AttributeError):
        add_noise.sampling_rate = 1.0  # type: ignore[misc]
    assert add_noise._here().steps == 9
    monkeypatch.setattr(os, "getpid", lambda: -1)  # a fork
    assert add_noise._here().steps == 0


def test_threads_take_turns_to_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes while another one pays takes what that has paid for."""
    charges, both = list[int](), threading.Barrier(2)

    def slow(own: Unpaid, event: so.privacy.Event, *, count: int, **terms: Any) -> None:
        with suppress(threading.BrokenBarrierError):  # where nobody else pays meanwhile
            both.wait(0.5)
        charges.append(count)

    monkeypatch.setattr(Unpaid, "charge", slow)
    add_noise = made(noise_multiplier=1.0, steps=2)
    rows = np.ones((3, 2))
    threads = [threading.Thread(target=add_noise, args=[rows]) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert charges == [2]
    add_noise(rows)
    assert charges == [2, 2]


def test_a_sample_is_of_the_thread_that_drew_it(tmp_path: Path) -> None:
    """It was one for all: a sum was refused rightly drawn, and a second one of a sample taken."""
    rows = np.ones((3, 2))
    with so.Ledger.create(tmp_path / "a.sqlite", units=["a"]) as ledger:
        add_noise = made(ledger=ledger, noise_multiplier=4.0, sampling_rate=0.5, steps=9)
        add_noise.sample(3)
        others = [threading.Thread(target=add_noise.sample, args=[3]) for _ in range(2)]
        for each in others:
            each.start()
            each.join()
        add_noise(rows)
        with pytest.raises(so.StudyError, match="of its own"):
            add_noise(rows)


def test_a_thread_that_cannot_charge_is_told_which_one_can(tmp_path: Path) -> None:
    failed: list[str] = []

    def work() -> None:
        with pytest.raises(so.LedgerError, match="in the thread that has opened it") as refusal:
            add_noise(np.ones((3, 2)))
        failed.append(str(refusal.value))

    with so.Ledger.create(tmp_path / "a.sqlite", units=["a"]) as ledger:
        add_noise = made(ledger=ledger, noise_multiplier=1.0)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not ledger.entries()
    assert failed
