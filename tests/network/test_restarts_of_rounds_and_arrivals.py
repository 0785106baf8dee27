"""A site's second life: noise that is drawn anew is paid for anew, and no kit is taken on trust."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from federations import laid
from memory import Killed
from sordino.base.errors import BudgetExceeded, LedgerError, RemoteProtocolError, StudyError
from sordino.base.logs import log_to
from sordino.base.message import Compute, Train, encode
from sordino.network import frames, storage, transport
from sordino.network.demo import DemoFederation
from sordino.network.kit import RUN, Agreed
from sordino.network.site import JoinOptions, join, opened, prepare_site, promised
from sordino.network.site_session import MOST_LOST, MOST_UNPAID, OWN, SiteMoment, SiteSession
from sordino.network.status import Listeners
from sordino.network.storage import OUTBOX as NAMES
from sordino.network.storage import AnswerStore
from sordino.privacy import Ledger

Tasks = dict[str, Callable[[int, int], Train | Compute]]
TASKS: Tasks = {
    "synchronous": lambda d, n: Train(round=n, steps=2, weights=np.zeros(d, np.float32)),
    "asynchronous": lambda d, n: Compute(
        task=n, version=0, weights=np.zeros(d, np.float32), clip=1.0
    ),
}


class Nobody:
    """Nobody watches."""

    saved = 0

    def row(self, row: Any) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


def no_line(limit: int) -> Any:
    raise AssertionError("a desk knows no connection")


def dies(*given: Any) -> Any:
    raise Killed


def life(
    found: DemoFederation,
    folder: Path,
    name: str,
    numbers: Sequence[int] = (1,),
    *,
    ledger: Path | None = None,
    before_last: Callable[[], object] = lambda: None,
    killed: bool = False,
) -> list[bytes]:
    """What a new life of the first site says to its first task, or to several; where it is killed,
    it has booked the last one, and not computed.
    """
    kit, data = found.sites[0]
    _, index, study, own = opened(JoinOptions(kit=kit, data=data, ledger=ledger))
    build = prepare_site(
        agreed=Agreed(kit), index=index, own=own, connects=no_line, log=log_to(lambda text: None)
    )
    built = build(study, folder, "run", None)
    site: Any = built.simulation
    outbox = AnswerStore(folder)
    first: Any = built.first
    desk = SiteSession(site, first, Nobody(), outbox)
    try:
        early = frames.Ask(1, encode(TASKS[name](first.model.size, 1)))
        assert list(desk.said(frames.encode(early))) == []  # of a connection before: no refusal
        assert list(desk.said(frames.encode(frames.Welcome("run")))) == []
        bodies = []
        for number in numbers:
            task = TASKS[name](first.model.size, number)
            frame = frames.encode(frames.Ask(number, encode(task)))
            if number == numbers[-1]:
                before_last()
            if number == numbers[-1] and killed:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(desk, "_answered", dies)
                    with pytest.raises(Killed):
                        list(desk.said(frame))
                break
            (said,) = desk.said(frame)
            if isinstance(said, frames.Say):
                bodies.append(said.body)
            else:
                assert isinstance(said, frames.Refuse)
        return bodies
    finally:
        desk.close()
        outbox.close()
        site.ledgers.close()


def charges(folder: Path) -> list[tuple[int, int]]:
    with Ledger.open(folder / "ledger.sqlite", readonly=True) as ledger:
        return [(each.round, each.count) for each in ledger.entries()]


@pytest.mark.parametrize("name", TASKS)
def test_an_answer_that_a_site_has_forgotten_is_booked_again(name: str, tmp_path: Path) -> None:
    """Its outbox is put back from an older copy; the ledger, which may lie elsewhere, is not."""
    found, folder = laid(tmp_path, name, scripted=False), tmp_path / "run"
    folder.mkdir()
    first = life(found, folder, name)
    once = charges(folder)
    assert life(found, folder, name) == first  # it remembers, and says the same bytes again
    assert charges(folder) == once
    for slot in NAMES:
        (folder / slot).unlink()
    assert life(found, folder, name) != first
    assert charges(folder) == once * 2


@pytest.mark.parametrize("name", TASKS)
def test_a_ledger_that_cannot_be_written_for_the_moment_ends_the_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal would have the server count the site out; its next life is asked again."""
    found, folder = laid(tmp_path, name, scripted=False), tmp_path / "run"
    folder.mkdir()
    life(found, folder, name)
    monkeypatch.setattr("sordino.privacy.storage.PATIENCE", 0.01)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as other:
        locked = partial(other.execute, "BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="Another process is charging this ledger"):
            life(found, folder, name, [2], before_last=locked)
        assert [number for number, _ in charges(folder)] == [1]
    assert life(found, folder, name, [2])
    assert [number for number, _ in charges(folder)] == [1, 2]


LIVES = (1, 3, 1, 7, 2, 1)


@pytest.mark.parametrize("how", ["rehearsal", "the same start", "another start", "no memory"])
def test_what_a_restart_costs(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing; after a start of the machine, what was booked and not said. So a site books little
    at first.
    """
    (tmp_path / "boot").write_text("0")
    monkeypatch.setattr(storage, "_BOOT", tmp_path / "boot")
    if how == "no memory":
        monkeypatch.setattr(storage, "MEMORY", tmp_path / "boot")
    found = laid(tmp_path, "asynchronous", scripted=how == "rehearsal")
    folder, said = tmp_path / "run", 0
    folder.mkdir()
    for tasks in LIVES:
        life(found, folder, "asynchronous", range(said + 1, said + tasks + 1))
        said += tasks
        if how == "another start":
            (tmp_path / "boot").write_text(str(said))
    booked = charges(folder)
    covered = {first + i for first, count in booked for i in range(count)}
    assert covered >= set(range(1, said + 1))
    total = sum(count for _, count in booked)
    if how in ("rehearsal", "the same start"):  # nothing is booked twice
        assert total == len(covered)
    else:
        triangular = [k * (k + 1) // 2 for k in range(9)]
        assert total == sum(min(t for t in triangular if t >= tasks) for tasks in LIVES)


def test_a_note_of_a_ledger_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    """A file system gives its place to the next file; and a note may be damaged."""
    (tmp_path / "ledger").touch()
    found = []
    for key, number in (("of the one that is gone", 50), ("own", 1), ("own", 2), ("own", 1)):
        with closing(storage.TaskBlockNote(tmp_path / "ledger", "run")) as note:
            found.append((note.key, note.before))
            note.save(key, number)
    assert found == [("", 0), ("of the one that is gone", 50), ("own", 1), ("own", 2)]
    place = note._folder / note._name
    assert place.read_text().split("\n")[1:3] == ["2", "own"]
    place.write_bytes(place.read_bytes().replace(b"2\nown", b"x\nown"))
    with closing(storage.TaskBlockNote(tmp_path / "ledger", "run")) as note:
        assert (note.key, note.before) == ("", 0)
    place.unlink()


def test_after_a_kill_the_task_in_flight_is_booked_again_and_no_other(tmp_path: Path) -> None:
    found, folder, said = laid(tmp_path, "asynchronous", scripted=False), tmp_path / "run", 0
    folder.mkdir()
    for tasks in LIVES:  # each begins with the task at which the one before was killed
        life(found, folder, "asynchronous", range(said + 1, said + tasks + 2), killed=True)
        said += tasks
    booked = charges(folder)
    often = Counter(first + i for first, count in booked for i in range(count))
    flights = {1 + sum(LIVES[: k + 1]) for k in range(len(LIVES) - 1)}
    assert {number for number, times in often.items() if times > 1} == flights
    assert often.total() == max(often) + len(flights)


@pytest.mark.parametrize("copied", ["the outbox", "a process"])
def test_nothing_is_said_twice_under_one_charge_by_a_copy(copied: str, tmp_path: Path) -> None:
    """The ledger, of the data, is one, and each task is answered twice."""
    found, folder = laid(tmp_path, "asynchronous", scripted=False), tmp_path / "run"
    folder.mkdir()
    ledger, numbers, again = tmp_path / "ledger", range(1, 11), list[bytes]()

    def copy() -> None:
        other = folder
        if copied == "a process":  # while the first one runs
            (other := tmp_path / "copy").mkdir()
        again.extend(life(found, other, "asynchronous", numbers, ledger=ledger))

    now = copy if copied == "a process" else lambda: None
    first = life(found, folder, "asynchronous", numbers, ledger=ledger, before_last=now)
    if copied == "the outbox":
        for name in NAMES:
            (folder / name).unlink()
        copy()
    with Ledger.open(ledger / "ledger.sqlite", readonly=True) as book:
        booked = [(each.round, each.count) for each in book.entries()]
    often = Counter(number + i for number, count in booked for i in range(count))
    assert not set(first) & set(again)
    assert all(often[number] == 2 for number in numbers)


@pytest.mark.parametrize("name", TASKS)
def test_in_a_rehearsal_the_same_bytes_are_booked_once(name: str, tmp_path: Path) -> None:
    found, folder = laid(tmp_path, name, scripted=True), tmp_path / "run"
    folder.mkdir()
    first = life(found, folder, name)
    once = charges(folder)
    for slot in NAMES:
        (folder / slot).unlink()
    assert life(found, folder, name) == first
    assert charges(folder) == once


SHOWN = Listeners(row=lambda row: None, begin=lambda going: None, log=log_to(lambda text: None))


def test_a_kit_whose_noise_everybody_knows_is_no_federation(tmp_path: Path) -> None:
    kit, data = laid(tmp_path, "synchronous", scripted=True).sites[0]
    with pytest.raises(StudyError, match=r"comes from its seed.*--rehearsal"):
        join(JoinOptions(kit=kit, data=data), SHOWN)
    assert not (kit / RUN).exists()


def test_a_limit_without_a_bound_is_refused(tmp_path: Path) -> None:
    found = laid(tmp_path, "synchronous", ["privacy.mechanism={kind='haar', form='paper'}"])
    kit, data = found.sites[0]
    told = " ".join(promised(JoinOptions(kit=kit, data=data)))
    assert "no limit is enforced" in told
    assert "refuses anything beyond it" not in told
    assert "WARNING: this is a rehearsal" in told
    with pytest.raises(StudyError, match=r"--epsilon-limit.*no proven bound"):
        opened(JoinOptions(kit=kit, data=data, limit=1.0))


@pytest.mark.parametrize("name", TASKS)
def test_a_site_that_always_ends_in_the_midst_of_a_task_stops_paying(
    tmp_path: Path, name: str
) -> None:
    """Its service started it again on a full disk until the whole budget was gone."""
    found, folder = laid(tmp_path, name, scripted=False), tmp_path / "run"
    folder.mkdir()
    for number in range(1, MOST_LOST + 1):  # the server goes on
        life(found, folder, name, (number,), killed=True)
    paid = charges(folder)
    with pytest.raises(StudyError, match="3 times in a row, this site ended in the midst"):
        life(found, folder, name, (MOST_LOST,))
    assert charges(folder) == paid
    assert life(found, folder, name, (MOST_LOST,))  # somebody has looked, and started it
    for first, second, third in ((4, 5, 6), (7, 8, 8)):  # an answer begins the count anew
        life(found, folder, name, (first,), killed=True)
        life(found, folder, name, (second,), killed=True)
        assert life(found, folder, name, (third,))


@pytest.mark.usefixtures("swift")
def test_tasks_without_an_answer_in_one_life_are_no_lost_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> Any:
        raise RemoteProtocolError("it cannot be used")

    found, folder = laid(tmp_path, "synchronous", scripted=False), tmp_path / "run"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(SiteSession, "_answered", fails)
        assert life(found, folder, "synchronous", range(1, MOST_LOST + 3)) == []
    assert len(life(found, folder, "synchronous", (7, 8))) == 2


@pytest.mark.parametrize("name", ["synchronous", "asynchronous"])
def test_a_site_reads_its_own_noise(tmp_path: Path, name: str) -> None:
    """Edges read the noise of the one that spends most."""
    noises = [1.0, 1.25, 1.5]
    own = ["privacy.epsilons=[50.0, 40.0, 30.0]", f"privacy.noise_multipliers={noises}"]
    for (kit, data), noise in zip(laid(tmp_path, name, own).sites, noises, strict=True):
        told = " ".join(promised(JoinOptions(kit=kit, data=data)))
        assert f"with a noise multiplier of {noise};" in told


class Stopped(Exception):
    """A site is stopped when it would connect: its run has begun then."""


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(limit: int) -> Any:
        raise Stopped

    monkeypatch.setattr(transport.WebSocket, "site", lambda *given: stops)


@pytest.mark.usefixtures("unconnected")
def test_who_goes_on_does_so_with_the_limit_that_it_began_with(tmp_path: Path) -> None:
    kit, data = laid(tmp_path, "synchronous", scripted=False).sites[0]
    with pytest.raises(Stopped):
        join(JoinOptions(kit=kit, data=data, limit=2.0), SHOWN)
    with pytest.raises(StudyError, match=r"joined with another limit \(privacy.epsilon = 2.0\)"):
        join(JoinOptions(kit=kit, data=data, limit=1.0), SHOWN)
    other = JoinOptions(kit=kit, data=data, limit=2.0, ledger=tmp_path / "kept")
    with pytest.raises(StudyError, match="joined with another ledger"):
        join(other, SHOWN)
    with pytest.raises(Stopped):
        join(JoinOptions(kit=kit, data=data, limit=2.0), SHOWN)


@pytest.mark.usefixtures("unconnected")
def test_the_page_of_joining_says_that_a_run_that_chooses_holds_the_rows(tmp_path: Path) -> None:
    """It said that what is left pays for all steps, and the site did not begin."""
    adapts = ['method={name="ali-dpfl", learning_rate=0.1, gamma=5.0}']
    first, second = (
        laid(tmp_path / name, "synchronous", changes, scripted=False).sites[0]
        for name, changes in (("one", adapts), ("two", []))
    )
    kept = tmp_path / "kept"
    page = JoinOptions(kit=second[0], data=second[1], ledger=kept)
    assert "pays for all 16 local steps" in " ".join(promised(page))
    with pytest.raises(Stopped):
        join(JoinOptions(kit=first[0], data=first[1], ledger=kept), SHOWN)
    told = " ".join(promised(page))
    assert "This site could not begin now" in told
    assert "sordino join" in told
    assert "pays for" not in told


@pytest.mark.usefixtures("swift")
def test_a_file_of_the_kit_that_is_being_copied_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, data = laid(tmp_path, "synchronous", scripted=False).sites[0]
    files, said, site = (
        ["revoked.pem", "site.pem", "site.key"],
        list[str](),
        transport.WebSocket.site,
    )

    def copied(*given: Any) -> Any:
        connects = site(*given)

        def again(limit: int) -> Any:
            if not files:
                raise Stopped
            path = kit / files.pop(0)
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) // 2])
            try:
                return connects(limit)
            finally:
                path.write_bytes(whole)

        return again

    monkeypatch.setattr(transport.WebSocket, "site", copied)
    shown = Listeners(row=lambda row: None, begin=lambda going: None, log=log_to(said.append))
    with pytest.raises(Stopped):
        join(JoinOptions(kit=kit, data=data), shown)
    assert sum("no connection to the server" in each and str(kit) in each for each in said) == 3


def test_a_limit_that_pays_for_nothing_says_what_a_site_can_do(tmp_path: Path) -> None:
    kit, data = laid(tmp_path, "synchronous", scripted=False).sites[0]
    with pytest.raises(BudgetExceeded, match="allow more with --epsilon-limit") as refusal:
        join(JoinOptions(kit=kit, data=data, limit=1e-6), SHOWN)
    assert "noise_multiplier or lower" not in str(refusal.value)


ALI = ["method={name='ali-dpfl', learning_rate=0.1, gamma=5.0}"]
MORE: dict[str, tuple[str, list[str], Callable[[int, int, int], Any]]] = {
    "steps": (  # where the method chooses how many a task has, each site's budget bounds them
        "synchronous",
        ALI,
        lambda d, n, more: Train(round=n, steps=more, weights=np.zeros(d, np.float32)),
    ),
    "a later task": (
        "asynchronous",
        ["budget.updates=100"],
        lambda d, n, more: Compute(task=more, version=0, weights=np.zeros(d, np.float32), clip=1.0),
    ),
}


@pytest.mark.parametrize("asks", MORE)
def test_how_much_a_site_has_left_is_not_found_by_asking_for_too_much(
    asks: str, tmp_path: Path
) -> None:
    """A refusal costs a server nothing, and a site gives few of them, however often it is started
    again. Whether a task is refused for something else says nothing of the budget.
    """
    name, changes, task = MORE[asks]
    kit, data = laid(tmp_path, name, changes, scripted=False).sites[0]
    agreed, index, study, own = opened(JoinOptions(kit=kit, data=data, limit=8.0))
    build = prepare_site(
        agreed=agreed, index=index, own=own, connects=no_line, log=log_to(lambda text: None)
    )
    folder = tmp_path / "run"
    folder.mkdir()

    def asked(number: int, more: int, answered: int = 0, **wrong: Any) -> frames.FromSite:
        """What a new process of the site says."""
        site: Any = build(study, folder, "run", None).simulation
        with closing(AnswerStore(folder)) as store, closing(site.ledgers):
            desk = SiteSession(site, SiteMoment(0, 0, np.zeros(21, np.float32)), Nobody(), store)
            list(desk.said(frames.encode(frames.Welcome("run", answered))))
            sent = structs.replace(task(21, number, more), **wrong)
            (said,) = desk.said(frames.encode(frames.Ask(sent.number, encode(sent))))
            return said

    first: Any = build(study, folder, "run", None).simulation
    most = first.affordable_steps[index]
    first.ledgers.close()
    said = [asked(1, more, clip=9.0) for more in (1, most + 1)]
    assert all(isinstance(each, frames.Refuse) and each.why != OWN for each in said)
    assert asked(1, most + 1) == frames.Refuse(1 if name == "synchronous" else most + 1, OWN)
    assert isinstance(asked(1, 1), frames.Say)  # a cheaper one
    spent = charges(folder)
    greets = name == "asynchronous"  # by what it says was answered, a server could ask as well
    for more in range(1, MOST_UNPAID):
        with pytest.raises(StudyError, match="older copy") if greets else nullcontext():
            assert getattr(asked(2, most + more, (most + more) * greets), "why", None) == OWN
    assert getattr(asked(2, 2), "why", None) == OWN
    with pytest.raises(StudyError, match="older copy") if greets else nullcontext():
        asked(2, 2, 3 * greets)
    assert charges(folder) == spent


def test_an_edge_refuses_a_task_without_the_agreed_clip(tmp_path: Path) -> None:
    """Before it books it: else a server could have it pay for nothing."""
    found, folder = laid(tmp_path, "asynchronous"), tmp_path / "run"
    kit, data = found.sites[0]
    _, index, study, own = opened(JoinOptions(kit=kit, data=data))
    build = prepare_site(
        agreed=Agreed(kit), index=index, own=own, connects=no_line, log=log_to(lambda text: None)
    )
    folder.mkdir()
    site: Any = build(study, folder, "run", None).simulation
    weights = np.zeros(21, np.float32)
    for clip, named in ((1.0, None), (None, "its clip is None"), (2.0, "its clip is 2.0")):
        why = site.inner.regime.objection(0, Compute(task=1, version=0, weights=weights, clip=clip))
        assert (why is None) if named is None else (why or "").startswith(named)
    for task in (0, 2**39):  # which no ledger can number
        asked = Compute(task=task, version=0, weights=weights, clip=1.0)
        assert (site.inner.regime.objection(0, asked) or "").startswith("it is task")
    site.ledgers.close()
