"""``sordino network nvflare-job``, ``nvflare-allow`` and ``nvflare-run``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from sordino.extend.commands import StudyError, say

Kit = Annotated[Path, typer.Argument(help="The folder of a kit, as `network provision` made it.")]


def nvflare_job(
    kit: Kit, out: Annotated[Path, typer.Option(help="The folder to create.")] = Path("job")
) -> None:
    """Make the job of a federation that runs on NVFlare; it holds settings, and no code."""
    from sordino.extend.network import Agreed
    from sordino_nvflare import job

    job.write(Agreed(kit), out)
    say.people(
        f"The job is in {out}. Submit it with NVFlare's tools, or with: sordino network "
        f"nvflare-run {out} --admin FOLDER"
    )


def nvflare_allow(
    workspace: Annotated[
        Path, typer.Argument(help="The start-up folder of a site or the server, from NVFlare.")
    ],
    kit: Annotated[Path, typer.Option(help="The kit of this site, or of the server.")],
    data: Annotated[
        Path | None, typer.Option(help="A site's own rows (CSV, Parquet, npz).")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="Folder of the ledger of this data.")] = None,
    epsilon_limit: Annotated[
        float | None, typer.Option(help="Epsilon that this site spends at most.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="At the server: public rows that models are measured on.")
    ] = None,
) -> None:
    """Let one's own NVFlare run jobs of a federation: with this kit, these rows and this limit."""
    from sordino.extend.network import Agreed, site_of
    from sordino_nvflare import job
    from sordino_nvflare.workspace import settle

    agreed = Agreed(kit)
    federation = agreed.agreement.name
    site = (kit / "site.pem").exists()
    if site is (data is None) or (test if site else ledger or epsilon_limit) is not None:
        raise StudyError(
            "a site has --data, and may have --ledger and --epsilon-limit; the server may have "
            f"--test. {kit} is the kit of {'a site' if site else 'the server'}"
        )
    if site:  # what this site's NVFlare would refuse later is refused now
        agreed.network.limited(site_of(agreed), ledger, epsilon_limit)
    paths = {"kit": kit, "data": data, "ledger": ledger, "test": test}
    table: dict[str, object] = {
        name: str(path.absolute()) for name, path in paths.items() if path is not None
    }
    if epsilon_limit is not None:
        table["epsilon_limit"] = epsilon_limit
    settle(workspace, federation, table)
    say.people(
        f"{workspace / 'local'}: sordino.toml says with what this site takes part in {federation}; "
        "resources.json lets NVFlare load the two classes of the job, and keeps this site's logs "
        "here. Restart NVFlare if it is running"
    )
    if site:
        say.people(
            "authorization.json: no job brings code to this site any more, which could read the "
            f"rows. {job.TRUSTED} If you do not trust them with that, agree on another transport"
        )


def nvflare_run(
    job: Annotated[Path, typer.Argument(help="The folder of a job, as `nvflare-job` made it.")],
    admin: Annotated[
        Path, typer.Option(help="The admin's start-up folder, as NVFlare provisioned it.")
    ],
    tries: Annotated[int, typer.Option(min=1, help="How often the job is submitted at most.")] = 20,
) -> None:
    """Submit a job to NVFlare, and again whenever it ends before the study has."""
    from sordino_nvflare.admin import Admin, keep

    with closing(Admin(admin)) as session:
        done = keep(session, job, say.people, tries=tries)
    if not done:
        raise StudyError("the job has not ended well; NVFlare's logs and the sites' say why")
