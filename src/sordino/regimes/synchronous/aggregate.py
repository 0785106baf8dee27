r"""The state of a run in rounds, the sums in which clients' vectors meet, and the outcome of a
round: how far the model moves, what the method remembers, the row of the log.

Vectors are (d,) and never written to.

**The aggregator of a client-level round**: where bounded updates meet and get their noise.

    mean~ = ( sum_{i answered} w_i Delta_i + noise ) / (q_c sum_i w_i)

over all clients i in the divisor, answered or not: it is public and fixed, or multiplied by a noisy
count of the clients over the expected one. Who was drawn and did
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

**Noise that clients share.**

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
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from sordino.base.arrays import Floats
from sordino.base.entropy import Entropy, Transcript, over, raw
from sordino.base.errors import LocalProtocolError, RemoteProtocolError, StudyError
from sordino.base.message import Answer, Contribution, Masked, Update, Vector
from sordino.base.residues import Residues, added, unpacked
from sordino.clients.world import TrainingState
from sordino.core.world import EncodedSnapshot
from sordino.mechanisms.correlated import Memory, released
from sordino.mechanisms.gaussian import Bounded, learns, within
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import Event, Gaussian, Permit, Permits, PoissonSampled, covers_round
from sordino.regimes.synchronous.method import (
    Released,
    Remaining,
    RoundNoise,
    SynchronousMethod,
    Terms,
)
from sordino.regimes.synchronous.methods import clipped_fraction, signal_to_noise
from sordino.regimes.synchronous.records import SynchronousRound
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.training.passes import Blocks

MOST = 2.0**16
"""Expected contributions of a round."""
NOISE = "noise."
"""Begins the names of a checkpoint's vectors that are the memory of correlated noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSum:
    """The sum of a round's bounded updates, and its noise.

    Attributes:
        mechanism: bounds contributions and adds the noise.
        shares: w_i in (0, 1] of every client.
        units: whose data it sums, in the ledger: one unit that stands for all, or each its own; of
            every client in their order, where blocks are charged apart.
        sampling_rate: q_c.
        blocks: whose turn it is in a round, where nobody is drawn; q_c is 1 / b then.
        counted: whether the noisy count is of the clients in a round, and divides their sum.
        entropy: where the noise is drawn from, by round.
        history: what reached the server so far: who answers a round twice, from a copy of the
            server's folder, must not see whether the sums are equal.

    Raises:
        StudyError: for cohorts so large that rounding could pass the bound.
    """

    mechanism: Bounded
    shares: tuple[float, ...]
    units: tuple[str, ...]
    sampling_rate: float
    entropy: Entropy
    blocks: Blocks | None = None
    counted: bool = False
    history: Transcript = field(default_factory=Transcript)

    def __post_init__(self) -> None:
        if self.expected > MOST:
            raise StudyError(
                f"{self.expected:.0f} clients are expected in a round, and the bound of a sum is "
                f"proven for {MOST:.0f}: lower privacy.sampling_rate"
            )

    @property
    def unit(self) -> float:
        """Deviation in the mean of noise that has deviation 1 in the sum."""
        return 1.0 / self.divisor

    @property
    def divisor(self) -> float:
        """q_c sum_i w_i, which every sum is divided by."""
        return self.sampling_rate * sum(self.shares)

    @property
    def expected(self) -> float:
        """The expected number of clients in a cohort."""
        return self.sampling_rate * len(self.shares)

    def event(self, round_noise: RoundNoise) -> Event:
        """Return what one round releases of each client, or one pass."""
        event = self.mechanism.scaled(round_noise.clip, round_noise.noise_multiplier).event()
        if self.blocks is not None:
            return event
        return PoissonSampled(sampling_rate=self.sampling_rate, event=event)

    def release(
        self,
        answers: Sequence[Contribution],
        round_noise: RoundNoise,
        number: int,
        dimension: int,
        permits: Permits,
        seen: tuple[float, ...] = (),
        noise: Memory | None = None,
    ) -> tuple[Released, Memory | None]:
        """The noisy mean of a round, perhaps of no ``answers``, and what later noise needs.

        Args:
            seen: shapes the mechanism.
            noise: of earlier rounds, where that of later ones is correlated with it.

        Raises:
            LocalProtocolError: unless there are ``permits``, one for each unit that is charged, and
                each covers one such release in this round, or the pass that it is in, and it is the
                turn of all who answered; nothing has been computed then.
        """
        price, booked_as, units = [(self.event(round_noise), 1)], number, self.units
        if (blocks := self.blocks) is not None:
            booked_as = blocks.number(number)
            units = tuple(blocks.charged(number, units))
            for answer in answers:
                if not blocks.turn(answer.client, number):
                    raise LocalProtocolError(
                        f"round {number} is not the turn of client {answer.client}"
                    )
        own: dict[str, list[Permit]] = {unit: [] for unit in units}
        known = frozenset(own)
        for permit in permits:
            own.setdefault(permit.unit, []).append(permit)
        for unit, booked in own.items():
            covers_round(unit, booked if unit in known else (), price, booked_as)
        mechanism = self._mechanism(round_noise, seen)
        total = np.zeros(dimension, np.float64)
        excess = 0.0
        for answer in answers:
            total += self.shares[answer.client] * _within(mechanism, answer.delta)
            excess += 0.5 if self.counted else 0.5 - answer.inside
        terms = (excess, round_noise, seen, *(() if noise is None else (noise.token,)))
        hidden = self.history.digest, raw(total), repr(terms).encode()
        draws = over(self.entropy, hidden, "aggregate", "round", number, "noise")
        summed = torch.from_numpy(total)
        noisy, counted, kept = released(mechanism, summed, excess, draws, noise, number - 1)
        divisor, clipped = self.divisor, None
        if counted is not None and self.counted:  # each client added one half
            divisor *= max(2.0 * counted, 1.0) / self.expected
        elif counted is not None:
            clipped = 0.5 + counted / self.expected
        mean = (noisy.numpy() / divisor).astype(np.float32)
        return Released(mean=mean, clipped=clipped, unit=1.0 / divisor), kept

    def _mechanism(self, round_noise: RoundNoise, seen: tuple[float, ...]) -> Bounded:
        made = self.mechanism
        shaped = made.shaped(seen) if learns(made) else made
        return shaped.scaled(round_noise.clip, round_noise.noise_multiplier)

    def outcome(
        self, method: SynchronousMethod, terms: Terms, state: State, round_noise: RoundNoise
    ) -> RoundOutcome:
        """Return the outcome of a round: the release of the sum of what was contributed."""
        contributed = [a for a in _ordered(state) if isinstance(a, Contribution)]
        found, noise = self.release(
            contributed,
            round_noise,
            state.number,
            len(state.weights),
            state.permits,
            state.seen,
            state.noise,
        )
        multiplier = self._mechanism(round_noise, state.seen).vector_multiplier
        row = SynchronousRound(
            clipped=None if found.clipped is None else min(max(found.clipped, 0.0), 1.0),
            snr=_signal_to_noise(found.mean, (multiplier * round_noise.clip * found.unit) ** 2),
        )
        memory = method.remembered("learn", method.learn(state.memory, terms, found))
        return RoundOutcome(found.mean.astype(np.float64), memory, row, noise=noise)


