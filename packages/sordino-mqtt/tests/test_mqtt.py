"""The MQTT transport against a real broker: identities, repeats, stale frames and restarts."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import gc
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mosquitto import LIMIT, NEEDED, STUDY, Place
from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.network import certificates, demo, kit
from sordino.network import transport as transports
from sordino.network.kit import Agreed, read_agreement
from sordino.network.transport import AT_ONCE, Lost, Mailbox, Stranger
from sordino_mqtt import broker as brokers
from sordino_mqtt import link
from sordino_mqtt.link import Link
from sordino_mqtt.transport import MQTT, MqttLine

pytestmark = NEEDED


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits of a federation of two sites, and their data."""
    out = tmp_path_factory.mktemp("mqtt")
    (out / "study.toml").write_text(STUDY.format(updates=40))
    found = demo.lay_out(
        studies.read(out / "study.toml"), out / "laid", scripted=False, transport="mqtt"
    )
    return found.server.parent


@pytest.fixture
def place(kits: Path) -> Iterator[Place]:
    """A broker of these kits."""
    found = Place(
        kits, brokers.start(kits, kits / "log.txt", read_agreement(kits / "server/agreement.toml"))
    )
    yield found
    for each in reversed(found.made):
        each.close()
    found.stop()


def test_frames_go_both_ways_and_presence_is_noticed(place: Place) -> None:
    hub, one = place.hub(), place.line("site-0")
    two = place.line("site-1")
    assert [place.next()[:2] for _ in range(2)] == [("open", "site-0"), ("open", "site-1")]
    one.send(b"up")
    assert place.next() == ("frame", "site-0", b"up")
    hub.send("site-0", b"first")
    hub.send("site-1", b"other")
    hub.send("site-0", b"x" * LIMIT)
    heard = one.frames()
    assert [next(heard), next(heard)] == [b"first", b"x" * LIMIT]
    assert next(two.frames()) == b"other"
    one.close()
    assert place.next()[:2] == ("closed", "site-0")
    hub.drop("site-1", "why")
    with pytest.raises(Lost, match="the server ended the connection"):
        next(two.frames())


def test_a_site_that_is_cut_off_is_noticed_by_its_last_will(place: Place) -> None:
    place.hub()
    line = place.line("site-0")
    assert place.next()[0] == "open"
    opened = line._link._client.socket()
    assert isinstance(opened, socket.socket)
    socket.socket.shutdown(opened, socket.SHUT_RDWR)  # below TLS: no good-bye
    assert place.next()[:2] == ("closed", "site-0")


def test_frames_go_out_at_once(place: Place) -> None:
    opened = place.link("site-0")._client.socket()
    assert isinstance(opened, socket.socket)
    assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_connection_that_is_announced_twice_is_one(place: Place) -> None:
    hub, line = place.hub(), place.line("site-0")
    line._link.appear()
    line.send(b"twice")
    line.send(b"twice")
    assert [place.next()[0] for _ in range(3)] == ["open", "frame", "frame"]
    hub.drop("site-0", "enough")
    assert place.next()[0] == "closed"
    line._link.appear()
    line._link.publish("up", "site-0", b"late", line._link.key)
    place.until(lambda: place.refused)
    assert set(place.refused) == {("site-0", "a frame of a connection that has ended")}
    assert place.box.get(0.0) is None


def test_frames_of_an_earlier_connection_are_refused_and_named(place: Place) -> None:
    place.hub()
    before = place.line("site-0")
    line = place.line("site-0")  # the broker ends the one before
    assert before._link.ended.wait(10.0)
    assert [place.next()[0] for _ in range(3)] == ["open", "closed", "open"]
    line._link.publish("up", "site-0", b"stale", before._link.key)
    line.send(b"fresh")
    assert place.next() == ("frame", "site-0", b"fresh")
    assert set(place.refused) == {("site-0", "a frame of a connection that has ended")}
    line._link.publish("there", "site-0", b"", before._link.key)  # a will that comes late
    line.send(b"again")
    assert place.next() == ("frame", "site-0", b"again")


def test_what_the_server_sends_to_an_earlier_connection_reaches_no_later_one(place: Place) -> None:
    hub = place.hub()
    before = place.line("site-0")
    line = place.line("site-0")
    assert [place.next()[0] for _ in range(3)] == ["open", "closed", "open"]
    assert hub._link is not None
    hub._link.publish("down", "site-0", b"stale", before._link.key)
    hub.send("site-0", b"fresh")
    assert next(line.frames()) == b"fresh"


