r"""A client's local work: what happens between receiving a model and sending one back.

A private client takes tau steps of DP-SGD (Abadi et al. 2016, algorithm 1) on its own
data. Step j, from weights w:

    batch B_j:   every example independently with probability q (Poisson)
    g~_j  =  ( sum_{s in B_j} clip_C(grad F(w, s))  +  N(0, (sigma_v C)^2 I_d) ) / (q n)
    w     <-  w - eta g~_j

The divisor is the *expected* batch size q n, not the realised one: the realised size
would set the scale of the noise and so show itself, which add-or-remove-one accounting
does not cover. An empty batch releases noise like any other.

Nothing leaves :meth:`PrivateClient.answer` but the noisy gradients, in the form of the
weights they lead to and of statistics computed from them; the raw norms and losses that
the kernel returns stay here. And nothing is computed before the ledger has booked it:
``answer`` asks for the receipts.

Shapes: weights and gradients ``(d,)``, examples ``(n, ...)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sordino.entropy import Entropy
from sordino.errors import LocalProtocolError
from sordino.learning.flat import Flat
from sordino.learning.perexample import ClippedSum, MeanGradient
from sordino.mechanism import CountedGaussian, Gaussian
from sordino.message import Raw, Statistics, Train, Update
from sordino.privacy import Event, NonPrivate, PoissonSampled, Receipt

RAW_CONSTANTS = "raw curvature, Lipschitz constant and gradient are sent, as the paper's own form asks"
NO_NOISE = "plain gradients without noise"


class Client(Protocol):
    """Somebody with data who can be asked to train."""

    index: int

    def price(self, task: Train) -> tuple[tuple[Event, int], ...]:
        """What answering this task releases, as events and how often; booked before ``answer``."""
        ...

    def answer(self, task: Train, receipts: Sequence[Receipt]) -> Update:
        """Do the work. ``receipts`` prove that ``price(task)`` is in the ledger."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Workbench:
    """The model that clients of one process share, one after another.

    Attributes:
        flat: the module with its parameters in one vector.
        clipped: kernel for the sum of clipped per-example gradients.
        mean: kernel for the plain mean gradient.
    """

    flat: Flat
    clipped: ClippedSum
    mean: MeanGradient


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """One client's data on the device: ``x`` (n, ...) and labels ``y`` (n,)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


def poisson(count: int, rate: float, rng: np.random.Generator) -> Tensor:
    """Indices of a Poisson sample: each of ``count`` independently with probability ``rate``."""
    return torch.from_numpy(np.flatnonzero(rng.random(count) < rate))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateClient:
    """DP-SGD on one client's data.

    Attributes:
        index: which client, from 0.
        examples: its data.
        mechanism: clip and noise of each step.
        sampling_rate: q of the Poisson batches.
        learning_rate: eta.
        bench: the shared model and kernels.
        entropy: where batches and noise are drawn from, by address.
    """

    index: int
    examples: Examples
    mechanism: Gaussian | CountedGaussian
    sampling_rate: float
    learning_rate: float
    bench: Workbench
    entropy: Entropy

    @property
    def expected_batch(self) -> float:
        """B_i = q n_i, in examples; the divisor of every step."""
        return self.sampling_rate * len(self.examples)

    def price(self, task: Train) -> tuple[tuple[Event, int], ...]:
        """See :class:`Client`."""
        step = PoissonSampled(sampling_rate=self.sampling_rate, event=self.mechanism.event())
        priced: tuple[tuple[Event, int], ...] = ((step, task.steps),)
        return priced if task.probe is None else (*priced, (NonPrivate(reason=RAW_CONSTANTS), 1))

    def answer(self, task: Train, receipts: Sequence[Receipt]) -> Update:
        """See :class:`Client`."""
        paid_for(self.price(task), receipts, task)
        raw = measure_raw(self.bench, self.examples, task) if task.probe is not None else None
        batches = self.entropy.at("client", self.index, "round", task.round, "batches")
        noise = self.entropy.at("client", self.index, "round", task.round, "noise")
        flat, clip = self.bench.flat, self.mechanism.clip
        start = torch.from_numpy(task.weights).to(flat.weights)
        flat.load(start)
        total = torch.empty_like(flat.weights)
        energy, excess = 0.0, 0.0
        first, last, before = start, start, start
        for step in range(1, task.steps + 1):
            chosen = poisson(len(self.examples), self.sampling_rate, batches).to(flat.weights.device)
            clipped = self.bench.clipped(self.examples.x[chosen], self.examples.y[chosen], clip, total)
            if isinstance(self.mechanism, CountedGaussian):
                noisy, counted = self.mechanism.release(total, clipped.clipped - len(chosen) / 2, noise)
                excess += counted
            else:
                noisy, _ = self.mechanism.release(total, None, noise)
            noisy.div_(self.expected_batch)
            energy += float(noisy @ noisy)
            if step == 1:
                first = noisy
            if step == task.steps:
                last, before = noisy, flat.weights.clone() if step > 1 else start
            flat.weights.sub_(noisy, alpha=self.learning_rate)
        moved = before - start
        statistics = Statistics(
            energy=energy / task.steps,
            first=float(first @ first),
            change=float((last - first).square().sum()),
            moved=float(moved @ moved),
            slope_first=float(first @ moved),
            slope_last=float(last @ moved),
            clipped=0.5 + excess / (task.steps * self.expected_batch) if isinstance(self.mechanism, CountedGaussian) else None,
        )
        return Update(
            client=self.index,
            round=task.round,
            steps=task.steps,
            weights=flat.weights.cpu().numpy().copy(),
            statistics=statistics,
            first=first.cpu().numpy() if task.wants_first else None,
            raw=raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainClient:
    """SGD without any privacy, on Poisson batches (McMahan et al. 2017, with expected batch q n)."""

    index: int
    examples: Examples
    sampling_rate: float
    learning_rate: float
    bench: Workbench
    entropy: Entropy

    def price(self, task: Train) -> tuple[tuple[Event, int], ...]:
        """See :class:`Client`."""
        return ((NonPrivate(reason=NO_NOISE), task.steps),)

    def answer(self, task: Train, receipts: Sequence[Receipt]) -> Update:
        """See :class:`Client`. An empty batch takes no step."""
        paid_for(self.price(task), receipts, task)
        batches = self.entropy.at("client", self.index, "round", task.round, "batches")
        flat = self.bench.flat
        flat.load(torch.from_numpy(task.weights).to(flat.weights))
        gradient = torch.empty_like(flat.weights)
        for _ in range(task.steps):
            chosen = poisson(len(self.examples), self.sampling_rate, batches).to(flat.weights.device)
            if len(chosen):
                self.bench.mean(self.examples.x[chosen], self.examples.y[chosen], gradient)
                flat.weights.sub_(gradient, alpha=self.learning_rate)
        return Update(client=self.index, round=task.round, steps=task.steps, weights=flat.weights.cpu().numpy().copy())


def paid_for(price: Sequence[tuple[Event, int]], receipts: Sequence[Receipt], task: Train) -> None:
    """Refuse to work unless the ledger has booked exactly this price for this round.

    Raises:
        LocalProtocolError: if it has not; nothing has been computed then.
    """
    booked = [(receipt.event, receipt.count) for receipt in receipts if receipt.round == task.round]
    if booked != list(price):
        raise LocalProtocolError(f"round {task.round}: the ledger booked {booked}, the work would release {list(price)}")


def measure_raw(bench: Workbench, examples: Examples, task: Train) -> Raw:
    """The constants that the papers' literal forms send: from raw data, without noise.

    They compare the client's own last model w_i (``task.probe``) with the global model w,
    over all of the client's data.
    """
    if task.probe is None:
        raise LocalProtocolError("there is no model to compare with")
    flat = bench.flat
    gradients, losses = [], []
    for vector in (task.probe, task.weights):
        flat.load(torch.from_numpy(vector).to(flat.weights))
        total, loss = torch.zeros_like(flat.weights), 0.0
        part = torch.empty_like(flat.weights)
        for chunk in torch.arange(len(examples), device=flat.weights.device).split(512):
            loss += float(bench.mean(examples.x[chunk], examples.y[chunk], part)) * len(chunk)
            total.add_(part, alpha=float(len(chunk)))
        gradients.append(total / len(examples))
        losses.append(loss / len(examples))
    distance = max(float(np.linalg.norm(task.probe - task.weights)), 1e-12)
    return Raw(
        beta=float((gradients[0] - gradients[1]).norm()) / distance,
        rho=abs(losses[0] - losses[1]) / distance,
        gradient=gradients[1].cpu().numpy(),
    )
