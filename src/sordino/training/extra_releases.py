"""Extra releases of a client, in the same answer as its model: what a method asks for, how a task
says so, what it costs, and how a client computes it.

A new kind is a field of :class:`Wants`, its price and its value, all here; the fields of messages
that carry it (:mod:`sordino.base.message`); and the method that asks for it. The field of
``Statistics`` has the name of that of ``Wants``, by which the check of methods finds it. A scalar
is of the first step's batch, whose sample it shares; for two at once, :meth:`ExtraReleases.exact`
and ``hidden`` must take both. A new field of ``Train`` raises ``NUMERICS``, for noise is drawn over
all numbers of a task (``hidden`` in :mod:`.client`), and ``PROTOCOL``, for a site refuses fields
that it does not know (both in :mod:`sordino.base`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from sordino.base.message import Raw, Train, Update, Vector
from sordino.mechanisms.gaussian import SHRINK
from sordino.privacy import Composed, Event, Gaussian, NonPrivate

if TYPE_CHECKING:  # a plan does not wait for torch
    from torch import Tensor

    from sordino.training.client import ModelKernels
    from sordino.training.perexample.clipping import ClippedBatch
    from sordino.training.perexample.sums import Examples

RAW_LOSS = "the mean loss of raw data, without noise"
RAW_CONSTANTS = (
    "raw curvature, Lipschitz constant and gradient are sent, as the paper's own form asks"
)


@dataclass(frozen=True, slots=True)
class Wants:
    """The requests of a method to clients besides their weights.

    Attributes:
        first: the first noisy gradient of the round (d numbers more upwards).
        raw: raw constants, in a paper's literal form; makes the run not private.
        loss: (M, sigma_h) of a noisy mean loss; with sigma_h 0 it is raw, and the run not private.
    """

    first: bool = False
    raw: bool = False
    loss: tuple[float, float] | None = None

    @classmethod
    def of(cls, task: Train) -> Wants:
        """Return the requests of a task."""
        loss = None if task.loss_bound is None else (task.loss_bound, task.loss_noise)
        return cls(task.wants_first, task.probe is not None, loss)

    def refusal(self, task: Train) -> str | None:
        """Return what a task asks for otherwise than this, or None; a client's first task of raw
        constants has no model to compare with.
        """
        found = Wants.of(task)
        if found.first != self.first or (found.raw and not self.raw):
            return "it asks for more than the model after the local steps"
        if found.loss != self.loss:
            return "it asks for the loss otherwise than the study does"
        return None

    def asked(self, task: Train, last: Vector | None) -> Train:
        """Return a task with these requests; ``last`` is the client's last model (d,), if any."""
        bound, noise = (None, 0.0) if self.loss is None else self.loss
        probe = last if self.raw else None
        return replace(
            task, wants_first=self.first, probe=probe, loss_bound=bound, loss_noise=noise
        )

    @property
    def asks_scalar(self) -> bool:
        """A number of the first step's batch is asked for, with noise or without."""
        return self.loss is not None

    @property
    def scalar_event(self) -> Event | None:
        """The noisy release of that number, of the same sample as the step's sum, if any."""
        noisy = self.loss is not None and self.loss[1]
        return Gaussian(noise_multiplier=noisy) if noisy else None

    @property
    def unpriced(self) -> bool:
        """Something is asked for that has no price."""
        return any(True for _ in self.raw_releases())

    def first_step(self, gradient: Event) -> Event:
        """Return the release of the first step of a round, where ``gradient`` is one step's."""
        return (
            gradient
            if self.scalar_event is None
            else Composed(events=(gradient, self.scalar_event))
        )

    def releases(self, gradient: Event, steps: int) -> Iterator[tuple[Event, int]]:
        """Yield the releases of a round of steps, before sampling, and how often there is each."""
        first = 0 if self.scalar_event is None else 1
        if first:
            yield self.first_step(gradient), first
        if steps > first:
            yield gradient, steps - first

    def raw_releases(self) -> Iterator[Event]:
        """Yield what has no price."""
        if self.loss is not None and not self.loss[1]:
            yield NonPrivate(reason=RAW_LOSS)
        if self.raw:
            yield NonPrivate(reason=RAW_CONSTANTS)


class ExtraReleases:
    """The extra releases of one client while it works on a task, which asks for them.

    ``expected`` is its expected batch, in examples.
    """

    def __init__(
        self, task: Train, kernels: ModelKernels, examples: Examples, expected: float
    ) -> None:
        self._task, self._expected = task, expected
        self._raw = measure_raw(kernels, examples, task) if task.probe is not None else None
        self._loss: float | None = None

    def exact(self, step: int, batch: ClippedBatch) -> float | None:
        """Return the raw number of a step's batch that is released with its sum; None of none."""
        bound = self._task.loss_bound
        return float(loss_sum(batch.loss, bound)) if step == 1 and bound is not None else None

    def release(self, exact: float | None, rng: np.random.Generator) -> None:
        """Put noise on what :meth:`exact` gave, after that on the step's sum."""
        bound = self._task.loss_bound
        if exact is not None and bound is not None:
            self._loss = noisy_loss(exact, bound, self._task.loss_noise, rng) / self._expected

    def sent(self, update: Update, first: Tensor) -> Update:
        """Return an answer with all releases in it; ``first`` is the first noisy gradient (d,)."""
        assert update.statistics is not None
        return replace(
            update,
            statistics=replace(update.statistics, loss=self._loss),
            first=first.cpu().numpy() if self._task.wants_first else None,
            raw=self._raw,
        )


def loss_sum(losses: Tensor, bound: float) -> Tensor:
    """The sum (1,) of losses (n,), each in [0, M]; one that is not finite counts as M."""
    import torch

    # in float64, in which no loss is rounded to above M; the sum has room for its rounding
    most = bound * SHRINK
    total = losses.to(torch.float64).nan_to_num(nan=most, posinf=most).clamp(0.0, most)
    return total.sum().reshape(1)


def noisy_loss(total: float, bound: float, deviation: float, rng: np.random.Generator) -> float:
    """A sum of losses in [0, M], with N(0, (sigma_h M)^2)."""
    import torch

    from sordino.mechanisms.grid import add_gaussian

    if not deviation:  # booked as not private
        return total
    exact = torch.tensor([total], dtype=torch.float64)
    return float(add_gaussian(exact, rng, clip=bound, noise_multiplier=deviation))


def measure_raw(kernels: ModelKernels, examples: Examples, task: Train) -> Raw:
    """The constants that the papers' literal forms send: from raw data, without noise.

    They compare the client's own last model w_i (``task.probe``) with the global model w,
    over all of the client's data.
    """
    import torch

    assert task.probe is not None
    flat = kernels.flat
    gradients, losses = [], []
    for vector in (task.probe, task.weights):
        flat.load(torch.from_numpy(vector).to(flat.weights))
        total, loss = torch.zeros_like(flat.weights), 0.0
        part = torch.empty_like(flat.weights)
        for chunk in torch.arange(len(examples), device=flat.weights.device).split(512):  # type: ignore[no-untyped-call]
            loss += float(kernels.mean.of(examples, chunk, part)) * len(chunk)
            total.add_(part, alpha=float(len(chunk)))
        gradients.append(total / len(examples))
        losses.append(loss / len(examples))
    distance = max(float(np.linalg.norm(task.probe - task.weights)), 1e-12)
    return Raw(
        beta=float((gradients[0] - gradients[1]).norm()) / distance,
        rho=abs(losses[0] - losses[1]) / distance,
        gradient=gradients[1].cpu().numpy(),
    )
