"""Where a study's examples come from, what their labels are, and public rules for their columns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sordino.base.registry import did_you_mean
from sordino.base.section import Section
from sordino.data.encoding import OTHER, REST, Encoding, Unknown, spelled
from sordino.data.labels import Target
from sordino.data.sets import NAMES, PUBLISHED, SPANS, is_ours

LEARNED = (
    "is learned from the rows, which nobody books: every value of it tells of single rows. Give "
    "constants that are known without looking at the data, such as a legal maximum or a value "
    "from a publication"
)


def _known_data(name: str | None) -> str | None:
    known = (*NAMES, *PUBLISHED)
    if name is None or ":" in name or name in known:
        return name
    raise ValueError(
        f"{name!r} is not known{did_you_mean(name, known) or '.'} Known: {', '.join(known)}; or "
        "give data.file, your own npz, CSV or Parquet file"
    )


class Source(Section):
    """Where examples come from."""

    name: Annotated[str | None, AfterValidator(_known_data)] = Field(
        None,
        description="a known data set (`sordino data list`), or package.module:NAME; instead of "
        "file",
    )
    file: Path | None = Field(
        None,
        description="your own data (npz, CSV or Parquet); a relative path starts at the folder "
        "of the "
        "study file",
    )
    label: str = Field(
        "label", description="the column of a CSV or Parquet file that holds the label"
    )

    @property
    def published(self) -> bool:
        """Whether these are rows that this program publishes by name: all others are private."""
        return self.file is None and is_ours(self.name or "")

    @property
    def reads_classes(self) -> bool:
        """Whether the rows of a file say which classes there are."""
        return False

    @property
    def deals_by_label(self) -> bool:
        """Whether who holds how many private rows follows from their labels."""
        return False

    @model_validator(mode="after")
    def _one_source(self) -> Source:
        if (self.name is None) == (self.file is None):
            raise ValueError(
                "give either name (a known data set) or file (your own npz, csv or parquet)"
            )
        return self


def _constants(example: str) -> BeforeValidator:
    """Refuse a word in place of a table of constants, such as "mean" or "standard"."""

    def told(value: object) -> object:
        listed = value.items() if isinstance(value, dict) else [("", value)]
        for column, each in listed:
            if isinstance(each, str):
                named = f"{column} = {each!r}" if column else repr(each)
                raise ValueError(f"{named} {LEARNED}: {example}")
        return value

    return BeforeValidator(told)


Finite = Annotated[float, Field(allow_inf_nan=False)]
Low = tuple[Finite, Finite]


class Table(Source):
    """Examples as rows of a table: labels, and rules for columns that are no plain numbers.

    ``target`` says what labels are: "classes", "binary" (two values, text without regard to case)
    or "number", whose public ``label_range`` is needed. Without it labels are classes, and what
    looks like something else is refused. ``categories``, ``ranges`` and ``missing`` are
    :class:`~sordino.data.encoding.Encoding`; "*" in the last two stands for all other numeric
    columns.
    """

    later: ClassVar[frozenset[str]] = frozenset({"classes"})

    target: Target | None = Field(
        None, description="what labels are; classes, unless they look like something else"
    )
    label_range: Low | None = Field(
        None, description="public low and high of labels that are numbers"
    )
    categories: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="public values of columns that hold names or codes"
    )
    unknown: Unknown | None = Field(
        None,
        description="what becomes of a value that is not listed: 'refuse', which is the default, "
        "or 'other', a column of its own",
    )
    ranges: Annotated[dict[str, Low], _constants("ranges = { age = [0, 120] }")] = Field(
        default_factory=dict,
        description="public low and high of numeric columns, which become [-1, 1]",
    )
    missing: Annotated[dict[str, Finite], _constants("missing = { age = 40 }")] = Field(
        default_factory=dict, description="public constants that stand for gaps of numeric columns"
    )

    classes: tuple[str, ...] | None = Field(
        None,
        description="the labels that there are, in the order of their numbers; public. Left out, "
        "they are read from the rows",
    )

    @property
    def reads_classes(self) -> bool:
        """Whether the rows of a file say which classes there are."""
        return self.file is not None and self.classes is None and self.span is None

    @property
    def encoding(self) -> Encoding:
        """The rules for columns."""
        return Encoding(self.categories, self.ranges, self.missing, self.unknown or "refuse")

    @property
    def span(self) -> Low | None:
        """The range of the numbers to predict; None for classes."""
        if self.file is None:
            return SPANS.get(self.name or "")
        return self.label_range if self.target == "number" else None

    @model_validator(mode="after")
    def _labels_are_told(self) -> Table:
        if self.file is None and (self.target or self.label_range):
            raise ValueError(
                f"target and label_range are for a file of your own; the labels of '{self.name}' "
                "are known"
            )
        if self.classes is not None:
            refuse_classes(self.classes, binary=self.target == "binary")
            if self.file is None or self.target == "number":
                raise ValueError(
                    "classes are for a file of your own whose labels are classes: leave them out"
                )
            if self.target == "binary" and len(self.classes) != 2:
                raise ValueError(
                    f"target 'binary' needs two classes, and {len(self.classes)} are stated; the "
                    "second is the positive one"
                )
        if self.target == "number" and self.label_range is None:
            raise ValueError(
                "target 'number' needs label_range = [low, high]: public bounds of the label, "
                "known without looking at the data; labels outside count as the nearer bound"
            )
        if self.label_range is not None:
            if self.target != "number":
                raise ValueError(
                    "label_range is of labels that are numbers: set target = 'number', or leave "
                    "it out"
                )
            _ordered("label_range", self.label_range)
        return self

    @model_validator(mode="after")
    def _columns_are_told(self) -> Table:
        ruled = {**self.categories, **self.ranges, **self.missing}
        if self.file is None and (ruled or self.unknown):
            raise ValueError(
                "categories, unknown, ranges and missing are for a file of your own; "
                f"'{self.name}' is encoded already"
            )
        for name, low_high in self.ranges.items():
            _ordered(f"ranges.{name}", low_high)
        for name, listed in self.categories.items():
            if name == REST or not listed:
                raise ValueError(
                    f"categories.{name} needs a list of its values, such as ['a', 'b']"
                )
            alike = [spelled(each) for each in listed]
            if twice := [each for each in alike if not each or alike.count(each) > 1]:
                raise ValueError(
                    f"categories.{name}: {twice[0]!r} is "
                    + ("listed twice" if twice[0] else "empty: a gap is no category")
                )
            if self.unknown == OTHER and OTHER in alike:
                raise ValueError(
                    f"categories.{name} lists {OTHER!r}, which with unknown = 'other' is the name "
                    "of the column for all others: leave it out of the list"
                )
            for key in ("ranges", "missing"):
                if name in getattr(self, key):
                    raise ValueError(
                        f"{name} stands in categories and in {key}: a column holds names or numbers"
                    )
        if self.unknown is not None and not self.categories:
            raise ValueError("unknown is about categories, and there are none: leave it out")
        if self.label in ruled:
            raise ValueError(
                f"'{self.label}' is the label, and no feature: leave it out of categories, ranges "
                "and missing (see target, label_range)"
            )
        return self


def refuse_classes(classes: tuple[str, ...], *, binary: bool = False) -> None:
    """Refuse a list of classes that is none; two that are ``binary`` differ not only in case.

    Raises:
        ValueError: for fewer than two, an empty name, or one that stands there twice.
    """
    alike = [name.strip().casefold() if binary else name.strip() for name in classes]
    if len(classes) < 2:
        raise ValueError(f"classes must list two labels at least; got {list(classes)}")
    for name, each in zip(classes, alike, strict=True):
        if not each:
            raise ValueError("classes lists an empty name: a row without a label has no class")
        if alike.count(each) > 1:
            raise ValueError(f"classes lists {name!r} twice: each class needs a name of its own")


def _ordered(key: str, span: Low) -> None:
    low, high = span
    if not (low < high and math.isfinite(high - low)):
        raise ValueError(f"{key} must be [low, high] with low < high; got [{low:g}, {high:g}]")
