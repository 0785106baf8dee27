"""An NVFlare of one's own on this machine, to try a federation in, provisioned as any other is,
with mutual TLS between its processes.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.extend.network import Malformed, StudyError, object_of, read_below, replace_file
from sordino_nvflare import local
from sordino_nvflare.job import ALLOWED

HOST, ADMIN, ORG = "localhost", "admin@sordino.test", "sordino"
_STORES = "/tmp/nvflare"
"""Where a server keeps jobs unless told otherwise."""


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
    for each in (found.server, *found.sites.values()):
        _own(each)
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


def _own(folder: Path) -> None:
    """Have a server of a demo keep its jobs in its own folder."""
    place = folder / "local"
    text = (place / "resources.json.default").read_text().replace(_STORES, str(folder / "stores"))
    (place / "resources.json").write_text(text)


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
