"""Results of an entry: numbers of every cell, and a verdict for every claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sordino.extend.runs import MIB, Run, StudyError, known, load, read_below, spread, there
from sordino.extend.runs import number as real
from sordino_papers.cells import Cell, Grid, Place, told
from sordino_papers.checks import Computed
from sordino_papers.entry import Claim, Gap, Published
from sordino_papers.measures import SHORT, Attacked, Best, Curve, Measure, Until
from sordino_papers.verdicts import Evidence, Judged, Said, judge, together
from sordino_papers.worker import ATTACK, Found


class Damaged(StudyError):
    """A run that cannot be read; the message says how to make it anew."""


class Number(msgspec.Struct, frozen=True):
    """Values of a measure in a cell: by seed, their mean and standard deviation; curves apart."""

    measure: str
    by_seed: dict[str, float]
    mean: float | None
    sd: float | None


class CellOf(msgspec.Struct, frozen=True):
    """A cell with its numbers; ``epsilon`` is the true one, ``claimed`` what the paper claims."""

    panel: str
    form: str
    series: str
    x: str
    digest: str
    claimed: float | str | None
    epsilon: float | str | None
    delta: float | None
    unit: str
    numbers: tuple[Number, ...]


class ClaimOf(msgspec.Struct, frozen=True):
    """A claim and its verdicts.

    Attributes:
        paper: verdict in the paper's own form, with its noise and constants, at the epsilon that it
            claims.
        sound: verdict in the sound form, where every series has the same true epsilon. Where a
            claim has one form only, it is both.
        verdict: both together: a claim is shown only if both are.
        repeats: the item where it is counted, or whose runs are made again here; empty if it is
            counted here.
        data: on which it was judged, in words; empty where it needs none.
        on_other_data: whether some of it is other data than the paper's.
        length: how much of the paper's runs there were; empty where it needs none.
        judged_at: the scale whose runs judge it, where they are there; empty for the entry's own.
    """

    text: str
    where: str
    paper: Said
    sound: Said
    verdict: Said
    forms: tuple[Judged, ...]
    repeats: str
    data: str
    on_other_data: bool
    length: str
    headline: bool
    judged_at: str
    why: str


class EntryOf(msgspec.Struct, frozen=True, kw_only=True):
    """``entries/<name>.json``."""

    name: str
    paper: str
    item: str
    title: str
    scale: str
    seeds: tuple[int, ...]
    data: dict[str, str]
    on_the_papers_data: bool
    cells: tuple[CellOf, ...]
    claims: tuple[ClaimOf, ...]
    published: tuple[Published, ...]
    not_run: tuple[Gap, ...]
    left_out: tuple[str, ...]
    failures: tuple[str, ...]
    runs: int
    there: int
    seconds: float
    note: str


@dataclass(slots=True, eq=False)
class Results:
    """The runs of a grid, each read once."""

    grid: Grid
    out: Path
    failed: Mapping[Path, str]
    _runs: dict[Path, Run | Found | None] = field(default_factory=dict)
    _damaged: dict[Path, str] = field(default_factory=dict)

    def run(self, cell: Cell, seed: int) -> Run | Found | None:
        """A run, or what an attack found; None where it is not there, or not whole."""
        folder = self.grid.folder(cell, self.out, seed)
        if folder not in self._runs:
            try:
                self._runs[folder] = read(folder)
            except Damaged as error:
                self._runs[folder] = None
                self._damaged[folder] = str(error)
        return self._runs[folder]

    @property
    def there(self) -> dict[Path, int]:
        """The folders of the runs that are whole, with their seeds."""
        folders = self.grid.folders(self.out)
        return {place: at[1] for place, at in folders.items() if self.run(*at) is not None}

    def failure(self, cell: Cell, seed: int) -> str | None:
        """Why a run failed or cannot be read; None for others."""
        folder = self.grid.folder(cell, self.out, seed)
        self.run(cell, seed)
        return self.failed.get(folder) or self._damaged.get(folder)

    def runs(self, cell: Cell) -> list[Run]:
        """Of all seeds, those that are whole."""
        found = [self.run(cell, seed) for seed in cell.seeds]
        return [each for each in found if isinstance(each, Run)]

    def values(self, measure: Measure, place: Place) -> dict[int, float | Curve]:
        """Return a measure's values in a cell, by seed; seeds without a number are left out."""
        if isinstance(measure, Best):
            return self._best(measure, place)
        levels = {each.key: each.level for each in self.grid.entry.panel}
        if isinstance(measure, Until) and (level := levels.get(place.panel)) is not None:
            measure = msgspec.structs.replace(measure, until=level)
        cell, found = self.grid.at(place), dict[int, float | Curve]()
        if cell is not None:
            for seed in cell.seeds:
                value = measured(measure, self.run(cell, seed))
                if value is not None and value != ():
                    found[seed] = value
        return found

    def numbers(self, measure: Measure, place: Place) -> dict[int, float]:
        """Return those of its values that are numbers."""
        found = self.values(measure, place)
        return {seed: each for seed, each in found.items() if not isinstance(each, tuple)}

    def _best(self, best: Best, place: Place) -> dict[int, float | Curve]:
        """By seed, whether the series is the best of all there."""
        measure, names = SHORT[best.best_of], best.among or self.grid.series
        if place.series not in names:
            return {}
        beside = {name: self.values(measure, replace(place, series=name)) for name in names}
        seeds = set.intersection(*(set(each) for each in beside.values()))
        way = min if measure.falling else max
        return {
            seed: float(beside[place.series][seed] == way(each[seed] for each in beside.values()))
            for seed in sorted(seeds)
        }

    def epsilons(self, cell: Cell) -> tuple[float | None, float | None]:
        """Claimed and true, the highest over the seeds."""
        runs = self.runs(cell)
        claimed = [each.claimed for each in runs if each.claimed is not None]
        true = [each.spent for each in runs if each.spent is not None]
        return max(claimed, default=None), max(true, default=None)


