"""Processes of a federation that meet faults, for tests: each a process of its own, forked from one
that has imported everything, so that a new life begins at once; and a capture of what they say.

What leaves a site is written down before it is sent, and what reaches the server when it is in the
journal: by functions that are put around those of the program here, in the test.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from command import paint
from federations import digest
from sordino.cli import main
from sordino.core.network import Agreement
from sordino.core.run.folder import KEY
from sordino.network import frames, kernel, server, site, sums, transport
from sordino.network.demo import DemoFederation, commands
from sordino.network.storage import Input, Journal
from sordino.network.transport import Line
from sordino_mqtt.transport import Mqtt

SERVER, BROKER, READY = "server", "broker", "ready"
LONGEST, STEP = 10.0, 137
"""Seconds between two faults at most, and bytes of a step in the capture, at least."""
FROZEN = 6.0
"""Seconds that a process, or a line, stands still at most."""
KILLED, TERMINATED, FULL, FROZE, LINE, DOUBLED = "kill", "term", "full", "freeze", "line", "double"
FAULTS = (KILLED, TERMINATED, FULL, FROZE, DOUBLED)
"""SIGKILL; SIGTERM; no file may grow, as on a full disk; SIGSTOP for some seconds; a second process
of the same folder. And where sites come through a relay: a line that is reset or goes silent.
"""
RESTORED = "restore"
"""A site is killed, and its folder copied; the next time it is killed, the copy is put back."""
REFUSED = 2
STATUS = {
    KILLED: {-signal.SIGKILL},
    RESTORED: {-signal.SIGKILL},
    TERMINATED: {130, -signal.SIGTERM},
    FULL: {1},
}
"""How a process ends after a fault that ends it; by the signal itself where it has only begun."""


class _Said:
    """A line that writes down what is sent, before it is sent."""

    def __init__(self, inner: Line, capture: Path) -> None:
        self._inner, self._capture = inner, capture
        self.frames, self.close = inner.frames, inner.close

    def send(self, frame: bytes) -> None:
        if isinstance(frames.to_server(frame), frames.Say):
            _write(self._capture, [frame])
        self._inner.send(frame)


def _write(path: Path, what: Any) -> None:
    """In one call of the system, which no kill tears; who cannot write any more ends."""
    body = msgspec.msgpack.encode(what)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(handle, len(body).to_bytes(4, "little") + body)
        os.close(handle)
    except OSError:
        os._exit(1)


def read(path: Path) -> Iterator[Any]:
    """What was captured."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        while len(head := file.read(4)) == 4:
            yield msgspec.msgpack.decode(file.read(int.from_bytes(head, "little")))


def _state(own: Any) -> str:
    """Where the server stands, its own half of a network included."""
    half = getattr(own.world, "half", None)
    return digest(own.state) + digest(None if half is None else [half.state, half.pack()])


def _capture(kind: type[transport.Transport], path: Path) -> None:
    """Write down what a site sends over a transport."""
    true = kind.site

    def site(own: Any, agreement: Agreement, index: int, kit: Path) -> Callable[[int], Line]:
        connects = true(own, agreement, index, kit)
        return lambda limit: _Said(connects(limit), path)

    mock.patch.object(kind, "site", site).start()


def _tapped(name: str, capture: Path) -> None:
    """Put the capture around what this process does."""
    if name != SERVER:
        for kind in (transport.WebSocket, Mqtt):
            _capture(kind, capture / name)
        return
    append, cut, next_, made = Journal.append, Journal.cut, kernel.LiveKernel.next, Journal.__init__

    def opened(own: Journal, *given: Any, **named: Any) -> None:
        made(own, *given, **named)
        for each in own._before:
            where = "history" if each.kind == "history" else "inputs"
            _write(capture / where, msgspec.structs.astuple(each))

    def appends(own: Journal, each: Input) -> None:
        append(own, each)
        _write(capture / "inputs", msgspec.structs.astuple(each))

    def cuts(own: Journal, count: int, first: Sequence[Input]) -> None:
        cut(own, count, first)
        for each in first:
            _write(capture / "inputs", msgspec.structs.astuple(each))

    def stepped(own: Any) -> None:
        before = own.count
        next_(own)
        if own.count != before:
            _write(capture / "states", [own.count, _state(own)])

    mock.patch.multiple(Journal, __init__=opened, append=appends, cut=cuts).start()
    mock.patch.object(kernel.LiveKernel, "next", stepped).start()


