"""Privacy facts: what a mechanism did, without any arithmetic.

An event is a small frozen value that holds just what accounting needs. Accountants
(:mod:`~sordino.privacy.accounting`) do the arithmetic; the ledger keeps the facts, so that
tomorrow's better accountant can price yesterday's run.

Promise to old ledgers: an event is never removed and no field ever changes its meaning;
events and fields are only added.

Adjacency is zero-out, unless whoever books says otherwise: neighbours differ in that one record's
contribution is replaced by none, while sizes stay what they are (Kairouz et al. 2021, "Practical
and private (deep) learning without sampling or shuffling"). With Poisson sampling it has the same
dominating pair as adding or removing a record (docs/mathematics.md). An unsampled Gaussian or Pure
release costs the same under replace-one, if its noise was measured by how far a replacement moves
it. Sampling is for zero-out.

>>> step = PoissonSampled(sampling_rate=0.015, event=Gaussian(noise_multiplier=1.1))
>>> encode(step)
'{"type":"PoissonSampled","sampling_rate":0.015,"event":{"type":"Gaussian","noise_multiplier":1.1}}'
>>> decode(encode(step)) == step
True
"""

from __future__ import annotations

import math
import operator

import msgspec

from sordino.base.errors import LedgerError, StudyError


class _Fact(msgspec.Struct, frozen=True, tag=True, tag_field="type", forbid_unknown_fields=True):
    """A fact, as JSON: an object with its type."""


LARGEST_MEAN = 1e6
"""Of a number of trials."""
MOST_ROWS = 1024
"""Of one person together: a price looks at every number of them."""


class Gaussian(_Fact, frozen=True):
    """x -> x + N(0, (sigma s)^2 I) where one record's contribution moves x by at most s in L2.

    Attributes:
        noise_multiplier: sigma, dimensionless; 0 protects nothing.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        if not (self.noise_multiplier >= 0 and math.isfinite(self.noise_multiplier)):
            raise StudyError(
                f"noise_multiplier must be a number from 0; got {self.noise_multiplier}"
            )
        _as_float(self, "noise_multiplier")


class Pure(_Fact, frozen=True):
    """A pure release: e^epsilon bounds how much likelier an answer gets with or without a record.

    Attributes:
        epsilon: of this release alone, dimensionless; delta is 0. With 0 nothing was told.
    """

    epsilon: float

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0 and math.isfinite(self.epsilon)):
            raise StudyError(
                f"epsilon of a pure release must be a number from 0; got {self.epsilon}"
            )
        _as_float(self, "epsilon")


class PoissonSampled(_Fact, frozen=True):
    """The event, run on a sample that holds every record independently with probability q.

    Attributes:
        sampling_rate: q, in (0, 1].
        event: what is run on the sample.
    """

    sampling_rate: float
    event: Event

    def __post_init__(self) -> None:
        if not 0.0 < self.sampling_rate <= 1.0:
            raise StudyError(f"sampling_rate must lie in (0, 1]; got {self.sampling_rate}")
        _as_float(self, "sampling_rate")


class SampledRows(_Fact, frozen=True):
    """The event, run on such a sample, for rows of one person that fall away together.

    Each of the rows is in the sample independently, so a binomial number of them is. The fact is of
    a whole release: no more than these rows of the person can be in it.

    It stands in histories of persons, and not among charges: what is booked is the event of one
    row, :class:`PoissonSampled`.

    Attributes:
        sampling_rate: q, in (0, 1].
        rows: the most of one person, from 1.
        event: what is run on the sample.
    """

    sampling_rate: float
    rows: int
    event: Event

    def __post_init__(self) -> None:
        PoissonSampled(self.sampling_rate, self.event)
        _as_float(self, "sampling_rate")
        msgspec.structs.force_setattr(self, "rows", operator.index(self.rows))
        if not 1 <= self.rows <= MOST_ROWS:
            raise StudyError(f"rows of one person are a number from 1 to 1024; got {self.rows}")


class Composed(_Fact, frozen=True):
    """Several events on the same data, one after another."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "events", tuple(self.events))


