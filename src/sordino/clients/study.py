"""Studies in which every client has examples of its own, and all train one model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, model_validator

from sordino.base.registry import Positive
from sordino.core.method import METHODS, Method
from sordino.core.statements import FLOATS, LOOKING, SIMULATED
from sordino.core.study.base import Epsilon, Model, NoisyPrivacySpec, Study, World
from sordino.core.study.data import SHARE, Data
from sordino.privacy import fixed_order
from sordino.privacy.records.group import PERSON, SAMPLE
from sordino.privacy.rounding import epsilon_text
from sordino.training.optimizer import OPTIMIZERS, Optimizer, Sgd


class SampledPromise(NoisyPrivacySpec):
    """A promise kept by Poisson sampling: every example is in a batch with this probability.

    Attributes:
        sampling_rate: q, the probability that an example (or a client, with unit "client") is in a
            batch
    """

    sampling_rate: float = Field(ge=1e-12, le=1)


class Ordered(NoisyPrivacySpec):
    """A promise that may do without secret sampling: batches come in a public order, one pass after
    another, and each pass is charged once.

    Attributes:
        sampling: how batches come about: poisson, drawn in secret, unless given; or passes, in a
            public order, one pass over the examples (or the clients) after another
        correlation: whether noise is correlated from step to step, so that later noise takes back a
            part of earlier; with sampling "passes". none unless given; blt keeps two vectors for
            each client, banded keeps b - 1
    """

    sampling: Literal["poisson", "passes"] | None = None
    correlation: Literal["none", "banded", "blt"] | None = None

    @model_validator(mode="after")
    def _correlates_what_it_can(self) -> Ordered:
        if self.correlated and self.sampling != "passes":
            raise ValueError(
                f"correlation '{self.correlation}' is of noise in a public order of batches, where "
                "each record comes once a pass: set sampling = 'passes', or leave correlation out"
            )
        if self.correlated and self.mechanism.kind != "gaussian":
            raise ValueError(
                f"correlation '{self.correlation}' is proved for mechanism 'gaussian', and "
                f"mechanism.kind is '{self.mechanism.kind}': leave one of the two out"
            )
        return self

    @property
    def correlated(self) -> Literal["banded", "blt"] | None:
        """The kind of correlated noise; None for noise that is independent."""
        return None if self.correlation == "none" else self.correlation


class OrderedPromise(SampledPromise, Ordered):
    """A promise kept by Poisson sampling, or by passes of so many batches.

    Attributes:
        batches: b, of a pass, with sampling "passes": batches of examples, or blocks of clients
            with unit "client"; sampling_rate is 1 / b then
    """

    batches: Annotated[int, Field(ge=1, le=10**6)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _follows_from_batches(cls, table: Any) -> Any:
        match table:
            case {"sampling": "passes", "batches": int(count)} if count > 0:
                given = table.get("sampling_rate")
                if given is None or (isinstance(given, float) and abs(given * count - 1.0) < 1e-3):
                    return {**table, "sampling_rate": 1.0 / count}
        return table

    @model_validator(mode="after")
    def _has_one_kind_of_batches(self) -> OrderedPromise:
        if self.sampling != "passes":
            if self.batches is not None:
                raise ValueError(
                    f"batches = {self.batches} is of passes in a public order: set sampling = "
                    "'passes', or leave batches out"
                )
            return self
        if self.batches is None:
            raise ValueError("sampling 'passes' needs batches, how many of them a pass has")
        if self.sampling_rate != 1.0 / self.batches:
            raise ValueError(
                f"sampling_rate = {self.sampling_rate:g} is for sampling 'poisson'; with 'passes' "
                f"it follows from batches = {self.batches}: leave it out"
            )
        return self


class OwnEpsilons(NoisyPrivacySpec):
    """A promise to each client: its own budget and its own noise, where they differ.

    Attributes:
        epsilons: of each client or edge, where they differ; epsilon bounds them all
        noise_multipliers: sigma of each client or edge, where they have epsilons of their own;
            calibrated where they are left out
    """

    epsilons: tuple[Epsilon, ...] | None = None
    noise_multipliers: tuple[Annotated[float, Field(gt=0, le=1e6)], ...] | None = None

    @model_validator(mode="after")
    def _within(self) -> OwnEpsilons:
        largest = max(self.epsilons or (), default=0.0)
        if self.epsilon is not None and largest > self.epsilon:
            if math.isinf(largest):
                raise ValueError("epsilons must be finite: noise is calibrated for each of them")
            raise ValueError(
                f"epsilons must not pass epsilon = {epsilon_text(self.epsilon)}; the largest "
                f"is {epsilon_text(largest)}"
            )
        return self


class HorizontalStudy(Study):
    """A study whose clients have examples of their own.

    Attributes:
        holder: what a client is called.
    """

    elsewhere: ClassVar[Mapping[str, str]] = {
        "data.parties": "parties hold different features of the same entities in methods ogd, slr "
        "and dlr; say data.clients",
        "data.scale": "say data.ranges, public low and high of columns, as in "
        "ranges = { age = [0, 120] }",
        "data.stream": "methods ogd, slr and dlr read streams",
    }
    holder: ClassVar[str] = "client"

    data: Data
    model: Model
    privacy: NoisyPrivacySpec
    world: World = World()

    @model_validator(mode="before")
    @classmethod
    def _names_its_persons(cls, table: Any) -> Any:
        """Take unit "person" as what it is inside: "sample", with data.person."""
        match table:
            case {"privacy": {"unit": "person"} as privacy, "data": {"person": _}}:
                return {**table, "privacy": {**privacy, "unit": "sample"}}
            case {"privacy": {"unit": "person"}}:
                raise ValueError(
                    "privacy.unit = 'person' protects all rows of a person together, and no column "
                    "says whose a row is: name it in data.person, and the most rows of one person "
                    "in data.person_rows"
                )
        return table

    @model_validator(mode="after")
    def _has_noise_that_fits(self) -> HorizontalStudy:
        name, unit = self.method.name, self.privacy.unit
        if unit != "none" and (unit == "client") != self.of_clients:
            does, right = (
                ("bounds updates of whole clients", "client")
                if self.of_clients
                else ("clips single examples", "sample")
            )
            raise ValueError(
                f"method '{name}' {does}, and its about says that it protects '{unit}': set "
                f"units = ('{right}',) there"
            )
        if (
            self.adapts_events
            and self.form == "sound"
            and fixed_order(self.privacy.accountant) is None
        ):
            raise ValueError(
                f"privacy.accountant '{self.privacy.accountant}' has no bound where noise, or how "
                f"many releases of which kind there are, is chosen along the way, as method "
                f"'{name}' does: fix a Rényi order in advance, for example 'rdp@8'"
            )
        chooses = (self.method.adapts_steps or self.method.adapts_noise) and unit != "none"
        if chooses and self.privacy.mechanism.form == "paper" and self.method.unpriced is None:
            raise ValueError(
                f"privacy.mechanism.form 'paper': method '{name}' chooses by what it releases how "
                "much it spends, and a literal form has no budget that would bound it: use form "
                "'sound', or a method with fixed steps and noise, such as 'dp-sgd'"
            )
        if self.privacy.mechanism.sized and (
            self.method.adapts_noise or not self.method.aggregated
        ):
            raise ValueError(
                f"method '{name}' in this form reckons with Gaussian noise, and privacy.mechanism "
                f"'{self.privacy.mechanism.kind}' has another price: leave the mechanism out"
            )
        given = {"epsilons": self.given_epsilons, "noise_multipliers": self.given_multipliers}
        for key, numbers in given.items():
            if numbers is not None and len(numbers) != self.data.clients:
                raise ValueError(
                    f"privacy.{key} has {len(numbers)} numbers; data.clients is "
                    f"{self.data.clients}: one for each {self.holder}"
                )
        self._learns_what_labels_are()
        self._clips_whom_it_protects()
        self._can_be_measured()
        if (
            refusal := self.privacy.mechanism.refused(self.privacy.unit, bool(self.data.validation))
        ) is not None:
            raise ValueError(refusal)
        return self

    def _learns_what_labels_are(self) -> None:
        """Refuse a model for classes where labels are numbers, and the reverse."""
        name, number = self.model.name, self.data.span is not None
        if number and name in ("logistic", "svm"):
            raise ValueError(
                f"model.name = '{name}' is for classes, and labels are numbers: use 'linear', one "
                "linear layer with squared loss, or 'mlp'"
            )
        if not number and name == "linear":
            raise ValueError(
                "model.name = 'linear' is for labels that are numbers: use 'logistic' for classes, "
                "or set data.target = 'number' with data.label_range"
            )

    def _clips_whom_it_protects(self) -> None:
        """Refuse a clip of persons where no persons are protected, or nothing is clipped so."""
        unit = self.privacy.unit
        if self.privacy.clip_per != "person" or unit == "none" or self.clips_persons:
            return
        why = "the paper's literal form clips otherwise"
        if not self.of_persons:
            named = "" if self.data.person is None else f", and privacy.unit is '{unit}'"
            why = f"that needs privacy.unit = 'person' with data.person{named}"
        raise ValueError(
            f"privacy.clip_per = 'person' clips what all rows of a person come to: {why}. Leave "
            "clip_per out, or change that"
        )

    def _can_be_measured(self) -> None:
        """Refuse a test set that pays for evaluations where its rows have no price of their own."""
        own, most = self.privacy.evaluation_epsilon, self.least_epsilon
        if self.data.testing != "private share":
            if own is not None:
                raise ValueError(
                    "privacy.evaluation_epsilon is what the rows of data.test = 'private "
                    "share' pay: ask for that, or leave it out"
                )
            return
        if self.privacy.unit != "sample" or self.form != "sound":
            why = (
                f"privacy.unit is '{self.privacy.unit}'"
                if self.privacy.unit != "sample"
                else "the paper's literal form is not private"
            )
            raise ValueError(
                "data.test = 'private share' releases counts of single rows at the price of a row, "
                f"and {why}: use test = 'none', 'file' or 'public share'"
            )
        if most is None or math.isinf(own if own is not None else most):
            raise ValueError(
                "data.test = 'private share' needs a finite privacy.epsilon, or "
                "privacy.evaluation_epsilon"
            )
        if own is not None and own > most:
            raise ValueError(
                f"privacy.evaluation_epsilon must not pass {epsilon_text(most)}, the least epsilon "
                "of a client whose rows these may be; got "
                f"{epsilon_text(own)}: the promise is for every row, whether it trains or tests"
            )

    @property
    def pooled(self) -> bool:
        """All data lies in one place."""
        return False

    @property
    def of_clients(self) -> bool:
        """Its method bounds what a whole client sends; else the gradients of single examples."""
        return False

    @property
    def given_epsilons(self) -> tuple[float, ...] | None:
        """``privacy.epsilons``: of each client, where they differ."""
        return self.privacy.epsilons if isinstance(self.privacy, OwnEpsilons) else None

    @property
    def given_multipliers(self) -> tuple[float, ...] | None:
        """``privacy.noise_multipliers``: of each client, where they differ."""
        return self.privacy.noise_multipliers if isinstance(self.privacy, OwnEpsilons) else None

    @property
    def stalest(self) -> int | None:
        """tau_max, the most updates that an answer may be behind, where there is such a bound."""
        return None

    @property
    def batches(self) -> int | None:
        """b, where batches come in a public order and all clients have as many."""
        return self.privacy.batches if isinstance(self.privacy, OrderedPromise) else None

    @property
    def ordered(self) -> bool:
        """Batches come in a public order, and are not drawn."""
        return isinstance(self.privacy, Ordered) and self.privacy.sampling == "passes"

    @property
    def correlated(self) -> Literal["banded", "blt"] | None:
        """The kind of noise that is correlated from step to step; None where it is independent."""
        return self.privacy.correlated if isinstance(self.privacy, Ordered) else None

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The most that each client may spend; infinite where nothing is promised."""
        given = self.given_epsilons
        return (self.privacy.epsilon or math.inf,) * self.data.clients if given is None else given

    @property
    def least_epsilon(self) -> float | None:
        """The promise to every row, whosever it is."""
        given = self.given_epsilons
        return self.privacy.epsilon if given is None else min(given)

    @property
    def multipliers(self) -> tuple[float, ...]:
        """sigma of each client; none where noise is still to be calibrated."""
        if (given := self.given_multipliers) is not None:
            return given
        sigma = self.privacy.noise_multiplier
        return () if sigma is None else (sigma,) * self.data.clients

    @property
    def adapts_events(self) -> bool:
        """Releases decide about the noise of later ones, or how many of which kind there are."""
        return self.method.adapts_noise

    @property
    def noise_follows_size(self) -> bool:
        """The noise of a step weighs less the more examples there are."""
        return False

    @property
    def hides_sizes(self) -> bool:
        """It is private how many examples a client has."""
        return False

    @property
    def of_persons(self) -> bool:
        """Promises are about persons, who may have several rows."""
        return self.data.person is not None and self.privacy.unit == "sample"

    @property
    def clips_persons(self) -> bool:
        """Persons are drawn and clipped, each with all rows; else rows are."""
        return self.privacy.clip_per == "person" and self.of_persons and self.form == "sound"

    @property
    def rows_at_once(self) -> int:
        """The most of one person that is drawn and clipped by itself: rows, or the person."""
        several = self.of_persons and not self.clips_persons
        return (self.data.person_rows or 1) if several else 1

    @property
    def recorded(self) -> tuple[str, int]:
        """The kind of the records of a client's data, and how many a person may be there."""
        return (PERSON, 1) if self.clips_persons else (SAMPLE, self.data.person_rows or 1)

    @property
    def shared(self) -> bool:
        """Clients share the noise."""
        return False

    @property
    def pays_to_test(self) -> bool:
        """Models are measured on private rows, which pay for it."""
        return self.data.testing == "private share"

    @property
    def form(self) -> str:
        """ "sound", or "paper" for a paper's literal form, of the method or of the mechanism."""
        forms = {getattr(part, "form", "sound") for part in (self.method, self.privacy.mechanism)}
        return "paper" if "paper" in forms else "sound"


