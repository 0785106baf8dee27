"""Activity an event activates, and who else does not answer; drawn for whole pieces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Entropy
from sordino.base.errors import StudyError
from sordino.regimes.vertical.engine import Mask
from sordino.regimes.vertical.method import ACTIVATIONS, Activation, Means, Uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Who is active and who is silent.

    Attributes:
        activation: the method's rule.
        columns: each party's place in the features.
        dropout: probability that a passive party does not answer.
        entropy: what is drawn from, at the numbers of pieces.
    """

    activation: Activation
    columns: tuple[slice, ...]
    dropout: float
    entropy: Entropy

    def drawn(self, x: NDArray[np.float32], start: int, n: int, piece: int) -> tuple[Mask, Mask]:
        """Active and silent parties (n, M) of ``n`` events from ``start``, all of one piece."""
        parties = len(self.columns)

        def means() -> NDArray[np.float32]:
            if not self.activation.looks:
                raise StudyError(
                    f"method.activation.kind = {self.activation.kind!r}: it asks for the means of "
                    "features and does not declare looks = True. Who is active tells of features "
                    "then, at a price: add looks: ClassVar[bool] = True to the class. See "
                    "docs/own-tables.md"
                )
            return np.stack([x[:, columns].reshape(n, -1).mean(1) for columns in self.columns], 1)

        active = self._active(
            (n, parties), lambda: self._uniform("activation", start, n, piece), means
        )
        return active, ~active & self.silent(start, n, piece)

    def silent(self, start: int, n: int, piece: int) -> Mask:
        """Who of these events does not answer when queried (n, M)."""
        if not self.dropout:
            return np.zeros((n, len(self.columns)), bool)
        return self._uniform("silence", start, n, piece) < self.dropout

    def _uniform(self, what: str, start: int, n: int, piece: int) -> NDArray[np.float64]:
        place, offset = divmod(start, piece)
        drawn = self.entropy.at(what, place).random((piece, len(self.columns)))
        return drawn[offset : offset + n]

    def _active(self, shape: tuple[int, int], uniform: Uniform, means: Means) -> Mask:
        """What the rule gives, (n, M)."""
        given: object = self.activation.active(shape, uniform, means)
        if not isinstance(given, np.ndarray) or given.shape != shape or given.dtype != np.bool_:
            raise ACTIVATIONS.wrong(
                self.activation, "active", given, f"truth values of shape {shape}"
            )
        return given
