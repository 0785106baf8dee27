r"""Base classes of synchronous methods: a pure rule that chooses tau and learns from answers.

The protocol around it (who takes part, deadlines, aggregation) is the regime's; the
arithmetic on raw data is the client's. A method sees only what was released.

    choose :  before a round, how many local steps tau
    fold   :  after a round, what to remember of the answers

Symbols: p_i weight of client i, B_i = q n_i its expected batch, eta the learning rate,
C the clip, sigma the noise multiplier, d the dimension, R_s rounds, R_c steps.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import msgspec
import numpy as np
from numpy.random import Generator
from pydantic import Field, model_validator

from sordino.base.arrays import Floats
from sordino.base.errors import StudyError
from sordino.base.frozen import Frozen
from sordino.base.message import Raw, Statistics, Update, Vector
from sordino.base.registry import BelowOne, Section
from sordino.core.method import METHODS, ContractBroken, Method
from sordino.mechanisms.gaussian import LARGEST, SMALLEST
from sordino.privacy import fixed_order
from sordino.training.extra_releases import Wants
from sordino.training.optimizer import OPTIMIZERS, Optimizer, Sgd


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Public facts, known before the first round.

    Attributes:
        dimension: d, number of parameters.
        sizes: n_i of every client; treated as public.
        weights: p_i of every client, adding up to 1.
        sampling_rate: q.
        learning_rate: eta.
        clip: C; infinite without privacy.
        noise: standard deviation of the noise on a sum of gradients in units of C; 0 without
            privacy.
        epsilon, delta, accountant: what was promised, and by whom it is held; for methods that
            choose their noise.
        sigma: the noise multiplier that is booked; a little less than ``noise`` where a count is
            released beside.
        scales: noise of each client over ``sigma``, where clients have epsilons of their own.
        rounds: R_s.
        steps: R_c, the most local steps that the privacy budget pays for; None without privacy.
    """

    dimension: int
    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    sampling_rate: float
    learning_rate: float
    clip: float
    noise: float
    rounds: int
    steps: int | None
    sigma: float = 0.0
    scales: tuple[float, ...] = ()
    epsilon: float = math.inf
    delta: float = 0.0
    accountant: str = "pld"

    @property
    def order(self) -> float | None:
        """alpha of an accountant of one order."""
        return fixed_order(self.accountant)

    def batch(self, client: int) -> float:
        """B_i = q n_i, in examples."""
        return self.sampling_rate * self.sizes[client]

    def effective_batch(self, client: int) -> float:
        """The batch whose mean has as much noise at sigma as this client's has at its own."""
        return self.batch(client) / (self.scales[client] if self.scales else 1.0)

    def deviation(self, client: int) -> float:
        """s_i = sigma C / B_i: standard deviation of one coordinate of a noisy mean gradient."""
        return self.noise * self.clip / self.effective_batch(client) if self.noise else 0.0


