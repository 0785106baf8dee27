"""A site between two tasks, and how it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from numpy.typing import NDArray

from sordino.base.message import Vector
from sordino.core.simulation import EncodedSnapshot

CARRIED = "carried."


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a moment is no vector."""

    number: int
    steps: int
    ended: str | None
    count: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SiteMoment:
    """A site between two tasks.

    Attributes:
        number: of the last task.
        steps: local steps, or gradients, so far.
        model: the last one that it was sent (d,); at the end the one that is handed out.
        ended: why the run is over, or None.
        count: tasks that ``carried`` knows of, where a site remembers.
        carried: what it carries from one task to the next; see
            :meth:`~sordino.core.world.SiteSide.carried`.
    """

    number: int
    steps: int
    model: Vector
    ended: str | None = None
    count: int = 0
    carried: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def pack(self) -> EncodedSnapshot:
        """See :class:`~sordino.core.simulation.Snapshot`."""
        rest = _Rest(self.number, self.steps, self.ended, self.count)
        own = {f"{CARRIED}{name}": values for name, values in self.carried.items()}
        return EncodedSnapshot({"model": self.model, **own}, msgspec.json.encode(rest))


def unpacked(packed: EncodedSnapshot) -> SiteMoment:
    """A moment that was kept.

    Raises:
        ValueError: if it cannot be one.
    """
    rest, vectors = msgspec.json.decode(packed.rest, type=_Rest), packed.vectors
    carried = {
        name.removeprefix(CARRIED): values
        for name, values in vectors.items()
        if name.startswith(CARRIED)
    }
    return SiteMoment(rest.number, rest.steps, vectors["model"], rest.ended, rest.count, carried)
