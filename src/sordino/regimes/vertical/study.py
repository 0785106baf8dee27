"""Studies in which parties hold different features of the same entities, in a stream of events,
and a study file to begin with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from sordino.base.registry import AtLeastOne, BelowOne, Positive, Section, foreign
from sordino.core.method import METHODS
from sordino.core.study.base import Epsilon, Execution, PrivacySpec, Study
from sordino.core.study.data import Source, refuse_classes
from sordino.data.partition import DIVISIONS, Division, Slices
from sordino.data.sets import PUBLISHED
from sordino.data.stream.drift import DRIFTS, Drift, NoDrift
from sordino.data.stream.opening import STREAMS, Replay, Streaming
from sordino.mechanisms.gaussian import LARGEST, SMALLEST
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical.method import OnlineMethod

STREAMED = tuple(name for name, known in PUBLISHED.items() if known.rows is not None)
"""Published data sets that are read as streams."""


class VerticalData(Source):
    """A stream of examples, and which features each party holds.

    ``entity`` is the column that says whose a row is; without one every row is an entity of its own
    (a data set that is replayed knows its rows). ``classes`` are the labels of a file, known to
    all. ``scale`` divides every feature, a public constant.

    Attributes:
        parties: how many parties hold features
        entity: the column that says whose a row is; without it every row is an entity of its own
        classes: the labels that there are, in the order of their numbers; public, and needed for a
            file that is read as a stream
        scale: public constant that every feature is divided by
    """

    parties: AtLeastOne = 4
    parts: Annotated[Division, DIVISIONS] = Slices()
    stream: Annotated[Streaming, STREAMS] = Replay()
    drift: Annotated[Drift, DRIFTS] = NoDrift()
    entity: str | None = None
    classes: tuple[str, ...] | None = None
    scale: Positive = 1.0

    @model_validator(mode="after")
    def _fits_together(self) -> VerticalData:
        if (refusal := self.parts.refused(self.parties)) is not None:
            raise ValueError(refusal)
        if self.classes is not None:
            refuse_classes(self.classes)
        stream, known = self.stream.kind, " or ".join(map(repr, STREAMED))
        if self.stream.in_order:
            if self.file is None and self.name not in STREAMED:
                raise ValueError(
                    f"stream '{stream}' reads a CSV or Parquet file in its own order: give "
                    f"file, or name {known}"
                )
            if self.file is not None and self.classes is None:
                raise ValueError(
                    f"stream '{stream}' needs classes, the labels that there are: they are "
                    "public, and are not looked up in the data"
                )
            if self.file is None and (self.entity is not None or self.classes is not None):
                raise ValueError(
                    "entity and classes are for files of your own; the columns of "
                    f"'{self.name}' are known"
                )
        elif self.name in STREAMED:
            raise ValueError(f"data set '{self.name}' is read as a stream: set stream = 'file'")
        elif self.entity is not None:
            raise ValueError("entity is for files that are read as a stream: set stream = 'file'")
        elif self.classes is not None and self.file is None:
            raise ValueError(
                f"classes are for a file of your own; those of '{self.name}' are known"
            )
        elif self.scale != 1.0 and self.file is None:
            raise ValueError(
                f"scale is for files: the features of '{self.name}' are scaled already"
            )
        return self

    @property
    def reads_classes(self) -> bool:
        """The rows of a file say which classes there are."""
        return self.file is not None and self.classes is None

    @property
    def repeats(self) -> bool:
        """An entity may come more than once."""
        return self.stream.repeats or self.entity is not None


PARTY, SERVER = (32, 64, 98, 128), (256, 128, 64, 32)
"""Widths of the layers of the network for SUSY and HIGGS."""


class SplitModel(Section):
    """A network cut between parties and server.

    ``mlp`` is the paper's (each party: linear, ReLU; server: linear, ReLU, linear); ``physics`` its
    network for SUSY and HIGGS; ``linear`` is convex: every party scores the classes, the server
    adds the scores up. ``party`` and ``server`` name functions of your own,
    ``package.module:factory``: party(features, embedding) and server(embeddings, classes), each
    giving a torch module.

    Attributes:
        name: mlp, physics (for SUSY and HIGGS), linear (convex), or own: party and server name your
            functions
        embedding: numbers that a party sends for an entity
        hidden: width of the hidden layer at the server
        party: package.module:factory of a party's part; with name "own"
        server: package.module:factory of the server's part; with name "own"
    """

    name: Literal["mlp", "physics", "linear", "own"] = "mlp"
    embedding: AtLeastOne = 64
    hidden: AtLeastOne = 256
    party: str | None = None
    server: str | None = None

    def party_widths(self, features: int, classes: int) -> tuple[int, ...]:
        """Return the widths of a party's linear layers, its features first; of a named network."""
        if self.name == "linear":
            return features, classes
        return (features, *PARTY) if self.name == "physics" else (features, self.embedding)

    def server_widths(self, embeddings: int, classes: int) -> tuple[int, ...]:
        """Return the widths of the server's, the numbers of all embeddings first; a convex one has
        no layer.
        """
        if self.name == "linear":
            return ()
        hidden = SERVER if self.name == "physics" else (self.hidden,)
        return embeddings, *hidden, classes

    @model_validator(mode="after")
    def _own_is_given(self) -> SplitModel:
        if {self.party is not None, self.server is not None} != {self.name == "own"}:
            raise ValueError(
                "name 'own', party and server (package.module:factory each) go together"
            )
        return self


