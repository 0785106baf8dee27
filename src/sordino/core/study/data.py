"""The table [data] of a study: where examples come from, what labels are, who holds what."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sordino.base.registry import AtLeastOne, BelowOne, Section, not_known
from sordino.data.encoding import OTHER, REST, Encoding, Unknown
from sordino.data.features import FRONT_ENDS, FrontEnd, shape_of
from sordino.data.identity import spelled
from sordino.data.labels import Target
from sordino.data.partition import PARTITIONS, Dirichlet, Iid, Partition, Shards
from sordino.data.sets import NAMES, PUBLISHED, SPANS, is_published

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
        f"{not_known(name, known)}; or give data.file, your own npz, CSV or Parquet file"
    )


class Source(Section):
    """The source of examples.

    Attributes:
        name: a known data set (`sordino data list`), or package.module:NAME; instead of file
        file: your own data (npz, CSV, Parquet, or a folder of mapped data); a relative path starts
            at the folder of the study file
        label: the column of a CSV or Parquet file that holds the label
    """

    name: Annotated[str | None, AfterValidator(_known_data)] = None
    file: Path | None = None
    label: str = "label"

    @property
    def published(self) -> bool:
        """Return whether these are rows that this program publishes by name: all others are
        private.
        """
        return self.file is None and is_published(self.name or "")

    @property
    def reads_classes(self) -> bool:
        """Return whether the rows of a file say which classes there are."""
        return False

    @property
    def deals_by_label(self) -> bool:
        """Return whether who holds how many private rows follows from their labels."""
        return False

    @property
    def shows_clients(self) -> bool:
        """Return whether rows that clients hold are set aside and treated as public."""
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

    Attributes:
        target: what labels are; classes, unless they look like something else
        label_range: public low and high of labels that are numbers
        categories: public values of columns that hold names or codes
        unknown: what becomes of a value that is not listed: 'refuse', which is the default, or
            'other', a column of its own
        ranges: public low and high of numeric columns, which become [-1, 1]
        missing: public constants that stand for gaps of numeric columns
        classes: the labels that there are, in the order of their numbers; public. Left out, they
            are read from the rows
    """

    target: Target | None = None
    label_range: Low | None = None
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    unknown: Unknown | None = None
    ranges: Annotated[dict[str, Low], _constants("ranges = { age = [0, 120] }")] = Field(
        default_factory=dict
    )
    missing: Annotated[dict[str, Finite], _constants("missing = { age = 40 }")] = Field(
        default_factory=dict
    )

    classes: tuple[str, ...] | None = None

    @property
    def reads_classes(self) -> bool:
        """Return whether the rows of a file say which classes there are."""
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
            if twice := [each for each in alike if alike.count(each) > 1]:
                raise ValueError(f"categories.{name}: {twice[0]!r} is listed twice")
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


Testing = Literal["none", "file", "public share", "private share"]
SHARE = 0.2


class Data(Table):
    """The source of examples, and their division among clients.

    ``test`` says what models of a file of one's own are measured on, for its rows are people:

    * "none": nothing, which is what happens unless something else is asked for;
    * "file": a file of their own (``test_file``, or ``x_test`` in an npz file or mapped data),
      whose rows are declared public;
    * "public share": a share of the rows (``test_share``), which is declared public and trained on
      by nobody;
    * "private share": such a share, of which every evaluation releases how many it gets right, with
      noise and at a price.

    With ``person`` a share is one of the persons, each with all rows; a private one with the first.

    Published data sets come with a public test set, and take none of these.

    Attributes:
        test: what models are measured on, with a file of your own; nothing, unless it is said
        test_share: share of the file's rows, with person of its persons, that are set aside; a
            fifth by default
        test_file: public rows, of the same form as file, that models are measured on
        client_column: the column that says whose a row is; with partition = "column"
        person: the column that says who a row is about: all rows of a person have one budget
        person_rows: with person: the first so many rows of each person are trained on, all at one
            client, and others are left out; public, and what everybody is priced at: 1 costs a
            person no more than a row
        person_histogram: public numbers, not from these rows: pairs of a number of rows and how
            many persons have so many (or their share); `sordino plan --advise` weighs person_rows
            by them
        clients: how many clients hold the data
        features: a fixed function of one example, whose features the model sees
        validation: training examples set aside, before partitioning, to choose by; treated as
            public
        client_validation: share of each client's examples set aside to choose by; their joint
            accuracy is treated as public
    """

    test: Testing | None = None
    test_share: float | None = Field(None, gt=0, lt=1)
    test_file: Path | None = None
    client_column: str | None = None
    person: str | None = None
    person_rows: AtLeastOne | None = None
    person_histogram: tuple[tuple[AtLeastOne, Annotated[float, Field(gt=0)]], ...] | None = Field(
        None, min_length=1
    )
    clients: AtLeastOne = 10
    partition: Annotated[Partition, PARTITIONS] = Iid()
    features: Annotated[FrontEnd | None, FRONT_ENDS] = None
    validation: int = Field(0, ge=0)

    client_validation: BelowOne = 0.0

    def seen(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of what a model sees of an example of this shape.

        Raises:
            StudyError: if the front end takes no such examples.
        """
        return shape if self.features is None else shape_of(self.features, shape)

    @property
    def deals_by_label(self) -> bool:
        """Return whether who holds how many private rows follows from their labels."""
        return not self.published and self.partition.by_label

    @property
    def shows_clients(self) -> bool:
        """Return whether rows that clients hold are set aside and treated as public."""
        aside = self.validation or self.testing == "public share"
        held = self.client_validation or (aside and self.partition.by_column)
        return not self.published and bool(held)

    def kept(self, most: int) -> float | None:
        """Return the share of all rows that are kept with ``most`` rows of each person, by the
        public histogram; None without one.
        """
        if self.person_histogram is None:
            return None
        rows = sum(rows * persons for rows, persons in self.person_histogram)
        return sum(min(rows, most) * each for rows, each in self.person_histogram) / rows

    @model_validator(mode="after")
    def _one_division(self) -> Data:
        if self.validation and self.client_validation:
            raise ValueError(
                "give validation (before partitioning) or client_validation (of each "
                "client), not both"
            )
        several = self.person is not None and self.person_rows != 1
        if (self.validation or self.client_validation) and several:
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
        for key in ("person_rows", "person_histogram"):
            if getattr(self, key) is not None and self.person is None:
                raise ValueError(
                    f"{key} is about the rows of each person, and no column says whose a row is: "
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
        inside = self.file is not None and self.file.suffix.lower() in (".npz", ".mapped")
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
        if self.test_file and self.file and self.test_file.resolve() == self.file.resolve():
            raise ValueError(
                "test_file is the file that trains, and models are measured on its rows exactly: "
                "name another one"
            )
        if self.test == "file" and not self.test_file and not inside:
            raise ValueError(
                "test 'file' needs test_file, a second file of the same form, whose rows are public"
            )
        if self.test_share is not None and not shares:
            raise ValueError(
                "test_share is the share of the rows that is set aside: set test = 'public "
                "share' or 'private share' with it"
            )
        return self

    @property
    def testing(self) -> Testing | Literal["published"]:
        """Return what models are measured on, defaults filled in: of one's own file, nothing."""
        if self.file is None:
            return "published"
        return self.test or ("file" if self.test_file else "none")
