"""A simulation of events between two pieces, and its way into a checkpoint and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sordino.base.message import Vector
from sordino.core import simulation as moments
from sordino.core.simulation import EncodedSnapshot
from sordino.regimes.vertical.engine import Engine
from sordino.regimes.vertical.pieces import Booked, State
from sordino.regimes.vertical.tally import Tally


@dataclass(frozen=True, slots=True, eq=False)
class Moment(moments.KernelSnapshot[State]):
    """A simulation between two pieces.

    It shares the state, which goes on changing: pack it at once.
    """

    @property
    def kept(self) -> dict[str, NDArray[Any]]:
        """What the engine needs to go on."""
        return self.state.kept

    @property
    def model(self) -> Vector:
        """All weights in one vector, server first."""
        return self.state.model

    @property
    def whole(self) -> Tally:
        """Counted since the beginning."""
        return self.state.whole

    @property
    def steps(self) -> int:
        """Events in which the party that was active most was active."""
        return max(self.state.whole.active)

    def packed(self) -> EncodedSnapshot:
        """See :class:`sordino.core.simulation.KernelSnapshot`."""
        state = self.state
        vectors: dict[str, Any] = {f"engine.{name}": value for name, value in state.kept.items()}
        for name, values in (("counts", state.counts), ("told", state.told)):
            if values:
                vectors[f"{name}.entities"] = np.fromiter(values, np.int64, len(values))
                vectors[f"{name}.values"] = np.fromiter(values.values(), np.int64, len(values))
        # Sums of a model that diverges are no numbers that JSON knows.
        vectors["sums"] = np.array(
            [[tally.loss, tally.regret] for tally in (state.row, state.whole)]
        )
        row, whole = (
            msgspec.structs.replace(tally, loss=0.0, regret=0.0)
            for tally in (state.row, state.whole)
        )
        rest = _Rest(row, whole, state.position, list(state.booked), state.ended, state.origin)
        return EncodedSnapshot(vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a state is no array."""

    row: Tally
    whole: Tally
    position: int
    booked: list[Booked]
    ended: str | None
    origin: str


def unpacked(packed: EncodedSnapshot, engine: Engine, origin: str) -> Moment:
    """What :meth:`Moment.packed` put away.

    Args:
        packed: from a checkpoint.
        engine: a new one; it takes over what the checkpoint keeps for it.
        origin: what releases depend on from now on. If it is not the checkpoint's, appearances are
            counted from nothing again.
    """
    own, told = moments.unpacked(packed)
    rest, vectors = msgspec.json.decode(own.rest, type=_Rest), dict(own.vectors)
    counted: dict[str, Any] = {"booked": rest.booked}
    for name in ("counts", "told"):
        entities = vectors.pop(f"{name}.entities", ())
        values = vectors.pop(f"{name}.values", ())
        counted[name] = dict(
            zip(np.asarray(entities).tolist(), np.asarray(values).tolist(), strict=True)
        )
    for tally, (loss, regret) in zip(
        (rest.row, rest.whole), vectors.pop("sums").tolist(), strict=True
    ):
        tally.loss, tally.regret = loss, regret
    kept = {name.removeprefix("engine."): value for name, value in vectors.items()}
    engine.unpack(kept)
    if rest.origin != origin:
        counted = {}
    state = State(
        kept,
        joined(engine),
        rest.row,
        rest.whole,
        rest.position,
        ended=rest.ended,
        origin=origin,
        **counted,
    )
    return Moment(state, **told)


def joined(engine: Engine) -> Vector:
    """All weights in one vector (d,), server first."""
    found: Vector = np.concatenate(list(engine.weights().values()))
    return found
