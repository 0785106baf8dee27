r"""Adap DP-FL (Fu, Chen, Han 2022): the noise falls when the loss has fallen for some rounds.

As ALI-DPFL describes it among its baselines: sigma depends on whether the loss has decreased
within four rounds. Here, after every ``patience`` rounds in a row with a lower loss than the round
before, sigma is multiplied by ``decay``, down to ``floor`` times where it began. 0.9 and four
rounds are our choice: the paper's own text beyond its abstract could not be had, and it also adapts
the clip to each client and round, which is not built.

The loss is private. In the sound form each client releases, beside the first gradient of the
round and from the same batch, its mean loss with every example's cut to [0, M] and noise
sigma_h M; both are booked as one Gaussian of precision 1/sigma^2 + 1/sigma_h^2. sigma is then
*chosen by looking at releases*, so the bound is a Rényi filter: an order alpha fixed before the
run (``privacy.accountant = "rdp@8"``), and an end before the sum of divergences passes the budget
(Feldman, Zrnic 2021). Its steps are booked as chosen under that order, so that no other accountant
can price them by mistake. With "form = paper" the raw loss is sent, which has no price: infinity.

References:
    Fu, Chen, Han 2022, Adap DP-FL: Differentially Private Federated Learning with Adaptive Noise.
    Feldman, Zrnic 2021, Individual Privacy Accounting via a Rényi Filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field

from sordino.base.message import Update
from sordino.core.method import About, register
from sordino.privacy import Event, Gaussian, PoissonSampled, accountant
from sordino.regimes.synchronous.method import Choice, Remaining, RoundNoise, Terms
from sordino.regimes.synchronous.methods.fixed import Fixed
from sordino.training.beside import Wants


class Memory(msgspec.Struct, frozen=True):
    """The memory of the releases so far.

    Attributes:
        factor: sigma over where it began.
        loss: of the last round; None before the first.
        fell: rounds in a row in which it fell.
        spent: factors and how many rounds were taken at each.
    """

    factor: float = 1.0
    loss: float | None = None
    fell: int = 0
    spent: tuple[tuple[float, int], ...] = ()


@register
class AdapDpfl(Fixed):
    """DP-SGD with noise that falls with the loss.

    Attributes:
        patience: rounds in a row with a falling loss before sigma falls.
        decay: what sigma is multiplied by then.
        floor: smallest sigma, as a share of where it began.
        loss_bound: M.
        loss_noise: sigma_h, in units of M.
        form: "sound", or "paper" for raw losses.
    """

    about: ClassVar[About] = About(
        regime="synchronous",
        paper="Fu et al. 2022",
        does="DP-SGD with noise that falls when the loss has fallen for some rounds",
        forms={"sound": True, "paper": False},
    )
    memory: ClassVar[type[msgspec.Struct]] = Memory

    name: Literal["adap-dpfl"] = "adap-dpfl"
    patience: int = Field(4, ge=1)
    decay: float = Field(0.9, gt=0, le=1)
    floor: float = Field(0.5, gt=0, le=1)
    loss_bound: float = Field(5.0, ge=1e-12, le=1e12)
    loss_noise: float = Field(8.0, gt=0, allow_inf_nan=False)
    form: Literal["sound", "paper"] = "sound"

    @property
    def adapts_noise(self) -> bool:
        """It does."""
        return True

    @property
    def wants(self) -> Wants:
        """A loss, noisy or raw."""
        return Wants(loss=(self.loss_bound, self.loss_noise if self.form == "sound" else 0.0))

    def round_noise(self, memory: Memory, terms: Terms, number: int) -> RoundNoise:
        """sigma of the memory."""
        return RoundNoise(terms.clip, terms.sigma * memory.factor)

    def choose(self, memory: Memory, terms: Terms, left: Remaining) -> Choice:
        """tau, or the end where one more round would pass the filter."""
        if math.isinf(terms.epsilon):
            return Choice(self.tau)
        booked = [*memory.spent, (memory.factor, 1)]
        events = [
            event for factor, rounds in booked for event in self._events(terms, factor, rounds)
        ]
        if accountant(terms.accountant).epsilon(events, terms.delta) > terms.epsilon:
            return Choice(
                0,
                f"the privacy filter lets no further round pass (noise at {memory.factor:.3g} of "
                "where it began)",
            )
        return Choice(self.tau)

    def fold(self, memory: Memory, terms: Terms, answers: Sequence[Update]) -> Memory:
        """Compare the loss with the round before."""
        spent = dict(memory.spent)
        spent[memory.factor] = spent.get(memory.factor, 0) + 1
        memory = msgspec.structs.replace(memory, spent=tuple(spent.items()))
        told = [
            (terms.weights[a.client], a.statistics.loss)
            for a in answers
            if a.statistics is not None and a.statistics.loss is not None
        ]
        weight = sum(p for p, _ in told)
        if not weight:
            return memory
        loss = sum(p * value for p, value in told) / weight
        fell = memory.fell + 1 if memory.loss is not None and loss < memory.loss else 0
        if fell < self.patience:
            return msgspec.structs.replace(memory, loss=loss, fell=fell)
        return msgspec.structs.replace(
            memory, loss=loss, fell=0, factor=max(memory.factor * self.decay, self.floor)
        )

    def observed(self, memory: Memory) -> dict[str, Any]:
        """The noisy loss, and where sigma stands."""
        return {"noisy_loss": memory.loss, "noise": memory.factor}

    def _events(self, terms: Terms, factor: float, rounds: int) -> list[tuple[Event, int]]:
        """Return the releases of these rounds at this sigma, of a client that took part in all."""
        gradient = Gaussian(noise_multiplier=terms.sigma * factor)
        return [
            (PoissonSampled(sampling_rate=terms.sampling_rate, event=event), rounds * count)
            for event, count in self.wants.releases(gradient, self.tau)
        ]
