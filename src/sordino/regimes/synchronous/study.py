"""Studies in rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from sordino.base.registry import AtLeastOne, Section
from sordino.clients.study import HorizontalStudy, OrderedPromise, OwnEpsilons
from sordino.core.method import METHODS
from sordino.core.world import Summing
from sordino.mechanisms.gaussian import checked_clip
from sordino.mechanisms.shared import FEWEST_BITS, MOST_BITS
from sordino.privacy.records.group import CLIENT
from sordino.regimes.synchronous.method import SynchronousMethod
from sordino.regimes.synchronous.methods import ClientLevel, Clipped
from sordino.training.optimizer import Sgd

BITS = 32
"""Of a shared sum's modulus, unless a study says otherwise."""


class Privacy(OrderedPromise, OwnEpsilons):
    """A promise kept by Poisson sampling, or by passes in a public order.

    ``clipped_fraction`` releases how many examples were clipped, inside the same noise multiplier.
    Where whole clients are protected, ``clip`` is the bound S of an update and ``sampling_rate``
    the probability q_c with which a client is drawn. ``noise`` and the keys below it: see
    :class:`~sordino.regimes.synchronous.aggregate.SharedSum`.

    ``epsilons`` are the clients' own, where they differ; ``epsilon`` bounds them all. Noise is
    calibrated for each (``noise_multipliers``), and a client counts in the average by one over its
    square.

    Attributes:
        clipped_fraction: whether a noisy count of clipped examples is released, within the same
            noise multiplier
        noise: whose noise protects: each client's (or the aggregator's) own, or parts that clients
            share, where only their sum is opened
        honest: H, parts of a shared sum's noise that nobody else knows; all clients unless given
        fewest: contributions below which a shared sum is not opened; honest unless given
        bits: of a shared sum's modulus; 32 unless given
    """

    clipped_fraction: bool = True
    noise: Literal["own", "shared"] = "own"
    honest: AtLeastOne | None = None
    fewest: AtLeastOne | None = None
    bits: int | None = None

    # absent from the digest that noise comes from, where they are left out
    @model_validator(mode="after")
    def _has_one_price_for_each(self) -> Privacy:
        if self.epsilons is None:
            if self.noise_multipliers is not None:
                raise ValueError(
                    "noise_multipliers go with epsilons, of which each client has one: leave them "
                    "out, or give epsilons"
                )
            return self
        own = self.mechanism.kind == "gaussian" and self.noise == "own"
        if self.unit not in ("sample", "person") or not own:
            raise ValueError(
                "epsilons are of clients whose single examples are protected, each by Gaussian "
                f"noise of its own; unit is '{self.unit}', mechanism '{self.mechanism.kind}', "
                f"noise '{self.noise}': change that, or say one epsilon for all"
            )
        if not all(map(math.isfinite, self.epsilons)):
            raise ValueError("epsilons must be finite: noise is calibrated for each of them")
        if self.noise_multiplier is not None and self.noise_multipliers is None:
            raise ValueError(
                "noise_multiplier is one for all, and epsilons need one for each: leave it out to "
                "have them calibrated"
            )
        return self


class Budget(Section):
    """The length of a run.

    ``rounds`` is R_s. ``steps`` is the R_c that noise is calibrated for where an adaptive
    method leaves noise_multiplier out; twice the rounds unless given. Where noise_multiplier is
    given, epsilon alone says how many steps there are, and a plan warns if they are more.

    Attributes:
        rounds: R_s, the most rounds
        steps: R_c, the local steps that noise is calibrated for, where a method chooses their
            number; twice the rounds unless given
    """

    rounds: int = Field(ge=1, le=10**7)
    steps: AtLeastOne | None = None

    def ignored(self, affordable_steps: int | None) -> tuple[str, ...]:
        """A warning where ``steps`` was given and does not bound the run.

        Args:
            affordable_steps: steps that privacy pays for. Noise that was calibrated for ``steps``
                pays for hardly more, so many more mean that the noise was given.
        """
        steps = self.steps
        if steps is None or affordable_steps is None or affordable_steps <= 1.05 * steps + 2:
            return ()
        return (
            f"budget.steps = {self.steps} does not bound the run: noise_multiplier is given, and "
            f"privacy pays for {affordable_steps} steps. Leave noise_multiplier out to have noise "
            f"calibrated for {self.steps} steps, or lower epsilon to end earlier",
        )


class Participation(Section):
    """Participation in a round, and the time that the server waits (virtual seconds).

    Attributes:
        cohort: clients drawn for each round; all of them unless given
        deadline: virtual seconds that the server waits for answers; it waits for all of them unless
            given
    """

    cohort: AtLeastOne | None = None
    deadline: float | None = Field(None, gt=0)


