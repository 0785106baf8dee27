"""The NVFlare transport over processes in memory: order, losses, names and refusals."""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from command import sordino
from federations import study_of
from sordino.base.errors import StudyError
from sordino.base.logs import log_to
from sordino.network import demo, kit, transport
from sordino.network.kit import Agreed
from sordino.network.server import serve_all
from sordino.network.site import JoinOptions, join, promised
from sordino.network.status import Shown
from sordino.network.transport import AT_ONCE, Event, Lost, Mailbox, Stranger
from sordino_nvflare import admin, channel, job, local
from sordino_nvflare.channel import AHEAD, FlareHub, FlareLine, Got, Order, Parcel, Quorum, Topic

LIMIT = 1000


class Office:
    """Processes of one job: each has a name and takes messages of some topics.

    Attributes:
        bends: what becomes of a message: the messages that arrive in its place.
    """

    def __init__(self) -> None:
        self.takes: dict[tuple[str, str], Got] = {}
        self.bends: Callable[[Topic, Parcel], list[Parcel]] = lambda topic, parcel: [parcel]


class Desk:
    """One process's way to the others."""

    def __init__(self, office: Office, name: str) -> None:
        self._office, self._name = office, name

    def on(self, topic: Topic, got: Got) -> None:
        self._office.takes[self._name, topic] = got

    def tell(self, to: str, topic: Topic, parcel: Parcel) -> None:
        for each in self._office.bends(topic, parcel):
            self._office.takes[to, topic](self._name, each)

    def ask(self, to: str, topic: Topic, parcel: Parcel, seconds: float) -> Parcel | None:
        got = self._office.takes.get((to, topic))
        return None if got is None else got(self._name, parcel)


class Place:
    """A hub, what it has told of, and its mailbox."""

    def __init__(self) -> None:
        self.office, self.mailbox = Office(), Mailbox()
        self.refused: list[tuple[str, str]] = []
        self.hub = FlareHub(
            Desk(self.office, channel.SERVER),
            LIMIT,
            frozenset({"north", "south"}),
            self.mailbox,
            lambda who, why: self.refused.append((who, why)),
        )

    def line(self, name: str = "north") -> FlareLine:
        return FlareLine(Desk(self.office, name), LIMIT)

    def next(self, seconds: float = 2.0) -> tuple[str, str, bytes]:
        found = self.mailbox.get(seconds)
        assert found is not None, "nothing came"
        return found.kind, found.site, found.frame

    def opened(self, name: str = "north") -> FlareLine:
        line = self.line(name)
        assert self.next() == ("open", name, b"")
        return line


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(channel, "BEAT", 0.02)
    monkeypatch.setattr(channel, "SILENT", 0.3)
    found = Place()
    yield found
    found.hub.close()


def lost(line: FlareLine) -> str:
    """Why a line has ended."""
    with pytest.raises(Lost) as caught:
        list(line.frames())
    return str(caught.value)


def test_frames_go_both_ways(place: Place) -> None:
    line = place.opened()
    line.send(b"up")
    assert place.next() == ("frame", "north", b"up")
    place.hub.send("north", b"down")
    place.hub.send("south", b"nobody is there")
    assert next(line.frames()) == b"down"
    line.close()
    assert place.next() == ("closed", "north", b"")
    with pytest.raises(Lost, match="closed"):
        line.send(b"late")


def test_messages_that_arrive_in_another_order_are_put_in_order(place: Place) -> None:
    line = place.opened()
    held: list[Parcel] = []

    def shuffled(topic: Topic, parcel: Parcel) -> list[Parcel]:
        if topic not in ("up", "down"):
            return [parcel]
        held.append(parcel)
        if len(held) < 6:
            return []
        random.Random(1).shuffle(held)
        found = [*held, held[0]]  # and one of them twice
        held.clear()
        return found

    place.office.bends = shuffled
    bodies = [b"%d" % i for i in range(6)]
    for each in bodies:
        line.send(each)
    assert [place.next()[2] for _ in bodies] == bodies
    for each in bodies:
        place.hub.send("north", each)
    assert list(islice(line.frames(), 6)) == bodies


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_frame_that_is_lost_ends_the_connection(way: str, place: Place) -> None:
    line = place.opened()
    place.office.bends = lambda topic, parcel: [] if topic == way else [parcel]
    if way == "up":
        line.send(b"lost")
        assert place.next() == ("closed", "north", b"")
        assert lost(line) == "the server has ended the connection"
        assert set(place.refused) == {("north", "a frame was lost on its way")}
    else:
        place.hub.send("north", b"lost")
        assert lost(line) == "a frame was lost on its way"


