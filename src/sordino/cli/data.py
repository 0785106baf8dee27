"""``sordino data``: list, find and download data sets, and show how a study partitions them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli import say
from sordino.cli.run import AsJson, Set

EMBEDDED = "embedded"

app = typer.Typer(help="Find, download and inspect data sets.", no_args_is_help=True)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the known data sets and where each was found."""
    from sordino.data import PUBLISHED, where
    from sordino.data.sets import NAMES

    found = {
        name: Path(EMBEDDED) if name in NAMES else where(name) for name in (*NAMES, *PUBLISHED)
    }
    if as_json:
        say.machine({name: None if path is None else str(path) for name, path in found.items()})
        return
    rows = [
        [name, "not here; see `sordino data find " + name + "`" if path is None else str(path)]
        for name, path in found.items()
    ]
    say.table("Data sets", ["name", "where"], rows)


@app.command()
def find(name: str, as_json: AsJson = False) -> None:
    """Say where a data set is, or every way to get it (exit status 2)."""
    from sordino.data.locate import find as locate
    from sordino.data.sets import NAMES

    path = Path(EMBEDDED) if name in NAMES else locate(name)
    say.people(str(path))
    if as_json:
        say.machine({"name": name, "path": str(path)})


@app.command()
def fetch(name: str) -> None:
    """Download a data set into the user's cache, checked against its published checksum."""
    from sordino.data import fetch as download

    say.people(f"{name}: {download(name, say=say.people)}")


@app.command()
def partition(
    study: Annotated[Path, typer.Argument(help="The study file.")],
    out: Annotated[Path | None, typer.Option(help="Write the picture (SVG) there.")] = None,
    change: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show how a study partitions its data: label counts of public data, else sizes only."""
    from sordino.api.planning import division

    found = division(study, change or ())
    if out is not None:
        found.draw(out)
        say.people(f"Picture: {out}")
    if as_json:
        say.machine(found.record())
    elif found.counts is not None and out is None:
        rows = [
            [name, str(sum(row)), *map(str, row)]
            for name, row in zip(found.names, found.counts, strict=True)
        ]
        say.table("Examples of each label", ["", "all", *found.classes], rows)
    elif found.counts is None and found.sizes is None:
        say.people(
            f"{len(found.names)} clients: {', '.join(found.names)}. Whole clients are protected "
            "and weigh the same, so how many examples each has is private"
        )
    elif found.counts is None:
        rows = [[name, str(n)] for name, n in zip(found.names, found.sizes or (), strict=True)]
        say.table(f"Examples ({found.why})", ["", "all"], rows)
