"""``sordino reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.extend.commands import AsJson, StudyError, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino_papers.cells import Grid
    from sordino_papers.results import EntryOf

LIST = "LIST"
MOST_SEEDS = 1000


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="LIST|NAME...|all",
            help="Entries of the catalogue, or beginnings of names such as mapa; LIST shows them.",
        ),
    ],
    scale: Annotated[
        str,
        typer.Option(
            metavar="quick|standard|full",
            help="How large the studies are. quick: at most three seeds, an hour of two cores for "
            "all. standard: the lengths and seeds that docs/reproduction.md shows, hours. full: "
            "the papers' own lengths and models, days.",
        ),
    ] = "quick",
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds. Default: what each entry says.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for all runs and pages. The same folder continues.")
    ] = Path("reproduction"),
    workers: Annotated[
        int | None, typer.Option(help="Number of processes, with a run each. Default: one a core.")
    ] = None,
    judge: Annotated[
        bool, typer.Option("--judge", help="Run nothing: write what the runs that are there say.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the tables and figures of the papers again, and judge what the papers claim of them."""
    if seeds is not None and not 1 <= seeds <= MOST_SEEDS:
        raise StudyError(f"--seeds must be from 1 to {MOST_SEEDS}; got {seeds}")
    from sordino_papers import cells
    from sordino_papers.entry import SCALES, entries

    size = next((each for each in SCALES if each == scale), None)
    if size is None:
        raise StudyError(f"--scale must be quick, standard or full; got {scale!r}")
    asked = [name for name in names if name.upper() != LIST]
    listed = len(asked) < len(names)
    wanted = entries(asked or ["all"])
    grids = cells.grids(wanted, size, seeds)
    if listed:
        _list(grids, as_json)
        return
    typed = [*names, *([] if scale == "quick" else ["--scale", scale])]
    typed += [] if seeds is None else ["--seeds", str(seeds)]
    command = " ".join(("sordino reproduce", *typed))
    whole = grids if size == "full" else cells.grids(wanted, "full")
    found = _played(grids, whole, out, None if judge else (workers, quiet), command)
    _tell(found, out)
    if as_json:
        say.machine({"page": str(out / "index.html"), "entries": found})
    if any(each.failures for each in found):
        raise typer.Exit(1)


def _list(grids: Sequence[Grid], as_json: bool) -> None:
    """The catalogue: what is run here of each entry, and how long that takes."""
    from sordino_papers.tables import data_of

    rows = [
        {
            "name": grid.entry.name,
            "item": grid.entry.item,
            "title": grid.entry.title,
            "data": data_of(grid) or "-",
            "runs": len(grid.folders(Path())),
            "minutes": grid.entry.at(grid.scale).minutes,
            "claims": len(grid.entry.claim),
        }
        for grid in grids
    ]
    if as_json:
        say.machine(rows)
        return
    say.table(
        "Catalogue",
        ["name", "item", "data here", "runs", "claims", "core minutes"],
        [
            [
                *(str(row[key]) for key in ("name", "item", "data", "runs", "claims")),
                "-" if row["minutes"] is None else f"{row['minutes']:g}",
            ]
            for row in rows
        ],
    )
    say.people(
        f"Core minutes are of scale {grids[0].scale}, on one core, where they were measured. Runs "
        "that several entries need are made once."
    )


def _played(
    grids: Sequence[Grid],
    whole: Sequence[Grid],
    out: Path,
    making: tuple[int | None, bool] | None,
    command: str,
) -> list[EntryOf]:
    """Make the runs that are missing, and write what all of them say.

    Args:
        whole: the same entries at full scale: whatever of their runs is there is shown as well.
        making: workers and whether to be quiet; None to make no runs.
    """
    from sordino.extend.runs import locked, runner
    from sordino_papers import play
    from sordino_papers.pages import write
    from sordino_papers.results import Results, collected, without_repeats

    runner.refuse_file(out)
    failed: dict[Path, str] = {}
    with locked(out, make=True), say.stoppable():
        if making is not None:
            runs = play.needed(grids, out)
            at_once = runner.runs_at_once(
                making[0], [run.cell.study.execution.threads for run in runs]
            )
            failed = play.play(runs, at_once, making[1], say.people)
        found = [(each, collected(each)) for each in (Results(grid, out, failed) for grid in grids)]
        full = without_repeats([Results(grid, out, {}) for grid in whole])
        write(out, found, [(each, collected(each)) for each in full], command)
    return [said for _, said in found]


def _tell(found: Sequence[EntryOf], out: Path) -> None:
    """The verdicts, and where the rest is."""
    rows = [
        [each.name, claim.paper, claim.sound, claim.text] for each in found for claim in each.claims
    ]
    if rows:
        say.table("Claims", ["entry", "the paper's own form", "the sound form", "claim"], rows)
    for each in found:
        for failure in each.failures:
            say.people(f"failed: {each.name}: {failure}")
    say.result(f"Page: {out / 'index.html'}")
