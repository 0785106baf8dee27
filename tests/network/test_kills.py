"""Kills anywhere: the run ends, no ledger lies below what was sent, nothing counts twice, and the
journal leads to the same state.
"""

from __future__ import annotations

import os
import random
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from federations import Federation, digest, study_of
from memory import Killed, MemoryLine, Net
from sordino.base.entropy import Transcript
from sordino.base.errors import ResumeError
from sordino.clients.network import divided
from sordino.clients.regime import of
from sordino.clients.study import HorizontalStudy
from sordino.core.kernel import Kernel
from sordino.core.run import folder as log
from sordino.core.run import session
from sordino.core.run.folder import RunLog
from sordino.network import server, storage
from sordino.network.kernel import KernelOptions, LiveKernel
from sordino.network.kit import Agreed
from sordino.network.server_session import ServerSession
from sordino.network.storage import JOURNAL as NAME
from sordino.network.storage import AnswerStore, Input, Journal, _packed
from sordino.network.sums import LiveSums, Sums
from sordino.network.transport import Mailbox
from sordino.privacy import Ledger, LedgerSession

from .conftest import Makes, some

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Fate:
    """Who is killed when: each party after a random number of dangerous calls, before the call,
    after it, or where that is possible in the middle of what it writes.
    """

    def __init__(self, seed: int, kills: int, every: int) -> None:
        self.left, self.every, self._seed = kills, every, seed
        self._lock = threading.Lock()
        self._dice: dict[str, random.Random] = {}
        self._after: dict[str, int] = {}
        self.where: list[str] = []

    def meets(self, what: str, ways: Sequence[str]) -> str | None:
        """How the call ends for the party of this thread; None if well."""
        who = threading.current_thread().name
        with self._lock:
            dice = self._dice.setdefault(who, random.Random(f"{self._seed} {who}"))
            left = self._after.setdefault(who, dice.randint(1, self.every)) - 1
            self._after[who] = left if left else dice.randint(1, self.every)
            if left or not self.left:
                return None
            self.left -= 1
            way = dice.choice(ways)
            self.where.append(f"{who}: {way} {what}")
            return way

    def threatens(
        self,
        patch: pytest.MonkeyPatch,
        owner: Any,
        name: str,
        torn: Callable[[float, Any, Any], None] | None = None,
    ) -> None:
        """Make a function a place where parties die."""
        real = getattr(owner, name)
        dice = random.Random(self._seed)

        def threatened(*given: Any, **named: Any) -> Any:
            way = self.meets(name, ("before", "after") if torn is None else ("before", "torn"))
            if way == "torn" and torn is not None:
                torn(dice.random(), *given)
            if way in ("before", "torn"):
                raise Killed
            done = real(*given, **named)
            if way == "after":
                raise Killed
            return done

        patch.setattr(owner, name, threatened)


def _torn_input(part: float, own: Journal, each: Input) -> None:
    content = storage._packed(each)
    own._file.write(content[: int(part * len(content))])
    own._file.flush()


def _torn_slot(part: float, own: AnswerStore, kept: storage.SiteProgress) -> None:
    body, number = storage._encoder.encode(kept), own._count + 1
    check = zlib.crc32(body + number.to_bytes(8, "little"))
    content = storage._SLOT.pack(number, len(body), check) + body
    os.pwrite(own._files[number % 2].fileno(), content[: int(part * len(content))], 0)


