r"""Both halves at once, for any torch modules: one graph from features to loss, one pass back.

Handing messages over costs as many backward passes as there are parties that learn. Where nothing
happens on the way but rounding (no noise, every answer comes), the derivative that a party would be
sent is the one that its own gradient is made of, and one pass gives them all. Numbers are rounded
where messages would round them, there and back.

Shapes: features (n b, f), labels (n b,), activity (n, M).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.regimes.vertical.engine import Arrays, Played, Rates, below
from sordino.regimes.vertical.halves import HalfSettings, Window
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy


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

    def __init__(self, module: nn.Module, window: Window, flat: Flat, kept: Tensor) -> None:
        self.flat, self.window, self.kept = flat, window, kept
        self.parameters = [p for p in module.parameters() if p.requires_grad]


class Graph:
    """A server and its parties, between two events."""

    def __init__(
        self,
        server: nn.Module,
        parties: Sequence[nn.Module],
        settings: HalfSettings,
        rates: Rates,
        columns: Sequence[slice],
        classes: int,
    ) -> None:
        self.settings, self._columns, self._classes = settings, tuple(columns), classes
        flat, labels = Flat(server), torch.zeros(settings.rows, dtype=torch.int64)
        self._server = _Half(server, settings.window(flat, rates.server), flat, labels)
        self._parties: list[_Half] = []
        for module, rate, place in zip(parties, rates.parties, columns, strict=True):
            flat, kept = Flat(module), settings.kept(place.stop - place.start, torch.float32)
            self._parties.append(_Half(module, settings.party_window(flat, rate), flat, kept))
        self._event = 0

    def run(
        self, x: NDArray[np.float32], y: NDArray[np.int64], active: NDArray[np.bool_]
    ) -> Played:
        """Play n events one after another: features (n b, f), labels (n b,), activity (n, M)."""
        n, batch = len(active), self.settings.batch
        played = Played.room(n, batch)
        scores, losses = torch.empty(n * batch, self._classes), torch.empty(n, batch)
        inputs, labels = torch.from_numpy(x).view(n, batch, -1), torch.from_numpy(y).view(n, batch)
        for i in range(n):
            scores[i * batch : (i + 1) * batch], losses[i] = self._play(
                inputs[i], labels[i], active[i].tolist(), played.seconds
            )
            halves = (self._server, *self._parties)
            played.regret[i] = sum(half.window.square for half in halves)
        played.predictions[:] = scores.argmax(1).numpy()
        played.losses[:] = losses.double().mean(1).numpy()
        return played

    def _play(
        self, features: Tensor, labels: Tensor, active: list[bool], seconds: NDArray[np.float64]
    ) -> tuple[Tensor, Tensor]:
        """Play an event; return its own examples' scores (b, classes) and losses (b,)."""
        settings, server, parties = self.settings, self._server, self._parties
        self._event += 1
        begin = time.perf_counter()
        sent = [self._embedding(m, features, learns) for m, learns in enumerate(active)]
        middle = time.perf_counter()
        settings.slide(server.kept, labels)
        filled = min(self._event * settings.batch, settings.rows)
        scores = server.flat.module(torch.cat(sent, 1))
        losses = cross_entropy(scores[:filled], server.kept[:filled])
        learning = [half for half, learns in zip(parties, active, strict=True) if learns]
        wanted = [p for half in (server, *learning) for p in half.parameters]
        mean = losses.sum() * (1.0 / settings.rows) if settings.rows > 1 else losses.sum()
        slopes = torch.autograd.grad(mean, wanted, allow_unused=True)
        server.window.learn(self._event, slopes[: len(server.parameters)])
        end, at = time.perf_counter(), len(server.parameters)
        for half, learns in zip(parties, active, strict=True):
            if learns:
                half.window.learn(self._event, slopes[at : at + len(half.parameters)])
                at += len(half.parameters)
            else:
                half.window.pass_by(self._event)
        seconds += (middle - begin, time.perf_counter() - end, end - middle)
        return scores.detach()[: settings.batch], losses.detach()[: settings.batch]

    def _embedding(self, m: int, features: Tensor, learns: bool) -> Tensor:
        half, rows = self._parties[m], features[:, self._columns[m]]
        if self.settings.replays:
            self.settings.slide(half.kept, rows)
            rows = half.kept.clone()
        with torch.set_grad_enabled(learns):
            out: Tensor = half.flat.module(rows)
        return _sent(out) if self.settings.bits == 16 else out

    def weights(self) -> tuple[NDArray[np.float32], tuple[NDArray[np.float32], ...]]:
        """Return copies of the flat weights of the server and of each party."""
        server, *parties = (
            half.flat.weights.numpy().copy() for half in (self._server, *self._parties)
        )
        return server, tuple(parties)

    def start(self, server: NDArray[np.float32], parties: Sequence[NDArray[np.float32]]) -> None:
        """Begin with these weights, and empty windows."""
        for half, weights in zip((self._server, *self._parties), (server, *parties), strict=True):
            half.flat.load(torch.from_numpy(weights))

    def pack(self) -> Arrays:
        """Return windows and kept examples, between two events."""
        found: Arrays = {"event": np.array([self._event])}
        for name, half in self._named():
            found |= {f"{name}.{key}": value for key, value in half.window.pack().items()}
            if self.settings.replays:
                found[f"{name}.kept"] = half.kept.numpy().copy()
        return found

    def unpack(
        self,
        server: NDArray[np.float32],
        parties: Sequence[NDArray[np.float32]],
        kept: Mapping[str, Any],
    ) -> None:
        """Restore weights, and the state that :meth:`pack` returned."""
        self.start(server, parties)
        self._event = int(kept["event"][0])
        for name, half in self._named():
            half.window.unpack(below(f"{name}.", kept))
            if self.settings.replays:
                half.kept.copy_(torch.from_numpy(kept[f"{name}.kept"]))

    def _named(self) -> list[tuple[str, _Half]]:
        parties = [(f"party{m}", half) for m, half in enumerate(self._parties)]
        return [("server", self._server), *parties]
