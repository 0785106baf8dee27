"""Processes of a federation that are killed, for tests: each a process of its own, forked from one
that has imported everything, so that a new life begins at once; and a capture of what they say.

What leaves a site is written down before it is sent, and what reaches the server when it is in the
journal: by functions that are put around those of the program here, in the test.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from federations import digest
from sordino.cli import main
from sordino.core.network import Agreement
from sordino.core.run.folder import KEY
from sordino.network import frames, kernel, server, site, transport
from sordino.network.demo import DemoFederation, commands
from sordino.network.storage import Input, Journal
from sordino.network.transport import Line
from sordino_mqtt.transport import Mqtt

SERVER, BROKER, READY = "server", "broker", "ready"
LONGEST, STEP = 10.0, 137
"""Seconds between two kills at most, and bytes of a step in the capture, at least."""


class _Said:
    """A line that writes down what is sent, before it is sent."""

    def __init__(self, inner: Line, capture: Path) -> None:
        self._inner, self._capture = inner, capture
        self.frames, self.close = inner.frames, inner.close

    def send(self, frame: bytes) -> None:
        _write(self._capture, [frame])
        self._inner.send(frame)


def _write(path: Path, what: Any) -> None:
    """In one call of the system, which no kill tears."""
    body = msgspec.msgpack.encode(what)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, len(body).to_bytes(4, "little") + body)
    os.close(handle)


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
            if each.kind == "history":  # no input
                continue
            _write(capture / "inputs", msgspec.structs.astuple(each))

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
    mock.patch.object(server, "FAREWELL", 3.0).start()
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


@dataclass(kw_only=True)
class Deaths:
    """A federation whose processes are killed at random moments until it ends.

    Attributes:
        left: kills that are still to come.
        steps: inputs that reach the server between two of them, at most.
        killed: who was killed when, in seconds; printed where something fails.
    """

    nursery: Nursery
    laid: DemoFederation
    folder: Path
    seed: int
    left: int
    steps: int = 30
    scripted: bool = False
    start_broker: Callable[[], subprocess.Popen[bytes]] | None = None
    killed: list[tuple[str, float]] = field(default_factory=list)
    key: bytes = b""
    _lives: dict[str, int] = field(default_factory=dict)
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
        argv = {name: ["sordino", *each[3:]] for name, each in zip(names, found, strict=True)}
        begun, dice = time.monotonic(), random.Random(self.seed)
        if self.start_broker is not None:
            self._broker = self.start_broker()
        for name in names:
            self._begin(name, argv[name])
        ended: set[str] = set()
        wait = self._wait(dice, begun)
        try:
            while len(ended) < len(names):
                now = time.monotonic()
                assert now < begun + seconds, f"only {ended} have ended; {self.told()}"
                self._look(argv, ended)
                if self.left and (now >= wait[0] or self._stepped() >= wait[1]):
                    time.sleep(dice.uniform(0.0, 0.05))
                    self._kill(dice, ended, now - begun)
                    wait = self._wait(dice, now)
                time.sleep(0.005)
        finally:
            self._end()

    def _wait(self, dice: random.Random, now: float) -> tuple[float, int]:
        """Until when, or until which step, the next kill waits."""
        return now + dice.uniform(0.0, LONGEST), self._stepped() + dice.randint(0, self.steps)

    def _stepped(self) -> int:
        """Inputs that the server took so far, about."""
        with suppress(FileNotFoundError):
            return (self.capture / "states").stat().st_size // STEP
        return 0

    def _begin(self, name: str, argv: Sequence[str]) -> None:
        log = self.folder / "logs" / name
        self._lives[name] = self.nursery.begin(name, argv, log, self.capture)

    def _look(self, argv: dict[str, list[str]], ended: set[str]) -> None:
        """Begin again who was killed; the server tells late sites how it ended."""
        with suppress(OSError):  # it is destroyed when the run ends; a test replays its noise
            found = (self.laid.server / "run" / KEY).read_bytes()
            self.key = found if len(found) == 32 else self.key
        for name in [each for each in argv if each not in ended]:
            status = self.nursery.ended(self._lives[name])
            if status == 0:
                ended.add(name)
            elif status is not None:
                log = (self.folder / "logs" / name).read_text()[-3000:]
                assert status == -signal.SIGKILL, f"{name} ended with {status}: {log}{self.told()}"
                self._begin(name, argv[name])
        if SERVER in ended and len(ended) < len(argv):
            ended.discard(SERVER)
            self._begin(SERVER, argv[SERVER])

    def _kill(self, dice: random.Random, ended: set[str], when: float) -> None:
        """Kill the server, a site or the broker, each as likely."""
        kinds = [SERVER] if SERVER not in ended else []
        sites = [name for name in self._lives if name not in (SERVER, *ended)]
        kinds += ["site"] if sites else []
        kinds += [BROKER] if self._broker is not None else []
        kind = dice.choice(kinds)
        who = dice.choice(sites) if kind == "site" else kind
        if who == BROKER:
            assert self._broker is not None
            assert self.start_broker is not None
            self._broker.kill()
            self._broker.wait()
            self._broker = self.start_broker()
        else:
            os.kill(self._lives[who], signal.SIGKILL)
        self.left -= 1
        self.killed.append((who, round(when, 2)))

    def _end(self) -> None:
        for pid in self._lives.values():
            with suppress(ProcessLookupError, AssertionError, ChildProcessError):
                if self.nursery.ended(pid) is None:
                    os.kill(pid, signal.SIGKILL)
        if self._broker is not None:
            self._broker.kill()
            self._broker.wait()

    def told(self) -> str:
        """What is needed to do the same again."""
        return f"seed {self.seed}, kills {self.killed}, in {self.folder}"

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
            if isinstance(said, frames.Say):
                found[said.number].add(said.body)
        return found
