r"""A client's work where clients share the noise of a sum (:mod:`sordino.mechanisms.shared`).

Unit "sample" (:class:`SummedClient`): the sum of clipped gradients over a Poisson batch at the
global model, once a round. Unit "client" (:class:`SummedLocalClient`): a bounded update after local
steps, if the client has drawn itself with probability q_c, and zero if it has not. Either times the
client's public weight, rounded, with the client's part of the noise, modulo 2^bits.

Whether a client is drawn is its own secret: it sends in every round. When it sends must not tell
it either. So where others see that, a client that is not drawn does the same work and throws it
away.

Shapes: weights and sums (d,), examples (n, ...).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.base.entropy import Entropy, drawable, over, raw
from sordino.base.errors import LocalProtocolError
from sordino.base.message import Masked, Train
from sordino.base.residues import packed
from sordino.mechanisms.gaussian import Bounded, within
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import Permits, PoissonSampled, Price, covers_round
from sordino.training.beside import Wants
from sordino.training.client import SamplingClient, agreed, received
from sordino.training.dpsgd import bound_of
from sordino.training.local import LocalClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A client's part of every sum.

    Attributes:
        client: which, from 0.
        rule: grids, honest contributions and the modulus.
        weight: w_i in (0, 1], public.
        entropy: where noise and rounding are drawn from, by round.
    """

    client: int
    rule: SharedNoise
    weight: float
    entropy: Entropy

    def message(self, total: Tensor, number: int, bound: Bounded) -> Masked:
        """A bounded vector (d,) as this client sends it in a round."""
        grid = self.rule.grid(bound.clip, bound.noise_multiplier)
        own = total.detach().to(device="cpu", dtype=torch.float64).numpy()
        hidden = raw(own), repr((bound, self.weight)).encode()
        address = "client", self.client, "round", number
        residues = grid.contribution(
            self.client,
            own,
            over(self.entropy, hidden, *address, "noise"),
            over(self.entropy, hidden, *address, "rounding"),
            self.weight,
        )
        return Masked(client=self.client, round=number, values=packed(residues, grid.bits))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SummedClient(SamplingClient):
    """One sum of clipped gradients a round.

    Attributes:
        mechanism: C and sigma of the opened sum.
        part: its part of every sum.
        entropy: where batches are drawn from, by round.
    """

    mechanism: Bounded
    part: Part
    entropy: Entropy

    def price(self, task: Train) -> Price:
        """Return the price of one example in the round's opened sum.

        Raises:
            LocalProtocolError: for a task of several steps, or of more than a sum.
        """
        if task.steps != 1 or Wants.of(task) != Wants():
            raise LocalProtocolError(
                f"round {task.round}: only the sum of one step's gradients is opened where clients "
                "share the noise, and the task asks for more"
            )
        event = agreed(self.mechanism, task).event()
        return ((PoissonSampled(sampling_rate=self.sampling_rate, event=event), 1),)

    def answer(self, task: Train, permits: Permits) -> Masked:
        covers_round(self.unit, permits, self.price(task), task.round)
        flat, bound = self.kernels.flat, agreed(self.mechanism, task)
        flat.load(received(task.weights, flat.weights))
        batches = self.entropy.at("client", self.index, "round", task.round, "batches")
        chosen = self.chosen(batches).to(flat.weights.device)
        total = torch.empty_like(flat.weights, dtype=torch.float64)
        self.kernels.clipped.of(
            self.examples, chosen, bound_of(bound), total, expected=self.expected_batch
        )
        return self.part.message(total, task.round, bound)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SummedLocalClient(LocalClient):
    """One bounded update a round, if the client has drawn itself.

    Attributes:
        mechanism: S and z of the opened sum.
        sampling_rate: q_c with which it draws itself.
        part: its part of every sum.
        watched: whether others see how long it takes.
    """

    part: Part
    watched: bool = False

    def answer(self, task: Train, permits: Permits) -> Masked:  # type: ignore[override]
        self.shown(task, permits)
        bound = self._bound(task)
        coin = self.entropy.at("client", self.index, "round", task.round, "drawn")
        drawn = coin.random() < drawable(self.sampling_rate)
        if drawn or self.watched:
            moved, _ = within(bound, self.train(task))
        else:
            moved = torch.from_numpy(task.weights)
        return self.part.message(moved if drawn else torch.zeros_like(moved), task.round, bound)
