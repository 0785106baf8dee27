"""Provisioning, certificates, agreements and proofs."""

from __future__ import annotations

import base64
import datetime as dt
import errno
import json
import os
import re
import shutil
import socket
import ssl
import threading
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import command
from federations import laid, study_of
from sordino.base.errors import DataError, LedgerError, SordinoError, StudyError
from sordino.core import study as studies
from sordino.core.network import numbered
from sordino.data.dataset import Dataset
from sordino.live import federation
from sordino.live.federation import SiteStatus, Status, page
from sordino.network import certificates, kit, proof, status
from sordino.network.certificates import Revoked
from sordino.network.kit import Agreed
from sordino.network.site import JoinOptions, opened, promised

from .conftest import Makes

NOW = dt.datetime.now(dt.UTC)
FEDERATION = """name = "hospitals"
server = "127.0.0.1:{port}"
study = "study.toml"
minimum = 1
patience = 5.0
[data]
shape = [6]
type = "float32"
classes = ["0", "1", "2"]
[[site]]
name = "north"
examples = 40
[[site]]
name = "south"
examples = 50
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A FEDERATION.toml, and its study beside it."""
    (tmp_path / "study.toml").write_text(
        studies.write(study_of(tmp_path / "of", "synchronous", clients=2))
    )
    path = tmp_path / "FEDERATION.toml"
    path.write_text(FEDERATION.format(port=4433))
    return path


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('name = "hospitals"', 'name = "a b"', "name: "),
        ('name = "hospitals"', 'title = "x"', "title: "),
        ('"127.0.0.1:4433"', '"127.0.0.1"', "server: "),
        ('"127.0.0.1:4433"', '"127.0.0.1:99999"', "the port must lie in"),
        ("minimum = 1", "minimum = 0", "minimum: "),
        ("minimum = 1", "minimum = 3", "there are 2 sites"),
        ("patience = 5.0", "patience = 0", "patience: "),
        ("shape = [6]", "shape = [0]", "data.shape.0: "),
        ("shape = [6]", "shape = []", "data.shape is empty"),
        ("shape = [6]", 'shape = [6]\ncolumns = ["a"]', "1 names, and data.shape = [6]"),
        ("shape = [6]", 'shape = [2]\ncolumns = ["a", "a"]', "the same name, 'a'"),
        ('type = "float32"', 'type = "float64"', "data.type: "),
        ('classes = ["0", "1", "2"]', 'classes = ["0"]', "data: classes must list two"),
        ('name = "south"', 'name = "../x"', "site.1.name: "),
        ('name = "south"', 'name = "north"', "two sites have the same name"),
        ('name = "south"', 'name = "North"', "differ in case alone"),
        ('name = "south"', 'name = "server"', "a folder of its own"),
        ('name = "south"', 'name = "Server"', "a folder of its own"),
        ('classes = ["0", "1", "2"]', 'classes = ["0", "1", "1"]', "data: classes lists '1' twice"),
        ('classes = ["0", "1", "2"]', 'classes = ["0", "1", ""]', "data: classes lists an empty"),
        ("minimum = 1", 'rehearsal = ["x"]', "rehearsal: this is found out here"),
        ("minimum = 1", "modules = {}", "modules: this is found out here"),
        ("examples = 50", "examples = 99999999999999", "site.1.examples: "),
        ("examples = 50", "examples = 0", "site.1.examples: "),
        ("examples = 50", "rows = 50", "site.1.examples: "),
        ('study = "study.toml"', "", "study: name the study file"),
        ('study = "study.toml"', 'study = "no.toml"', "no.toml"),
        ("[data]", "[data", "FEDERATION.toml"),
        ('[[site]]\nname = "south"\nexamples = 50\n', "", "data.clients = 2"),
    ],
)
def test_a_bad_federation_is_refused_by_name_and_leaves_nothing(
    old: str, new: str, named: str, file: Path
) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(SordinoError) as refusal:
        kit.provision(file, file.parent / "kits", NOW)
    assert named in str(refusal.value)
    assert not [each for each in file.parent.iterdir() if "kits" in each.name]


