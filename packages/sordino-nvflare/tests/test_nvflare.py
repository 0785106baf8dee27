"""A federation on NVFlare: real processes that NVFlare has provisioned, certified and started."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from federations import study_of
from sordino.base.errors import StudyError
from sordino.core import study as studies
from sordino.core.run import session
from sordino.network import transport
from sordino_nvflare import local
from sordino_nvflare.channel import SERVER, Parcel
from sordino_nvflare.job import ENDED

INSTALLED = importlib.util.find_spec("nvflare") is not None
NEEDED = pytest.mark.skipif(
    not INSTALLED, reason="NVFlare is not installed: pip install 'sordino[nvflare]'"
)
FED = "nvflare.private.fed.app"
SJ = f"{FED}.server.runner_process"


def test_without_nvflare_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sordino_nvflare.transport", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StudyError, match=r"library nvflare.*pip install 'sordino\[nvflare\]'"):
        transport.of("nvflare")


class Cell:
    """A cell that keeps what is registered and sent."""

    def __init__(self) -> None:
        self.core_cell = self
        self.takes: dict[str, Any] = {}
        self.sent: list[tuple[str, str, Any]] = []

    def register_request_cb(self, channel: str, topic: str, took: Any) -> None:
        self.takes[topic] = took

    def fire_and_forget(
        self, channel: str, topic: str, target: str, message: Any, optional: bool
    ) -> None:
        self.sent.append((topic, target, message))


@NEEDED
@pytest.mark.parametrize(
    ("origin", "name", "token", "known"),
    [
        ("north.job", "north", "token of north", "north"),
        ("relay.south.job", "south", "token of south", "south"),
        ("north.job", "south", "token of south", None),
        ("north.job", None, None, None),
        ("south.job", "south", "token of south", None),
        ("north.other", "north", "token of north", None),
        ("north", "north", "token of north", None),
        ("server.job", "server_job", "job", "server"),
        ("server.job", "north", "token of north", None),
        # NVFlare signs "north-2" and "token" as it signs "north" and "-2token"
        ("north.job", "north", "-2token", None),
        ("north.job", "north", "token of south", None),
        ("north.job", "north", None, None),
        ("server.job", "server_job", "-2token", None),
    ],
)
def test_who_speaks_is_who_nvflare_has_certified(
    origin: str, name: str | None, token: str | None, known: str | None
) -> None:
    import msgspec
    from nvflare.apis.fl_constant import CellMessageAuthHeaderKey
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
    from nvflare.fuel.f3.message import Message
    from nvflare.private.defs import AUTH_CLIENT_NAME_FOR_SJ

    from sordino_nvflare.parts import CellPost

    cell, heard = Cell(), []
    peers = {
        "north": ("north", "token of north"),
        "south": ("relay.south", "token of south"),
        SERVER: ("server", "job"),
    }
    post = CellPost(cell, "job", peers)

    def got(who: str, parcel: Parcel) -> None:
        heard.append(who)

    post.on("up", got)
    certified = AUTH_CLIENT_NAME_FOR_SJ if name == "server_job" else name
    headers = {MessageHeaderKey.ORIGIN: origin}
    if certified is not None:
        headers[CellMessageAuthHeaderKey.CLIENT_NAME] = certified
    if token is not None:
        headers[CellMessageAuthHeaderKey.TOKEN] = token
    reply = cell.takes["up"](Message(headers, msgspec.msgpack.encode(Parcel(b"key"))))
    assert heard == ([] if known is None else [known])
    if known is None:
        assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.AUTHENTICATION_ERROR
    else:
        for payload in (b"\xc1", msgspec.msgpack.encode({}), {"key": "value"}, None):
            wrong = cell.takes["up"](Message(headers, payload))
            assert wrong.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.INVALID_REQUEST
    post.tell("south", "down", Parcel(b"key"))
    assert cell.sent[-1][:2] == ("down", "relay.south.job")


@NEEDED
@pytest.mark.parametrize("why", ["the run was stopped: nobody is left", "all rounds are done"])
def test_a_job_whose_study_was_stopped_fails_as_failed(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVFlare calls a job completed whose controller returns and does not panic."""
    from sordino_nvflare import parts

    nothing: Any = SimpleNamespace(kit=Path(), wait=1.0, agreement=SimpleNamespace(minimum=1))
    monkeypatch.setattr(parts, "local", SimpleNamespace(read=lambda *_: nothing, ServerTable=None))
    monkeypatch.setattr(parts, "_local", lambda context: Path())
    monkeypatch.setattr(parts, "_agreed", lambda *_: nothing)
    monkeypatch.setattr(parts, "resumable", nullcontext)
    monkeypatch.setattr(parts, "report", SimpleNamespace(write=lambda folder: None))
    serving: Any = parts.Serve("federation", "digest")
    panics: list[str] = []
    serving.broadcast = lambda task, *_, **named: setattr(task, "completion_status", "done")
    serving.system_panic = lambda text, context: panics.append(text)
    serving._serve = lambda *_: SimpleNamespace(run=".", why=why)
    engine = SimpleNamespace(get_clients=list)
    context = SimpleNamespace(get_engine=lambda: engine)
    serving.control_flow(SimpleNamespace(triggered=False), context)
    assert [text.startswith(why) for text in panics] == [True] * ("stopped" in why)


