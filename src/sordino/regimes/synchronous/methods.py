r"""Published methods that work in rounds; importing this module registers them.

**ALI-DPFL and ALS-DPFL**: the number of local steps from constants of the loss, which are estimated
from noisy gradients that are already booked.

**ALI-DPFL**: the number of local iterations from a closed form (Ling et al. 2023).

Privacy pays for R_c local steps, communication for R_s rounds. Where R_s >= R_c one step a
round is best (Lemma 1). Where rounds are short, the convergence bound G(tau) of Eq. (11)
has its minimum at

    tau*^2 = 1 + (4 / mu^2 + 3 C^2 + 2 Gamma / eta + n) / ((2 + eta mu) (C^2 + n)),
    n = sigma^2 C^2 d / B^2,

mu the strong convexity, Gamma a public constant for how unlike the clients are. We minimise
Eq. (11) itself, with the learning rate that is really used; the paper's Eq. (9) puts
eta = 1/(mu T) instead and then cannot land where its own experiments do. mu comes from
released gradients (:func:`squared_curvature`).

tau is rounded, kept within 1 and 2 ceil(R_c left / R_s left), and with ``floor = "pace"``
not below R_c left / R_s left, so that no part of the budget is stranded when the rounds end.
The first round takes at least two steps: one gradient says nothing about curvature.

B: ``batch_bound = "min"`` is the paper's min_i q n_i, ``"weighted"`` the
1 / B^2 = sum_i p_i / B_i^2 that its proof has before the last inequality (Eq. 23). One client
of 200 examples makes n so large in the former that tau* is 1 for everybody.

``form = "paper"`` is the paper's letter: raw mu, Eq. (9), T = min(R_s tau*, R_c) fed back, and
steps that divide by the batch as it was drawn (line 11); an empty batch, of which the paper says
nothing, changes nothing and gets no noise. The raw mu is booked as not private. It compares each
client's model with the average of all, which a client knows only when the next round begins: so
this mu steers the round after that one, one round later than Algorithm 2 has it.

>>> terms = Terms(dimension=26010, sizes=(6000,) * 10, weights=(0.1,) * 10, sampling_rate=0.015,
...               learning_rate=0.5, clip=1.0, noise=1.1, rounds=158, steps=317)
>>> [round(AliDpfl(gamma=10.0).optimum(mu, terms, tau=2), 1) for mu in (0.2, 0.5, 1.0, 2.0)]
[3.9, 2.6, 2.3, 2.1]

**ALS-DPFL**: the number of local steps by traversing a convergence bound (Ling, Fu and Chen 2023).

After each round the server looks for the tau in 1 .. min(2 tau*, 100) that makes Eq. (13)
smallest,

    G(tau) = 1 / ( T (eta phi - rho h(tau) / (tau lambda^2)) ) + sqrt(3)/3,
    h(tau) = (delta / beta) ((eta beta + 1)^tau - 1) - eta delta tau,
    delta  = xi + 2 sqrt(d) sigma C / B,      T = min(R_s tau, R_c),

with R_s and R_c what is left of the two budgets. As printed, the last part of h is
"+ eta (xi + 2 sqrt(d) sigma C) / B tau"; the paper's own remarks (h(1) = 0, h >= 0 by Bernoulli)
hold only with the minus sign and the delta of Wang et al. 2019, Theorem 1, which it builds on.
``form = "paper"`` keeps what is printed, takes R_s and R_c of the whole run (line 19), and where
the conditions of Theorem 2 hold for no tau it minimises Eq. (13) all the same: the paper has no
other rule.

phi and lambda are the paper's control parameters. By the formula in its Theorem 2 phi is
negative for every real model (sigma^2 d / lambda^2 is 31 000 for the small CNN), so they are
public positive constants here. Only phi lambda^2 matters for where the minimum is. Since rho
and h both grow with the clip, phi is given in units of C^2; the defaults phi = 4 C^2, lambda = 1/2
make the product C^2 and respect the theorem's lambda < 1. A larger product tolerates more local
steps.

The sound form does not go below two steps while R_s < R_c: a round of one step shows no curvature,
so a rule that has gone to one (an early, high estimate is enough, since h(1) = 0) could never
leave it again, and would strand the budget. ``form = "paper"`` starts at one.

Where eta phi <= rho h / (tau lambda^2) for every tau, or eta beta > 1, the bound says nothing; in
the sound form tau then falls back to the pace R_c left / R_s left. The log says so in both forms.

rho, beta, xi: smoothed over rounds, from released gradients (below); beta is E1's curvature, xi
needs the clients' first noisy gradients, which are sent along. ``form = "paper"`` takes them from
raw data and is booked as not private.

>>> rule = AlsDpfl()
>>> round(rule.gap(1, beta=0.3, xi=0.5, terms=terms), 12)   # h(1) = 0
0.0
>>> memory = AlsMemory(squared_beta=0.09, rho=0.13, squared_xi=0.25, tau=2)
>>> rule.choose(memory, terms, Remaining(158, 317))
Choice(tau=2, note=None)

**Estimates.** Both steer by constants mu, beta, rho, xi that their papers compute from raw data: a
release that nobody priced. Here they come from the noisy gradients g~ = g + n, n ~ N(0, s_i^2 I_d),
s_i = sigma C / B_i, which the ledger holds anyway, by subtracting what the noise adds on average.
Post-processing costs no privacy.

With w_0 the model received, w' the model at the last step, and m = ||w' - w_0||^2:

    E1   mu_i^2   = ( ||g~_tau - g~_1||^2 - 2 d s_i^2 - C^2 / B_i ) / m
         rho_i    = ( <g~_1, w' - w_0> + eta d s_i^2 + <g~_tau, w' - w_0> ) / (2 sqrt(m))
         xi^2     = sum_i p_i ( ||g~_1i||^2 - d s_i^2 - v_i )
                    - ( ||sum_i p_i g~_1i||^2 - sum_i p_i^2 (d s_i^2 + v_i) )

C^2 / B_i and v_i = C^2 / (2 B_i) are rough corrections for sampling, which assume that a
clipped gradient has E||g||^2 = C^2 / 2. The noise in g~_1 is also in w' - w_0, by -eta n,
hence + eta d s_i^2; w' does not contain the noise of g~_tau. rho_i is the secant slope of the
(clipped) loss along the path, by the trapezoid of its two ends.

One client's mu_i^2 may come out negative; means over clients and an exponential average
over rounds seldom do. An average that is not positive is no estimate: callers keep the
last one they had.

Shapes: ``first`` vectors ``(d,)``; everything else scalar.

**Methods with one number of local steps for all rounds**: the baselines of every paper here.

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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from pydantic import Field

from sordino.base.frozen import Frozen
from sordino.base.message import Statistics, Update
from sordino.base.registry import AtLeastOne, NotNegative, Positive, Section
from sordino.core.method import About, register
from sordino.privacy import Gaussian, PoissonSampled, accountant
from sordino.regimes.synchronous.method import (
    Choice,
    Released,
    Remaining,
    RoundNoise,
    SynchronousMethod,
    Terms,
)
from sordino.training.extra_releases import Wants

MOST = 100  # the authors' upper bound on tau; tau_m of ALS-DPFL: min(2 tau*, 100)
LARGEST = 709.0  # whose exponential is finite
DECAY = 0.8  # of the exponential averages over rounds; a half-life of three rounds


def smooth(old: float | None, new: float | None) -> float | None:
    """Exponential average over rounds; a value that is missing or not finite changes nothing."""
    if new is None or not math.isfinite(new):
        return old
    return new if old is None else DECAY * old + (1.0 - DECAY) * new


def _root(square: float | None) -> float | None:
    """Return the root of an estimate that is usable; None of another."""
    return math.sqrt(square) if square is not None and square > 0.0 else None


def _moved(answers: Sequence[Update]) -> list[tuple[int, Statistics]]:
    """Clients whose round had two gradients at different weights to compare."""
    return [
        (a.client, a.statistics)
        for a in answers
        if a.statistics is not None and a.steps > 1 and a.statistics.moved > 0.0
    ]


def _mean(parts: Iterable[tuple[float, float, float]]) -> float | None:
    """Return the mean of ratios (weight, numerator, denominator); None without any."""
    found, total = 0.0, 0.0
    for weight, numerator, denominator in parts:
        found += weight * numerator / denominator
        total += weight
    return found / total if total else None


def squared_curvature(answers: Sequence[Update], terms: Terms) -> float | None:
    """Mean over clients of E1's mu_i^2 (per unit of step length, squared); may be negative.

    None where no client took two steps.
    """

    def noise(client: int) -> float:
        variance = 2.0 * terms.dimension * terms.deviation(client) ** 2
        return variance + terms.clip**2 / terms.batch(client)

    return _mean(
        (terms.weights[i], seen.change - noise(i), seen.moved) for i, seen in _moved(answers)
    )


def slope(answers: Sequence[Update], terms: Terms) -> float | None:
    """Size of the mean over clients of rho_i (loss per distance); None without two steps."""

    def rise(client: int, seen: Statistics) -> float:
        noise = terms.learning_rate * terms.dimension * terms.deviation(client) ** 2
        return seen.slope_first + noise + seen.slope_last

    found = _mean(
        (terms.weights[i], rise(i, seen), 2.0 * seen.moved**0.5) for i, seen in _moved(answers)
    )
    return None if found is None else abs(found)


def squared_divergence(answers: Sequence[Update], terms: Terms) -> float | None:
    """xi^2: mean squared distance of client gradients from their mean; may be negative, or None."""
    firsts = [(a.client, a.first) for a in answers if a.first is not None]
    total = sum(terms.weights[client] for client, _ in firsts)
    if len(firsts) < 2 or total <= 0.0:
        return None
    mean = np.zeros(terms.dimension, np.float64)
    spread, own = 0.0, 0.0
    for client, first in firsts:
        p = terms.weights[client] / total
        noise = terms.dimension * terms.deviation(client) ** 2 + terms.clip**2 / (
            2.0 * terms.batch(client)
        )
        # summed by NumPy itself: BLAS would add up in an order that depends on its threads
        exact = first.astype(np.float64)
        spread += p * (float(np.square(exact).sum()) - noise)
        own += p * p * noise
        mean += p * exact
    return spread - (float(np.square(mean).sum()) - own)


def signal_to_noise(answers: Sequence[Update], terms: Terms) -> float | None:
    """||signal|| / ||noise|| of one step's gradient, pooled over clients; None without noise.

    ||signal||^2 is estimated without bias, so it may come out negative: its root then has a minus
    sign, and x |x| can still be averaged over rounds.
    """
    signal, noise = 0.0, 0.0
    for answer in answers:
        if answer.statistics is not None and terms.noise:
            variance = terms.dimension * terms.deviation(answer.client) ** 2
            signal += terms.weights[answer.client] * (answer.statistics.energy - variance)
            noise += terms.weights[answer.client] * variance
    return math.copysign(math.sqrt(abs(signal) / noise), signal) if noise else None


def clipped_fraction(answers: Sequence[Update], terms: Terms) -> float | None:
    """Fraction of clipped examples over the round, from the noisy counts; kept within [0, 1]."""
    seen = ((a, a.statistics.clipped) for a in answers if a.statistics is not None)
    share = _mean((terms.batch(a.client) * a.steps, x, 1.0) for a, x in seen if x is not None)
    return None if share is None else min(max(share, 0.0), 1.0)


class AliMemory(Frozen):
    """Smoothed mu^2 (None until there is one) and the last tau."""

    squared_mu: float | None = None
    tau: int = 1

    @property
    def mu(self) -> float | None:
        """mu, or None where there is no usable estimate."""
        return _root(self.squared_mu)


@register
class AliDpfl(SynchronousMethod):
    """ALI-DPFL, Algorithm 2.

    Attributes:
        gamma: Gamma, public; the paper takes 0 (IID), 1, 5 and 10 (Dirichlet 1, 0.5, 0.05).
        batch_bound: how B is made of the clients' B_i.
        floor: "pace" keeps tau at or above R_c left / R_s left; "none" does not.
        tau_rule: "eq11" or the paper's "eq9".
        form: "sound", or "paper" for the letter, which is not private.
    """

    about: ClassVar[About] = About(
        regime="synchronous",
        paper="Ling, Fu, Wang, Liu and Chen 2023",
        does="tau from the closed-form minimum of the convergence bound",
        forms={"sound": True, "paper": False},
    )
    memory: ClassVar[type[AliMemory]] = AliMemory

    form: Literal["sound", "paper"] = "sound"
    name: Literal["ali-dpfl"] = "ali-dpfl"
    gamma: NotNegative = 10.0
    batch_bound: Literal["min", "weighted"] = "weighted"
    floor: Literal["pace", "none"] = "pace"
    tau_rule: Literal["eq11", "eq9"] = "eq11"

    @property
    def wants(self) -> Wants:
        """Raw constants in the paper's form only."""
        return Wants(raw=self.form == "paper")

    @property
    def realised(self) -> bool:
        """Algorithm 2, line 11, divides by the batch as it was drawn."""
        return self.form == "paper"

    def noise(self, terms: Terms) -> float:
        """n = sigma^2 C^2 d / B^2 (squared units of a gradient)."""
        if self.batch_bound == "min" or self.form == "paper":
            inverse = 1.0 / min(terms.effective_batch(i) for i in range(len(terms.sizes))) ** 2
        else:
            inverse = sum(p / terms.effective_batch(i) ** 2 for i, p in enumerate(terms.weights))
        return (terms.noise * terms.clip) ** 2 * terms.dimension * inverse

    def optimum(self, mu: float, terms: Terms, *, tau: int) -> float:
        """tau*, unrounded: the minimiser of Eq. (11), or Eq. (9) with T from the last ``tau``."""
        n, square = self.noise(terms), terms.clip**2
        if self.tau_rule == "eq9" or self.form == "paper":
            horizon = (
                terms.rounds * tau if terms.steps is None else min(terms.rounds * tau, terms.steps)
            )
            numerator = 4.0 / mu**2 + 3.0 * square + 2.0 * self.gamma * horizon * mu + n
            return math.sqrt(1.0 + numerator / ((2.0 + 1.0 / horizon) * (square + n)))
        eta = terms.learning_rate
        numerator = 4.0 / mu**2 + 3.0 * square + 2.0 * self.gamma / eta + n
        return math.sqrt(1.0 + numerator / ((2.0 + eta * mu) * (square + n)))

    def choose(self, memory: AliMemory, terms: Terms, left: Remaining) -> Choice:
        """Return tau for the next round, by the estimated terms."""
        if terms.steps is None or terms.rounds >= terms.steps:
            return Choice(1)
        mu, note, paper = memory.mu, None, self.form == "paper"
        if mu is not None:
            tau = int(min(self.optimum(mu, terms, tau=memory.tau), MOST) + 0.5)
        elif paper:
            tau = 1
        else:
            tau, note = 2, "no estimate of mu yet: two local steps, the fewest that show curvature"
        if paper:
            return Choice(max(tau, 1))
        pace = math.ceil(left.pace)
        lowest = pace if self.floor == "pace" else 1
        return Choice(max(min(max(tau, lowest), 2 * pace, MOST), 1), note)

    def fold(self, memory: AliMemory, terms: Terms, answers: Sequence[Update]) -> AliMemory:
        """Return the memory after a round: estimates from what was released, or raw constants."""
        tau = max((answer.steps for answer in answers), default=memory.tau)
        if self.form == "sound":
            return AliMemory(smooth(memory.squared_mu, squared_curvature(answers, terms)), tau)
        raw = ((terms.weights[a.client], a.raw) for a in answers if a.raw is not None)
        mu = _mean((weight, each.beta, 1.0) for weight, each in raw)
        return AliMemory(memory.squared_mu if mu is None else mu**2, tau)

    def observed(self, memory: AliMemory) -> dict[str, Any]:
        """mu."""
        return {"mu": memory.mu}


