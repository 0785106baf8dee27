"""The study file: everything that a run depends on, frozen, complete, with nothing hidden.

TOML in, one :class:`Study` out; all mistakes are reported at once, each with its place, its
value and a remedy. Unknown keys are mistakes. ``unit``, ``epsilon`` and ``delta`` have no
default: whoever runs a study says what is protected, or that nothing is.

What stands under ``[execution]`` cannot change privacy or the meaning of results, so a
reviewer may skip it.
"""

from __future__ import annotations

import functools
import math
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, create_model, model_validator

import sordino.mechanism.haar  # noqa: F401  (registers it)
from sordino.errors import StudyError
from sordino.learning.optimizer import AdaGrad, Adam, Sgd
from sordino.mechanism import GaussianNoise, Noise
from sordino.mechanism.registry import MECHANISMS
from sordino.method import About, SynchronousMethod
from sordino.method.registry import METHODS
from sordino.privacy import accountant, fixed_order
from sordino.registry import did_you_mean
from sordino.section import Section


def _infinite(value: object) -> object:
    return math.inf if isinstance(value, str) and value.lower() in ("inf", "infinity") else value


def _accountant(name: str) -> str:
    try:
        return accountant(name).name
    except StudyError as error:
        raise ValueError(str(error)) from error


Epsilon = Annotated[float, BeforeValidator(_infinite), Field(gt=0)]


class IidPartition(Section):
    """Every example to a client at random, sizes equal to within one."""

    kind: Literal["iid"]


class DirichletPartition(Section):
    """Label proportions from Dirichlet(beta); small beta, uneven clients."""

    kind: Literal["dirichlet"]
    beta: float = Field(gt=0)
    minimum: int = Field(10, ge=1)


class ShardsPartition(Section):
    """Sorted by label and cut into fragments, so many to each client."""

    kind: Literal["shards"]
    fragments: int = Field(400, ge=1)
    each: int = Field(40, ge=1)


class ColumnPartition(Section):
    """A file's own client column."""

    kind: Literal["column"]


Partition = Annotated[IidPartition | DirichletPartition | ShardsPartition | ColumnPartition, Field(discriminator="kind")]


