"""Sites whose folders are put back from older copies, as processes of their own: no answer that has
left them is missing in their ledgers without a word.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import warm
from federations import Federation, study_of
from sordino.base.errors import HeldBack
from sordino.core.run.verify import verify
from sordino.network import demo, frames
from sordino.network.server_session import ServerSession
from sordino.network.site_session import SiteSession
from sordino.network.storage import OUTBOX, AnswerStore, SiteProgress
from sordino.privacy import Ledger

from .conftest import Makes


class Processes:
    """A server and its only site, whose processes are killed and started again."""

    def __init__(self, folder: Path, name: str, changes: list[str]) -> None:
        study = study_of(folder, name, ["privacy.epsilon=200", *changes], clients=1)
        self.laid = demo.lay_out(study, folder / "out", scripted=False)
        self.server, self.site = demo.commands(self.laid, scripted=False)
        self.run, self.log = self.laid.sites[0][0] / "run", folder / "log"
        self.running: dict[str, Any] = {}
        self.start("server", self.server)
        self.start("site", self.site)

    def start(self, name: str, command: list[str]) -> None:
        with self.log.open("ab") as log:
            self.running[name] = warm.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait()

    def number(self) -> int:
        """The last task that the site has answered: the next one may be noted, and never paid."""
        with suppress(FileNotFoundError, ValueError):
            copy = self.run.parent / "looked at"
            copy.mkdir(exist_ok=True)
            for each in OUTBOX:
                shutil.copy(self.run / each, copy)
            with closing(AnswerStore(copy)) as store:
                return store.progress.number - (store.progress.answer is None)
        return 0

    def until(self, what: Callable[[], bool], seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def put_back(self, later: int) -> int:
        """Restore the site's folder from a copy that is so many tasks old; its last task."""
        self.kill("site")
        shutil.copytree(self.run, self.run.parent / "copy")
        before = self.number()
        self.start("site", self.site)
        self.until(lambda: self.number() >= before + later)
        self.kill("site")
        shutil.rmtree(self.run)
        (self.run.parent / "copy").rename(self.run)
        return before

    def incidents(self, kit: Path) -> list[str]:
        path = kit / "run" / "incidents.jsonl"
        return [json.loads(line)["what"] for line in path.read_text().splitlines()]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *raised: object) -> None:
        demo.end(self.running.values())


def booked(run: Path) -> int:
    with Ledger.open(run / "ledger.sqlite", readonly=True) as found:
        return sum(each.count for each in found.entries())