class AlsMemory(Frozen):
    """Smoothed estimates (None until there is one) and the last tau."""

    squared_beta: float | None = None
    rho: float | None = None
    squared_xi: float | None = None
    tau: int = 1

    @property
    def beta(self) -> float | None:
        """Smoothness, or None where there is no usable estimate."""
        return _root(self.squared_beta)

    @property
    def xi(self) -> float | None:
        """Gradient divergence, zero where the noise outweighs it; None without an estimate."""
        return None if self.squared_xi is None else math.sqrt(max(self.squared_xi, 0.0))


@register
class AlsDpfl(SynchronousMethod):
    """ALS-DPFL, Algorithm 2.

    Attributes:
        phi: control parameter in units of C^2, public and positive.
        lambda_: lambda, a public lower bound on the excess loss, positive.
        form: "sound", or "paper" for the letter, which is not private.
    """

    about: ClassVar[About] = About(
        regime="synchronous",
        paper="Ling, Fu and Chen 2023",
        does="tau by traversing the convergence bound",
        forms={"sound": True, "paper": False},
    )
    memory: ClassVar[type[AlsMemory]] = AlsMemory

    form: Literal["sound", "paper"] = "sound"
    name: Literal["als-dpfl"] = "als-dpfl"
    phi: Positive = 4.0
    lambda_: float = Field(0.5, gt=0, lt=1, alias="lambda")

    @property
    def wants(self) -> Wants:
        """First noisy gradients; raw constants in the paper's form."""
        return Wants(first=self.form == "sound", raw=self.form == "paper")

    def gap(self, tau: int, *, beta: float, xi: float, terms: Terms) -> float:
        """h(tau) of Eq. (11): how far local steps drift from a central run (distance)."""
        # B of 1/B^2 = sum p_i/B_i^2
        batch = sum(p / terms.effective_batch(i) ** 2 for i, p in enumerate(terms.weights)) ** -0.5
        delta = xi + 2.0 * math.sqrt(terms.dimension) * terms.noise * terms.clip / batch
        eta = terms.learning_rate
        growth = math.expm1(min(tau * math.log1p(eta * beta), LARGEST))
        gap: float = delta / beta * growth
        if self.form == "sound":
            gap -= eta * delta * tau
        else:
            noise = 2.0 * math.sqrt(terms.dimension) * terms.noise * terms.clip
            gap += eta * (xi + noise) / batch * tau
        return gap

    def choose(self, memory: AlsMemory, terms: Terms, left: Remaining) -> Choice:
        """Return tau for the next round, by the estimated terms."""
        if terms.steps is None or left.steps is None or terms.rounds >= terms.steps:
            return Choice(1)
        pace, paper = max(round(left.pace), 1), self.form == "paper"
        fewest = 1 if paper else 2
        beta, rho, xi = memory.beta, memory.rho, memory.xi
        if beta is None or rho is None or xi is None:
            if paper:
                return Choice(1)
            return Choice(
                max(pace, 2),
                "no estimate of rho, beta and xi yet: the pace, but at least two steps",
            )
        margins = {
            tau: self.margin(tau, beta=beta, rho=rho, xi=xi, terms=terms)
            for tau in range(fewest, max(min(2 * memory.tau, MOST), fewest) + 1)
        }
        holds = terms.learning_rate * beta <= 1.0
        budgets = (terms.rounds, terms.steps) if paper else (left.rounds, left.steps)
        if holding := {tau: margin for tau, margin in margins.items() if holds and margin > 0.0}:
            return Choice(self._lowest(holding, *budgets))
        note = (
            f"the bound's conditions hold for no tau (beta {beta:.3g}, rho {rho:.3g}, xi {xi:.3g})"
        )
        if paper:
            return Choice(
                self._lowest(margins, *budgets), f"{note}: its smallest value all the same"
            )
        return Choice(pace, f"{note}: the pace instead")

    def margin(self, tau: int, *, beta: float, rho: float, xi: float, terms: Terms) -> float:
        """eta phi - rho h(tau) / (tau lambda^2), which Theorem 2 wants positive."""
        gap = self.gap(tau, beta=beta, xi=xi, terms=terms)
        eta = terms.learning_rate
        return eta * self.phi * terms.clip**2 - rho * gap / (tau * self.lambda_**2)

    @staticmethod
    def _lowest(margins: Mapping[int, float], rounds: int, steps: int) -> int:
        """The first tau with the lowest Eq. (13), constants dropped."""

        def value(tau: int) -> float:
            margin = min(rounds * tau, steps) * margins[tau]
            return 1.0 / margin if margin else math.inf

        return min(margins, key=value)

    def fold(self, memory: AlsMemory, terms: Terms, answers: Sequence[Update]) -> AlsMemory:
        """Return the memory after a round: estimates from what was released, or raw constants
        weighted by p_i.
        """
        tau = max((answer.steps for answer in answers), default=memory.tau)
        if self.form == "sound":
            return AlsMemory(
                squared_beta=smooth(memory.squared_beta, squared_curvature(answers, terms)),
                rho=smooth(memory.rho, slope(answers, terms)),
                squared_xi=smooth(memory.squared_xi, squared_divergence(answers, terms)),
                tau=tau,
            )
        seen = [(terms.weights[a.client], a.raw) for a in answers if a.raw is not None]
        total = sum(p for p, _ in seen)
        if not seen or total <= 0.0:
            return AlsMemory(memory.squared_beta, memory.rho, memory.squared_xi, tau)
        mean = (
            sum((p * raw.gradient.astype(np.float64) for p, raw in seen), np.zeros(terms.dimension))
            / total
        )
        xi = sum(p * float(np.linalg.norm(raw.gradient - mean)) for p, raw in seen) / total
        beta = sum(p * raw.beta for p, raw in seen) / total
        return AlsMemory(beta**2, sum(p * raw.rho for p, raw in seen) / total, xi**2, tau)

    def observed(self, memory: AlsMemory) -> dict[str, Any]:
        """beta, rho and xi."""
        return {"beta": memory.beta, "rho": memory.rho, "xi": memory.xi}


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


