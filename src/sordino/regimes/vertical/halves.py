r"""The two halves of a network that was cut between parties and server, each any torch module.

A party makes an embedding h_m = h(w_m; x_m) of its features; the server scores all embeddings side
by side. The derivative v_m = df/dh_m comes back to active parties, and the chain rule does the
rest:

    grad_m f = v_m . dh_m / dw_m ,     f the mean loss over an event's examples.

What travels is the derivative of each example's own loss; the party takes the mean (in 16 bits, a
mean over many would leave little).

What a party releases may carry noise: h_m is shortened to a bound and Gaussian noise put on
it, and so is grad_m before it enters the window (once: what the window does with it later is
post-processing). A frozen party does not learn. The server sees released embeddings and responded
labels only.

With static local regret, halves keep the examples of the last l events and go through all of
them in every event, newest first; places that are not filled yet are zeros, and count for nothing.

Three engines play the same two halves, with results that are alike to float32 rounding: the loop
(:mod:`sordino.regimes.vertical.loop`), compiled, for chains of linear layers and windows of
gradients; :class:`Graph`, for any torch modules; and
:class:`~sordino.regimes.vertical.messages.Messages`, which hands every message over, for noise and
missing answers, too. Handing messages over costs as many backward passes as there are parties that
learn. Where nothing happens on the way but rounding, the derivative that a party would be sent is
the one that its own gradient is made of, and the graph's one pass back gives them all. Numbers are
rounded where messages would round them, there and back.

Shapes: features (b, f); embeddings (b, e), or with a window (l b, e); labels (b,).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.base.arrays import Array, Bools, Floats, Ints, below
from sordino.base.entropy import Contents, Numbered, Transcript, raw
from sordino.base.errors import RemoteProtocolError, StudyError
from sordino.base.message import Derivative, Embedding, Passive, Turn, Vector, numbers, packed
from sordino.mechanisms.gaussian import Single
from sordino.privacy import Allowance
from sordino.regimes.vertical.method import OnlineMethod
from sordino.regimes.vertical.regime import RAW_UPDATES, RequiredCharges, party_unit, released
from sordino.training import graph as graphs
from sordino.training.flat import Flat, Slot
from sordino.training.graph import Function, Named, one_by_one, passed_over, scores_of
from sordino.training.loss import cross_entropy
from sordino.training.perexample.plan import alone, plain_layers

FORWARD, BACKWARD, SERVER = range(3)  # of Played.seconds
EventPath = Literal["loop", "graph", "messages"]
Arrays = dict[str, Array]
Weights = dict[str, NDArray[np.float32]]
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Results of n events of b examples each.

    Attributes:
        predictions: classes (n b,), each before its event was learned from.
        losses: mean loss of each event's examples (n,), likewise.
        regret: squared norm of the window's gradient after each event (n,).
        learned: the events that were learned from (n,).
        dropped: messages that could not be used (n,).
        seconds: of processor time: parties' forward passes, their backward passes and steps, the
            server (3,).
    """

    predictions: Ints
    losses: Floats
    regret: Floats
    learned: Bools
    dropped: Ints
    seconds: Floats

    @staticmethod
    def room(n: int, batch: int = 1) -> Played:
        """Return zeros for n events, all of them learned from."""
        return Played(
            np.zeros(n * batch, np.int64), np.zeros(n), np.zeros(n), np.ones(n, bool),
            np.zeros(n, np.int64), np.zeros(3),
        )  # fmt: skip


