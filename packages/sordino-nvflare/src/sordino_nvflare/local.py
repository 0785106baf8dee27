"""The ports that the operator of one end lets a tunnel use, in NVFlare's folder ``local`` there.

A job names a port. This file says which port of this machine it is: at the server the one where
``sordino serve`` listens, at a site the one that the tunnel listens on. No other port is opened,
whatever a job says. Only the standard library is imported: NVFlare's processes read this.
"""

from __future__ import annotations

import json
from pathlib import Path

NAME = "sordino-ports.json"
IDLE = 600.0
"""Seconds without a connection after which a job ends, unless it says others."""


class Refused(Exception):
    """A port that this end's operator has not allowed."""


def read(folder: Path) -> dict[str, int]:
    """Return the port of this machine for each port that a job may name.

    Raises:
        Refused: if the file is none.
    """
    path = folder / NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path}: it cannot be read ({error})") from error
    if not isinstance(found, dict) or not all(map(is_port, found.values())):
        raise Refused(f'{path}: it must have ports, such as {{"8443": 8443}}')
    return found


def is_port(number: object) -> bool:
    """Return whether this is the number of a port."""
    return type(number) is int and 0 < number < 65_536


def allowed(folder: Path, port: object) -> int:
    """Return the port of this machine for a port that a job names.

    Raises:
        Refused: if it is not allowed here.
    """
    ports = read(folder)
    if not is_port(port) or str(port) not in ports:
        raise Refused(
            f"{folder / NAME}: this end does not allow port {port!r:.20}. Allowed: "
            f"{', '.join(ports) or 'none'}. Allow it with: sordino network nvflare-allow "
            f"{folder.parent} --port PORT"
        )
    return ports[str(port)]
