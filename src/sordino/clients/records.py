"""The files of runs in which every client has examples of its own, whatever the
regime: its part of ``run.json`` and of the rows of rounds.
"""

from __future__ import annotations

from msgspec import UNSET

from sordino.core.records import (
    Client,
    Count,
    Facts,
    Maybe,
    Number,
    Real,
    Record,
    Round,
    Text,
    Whole,
    known,
)
from sordino.core.run.reading import Run

LISTED = 1000
"""Clients up to which a run's record says something of each."""


class Holder(Client, kw_only=True):
    """A client with examples of its own.

    Attributes:
        name: where the data names clients.
        examples: how many; null where that is private.
        labels: how many of each class; empty where that is private.
    """

    name: Text = UNSET
    examples: Whole = UNSET
    labels: Maybe[tuple[Count, ...]] = UNSET


class Crowd(Record, kw_only=True):
    """Clients that are too many to be listed.

    Attributes:
        clients: how many.
        unit: of the ledger, where they share one.
        examples: of all; null where that is private, as are ``least`` and ``most`` of one client.
    """

    clients: Whole = UNSET
    unit: Text = UNSET
    examples: Whole = UNSET
    least: Whole = UNSET
    most: Whole = UNSET


class TestSet(Record, kw_only=True):
    """A test set: what models are measured on; with a unit of the ledger, epsilon, sigma and how
    often, where that is paid for.
    """

    __test__ = False  # pytest: no class of tests

    kind: Text = UNSET
    rows: Whole = UNSET
    unit: Text = UNSET
    epsilon: Number = UNSET
    noise_multiplier: Number = UNSET
    evaluations: Whole = UNSET


class Stage(Record, kw_only=True):
    """A planned stretch of updates, with one clipping bound and one rule for the learning rate."""

    number: Whole = UNSET
    start: Whole = UNSET
    length: Whole = UNSET
    clip: Number = UNSET
    rate: Number = UNSET
    variance: Number = UNSET
    slowing: Number = UNSET


class Horizontal(Facts, kw_only=True):
    """Where clients have examples of their own.

    Attributes:
        clients: each of them; ``crowd`` instead, where they are more than :data:`LISTED`.
        span: public low and high of labels that are numbers; absent where they are classes.
        test: what models are measured on.
        epsilons, noise_multipliers: of each edge, where they differ.
        batches: b, where batches come in a public order, one pass after another.
        staleness: tau_max.
        validation: SHA-256 (hex) of public examples that were set aside.
    """

    clients: Maybe[tuple[Holder, ...]] = UNSET
    crowd: Maybe[Crowd] = UNSET
    span: Maybe[tuple[Real, Real]] = UNSET
    test: Maybe[TestSet] = UNSET
    epsilons: Maybe[tuple[Real, ...]] = UNSET
    noise_multipliers: Maybe[tuple[Real, ...]] = UNSET
    sampling_rate: Number = UNSET
    batches: Whole = UNSET
    staleness: Number = UNSET
    validation: Text = UNSET
    stages: Maybe[tuple[Stage, ...]] = UNSET

    @property
    def members(self) -> tuple[Holder, ...]:
        """The clients that are listed."""
        return known(self.clients) or ()

    @property
    def headcount(self) -> int:
        """The number of clients."""
        crowd = known(self.crowd)
        return len(self.members) if crowd is None else known(crowd.clients) or 0


class Measured(Round, kw_only=True, tag="round"):
    """A round whose model may have been measured.

    Attributes:
        validation: accuracy on public examples that were set aside.
        test_epsilon: what private test rows have spent.
        rmse: root mean squared error on the test set, where labels are numbers, in their units.
    """

    validation: Number = UNSET
    test_epsilon: Number = UNSET
    rmse: Number = UNSET


def horizontal(run: Run) -> Horizontal:
    """Return what a run says of clients with examples; nothing where there are none."""
    return run.about.facts if isinstance(run.about.facts, Horizontal) else Horizontal()
