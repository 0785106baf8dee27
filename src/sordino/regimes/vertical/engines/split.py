r"""The two halves of a network that was cut between parties and server, each any torch module.

A party makes an embedding h_m = h(w_m; x_m) of its features; the server scores all embeddings side
by side. The derivative v_m = df/dh_m comes back to active parties, and the chain rule does the
rest:

    grad_m f = v_m . dh_m / dw_m ,     f the mean loss over an event's examples.

What travels is the derivative of each example's own loss; the party takes the mean (in 16 bits, a
mean over many would leave little).

What a party lets out it may cover with noise: h_m is shortened to a bound and Gaussian noise put on
it, and so is grad_m before it enters the window (once: what the window does with it later is
post-processing). A frozen party does not learn. The server sees released embeddings and responded
labels only.

With static local regret, halves keep the examples of the last l events and go through all of
them in every event, newest first; places that are not filled yet are zeros, and count for nothing.

Shapes: features (b, f); embeddings (b, e), or with a window (l b, e); labels (b,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.base.entropy import Numbered
from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Derivative, Embedding, Vector, numbers, packed
from sordino.mechanisms.gaussian import Single
from sordino.privacy import Allowance, Composed, Event, Gaussian, NonPrivate, Repeated
from sordino.regimes.vertical.engines.rowwise import PartyModule
from sordino.regimes.vertical.engines.window import Window, total
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy

Kept = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What both halves know of the method.

    Attributes:
        length: l.
        alpha: attenuation; of a window of gradients.
        replays: whether the window holds examples, to be evaluated again, instead of gradients.
        batch: b.
        bits: of a number on its way.
        buffered: whether parties keep past gradients, too; else a party's step is its newest
            gradient over W, and nothing more (Algorithm 3 as printed).
        fades: whether the learning rate of event t is divided by sqrt(t).
    """

    length: int
    alpha: float
    replays: bool
    batch: int
    bits: int
    buffered: bool = True
    fades: bool = False

    @property
    def rows(self) -> int:
        """Examples that are gone through in one event."""
        return self.batch * (self.length if self.replays else 1)

    def window(self, flat: Flat, rate: float) -> Window:
        """The server's window of gradients: of one, where examples are kept instead."""
        length = 1 if self.replays else self.length
        return Window(flat, length, self.alpha, rate, fades=self.fades)

    def party_window(self, flat: Flat, rate: float) -> Window:
        """A party's: as the server's, or of its newest gradient over the server's W."""
        if self.buffered:
            return self.window(flat, rate)
        whole = total(self.length, self.alpha)
        return Window(flat, 1, self.alpha, rate, whole=whole, fades=self.fades)

    def kept(self, width: int, dtype: torch.dtype) -> Tensor:
        """Room for the examples of a window, (rows, width)."""
        return torch.zeros((self.rows, width), dtype=dtype)

    def slide(self, kept: Tensor, fresh: Tensor) -> None:
        """Put an event's examples (b, width), or labels (b,), in front of a window (rows, ...)."""
        kept[self.batch :] = kept[: -self.batch].clone()
        kept[: self.batch] = fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """Noise on what a party lets out; None where it goes out as it is.

    Draws are numbered by events, and under a secret key by what they hide.
    """

    embedding: Single | None = None
    update: Single | None = None
    embedding_draws: Numbered | None = None
    update_draws: Numbered | None = None

    @property
    def numbered(self) -> bool:
        """Whether there is any noise."""
        return self.embedding is not None or self.update is not None