class Insecure:
    """The context of a process of an NVFlare whose connections nobody certifies."""

    def get_prop(self, key: str, default: object = None) -> object:
        return default


@NEEDED
def test_neither_part_takes_part_where_nobody_is_certified(tmp_path: Path) -> None:
    """A site does not leave that to the server, whom it could not know there."""
    from sordino_nvflare import parts

    own, words = local.SiteTable(kit=tmp_path, data=tmp_path), parts.Words(tmp_path / "words")
    with pytest.raises(StudyError, match="does not run in secure mode"):
        parts.Join("federation", "digest")._join(own, words, Insecure())
    server, nobody = local.ServerTable(kit=tmp_path), SimpleNamespace()
    with pytest.raises(StudyError, match="does not run in secure mode"):
        parts.Serve("federation", "digest")._serve(server, nobody, Insecure())  # type: ignore[arg-type]


@NEEDED
def test_who_refuses_cannot_say_that_the_study_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nobody would submit the job again."""
    from sordino_nvflare import parts

    def serve(kit: Path, shown: Any, **given: Any) -> None:
        shown.log.warning(f"refused north: {ENDED}")

    logged: list[str] = []
    monkeypatch.setattr(parts, "serve", serve)
    serving: Any = parts.Serve("federation", "digest")
    serving.log_info = lambda context, words: logged.append(words)
    engine = SimpleNamespace(get_clients=list, get_cell=Cell)
    context = SimpleNamespace(
        get_prop=lambda *_: True, get_engine=lambda: engine, get_job_id=lambda: "job"
    )
    agreed: Any = SimpleNamespace(agreement=SimpleNamespace(name="f", names=("north",)))
    serving._serve(local.ServerTable(kit=tmp_path), agreed, context)
    assert [ENDED in each for each in logged] == [False]


class Demo:
    """The demo of a small study over NVFlare, as a process."""

    def __init__(self, folder: Path, changes: list[str], *, scripted: bool) -> None:
        self.study = study_of(folder, "asynchronous", changes, clients=2)
        self.out, path = folder / "laid", folder / "study.toml"
        path.write_text(studies.write(self.study))
        more = ["--scripted"] if scripted else []
        command = [sys.executable, "-m", "sordino", "network", "demo", str(path), *more]
        self.process = subprocess.Popen(
            [*command, "--out", str(self.out), "--transport", "nvflare"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def begun(self, rows: int) -> None:
        """Wait until the server's log has some rows."""
        log, end = self.out / "kits/server/run/rounds.jsonl", time.monotonic() + 240
        while not log.exists() or log.read_bytes().count(b'"round"') < rows:
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < end, "the job does not begin"
            time.sleep(0.05)

    def kill(self, program: str, name: str) -> None:
        """Kill the job process of the server or of a site."""
        folder = str(next((self.out / "nvflare").glob(f"*/prod_00/{name}")))
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = each.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if program in words and folder in words:
                os.kill(int(each.parent.name), signal.SIGKILL)
                return
        raise AssertionError(f"{program} of {name} is not there")

    def ended(self) -> str:
        """What it has said, when it has ended well."""
        said, _ = self.process.communicate(timeout=300)
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
def test_a_scripted_job_gives_the_model_of_the_simulation(
    demos: Callable[..., Demo], tmp_path: Path
) -> None:
    demo = demos(["budget.updates=40"], scripted=True)
    assert "FINISHED:COMPLETED" in demo.ended()
    session.begin(demo.study, tmp_path / "simulated", lambda row: None, lambda going: None)
    assert demo.models() == {(tmp_path / "simulated/model.safetensors").read_bytes()}
    for site in ("site-0", "site-1"):
        assert (demo.out / f"kits/{site}/run/proof.json").exists()
        assert "connected" in (demo.out / f"kits/{site}/nvflare.txt").read_text()


@NEEDED
@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")
@pytest.mark.parametrize(
    ("program", "name"), [(f"{FED}.client.worker_process", "site-1"), (SJ, "localhost")]
)
def test_a_job_whose_process_is_killed_goes_on_when_it_is_submitted_again(
    program: str, name: str, demos: Callable[..., Demo]
) -> None:
    changes = ["budget.updates=4000", "privacy.epsilon=1e6", "execution.evaluate_every=100"]
    demo = demos(changes, scripted=False)
    demo.begun(3)
    demo.kill(program, name)
    said = demo.ended()
    assert said.count("submitted as job") == 2
    assert "FINISHED:COMPLETED" in said
    assert len(demo.models()) == 1
    rows = (demo.out / "kits/server/run/rounds.jsonl").read_text().splitlines()
    numbers = [json.loads(row)["round"] for row in rows if '"kind": "round"' in row]
    assert numbers == sorted(set(numbers))  # no update was counted twice
    assert numbers[-1] == 4000
