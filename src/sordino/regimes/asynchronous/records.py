"""The files of a run of arrivals, and the words for what is in them."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sordino.clients.records import Horizontal, Measured
from sordino.core.records import Count, Number, Whole
from sordino.core.regimes import Vocabulary


class Asynchronous(Horizontal, kw_only=True, tag="asynchronous"):
    """Updates by edges."""


class AsynchronousRound(Measured, kw_only=True, tag="round"):
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
    clip: Number = UNSET
    rate: Number = UNSET
    norm: Number = UNSET
    staleness: Number = UNSET
    stalest: Whole = UNSET
    histogram: tuple[tuple[Count, Count], ...] | UnsetType = UNSET
    stale: Count | UnsetType = UNSET
    dropped: Count | UnsetType = UNSET
    present: Count | UnsetType = UNSET
    gone: Count | UnsetType = UNSET


FACTS, ROUND = Asynchronous, AsynchronousRound
WORDS = Vocabulary(
    regime="asynchronous",
    round="update",
    rounds="updates",
    closed="done",
    steps="gradients",
    steps_of_one="gradients of one edge",
    client="edge",
    a_client="an edge",
    clients="edges",
    told=(("stage", ""), ("clip", ".4g"), ("staleness", ".1f")),
    trail="staleness",
    counted={"stale": "too stale", "dropped": "dropped", "lost": "lost", "left": "left for good"},
    steps_end=False,  # who has spent its budget leaves, and the others go on
)
