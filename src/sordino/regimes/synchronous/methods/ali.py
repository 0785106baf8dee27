r"""ALI-DPFL: the number of local iterations from a closed form (Ling et al. 2023).

Privacy pays for R_c local steps, communication for R_s rounds. Where R_s >= R_c one step a
round is best (Lemma 1). Where rounds are short, the convergence bound G(tau) of Eq. (11)
has its minimum at

    tau*^2 = 1 + (4 / mu^2 + 3 C^2 + 2 Gamma / eta + n) / ((2 + eta mu) (C^2 + n)),
    n = sigma^2 C^2 d / B^2,

mu the strong convexity, Gamma a public constant for how unlike the clients are. We minimise
Eq. (11) itself, with the learning rate that is really used; the paper's Eq. (9) puts
eta = 1/(mu T) instead and then cannot land where its own experiments do. mu comes from
released gradients (:func:`~sordino.regimes.synchronous.methods.estimate.squared_curvature`).

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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field

from sordino.base.message import Update
from sordino.core.method import About, register
from sordino.regimes.synchronous.method import Choice, Remaining, Terms
from sordino.regimes.synchronous.methods import estimate
from sordino.training.beside import Wants

MOST = 100  # the authors' upper bound on tau


class Memory(msgspec.Struct, frozen=True):
    """Smoothed mu^2 (None until there is one) and the last tau."""

    squared_mu: float | None = None
    tau: int = 1

    @property
    def mu(self) -> float | None:
        """mu, or None where there is no usable estimate."""
        return (
            math.sqrt(self.squared_mu)
            if self.squared_mu is not None and self.squared_mu > 0.0
            else None
        )


@register
class AliDpfl(estimate.Estimating):
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
    memory: ClassVar[type[Memory]] = Memory

    name: Literal["ali-dpfl"] = "ali-dpfl"
    gamma: float = Field(10.0, ge=0, allow_inf_nan=False)
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
            inverse = 1.0 / min(terms.alike(i) for i in range(len(terms.sizes))) ** 2
        else:
            inverse = sum(p / terms.alike(i) ** 2 for i, p in enumerate(terms.weights))
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

    def choose(self, memory: Memory, terms: Terms, left: Remaining) -> Choice:
        """Return tau for the next round, by the estimated terms."""
        if terms.steps is None or terms.rounds >= terms.steps:
            return Choice(1)
        mu, note = memory.mu, None
        if self.form == "paper":
            return Choice(
                1
                if mu is None
                else max(int(min(self.optimum(mu, terms, tau=memory.tau), MOST) + 0.5), 1)
            )
        if mu is None:
            tau, note = 2, "no estimate of mu yet: two local steps, the fewest that show curvature"
        else:
            tau = int(min(self.optimum(mu, terms, tau=memory.tau), MOST) + 0.5)
        pace = math.ceil(left.pace)
        lowest = pace if self.floor == "pace" else 1
        return Choice(max(min(max(tau, lowest), 2 * pace, MOST), 1), note)

    def told(self, memory: Memory, terms: Terms, answers: Sequence[Update], tau: int) -> Memory:
        """Return the memory after a round, with raw constants; not private."""
        raw = [(terms.weights[a.client], a.raw.beta) for a in answers if a.raw is not None]
        mu = sum(p * beta for p, beta in raw) / sum(p for p, _ in raw) if raw else None
        return Memory(memory.squared_mu if mu is None else mu**2, tau)

    def estimated(
        self, memory: Memory, terms: Terms, answers: Sequence[Update], tau: int
    ) -> Memory:
        """Return the memory after a round, with estimates from what was released."""
        return Memory(
            estimate.smooth(memory.squared_mu, estimate.squared_curvature(answers, terms)), tau
        )

    def observed(self, memory: Memory) -> dict[str, Any]:
        """mu."""
        return {"mu": memory.mu}
