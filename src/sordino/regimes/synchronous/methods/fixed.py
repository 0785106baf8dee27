"""FedAvg and DP-SGD with a fixed number of local steps: the baselines of every paper here.

* ``fedavg`` (McMahan et al. 2017): plain local SGD, no privacy, epsilon infinite.
* ``dp-sgd`` (FedAvg with DP-SGD of Abadi et al. 2016 at every client): what the ALI-DPFL and
  ALS-DPFL papers call "FedAvg + DP" with tau in {1, 2, 3, 5, 10}.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from sordino.core.method import About, register
from sordino.regimes.synchronous.method import Choice, Remaining, SynchronousMethod, Terms


class Fixed(SynchronousMethod):
    """A method with one tau for all rounds."""

    tau: int = Field(1, ge=1, description="local steps in every round")

    @property
    def fixed_tau(self) -> int:
        """tau."""
        return self.tau

    def choose(self, memory: Any, terms: Terms, left: Remaining) -> Choice:
        """Always tau."""
        return Choice(self.tau)


class Clipped(Fixed):
    """Gradients of single examples are clipped, to privacy.clip or to their public median."""

    later: ClassVar[frozenset[str]] = frozenset({"clipping"})

    clipping: Literal["fixed", "proxy"] | None = Field(
        None,
        description='"proxy" clips to the median norm of gradients of public examples '
        "(data.validation) at the first model, in the mechanism's own norm, as Ranaweera et al. "
        "2024 do; privacy.clip unless given",
    )


@register
class FedAvg(Fixed):
    """FedAvg without privacy."""

    about: ClassVar[About] = About(
        regime="synchronous",
        paper="McMahan et al. 2017",
        does="FedAvg, no privacy",
        forms={"plain": False},
        units=("none",),
    )
    name: Literal["fedavg"] = "fedavg"


@register
class DpSgd(Clipped):
    """FedAvg with DP-SGD at every client."""

    about: ClassVar[About] = About(
        regime="synchronous",
        paper="Abadi et al. 2016, McMahan et al. 2017",
        does="FedAvg with DP-SGD at every client and a fixed tau",
        forms={"sound": True},
    )
    name: Literal["dp-sgd"] = "dp-sgd"
