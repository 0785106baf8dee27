"""How the server comes to know labels: the one place that tells them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import DataError
from sordino.mechanisms.response import Key, RandomisedResponse
from sordino.privacy import Allowance
from sordino.regimes.vertical.engine import Dues

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Respond:
    """How the server learns labels: as they are, or by randomised response.

    Which is drawn once for an entity, or at each event.

    Attributes:
        mechanism: of the answers; None where labels are told as they are, which is booked as not
            private.
        key: of the answers.
        memoised: whether an answer is drawn once for an entity.
        dues: what one answer releases, by ledger unit.
    """

    mechanism: RandomisedResponse | None
    key: Key
    memoised: bool
    dues: Dues

    def __call__(
        self,
        labels: NDArray[np.int64],
        entities: NDArray[np.int64],
        places: NDArray[np.int64],
        paid: Allowance,
    ) -> NDArray[np.int64]:
        """Responses (n,) to the labels of these entities, at their places (n,) in the stream.

        Raises:
            LocalProtocolError: unless they are ``paid`` for; nothing has been told then.
        """
        for unit, event in self.dues:
            paid.covers(unit, event, 1 if self.memoised else None)
        if self.mechanism is None:
            return labels
        found: Whole = self.mechanism.respond_for(
            labels, entities, self.key, None if self.memoised else places
        )
        return found

    def accuracy(self, agreement: float) -> float:
        """The share of right predictions, estimated from the share that agrees with the answers."""
        return agreement if self.mechanism is None else self.mechanism.accuracy(agreement)


def remember(told: dict[int, int], entities: NDArray[np.int64], answers: NDArray[np.int64]) -> None:
    """Hold a stream to its promise of one label for each entity, and fill ``told``.

    Other answers would tell of the change, which nothing bounds.

    Raises:
        DataError: if it breaks it; nothing of this piece has been used then.
    """
    for entity, answer in zip(entities.tolist(), answers.tolist(), strict=True):
        if told.setdefault(entity, answer) != answer:
            raise DataError(
                f"entity {entity} has two labels in this stream, and privacy.memoised tells its "
                "label once for all: set memoised = false, and appearances to the events that one "
                "entity may take part in"
            )
