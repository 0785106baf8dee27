"""Several studies behind one port of one process."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import re
import shutil
import signal
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import warm
from command import sordino
from federations import study_of
from sordino.base.errors import StudyError
from sordino.network import demo, kit, transport
from sordino.network.demo import DemoFederation
from sordino.network.kit import Agreed
from sordino.network.transport import Hub, Line, Lost, Mailbox, Stranger

NOW = dt.datetime.now(dt.UTC)


def laid(
    tmp_path: Path, name: str, regime: str, by: DemoFederation | None = None, host: str = ""
) -> DemoFederation:
    """Kits of a study, by the authority of another one unless there is none."""
    study = study_of(tmp_path / "of", regime, [f"name='{name}'"], clients=2)
    authority = None if by is None else by.server.parent / "authority"
    write = partial(kit.write, authority=authority)
    with (
        mock.patch.object(kit, "write", write),
        mock.patch.object(demo, "HOST", host or "127.0.0.1"),
    ):
        found = demo.lay_out(study, tmp_path / name, scripted=False)
    for owner in () if by is None else folders(found):  # certificate and key, by its owner
        for file in (by.server.parent / owner.name).iterdir() if by is not None else ():
            if file.stem in ("server", "site"):
                shutil.copy(file, owner)
    return found


def folders(study: DemoFederation) -> list[Path]:
    return [study.server, *(each for each, _ in study.sites)]


class Processes:
    """A server of several studies, and their sites."""

    def __init__(self, tmp_path: Path, *studies: DemoFederation) -> None:
        self.log, self.studies = tmp_path / "server.log", studies
        self.lives: list[Any] = []
        address = Agreed(studies[0].server).agreement.server
        self.more = ["--address", address]
        tests = [f"--test={each.server}={each.test}" for each in studies if each.test is not None]
        program = demo.commands(studies[0], scripted=False)[0][:4]
        self.command = [
            *program, *(str(each.server) for each in studies), *tests, *self.more, "--page", "0",
        ]  # fmt: skip

    def start(self, command: list[str], log: Path) -> Any:
        with log.open("ab") as file:
            self.lives.append(warm.Popen(command, stdout=file, stderr=file))
        return self.lives[-1]

    def serve(self) -> Any:
        return self.start(self.command, self.log)

    def join(self, study: DemoFederation) -> list[Any]:
        return [
            self.start([*each, *self.more], study.server.parent / f"{i}.log")
            for i, each in enumerate(demo.commands(study, scripted=False)[1:])
        ]

    def until(self, what: str) -> str:
        end = time.monotonic() + 60
        while (found := re.search(what, self.log.read_text())) is None:
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)
        return found[0]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[Processes]]:
    made: list[Processes] = []
    yield made
    for each in made:
        for life in each.lives:
            life.kill()
            life.wait()


def test_a_study_that_ends_or_fails_is_nothing_to_the_others(
    tmp_path: Path, processes: list[Processes]
) -> None:
    rounds = laid(tmp_path, "rounds", "synchronous")
    arrivals = laid(tmp_path, "arrivals", "asynchronous", rounds)
    folder = tmp_path / "broken/kits/server"
    shutil.copytree(rounds.server, folder)
    for file in (folder / "agreement.toml", folder / "study.toml"):
        file.write_text(file.read_text().replace('name = "rounds"', 'name = "broken"'))
    (folder / "run").mkdir()
    (folder / "run/run.json").write_text("{}")  # a folder that cannot be gone on with
    all_three = Processes(tmp_path, rounds, arrivals, dataclasses.replace(rounds, server=folder))
    processes.append(all_three)
    server = all_three.serve()
    all_three.until("info arrivals: arrivals: waiting for 2 sites")
    all_three.until("error broken: .*run.json")
    assert [each.wait(60) for each in all_three.join(rounds)] == [0, 0]
    all_three.until("info rounds: ended: ")
    page = all_three.until(r"http://127\.0\.0\.1:\d+/")
    with urllib.request.urlopen(page + "metrics", timeout=10) as answer:
        figures = answer.read().decode()
    assert 'sordino_up{study="rounds"} 0' in figures
    assert server.poll() is None
    os.kill(server.pid, signal.SIGTERM)  # the one that goes on is interrupted
    assert server.wait(30) == 130
    all_three.until("error: interrupted. Start the same command again: it goes on where it was")
    all_three.command.remove(str(rounds.server))
    again = all_three.serve()
    assert [each.wait(60) for each in all_three.join(arrivals)] == [0, 0]
    assert again.wait(60) == 2  # of the broken one
    for study in (rounds, arrivals):
        assert len({(f / "run/model.safetensors").read_bytes() for f in folders(study)}) == 1
        found = sordino(tmp_path, "ledger", "verify", str(study.server / "run"))
        assert found.returncode == 0, found.stderr


class Behind:
    """The ends of studies behind one port, in this process."""

    def __init__(self, *studies: DemoFederation) -> None:
        agreed = {each.server: Agreed(each.server).agreement for each in studies}
        self.place = f"localhost:{next(iter(agreed.values())).port}"
        self.refused: list[tuple[str, str, str]] = []
        self.mailboxes, self.hubs = dict[str, Mailbox](), dict[str, Hub]()
        ways = transport.of("websocket").servers(agreed, "127.0.0.1", self.place)
        for kit_of, agreement in agreed.items():
            name, mailbox = agreement.name, Mailbox()
            self.hubs[name] = ways[kit_of](1000, mailbox, partial(self._note, name), print)
            self.mailboxes[name] = mailbox

    def _note(self, study: str, who: str, why: str) -> None:
        self.refused.append((study, who, why))

    def line(self, study: DemoFederation, host: str = "localhost", path: str | None = None) -> Line:
        """Connect as a site, and by another host or path than its own."""
        agreement = Agreed(study.server).agreement.at(self.place.replace("localhost", host))
        if path is not None:
            agreement = agreement.model_copy(update={"name": path})
        return transport.of("websocket").site(agreement, 0, study.sites[0][0])(1000)

    def close(self) -> None:
        for hub in self.hubs.values():
            hub.close()


def test_a_site_reaches_its_own_study_alone(tmp_path: Path) -> None:
    rounds = laid(tmp_path, "rounds", "synchronous")
    second = laid(tmp_path, "second", "synchronous", rounds)
    others = laid(tmp_path, "others", "asynchronous", host="localhost")  # another authority's
    with closing(Behind(rounds, second, others)) as port:
        for study, host in ((rounds, "127.0.0.1"), (second, "127.0.0.1"), (others, "localhost")):
            line, name = port.line(study, host), Agreed(study.server).agreement.name
            line.send(name.encode())
            got = [port.mailboxes[name].get(5) for _ in range(2)]
            assert [each.frame for each in got if each and each.kind == "frame"] == [name.encode()]
            port.hubs[name].send("site-0", b"down")
            assert next(line.frames()) == b"down"
            line.close()
            assert all(box.get(0.01) is None for n, box in port.mailboxes.items() if n != name)
            port.mailboxes[name].get(5)
        # its own authority's certificate opens TLS, and not another authority's study
        with pytest.raises(Stranger, match="not a site of this federation"):
            port.line(rounds, "127.0.0.1", "others")
        with pytest.raises(Stranger, match="not a site of this federation"):
            port.line(others, "localhost", "rounds")
        assert ("others", "site-0", "its certificate is of no site of this federation") in (
            port.refused
        )
        with pytest.raises(Lost, match="not that of the federation's server"):
            port.line(others, "127.0.0.1")  # the server's certificate is of another authority
        for path, why in (("", "several studies"), ("third", "not served here")):
            with pytest.raises(Lost, match=why):
                port.line(rounds, "127.0.0.1", path)
        port.hubs.pop("second").close()
        with pytest.raises(Lost, match="second is not open"):
            port.line(second, "127.0.0.1")
        port.line(rounds, "127.0.0.1").close()
    with closing(Behind(rounds)) as port:  # versions before name no study
        line = port.line(rounds, "127.0.0.1", "")
        # it has the same authority, and the same names
        with pytest.raises(Lost, match="not served here"):
            port.line(second, "127.0.0.1")
        port.hubs["rounds"].send("site-0", b"still there")
        assert next(line.frames()) == b"still there"
        line.close()
    twin = dataclasses.replace(rounds, server=tmp_path / "twin")
    shutil.copytree(rounds.server, twin.server)
    with pytest.raises(StudyError, match="by name"), closing(Behind(rounds, twin)):
        pass
    foreign = laid(tmp_path, "foreign", "synchronous")
    with pytest.raises(StudyError, match="of another authority"), closing(Behind(rounds, foreign)):
        pass


def test_a_host_that_is_no_text_is_told_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rounds = laid(tmp_path, "rounds", "synchronous")
    context, sent = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    stranger = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="somewhere.else")
    with pytest.raises(ssl.SSLWantReadError):
        stranger.do_handshake()
    hello = sent.read().replace(b"somewhere", "sömewher".encode())
    with closing(Behind(rounds)) as port:
        place = ("127.0.0.1", int(port.place.partition(":")[2]))
        with socket.create_connection(place) as line:
            line.sendall(hello)
            while line.recv(1000):
                pass
        told = [why for _, _, why in port.refused]
        port.line(rounds, "127.0.0.1").close()
    assert told == ["TLS: callback failed"]
    assert capfd.readouterr() == ("", "")


def test_a_new_certificate_of_the_server_needs_no_restart(tmp_path: Path) -> None:
    rounds = laid(tmp_path, "rounds", "synchronous")
    foreign = laid(tmp_path, "foreign", "synchronous")
    authority = rounds.server.parent / "authority"
    with closing(Behind(rounds)) as port:
        port.line(rounds, "127.0.0.1").close()
        (rounds.server / "server.pem").write_text("half")  # as while it is copied
        port.line(rounds, "127.0.0.1").close()
        for wrong in (foreign.server / "server.pem", rounds.sites[0][0] / "site.pem"):
            shutil.copy(wrong, rounds.server / "server.pem")
            port.line(rounds, "127.0.0.1").close()
        kit.renew(authority, "server", rounds.server, NOW)
        revoked = kit.revoke(authority, "server", NOW)  # all before
        kit.renew(authority, "server", rounds.server, NOW)
        shutil.copy(revoked, rounds.sites[0][0])
        port.line(rounds, "127.0.0.1").close()
