"""A tunnel through NVFlare: what a job may open, whom its parts hear, and real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from command import sordino
from federations import study_of
from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.core.run import session
from sordino_nvflare import admin, job, local
from sordino_nvflare.tunnel import Parcel

INSTALLED = importlib.util.find_spec("nvflare") is not None
NEEDED = pytest.mark.skipif(
    not INSTALLED, reason="NVFlare is not installed: pip install 'sordino[nvflare]'"
)
FED = "nvflare.private.fed.app"
SJ = f"{FED}.server.runner_process"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A start-up folder, as far as NVFlare's matters here."""
    (tmp_path / "north/local").mkdir(parents=True)
    default = {"format_version": 2, "class_allow_list": ["a.B"]}
    (tmp_path / "north/local/resources.json.default").write_text(json.dumps(default))
    return tmp_path / "north"


def test_an_operator_says_which_port_a_job_may_use(folder: Path, tmp_path: Path) -> None:
    for given in (["--port", "8443"], ["--port", "9443", "--here", "19443"], ["--port", "9443"]):
        done = sordino(tmp_path, "network", "nvflare-allow", str(folder), *given)
        assert done.returncode == 0, done.stderr
    policy = json.loads((folder / "local/resources.json").read_text())
    assert policy["class_allow_list"] == ["a.B", *job.ALLOWED]
    assert local.read(folder / "local") == {"8443": 8443, "9443": 9443}
    assert local.allowed(folder / "local", 8443) == 8443
    for wrong in ("8443", 22, 0, -1, 84430, True, 8443.0, None, [8443], {"8443": 1}, "8" * 5000):
        with pytest.raises(local.Refused, match="does not allow port") as caught:
            local.allowed(folder / "local", wrong)
        assert len(str(caught.value)) < 500
    done = sordino(tmp_path, "network", "nvflare-allow", str(tmp_path), "--port", "1")
    assert "no start-up folder" in done.stderr
    assert not (tmp_path / "local").exists()


def test_without_a_file_nothing_is_allowed(folder: Path) -> None:
    with pytest.raises(local.Refused, match=r"Allowed: none.*nvflare-allow"):
        local.allowed(folder / "local", 8443)
    for wrong in ("", "[8443]", '{"8443": "8443"}', '{"8443": true}', '{"8443": 0}', "[" * 10_000):
        (folder / "local" / local.NAME).write_text(wrong)
        with pytest.raises(local.Refused, match=local.NAME):
            local.allowed(folder / "local", 8443)
        with pytest.raises(StudyError, match=local.NAME):
            job.allow(folder, 8443, 8443)


@NEEDED
def test_classes_that_nvflare_allows_by_itself_stay_allowed(folder: Path) -> None:
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    policy = folder / "local/resources.json"
    policy.write_text("{}")  # as versions of NVFlare before this list have it
    job.allow(folder, 8443, 8443)
    listed = json.loads(policy.read_text())["class_allow_list"]
    assert listed == [*DEFAULT_CLASS_ALLOW_LIST, *job.ALLOWED]
    for wrong in (None, "a.B", {"a.B": 1}):
        policy.write_text(json.dumps({"class_allow_list": wrong}))
        with pytest.raises(StudyError, match="class_allow_list must be a list"):
            job.allow(folder, 8443, 8443)


def test_a_job_holds_settings_and_no_code(tmp_path: Path) -> None:
    given = ["--port", "8443", "--sites", "3", "--idle", "60"]
    done = sordino(tmp_path, "network", "nvflare-job", *given)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    found = {
        str(path.relative_to(tmp_path / "job")): json.loads(path.read_text()) for path in files
    }
    assert sorted(found) == [
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "meta.json",
    ]
    [server] = found["app/config/config_fed_server.json"]["workflows"]
    [site] = found["app/config/config_fed_client.json"]["executors"]
    assert (server["path"], server["args"]) == (job.SERVER, {"port": 8443, "idle": 60.0})
    assert (site["executor"]["path"], site["executor"]["args"]) == (job.SITE, {"port": 8443})
    assert found["meta.json"]["min_clients"] == 3
    again = sordino(tmp_path, "network", "nvflare-job", *given)
    assert "exists already" in again.stderr


