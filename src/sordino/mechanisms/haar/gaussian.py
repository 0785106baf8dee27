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

Weights must be public or come from earlier noisy releases (:mod:`.weights`); they may change
from step to step, since the multiplier of the weighted form does not depend on them.

>>> mechanism = HaarGaussian.literal(clip=1.0, noise_multiplier=1.0, basis=Basis.flat(2**15))
>>> f"{mechanism.event().noise_multiplier:.3g}"
'1.05e-05'
>>> from sordino.mechanisms.haar.weights import paper
>>> basis = Basis.flat(2**15)
>>> HaarGaussian.weighted(clip=1.0, noise_multiplier=1.0, basis=basis, weights=paper(basis)).event()
Gaussian(noise_multiplier=1.0)

References:
    Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, appendix A.
    Ranaweera et al. 2024, Federated Learning with Differential Privacy: An Utility-Enhanced
    Approach, algorithms 1 and 2, lemma 1.

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
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from sordino.base.errors import StudyError
from sordino.mechanisms.gaussian import checked_clip, normal_within
from sordino.mechanisms.grid import add_gaussian
from sordino.mechanisms.haar.basis import LARGEST, Basis, Groups
from sordino.mechanisms.haar.weights import Observed, averaging, discounts, learned, paper
from sordino.privacy import event

# 32 units in the last place of float32, as in sordino.training.perexample.clipping
_ROUNDING = 2.0**-18
_WIDEST = 2.0**16


