"""The broker of a federation over MQTT: Eclipse Mosquitto, with settings of the federation's own.

It admits certificates of the federation's authority alone, takes names from them, and lets a site
write to its own topics and read its own.
"""

from __future__ import annotations

import getpass
import ipaddress
import shutil
import subprocess
from pathlib import Path

from sordino.extend.network import Agreement, Process, StudyError, end, listens

CONF, ACL = "mosquitto.conf", "acl"
STARTING = 10.0
_QUEUED = 1000
_EACH = 8
_HEAD = 1024
_SETTINGS = """\
# Eclipse Mosquitto 2 for the federation {name}. Start it in the folder that holds this one:
#     mosquitto -c broker/{conf}
# Started as root, it changes to this user, who has to be able to read broker/broker.key.
user {user}

listener {port}{bind}
cafile broker/authority.pem
certfile broker/broker.pem
keyfile broker/broker.key
crlfile broker/revoked.pem
tls_version tlsv1.3
require_certificate true
use_identity_as_username true
use_username_as_clientid true

allow_anonymous false
acl_file broker/{acl}
set_tcp_nodelay true

# The largest frame of the agreed model, and as many frames for the server as all sites may have on
# their way.
max_packet_size {limit}
max_queued_messages {queued}
max_queued_bytes 0

# Nothing is kept for who is away: the server asks again whoever comes back.
persistence false
log_dest stderr
log_type error
log_type warning
log_type notice
"""
_RULES = """\
user server
topic read sordino/{name}/up/+
topic read sordino/{name}/there/+
topic write sordino/{name}/down/+

pattern write sordino/{name}/up/%u
pattern read sordino/{name}/down/%u
pattern write sordino/{name}/there/%u
"""
_SERVER_SEEN = """
user {site}
topic read sordino/{name}/there/server
"""


def settings(agreement: Agreement, limit: int) -> dict[str, bytes]:
    """The broker's files, for frames of at most so many bytes."""
    conf = _SETTINGS.format(
        name=agreement.name,
        conf=CONF,
        acl=ACL,
        user=getpass.getuser(),
        port=agreement.port,
        bind=f" {agreement.host}" if _loopback(agreement.host) else "",
        limit=limit + _HEAD,
        queued=max(_QUEUED, _EACH * len(agreement.names)),
    )
    rules = _RULES.format(name=agreement.name) + "".join(
        _SERVER_SEEN.format(site=site, name=agreement.name) for site in agreement.names
    )
    return {CONF: conf.encode(), ACL: rules.encode()}


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def program() -> str | None:
    """Mosquitto, where it is installed."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def start(kits: Path, log: Path, agreement: Agreement) -> Process:
    """Start the broker of a folder of kits, and wait until it listens.

    Raises:
        StudyError: if it is not installed, or does not start.
    """
    found = program()
    if found is None:
        raise StudyError(
            "the broker, Eclipse Mosquitto, is not installed. On Debian: apt install mosquitto"
        )
    with log.open("ab") as file:
        process = subprocess.Popen(
            [found, "-c", f"broker/{CONF}"], cwd=kits, stdout=file, stderr=file
        )
    if listens(agreement.host, agreement.port, lambda: process.poll() is None, STARTING):
        return process
    end([process])
    raise StudyError(f"the broker does not start; it says why in {log}")