class Party:
    """A party's features, model and window.

    ``told`` says what else gets out, where something does that nothing bounds: then there is no
    price.

    Attributes:
        unit: in the ledger.
        price: what one appearance of an entity releases.
        most: length of a gradient that it learns from; without a bound, it learns from all.
    """

    most: float = math.inf

    def __init__(
        self,
        index: int,
        module: nn.Module,
        features: int,
        plan: Plan,
        rate: float,
        cover: Cover,
        frozen: bool,
        told: str | None = None,
    ) -> None:
        self.index, self.plan, self.cover, self.frozen = index, plan, cover, frozen
        self.unit, self.price = f"party:{index}", _price(plan, cover, frozen, told)
        self._model = PartyModule(module, features)
        self.flat = self._model.flat
        self._window = plan.party_window(self.flat, rate)
        self._kept = plan.kept(features, self.flat.weights.dtype)
        self._made: Tensor | None = None
        self._event = 0

    def embed(self, event: int, features: Tensor, active: bool, paid: Allowance) -> Embedding:
        """What the server is sent of features (b, f). An active party waits for the derivative.

        Raises:
            LocalProtocolError: unless the event is ``paid`` for, the step that may follow included;
                nothing has been computed then.
        """
        paid.covers(self.unit, self.price)
        if self.plan.replays:  # else nothing is kept, in memory or in a checkpoint
            self.plan.slide(self._kept, features)
        learns = active and not self.frozen
        rows = self._kept.clone() if self.plan.replays else features
        made = self._shortened(self._model(rows, learns), learns)
        self._made, self._event = (made, event) if learns else (None, 0)
        sent = made.detach()
        if self.cover.embedding is not None and self.cover.embedding_draws is not None:
            draws = self.cover.embedding_draws.over(event, _bytes(sent))
            sent = self.cover.embedding.release_rows(sent, draws)
        return Embedding(
            self.index,
            event,
            active,
            self.plan.bits,
            packed(sent.reshape(-1).cpu().numpy(), self.plan.bits),
        )

    def _shortened(self, made: Tensor, learns: bool) -> Tensor:
        if self.cover.embedding is None:
            return made
        with torch.set_grad_enabled(learns):
            norms = torch.linalg.vector_norm(made, dim=1, keepdim=True).clamp_min(1e-30)
            found: Tensor = made * (self.cover.embedding.clip / norms).clamp_max(1.0)
        return found

    def miss(self, features: Tensor) -> None:
        """An event of which nothing goes out, with these features (b, f): a window of examples goes
        on.
        """
        if self.plan.replays:
            self.plan.slide(self._kept, features)

    def learn(self, answer: Derivative) -> bool:
        """Take a step, if this is the derivative that is waited for; whether it was.

        Raises:
            RemoteProtocolError: if it is malformed; nothing has changed.
        """
        made = self._made
        if made is None or answer.party != self.index or answer.event != self._event:
            return False
        slopes = torch.from_numpy(numbers(answer, made.numel())).view(made.shape)
        self._made = None
        gradients = self._model.gradients(made, slopes * (1.0 / self.plan.rows))
        if self.most < math.inf and self.cover.update is None:  # noise comes with a bound
            refuse_long(gradients, self.most)
        self._window.learn(answer.event, gradients, self._covered(answer.event))
        return True

    def _covered(self, event: int) -> Callable[[Tensor], Tensor] | None:
        noise, draws = self.cover.update, self.cover.update_draws
        return (
            None
            if noise is None or draws is None
            else lambda gradient: noise.release(gradient, draws.over(event, _bytes(gradient)))
        )

    def square(self, event: int) -> float:
        """||S / W||^2 of this party's window after an event.

        With static local regret that of the event's own gradient, if it had one.
        """
        self._window.pass_by(event)
        return self._window.square

    def pack(self) -> Kept:
        """Weights, window and kept examples, between two events."""
        return {
            "weights": self.flat.weights.cpu().numpy().copy(),
            "kept": self._kept.cpu().numpy().copy(),
            **self._window.pack(),
        }

    def unpack(self, kept: Mapping[str, Any]) -> None:
        """What :meth:`pack` gave."""
        self.flat.load(torch.from_numpy(kept["weights"]))
        self._kept.copy_(torch.from_numpy(kept["kept"]))
        self._window.unpack(kept)


def _bytes(hidden: Tensor) -> bytes:
    """Numbers that noise is put on."""
    return hidden.detach().cpu().numpy().tobytes()


RAW_EMBEDDINGS = "embeddings are sent without noise"
RAW_UPDATES = (
    "parties' models learn from raw features, and later embeddings, noise or not, tell of "
    "what they have learned"
)


