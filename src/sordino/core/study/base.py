r"""A study, whatever its regime, and the tables that every study has.

**Times that clients take**, and when they are away: seeded models for the virtual clock.
Each model of latency is a class that is the ``world.latency`` table of a study; one of your own is
a class with a registration, or ``kind = "package.module:Class"`` (docs/own-tables.md).

A task of tau steps at client i costs  scale_i (base_i + tau step)  seconds, base_i drawn anew
for every round from one of

    constant        m
    exponential     mean m
    log-normal      median m, shape s:  m exp(s N(0,1))
    pareto          minimum m, tail index a:  m U^(-1/a)

and scale_i fixed for the client, log-normal with shape ``spread`` (some devices are always slow).
With arrivals instead of rounds there are two more: *cyclic*, where all take equally long and so
answer in turn, each one K - 1 updates stale (the cyclic delay of Li et al. 2022, section 7.1.1),
and a *trace* of measured seconds from a file, of which each client plays its own column again and
again. Independently, with probability ``dropout`` a client that took a task vanishes before it
answers, and comes back after a geometric number of rounds with probability ``rejoin`` each.

Every draw has its own address (client, round), so that latencies do not depend on the order
of events or on where a run was resumed. Times in seconds.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sordino.base.entropy import Entropy, Seeded
from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_plain, readable
from sordino.base.modules import told_in_its_place
from sordino.base.registry import (
    AtLeastOne,
    NotNegative,
    Positive,
    Registry,
    Section,
    below,
    not_known,
)
from sordino.core.method import METHODS, Method
from sordino.core.study.data import Source
from sordino.mechanisms.gaussian import LARGEST, SMALLEST
from sordino.mechanisms.kinds import MECHANISMS, GaussianNoise, Noise
from sordino.privacy import accountant
from sordino.privacy.parts import expected, named
from sordino.training.outline import NAMES as MODELS


def _infinite(value: object) -> object:
    return math.inf if isinstance(value, str) and value.lower() in ("inf", "infinity") else value


def _accountant(name: str) -> str:
    try:
        return accountant(name).name
    except StudyError as error:
        raise ValueError(str(error)) from error


def _known_model(name: str) -> str:
    if ":" in name or name in MODELS:
        return name
    raise ValueError(f"{not_known(name, MODELS)}, or package.module:factory for your own")


UNITS = {
    "sample": "each training example (with data.person: all rows of each person)",
    "person": "each person (data.person) with all their examples",
    "client": "each client with all its examples",
    "label": "the label of each entity, and not its features",
    "entity": "the label and all features of each entity",
    "none": "nobody",
}
"""Whom a unit protects, in words."""

Epsilon = Annotated[float, BeforeValidator(_infinite), Field(gt=0)]


class Model(Section):
    """A model by name, or ``package.module:factory``.

    Attributes:
        name: logistic, svm, mlp, cnn, cnn-small, cnn-large or cifar-cnn; or package.module:factory,
            in a file beside the study or installed
    """

    name: Annotated[str, AfterValidator(_known_model)]


class PrivacySpec(Section):
    """The promise: what is protected, and how well.

    Attributes:
        unit: who is protected: see docs/concepts/units.md; "none" protects nobody
        epsilon: the privacy budget: no run spends more; "inf" with unit "none"
        delta: of the guarantee; below one over the number of examples
        accountant: what prices releases: pld, rdp, rdp-classic, or one Rényi order that is fixed in
            advance, such as rdp@8
        ledger: "run" for a ledger of this run alone, or a folder with a ledger of the data, which
            adds up all runs
        entropy: where noise comes from: the study's seed, which protects nobody who knows it, or a
            secret key of the operating system
    """

    unit: str
    epsilon: Epsilon | None = None
    delta: float | None = Field(None, gt=0, lt=1)
    accountant: Annotated[str, AfterValidator(_accountant)] = "pld"
    ledger: str = Field("run", min_length=1)
    entropy: Literal["seed", "system"] = "seed"

    @model_validator(mode="after")
    def _spelled_out(self) -> PrivacySpec:
        if self.unit == "none":
            if self.epsilon is not None and not math.isinf(self.epsilon):
                raise ValueError(
                    "unit 'none' promises nothing, so epsilon must be left out or 'inf'; "
                    f"got {self.epsilon}"
                )
            return self
        missing = [name for name in ("epsilon", "delta") if getattr(self, name) is None]
        if missing:
            raise ValueError(
                f"unit '{self.unit}' needs {' and '.join(missing)}: a privacy guarantee has "
                "no default"
            )
        return self


class NoisyPrivacySpec(PrivacySpec):
    """A promise kept by noise on sums of clipped contributions.

    Attributes:
        unit: who is protected: "sample", each training example; "person", each person (data.person)
            with all their examples, another name for "sample" with data.person; "client", each
            client with all its examples; "none", nobody
        clip: C, the largest norm of one contribution to a sum; larger ones are scaled down to it
        clip_per: what is clipped to C: row, the gradient of each row, unless given; or person, with
            unit "person", the sum over all rows of a person: persons are drawn instead of rows, and
            a person costs what one row costs, however many there are
        noise_multiplier: sigma, the noise on a sum in units of clip; calibrated from epsilon where
            it is left out
        evaluation_epsilon: of data.test = 'private share': what its rows pay for all evaluations
    """

    unit: Literal["sample", "person", "client", "none"]
    clip: float = Field(1.0, ge=SMALLEST, le=LARGEST, allow_inf_nan=False)
    clip_per: Literal["row", "person"] | None = None
    noise_multiplier: float | None = Field(None, le=1e6, allow_inf_nan=False)
    mechanism: Annotated[Noise, MECHANISMS] = GaussianNoise()
    evaluation_epsilon: Epsilon | None = None

    @model_validator(mode="after")
    def _has_noise(self) -> NoisyPrivacySpec:
        if self.entropy == "system" and self.unit != "none" and self.mechanism.simulated:
            raise ValueError(
                "entropy 'system' is for people's data, and no proof covers how mechanism "
                f"'{self.mechanism.kind}' is sampled: take mechanism 'gaussian', or entropy 'seed' "
                "for a simulation"
            )
        if self.unit != "none" and self.noise_multiplier is not None and self.noise_multiplier <= 0:
            raise ValueError(
                "noise_multiplier must be positive for a finite epsilon; got "
                f"{self.noise_multiplier}. Leave it out to have it calibrated, or set unit = 'none'"
            )
        return self


MOST_TRACE = 256 * MIB
LONGEST = 1e12  # seconds: clocks and checkpoints hold finite numbers


class Latency(Section):
    """Time a client needs for a task, and the ``world.latency`` table of a study.

    Attributes:
        kind: the distribution of the round trip.
        file: measured seconds, for the kinds that read them.
        typical: m, seconds.
        shape: s of log-normal, a of pareto; without effect on the others.
        step: seconds of computing for each local step.
        spread: shape of the fixed per-client factor; 0 makes all clients alike.
    """

    # whether it is for methods that work on arrival alone: rounds have no order of arrival
    on_arrival: ClassVar[bool] = False
    even: ClassVar[bool] = False  # whether all tasks of a client take equally long
    reads: ClassVar[bool] = False  # whether it needs a file

    kind: str
    file: Path | None = None
    typical: NotNegative = 1.0
    shape: Positive = 0.5
    step: NotNegative = 0.0
    spread: NotNegative = 0.0

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Latency:
        # one of somebody's own is found out before anything is charged
        if not self.reads and not self.even:
            if type(self).trip is Latency.trip:
                raise ValueError(f"latency '{self.kind}' needs a method trip")
            with told_in_its_place():
                first, again = (self.checked(self.trip(Seeded(0).at("trip"))) for _ in range(2))
            if first != again:
                raise ValueError(
                    f"latency '{self.kind}' gave {first:g} and {again:g} seconds for equal "
                    "generators; trip must draw from the one that it is given alone, or a resumed "
                    "run is another one"
                )
        if self.reads != (self.file is not None):
            raise ValueError(
                f"kind '{self.kind}' needs world.latency.file, a CSV with the columns client "
                "and seconds"
                if self.reads
                else f"kind '{self.kind}' reads no world.latency.file: leave it out, or say kind "
                "= 'trace'"
            )
        return self

    def checked(self, seconds: object) -> float:
        """Return what a draw gave, if it is a time.

        Raises:
            ValueError: if it is none.
        """
        if isinstance(seconds, (int, float, np.integer, np.floating)) and seconds >= 0:
            return min(float(seconds), LONGEST)
        raise ValueError(
            f"latency '{self.kind}' gave {seconds!r}; it must give seconds: a number, at least 0"
        )

    def trip(self, rng: Generator) -> float:
        """One draw of base_i, seconds."""
        raise NotImplementedError

    def scale(self, entropy: Entropy, client: int) -> float:
        """scale_i."""
        if not self.spread:
            return 1.0
        return min(float(entropy.at("speed", client).lognormal(0.0, self.spread)), LONGEST)

    def draw(self, entropy: Entropy, client: int, round_number: int, steps: int) -> float:
        """Seconds from the sending of a round's task to the answer's arrival."""
        trip = self.typical
        if not self.even:
            trip = self.checked(self.trip(entropy.at("latency", client, "round", round_number)))
        return min(self.scale(entropy, client) * (trip + steps * self.step), LONGEST)

    def tasks(self, entropy: Entropy, clients: int) -> Callable[[int, int], float]:
        """Seconds from the sending of a client's task, from 1, to its answer's arrival.

        A function of (client, task).

        It is called thousands of times a second.
        """
        scales = [self.scale(entropy, client) for client in range(clients)]
        if self.even:
            fixed = [min(scale * (self.typical + self.step), LONGEST) for scale in scales]
            return lambda client, task: fixed[client]
        streams = [entropy.stream("latency", client) for client in range(clients)]
        return lambda client, task: min(
            scales[client] * (self.checked(self.trip(streams[client].at(task))) + self.step),
            LONGEST,
        )


LATENCIES = Registry(base=Latency, noun="latency", place="world.latency", usual="constant")


@LATENCIES.register
class Constant(Latency):
    """m."""

    even: ClassVar[bool] = True

    kind: Literal["constant"] = "constant"

    def trip(self, rng: Generator) -> float:
        """Draw base_i, seconds."""
        return self.typical


@LATENCIES.register
class Exponential(Latency):
    """Mean m."""

    kind: Literal["exponential"] = "exponential"

    def trip(self, rng: Generator) -> float:
        """Draw base_i, seconds."""
        return self.typical * float(rng.exponential())


@LATENCIES.register
class Lognormal(Latency):
    """Median m, shape s."""

    kind: Literal["lognormal"] = "lognormal"

    def trip(self, rng: Generator) -> float:
        """Draw base_i, seconds."""
        return self.typical * float(rng.lognormal(0.0, self.shape))


@LATENCIES.register
class Pareto(Latency):
    """Minimum m, tail index a."""

    kind: Literal["pareto"] = "pareto"

    def trip(self, rng: Generator) -> float:
        """Draw base_i, seconds."""
        return self.typical * math.exp(
            min(-math.log1p(-float(rng.random())) / self.shape, math.log(LONGEST))
        )


@LATENCIES.register
class Cyclic(Constant):
    """All take equally long, and so answer in turn."""

    on_arrival: ClassVar[bool] = True

    kind: Literal["cyclic"] = "cyclic"  # type: ignore[assignment]

    def scale(self, entropy: Entropy, client: int) -> float:
        """1: nobody is slow."""
        return 1.0


@LATENCIES.register
class Trace(Latency):
    """Measured seconds: each client plays its own again and again."""

    on_arrival: ClassVar[bool] = True
    reads: ClassVar[bool] = True

    kind: Literal["trace"] = "trace"

    def tasks(self, entropy: Entropy, clients: int) -> Callable[[int, int], float]:
        """Return measured seconds of (client, task)."""
        measured = read_trace(self.file or Path(), clients)
        return lambda client, task: measured[client][(task - 1) % len(measured[client])]


def read_trace(path: Path, clients: int) -> dict[int, tuple[float, ...]]:
    """Measured seconds of each client, in order, from a CSV file of ``client`` and ``seconds``.

    Raises:
        StudyError: naming the line that cannot be used, or the client of whom nothing was measured.
    """
    found: dict[int, list[float]] = {client: [] for client in range(clients)}
    with readable(f"world.latency.file = '{path}'", remedy="Name a CSV file"):
        content = read_plain(path, MOST_TRACE).decode("utf-8")
        reader = csv.DictReader(io.StringIO(content, newline=""))
        if not {"client", "seconds"} <= set(reader.fieldnames or ()):
            raise StudyError(
                f"{path}: a trace needs the columns client and seconds; it has "
                f"{', '.join(reader.fieldnames or ())}"
            )
        for row in reader:
            try:
                client, seconds = int(row["client"]), float(row["seconds"])
            except (TypeError, ValueError):
                client, seconds = 0, math.nan
            if not 0 < seconds < math.inf:
                raise StudyError(
                    f"{path}, line {reader.line_num}: client and seconds must be numbers, and "
                    f"seconds must be positive; got {row}"
                )
            if client in found:
                found[client].append(seconds)
    if missing := [client for client, measured in found.items() if not measured]:
        raise StudyError(
            f"{path}: nothing was measured of client {missing[0]}; data.clients asks for 0 "
            f"to {clients - 1}"
        )
    return {client: tuple(measured) for client, measured in found.items()}


class World(Section):
    """The simulated world: latency, drop-out and return.

    Attributes:
        dropout: probability that a client that took a task does not answer
        rejoin: probability with which a client that dropped out comes back, in each round
    """

    latency: Annotated[Latency, LATENCIES] = Constant()
    dropout: float = Field(0.0, ge=0, le=1)
    rejoin: float = Field(0.5, gt=0, le=1)

    def away(self, rng: np.random.Generator) -> int:
        """Draw for how many rounds, from this one on, a client is away; 0 if it stays."""
        return int(rng.geometric(self.rejoin)) if rng.random() < self.dropout else 0


class Reported(Section):
    """Numbers that a publication reports of this very study; a comparison shows it beside what was
    found.

    Attributes:
        source: the publication, and where in it
        error: share of wrong answers
        accuracy: share of right answers
        seconds: of all clients together
        mib: traffic in MiB
    """

    source: str
    error: float | None = None
    accuracy: float | None = None
    seconds: float | None = None
    mib: float | None = None


class Execution(Section):
    """Settings that cannot change privacy or the meaning of results.

    Attributes:
        device: what computes: auto (a GPU where there is one), cpu, cuda, cuda:1 or mps
        threads: of the processor
        evaluate_every: rounds, updates or events between two evaluations; every round, or a
            hundredth of the updates or events, unless given
        checkpoint_every: rows of the log between two checkpoints, from which a stopped run goes on
    """

    device: str = "auto"
    threads: AtLeastOne = 1
    evaluate_every: AtLeastOne | None = None
    checkpoint_every: AtLeastOne = 10


REPEATED = (
    "This study came out of a choice among trials on its own private data. Its price covers the "
    "one run that the tuning released, and another run would be another release. Use that run's "
    "model; or leave out [tuned], set privacy.accountant, and pay for a run of its own"
)


class Tuned(Section):
    """The way in which constants were chosen.

    Attributes:
        source: "public", on data that is no study's private data; "private", on the study's own
            data by a random number of trials, which epsilon pays for; "rules", without trials.
        chosen: values by key, as they stand in the study.
        grid: what was tried, as ``KEY=V1,V2``.
        data: what it was tried on.
        measure: by what the best was chosen.
        seeds, trials: of a public choice, what was run.
    """

    source: Literal["public", "private", "rules"]
    chosen: dict[str, Any] = Field(min_length=1)
    grid: tuple[str, ...] = ()
    data: str | None = None
    measure: str | None = None
    seeds: tuple[int, ...] = ()
    trials: AtLeastOne | None = None


def refuse_repeated(tuned: Tuned | None) -> None:
    """Refuse a run of a study that came out of a choice on private data.

    Raises:
        StudyError: saying what may be done with it.
    """
    if tuned is not None and tuned.source == "private":
        raise StudyError(REPEATED)


def tuned_sentence(tuned: Tuned, accountant: str) -> str:
    """The sentence of the promise, the plan and the report."""
    chosen = {
        key: f"{value:g}" if isinstance(value, float) else value
        for key, value in tuned.chosen.items()
    }
    values = ", ".join(f"{key} = {value}" for key, value in chosen.items())
    among = f" Tried: {'; '.join(tuned.grid)}." if tuned.grid else ""
    if tuned.source == "rules":
        return f"No trial chose {values}: they follow rules from the plan (docs/tuning.md)."
    values += " was" if len(chosen) == 1 else " were"
    if tuned.source == "public":
        seeds = ", ".join(map(str, tuned.seeds))
        return (
            f"{values} chosen on public data ({tuned.data}), which costs no "
            f"privacy: the best of {tuned.trials} trials by {tuned.measure} (seeds {seeds}).{among}"
        )
    of = named(accountant)
    times = "" if of is None else f", {expected(of[1]):g} expected"
    return (
        f"{values} chosen on the private data itself, and epsilon includes the "
        f"choice: this run is the best of a random number of runs{times}, by {tuned.measure}. "
        f"Nothing of the other runs is released, nor how many there were.{among}"
    )


class Study(Section):
    """A complete study. Each regime has a kind of its own, with the keys that it understands.

    Attributes:
        name: what the study and its runs are called; method and data unless given
        seed: what the simulation is drawn from: partition, initial weights and batches; and the
            noise, with privacy.entropy = 'seed'
        tuned: how constants were chosen; see `sordino tune`
    """

    # keys of other regimes, and what to say here instead
    elsewhere: ClassVar[Mapping[str, str]] = {}
    article: ClassVar[str] = "a"
    kind: ClassVar[str] = ""
    # methods of the regime that add no noise, and that keep a promise, as complaints name them
    without: ClassVar[str] = "'fedavg'"
    within: ClassVar[str] = "'dp-sgd'"
    # whether rounds are many and short, so that a hundredth of them has a row of the log
    streams: ClassVar[bool] = False

    name: str = Field(min_length=1, max_length=200)
    seed: int = 0
    data: Source
    method: Annotated[Method, METHODS]
    privacy: PrivacySpec
    execution: Execution = Execution()
    reported: Reported | None = None
    tuned: Tuned | None = None

    @model_validator(mode="after")
    def _is_as_it_was_tuned(self) -> Study:
        if self.tuned is None:
            return self
        table = self.as_table()
        told = [
            f"{key} was chosen as {value!r}, and the study says {found!r}"
            for key, value in self.tuned.chosen.items()
            if (found := below(table, *key.split("."))) != value
        ]
        if told:
            raise ValueError(
                f"tuned: {'; '.join(told)}. Leave out [tuned] where its constants were changed"
            )
        if self.tuned.source == "private" and named(self.privacy.accountant) is None:
            raise ValueError(
                "tuned.source = 'private' needs the accountant of a selection, such as "
                "'pld-best-of-geometric@10': epsilon must include the choice"
            )
        return self

    @model_validator(mode="after")
    def _protects_what_it_can(self) -> Study:
        unit, name = self.privacy.unit, self.method.name
        if unit in self.method.about.units:
            return self
        if unit == "none":
            raise ValueError(
                f"method '{name}' adds noise, so privacy.unit must be 'sample'; for no "
                f"privacy use method {self.without}"
            )
        if not self.method.private:
            raise ValueError(
                f"method '{name}' adds no noise and gives no guarantee: set privacy.unit = "
                f"'none', or use method {self.within}"
            )
        kept = "single examples" if "sample" in self.method.about.units else "whole clients"
        wanted = " or ".join(f"'{known}'" for known in self.method.about.units)
        raise ValueError(
            f"method '{name}' protects {kept}: privacy.unit must be {wanted}; got '{unit}'"
        )

    def with_privacy(self, keys: Mapping[str, object]) -> Self:
        """Return the study with these values of keys of ``privacy``, which are not checked."""
        privacy = self.privacy.model_copy(update=dict(keys))
        return self.model_copy(update={"privacy": privacy})

    @property
    def regime(self) -> str:
        """Its name."""
        return self.method.about.regime

    @property
    def of_persons(self) -> bool:
        """Return whether the promise is for persons with several examples each."""
        return False

    @property
    def clips_persons(self) -> bool:
        """Return whether persons are drawn and clipped, each with all rows; else rows are."""
        return False

    @property
    def protected(self) -> str:
        """Return whom the promise is for: a person, or the unit."""
        return "person" if self.of_persons else self.privacy.unit

    @property
    def pays_to_test(self) -> bool:
        """Return whether models are measured on private rows, at a price."""
        return False

    @property
    def horizon(self) -> int:
        """Return how many rounds, updates or events there will be, at most."""
        raise NotImplementedError

    @property
    def stride(self) -> int:
        """Rounds, updates or events between two evaluations, and two rows of the log."""
        usual = math.ceil(self.horizon / 100) if self.streams else 1
        return self.execution.evaluate_every or usual

    @property
    def checkpoint_stride(self) -> int:
        """Rounds, updates or events between two checkpoints."""
        return self.execution.checkpoint_every * (self.stride if self.streams else 1)

    @property
    def form(self) -> str:
        """ "sound", or "paper" for a paper's literal form."""
        return getattr(self.method, "form", "sound")
