r"""The aggregator of a client-level round: where bounded updates meet and get their noise.

    mean~ = ( sum_{i answered} w_i Delta_i + noise ) / (q_c sum_i w_i)

over all clients i in the divisor, answered or not: it is public and fixed. Who was drawn and did
not answer adds nothing, as if it had not been drawn. On a network this is secure aggregation, or an
aggregator that is trusted with single updates; either way nothing but ``Released`` goes on.

**Nothing enters the sum beyond the bound that was booked.** A client bounds its update itself, and
is not trusted to: a longer one is shortened here, and one within the bound keeps its bits. Without
that, two clients that send +A and -A, far above S, round the sum to multiples of A 2^-52, and what
one more client adds decides how: with S = 1e-9 and A = 2^24, an observer of two models saw who was
drawn.

**Rounding is inside the bound.** Within it, K sums in float64 of contributions of length at most S
are off by no more than sum_k 2^-53 k S, with and without one client's; together at most
2^-53 K^2 S. An honest contribution is at most S (1 - 2^-18 + 2^-21) long (:data:`SHRINK`, the
factor's, the product's and the weight's rounding), so one client moves the sum by no more than S
while K <= 2^17. Expected cohorts of more than :data:`MOST` are refused; one of those has more than
2^17 with a chance below exp(-2^14). Where a mechanism weights numbers (wavelets), its margin and
the errors are larger by the same factor, max w / min w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sordino.base.entropy import Entropy, over
from sordino.base.errors import StudyError
from sordino.base.message import Contribution, Vector
from sordino.mechanisms.gaussian import Bounded, Learning
from sordino.privacy import Event, Permit, PoissonSampled, covers_round
from sordino.regimes.synchronous.method import Released, RoundNoise

MOST = 2.0**16
"""Expected contributions of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSum:
    """The sum of a round's bounded updates, and its noise.

    Attributes:
        mechanism: bounds contributions and adds the noise.
        shares: w_i in (0, 1] of every client.
        units: whose data it sums, in the ledger: one unit that stands for all, or each its own.
        sampling_rate: q_c.
        entropy: where the noise is drawn from, by round.

    Raises:
        StudyError: for cohorts so large that rounding could pass the bound.
    """

    mechanism: Bounded
    shares: tuple[float, ...]
    units: tuple[str, ...]
    sampling_rate: float
    entropy: Entropy

    def __post_init__(self) -> None:
        if self.expected > MOST:
            raise StudyError(
                f"{self.expected:.0f} clients are expected in a round, and the bound of a sum is "
                f"proven for {MOST:.0f}: lower privacy.sampling_rate"
            )

    @property
    def unit(self) -> float:
        """Deviation in the mean of noise that has deviation 1 in the sum."""
        return 1.0 / (self.sampling_rate * sum(self.shares))

    @property
    def expected(self) -> float:
        """The expected number of clients in a cohort."""
        return self.sampling_rate * len(self.shares)

    def event(self, contract: RoundNoise) -> Event:
        """Return what one round releases of each client."""
        return PoissonSampled(
            sampling_rate=self.sampling_rate,
            event=self.mechanism.scaled(contract.clip, contract.noise_multiplier).event(),
        )

    def release(
        self,
        answers: Sequence[Contribution],
        contract: RoundNoise,
        number: int,
        dimension: int,
        permits: Sequence[Permit],
        seen: tuple[float, ...] = (),
    ) -> Released:
        """The noisy mean of a round, perhaps of no ``answers``; ``seen`` shapes the mechanism.

        Raises:
            LocalProtocolError: unless there are ``permits``, one for each unit, and each covers one
                such release in this round; nothing has been computed then.
        """
        price = [(self.event(contract), 1)]
        own: dict[str, list[Permit]] = {unit: [] for unit in self.units}
        for permit in permits:
            own.setdefault(permit.unit, []).append(permit)
        for unit, booked in own.items():
            covers_round(unit, booked if unit in self.units else (), price, number)
        mechanism = self._mechanism(contract, seen)
        total = np.zeros(dimension, np.float64)
        excess = 0.0
        for answer in answers:
            total += self.shares[answer.client] * _within(mechanism, answer.delta)
            excess += 0.5 - answer.inside
        hidden = total.tobytes() + repr((excess, contract, seen)).encode()
        draws = over(self.entropy, hidden, "aggregate", "round", number, "noise")
        noisy, counted = mechanism.release_counted(torch.from_numpy(total), excess, draws)
        mean = noisy.numpy() / (self.sampling_rate * sum(self.shares))
        return Released(
            mean=mean.astype(np.float32),
            clipped=None if counted is None else 0.5 + counted / self.expected,
        )

    def _mechanism(self, contract: RoundNoise, seen: tuple[float, ...]) -> Bounded:
        shaped = (
            self.mechanism.shaped(seen) if isinstance(self.mechanism, Learning) else self.mechanism
        )
        return shaped.scaled(contract.clip, contract.noise_multiplier)

    def signal_to_noise(
        self, released: Released, contract: RoundNoise, seen: tuple[float, ...] = ()
    ) -> float:
        """||signal|| / ||noise|| of a release, by an unbiased estimate; post-processing."""
        deviation = self._mechanism(contract, seen).vector_multiplier * contract.clip * self.unit
        noise = released.mean.size * deviation**2
        exact = float(np.square(released.mean, dtype=np.float64).sum())
        return math.copysign(math.sqrt(abs(exact - noise) / noise), exact - noise)


def _within(mechanism: Bounded, delta: Vector) -> Vector:
    """A contribution (d,): as it is within the bound, else shortened to it."""
    shortened, inside = mechanism.bounded(torch.from_numpy(delta))
    return delta if inside else shortened.numpy()
