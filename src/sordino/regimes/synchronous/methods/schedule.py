r"""Public schedules of clip and noise (Du, Li, Chen, Chen, Hong 2021, Dynamic DP-SGD).

Over the share s in [0, 1] of the rounds gone by,

    C_s = C rho_C^{-s},        sigma_s = sigma rho_sigma^{-s},

large clips and much noise first, when gradients are large and their direction forgiving. The
schedule is fixed before the run, so it is public: C_s is free, and each sigma_s is booked as it
is. It moves in ``stages`` equal steps, so that a ledger holds few kinds of events and an
accountant composes each kind once.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sordino.base.registry import Section
from sordino.core.method import About, register
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.regimes.synchronous.methods.fixed import Clipped

PAPER = "Du et al. 2021"


class Scheduled(Section):
    """The constants of a schedule.

    Attributes:
        clip_decay: rho_C, what C is divided by over the whole run; 1 keeps it.
        noise_decay: rho_sigma, likewise for sigma.
        stages: how many different values there are.
    """

    clip_decay: float = Field(2.0, ge=1)
    noise_decay: float = Field(1.5, ge=1)
    stages: int = Field(5, ge=1)

    def scale(self, share: float) -> tuple[float, float]:
        """Factors on C and sigma after this share of the rounds."""
        gone = min(int(share * self.stages + 1e-9), self.stages - 1) / max(self.stages - 1, 1)
        return self.clip_decay**-gone, self.noise_decay**-gone


@register
class DynamicDpSgd(Scheduled, Clipped):
    """DP-SGD on a public schedule."""

    about: ClassVar[About] = About(
        regime="synchronous",
        paper=PAPER,
        does="DP-SGD with public schedules of clip and noise",
        forms={"sound": True},
    )
    name: Literal["dynamic-dp-sgd"] = "dynamic-dp-sgd"


@register
class DynamicDpFedAvg(Scheduled, ClientLevel):
    """DP-FedAvg on a public schedule."""

    about: ClassVar[About] = About(
        regime="synchronous",
        paper=PAPER,
        does="DP-FedAvg with public schedules of clip and noise",
        forms={"sound": True},
        units=("client",),
    )
    name: Literal["dynamic-dp-fedavg"] = "dynamic-dp-fedavg"
