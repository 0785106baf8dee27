"""The transport that Sordino finds by the entry point ``nvflare``, and a demo: a federation over an
NVFlare of its own on this machine, provisioned, started, given the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from sordino.extend.network import (
    Agreed,
    Agreement,
    DemoFederation,
    StudyError,
    Transport,
    end,
    listens,
)
from sordino_nvflare import admin, job, workspace

if find_spec("nvflare") is None:  # it is imported where it is used: that takes seconds
    raise ModuleNotFoundError("NVFlare is not installed", name="nvflare")

STARTING = 120.0
"""Seconds that NVFlare's own processes may take to find each other."""
LOOK = 0.2
TRIES = 3
"""Most submissions of a demo's job."""


class NVFlare(Transport):
    """The server and the sites are processes of a job, which NVFlare starts itself."""

    again = job.AGAIN
    demo_host = "localhost"

    def server(self, agreement: Agreement, kit: Path, host: str) -> NoReturn:
        """Nobody but NVFlare starts a server."""
        _refuse(agreement)

    def site(self, agreement: Agreement, index: int, kit: Path) -> NoReturn:
        """Nobody but NVFlare starts a site."""
        _refuse(agreement)

    def trusted(self, server: str) -> str:
        return f"the federation's server, in a job of NVFlare. {job.TRUSTED}"

    def cannot_revoke(self, name: str) -> str:
        return (
            f"NVFlare admits the sites of this federation: have its admin disable the client {name}"
        )

    def play(
        self, federation: DemoFederation, tell: Callable[[str], None], *, scripted: bool
    ) -> int:
        """Provision NVFlare beside the kits, and submit the job until the study has ended. A
        scripted server keeps no journal that leads past its last checkpoint: its job is submitted
        once.

        Raises:
            StudyError: if NVFlare does not start.
        """
        agreed, out = Agreed(federation.server), federation.server.parent.parent.absolute()
        agreement, logs = agreed.agreement, out / "logs"
        space = workspace.provision(
            out / "nvflare", agreement.name, agreement.port, agreement.names
        )
        _settle(space, federation, agreement.name, scripted)
        job.write(agreed, out / "job")
        logs.mkdir(exist_ok=True)
        begun = time.monotonic()
        running = {"server": workspace.start(space.server, logs / "server.txt", None)}

        def alive() -> bool:
            return all(process.poll() is None for process in running.values())

        try:
            for name, folder in space.sites.items():
                running[name] = workspace.start(folder, logs / f"{name}.txt", name)
            if not listens(agreement.host, agreement.port, alive, STARTING):
                raise StudyError("NVFlare's server does not start; its output says why")
            with closing(admin.Admin(space.admin)) as session:
                _gathered(session, set(agreement.names), alive)
                tell(f"NVFlare's processes are there after {time.monotonic() - begun:.0f} s")
                tries = 1 if scripted else TRIES
                done = admin.keep(session, out / "job", tell, tries=tries, alive=alive)
            _wait_for_proofs(federation)
            return 0 if done else 1
        finally:
            end(running.values())


def _refuse(agreement: Agreement) -> NoReturn:
    raise StudyError(
        f"the federation {agreement.name} runs as a job of NVFlare, which starts the server "
        "and the sites itself. Submit the job to it: docs/nvflare.md says how"
    )


def _settle(
    space: workspace.Workspace, laid: DemoFederation, federation: str, scripted: bool
) -> None:
    """Each site's own settings, which no job brings."""
    server: dict[str, object] = {"kit": str(laid.server.absolute()), "scripted": scripted}
    if laid.test is not None:
        server["test"] = str(laid.test.absolute())
    workspace.settle(space.server, federation, server)
    for kit, data in laid.sites:
        table = {"kit": str(kit.absolute()), "data": str(data.absolute()), "rehearsal": scripted}
        workspace.settle(space.sites[kit.name], federation, table)


def _gathered(session: admin.Admin, names: set[str], alive: Callable[[], bool]) -> None:
    end = time.monotonic() + STARTING
    while not names <= session.sites():
        if not alive() or time.monotonic() > end:
            raise StudyError("NVFlare's processes do not find each other; their output says why")
        time.sleep(LOOK)


def _wait_for_proofs(laid: DemoFederation) -> None:
    """Until the sites have written what they write at the end, or it takes too long."""
    end = time.monotonic() + 10.0
    proofs = [kit / "run" / "proof.json" for kit, _ in laid.sites]
    while not all(map(Path.exists, proofs)) and time.monotonic() < end:
        time.sleep(LOOK)


NVFLARE = NVFlare()