def _live(name: str, argv: Sequence[str], log: str, capture: str) -> None:
    """The life of a party, which ends the process."""
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    site.LONGEST_PAUSE = 0.5
    mock.patch.object(sums, "PAUSE", 0.01).start()
    mock.patch.object(server, "FAREWELL", 3.0).start()
    paint(False)
    _tapped(name, Path(capture))
    sys.argv, status = list(argv), 0
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)


def _nursery() -> None:
    """Fork a life for each line that asks for one; say how those end that are asked about."""
    ended: dict[int, int] = {}
    os.write(1, f"{READY}\n".encode())
    for line in sys.stdin:
        asked = json.loads(line)
        if "name" in asked:
            pid = os.fork()
            if not pid:
                _live(**asked)
            found: int | None = pid
        elif (found := ended.get(asked["pid"])) is None:
            gone, status = os.waitpid(asked["pid"], os.WNOHANG)
            if gone:
                found = ended[gone] = os.waitstatus_to_exitcode(status)
        os.write(1, f"{json.dumps(found)}\n".encode())


class Nursery:
    """The process that the others are forked from."""

    def __init__(self) -> None:
        here = str(Path(__file__).parent)
        paths = [here, *(each for each in sys.path if each)]
        told = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import lives; lives._nursery()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**told, "OMP_NUM_THREADS": "1"},
        )
        assert self._heard() == READY

    def _heard(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def _asked(self, **what: Any) -> int | None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        found: int | None = json.loads(self._heard())
        return found

    def begin(self, name: str, argv: Sequence[str], log: Path, capture: Path) -> int:
        """A new life; the number of its process."""
        found = self._asked(name=name, argv=list(argv), log=str(log), capture=str(capture))
        assert found is not None
        return found

    def ended(self, pid: int) -> int | None:
        """How a life has ended; None while it goes on."""
        return self._asked(pid=pid)

    def close(self) -> None:
        """No more lives."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


def _signalled(pid: int, which: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, which)


class Relay:
    """Between sites and their server: a thread that passes bytes on, until a line is to fail."""

    def __init__(self, port: int) -> None:
        self._port, self._silent, self._reset = port, 0.0, False
        self._listens = socket.create_server(("127.0.0.1", 0))
        self._peers: dict[socket.socket, socket.socket] = {}
        self._wakes, self._asks = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where sites connect."""
        found: int = self._listens.getsockname()[1]
        return found

    def fail(self, silent: float) -> None:
        """Pass nothing on for some seconds, with all lines open; 0: reset them all."""
        self._silent, self._reset = time.monotonic() + silent, not silent
        self._asks.send(b"f")

    def close(self) -> None:
        """End all lines, and the thread."""
        self._asks.send(b"c")
        self._thread.join()
        self._asks.close()

    def _run(self) -> None:
        while True:
            left = self._silent - time.monotonic()
            watched = [] if left > 0 else [self._listens, *self._peers]
            ready, _, _ = select.select(
                [self._wakes, *watched], [], [], max(left, 0.001) if left > 0 else None
            )
            if self._wakes in ready and self._wakes.recv(1) == b"c":
                break
            if self._reset:
                self._reset = False
                for each in list(self._peers):
                    self._part(each)
                continue
            for each in ready:
                if each is self._listens:
                    self._accept()
                elif each in self._peers:
                    self._pass(each)
        for each in (self._wakes, self._listens, *self._peers):
            each.close()

    def _accept(self) -> None:
        site, _ = self._listens.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._port), timeout=5.0)
        except OSError:
            site.close()
            return
        server.settimeout(60.0)
        self._peers |= {site: server, server: site}

    def _pass(self, each: socket.socket) -> None:
        try:
            if found := each.recv(1 << 16):
                self._peers[each].sendall(found)
                return
        except OSError:
            pass
        self._part(each)

    def _part(self, each: socket.socket) -> None:
        if (peer := self._peers.pop(each, None)) is not None:
            self._peers.pop(peer)
            each.close()
            peer.close()


