"""What a study will cost, before anything runs: in rounds, as gradients arrive, or by events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sordino.engine.plan import ACCOUNTANTS, Plan, for_dimension, limits, step_event
from sordino.engine.study.base import Study
from sordino.federation.study import HorizontalStudy
from sordino.regimes.asynchronous import plan as arrivals
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.regimes.synchronous import plan as rounds
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.regimes.vertical import plan as vertical
from sordino.regimes.vertical.study import VerticalStudy

__all__ = ["ACCOUNTANTS", "Plan", "arrivals", "calibrate", "for_dimension", "limits", "price", "rounds", "step_event", "vertical"]

S = TypeVar("S", bound=Study)


def calibrate(study: S, sizes: Sequence[int]) -> S:
    """The same study with its noise filled in, if it was left out, for clients of these sizes."""
    found: Any
    match study:
        case SynchronousStudy():
            found = rounds.calibrate(study)
        case AsynchronousStudy():
            found = arrivals.calibrate(study, sizes)
        case VerticalStudy():
            found = vertical.calibrate(study)
        case _:
            raise TypeError(type(study).__name__)
    calibrated: S = found
    return calibrated


def price(study: HorizontalStudy, sizes: Sequence[int], dimension: int) -> Plan:
    """The plan of a study over clients of these sizes and a model of this dimension."""
    match study:
        case SynchronousStudy():
            return rounds.price(for_dimension(study, dimension), sizes, dimension)
        case AsynchronousStudy():
            return arrivals.price(for_dimension(study, dimension), sizes, dimension)
    raise TypeError(type(study).__name__)
