"""One authority for several studies, kits of another one, and a server at another address."""

from __future__ import annotations

import datetime as dt
import shutil
from contextlib import closing
from pathlib import Path

import pytest

import command
from federations import laid, study_of
from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.network import certificates, kit, site, transport
from sordino.network.demo import free_port
from sordino.network.kit import Agreed
from sordino.network.transport import Mailbox

from .test_kit import FEDERATION

NOW = dt.datetime.now(dt.UTC)


def agreement(folder: Path, name: str, *sites: str, server: str = "127.0.0.1:4433") -> Path:
    """A FEDERATION.toml of these sites, and its study beside it, with secure sums."""
    study = study_of(folder / name, "shared-client", clients=len(sites))
    (folder / f"{name}-study.toml").write_text(studies.write(study))
    entries = "".join(f'[[site]]\nname = "{each}"\nexamples = 50\n' for each in sites)
    text = FEDERATION.partition("[[site]]")[0] + entries
    text = text.replace("study.toml", f"{name}-study.toml").replace("127.0.0.1:{port}", server)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_another_study_of_an_authority_needs_no_new_keys(tmp_path: Path) -> None:
    first = agreement(tmp_path, "first", "north", "south", "east")
    kit.provision(first, tmp_path / "kits", NOW)
    second = agreement(tmp_path, "second", "north", "south", "west")
    asked = ("--out", "more", "--authority", "kits/authority")
    made = command.sordino(tmp_path, "network", "provision", str(second), *asked)
    assert not made.returncode, made.screen
    assert "No new keys for server, north, south:" in made.stderr
    more = tmp_path / "more"
    assert not (more / "authority").exists()
    assert [*more.glob("*/*.key")] == [more / "west" / "site.key"]
    with pytest.raises(StudyError, match=r"site.pem: the certificate is missing.*earlier kit"):
        site.site_of(Agreed(more / "north"))
    for ending in ("pem", "key"):
        shutil.copy(tmp_path / "kits" / "north" / f"site.{ending}", more / "north")
        shutil.copy(tmp_path / "kits" / "server" / f"server.{ending}", more / "server")
    assert site.site_of(Agreed(more / "north")) == 0
    certificates.context(more / "server", "server")
    keys = [each.public_numbers() for each in Agreed(more / "west").keys]
    held = (tmp_path / "kits" / "north" / "site.pem", more / "west" / "site.pem")
    own = [certificates.read_certificate(each.parent, each.name).public_key() for each in held]
    assert keys[0] == own[0].public_numbers()  # type: ignore[union-attr]
    assert keys[2] == own[1].public_numbers()  # type: ignore[union-attr]
    # the authority knows everybody; who is revoked, or has another host, is given another key
    kit.revoke(tmp_path / "kits" / "authority", "west", NOW)
    third = agreement(tmp_path, "third", "north", "west", "east", server="other.example:4433")
    kit.provision(third, tmp_path / "kits-3", NOW, tmp_path / "kits" / "authority")
    found = {each.parent.name for each in (tmp_path / "kits-3").glob("*/*.key")}
    assert found == {"server", "west"}
    kept = tmp_path / "kits" / "authority" / "certificates"
    shutil.copy(kept / "south.pem", kept / "north.pem")  # as somebody may have sent it
    fourth = agreement(tmp_path, "fourth", "north", "south")
    with pytest.raises(StudyError, match="has not made this certificate for north"):
        kit.provision(fourth, tmp_path / "kits-4", NOW, tmp_path / "kits" / "authority")


def test_an_authority_has_one_server_over_brokers(tmp_path: Path) -> None:
    """A broker knows the server by its name: a second one with that name, made for another study,
    read the updates of this one.
    """

    def provisioned(name: str, server: str, transport: str, by: Path | None) -> set[str]:
        path = agreement(tmp_path, name, "north", "south", server=server)
        path.write_text(
            path.read_text().replace("server =", f'transport = "{transport}"\nserver =')
        )
        kit.provision(path, tmp_path / f"kits-{name}", NOW, by)
        return {each.parent.name for each in (tmp_path / f"kits-{name}").glob("*/*.key")}

    assert "server" in provisioned("first", "one.example:8883", "mqtt", None)
    by = tmp_path / "kits-first" / "authority"
    assert provisioned("second", "two.example:8883", "mqtt", by) == {"broker"}
    # to listen it needs another certificate, which no broker admits
    assert provisioned("third", "two.example:4433", "websocket", by) == {"server"}
    assert provisioned("fourth", "two.example:8883", "mqtt", by) == set()
    assert provisioned("fifth", "two.example:4433", "websocket", by) == set()


def test_a_kit_with_a_certificate_of_another_authority_stops(tmp_path: Path) -> None:
    found, other = laid(tmp_path, "synchronous"), laid(tmp_path / "other", "synchronous")
    (folder, data), theirs = found.sites[0], other.sites[0][0]
    for ending in ("pem", "key"):
        shutil.copy(theirs / f"site.{ending}", folder)
        shutil.copy(other.server / f"server.{ending}", found.server)
    refused = command.sordino(tmp_path, "join", str(folder), "--data", str(data), "--rehearsal")
    assert refused.returncode == 2
    assert "site.pem: this certificate is of another authority" in " ".join(refused.stderr.split())
    refused = command.sordino(tmp_path, "serve", str(found.server))
    assert refused.returncode == 2
    assert "server.pem: this certificate is of another authority" in refused.stderr.replace(
        "\n", " "
    )


def test_a_server_at_another_port_needs_no_other_kits(tmp_path: Path) -> None:
    found, place = laid(tmp_path, "synchronous"), f"127.0.0.1:{free_port()}"
    (folder, data), agreement = found.sites[0], Agreed(found.server).agreement
    asked = ("join", str(folder), "--data", str(data), "--plan", "--address")
    assert f"the server at {place}," in command.sordino(tmp_path, *asked, place).stdout
    refused = command.sordino(tmp_path, *asked, "here").stderr
    assert "--address here: give a host and a port" in refused
    opens = transport.of("websocket").server(agreement.at(place), found.server, "")
    hub = opens(1000, mailbox := Mailbox(), lambda who, why: None, lambda text: None)
    with closing(hub):
        transport.of("websocket").site(agreement.at(place), 0, folder)(1000).close()
        event = mailbox.get(10.0)
    assert event is not None
    assert (event.kind, event.site) == ("open", "site-0")
