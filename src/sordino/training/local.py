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
    McMahan, Ramage, Talwar, Zhang 2018, Learning Differentially Private Recurrent Language Models,
    algorithm 1.

**Where clients share the noise of a sum** (:mod:`sordino.mechanisms.shared`), there are two kinds
of work. Unit "sample" (:class:`SummedClient`): the sum of clipped gradients over a Poisson batch at
the global model, once a round. Unit "client" (:class:`SummedLocalClient`): a bounded update after
local steps, if the client has drawn itself with probability q_c, and zero if it has not. Either
times the client's public weight, rounded, with the client's part of the noise, modulo 2^bits.

Whether a client is drawn is its own secret: it sends in every round. When it sends must not tell
it either. So where others see that, a client that is not drawn does the same work and throws it
away.

Shapes: weights and sums (d,), examples (n, ...).
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.base.arrays import Ints
from sordino.base.entropy import Entropy, drawable, over, raw
from sordino.base.errors import LocalProtocolError, StudyError, no_memory
from sordino.base.message import Contribution, Masked, Train, Update
from sordino.base.registry import foreign
from sordino.base.residues import packed
from sordino.base.settings import own_code
from sordino.mechanisms.gaussian import Bounded, Overclaimed, Tailed, length, shortened, within
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import Permits, PoissonSampled, Price, covers_round
from sordino.training import plausible
from sordino.training.client import ModelKernels, SamplingClient, agreed, bound_of, hidden, received
from sordino.training.extra_releases import Wants
from sordino.training.optimizer import Optimizer, Sgd
from sordino.training.passes import Blocks
from sordino.training.perexample.sums import Examples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalWork:
    """Plain local training from the global model.

    Attributes:
        index: which client, from 0.
        examples: its data.
        learning_rate: eta.
        gradient_clip: C of single examples' gradients, where a paper's literal form rests on it;
            None leaves them as they are.
        batch: examples in a local step; all of them where the client has fewer.
        proximal: mu, of the proximal term.
        optimizer: of the local steps.
        kernels: the shared model and kernels.
        entropy: where batches are drawn from, by address.
    """

    index: int
    examples: Examples
    learning_rate: float
    gradient_clip: float | None = None
    batch: int
    proximal: float
    optimizer: Optimizer
    kernels: ModelKernels
    entropy: Entropy

    def train(self, task: Train) -> Tensor:
        """Delta (d,), raw and not clipped; NaN where somebody's own code fails on it, so that the
        client adds nothing: an error would tell of its rows, and that it was drawn.
        """
        flat = self.kernels.flat
        start = received(task.weights, flat.weights)
        flat.load(start)
        batches = self._batches(task)
        plain = type(self.optimizer) is Sgd and not (self.optimizer.momentum or self.proximal)
        plain = plain and self.gradient_clip is None and len(batches) > 0
        if not (plain and self.kernels.mean.steps(self.examples, batches, self.learning_rate)):
            own = foreign(self.optimizer) or not self.kernels.mean.known
            with own_code() if own else nullcontext():
                try:
                    self._take(batches, start)
                except BaseException as error:  # a user's code may raise anything
                    study = isinstance(error, StudyError) and not own  # and of no rows
                    memory = no_memory(error) and not foreign(self.optimizer)
                    if isinstance(error, KeyboardInterrupt) or study or memory:
                        raise
                    flat.weights.fill_(torch.nan)
        return flat.weights - start

    def _take(self, batches: Ints, start: Tensor) -> None:
        """Take a step on each of the batches (tau, b), from the model at ``start`` (d,)."""
        flat = self.kernels.flat
        gradient = torch.empty_like(flat.weights)
        total = torch.empty_like(flat.weights, dtype=torch.float64)
        # a copy: an optimizer of somebody's own must keep nothing for the next client
        steps = copy.deepcopy(self.optimizer).begin(self.learning_rate, flat.weights)
        for each in batches:
            chosen = torch.from_numpy(each).to(flat.weights.device)
            if self.gradient_clip is None:
                self.kernels.mean.of(self.examples, chosen, gradient)
            else:
                self.kernels.clipped.of(
                    self.examples, chosen, self.gradient_clip, total, expected=len(chosen)
                )
                gradient.copy_(total.div_(len(chosen)))
            if self.proximal:
                gradient.add_(flat.weights - start, alpha=self.proximal)
            steps.take(flat.weights, gradient, 0.0)

    def _batches(self, task: Train) -> Ints:
        """Indices (tau, b) of the batches: shuffled, cut, and shuffled again when used up; none of
        a client without examples.
        """
        size, count = min(self.batch, len(self.examples)), len(self.examples)
        if not count:
            return np.zeros((0, 0), np.int64)
        draw = self.entropy.at("client", self.index, "round", task.round, "batches")
        turns = -(-task.steps * size // count)
        order = np.concatenate([draw.permutation(count) for _ in range(turns)])
        return order[: task.steps * size].reshape(task.steps, size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalClient(LocalWork):
    """Plain local training, one bounded vector for the aggregator.

    Attributes:
        unit: whose data it holds, in the ledger.
        mechanism: what the aggregator will release the sum by; says what a bounded vector is.
        sampling_rate: q_c with which clients are drawn, for the price of taking part.
        blocks: whose turn it is in a round, where nobody is drawn.
    """

    unit: str
    mechanism: Bounded
    sampling_rate: float
    blocks: Blocks | None = None

    def price(self, task: Train) -> Price:
        """Return the price of every client, in the cohort or not."""
        event = self._bound(task).event()
        if self.blocks is None:
            event = PoissonSampled(sampling_rate=self.sampling_rate, event=event)
        return ((event, 1),)

    def use_permits(self, task: Train, permits: Permits) -> None:
        """Refuse unless permits cover a task, and it is this client's turn.

        Raises:
            LocalProtocolError: if they do not, or it is not; nothing may be computed then.
        """
        number = task.round
        if self.blocks is not None:
            if not self.blocks.turn(self.index, number):
                raise LocalProtocolError(
                    f"round {number} is not the turn of client {self.index}, which takes part in "
                    f"one of {self.blocks.batches} rounds"
                )
            number = self.blocks.number(number)
        covers_round(self.unit, permits, self.price(task), number)

    def answer(self, task: Train, permits: Permits) -> Contribution:
        self.use_permits(task, permits)
        moved = self.train(task)
        bounded, inside = within(self._bound(task), moved)
        return Contribution(
            client=self.index,
            round=task.round,
            steps=task.steps,
            delta=bounded.cpu().numpy().copy(),
            inside=inside,
        )

    def length_bound(self, task: Train, said: object) -> plausible.Length | None:
        """Return how long a contribution is, and may be; None where the mechanism does not say, and
        of what is no contribution.
        """
        if not isinstance(said, Contribution) or None in (task.clip, task.noise_multiplier):
            return None
        bound = self._bound(task)
        if not isinstance(bound, Tailed):
            return None
        most = bound.longest * (1.0 + plausible.ROUNDING)
        return plausible.Length(plausible.length(said.delta), most)

    def _bound(self, task: Train) -> Bounded:
        if task.clip is None or task.noise_multiplier is None:
            raise LocalProtocolError(
                f"round {task.round}: the task does not say what an update is bounded by"
            )
        return agreed(self.mechanism, task)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoisyModelClient(LocalWork):
    """Local training, and a noisy model sent: PE-DPFL in its paper's form. NOT private.

    With gradients of length at most C (``gradient_clip``), tau steps end within eta C tau of the
    model received, so two data sets lead to models at most 2 eta C tau apart; the noise is scaled
    to 2 eta C / n_i.

    Attributes:
        unit: whose data it holds, in the ledger.
        noise_multiplier: z, as claimed.
    """

    unit: str
    noise_multiplier: float

    def price(self, task: Train) -> Price:
        return ((self._mechanism(task).event(), 1),)

    def answer(self, task: Train, permits: Permits) -> Update:
        covers_round(self.unit, permits, self.price(task), task.round)
        trained = self.train(task)
        # Plain steps never reach this bound; other optimizers could, and what is booked rests on
        # it.
        reach = self._reach(task)
        inside, _ = shortened(trained, length(trained), reach)
        contents = hidden(task, inside)
        draws = over(self.entropy, contents, "client", self.index, "round", task.round, "noise")
        moved = self._mechanism(task).release(inside, draws)
        return Update(
            client=self.index,
            round=task.round,
            steps=task.steps,
            weights=task.weights + moved.cpu().numpy(),
        )

    def _reach(self, task: Train) -> float:
        """eta C tau, how far tau plain steps can get."""
        assert self.gradient_clip is not None
        return self.learning_rate * self.gradient_clip * task.steps

    def _mechanism(self, task: Train) -> Overclaimed:
        examples = max(len(self.examples), 1)
        claimed = 2.0 * self._reach(task) / (task.steps * examples)
        return Overclaimed(
            claimed=claimed,
            noise_multiplier=self.noise_multiplier,
            excess=float(examples * task.steps),
        )


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
        self.use_permits(task, permits)
        bound = self._bound(task)
        coin = self.entropy.at("client", self.index, "round", task.round, "drawn")
        drawn = coin.random() < drawable(self.sampling_rate)
        if drawn or self.watched:
            moved, _ = within(bound, self.train(task))
        else:
            moved = torch.from_numpy(task.weights)
        return self.part.message(moved if drawn else torch.zeros_like(moved), task.round, bound)