class Engine:
    """A server and its parties, between two blocks.

    Attributes:
        required: charges of an appearance of an entity.
    """

    required: RequiredCharges = ()

    def run(self, x: Rows, y: Ints, active: Bools, silent: Bools, paid: Allowance) -> Played:
        """Play n events.

        Args:
            x: (n b, f), the parties' features side by side.
            y: (n b,), labels as the server knows them.
            active: (n, M), parties that learn.
            silent: (n, M), parties whose answer does not come.
            paid: permits for what the events release.

        Raises:
            LocalProtocolError: if something is not paid for; nothing has been computed then.
        """
        for unit, event in self.required:
            paid.covers(unit, event)
        return self.play(x, y, active)

    def play(self, x: Rows, y: Ints, active: Bools) -> Played:
        """Play n events in which every answer comes, and nothing happens to messages."""
        raise NotImplementedError

    def weights(self) -> Weights:
        """Return flat weights of "server", "party0", "party1" and so on."""
        raise NotImplementedError

    @property
    def model(self) -> Vector:
        """All weights in one vector (d,), the server's first."""
        return np.concatenate(list(self.weights().values()))

    def pack(self) -> Arrays:
        """Return everything that a later :meth:`unpack` needs."""
        raise NotImplementedError

    def unpack(self, kept: Mapping[str, Array]) -> None:
        """Restore the state that :meth:`pack` returned."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class HalfSettings:
    """The facts that both halves know of a study: its method, and the bits of a number sent."""

    method: OnlineMethod
    bits: int

    @property
    def rows(self) -> int:
        """Examples that one event goes through."""
        return self.method.batch * (self.method.window if self.method.replays else 1)

    def slide(self, kept: Tensor, fresh: Tensor) -> None:
        """Put an event's examples (b, width), or labels (b,), in front of a window (rows, ...)."""
        batch = self.method.batch
        kept[batch:] = kept[:-batch].clone()
        kept[:batch] = fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyNoise:
    """Noise on what a party sends, and on what it learns from; None where there is none.

    Draws are numbered by events, and over what they hide.

    Attributes:
        history: what the party was told so far: a server that has it answer twice, from a copy of
            its folder, must not see whether it hides the same.
    """

    embedding: Single | None = None
    update: Single | None = None
    embedding_draws: Numbered | None = None
    update_draws: Numbered | None = None
    history: Transcript = field(default_factory=Transcript)