def _within(mechanism: Bounded, delta: Vector) -> Vector:
    """A contribution (d,): as it is within the bound, else shortened to it."""
    shortened, inside = within(mechanism, torch.from_numpy(delta))
    return delta if inside else shortened.numpy()


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

    @classmethod
    def of(
        cls,
        study: SynchronousStudy,
        sizes: Sequence[int],
        average: tuple[float, ...],
        rule: SharedNoise,
    ) -> SharedSum:
        """Return the sums of a calibrated study; ``average`` is p_i of models, adding up to 1."""
        rate, weights, scale = study.privacy.sampling_rate, average, 1.0
        if study.aggregated:
            weights = tuple(study.shares(sizes))
        else:  # by max_j p_j / n_j
            by_size = study.method.weights == "size"
            largest = 1.0 / sum(sizes) if by_size else 1.0 / (len(sizes) * min(sizes))
            scale = -study.method.learning_rate * largest
        return cls(
            rule=rule,
            weights=weights,
            scale=scale / rate,
            sampling_rate=rate,
            whole=study.aggregated,
            fewest=study.fewest,
        )

    @property
    def condition(self) -> str:
        """The purpose of a charge, and what its price rests on."""
        return f"a shared sum, {self.rule.honest} honest"

    def event(self, round_noise: RoundNoise) -> Event:
        """Return what one round releases of each client, if H contributions are honest."""
        return PoissonSampled(
            sampling_rate=self.sampling_rate,
            event=Gaussian(noise_multiplier=round_noise.noise_multiplier),
        )

    def added(self, total: Residues | None, message: Masked) -> Residues | None:
        """Return the sum with one contribution more; None where the message holds none."""
        try:
            found = unpacked(message.values, self.rule.dimension, self.rule.bits)
        except RemoteProtocolError:
            return None
        return found if total is None else added(total, found, self.rule.bits)

    def released(
        self, values: Residues, clients: Sequence[int], round_noise: RoundNoise
    ) -> Released:
        """Return the mean change (d,), float32, that an opened sum of these clients stands for."""
        grid = self.rule.grid(round_noise.clip, round_noise.noise_multiplier)
        mean: Vector = (grid.opened(values) * self._unit(clients)).astype(np.float32)
        return Released(mean=mean, clipped=None)

    def outcome(
        self, method: SynchronousMethod, terms: Terms, state: State, round_noise: RoundNoise
    ) -> RoundOutcome:
        """Return the outcome of a round whose sum was opened, or void, where too few came."""
        clients = state.arrived
        row = SynchronousRound(
            cohort=state.cohort, answered=len(clients), missing=state.cohort - len(clients)
        )
        if len(clients) < self.fewest:
            void = f"{len(clients)} of the {self.fewest} contributions that a sum needs: void"
            return RoundOutcome(None, state.memory, row, void=void)
        if state.total is None:
            return RoundOutcome(None, state.memory, row, void="the sum could not be opened: void")
        released = self.released(state.total, clients, round_noise)
        grid = self.rule.grid(round_noise.clip, round_noise.noise_multiplier)
        deviation = grid.deviation * grid.step * abs(self._unit(clients))
        row = replace(row, snr=_signal_to_noise(released.mean, len(clients) * deviation**2))
        memory = method.remembered("learn", method.learn(state.memory, terms, released))
        return RoundOutcome(released.mean.astype(np.float64), memory, row)

    def _unit(self, clients: Sequence[int]) -> float:
        """Return what a unit in the sum of these clients is in the mean."""
        return self.scale / sum(self.weights[i] for i in clients)


