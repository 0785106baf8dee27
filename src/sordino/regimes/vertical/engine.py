"""The ways to play a block of events, and what each of them gives.

``loop`` is one compiled loop, for chains of linear layers and windows of gradients; ``graph`` one
graph of any torch modules; ``messages`` hands every message over, for noise and missing answers,
too. Results are alike to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.privacy import Allowance, Event

if TYPE_CHECKING:
    from sordino.regimes.vertical.graph import Graph
    from sordino.regimes.vertical.loop import Loop

EventPath = Literal["loop", "graph", "messages"]
Arrays = dict[str, NDArray[Any]]
Mask = NDArray[np.bool_]
Weights = dict[str, NDArray[np.float32]]
RequiredCharges = tuple[tuple[str, Event], ...]
"""Ledger units and events that must be paid for before something of an entity is released."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates: eta_0 of the server, eta_m of each party."""

    server: float
    parties: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Results of n events of b examples each.

    Attributes:
        predictions: classes (n b,), each before its event was learned from.
        losses: mean loss of each event's examples (n,), likewise.
        regret: squared norm of the window's gradient after each event (n,).
        learned: the events that were learned from (n,).
        dropped: messages that could not be used (n,).
        seconds: of parties' forward passes, of their backward passes and steps, of the server (3,).
    """

    predictions: NDArray[np.int64]
    losses: NDArray[np.float64]
    regret: NDArray[np.float64]
    learned: Mask
    dropped: NDArray[np.int64]
    seconds: NDArray[np.float64]

    @staticmethod
    def room(n: int, batch: int = 1) -> Played:
        """Return zeros for n events, all of them learned from."""
        return Played(
            np.zeros(n * batch, np.int64), np.zeros(n), np.zeros(n), np.ones(n, bool),
            np.zeros(n, np.int64), np.zeros(3),
        )  # fmt: skip


class Engine(Protocol):
    """A server and its parties, between two blocks."""

    def run(
        self,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        active: Mask,
        silent: Mask,
        paid: Allowance,
    ) -> Played:
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
        ...

    def weights(self) -> Weights:
        """Return flat weights of "server", "party0", "party1" and so on."""
        ...

    def pack(self) -> Arrays:
        """Return everything that a later :meth:`unpack` needs."""
        ...

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`pack` returned."""
        ...


class InProcessEngine:
    """The loop or the graph, where nothing happens to messages.

    ``required`` are the charges of an appearance of an entity.
    """

    def __init__(self, model: Loop | Graph, first: Weights, required: RequiredCharges) -> None:
        self._model, self._required = model, required
        model.start(*_split(first))

    def run(
        self,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        active: Mask,
        silent: Mask,
        paid: Allowance,
    ) -> Played:
        """Play n events, as :class:`Engine` says; every answer must come."""
        for unit, event in self._required:
            paid.covers(unit, event)
        if silent.any():
            raise ValueError("this engine has no rule for answers that do not come")
        return self._model.run(x, y, active)

    def weights(self) -> Weights:
        """Return flat weights of "server", "party0", "party1" and so on."""
        server, parties = self._model.weights()
        return {"server": server, **{f"party{m}": weights for m, weights in enumerate(parties)}}

    def pack(self) -> Arrays:
        """Return weights and window."""
        return self.weights() | {
            f"window.{name}": each for name, each in self._model.pack().items()
        }

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Restore weights and window."""
        self._model.unpack(*_split(kept), below("window.", kept))


def below(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }


def _split(
    weights: Mapping[str, NDArray[Any]],
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    parties = sum(1 for name in weights if name.startswith("party"))
    return weights["server"], [weights[f"party{m}"] for m in range(parties)]
