r"""Methods with one number of local steps for all rounds: the baselines of every paper here.

* ``fedavg`` (McMahan et al. 2017): plain local SGD, no privacy, epsilon infinite.
* ``dp-sgd`` (FedAvg with DP-SGD of Abadi et al. 2016 at every client): what the ALI-DPFL and
  ALS-DPFL papers call "FedAvg + DP" with tau in {1, 2, 3, 5, 10}.

**Whole clients.** The regime draws each client with probability q_c, the aggregator releases

    ( sum_{i in cohort} w_i Delta_i  +  N(0, (z S)^2 I_d) ) / (q_c sum_i w_i),
    0 < w_i <= 1,  |Delta_i| <= S,

which moves by at most S when one client with all its data comes or goes: a Gaussian of noise
multiplier z on a Poisson sample of clients. The divisor is fixed, empty cohorts are released too.

* ``dp-fedavg`` (McMahan, Ramage, Talwar, Zhang 2018): S fixed, or following a quantile of the
  clients' norms by noisy counts (Andrew, Thakkar, McMahan, Ramaswamy 2021, algorithm 1):

      S <- S exp(-eta_S (b~ - gamma)),      b~ the noisy fraction of clients within S.

  The count is released inside the same z, so it is paid for.

  With ``divisor = "counted"``, the count is of the clients in the round, m, and the noisy sum is
  divided by m~ in place of q_c sum_i w_i, so the noise in the mean is z S / m~: "the noise added in
  the aggregation is adapted based on the number of participating clients", as Ranaweera et al. 2024
  say of a baseline. m itself is secret.
* ``pe-dpfl`` (Shen, Liu, Zhang 2022) as ALI-DPFL describes it: a regularising term in the local
  loss (here the proximal one, mu/2 |w' - w|^2), and noise on the model before it is sent. The
  published scale rests on a sensitivity of 2 eta C / n_i, which is that of one full-batch step; a
  model after tau steps has 2 eta C tau, and no better bound is known for a network. The sound form
  clips the whole update and is DP-FedAvg with a proximal term, which costs nothing. ``form =
  "paper"`` has each client add the published noise to its model, booked at z / (n_i tau).

**Public schedules** of clip and noise (Du, Li, Chen, Chen, Hong 2021, Dynamic DP-SGD).
Over the share s in [0, 1] of the rounds gone by,

    C_s = C rho_C^{-s},        sigma_s = sigma rho_sigma^{-s},

large clips and much noise first, when gradients are large and their direction forgiving. The
schedule is fixed before the run, so it is public: C_s is free, and each sigma_s is booked as it
is. It moves in ``stages`` equal steps, so that a ledger holds few kinds of events and an
accountant composes each kind once.

**Adap DP-FL** (Fu, Chen, Han 2022): the noise falls when the loss has fallen for some rounds.

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

from sordino.base.frozen import Frozen
from sordino.base.message import Update
from sordino.base.registry import AtLeastOne, Positive, Section
from sordino.core.method import About, register
from sordino.privacy import Event, Gaussian, PoissonSampled, accountant
from sordino.regimes.synchronous.method import (
    Choice,
    Released,
    Remaining,
    RoundNoise,
    SynchronousMethod,
    Terms,
)
from sordino.training.beside import Wants


class Fixed(SynchronousMethod):
    """A method with one tau for all rounds.

    Attributes:
        tau: local steps in every round
    """

    tau: AtLeastOne = 1

    @property
    def fixed_tau(self) -> int:
        """tau."""
        return self.tau

    def choose(self, memory: Any, terms: Terms, left: Remaining) -> Choice:
        """Always tau."""
        return Choice(self.tau)


class Clipped(Fixed):
    """Gradients of single examples are clipped, to privacy.clip or to their public median.

    Attributes:
        clipping: "proxy" clips to the median norm of gradients of public examples (data.validation)
            at the first model, in the mechanism's own norm, as Ranaweera et al. 2024 do;
            privacy.clip unless given
    """

    clipping: Literal["fixed", "proxy"] | None = None


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


class Bound(Frozen):
    """S, as the releases so far have moved it."""

    clip: float


class ClientLevel(Fixed):
    """tau local steps of ``batch`` examples, one bounded update from each client drawn.

    Attributes:
        tau: local steps.
        batch: examples in each.
        clipping: "fixed" keeps privacy.clip; "proxy" takes the median norm of updates on public
            examples (data.validation) instead, as Ranaweera et al. 2024 do; "adaptive" begins at
            privacy.clip and follows ``quantile``.
        quantile: gamma, the share of clients that S should leave as they are.
        clip_rate: eta_S.
        count_noise: standard deviation of the noise on the count, in clients; a twentieth of the
            expected cohort if left out.
        divisor: of a round's sum: the "expected" number of clients, which is the default, or how
            many were "counted", with noise
    """

    memory: ClassVar[type[msgspec.Struct]] = Bound

    weights: Literal["size", "equal"] = "equal"
    tau: AtLeastOne = 5
    batch: AtLeastOne = 10
    clipping: Literal["fixed", "proxy", "adaptive"] = "fixed"
    quantile: float = Field(0.5, gt=0, lt=1)
    clip_rate: float = Field(0.2, gt=0)
    count_noise: float | None = Field(None, gt=0)
    divisor: Literal["expected", "counted"] | None = None

    def start(self, terms: Terms) -> Bound:
        """S is privacy.clip."""
        return Bound(terms.clip)

    @property
    def adapts_clip(self) -> bool:
        """Earlier releases decide about S where the bound is adaptive."""
        return self.clipping == "adaptive"

    def round_noise(self, memory: Bound, terms: Terms, number: int) -> RoundNoise:
        """S of the memory, on the schedule if there is one."""
        clip, noise = self.scale((number - 1) / terms.rounds)
        return RoundNoise(memory.clip * clip, terms.sigma * noise)

    def learn(self, memory: Bound, terms: Terms, released: Released) -> Bound:
        """S after a noisy count; within a factor of e a round, and never zero."""
        if self.clipping != "adaptive" or released.clipped is None:
            return memory
        moved = self.clip_rate * (1.0 - released.clipped - self.quantile)
        return Bound(min(max(memory.clip * math.exp(-min(max(moved, -1.0), 1.0)), 1e-9), 1e9))

    def observed(self, memory: Bound) -> dict[str, Any]:
        """S."""
        return {"clip": memory.clip}


@register
class DpFedAvg(ClientLevel):
    """DP-FedAvg."""

    about: ClassVar[About] = About(
        regime="synchronous",
        paper="McMahan et al. 2018, Andrew et al. 2021",
        does="whole clients protected: bounded updates, noise on their sum",
        forms={"sound": True},
        units=("client",),
    )
    name: Literal["dp-fedavg"] = "dp-fedavg"


@register
class PeDpfl(ClientLevel):
    """DP-FedAvg with a proximal term; in its paper's form, noise on trained models.

    Attributes:
        mu: of the proximal term.
        form: "sound" or "paper".
    """

    about: ClassVar[About] = About(
        regime="synchronous",
        paper="Shen et al. 2022",
        does="a proximal term in the local loss, whole clients protected",
        forms={"sound": True, "paper": False},
        units=("client",),
    )
    name: Literal["pe-dpfl"] = "pe-dpfl"
    mu: float = Field(0.1, ge=0, le=1e6, allow_inf_nan=False)
    form: Literal["sound", "paper"] = "sound"

    @property
    def aggregated(self) -> bool:
        """Only in the sound form."""
        return self.form == "sound"


class Scheduled(Section):
    """The constants of a schedule.

    Attributes:
        clip_decay: rho_C, what C is divided by over the whole run; 1 keeps it.
        noise_decay: rho_sigma, likewise for sigma.
        stages: how many different values there are.
    """

    clip_decay: float = Field(2.0, ge=1)
    noise_decay: float = Field(1.5, ge=1)
    stages: AtLeastOne = 5

    def scale(self, share: float) -> tuple[float, float]:
        """Factors on C and sigma after this share of the rounds."""
        gone = min(int(share * self.stages + 1e-9), self.stages - 1) / max(self.stages - 1, 1)
        return self.clip_decay**-gone, self.noise_decay**-gone


@register
class DynamicDpSgd(Scheduled, Clipped):
    """DP-SGD on a public schedule."""

    about: ClassVar[About] = About(
        regime="synchronous",
        paper="Du et al. 2021",
        does="DP-SGD with public schedules of clip and noise",
        forms={"sound": True},
    )
    name: Literal["dynamic-dp-sgd"] = "dynamic-dp-sgd"


@register
class DynamicDpFedAvg(Scheduled, ClientLevel):
    """DP-FedAvg on a public schedule."""

    about: ClassVar[About] = About(
        regime="synchronous",
        paper="Du et al. 2021",
        does="DP-FedAvg with public schedules of clip and noise",
        forms={"sound": True},
        units=("client",),
    )
    name: Literal["dynamic-dp-fedavg"] = "dynamic-dp-fedavg"


class AdapMemory(Frozen):
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
    memory: ClassVar[type[msgspec.Struct]] = AdapMemory

    name: Literal["adap-dpfl"] = "adap-dpfl"
    patience: AtLeastOne = 4
    decay: float = Field(0.9, gt=0, le=1)
    floor: float = Field(0.5, gt=0, le=1)
    loss_bound: float = Field(5.0, ge=1e-12, le=1e12)
    loss_noise: Positive = 8.0
    form: Literal["sound", "paper"] = "sound"

    @property
    def adapts_noise(self) -> bool:
        """It does."""
        return True

    @property
    def wants(self) -> Wants:
        """A loss, noisy or raw."""
        return Wants(loss=(self.loss_bound, self.loss_noise if self.form == "sound" else 0.0))

    def round_noise(self, memory: AdapMemory, terms: Terms, number: int) -> RoundNoise:
        """sigma of the memory."""
        return RoundNoise(terms.clip, terms.sigma * memory.factor)

    def choose(self, memory: AdapMemory, terms: Terms, left: Remaining) -> Choice:
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

    def fold(self, memory: AdapMemory, terms: Terms, answers: Sequence[Update]) -> AdapMemory:
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

    def observed(self, memory: AdapMemory) -> dict[str, Any]:
        """The noisy loss, and where sigma stands."""
        return {"noisy_loss": memory.loss, "noise": memory.factor}

    def _events(self, terms: Terms, factor: float, rounds: int) -> list[tuple[Event, int]]:
        """Return the releases of these rounds at this sigma, of a client that took part in all."""
        gradient = Gaussian(noise_multiplier=terms.sigma * factor)
        return [
            (PoissonSampled(sampling_rate=terms.sampling_rate, event=event), rounds * count)
            for event, count in self.wants.releases(gradient, self.tau)
        ]
