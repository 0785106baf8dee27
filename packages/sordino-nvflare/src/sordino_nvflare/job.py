"""The job that an admin of NVFlare submits: names of two classes of the installed package, the port
that it wants, and no code.
"""

from __future__ import annotations

import json
from pathlib import Path

from sordino.extend.network import StudyError

SERVER, SITE = "sordino_nvflare.parts.ServerPart", "sordino_nvflare.parts.SitePart"
ALLOWED = (SERVER, SITE)
"""Names that NVFlare's ``class_allow_list`` in ``local/resources.json`` has to name, everywhere."""
IDLE = 600.0


def write(out: Path, port: int, sites: int, idle: float = IDLE) -> None:
    """Write the job into a new folder.

    Args:
        port: that ends of the tunnel are to use.
        sites: that NVFlare waits for before it starts the job.
        idle: seconds without a connection after which the job ends by itself.

    Raises:
        StudyError: if the folder exists.
    """
    if out.exists():
        raise StudyError(f"{out}: this folder exists already. Choose another with --out")
    meta = {
        "name": f"sordino-{port}",
        "deploy_map": {"app": ["@ALL"]},
        "min_clients": sites,
        "mandatory_clients": [],
        "resource_spec": {},
    }
    server = {"id": "tunnel", "path": SERVER, "args": {"port": port, "idle": idle}}
    site = {"tasks": ["sordino"], "executor": {"path": SITE, "args": {"port": port}}}
    files = {
        "meta.json": meta,
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "workflows": [server],
            "components": [],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [site],
            "components": [],
        },
    }
    for name, content in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(json.dumps(content, indent=2) + "\n")
