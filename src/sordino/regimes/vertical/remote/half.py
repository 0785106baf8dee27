"""The server between two events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.message import Derivative
from sordino.mechanisms.gaussian import Single
from sordino.privacy import Allowance
from sordino.regimes.vertical.engine import Kept, Mask, Played, Weights
from sordino.regimes.vertical.engines.split import Server
from sordino.regimes.vertical.protocol import State, Vertical

Bytes = NDArray[np.uint8]


class Half:
    """The server's half of the network, its rules, and what it owes to sites: what a checkpoint
    holds of it.

    Attributes:
        rules: of the order of messages.
        server: the model.
        classes: how many there are.
        state: where the rules stand.
        due: derivatives of the last event, which travel with the next turn, by party.
        away: sites that are not there.
        cover: bound and noise of embeddings; None where they go out as they are.
    """

    def __init__(
        self, rules: Vertical, server: Server, classes: int, cover: Single | None = None
    ) -> None:
        self.cover = cover
        self.rules, self.server, self.classes = rules, server, classes
        self.state: State = rules.start()
        self.due: dict[int, Derivative] = {}
        self.away: set[int] = set()

    def run(
        self,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        active: Mask,
        silent: Mask,
        paid: Allowance,
    ) -> Played:
        """Nobody plays events here: they come from sites."""
        raise TypeError("the events of a network are played by its sites")

    def weights(self) -> Weights:
        """See :class:`~sordino.regimes.vertical.engine.Engine`."""
        return {"server": self.server.flat.weights.cpu().numpy().copy()}

    def pack(self) -> Kept:
        """See :class:`~sordino.regimes.vertical.engine.Engine`."""
        found: Kept = {f"server.{name}": value for name, value in self.server.pack().items()}
        found |= {f"last.{m}": values for m, values in enumerate(self.state.last)}
        found |= {f"due.{m}": np.frombuffer(each.values, np.uint8) for m, each in self.due.items()}
        found["counts"] = np.array([self.state.closed, self.state.dropped])
        found["away"] = np.array(sorted(self.away), np.int64)
        return found

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """See :class:`~sordino.regimes.vertical.engine.Engine`."""
        closed, dropped = (int(value) for value in kept["counts"])
        self.server.unpack(
            {
                name.removeprefix("server."): value
                for name, value in kept.items()
                if name.startswith("server.")
            }
        )
        self.state = State(
            [kept[f"last.{m}"].copy() for m in range(self.rules.parties)],
            closed=closed,
            dropped=dropped,
        )
        self.away = {int(site) for site in kept["away"]}
        self.due = {
            m: Derivative(m, closed, self.server.plan.bits, kept[f"due.{m}"].tobytes())
            for m in range(self.rules.parties)
            if f"due.{m}" in kept
        }
