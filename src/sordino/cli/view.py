"""``sordino view``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli import say


def view(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a folder of run folders.")],
    port: Annotated[
        int, typer.Option(help="The port on 127.0.0.1. Default: any that is free.")
    ] = 0,
) -> None:
    """Show a run while it goes on, or the runs in a folder, in a browser of this machine."""
    from sordino.live.view import view as serve

    pages = serve(folder, port)
    say.people(f"{folder}: {pages.address} (Ctrl-C to stop)")
    try:
        pages.wait()
    except KeyboardInterrupt:
        say.people("Stopped.")
    finally:
        pages.close()