H = TypeVar("H", bound=HorizontalStudy)


class SampledMethod(Method):
    """A method whose clients take local steps of DP-SGD, each charged by itself.

    Attributes:
        learning_rate: eta.
        optimizer: of the local steps, on noisy gradients.
    """

    learning_rate: Positive = 0.1
    optimizer: Annotated[Optimizer, OPTIMIZERS] = Sgd()


class SampledStudy(HorizontalStudy):
    """A study of such a method; ``horizon`` is left to its subclass."""

    method: Annotated[SampledMethod, METHODS]
    privacy: SampledPromise

    @model_validator(mode="after")
    def _of_examples(self) -> SampledStudy:
        if self.privacy.unit == "client":
            raise ValueError("privacy.unit must be 'sample' or 'none': examples are protected")
        if self.world.latency.on_arrival:
            raise ValueError(
                f"world.latency.kind '{self.world.latency.kind}' is for methods that work on "
                "arrival"
            )
        return self


def for_dimension(study: H, dimension: int) -> H:
    """Return the study, its mechanism for d numbers where its price depends on d."""
    noise = study.privacy.mechanism
    if study.privacy.unit == "none" or not noise.sized:
        return study
    return study.with_privacy({"mechanism": noise.for_dimension(dimension)})


# What the promise of such a study rests on