class SynchronousStudy(HorizontalStudy):
    """A study of a method that works in rounds."""

    article: ClassVar[str] = "a"
    kind: ClassVar[str] = "synchronous"
    elsewhere: ClassVar[Mapping[str, str]] = {
        **HorizontalStudy.elsewhere,
        "budget.events": "say budget.rounds",
        "budget.updates": "say budget.rounds",
        "budget.tasks": "say budget.steps",
        "method.batch": "the expected batch is privacy.sampling_rate times a client's examples",
        "participation.staleness": "rounds close at participation.deadline",
        "participation.buffer": "all answers of a round are averaged",
    }

    method: Annotated[SynchronousMethod, METHODS]
    privacy: Privacy
    budget: Budget
    participation: Participation = Participation()

    @model_validator(mode="after")
    def _fits_together(self) -> SynchronousStudy:
        unit, name = self.privacy.unit, self.method.name
        self._can_look_at_public_examples()
        self._keeps_its_bounds()
        if self.participation.cohort is not None and self.participation.cohort > self.data.clients:
            raise ValueError(
                f"participation.cohort is {self.participation.cohort}, but there are "
                f"{self.data.clients} clients"
            )
        if unit == "client":
            if self.participation.cohort is not None:
                raise ValueError(
                    "participation.cohort fixes the cohort's size, but the price holds only if "
                    "each client is drawn independently: leave it out, and give the probability as "
                    "privacy.sampling_rate"
                )
            if not self.method.aggregated and self.privacy.sampling_rate != 1.0:
                raise ValueError(
                    f"method '{name}' in its paper's form has every client send in every "
                    "round: privacy.sampling_rate must be 1.0"
                )
            if self.clipping == "adaptive" and not self.privacy.mechanism.counts:
                raise ValueError(
                    "method.clipping 'adaptive' follows a noisy count, and"
                    f" privacy.mechanism '{self.privacy.mechanism.kind}' releases none: use "
                    "'fixed' or 'proxy', or the mechanism 'gaussian'"
                )
            if self.counts_clients and not (
                self.aggregated
                and self.clipping != "adaptive"
                and self.privacy.mechanism.counts
                and self.privacy.noise == "own"
            ):
                raise ValueError(
                    "method.divisor 'counted' needs a noisy count of its own beside the sum: leave "
                    "it out, or use the sound form, privacy.mechanism 'gaussian', privacy.noise "
                    "'own', and method.clipping 'fixed' or 'proxy'"
                )
            if self.method.adapts_noise:
                raise ValueError(
                    f"method '{name}' lets earlier releases decide about the noise, which has a "
                    "price for single examples only: keep it, and let the bound follow them"
                )
            if self.data.clients < 2:
                raise ValueError("data.clients is 1: unit 'client' needs at least two clients")
        if self.method.adapts_noise and self.rows_at_once > 1:
            raise ValueError(
                f"method '{name}' lets earlier releases decide about the noise, which has no known "
                "price for several rows of a person: set privacy.clip_per = 'person', or "
                "data.person_rows = 1"
            )
        self._can_have_epsilons()
        self._can_have_passes()
        if (why := _refusal_to_share(self)) is not None:
            raise ValueError(why)
        if self.privacy.mechanism.learns and unit == "sample" and self.method.optimizer != Sgd():
            raise ValueError(
                "privacy.mechanism.weights 'learned' reads noisy gradients off the models, which "
                "only plain SGD steps show: leave method.optimizer out"
            )
        if self.world.latency.on_arrival:
            raise ValueError(
                f"world.latency.kind '{self.world.latency.kind}' is for asynchronous "
                "methods; a round has no order of arrival"
            )
        if self.world.dropout > 0 and self.participation.deadline is None:
            raise ValueError(
                "world.dropout needs participation.deadline: without it the server would "
                "wait forever for missing clients"
            )
        return self

    def _can_look_at_public_examples(self) -> None:
        """Refuse a bound from public examples where there are none, or another is agreed on."""
        if self.clipping != "proxy":
            return
        if not self.data.validation:
            raise ValueError(
                "method.clipping 'proxy' needs public examples to train on: set data.validation"
            )
        if self.privacy.unit == "client" and self.privacy.mechanism.form == "paper":
            raise ValueError(
                "method.clipping 'proxy' bounds updates, and the paper's form of "
                f"privacy.mechanism '{self.privacy.mechanism.kind}' bounds the gradients of single "
                "examples by privacy.clip: leave clipping out"
            )
        if self.privacy.noise == "shared" and self.privacy.unit == "sample":
            raise ValueError(
                "method.clipping 'proxy': clients that share noise agree on its grid from "
                "privacy.clip; leave clipping out, or set privacy.noise = 'own'"
            )

    def _keeps_its_bounds(self) -> None:
        """Refuse a schedule that leaves the bounds for which float32 keeps its promise."""
        if self.privacy.unit == "none":
            return
        for number, (factor, _) in enumerate(self.factors, 1):
            place = f"privacy.clip times {factor:g}, of method '{self.method.name}' in round"
            checked_clip(self.privacy.clip * factor, f"{place} {number},")

    def _can_have_epsilons(self) -> None:
        """Refuse epsilons of clients where noise is not each client's own, or not its budget's."""
        if self.privacy.epsilons is None:
            return
        if self.form == "paper":
            raise ValueError(
                "privacy.epsilons: a paper's literal form holds nobody to a budget: use form "
                "'sound', or leave epsilons out"
            )
        method, changes = self.method, any(factors != (1.0, 1.0) for factors in self.factors)
        if method.adapts_noise or method.adapts_clip or changes:
            raise ValueError(
                f"privacy.epsilons: method '{method.name}' sets one noise for all clients, "
                "round by round: choose one with constant bound and noise, such as 'dp-sgd', "
                "'ali-dpfl' or 'als-dpfl'"
            )

    def _can_have_passes(self) -> None:
        """Refuse an order of batches where a pass has no one price, or nobody's batches are his."""
        if self.batches is None:
            return
        method = self.method
        if self.privacy.noise != "own":
            raise ValueError(
                "privacy.sampling 'passes': the noise of a pass is each client's own. Of shared "
                "noise, no client knows which steps of the others it hides with its own: set "
                "privacy.noise = 'own', or sampling = 'poisson'"
            )
        scheduled = any(noise != 1.0 for _, noise in self.factors)
        beside = method.wants.asks_scalar or method.unpriced
        if method.adapts_noise or scheduled or beside or self.form == "paper":
            raise ValueError(
                f"privacy.sampling 'passes': a pass is charged as one release, and method "
                f"'{method.name}' in this form changes the noise on the way or releases something "
                "beside its steps: use 'dp-sgd', 'ali-dpfl', 'als-dpfl' or 'dp-fedavg' in the "
                "sound form, or sampling = 'poisson'"
            )

        changes = any(clip != 1.0 for clip, _ in self.factors)
        if self.correlated and (changes or method.adapts_clip):
            raise ValueError(
                f"privacy.correlation '{self.correlated}': method '{method.name}' changes the "
                "bound from round to round, and noise of one bound takes back nothing of "
                "another's: use a constant bound, or leave correlation out"
            )

    @property
    def factors(self) -> list[tuple[float, float]]:
        """Factors on C and sigma in each round, by the method's schedule."""
        rounds = self.budget.rounds
        return [self.method.scale(number / rounds) for number in range(rounds)]

    @property
    def clipping(self) -> str | None:
        """Where the bound comes from, for methods that have a choice."""
        return self.method.clipping if isinstance(self.method, Clipped | ClientLevel) else None

    @property
    def counts_clients(self) -> bool:
        """A noisy count of a round's clients divides their sum."""
        return isinstance(self.method, ClientLevel) and self.method.divisor == "counted"

    @property
    def of_clients(self) -> bool:
        """Its method bounds what a whole client sends."""
        return isinstance(self.method, ClientLevel)

    @property
    def aggregated(self) -> bool:
        """Whole clients are protected by noise on their sum."""
        return isinstance(self.method, ClientLevel) and self.method.aggregated

    @property
    def recorded(self) -> tuple[str, int]:
        """The kind of the records of a client's data, and how many a person may be there."""
        kind, most = super().recorded
        return CLIENT if self.of_clients and self.privacy.unit == "client" else kind, most

    @property
    def shared(self) -> bool:
        """Clients share the noise."""
        return self.privacy.noise == "shared"

    @property
    def honest(self) -> int:
        """H: all clients unless the study says otherwise."""
        return self.privacy.honest or self.data.clients

    @property
    def fewest(self) -> int:
        """M: contributions below which a sum is not opened; H unless said otherwise."""
        return self.privacy.fewest or self.honest

    @property
    def bits(self) -> int:
        """The bits of the modulus."""
        return self.privacy.bits or BITS

    @property
    def summing(self) -> Summing | None:
        """The numbers that secure sums follow from, where clients share the noise."""
        if not self.shared:
            return None
        dishonest, deadline = self.fewest - self.honest, self.participation.deadline
        return Summing(self.data.clients, self.fewest, dishonest, self.bits, deadline)

    def shares(self, sizes: Sequence[int]) -> list[float]:
        """Return w_i in (0, 1] of every client in a sum of clients' updates."""
        if self.method.weights == "equal":
            return [1.0] * len(sizes)
        largest = max(sizes)
        return [size / largest for size in sizes]

    def contribution_weights(self, sizes: Sequence[int]) -> list[float]:
        """Return w_i in (0, 1] that each client multiplies its bounded vector with, where clients
        share the noise.
        """
        if self.aggregated:
            return self.shares(sizes)
        if self.method.weights == "size":
            return [1.0] * len(sizes)
        smallest = min(sizes)
        return [smallest / size for size in sizes]

    @property
    def adapts_events(self) -> bool:
        """Releases decide about the noise of later ones, or how many of which kind there are."""
        method, kinds = self.method, {noise for _, noise in self.factors}
        several = method.wants.asks_scalar or len(kinds) > 1
        return method.adapts_noise or (
            method.adapts_steps and several and self.privacy.unit == "sample"
        )

    @property
    def noise_follows_size(self) -> bool:
        """The noise of a step weighs less the more examples there are; whole clients are none."""
        return self.privacy.unit == "sample"

    @property
    def hides_sizes(self) -> bool:
        """Clients are protected as a whole, and weigh the same: their sizes are private."""
        return self.privacy.unit == "client" and self.method.weights != "size"

    @property
    def horizon(self) -> int:
        """R_s."""
        return self.budget.rounds


