r"""Noise that clients share: which studies can have it, and the sums that the server opens.

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
from typing import TYPE_CHECKING

import numpy as np

from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Masked, Vector
from sordino.base.residues import Residues, added, unpacked
from sordino.core.world import Summing
from sordino.mechanisms.shared import FEWEST_BITS, MOST_BITS, SharedNoise
from sordino.privacy import Event, Gaussian, PoissonSampled
from sordino.regimes.synchronous.method import Released, RoundNoise, Terms
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.training.optimizer import Sgd
from sordino.training.plausible import drawn

if TYPE_CHECKING:
    from sordino.regimes.synchronous.study import SynchronousStudy

BITS = 32
CLAMPED = 2.0**-60
"""Chance that a round's batch of one client is larger than its R_i allows for."""
RELEASED = "Every opened sum of the clients' contributions, and all that the server publishes,"
SENDING = (
    "Every client sends in every round. Whether its data is in what it sends is its own secret. "
    "Privacy amplification by sampling depends on this: neither the time that a client takes nor "
    "anything else must show whether it was drawn."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSum:
    """The sum of a round whose noise the clients share, as the server knows it.

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
        """The purpose of a charge, and what its price rests on."""
        return f"a shared sum, {self.honest} honest"

    @property
    def summing(self) -> Summing:
        """The numbers that secure sums follow from."""
        return Summing(len(self.weights), self.fewest, self.fewest - self.honest, self.rule.bits)

    def event(self, contract: RoundNoise) -> Event:
        """Return what one round releases of each client, if H contributions are honest."""
        return PoissonSampled(
            sampling_rate=self.sampling_rate,
            event=Gaussian(noise_multiplier=contract.noise_multiplier),
        )

    def nothing(self) -> Residues:
        """Return the sum of no contributions (d,)."""
        return np.zeros(self.rule.dimension, np.uint64)

    def added(self, total: Residues, message: Masked) -> Residues | None:
        """Return the sum with one contribution more; None where the message holds none."""
        try:
            found = unpacked(message.values, self.rule.dimension, self.rule.bits)
        except RemoteProtocolError:
            return None
        return added(total, found, self.rule.bits)

    def released(self, values: Residues, clients: Sequence[int], contract: RoundNoise) -> Released:
        """Return the mean change (d,), float32, that an opened sum of these clients stands for."""
        grid = self.rule.grid(contract.clip, contract.noise_multiplier)
        mean: Vector = (grid.opened(values) * self._unit(clients)).astype(np.float32)
        return Released(mean=mean, clipped=None)

    def signal_to_noise(
        self, released: Released, clients: Sequence[int], contract: RoundNoise
    ) -> float:
        """Return ||signal|| / ||noise|| of a release, by an unbiased estimate; post-processing."""
        grid = self.rule.grid(contract.clip, contract.noise_multiplier)
        deviation = grid.deviation * grid.step * abs(self._unit(clients))
        noise = released.mean.size * len(clients) * deviation**2
        exact = float(np.square(released.mean, dtype=np.float64).sum())
        return math.copysign(math.sqrt(abs(exact - noise) / noise), exact - noise)

    def _unit(self, clients: Sequence[int]) -> float:
        """Return what a unit in the sum of these clients is in the mean."""
        return self.scale / sum(self.weights[i] for i in clients)


def shared(study: SynchronousStudy) -> bool:
    """Return whether clients share the noise."""
    return study.privacy.noise == "shared"


def honest(study: SynchronousStudy) -> int:
    """Return H: all clients unless the study says otherwise."""
    return study.privacy.honest or study.data.clients


def fewest(study: SynchronousStudy) -> int:
    """Return M: contributions below which a sum is not opened; H unless said otherwise."""
    return study.privacy.fewest or honest(study)


def bits(study: SynchronousStudy) -> int:
    """Return the bits of the modulus."""
    return study.privacy.bits or BITS


def summing(study: SynchronousStudy) -> Summing:
    """Return what secure sums of the study follow from."""
    least = fewest(study)
    deadline = study.participation.deadline
    return Summing(study.data.clients, least, least - honest(study), bits(study), deadline)


def refused(study: SynchronousStudy) -> str | None:
    """Return why a study's noise cannot be shared as it asks; None if it can, or is not."""
    privacy = study.privacy
    if not shared(study):
        given = [
            name for name in ("honest", "fewest", "bits") if getattr(privacy, name) is not None
        ]
        if not given:
            return None
        return (
            f"privacy.{given[0]} is about sums whose noise the clients share: set privacy.noise = "
            "'shared', or leave it out"
        )
    if privacy.unit == "none":
        return "privacy.noise 'shared' with unit 'none': there is no noise to share"
    if study.form == "paper":
        return "privacy.noise 'shared' has no paper's literal form: use form = 'sound'"
    if privacy.epsilons is not None:
        return (
            "privacy.epsilons gives each client noise of its own, and with privacy.noise 'shared' "
            "all clients have the sum's"
        )
    if privacy.mechanism.kind != "gaussian":
        return (
            "privacy.noise 'shared' is proved for the plain Gaussian mechanism, and "
            f"privacy.mechanism is '{privacy.mechanism.kind}'"
        )
    if not FEWEST_BITS <= bits(study) <= MOST_BITS:
        return f"privacy.bits must lie between {FEWEST_BITS} and {MOST_BITS}; got {privacy.bits}"
    return (
        _too_few(study)
        or (_of_clients(study) if isinstance(study.method, ClientLevel) else _of_steps(study))
        or _of_grids(study)
    )


def _too_few(study: SynchronousStudy) -> str | None:
    asked, cohort = study.data.clients, study.participation.cohort
    if asked < 2:
        return "privacy.noise 'shared' needs at least two clients, and data.clients is 1"
    if honest(study) > asked:
        return (
            f"privacy.honest = {study.privacy.honest}: at most all {asked} clients can be honest "
            "and arrive"
        )
    if not honest(study) <= fewest(study) <= asked:
        return (
            f"privacy.fewest = {study.privacy.fewest}: it must lie between privacy.honest = "
            f"{honest(study)} and the {asked} clients"
        )
    if cohort is not None and cohort < fewest(study):
        return (
            f"participation.cohort = {cohort} asks fewer clients than the {fewest(study)} whose "
            "contributions a sum needs: every round would be void. Set privacy.honest or "
            f"privacy.fewest to at most {cohort}"
        )
    return None


def _of_clients(study: SynchronousStudy) -> str | None:
    if getattr(study.method, "clipping", None) == "adaptive":
        return (
            "method.clipping 'adaptive' follows a noisy count, which no sum of shared noise holds: "
            "use 'fixed' or 'proxy'"
        )
    return None


def _of_steps(study: SynchronousStudy) -> str | None:
    """Return why sums of steps cannot share noise: only those of one step's gradients can."""
    name, tau = study.method.name, study.method.fixed_tau
    if study.method.adapts_noise or study.method.wants.loss is not None:
        return (
            f"method '{name}' reads each client's noisy loss, and with privacy.noise 'shared' only "
            "the sum of gradients is opened"
        )
    several = (
        "with privacy.noise 'shared' a round has one local step: after several, the noise of each "
        "is inside a client's own model, where nobody else's protects it (docs/shared-noise.md)"
    )
    if tau is not None and tau > 1:
        return f"{several}. Set method.tau = 1"
    if tau is None and (study.budget.steps is None or study.budget.steps > study.budget.rounds):
        return (
            f"{several}. Method '{name}' takes one where budget.steps is at most budget.rounds = "
            f"{study.budget.rounds}: set it"
        )
    if study.method.optimizer != Sgd():
        return (
            "method.optimizer works on each client's own noisy gradient, and with privacy.noise "
            "'shared' only their sum is ever opened: leave it out (method.momentum is the server's)"
        )
    return None


def _of_grids(study: SynchronousStudy) -> str | None:
    """A client knows by itself on which grid the others round, or they may hide less than it needs:
    a server that names each another clip would have up to half of the noise lost.
    """
    if not study.method.adapts_clip:
        return None
    return (
        f"method '{study.method.name}' lets earlier releases decide about the clip, and with "
        "privacy.noise 'shared' every client must know by itself on which grid the others round: "
        "use a method whose clip is fixed, or scheduled"
    )


def against(study: SynchronousStudy) -> str:
    """Return against whom the promise holds."""
    colluding = fewest(study) - honest(study)
    held = (
        f"It holds against the server and up to {colluding} of the clients together, whoever drops "
        "out of a sum."
        if colluding
        else "It holds against the server, and not against another client, who knows its own part: "
        "for that, set privacy.honest below privacy.fewest."
    )
    return (
        "This holds even if an observer knows everything but the clients' parts of the noise. "
        f"{held} A single contribution has only a part of the noise: it must travel under a mask "
        "(secure aggregation)."
    )


def resting(study: SynchronousStudy, sizes: str, batches: str) -> tuple[str, ...]:
    """Return what the promise rests on that is particular to shared noise."""
    most, n, modulus = honest(study), study.data.clients, bits(study)
    seen = (
        "The server sees who contributes to a round, and of their contributions nothing but the "
        f"sum modulo 2^{modulus}, and no sum of fewer than {fewest(study)} of the {n} clients."
    )
    parts = (
        f"The noise is shared: every client adds 1/{most} of the variance that is booked, in whole "
        f"numbers. {most} clients of every opened sum are assumed to be honest: they add their "
        "part of the noise and keep it to themselves."
    )
    secret = SENDING if isinstance(study.method, ClientLevel) else batches
    return (seen, parts, sizes, secret)


def aggregated(study: SynchronousStudy) -> bool:
    """Return whether whole clients are protected by noise on their sum."""
    return isinstance(study.method, ClientLevel) and study.method.aggregated


def shares(study: SynchronousStudy, sizes: Sequence[int]) -> list[float]:
    """Return w_i in (0, 1] of every client in a sum of clients' updates."""
    return (
        [1.0] * len(sizes)
        if study.method.weights == "equal"
        else [size / max(sizes) for size in sizes]
    )


def contribution_weights(study: SynchronousStudy, sizes: Sequence[int]) -> list[float]:
    """Return w_i in (0, 1] that each client multiplies its bounded vector with."""
    if aggregated(study):
        return shares(study, sizes)
    if study.method.weights == "size":
        return [1.0] * len(sizes)
    return [min(sizes) / size for size in sizes]


def rule(study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> SharedNoise:
    """Return all that the grids of a calibrated study follow from, which is public.

    A number of a sum of m clipped gradients is at most m C. m is more than a round's batch, but for
    a chance of 2^-60; what would be beyond is clamped, which costs no privacy.

    Raises:
        StudyError: for more honest contributions than clients.
    """
    rate = study.privacy.sampling_rate
    most = [
        weight * (1.0 if aggregated(study) else drawn(size, rate, 1, CLAMPED))
        for weight, size in zip(contribution_weights(study, sizes), sizes, strict=True)
    ]
    return SharedNoise(
        most=tuple(most),
        dimension=dimension,
        honest=honest(study),
        rounds=study.budget.rounds,
        bits=bits(study),
    )


def adder(
    study: SynchronousStudy, sizes: Sequence[int], terms: Terms, fixed: SharedNoise
) -> SharedSum:
    """Return what the server knows of the sums of a calibrated study."""
    rate = study.privacy.sampling_rate
    if aggregated(study):
        own, scale = tuple(shares(study, sizes)), 1.0 / rate
    else:
        own = terms.weights
        # max_j p_j / n_j
        by_size = study.method.weights == "size"
        largest = 1.0 / sum(sizes) if by_size else 1.0 / (len(sizes) * min(sizes))
        scale = -study.method.learning_rate * largest / rate
    return SharedSum(
        rule=fixed,
        weights=own,
        scale=scale,
        sampling_rate=rate,
        whole=aggregated(study),
        fewest=fewest(study),
    )
