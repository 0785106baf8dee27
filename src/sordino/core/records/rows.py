"""Rows of the log ``rounds.jsonl``, tagged by "kind"; rows of rounds differ by regime.

The log calls what the server counts "round", whatever the regime: rounds, updates or events.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sordino.core.records.base import Count, Maybe, Open, Real


class Row(Open, frozen=True, kw_only=True, tag_field="kind"):
    """A row of the log.

    Attributes:
        round: closed rounds, updates or events, in whose course it was written.
        time: virtual seconds; absent between sites, where seconds are real: how long a round takes
            depends on batches, whose sizes are secret.
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
