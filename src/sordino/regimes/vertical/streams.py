"""The ``[data]`` table of a study of events: the stream, its drift, and each party's features."""

from __future__ import annotations

from pydantic import Field, SerializeAsAny, model_validator

from sordino.core.study.data import Source, refuse_classes
from sordino.data.sets import PUBLISHED
from sordino.data.stream.drift import Drift, NoDrift
from sordino.data.stream.opening import Replay, Streaming
from sordino.data.stream.vertical import Division, Slices

STREAMED = tuple(name for name, known in PUBLISHED.items() if known.streamed)


class VerticalData(Source):
    """A stream of examples, and which features each party holds.

    ``entity`` is the column that says whose a row is; without one every row is an entity of its own
    (a data set that is replayed knows its rows). ``classes`` are the labels of a file, known to
    all. ``scale`` divides every feature, a public constant.
    """

    parties: int = Field(4, ge=1, description="how many parties hold features")
    parts: SerializeAsAny[Division] = Slices()
    stream: SerializeAsAny[Streaming] = Replay()
    drift: SerializeAsAny[Drift] = NoDrift()
    entity: str | None = Field(
        None,
        description="the column that says whose a row is; without it every row is an entity of "
        "its own",
    )
    classes: tuple[str, ...] | None = Field(
        None,
        description="the labels that there are, in the order of their numbers; public, and needed "
        "for a file that is read as a stream",
    )
    scale: float = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description="public constant that every feature is divided by",
    )

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
        """Whether the rows of a file say which classes there are."""
        return self.file is not None and self.classes is None

    @property
    def repeats(self) -> bool:
        """Whether an entity may come more than once."""
        return self.stream.repeats or self.entity is not None