@pytest.mark.parametrize("restarts", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_an_edge_that_was_put_back_books_what_it_has_answered(
    restarts: bool, tmp_path: Path
) -> None:
    """Also where the server was started again meanwhile, and its journal has begun anew."""
    changes = ["budget.updates=90", "execution.checkpoint_every=5"]
    with Processes(tmp_path, "asynchronous", changes) as found:
        found.until(lambda: found.number() > 5)
        found.put_back(10)
        if restarts:
            found.kill("server")
            found.start("server", found.server)
        found.start("site", found.site)
        found.until(lambda: all(each.poll() is not None for each in found.running.values()))
        said = found.log.read_text()
        assert [each.returncode for each in found.running.values()] == [0, 0], said
        assert booked(found.run) >= found.number() > 15  # one answer to each task
        assert "older copy" in found.incidents(found.laid.server)
        assert "older copy" in found.incidents(found.run.parent)


def test_a_site_of_rounds_that_was_put_back_books_all_rounds_since(tmp_path: Path) -> None:
    """The study says what each costs; it is paid as if the site had been drawn in all of them."""
    changes = ["budget.rounds=80", "execution.checkpoint_every=20"]
    with Processes(tmp_path, "synchronous", changes) as found:
        found.until(lambda: found.number() > 5)
        found.put_back(10)
        found.start("site", found.site)
        found.until(lambda: all(each.poll() is not None for each in found.running.values()))
        said = found.log.read_text()
        assert [each.returncode for each in found.running.values()] == [0, 0], said
        log = (found.laid.server / "run" / "rounds.jsonl").read_text().splitlines()
        answered = {each["round"] for each in map(json.loads, log) if each.get("answered")}
        with Ledger.open(found.run / "ledger.sqlite", readonly=True) as ledger:
            paid = {each.round for each in ledger.entries() if each.count == 2}  # steps
        assert len(answered) > 70
        assert answered <= paid
        assert not verify(found.run).problems
        assert "older copy" in found.incidents(found.laid.server)
        assert "older copy" in found.incidents(found.run.parent)


def test_a_site_that_was_put_back_stops_where_releases_decided_what_it_did(tmp_path: Path) -> None:
    method = "method={name='ali-dpfl', learning_rate=0.1, gamma=5.0}"
    changes = ["budget.rounds=300", "execution.checkpoint_every=20", method]
    with Processes(tmp_path, "synchronous", changes) as found:
        found.until(lambda: found.number() > 5)
        found.put_back(10)
        found.start("site", found.site)
        found.until(lambda: found.running["site"].poll() is not None)
        assert found.running["site"].returncode != 0
        assert "put back from an older copy" in found.log.read_text()
        assert "older copy" in found.incidents(found.laid.server)


def test_an_answer_store_that_was_lost_alone_stops_nobody(tmp_path: Path) -> None:
    """As after a power failure: the ledger always waits for the disk."""
    changes = ["budget.rounds=12", "execution.checkpoint_every=20"]
    with Processes(tmp_path, "synchronous", changes) as found:
        found.until(lambda: found.number() > 3)
        found.kill("site")
        with closing(AnswerStore(found.run)) as store:
            run = store.progress.run
        for each in OUTBOX:
            (found.run / each).unlink()
        with closing(AnswerStore(found.run)) as store:
            store.save(SiteProgress(run=run, number=1))
        found.start("site", found.site)
        found.until(lambda: all(each.poll() is not None for each in found.running.values()))
        said = found.log.read_text()
        assert [each.returncode for each in found.running.values()] == [0, 0], said
        assert "older copy" in found.incidents(found.laid.server)


def test_a_welcome_with_nothing_to_say_is_what_it_was() -> None:
    before = frames.encode(frames.Welcome("run"))
    assert before == b"\x82\xa4kind\xa7welcome\xa3run\xa3run"
    assert frames.to_site(before) == frames.Welcome("run")
    later = frames.Welcome("run", 7)
    assert frames.to_site(frames.encode(later)) == later


def failed(found: Federation, answered: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What ends sites that are greeted with a number of answers."""
    send = ServerSession._send

    def lied(self: ServerSession, site: int, frame: bytes) -> None:
        with suppress(Exception):
            if isinstance(told := frames.to_site(frame), frames.Welcome):
                frame = frames.encode(frames.Welcome(told.run, answered))
        send(self, site, frame)

    monkeypatch.setattr(ServerSession, "_send", lied)
    found.start()
    end = time.monotonic() + 20.0
    while not found.failed and time.monotonic() < end:
        time.sleep(0.02)
    return str(list(found.failed.values()))


@pytest.mark.parametrize("name", ["asynchronous", "synchronous"])
def test_a_server_that_lies_about_answers_has_nothing_booked(
    name: str, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site would book what was never asked, in one frame and past the end of the study."""
    found = federate(name)
    assert "the server is wrong, and nothing was booked" in failed(found, 10_000, monkeypatch)
    for name in found.names:
        with Ledger.open(found.folder(name) / "ledger.sqlite", readonly=True) as ledger:
            assert list(ledger.entries()) == []


def test_a_site_that_cannot_book_yet_what_it_has_forgotten_is_told_when(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget of another run is in the way: no folder is to be put back."""

    def charged(*_: object) -> None:
        raise HeldBack("over. Run abc has not ended: finish it")

    monkeypatch.setattr(SiteSession, "_charged", charged)
    said = failed(federate("synchronous"), 1, monkeypatch)
    assert "Run abc has not ended: finish it. After that, join again" in said
    assert "take no further part" not in said


@pytest.mark.parametrize(
    "name", ["synchronous", "asynchronous", "client", "client-in-turn", "shared"]
)
def test_a_site_that_is_put_back_after_the_end_learns_what_it_has_forgotten(
    name: str, federate: Makes
) -> None:
    """The server ended long ago, and was started again to tell the end."""
    # who is drawn follows from the version of the program: here everybody is
    more = {"asynchronous": ["budget.updates=40"], "client": ["privacy.sampling_rate=1.0"]}
    found = federate(name, more.get(name, []))
    site, copy = found.folder("site-1"), found.folder("site-1").with_name("copy")
    found.start()
    found.until(lambda: len(found.answers()["site-1"]) >= 2)
    found.stop("site-1")
    while not copy.exists():
        try:
            shutil.copytree(site, copy)
        except shutil.Error:  # a ledger that is just closed takes its log away
            shutil.rmtree(copy)
    found.start("site-1")
    found.wait()
    spent = found.done.pop("site-1").spent
    shutil.rmtree(site)
    copy.rename(site)
    found.net._mailbox = None
    found.start("server")
    found.until(lambda: found.net.listens)
    found.start("site-1")
    found.wait()
    with Ledger.open(site / "ledger.sqlite", readonly=True) as ledger:
        booked = max(each.round + each.count - 1 for each in ledger.entries())
    late = name == "asynchronous"  # its last answer may have come when the run had ended
    assert booked >= max(found.answers()["site-1"]) - late
    assert late or found.done["site-1"].spent >= 0.8 * spent  # an edge books ahead
