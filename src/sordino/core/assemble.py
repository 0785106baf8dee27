"""The one place where a study becomes objects: its regime makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from sordino.core import regimes
from sordino.core.built import Built
from sordino.core.plan import Plan
from sordino.core.study.base import Study

S = TypeVar("S", bound=Study)


def calibrated(study: S) -> S:
    """See :meth:`sordino.core.regime.Regime.calibrated`."""
    found: S = regimes.of(study).calibrated(study)
    return found


def plan(study: Study) -> tuple[Plan, tuple[int, ...]]:
    """See :meth:`sordino.core.regime.Regime.plan`."""
    return regimes.of(study).plan(study)


def build(study: Study, folder: Path, run: str, payable: Sequence[int] | None = None) -> Built:
    """See :meth:`sordino.core.regime.Regime.build`."""
    return regimes.of(study).build(study, folder, run, payable)