class State(TrainingState, kw_only=True, eq=False, rename={"number": "round"}):
    """Where a synchronous run stands; of an open round nothing is kept in a checkpoint.

    Attributes:
        velocity: v of server momentum, or m of an adaptive step.
        squares: s of an adaptive step; None before the first, or where there is none.
        average: w_avg; the weights themselves where decay is 0.
        steps: local steps given to each client so far, (clients,); never written to.
        absent: clients that are thought to be out of reach.
        memory: the method's own.
        open: whether a round is under way.
        tau: local steps of the open round.
        waiting: clients of the open round that have not answered.
        cohort: how many were asked in the open round.
        answers: answers of the open round.
        arrived: clients whose contributions to the open round's sum came, ascending.
        total: the sum of what they sent (d,), modulo 2^bits; None before any came, or where it
            could not be opened.
        opening: whether that sum was asked to be opened: nothing more is added to it.
        models: last model that each client sent, for a paper's literal form only.
        seen: what releases have taught about the mechanism's shape.
        noise: of the aggregator's earlier rounds, where that of later ones is correlated with it.
        note: the method's remark on the open round.
        faults: clients whose answers the method could not use in the round that was closed last,
            and why.
        permits: that the open round's release was booked, where it is the round that is charged.
    """

    number: int
    steps: NDArray[np.int64]  # type: ignore[assignment]  # of a million clients no tuple
    velocity: Vector
    average: Vector
    squares: Vector | None = None
    absent: frozenset[int] = frozenset()
    memory: Any
    open: bool = False
    tau: int = 0
    waiting: frozenset[int] = frozenset()
    cohort: int = 0
    answers: tuple[Answer, ...] = ()
    arrived: tuple[int, ...] = ()
    total: NDArray[np.uint64] | None = None
    opening: bool = False
    models: tuple[Vector | None, ...] = ()
    seen: tuple[float, ...] = ()
    noise: Memory | None = None
    note: str | None = None
    faults: tuple[tuple[int, str], ...] = ()
    permits: tuple[Permit, ...] = ()

    @property
    def taken(self) -> int:
        """Local steps of the client that took most."""
        return int(self.steps.max())

    @property
    def latest(self) -> int:
        """Local steps of the open round."""
        return self.tau

    @property
    def model(self) -> Vector:
        """w_avg."""
        return self.average

    def closed(self) -> State:
        """Return the state without an open round."""
        return replace(
            self,
            open=False,
            tau=0,
            waiting=frozenset(),
            cohort=0,
            answers=(),
            arrived=(),
            total=None,
            opening=False,
            faults=(),
            permits=(),
        )

    def moved(self, change: Floats, method: SynchronousMethod) -> State:
        """Return the state with the model after a round that changes it by ``change`` (d,), whose
        memory is used: a long model's is scarce at a server.
        """
        momentum, server, decay, squares = method.momentum, method.server, method.average, None
        if server is None:
            velocity = step = np.add(momentum * self.velocity, change, out=change)
        else:
            velocity = momentum * self.velocity + (1.0 - momentum) * change
            squares = server.squares(self.squares, change)
            step = server.rate * velocity / (np.sqrt(squares) + server.floor)
        weights = np.empty_like(self.weights)
        average = np.add(self.weights, step, out=weights, casting="same_kind")
        if decay != 0.0 and self.number != 1:  # the random start is no model to average in
            average = (decay * self.average + (1.0 - decay) * weights).astype(np.float32)
        return replace(
            self,
            weights=weights,
            velocity=velocity.astype(np.float32),
            squares=None if squares is None else squares.astype(np.float32),
            average=average,
        )

    def pack(self) -> EncodedSnapshot:
        """Return the state between two rounds as it is kept."""
        kept = TrainingState.pack(replace(self.closed(), models=(), noise=None))
        models = {f"model.{i}": each for i, each in enumerate(self.models) if each is not None}
        noise = {} if self.noise is None else self.noise.arrays()
        more = models | {f"{NOISE}{name}": each for name, each in noise.items()}
        return EncodedSnapshot(kept.vectors | more, kept.rest)