class Repeated(_Fact, frozen=True):
    """The same event ``count`` times."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise StudyError(f"an event cannot happen {self.count} times")
        msgspec.structs.force_setattr(self, "count", operator.index(self.count))


class Chosen(_Fact, frozen=True):
    """The event, its noise chosen by looking at earlier releases, under a filter of one order.

    Only the accountant of that very order, fixed before the first release, can bound what such
    choices come to.

    Attributes:
        order: alpha, above 1.
        event: what happened.
    """

    order: float
    event: Event

    def __post_init__(self) -> None:
        if not (self.order > 1.0 and math.isfinite(self.order)):
            raise StudyError(f"order must be a number above 1; got {self.order}")
        _as_float(self, "order")


class Grouped(_Fact, frozen=True):
    """The event for data sets that are ``size`` steps of adjacency apart.

    Where no event of one step is known to bound it.

    Group privacy prices all of them together; see :mod:`sordino.privacy.records.group`.

    Attributes:
        event: as one step of adjacency is priced.
        size: steps of adjacency, from 1.
    """

    event: Event
    size: int

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "size", operator.index(self.size))
        if self.size < 1:
            raise StudyError(f"a group has at least one record; got {self.size}")


class NegativeBinomial(_Fact, frozen=True):
    """P(K = k) of the negative binomial distribution, given K >= 1 (its limit for eta = 0).

    Attributes:
        eta: above -1; 1 is geometric, 0 logarithmic.
        gamma: in (0, 1); the smaller, the more trials.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (-1.0 < self.eta <= 100.0 and 0.0 < self.gamma < 1.0):
            raise StudyError(
                f"a negative binomial number of trials needs -1 < eta <= 100 and 0 < gamma < 1; "
                f"got eta {self.eta} and gamma {self.gamma}"
            )
        _as_float(self, "eta")
        _as_float(self, "gamma")


class Poisson(_Fact, frozen=True):
    """K is Poisson; with K = 0 nothing is released.

    Attributes:
        mean: of K, above 0.
    """

    mean: float

    def __post_init__(self) -> None:
        if not 0.0 < self.mean <= LARGEST_MEAN:
            raise StudyError(f"the mean number of trials must lie in (0, 1e6]; got {self.mean}")
        _as_float(self, "mean")


Trials = NegativeBinomial | Poisson
"""Distributions of the number of runs of a private choice: drawn in secret, whatever the data."""


class Selected(_Fact, frozen=True):
    """The best of a random number of runs of the event, and nothing of the others.

    See :mod:`sordino.privacy.parts`, which prices it.

    Attributes:
        event: one run, whatever candidate it tries.
        trials: the distribution of how many runs there are.
    """

    event: Event
    trials: Trials


class NonPrivate(_Fact, frozen=True):
    """A release for which no bound is known. Every accountant answers infinity."""

    reason: str


class Nothing(_Fact, frozen=True):
    """No data was used. Every accountant answers 0."""


Event = (
    Gaussian
    | Pure
    | PoissonSampled
    | SampledRows
    | Composed
    | Repeated
    | Chosen
    | Grouped
    | Selected
    | NonPrivate
    | Nothing
)
History = tuple[tuple[Event, int], ...]
"""Events, and how often each was charged."""


def _as_float(event: _Fact, field: str) -> None:
    # 1, 1.0 and numpy's 1.0 are equal and must have one text; so must 0.0 and -0.0.
    msgspec.structs.force_setattr(event, field, float(getattr(event, field)) + 0.0)


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> str:
    """The canonical JSON of an event: equal events have equal text."""
    return _encoder.encode(event).decode()


def decode(text: str | bytes) -> Event:
    """The event in canonical JSON.

    Raises:
        LedgerError: if the text is no event that this version knows.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, StudyError, RecursionError, ArithmeticError, TypeError) as error:
        shown = repr(text if len(text) <= 300 else text[:300])
        raise LedgerError(f"not an event that this version knows ({error}): {shown}") from error
