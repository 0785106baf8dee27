"""Every mechanism under attack: what is sound stays below its price, what is not is caught."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from sordino.audit import mechanisms
from sordino.audit.intervals import failed
from sordino.audit.mechanisms import Effort, Subject, audited, sigma_of, subject, subjects
from sordino.mechanisms.gaussian import Gaussian, Single
from sordino.mechanisms.kinds import GaussianNoise, HaarNoise, known
from sordino.mechanisms.response import RandomisedResponse
from sordino.privacy import Gaussian as Booked

SMALL = Effort(cheap=60_000, dear=1500)
ALPHA = 0.05


def test_the_whole_table_at_small_scale() -> None:
    found = mechanisms.table(subjects(), SMALL, 3, ALPHA)
    assert [one.name for one in found] == [one.name for one in subjects()]
    assert not failed(found)
    assert {one.verdict for one in found if one.sound} == {"holds"}
    assert [one.name for one in found if one.verdict == "caught"] == [
        "haar, as printed",
        "exponential norm, d = 8",
        "raw mu beside a step",
    ]
    assert {one.unit for one in found} == {"sample", "entity", "label"}
    # a bound from many releases says something
    assert min(one.low for one in found if one.releases > 10_000) > 0.3


def test_no_registered_mechanism_is_left_out() -> None:
    names = " ".join(one.name for one in subjects())
    for kind in known():
        assert kind in names or (kind == "k-norm" and "exponential norm" in names)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_a_gaussian_is_audited_within_a_fifth(epsilon: float) -> None:
    one = subject("gaussian", GaussianNoise(), sigma_of(epsilon), 1, cheap=True)
    found = audited(one, Effort(cheap=400_000), 4, ALPHA / 20.0)
    assert found.ledger == pytest.approx(epsilon, rel=1e-6)
    assert found.low <= found.ledger <= 1.2 * found.low


def _with(one: Subject, draw: mechanisms.Draw) -> Subject:
    return replace(one, draw=draw)


def test_less_noise_than_is_booked_is_found() -> None:
    """A tenth or a fifth less: the table would fail the build."""
    sigma = sigma_of(2.0)
    plain = subject("gaussian", GaussianNoise(), sigma, 1, cheap=True)
    haar = subject("haar", HaarNoise(), sigma, 2**14, cheap=True)
    weaker = subject("haar", HaarNoise(), 0.85 * sigma, 2**14, cheap=True)
    shared = partial(mechanisms.shared_noise, 2, 0.85 * sigma)
    row = partial(mechanisms.single_rows, Single(clip=1.0, noise_multiplier=0.85 * sigma))
    wrong = [
        _with(plain, mechanisms.releases(Gaussian(clip=0.7, noise_multiplier=0.85 * sigma))),
        _with(haar, weaker.draw),
        Subject("shared", True, "sample", Booked(noise_multiplier=sigma),
                Booked(noise_multiplier=sigma), shared, True),
        Subject("row", True, "entity", Booked(noise_multiplier=sigma),
                Booked(noise_multiplier=sigma), row, True),
        replace(_labels(2.0), draw=_labels(2.2).draw),
    ]  # fmt: skip
    found = mechanisms.table(wrong, Effort(cheap=200_000), 5, ALPHA)
    assert [one.verdict for one in found] == ["BROKEN"] * 5
    assert failed(found) == found


def _labels(epsilon: float) -> Subject:
    made = RandomisedResponse(epsilon=epsilon, classes=4)
    return Subject(
        "labels",
        True,
        "label",
        made.event(),
        made.event(),
        partial(mechanisms.answers, made),
        cheap=True,
    )


def test_a_claim_that_is_wrong_but_not_shown_to_be_fails_as_well() -> None:
    """A literal form that the attack does not catch: the attack has lost its power."""
    sigma = sigma_of(2.0)
    one = subject("haar, as printed", HaarNoise(form="paper"), sigma, 16, cheap=False)
    tame = subject("gaussian", GaussianNoise(), sigma, 1, cheap=True)
    found = audited(_with(one, tame.draw), SMALL, 6, ALPHA)
    assert found.verdict == "not caught"
    assert failed([found]) == [found]


def test_levels_clipped_one_by_one_are_audited_with_all_of_them_full() -> None:
    """What is booked is nearly reached; and the printed form claims far too little."""
    sigma, effort = sigma_of(2.0), Effort(dear=4000)
    sound = subject("haar", HaarNoise(clipping="per-level"), sigma, 16, cheap=False)
    found = audited(sound, effort, 8, ALPHA)
    assert found.verdict == "holds"
    assert found.low > 0.6 * found.ledger
    weaker = subject("haar", HaarNoise(clipping="per-level"), 0.55 * sigma, 16, cheap=False)
    assert audited(_with(sound, weaker.draw), effort, 8, ALPHA).verdict == "BROKEN"
    printed = subject(
        "haar, as printed", HaarNoise(form="paper", clipping="per-level"), sigma, 16, cheap=False
    )
    assert audited(printed, effort, 8, ALPHA).verdict == "caught"