class ClipMemory(Frozen):
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

    memory: ClassVar[type[msgspec.Struct]] = ClipMemory

    weights: Literal["size", "equal"] = "equal"
    tau: AtLeastOne = 5
    batch: AtLeastOne = 10
    clipping: Literal["fixed", "proxy", "adaptive"] = "fixed"
    quantile: float = Field(0.5, gt=0, lt=1)
    clip_rate: float = Field(0.2, gt=0)
    count_noise: float | None = Field(None, gt=0)
    divisor: Literal["expected", "counted"] | None = None

    def start(self, terms: Terms) -> ClipMemory:
        """S is privacy.clip."""
        return ClipMemory(terms.clip)

    @property
    def adapts_clip(self) -> bool:
        """Earlier releases decide about S where the bound is adaptive."""
        return self.clipping == "adaptive"

    def round_noise(self, memory: ClipMemory, terms: Terms, number: int) -> RoundNoise:
        """S of the memory, on the schedule if there is one."""
        clip, noise = self.scale((number - 1) / terms.rounds)
        return RoundNoise(memory.clip * clip, terms.sigma * noise)

    def learn(self, memory: ClipMemory, terms: Terms, released: Released) -> ClipMemory:
        """S after a noisy count; within a factor of e a round, and never zero."""
        if self.clipping != "adaptive" or released.clipped is None:
            return memory
        moved = self.clip_rate * (1.0 - released.clipped - self.quantile)
        return ClipMemory(min(max(memory.clip * math.exp(-min(max(moved, -1.0), 1.0)), 1e-9), 1e9))

    def observed(self, memory: ClipMemory) -> dict[str, Any]:
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
        events = [  # of a client that took part in all rounds so far, and in this one
            (PoissonSampled(sampling_rate=terms.sampling_rate, event=event), rounds * count)
            for factor, rounds in booked
            for event, count in self.wants.releases(
                Gaussian(noise_multiplier=terms.sigma * factor), self.tau
            )
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
        seen = (
            (terms.weights[a.client], a.statistics) for a in answers if a.statistics is not None
        )
        loss = _mean((weight, s.loss, 1.0) for weight, s in seen if s.loss is not None)
        if loss is None:
            return memory
        fell = memory.fell + 1 if memory.loss is not None and loss < memory.loss else 0
        if fell < self.patience:
            return msgspec.structs.replace(memory, loss=loss, fell=fell)
        return msgspec.structs.replace(
            memory, loss=loss, fell=0, factor=max(memory.factor * self.decay, self.floor)
        )

    def observed(self, memory: AdapMemory) -> dict[str, Any]:
        """The noisy loss, and where sigma stands."""
        return {"noisy_loss": memory.loss, "noise": memory.factor}
