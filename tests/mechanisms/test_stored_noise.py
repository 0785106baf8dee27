"""Grids, matrices and releases are those of before: to ten digits, for some of every kind.

``python tests/mechanisms/test_stored_noise.py`` stores them anew, for a change that is meant to
change noise: say so in its message, and see CONTRIBUTING.md on ``NUMERICS``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.mechanisms import correlated, draws, gaussian, grid, shared
from sordino.mechanisms.correlated import CorrelatedGaussian, Correlation
from sordino.mechanisms.gaussian import CountedGaussian, Gaussian, Single
from sordino.mechanisms.grid import Grid
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian, LevelGaussian, observed, optimal, paper
from sordino.mechanisms.kinds import GaussianNoise, HaarNoise, KNormNoise, Noise, NoiseRequest
from sordino.mechanisms.knorm import ExponentialNorm, KNorm
from sordino.mechanisms.response import RandomisedResponse
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import NonPrivate

STORED = Path(__file__).parents[1] / "golden" / "noise.json"
Numbers = list[float]


def grids() -> Iterator[tuple[str, Numbers]]:
    for clip, sigma, d in (
        (1.0, 1.0, 5), (0.3, 1e-5, 7), (2.0, 3.0, 10**7), (1e-12, 0.5, 1), (1e12, 900.0, 40),
        (1.0, 5e-13, 10**6), (0.75, 2.0**-20, 0),
    ):  # fmt: skip
        made = Grid.of(clip=clip, noise_multiplier=sigma, dimension=d)
        yield f"grid {clip} {sigma} {d}", [math.log2(made.step), made.deviation]
    for most, d, honest, rounds, bits in (
        ((100.0,) * 10, 1000, 10, 100, 32), ((2.0, 3.0, 1.0), 50, 2, 7, 18),
        ((20.0,) * 5, 1, 5, 1, 16),
        ((1.0, 1.5), 10**6, 1, 10**6, 63), ((5.0,) * 4, 40_000, 3, 50, 24),
    ):  # fmt: skip
        rule = SharedNoise(most=most, dimension=d, honest=honest, rounds=rounds, bits=bits)
        for clip, sigma in ((1.0, 2.0), (0.3, 0.9), (1e-6, 30.0)):
            try:
                one = rule.grid(clip, sigma)
            except StudyError as error:
                told = [float(word) for word in str(error).split() if word.isdigit()]
            else:
                told = [math.log2(one.step), one.deviation, *one.reach, one.moved, one.growth]
                told += [one.overflow, float(one.bits), float(one.rounding == "nearest")]
                told += [rule.unbooked(one) * 1e30]
            yield f"shared grid {most} {d} {honest} {rounds} {bits}, {clip} {sigma}", told


def matrices() -> Iterator[tuple[str, Numbers]]:
    for kind, b, passes in (
        ("banded", 1, 9), ("banded", 6, 2), ("banded", 40, 3),
        ("blt", 1, 4), ("blt", 2, 3), ("blt", 10, 1), ("blt", 12, 5), ("blt", 60, 16),
    ):  # fmt: skip
        one = Correlation(kind=kind, separation=b, passes=passes)  # type: ignore[arg-type]
        told = [one.moved(0.7, 0.1), one.spread, *one.column(5), *one.column(80)[-2:]]
        told += [one.together(n) for n in (1, 3, b * passes, 2 * b * passes + 1, 500)]
        told += [] if kind == "banded" else [*one.buffers[0], *one.buffers[1]]
        yield f"{kind} {b} {passes}", [float(each) for each in told]
        made = CorrelatedGaussian(clip=0.7, noise_multiplier=1.3, correlation=one, share=0.2)
        told = [made.deviation_multiplier, made.fresh_multiplier, made.vector_multiplier]
        told += [made.noise_within(50, 4, 1e-6), made.count_deviation]
        for clip, sigma, d in ((1.0, 1.0, 5), (0.3, 1e-9, 7), (2.0, 3.0, 10**7), (1.0, 1e6, 3)):
            on = correlated._grid(one, clip, sigma, d)
            told += [math.log2(on.step), on.deviation]
        yield f"noise of {kind} {b} {passes}", told


def released(vector: torch.Tensor) -> Numbers:
    """Some of its numbers, and its length."""
    whole = vector.double()
    return [*whole[:2].tolist(), *whole[-2:].tolist(), float(whole.norm())]


def releases() -> Iterator[tuple[str, Numbers]]:
    d, entropy = 77, Seeded(3)
    total = torch.linspace(-1.0, 1.0, d)
    for made in (
        Gaussian(clip=0.7, noise_multiplier=1.3),
        CountedGaussian(clip=0.7, noise_multiplier=1.3),
        CountedGaussian(clip=0.7, noise_multiplier=1.3, share=0.3),
        KNorm(clip=0.7, noise_multiplier=1.3, dimension=d),
        ExponentialNorm(clip=0.7, noise_multiplier=1.3, dimension=d),
    ):
        noisy, count = made.release_counted(total, 2.5, entropy.at("a"))
        told = released(noisy) + ([] if count is None else [count])
        told += [made.vector_multiplier, made.longest]
        if not isinstance(made, ExponentialNorm):
            told += [made.noise_within(d, 3, 1e-3)]
        if isinstance(made, KNorm | ExponentialNorm):
            told += [made.claimed(1.3, d).epsilon, math.log2(made.step)]
        yield f"release of {made!r}", told
    for kind in ("banded", "blt"):
        own = Correlation(kind=kind, separation=3, passes=2)
        noise = CorrelatedGaussian(clip=0.7, noise_multiplier=1.3, correlation=own, share=0.1)
        memory = None
        for t in range(8):
            noisy, count, memory = noise.release_after(total, 1.5, entropy.at(kind, t), memory, t)
            told = [*released(noisy), count or 0.0, float(memory.number), float(memory.taken)]
            yield f"step {t} of {kind}", told + [float(np.abs(row).sum()) for row in memory.rows]
    rule = SharedNoise(most=(2.0, 3.0), dimension=d, honest=2, rounds=5)
    one = rule.grid(0.7, 1.3)
    for weight in (1.0, 0.4):
        sent = one.contribution(1, total.double().numpy(), entropy.at("n"), entropy.at("r"), weight)
        yield f"a part of shared noise {weight}", released(torch.from_numpy(one.opened(sent)))
    rows = torch.stack([total, 0.1 * total, 1e20 * total])
    single = Single(clip=0.5, noise_multiplier=3.0)
    yield "rows by themselves", released(single.release_rows(rows, entropy.at("s")).flatten())
    for epsilon, classes in ((0.5, 2), (2.0, 10), (40.0, 3), (1.0, 1)):
        tell = RandomisedResponse(epsilon=epsilon, classes=classes)
        labels, who = np.arange(40) % classes, np.arange(40) // 2
        answers = [
            tell.respond(labels, entropy.at("l")),
            tell.respond_for(labels, who, (5, 6)),
            tell.respond_for(labels, who, (5, 6), who % 3),
        ]
        told = [tell.keep, tell.other * 2.0**53, *(float((each * who).sum()) for each in answers)]
        yield f"answers {epsilon} {classes}", told


def wavelets() -> Iterator[tuple[str, Numbers]]:
    entropy, basis = Seeded(3), Basis.of([37, 1, 6])
    d = basis.dimension
    total, rows = torch.linspace(-1.0, 1.0, d), torch.eye(d)[[0, 30, 36, 37, 40]] * 3.0
    seen = [0.3 * (i % 5) - 0.1 for i in range(basis.groups)]
    yield (
        "optimal weights",
        [*optimal(seen, basis.sizes), *optimal(seen, basis.sizes, exponent=1.0)],
    )
    yield "no energy", [*optimal([0.0, -1.0], [1.0, 2.0])]
    yield "energies of noise", basis.noise_energies(paper(basis)).tolist()
    first = observed((), total, basis, paper(basis))
    yield "observed", [*first, *observed(first, 2.0 * total, basis, paper(basis))]
    made: dict[str, Any] = {"clip": 0.7, "noise_multiplier": 1.3, "basis": basis}
    weights = [w / max(paper(basis)) for w in paper(basis)]
    for kind in (HaarGaussian, LevelGaussian):
        ways: Sequence[HaarGaussian] = (
            kind.weighted(**made, weights=weights),
            kind.literal(**made),
            kind.literal(**made, discount=False, weighted=True),
            kind.literal_server(**made, bound=3.0, weight=50.0, expected=200.0),
        )
        for number, one in enumerate(ways):
            told = released(one.release_counted(total, 0.0, entropy.at("a"))[0])
            told += [one.event().noise_multiplier, one.vector_multiplier, one.longest, one.margin]
            told += [one.noise_within(d, 3, 1e-3), *one.norms(rows).tolist(), *one.deviations]
            told += [each for row in rows for each in released(one.bounded(row)[0])]
            yield f"{kind.__name__} {number}", told
        learned = replace(ways[0], learns=0.7)
        yield f"learned {kind.__name__}", [
            *learned.shaped(first).noise, *learned.observed(first, total, 0.5),
            *learned.shaped(()).noise,
        ]  # fmt: skip


def tables() -> Iterator[tuple[str, Numbers]]:
    """What the tables of studies make."""
    asked = NoiseRequest(unit="client", clip=0.7, noise_multiplier=1.3, parameters=(30, 7))
    own = Correlation(kind="blt", separation=3, passes=2)
    kinds: list[tuple[Noise, NoiseRequest]] = [
        (GaussianNoise(), asked),
        (GaussianNoise(clipping="per-layer"), asked),
        (GaussianNoise(), replace(asked, counted=True)),
        (GaussianNoise(), replace(asked, counted=True, count_deviation=2.0)),
        (GaussianNoise(), replace(asked, correlation=own)),
        (GaussianNoise(), replace(asked, correlation=own, counted=True)),
        (KNormNoise(), asked),
        (KNormNoise(form="paper"), asked),
        (HaarNoise(), asked),
        (HaarNoise(blocks="layers", weights="paper"), asked),
        (HaarNoise(weights="learned", exponent=0.3), asked),
        (HaarNoise(clipping="per-level", weights="paper"), asked),
        (HaarNoise(form="paper"), asked),
        (HaarNoise(form="paper", discount=False), replace(asked, update_bound=2.0, largest=9.0)),
        (HaarNoise(form="paper"), replace(asked, unit="sample")),
        (HaarNoise(form="paper", clipping="per-level", weights="paper"), asked),
        (HaarNoise(weights="optimal"), replace(asked, energies=lambda found: (0.5,) * 7)),
    ]
    for number, (table, request) in enumerate(kinds):
        made = table.make(request)
        told = released(made.release_counted(torch.zeros(37), 0.0, Seeded(0).at(number))[0])
        yield f"table {number}", [*told, made.clip, made.vector_multiplier]


def found() -> dict[str, Numbers]:
    parts = (grids, matrices, releases, wavelets, tables)
    return {name: [*map(float, told)] for part in parts for name, told in part()}


def test_noise_is_that_of_before() -> None:
    stored, now = json.loads(STORED.read_text()), found()
    assert stored.keys() == now.keys()
    for name, told in now.items():
        # sums in float32 differ in their last digits from processor to processor
        assert told == pytest.approx(stored[name], rel=1e-6, abs=1e-6), name


@pytest.mark.parametrize("low", [0.51, 0.7072])
def test_logarithms_of_exact_numbers_are_right_to_their_last_digits(low: float) -> None:
    for x in np.linspace(low, low * 1.38, 60).tolist():
        told = draws._length(np.uint64(int(x * 2**53) << 11))
        exact = -2 * mpmath.log(mpmath.mpf(int(x * 2**53)) / 2**53)
        assert abs(float(told - exact)) <= 2.0**-50


def test_sines_of_exact_angles_are_right_to_their_last_digits() -> None:
    for k in range(0, 2**53, 2**53 // 321):
        cosine, sine = draws._turned(np.uint64(k << 11))
        angle = 2 * mpmath.pi * mpmath.mpf(k) / 2**53
        assert abs(float(cosine - mpmath.cos(angle))) <= 2.0**-49
        assert abs(float(sine - mpmath.sin(angle))) <= 2.0**-49


def test_noise_has_the_margin_for_rounding_that_it_says() -> None:
    for clip, sigma, d in ((1.0, 1.0, 5), (0.3, 2.7, 1234)):
        made = Grid.of(clip=clip, noise_multiplier=sigma, dimension=d)
        moved = mpmath.mpf(clip) / made.step + mpmath.sqrt(d)
        assert 2.0**-48.5 < made.deviation / (sigma * moved) - 1 < 2.0**-47.5


def test_norms_of_coefficients_have_the_margin_for_rounding_that_they_say() -> None:
    basis, weights = Basis.flat(8), (0.5, 2.0, 1.0, 0.25)
    vanished = 2.0 * 2.0 * math.sqrt(8) * 2.0**-63
    rows = torch.zeros(2, 8, dtype=torch.float64)
    rows[1] = 1.0  # all of it in the base
    nothing, whole = basis.weighted_norms(rows, weights).tolist()
    assert nothing == pytest.approx(vanished, rel=1e-14, abs=0.0)
    length = math.sqrt(8)
    lost = 0.51 * (8 + 80) * 2.0**-53 + 2.0 * 1.01 * math.sqrt(4) * 7 * 2.0**-53 / 0.5
    assert whole / (0.5 * length) - 1.0 == pytest.approx(lost, abs=2.0**-51)
    assert basis.weighted_norms(rows[1:], weights, by_level=True).tolist() == [whole]
    assert math.isinf(float(basis.weighted_norms(rows[1:] * 1e20, weights)))


def test_what_is_just_within_a_clip_counts_as_within() -> None:
    basis, row = Basis.flat(8), torch.linspace(0.5, 1.0, 8, dtype=torch.float64)
    for kind in (HaarGaussian, LevelGaussian):
        made = kind.weighted(clip=1.0, noise_multiplier=1.3, basis=basis, weights=(1.0,) * 4)
        norm = float(made.norms(row.unsqueeze(0)))
        assert made.scaled(norm, 1.3).bounded(row)[1]
        assert not made.scaled(math.nextafter(norm, 0.0), 1.3).bounded(row)[1]


def test_what_is_asked_for_unless_a_study_says_otherwise() -> None:
    asked = {"unit": "client", "clip": 0.7, "noise_multiplier": 1.3, "parameters": (30, 7)}
    assert NoiseRequest(**asked) == NoiseRequest(  # type: ignore[arg-type]
        **asked, energies=None, counted=False, count_deviation=None, update_bound=None,  # type: ignore[arg-type]
        largest=1.0, correlation=None,
    )  # fmt: skip


def test_what_is_just_allowed_and_what_is_not() -> None:
    for kind in ("banded", "blt"):
        for separation, passes in ((0, 1), (1, 0), (2**17 + 1, 1)):
            with pytest.raises(StudyError, match=r"privacy\.batches must be from 1 to 131072"):
                Correlation(kind=kind, separation=separation, passes=passes)
    assert Correlation(kind="banded", separation=3318, passes=1).steps is None
    with pytest.raises(StudyError, match="banded noise can be computed"):
        Correlation(kind="banded", separation=3319, passes=1)
    assert Correlation(kind="blt", separation=2**17, passes=9).steps == 2**17
    assert Correlation(kind="blt", separation=2**16 + 1, passes=9).steps == 2**16 + 1
    events = [ExponentialNorm(clip=1.0, noise_multiplier=1.0, dimension=d).event() for d in (1, 2)]
    assert [isinstance(each, NonPrivate) for each in events] == [False, True]
    with pytest.raises(StudyError, match="take more than 1e-15"):
        RandomisedResponse(epsilon=1e-17, classes=3)
    for epsilon, classes in ((0.0, 2), (math.inf, 2), (1.0, 0)):
        with pytest.raises(StudyError):
            RandomisedResponse(epsilon=epsilon, classes=classes)
    assert RandomisedResponse(epsilon=1e-300, classes=1).event().epsilon == 0.0
    for clip in (1e-12, 1e12):
        Gaussian(clip=clip, noise_multiplier=1e-300)
        Single(clip=clip, noise_multiplier=clip)
    for clip, sigma in ((9.9e-13, 1.0), (1.01e12, 1.0), (1.0, 0.0), (1.0, math.inf)):
        with pytest.raises(StudyError):
            Gaussian(clip=clip, noise_multiplier=sigma)
    vector = torch.tensor([3.0, 4.0])
    for norm, inside, kept in ((5.0, True, False), (4.99, True, True), (1e19, False, False)):
        short, within = gaussian.shortened(vector, norm, 5.0)
        assert within == inside
        assert torch.equal(short, vector) == kept
        assert bool(short.any())
    assert not gaussian.shortened(vector, 1.1e19, 5.0)[0].any()


def test_numbers_of_the_proofs_are_those_of_the_proofs() -> None:
    """They stand in docs/mathematics.md and in the words of their files."""
    assert (2**-42, 2**-20, 44 * math.log(2)) == (draws.ERROR, draws.SHORTEST, draws.LONGEST)
    assert (draws.REACH, draws.HELD, draws.LANES, draws.STRETCH) == (2**51, 2**31 - 1, 32, 1024)
    assert (grid.FINE, grid._SHARE, grid._FINEST, grid._WIDEST) == (2**-20, 2**-11, 2**-32, 2**36)
    assert (grid._FEW, grid._MIXING) == (128, 12)
    assert (gaussian.SMALLEST, gaussian.LARGEST, gaussian.LONGEST) == (1e-12, 1e12, 1e19)
    assert (gaussian.COUNT_SHARE, gaussian.SHRINK) == (1 / 400, 1 - 2**-18)
    assert (correlated.FORMAT, correlated.LONGEST_MATRIX, correlated.SLACK) == (1, 2**17, 2)
    assert (correlated.LONGEST_BAND, correlated.MOST_BUFFERED) == (3318, 128)
    assert (correlated._ROUNDING, correlated._WIDEST) == (1 + 2**-28, 2**26)
    assert (shared.FEWEST_BITS, shared.MOST_BITS, shared.SMALLEST) == (16, 63, 4)
    assert (-40, -100 * math.log(2)) == (shared.OVERFLOW, shared.LOG_BETA)


if __name__ == "__main__":
    STORED.write_text(
        json.dumps(found(), indent=0).replace(",\n", ", ").replace('], "', '],\n"') + "\n"
    )
