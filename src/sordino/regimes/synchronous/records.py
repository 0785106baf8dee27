"""What a run in rounds leaves in its files."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sordino.engine.records import Count, Maybe, Real
from sordino.federation.records import Horizontal, Measured


class Synchronous(Horizontal, frozen=True, kw_only=True, tag="synchronous"):
    """Rounds of clients."""


class SynchronousRound(Measured, frozen=True, kw_only=True, tag="round"):
    """A closed round. What the method observed stands in ``extra``.

    Attributes:
        tau: local steps.
        cohort, answered, missing: clients; absent where it is secret who takes part.
        clipped: share of clipped examples, or clients, in [0, 1].
        snr: estimated signal to noise.
    """

    tau: Count | UnsetType = UNSET
    cohort: Count | UnsetType = UNSET
    answered: Count | UnsetType = UNSET
    missing: Count | UnsetType = UNSET
    clipped: Maybe[Real] = UNSET
    snr: Maybe[Real] = UNSET


FACTS, ROUND = Synchronous, SynchronousRound
