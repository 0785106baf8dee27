"""Studies in which parties hold different features of the same entities, and events come one after another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from sordino.method.online import Count, OnlineMethod, Threshold
from sordino.section import Section
from sordino.study.base import Study
from sordino.study.sections import Epsilon, Execution, Promise, Source


def _feature(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"a column is a name or a number from 0; got {value!r}")
    return value


Feature = Annotated[str | int, BeforeValidator(_feature)]


class SlicesParts(Section):
    """Contiguous slices of the features, as equal as can be."""

    kind: Literal["slices"]


class ColumnsParts(Section):
    """Groups of a table's columns, by name or number, one for each party."""

    kind: Literal["columns"]
    groups: tuple[tuple[Feature, ...], ...]


class RegionsParts(Section):
    """A grid of rectangles of an image."""

    kind: Literal["regions"]
    rows: int = Field(ge=1)
    columns: int = Field(ge=1)


class ReplayStream(Section):
    """The data set in random order, epoch after epoch."""

    kind: Literal["replay"]


class DeformedStream(Section):
    """Endless deformed images; ``size`` renders them on a grid of so many pixels a side."""

    kind: Literal["deformed"]
    size: int | None = Field(None, ge=4)


class FileStream(Section):
    """The rows of the file, in its order, once."""

    kind: Literal["file"]


class NoDrift(Section):
    """The world stays as it is."""

    kind: Literal["none"] = "none"


class ClassesDrift(Section):
    """New probabilities of the classes every so many events, at once; ``gradual`` moves from one to the next."""

    kind: Literal["classes", "gradual"]
    every: int = Field(50, ge=1)


class SwapDrift(Section):
    """Two classes change their names every so many events."""

    kind: Literal["swap"]
    every: int = Field(ge=1)


class FeaturesDrift(Section):
    """Gain and offset of the features change, at once or growing, every so many events."""

    kind: Literal["features"]
    every: int = Field(ge=1)
    strength: float = Field(0.5, ge=0, allow_inf_nan=False)
    sudden: bool = False


def _by_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Parts = Annotated[SlicesParts | ColumnsParts | RegionsParts, Field(discriminator="kind"), BeforeValidator(_by_name)]
Streaming = Annotated[ReplayStream | DeformedStream | FileStream, Field(discriminator="kind"), BeforeValidator(_by_name)]
Drift = Annotated[NoDrift | ClassesDrift | SwapDrift | FeaturesDrift, Field(discriminator="kind"), BeforeValidator(_by_name)]