def test_a_process_that_dies_is_noticed_on_both_sides(place: Place) -> None:
    line = place.opened()
    line._ended.set()  # its threads have gone, and say nothing
    assert place.next() == ("closed", "north", b"")
    again = place.opened()
    place.office.takes.clear()
    assert lost(again) == "the server's process gives no sign of life"
    with pytest.raises(Lost, match="does not answer"):
        place.line()


def test_only_sites_of_the_federation_are_admitted(place: Place) -> None:
    with pytest.raises(Stranger, match="not a site of this federation"):
        place.line("east")
    assert set(place.refused) == {("east", "it is no site of this federation")}


def test_a_site_that_connects_again_replaces_its_earlier_connection(place: Place) -> None:
    first = place.opened()
    second = place.line()
    assert [place.next()[0] for _ in range(2)] == ["closed", "open"]
    first.send(b"late")
    second.send(b"new")
    assert place.next() == ("frame", "north", b"new")
    assert lost(first) == "the server has ended the connection"
    assert ("north", "a frame of a connection that has ended") in place.refused


def test_a_site_that_connects_again_and_again_is_not_listened_to(place: Place) -> None:
    for _ in range(AT_ONCE // 2 + 1):  # each but the first ends one and opens one
        place.line()
    with pytest.raises(Lost, match="does not answer"):
        place.line()
    while place.mailbox.get(0.0) is not None:
        pass
    place.line()


@pytest.mark.parametrize(
    ("bodies", "why"),
    [
        ([b""], "a frame of 0 bytes"),
        ([bytes(LIMIT + 1)], f"a frame of {LIMIT + 1} bytes"),
        ([b"x"] * 20, "it sends more than the server reads"),
    ],
)
def test_what_does_not_fit_ends_the_connection(bodies: list[bytes], why: str, place: Place) -> None:
    line = place.opened()
    for each in bodies:
        try:
            line.send(each)
        except Lost:
            break
    assert ("north", why) in place.refused
    assert lost(line) in ("a frame that is too large, or empty", "too many frames")


def test_frames_far_ahead_of_their_turn_are_not_kept_for_ever() -> None:
    order = Order()
    kept = [order.put(number, b"") for number in range(2, AHEAD + 3)]
    assert kept == [[]] * AHEAD + [None]
    assert order.given == 0


def test_what_waits_at_a_site_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "WAITING", 40 * (transport.OBJECT + 9))
    line, other = place.opened(), place.opened("south")
    for number in range(50):  # of short ones a site may have missed many
        place.hub.send("north", b"%9d" % number)
        if number < AT_ONCE:
            place.hub.send("south", bytes(LIMIT))
    assert [int(each) for each in islice(line.frames(), 40)] == list(range(40))
    assert lost(line) == "the server sends more than this site reads"
    assert list(islice(other.frames(), AT_ONCE)) == [bytes(LIMIT)] * AT_ONCE


def test_a_server_that_drops_a_site_says_why(place: Place) -> None:
    line = place.opened()
    place.hub.drop("north", "too many frames that were refused")
    assert lost(line) == "too many frames that were refused"
    assert place.next() == ("closed", "north", b"")


def test_events_between_threads_keep_the_order_of_each_site(place: Place) -> None:
    lines = {name: place.opened(name) for name in ("north", "south")}

    def talk(name: str) -> None:
        for i in range(100):
            while place.mailbox.full(name):
                time.sleep(0.0005)
            lines[name].send(b"%d" % i)

    threads = [threading.Thread(target=talk, args=(name,)) for name in lines]
    for each in threads:
        each.start()
    found: dict[str, list[int]] = {name: [] for name in lines}
    while sum(map(len, found.values())) < 200:
        event = place.mailbox.get(2.0)
        assert isinstance(event, Event)
        found[event.site].append(int(event.frame))
    for each in threads:
        each.join()
    assert found == {name: list(range(100)) for name in lines}


