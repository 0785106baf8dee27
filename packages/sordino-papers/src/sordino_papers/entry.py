"""Entries of the catalogue: one table or figure of a paper each.

An entry is a grid of studies: panels x forms x series x points, each with some seeds. A study is
the base study with changes, ``key=value`` as `--set` takes them, applied in this order: of the
data set, the panel, the series, the point, the form and each ``also`` that fits, then those of the
scale. Equal studies of all entries are run once.

There are three scales. ``full`` has the paper's own length and model. ``standard`` has the length,
the model and the seeds by which claims are judged in docs/reproduction.md: ``scale.standard`` and
what the parts say under ``small``. ``quick`` is ``standard`` with at most three seeds, and with
what ``scale.quick`` says beside, so that all of it ends within an hour on two cores.

Files come with the program. Whether each name in them stands for something is a test of the
catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from sordino.extend.commands import StudyError, did_you_mean
from sordino.extend.runs import MOST_TOML, read_below, readable, toml_of
from sordino_papers.checks import Computed
from sordino_papers.measures import Measure, Part, chosen, measure_of
from sordino_papers.rules import RULES, Rule

if TYPE_CHECKING:
    AMeasure: TypeAlias = Measure
    ARule: TypeAlias = Rule
else:  # read before the rest, by their first keys: the decoder takes them as they are
    AMeasure = ARule = Any

ALL_RULES: tuple[type[Rule], ...] = (*RULES, Computed)
CATALOGUE = Path(__file__).parent / "catalogue"
ScaleName = Literal["quick", "standard", "full"]
SCALES: tuple[ScaleName, ...] = ("quick", "standard", "full")
QUICK_SEEDS = 3  # the fewest over which something can be told
Paper = Literal["ali-dpfl", "als-dpfl", "mapa", "haar", "events"]
Changes = tuple[str, ...]


class Changing(Part, frozen=True, kw_only=True):
    """A part that changes the studies of some cells; ``small`` come last, but at full scale."""

    changes: Changes = ()
    small: Changes = ()


class Data(Changing, frozen=True):
    """A data set to run on; the first whose files are present is taken.

    Attributes:
        name: in words.
        needs: the data set (`sordino data list`) whose files must be present; nothing if empty.
        papers: whether it is what the paper used.
        repeats: the item whose runs are made again on it, where it only stands in for other data:
            claims on it are not counted.
    """

    name: str
    needs: str = ""
    papers: bool = False
    repeats: str = ""


class Panel(Changing, frozen=True):
    """One of several pictures, or a group of columns, beside each other.

    ``data`` stands in for the entry's. A panel none of whose data sets is present is left out, and
    the page says so. ``points`` are those that it has, all where empty. ``level`` stands in for
    that of a measure ``until``.
    """

    key: str
    label: str
    level: float | None = None
    data: tuple[Data, ...] = ()
    points: tuple[str, ...] = ()


class Series(Changing, frozen=True):
    """A line of a figure, or a row of a table.

    Attributes:
        fixed: whether points and forms leave it as it is, as a baseline that they do not concern.
        broker: runs between processes, through an MQTT broker: "scripted", with the order and the
            noise of the simulation, or "real", in the order in which answers come. Left out where
            there is no Mosquitto.
    """

    key: str
    label: str
    fixed: bool = False
    broker: Literal["", "scripted", "real"] = ""


class Point(Changing, frozen=True):
    """A value of the axis, or a column of a table; ``at`` is where it is drawn."""

    label: str
    at: float | None = None


class Axis(Part, frozen=True):
    """Quantity that the points are values of."""

    label: str
    values: tuple[Point, ...]
    log: bool = False


class Form(Changing, frozen=True):
    """``sound`` (at the true epsilon), or another form such as the ``paper``'s.

    Attributes:
        only: the series that have this form; others keep that of the first form beside it.
    """

    key: str
    label: str = ""
    only: tuple[str, ...] = ()


class Also(Changing, frozen=True):
    """Further changes of some cells: those whose panel, series, point and form are all named here,
    where empty names every one. They come after the changes of the form.

    Attributes:
        seeds: of these cells, instead of the entry's: fewer where they take long, more where they
            are what tells a claim. The last that fits a cell says it.
    """

    panel: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    x: tuple[str, ...] = ()
    form: tuple[str, ...] = ()
    seeds: int | None = None


class Scale(Part, frozen=True):
    """The runs of a scale.

    Attributes:
        seeds: the most of each cell.
        series, panels, points: what is run of each; everything where empty. What is left out is
            shown as such.
        length: how much of the paper's runs this is, in words.
        minutes: of one core, about, for all of its runs, also those of other entries.
        left_out: why nothing of the entry is run at this scale.
    """

    changes: Changes = ()
    seeds: int | None = None
    series: tuple[str, ...] = ()
    panels: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    length: str = ""
    minutes: float | None = None
    left_out: str = ""


class Attack(Part, frozen=True):
    """Cells are attacks on gradients (`sordino audit --attack inversion`) instead of runs."""

    images: int = 6


class Shown(Part, frozen=True):
    """A table or a picture. ``kind``: "table" (series x points), "lines" (numbers over points),
    "curves" (a curve of each series; its measure must be one) or "bars".

    Attributes:
        minus: a series; of each other, what is shown is the difference to it, seed by seed. Tables
            only.
        only: the series that are rows of a table; all where empty.
    """

    measure: AMeasure
    kind: Literal["table", "lines", "curves", "bars"] = "table"
    title: str = ""
    minus: str = ""
    only: tuple[str, ...] = ()


class Published(Part, frozen=True):
    """A figure that the paper prints, in its own units (accuracies in per cent).

    Attributes:
        shown: which of the entry's ``shown`` it belongs to, from 0.
    """

    value: float
    series: str
    x: str = ""
    panel: str = ""
    shown: int = 0


class Claim(Part, frozen=True):
    """Claim of the text in our words, its place, and the rule that judges it.

    Attributes:
        measure: what the rule looks at; the first of ``shown`` where left out.
        repeats: the item in which the same claim is counted.
        headline: whether it stands on the first page.
        judged_at: the scale whose runs judge it wherever they are there, of the entry's own and of
            full: where the model of the other scales says something else than the paper's.
        why: what explains the verdicts, or what one would have to believe to disagree.
    """

    text: str
    where: str
    rule: ARule
    measure: AMeasure
    repeats: str = ""
    headline: bool = False
    judged_at: Literal["", "full"] = ""
    why: str = ""


class Gap(Part, frozen=True):
    """Parts that are not run, and why."""

    what: str
    why: str


class Entry(Part, frozen=True, kw_only=True):
    """One table or figure.

    Attributes:
        name: of its file.
        item: as the paper calls it: "Table II", "Fig. 4".
        study: the base study, ``studies/<study>.toml``.
        seeds: how many, from the study's own on.
    """

    name: str
    paper: Paper
    item: str
    title: str
    study: str
    shown: tuple[Shown, ...]
    series: tuple[Series, ...]
    seeds: int = 3
    note: str = ""
    attack: Attack | None = None
    data: tuple[Data, ...] = ()
    panel: tuple[Panel, ...] = ()
    x: Axis | None = None
    form: tuple[Form, ...] = (Form("sound"),)
    also: tuple[Also, ...] = ()
    scale: Mapping[ScaleName, Scale] = msgspec.field(default_factory=dict)
    published: tuple[Published, ...] = ()
    claim: tuple[Claim, ...] = ()
    not_run: tuple[Gap, ...] = ()

    def at(self, scale: ScaleName) -> Scale:
        """The settings of a scale; quick has those of standard where it says nothing itself."""
        said = self.scale.get(scale, Scale())
        if scale != "quick":
            return said
        usual = self.scale.get("standard", Scale())
        return msgspec.structs.replace(
            said,
            series=said.series or usual.series,
            seeds=said.seeds or QUICK_SEEDS,
            panels=said.panels or usual.panels,
            points=said.points or usual.points,
            length=said.length or usual.length,
        )


def names(home: Path = CATALOGUE) -> list[str]:
    """Every entry's name, in order: ``ali-dpfl-table-2`` before ``ali-dpfl-table-10``."""

    def order(name: str) -> list[tuple[int, str | int]]:
        return [(0, int(word)) if word.isdigit() else (1, word) for word in name.split("-")]

    return sorted((path.stem for path in home.glob("*.toml")), key=order)


