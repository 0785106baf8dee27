"""The tables that every study has: data, model, privacy, the simulated world, execution."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from sordino.base.errors import StudyError
from sordino.base.registry import did_you_mean
from sordino.base.section import Section
from sordino.core.latency import Constant, Latency
from sordino.core.study.source import Table
from sordino.data.features.front import FrontEnd, shape_of
from sordino.data.partition import Dirichlet, Iid, Partition, Shards
from sordino.mechanisms import GaussianNoise, Noise
from sordino.mechanisms.gaussian import LARGEST, SMALLEST
from sordino.privacy import accountant
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
    raise ValueError(
        f"{name!r} is not known{did_you_mean(name, MODELS) or '.'} Known: {', '.join(MODELS)}, or "
        "package.module:factory for your own"
    )


UNITS = {
    "sample": "each training example (with data.person: all rows of each person)",
    "client": "each client with all its examples",
    "label": "the label of each entity, and not its features",
    "entity": "the label and all features of each entity",
    "none": "nobody",
}
"""Whom a unit protects, in words."""

Epsilon = Annotated[float, BeforeValidator(_infinite), Field(gt=0)]


Testing = Literal["none", "file", "public share", "private share"]
SHARE = 0.2


class Data(Table):
    """Where examples come from and how they are divided among clients.

    ``test`` says what models of a file of one's own are measured on, for its rows are people:

    * "none": nothing, which is what happens unless something else is asked for;
    * "file": a file of their own (``test_file``, or ``x_test`` in an npz file), whose rows are
      declared public;
    * "public share": a share of the rows (``test_share``), which is declared public and trained on
      by nobody;
    * "private share": such a share, of which every evaluation releases how many it gets right, with
      noise and at a price.

    Published data sets come with a public test set, and take none of these.
    """

    test: Testing | None = Field(
        None,
        description="what models are measured on, with a file of your own; nothing, unless it "
        "is said",
    )
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the file's rows that are set aside; a fifth by default",
    )
    test_file: Path | None = Field(
        None, description="public rows, of the same form as file, that models are measured on"
    )
    client_column: str | None = Field(
        None, description='the column that says whose a row is; with partition = "column"'
    )
    person: str | None = Field(
        None,
        description="the column that says who a row is about: all rows of a person have one budget",
    )
    person_rows: int | None = Field(
        None,
        ge=1,
        description="with person: the first so many rows of each person are trained on, all at "
        "one client, and others are left out; public, and what everybody is priced at: 1 costs a "
        "person no more than a row",
    )
    clients: int = Field(10, ge=1, description="how many clients hold the data")
    partition: SerializeAsAny[Partition] = Iid()
    features: SerializeAsAny[FrontEnd] | None = Field(
        None, description="a fixed function of one example, whose features the model sees"
    )
    validation: int = Field(
        0,
        ge=0,
        description="training examples set aside, before partitioning, to choose by; treated "
        "as public",
    )

    client_validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each client's examples set aside to choose by; their joint accuracy "
        "is treated as public",
    )

    def seen(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of what a model sees of an example of this shape.

        Raises:
            StudyError: if the front end takes no such examples.
        """
        return shape if self.features is None else shape_of(self.features, shape)

    @property
    def deals_by_label(self) -> bool:
        """Whether who holds how many private rows follows from their labels."""
        return not self.published and self.partition.by_label

    @property
    def _several_rows(self) -> bool:
        """Whether a person may have more than one row."""
        return self.person is not None and self.person_rows != 1

    @model_validator(mode="after")
    def _one_division(self) -> Data:
        if self.validation and self.client_validation:
            raise ValueError(
                "give validation (before partitioning) or client_validation (of each "
                "client), not both"
            )
        if (self.validation or self.client_validation) and self._several_rows:
            raise ValueError(
                f"validation sets rows aside and treats them as public, and person = "
                f"'{self.person}' says that several rows may be about one person, whose other rows "
                "train: set person_rows = 1, or leave validation and client_validation out"
            )
        if self.partition.by_column and not self.client_column:
            raise ValueError(
                f"partition kind '{self.partition.kind}' needs client_column, the name of "
                "the column that says whose an example is"
            )
        if self.person_rows is not None and self.person is None:
            raise ValueError(
                "person_rows bounds the rows of each person, and no column says whose a row is: "
                "name it in person"
            )
        if self.person is not None and self.person_rows is None:
            raise ValueError(
                f"person = '{self.person}' needs person_rows, the most rows of one person that are "
                "trained on: it decides the price, so it must be public and not come from the "
                "rows. Set person_rows = 1, or a few where persons have many useful rows"
            )
        if self.client_column and not self.partition.by_column:
            raise ValueError(
                f"client_column = '{self.client_column}' says whose each example is, and "
                f"partition kind '{self.partition.kind}' would deal them to others: set "
                'partition = { kind = "column" }, or leave client_column out'
            )
        if self.client_column and self.file is None:
            raise ValueError(
                f"client_column is for a file of your own; '{self.name}' does not say whose "
                "its examples are"
            )
        return self

    @model_validator(mode="after")
    def _numbers_fit(self) -> Data:
        """Refuse what is about classes where labels are numbers."""
        if self.span is None:
            return self
        if isinstance(self.partition, Dirichlet | Shards):
            raise ValueError(
                f"partition kind '{self.partition.kind}' deals by class, and labels are numbers: "
                "use 'iid' or 'column'"
            )
        if self.test == "private share":
            raise ValueError(
                "test 'private share' pays for a count of right answers, and a number is never "
                "quite right: use 'file', 'public share' or 'none'"
            )
        if self.client_validation:
            raise ValueError(
                "client_validation is judged by accuracy, and labels are numbers: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _one_test(self) -> Data:
        shares = self.test in ("public share", "private share")
        inside = self.file is not None and self.file.suffix.lower() == ".npz"
        if self.file is None and (self.test or self.test_share or self.test_file):
            raise ValueError(
                f"test, test_share and test_file are for a file of your own; '{self.name}' "
                "has a public test set"
            )
        if self.test_file and self.test not in (None, "file"):
            raise ValueError(
                f"test_file is given, and test = '{self.test}' makes no use of it: set test "
                "= 'file', or leave test_file out"
            )
        if self.test == "file" and not self.test_file and not inside:
            raise ValueError(
                "test 'file' needs test_file, a second file of the same form, whose rows are public"
            )
        if shares and self.person is not None:
            raise ValueError(
                f"test '{self.test}' sets rows aside, and person = '{self.person}' says that "
                "several rows may be about one person, who would then both train and test: set "
                "test = 'file' with rows of other people, or test = 'none'"
            )
        if self.test_share is not None and not shares:
            raise ValueError(
                "test_share is the share of the rows that is set aside: set test = 'public "
                "share' or 'private share' with it"
            )
        return self

    @property
    def testing(self) -> Testing | Literal["published"]:
        """What models are measured on, defaults filled in: of one's own file, nothing."""
        if self.file is None:
            return "published"
        return self.test or ("file" if self.test_file else "none")


class Model(Section):
    """A model by name, or ``package.module:factory``."""

    name: Annotated[str, AfterValidator(_known_model)] = Field(
        description="logistic, svm, mlp, cnn, cnn-small, cnn-large or cifar-cnn; or "
        "package.module:factory, in a file beside the study or installed"
    )


class Promise(Section):
    """What is protected, and how well.

    ``ledger`` is "run" for a ledger of this run alone, or a folder with a ledger of the data, which
    knows records and outlives runs. ``entropy`` is where batches and noise are drawn from: the
    study's "seed", which anybody can draw from again, or the operating "system", which protects.
    """

    unit: str = Field(
        description='who is protected: see docs/concepts/units.md; "none" protects nobody'
    )
    epsilon: Epsilon | None = Field(
        None, description='the privacy budget: no run spends more; "inf" with unit "none"'
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description="of the guarantee; below one over the number of examples"
    )
    accountant: Annotated[str, AfterValidator(_accountant)] = Field(
        "pld",
        description="what prices releases: pld, rdp, rdp-classic, or one Rényi order that is "
        "fixed in "
        "advance, such as rdp@8",
    )
    ledger: str = Field(
        "run",
        min_length=1,
        description='"run" for a ledger of this run alone, or a folder with a ledger of the '
        "data, which "
        "adds up all runs",
    )
    entropy: Literal["seed", "system"] = Field(
        "seed",
        description="where noise comes from: the study's seed, which protects nobody who knows "
        "it, or a "
        "secret key of the operating system",
    )

    @model_validator(mode="after")
    def _spelled_out(self) -> Promise:
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


class NoisyPromise(Promise):
    """A promise kept by noise on sums of clipped contributions."""

    unit: Literal["sample", "client", "none"] = Field(
        description='who is protected: "sample", each training example; "client", each client '
        "with all "
        'its examples; "none", nobody'
    )
    clip: float = Field(
        1.0,
        ge=SMALLEST,
        le=LARGEST,
        allow_inf_nan=False,
        description="C, the largest norm of one contribution to a sum; larger ones are scaled "
        "down to "
        "it",
    )
    noise_multiplier: float | None = Field(
        None,
        le=1e6,
        allow_inf_nan=False,
        description="sigma, the noise on a sum in units of clip; calibrated from epsilon where "
        "it is "
        "left out",
    )
    mechanism: SerializeAsAny[Noise] = GaussianNoise()
    evaluation_epsilon: Epsilon | None = Field(
        None, description="of data.test = 'private share': what its rows pay for all evaluations"
    )

    @model_validator(mode="after")
    def _has_noise(self) -> NoisyPromise:
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


class World(Section):
    """The simulated world: latency, drop-out and return."""

    latency: SerializeAsAny[Latency] = Constant()
    dropout: float = Field(
        0.0, ge=0, le=1, description="probability that a client that took a task does not answer"
    )
    rejoin: float = Field(
        0.5,
        gt=0,
        le=1,
        description="probability with which a client that dropped out comes back, in each round",
    )


class Reported(Section):
    """What a publication reports of this very study; a comparison shows it beside what was found.

    ``error`` and ``accuracy`` are shares, ``seconds`` those of all clients, ``mib`` is traffic.
    """

    source: str = Field(description="the publication, and where in it")
    error: float | None = Field(None, description="share of wrong answers")
    accuracy: float | None = Field(None, description="share of right answers")
    seconds: float | None = Field(None, description="of all clients together")
    mib: float | None = Field(None, description="traffic in MiB")


class Execution(Section):
    """What cannot change privacy or the meaning of results.

    ``evaluate_every`` counts rounds (all of them unless given) or updates (a hundredth of them);
    ``checkpoint_every`` counts what is logged.
    """

    device: str = Field(
        "auto",
        description="what computes: auto (a GPU where there is one), cpu, cuda, cuda:1 or mps",
    )
    threads: int = Field(1, ge=1, description="of the processor")
    evaluate_every: int | None = Field(
        None,
        ge=1,
        description="rounds, updates or events between two evaluations; every round, or a "
        "hundredth of "
        "the updates or events, unless given",
    )
    checkpoint_every: int = Field(
        10,
        ge=1,
        description="rows of the log between two checkpoints, from which a stopped run goes on",
    )