def _price(plan: Plan, cover: Cover, frozen: bool, told: str | None) -> Event:
    """What one appearance releases of an entity's features at a party; ``told``: no bound."""
    if told is None:
        told = (
            RAW_EMBEDDINGS
            if cover.embedding is None
            else RAW_UPDATES
            if cover.update is None and not frozen
            else None
        )
    if told is not None or cover.embedding is None:
        return NonPrivate(reason=told or RAW_EMBEDDINGS)
    once: list[Event] = [Gaussian(noise_multiplier=cover.embedding.noise_multiplier)]
    if cover.update is not None:
        once.append(Gaussian(noise_multiplier=cover.update.noise_multiplier))
    return Repeated(Composed(tuple(once)), plan.length if plan.replays else 1)


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What the server made of an event.

    Attributes:
        predictions: of the event's own examples (b,), before the update.
        loss: their mean loss.
        derivatives: for the active parties.
    """

    predictions: np.ndarray[Any, np.dtype[np.int64]]
    loss: float
    derivatives: tuple[Derivative, ...]


def refuse_long(gradients: Sequence[Tensor | None], most: float) -> None:
    """Refuse a step of gradients that are together longer than ``most``, or not finite.

    Raises:
        RemoteProtocolError: saying how long they are.
    """
    square = sum(float(g.double().square().sum()) for g in gradients if g is not None)
    if not square <= most**2:
        raise RemoteProtocolError(
            f"a step of length {square**0.5:.3g}; a model takes {most:.3g} at most", "too large"
        )


class Server:
    """The labels' side: scores, losses, derivatives, and its own steps.

    Attributes:
        most: length of a gradient that it learns from; without a bound, it learns from all.
    """

    most: float = math.inf

    def __init__(self, module: nn.Module, plan: Plan, rate: float) -> None:
        self.plan = plan
        self.flat = Flat(module)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._window = plan.window(self.flat, rate)
        self._labels = torch.zeros(plan.rows, dtype=torch.int64)
        self._filled = 0

    def learn(
        self, event: int, embeddings: Sequence[Vector], labels: Tensor, active: Sequence[int]
    ) -> Learned:
        """Score, take a step, and say how the loss falls with each active party's embedding.

        ``labels`` (b,).

        Raises:
            RemoteProtocolError: if its gradient is longer than ``most``; only the labels have been
                seen then.
        """
        plan = self.plan
        self.see(labels)
        leaves = [
            torch.from_numpy(h).view(plan.rows, -1).requires_grad_(m in active)
            for m, h in enumerate(embeddings)
        ]
        scores = self.flat.module(torch.cat(leaves, 1))
        losses = cross_entropy(scores[: self._filled], self._labels[: self._filled])
        share = 1.0 / plan.rows
        wanted = [leaves[m] for m in active]
        slopes = torch.autograd.grad(
            losses.sum() * share, [*self._parameters, *wanted], allow_unused=True
        )
        count = len(self._parameters)
        if self.most < math.inf:
            refuse_long(slopes, self.most)
        self._window.learn(event, slopes[:count])
        derivatives = tuple(
            Derivative(
                m,
                event,
                plan.bits,
                packed(
                    (torch.zeros_like(leaf) if v is None else v * plan.rows).reshape(-1).numpy(),
                    plan.bits,
                ),
            )
            for m, leaf, v in zip(active, wanted, slopes[count:], strict=True)
        )
        own = scores.detach()[: plan.batch]
        return Learned(
            own.argmax(1).numpy(), float(losses.detach()[: plan.batch].mean()), derivatives
        )

    def see(self, labels: Tensor) -> None:
        """Put an event's labels in front of the window, learned from or not."""
        self.plan.slide(self._labels, labels)
        self._filled = min(self._filled + self.plan.batch, self.plan.rows)

    def square(self, event: int) -> float:
        """||S / W||^2 of the server's window after an event."""
        self._window.pass_by(event)
        return self._window.square

    def pack(self) -> Kept:
        """Weights, window and kept labels, between two events."""
        return {
            "weights": self.flat.weights.cpu().numpy().copy(),
            "labels": self._labels.numpy().copy(),
            "filled": np.array([self._filled]),
            **self._window.pack(),
        }

    def unpack(self, kept: Mapping[str, Any]) -> None:
        """What :meth:`pack` gave."""
        self.flat.load(torch.from_numpy(kept["weights"]))
        self._labels.copy_(torch.from_numpy(kept["labels"]))
        self._filled = int(kept["filled"][0])
        self._window.unpack(kept)
