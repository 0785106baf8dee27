"""``sordino data``: list, find and download data sets, and show how a study partitions them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sordino.base.errors import StudyError
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
    from sordino.clients.division import examples, federation
    from sordino.clients.study import HorizontalStudy
    from sordino.core import study as studies

    read = studies.read(study, change or ())
    if not isinstance(read, HorizontalStudy):
        raise StudyError(
            f"{study}: its parties hold different features of the same entities, and no "
            "examples of their own; see data.parts"
        )
    divided = federation(examples(read))
    names = divided.names or tuple(f"client {i}" for i in range(len(divided.parts)))
    private = not read.data.published and read.privacy.unit != "none"
    if private or divided.test.span is not None:  # numbers are counted nowhere
        hidden = private and read.hides_sizes
        title = "labels are private and not counted" if private else "labels are numbers"
        _sizes(names, None if hidden else divided.sizes, out, as_json, f"Examples ({title})")
        return
    counts = divided.counts.tolist()
    if out is not None:
        from sordino.clients.report import division
        from sordino.core.files import replace_file
        from sordino.report.drawing import draw

        replace_file(out, draw(division(counts, divided.test.classes)).encode())
        say.people(f"Picture: {out}")
    if as_json:
        say.machine({"classes": divided.test.classes, "counts": counts})
    elif out is None:
        rows = [
            [name, str(sum(row)), *map(str, row)] for name, row in zip(names, counts, strict=True)
        ]
        say.table("Examples of each label", ["", "all", *divided.test.classes], rows)


def _sizes(
    names: Sequence[str],
    sizes: Sequence[int] | None,
    out: Path | None,
    as_json: bool,
    title: str,
) -> None:
    """Show what is public of a division of private examples, or of numbers; ``sizes`` if they
    are.
    """
    if out is not None:
        raise StudyError(
            "--out draws how many examples of each label a client has, which is private data. "
            "Leave --out out, or, if the data is public, set privacy.unit = 'none' with a method "
            "that adds no noise"
        )
    if as_json:
        say.machine({"clients": list(names), "sizes": None if sizes is None else list(sizes)})
        return
    if sizes is None:
        say.people(
            f"{len(names)} clients: {', '.join(names)}. Whole clients are protected and weigh the "
            "same, so how many examples each has is private"
        )
        return
    say.table(
        title,
        ["", "all"],
        [[name, str(size)] for name, size in zip(names, sizes, strict=True)],
    )