class Data(Section):
    """Where examples come from and how they are divided among clients."""

    name: str | None = None
    file: Path | None = None
    test_file: Path | None = None
    label: str = "label"
    client_column: str | None = None
    clients: int = Field(10, ge=1)
    partition: Partition = IidPartition(kind="iid")
    validation: int = Field(0, ge=0, description="training examples set aside, before partitioning, to choose by; treated as public")

    client_validation: float = Field(
        0.0, ge=0, lt=1, description="share of each client's examples set aside to choose by; their joint accuracy is treated as public"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        if self.validation and self.client_validation:
            raise ValueError("give validation (before partitioning) or client_validation (of each client), not both")
        if (self.name is None) == (self.file is None):
            raise ValueError("give either name (a known data set) or file (your own npz, csv or parquet)")
        if self.partition.kind == "column" and not self.client_column:
            raise ValueError("partition kind 'column' needs client_column, the name of the column that says whose an example is")
        return self


class Model(Section):
    """A model by name, or ``package.module:factory``."""

    name: str


class Privacy(Section):
    """What is protected, how well, and at what noise.

    ``ledger`` is "run" for a ledger of this run alone, or a folder that keeps one ledger for
    each client's data and outlives runs. ``clipped_fraction`` releases how many examples were
    clipped, inside the same noise multiplier. Where whole clients are protected, ``clip`` is the
    bound S of an update and ``sampling_rate`` the probability q_c with which a client is drawn.
    """

    unit: Literal["sample", "client", "none"]
    epsilon: Epsilon | None = None
    delta: float | None = Field(None, gt=0, lt=1)
    clip: float = Field(1.0, gt=0, allow_inf_nan=False)
    noise_multiplier: float | None = Field(None, allow_inf_nan=False)
    sampling_rate: float = Field(gt=0, le=1)
    accountant: Annotated[str, AfterValidator(_accountant)] = "pld"
    mechanism: Noise = GaussianNoise()
    ledger: str = "run"
    clipped_fraction: bool = True

    @model_validator(mode="after")
    def _spelled_out(self) -> Privacy:
        if self.unit == "none":
            if self.epsilon is not None and not math.isinf(self.epsilon):
                raise ValueError(f"unit 'none' promises nothing, so epsilon must be left out or 'inf'; got {self.epsilon}")
            return self
        missing = [name for name in ("epsilon", "delta") if getattr(self, name) is None]
        if missing:
            raise ValueError(f"unit '{self.unit}' needs {' and '.join(missing)}: there is no default for what is promised")
        if self.noise_multiplier is not None and self.noise_multiplier <= 0:
            raise ValueError(
                f"noise_multiplier must be positive for a finite epsilon; got {self.noise_multiplier}."
                " Leave it out to have it calibrated, or set unit = 'none'"
            )
        return self


class Budget(Section):
    """How long a run may go on.

    ``rounds`` is R_s. ``steps`` is the R_c that noise is calibrated for where an adaptive
    method leaves noise_multiplier out; twice the rounds unless given.
    """

    rounds: int = Field(ge=1)
    steps: int | None = Field(None, ge=1)


class Participation(Section):
    """Who takes part in a round, and how long the server waits (virtual seconds)."""

    cohort: int | None = Field(None, ge=1)
    deadline: float | None = Field(None, gt=0)


class Latency(Section):
    """Seconds that clients take; see :mod:`sordino.runtime.latency`."""

    kind: Literal["constant", "exponential", "lognormal", "pareto"] = "constant"
    typical: float = Field(1.0, ge=0)
    shape: float = Field(0.5, gt=0)
    step: float = Field(0.0, ge=0)
    spread: float = Field(0.0, ge=0)


class World(Section):
    """The simulated world: latency, drop-out and return."""

    latency: Latency = Latency()
    dropout: float = Field(0.0, ge=0, le=1)
    rejoin: float = Field(0.5, gt=0, le=1)


class Execution(Section):
    """What cannot change privacy or the meaning of results."""

    device: str = "auto"
    threads: int = Field(1, ge=1)
    evaluate_every: int = Field(1, ge=1)
    checkpoint_every: int = Field(10, ge=1)


class Study(Section):
    """A complete study."""

    name: str = Field(min_length=1, max_length=200)
    seed: int = 0
    data: Data
    model: Model
    method: SynchronousMethod
    privacy: Privacy
    budget: Budget
    participation: Participation = Participation()
    world: World = World()
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _fits_together(self) -> Study:
        unit, name = self.privacy.unit, self.method.name
        if unit not in self.method.about.units:
            if unit == "none":
                raise ValueError(f"method '{name}' adds noise, so privacy.unit must be 'sample'; for no privacy use method 'fedavg'")
            if not self.method.private:
                raise ValueError(f"method '{name}' adds no noise and promises nothing: set privacy.unit = 'none', or use method 'dp-sgd'")
            kept = "single examples" if "sample" in self.method.about.units else "whole clients"
            wanted = " or ".join(f"'{known}'" for known in self.method.about.units)
            raise ValueError(f"method '{name}' protects {kept}: privacy.unit must be {wanted}; got '{unit}'")
        if self.participation.cohort is not None and self.participation.cohort > self.data.clients:
            raise ValueError(f"participation.cohort is {self.participation.cohort}, but there are {self.data.clients} clients")
        if self.method.adapts_noise and self.form == "sound" and fixed_order(self.privacy.accountant) is None:
            raise ValueError(
                f"privacy.accountant '{self.privacy.accountant}' has no bound for noise chosen along the way, as method '{name}' does:"
                " fix a Rényi order in advance, for example 'rdp@8'"
            )
        if unit == "client":
            if self.participation.cohort is not None:
                raise ValueError(
                    "participation.cohort fixes the cohort's size, but what is booked is that each client is drawn by itself:"
                    " leave it out, and give the probability as privacy.sampling_rate"
                )
            if not getattr(self.method, "aggregated", True) and self.privacy.sampling_rate != 1.0:
                raise ValueError(
                    f"method '{name}' in its paper's form has every client send in every round: privacy.sampling_rate must be 1.0"
                )
            if getattr(self.method, "clipping", None) == "adaptive" and not self.privacy.mechanism.counts:
                raise ValueError(
                    "method.clipping 'adaptive' follows a noisy count, and"
                    f" privacy.mechanism '{self.privacy.mechanism.kind}' releases none: use 'fixed' or 'proxy', or the mechanism 'gaussian'"
                )
            if getattr(self.method, "clipping", None) == "proxy" and not self.data.validation:
                raise ValueError("method.clipping 'proxy' needs public examples to train on: set data.validation")
            if self.data.clients < 2:
                raise ValueError("data.clients is 1: with one client there is nobody to hide among; unit 'client' needs at least two")
        if (refusal := self.privacy.mechanism.refused(unit, bool(self.data.validation))) is not None:
            raise ValueError(refusal)
        if getattr(self.privacy.mechanism, "weights", None) == "learned" and unit == "sample" and self.method.optimizer != Sgd():
            raise ValueError(
                "privacy.mechanism.weights 'learned' reads noisy gradients off the models, which only plain SGD steps show:"
                " leave method.optimizer out"
            )
        if self.world.dropout > 0 and self.participation.deadline is None:
            raise ValueError("world.dropout needs participation.deadline: without one the server would wait forever for who is gone")
        return self

    @property
    def form(self) -> str:
        """ "sound", or "paper" for a paper's literal form, of the method or of the mechanism."""
        forms = {getattr(part, "form", "sound") for part in (self.method, self.privacy.mechanism)}
        return "paper" if "paper" in forms else "sound"


def parse(table: Mapping[str, Any], *, source: str) -> Study:
    """The study in a table, all mistakes at once.

    Raises:
        StudyError: names each place, value and remedy.
    """
    lines: list[str] = []
    method: type[SynchronousMethod] = _Unknown
    noise: type[Noise] = _UnknownNoise
    try:
        method = _method(table)
    except StudyError as error:
        lines.append(str(error))
        table = {**table, "method": {"name": "unknown"}}  # the other sections have their mistakes, too
    try:
        noise = _noise(table)
    except StudyError as error:
        lines.append(str(error))
        table = {**table, "privacy": {**table["privacy"], "mechanism": {"kind": "unknown"}}}
    shape = _shape(method, noise)
    try:
        study = shape.model_validate(table)
    except ValidationError as error:
        lines += [_explain(problem, table, shape) for problem in error.errors()]
    if lines:
        raise StudyError("\n".join(f"{source}: {line}" for line in dict.fromkeys(lines)))
    return study


def _method(table: Mapping[str, Any]) -> type[SynchronousMethod]:
    """The class that a study's ``[method]`` table is of."""
    if "method" not in table:
        raise StudyError("method is missing: a table [method] with a name")
    return METHODS.chosen(table["method"])


def _noise(table: Mapping[str, Any]) -> type[Noise]:
    """The class that a study's ``[privacy.mechanism]`` table is of."""
    privacy = table.get("privacy")
    section = privacy.get("mechanism") if isinstance(privacy, Mapping) else None
    return GaussianNoise if section is None else MECHANISMS.chosen(section)


class _UnknownNoise(Noise):
    """Stands in for a mechanism that could not be found."""


class _Unknown(SynchronousMethod):
    """Stands in for a method that could not be found, and fits everything."""

    about: ClassVar[About] = About(regime="", paper="", does="", forms={}, units=("sample", "client", "none"))


@functools.cache
def _shape(method: type[SynchronousMethod], noise: type[Noise]) -> type[Study]:
    """A study whose method and mechanism are of these classes."""
    default: Any = GaussianNoise() if noise is GaussianNoise else ...
    privacy = create_model("Privacy", __base__=Privacy, __doc__=Privacy.__doc__, mechanism=(noise, default))
    return create_model("Study", __base__=Study, __doc__=Study.__doc__, method=(method, ...), privacy=(privacy, ...))


def read(path: Path, changes: Sequence[str] = ()) -> Study:
    """The study in a file, with ``key=value`` changes applied.

    Raises:
        StudyError: if the file is missing, is no TOML, or is no study.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such study file. `sordino new synchronous > study.toml` writes one to begin with") from None
    except IsADirectoryError:
        raise StudyError(f"{path}: this is a folder; give the study file in it") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StudyError(f"{path}: not a TOML file: {error}") from None
    for change in changes:
        table = _changed(table, change)
    return parse(table, source=str(path))


def _changed(table: dict[str, Any], change: str) -> dict[str, Any]:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise StudyError(f"--set {change}: write it as section.key=value, for example --set privacy.epsilon=4")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string: --set model.name=mlp
    *path, last = key.strip().split(".")
    copy = dict(table)
    inner = copy
    for part in path:
        below = inner.get(part, {})
        if not isinstance(below, dict):
            raise StudyError(f"--set {change}: '{part}' is a value, not a section")
        inner[part] = dict(below)
        inner = inner[part]
    inner[last] = value
    return copy


def write(study: Study) -> str:
    """The study as TOML, every value spelled out but those that are not set."""
    top, tables = [], []
    for key, value in study.model_dump(mode="json", by_alias=True, exclude_none=True).items():
        if isinstance(value, dict):
            tables.append(f"[{key}]\n" + "".join(f"{k} = {_toml(v)}\n" for k, v in value.items()))
        else:
            top.append(f"{key} = {_toml(value)}\n")
    return "".join(top) + "\n" + "\n".join(tables)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    return repr(value)


def _explain(problem: Mapping[str, Any], table: Mapping[str, Any], shape: type[Study]) -> str:
    place = [part for part in problem["loc"] if not _is_tag(part)]
    name = ".".join(str(part) for part in place) or "study"
    kind, value = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        keys = _keys(problem["loc"][:-1], shape)
        return f"{name} is not a key of a study{did_you_mean(str(place[-1]), keys) or '. Known here: ' + ', '.join(keys)}"
    if kind == "missing":
        return f"{name} is missing"
    if kind in ("union_tag_invalid", "literal_error"):
        allowed = str(problem.get("ctx", {}).get("expected_tags") or problem.get("ctx", {}).get("expected"))
        words = [word.strip(" '\"") for word in allowed.replace(" or ", ",").split(",")]
        given = value
        if kind == "union_tag_invalid":
            name, given = f"{name}.{str(problem['ctx']['discriminator']).strip(chr(39))}", problem["ctx"]["tag"]
        return f"{name} = {given!r} is not known{did_you_mean(str(given), words) or '.'} Known: {', '.join(words)}"
    if kind == "union_tag_not_found":
        return f"{name}.{str(problem['ctx']['discriminator']).strip(chr(39))} is missing: it says which kind this is"
    message = problem["msg"].removeprefix("Value error, ")
    shown = "" if kind == "value_error" or isinstance(value, dict) else f"; got {value!r}"
    return f"{name}: {message[0].lower()}{message[1:]}{shown}"


_TAGS = {"iid", "dirichlet", "shards", "column", "sgd", "adam", "adagrad"}


def _is_tag(part: object) -> bool:
    return part in _TAGS  # pydantic puts the chosen kind of a union into the place; no key has such a name but "column"


def _keys(location: Sequence[object], shape: type[Study]) -> list[str]:
    """The keys that a section at this place may have."""
    section: type[Section] = shape
    for part in location:
        field = section.model_fields.get(str(part))
        options = _sections(field.annotation) if field is not None else [s for s in _all_kinds() if part in _tags_of(s)]
        if not options:
            return []
        section = options[0]
    return [field.alias or name for name, field in section.model_fields.items()]


def _sections(annotation: Any) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return [section for part in get_args(annotation) for section in _sections(part)]
    return []


def _all_kinds() -> list[type[Section]]:
    return [IidPartition, DirichletPartition, ShardsPartition, ColumnPartition, Sgd, Adam, AdaGrad]


def _tags_of(section: type[Section]) -> tuple[Any, ...]:
    return tuple(tag for key in ("kind", "name") if key in section.model_fields for tag in get_args(section.model_fields[key].annotation))