@dataclass(frozen=True, slots=True, kw_only=True)
class HaarGaussian:
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

    clip: float
    noise_multiplier: float
    basis: Basis
    clip_weights: Groups
    noise: Groups
    learns: float | None = None

    def __post_init__(self) -> None:
        checked_clip(self.clip)
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise StudyError(
                f"noise_multiplier must be a positive number; got {self.noise_multiplier}"
            )
        for name, values in (("clip_weights", self.clip_weights), ("noise", self.noise)):
            if not all(x > 0 and math.isfinite(x) for x in self.basis.each(values)):
                raise StudyError(f"{name} must be positive numbers; got {values}")
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
    ) -> HaarGaussian:
        """Noise in proportion to what the clip lets through: its price is that of sigma.

        Args:
            clip, noise_multiplier, basis: see :class:`HaarGaussian`.
            weights: w (groups,), public or from earlier noisy releases.
        """
        w = basis.each(weights)
        if not all(x > 0 for x in w):
            raise StudyError(f"weights must be positive numbers; got {w}")
        return cls(
            clip=clip,
            noise_multiplier=noise_multiplier,
            basis=basis,
            clip_weights=w,
            noise=tuple(1.0 / x for x in w),
        )

    @classmethod
    def literal(
        cls, *, clip: float, noise_multiplier: float, basis: Basis, discount: bool = True
    ) -> HaarGaussian:
        """Algorithm 1 of Ranaweera et al. 2024 as printed. No meaningful guarantee.

        It is booked at what it gives: sigma/(m f).

        Args:
            clip: C, of the averaging coefficients H.
            noise_multiplier: sigma, which the paper books.
            basis: one block in the paper; with more, every block has its own m and f.
            discount: whether sigma is divided by f = sqrt((2 + log2 m)/2), as lemma 1 is used
                there.
        """
        w = averaging(basis)
        noise = tuple(x / f for x, f in zip(w, discounts(basis, discount), strict=True))
        return cls(
            clip=clip, noise_multiplier=noise_multiplier, basis=basis, clip_weights=w, noise=noise
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
    ) -> HaarGaussian:
        """Algorithm 2 of Ranaweera et al. 2024 as printed. No meaningful guarantee.

        It is booked at z C / (sqrt(m) d_k S).

        The server sums what clients send times d_k / (q_c d) and adds N(0, (z C / (q_c d) / W)^2)
        to H of the sum. One contribution is d_k / (q_c d) times an update; its own coefficients are
        not clipped there, so its bound is d_k S / (q_c d), and that is this mechanism's C.
        :meth:`bound` holds contributions to it.

        Args:
            clip: C, of the gradients of single examples inside a client.
            noise_multiplier: z.
            basis: one block in the paper.
            bound: S, L2 bound of what a client sends; of whole weights, where those are sent.
            weight: d_k, the largest of any client (examples).
            expected: q_c d (examples), public.
            discount: as in :meth:`literal`.
        """
        for name, value in (
            ("clip", clip),
            ("bound", bound),
            ("weight", weight),
            ("expected", expected),
        ):
            if not (value > 0 and math.isfinite(value)):
                raise StudyError(f"{name} must be a positive number; got {value}")
        ratio = clip / (weight * bound)
        noise = tuple(
            ratio * x / f for x, f in zip(averaging(basis), discounts(basis, discount), strict=True)
        )
        return cls(
            clip=weight * bound / expected,
            noise_multiplier=noise_multiplier,
            basis=basis,
            clip_weights=(1.0,) * basis.groups,
            noise=noise,
        )

    @property
    def deviations(self) -> Groups:
        """Deviation of the noise on one coefficient of each group (units of the vector)."""
        return tuple(self.noise_multiplier * self.clip * s for s in self.noise)

    @property
    def _spread(self) -> float:
        return max(self.clip_weights) / min(self.clip_weights)

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

    def scaled(self, clip: float, noise_multiplier: float) -> Self:
        return replace(self, clip=clip, noise_multiplier=noise_multiplier)

    def bounded(self, vector: Tensor) -> tuple[Tensor, bool]:
        (norm,) = self.norms(vector.unsqueeze(0))
        return self.bound(vector), float(norm) <= self.clip

    def release_counted(
        self, total: Tensor, excess: float, rng: np.random.Generator
    ) -> tuple[Tensor, None]:
        """Release the vector, as :class:`Bounded` says; no count is released."""
        return self.release(total, None, rng)

    def observed(self, seen: Groups, moved: Tensor, unit: float) -> Groups:
        """Return what was seen: energies of sums, noise taken off."""
        if self.learns is None:
            return seen
        before = Observed(seen) if seen else Observed.nothing(self.basis)
        deviations = [unit * deviation for deviation in self.shaped(seen).deviations]
        return before.after(moved, self.basis, deviations).energies

    def shaped(self, seen: Groups) -> HaarGaussian:
        """Return the mechanism with learned weights, at the same price."""
        if self.learns is None or not seen:
            return self
        weights = learned(Observed(seen), self.basis, exponent=self.learns)
        return replace(self, clip_weights=weights, noise=tuple(1.0 / w for w in weights))

    def init(self, dimension: int) -> None:
        """No memory is carried from one release to the next.

        Raises:
            StudyError: if the basis is made for vectors of another length.
        """
        if dimension != self.basis.dimension:
            raise StudyError(
                f"the basis is made for vectors of {self.basis.dimension} numbers; got {dimension}"
            )

    def release(self, total: Tensor, memory: None, rng: np.random.Generator) -> tuple[Tensor, None]:
        """The noisy sum (d,), float32, of clipped contributions; ``total`` (d,) stays as it is.

        The sum's coefficients, divided by s, go onto a grid and get noise of one size, on which one
        contribution bears by at most C / min w s. The way back is post-processing.
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

    def factors(self, rows: Tensor) -> Tensor:
        """min(1, s C / norm) (n,) of contributions (n, d); 0 for those that are not finite.

        A row that is not finite must be left out of sums: zero times infinity is not zero.
        """
        return torch.reciprocal(self.norms(rows)).mul_(self.clip * self.margin).clamp_max_(1.0)

    def bound(self, v: Tensor) -> Tensor:
        """One contribution (d,), scaled into the bound; zero if it is not finite."""
        (factor,) = self.factors(v.unsqueeze(0))
        return v * factor if float(factor) > 0.0 else torch.zeros_like(v)


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
        """Return what an error of the size of a contribution may do to a level, in units of its
        bound."""
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
        """Return C sqrt(sum 1/w^2)."""
        return self.clip * math.sqrt(math.fsum(w**-2 for w in self.clip_weights))

    def shaped(self, seen: tuple[float, ...]) -> HaarGaussian:
        """Return the mechanism with learned weights, at the same price."""
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