def test_a_job_ends_when_too_few_sites_are_there_for_too_long(place: Place) -> None:
    quorum = Quorum(2, 10.0)
    assert not quorum.lost(None, 0.0)
    assert not quorum.lost(None, 100.0)  # nobody could be there yet
    place.opened("north")
    assert [quorum.lost(place.hub, at) for at in (200.0, 209.0, 211.0)] == [False, False, True]
    place.opened("south")
    assert not quorum.lost(place.hub, 212.0)
    place.hub.drop("south", "")
    assert [quorum.lost(place.hub, at) for at in (213.0, 222.0, 224.0)] == [False, False, True]
    assert str(quorum) == "fewer than 2 sites were connected for 10 seconds"


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits of a federation that has agreed on NVFlare, and of one that has not."""
    out = tmp_path_factory.mktemp("flare")
    study = study_of(out, "asynchronous")
    demo.lay_out(study, out / "nvflare", scripted=True, transport="nvflare")
    demo.lay_out(study, out / "websocket", scripted=True)
    return out


def test_a_job_holds_settings_and_no_code(kits: Path, tmp_path: Path) -> None:
    agreed = Agreed(kits / "nvflare/kits/server")
    job.write(agreed, tmp_path / "job")
    found = {
        str(path.relative_to(tmp_path / "job")): json.loads(path.read_text())
        for path in (tmp_path / "job").rglob("*.json")
    }
    assert all(path.suffix == ".json" for path in (tmp_path / "job").rglob("*") if path.is_file())
    given = {"federation": agreed.agreement.name, "digest": agreed.digest}
    [serve] = found["app/config/config_fed_server.json"]["workflows"]
    [join] = found["app/config/config_fed_client.json"]["executors"]
    assert (serve["path"], serve["args"]) == (job.SERVE, given)
    assert (join["executor"]["path"], join["executor"]["args"]) == (job.JOIN, given)
    assert found["meta.json"]["min_clients"] == agreed.agreement.minimum == 3
    with pytest.raises(StudyError, match="exists already"):
        job.write(agreed, tmp_path / "job")
    with pytest.raises(StudyError, match='transport = "nvflare"'):
        job.files(Agreed(kits / "websocket/kits/server"))


def test_what_only_a_job_can_do_is_refused_elsewhere(kits: Path) -> None:
    shown = Shown(row=lambda row: None, begin=lambda going: None, log=log_to(lambda words: None))
    found = kits / "nvflare/kits"
    with pytest.raises(StudyError, match=r"runs as a job of NVFlare.*docs/nvflare\.md"):
        serve_all([found / "server"], lambda kit, way: None)
    options = JoinOptions(
        kit=found / "site-0", data=kits / "nvflare/data/site-0.npz", rehearsal=True
    )
    with pytest.raises(StudyError, match="runs as a job of NVFlare"):
        join(options, shown)
    with pytest.raises(StudyError, match="have its admin disable the client site-0"):
        kit.revoke(found / "authority", "site-0", dt.datetime.now(dt.UTC))


def test_a_sites_own_settings(tmp_path: Path) -> None:
    path = tmp_path / local.NAME
    with pytest.raises(StudyError, match="there is no such file"):
        local.read(tmp_path, "three", local.SiteTable)
    path.write_text('[three]\nkit = "kits/north"\ndata = "/data/north.csv"\nepsilon_limit = 3.0\n')
    found = local.read(tmp_path, "three", local.SiteTable)
    assert (found.kit, found.data) == (tmp_path / "kits/north", Path("/data/north.csv"))
    assert (found.epsilon_limit, found.ledger) == (3.0, None)
    with pytest.raises(StudyError, match=r"no table \[four\]"):
        local.read(tmp_path, "four", local.SiteTable)
    path.write_text('[three]\nkit = "kits/north"\nepsilon = 3.0\n')
    with pytest.raises(StudyError, match=r"SiteTable\.data: field required\n.*\.epsilon: extra"):
        local.read(tmp_path, "three", local.SiteTable)
    path.write_text("[three")
    with pytest.raises(StudyError, match=r"sordino\.toml"):
        local.read(tmp_path, "three", local.SiteTable)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A start-up folder, as far as NVFlare's matters here."""
    (tmp_path / "north/local").mkdir(parents=True)
    default = {"format_version": 2, "class_allow_list": ["a.B"], "allow_log_streaming": True}
    (tmp_path / "north/local/resources.json.default").write_text(json.dumps(default))
    roles = {
        "project_admin": "any",
        "lead": {"submit_job": "any", "manage_job": "n:submitter", "BYOC": "any", "byoc": "any"},
        "member": {"view": "any"},
    }
    rights = {"format_version": "1.0", "permissions": roles}
    (tmp_path / "north/local/authorization.json.default").write_text(json.dumps(rights))
    return tmp_path / "north"


def test_a_site_lets_its_nvflare_run_a_federation(kits: Path, workspace: Path) -> None:
    own, found = kits / "nvflare/kits", workspace / "local"
    for data in ("old.csv", "new.csv"):
        given = ["--kit", str(own / "site-0"), "--data", str(kits / data), "--epsilon-limit", "2"]
        done = sordino(workspace, "network", "nvflare-allow", str(workspace), *given)
        assert done.returncode == 0, done.stderr
    policy = json.loads((found / "resources.json").read_text())
    assert policy["class_allow_list"] == ["a.B", *job.ALLOWED]
    assert policy["allow_log_streaming"] is False
    federation = Agreed(own / "site-0").agreement.name
    settings = local.read(found, federation, local.SiteTable)
    assert (settings.data, settings.epsilon_limit) == (kits / "new.csv", 2.0)
    assert job.TRUSTED in " ".join(done.stderr.split())
    options = JoinOptions(kit=own / "site-0", data=kits / "nvflare/data/site-0.npz")
    assert f"in a job of NVFlare. {job.TRUSTED}" in "\n".join(promised(options))


