"""Passes over a client's rows in a public order: no batch is secret, and none is drawn.

The rows of a client are dealt to b batches by their place: row i is in batch i mod b. With persons
who have several rows, persons are dealt, by the places of their first rows: all rows of the i-th
person are in batch i mod b. Local step t, counted from 0 over all rounds, computes on batch t mod
b, and steps k b to k b + b - 1 are pass k + 1. So a row is in at most one step of a pass, and in at
most one of any b consecutive steps.

Theory of operation. A pass is one release of a record, however many rounds it takes: what is
charged for it is one Gaussian event without sampling (docs/mathematics.md). That holds if each
step is taken at most once under one charge, whoever asks:

* A task says how many steps its client was asked for before (``TrainInOrder.taken``). The server
  counts a step when it asks for it: a step that is lost, late or refused is passed over, and never
  asked for again.
* A client keeps how far it has come (``done``) and refuses a task that begins before, so the steps
  of one process are all different.
* A process that starts again does not know what the one before it has said. At a site, charges are
  named by the process's life, so each pass that it touches is charged again, and may be taken
  again. A note in the machine's memory holds the step up to which the life before may have come:
  beyond it, the rest of that life's pass is taken under that life's charge, each step once. Where
  noise is correlated, each life has a matrix of its own, and a row is in one of them for a pass. In
  a simulation, the same steps give the same bytes under the same charge.

The order depends on places alone: never on values, and not on how many rows follow. Who is replaced
by none stays in its place (zero-out adjacency), so no other row changes its batch.

Whole clients take part in such an order, too (:class:`Blocks`): there a round stands for a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.base.errors import LocalProtocolError
from sordino.base.message import Compute, Train, TrainInOrder
from sordino.mechanisms.correlated import Memory, released
from sordino.mechanisms.gaussian import Bounded

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Blocks:
    """Clients in b blocks, of which one takes part in each round, in turn: client i is in block i
    mod b, and block (t - 1) mod b has its turn in round t. A pass is b rounds, so a client takes
    part in one round of a pass at most. Who misses its turn waits for the next.

    What is charged is a pass, to everybody, before the first of its rounds: so clients of one
    ledger have equal histories. Between sites it is each round, to its block: so the server's
    ledger knows which rounds were released.

    Attributes:
        batches: b.
        apart: whether each round is charged, to its block alone.

    >>> blocks = Blocks(3)
    >>> list(blocks.of(2, 8)), blocks.turn(4, 2), blocks.number(3), blocks.number(4)
    ([1, 4, 7], True, 1, 2)
    """

    batches: int
    apart: bool = False

    def of(self, round_number: int, clients: int) -> range:
        """Return who has a turn in a round, of so many clients."""
        return range((round_number - 1) % self.batches, clients, self.batches)

    def turn(self, client: int, round_number: int) -> bool:
        """Return whether a round is this client's turn."""
        return client in self.of(round_number, client + 1)

    def number(self, round_number: int) -> int:
        """Return the number, from 1, of the pass that a round is in; of the round, if it is charged
        by itself.
        """
        return round_number if self.apart else (round_number - 1) // self.batches + 1

    def charged(self, round_number: int, clients: Sequence[T]) -> Sequence[T]:
        """Return who is charged for a round, or for its pass, of all clients in their order."""
        first = (round_number - 1) % self.batches
        return clients[first :: self.batches] if self.apart else clients


@dataclass(slots=True, eq=False)
class Passes:
    """One client's way through its rows.

    Attributes:
        batches: b, of one pass.
        who: (n,), whose each row is, where all rows of a person stand in one batch.
        rows: k, the most rows of one person.
        done: the steps up to here are taken, or passed over, by this process.
        memory: the noise of earlier steps, where that of later ones is correlated with it.
    """

    batches: int
    who: NDArray[np.uint64] | None = None
    rows: int = 1
    done: int = 0
    memory: Memory | None = None
    _places: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._places = np.zeros(0, np.int64)
        if self.who is not None:
            _, first, person = np.unique(self.who, return_index=True, return_inverse=True)
            self._places = np.argsort(np.argsort(first))[person.reshape(-1)].astype(np.int64)

    def batch(self, step: int, count: int) -> Tensor:
        """Return the rows of a step's batch, ascending, of a client with ``count`` rows.

        >>> Passes(3).batch(4, 8).tolist()
        [1, 4, 7]
        >>> Passes(2, who=np.array([7, 5, 7, 9], np.uint64), rows=2).batch(0, 4).tolist()
        [0, 2, 3]
        """
        places = np.arange(count)
        places[: len(self._places)] = self._places[:count]
        return torch.from_numpy(np.flatnonzero(places % self.batches == step % self.batches))

    def most(self, count: int) -> float:
        """Return how many rows a batch has at most, of a client with ``count`` rows.

        x of P persons are in it, P >= (x - 1) b + 1, each with k rows at most, and all others have
        one at least. So it has no more than k x rows, and than n - (x - 1) (b - 1).

        >>> Passes(4).most(9), Passes(2, rows=2).most(8)
        (3.0, 6.0)
        """
        return self.rows * (count + self.batches - 1) / (self.rows + self.batches - 1)

    def numbers(self, first: int, steps: int) -> range:
        """Return the numbers of the passes, from 1, that so many steps from ``first`` on are in.

        >>> Passes(10).numbers(8, 5)
        range(1, 3)
        """
        return range(first // self.batches + 1, (first + steps - 1) // self.batches + 2)

    def objection(self, first: int) -> str | None:
        """Return why no task may begin at this step, or None."""
        if first >= self.done:
            return None
        return (
            f"it begins at step {first} of this client's order, which has come to step "
            f"{self.done}: rows would be in a pass twice"
        )

    def carried(self) -> dict[str, NDArray[Any]]:
        """Return the arrays, by name, that must be there when the next task comes."""
        return {} if self.memory is None else self.memory.arrays()

    def restore(self, carried: Mapping[str, NDArray[Any]]) -> None:
        """Take up what :meth:`carried` gave."""
        self.memory = Memory.of(carried) if carried else None

    def begin(self, first: int, steps: int) -> None:
        """Take the steps of a task.

        Raises:
            LocalProtocolError: if one of them is taken already; nothing may be computed then.
        """
        if (why := self.objection(first)) is not None:
            raise LocalProtocolError(why)
        self.done = first + steps

    def release(
        self, mechanism: Bounded, total: Tensor, excess: float, rng: np.random.Generator, place: int
    ) -> tuple[Tensor, float | None]:
        """Return a step's noisy sum (d,) and noisy excess, and keep what later noise needs.

        Args:
            place: of the step in this client's order.
        """
        noisy, count, self.memory = released(mechanism, total, excess, rng, self.memory, place)
        return noisy, count


def tokens(passes: Passes | None) -> tuple[str, ...]:
    """Return what noise is drawn over beside what it hides: the memory, where there is one."""
    return () if passes is None or passes.memory is None else (passes.memory.token,)


def place_of(task: object) -> int:
    """Return the step in its client's order that a task begins with, from 0.

    Raises:
        LocalProtocolError: for a task that does not say it.
    """
    match task:
        case TrainInOrder():
            return task.taken
        case Compute():
            return task.task - 1
    raise LocalProtocolError(f"{type(task).__name__} does not say which batch is next")


def steps_of(task: object) -> int:
    """Return how many steps of its client's order a task takes."""
    return task.steps if isinstance(task, Train) else 1
