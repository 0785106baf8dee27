"""A federation over a tunnel on this machine: an NVFlare of its own, which carries the connections
of a server and its sites. It is provisioned as any other is, with mutual TLS between its processes.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.extend.network import Agreed, DemoFederation, StudyError, end, free_port, listens, play
from sordino_nvflare import admin, job

HOST, ADMIN, ORG = "localhost", "admin@sordino.test", "sordino"
_STORES = "/tmp/nvflare"
"""Where a server keeps jobs unless told otherwise."""
STARTING = 120.0
"""Seconds that NVFlare's own processes may take to find each other."""
LOOK = 0.2


def through(federation: DemoFederation, tell: Callable[[str], None], *, scripted: bool) -> int:
    """Run a federation through an NVFlare beside its kits; return how many processes failed.

    Raises:
        StudyError: if NVFlare does not start.
    """
    agreement = Agreed(federation.server).agreement
    ports = {name: free_port() for name in agreement.names}
    with tunnel(federation.server.parent.parent, agreement.port, ports, tell):
        return play(
            federation,
            tell,
            scripted=scripted,
            more=["--host", "127.0.0.1"],
            addresses=[f"{agreement.host}:{port}" for port in ports.values()],
        )


@contextmanager
def tunnel(
    out: Path, port: int, ports: dict[str, int], tell: Callable[[str], None]
) -> Iterator[None]:
    """An NVFlare that carries connections to a port of this machine, from each site's own.

    Args:
        out: the folder that it is made in.

    Raises:
        StudyError: if NVFlare does not start.
    """
    own, logs = free_port(), out / "logs"
    space = provision(out.absolute() / "nvflare", "demo", own, tuple(ports))
    job.allow(space.server, port, port)
    for name, here in ports.items():
        job.allow(space.sites[name], port, here)
    job.write(out / "job", port, len(ports))
    logs.mkdir(exist_ok=True)
    begun, stopped = time.monotonic(), threading.Event()
    running = {"nvflare": start(space.server, logs / "nvflare.txt", None)}

    def alive() -> bool:
        return not stopped.is_set() and all(each.poll() is None for each in running.values())

    def keep(session: admin.Admin) -> None:
        admin.keep(session, out / "job", tell, tries=3, alive=alive)
        if not stopped.is_set():
            tell("NVFlare carries nothing any more; its output is in the folder logs")

    try:
        for name, folder in space.sites.items():
            running[name] = start(folder, logs / f"nvflare-{name}.txt", name)
        if not listens(HOST, own, alive, STARTING):
            raise StudyError("NVFlare's server does not start; its output says why")
        with closing(admin.Admin(space.admin)) as session:
            _gathered(session, set(ports), alive)
            tell(f"NVFlare's processes are there after {time.monotonic() - begun:.0f} s")
            keeping = threading.Thread(target=keep, args=(session,), daemon=True)
            keeping.start()
            yield
            stopped.set()
            keeping.join()
    finally:
        stopped.set()
        end(running.values())


def _gathered(session: admin.Admin, names: set[str], alive: Callable[[], bool]) -> None:
    late = time.monotonic() + STARTING
    while not names <= session.sites():
        if not alive() or time.monotonic() > late:
            raise StudyError("NVFlare's processes do not find each other; their output says why")
        time.sleep(LOOK)


@dataclass(frozen=True, slots=True)
class Workspace:
    """A provisioned NVFlare.

    Attributes:
        server, admin: their folders.
        sites: those of the sites, by name.
    """

    server: Path
    admin: Path
    sites: Mapping[str, Path]


def provision(out: Path, name: str, port: int, sites: Sequence[str]) -> Workspace:
    """Have NVFlare make the start-up folders of a server, an admin and these sites.

    Raises:
        StudyError: if NVFlare refuses.
    """
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    project = _project(name, port, sites)
    made = Provisioner(str(out), prepare_builders(project)).provision(
        prepare_project(project), logger=logging.getLogger("sordino.nvflare")
    )
    if made.get("__build_error__"):
        raise StudyError(f"{out}: NVFlare could not provision it")
    folder = Path(made.get_result_location())
    found = Workspace(folder / HOST, folder / ADMIN, {each: folder / each for each in sites})
    for each in (found.server, *found.sites.values()):  # it keeps its jobs in its own folder
        place = each / "local"
        text = (place / "resources.json.default").read_text()
        (place / "resources.json").write_text(text.replace(_STORES, str(each / "stores")))
    return found


def _project(name: str, port: int, sites: Sequence[str]) -> dict[str, Any]:
    own = "nvflare.lighter.impl."
    clients = [{"name": each, "type": "client", "org": ORG} for each in sites]
    return {
        "api_version": 3,
        "name": name.replace(".", "-"),
        "description": "a tunnel for a federation of sordino",
        "participants": [
            {"name": HOST, "type": "server", "org": ORG, "fed_learn_port": port},
            *clients,
            {"name": ADMIN, "type": "admin", "org": ORG, "role": "project_admin"},
        ],
        "builders": [
            {
                "path": f"{own}workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            {"path": f"{own}static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{own}cert.CertBuilder"},
            {"path": f"{own}signature.SignatureBuilder"},
        ],
    }


def start(folder: Path, log: Path, site: str | None) -> subprocess.Popen[bytes]:
    """Start NVFlare's process of a site, or of the server, as its ``startup/sub_start.sh`` does."""
    kind = "server" if site is None else "client"
    own = [] if site is None else [f"uid={site}"]
    (folder / "transfer").mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train"),
        *("-m", str(folder), "-s", f"fed_{kind}.json"),
        *("--set", "secure_train=true", *own, f"org={ORG}", "config_folder=config"),
    ]
    environment = {"MALLOC_ARENA_MAX": "4", **os.environ}
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=folder)
