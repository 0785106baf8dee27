r"""Randomised response: a label leaves its owner as another one, sometimes.

Of K classes the own one y is told with probability p, each of the others with probability q:

    p  =  e^epsilon / (e^epsilon + K - 1),        q  =  1 / (e^epsilon + K - 1).

Replace the entity's label by another: no answer becomes more than p/q = e^epsilon times as likely,
with delta = 0 (Warner 1965 for K = 2; Kairouz, Bonawitz and Ramage 2016, section 2). The adjacency
is replace-one, and the price holds for the whole: :class:`~sordino.privacy.event.PoissonSampled`
must not be put around it.

**Exactly.** A uniform is one of N = 2^53 equally likely steps. With the whole numbers

    m  =  ceil(N q),        T  =  N - (K - 1) m,

steps below T tell y, and each m of the others one other class: p' = T/N <= p, q' = m/N >= q, so T/m
<= p/q = e^epsilon and the others are exactly alike. Of the arithmetic nothing is left to rounding:
N q is found to 50 digits and rounded up. The slack is less than one step for each other class: p' >
p - (K - 1) 2^-53. From epsilon = 37 on m is 1, and what is realised stays near 37, below what is
booked. epsilon below about K^2 2^-53, where T > m cannot be had, is refused. K = 1 tells nothing
and costs nothing.

**NoiseRequest again.** Fresh answers for one label let its owner's label be seen by counting: n of
them cost n epsilon by basic composition (:class:`~sordino.privacy.event.Repeated` of the event:
exact for K = 2, never too low for more). An answer that is a fixed function of a secret uniform u_e
of the entity and of its label,

    r_e = f(u_e, y_e),        u_e = SipHash under a secret key of (epsilon, K, e, visit),

is the same whenever it is asked for, so all its copies together are one release and cost epsilon
once - *if the entity has one label for good*. Let it not: with the same u, labels (y, y) are always
answered by equal pairs, labels (y, y') by (y, y') with probability p. So an unequal pair is proof
of a change, and no epsilon bounds that (not 2 epsilon either). The same goes for draws keyed by (e,
y), and by (e, number of changes so far): equal labels give equal answers for sure, other labels do
not. A draw may be shared only among visits whose labels are equal in every neighbouring data set.
Hence two rules:

* ``visits`` left out: one draw for an entity. For streams that promise one fixed label for each
  entity. epsilon, once.
* ``visits`` given: one draw for (entity, visit). Every visit may have its own label; an entity with
  v different visit numbers pays v epsilon. The numbers must not depend on labels: those of events
  in the stream, or how often the entity came before.

In one key, every (epsilon, K) has draws of its own: two mechanisms on one label compose as
independent releases. As a pseudorandom function's, the guarantee of keyed draws is against those
who cannot break SipHash and do not know the key.

**What is learned.** If the predictions do not depend on the answers' chance, the share a that
agrees with the answers has mean s p' + (1 - s) q', s being the share of right predictions: (a - q')
/ (p' - q') is unbiased for s. It is not for a model that has learned from an entity's answer and is
then tested on the same one: it will agree too often.

>>> mechanism = RandomisedResponse(epsilon=2.0, classes=10)
>>> mechanism.event()
Pure(epsilon=2.0)
>>> labels = np.array([3, 3, 7])
>>> key = secret(np.random.default_rng(1))
>>> three = mechanism.respond_for(labels, np.array([5, 5, 6]), key)
>>> bool((three[:2] == mechanism.respond_for(labels[:2], np.array([5, 5]), key)).all())
True
>>> round(mechanism.keep, 4), round(mechanism.accuracy(mechanism.keep), 4)
(0.4509, 1.0)

References:
    Warner 1965, Randomized Response: A Survey Technique for Eliminating Evasive Answer Bias.
    Kairouz, Bonawitz and Ramage 2016, Discrete Distribution Estimation under Local Privacy.
    Aumasson and Bernstein 2012, SipHash: a fast short-input PRF.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sordino.base.arrays import Array, Ints
from sordino.base.errors import DataError, StudyError
from sordino.base.siphash import siphash
from sordino.privacy import event

STEPS = 2**53
"""N: as many uniforms are told apart."""

_ONE_STEP = 64.0  # e^64 > N: from here on m is 1 whatever epsilon


Key = tuple[int, int]


def secret(rng: Generator) -> Key:
    """128 bits of key.

    Draw them once, from an addressed generator: another key is another answer to the same question.
    """
    first, second = rng.integers(0, 2**64, 2, dtype=np.uint64)
    return int(first), int(second)


@lru_cache(maxsize=256)
def _divided(epsilon: float, classes: int) -> tuple[int, int]:
    """(T, m): of N steps, how many keep the label and how many go to each other class."""
    if classes == 1:
        return STEPS, 0
    with localcontext() as context:
        context.prec, context.rounding = 100, ROUND_CEILING
        # below e^epsilon: its rounding is far smaller
        grown = Decimal(min(epsilon, _ONE_STEP)).exp() * (1 - Decimal("1e-50"))
        other = int((STEPS / (grown + (classes - 1))).to_integral_value())
    return STEPS - (classes - 1) * other, other


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomisedResponse:
    """Tell a label of K classes, or with some probability another.

    Attributes:
        epsilon: of one answer, above 0 and finite, dimensionless.
        classes: K, from 1. Labels are whole numbers from 0 to K - 1.

    Raises:
        StudyError: for an epsilon that is no positive number, or too small for 53 bits; for no
            classes.
    """

    epsilon: float
    classes: int

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise StudyError(
                "epsilon of randomised response must be a positive number; got "
                f"{self.epsilon}. For no privacy, tell the labels"
            )
        if operator.index(self.classes) < 1:
            raise StudyError(f"classes must be a whole number from 1; got {self.classes}")
        kept, other = _divided(self.epsilon, self.classes)
        if kept <= other:
            least = self.classes**2 * 2.0**-53
            raise StudyError(
                f"epsilon = {self.epsilon} is too small to be drawn for {self.classes} "
                f"classes: take more than {least:.2g}"
            )

    @property
    def keep(self) -> float:
        """p', exactly: how probable it is that the own label is told."""
        return _divided(self.epsilon, self.classes)[0] / STEPS

    @property
    def other(self) -> float:
        """q', exactly: how probable each other label is; 0 if there is none."""
        return _divided(self.epsilon, self.classes)[1] / STEPS

    def event(self) -> event.Pure:
        """The fact that the ledger keeps of one answer: epsilon, or 0 if there is one class."""
        return event.Pure(epsilon=self.epsilon if self.classes > 1 else 0.0)

    def respond(self, labels: Array, rng: Generator) -> Ints:
        """Answers (n,) for labels (n,), each by a draw of its own: every one is a release.

        Whoever it is about.

        Args:
            labels: whole numbers from 0 to K - 1; left as they are.
            rng: gives a uniform of 53 bits for each.

        Raises:
            DataError: for labels that are not such.
        """
        whole = self._checked(labels)
        return self._answers(whole, (rng.random(len(whole)) * STEPS).astype(np.int64))

    def respond_for(
        self, labels: Array, entities: Array, key: Key, visits: Array | None = None
    ) -> Ints:
        """Answers (n,) for labels (n,) that are the same whenever they are asked for.

        Args:
            labels: whole numbers from 0 to K - 1; left as they are. Without ``visits``, an entity
                has one label for good: this is the caller's promise, and nothing here can see it
                broken.
            entities: whole numbers (n,) of the entities, modulo 2^64.
            key: of :func:`secret`; the same for as long as the answers are to be the same.
            visits: whole numbers (n,), modulo 2^64, that do not depend on any label. An entity pays
                for every different one.

        Raises:
            DataError: for labels or numbers that are not such.
        """
        whole = self._checked(labels)
        left = _numbers(entities, "entities", len(whole))
        right = np.zeros_like(left) if visits is None else _numbers(visits, "visits", len(whole))
        setting = np.array([np.float64(self.epsilon).view(np.uint64), self.classes], np.uint64)
        first, second = (np.full(len(whole), word) for word in setting)
        words = siphash(key, first, second, left, right)
        return self._answers(whole, (words >> np.uint64(11)).astype(np.int64))

    def accuracy(self, agreement: float) -> float:
        """An unbiased estimate of the share of right predictions, from agreement with answers.

        It is not kept within [0, 1], which would bias it. For what it asks of the predictions, see
        above.
        """
        return (agreement - self.other) / (self.keep - self.other)

    def _answers(self, labels: Ints, steps: Ints) -> Ints:
        """Return the answers for labels (n,) by uniforms of 53 bits (n,), as whole numbers."""
        kept, other = _divided(self.epsilon, self.classes)
        # 0..K-2: those below the label, then those above it
        others = (steps - kept) // max(other, 1)
        return np.where(steps < kept, labels, others + (others >= labels))

    def _checked(self, labels: Array) -> Ints:
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise DataError(
                "labels for randomised response must be whole numbers (n,); got "
                f"{labels.dtype} {labels.shape}"
            )
        wrong = np.flatnonzero((labels < 0) | (labels >= self.classes))
        if wrong.size:
            raise DataError(
                f"label {labels[wrong[0]]} at place {wrong[0]} is none of {self.classes} "
                "classes, which count from 0"
            )
        return labels.astype(np.int64)


def _numbers(numbers: Array, name: str, n: int) -> NDArray[np.uint64]:
    if numbers.shape != (n,) or not np.issubdtype(numbers.dtype, np.integer):
        raise DataError(
            f"{name} must be {n} whole numbers, one for each label; got {numbers.dtype} "
            f"{numbers.shape}"
        )
    return numbers.astype(np.uint64)