def entries(asked: Sequence[str], home: Path = CATALOGUE) -> list[Entry]:
    """The entries that were asked for: names, beginnings of names (``mapa``), or ``all``.

    Raises:
        StudyError: if a name stands for none.
    """
    known = names(home)
    found: dict[str, None] = {}
    for word in asked:
        fitting = [each for each in known if word in ("all", each)] or [
            each for each in known if each.startswith(f"{word}-")
        ]
        if not fitting:
            papers = dict.fromkeys(name.rsplit("-", 2)[0] for name in known)
            written = word.lower().replace("_", "-").strip("-")
            meant = did_you_mean(written, [*known, *papers, "all"])
            raise StudyError(
                f"{word!r} is no entry of the catalogue{meant or '.'} "
                "`sordino reproduce LIST` names all"
            )
        found |= dict.fromkeys(fitting)
    return [read(home / f"{name}.toml") for name in found]


def read(path: Path) -> Entry:
    """The entry in a file.

    Raises:
        StudyError: naming the file, and what is wrong in it.
    """
    with readable(path, remedy="Install sordino-papers again"):
        return parse(
            toml_of(read_below(path.parent, path.name, most=MOST_TOML).decode()), path.stem
        )


def parse(table: Mapping[str, Any], name: str) -> Entry:
    """The entry in a table; it raises whatever comes of a wrong one."""
    shown = [{**each, "measure": measure_of(each["measure"])} for each in table["shown"]]
    first: Measure = shown[0]["measure"]
    claims = [
        {
            **each,
            "measure": measure_of(each["measure"]) if "measure" in each else first,
            "rule": chosen(each["rule"], ALL_RULES),
        }
        for each in table.get("claim", ())
    ]
    return msgspec.convert({**table, "name": name, "shown": shown, "claim": claims}, Entry)
