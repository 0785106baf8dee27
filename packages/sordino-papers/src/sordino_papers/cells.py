"""From an entry to its studies: a grid of cells, each with a study and a digest of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TypeAlias, TypeVar

from sordino.extend.runs import NAMES, DataError, Study, StudyError, where
from sordino.extend.runs import study as studies
from sordino_papers.entry import (
    CATALOGUE,
    Also,
    Changes,
    Data,
    Entry,
    Form,
    Panel,
    Point,
    Scale,
    ScaleName,
    Series,
)

Present: TypeAlias = Callable[[str], bool]
"""Return True if the files of a data set are on this machine."""

K = TypeVar("K", bound=Panel | Series | Point)
LETTERS = 16  # of a digest, in a folder's name


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a cell stands: keys of panel, form, series, and the label of the point; "" for none."""

    panel: str
    form: str
    series: str
    point: str


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A study with its place and seeds; ``digest`` is the same for equal studies, whatever their
    names, that run in the same way.
    """

    place: Place
    study: Study
    digest: str
    seeds: tuple[int, ...]
    broker: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Cells of an entry that are run.

    Attributes:
        data: of each panel, the data set that was chosen; "" is the panel of an entry without any.
        left_out: what is not run here, in words.
    """

    entry: Entry
    scale: ScaleName
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    data: dict[str, Data | None]
    left_out: tuple[str, ...]

    def at(self, place: Place) -> Cell | None:
        """The cell there; that of the first form, for a series without a form of its own."""
        found = {cell.place: cell for cell in self.cells}
        first = Place(place.panel, self.entry.form[0].key, place.series, place.point)
        return found.get(place, found.get(first))

    def folder(self, cell: Cell, out: Path, seed: int) -> Path:
        """Of the run of a cell with this seed; one folder for equal studies of all entries."""
        kind = "attack-" if self.entry.attack is not None else ""
        return out / "runs" / f"{kind}{cell.digest}-{seed}"

    def folders(self, out: Path) -> dict[Path, tuple[Cell, int]]:
        """The folder of each run, seed by seed, with its first cell and its seed."""
        found: dict[Path, tuple[Cell, int]] = {}
        for seed in self.seeds:
            for cell in self.cells:
                if seed in cell.seeds:
                    found.setdefault(self.folder(cell, out, seed), (cell, seed))
        return found

    def within(self, other: Grid) -> bool:
        """Return True if the other grid runs every study of this one."""
        there = {cell.digest for cell in other.cells}
        return all(cell.digest in there for cell in self.cells)

    @property
    def panels(self) -> list[str]:
        return list(dict.fromkeys(cell.place.panel for cell in self.cells))

    @property
    def points(self) -> list[str]:
        return list(dict.fromkeys(cell.place.point for cell in self.cells))

    def points_of(self, panel: str) -> list[str]:
        """The points that a panel has."""
        found = {cell.place.point for cell in self.cells if cell.place.panel == panel}
        return [point for point in self.points if point in found]

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys(cell.place.series for cell in self.cells))

    @property
    def forms(self) -> list[str]:
        return list(dict.fromkeys(cell.place.form for cell in self.cells))


BROKER = "Mosquitto"


def present(name: str) -> bool:
    """Return True if a data set is here, or the broker."""
    if name == BROKER:
        there = which("mosquitto") or which("mosquitto", path="/usr/sbin:/usr/local/sbin")
        return there is not None and find_spec("sordino_mqtt") is not None
    try:
        return name in NAMES or where(name) is not None
    except DataError:
        return False


