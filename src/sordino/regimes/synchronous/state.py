"""Where a synchronous run stands."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from sordino.base.message import Answer, Vector
from sordino.privacy import Permit


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Where a synchronous run stands. Vectors are (d,) and never written to.

    Attributes:
        round: rounds begun; 0 before the first.
        weights: w, the global model.
        velocity: v of server momentum.
        average: w_avg; the weights themselves where decay is 0.
        steps: local steps given to every client so far.
        present: clients that are thought to be within reach.
        memory: the method's own.
        open: whether a round is under way.
        tau: local steps of the open round.
        waiting: clients of the open round that have not answered.
        cohort: how many were asked in the open round.
        answers: answers of the open round.
        arrived: clients whose contributions to the open round's sum came, ascending.
        total: the sum of what they sent (d,), modulo 2^bits; None before any came, or where it
            could not be opened.
        opening: whether that sum was asked to be opened: nothing more is added to it.
        models: last model that each client sent, for a paper's literal form only.
        seen: what releases have taught about the mechanism's shape.
        note: the method's remark on the open round.
        faults: clients whose answers the method could not use in the round that was closed last,
            and why.
        permits: that the open round's release was booked, where it is the round that is charged.
        ended: why the run is over, or None.
    """

    round: int
    weights: Vector
    velocity: Vector
    average: Vector
    steps: tuple[int, ...]
    present: frozenset[int]
    memory: msgspec.Struct
    open: bool = False
    tau: int = 0
    waiting: frozenset[int] = frozenset()
    cohort: int = 0
    answers: tuple[Answer, ...] = ()
    arrived: tuple[int, ...] = ()
    total: NDArray[np.uint64] | None = None
    opening: bool = False
    models: tuple[Vector | None, ...] = ()
    seen: tuple[float, ...] = ()
    note: str | None = None
    faults: tuple[tuple[int, str], ...] = ()
    permits: tuple[Permit, ...] = ()
    ended: str | None = None

    @property
    def number(self) -> int:
        """Rounds begun."""
        return self.round
