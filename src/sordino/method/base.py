r"""What a synchronous method is: a pure rule for tau and for what it learns from answers.

The protocol around it (who takes part, deadlines, aggregation) is the regime's; the
arithmetic on raw data is the client's. A method sees only what was released.

    choose :  before a round, how many local steps tau
    fold   :  after a round, what to remember of the answers

Symbols: p_i weight of client i, B_i = q n_i its expected batch, eta the learning rate,
C the clip, sigma the noise multiplier, d the dimension, R_s rounds, R_c steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from sordino.message import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Public facts, known before the first round.

    Attributes:
        dimension: d, number of parameters.
        sizes: n_i of every client; treated as public.
        weights: p_i of every client, adding up to 1.
        sampling_rate: q.
        learning_rate: eta.
        clip: C; infinite without privacy.
        noise: standard deviation of the noise on a sum of gradients in units of C; 0 without privacy.
        rounds: R_s.
        steps: R_c, the most local steps that the privacy budget pays for; None without privacy.
    """

    dimension: int
    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    sampling_rate: float
    learning_rate: float
    clip: float
    noise: float
    rounds: int
    steps: int | None

    def batch(self, client: int) -> float:
        """B_i = q n_i, in examples."""
        return self.sampling_rate * self.sizes[client]

    def deviation(self, client: int) -> float:
        """s_i = sigma C / B_i: standard deviation of one coordinate of a noisy mean gradient."""
        return self.noise * self.clip / self.batch(client) if self.noise else 0.0


@dataclass(frozen=True, slots=True)
class Left:
    """What remains before a round.

    Attributes:
        rounds: rounds left, this one included, in which one client may expect to take part.
        steps: local steps left to the poorest client of the round; None without a limit.
    """

    rounds: int
    steps: int | None

    @property
    def pace(self) -> float:
        """R_c left / R_s left: the tau that spends the budget evenly; infinite without a limit."""
        return math.inf if self.steps is None else self.steps / max(self.rounds, 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """A number of local steps, and why where there is something to say."""

    tau: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Wants:
    """What a method asks clients to send besides their weights.

    Attributes:
        first: the first noisy gradient of the round (d numbers more upwards).
        raw: raw constants, in a paper's literal form; makes the run not private.
    """

    first: bool = False
    raw: bool = False


S = TypeVar("S", bound=msgspec.Struct)


class SynchronousMethod(Protocol[S]):
    """One published algorithm. Frozen hyper-parameters; its memory is passed in and out."""

    @property
    def private(self) -> bool:
        """Whether clients add noise."""
        ...

    @property
    def wants(self) -> Wants:
        """What clients are asked for."""
        ...

    @property
    def memory(self) -> type[S]:
        """The type of its memory, so that a checkpoint can be read back."""
        ...

    def start(self, terms: Terms) -> S:
        """Memory before the first round."""
        ...

    def choose(self, memory: S, terms: Terms, left: Left) -> Choice:
        """tau for the next round; the regime cuts it to what the budget still pays for."""
        ...

    def fold(self, memory: S, terms: Terms, answers: Sequence[Update]) -> S:
        """Memory after a round. ``answers`` come in the order of the clients' numbers."""
        ...

    def observed(self, memory: S) -> dict[str, Any]:
        """Named quantities worth a place in the log: estimates, never raw data."""
        ...


class Nothing(msgspec.Struct, frozen=True):
    """The memory of a method that remembers nothing."""
