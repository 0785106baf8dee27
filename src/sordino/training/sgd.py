"""Local SGD without any privacy: the clients of FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sordino.base.entropy import Entropy
from sordino.base.message import Train, Update
from sordino.privacy import Event, NonPrivate, Permit, covers_round
from sordino.training.kernels import Examples, ModelKernels, poisson
from sordino.training.optimizer import Optimizer

NO_NOISE = "plain gradients without noise"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainClient:
    """SGD without privacy on Poisson batches (McMahan et al. 2017, with expected batch q n)."""

    index: int
    unit: str
    examples: Examples
    sampling_rate: float
    learning_rate: float
    optimizer: Optimizer
    kernels: ModelKernels
    entropy: Entropy

    def price(self, task: Train) -> tuple[tuple[Event, int], ...]:
        """See :class:`Client`."""
        return ((NonPrivate(reason=NO_NOISE), task.steps),)

    def answer(self, task: Train, permits: Sequence[Permit]) -> Update:
        """See :class:`Client`. An empty batch takes no step."""
        covers_round(self.unit, permits, self.price(task), task.round)
        batches = self.entropy.at("client", self.index, "round", task.round, "batches")
        flat = self.kernels.flat
        flat.load(torch.from_numpy(task.weights).to(flat.weights))
        gradient = torch.empty_like(flat.weights)
        steps = self.optimizer.begin(self.learning_rate, flat.weights)
        for _ in range(task.steps):
            chosen = poisson(len(self.examples), self.sampling_rate, batches).to(
                flat.weights.device
            )
            if len(chosen):
                self.kernels.mean.of(self.examples, chosen, gradient)
                steps.take(flat.weights, gradient, 0.0)
        return Update(
            client=self.index,
            round=task.round,
            steps=task.steps,
            weights=flat.weights.cpu().numpy().copy(),
        )
