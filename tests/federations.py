"""Federations for tests: kits of small studies, and a network in memory whose server and sites are
threads of this process, which may be killed.
"""

from __future__ import annotations

import gc
import hashlib
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from memory import Killed, Net, Stopped
from sordino.base.logs import log_to
from sordino.base.message import Compute, Contribution, Gradient, Train, Update, decode, encode
from sordino.core import study as studies
from sordino.core.records import Row
from sordino.core.run import session
from sordino.core.run.environment import sources
from sordino.core.run.session import Outcome
from sordino.core.study.base import Study
from sordino.network import demo, frames
from sordino.network.demo import DemoFederation
from sordino.network.frames import FromServer, FromSite
from sordino.network.kit import RUN, Agreed
from sordino.network.server import ServerOptions, farewell, prepare_server
from sordino.network.site import JoinOptions, opened, prepare_site
from sordino.network.status import INCIDENTS, Incident, Incidents
from sordino.network.transport import Mailbox

ROUNDS = """
name = "Rounds"
[data]
file = "DATA"
clients = CLIENTS
partition = {{ kind = "iid" }}
test = "none"
[model]
name = "logistic"
[method]
{method}
[privacy]
{privacy}
[budget]
{budget}
[execution]
checkpoint_every = 2
"""
SAMPLE = """unit = "sample"
epsilon = 50.0
delta = 1e-3
noise_multiplier = 1.0
accountant = "rdp"
"""
STUDIES = {
    "synchronous": ROUNDS.format(
        method='name = "dp-sgd"\ntau = 2\nlearning_rate = 0.1',
        privacy=SAMPLE + "clip = 1.0\nsampling_rate = 0.2",
        budget="rounds = 8",
    ),
    "asynchronous": ROUNDS.format(
        method='name = "mapa"\nbatch = 10', privacy=SAMPLE, budget="updates = 24"
    ),
    "client": ROUNDS.format(
        method='name = "dp-fedavg"\nlearning_rate = 0.1\ntau = 2\nbatch = 10',
        privacy='unit = "client"\nepsilon = 200.0\ndelta = 1e-2\nclip = 0.3\nsampling_rate = 0.6\n'
        'noise_multiplier = 1.0\naccountant = "rdp"',
        budget="rounds = 8",
    ),
}
STUDIES |= {
    "passes": STUDIES["synchronous"].replace(
        "sampling_rate = 0.2", 'sampling = "passes"\nbatches = 3'
    ),
    "correlated": STUDIES["synchronous"].replace(
        "sampling_rate = 0.2", 'sampling = "passes"\nbatches = 3\ncorrelation = "blt"'
    ),
    "edges in passes": STUDIES["asynchronous"].replace("[budget]", 'sampling = "passes"\n[budget]'),
    "shared": STUDIES["synchronous"]
    .replace("tau = 2", "tau = 1")
    .replace("[budget]", 'noise = "shared"\n[budget]'),
    "client-in-turn": STUDIES["client"].replace(
        "sampling_rate = 0.6", 'sampling = "passes"\nbatches = 2\ncorrelation = "banded"'
    ),
    "shared-client": STUDIES["client"].replace("[budget]", 'noise = "shared"\n[budget]'),
}
"""A study of each kind that a network carries whose sites are clients."""
EVENTS = """
name = "events"
[data]
name = "digits"
parties = 2
stream = "replay"
[model]
name = "mlp"
embedding = 4
hidden = 8
[method]
name = "dlr"
learning_rate = 0.05
length = 3
activation = { kind = "random", p = 0.5 }
[privacy]
unit = "none"
[budget]
events = 24
[execution]
path = "messages"
evaluate_every = 4
"""


