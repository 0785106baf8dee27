r"""A client's local work where whole clients are protected (McMahan, Ramage, Talwar, Zhang 2018).

From weights w the client takes tau plain steps on batches of its own data, drawn without
replacement until all of it was seen, and contributes

    Delta_i min(1, S / |Delta_i|),        Delta_i = w_i - w

to a sum that the aggregator releases with noise. Nothing inside the client needs protection of
its own: all of its data stands or falls with that one bounded vector. With a proximal term the
gradient of step j gets mu (w_j - w) (Li et al. 2020, FedProx; Shen, Liu, Zhang 2022), which moves
Delta_i and costs nothing.

Shapes: weights and Delta ``(d,)``.

References:
    McMahan, Ramage, Talwar, Zhang 2018, Learning Differentially Private Recurrent Language Models, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.entropy import Entropy
from sordino.errors import LocalProtocolError
from sordino.learning.bench import Examples, Workbench
from sordino.learning.client import paid_for
from sordino.learning.optimizer import Optimizer
from sordino.mechanism import Bounded
from sordino.message import Contribution, Train
from sordino.privacy import Event, PoissonSampled, Receipt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalClient:
    """Plain local training, one bounded vector.

    Attributes:
        index: which client, from 0.
        examples: its data.
        mechanism: what the aggregator will release the sum by; says what a bounded vector is.
        sampling_rate: q_c with which clients are drawn, for the price of taking part.
        learning_rate: eta.
        gradient_clip: C of single examples' gradients, in a paper's literal form; None leaves them as they are.
        batch: examples in a local step; all of them where the client has fewer.
        proximal: mu, of the proximal term.
        optimizer: of the local steps.
        bench: the shared model and kernels.
        entropy: where batches are drawn from, by address.
    """

    index: int
    examples: Examples
    mechanism: Bounded
    sampling_rate: float
    learning_rate: float
    gradient_clip: float | None = None
    batch: int
    proximal: float
    optimizer: Optimizer
    bench: Workbench
    entropy: Entropy

    def price(self, task: Train) -> tuple[tuple[Event, int], ...]:
        """What the round releases of every client, in the cohort or not; see :class:`Client`."""
        return ((PoissonSampled(sampling_rate=self.sampling_rate, event=self._bound(task).event()), 1),)

    def answer(self, task: Train, receipts: Sequence[Receipt]) -> Contribution:
        """See :class:`Client`."""
        paid_for(self.price(task), receipts, task)
        moved = self.train(task)
        bounded, inside = self._bound(task).bounded(moved)
        return Contribution(client=self.index, round=task.round, steps=task.steps, delta=bounded.cpu().numpy().copy(), inside=inside)

    def train(self, task: Train) -> Tensor:
        """Delta (d,), raw and not clipped."""
        flat = self.bench.flat
        start = torch.from_numpy(task.weights).to(flat.weights)
        flat.load(start)
        gradient = torch.empty_like(flat.weights)
        steps = self.optimizer.begin(self.learning_rate, flat.weights)
        for chosen in self._batches(task):
            if self.gradient_clip is None:
                self.bench.mean(*self.examples.take(chosen), gradient)
            else:
                self.bench.clipped(*self.examples.take(chosen), self.gradient_clip, gradient)
                gradient.div_(len(chosen))
            if self.proximal:
                gradient.add_(flat.weights - start, alpha=self.proximal)
            steps.take(flat.weights, gradient, 0.0)
        return flat.weights - start

    def _bound(self, task: Train) -> Bounded:
        if task.clip is None or task.noise_multiplier is None:
            raise LocalProtocolError(f"round {task.round}: the task does not say what an update is bounded by")
        return self.mechanism.scaled(task.clip, task.noise_multiplier)

    def _batches(self, task: Train) -> list[Tensor]:
        """Indices of the tau batches: shuffled, cut, and shuffled again when used up."""
        size, count = min(self.batch, len(self.examples)), len(self.examples)
        if not count:
            return []
        draw = self.entropy.at("client", self.index, "round", task.round, "batches")
        turns = -(-task.steps * size // count)
        order = np.concatenate([draw.permutation(count) for _ in range(turns)])[: task.steps * size]
        place = self.bench.flat.weights.device
        return [torch.from_numpy(part).to(place) for part in np.split(order, range(size, len(order), size))]
