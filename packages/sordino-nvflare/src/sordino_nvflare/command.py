"""``sordino network nvflare-allow``, ``nvflare-job``, ``nvflare-run`` and ``nvflare-demo``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from sordino.extend.commands import Set, StudyError, StudyFile, say
from sordino_nvflare.local import IDLE

Port = Annotated[
    int, typer.Option(min=1, max=65_535, help="The port of the job: where `sordino serve` listens.")
]


def nvflare_allow(
    workspace: Annotated[
        Path, typer.Argument(help="The start-up folder of a site or the server, from NVFlare.")
    ],
    port: Port,
    here: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="The port of this machine, if it is another one."),
    ] = None,
) -> None:
    """Let one's own NVFlare carry connections: from this port at a site, to it at the server."""
    from sordino_nvflare import job, local

    job.allow(workspace, port, here or port)
    say.people(
        f"{workspace / 'local'}: {local.NAME} says that port {port} of a job is port "
        f"{here or port} of this machine; resources.json lets NVFlare load the two classes of the "
        "job. Restart NVFlare if it is running"
    )


def nvflare_job(
    port: Port,
    sites: Annotated[
        int, typer.Option(min=1, help="Sites that NVFlare waits for before it starts the job.")
    ] = 1,
    idle: Annotated[
        float, typer.Option(min=1.0, help="Seconds without a connection after which it ends.")
    ] = IDLE,
    out: Annotated[Path, typer.Option(help="The folder to create.")] = Path("job"),
) -> None:
    """Make a job that carries connections; it holds settings, and no code."""
    from sordino_nvflare import job

    job.write(out, port, sites, idle)
    say.people(
        f"The job is in {out}. Submit it with NVFlare's tools, or with: sordino network "
        f"nvflare-run {out} --admin FOLDER"
    )


def nvflare_run(
    job: Annotated[Path, typer.Argument(help="The folder of a job, as `nvflare-job` made it.")],
    admin: Annotated[
        Path, typer.Option(help="The admin's start-up folder, as NVFlare provisioned it.")
    ],
    tries: Annotated[int, typer.Option(min=1, help="How often the job is submitted at most.")] = 20,
) -> None:
    """Submit a job to NVFlare, and again when it fails, until it ends by itself."""
    from sordino_nvflare.admin import Admin, keep

    with closing(Admin(admin)) as session:
        done = keep(session, job, say.people, tries=tries)
    if not done:
        raise StudyError("the job has not ended by itself; NVFlare's logs say why")


def nvflare_demo(
    study: StudyFile,
    out: Annotated[Path, typer.Option(help="The folder to create.")] = Path("federation"),
    change: Set = None,
    scripted: Annotated[
        bool,
        typer.Option(
            "--scripted",
            help="Give the same model as a simulation: noise from the seed. No privacy.",
        ),
    ] = False,
) -> None:
    """Run a study between processes of this machine, through an NVFlare that is made for it."""
    from sordino.extend.network import lay_out
    from sordino.extend.runs import study as studies
    from sordino_nvflare import demo

    laid = lay_out(studies.read(study, change or ()), out, scripted=scripted)
    if failed := demo.through(laid, say.people, scripted=scripted):
        raise StudyError(f"{failed} of the processes failed; their output is in {out / 'logs'}")
    say.result(f"Every site has its own run folder: {laid.sites[0][0] / 'run'} and so on")
