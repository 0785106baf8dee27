"""The ``[data]`` table of a study of events: the stream, how it drifts, and which features each party holds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from sordino.section import Section
from sordino.study.sections import Source


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