SIZES = (
    "The sizes of the clients' data sets are public: they weight the average and set the "
    "expected batch."
)
BATCHES = (
    "The choice of the examples in a batch is secret. Privacy amplification by sampling "
    "depends on this."
)
ORDERED = (
    "Nothing about batches is secret: their order is public. It follows from the places of the "
    "examples (all examples of a person are in one batch), never from their values, "
    "and each example is in one of the {batches} of a pass."
)
DIVIDED = "The partition of the examples among the clients and the set of classes are public."
IDEAL = (
    "The price of K-norm noise assumes an ideal sampler. It is not known what its "
    "floating-point sampler may reveal."
)
TESTS = {
    "published": "The test set is public and used for reporting only.",
    "file": "The rows of the test file were declared public: models are measured on them exactly, "
    "and often. Nothing is promised for these rows, whoever they are about.",
    "public share": (
        "{share} were set aside and DECLARED PUBLIC (data.test = 'public "
        "share'): models are measured on them exactly, and the people in these rows get no privacy "
        "guarantee."
    ),
    "private share": (
        "{share} were set aside to measure models on. They are private: an "
        "evaluation releases how many of them a model gets right, with Gaussian noise and at a "
        "price, charged to the unit 'test', and the promise holds for each of them."
    ),
    "none": "No row of the file is set aside as a test set, and no model is measured on one: there "
    "is no accuracy.",
}
OWN_TEST = (
    "The test half of the data set {name} counts as public: models are measured on its rows "
    "exactly, and the people in them get no privacy guarantee. Data of people belongs in a file."
)
FEATURES = (
    "The model sees features of an example in its place: data.features = {front}, a fixed function "
    "of one example that learns nothing from data. Budgets and ledgers belong to the examples."
)
PERSONS = (
    "Persons are drawn and clipped, each with all rows (privacy.clip_per = 'person'). So sizes are "
    "numbers of persons here: these are public, and how many rows somebody has is not."
)
EQUAL = (
    "The ledger of the data takes equal rows at two clients of one run for two people's: each is "
    "in one client's releases, whose prices do not add up. Name data.person where one person may "
    "have rows at several clients."
)
OWN = (
    "Each client's data has an epsilon of its own, from {least} to {most} (privacy.epsilons). "
    "These numbers are public, as sizes are: they set each client's noise{weights}. The guarantee "
    "names the largest; the ledger holds each client to its own."
)
WEIGHED = ", and its weight in the average, which is the usual one over its noise squared"
VALIDATION = "The validation examples set aside from the training data are treated as public."
DIVISION = (
    "How this public data set was divided among the clients (sizes and label counts) is "
    "shown, and treated as public."
)


