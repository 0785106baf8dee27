"""Accuracy and mean loss on a data set, by a forward pass that keeps nothing.

A sequence of known layers goes through the forward half of its plan. The graph of any other module
gets each batch, or each example where the rows are private: then one row may change its own scores
alone. Batches of 200 keep the activations of the papers' networks within the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from sordino.training.flat import Flat
from sordino.training.graph import one_by_one, scores_of
from sordino.training.loss import Loss
from sordino.training.perexample.sums import Paths, model_input

BATCH = 200
"""Rows that a module sees at once."""
Counted = tuple[int, float, int]
"""Of a batch: right answers, the sum of the loss, rows."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Accuracy in [0, 1], none where labels are numbers, and mean loss."""

    accuracy: float
    loss: float

    @classmethod
    def of(cls, batches: Sequence[Counted]) -> Self:
        """Add up all batches of a set of rows, in their order."""
        right, total, rows = 0, 0.0, 0
        for correct, loss, size in batches:
            right, total, rows = right + correct, total + loss, rows + size
        return cls(right / rows, total / rows)


class Evaluator:
    """Evaluates one module with whatever weights it has at the time."""

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self._flat, self._loss, self._paths = flat, loss, Paths(flat, loss)

    def counted(
        self, x: Tensor, y: Tensor, part: int = 0, parts: int = 1, *, private: bool = False
    ) -> list[Counted]:
        """Count the batches of examples x (n, ...), bytes or model input, with labels y (n,).

        Args:
            part, parts: which part of the batches, from 0, and how many parts there are.
            private: whether the module sees one example at a time; one that it fails on has no
                scores.
        """
        batches, found = list(zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True)), []
        first, last = (len(batches) * each // parts for each in (part, part + 1))
        with torch.no_grad():
            forward = self._forward(model_input(x[:1]), private)
            for rows, labels in batches[first:last]:
                scores = forward(model_input(rows))
                right = int((scores.argmax(1) == labels).sum())
                found.append((right, float(self._loss(scores, labels).sum()), len(labels)))
        return found

    def scores(self, x: Tensor) -> Tensor:
        """Scores (n, classes), on a processor, of examples x (n, ...), bytes or model input."""
        with torch.no_grad():
            forward = self._forward(model_input(x[:1]))
            return torch.cat([forward(model_input(rows)).cpu() for rows in torch.split(x, BATCH)])

    def _forward(self, x: Tensor, private: bool = False) -> Callable[[Tensor], Tensor]:
        """Return the function from batches like ``x`` (1, ...) to scores (n, classes)."""
        plan = self._paths.find(x)
        if plan is not None:
            return plan.forward
        return self._alone if private else self._together

    def _together(self, batch: Tensor) -> Tensor:
        """Scores (n, classes) of a batch; one by one where it fails on one of them."""
        graph = self._flat.graphs.of("scores", scores_of, batch)
        try:
            found: Tensor = graph(batch)
        except Exception:  # an operation may raise anything
            return self._alone(batch)
        return found

    def _alone(self, batch: Tensor) -> Tensor:
        """Scores (n, classes) of each example by itself; NaN where the module fails."""
        scores = self._flat.graphs.of("scores", scores_of, batch[:1])
        room = self._flat.weights.new_full((len(batch), *scores.shape[1:]), torch.nan)
        return one_by_one(scores, batch, room)
