r"""An edge's work: one gradient at the model it was sent, with its own noise.

Li et al. 2022, Algorithm 1, edge side.

    B       every example independently with probability q = b / n (Poisson), or the next batch of
            a public order (sordino.training.passes)
    g~      = ( sum_{i in B} clip_G(grad F(x, i)) + N(0, (z G)^2 I_d) ) / b + lambda x

b is the *expected* batch q n, never the drawn one: an empty batch releases noise like any other.
lambda x is the gradient of the regulariser; x is known to everybody, so it costs nothing. Batches
and noise are numbered by the edge's tasks: played again after a restart, a task releases the same
bytes.

Nothing is computed before it is paid for: an edge is handed the permit of a block of tasks, and
refuses a task outside of it.

Shapes: weights and gradients (d,), examples (n, ...).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sordino.base.entropy import Numbered
from sordino.base.errors import LocalProtocolError
from sordino.base.message import Compute, Gradient, Vector
from sordino.mechanisms.gaussian import LARGEST, SMALLEST, Bounded, length
from sordino.mechanisms.knorm import exponential_norm
from sordino.privacy import Event, NonPrivate, Permit, PoissonSampled, covers_one
from sordino.training import plausible
from sordino.training.client import NO_NOISE, SamplingClient, bound_of, hidden, received
from sordino.training.passes import place_of, tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edge(SamplingClient):
    """Somebody with data who can be asked for a gradient: a subclass ``answer``s a task, with the
    permit of a block of tasks that the ledger has charged, this one among them.

    Attributes:
        regularisation: lambda.
        draws: numbered by the edge's tasks: the batch of each, and its noise, by what that hides.
        scratch: (d,) in float64, shared by the edges of one process: raw sums stand here for a
            moment.
    """

    regularisation: float
    draws: Numbered
    scratch: torch.Tensor

    @property
    def price(self) -> Event:
        """The release of one gradient: the same for every task."""
        raise NotImplementedError

    @property
    def noise(self) -> float:
        """E ||noise||^2 in one gradient, at a clip of 1."""
        raise NotImplementedError

    def batch(self, task: Compute) -> torch.Tensor:
        """The indices of a task's batch; the model has the task's weights."""
        weights = self.kernels.flat.weights
        weights.copy_(received(task.weights, weights))
        if self.passes is None:
            chosen = self.chosen(self.draws.at(task.task))
        else:
            chosen = self.passes.batch(place_of(task), len(self.examples))
        return chosen if weights.device.type == "cpu" else chosen.to(weights.device)

    def mean(self, task: Compute) -> torch.Tensor:
        """The mean gradient (d,) of a task's batch, without any bound."""
        mean = torch.empty_like(self.kernels.flat.weights)
        self.kernels.mean.of(self.examples, self.batch(task), mean)
        return mean

    def noise_over(self, task: Compute, total: torch.Tensor) -> np.random.Generator:
        """The generator of the noise that hides this raw vector (d,)."""
        return self.draws.over(task.task, hidden(task, total, *tokens(self.passes)))

    def answered(self, task: Compute, gradient: torch.Tensor, share: float = 1.0) -> Gradient:
        """The message, its vector times ``share``, regularised; NumPy's calls cost a third."""
        found: Vector = (
            gradient.numpy() if gradient.device.type == "cpu" else gradient.cpu().numpy()
        )
        if share != 1.0:
            found *= share
        if self.regularisation:
            found += self.regularisation * task.weights
        return Gradient(client=self.index, task=task.task, version=task.version, gradient=found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainEdge(Edge):
    """Without privacy: the mean gradient of the batch."""

    @property
    def price(self) -> Event:
        """The release of one gradient: without a bound, as later promises must know."""
        return NonPrivate(reason=NO_NOISE)

    @property
    def noise(self) -> float:
        """None."""
        return 0.0

    def answer(self, task: Compute, permit: Permit | None) -> Gradient:
        """Return the gradient of a task, with the permit that covers it."""
        covers_one(self.unit, permit, self.price, task.task)
        return self.answered(task, self.mean(task))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateEdge(Edge):
    """The sound form.

    Attributes:
        mechanism: clip and noise of the first stage; later ones scale its clip.
    """

    mechanism: Bounded

    @property
    def price(self) -> Event:
        """The release of one gradient: one homogeneous subsampled release, whatever the stage; or
        that of a pass, of which an example is in one gradient.
        """
        event = self.mechanism.event()
        if self.passes is not None:
            return event
        return PoissonSampled(sampling_rate=self.sampling_rate, event=event)

    @property
    def noise(self) -> float:
        """d (z / b)^2."""
        return self.kernels.flat.dim * (self.mechanism.vector_multiplier / self.expected_batch) ** 2

    def answer(self, task: Compute, permit: Permit | None) -> Gradient:
        """Return the noisy gradient of a task, with the permit that covers it."""
        if self.passes is None:
            covers_one(self.unit, permit, self.price, task.task)
        else:
            self.shown([] if permit is None else [permit], task, self.price)
        # any other will do: the noise grows with it
        if task.clip is None or not SMALLEST <= task.clip <= LARGEST:
            raise LocalProtocolError(
                f"task {task.task}: the clip must be a number from {SMALLEST:g} to {LARGEST:g}; "
                f"got {task.clip}"
            )
        mechanism = self.mechanism.scaled(task.clip, self.mechanism.noise_multiplier)
        batch, share = self.batch(task), self.expected_batch
        self.kernels.clipped.of(
            self.examples, batch, bound_of(mechanism), self.scratch, expected=share
        )
        rng = self.noise_over(task, self.scratch)
        noisy, _ = self.released(mechanism, self.scratch, 0.0, rng, place_of(task))
        return self.answered(task, noisy, 1.0 / share)

    def reach(self, task: Compute, said: object) -> plausible.Length | None:
        """Length of a gradient, and its bound; None of what is no gradient, and where the mechanism
        does not say.
        """
        if task.clip is None or not isinstance(said, Gradient):
            return None
        mechanism = self.mechanism.scaled(task.clip, self.mechanism.noise_multiplier)
        most = plausible.sums(mechanism, len(task.weights), self.met(1), 1)
        if most is None:
            return None
        pull = self.regularisation * plausible.length(task.weights) * (1.0 + plausible.ROUNDING)
        most = most / self.expected_batch + pull
        return plausible.Length(plausible.length(said.gradient), most)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiteralEdge(Edge):
    """The paper's own form: NOT private.

    Attributes:
        iteration_epsilon: eps_k, what it claims for each gradient.
        batch_size: b, the examples of every batch.
        noised: numbers of the flat vector that get noise, from the start: d, or those of the first
            layer.
        reason: why there is no price, for the ledger.
    """

    iteration_epsilon: float
    batch_size: int
    noised: int
    reason: str

    @property
    def price(self) -> Event:
        """The release of one gradient, which has no bound."""
        return NonPrivate(reason=self.reason)

    @property
    def noise(self) -> float:
        """2 DS^2 / eps_k^2 with DS = 2 / b."""
        return 2.0 * (2.0 / self.batch_size / self.iteration_epsilon) ** 2

    def chosen(self, rng: np.random.Generator) -> torch.Tensor:
        """Indices (b,) of a batch, with replacement, so that its examples are independent."""
        return torch.from_numpy(rng.integers(0, len(self.examples), self.batch_size))

    def answer(self, task: Compute, permit: Permit | None) -> Gradient:
        """Return the average clipped to R = b DS / 2, plus a direction of exponential length."""
        covers_one(self.unit, permit, self.price, task.task)
        if task.clip is None:
            raise LocalProtocolError(f"task {task.task} has no clip")
        mean = self.mean(task)
        mean.mul_(min(1.0, task.clip / max(length(mean), 1e-30)))
        scale = 2.0 * task.clip / self.batch_size / self.iteration_epsilon
        noise = exponential_norm(self.noised, scale, self.noise_over(task, mean))
        mean[: self.noised].add_(noise.to(mean))
        return self.answered(task, mean)