def test_a_broker_that_was_killed_is_found_again(place: Place) -> None:
    hub, line = place.hub(), place.line("site-0")
    assert place.next()[0] == "open"
    place.stop()
    with pytest.raises(Lost):
        next(line.frames())
    with pytest.raises(Lost):
        line.send(b"nobody hears this")
    assert place.next()[:2] == ("closed", "site-0")
    hub.send("site-0", b"nobody hears this")
    with pytest.raises(Lost):
        place.line("site-0")
    place.start()
    line = place.line("site-0")  # waits until the server is there
    assert place.next()[0] == "open"
    line.send(b"again")
    assert place.next() == ("frame", "site-0", b"again")
    hub.send("site-0", b"welcome")
    assert next(line.frames()) == b"welcome"


def test_sites_notice_that_the_server_has_gone(place: Place) -> None:
    hub, line = place.hub(), place.line("site-0")
    hub.close()
    with pytest.raises(Lost, match="the server has gone"):
        next(line.frames())


def test_a_site_without_a_server_waits_and_tries_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino_mqtt.transport.WAITING", 0.1)
    with pytest.raises(Lost, match="the server is not"):
        place.line("site-0")


def test_a_site_reads_and_writes_its_own_topics_alone(place: Place) -> None:
    place.hub()
    line, heard = place.line("site-1"), []
    assert place.next()[0] == "open"
    for kind, name in (("down", "site-1"), ("up", "site-1"), ("up", "+"), ("down", "#")):
        with contextlib.suppress(Stranger):
            place.link("site-0", lambda *given: heard.append(given)).subscribe((kind, name))
    for kind, name in (
        ("up", "site-1"),
        ("down", "site-1"),
        ("there", "site-1"),
        ("there", "server"),
    ):
        bad = place.link("site-0")
        told = bad.publish(kind, name, b"" if kind == "there" else b"forged", line._link.key)
        link.published(told, 10.0)
        place.until(bad.ended.is_set)
        assert "Not authorized" in bad.why
    line.send(b"true")
    assert place.next() == ("frame", "site-1", b"true")
    assert not heard
    assert not line._link.ended.is_set()


def test_a_site_cannot_take_the_name_of_another(place: Place) -> None:
    place.hub()
    line = place.line("site-1")
    assert place.next()[0] == "open"
    context = place.context("site-0")
    other = Link(place.where, "site-1", b"own", context, lambda *given: None, lambda: None)
    line.send(b"still there")
    assert place.next() == ("frame", "site-1", b"still there")
    with pytest.raises((Lost, Stranger)):
        other.appear()
    other.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # paho drops a socket that it cannot use
def test_certificates_of_another_authority_are_refused_on_both_sides(
    place: Place, tmp_path: Path
) -> None:
    now = dt.datetime.now(dt.UTC)
    by = certificates.authority("another", now)
    for name, made in (
        ("authority", by),
        ("site", certificates.certify(by, "site-0", "site", now)),
    ):
        (tmp_path / f"{name}.pem").write_bytes(made.pem()[0])
        (tmp_path / f"{name}.key").write_bytes(made.pem()[1])
    with pytest.raises(Lost, match="certificate is not that of the federation's broker"):
        MqttLine(place.where, "site-0", certificates.context(tmp_path, "site"), LIMIT)
    gc.collect()
    (tmp_path / "authority.pem").write_bytes((place.kits / "site-0/authority.pem").read_bytes())
    with pytest.raises(Stranger, match="does not admit site-0"):
        MqttLine(place.where, "site-0", certificates.context(tmp_path, "site"), LIMIT)


def test_a_site_that_nobody_agreed_to_is_named(place: Place, tmp_path: Path) -> None:
    place.hub()
    by = certificates.read_pair(place.kits / "authority", "authority")
    made = certificates.certify(by, "somebody", "site", dt.datetime.now(dt.UTC)).pem()
    (tmp_path / "site.pem").write_bytes(made[0])
    (tmp_path / "site.key").write_bytes(made[1])
    (tmp_path / "authority.pem").write_bytes((place.kits / "site-0/authority.pem").read_bytes())
    context = certificates.context(tmp_path, "site")
    other = Link(place.where, "somebody", b"own", context, lambda *given: None, lambda: None)
    other.appear()
    place.until(lambda: place.refused)
    other.close()
    assert set(place.refused) == {("somebody", "its certificate is of no site of this federation")}
    assert place.box.get(0.0) is None