@pytest.mark.skipif(find_spec("nvflare") is None, reason="NVFlare is not installed")
def test_no_admin_brings_code_to_a_site_and_all_other_rights_stay(
    kits: Path, workspace: Path
) -> None:
    """As NVFlare itself judges: by default a project admin and a lead may."""
    from nvflare.fuel.sec.authz import AuthzContext, Person, parse_policy_config
    from nvflare.security.security import COMMAND_CATEGORIES

    def may(name: str) -> set[tuple[str, str]]:
        table = json.loads((workspace / "local" / name).read_text())
        policy, error = parse_policy_config(table, COMMAND_CATEGORIES)
        assert not error
        found = set()
        for role in ("project_admin", "lead", "member"):
            who = Person("somebody", "elsewhere", role)
            for right in ("submit_job", "abort_job", "check_status", "cat", "byoc"):
                if policy.evaluate("here", AuthzContext(user=who, submitter=who, right=right))[0]:
                    found.add((role, right))
        return found

    before = may("authorization.json.default")
    code = {("project_admin", "byoc"), ("lead", "byoc")}
    assert code <= before
    given = ["--kit", str(kits / "nvflare/kits/site-0"), "--data", "x.csv"]
    done = sordino(workspace, "network", "nvflare-allow", str(workspace), *given)
    assert done.returncode == 0, done.stderr
    assert may("authorization.json") == before - code


def test_settings_of_a_site_and_of_the_server_are_told_apart(kits: Path, workspace: Path) -> None:
    own = kits / "nvflare/kits"
    for wrong in (
        ["--kit", str(own / "site-0")],
        ["--kit", str(own / "server"), "--data", "x.csv"],
        ["--kit", str(own / "server"), "--epsilon-limit", "2"],
        ["--kit", str(own / "site-0"), "--data", "x.csv", "--test", "y.csv"],
    ):
        done = sordino(workspace, "network", "nvflare-allow", str(workspace), *wrong)
        assert done.returncode != 0
        assert "a site has --data" in done.stderr
    elsewhere = ["nvflare-allow", str(kits), "--kit", str(own / "server")]
    assert "no start-up folder" in sordino(workspace, "network", *elsewhere).stderr


def test_a_limit_that_would_be_refused_later_is_refused_when_it_is_set(
    kits: Path, workspace: Path
) -> None:
    own = ["--kit", str(kits / "nvflare/kits/site-0"), "--data", "x.csv"]
    for limit in ("-1", "nan", "0"):
        given = [*own, "--epsilon-limit", limit]
        done = sordino(workspace, "network", "nvflare-allow", str(workspace), *given)
        assert done.returncode != 0
        assert "--epsilon-limit: it must be positive" in done.stderr
    assert not (workspace / "local/sordino.toml").exists()


class Jobs:
    """NVFlare's server, for an admin: how each job that is submitted goes."""

    def __init__(self, *ends: str) -> None:
        self.ends, self.jobs, self.asked = list(ends), 0, 0

    def sites(self) -> set[str]:
        """North is away for a moment after each job."""
        self.asked += 1
        return {"north", "south"} if self.asked % 2 else {"south"}

    def submit(self, path: Path) -> str:
        self.jobs += 1
        return f"job-{self.jobs}"

    def status(self, name: str) -> str:
        return self.ends[self.jobs - 1].removesuffix(" of the study")

    def over(self, name: str) -> bool:
        return self.ends[self.jobs - 1].endswith(" of the study")


@pytest.mark.parametrize(
    ("ends", "tries", "done", "jobs"),
    [
        (["FINISHED:COMPLETED"], 3, True, 1),
        (["FINISHED:EXECUTION_EXCEPTION", "FINISHED:ABNORMAL", "FINISHED:COMPLETED"], 3, True, 3),
        (["FINISHED:EXECUTION_EXCEPTION"] * 2, 2, False, 2),
        (["FINISHED:ABORTED", "FINISHED:COMPLETED"], 3, False, 1),
        (["FINISHED:EXECUTION_EXCEPTION of the study", "FINISHED:COMPLETED"], 3, False, 1),
        (["LOST", "FINISHED:COMPLETED"], 3, True, 2),
    ],
)
def test_a_job_that_ends_early_is_submitted_again_unless_an_admin_or_the_study_ended_it(
    ends: list[str], tries: int, done: bool, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "LOOK", 0.01)
    monkeypatch.setattr(admin, "GONE", 0.05)
    own: Any = Jobs(*ends)
    words: list[str] = []
    assert admin.keep(own, Path("job"), words.append, tries=tries) is done
    assert own.jobs == jobs
    assert own.asked == 2 * jobs - 1
    assert len(words) == 2 * jobs
    running: Any = Jobs("RUNNING")
    assert not admin.keep(running, Path("job"), words.append, tries=1, alive=lambda: False)