@dataclass(frozen=True, slots=True)
class Remaining:
    """The rounds and steps that remain before a round.

    Attributes:
        rounds: rounds left, this one included, in which one client may expect to take part.
        steps: local steps left to the poorest client of the round; None without a limit.
    """

    rounds: int
    steps: int | None

    @property
    def pace(self) -> float:
        """R_c left / R_s left: the tau that spends the budget evenly; infinite without a limit."""
        return math.inf if self.steps is None else self.steps / max(self.rounds, 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """A number of local steps, and why where there is something to say; 0 ends the run."""

    tau: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class RoundNoise:
    """The bound of one round's contributions, and the noise of their sum: C (or S) and sigma.

    A finite C is brought to where its bound is proven: a method that follows releases may leave it.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        if math.isfinite(self.clip):
            object.__setattr__(self, "clip", min(max(self.clip, SMALLEST), LARGEST))


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """The release of an aggregator in a round in which whole clients are protected.

    Attributes:
        mean: noisy mean of the bounded updates (d,), over the expected weight.
        clipped: noisy fraction of clients whose update was shortened, of the expected cohort; None
            if not released.
        unit: deviation in the mean of noise that has deviation 1 in the sum.
    """

    mean: Vector
    clipped: float | None
    unit: float = 1.0


class Nothing(Frozen):
    """The memory of a method that remembers nothing."""


class ServerOptimizer(Section):
    r"""An adaptive step of the server (Reddi et al. 2021, Adaptive Federated Optimization, alg. 2).

        m <- momentum m + (1 - momentum) Delta,          w <- w + rate m / (sqrt(s) + floor)

    with Delta the mean change of a round, and

        adagrad   s <- s + Delta^2
        adam      s <- decay s + (1 - decay) Delta^2
        yogi      s <- s - (1 - decay) Delta^2 sign(s - Delta^2)

    It is computed from releases, so it costs no privacy.

    Attributes:
        kind: how squares of changes add up
        rate: eta of the server's step
        decay: beta_2, of adam and yogi
        floor: tau, added to the root of squares
    """

    kind: Literal["adagrad", "adam", "yogi"]
    rate: float = Field(0.01, gt=0, le=1e6, allow_inf_nan=False)
    decay: BelowOne = 0.99
    floor: float = Field(1e-3, ge=1e-12, le=1e6, allow_inf_nan=False)

    def squares(self, before: Vector | None, change: Floats) -> Floats:
        """s (d,) after a change (d,); before the first round it is floor^2."""
        s = np.full(change.shape, self.floor**2) if before is None else before.astype(np.float64)
        square = change**2
        match self.kind:
            case "adagrad":
                return s + square
            case "adam":
                return self.decay * s + (1.0 - self.decay) * square
            case "yogi":
                return s - (1.0 - self.decay) * square * np.sign(s - square)


class SynchronousMethod(Method):
    """A method that works in rounds. Its memory is passed in and out.

    Attributes:
        learning_rate: eta, of the local steps.
        weights: p_i, by the clients' sizes or equal.
        momentum: of the server, in [0, 1); post-processing, costs no privacy.
        server: an adaptive step of the server instead of w + Delta; costs no privacy.
        mu: of a proximal term mu/2 |w' - w|^2 in the local loss (Li et al. 2020, FedProx); costs no
            privacy.
        optimizer: of the local steps.
        average: decay of the averaged global models, in [0, 1); post-processing, costs no privacy.
    """

    needs: ClassVar[tuple[str, ...]] = ("choose",)
    memory: ClassVar[type[msgspec.Struct]] = Nothing
    learning_rate: float = Field(0.5, gt=0, le=1e12, allow_inf_nan=False)
    weights: Literal["size", "equal"] = "size"
    momentum: BelowOne = 0.0
    server: ServerOptimizer | None = None
    mu: float | None = Field(None, ge=0, le=1e6, allow_inf_nan=False)
    optimizer: Annotated[Optimizer, OPTIMIZERS] = Sgd()
    average: BelowOne = 0.0

    @property
    def unpriced(self) -> str | None:
        """The reason why a form has no price, or None."""
        if self.wants.unpriced:
            return "form = 'paper' sends raw constants"
        return "its steps are divided by the batch as it was drawn" if self.realised else None

    @property
    def fixed_tau(self) -> int | None:
        """tau where it is the same in every round, for plans; None where the method chooses tau, or
        ends a run early.
        """
        return None

    @property
    def adapts_steps(self) -> bool:
        """Releases decide how many steps are taken, where tau is not fixed."""
        return self.fixed_tau is None

    @property
    def adapts_clip(self) -> bool:
        """Earlier releases decide about C (or S)."""
        return False

    @property
    def wants(self) -> Wants:
        """The requests to clients besides their weights."""
        return Wants()

    @property
    def realised(self) -> bool:
        """A step divides by the batch as it was drawn, which makes the run not private."""
        return False

    def scale(self, share: float) -> tuple[float, float]:
        """Factors on C and sigma after a share of the rounds, in [0, 1): a public schedule."""
        return 1.0, 1.0

    def round_noise(self, memory: Any, terms: Terms, number: int) -> RoundNoise:
        """C and sigma of round ``number``, from 1: the schedule's, or by earlier releases."""
        clip, noise = self.scale((number - 1) / terms.rounds)
        return RoundNoise(terms.clip * clip, terms.sigma * noise)

    def start(self, terms: Terms) -> Any:
        """Memory before the first round."""
        return self.memory()

    def choose(self, memory: Any, terms: Terms, left: Remaining) -> Choice:
        """tau for the next round; the regime cuts it to what the budget still pays for."""
        raise NotImplementedError

    def fold(self, memory: Any, terms: Terms, answers: Sequence[Update]) -> Any:
        """Memory after a round. ``answers`` come in the order of the clients' numbers."""
        return memory

    def learn(self, memory: Any, terms: Terms, released: Released) -> Any:
        """Memory after a round of which only a noisy sum is known."""
        return memory

    def observed(self, memory: Any) -> dict[str, Any]:
        """Named quantities worth a place in the log: estimates, never raw data."""
        return {}

    @model_validator(mode="after")
    def _says_what_it_must(self) -> Self:
        """Look at what a plan asks of one of somebody's own, before anything is planned."""
        asked, tau = cast(object, self.wants), cast(object, self.fixed_tau)
        factors = cast(object, self.scale(0.0))
        if not isinstance(asked, Wants):
            raise METHODS.wrong(self, "wants", asked, "Wants(...)")
        if tau is not None and not (_whole(tau) and tau != 0):
            raise METHODS.wrong(self, "fixed_tau", tau, "a whole number from 1, or None")
        if not (
            isinstance(factors, tuple)
            and len(factors) == 2
            and all(isinstance(each, Real) and float(each) > 0 for each in factors)
        ):
            raise METHODS.wrong(self, "scale", factors, "positive factors on C and on sigma")
        return self

    def chosen(self, memory: Any, terms: Terms, left: Remaining) -> Choice:
        """Return what :meth:`choose` gives, if it is a choice, and the fixed one where tau is
        fixed: epsilon is then what was spent, which releases must not decide. A method that adapts
        its noise may end a run, for its epsilon is the budget.

        Raises:
            StudyError: if it is not.
        """
        given: object = self.choose(memory, terms, left)
        if not isinstance(given, Choice) or not _whole(given.tau):
            raise METHODS.wrong(self, "choose", given, "Choice(tau), tau a whole number from 0")
        fixed = self.fixed_tau
        if fixed not in {None, given.tau} and not (given.tau == 0 and self.adapts_noise):
            raise METHODS.wrong(
                self,
                "choose",
                given,
                f"Choice({fixed}), as fixed_tau says; a method that chooses tau, or ends a run "
                "early, has a fixed_tau of None, so that epsilon is the budget",
            )
        return given

    def checked_noise(self, memory: Any, terms: Terms, number: int) -> RoundNoise:
        """Return what :meth:`round_noise` gives, if noise follows releases only where that is said:
        it is priced otherwise then.

        Raises:
            StudyError: if it is not the noise of the schedule.
        """
        given = self.round_noise(memory, terms, number)
        given = RoundNoise(float(given.clip), float(given.noise_multiplier))  # plain numbers
        _, noise = self.scale((number - 1) / terms.rounds)
        if not self.adapts_noise and given.noise_multiplier != terms.sigma * noise:
            wanted = f"sigma times what scale says, {terms.sigma * noise}, without adapts_noise"
            raise METHODS.wrong(self, "round_noise", given, wanted)
        return given

    def remembered(self, call: str, given: object) -> Any:
        """Memory that ``call`` gave, if it is such memory as the class declares.

        Raises:
            StudyError: if it is none.
        """
        if not isinstance(given, self.memory):
            raise METHODS.wrong(self, call, given, f"the {self.memory.__name__} that it declares")
        return given

    def noted(self, memory: Any) -> dict[str, Any]:
        """Return what :meth:`observed` gives, if a log can hold it.

        Raises:
            StudyError: if it cannot.
        """
        given: object = self.observed(memory)
        try:
            if not isinstance(given, dict):
                raise TypeError
            msgspec.json.encode(given)
        except TypeError:
            raise METHODS.wrong(
                self, "observed", given, "a dict of names, and numbers or texts"
            ) from None
        return given


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


DIMENSION, ROUNDS, CLIENTS = 8, 12, 3


def check(method: Method) -> None:
    """Hold a method against what the regime rests on, in some rounds with made-up releases.

    The same releases lead to the same choices, and what a method remembers survives a checkpoint.

    Raises:
        ContractBroken: naming what does not hold.
    """
    if not isinstance(method, SynchronousMethod):
        raise ContractBroken(
            f"{method.name}: is no SynchronousMethod, and its about says synchronous"
        )
    try:
        first, second = _play(method), _play(method)
    except StudyError as error:
        raise ContractBroken(str(error)) from error
    if first != second:
        raise ContractBroken(f"{method.name}: the same releases led to two different runs")


def _play(method: SynchronousMethod) -> list[Any]:
    private, found = method.private, list[Any]()
    terms = Terms(
        dimension=DIMENSION,
        sizes=(100, 50, 10),
        weights=(0.6, 0.3, 0.1),
        sampling_rate=0.1,
        learning_rate=method.learning_rate,
        clip=1.0 if private else math.inf,
        noise=1.2 if private else 0.0,
        rounds=ROUNDS,
        steps=4 * ROUNDS if private and method.about.units != ("client",) else None,
        sigma=1.2 if private else 0.0,
        epsilon=3.0 if private else math.inf,
        delta=1e-5,
        accountant="rdp@8" if method.adapts_noise else "rdp",
    )
    memory, rng = method.start(terms), np.random.default_rng(7)
    for number in range(1, ROUNDS + 1):
        steps = None if terms.steps is None else terms.steps - 2 * number + 2
        left = Remaining(ROUNDS - number + 1, steps)
        asked = [
            (method.chosen(memory, terms, left), method.checked_noise(memory, terms, number))
            for _ in range(2)
        ]
        choice, noise = asked[0]
        if asked[0] != asked[1]:
            raise ContractBroken(f"{method.name}: asked twice, it answers differently")
        if choice.tau == 0:
            break
        if private and not (0 < noise.clip < math.inf and 0 < noise.noise_multiplier < math.inf):
            raise ContractBroken(
                f"{method.name}: round {number} has clip {noise.clip} and noise "
                f"{noise.noise_multiplier}"
            )
        found += asked[0]
        memory = method.remembered("fold", _after(method, memory, terms, number, choice.tau, rng))
        if msgspec.json.decode(msgspec.json.encode(memory), type=method.memory) != memory:
            raise ContractBroken(f"{method.name}: its memory does not survive a checkpoint")
        method.noted(memory)
    return found


def _after(
    method: SynchronousMethod, memory: Any, terms: Terms, number: int, tau: int, rng: Generator
) -> Any:
    """Return the memory after a round with made-up releases."""

    def vector() -> Vector:
        return rng.standard_normal(DIMENSION).astype(np.float32)

    def statistics() -> Statistics:
        said = {"slope_first": -0.1, "slope_last": 0.05, "clipped": 0.4}
        for field in msgspec.structs.fields(Statistics):
            if field.required or getattr(wants, field.name, True):  # else it is not asked for
                said.setdefault(field.name, float(rng.uniform(0.5, 4.0)))
        return Statistics(**said)

    def answer(client: int) -> Update:
        weights = vector()
        raw = Raw(1.0, 0.5, weights) if wants.raw and number > 1 else None
        first_gradient = weights if wants.first else None
        return Update(client, number, tau, weights, statistics(), first_gradient, raw)

    if method.about.units == ("client",):
        return method.learn(memory, terms, Released(mean=vector(), clipped=float(rng.random())))
    wants = method.wants
    answers = [answer(client) for client in range(CLIENTS)]
    kept = copy.deepcopy(answers)
    after = method.fold(memory, terms, answers)
    again = method.fold(memory, terms, copy.deepcopy(answers))
    if after != again:
        raise ContractBroken(f"{method.name}: the same answers were folded in two ways")
    if not all(a == b for a, b in zip(answers, kept, strict=True)):
        raise ContractBroken(f"{method.name}: it changed the answers that it was handed")
    if method.fold(memory, terms, []) is None:
        raise ContractBroken(f"{method.name}: a round without answers leaves no memory")
    return after
