"""The price of measuring models on private rows."""

from __future__ import annotations

from functools import lru_cache

from sordino.clients.study import HorizontalStudy
from sordino.privacy import Event, Gaussian, noise_multiplier


def evaluations(study: HorizontalStudy) -> int:
    """Return how often models are measured at most: every so many rounds or updates, and at the
    end.
    """
    return study.horizon // study.stride + 1


def multiplier(study: HorizontalStudy) -> float:
    """z of the noise on a count of right answers, for :func:`evaluations` within test epsilon."""
    privacy = study.privacy
    epsilon = privacy.epsilon if privacy.evaluation_epsilon is None else privacy.evaluation_epsilon
    assert epsilon is not None
    assert privacy.delta is not None
    return _multiplier(evaluations(study), epsilon, privacy.delta, privacy.accountant)


@lru_cache(maxsize=64)
def _multiplier(times: int, epsilon: float, delta: float, accountant: str) -> float:
    def release(sigma: float) -> Event:
        return Gaussian(noise_multiplier=sigma)

    return noise_multiplier(
        sampling_rate=1.0,
        steps=times,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        release=release,
    )
