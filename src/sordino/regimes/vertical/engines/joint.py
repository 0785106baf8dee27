r"""Both halves at once, for any torch modules: one graph from features to loss, one pass back.

Handing messages over costs as many backward passes as there are parties that learn. Where nothing
happens on the way but rounding (no noise, every answer comes), the derivative that a party would be
sent is the one that its own gradient is made of, and one pass gives them all. Numbers are rounded
where messages would round them, there and back.

Shapes: features (n b, f), labels (n b,), activity (n, M).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.regimes.vertical.engines.observed import Observed, Rates
from sordino.regimes.vertical.engines.split import Plan
from sordino.regimes.vertical.engines.window import Window
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy

FLOAT = torch.float32


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


class _Half:
    """A module with its window, and the examples that it keeps for a method that replays."""

    def __init__(
        self, module: nn.Module, window: Callable[[Flat, float], Window], rate: float, kept: Tensor
    ) -> None:
        self.flat = Flat(module)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.window = window(self.flat, rate)
        self.kept = kept


class Joint:
    """A server and its parties, between two events."""

    def __init__(
        self,
        server: nn.Module,
        parties: Sequence[nn.Module],
        plan: Plan,
        rates: Rates,
        columns: Sequence[slice],
        classes: int,
    ) -> None:
        self.plan, self._columns, self._classes = plan, tuple(columns), classes
        labels = torch.zeros(plan.rows, dtype=torch.int64)
        self._server = _Half(server, plan.window, rates.server, labels)
        self._parties = [
            _Half(module, plan.party_window, rate, plan.kept(place.stop - place.start, FLOAT))
            for module, rate, place in zip(parties, rates.parties, columns, strict=True)
        ]
        self._event = 0

    def run(
        self, x: NDArray[np.float32], y: NDArray[np.int64], active: NDArray[np.bool_]
    ) -> Observed:
        """Play events one after another."""
        n, batch = len(active), self.plan.batch
        regret, seconds = np.zeros(n), np.zeros(3)
        scores, losses = torch.empty(n * batch, self._classes), torch.empty(n, batch)
        inputs, labels = torch.from_numpy(x).view(n, batch, -1), torch.from_numpy(y).view(n, batch)
        for i in range(n):
            scores[i * batch : (i + 1) * batch], losses[i] = self._play(
                inputs[i], labels[i], active[i].tolist(), seconds
            )
            regret[i] = sum(half.window.square for half in (self._server, *self._parties))
        return Observed(scores.argmax(1).numpy(), losses.double().mean(1).numpy(), regret, seconds)

    def _play(
        self, features: Tensor, labels: Tensor, active: list[bool], seconds: NDArray[np.float64]
    ) -> tuple[Tensor, Tensor]:
        plan, server, parties = self.plan, self._server, self._parties
        self._event += 1
        begin = time.perf_counter()
        sent = [self._embedding(m, features, learns) for m, learns in enumerate(active)]
        middle = time.perf_counter()
        plan.slide(server.kept, labels)
        filled = min(self._event * plan.batch, plan.rows)
        scores = server.flat.module(torch.cat(sent, 1))
        each = cross_entropy(scores[:filled], server.kept[:filled])
        learning = [half for half, learns in zip(parties, active, strict=True) if learns]
        wanted = [p for half in (server, *learning) for p in half.parameters]
        slopes = list(
            torch.autograd.grad(
                each.sum() * (1.0 / plan.rows) if plan.rows > 1 else each.sum(),
                wanted,
                allow_unused=True,
            )
        )
        server.window.learn(self._event, slopes[: len(server.parameters)])
        end = time.perf_counter()
        at = len(server.parameters)
        for half, learns in zip(parties, active, strict=True):
            if learns:
                half.window.learn(self._event, slopes[at : at + len(half.parameters)])
                at += len(half.parameters)
            else:
                half.window.pass_by(self._event)
        seconds += (middle - begin, time.perf_counter() - end, end - middle)
        return scores.detach()[: plan.batch], each.detach()[: plan.batch]

    def _embedding(self, m: int, features: Tensor, learns: bool) -> Tensor:
        half, own = self._parties[m], features[:, self._columns[m]]
        if self.plan.replays:
            self.plan.slide(half.kept, own)
            own = half.kept.clone()
        if learns:
            out: Tensor = half.flat.module(own)
        else:
            with torch.no_grad():
                out = half.flat.module(own)
        return _sent(out) if self.plan.bits == 16 else out

    def weights(self) -> tuple[NDArray[np.float32], tuple[NDArray[np.float32], ...]]:
        """Flat weights of the server and of each party, as of now."""
        server, *parties = (
            half.flat.weights.numpy().copy() for half in (self._server, *self._parties)
        )
        return server, tuple(parties)

    def pack(self) -> dict[str, NDArray[Any]]:
        """Windows and kept examples, between two events."""
        found: dict[str, NDArray[Any]] = {"event": np.array([self._event])}
        for name, half in self._named():
            kept = {"kept": half.kept.numpy().copy()} if self.plan.replays else {}
            found |= {
                f"{name}.{key}": value for key, value in {**half.window.pack(), **kept}.items()
            }
        return found

    def start(self, server: NDArray[np.float32], parties: Sequence[NDArray[np.float32]]) -> None:
        """Begin with these weights, and empty windows."""
        for half, weights in zip((self._server, *self._parties), (server, *parties), strict=True):
            half.flat.load(torch.from_numpy(weights))

    def unpack(
        self,
        server: NDArray[np.float32],
        parties: Sequence[NDArray[np.float32]],
        kept: Mapping[str, Any],
    ) -> None:
        """Stand where :meth:`pack` was called."""
        self.start(server, parties)
        self._event = int(kept["event"][0])
        for name, half in self._named():
            half.window.unpack({key: kept[f"{name}.{key}"] for key in half.window.pack()})
            if self.plan.replays:
                half.kept.copy_(torch.from_numpy(kept[f"{name}.kept"]))

    def _named(self) -> list[tuple[str, _Half]]:
        return [
            ("server", self._server),
            *((f"party{m}", half) for m, half in enumerate(self._parties)),
        ]