def without_repeats(every: Sequence[Results]) -> list[Results]:
    """Those that have runs which none has that is more complete."""
    there = [each.there.keys() for each in every]
    share = [
        len(there[i]) / max(len(each.grid.folders(each.out)), 1) for i, each in enumerate(every)
    ]
    seen, kept = set[Path](), set[int]()
    for i in sorted(range(len(every)), key=lambda i: -share[i]):
        if not there[i] <= seen:
            kept.add(i)
            seen |= there[i]
    return [every[i] for i in sorted(kept)]


def measured(measure: Measure, run: Run | Found | None) -> float | Curve | None:
    """Return the value of a measure in a run, or None."""
    if isinstance(run, Found):
        if not isinstance(measure, Attacked):
            return None
        psnr = math.inf if run.psnr is None else run.psnr
        return psnr if measure.attacked == "psnr" else run.correlation
    return None if run is None else measure.of(run)


def judged(results: Results, claim: Claim) -> ClaimOf:
    """A claim with its verdicts, by the first form and each in which a series of it was run."""
    grid = results.grid
    series = {name for what, names in claim.rule.named() if what == "series" for name in names}
    run = {cell.place.form for cell in grid.cells if cell.place.series in series}
    forms = tuple(
        judge(
            claim.rule,
            Evidence(grid, form, claim.measure, lambda place: results.values(claim.measure, place)),
        )
        for form in grid.forms
        if form == grid.forms[0] or form in run
    )
    said = {each.form: each.said for each in forms}
    first = forms[0].said if forms else "not run"
    paper, sound = said.get("paper", first), said.get("sound", first)
    x = set(claim.rule.x)
    of = claim.rule.panel or grid.data.keys()
    panels = [each for each in of if not x or not x.isdisjoint(grid.points_of(each))]
    taken = [each for each in (grid.data.get(panel) for panel in panels) if each is not None]
    repeated = claim.repeats or next((each.repeats for each in taken if each.repeats), "")
    if isinstance(claim.rule, Computed):
        taken, length = [], ""
    else:
        length = grid.entry.at(grid.scale).length or "all"
    return ClaimOf(
        claim.text,
        claim.where,
        paper,
        sound,
        together([paper, sound]),
        forms,
        repeated,
        "; ".join(dict.fromkeys(each.name for each in taken)),
        any(not each.papers for each in taken),
        length,
        claim.headline,
        claim.judged_at,
        claim.why,
    )


