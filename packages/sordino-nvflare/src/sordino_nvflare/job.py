"""The job that an admin of NVFlare submits: names of two classes of the installed package, the port
that it wants, and no code; and what each end's operator has to allow before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sordino.extend.network import Malformed, StudyError, object_of, read_below, replace_file
from sordino_nvflare import local

SERVER, SITE = "sordino_nvflare.parts.ServerPart", "sordino_nvflare.parts.SitePart"
ALLOWED = (SERVER, SITE)
"""Names that NVFlare's ``class_allow_list`` in ``local/resources.json`` has to name, everywhere."""


def write(out: Path, port: int, sites: int, idle: float = local.IDLE) -> None:
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


def allow(folder: Path, port: int, here: int) -> None:
    """Let an NVFlare of a site, or of the server, carry connections for a port of a job.

    Args:
        here: the port of this machine.

    Raises:
        StudyError: if the folder is not one that NVFlare has provisioned.
    """
    place = folder / "local"
    policy = place / "resources.json"
    before = policy if policy.exists() else place / "resources.json.default"
    try:
        found: dict[str, Any] = object_of(read_below(place, before.name), before)
        ports = local.read(place)
    except (OSError, Malformed) as error:
        raise StudyError(
            f"{folder}: this is no start-up folder as NVFlare provisions them ({error})"
        ) from error
    except local.Refused as error:
        raise StudyError(str(error)) from error
    listed = found.get("class_allow_list", [])
    if not isinstance(listed, list):
        raise StudyError(f"{before}: class_allow_list must be a list of names")
    if "class_allow_list" not in found:  # of versions before 2.9: its own classes are allowed then
        from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

        listed = list(DEFAULT_CLASS_ALLOW_LIST)
    found["class_allow_list"] = [*listed, *(each for each in ALLOWED if each not in listed)]
    for path, content in ((policy, found), (place / local.NAME, {**ports, str(port): here})):
        replace_file(path, json.dumps(content, indent=2).encode() + b"\n")
