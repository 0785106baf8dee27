r"""Group privacy: the price for one unit of a release that was booked for another.

An event of the ledger bounds the release for data sets that differ in *one* unit of its kind, whose
contribution is replaced by none. A record may be more than that, or another kind of change:

* **k records of one person**, in one set of examples. k clipped contributions fall away together.
  Without sampling the statistic moves by at most k times as far: Gaussian(sigma) is Gaussian(sigma
  / k), Pure(epsilon) is Pure(k epsilon). With a Poisson sample at rate q, j of the k are drawn with
  binomial probability, and the statistic of a Gaussian then moves by at most j times as far:
  SampledRows(q, k, Gaussian(sigma)) dominates (Ganesh 2024, "Tight group-level DP guarantees for
  DP-SGD with sampling via mixture of Gaussians"; docs/mathematics.md has a proof).
* **k records, in shares of several releases.** What was counted of a person in several sets of one
  sum, where clients were left out of some sums, is no whole release: at least one of the k is drawn
  with probability q' = 1 - (1 - q)^k, and the statistic then moves by at most k times as far:
  PoissonSampled(q', Gaussian(sigma / k)) dominates, by joint convexity of the hockey-stick
  divergence and because a Gaussian's pair grows with its shift.
* **k persons** who fall away together, where a person's rows are clipped together: they are k
  records of the release, as above. But **a row of such a person** changes the bounded sum of all
  its person's rows into another: two steps, for which the history is priced, as the next one says.
* **a record of a client** that is protected as a whole. Its client's update changes from one
  bounded vector into another: the client is replaced by none, and another put in its place. That is
  two steps of adjacency, not one. Without sampling Gaussian(sigma / 2); with sampling no event of
  one step is known to dominate (the pair is one of two mixtures; Lebeda et al. 2024, "Avoiding
  pitfalls for privacy accounting of subsampled mechanisms under composition"), so the whole of it
  is priced by group privacy on the curve: (epsilon, delta) for one step is (2 epsilon, delta (1 +
  e^epsilon)) for two (Vadhan 2017, lemma 2.2).
* **an entity that is replaced**, where the event bounds a row that falls away: fall away, then come
  back as another. Two steps.
* **a client**, where its examples were protected, or other clients that held some of them: all its
  records change at once. No bound is stated (:func:`of_client`).

A replace-one event bounds the change of a row into "none" if none is a row like any other, with
fixed values; in the regime of events it is, for the number of events is public.

>>> from sordino.privacy.event import Gaussian, PoissonSampled
>>> grouped(Gaussian(noise_multiplier=3.0), 3).noise_multiplier
1.0
>>> round(grouped(PoissonSampled(0.01, Gaussian(noise_multiplier=3.0)), 3).sampling_rate, 6)
0.029701
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from sordino.privacy.event import (
    MOST_ROWS,
    Chosen,
    Composed,
    Event,
    Gaussian,
    Grouped,
    History,
    NonPrivate,
    Nothing,
    PoissonSampled,
    Pure,
    Repeated,
    SampledRows,
    Selected,
)

SAMPLE, PERSON, CLIENT, ENTITY, LABEL = "sample", "person", "client", "entity", "label"
MOST = 64
"""Records in a group beyond which no bound is attempted: k times epsilon says nothing any more."""

Column = tuple[Event, str, int]
"""A release, the kind of unit it was booked for, and from how many of them it was computed."""

ELSEWHERE = NonPrivate(
    reason="records of a whole client were in releases of examples, or of another client, of which "
    "no useful bound is known for all of them together"
)

Counts = Mapping[Column, int]


def _inside(event: Event, change: Callable[[Event], Event]) -> Event:
    """A composition of events, each of them changed; another event as it is."""
    match event:
        case Composed(events=events):
            return Composed(tuple(map(change, events)))
        case Repeated(event=inside, count=count):
            return Repeated(change(inside), count)
        case Selected(event=inside, trials=trials):
            return Selected(change(inside), trials)
        case _:
            return event


def _sample(event: PoissonSampled) -> tuple[float, Event]:
    """Rate and event of a sample; a sample of a sample is a smaller sample."""
    rate, inside = event.sampling_rate, event.event
    while isinstance(inside, PoissonSampled):
        rate, inside = rate * inside.sampling_rate, inside.event
    return rate, inside


def whole(event: Event) -> Event:
    """The event of one unit, as a fact of whole releases: of several units it can bound those that
    were drawn. :func:`bare` is its inverse.
    """
    if not isinstance(event, PoissonSampled):
        return _inside(event, whole)
    rate, inside = _sample(event)
    return event if isinstance(inside, Chosen) else SampledRows(rate, 1, inside)


def bare(event: Event) -> Event:
    """The event of one unit as it is booked."""
    if isinstance(event, SampledRows) and event.rows == 1:
        return PoissonSampled(event.sampling_rate, event.event)
    return _inside(event, bare)


def of_rows(event: Event, rows: int) -> Event:
    """A whole release for one row as it bounds ``rows`` rows of one person together."""
    return event if rows == 1 else grouped(whole(event), rows)


def grouped(event: Event, size: int) -> Event:
    """A release for one unit as it bounds ``size`` of them that fall away together."""
    if size == 1 or isinstance(event, Nothing | NonPrivate):
        return event
    if isinstance(event, SampledRows) and event.rows * size <= MOST_ROWS:
        return SampledRows(event.sampling_rate, event.rows * size, event.event)
    if size > MOST or isinstance(event, SampledRows):
        return NonPrivate(
            reason=f"no useful bound is known for {size} records of one unit together"
        )
    match event:
        case Gaussian(noise_multiplier=sigma):
            shared = sigma / size
            return Gaussian(
                noise_multiplier=shared if shared * size <= sigma else math.nextafter(shared, 0.0)
            )
        case Pure(epsilon=epsilon):
            return Pure(epsilon=math.nextafter(epsilon * size, math.inf) if epsilon else 0.0)
        case Composed() | Repeated() | Selected():
            return _inside(event, lambda inside: grouped(inside, size))
        case PoissonSampled():
            rate, inside = _sample(event)
            met = 1.0 if rate == 1.0 else -math.expm1(size * math.log1p(-rate))
            return PoissonSampled(min(1.0, met * (1.0 + 1e-12)), grouped(inside, size))
        case Chosen():
            return NonPrivate(
                reason="noise that was chosen along the way has no known price for several records "
                "of one unit"
            )
        case Grouped(event=inside, size=before):
            return Grouped(inside, before * size)


def together(sets: Iterable[Sequence[Event]], size: int) -> tuple[Event, ...]:
    """The events of some sets, as they bound an entity that is so many units in one of them, it is
    not known which.
    """
    each, found = [*sets], Counter[Event]()
    for events in each:
        found |= Counter(events)
    priced = of_rows if len(each) == 1 else grouped
    return tuple(priced(event, size) for event, times in found.items() for _ in range(times))


def composed(events: Sequence[Event]) -> Event:
    """Several events as one."""
    return events[0] if len(events) == 1 else Composed(tuple(events))


def steps(event: Event, count: int) -> Event:
    """A release for one step of adjacency as it bounds so many, whatever they are."""
    if count == 1 or isinstance(event, Nothing | NonPrivate):
        return event
    return Grouped(event, count) if _sampled(event) else grouped(event, count)


def replaced(event: Event) -> Event:
    """A release as it bounds a unit that is replaced by another: two steps of adjacency."""
    return steps(event, 2)


def _sampled(event: Event) -> bool:
    match event:
        case (
            PoissonSampled(sampling_rate=rate, event=inside)
            | SampledRows(sampling_rate=rate, event=inside)
        ):
            return rate < 1.0 or _sampled(inside)
        case Composed(events=events):
            return any(map(_sampled, events))
        case Repeated(event=inside) | Selected(event=inside):
            return _sampled(inside)
        case Chosen() | Grouped():
            return True
        case _:
            return False


def translated(counts: Counts, kind: str) -> History:
    """A history as it bounds one unit of ``kind``: equal histories give equal answers.

    Labels that were told say nothing about a whole row, for the same run books the row under
    "entity"; and the other way round.
    """
    found: dict[Event, int] = {}
    for (event, booked, size), count in counts.items():
        one = _translated(event, size, booked, kind)
        if count and one is not None:
            found[one] = found.get(one, 0) + count
    return tuple(found.items())


@lru_cache(maxsize=1 << 14)
def _translated(event: Event, size: int, booked: str, kind: str) -> Event | None:
    # the size of a row, which is none of the persons who are units, is the steps that it takes
    event = steps(bare(event), size) if booked == PERSON else grouped(event, size)
    if booked == kind:
        return event
    match kind, booked:
        case ("sample" | "person", "sample" | "person" | "entity"):
            return event
        case ("sample" | "person" | "entity", "label") | ("label", "entity"):
            return None
        case ("sample" | "person", "client") | ("entity" | "label", "sample" | "person" | "client"):
            return replaced(event)
    raise ValueError(f"no history of {booked!r} bounds {kind!r}")


def of_client(own: History, others: Iterable[Counts]) -> History:
    """The history of a client: what was booked for it; without a bound if its records were in other
    releases besides. ``others`` are their histories.
    """
    booked = dict(own)
    for counts in others:
        for (event, kind, size), count in counts.items():
            if kind == CLIENT and size == 1:
                count -= booked.get(event, 0)
            if count > 0 and kind != LABEL and not isinstance(event, Nothing):
                return (*own, (ELSEWHERE, 1))
    return own


def weight(counts: Counts) -> float:
    """Roughly what a history costs: for sorting, never for a bound."""
    return sum(count * size * size * _cost(event) for (event, _, size), count in counts.items())


def _cost(event: Event) -> float:
    match event:
        case Gaussian(noise_multiplier=sigma):
            return min(1e12, 1.0 / sigma**2 if sigma > 1e-6 else 1e12)
        case Pure(epsilon=epsilon):
            return min(1e12, epsilon**2)
        case (
            PoissonSampled(sampling_rate=rate, event=inside)
            | SampledRows(sampling_rate=rate, event=inside)
        ):
            return rate**2 * _cost(inside)
        case Composed(events=events):
            return sum(map(_cost, events))
        case Repeated(event=inside, count=count):
            return count * _cost(inside)
        case Grouped(event=inside, size=size):
            return size**2 * _cost(inside)
        case Chosen(event=inside) | Selected(event=inside):
            return 2.0 * _cost(inside)
        case NonPrivate() | Nothing():
            return 1e12 if isinstance(event, NonPrivate) else 0.0
