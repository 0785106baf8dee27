"""Rows of the log ``rounds.jsonl``, tagged by "kind"; rows of rounds differ by regime.

The log calls what the server counts "round", whatever the regime: rounds, updates or events.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sordino.engine.records.base import Count, Maybe, Open, Real


class Row(Open, frozen=True, kw_only=True, tag_field="kind"):
    """A row of the log.

    Attributes:
        round: closed rounds, updates or events, in whose course it was written.
        time: virtual seconds.
    """

    round: Count | UnsetType = UNSET
    time: Real | UnsetType = UNSET

    @property
    def kind(self) -> str:
        """The tag."""
        return str(type(self).__struct_config__.tag)


class Round(Row, frozen=True, kw_only=True, tag="round"):
    """What every regime says of its rounds.

    Attributes:
        steps: local steps, gradients or activations of who did most.
        epsilon: highest so far, over all clients.
        accuracy: in [0, 1], where it was measured; on a stream since the row before, which may be
            estimated and lie outside.
        loss: mean of an example.
        note: the method's remark.
    """

    steps: Count | UnsetType = UNSET
    epsilon: Maybe[Real] = UNSET
    accuracy: Maybe[Real] = UNSET
    loss: Maybe[Real] = UNSET
    note: Maybe[str] = UNSET


class Measured(Round, frozen=True, kw_only=True, tag="round"):
    """A round whose model may have been measured.

    Attributes:
        validation: accuracy on public examples that were set aside.
        test_epsilon: what private test rows have spent.
    """

    validation: Maybe[Real] = UNSET
    test_epsilon: Maybe[Real] = UNSET


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


class AsynchronousRound(Measured, frozen=True, kw_only=True, tag="round"):
    """A stretch of updates.

    Attributes:
        stage: number of the last update's stage.
        clip: its clipping bound; null without one.
        rate: its learning rate.
        norm: root mean square length of the applied gradients, without what noise adds.
        staleness, stalest: mean and largest, of applied gradients.
        histogram: how many applied gradients had which staleness.
        stale, dropped: gradients that were too stale, answers that nobody had asked for.
        present, gone: edges.
    """

    stage: Count | UnsetType = UNSET
    clip: Maybe[Real] = UNSET
    rate: Maybe[Real] = UNSET
    norm: Maybe[Real] = UNSET
    staleness: Maybe[Real] = UNSET
    stalest: Maybe[Count] = UNSET
    histogram: tuple[tuple[Count, Count], ...] | UnsetType = UNSET
    stale: Count | UnsetType = UNSET
    dropped: Count | UnsetType = UNSET
    present: Count | UnsetType = UNSET
    gone: Count | UnsetType = UNSET


class VerticalRound(Round, frozen=True, kw_only=True, tag="round"):
    """A stretch of events.

    Attributes:
        error: share of wrong predictions in it; under privacy an unbiased estimate.
        accumulated: the same, of all events so far.
        regret, regret_sum: mean squared gradient of the window in it, and its sum so far.
        active, silent: share of its events in which each party was active, or did not answer.
        up, down, framing: bytes so far.
        learned, dropped, unused: events learned from, messages dropped, events whose entity had no
            budget left, in it.
        changes: events at which the world changed at once.
        active_seconds, passive_seconds, server_seconds: of computation so far.
    """

    error: Maybe[Real] = UNSET
    accumulated: Maybe[Real] = UNSET
    regret: Maybe[Real] = UNSET
    regret_sum: Maybe[Real] = UNSET
    active: tuple[Real, ...] | UnsetType = UNSET
    silent: tuple[Real, ...] | UnsetType = UNSET
    up: Count | UnsetType = UNSET
    down: Count | UnsetType = UNSET
    framing: Count | UnsetType = UNSET
    learned: Count | UnsetType = UNSET
    dropped: Count | UnsetType = UNSET
    unused: Count | UnsetType = UNSET
    changes: tuple[Real, ...] | UnsetType = UNSET
    active_seconds: Maybe[Real] = UNSET
    passive_seconds: Maybe[Real] = UNSET
    server_seconds: Maybe[Real] = UNSET


class OfClient(Row, frozen=True, kw_only=True):
    """A row about one client. None is written where it is secret who takes part."""

    client: Count | UnsetType = UNSET


class Late(OfClient, frozen=True, kw_only=True, tag="late"):
    """An answer that came after its round was closed; ``released``: what it says is out."""

    released: bool | UnsetType = UNSET


class Lost(OfClient, frozen=True, kw_only=True, tag="lost"):
    """A client that vanished with its task."""

    released: bool | UnsetType = UNSET


class Joined(OfClient, frozen=True, kw_only=True, tag="joined"):
    """A client that was given up and is back."""


class Left(OfClient, frozen=True, kw_only=True, tag="left"):
    """An edge that has left for good, after so many updates."""

    updates: Count | UnsetType = UNSET
    why: str | UnsetType = UNSET


class Stale(OfClient, frozen=True, kw_only=True, tag="stale"):
    """A gradient that was too stale to be applied."""

    staleness: Count | UnsetType = UNSET
    released: bool | UnsetType = UNSET


class Dropped(OfClient, frozen=True, kw_only=True, tag="dropped"):
    """An answer that nobody had asked for."""

    task: Count | UnsetType = UNSET
    why: str | UnsetType = UNSET


class Declined(OfClient, frozen=True, kw_only=True, tag="declined"):
    """A site that refused what it was asked for, and why. Only where sites are real."""

    why: str | UnsetType = UNSET


class Refused(Row, frozen=True, kw_only=True, tag="refused"):
    """The ledger refused a charge; the run went no further."""

    why: str | UnsetType = UNSET


class End(Row, frozen=True, kw_only=True, tag="end"):
    """The run is over; ``accuracy`` on a stream, of all its events."""

    why: str | UnsetType = UNSET
    accuracy: Maybe[Real] = UNSET


class Unknown(Open, frozen=True, kw_only=True):
    """A row of a kind that this version does not know; all of it stands in ``extra``."""

    @property
    def kind(self) -> str:
        """As it stands in the row; empty if it has none."""
        found = self.extra.get("kind")
        return found if isinstance(found, str) else ""


ROUNDS: dict[str, type[Round]] = {
    "synchronous": SynchronousRound,
    "asynchronous": AsynchronousRound,
    "vertical": VerticalRound,
}
KINDS: dict[str, type[Row]] = {
    "late": Late,
    "lost": Lost,
    "joined": Joined,
    "left": Left,
    "stale": Stale,
    "dropped": Dropped,
    "declined": Declined,
    "refused": Refused,
    "end": End,
}