def study_of(folder: Path, name: str, changes: Sequence[str] = (), *, clients: int = 3) -> Study:
    """A small study over random examples, in a file in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "all.npz"
    if not data.exists():
        rng = np.random.default_rng(0)
        y = rng.integers(0, 3, 150)
        x = (rng.normal(size=(150, 6)) + y[:, None]).astype(np.float32)
        np.savez(data, x=x, y=y)
    path = folder / f"{name}.toml"
    path.write_text(
        (STUDIES | {"events": EVENTS})[name]
        .replace("DATA", str(data))
        .replace("CLIENTS", str(clients))
    )
    return studies.read(path, changes)


def laid(
    folder: Path,
    name: str,
    changes: Sequence[str] = (),
    *,
    clients: int = 3,
    minimum: int | None = None,
    scripted: bool = True,
) -> DemoFederation:
    """Kits and data of a small study, in ``folder / name``; who is away is gone after 0.1 s."""
    study = study_of(folder, name, changes, clients=clients)
    found = demo.lay_out(study, folder / name, scripted=scripted, minimum=minimum)
    for path in (folder / name / demo.KITS).glob("*/agreement.toml"):
        path.write_text(path.read_text().replace("patience = 5.0", "patience = 0.1"))
    return found


def plain(state: Any) -> Any:
    """A state, to be compared: numbers for vectors, sorted lists for sets."""
    if isinstance(state, np.ndarray):
        return state.tobytes().hex()
    if isinstance(state, dict):
        return sorted((str(key), plain(value)) for key, value in state.items())
    if isinstance(state, list | tuple):
        return [plain(each) for each in state]
    if isinstance(state, set | frozenset):
        return sorted(plain(each) for each in state)
    names = getattr(state, "__struct_fields__", None) or getattr(state, "__slots__", None)
    if is_dataclass(state):  # as equality has it: a permit of a charge that is found is the same
        names = [each.name for each in fields(state) if each.compare]
    return state if names is None else [(name, plain(getattr(state, name))) for name in names]


def digest(state: Any) -> str:
    """Equal for states from which the same follows."""
    return hashlib.sha256(repr(plain(state)).encode()).hexdigest()


BUILDING = threading.Lock()
Got = TypeVar("Got", bound=FromServer)


@cache
def _opened(options: JoinOptions) -> Any:
    return opened(options)


@dataclass(kw_only=True)
class Federation:
    """A federation over a network in memory, each life of a party a call.

    Attributes:
        rows: of the log of each party, by name; the server's is "server".
        lives: how often each party was killed.
        failed: what else ended a party.
        said: lines of the sites' logs.
    """

    laid: DemoFederation
    net: Net = field(default_factory=Net)
    limits: dict[str, float] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    failed: dict[str, BaseException] = field(default_factory=dict)
    done: dict[str, Outcome] = field(default_factory=dict)
    threads: dict[str, threading.Thread] = field(default_factory=dict)
    kernels: list[Any] = field(default_factory=list)
    told: Callable[[Any], None] | None = None
    scripted: bool = False
    said: list[str] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sites."""
        return tuple(folder.name for folder, _ in self.laid.sites)

    @property
    def server(self) -> Path:
        """The server's run folder."""
        return self.laid.server / RUN

    def folder(self, name: str) -> Path:
        """A party's run folder."""
        kit = self.laid.server if name == "server" else self._site(name)[0]
        return kit / RUN

    def _site(self, name: str) -> tuple[Path, Path]:
        return next(each for each in self.laid.sites if each[0].name == name)

    def serve(self) -> Outcome:
        """One life of the server."""
        opened: list[Mailbox] = []

        def opens(limit: int, mailbox: Mailbox) -> Net:
            opened.append(mailbox)
            return self.net.opens(limit, mailbox)

        def noted(who: str, what: str, why: str) -> None:
            log.note(who, what, why)
            if (who, why) not in self.net.refused:
                self.net.refused.append((who, why))

        def told(kernel: Any) -> None:
            self.kernels.append(kernel)
            if self.net.over:
                raise Stopped
            if self.told is not None:
                self.told(kernel)

        agreed = Agreed(self.laid.server)
        log = Incidents(self.server)
        self.net.stranger = lambda who, why: log.note(who, "connection", why)
        options = ServerOptions(
            agreed=agreed, opens=opens, reports=told, noted=noted, scripted=self.scripted
        )
        done = self._played("server", agreed.study, prepare_server(options))
        if not opened:
            farewell(self.server, options, 1.0)
        return done

    def _opened(self, name: str) -> Any:
        kit, data = self._site(name)
        return _opened(JoinOptions(kit=kit, data=data, limit=self.limits.get(name)))

    def join(self, name: str) -> Outcome:
        """One life of a site."""
        agreed, index, study, own = self._opened(name)
        build = prepare_site(
            agreed=agreed,
            index=index,
            own=own,
            connects=self.net.connects(name),
            log=log_to(self.said.append),
        )
        return self._played(name, study, build)

    def _played(self, name: str, study: Study, build: Any) -> Outcome:
        folder, rows = self.folder(name), self.rows.setdefault(name, [])

        def alone(*given: Any) -> Any:
            with BUILDING:  # a first model is drawn from torch's generator, which threads share
                return build(*given)

        if (folder / "run.json").exists():
            return session.resume(folder, rows.append, lambda going: None, build=alone)
        return session.begin(study, folder, rows.append, lambda going: None, build=alone)

    def start(self, *names: str) -> None:
        """Begin the lives of these parties, or of all: who is killed begins again."""
        for name in names or ("server", *self.names):
            if name != "server":
                self._opened(name)  # here: no parser of Python 3.11 is safe between threads
            thread = threading.Thread(target=self._lives, args=(name,), name=name, daemon=True)
            self.threads[name] = thread
            thread.start()

    def _lives(self, name: str) -> None:
        while True:
            try:
                self.done[name] = self.serve() if name == "server" else self.join(name)
                return
            except Stopped:
                return
            except Killed:
                self.kills[name] = self.kills.get(name, 0) + 1
            except BaseException as error:
                self.failed[name] = error
                return
            gc.collect()

    def stop(self, name: str) -> None:
        """Have a site vanish until it is started again."""
        self.net.stopped.add(name)
        self.net.drop(name, "")
        self.threads.pop(name).join(10)
        self.net.stopped.discard(name)

    def end(self) -> None:
        """End every party, as far as it still goes on."""
        self.net.end()
        for thread in self.threads.values():
            thread.join(10)

    def wait(self, seconds: float = 60.0, *names: str) -> None:
        """Until these parties, or all that were started, have ended.

        Raises:
            AssertionError: if one has failed, or goes on.
        """
        end = time.monotonic() + seconds
        for name in names or tuple(self.threads):
            while self.threads[name].is_alive() and time.monotonic() < end and not self.failed:
                self.threads[name].join(0.05)
        for error in self.failed.values():
            raise error
        alive = [name for name in names or self.threads if self.threads[name].is_alive()]
        assert not alive, f"{alive} did not end: {self.kernels[-1].state if self.kernels else None}"

    def until(self, what: Callable[[], object], seconds: float = 20.0) -> None:
        """Wait until something holds.

        Raises:
            AssertionError: if a party fails, or it does not come to hold.
        """
        end = time.monotonic() + seconds
        while not what():
            for error in self.failed.values():
                raise error
            assert time.monotonic() < end, "it did not come to hold"
            time.sleep(0.002)

    def answers(self) -> dict[str, set[int]]:
        """Numbers of the tasks that each site has answered, as a capture shows."""
        found: dict[str, set[int]] = {name: set() for name in self.names}
        for name, frame in self.net.said:
            said: FromSite = frames.to_server(frame)
            if isinstance(said, frames.Say):
                found[name].add(said.number)
        return found