class Release(Section):
    """Gaussian noise on one bounded vector: the bound C, and the noise in units of 2 C.

    Without ``noise_multiplier`` it is calibrated from epsilon.

    Attributes:
        clip: C, the largest norm of the vector
        noise_multiplier: noise in units of 2 C; calibrated from epsilon where it is left out
    """

    clip: float = Field(1.0, ge=SMALLEST, le=LARGEST, allow_inf_nan=False)
    noise_multiplier: Positive | None = None


class VerticalPrivacy(PrivacySpec):
    """The promise to an entity.

    ``unit`` "label" protects each entity's label, by randomised response; "entity" its features at
    every party as well, which needs noise on the ``embedding``, and ``updates`` "noisy" or
    "frozen": what a party's model has learned from raw features shows in the embeddings of others.
    ``label_epsilon`` is what the label may cost of epsilon (all of it, or a quarter with unit
    "entity"). ``appearances`` is how many events one entity may take part in; events beyond are not
    used (of unit "label", where every event costs: without ``memoised``). ``memoised``: an entity's
    label never changes, so its noisy label is drawn once and used in every event.

    Attributes:
        unit: who is protected: "label", the label of each entity; "entity", its label and its
            features at every party; "none", nobody
        label_epsilon: what the label may cost of epsilon; all of it, or a quarter with unit
            "entity"
        memoised: whether an entity's noisy label is drawn once and used in every event: labels
            never change then
        appearances: events that one entity may take part in; later ones are not used
        updates: what a party learns from: "raw" features (not protected), "noisy" gradients, or
            nothing ("frozen")
    """

    unit: Literal["entity", "label", "none"]
    label_epsilon: Epsilon | None = None
    memoised: bool = True
    appearances: AtLeastOne = 1
    embedding: Release | None = None
    updates: Literal["raw", "noisy", "frozen"] = "raw"
    update: Release = Release()

    @model_validator(mode="after")
    def _keeps_its_word(self) -> VerticalPrivacy:
        most, noisy = self.epsilon, self.embedding is not None
        if self.unit == "none":
            if noisy or self.label_epsilon is not None or self.updates != "raw":
                raise ValueError(
                    "unit 'none' promises nothing: leave label_epsilon, embedding and "
                    "updates out, or set unit = 'label'"
                )
            return self
        if most is not None and math.isinf(most):
            raise ValueError(
                "epsilon must be finite for unit 'label' and 'entity'; for no promise set "
                "unit = 'none'"
            )
        if most is not None and (self.label_epsilon or 0.0) > most:
            raise ValueError(
                f"label_epsilon must not pass epsilon = {epsilon_text(most)}; got "
                f"{epsilon_text(self.label_epsilon)}"
            )
        if self.updates == "noisy" and not noisy:
            raise ValueError(
                "updates 'noisy' protects features only beside noise on the embeddings: give "
                "embedding = { clip = 1.0 }"
            )
        if self.unit == "entity" and (not noisy or self.updates == "raw"):
            raise ValueError(
                "unit 'entity' protects features, which needs embedding = { clip = 1.0 } and "
                "updates = 'noisy' or 'frozen'; with less, only the label can be protected: unit = "
                "'label'"
            )
        return self


class Events(Section):
    """The number of events.

    Attributes:
        events: how many events there are
    """

    events: AtLeastOne


class Missing(Section):
    """The stand-in for a passive party's answer: its last, zeros, or nothing (skip the event).

    Attributes:
        dropout: probability that a passive party does not answer in time
        missing: what takes the place of a missing answer: the party's last one, zeros, or the event
            is skipped
        precision: bits of a number that is sent
    """

    dropout: BelowOne = 0.0
    missing: Literal["last", "zeros", "skip"] = "last"
    precision: Literal[16, 32] = 32


class EventExecution(Execution):
    """``path`` "messages" hands every message over by itself; results are the same to rounding.

    Attributes:
        path: "messages" sends every message by itself; results are the same up to rounding
    """

    path: Literal["auto", "messages"] = "auto"


