"""The job of a federation, which an admin of NVFlare submits with NVFlare's own tools.

It holds settings and no code: the names of two classes of the installed package, the federation's
name, and the digest of what everybody has agreed to. Where kits and data are is said at each site.
"""

from __future__ import annotations

import json
from pathlib import Path

from sordino.extend.network import Agreed, StudyError

TASK = "sordino"
PARTS = "sordino_nvflare.parts"
AGAIN = "submit the job to NVFlare again: everybody goes on where they were"
ENDED = "The study has ended; no job goes on"
"""Words in the log of a job's server by which an admin knows that to submit it again is no use."""
TRUSTED = (
    "Whoever runs NVFlare's server reads what passes, says who has sent it, and can have every "
    "file read that NVFlare's user at this site can read: rows, kit and ledger, wherever they lie."
)
"""Words for a site."""
SERVE, JOIN = f"{PARTS}.Serve", f"{PARTS}.Join"
ALLOWED = (SERVE, JOIN)
"""Names that NVFlare's ``class_allow_list`` in ``local/resources.json`` has to name, everywhere."""


def files(agreed: Agreed) -> dict[str, bytes]:
    """The files of the job: paths and contents.

    Raises:
        StudyError: if the federation has not agreed on NVFlare.
    """
    agreement = agreed.agreement
    if agreement.transport != "nvflare":
        raise StudyError(
            f"{agreed.folder}: this federation speaks {agreement.transport}. Say transport = "
            '"nvflare" in its file before you provision it'
        )
    given = {"federation": agreement.name, "digest": agreed.digest}
    meta = {
        "name": agreement.name,
        "deploy_map": {"app": ["@ALL"]},
        "min_clients": agreement.minimum,
        "mandatory_clients": [],
        "resource_spec": {},
    }
    server = {
        "format_version": 2,
        "workflows": [{"id": "serve", "path": SERVE, "args": given}],
        "components": [],
    }
    site = {
        "format_version": 2,
        "executors": [{"tasks": [TASK], "executor": {"path": JOIN, "args": given}}],
        "components": [],
    }
    found = {
        "meta.json": meta,
        "app/config/config_fed_server.json": server,
        "app/config/config_fed_client.json": site,
    }
    return {path: json.dumps(each, indent=2).encode() + b"\n" for path, each in found.items()}


def write(agreed: Agreed, out: Path) -> None:
    """Write the job into a new folder.

    Raises:
        StudyError: if the folder exists, or the federation has not agreed on NVFlare.
    """
    found = files(agreed)
    if out.exists():
        raise StudyError(f"{out}: this folder exists already. Choose another with --out")
    for name, content in found.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
