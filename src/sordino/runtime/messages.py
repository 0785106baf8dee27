"""Events message by message: every embedding, query and derivative is an object that somebody hands to somebody.

This is the path for noise and for missing answers, and the one that a network takes. A passive party that is to be silent
sends its answer too late: it is dropped by rule. So are numbers that are not finite, of a model that diverges or
beyond 16 bits: their party is given up for this event.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.errors import RemoteProtocolError
from sordino.learning.online.halves import Party, Server
from sordino.learning.online.seen import Seen
from sordino.message import Embedding
from sordino.regime.vertical import Ask, Labelled, Learn, Silent, Skip, State, Vertical, Waited
from sordino.runtime.engine import Kept, Mask, Played


class Messages:
    """A server and its parties in one process."""

    def __init__(
        self, regime: Vertical, server: Server, parties: Sequence[Party], columns: Sequence[slice], *, regret: bool = True
    ) -> None:
        self.regime, self.server, self.parties, self.columns, self.regret = regime, server, tuple(parties), tuple(columns), regret
        self.state: State = regime.start()

    def run(self, x: np.ndarray[Any, np.dtype[np.float32]], y: np.ndarray[Any, np.dtype[np.int64]], active: Mask, silent: Mask) -> Played:
        """See :class:`~sordino.runtime.engine.Engine`."""
        n, batch = len(active), self.server.plan.batch
        inputs, labels = torch.from_numpy(x).view(n, batch, x.shape[1]), torch.from_numpy(y).view(n, batch)
        predictions, losses, regret = np.zeros((n, batch), np.int64), np.zeros(n), np.zeros(n)
        learned, seconds, dropped = np.ones(n, bool), np.zeros(3), np.zeros(n, np.int64)
        for i in range(n):
            event, late, before = self.state.closed + 1, [], self.state.dropped
            clock = time.perf_counter()
            for m in np.flatnonzero(active[i]).tolist():
                self.regime.step(self.state, self._embed(event, m, inputs[i], True))
            asked = self.regime.step(self.state, Waited(event))
            closing = self.regime.step(self.state, Labelled(event))
            for m in [ask.party for ask in asked if isinstance(ask, Ask)]:
                if not active[i, m]:  # else what it had to say was of no use
                    answer = self._embed(event, m, inputs[i], False)
                    if silent[i, m]:
                        late.append(answer)
                    else:
                        closing = self.regime.step(self.state, answer)
                if not closing and m not in self.state.got:
                    closing = self.regime.step(self.state, Silent(m, event))
            seconds[0] += time.perf_counter() - clock
            (found,) = closing
            if isinstance(found, Learn):
                losses[i] = self._learn(found, labels[i], predictions[i], seconds)
            elif isinstance(found, Skip):
                learned[i] = False
                self.server.see(labels[i])
            for answer in late:
                self.regime.step(self.state, answer)
            if self.regret:
                regret[i] = self.server.square(event) + sum(party.square(event) for party in self.parties)
            dropped[i] = self.state.dropped - before
        return Played(Seen(predictions.reshape(-1), losses, regret, seconds), learned, dropped)

    def _embed(self, event: int, m: int, features: torch.Tensor, active: bool) -> Embedding:
        return self.parties[m].embed(event, features[:, self.columns[m]], active)

    def _learn(self, found: Learn, labels: torch.Tensor, predictions: np.ndarray[Any, np.dtype[np.int64]], seconds: Any) -> float:
        start = time.perf_counter()
        made = self.server.learn(found.event, found.embeddings, labels, found.active)
        middle = time.perf_counter()
        for derivative in made.derivatives:
            try:
                self.parties[derivative.party].learn(derivative)
            except RemoteProtocolError:
                self.state.dropped += 1
        seconds[1] += time.perf_counter() - middle
        seconds[2] += middle - start
        predictions[:] = made.predictions
        return made.loss

    def weights(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """See :class:`~sordino.runtime.engine.Engine`."""
        found = {"server": self.server.flat.weights.cpu().numpy().copy()}
        return found | {f"party{m}": party.flat.weights.cpu().numpy().copy() for m, party in enumerate(self.parties)}

    def pack(self) -> Kept:
        """See :class:`~sordino.runtime.engine.Engine`."""
        found: Kept = {f"server.{name}": value for name, value in self.server.pack().items()}
        for m, party in enumerate(self.parties):
            found |= {f"party{m}.{name}": value for name, value in party.pack().items()}
            found[f"last.{m}"] = self.state.last[m]
        found["counts"] = np.array([self.state.closed, self.state.dropped])
        return found

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """See :class:`~sordino.runtime.engine.Engine`."""
        closed, dropped = (int(value) for value in kept["counts"])

        def below(prefix: str) -> dict[str, NDArray[Any]]:
            return {name.removeprefix(prefix): value for name, value in kept.items() if name.startswith(prefix)}

        self.server.unpack(below("server."))
        for m, party in enumerate(self.parties):
            party.unpack(below(f"party{m}."))
        self.state = State([kept[f"last.{m}"].copy() for m in range(len(self.parties))], closed=closed, dropped=dropped)