@dataclass(kw_only=True)
class Faults:
    """A federation whose processes and lines meet faults at random moments until it ends.

    Attributes:
        left: faults that are still to come.
        kinds: of which each is drawn.
        steps: inputs that reach the server between two of them, at most.
        met: who met what when, in seconds; printed where something fails.
        restored: sites whose folder was put back from a copy.
    """

    nursery: Nursery
    laid: DemoFederation
    folder: Path
    seed: int
    left: int
    kinds: Sequence[str] = (KILLED,)
    steps: int = 30
    scripted: bool = False
    start_broker: Callable[[], subprocess.Popen[bytes]] | None = None
    relay: Relay | None = None
    met: list[tuple[str, str, float]] = field(default_factory=list)
    restored: set[str] = field(default_factory=set)
    key: bytes = b""
    _argv: dict[str, list[str]] = field(default_factory=dict)
    _lives: dict[str, int] = field(default_factory=dict)
    _ends: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _doubles: dict[int, str] = field(default_factory=dict)
    _frozen: dict[int, float] = field(default_factory=dict)
    _broker: subprocess.Popen[bytes] | None = None

    @property
    def capture(self) -> Path:
        """Where what was said is written down."""
        return self.folder / "capture"

    def run(self, seconds: float) -> None:
        """To the end of everybody.

        Raises:
            AssertionError: if somebody fails, or does not end in time.
        """
        self.capture.mkdir()
        (self.folder / "logs").mkdir()
        names = (SERVER, *(kit.name for kit, _ in self.laid.sites))
        found = commands(self.laid, scripted=self.scripted)
        self._argv = {name: ["sordino", *each[3:]] for name, each in zip(names, found, strict=True)}
        if self.relay is not None:
            for name in names[1:]:
                self._argv[name] += ["--address", f"127.0.0.1:{self.relay.port}"]
        begun, dice = time.monotonic(), random.Random(self.seed)
        if self.start_broker is not None:
            self._broker = self.start_broker()
        for name in names:
            self._begin(name)
        ended: set[str] = set()
        wait = self._wait(dice, begun)
        try:
            while len(ended) < len(names):
                now = time.monotonic()
                assert now < begun + seconds, f"only {ended} have ended; {self.told()}"
                for pid in [each for each, until in self._frozen.items() if now >= until]:
                    del self._frozen[pid]
                    _signalled(pid, signal.SIGCONT)
                self._look(ended)
                if self.left and (now >= wait[0] or self._stepped() >= wait[1]):
                    time.sleep(dice.uniform(0.0, 0.05))
                    self._fault(dice, ended, now - begun)
                    wait = self._wait(dice, now)
                time.sleep(0.005)
        finally:
            self._end()

    def _wait(self, dice: random.Random, now: float) -> tuple[float, int]:
        """Until when, or until which step, the next fault waits."""
        return now + dice.uniform(0.0, LONGEST), self._stepped() + dice.randint(0, self.steps)

    def _stepped(self) -> int:
        """Inputs that the server took so far, about."""
        with suppress(FileNotFoundError):
            return (self.capture / "states").stat().st_size // STEP
        return 0

    def _begin(self, name: str) -> int:
        found = self.nursery.begin(
            name, self._argv[name], self.folder / "logs" / name, self.capture
        )
        self._lives[name] = found
        return found

    def _look(self, ended: set[str]) -> None:
        """Begin again who was ended; the server tells late sites how it ended."""
        with suppress(OSError):  # it is destroyed when the run ends; a test replays its noise
            found = (self.laid.server / "run" / KEY).read_bytes()
            self.key = found if len(found) == 32 else self.key
        for name in [each for each in self._argv if each not in ended]:
            status = self.nursery.ended(self._lives[name])
            if status == 0:
                ended.add(name)
            elif status == REFUSED and name in self._doubles.values():  # the other one runs
                self._lives[name] = next(
                    pid for pid, other in self._doubles.items() if other == name
                )
                del self._doubles[self._lives[name]]
            elif status is not None:
                log = (self.folder / "logs" / name).read_text()[-3000:]
                assert status in self._ends[name], f"{name} ended with {status}: {log}{self.told()}"
                self._ends[name].clear()
                self._begin(name)
        if SERVER in ended and len(ended) < len(self._argv):
            ended.discard(SERVER)
            self._begin(SERVER)
        for pid in list(self._doubles):
            if (status := self.nursery.ended(pid)) is not None:
                assert status in (0, REFUSED), f"a double ended with {status}; {self.told()}"
                del self._doubles[pid]

    def _fault(self, dice: random.Random, ended: set[str], when: float) -> None:
        """Let something happen to the server, a site, the broker or the lines."""
        kind = dice.choice([*self.kinds, *([] if self.relay is None else [LINE])])
        parties = [SERVER] if SERVER not in ended else []
        sites = [name for name in self._lives if name not in (SERVER, *ended)]
        parties += ["site"] if sites else []
        if kind == RESTORED and not sites:
            kind = KILLED
        if kind == KILLED:
            parties += [BROKER] if self._broker is not None else []
        who = "site" if kind == RESTORED else dice.choice(parties)
        who = dice.choice(sites) if who == "site" else who
        if kind == RESTORED:  # one that has a copy: not each a copy of its own
            who = next((name for name in sites if self._copy(name).exists()), who)
        if who == BROKER:
            assert self._broker is not None
            assert self.start_broker is not None
            self._broker.kill()
            self._broker.wait()
            self._broker = self.start_broker()
        elif kind == LINE:
            assert self.relay is not None
            who = "lines"
            self.relay.fail(dice.choice([0.0, dice.uniform(0.1, FROZEN)]))
        else:
            self._meet(who, kind, dice)
        self.left -= 1
        self.met.append((who, kind, round(when, 2)))

    def _meet(self, who: str, kind: str, dice: random.Random) -> None:
        pid = self._lives[who]
        if kind in STATUS:
            self._ends[who] |= STATUS[kind]
        if kind in (KILLED, RESTORED):
            _signalled(pid, signal.SIGKILL)
            if kind == RESTORED:
                self._put_back(who, pid)
        elif kind == TERMINATED:
            _signalled(pid, signal.SIGTERM)
        elif kind == FULL:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
        elif kind == FROZE:
            _signalled(pid, signal.SIGSTOP)
            self._frozen[pid] = time.monotonic() + dice.uniform(0.1, FROZEN)
        else:
            self._begin(who)
            self._lives[who], second = pid, self._lives[who]
            self._doubles[second] = who

    def _copy(self, who: str) -> Path:
        return self.folder / f"copy of {who}"

    def _put_back(self, who: str, pid: int) -> None:
        """Once a killed site has ended: copy its folder, or put the copy back."""
        while self.nursery.ended(pid) is None:
            time.sleep(0.005)
        run, copy = self.laid.server.parent / who / "run", self._copy(who)
        if copy.exists():
            shutil.rmtree(run)
            copy.rename(run)
            self.restored.add(who)
        elif run.exists():
            shutil.copytree(run, copy)

    def _end(self) -> None:
        for pid in (*self._lives.values(), *self._doubles):
            with suppress(AssertionError, ChildProcessError):
                if self.nursery.ended(pid) is None:
                    _signalled(pid, signal.SIGKILL)
        if self._broker is not None:
            self._broker.kill()
            self._broker.wait()
        if self.relay is not None:
            self.relay.close()

    def told(self) -> str:
        """What is needed to do the same again."""
        return f"seed {self.seed}, faults {self.met}, in {self.folder}"

    def inputs(self) -> list[Input]:
        """Everything that reached the server, in order.

        Raises:
            AssertionError: if two inputs have one number, or one is missing.
        """
        found: dict[int, Input] = {}
        for each in read(self.capture / "inputs"):
            given = Input(*each)
            assert found.setdefault(given.seq, given) == given, (given, self.told())
        assert sorted(found) == list(range(1, len(found) + 1)), self.told()
        return [each for _, each in sorted(found.items())]

    def history(self) -> list[Input]:
        """What the journal began with before its first input."""
        found = [Input(*each) for each in read(self.capture / "history")]
        return [each for each in found if not each.seq][:1]

    def states(self) -> dict[int, set[str]]:
        """Digests of the server's state after each input, over all of its lives."""
        found: dict[int, set[str]] = defaultdict(set)
        for count, state in read(self.capture / "states"):
            found[count].add(state)
        return found

    def said(self, name: str) -> dict[int, set[bytes]]:
        """What a site has sent to each task: one body for each, or it has released more."""
        found: dict[int, set[bytes]] = defaultdict(set)
        for (frame,) in read(self.capture / name):
            said = frames.to_server(frame)
            assert isinstance(said, frames.Say)
            found[said.number].add(said.body)
        return found
