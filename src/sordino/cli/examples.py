"""``sordino examples``: the studies that come with the program, also with an installed one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli import say
from sordino.cli.run import AsJson


def examples(
    name: Annotated[
        str | None,
        typer.Argument(help="An example or a folder of examples. Default: list all of them."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to copy it. Default: its name, in this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the shipped example studies, or copy one of them, or a folder of them."""
    from sordino.api import shipped

    if name is None:
        listed = shipped.listed()
        if as_json:
            say.machine(listed)
            return
        say.table("Examples", ["name", "study"], [[key, value] for key, value in listed.items()])
        say.people("`sordino examples NAME` copies one; the name of a folder copies all in it")
        return
    chosen = shipped.chosen(name)
    target = Path(chosen.name) if out is None else out
    for copied in shipped.copy(chosen, target):
        say.people(f"Copied {copied}")
    if as_json:
        say.machine({"example": name, "path": str(target)})