class VerticalData(Source):
    """A stream of examples, and which features each party holds.

    ``entity`` is the column that says whose a row is; without one every row is an entity of its own (a data
    set that is replayed knows its rows). ``classes`` are the labels of a file that is read as a stream, known
    to all. ``scale`` divides every feature, a public constant.
    """

    parties: int = Field(4, ge=1)
    parts: Parts = SlicesParts(kind="slices")
    stream: Streaming = ReplayStream(kind="replay")
    drift: Drift = NoDrift()
    entity: str | None = None
    classes: tuple[str, ...] | None = None
    scale: float = Field(1.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _fits_together(self) -> VerticalData:
        if isinstance(self.parts, ColumnsParts) and len(self.parts.groups) != self.parties:
            raise ValueError(f"parts has {len(self.parts.groups)} groups of columns; parties is {self.parties}: one group for each")
        if isinstance(self.parts, RegionsParts) and self.parts.rows * self.parts.columns != self.parties:
            raise ValueError(f"parts has {self.parts.rows} x {self.parts.columns} regions; parties is {self.parties}")
        if isinstance(self.stream, FileStream):
            if self.file is None and self.name not in ("susy", "higgs"):
                raise ValueError("stream 'file' reads a CSV or Parquet file in its own order: give file, or name 'susy' or 'higgs'")
            if self.file is not None and self.classes is None:
                raise ValueError(
                    "stream 'file' needs classes, the labels that there are: they are public, and are not looked up in the data"
                )
            if self.file is None and (self.entity is not None or self.classes is not None):
                raise ValueError(f"entity and classes are for files of your own; the columns of '{self.name}' are known")
            if isinstance(self.drift, ClassesDrift):
                raise ValueError(f"drift '{self.drift.kind}' draws examples by class, and a file is read in its order: use stream 'replay'")
        elif self.name in ("susy", "higgs"):
            raise ValueError(f"data set '{self.name}' is read as a stream: set stream = 'file'")
        elif self.entity is not None or self.classes is not None:
            raise ValueError("entity and classes are for files that are read as a stream: set stream = 'file'")
        elif self.scale != 1.0 and self.file is None:
            raise ValueError(f"scale is for files: the features of '{self.name}' are scaled already")
        return self

    @property
    def repeats(self) -> bool:
        """Whether an entity may come more than once."""
        return self.stream.kind == "replay" or self.entity is not None


class SplitModel(Section):
    """A network cut between parties and server.

    ``mlp`` is the paper's (each party: linear, ReLU; server: linear, ReLU, linear); ``physics`` its network
    for SUSY and HIGGS; ``linear`` is convex: every party scores the classes, the server adds the scores up.
    ``party`` and ``server`` name functions of your own, ``package.module:factory``:
    party(features, embedding) and server(embeddings, classes), each giving a torch module.
    """

    name: Literal["mlp", "physics", "linear", "own"] = "mlp"
    embedding: int = Field(64, ge=1)
    hidden: int = Field(256, ge=1)
    party: str | None = None
    server: str | None = None

    @model_validator(mode="after")
    def _own_is_given(self) -> SplitModel:
        if {self.party is not None, self.server is not None} != {self.name == "own"}:
            raise ValueError("name 'own', party and server (package.module:factory each) go together")
        return self


class Release(Section):
    """Gaussian noise on one bounded vector: the bound C, and the deviation of the noise in units of 2 C.

    Without ``noise_multiplier`` it is calibrated from epsilon.
    """

    clip: float = Field(1.0, gt=0, allow_inf_nan=False)
    noise_multiplier: float | None = Field(None, gt=0, allow_inf_nan=False)


class VerticalPrivacy(Promise):
    """What an entity is promised.

    ``unit`` "label" protects each entity's label, by randomised response; "entity" its features at every
    party as well, which needs noise on the ``embedding``, and ``updates`` "noisy" or "frozen": what a party's
    model has learned from raw features shows in the embeddings of others. ``label_epsilon`` is what the label
    may cost of epsilon (all of it, or a quarter with unit "entity"). ``appearances`` is how many events one entity
    may take part in; events beyond are not used (of unit "label", where every event costs: without ``memoised``). ``memoised``:
    an entity's label never changes, so its noisy label is drawn once and used in every event.
    """

    unit: Literal["entity", "label", "none"]
    label_epsilon: Epsilon | None = None
    memoised: bool = True
    appearances: int = Field(1, ge=1)
    embedding: Release | None = None
    updates: Literal["raw", "noisy", "frozen"] = "raw"
    update: Release = Release()

    @model_validator(mode="after")
    def _keeps_its_word(self) -> VerticalPrivacy:
        if self.unit == "none":
            if self.embedding is not None or self.label_epsilon is not None or self.updates != "raw":
                raise ValueError("unit 'none' promises nothing: leave label_epsilon, embedding and updates out, or set unit = 'label'")
            return self
        if self.epsilon is not None and math.isinf(self.epsilon):
            raise ValueError("epsilon must be finite for unit 'label' and 'entity'; for no promise set unit = 'none'")
        if self.label_epsilon is not None and self.epsilon is not None and self.label_epsilon > self.epsilon:
            raise ValueError(f"label_epsilon must not pass epsilon = {self.epsilon:g}; got {self.label_epsilon:g}")
        if self.updates == "noisy" and self.embedding is None:
            raise ValueError("updates 'noisy' protects features only beside noise on the embeddings: give embedding = { clip = 1.0 }")
        if self.unit == "entity" and (self.embedding is None or self.updates == "raw"):
            raise ValueError(
                "unit 'entity' protects features, which needs embedding = { clip = 1.0 } and updates = 'noisy' or 'frozen';"
                " with less, only the label can be protected: unit = 'label'"
            )
        return self


class Events(Section):
    """How many events there are."""

    events: int = Field(ge=1)


class Missing(Section):
    """What the server does without a passive party's answer: take its last embedding, zeros, or leave the event out."""

    dropout: float = Field(0.0, ge=0, lt=1)
    missing: Literal["last", "zeros", "skip"] = "last"
    precision: Literal[16, 32] = 32


class EventExecution(Execution):
    """``path`` "messages" hands every message over by itself, where it could be done without; the results are the same to rounding."""

    path: Literal["auto", "messages"] = "auto"


class VerticalStudy(Study):
    """A study of online vertical learning.

    ``world.dropout`` is the probability that a passive party does not answer in time; ``world.precision`` the
    bits of a number on its way.
    """

    article: ClassVar[str] = "a"
    kind: ClassVar[str] = "vertical"
    elsewhere: ClassVar[Mapping[str, str]] = {
        "data.clients": "say data.parties",
        "data.partition": "say data.parts, which features each party holds",
        "data.validation": "a stream has none; its error is taken before it is learned from",
        "budget.rounds": "say budget.events",
        "budget.updates": "say budget.events",
        "privacy.clip": "say privacy.embedding.clip or privacy.update.clip",
        "privacy.noise_multiplier": "say privacy.embedding.noise_multiplier or privacy.update.noise_multiplier",
        "privacy.sampling_rate": "every event is one entity: there is no batch to hide in",
        "privacy.mechanism": "labels have randomised response, embeddings and updates Gaussian noise",
        "method.window": "say method.length",
        "method.average": "there is one model at a time; leave it out",
        "world.latency": "time does not pass between events; world.dropout says how often an answer is missed",
    }

    data: VerticalData
    model: SplitModel = SplitModel()
    method: OnlineMethod
    privacy: VerticalPrivacy
    budget: Events
    world: Missing = Missing()
    execution: EventExecution = EventExecution()

    @model_validator(mode="after")
    def _fits_together(self) -> VerticalStudy:
        method, parties = self.method, self.data.parties
        if self.execution.device not in ("auto", "cpu"):
            raise ValueError(f"execution.device = '{self.execution.device}': events are played on a processor; leave it out, or say 'cpu'")
        if method.learning_rates is not None and len(method.learning_rates) != parties:
            given = len(method.learning_rates)
            raise ValueError(f"method.learning_rates has {given} numbers; data.parties is {parties}: one for each party")
        if isinstance(method.activation, Count) and method.activation.k > parties:
            raise ValueError(f"method.activation.k is {method.activation.k}, but there are {parties} parties")
        if method.batch > 1 and self.privacy.embedding is not None:
            raise ValueError("method.batch must be 1 where embeddings carry noise: each entity has its own bound and price")
        self._promises_what_holds()
        if self.privacy.unit == "entity" and isinstance(method.activation, Threshold):
            raise ValueError(
                "method.activation 'event' tells whether a party's mean feature is above the threshold, which no noise hides:"
                " with unit 'entity' use 'random', 'count' or 'full'"
            )
        return self

    def _promises_what_holds(self) -> None:
        data, privacy = self.data, self.privacy
        if privacy.unit == "none":
            return
        if isinstance(data.stream, ReplayStream) and isinstance(data.drift, ClassesDrift):
            raise ValueError(
                f"data.drift '{data.drift.kind}' draws an entity by its label, so when it comes would tell its label:"
                f" with unit '{privacy.unit}' use stream 'deformed', or drift 'features'"
            )
        if privacy.memoised and data.repeats and isinstance(data.drift, SwapDrift):
            raise ValueError(
                "privacy.memoised tells an entity's label once and for all, and data.drift 'swap' changes it:"
                " set memoised = false, and appearances to the events that one entity may take part in"
            )
        if privacy.ledger != "run" and isinstance(data.stream, DeformedStream):
            raise ValueError(
                "privacy.ledger of the data would promise something to those behind the images,"
                " and with stream 'deformed' every deformed image counts as an entity of its own: set ledger = 'run'"
            )

    @staticmethod
    def without() -> str:
        """See :class:`Study`."""
        return "'ogd', 'slr' or 'dlr'"

    @staticmethod
    def within() -> str:
        """See :class:`Study`."""
        return "'ogd', 'slr' or 'dlr'"

    @property
    def horizon(self) -> int:
        """Events."""
        return self.budget.events

    @property
    def stride(self) -> int:
        """A hundredth of the stream, unless something else was asked for."""
        return self.execution.evaluate_every or max(math.ceil(self.budget.events / 100), 1)

    @property
    def checkpoint_stride(self) -> int:
        """So many rows of the log, in events."""
        return self.execution.checkpoint_every * self.stride
