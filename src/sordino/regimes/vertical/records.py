"""Records of a run of events: rows of its log, and facts of its run.json."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sordino.core.records import Client, Count, Facts, Maybe, Real, Record, Round, known
from sordino.core.regimes import Accuracy, Vocabulary
from sordino.core.run.reading import Run

Scalar = bool | int | float | str | None


class PartyFacts(Client, kw_only=True):
    """A party with features of its own: how many, the length of its embedding, its model's
    parameters.
    """

    features: Maybe[Count] = UNSET
    embedding: Maybe[Count] = UNSET
    parameters: Maybe[Count] = UNSET


class ReleaseFacts(Record, kw_only=True):
    """A release of an entity: unit of the ledger, in words, its epsilon."""

    unit: Maybe[str] = UNSET
    what: Maybe[str] = UNSET
    epsilon: Maybe[Real] = UNSET


class Vertical(Facts, kw_only=True, tag="vertical"):
    """Events of which each party sees a part.

    Attributes:
        stream, drift: where events come from, and how the world changes.
        activation: who is active when.
        window, alpha: events of the window, and how it forgets.
        resends: embeddings that are sent again.
        precision: bits of a number on its way.
        missing: what stands in where no answer comes.
        buffer: who keeps past gradients, where not everybody does.
        schedule: how the learning rate falls, where it does.
        path: what plays the events: "loop", "graph" or "messages"; "compiled" or "joint" in
            folders of earlier versions.
        label_epsilon: of one response.
        open: why features are not protected; null where they are.
        releases: what is released of an entity.
    """

    clients: Maybe[tuple[PartyFacts, ...]] = UNSET
    stream: Maybe[str] = UNSET
    drift: Maybe[str] = UNSET
    activation: Maybe[dict[str, Scalar]] = UNSET
    window: Maybe[Count] = UNSET
    alpha: Maybe[Real] = UNSET
    resends: Maybe[Count] = UNSET
    precision: Maybe[Count] = UNSET
    missing: Maybe[str] = UNSET
    buffer: Maybe[str] = UNSET
    schedule: Maybe[str] = UNSET
    path: Maybe[str] = UNSET
    label_epsilon: Maybe[Real] = UNSET
    open: Maybe[str] = UNSET
    releases: Maybe[tuple[ReleaseFacts, ...]] = UNSET

    @property
    def members(self) -> tuple[PartyFacts, ...]:
        """The parties."""
        return known(self.clients) or ()


class VerticalRound(Round, kw_only=True, tag="round"):
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


FACTS, ROUND = Vertical, VerticalRound


def vertical(run: Run) -> Vertical:
    """Return what a run says of parties with features; nothing where there are none."""
    return run.about.facts if isinstance(run.about.facts, Vertical) else Vertical()


ON_THE_STREAM = Accuracy(
    name="accuracy over the stream",
    told="accuracy over the stream",
    share="Share of the events predicted correctly, each before it was learned from",
    final="Accuracy over the whole stream, each event predicted before it was learned from",
    curve=("error", "run-time error (%)"),
    curve_is="Share of wrong predictions in the events of the last five rows of the log",
    streamed=True,
)

WORDS = Vocabulary(
    regime="vertical",
    round="event",
    rounds="events",
    closed="played",
    steps="activations",
    steps_of_one="activations of one party",
    client="party",
    a_client="a party",
    clients="parties",
    told=(("error", ".3f"), ("accumulated", ".3f"), ("regret", ".1e")),
    trail="error",
    accuracy=ON_THE_STREAM,
)