@pytest.mark.parametrize("place", [".", "..", ""])
def test_a_folder_is_no_federation(place: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    with pytest.raises(StudyError, match="this is a folder"):
        kit.provision(Path(place), file.parent / "kits", NOW)


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "kits: no space left"), (errno.EACCES, "kits: nothing can be written there")],
)
def test_a_full_or_closed_place_is_named(
    number: int, said: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(kit, "_put", refused)
    with pytest.raises(SordinoError, match=said):
        kit.provision(file, file.parent / "kits", NOW)


def test_only_the_classes_that_rows_have_are_looked_for() -> None:
    y = np.array([1, 2, 2, 1])
    found = Dataset("mine", np.zeros((4, 2), np.float32), y, ("0", "1", "2"))
    assert numbered(found, ("1", "2"), Path("a.csv")).tolist() == [0, 1, 1, 0]
    with pytest.raises(DataError, match="label '1' is none of the agreed classes"):
        numbered(found, ("2", "0"), Path("a.csv"))


def test_kits_hold_what_each_needs_and_keys_are_for_their_owner(file: Path) -> None:
    out = file.parent / "kits"
    kit.provision(file, out, NOW)
    assert {each.name for each in out.iterdir()} == {"authority", "server", "north", "south"}
    for key in out.rglob("*.key"):
        assert key.stat().st_mode & 0o777 == 0o600
    assert not list((out / "north").glob("authority.key"))
    assert Agreed(out / "north").digest == Agreed(out / "server").digest
    with pytest.raises(StudyError, match="exists already"):
        kit.provision(file, out, NOW)
    for name in ("agreement.toml", "study.toml"):
        path = out / "south" / name
        path.write_text(path.read_text() + "\n# another\n")
        assert Agreed(out / "south").digest != Agreed(out / "server").digest
        path.write_text((out / "north" / name).read_text())
    with pytest.raises(StudyError, match="nobody of this federation"):
        kit.renew(out / "authority", "west", out / "west", NOW)
    before = (out / "south" / "site.key").read_bytes()
    with pytest.raises(StudyError, match="this is the kit of south, whose key would be lost"):
        kit.renew(out / "authority", "north", out / "south", NOW)
    assert (out / "south" / "site.key").read_bytes() == before


def shaken(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1") -> str:
    """What comes of a handshake: "" or why not, as the server says."""
    left, right = socket.socketpair()
    left.settimeout(5)
    right.settimeout(5)
    said: list[str] = []

    def serve() -> None:
        try:
            with server.wrap_socket(left, server_side=True) as there:
                there.recv(1)
        except OSError as error:
            said.append(str(error))
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=host) as here:
            here.sendall(b"x")
            here.recv(1)
    except OSError as error:
        said.append(str(error))
        right.close()
    thread.join()
    return "; ".join(said)


def test_only_certificates_of_this_federation_and_of_the_right_kind_are_trusted(
    file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "kits"
    kit.provision(file, out, NOW)
    kit.provision(file, tmp_path / "others", NOW)
    server, site = (
        certificates.context(out / "server", "server"),
        certificates.context(out / "north", "site"),
    )
    assert not shaken(server, site)
    other = certificates.context(tmp_path / "others" / "north", "site")
    other.load_verify_locations(out / "server" / "authority.pem")
    assert "verify failed" in shaken(server, other)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(out / "server" / "authority.pem")
    assert "peer did not return a certificate" in shaken(server, bare)
    old = certificates.context(out / "north", "site")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert "version" in shaken(server, old)
    swapped = certificates.context(out / "north", "site")
    swapped.load_cert_chain(out / "server" / "server.pem", out / "server" / "server.key")
    assert "verify failed" in shaken(server, swapped)
    pretender = certificates.context(out / "server", "server")
    pretender.load_cert_chain(out / "north" / "site.pem", out / "north" / "site.key")
    assert "verify failed" in shaken(pretender, site)
    elsewhere = certificates.context(tmp_path / "others" / "server", "server")
    assert "verify failed" in shaken(elsewhere, site)
    by = certificates.read_pair(out / "authority", "authority")
    past = certificates.certify(by, "north", "site", NOW - dt.timedelta(days=9), days=1)
    for name, content in zip(("site.pem", "site.key"), past.pem(), strict=True):
        (out / "north" / name).write_bytes(content)
    assert "expired" in shaken(server, certificates.context(out / "north", "site"))
    with pytest.raises(StudyError, match="this certificate ended on"):
        certificates.refuse_expired(out / "north", "site.pem", NOW)
    kit.renew(out / "authority", "north", out / "north", NOW)
    assert not shaken(server, certificates.context(out / "north", "site"))


def test_a_list_of_revoked_certificates_is_the_authoritys_and_read_again(
    file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "kits"
    kit.provision(file, out, NOW)
    serial = certificates.read_certificate(out / "north", "site.pem").serial_number
    barred = Revoked(out / "server")
    assert not barred(serial)
    shutil.copy(kit.revoke(out / "authority", "north", NOW), out / "server")
    assert barred(serial)
    other = certificates.authority("other", NOW)
    (out / "server" / certificates.REVOKED).write_bytes(certificates.revoked(other, (), NOW))
    with pytest.raises(StudyError, match="not the authority's"):
        Revoked(out / "server")
    (out / "server" / certificates.REVOKED).unlink()
    with pytest.raises(StudyError, match=r"revoked.pem: cannot be read"):
        barred(12345)  # while there is no list, nobody is let in


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda x, y: (x.astype(np.float64)[:, :5], y), "its examples have shape"),
        (lambda x, y: (x[:-1], y[:-1]), "agreed to have 50"),
        (lambda x, y: (x, np.where(y == "1", "9", y)), "label '9' is none"),
    ],
)
def test_a_sites_data_is_held_against_the_agreement(
    change: Any, named: str, tmp_path: Path
) -> None:
    folder, data = laid(tmp_path, "synchronous").sites[0]
    with np.load(data) as found:
        x, y = change(found["x"], found["y"])
    np.savez(data, x=x, y=y)
    with pytest.raises(DataError) as refusal:
        opened(JoinOptions(kit=folder, data=data))
    assert named in str(refusal.value)