class Half:
    """A half of the network between two events.

    Attributes:
        settings: of the study.
        flat: its weights.
        parameters: those that it trains.
        window: its gradients: of one, where examples are kept instead. A party's may be of its
            newest gradient over the server's W (Algorithm 3 as printed).
        kept: examples (rows, f) or labels (rows,) of the last events, where they are evaluated
            again, the newest first; :attr:`keeps` is their name in a checkpoint.
        most: length of a gradient that it learns from; without a bound, it learns from all.
    """

    keeps: ClassVar[str]
    most: float = math.inf

    def __init__(
        self, settings: HalfSettings, flat: Flat, rate: float, kept: Tensor, *, buffered: bool
    ) -> None:
        self.settings, self.flat, self.kept = settings, flat, kept
        self.parameters, method, whole = trainable(flat.module), settings.method, None
        length = 1 if method.replays else method.window
        if not buffered:
            length, whole = 1, total(method.window, method.attenuation)
        self.window = Window(
            flat, length, method.attenuation, rate, whole=whole, fades=method.fades
        )

    @property
    def weights(self) -> NDArray[np.float32]:
        """A copy of its weights."""
        return self.flat.weights.cpu().numpy().copy()

    def square(self, event: int) -> float:
        """Return ||S / W||^2 of its window after an event.

        With static local regret that of the event's own gradient, if it had one.
        """
        self.window.pass_by(event)
        return self.window.square

    def pack(self) -> Arrays:
        """Return weights, window and what it keeps, between two events."""
        kept = {"weights": self.weights, self.keeps: self.kept.cpu().numpy().copy()}
        return {**kept, **self.window.pack()}

    def unpack(self, kept: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`pack` returned."""
        self.flat.load(torch.from_numpy(kept["weights"]))
        self.kept.copy_(torch.from_numpy(kept[self.keeps]))
        self.window.unpack(kept)


class Party(Half):
    """A party's features, model and window.

    ``unbounded`` says why nothing bounds what is released of features, where nothing does: then
    there is no price.

    Attributes:
        unit: in the ledger.
        price: what one appearance of an entity releases.
    """

    keeps = "kept"

    def __init__(
        self,
        index: int,
        module: nn.Module,
        features: int,
        settings: HalfSettings,
        rate: float,
        noise: PartyNoise,
        frozen: bool,
        unbounded: str | None = None,
    ) -> None:
        self.index, self.noise, self.frozen = index, noise, frozen
        if noise.embedding is not None and noise.update is None and not frozen:
            unbounded = unbounded or RAW_UPDATES
        embedding, update = (
            None if each is None else each.noise_multiplier
            for each in (noise.embedding, noise.update)
        )
        times = settings.rows // settings.method.batch
        self.unit, self.price = party_unit(index), released(embedding, update, times, unbounded)
        self._model = PartyModule(module, features)
        flat = self._model.flat
        kept = torch.zeros((settings.rows, features), dtype=flat.weights.dtype)
        super().__init__(settings, flat, rate, kept, buffered=settings.method.buffered)
        self._made: Tensor | None = None
        self._event = 0
        self._sent: Embedding | None = None

    @property
    def sent(self) -> int:
        """Number of the last event that it made an embedding for; 0 if there is none."""
        return 0 if self._sent is None else self._sent.event

    def answer(
        self, turn: Turn, features: Tensor, active: bool, paid: Allowance
    ) -> Embedding | Passive:
        """Answer a turn: an active party with its embedding, a passive one when it is asked for it.

        The embedding of an event is made once, with features (b, f), at its first turn.

        Raises:
            LocalProtocolError: if the event is not ``paid`` for.
        """
        if self._sent is None or self._sent.event != turn.event:
            self._sent = self.embed(turn.event, features, active, paid)
        return self._sent if active or turn.asked else Passive(self.index, turn.event)

    def embed(self, event: int, features: Tensor, active: bool, paid: Allowance) -> Embedding:
        """Return the message for features (b, f). An active party waits for the derivative.

        Raises:
            LocalProtocolError: unless the event is ``paid`` for, the step that may follow included;
                nothing has been computed then.
        """
        paid.covers(self.unit, self.price)
        learns, noise = active and not self.frozen, self.noise
        made = self._model(self.rows(features), learns)
        if noise.embedding is not None:
            with torch.set_grad_enabled(learns):
                norms = torch.linalg.vector_norm(made, dim=1, keepdim=True).clamp_min(1e-30)
                made = made * (noise.embedding.clip / norms).clamp_max(1.0)
        self._made, self._event = (made, event) if learns else (None, 0)
        sent = made.detach()
        if noise.embedding is not None and noise.embedding_draws is not None:
            draws = noise.embedding_draws.over(event, self._contents(sent))
            sent = noise.embedding.release_rows(sent, draws)
        bits = self.settings.bits
        return Embedding(self.index, event, active, bits, _packed(sent, bits))

    def rows(self, features: Tensor) -> Tensor:
        """Return the rows that an event with these features (b, f) goes through, (rows, f)."""
        if not self.settings.method.replays:  # nothing is kept, in memory or in a checkpoint
            return features
        self.settings.slide(self.kept, features)
        return self.kept.clone()

    def learn(self, answer: Derivative) -> bool:
        """Take a step, if this is the derivative that is waited for; return whether it was.

        Raises:
            RemoteProtocolError: if it is malformed; nothing has changed.
        """
        made = self._made
        if made is None or answer.party != self.index or answer.event != self._event:
            return False
        slopes = torch.from_numpy(numbers(answer, made.numel())).view(made.shape)
        self._made = None
        gradients = self._model.gradients(made, slopes * (1.0 / self.settings.rows))
        if self.most < math.inf and self.noise.update is None:  # noise comes with a bound
            refuse_long(gradients, self.most)
        self.window.learn(answer.event, gradients, self._covered(answer.event))
        return True

    def _covered(self, event: int) -> Callable[[Tensor], Tensor] | None:
        noise, draws = self.noise.update, self.noise.update_draws
        if noise is None or draws is None:
            return None
        return lambda gradient: noise.release(gradient, draws.over(event, self._contents(gradient)))

    def _contents(self, hidden: Tensor) -> Contents:
        """Return the bytes that noise is drawn over."""
        return self.noise.history.digest, raw(hidden.detach().cpu().numpy())


def _packed(values: Tensor, bits: int) -> bytes:
    """Return numbers as they are sent."""
    return packed(values.reshape(-1).cpu().numpy(), bits)


@dataclass(frozen=True, slots=True, eq=False)
class ServerStep:
    """Results of an event at the server.

    Attributes:
        predictions: of the event's own examples (b,), before the update.
        loss: their mean loss.
        derivatives: for the active parties.
    """

    predictions: Ints
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


class Server(Half):
    """The server's half: scores, losses, derivatives, and its own steps.

    Attributes:
        filled: labels that it has kept so far, at most all of a window.
    """

    keeps = "labels"

    def __init__(self, module: nn.Module, settings: HalfSettings, rate: float) -> None:
        self.filled = 0
        labels = torch.zeros(settings.rows, dtype=torch.int64)
        super().__init__(settings, Flat(module), rate, labels, buffered=True)

    def learn(
        self, event: int, embeddings: Sequence[Vector], labels: Tensor, active: Sequence[int]
    ) -> ServerStep:
        """Score, take a step, and return how the loss falls with each active party's embedding.

        Args:
            event: its number.
            embeddings: of all parties, each (rows e,).
            labels: (b,).
            active: parties that get a derivative.

        Raises:
            RemoteProtocolError: if its gradient is longer than ``most``; only the labels have been
                seen then.
        """
        settings = self.settings
        leaves = [
            torch.from_numpy(h).view(settings.rows, -1).requires_grad_(m in active)
            for m, h in enumerate(embeddings)
        ]
        losses, scores = self.losses(torch.cat(leaves, 1), labels)
        rows, bits, batch = settings.rows, settings.bits, settings.method.batch
        wanted, count = [leaves[m] for m in active], len(self.parameters)
        slopes = torch.autograd.grad(
            losses.sum() * (1.0 / rows), [*self.parameters, *wanted], allow_unused=True
        )
        if self.most < math.inf:
            refuse_long(slopes, self.most)
        self.window.learn(event, slopes[:count])
        each = (
            torch.zeros_like(leaf) if v is None else v * rows
            for leaf, v in zip(wanted, slopes[count:], strict=True)
        )
        derivatives = tuple(
            Derivative(m, event, bits, _packed(v, bits)) for m, v in zip(active, each, strict=True)
        )
        predictions = scores.detach()[:batch].argmax(1).numpy()
        return ServerStep(predictions, float(losses.detach()[:batch].mean()), derivatives)

    def losses(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of all examples of an event so far, and scores (rows, classes)."""
        self.see(labels)
        scores = self.flat.module(embeddings)
        return cross_entropy(scores[: self.filled], self.kept[: self.filled]), scores

    def see(self, labels: Tensor) -> None:
        """Put an event's labels in front of the window, learned from or not."""
        self.settings.slide(self.kept, labels)
        self.filled = min(self.filled + self.settings.method.batch, self.settings.rows)

    def pack(self) -> Arrays:
        """Return weights, window and kept labels, between two events."""
        return {**super().pack(), "filled": np.array([self.filled])}

    def unpack(self, kept: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`pack` returned."""
        super().unpack(kept)
        self.filled = int(kept["filled"][0])


def trainable(module: nn.Module) -> list[Tensor]:
    """Return the parameters that are trained."""
    return [p for p in module.parameters() if p.requires_grad]


FRESH = 32
"""Windows after which the sum of one is added up anew."""


def total(length: int, alpha: float) -> float:
    """Return W, the sum of alpha^i over i < length."""
    return float(sum(alpha**i for i in range(length)))


class Window:
    """Exponentially weighted window of past gradients over one participant's module, with its
    steps.

        S_t = sum_{i<l} alpha^i g_{t-i} = alpha S_{t-1} + g_t - alpha^l g_{t-l}

    (Aydore, Zhu and Foster 2019, Definition 2.) The recursion costs a few passes over the
    parameters, whatever l is. Each event leaves a rounding error in S; every 32 l events S is added
    up anew from the gradients themselves, so no error is older than that. Gradients are kept as
    autograd gave them, one array for each parameter in the order of the flat vector: nobody writes
    to them.

    ``whole`` is what sums are divided by where it is not W; with ``fades``, the step of event t is
    divided by sqrt(t) as well.

    Attributes:
        seen: number of the last event that the window knows.
        square: ||S / W||^2 after it.
    """

    def __init__(
        self,
        flat: Flat,
        length: int,
        alpha: float,
        rate: float,
        *,
        whole: float | None = None,
        fades: bool = False,
    ) -> None:
        whole = total(length, alpha) if whole is None else whole
        self._length, self._alpha, self._fades = length, alpha, fades
        self._step, self._norm = rate / whole, whole**-2
        self._keep, self._drop = alpha, alpha**length
        self._slots = flat.layout
        self._sum, self._weights = torch.zeros(flat.dim), self._parts(flat.weights)
        self._sums, self._zeros = self._parts(self._sum), self._parts(torch.zeros(flat.dim))
        self._ring: list[list[Tensor]] = [self._zeros] * length
        self.seen, self.square = 0, 0.0

    def learn(
        self,
        event: int,
        gradients: Sequence[Tensor | None],
        cover: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Enqueue an event's gradient by parameter (None: zero), through ``cover`` (d,); step.

        Events between the last one and this had no gradient.
        """
        self.pass_by(event - 1)
        fresh = [
            _stored(slot, g, zero)
            for slot, g, zero in zip(self._slots, gradients, self._zeros, strict=True)
        ]
        if cover is not None:
            fresh = self._parts(cover(torch.cat(fresh)))
        step = self._step / math.sqrt(event) if self._fades else self._step
        self._move(event, fresh)
        torch._foreach_sub_(self._weights, self._sums, alpha=step)

    def pass_by(self, event: int) -> None:
        """Enqueue zeros up to an event that brought no gradient."""
        if event - self.seen >= self._length:  # nothing of what is there will be left
            self._ring = [self._zeros] * self._length
            self._sum.zero_()
            self._sums = self._zeros if self._length == 1 else self._sums
            self.seen, self.square = event, 0.0
        while self.seen < event:
            self._move(self.seen + 1, self._zeros)

    def _move(self, event: int, fresh: list[Tensor]) -> None:
        """S <- alpha S + fresh - alpha^l gone, and its square."""
        place = event % self._length
        if self._length == 1:
            self._sums = fresh
        else:
            torch._foreach_mul_(self._sums, self._keep)
            torch._foreach_add_(self._sums, fresh)
            torch._foreach_sub_(self._sums, self._ring[place], alpha=self._drop)
        # a dot's bits depend on where numbers lie
        square = sum(float(part.square().sum()) for part in self._sums)
        self._ring[place] = fresh
        self.seen, self.square = event, square * self._norm
        if self._length > 1 and event % (FRESH * self._length) == 0:
            self._sum.zero_()
            for age in range(self._length):
                gradients = self._ring[(event - age) % self._length]
                torch._foreach_add_(self._sums, gradients, alpha=self._alpha**age)

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Return each parameter's part of a vector (d,)."""
        return [vector[slot.offset : slot.offset + slot.size] for slot in self._slots]

    def pack(self) -> Arrays:
        """Return gradients and sum, and the event that they are as of."""
        ring = torch.stack([torch.cat(row) for row in self._ring])
        return {
            "ring": ring.numpy(), "sum": torch.cat(self._sums).numpy(), "seen":
            np.array([self.seen])
        }  # fmt: skip

    def unpack(self, kept: Mapping[str, Array]) -> None:
        """Restore the state that :meth:`pack` returned.

        Raises:
            ValueError: for a window of another length, or of another module.
        """
        if kept["ring"].shape != (self._length, len(self._sum)):
            raise ValueError(f"a window has shape {kept['ring'].shape}")
        self._ring = [self._parts(torch.from_numpy(row.copy())) for row in kept["ring"]]
        self._sum.copy_(torch.from_numpy(kept["sum"]))
        self._sums = self._ring[0] if self._length == 1 else self._sums
        self.seen = int(kept["seen"][0])


def _stored(slot: Slot, gradient: Tensor | None, zero: Tensor) -> Tensor:
    """Return a gradient as the flat vector keeps its parameter."""
    if gradient is None:
        return zero
    ordered = gradient.permute(0, 2, 3, 1) if len(slot.shape) == 4 else gradient
    return ordered.contiguous().view(-1)


class PartyModule:
    """A party's half as a function of weights and rows, in which no row can meet another or stay.

    A price counts one row for an event: the embedding of the entity's own features, and the
    entity's part of the gradient. So what a module makes of a row may depend on that row and on
    released weights alone. Layers of known types (:mod:`sordino.training.perexample.plan`)
    keep rows apart, and they get all rows of an event at once. Of any other module nothing is
    believed: its graph (:mod:`sordino.training.graph`) gets one row after another. A row on which
    an operation fails has an embedding of zeros and no gradient. It ends nothing: an end would tell
    of the row.

    Attributes:
        flat: its weights.

    Raises:
        StudyError: for a module that has no graph, or makes no embedding of one row.
    """

    def __init__(self, module: nn.Module, features: int) -> None:
        self.flat = Flat(module)
        self.parameters = trainable(module)
        self._names = {slot.name: slot for slot in self.flat.layout}
        self._known = keeps_rows_apart(module, features)
        self._width = 0
        self._last: tuple[Tensor, Tensor] | None = None
        if not self._known:
            row = torch.zeros((1, features))
            made = self.flat.graphs.of("embedding", scores_of, row)
            if made.dtype != torch.float32:
                raise StudyError(f"model: it gives {made.dtype}; parties' models must give float32")
            self.flat.graphs.of("gradient", self._gradient, row, torch.zeros(made.shape))
            self._width = int(made.shape[1])

    def __call__(self, rows: Tensor, learns: bool) -> Tensor:
        """Return embeddings (n, e) of rows (n, f), which autograd follows if the party learns."""
        if self._known:
            with torch.set_grad_enabled(learns):
                out: Tensor = self.flat.module(rows.clone())  # a copy: a layer may work in place
            return out
        made = rows.new_zeros((len(rows), self._width), requires_grad=learns)
        graph = self.flat.graphs.of("embedding", scores_of, rows[:1])
        with torch.no_grad():
            one_by_one(graph, rows, made)
        self._last = (rows.clone(), made) if learns else None
        return made

    def gradients(self, out: Tensor, slopes: Tensor) -> list[Tensor | None]:
        """Return gradients of the sum of ``out`` times ``slopes`` (n, e), by parameter; None: zero.

        ``out`` is a function of the last embeddings. Gradients of rows are bounded together, so
        rows may meet here.
        """
        # slopes as gradients would be checked by a part of torch that takes 1.4 s and 60 MB to load
        value = (out * slopes).sum()
        if self._last is None:
            return list(torch.autograd.grad(value, self.parameters, allow_unused=True))
        rows, made = self._last
        back = torch.autograd.grad(value, made)[0]
        graph = self.flat.graphs.of("gradient", self._gradient, rows[:1], back[:1])
        total = {name: torch.zeros(slot.shape) for name, slot in self._names.items()}
        for i in range(len(rows)):
            with passed_over():
                found = graph(rows[i : i + 1].clone(), back[i : i + 1].clone())
                for name, gradient in found.items():
                    total[name] += gradient
        return list(total.values())

    def _gradient(
        self, module: Function, tensors: Named, row: Tensor, slope: Tensor
    ) -> dict[str, Tensor]:
        leaves = graphs.trained(tensors, self._names)
        with torch.enable_grad():
            value = (module(leaves, row) * slope).sum()
        return graphs.pulled(value, leaves)


def keeps_rows_apart(module: nn.Module, features: int) -> bool:
    """Return whether a module is known layers in a row, each of which works on every row alone."""
    layers, x = plain_layers(module), torch.zeros((2, features))
    if layers is None:
        return False
    for layer in layers:
        if not _apart(layer, x.ndim):
            return False
        with torch.no_grad():
            x = layer(x)
    return True


def _apart(layer: nn.Module, axes: int) -> bool:
    match layer:
        case nn.Linear() | nn.GroupNorm():
            return axes >= 2
        case nn.Conv2d():
            return axes == 4
        case nn.LayerNorm():
            return len(layer.normalized_shape) < axes
    return alone(layer, axes)


class _Travelled(torch.autograd.Function):
    """Numbers after they were sent in 16 bits; so is each example's derivative, on its way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: int) -> Tensor:
        ctx.rows = rows
        return values.half().float()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return (slopes[0] * ctx.rows).half().float() * (1.0 / ctx.rows), None


def _sent(values: Tensor) -> Tensor:
    found: Tensor = _Travelled.apply(values, len(values))  # type: ignore[no-untyped-call]
    return found


class Graph(Engine):
    """A server and its parties, between two events."""

    def __init__(self, server: Server, parties: Sequence[Party], columns: Sequence[slice]) -> None:
        self.server, self.parties, self._columns = server, tuple(parties), tuple(columns)
        self._event = 0
        self._halves: dict[str, Half] = {"server": server}
        self._halves |= {f"party{party.index}": party for party in parties}

    def play(self, x: Rows, y: Ints, active: Bools) -> Played:
        """Play n events one after another: features (n b, f), labels (n b,), activity (n, M)."""
        n, batch = len(active), self.server.settings.method.batch
        played, predictions = Played.room(n, batch), [torch.zeros(0, dtype=torch.int64)]
        losses = torch.empty(n, batch)
        inputs, labels = torch.from_numpy(x).view(n, batch, -1), torch.from_numpy(y).view(n, batch)
        for i in range(n):
            scores, losses[i] = self._play(inputs[i], labels[i], active[i].tolist(), played.seconds)
            predictions.append(scores.argmax(1))
            played.regret[i] = sum(half.window.square for half in self._halves.values())
        played.predictions[:] = torch.cat(predictions).numpy()
        played.losses[:] = losses.double().mean(1).numpy()
        return played

    def _play(
        self, features: Tensor, labels: Tensor, active: list[bool], seconds: Floats
    ) -> tuple[Tensor, Tensor]:
        """Play an event; return its own examples' scores (b, classes) and losses (b,)."""
        server, rows = self.server, self.server.settings.rows
        self._event += 1
        begin, sent = time.thread_time(), list[Tensor]()
        for party, columns, learns in zip(self.parties, self._columns, active, strict=True):
            inputs = party.rows(features[:, columns])
            with torch.set_grad_enabled(learns):
                out: Tensor = party.flat.module(inputs)
            sent.append(_sent(out) if party.settings.bits == 16 else out)
        middle = time.thread_time()
        losses, scores = server.losses(torch.cat(sent, 1), labels)
        learning = [party for party, learns in zip(self.parties, active, strict=True) if learns]
        wanted = server.parameters + [p for party in learning for p in party.parameters]
        mean = losses.sum() * (1.0 / rows) if rows > 1 else losses.sum()
        slopes = iter(torch.autograd.grad(mean, wanted, allow_unused=True))
        server.window.learn(self._event, [next(slopes) for _ in server.parameters])
        end = time.thread_time()
        for party, learns in zip(self.parties, active, strict=True):
            if learns:
                party.window.learn(self._event, [next(slopes) for _ in party.parameters])
            else:
                party.window.pass_by(self._event)
        seconds += (middle - begin, time.thread_time() - end, end - middle)
        batch = server.settings.method.batch
        return scores.detach()[:batch], losses.detach()[:batch]

    def weights(self) -> Weights:
        """Return copies of the flat weights of the server and of each party."""
        return {name: half.weights for name, half in self._halves.items()}

    def pack(self) -> Arrays:
        """Return weights, windows and kept examples, between two events."""
        found: Arrays = {**self.weights(), "window.event": np.array([self._event])}
        for name, half in self._halves.items():
            found |= {f"window.{name}.{key}": value for key, value in half.window.pack().items()}
            if half.settings.method.replays:
                found[f"window.{name}.kept"] = half.kept.numpy().copy()
        return found

    def unpack(self, kept: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`pack` returned."""
        self._event, settings = int(kept["window.event"][0]), self.server.settings
        self.server.filled = min(self._event * settings.method.batch, settings.rows)
        for name, half in self._halves.items():
            half.flat.load(torch.from_numpy(kept[name]))
            half.window.unpack(below(f"window.{name}.", kept))
            if half.settings.method.replays:
                half.kept.copy_(torch.from_numpy(kept[f"window.{name}.kept"]))
