r"""The sum of a round whose noise the clients share: what the server knows of contributions.

    Delta~ = scale sum_{i arrived} v_i / sum_{i arrived} p_i,
    v_i = w_i S_i + its part of the noise (:mod:`sordino.mechanisms.shared`)

* unit "sample": S_i is client i's sum of clipped gradients over its Poisson batch, w_i = (p_i /
  n_i) / max_j (p_j / n_j) and scale = -eta max_j (p_j / n_j) / q. So Delta~ is the weighted mean of
  one step of DP-SGD at every client, as without a shared sum, with less noise.
* unit "client": S_i is the bounded update of a client that has drawn itself with probability q_c,
  and zero of one that has not; w_i = p_i is its weight in (0, 1], and scale = 1 / q_c.

Who sends is public, and has nothing to do with anybody's data: in both units every client that is
within reach sends in every round. Whose *data* is in the sum is known to nobody but the client.

Contributions are residues modulo 2^bits, so the sum is the same in any order of arrival. A sum of
fewer than M >= H contributions is never opened, and the round is void. So of the parts of the noise
in it, M - H clients that collude with a server who decides who drops out leave H unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Masked, Vector
from sordino.base.residues import Residues, added, unpacked
from sordino.core.world import Summing
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import Event, Gaussian, PoissonSampled
from sordino.regimes.synchronous.method import Released, RoundNoise


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSum:
    """See the module's docstring.

    Attributes:
        rule: grids of all rounds, H and the modulus.
        weights: p_i of every client.
        scale: what a sum over the weights of those who arrived is multiplied by.
        sampling_rate: q of examples, or q_c of clients.
        whole: whether whole clients are protected.
        fewest: M, contributions that a sum must have to be opened.
    """

    rule: SharedNoise
    weights: tuple[float, ...]
    scale: float
    sampling_rate: float
    whole: bool
    fewest: int

    @property
    def honest(self) -> int:
        """H: contributions for which the noise is booked."""
        return self.rule.honest

    @property
    def condition(self) -> str:
        """What a charge is for, and what its price rests on."""
        return f"a shared sum, {self.honest} honest"

    @property
    def summing(self) -> Summing:
        """What secure sums follow from."""
        return Summing(len(self.weights), self.fewest, self.fewest - self.honest, self.rule.bits)

    def event(self, contract: RoundNoise) -> Event:
        """What one round releases of each client, if H contributions of its sum are honest."""
        return PoissonSampled(
            sampling_rate=self.sampling_rate,
            event=Gaussian(noise_multiplier=contract.noise_multiplier),
        )

    def nothing(self) -> Residues:
        """The sum of no contributions (d,)."""
        return np.zeros(self.rule.dimension, np.uint64)

    def added(self, total: Residues, message: Masked) -> Residues | None:
        """The sum with one contribution more; None where the message holds none."""
        try:
            found = unpacked(message.values, self.rule.dimension, self.rule.bits)
        except RemoteProtocolError:
            return None
        return added(total, found, self.rule.bits)

    def released(self, values: Residues, clients: Sequence[int], contract: RoundNoise) -> Released:
        """The mean change (d,), float32, that an opened sum of these clients stands for."""
        grid = self.rule.grid(contract.clip, contract.noise_multiplier)
        mean: Vector = (grid.opened(values) * self._unit(clients)).astype(np.float32)
        return Released(mean=mean, clipped=None)

    def signal_to_noise(
        self, released: Released, clients: Sequence[int], contract: RoundNoise
    ) -> float:
        """||signal|| / ||noise|| of a release, by an unbiased estimate; post-processing."""
        grid = self.rule.grid(contract.clip, contract.noise_multiplier)
        deviation = grid.deviation * grid.step * abs(self._unit(clients))
        noise = released.mean.size * len(clients) * deviation**2
        exact = float(np.square(released.mean, dtype=np.float64).sum())
        return math.copysign(math.sqrt(abs(exact - noise) / noise), exact - noise)

    def _unit(self, clients: Sequence[int]) -> float:
        """What a unit in the sum of these clients is in the mean."""
        return self.scale / sum(self.weights[i] for i in clients)
