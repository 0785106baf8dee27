"""``sordino ledger link``: tell a ledger that rows of two files are about the same people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson


def link(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a ledger of the data, as in privacy.ledger.")
    ],
    first: Annotated[Path, typer.Argument(help="A file (csv, parquet or npz).")],
    second: Annotated[Path, typer.Argument(help="Another file with rows about the same people.")],
    on: Annotated[
        str | None,
        typer.Option("--on", help="The column that says who a row is about, in both files."),
    ] = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Row by row, in the order of the files.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Declare that rows of two files are about the same people, who then share one budget."""
    if (on is None) != rows:
        raise StudyError(
            "say how rows belong together: --on COLUMN, or --rows for the order of the files"
        )
    from sordino.data.table import paired
    from sordino.privacy import Ledger
    from sordino.privacy.records import link as join
    from sordino.privacy.session import data_ledger

    path = data_ledger(folder)
    if not path.is_file():
        raise StudyError(
            f"{folder}: there is no data ledger here; the first run with privacy.ledger = "
            f"{str(folder)!r} makes one"
        )
    one, other = paired(first, second, on)
    with Ledger.open(path) as ledger:
        joined = join(ledger, one, other)
    if as_json:
        say.machine({"pairs": len(one), "joined": joined})
        return
    say.people(
        f"{len(one)} pairs of rows; {joined} records are now linked with another record of "
        "the same person"
    )