def grid(
    entry: Entry,
    scale: ScaleName,
    seeds: int | None = None,
    home: Path = CATALOGUE,
    here: Present = present,
) -> Grid:
    """The studies of an entry at a scale, on the data that is here.

    Args:
        seeds: how many; as the entry, its scale and its series say, if left out.

    Raises:
        StudyError: naming every cell whose study is wrong.
    """
    path = home / "studies" / f"{entry.study}.toml"
    chosen = entry.at(scale)
    if chosen.left_out:
        return Grid(entry, scale, (), (), {}, (f"{entry.item}: {chosen.left_out}",))
    data: dict[str, Data | None] = {}
    left_out: list[str] = []
    cells: list[Cell] = []
    wrong: list[str] = []
    brokers = {each.key: each.broker for each in entry.series}
    away = [] if here(BROKER) else [each for each in entry.series if each.broker]
    left_out += [f"{each.label}: needs {BROKER}, which is not installed" for each in away]
    for panel in _kept(entry.panel, chosen.panels, scale, left_out) or (Panel("", ""),):
        offered = panel.data or entry.data
        taken = next((each for each in offered if not each.needs or here(each.needs)), None)
        data[panel.key] = taken
        if offered and taken is None:
            wanted = " or ".join(each.needs for each in offered)
            left_out.append(f"{panel.label or entry.item}: needs the data set {wanted}")
            continue
        for place, changes in _changes(entry, chosen, scale, panel, taken, left_out):
            if any(each.key == place.series for each in away):
                continue
            try:
                study = studies.read(path, changes)
            except StudyError as error:
                wrong.append(f"{entry.name}, {told(entry, place)}: {error}")
                continue
            broker, digest = brokers[place.series], digest_of(study)
            # noise is drawn over the name, so that of a simulation through a broker is the same
            named = study.model_copy(update={"name": f"reproduction {digest}"})
            digest += f"-{broker}" * bool(broker)
            own = [also.seeds for also in entry.also if also.seeds and _fits(also, place)]
            most = own[-1] if own else entry.seeds
            number = seeds or min(most, chosen.seeds or most)
            every = tuple(range(study.seed, study.seed + number))
            cells.append(Cell(place, named, digest, every, broker))
    if wrong:
        raise StudyError("\n".join(dict.fromkeys(wrong)))
    return Grid(
        entry,
        scale,
        tuple(cells),
        max((cell.seeds for cell in cells), key=len, default=()),
        data,
        tuple(dict.fromkeys(left_out)),
    )


def grids(
    entries: Sequence[Entry], scale: ScaleName, seeds: int | None = None, home: Path = CATALOGUE
) -> list[Grid]:
    """The studies of several entries.

    Raises:
        StudyError: naming everything that is wrong in any of them.
    """
    found, wrong = [], []
    for entry in entries:
        try:
            found.append(grid(entry, scale, seeds, home))
        except StudyError as error:
            wrong.append(str(error))
    if wrong:
        raise StudyError("\n".join(wrong))
    return found


def told(entry: Entry, place: Place) -> str:
    """A place in words."""
    names = {each.key: each.label for each in entry.panel}
    names |= {each.key: each.label for each in entry.series}
    form = "" if place.form == entry.form[0].key else f"form {place.form}"
    keys = (names.get(place.panel, ""), names.get(place.series, ""), place.point, form)
    return ", ".join(filter(None, keys))


def _kept(parts: Sequence[K], names: Sequence[str], scale: str, left_out: list[str]) -> list[K]:
    """Those that a scale runs, all if it names none; the others are noted."""
    kept = [
        part
        for part in parts
        if not names or (part.label if isinstance(part, Point) else part.key) in names
    ]
    left_out += [f"{part.label}: left out at scale {scale}" for part in parts if part not in kept]
    return kept


def _changes(
    entry: Entry,
    chosen: Scale,
    scale: ScaleName,
    panel: Panel,
    data: Data | None,
    left_out: list[str],
) -> Iterator[tuple[Place, Changes]]:
    """Every cell of a panel, with the changes that make its study, in order."""
    points = _kept(entry.x.values if entry.x else (), chosen.points, scale, left_out)
    points = [each for each in points if not panel.points or each.label in panel.points]
    for form in entry.form:
        for series in _kept(entry.series, chosen.series, scale, left_out):
            if form.only and series.key not in form.only:
                continue
            for point in points if entry.x else (Point(""),):
                place = Place(panel.key, form.key, series.key, point.label)
                parts: list[Data | Panel | Series | Point | Form | Also]
                parts = [panel, series] if series.fixed else [panel, series, point, form]
                if data is not None:
                    parts.insert(0, data)
                parts += [also for also in entry.also if _fits(also, place)]
                changes = [change for part in parts for change in part.changes]
                changes += entry.at("full" if scale == "full" else "standard").changes
                if scale != "full":
                    changes += [change for part in parts for change in part.small]
                if scale == "quick":
                    changes += chosen.changes
                yield place, tuple(changes)


def _fits(also: Also, place: Place) -> bool:
    named = also.panel, also.series, also.x, also.form
    where = place.panel, place.series, place.point, place.form
    return all(not names or name in names for names, name in zip(named, where, strict=True))


def digest_of(study: Study) -> str:
    """The same for studies that differ in nothing but name and seed."""
    table = study.as_table()
    kept = {key: value for key, value in table.items() if key not in ("name", "seed", "reported")}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LETTERS]
