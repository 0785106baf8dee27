"""FedAvg and DP-SGD with a fixed number of local steps: the baselines of every paper here.

* ``fedavg`` (McMahan et al. 2017): plain local SGD, no privacy, epsilon infinite.
* ``dp-sgd`` (FedAvg with DP-SGD of Abadi et al. 2016 at every client): what the ALI-DPFL and
  ALS-DPFL papers call "FedAvg + DP" with tau in {1, 2, 3, 5, 10}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sordino.message import Update
from sordino.method.base import Choice, Left, Nothing, Terms, Wants


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The same tau in every round.

    Attributes:
        tau: local steps between two aggregations.
        private: whether each step is a DP-SGD step.
    """

    tau: int
    private: bool

    @property
    def wants(self) -> Wants:
        """Nothing but weights."""
        return Wants()

    @property
    def memory(self) -> type[Nothing]:
        """No memory."""
        return Nothing

    def start(self, terms: Terms) -> Nothing:
        """See :class:`~sordino.method.base.SynchronousMethod`."""
        return Nothing()

    def choose(self, memory: Nothing, terms: Terms, left: Left) -> Choice:
        """Always tau."""
        return Choice(self.tau)

    def fold(self, memory: Nothing, terms: Terms, answers: Sequence[Update]) -> Nothing:
        """Remember nothing."""
        return memory

    def observed(self, memory: Nothing) -> dict[str, Any]:
        """Nothing to show."""
        return {}
