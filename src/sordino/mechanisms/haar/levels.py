r"""Gaussian noise on Haar coefficients whose levels are clipped one by one.

Ranaweera et al. 2024, section 4.3: "the resulting wavelet coefficients at each level of the
transform are clipped using a per-level norm bound". With C_g = C / w_g, a contribution v is bounded
so that

    ||u_g(v)|| <= C / w_g       for every group g (a level of a block) by itself,

and the release is  sum_i v_i + inverse(z),  with z ~ N(0, (sigma C s_g)^2) on the coefficients of
g, as in :mod:`.gaussian`.

**Its noise multiplier is sigma / sqrt(sum_g 1/(w_g s_g)^2).** Proof. Divide every coefficient of
the release by sigma C s_g: the noise becomes N(0, I), and one contribution moves it by

    sqrt( sum_g ||u_g(v)||^2 / (sigma C s_g)^2 )  <=  sqrt( sum_g 1/(w_g s_g)^2 ) / sigma.

It is tight: a v with every level at its bound attains it, and there is one where blocks have 2^L
numbers. Elsewhere what is booked is safe, and by little too much.

**Clipping levels is not enough where a block is padded.** The coefficients of a level that has been
shortened belong to a vector with numbers in the padding; cutting it to d numbers mixes the one
coefficient of each level that spans the end, and may lengthen a level again. So the vector that is
left is measured, and shortened as a whole to max_g w_g ||u_g|| <= s C, which bounds it whatever was
done before. That last norm is rounded up, and s leaves room for a contribution that is sent in
float32.

* :meth:`LevelGaussian.even`: s = 1/w', w = w' sqrt(groups) for any weights w'. Every level takes
  the same share of the price, and the multiplier is sigma.
* :meth:`LevelGaussian.printed`: averaging coefficients H_l clipped to C at each level
  (w = 2^(-l/2)), or to C / W_l (w = 2^(l/2)), with the noise of algorithm 1. The multipliers are
  sigma / (f sqrt(m^2 + sum 4^l)) and sigma / (f sqrt(L + 1)), where sigma is claimed.

>>> from sordino.mechanisms.haar.basis import Basis
>>> from sordino.mechanisms.haar.weights import paper
>>> basis = Basis.flat(2**15)
>>> made = {"clip": 1.0, "noise_multiplier": 1.0, "basis": basis}
>>> LevelGaussian.even(**made, weights=paper(basis)).event()
Gaussian(noise_multiplier=1.0)
>>> f"{LevelGaussian.printed(**made).event().noise_multiplier:.2g}"
'6.9e-06'
>>> f"{LevelGaussian.printed(**made, weighted=True).event().noise_multiplier:.2g}"
'0.086'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sordino.base.errors import StudyError
from sordino.mechanisms.haar.basis import LARGEST, Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.mechanisms.haar.weights import Observed, averaging, discounts, learned, paper


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelGaussian(HaarGaussian):
    """Release sum_i v_i + noise, where every ||u_g(v_i)|| <= C / w_g, for each group g.

    The attributes are those of :class:`HaarGaussian`; ``clip_weights`` are w.
    """

    @classmethod
    def even(
        cls, *, clip: float, noise_multiplier: float, basis: Basis, weights: Sequence[float]
    ) -> LevelGaussian:
        """Every level takes the same share of the price, which is that of sigma.

        Args:
            clip, noise_multiplier, basis: see :class:`HaarGaussian`.
            weights: w' (groups,), public or from earlier noisy releases; the noise on a coefficient
                is sigma C / w'.
        """
        own = basis.each(weights)
        if not all(x > 0 for x in own):
            raise StudyError(f"weights must be positive numbers; got {own}")
        root = math.sqrt(basis.groups)
        return cls(
            clip=clip,
            noise_multiplier=noise_multiplier,
            basis=basis,
            clip_weights=tuple(x * root for x in own),
            noise=tuple(1.0 / x for x in own),
        )

    @classmethod
    def printed(
        cls,
        *,
        clip: float,
        noise_multiplier: float,
        basis: Basis,
        discount: bool = True,
        weighted: bool = False,
    ) -> LevelGaussian:
        """Algorithm 1 of Ranaweera et al. 2024 with the clipping of section 4.3, at its true price.

        Args:
            clip: C, of the averaging coefficients H of each level.
            noise_multiplier: sigma, which the paper books.
            basis: one block in the paper.
            discount: whether sigma is divided by f = sqrt((2 + log2 m)/2).
            weighted: whether a level's bound is C / W_l; C for all levels if not.
        """
        noise = (x / f for x, f in zip(averaging(basis), discounts(basis, discount), strict=True))
        return cls(
            clip=clip,
            noise_multiplier=noise_multiplier,
            basis=basis,
            clip_weights=paper(basis) if weighted else averaging(basis),
            noise=tuple(noise),
        )

    @property
    def _spread(self) -> float:
        """What an error of the size of a contribution may do to a level, in units of its bound."""
        return math.sqrt(self.basis.groups) * max(self.clip_weights) / min(self.clip_weights)

    @property
    def _least(self) -> float:
        """1 / sqrt(sum 1/(w s)^2)."""
        each = ((w * s) ** -2 for w, s in zip(self.clip_weights, self.noise, strict=True))
        least = 1.0 / math.sqrt(math.fsum(each))
        # off by some units in the last place, for which the margin of clipping has room
        return 1.0 if abs(least - 1.0) < 1e-14 else least

    @property
    def longest(self) -> float:
        """See :class:`~sordino.mechanisms.gaussian.Tailed`: C sqrt(sum 1/w^2)."""
        return self.clip * math.sqrt(math.fsum(w**-2 for w in self.clip_weights))

    def shaped(self, seen: tuple[float, ...]) -> HaarGaussian:
        """See :class:`~sordino.mechanisms.gaussian.Learning`: weights at the same price."""
        if self.learns is None or not seen:
            return self
        weights = learned(Observed(seen), self.basis, exponent=self.learns)
        made = LevelGaussian.even(
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            basis=self.basis,
            weights=weights,
        )
        return replace(made, learns=self.learns)

    def norms(self, rows: Tensor) -> Tensor:
        """max_g w_g ||u_g(row)|| (n,) of contributions (n, d); infinite if they are not finite."""
        return self.basis.largest_levels(rows, self.clip_weights)

    def shortened_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`~sordino.mechanisms.gaussian.Shortening`."""
        before = self.norms(rows)
        usable = (before <= LARGEST).unsqueeze(1)
        whole = torch.where(usable, rows, torch.zeros_like(rows)).to(torch.float64)
        inside = before <= self.clip * self.margin
        if bool(inside.all()):
            return whole, before
        cut = self._cut(whole)
        cut *= self.factors(cut).unsqueeze(1)
        return torch.where(inside.unsqueeze(1), whole, cut), before

    def bound(self, v: Tensor) -> Tensor:
        """One contribution (d,), each level within its bound; zero if it is not finite."""
        short, _ = self.shortened_rows(v.unsqueeze(0))
        return short[0].to(v)

    def _cut(self, rows: Tensor) -> Tensor:
        """Rows (n, d), float64, of which each level is shortened, cut to d numbers."""
        u = self.basis.forward(rows)
        lengths = np.array(self.basis.lengths)
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        energies = np.add.reduceat(np.square(u.cpu().numpy()), starts, axis=1)
        most = self.clip / np.array(self.clip_weights)
        # a level without energy stays as it is
        found = np.sqrt(np.maximum(energies, np.finfo(np.float64).tiny))
        factors = np.repeat(np.minimum(1.0, most / found), lengths, axis=1)
        return self.basis.inverse(u * torch.from_numpy(factors).to(u))
