"""Who plays a stretch of events: the loop, one graph, or messages; alike to float32 rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.privacy import Allowance, Event
from sordino.regimes.vertical.engines.observed import Observed

if TYPE_CHECKING:
    from sordino.regimes.vertical.engines.joint import Joint
    from sordino.regimes.vertical.loop import Loop

EventPath = Literal["loop", "graph", "messages"]
"""How events are played: one compiled loop, for chains of linear layers and windows of gradients;
one graph of any torch modules; or message by message, for noise and missing answers, too.
"""
Kept = dict[str, NDArray[Any]]
Mask = NDArray[np.bool_]
Weights = dict[str, NDArray[np.float32]]
Dues = tuple[tuple[str, Event], ...]
"""What an appearance of an entity releases of its features: ledger units and events."""


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A stretch of n events.

    Attributes:
        seen: what was predicted, and how it went.
        learned: which events were learned from (n,).
        dropped: words that were no part of anything (n,).
    """

    seen: Observed
    learned: Mask
    dropped: NDArray[np.int64]

    @staticmethod
    def nothing() -> Played:
        """No events."""
        return Played(
            Observed(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(3)),
            np.zeros(0, bool),
            np.zeros(0, np.int64),
        )


class Engine(Protocol):
    """A server and its parties, between two events."""

    def run(
        self,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        active: Mask,
        silent: Mask,
        paid: Allowance,
    ) -> Played:
        """Play events: features (n b, f), side by side, and labels (n b,).

        Who is active and who does not answer are (n, M).

        Raises:
            LocalProtocolError: unless all that the events release is ``paid`` for; nothing has been
                computed then.
        """
        ...

    def weights(self) -> Weights:
        """Flat weights of "server", "party0", "party1" and so on."""
        ...

    def pack(self) -> Kept:
        """Everything that a later :meth:`unpack` needs."""
        ...

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Stand where :meth:`pack` was called."""
        ...


class Whole:
    """Both halves in one hand, where nothing happens to messages: the loop, or one graph."""

    def __init__(self, kernel: Loop | Joint, first: Weights, dues: Dues) -> None:
        self._kernel, self._dues = kernel, dues
        server, parties = _split(first)
        kernel.start(server, parties)

    def run(
        self,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        active: Mask,
        silent: Mask,
        paid: Allowance,
    ) -> Played:
        """See :class:`Engine`."""
        for unit, event in self._dues:
            paid.covers(unit, event)
        if silent.any():
            raise ValueError("this engine has no rule for answers that do not come")
        return Played(
            self._kernel.run(x, y, active),
            np.ones(len(active), bool),
            np.zeros(len(active), np.int64),
        )

    def weights(self) -> Weights:
        """See :class:`Engine`."""
        server, parties = self._kernel.weights()
        return {"server": server, **{f"party{m}": weights for m, weights in enumerate(parties)}}

    def pack(self) -> Kept:
        """See :class:`Engine`."""
        return {
            **self.weights(),
            **{f"window.{name}": value for name, value in self._kernel.pack().items()},
        }

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """See :class:`Engine`."""
        server, parties = _split(kept)
        window = {
            name.removeprefix("window."): value
            for name, value in kept.items()
            if name.startswith("window.")
        }
        self._kernel.unpack(server, parties, window)


def _split(
    weights: Mapping[str, NDArray[Any]],
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    parties = sum(1 for name in weights if name.startswith("party"))
    return weights["server"], [weights[f"party{m}"] for m in range(parties)]
