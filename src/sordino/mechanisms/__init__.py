"""Mechanisms: the only ways in which something about raw data may leave a client.

A name is imported when it is asked for: whoever only prices noise does not wait for what adds it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.mechanisms.gaussian import (
        SHRINK,
        Bounded,
        CountedGaussian,
        Gaussian,
        Learning,
        Measuring,
        Shortening,
        Single,
        Tailed,
        length,
        shortened,
    )
    from sordino.mechanisms.kinds import GaussianNoise, KNormNoise
    from sordino.mechanisms.knorm import ExponentialNorm, KNorm
    from sordino.mechanisms.registry import Noise, NoiseRequest, imported, known, register
    from sordino.mechanisms.response import RandomisedResponse

_PLACES = {
    "SHRINK": "gaussian",
    "Bounded": "gaussian",
    "CountedGaussian": "gaussian",
    "ExponentialNorm": "knorm",
    "Gaussian": "gaussian",
    "GaussianNoise": "kinds",
    "KNorm": "knorm",
    "KNormNoise": "kinds",
    "Learning": "gaussian",
    "Measuring": "gaussian",
    "Noise": "registry",
    "NoiseRequest": "registry",
    "RandomisedResponse": "response",
    "Shortening": "gaussian",
    "Single": "gaussian",
    "Tailed": "gaussian",
    "checked_clip": "gaussian",
    "imported": "registry",
    "known": "registry",
    "length": "gaussian",
    "register": "registry",
    "shortened": "gaussian",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


__all__ = [
    "SHRINK",
    "Bounded",
    "CountedGaussian",
    "ExponentialNorm",
    "Gaussian",
    "GaussianNoise",
    "KNorm",
    "KNormNoise",
    "Learning",
    "Measuring",
    "Noise",
    "NoiseRequest",
    "RandomisedResponse",
    "Shortening",
    "Single",
    "Tailed",
    "checked_clip",
    "imported",
    "known",
    "length",
    "register",
    "shortened",
]