def _refusal_to_share(study: SynchronousStudy) -> str | None:
    """Return why a study's noise cannot be shared as it asks; None if it can, or is not."""
    privacy = study.privacy
    if not study.shared:
        sums = {"honest": privacy.honest, "fewest": privacy.fewest, "bits": privacy.bits}
        given = next((name for name, value in sums.items() if value is not None), None)
        return given and (
            f"privacy.{given} is about sums whose noise the clients share: set privacy.noise = "
            "'shared', or leave it out"
        )
    if privacy.unit == "none":
        return "privacy.noise 'shared' with unit 'none': there is no noise to share"
    if study.form == "paper":
        return "privacy.noise 'shared' has no paper's literal form: use form = 'sound'"
    if privacy.mechanism.kind != "gaussian":
        return (
            "privacy.noise 'shared' is proved for the plain Gaussian mechanism, and "
            f"privacy.mechanism is '{privacy.mechanism.kind}'"
        )
    if not FEWEST_BITS <= study.bits <= MOST_BITS:
        return f"privacy.bits must lie between {FEWEST_BITS} and {MOST_BITS}; got {privacy.bits}"
    steps = None if isinstance(study.method, ClientLevel) else _of_steps(study)
    return _too_few(study) or steps or _of_grids(study)


def _too_few(study: SynchronousStudy) -> str | None:
    asked, cohort = study.data.clients, study.participation.cohort
    if asked < 2:
        return "privacy.noise 'shared' needs at least two clients, and data.clients is 1"
    if not study.honest <= study.fewest <= asked:
        return (
            f"privacy.fewest = {study.fewest}: it must lie between privacy.honest = "
            f"{study.honest} and the {asked} clients"
        )
    if cohort is not None and cohort < study.fewest:
        return (
            f"participation.cohort = {cohort} asks fewer clients than the {study.fewest} whose "
            "contributions a sum needs: every round would be void. Set privacy.honest or "
            f"privacy.fewest to at most {cohort}"
        )
    return None


def _of_steps(study: SynchronousStudy) -> str | None:
    """Return why sums of steps cannot share noise: only those of one step's gradients can."""
    name, tau = study.method.name, study.method.fixed_tau
    if study.method.adapts_noise or study.method.wants.asks_scalar:
        return (
            f"method '{name}' follows numbers of each client, and with privacy.noise 'shared' only "
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
    if isinstance(study.method, ClientLevel):
        return (
            "method.clipping 'adaptive' follows a noisy count, which no sum of shared noise holds: "
            "use 'fixed' or 'proxy'"
        )
    return (
        f"method '{study.method.name}' lets earlier releases decide about the clip, and with "
        "privacy.noise 'shared' every client must know by itself on which grid the others round: "
        "use a method whose clip is fixed, or scheduled"
    )


TEMPLATE = (Path(__file__).parent / "template.toml").read_text(encoding="utf-8")
"""A study file to begin with."""