def resting_on(study: HorizontalStudy, first: tuple[str, ...] = (SIZES, BATCHES)) -> list[str]:
    """Return what the guarantee, or the run, rests on; ``first`` is particular to a regime."""
    found = [*first, SIMULATED, FLOATS, LOOKING, DIVIDED]
    if study.clips_persons:
        found.append(PERSONS)
    if study.data.validation or study.data.client_validation:
        found.append(VALIDATION)
    if (front := study.data.features) is not None:
        keys = ", ".join(f"{name} {value}" for name, value in front.settings)
        found.append(FEATURES.format(front=f"'{front.kind}'{f' ({keys})' if keys else ''}"))
    if takes_equal_rows_apart(study):
        found.append(EQUAL)
    if (own := study.given_epsilons) is not None:
        found.append(
            OWN.format(
                least=epsilon_text(min(own)),
                most=epsilon_text(max(own)),
                weights=WEIGHED if isinstance(study.privacy, SampledPromise) else "",
            )
        )
    found.append(testing(study))
    if study.privacy.mechanism.simulated and study.privacy.unit != "none":
        found.append(IDEAL)
    if study.data.file is None and study.privacy.unit != "none":
        found.append(DIVISION)
    return found


def takes_equal_rows_apart(study: HorizontalStudy) -> bool:
    """Return whether the ledger may know one person's equal rows as those of several."""
    several = study.data.clients > 1 and not study.pooled
    return study.privacy.ledger != "run" and study.data.person is None and several


def testing(study: HorizontalStudy) -> str:
    """Return what models are measured on, and who pays for it."""
    if study.data.file is None and not study.data.published:
        return OWN_TEST.format(name=study.data.name)
    share = study.data.test_share or SHARE
    whose = "rows"
    if study.data.person is not None:
        whose = f"persons, each with {'one row' if study.pays_to_test else 'all rows'},"
    return TESTS[study.data.testing].format(share=f"{100 * share:.3g} % of the file's {whose}")