class VerticalStudy(Study):
    """A study of online vertical learning.

    ``world.dropout`` is the probability that a passive party does not answer in time;
    ``world.precision`` the bits of a number on its way.
    """

    article: ClassVar[str] = "a"
    kind: ClassVar[str] = "vertical"
    without: ClassVar[str] = "'ogd', 'slr' or 'dlr'"
    within: ClassVar[str] = "'ogd', 'slr' or 'dlr'"
    streams: ClassVar[bool] = True
    elsewhere: ClassVar[Mapping[str, str]] = {
        "data.clients": "say data.parties",
        "data.partition": "say data.parts, which features each party holds",
        "data.target": "labels of events are classes: they are drawn by randomised response, or "
        "predicted before they are learned from, and both count classes",
        "data.label_range": "labels of events are classes",
        "data.ranges": "let each party scale its own columns, or say data.scale, one public "
        "constant that divides all",
        "data.categories": "let each party encode its own columns",
        "data.missing": "let each party fill the gaps of its own columns",
        "data.validation": "a stream has none; its error is taken before it is learned from",
        "budget.rounds": "say budget.events",
        "budget.updates": "say budget.events",
        "privacy.clip": "say privacy.embedding.clip or privacy.update.clip",
        "privacy.noise_multiplier": "say privacy.embedding.noise_multiplier or "
        "privacy.update.noise_multiplier",
        "privacy.sampling_rate": "every event is one entity: there is no batch to hide in",
        "privacy.noise": "parties send embeddings of their own features, which are not added up: "
        "there is no sum in which noise could be shared",
        "privacy.mechanism": "labels have randomised response, embeddings and updates "
        "Gaussian noise",
        "method.window": "say method.length",
        "method.average": "there is one model at a time; leave it out",
        "world.latency": "time does not pass between events; world.dropout says how often an "
        "answer is missed",
    }

    data: VerticalData
    model: SplitModel = SplitModel()
    method: Annotated[OnlineMethod, METHODS]
    privacy: VerticalPrivacy
    budget: Events
    world: Missing = Missing()
    execution: EventExecution = EventExecution()

    @model_validator(mode="after")
    def _fits_together(self) -> VerticalStudy:
        method, parties = self.method, self.data.parties
        if self.execution.device not in ("auto", "cpu"):
            raise ValueError(
                f"execution.device = '{self.execution.device}': events are played on a "
                "processor; leave it out, or say 'cpu'"
            )
        if method.learning_rates is not None and len(method.learning_rates) != parties:
            given = len(method.learning_rates)
            raise ValueError(
                f"method.learning_rates has {given} numbers; data.parties is {parties}: one "
                "for each party"
            )
        if (refusal := method.activation.refused(parties)) is not None:
            raise ValueError(f"method.activation{refusal}")
        if method.batch > 1 and self.privacy.embedding is not None:
            raise ValueError(
                "method.batch must be 1 where embeddings carry noise: each entity has its "
                "own bound and price"
            )
        self._promises_what_holds()
        if self.privacy.unit == "entity" and method.activation.looks:
            raise ValueError(
                f"method.activation '{method.activation.kind}' tells whether a party's mean "
                "feature is above the threshold, which no noise hides: with unit 'entity' use "
                "'random', 'count' or 'full'"
            )
        return self

    def _promises_what_holds(self) -> None:
        data, privacy = self.data, self.privacy
        if data.stream.in_order and data.drift.by_class and privacy.ledger != "run":
            raise ValueError(
                f"data.drift '{data.drift.kind}' shows rows of a file in another order, and "
                "privacy.ledger of the data knows them by the file's: set ledger = 'run', or use "
                "drift 'features'"
            )
        if privacy.unit == "none":
            return
        own = foreign(data.stream) and "invents" in vars(type(data.stream))  # its author says so
        if data.stream.invents and not (data.published or own):
            raise ValueError(
                f"data.stream '{data.stream.kind}' makes many examples of one row, and each counts "
                f"as an entity of its own: of private rows, unit '{privacy.unit}' would promise "
                "what does not hold. Use stream 'replay'"
            )
        if not data.stream.invents and data.drift.by_class:
            other = "stream 'deformed', or " if data.published else ""
            raise ValueError(
                f"data.drift '{data.drift.kind}' draws an entity by its label, so when it comes "
                f"would tell its label: with unit '{privacy.unit}' use {other}drift 'features'"
            )
        if privacy.memoised and data.repeats and data.drift.relabels:
            raise ValueError(
                "privacy.memoised tells an entity's label once and for all, and data.drift "
                f"'{data.drift.kind}' changes it: set memoised = false, and appearances to the "
                "events that one entity may take part in"
            )
        if privacy.ledger != "run" and data.stream.invents:
            raise ValueError(
                "privacy.ledger of the data would promise something to those behind the images,"
                f" and with stream '{data.stream.kind}' every example counts as an entity of "
                "its own: set ledger = 'run'"
            )

    @property
    def horizon(self) -> int:
        """Events."""
        return self.budget.events


TEMPLATE = (Path(__file__).parent / "template.toml").read_text(encoding="utf-8")