def collected(results: Results) -> EntryOf:
    """Everything that is said of an entry."""
    grid, entry = results.grid, results.grid.entry
    names = {each.key: each.label for each in entry.panel}
    taken = [each for each in grid.data.values() if each is not None]
    runs = [results.run(*each) for each in grid.folders(results.out).values()]
    there = [run for run in runs if run is not None]
    return EntryOf(
        name=entry.name,
        paper=entry.paper,
        item=entry.item,
        title=entry.title,
        scale=grid.scale,
        seeds=grid.seeds,
        data={names.get(key, key): each.name for key, each in grid.data.items() if each},
        on_the_papers_data=all(each.papers for each in taken),
        cells=tuple(_cell(results, cell) for cell in grid.cells),
        claims=tuple(judged(results, claim) for claim in entry.claim),
        published=entry.published,
        not_run=entry.not_run,
        left_out=grid.left_out,
        failures=_failures(results),
        runs=len(runs),
        there=len(there),
        seconds=math.fsum(_seconds(results)),
        note=" ".join(filter(None, (entry.note, _reservations(there, len(runs))))),
    )


def _cell(results: Results, cell: Cell) -> CellOf:
    shown = [each.measure for each in results.grid.entry.shown if not each.measure.curved]
    numbers = [number(each.told, results.numbers(each, cell.place)) for each in shown]
    claimed, true = results.epsilons(cell)
    privacy, place = cell.study.privacy, cell.place
    return CellOf(
        place.panel,
        place.form,
        place.series,
        place.point,
        cell.digest,
        claimed,
        true,
        privacy.delta,
        privacy.unit,
        tuple(numbers),
    )


def number(told: str, found: Mapping[int, float]) -> Number:
    """Mean and standard deviation of a measure over seeds."""
    by_seed = {str(seed): each for seed, each in found.items()}
    if not all(map(math.isfinite, found.values())):  # an epsilon may be infinite
        return Number(told, by_seed, math.fsum(found.values()) / len(found), None)
    over = spread(list(found.values()))
    return Number(told, by_seed, over.mean, over.sd)


def _failures(results: Results) -> tuple[str, ...]:
    return tuple(
        f"{told(results.grid.entry, cell.place)}, seed {seed}: {why}"
        for seed in results.grid.seeds
        for cell in results.grid.cells
        if (why := results.failure(cell, seed)) is not None
    )


def _reservations(there: Sequence[Run | Found], runs: int) -> str:
    """Return remarks on the runs: that some are missing, or that different programs made them."""
    codes = {known(run.environment.code) for run in there if isinstance(run, Run)}
    told = []
    if len(there) < runs:
        told.append(f"Only {len(there)} of {runs} runs are there.")
    if len(codes) > 1:
        told.append(
            f"Its runs were made by {len(codes)} versions of the program: another --out makes them "
            "all by this one."
        )
    return " ".join(told)


def seconds_of(folder: Path) -> Path:
    """Where it is kept how many seconds of a core a run took; a run folder holds its own files
    only.
    """
    return folder.parent.parent / "seconds" / folder.name


def _seconds(results: Results) -> list[float]:
    """Of a core, of every run; wall time where that is all that is known."""
    found = []
    for folder, (cell, seed) in results.grid.folders(results.out).items():
        run = results.run(cell, seed)
        try:
            found.append(float(seconds_of(folder).read_text()))
        except (OSError, ValueError):  # missing, or damaged
            if isinstance(run, Run):
                found.append(real(run.result.seconds) or 0.0)
    return found


def read(folder: Path) -> Run | Found | None:
    """A run that is whole, or what an attack found; None where neither is there.

    Raises:
        Damaged: if what is there cannot be read.
    """
    try:
        if there(folder, ATTACK):
            return msgspec.json.decode(read_below(folder, ATTACK, most=MIB), type=Found)
        if not there(folder, "run.json"):
            return None
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{folder / ATTACK}: cannot be read ({error})") from error
    run = loaded(folder)
    return run if run.done and known(run.about.result) is not None else None


def loaded(folder: Path) -> Run:
    """A run, whole or not.

    Raises:
        Damaged: if it cannot be read.
    """
    try:
        return load(folder)
    except (StudyError, OSError) as error:
        raise _damaged(folder, str(error)) from error


def _damaged(folder: Path, why: str) -> Damaged:
    return Damaged(f"{why}. Or remove {folder}, and the same command makes it anew")
