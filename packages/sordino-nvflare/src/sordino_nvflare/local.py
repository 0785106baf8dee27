"""A site's own settings, in its own NVFlare workspace: nothing of them comes with a job.

``local/sordino.toml`` has a table for each federation that the site takes part in, under the
federation's name. Paths are taken from the folder of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import Field

from sordino.extend.network import Section, StudyError, read_table

NAME = "sordino.toml"


class ServerTable(Section):
    """The server's table.

    Attributes:
        kit: the server's kit.
        out: the run folder; the folder run in the kit if left out.
        test: public rows that models are measured on.
        page: port of the status page on the loopback.
        durable: whether each input waits for the disk.
        scripted: whether answers are taken in the order of a simulation; for rehearsals.
        answer_within: seconds in which a site that is connected answers; as agreed, if left out.
        wait: seconds with fewer sites than the minimum after which the job ends. NVFlare brings no
            site back into a running job; they are back when the job is submitted again.
    """

    kit: Path
    out: Path | None = None
    test: Path | None = None
    page: int | None = None
    durable: bool = False
    scripted: bool = False
    answer_within: float | None = None
    wait: float = Field(120.0, gt=0)


class SiteTable(Section):
    """A site's table.

    Attributes:
        kit: its kit.
        data: its own rows.
        ledger: folder of the ledger of its data; a ledger of this run if left out.
        epsilon_limit: epsilon that it spends at most, whatever is asked.
        out: the run folder; the folder run in the kit if left out.
        rehearsal: whether it joins though the noise is known to everybody; for public rows.
    """

    kit: Path
    data: Path
    ledger: Path | None = None
    epsilon_limit: float | None = None
    out: Path | None = None
    rehearsal: bool = False


S = TypeVar("S", ServerTable, SiteTable)


def read(folder: Path, federation: str, kind: type[S]) -> S:
    """The table of a federation in the file of a folder.

    Raises:
        StudyError: naming the file, and what is missing or wrong.
    """
    path = folder / NAME
    tables = read_table(
        path,
        "there is no such file. It says where this site's kit and data are; docs/nvflare.md shows "
        "one",
    )
    table = tables.get(federation)
    if not isinstance(table, dict):
        raise StudyError(
            f"{path}: there is no table [{federation}]: this site has not been set up for that "
            "federation"
        )
    try:
        found = kind(**table)
    except StudyError as error:
        raise StudyError(f"{path}: [{federation}]: {error}") from None
    paths = {k: folder / v for k in kind.model_fields if isinstance(v := getattr(found, k), Path)}
    return found.model_copy(update=paths)