def mean_change(weights: Vector, terms: Terms, answers: Sequence[Update]) -> Floats | None:
    """Return the weighted mean of how far the clients moved; None where nobody answered."""
    if not answers:
        return None
    total = sum(terms.weights[a.client] for a in answers)
    mean = np.zeros(weights.shape, np.float64)
    for answer in answers:
        mean += (terms.weights[answer.client] / total) * answer.weights
    mean -= weights
    return mean


def deviation(terms: Terms, tau: int, answered: Sequence[int]) -> float:
    """Return the noise in the mean of tau plain steps, of deviation 1 in a step's sum."""
    total = sum(terms.weights[i] for i in answered)
    spread = sum((terms.weights[i] / total / terms.batch(i)) ** 2 for i in answered)
    return float(terms.learning_rate * (tau * spread) ** 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class RoundOutcome:
    """The outcome of a round.

    Attributes:
        moved: Delta (d,); None where the model stays.
        memory: of the method.
        row: what of the row is known here.
        answers: models that were sent one by one, and were used.
        faults: whose were not, and why.
        void: why nothing was opened, where clients share the noise, or no answer was used; None
            if something was.
        noise: what the aggregator's later noise needs, if anything.
    """

    moved: Floats | None
    memory: Any
    row: SynchronousRound
    answers: Sequence[Update] = ()
    faults: tuple[tuple[int, str], ...] = ()
    void: str | None = None
    noise: Memory | None = None


def of_models(
    method: SynchronousMethod,
    terms: Terms,
    state: State,
    round_noise: RoundNoise,
    left: Remaining | None,
) -> RoundOutcome:
    """Return the outcome of a round in which clients sent models.

    ``left`` is what remains before the next one, if there is one.

    One client's numbers must not end a run: an answer that by itself leads the method to numbers
    that do not exist is left out. Where only several together do, nobody knows who is to blame:
    the round is void.
    """

    def folded(answers: Sequence[Update]) -> tuple[Any, str | None]:
        try:
            memory = method.remembered("fold", method.fold(state.memory, terms, answers))
            if left is not None and method.fixed_tau is None:
                method.chosen(memory, terms, left)
        except (ArithmeticError, ValueError) as error:
            return state.memory, f"{method.name} cannot use its numbers ({error})"
        return memory, None

    used = [a for a in _ordered(state) if isinstance(a, Update)]
    faults: tuple[tuple[int, str], ...] = ()
    memory, void = folded(used)
    if void is not None:
        alone = [(answer, folded([answer])[1]) for answer in used]
        faults = tuple((answer.client, fault) for answer, fault in alone if fault is not None)
        used = [answer for answer, fault in alone if fault is None]
        memory, void = folded(used)
        if void is not None:
            memory, used = folded([])[0], []
    seen = terms
    if terms.sigma:
        noise = terms.noise * round_noise.noise_multiplier / terms.sigma
        seen = with_changes(terms, clip=round_noise.clip, noise=noise)
    row = SynchronousRound(
        cohort=state.cohort,
        answered=len(used),
        missing=state.cohort - len(used),
        clipped=clipped_fraction(used, terms),
        snr=signal_to_noise(used, seen),
    )
    return RoundOutcome(mean_change(state.weights, terms, used), memory, row, used, faults, void)


def _signal_to_noise(mean: Vector, variance: float) -> float:
    """Return ||signal|| / ||noise|| of a release (d,) with noise of this variance in each number,
    by an unbiased estimate; post-processing.
    """
    noise = mean.size * variance
    exact = float(np.square(mean, dtype=np.float64).sum())
    return math.copysign(math.sqrt(abs(exact - noise) / noise), exact - noise)


def _ordered(state: State) -> list[Any]:
    return sorted(state.answers, key=lambda a: a.client)
