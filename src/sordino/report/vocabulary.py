"""How each regime speaks of what it does: rounds of clients, updates by edges.

The log calls what the server counts "round" and what privacy is paid for "steps", whatever the
regime. People should not have to: a run says in ``run.json`` which regime it is of, and pages,
panels and sentences take their nouns from here. A new regime is one more entry of ``REGIMES``.

>>> of("asynchronous").rounds, of("synchronous").rounds, shared([UPDATES, ROUNDS]).rounds
('updates', 'rounds', 'rounds or updates')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The nouns of a regime.

    Attributes:
        regime: its name.
        round, rounds: what the server counts.
        closed: what has happened to one that counts.
        steps: what privacy is paid for.
        steps_of_one: the same, of the participant that did most: the label of an axis.
        client, a_client, clients: who takes part.
        told: what a line of progress takes from a row: key, word, format ("" for as it stands).
        trail: key whose last values a panel draws.
        counted: kinds of rows that are counted, and what they are called.
        steps_end: whether a run ends when the steps are used up.
    """

    regime: str
    round: str
    rounds: str
    closed: str
    steps: str
    steps_of_one: str
    client: str
    a_client: str
    clients: str
    told: tuple[tuple[str, str, str], ...]
    trail: str
    counted: Mapping[str, str] = field(default_factory=dict)
    steps_end: bool

    def many(self, count: float) -> str:
        """So many rounds.

        >>> UPDATES.many(1), UPDATES.many(200)
        ('1 update', '200 updates')
        """
        return f"{count:.15g} {self.round if count == 1 else self.rounds}"


ROUNDS = Vocabulary(
    regime="synchronous",
    round="round",
    rounds="rounds",
    closed="closed",
    steps="local steps",
    steps_of_one="local steps of one client",
    client="client",
    a_client="a client",
    clients="clients",
    told=(("tau", "tau", ""), ("steps", "steps", "")),
    trail="tau",
    counted={"late": "late", "lost": "lost"},
    steps_end=True,
)
UPDATES = Vocabulary(
    regime="asynchronous",
    round="update",
    rounds="updates",
    closed="done",
    steps="gradients",
    steps_of_one="gradients of one edge",
    client="edge",
    a_client="an edge",
    clients="edges",
    told=(("stage", "stage", ""), ("clip", "clip", ".4g"), ("staleness", "staleness", ".1f")),
    trail="staleness",
    counted={"stale": "too stale", "dropped": "dropped", "lost": "lost", "left": "left for good"},
    steps_end=False,  # who has spent its budget leaves, and the others go on
)
REGIMES = {each.regime: each for each in (ROUNDS, UPDATES)}
MIXED = replace(
    ROUNDS,
    regime="mixed",
    round="round or update",
    rounds="rounds or updates",
    steps="local steps or gradients",
    steps_of_one="local steps of one client, or gradients of one edge",
)


def of(regime: object) -> Vocabulary:
    """The words of a regime; those of rounds where it is not known."""
    return REGIMES.get(str(regime), ROUNDS)


def shared(vocabularies: Iterable[Vocabulary]) -> Vocabulary:
    """Words for several runs on one page."""
    kinds = {each.regime: each for each in vocabularies}
    return next(iter(kinds.values())) if len(kinds) == 1 else MIXED if kinds else ROUNDS
