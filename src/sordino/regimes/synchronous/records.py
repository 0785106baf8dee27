"""The files of a run in rounds, and the words for what is in them."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sordino.clients.records import Horizontal, Measured
from sordino.core.records import Count, Maybe, Number, Record, Text, Whole
from sordino.core.regimes import Vocabulary


class Sum(Record, kw_only=True):
    """A sum whose noise clients share, in the first round.

    Attributes:
        honest: H, contributions for which the noise is booked.
        fewest: M, contributions below which a sum is not opened.
        bits: of the modulus.
        step: g, of the grid (units of the vector).
        deviation: of one client's noise, in steps.
        rounding: nearest or stochastic.
        growth: what rounding multiplies the noise by.
        overflow: log2 of a bound of the chance that any number of a run wraps.
    """

    honest: Whole = UNSET
    fewest: Whole = UNSET
    bits: Whole = UNSET
    step: Number = UNSET
    deviation: Number = UNSET
    rounding: Text = UNSET
    growth: Number = UNSET
    overflow: Number = UNSET


class Synchronous(Horizontal, kw_only=True, tag="synchronous"):
    """Rounds of clients.

    Attributes:
        shared: the sum, where clients share the noise.
    """

    shared: Maybe[Sum] = UNSET


class SynchronousRound(Measured, kw_only=True, tag="round"):
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
    clipped: Number = UNSET
    snr: Number = UNSET


FACTS, ROUND = Synchronous, SynchronousRound
WORDS = Vocabulary(
    regime="synchronous",
    told=(("tau", ""), ("steps", "")),
    trail="tau",
    counted={"late": "late", "lost": "lost"},
    lacking="missing",
    steps_end=True,
)