def test_revoked_certificates_are_refused_when_the_broker_reads_the_list_again(
    place: Place,
) -> None:
    place.hub()
    place.line("site-0").close()
    before = (place.kits / "broker/revoked.pem").read_bytes()
    authority = (place.kits / "authority/revoked.pem").read_bytes()
    try:
        path = kit.revoke(place.kits / "authority", "site-0", dt.datetime.now(dt.UTC))
        (place.kits / "broker/revoked.pem").write_bytes(path.read_bytes())
        place.stop()
        place.start()
        with pytest.raises(Stranger, match="does not admit site-0"):
            place.line("site-0")
        place.line("site-1")
    finally:
        (place.kits / "broker/revoked.pem").write_bytes(before)
        (place.kits / "authority/revoked.pem").write_bytes(authority)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # paho drops a socket that it cannot use
def test_server_and_sites_refuse_a_broker_that_is_on_the_list_in_their_kits(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino_mqtt.transport.WAITING", 0.1)
    kits = shutil.copytree(place.kits, tmp_path / "kits")
    agreement = Agreed(kits / "server").agreement
    site = MQTT.site(agreement, 0, kits / "site-0")
    hub = MQTT.server(agreement, kits / "server", "")
    with pytest.raises(Lost, match="the server is not"):
        site(LIMIT)
    found = kit.revoke(kits / "authority", "broker", dt.datetime.now(dt.UTC)).read_bytes()
    for name in ("site-0", "server"):
        (kits / name / "revoked.pem").write_bytes(found)
    with pytest.raises(Lost, match="revoked"):
        site(LIMIT)
    said: list[str] = []
    hub(LIMIT, Mailbox(), lambda who, why: None, said.append).close()
    assert "revoked" in said[0]
    gc.collect()


def test_connections_without_end_are_refused_and_named(place: Place) -> None:
    place.hub()
    good, bad = place.line("site-1"), place.link("site-0")
    for number in range(200):
        bad.publish("there", "site-0", b"there", number.to_bytes(8, "big"))
    name = ("site-0", "it connects more often than the server reads")
    for _ in range(200):
        if name in place.refused:
            break
        time.sleep(0.05)
    assert name in place.refused
    good.send(b"heard")
    while (event := place.next())[1] != "site-1" or event[0] != "frame":
        assert event[1] in ("site-0", "site-1")
    assert event[2] == b"heard"


def test_a_flood_is_named_and_cut_off_and_the_others_are_heard(place: Place) -> None:
    place.hub()
    bad, good = place.line("site-0"), place.line("site-1")
    for _ in range(1000):
        bad._link.publish("up", "site-0", b"flood" * 1000, bad._link.key)
    with pytest.raises(Lost, match="the server ended the connection"):
        next(bad.frames())
    good.send(b"heard")
    found = place.next()
    while found[1] != "site-1" or found[0] != "frame":
        found = place.next()
    assert found[2] == b"heard"
    assert ("site-0", "it sends more than the server reads") in place.refused


def test_what_waits_at_a_site_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "WAITING", 1000 + transports.OBJECT)
    hub, line = place.hub(), place.line("site-0")
    assert place.next()[0] == "open"
    for number in range(100):
        hub.send("site-0", b"%1000d" % number)
    end = time.monotonic() + 10
    while not line._why and time.monotonic() < end:
        time.sleep(0.01)
    with pytest.raises(Lost, match="sends more than this site reads"):
        line.send(b"late")
    frames = line.frames()
    assert [int(next(frames)) for _ in range(AT_ONCE)] == list(range(AT_ONCE))
    with pytest.raises(Lost, match="sends more than this site reads"):
        next(frames)