def read_incidents(folder: Path) -> list[Incident]:
    """The lines of a log; one that a kill has torn is passed over."""
    found = []
    try:
        content = (folder / INCIDENTS).read_bytes()
    except FileNotFoundError:
        return []
    for line in content.splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Incident))
        except msgspec.MsgspecError:
            continue
    return found


class Hand:
    """A site that a test plays by hand, with the right certificate."""

    def __init__(self, federation: Federation, name: str) -> None:
        self.agreed = Agreed(federation.laid.server)
        self.index = federation.names.index(name)
        self.line = federation.net.connects(name)(1 << 20)

    def hello(self, **other: Any) -> None:
        """Greet as agreed, or otherwise."""
        own: dict[str, Any] = {
            "version": frames.VERSION,
            "agreement": self.agreed.digest,
            "code": sources(),
            "last": 0,
        }
        self.send(frames.Hello(**{**own, **other}))

    def send(self, frame: FromSite | FromServer | bytes) -> None:
        """A frame, or bytes."""
        self.line.send(frame if isinstance(frame, bytes) else frames.encode(frame))

    def get(self, kind: type[Got]) -> Got:
        """The next frame of a kind; others are passed over."""
        while True:
            found = self.line.get()
            assert found is not None, "the connection has ended"
            if isinstance(found, kind):
                return found

    def reply(self, ask: frames.Ask, **other: Any) -> Update | Contribution | Gradient:
        """An answer that fits a task, or differs from one in these parts."""
        dimension = len(self.agreed.agreement.data.classes) * (self._features + 1)
        task = decode(ask.body, dimension=dimension)
        own: dict[str, Any] = {"client": self.index}
        if isinstance(task, Compute):
            own |= {"task": task.task, "version": task.version, "gradient": 0 * task.weights}
            return Gradient(**{**own, **other})
        assert isinstance(task, Train)
        own |= {"round": task.round, "steps": task.steps}
        if self.agreed.study.privacy.unit == "client":
            return Contribution(**{**own, "delta": 0 * task.weights, "inside": True, **other})
        return Update(**{**own, "weights": task.weights, **other})

    @property
    def _features(self) -> int:
        return math.prod(self.agreed.agreement.data.shape)

    def answer(self, ask: frames.Ask, **other: Any) -> None:
        """Send that answer."""
        self.send(frames.Say(ask.number, encode(self.reply(ask, **other))))

    def ended(self) -> bool:
        """Whether the server has ended the connection; waits for it."""
        with suppress(queue.Empty):
            while self.line.get(3.0) is not None:
                pass
        return not self.line.open
