r"""Gaussian noise on Haar coefficients, clipped as one vector or by levels, and as published.

Every contribution v has orthonormal coefficients u(v), and a group g of them (a level of a
block) has a clip weight w_g and a noise s_g. Contributions are clipped so that

    ||diag(w) u(v)|| <= C,

and the release is  sum_i v_i + inverse(z),  with z ~ N(0, (sigma C s_g)^2) on the
coefficients of g.

**Its noise multiplier is sigma min_g w_g s_g.** Proof. Divide every coefficient of the
release by sigma C s_g: the noise becomes N(0, I), and one contribution moves it by

    || diag(1/s) u(v) || / (sigma C)  <=  max_g 1/(w_g s_g)  ||diag(w) u(v)|| / (sigma C)
                                      <=  1 / (sigma min_g w_g s_g),

so it is the Gaussian mechanism with that multiplier; going back to d numbers and leaving
padding away is post-processing. It is tight: a v with all its energy in one coefficient of
the smallest group attains both bounds, and there is one wherever that group has a
coefficient over real numbers alone. A block of 2^L numbers has one in each group; any
block has one on level 1, if it has two numbers. Elsewhere what is booked is safe, and by
little too much.

* :meth:`HaarGaussian.weighted`: s = 1/w. The multiplier is sigma, for any weights.
* :meth:`HaarGaussian.literal`: algorithm 1 of Ranaweera et al. 2024. It clips averaging
  coefficients H = u / 2^(l/2) to C (w = 2^(-l/2), 1/sqrt(m)) and adds N(0, (sigma C / W)^2)
  to H with W = 2^l, m (s = 2^(l/2) / 2^l = 2^(-l/2), 1/sqrt(m)). So w s = 2^(-l), and the
  multiplier is sigma/m: a constant gradient attains it. The paper also divides sigma by
  f = sqrt((2 + log2 m)/2), which makes it sigma/(m f), and books sigma.
* :meth:`HaarGaussian.literal_server`: algorithm 2, z C / (sqrt(m) d_k S).

The literal forms are here to be measured. What they book is what they give, and **at any
useful sigma that is no meaningful guarantee**.

**Weights** say what share of the bound each group may take. They must be public, or come from what
was released with noise before: a weight that depends on raw data is a release that nobody has
booked. They may change from step to step, since the multiplier of the weighted form does not depend
on them. A larger weight means a tighter bound and less noise; the scale of w is the scale of C.
With n coefficients and energy E (mean of the sum of u^2 over contributions) in a group,

    noise, squared            ~  sum n / w^2
    contribution, squared     =  sum w^2 E
    product                  >=  (sum sqrt(n E))^2,    equal at  w^2 ~ sqrt(n / E),

by Cauchy and Schwarz. That is the smallest total noise, and not the best training: it puts noise
where gradients are large, which is where curvature is large too. So half of the exponent is the
default, and equal weights are the mechanism that has proved best.

>>> mechanism = HaarGaussian.literal(clip=1.0, noise_multiplier=1.0, basis=Basis.flat(2**15))
>>> f"{mechanism.event().noise_multiplier:.3g}"
'1.05e-05'
>>> basis = Basis.flat(2**15)
>>> HaarGaussian.weighted(clip=1.0, noise_multiplier=1.0, basis=basis, weights=paper(basis)).event()
Gaussian(noise_multiplier=1.0)
>>> [round(w * w, 6) for w in paper(Basis.flat(8))]
[8.0, 8.0, 4.0, 2.0]
>>> [round(w * w, 3) for w in optimal([4.0, 1.0], [1.0, 1.0], exponent=1.0)]  # 1 : 2, with sum 5
[0.833, 1.667]

References:
    Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, appendix A.
    Ranaweera et al. 2024, Federated Learning with Differential Privacy: An Utility-Enhanced
    Approach, algorithms 1 and 2, lemma 1; section 4.3 (W, on averaging coefficients).
    Xiao, Wang, Gehrke 2011, Differential Privacy via Wavelet Transforms. (where W comes from)

**Levels that are clipped one by one** (:class:`LevelGaussian`). Ranaweera et al. 2024, section 4.3:
"the resulting wavelet coefficients at each level of the transform are clipped using a per-level
norm bound". With C_g = C / w_g, a contribution v is bounded so that

    ||u_g(v)|| <= C / w_g       for every group g (a level of a block) by itself,

and the release is  sum_i v_i + inverse(z),  with z ~ N(0, (sigma C s_g)^2) on the coefficients of
g, as above.

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

* :meth:`LevelGaussian.weighted`: s = 1/w', w = w' sqrt(groups) for any weights w'. Every level
  takes the same share of the price, and the multiplier is sigma.
* :meth:`LevelGaussian.literal`: averaging coefficients H_l clipped to C at each level
  (w = 2^(-l/2)), or to C / W_l (w = 2^(l/2)), with the noise of algorithm 1. The multipliers are
  sigma / (f sqrt(m^2 + sum 4^l)) and sigma / (f sqrt(L + 1)), where sigma is claimed.

>>> made = {"clip": 1.0, "noise_multiplier": 1.0, "basis": basis}
>>> LevelGaussian.weighted(**made, weights=paper(basis)).event()
Gaussian(noise_multiplier=1.0)
>>> f"{LevelGaussian.literal(**made).event().noise_multiplier:.2g}"
'6.9e-06'
>>> f"{LevelGaussian.literal(**made, weighted=True).event().noise_multiplier:.2g}"
'0.086'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from sordino.base.errors import StudyError
from sordino.mechanisms.gaussian import Scaled, checked_clip, normal_within
from sordino.mechanisms.grid import add_gaussian
from sordino.mechanisms.haar.basis import LARGEST, Basis, Groups
from sordino.privacy import event

# 32 units in the last place of float32, as in sordino.training.perexample.clipping
_ROUNDING = 2.0**-18
_WIDEST = 2.0**16


def paper(basis: Basis) -> Groups:
    """W of Ranaweera et al. as weights of orthonormal coefficients: 2^(l/2), base sqrt(m).

    They weight averaging coefficients, H_l = u_l / 2^(l/2), with W_l = 2^l; so W_l H_l =
    2^(l/2) u_l, and W_0 H_0 = m u_0 / sqrt(m) = sqrt(m) u_0.
    """
    return tuple(
        math.sqrt(2**level if level else m)
        for level, m in zip(basis.levels, basis.leaves, strict=True)
    )


def averaging(basis: Basis) -> Groups:
    """H of Ranaweera et al. is these times u, (groups,): 2^(-l/2), and 1/sqrt(m) for a base."""
    return tuple(1.0 / w for w in paper(basis))


def printed(basis: Basis, discount: bool, ratio: float = 1.0) -> Groups:
    """Noise s (groups,) of the paper: :func:`averaging`, over f = sqrt((2 + log2 m)/2) of each
    group's block if ``discount`` says so.
    """
    discounts = (math.sqrt((2.0 + math.log2(m)) / 2.0) if discount else 1.0 for m in basis.leaves)
    return tuple(ratio * x / f for x, f in zip(averaging(basis), discounts, strict=True))


def optimal(
    energies: Sequence[float], sizes: Sequence[float], *, exponent: float = 0.5, floor: float = 1e-6
) -> Groups:
    """w^2 ~ sqrt(n / E)^exponent, whose mean, weighted with E, is 1.

    So the mean squared norm of contributions stays what it was without weights, and C keeps its
    meaning.

    Args:
        energies: E (groups,), public or from noisy releases; what is zero or less counts as the
            floor.
        sizes: n (groups,).
        exponent: 1 for the least noise, 0 for equal weights.
        floor: smallest energy of one coefficient, as a share of the mean over all.
    """
    average = math.fsum(max(E, 0.0) for E in energies) / math.fsum(sizes)
    if average == 0.0:
        return (1.0,) * len(sizes)
    each = [max(E / n / average, floor) for E, n in zip(energies, sizes, strict=True)]
    squares = [e ** (-0.5 * exponent) for e in each]
    spent = math.fsum(n * e * w for n, e, w in zip(sizes, each, squares, strict=True))
    whole = math.fsum(n * e for n, e in zip(sizes, each, strict=True))
    return tuple(math.sqrt(w * whole / spent) for w in squares)


def observed(
    seen: Groups, noisy: Tensor, basis: Basis, deviations: Sequence[float], *, decay: float = 0.9
) -> Groups:
    """Energies (groups,) of the sums released so far, with their noise taken off.

    An exponential moving average from zero of ||u(noisy)||^2 of each group, less what noise alone
    would give. Its scale is without meaning while it is young, and weights do not depend on it. A
    group that is all noise may stand below zero. The noise that was drawn is not asked for, only
    the released sum: this is post-processing, and free.

    Args:
        seen: these energies before this release; empty before the first.
        noisy: a released sum (d,), with its noise.
        basis: the one it was released in.
        deviations: of the noise on the coefficients of each group, in units of the sum.
        decay: what is left of an earlier release one step later, in [0, 1).
    """
    before = seen or (0.0,) * basis.groups
    now = basis.energies(noisy.unsqueeze(0))[0] - basis.noise_energies(deviations)
    if not bool(torch.isfinite(now).all()):
        return before  # a sum that has overflowed says nothing
    return tuple(
        decay * old + (1.0 - decay) * new for old, new in zip(before, now.tolist(), strict=True)
    )


FLOOR = 0.01
"""Of learned weights. What is seen is the energy of sums, not of single contributions, and much of
it is noise where groups are small: no group falls below a hundredth of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HaarGaussian(Scaled):
    """Release sum_i v_i + noise, where every ||diag(clip_weights) u(v_i)|| <= C.

    Attributes:
        clip: C, the bound of one contribution's weighted coefficients (units of the vector).
        noise_multiplier: sigma that was asked for, dimensionless. What is booked is in
            :meth:`event`.
        basis: how the vector is cut into blocks.
        clip_weights: w (groups,).
        noise: s (groups,), deviation of the noise on one orthonormal coefficient, in units of sigma
            C.
        learns: exponent of weights that follow the energies of earlier releases; None keeps them as
            they are.
    """

    basis: Basis
    clip_weights: Groups
    noise: Groups
    learns: float | None = None

    def __post_init__(self) -> None:
        Scaled.__post_init__(self)
        for weight in self.clip_weights:
            checked_clip(self.clip / weight, f"privacy.clip / a clip weight of {weight:g}")
        for factor in (_WIDEST, 1.0 / _WIDEST) if self.learns is not None else ():
            checked_clip(self.clip * factor, f"privacy.clip times {factor:g}, for learned weights,")
        if self._spread > _WIDEST:
            raise StudyError(
                f"clip weights may differ by a factor of {_WIDEST:g}, beyond which float32 "
                "cannot keep the bound"
            )

    @classmethod
    def weighted(
        cls, *, clip: float, noise_multiplier: float, basis: Basis, weights: Sequence[float]
    ) -> Self:
        """Noise in proportion to what the clip lets through: its price is that of sigma.

        Args:
            clip, noise_multiplier, basis: see :class:`HaarGaussian`.
            weights: (groups,), public or from earlier noisy releases; the noise on a coefficient is
                sigma C over its weight.
        """
        own = basis.each(weights)
        root = math.sqrt(cls._bounds(basis))
        return cls(
            clip=clip,
            noise_multiplier=noise_multiplier,
            basis=basis,
            clip_weights=tuple(x * root for x in own),
            noise=tuple(1.0 / x for x in own),
        )

    @classmethod
    def literal(
        cls,
        *,
        clip: float,
        noise_multiplier: float,
        basis: Basis,
        discount: bool = True,
        weighted: bool = False,
    ) -> Self:
        """Algorithm 1 of Ranaweera et al. 2024 as printed. No meaningful guarantee.

        It is booked at what it gives: sigma/(m f) where contributions are clipped as a whole.

        Args:
            clip: C, of the averaging coefficients H.
            noise_multiplier: sigma, which the paper books.
            basis: one block in the paper; with more, every block has its own m and f.
            discount: whether sigma is divided by f = sqrt((2 + log2 m)/2), as lemma 1 is used
                there.
            weighted: whether a level's bound is C / W_l, of section 4.3; C for all if not.
        """
        return cls(
            clip=clip,
            noise_multiplier=noise_multiplier,
            basis=basis,
            clip_weights=paper(basis) if weighted else averaging(basis),
            noise=printed(basis, discount),
        )

    @classmethod
    def literal_server(
        cls,
        *,
        clip: float,
        noise_multiplier: float,
        basis: Basis,
        bound: float,
        weight: float,
        expected: float,
        discount: bool = False,
    ) -> Self:
        """Algorithm 2 of Ranaweera et al. 2024 as printed. No meaningful guarantee.

        It is booked at z C / (sqrt(m) d_k S).

        The server sums what clients send times d_k / (q_c d) and adds N(0, (z C / (q_c d) / W)^2)
        to H of the sum. One contribution is d_k / (q_c d) times an update; its own coefficients are
        not clipped there, so its bound is d_k S / (q_c d), and that is this mechanism's C.
        :meth:`bounded` holds contributions to it.

        Args:
            clip: C, of the gradients of single examples inside a client.
            noise_multiplier: z.
            basis: one block in the paper.
            bound: S, L2 bound of what a client sends; of whole weights, where those are sent.
            weight: d_k, the largest of any client (examples).
            expected: q_c d (examples), public.
            discount: as in :meth:`literal`.
        """
        return cls(
            clip=weight * bound / expected,
            noise_multiplier=noise_multiplier,
            basis=basis,
            clip_weights=(1.0,) * basis.groups,
            noise=printed(basis, discount, clip / (weight * bound)),
        )

    @property
    def deviations(self) -> Groups:
        """Deviation of the noise on one coefficient of each group (units of the vector)."""
        return tuple(self.noise_multiplier * self.clip * s for s in self.noise)

    @staticmethod
    def _bounds(basis: Basis) -> int:
        """Return how many bounds a contribution may reach at once."""
        return 1

    @property
    def _spread(self) -> float:
        """Return what an error of the size of a contribution may do, in units of a bound."""
        root = math.sqrt(self._bounds(self.basis))
        return root * max(self.clip_weights) / min(self.clip_weights)

    def event(self) -> event.Gaussian:
        """The fact that the ledger keeps of one release, before sampling: sigma min w s."""
        return event.Gaussian(noise_multiplier=self.noise_multiplier * self._least)

    @property
    def _least(self) -> float:
        """min w s."""
        least = min(w * s for w, s in zip(self.clip_weights, self.noise, strict=True))
        # w (1/w) may miss 1 by a unit in the last place, which is no reason for a second kind of
        # step in the ledger
        return 1.0 if abs(least - 1.0) < 1e-15 else least

    @property
    def measure(self) -> Literal["own"]:
        return "own"

    @property
    def vector_multiplier(self) -> float:
        """Root mean square of the noise on one of the d numbers, in units of C."""
        d = self.basis.dimension
        return self.noise_multiplier * math.sqrt(
            sum(n * s * s for n, s in zip(self.basis.sizes, self.noise, strict=True)) / d
        )

    @property
    def longest(self) -> float:
        """Return C / min w."""
        return self.clip / min(self.clip_weights)

    def noise_within(self, dimension: int, times: int, chance: float) -> float:
        """Return the bound by a normal tail: coefficients are orthonormal."""
        root = math.sqrt(times)
        rms, widest = self.vector_multiplier * self.clip * root, max(self.deviations) * root
        return normal_within(rms, widest, dimension, chance)

    def bounded(self, vector: Tensor) -> tuple[Tensor, bool]:
        (norm,) = norms = self.norms(vector.unsqueeze(0))
        (factor,) = self._factors(norms)
        inside = float(norm) <= self.clip
        return (vector * factor if float(factor) > 0.0 else torch.zeros_like(vector)), inside

    def observed(self, seen: Groups, moved: Tensor, unit: float) -> Groups:
        """Return what was seen: energies of sums, noise taken off."""
        if self.learns is None:
            return seen
        deviations = [unit * deviation for deviation in self.shaped(seen).deviations]
        return observed(seen, moved, self.basis, deviations)

    def shaped(self, seen: Groups) -> Self:
        """Return the mechanism with learned weights, at the same price."""
        if self.learns is None or not seen:
            return self
        made = self.weighted(
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            basis=self.basis,
            weights=optimal(seen, self.basis.sizes, exponent=self.learns, floor=FLOOR),
        )
        return replace(made, learns=self.learns)

    def release_counted(
        self, total: Tensor, excess: float, rng: np.random.Generator
    ) -> tuple[Tensor, None]:
        """The noisy sum (d,), float32, of clipped contributions; ``total`` (d,) stays as it is.

        The sum's coefficients, divided by s, go onto a grid and get noise of one size, on which one
        contribution bears by at most C / min w s. The way back is post-processing. No count is
        released.
        """
        whitened = self.basis.forward(total.to(torch.float64), [1.0 / s for s in self.noise])
        least = self._least
        noisy = add_gaussian(
            whitened, rng, clip=self.clip / least, noise_multiplier=self.noise_multiplier * least
        )
        return self.basis.inverse(noisy, self.noise), None

    @property
    def margin(self) -> float:
        """s = 1 - 2^-18 max w / min w, the room for rounding.

        An error e in a contribution moves its weighted norm by up to max w ||e||, where the norm
        itself is at least min w ||v||.
        """
        return 1.0 - _ROUNDING * self._spread

    def norms(self, rows: Tensor) -> Tensor:
        """||diag(w) u(row)|| (n,) of contributions (n, d); infinite where they are not finite."""
        return self.basis.weighted_norms(rows, self.clip_weights)

    def _factors(self, norms: Tensor) -> Tensor:
        """min(1, s C / norm) (n,) of contributions with these norms; 0 if they are not finite.

        A row that is not finite must be left out of sums: zero times infinity is not zero.
        """
        return torch.reciprocal(norms).mul_(self.clip * self.margin).clamp_max_(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelGaussian(HaarGaussian):
    """Release sum_i v_i + noise, where every ||u_g(v_i)|| <= C / w_g, for each group g.

    The attributes are those of :class:`HaarGaussian`; ``clip_weights`` are w.
    """

    @staticmethod
    def _bounds(basis: Basis) -> int:
        return basis.groups

    @property
    def _least(self) -> float:
        """1 / sqrt(sum 1/(w s)^2)."""
        each = ((w * s) ** -2 for w, s in zip(self.clip_weights, self.noise, strict=True))
        least = 1.0 / math.sqrt(math.fsum(each))
        # off by some units in the last place, for which the margin of clipping has room
        return 1.0 if abs(least - 1.0) < 1e-14 else least

    @property
    def longest(self) -> float:
        """Return C sqrt(sum 1/w^2)."""
        return self.clip * math.sqrt(math.fsum(w**-2 for w in self.clip_weights))

    def norms(self, rows: Tensor) -> Tensor:
        """max_g w_g ||u_g(row)|| (n,) of contributions (n, d); infinite if they are not finite."""
        return self.basis.weighted_norms(rows, self.clip_weights, by_level=True)

    def shortened_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        before = self.norms(rows)
        usable = (before <= LARGEST).unsqueeze(1)
        whole = torch.where(usable, rows, torch.zeros_like(rows)).to(torch.float64)
        inside = before <= self.clip * self.margin
        if bool(inside.all()):
            return whole, before
        cut = self._cut(whole)
        cut *= self._factors(self.norms(cut)).unsqueeze(1)
        return torch.where(inside.unsqueeze(1), whole, cut), before

    def bounded(self, vector: Tensor) -> tuple[Tensor, bool]:
        short, (norm,) = self.shortened_rows(vector.unsqueeze(0))
        return short[0].to(vector), float(norm) <= self.clip

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