def test_a_message_that_cannot_be_taken_ends_the_connection_and_not_the_hub(place: Place) -> None:
    """A disk that is full for a moment, say, when a refusal is to be written down."""

    class Full(list[tuple[str, str]]):
        def append(self, item: tuple[str, str]) -> None:
            super().append(item)
            if len(self) == 1:
                raise OSError(errno.ENOSPC, "no space left")

    place.refused = Full()
    place.hub()
    line = place.line("site-0")
    assert place.next()[0] == "open"
    line._link.publish("up", "site-0", b"stale", b"of another connection")
    assert place.next()[:2] == ("closed", "site-0")
    with pytest.raises(Lost, match="the server has gone"):
        next(line.frames())
    again = place.line("site-0")
    assert place.next()[0] == "open"
    again.send(b"heard")
    assert place.next() == ("frame", "site-0", b"heard")


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_the_library_refuses_does_not_keep_the_server_away(
    place: Place, qos: int
) -> None:
    """The broker passes U+FEFF on, and paho takes a message with it for malformed. One that was
    kept came each time that the server subscribed.
    """
    bad = place.link("site-0")
    odd = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    odd.UserProperty = ("\ufeff", "x")
    place.until(bad._client.is_connected)

    def says(kind: str, *, keep: bool) -> None:
        topic = place.where.topic(kind, "site-0")
        told = bad._client.publish(topic, b"x", qos=qos, retain=keep, properties=odd)
        told.wait_for_publish(5.0)

    says("there", keep=True)
    hub = place.hub()
    first = hub._link
    good = place.line("site-1")
    assert place.next()[:2] == ("open", "site-1")
    for _ in range(30):  # more than a broker has on its way to one that does not acknowledge
        says("up", keep=False)
    good.send(b"heard")
    assert place.next() == ("frame", "site-1", b"heard")
    assert hub._link is first
    assert set(place.refused) == {("site-0", "a frame of a connection that has ended")}


def test_a_frame_that_is_too_large_ends_its_connection_alone(place: Place) -> None:
    place.hub()
    bad, good = place.line("site-0"), place.line("site-1")
    assert [place.next()[0] for _ in range(2)] == ["open", "open"]
    bad._link.publish("up", "site-0", bytes(2_000_000), bad._link.key)
    assert place.next()[:2] == ("closed", "site-0")
    good.send(b"heard")
    assert place.next() == ("frame", "site-1", b"heard")


def test_without_the_program_the_remedy_is_said(
    kits: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(brokers, "program", lambda: None)
    with pytest.raises(StudyError, match="apt install mosquitto"):
        brokers.start(kits, tmp_path / "log", read_agreement(kits / "server/agreement.toml"))


def test_settings_that_mosquitto_refuses_are_said(kits: Path, tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker/mosquitto.conf").write_text("nonsense true\n")
    with pytest.raises(StudyError, match="the broker does not start"):
        brokers.start(tmp_path, tmp_path / "log", read_agreement(kits / "server/agreement.toml"))


def test_the_broker_listens_and_the_server_connects(kits: Path, tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    for name, use in (
        ("broker", ExtendedKeyUsageOID.SERVER_AUTH),
        ("server", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        kit.renew(kits / "authority", name, tmp_path, now)
        for folder in (kits / name, tmp_path):
            made = certificates.read_certificate(folder, f"{name}.pem")
            found = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
            assert list(found.value) == [use]
            assert certificates.common_name(made) == name


def test_the_server_of_a_broker_listens_nowhere(kits: Path) -> None:
    with pytest.raises(StudyError, match="connects to the broker"):
        transports.of("mqtt").server(
            read_agreement(kits / "server/agreement.toml"), kits / "server", "0.0.0.0"
        )


@pytest.mark.parametrize(("transport", "extra"), [("mqtt", "edge"), ("websocket", "network")])
def test_a_library_that_is_missing_is_named_with_its_extra(
    transport: str, extra: str, kits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sordino.network.websocket", *("sordino_mqtt.transport", "sordino_mqtt.link")):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "paho.mqtt", None)
    monkeypatch.setitem(sys.modules, "websockets.asyncio.client", None)
    agreement = read_agreement(kits / "server/agreement.toml").model_copy(
        update={"transport": transport}
    )
    with pytest.raises(StudyError, match=f"pip install 'sordino.{extra}.'"):
        transports.of(transport).site(agreement, 0, kits / "site-0")
    with pytest.raises(StudyError, match=f"pip install 'sordino.{extra}.'"):
        transports.of(transport).server(agreement, kits / "server", "")


def test_a_package_that_is_missing_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transports, "companions", lambda group: ())
    with pytest.raises(StudyError, match=r"pip install 'sordino\[edge\]'. .*here: websocket"):
        transports.of("mqtt")
