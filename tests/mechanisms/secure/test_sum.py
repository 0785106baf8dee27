"""The sum is exact whoever drops out, and is not opened where too few are left."""

import datetime as dt
import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from sordino.base import residues
from sordino.base.errors import StudyError
from sordino.mechanisms.secure import client
from sordino.mechanisms.secure.messages import (
    FromClient,
    FromServer,
    MaskedInput,
    Setting,
    lowest_threshold,
)
from sordino.mechanisms.secure.server import PHASES, Opened, Sum, Void
from sordino.network import certificates
from sums import Party, Signers, parties, played, setting, total

VECTORS = [np.array([i + 1, -(i**3), 2**31 - i], np.int64) for i in range(5)]
SIGNERS = Signers(10)


@pytest.mark.parametrize("phase", range(5))
@pytest.mark.parametrize("count", [0, 1, 2])
def test_every_subset_may_drop_out_in_every_phase(phase: int, count: int) -> None:
    own = setting(5, honest=3)
    for gone in combinations(range(5), count):
        done = played(parties(own, VECTORS, SIGNERS), dict.fromkeys(gone, phase))
        assert isinstance(done, Opened)
        inside = tuple(i for i in range(5) if i not in gone or phase > 2)
        assert done.clients == inside
        assert done.values.tolist() == total(VECTORS, inside, 32)
        assert done.faults == ()


@pytest.mark.parametrize("phase", range(5))
def test_one_more_and_it_stays_shut(phase: int) -> None:
    for gone in combinations(range(5), 3):
        done = played(parties(setting(5, honest=3), VECTORS, SIGNERS), dict.fromkeys(gone, phase))
        assert isinstance(done, Void)
        assert "2 of 5" in done.why
        assert PHASES[phase].__name__ in done.why


@given(
    st.lists(st.integers(0, 5), min_size=5, max_size=5),
    st.sampled_from([1, 7, 16, 31, 32, 33, 63, 64]),
    st.integers(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_whoever_drops_out_when(phases: list[int], bits: int, dishonest: int) -> None:
    own = setting(5, honest=2, dishonest=dishonest, bits=bits)
    vectors = [each.astype(np.int64) for each in VECTORS]
    done = played(parties(own, vectors, SIGNERS), dict(enumerate(phases)))
    counts = [sum(each > phase for each in phases) for phase in range(5)]
    enough = counts[2] >= own.least and counts[4] >= own.threshold
    assert isinstance(done, Opened) == enough
    if isinstance(done, Opened):
        inside = tuple(i for i in range(5) if phases[i] > 2)
        assert (done.clients, done.values.tolist()) == (inside, total(vectors, inside, bits))


def test_a_sum_below_the_honest_ones_is_not_opened() -> None:
    """H + c, whatever the threshold: one colluding client beside four honest ones."""
    own = setting(5, honest=3, dishonest=1)
    assert (own.threshold, own.least) == (4, 4)
    own = setting(5, honest=5)
    assert (own.threshold, own.least) == (3, 5)
    done = played(parties(own, VECTORS, SIGNERS), {1: 2})
    assert done == Void("4 of 5 clients sent MaskedInput, and 5 must")
    assert isinstance(played(parties(own, VECTORS, SIGNERS), {1: 3, 0: 4}), Opened)


def test_a_single_message_is_uniform() -> None:
    """Of a vector that is all zero: low and high bytes of its masked input, and pairs."""
    own = setting(3, honest=3, dimension=40_000)
    one = parties(own, [np.zeros(40_000, np.int64)] * 3, SIGNERS)
    said = _masked(one)[0]
    values = residues.unpacked(said.values, 40_000, 32)
    octets = values.view(np.uint8).reshape(-1, 4)
    for column in range(4):
        counts = np.bincount(octets[:, column], minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-9
    pairs = np.bincount((octets[:-1, 0] >> 4).astype(int) * 16 + (octets[1:, 0] >> 4))
    assert stats.chisquare(pairs).pvalue > 1e-9
    raw = np.zeros(40_000, np.int64).view(np.uint8)[:40_000]
    assert stats.chisquare(np.bincount(raw, minlength=256)).pvalue < 1e-9  # without a mask


def _masked(everybody: list[Party]) -> list[MaskedInput]:
    """What everybody sends in the third phase."""
    own, signers = everybody[0].setting, everybody[0].signers
    sums = Sum(own, signers.verify, waiting=frozenset(range(len(everybody))))
    told: dict[int, FromServer] = {}
    for phase in range(3):
        said = [each.answer(told[each.number]) if phase else each.first() for each in everybody]
        for each in said:
            sums = sums.received(each)
        done = sums.closed()
        assert isinstance(done, tuple)
        sums, told = done[0], dict(done[1])
    return [each for each in said if isinstance(each, MaskedInput)]


class Certified(Signers):
    """Signers with the certificates of a federation."""

    def __init__(self, count: int) -> None:
        now = dt.datetime.now(dt.UTC)
        self.by = certificates.authority("federation", now)
        self.pairs = [certificates.certify(self.by, f"s{i}", "site", now) for i in range(count)]

    def sign(self, who: int, content: bytes) -> bytes:
        return certificates.signed(self.pairs[who], content)

    def verify(self, who: int, content: bytes, signature: bytes) -> bool:
        trusted = self.by.certificate
        return certificates.verified(self.pairs[who].certificate, trusted, content, signature)


class Timed(Party):
    """A client that notes how long it works."""

    spent = 0.0

    def first(self) -> FromClient:
        start = time.process_time()
        try:
            return super().first()
        finally:
            self.spent += time.process_time() - start

    def answer(self, told: FromServer) -> FromClient:
        start = time.process_time()
        try:
            return super().answer(told)
        finally:
            self.spent += time.process_time() - start


def test_a_clients_round_is_quick() -> None:
    """Ten clients, 40 000 numbers, 32 bits, signatures of real certificates: below 50 ms."""
    own = setting(10, honest=10, dimension=40_000)
    rng = np.random.default_rng(0)
    vectors = [rng.integers(0, 2**32, 40_000) for _ in range(10)]
    signers, best = Certified(10), float("inf")
    for _ in range(3):
        everybody = [Timed(own, i, each, signers) for i, each in enumerate(vectors)]
        done = played(everybody)
        assert isinstance(done, Opened)
        assert done.values.tolist() == np.sum(vectors, axis=0).astype(np.uint32).tolist()
        best = min(best, *(each.spent for each in everybody))
    assert best < 0.05, best


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"honest": 6}, "cannot hold 6 contributions"),
        ({"honest": 4, "dishonest": 2}, "cannot hold 6 contributions, where 2"),
        ({"honest": 0}, "cannot hold 0 contributions"),
        ({"honest": 0, "dishonest": 5}, "cannot hold 5 contributions, where 5"),
        ({"bits": 65}, "bits"),
    ],
)
def test_a_setting_that_does_not_protect_is_refused(more: dict[str, int], why: str) -> None:
    with pytest.raises(StudyError, match=why):
        setting(5, **more)


def test_thresholds() -> None:
    for n in range(2, 40):
        for c in range(n):
            t = lowest_threshold(n, c)
            assert 2 * t > n + c >= 2 * (t - 1)
            assert t <= n
    with pytest.raises(StudyError, match="2 to 256"):
        Setting(study="", run="", round=1, clients=1, fewest=1, dimension=1)
    assert client.begin(setting(2), 0, bytes(32), lambda content: b"").own.client == 0