class Record:
    """What reached the server, over all of its lives, and the state after each input."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.inputs: dict[int, Input] = {}
        self.states: dict[tuple[int, Input], set[str]] = {}
        self.last: tuple[Any, int] = None, 0
        append, cut = Journal.append, Journal.cut

        def appends(own: Journal, each: Input) -> None:
            append(own, each)
            self.inputs[each.seq] = each

        def cuts(own: Journal, count: int, first: Sequence[Input]) -> None:
            cut(own, count, first)
            self.inputs |= {each.seq: each for each in first}

        patch.setattr(Journal, "append", appends)
        patch.setattr(Journal, "cut", cuts)

    def told(self, kernel: Any) -> None:
        """After an input of the kernel; and once more at the end, which needs no other input."""
        key = kernel.count, self.inputs[kernel.count]
        again, self.last = self.last == (kernel, kernel.count), (kernel, kernel.count)
        if again and kernel.state.ended is not None:
            return
        self.states.setdefault(key, set()).add(digest(kernel.state))


class Again:
    """A journal that holds everything that reached the server."""

    large = False

    def __init__(self, inputs: Sequence[Input], history: Transcript | None) -> None:
        self._inputs, self.history = list(inputs), history

    def after(self, count: int) -> list[Input]:
        return self._inputs[count:]

    def before(self, count: int) -> list[Input]:
        return []

    def enter(self, inputs: Sequence[Input]) -> None:
        if self.history is not None:
            for each in inputs:
                self.history.add(_packed(each))

    def close(self) -> None: ...

    def destroy(self) -> None: ...


class Blind:
    """A watcher that keeps nothing."""

    saved = 0

    def hurry(self) -> None: ...

    def row(self, row: Any) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


def stepped_again(found: Federation, inputs: Sequence[Input], run: str, folder: Path) -> Any:
    """Where a new server stands after all inputs."""
    agreed = Agreed(found.laid.server)
    study = agreed.study
    assert isinstance(study, HorizontalStudy)
    built = of(study).assembled(study, divided(agreed.agreement, study), folder, run, None)
    world: Any = built.simulation
    net = Net()
    courier = ServerSession(net, Mailbox(), agreed, dimension=built.first.model.size, run=run)
    summing, secret = agreed.summing, agreed.study.privacy.entropy == "system"
    options = KernelOptions(
        session=courier,
        journal=Again(inputs, world.history if secret else None),  # type: ignore[arg-type]
        sums=None if summing is None else Sums(courier, agreed, summing),
    )
    kind: type[LiveKernel[Any]] = LiveKernel if summing is None else LiveSums
    first: Any = built.first
    kernel = kind(world, first, Blind(), options)
    try:
        return kernel.run()
    finally:
        built.simulation.ledgers.close()


def refuse_below(found: Federation, name: str) -> None:
    """Each site's ledger holds every answer that it sent, and nothing twice."""
    for site, numbers in found.answers().items():
        with Ledger.open(found.folder(site) / "ledger.sqlite", readonly=True) as ledger:
            charges = [(each.round, each.count) for each in ledger.entries()]
        blocks = name == "asynchronous"
        booked = [first + i for first, count in charges for i in range(count if blocks else 1)]
        assert len(set(booked)) == len(booked)
        if name in ("passes", "correlated"):  # of 3 batches, each charged once, in tasks of 2 steps
            numbers = set(range(1, -(-2 * len(numbers) // 3) + 1))
        if name == "edges in passes":  # 50 rows in batches of 10
            numbers = {(number - 1) // 5 + 1 for number in numbers}
        assert numbers <= set(booked)


@pytest.mark.parametrize("name", some("asynchronous", "client", "passes"))
def test_killed_anywhere_a_run_ends_as_its_journal_says(
    name: str, federate: Makes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = federate(name, minimum=2)
    with monkeypatch.context() as patch:
        record, fate = Record(patch), Fate(seed=len(name), kills=9, every=30)
        found.told = record.told
        fate.threatens(patch, Journal, "append", _torn_input)
        fate.threatens(patch, Journal, "cut")
        fate.threatens(patch, AnswerStore, "save", _torn_slot)
        fate.threatens(patch, LedgerSession, "charge")
        fate.threatens(patch, log, "write_checkpoint")
        fate.threatens(patch, server, "replace_file")
        fate.threatens(patch, RunLog, "row")
        fate.threatens(patch, Kernel, "tell")
        fate.threatens(patch, Net, "send")
        fate.threatens(patch, MemoryLine, "send")
        found.start()
        found.wait(120)
    assert sum(found.kills.values()) >= 7, fate.where
    assert set(found.done) == {"server", *found.names}
    for (seq, each), states in record.states.items():
        assert len(states) == 1, (seq, each, fate.where)
    inputs = [each for _, each in sorted(record.inputs.items())]
    assert [each.seq for each in inputs] == list(range(1, len(inputs) + 1))
    answers = [(each.site, each.number) for each in inputs if each.kind == "message"]
    assert len(set(answers)) == len(answers)
    refuse_below(found, name)
    run = found.done["server"].run
    last = stepped_again(found, inputs, _run_id(Path(run)), tmp_path)
    assert digest(last.state) == digest(found.kernels[-1].state)


@pytest.mark.parametrize("name", some("shared-client", "events"))
def test_a_scripted_server_that_is_killed_goes_on_to_the_same_model(
    name: str, federate: Makes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"asynchronous": ["execution.evaluate_every=4"]}.get(name, [])
    found = federate(name, [*changes, "execution.checkpoint_every=1"])
    found.scripted = True
    with monkeypatch.context() as patch:
        fate = Fate(seed=len(name), kills=6, every=25)
        fate.threatens(patch, Journal, "append", _torn_input)
        fate.threatens(patch, Journal, "cut")
        fate.threatens(patch, log, "write_checkpoint")
        fate.threatens(patch, server, "replace_file")
        fate.threatens(patch, RunLog, "row")
        fate.threatens(patch, Kernel, "tell")
        fate.threatens(patch, Net, "send")
        found.start()
        found.wait(120)
    assert found.kills["server"] >= 4, fate.where
    alone = tmp_path / "alone"
    study = study_of(tmp_path / "own", name, changes)
    session.begin(study, alone, lambda row: None, lambda going: None)
    wanted = load_file(alone / "model.safetensors")
    parties = ["server"] if name != "events" else ["server", *found.names]
    models = [load_file(found.folder(each) / "model.safetensors") for each in parties]
    assert {k: v.tobytes() for each in models for k, v in each.items()} == {
        k: v.tobytes() for k, v in wanted.items()
    }
    assert not (found.server / storage.JOURNAL).exists()


@pytest.mark.parametrize("name", some("shared-client"))
def test_a_server_steps_through_few_inputs_however_rare_its_checkpoints_are(
    name: str, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals = name in ("asynchronous", "edges in passes")
    long = "budget.updates=400" if arrivals else "budget.rounds=60"
    rare = ["execution.evaluate_every=1", "execution.checkpoint_every=1000"]
    found = federate(name, [long, *rare, "privacy.epsilon=1e6"])
    monkeypatch.setattr(storage, "MOST_INPUTS", 30)
    longest, killed, replayed = [0], [False], [0]

    def told(kernel: Any) -> None:
        longest[0] = max(longest[0], kernel.journal._count)
        if kernel.count >= 150 and not killed[0]:
            killed[0] = True
            raise Killed
        replayed[0] += killed[0] and bool(kernel._to_replay)

    found.told = told
    found.start()
    found.wait(60)
    assert killed[0]
    assert longest[0] <= 50  # 30, and what comes until the next moment that can be saved
    assert replayed[0] <= 50
    assert found.kernels[-1].count >= 200


def test_a_journal_of_arrivals_is_cut_by_size_however_rare_its_rows_are(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed server goes on from a moment between two rows, to the same end as its journal."""
    rare = ["execution.evaluate_every=400", "execution.checkpoint_every=1000"]
    found = federate("asynchronous", ["budget.updates=400", *rare, "privacy.epsilon=1e6"])
    monkeypatch.setattr(storage, "MOST_BYTES", 4_000)
    longest, killed = [0], [False]

    def told(kernel: Any) -> None:
        longest[0] = max(longest[0], kernel.journal.size)
        if kernel.count >= 200 and not killed[0]:
            killed[0] = True
            raise Killed

    found.told = told
    found.start()
    found.wait(60)
    assert killed[0]
    assert longest[0] < 6_000  # and what stands in it when it begins anew
    assert found.done["server"].rounds == 400


def _run_id(folder: Path) -> str:
    from sordino.core.records import known
    from sordino.core.run import reading

    return str(known(reading.load(folder).about.run))


def test_a_server_that_adds_the_noise_does_not_go_on_without_its_journal(federate: Makes) -> None:
    """It would release a round again, with the same noise on other answers."""
    found = federate("client", minimum=2)
    lost: list[int] = []

    def loses(kernel: Any) -> None:
        if not lost and kernel.state.number == 3 and kernel.state.open:
            lost.append(3)
            (found.server / NAME).unlink()
            raise Killed

    found.told = loses
    found.start()
    with pytest.raises(ResumeError, match="ledger knows of round 3, and its journal leads to"):
        found.wait(30)
