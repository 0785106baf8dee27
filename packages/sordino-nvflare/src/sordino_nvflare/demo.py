"""A federation over a tunnel on this machine: an NVFlare of its own, provisioned and started, which
carries the connections of a server and its sites.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sordino.extend.network import Agreed, DemoFederation, StudyError, end, free_port, listens, play
from sordino_nvflare import admin, job, workspace

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
    space = workspace.provision(out.absolute() / "nvflare", "demo", own, tuple(ports))
    workspace.allow(space.server, port, port)
    for name, here in ports.items():
        workspace.allow(space.sites[name], port, here)
    job.write(out / "job", port, len(ports))
    logs.mkdir(exist_ok=True)
    begun, stopped = time.monotonic(), threading.Event()
    running = {"nvflare": workspace.start(space.server, logs / "nvflare.txt", None)}

    def alive() -> bool:
        return not stopped.is_set() and all(each.poll() is None for each in running.values())

    def keep(session: admin.Admin) -> None:
        admin.keep(session, out / "job", tell, tries=3, alive=alive)
        if not stopped.is_set():
            tell("NVFlare carries nothing any more; its output is in the folder logs")

    try:
        for name, folder in space.sites.items():
            running[name] = workspace.start(folder, logs / f"nvflare-{name}.txt", name)
        if not listens(workspace.HOST, own, alive, STARTING):
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
