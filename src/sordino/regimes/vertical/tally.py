"""Sums over events, for a row of the log or for a whole run."""

from __future__ import annotations

import msgspec


class Tally(msgspec.Struct):
    """What has been counted, of events that were used; sums, but for the lists by party.

    Attributes:
        events, learned: seen, and learned from.
        errors: predictions that were not the label the server knows.
        examples: predictions; there is none of an event that is skipped.
        loss, regret: sums over events, the loss over those learned from.
        active, silent: events in which each party was active, or did not answer.
        up, down, framing: bytes.
        dropped: messages that were no part of anything.
        unused: events of entities that had no budget left.
        seconds: of parties' forward passes, their backward passes and steps, the server.
        passive: share of the forward seconds that went to passive parties.
    """

    active: list[int]
    silent: list[int]
    events: int = 0
    learned: int = 0
    errors: int = 0
    examples: int = 0
    loss: float = 0.0
    regret: float = 0.0
    up: int = 0
    down: int = 0
    framing: int = 0
    dropped: int = 0
    unused: int = 0
    seconds: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0])
    passive: float = 0.0

    def copied(self) -> Tally:
        """A tally of its own with the same sums."""
        found = Tally.zero(len(self.active))
        found.add(self)
        return found

    @staticmethod
    def zero(parties: int) -> Tally:
        """Nothing counted yet."""
        return Tally([0] * parties, [0] * parties)

    def add(self, other: Tally) -> None:
        """Count the other's as well."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(
                self,
                name,
                [a + b for a, b in zip(mine, theirs, strict=True)]
                if isinstance(mine, list)
                else mine + theirs,
            )