def test_what_joining_would_release_is_said_before(tmp_path: Path) -> None:
    folder, data = laid(tmp_path, "synchronous").sites[1]
    told = "\n".join(promised(JoinOptions(kit=folder, data=data, limit=3.0)))
    for part in (
        "as site site-1, with 50 rows",
        "at most epsilon 3",
        "rehearsal",
        "site-0, site-2",
    ):
        assert part in told
    assert "Nothing was sent" in told
    assert not (folder / "run").exists()
    kit_, own = laid(tmp_path, "client", scripted=False).sites[0]
    plain = "\n".join(promised(JoinOptions(kit=kit_, data=own)))
    assert "WITHOUT noise" in plain
    assert "rehearsal" not in plain


def test_a_site_whose_certificate_ends_meanwhile_says_so(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told of a bad HTTP response, for ever."""
    found, left = federate("synchronous"), [3]

    def ended(folder: Path, name: str, now: dt.datetime) -> None:
        left[0] -= 1
        if left[0] > 0:
            refuse(folder, name, now + dt.timedelta(days=9_000))

    refuse = certificates.refuse_expired
    monkeypatch.setattr(certificates, "refuse_expired", ended)
    found.start()
    found.wait()
    lines = [each for each in found.said if "this certificate ended on" in each]
    assert len(lines) == 2
    assert all("site.pem" in each and "Ask for a new one" in each for each in lines)


def test_a_proof_states_the_budget_where_releases_chose_what_was_spent(federate: Makes) -> None:
    found = federate("synchronous", ["method={name='ali-dpfl', learning_rate=0.1, gamma=5.0}"])
    found.start()
    found.wait()
    folder, data = found.laid.sites[0]
    agreed, index, *_ = opened(JoinOptions(kit=folder, data=data))
    run, done = found.folder(folder.name), found.done[folder.name]
    proof.write(folder, run, agreed, index, done)
    stated = proof.verify(run, folder / "authority.pem")
    assert done.spent < done.epsilon == stated.epsilon == agreed.study.privacy.epsilon


def test_a_proof_holds_and_no_other_field_does(federate: Makes) -> None:
    found = federate("synchronous")
    found.start()
    found.wait()
    name = found.names[1]
    folder, data = next(each for each in found.laid.sites if each[0].name == name)
    agreed, index, *_ = opened(JoinOptions(kit=folder, data=data))
    run = found.folder(name)
    proof.write(folder, run, agreed, index, found.done[name])
    authority = folder / "authority.pem"
    stated = proof.verify(run, authority)
    assert (stated.site, stated.answers) == (name, 8)
    path = run / proof.NAME
    whole = json.loads(path.read_text())
    statement = json.loads(whole["statement"])
    for key, value in statement.items():
        other = value + 1 if isinstance(value, int | float) else f"{value}0"
        told = json.dumps({**statement, key: other})
        path.write_text(json.dumps({**whole, "statement": told}))
        with pytest.raises(LedgerError, match="signature is not of a site"):
            proof.verify(run, authority)
    path.write_text(json.dumps({**whole, "signature": whole["signature"][:-8] + "AAAAAAA="}))
    with pytest.raises((LedgerError, StudyError)):
        proof.verify(run, authority)
    pair = certificates.read_pair(folder, "site")
    sign(path, pair, {**statement, "digest": "0" * 64})  # as earlier versions state it
    assert proof.verify(run, authority).digest == "0" * 64
    sign(path, pair, {**statement, "epsilon": 0.99 * statement["epsilon"]})
    with pytest.raises(LedgerError, match=r"is spent, and the proof of site .* states"):
        proof.verify(run, authority)
    for less in (
        {"epsilon": 0.001, "delta": 0.5},
        {"epsilon": 0.001, "delta": None},
        {"accountant": "other"},
    ):
        sign(path, pair, {**statement, **less})
        with pytest.raises(LedgerError, match="the run promised delta"):
            proof.verify(run, authority)
    sign(path, pair, {**statement, "agreement": "x\n\x1b[32mThe proof holds: everything"})
    shown = command.sordino(run, "network", "proof", str(run), "--authority", str(authority))
    assert (shown.returncode, "\x1b" in shown.stdout) == (0, False)
    assert "at delta" in shown.stdout
    assert shown.stdout.strip().count("\n") == 0
    sign(path, pair, {**statement, "entries": 0, "head": "", "epsilon": 0.0})
    with pytest.raises(LedgerError, match="states no entry"):
        proof.verify(run, authority)
    sign(path, pair, {**statement, "epsilon": -1.0})
    with pytest.raises(LedgerError, match="none is negative"):
        proof.verify(run, authority)
    server = certificates.read_pair(found.laid.server, "server")
    sign(path, server, {**statement, "site": "server"})
    with pytest.raises(LedgerError, match="signature is not of a site"):
        proof.verify(run, authority)
    authorised = certificates.read_pair(found.laid.server.parent / "authority", "authority")
    connects = certificates.certify(authorised, "server", "site", dt.datetime.now(dt.UTC))
    sign(path, connects, {**statement, "site": "server"})  # as where a broker stands between
    with pytest.raises(LedgerError, match="signed by the server, and not by a site"):
        proof.verify(run, authority)
    path.write_text(json.dumps({**whole, "more": 1}))
    with pytest.raises(StudyError, match="unknown field"):
        proof.verify(run, authority)
    path.write_text(json.dumps(whole))
    with pytest.raises(LedgerError, match="no entry"):
        proof.verify(run, authority, found.folder(found.names[0]) / "ledger.sqlite")
    own = found.laid.server.parent / "authority"
    kit.revoke(own, name, dt.datetime.now(dt.UTC))
    with pytest.raises(LedgerError, match=f"certificate of site {name} is revoked"):
        proof.verify(run, own / "authority.pem")


def sign(path: Path, pair: certificates.Pair, statement: dict[str, Any]) -> None:
    """A proof of this statement, with a right signature."""
    told = json.dumps(statement)
    made = {
        "statement": told,
        "certificate": pair.pem()[0].decode(),
        "signature": base64.b64encode(certificates.signed(pair, told.encode())).decode(),
    }
    path.write_text(json.dumps(made))


def test_words_of_a_kit_control_no_terminal(tmp_path: Path) -> None:
    """Names of others stand on the page by which a site consents, and in messages."""
    place, own = laid(tmp_path, "synchronous", scripted=False).sites[0]
    study = place / "study.toml"
    name = "name = " + json.dumps("x\x1b[2J\x9b1A\u202ey") + "\n"
    study.write_text("".join([name, *study.read_text().splitlines(keepends=True)[1:]]))
    shown = command.sordino(tmp_path, "join", str(place), "--data", str(own), "--plan")
    told = shown.stdout + shown.stderr
    assert "x?[2J?1A?y" in told
    assert not {"\x1b", "\x9b", "\u202e"} & set(told)


def test_a_status_page_shows_names_and_runs_none_of_them() -> None:
    evil = "<script>alert(1)</script>"
    site = SiteStatus(evil, True, 3, 1.5, 0.25, 4.0, 10, 20, {evil: 2})
    found = Status(1, evil, "run", 2, 8, 3.0, 1, (site,), {evil: 1}, None)
    told = page(found)
    assert "<script>" not in told
    assert told.count("&lt;script&gt;") >= 4
    assert "2 of 8" in told


def test_monitors_see_health_readiness_and_figures_and_no_secret(tmp_path: Path) -> None:
    name = 'no"rth\n'
    site = SiteStatus(name, True, None, None, 0.25, 4.0, 0, 0, {"late": 2, "early": 1})
    away = SiteStatus("south", False, 3, 12.0, None, None, 10, 20, {}, out="revoked", answers=7)
    going = Status(1, "three", "a", 2, 9, 1.0, 2, (site, away), {"no name": 4}, None, journal=5)
    folders = {name: tmp_path / name for name in ("three", "other")}
    three, other = (folder / federation.NAME for folder in folders.values())

    def asked(where: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(shown.address + where, timeout=10) as found:
                return found.status, found.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def write(path: Path, **changed: object) -> None:
        path.parent.mkdir(exist_ok=True)
        named = {"name": path.parent.name, **changed}
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(going, **named)))

    with closing(federation.Page(folders, 0)) as shown:
        for where in ("healthz", "readyz", "metrics", ""):
            assert asked(where)[0] == 503  # there is no status yet
        write(three)
        assert asked("healthz")[0] == 503  # of the other one
        assert 'sordino_up{study="three"} 1' in asked("metrics")[1]
        write(other, sites=(), minimum=0)
        assert asked("healthz") == (200, "ok")
        assert asked("readyz") == (503, "three: 1 of 2 sites are there")
        told = asked("metrics")[1]
        assert all(f"<h1>{name}</h1>" in asked("")[1] for name in folders)
        write(three, ended="over")
        assert asked("readyz") == (200, "ok")  # the other one goes on
        write(other, ended="over")
        assert asked("readyz") == (503, "three: ended: over\nother: ended: over")
        there = tuple(msgspec.structs.replace(each, there=True) for each in (site, away))
        write(three, sites=there)
        assert asked("readyz") == (200, "ok")
        os.utime(three, (1.0, 1.0))
        os.utime(other, (1.0, 1.0))
        assert asked("healthz")[1].startswith("three: the server does not run")
        write(three, ended="over")
        os.utime(three, (1.0, 1.0))
        assert asked("healthz") == (200, "ok")
        assert asked("else")[0] == 404
    figures = dict(line.rsplit(" ", 1) for line in told.splitlines() if line[0] != "#")
    north, south = 'study="three",site="no\\"rth\\n"', 'study="three",site="south"'
    for which, rounds in (("three", "2"), ("other", "2")):
        assert figures.pop(f'sordino_up{{study="{which}"}}') == "1"
        assert figures.pop(f'sordino_round{{study="{which}"}}') == rounds
        assert figures.pop(f'sordino_rounds_planned{{study="{which}"}}') == "9"
        assert figures.pop(f'sordino_waiting{{study="{which}"}}') == "0"
        assert figures.pop(f'sordino_journal_bytes{{study="{which}"}}') == "5"
        refused = f'sordino_connections_refused_total{{study="{which}",why="no name"}}'
        assert figures.pop(refused) == "4"
    assert figures == {
        'sordino_sites_minimum{study="three"}': "2",
        'sordino_sites_minimum{study="other"}': "0",
        f"sordino_site_present{{{north}}}": "1",
        f"sordino_site_present{{{south}}}": "0",
        f"sordino_site_out{{{north}}}": "0",
        f"sordino_site_out{{{south}}}": "1",
        f"sordino_site_epsilon{{{north}}}": "0.25",
        f"sordino_site_epsilon_limit{{{north}}}": "4.0",
        f"sordino_site_quiet_seconds{{{south}}}": "12.0",
        f"sordino_site_received_bytes_total{{{south}}}": "10",
        f"sordino_site_sent_bytes_total{{{south}}}": "20",
        f"sordino_site_answers_total{{{south}}}": "7",
        f"sordino_site_refused_total{{{north}}}": "3",
        f"sordino_site_refused_total{{{south}}}": "0",
    }


def test_a_status_that_nobody_writes_any_more_says_so(tmp_path: Path) -> None:
    running = Status(1, "three", "a", 2, 9, 1.0, 1, (), {}, None)
    path = tmp_path / federation.NAME
    path.write_bytes(msgspec.json.encode(running))
    words = "network", "status", str(tmp_path)
    assert "does not run" not in command.sordino(tmp_path, *words).stdout
    os.utime(path, (1.0, 1.0))
    assert "the server does not run, or is stuck" in command.sordino(tmp_path, *words).stdout
    assert not federation.silence(tmp_path, msgspec.structs.replace(running, ended="over"))


def test_a_status_says_how_a_run_ended_where_there_is_one(tmp_path: Path) -> None:
    status.conclude(tmp_path, 3, 0.5, "why")
    assert not (tmp_path / federation.NAME).exists()
    site = SiteStatus("north", True, 2, 0.1, 0.4, 3.0, 10, 10, {})
    running = Status(1, "three", "a", 2, 9, 1.0, 1, (site,), {}, None)
    (tmp_path / federation.NAME).write_bytes(msgspec.json.encode(running))
    status.conclude(tmp_path, 3, 0.5, "the round budget is used up")
    found = federation.read(tmp_path)
    assert (found.number, found.ended) == (3, "the round budget is used up")
    assert (found.sites[0].epsilon, found.sites[0].asked) == (0.4, None)  # its own, not the run's


def test_a_kit_does_not_say_where_a_ledger_is_kept(tmp_path: Path) -> None:
    """A site without --ledger kept one of its data in the folder that a changed kit named."""
    found = laid(tmp_path, "synchronous")
    for folder in (found.server, found.sites[0][0]):
        path = folder / "study.toml"
        written = path.read_text()
        path.write_text(re.sub(r"(?m)^ledger = .*$", f'ledger = "{tmp_path / "there"}"', written))
        assert path.read_text() != written
        with pytest.raises(StudyError, match=r"a kit does not say where a ledger is kept"):
            Agreed(folder)


def test_a_federation_inside_of_nvflare_is_refused_with_the_remedy(
    tmp_path: Path, file: Path
) -> None:
    """Versions before had it as a transport. What they left is still read."""
    found = laid(tmp_path, "synchronous")
    site, data = found.sites[0]
    for path in (file, found.server / kit.AGREEMENT, site / kit.AGREEMENT):
        rest = path.read_text().replace('transport = "websocket"\n', "")
        path.write_text('transport = "nvflare"\n' + rest)
    for command_line in (
        ["network", "provision", str(file)],
        ["serve", str(found.server)],
        ["join", str(site), "--data", str(data), "--rehearsal"],
        ["join", str(site), "--data", str(data), "--rehearsal", "--plan"],
    ):
        done = command.sordino(tmp_path, *command_line)
        assert done.returncode == 2, command_line
        said = " ".join(done.stderr.split())
        assert "NVFlare carries WebSocket now" in said
        assert "provision again" in said
        assert "docs/nvflare.md" in said
    assert not (tmp_path / "kits").exists()
    assert Agreed(site).agreement.transport == "nvflare"
