r"""ALS-DPFL: the number of local steps by traversing a convergence bound (Ling, Fu and Chen 2023).

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

rho, beta, xi: smoothed over rounds, from released gradients
(:mod:`~sordino.regimes.synchronous.methods.estimate`); beta is E1's curvature, xi needs the
clients' first noisy gradients, which are sent along. ``form = "paper"`` takes them from raw data
and is booked as not private.

>>> terms = Terms(dimension=26010, sizes=(6000,) * 10, weights=(0.1,) * 10, sampling_rate=0.015,
...               learning_rate=0.5, clip=1.0, noise=1.1, rounds=158, steps=317)
>>> rule = AlsDpfl()
>>> round(rule.gap(1, beta=0.3, xi=0.5, terms=terms), 12)   # h(1) = 0
0.0
>>> memory = Memory(squared_beta=0.09, rho=0.13, squared_xi=0.25, tau=2)
>>> rule.choose(memory, terms, Remaining(158, 317))
Choice(tau=2, note=None)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from pydantic import Field

from sordino.base.message import Update
from sordino.core.method import About, register
from sordino.regimes.synchronous.method import Choice, Remaining, Terms
from sordino.regimes.synchronous.methods import estimate
from sordino.training.beside import Wants

MOST = 100  # tau_m of the paper: min(2 tau*, 100)
LARGEST = 709.0  # whose exponential is finite


class Memory(msgspec.Struct, frozen=True):
    """Smoothed estimates (None until there is one) and the last tau."""

    squared_beta: float | None = None
    rho: float | None = None
    squared_xi: float | None = None
    tau: int = 1

    @property
    def beta(self) -> float | None:
        """Smoothness, or None where there is no usable estimate."""
        return (
            math.sqrt(self.squared_beta)
            if self.squared_beta is not None and self.squared_beta > 0.0
            else None
        )

    @property
    def xi(self) -> float | None:
        """Gradient divergence, zero where the noise outweighs it; None without an estimate."""
        return None if self.squared_xi is None else math.sqrt(max(self.squared_xi, 0.0))


@register
class AlsDpfl(estimate.Estimating):
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
    memory: ClassVar[type[Memory]] = Memory

    name: Literal["als-dpfl"] = "als-dpfl"
    phi: float = Field(4.0, gt=0, allow_inf_nan=False)
    lambda_: float = Field(0.5, gt=0, lt=1, alias="lambda")

    @property
    def wants(self) -> Wants:
        """First noisy gradients; raw constants in the paper's form."""
        return Wants(first=self.form == "sound", raw=self.form == "paper")

    def gap(self, tau: int, *, beta: float, xi: float, terms: Terms) -> float:
        """h(tau) of Eq. (11): how far local steps drift from a central run (distance)."""
        # B of 1/B^2 = sum p_i/B_i^2
        batch = sum(p / terms.alike(i) ** 2 for i, p in enumerate(terms.weights)) ** -0.5
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

    def choose(self, memory: Memory, terms: Terms, left: Remaining) -> Choice:
        """Return tau for the next round, by the estimated terms."""
        if terms.steps is None or left.steps is None or terms.rounds >= terms.steps:
            return Choice(1)
        pace = max(round(left.pace), 1)
        beta, rho, xi = memory.beta, memory.rho, memory.xi
        if beta is None or rho is None or xi is None:
            if self.form == "paper":
                return Choice(1)
            return Choice(
                max(pace, 2),
                "no estimate of rho, beta and xi yet: the pace, but at least two steps",
            )
        margins = {
            tau: self.margin(tau, beta=beta, rho=rho, xi=xi, terms=terms)
            for tau in range(self._fewest, max(min(2 * memory.tau, MOST), self._fewest) + 1)
        }
        holding = {
            tau: margin
            for tau, margin in margins.items()
            if margin > 0.0 and terms.learning_rate * beta <= 1.0
        }
        if holding:
            if self.form == "paper":
                return Choice(self._lowest(holding, terms.rounds, terms.steps))
            return Choice(self._lowest(holding, left.rounds, left.steps))
        note = (
            f"the bound's conditions hold for no tau (beta {beta:.3g}, rho {rho:.3g}, xi {xi:.3g})"
        )
        if self.form == "paper":
            tau = self._lowest(margins, terms.rounds, terms.steps)
            return Choice(tau, f"{note}: its smallest value all the same")
        return Choice(pace, f"{note}: the pace instead")

    def margin(self, tau: int, *, beta: float, rho: float, xi: float, terms: Terms) -> float:
        """eta phi - rho h(tau) / (tau lambda^2), which Theorem 2 wants positive."""
        gap = self.gap(tau, beta=beta, xi=xi, terms=terms)
        eta = terms.learning_rate
        return eta * self.phi * terms.clip**2 - rho * gap / (tau * self.lambda_**2)

    @property
    def _fewest(self) -> int:
        return 1 if self.form == "paper" else 2

    @staticmethod
    def _lowest(margins: Mapping[int, float], rounds: int, steps: int) -> int:
        """The first tau with the lowest Eq. (13), constants dropped."""

        def value(tau: int) -> float:
            margin = min(rounds * tau, steps) * margins[tau]
            return 1.0 / margin if margin else math.inf

        return min(margins, key=value)

    def told(self, memory: Memory, terms: Terms, answers: Sequence[Update], tau: int) -> Memory:
        """Return the memory after a round, with raw constants weighted by p_i; not private."""
        seen = [(terms.weights[a.client], a.raw) for a in answers if a.raw is not None]
        total = sum(p for p, _ in seen)
        if not seen or total <= 0.0:
            return Memory(memory.squared_beta, memory.rho, memory.squared_xi, tau)
        mean = (
            sum((p * raw.gradient.astype(np.float64) for p, raw in seen), np.zeros(terms.dimension))
            / total
        )
        xi = sum(p * float(np.linalg.norm(raw.gradient - mean)) for p, raw in seen) / total
        beta = sum(p * raw.beta for p, raw in seen) / total
        return Memory(beta**2, sum(p * raw.rho for p, raw in seen) / total, xi**2, tau)

    def estimated(
        self, memory: Memory, terms: Terms, answers: Sequence[Update], tau: int
    ) -> Memory:
        """Return the memory after a round, with estimates from what was released."""
        return Memory(
            squared_beta=estimate.smooth(
                memory.squared_beta, estimate.squared_curvature(answers, terms)
            ),
            rho=estimate.smooth(memory.rho, estimate.slope(answers, terms)),
            squared_xi=estimate.smooth(
                memory.squared_xi, estimate.squared_divergence(answers, terms)
            ),
            tau=tau,
        )

    def observed(self, memory: Memory) -> dict[str, Any]:
        """beta, rho and xi."""
        return {"beta": memory.beta, "rho": memory.rho, "xi": memory.xi}