class Cell:
    """A cell that keeps what is registered and sent.

    Attributes:
        answer: what the library says of a message that is sent.
    """

    def __init__(self) -> None:
        self.core_cell, self.answer = self, {}  # type: Any, Any
        self.takes: Callable[[Any], Any] = lambda message: None
        self.sent: list[tuple[str, Parcel]] = []

    def register_request_cb(self, channel: str, topic: str, took: Any) -> None:
        self.takes = took

    def fire_and_forget(
        self, channel: str, topic: str, target: str, message: Any, optional: bool
    ) -> Any:
        self.sent.append((target, msgspec.msgpack.decode(message.payload, type=Parcel)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@NEEDED
@pytest.mark.parametrize(
    ("origin", "token", "heard"),
    [
        ("north.job", "token of north", True),
        ("relay.south.job", "token of south", True),
        ("north.job", "token of south", False),
        ("north.job", None, False),
        ("south.job", "token of south", False),
        ("north.other", "token of north", False),
        ("north", "token of north", False),
        ("server.job", "job", False),
        (None, "token of north", False),
    ],
)
def test_a_site_is_heard_with_the_token_that_nvflare_gave_it(
    origin: str | None, token: str | None, heard: bool
) -> None:
    from nvflare.apis.fl_constant import CellMessageAuthHeaderKey
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.message import Message

    from sordino_nvflare.parts import Post

    cell, found = Cell(), list[tuple[str, Parcel]]()
    post = Post(cell, {"north.job": "token of north", "relay.south.job": "token of south"})
    post.hear(lambda peer, parcel: found.append((peer, parcel)))
    headers = {MessageHeaderKey.ORIGIN: origin, CellMessageAuthHeaderKey.TOKEN: token}
    parcel = Parcel("piece", b"name", 1, b"body")
    assert cell.takes(Message(headers, msgspec.msgpack.encode(parcel))) is None
    assert found == ([(origin, parcel)] if heard else [])
    for payload in (b"\xc1", b"", msgspec.msgpack.encode(["piece", b"", "x"]), {"a": 1}, None):
        assert cell.takes(Message(headers, payload)) is None
    assert len(found) == heard
    assert post.tell("north.job", parcel)
    assert cell.sent == [("north.job", parcel)]
    for cell.answer in ({"north.job": "target_unreachable"}, RuntimeError("not running")):
        assert not post.tell("north.job", parcel)


class Context:
    """The context of a part: of a job in a folder, in which an abort may have been wanted."""

    def __init__(self, folder: Path) -> None:
        self.cell, self.triggered = Cell(), False
        self._folder = folder

    def get_workspace(self) -> Any:
        return SimpleNamespace(get_site_config_dir=lambda: str(self._folder))

    def get_engine(self) -> Any:
        return SimpleNamespace(get_clients=list, get_cell=lambda: self.cell)

    def get_job_id(self) -> str:
        return "job"


@NEEDED
def test_neither_part_uses_a_port_that_is_not_allowed(tmp_path: Path) -> None:
    from nvflare.apis.fl_constant import ReturnCode

    from sordino_nvflare import parts

    (tmp_path / local.NAME).write_text('{"8443": 8443}')
    context, said = Context(tmp_path), list[str]()
    for port in (22, "8443", None):
        server: Any = parts.ServerPart(port, 0.0)  # type: ignore[arg-type]
        server.system_panic = lambda text, _: said.append(text)
        server.control_flow(context, context)
        site: Any = parts.SitePart(port)  # type: ignore[arg-type]
        site.log_error = lambda _, text: said.append(text)
        reply = site.execute(parts.TASK, None, context, context)
        assert reply.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert len(said) == 6
    assert all("does not allow port" in each for each in said)
    assert site.execute("other", None, context, context).get_return_code() != ReturnCode.OK


@NEEDED
def test_a_job_that_nobody_uses_ends(tmp_path: Path) -> None:
    from sordino_nvflare import parts

    (tmp_path / local.NAME).write_text('{"8443": 8443}')
    part: Any = parts.ServerPart(8443, 0.1)
    said = list[str]()
    part.log_info = lambda _, text: said.append(text)
    part.broadcast = lambda *_, **named: None
    part.system_panic = lambda text, _: said.append(text)
    begun, context = time.monotonic(), Context(tmp_path)
    part.control_flow(context, context)
    assert 0.1 <= time.monotonic() - begun < 5.0
    assert said == ["no connection for 0.1 seconds: the job ends"]
    part.broadcast = lambda task, *_, **named: setattr(task, "completion_status", "all failed")
    part.control_flow(context, context)
    assert said[1:] == ["no site carries anything any more; their logs say why"]


class Jobs:
    """NVFlare's server, for an admin: how each job that is submitted goes.

    Attributes:
        aborted: numbers of jobs that were aborted.
    """

    def __init__(self, *ends: str) -> None:
        self.ends, self.jobs, self.asked = list(ends), 0, 0
        self.aborted: list[str] = []

    def sites(self) -> set[str]:
        """North is away for a moment after each job."""
        self.asked += 1
        return {"north", "south"} if self.asked % 2 else {"south"}

    def going(self, path: Path) -> str | None:
        return f"job-{self.jobs}" if self.jobs else None

    def submit(self, path: Path) -> str:
        self.jobs += 1
        return f"job-{self.jobs}"

    def status(self, name: str) -> str:
        return self.ends[self.jobs - 1]

    def abort(self, name: str) -> None:
        self.aborted.append(name)


class Sites(Jobs):
    """Jobs that run until they are aborted, but the last one.

    Attributes:
        looks: at each look at a running job, which sites are connected, and which run it.
    """

    def __init__(self, looks: list[tuple[str, str]]) -> None:
        super().__init__("RUNNING", "FINISHED:COMPLETED")
        self.looks, self.look = looks, 0

    def sites(self) -> set[str]:
        return set(self.looks[min(self.look, len(self.looks) - 1)][0])

    def running(self, name: str) -> set[str]:
        found = set(self.looks[min(self.look, len(self.looks) - 1)][1])
        self.look += 1
        return found


@pytest.mark.parametrize(
    ("ends", "tries", "done", "jobs"),
    [
        (["FINISHED:COMPLETED"], 3, True, 1),
        (["FINISHED:EXECUTION_EXCEPTION", "FINISHED:ABNORMAL", "FINISHED:COMPLETED"], 3, True, 3),
        (["FINISHED:EXECUTION_EXCEPTION"] * 2, 2, False, 2),
        (["FINISHED:ABORTED", "FINISHED:COMPLETED"], 3, False, 1),
        (["LOST", "FINISHED:COMPLETED"], 3, True, 2),
    ],
)
def test_a_job_that_fails_is_submitted_again(
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


def test_a_job_that_goes_on_is_watched_and_not_submitted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "LOOK", 0.01)
    own: Any = Jobs("FINISHED:EXECUTION_EXCEPTION", "FINISHED:COMPLETED")
    own.jobs = 1  # whoever submitted it was killed
    words: list[str] = []
    assert admin.keep(own, Path("job"), words.append, tries=3)
    first = ["job job-1 goes on", "job job-1: FINISHED:EXECUTION_EXCEPTION"]
    assert words == [*first, "submitted as job job-2", "job job-2: FINISHED:COMPLETED"]


@NEEDED
def test_a_job_of_this_name_goes_on_if_it_is_neither_over_nor_lost(tmp_path: Path) -> None:
    job.write(tmp_path / "job", 8443, 1)
    states = {"a": ("sordino-8443", "FINISHED:COMPLETED"), "b": ("sordino-9443", "RUNNING")}
    states |= {"c": ("sordino-8443", "RUNNING")}  # which the server does not run
    runs = ["b"]
    own = admin.Admin.__new__(admin.Admin)
    own._session = SimpleNamespace(
        list_jobs=lambda reverse: [
            {"job_id": each, "job_name": name, "status": status}
            for each, (name, status) in states.items()
        ],
        get_job_meta=lambda each: {"status": states[each][1]},
        get_system_info=lambda: SimpleNamespace(job_info=[SimpleNamespace(job_id=n) for n in runs]),
    )
    assert own.going(tmp_path / "job") is None
    states["d"] = ("sordino-8443", "RUNNING")
    runs.append("d")
    assert own.going(tmp_path / "job") == "d"


@pytest.mark.parametrize(
    ("looks", "again"),
    [
        ([("ab", "a"), ("ab", "ab"), ("ab", "a")], True),  # b has lost the job
        ([("a", "a"), ("ab", "a")], True),  # b came later
        ([("ab", "ab"), ("a", "a"), ("ab", "a")], True),  # b is back
        ([("ab", "ab"), ("a", "a")], False),  # b is away
        ([("ab", "a")], False),  # b does not allow it
        ([("ab", "ab"), ("ab", "a"), ("ab", "ab")], False),  # b was not seen for a moment
    ],
)
def test_a_site_that_is_back_gets_the_job_anew(
    looks: list[tuple[str, str]], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "LOOK", 0.01)
    monkeypatch.setattr(admin, "GONE", 0.05)
    own: Any = Sites(looks)
    done = admin.keep(
        own, Path("job"), lambda text: None, tries=2, alive=lambda: own.look < 50 or own.jobs > 1
    )
    assert (done, own.aborted) == (again, ["job-1"] if again else [])


class Demo:
    """The demo of a small study through NVFlare, as a process."""

    def __init__(self, folder: Path, changes: list[str], *, scripted: bool) -> None:
        self.study = study_of(folder, "asynchronous", changes, clients=2)
        self.out, path = folder / "laid", folder / "study.toml"
        path.write_text(studies.write(self.study))
        called = f"nvflare_demo(Path({str(path)!r}), Path({str(self.out)!r}), None, {scripted})"
        program = f"from pathlib import Path; from sordino_nvflare.command import *; {called}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def begun(self, rows: int) -> None:
        """Wait until the server's log has some rows."""
        log, end = self.out / "kits/server/run/rounds.jsonl", time.monotonic() + 240
        while not log.exists() or log.read_bytes().count(b'"round"') < rows:
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < end, "the study does not begin"
            time.sleep(0.05)

    def kill(self, program: str, name: str) -> None:
        """Kill the job process of NVFlare's server or of a site."""
        folder = str(next((self.out / "nvflare").glob(f"*/prod_00/{name}")))
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = each.read_bytes().decode(errors="replace").split("\0")
                if program in words and folder in words:
                    os.kill(int(each.parent.name), signal.SIGKILL)
                    return
        raise AssertionError(f"{program} of {name} is not there")

    def ended(self) -> str:
        """What it has said, when it has ended well."""
        said, _ = self.process.communicate(timeout=400)
        assert self.process.returncode == 0, said
        return said

    def models(self) -> set[bytes]:
        """Everybody's model."""
        return {
            (self.out / f"kits/{each}/run/model.safetensors").read_bytes()
            for each in ("server", "site-0", "site-1")
        }

    def stop(self) -> None:
        """Have it end everything that it has started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.communicate(timeout=60)


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts a demo, and ends it."""
    made: list[Demo] = []

    def start(changes: list[str], *, scripted: bool) -> Demo:
        made.append(Demo(tmp_path, changes, scripted=scripted))
        return made[-1]

    yield start
    for each in made:
        each.stop()


@NEEDED
@pytest.mark.nightly
def test_a_scripted_run_through_nvflare_gives_the_model_of_the_simulation(
    demos: Callable[..., Demo], tmp_path: Path
) -> None:
    demo = demos(["budget.updates=40"], scripted=True)
    demo.ended()
    session.begin(demo.study, tmp_path / "simulated", lambda row: None, lambda going: None)
    assert demo.models() == {(tmp_path / "simulated/model.safetensors").read_bytes()}
    for site in ("site-0", "site-1"):
        assert (demo.out / f"kits/{site}/run/proof.json").exists()
        [carried] = (demo.out / "nvflare").glob(f"*/prod_00/{site}/*/log.txt")
        assert "listening on port" in carried.read_text()


@NEEDED
@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")
@pytest.mark.parametrize(
    ("program", "name"), [(f"{FED}.client.worker_process", "site-1"), (SJ, "localhost")]
)
def test_a_study_goes_on_when_a_process_of_the_job_was_killed(
    program: str, name: str, demos: Callable[..., Demo]
) -> None:
    changes = ["budget.updates=4000", "privacy.epsilon=1e6", "execution.evaluate_every=100"]
    demo = demos(changes, scripted=False)
    demo.begun(3)
    demo.kill(program, name)
    said = demo.ended()
    assert said.count("submitted as job") == 2
    assert len(demo.models()) == 1
    rows = (demo.out / "kits/server/run/rounds.jsonl").read_text().splitlines()
    numbers = [json.loads(row)["round"] for row in rows if '"kind": "round"' in row]
    assert numbers == sorted(set(numbers))  # no update was counted twice
    assert numbers[-1] == 4000
