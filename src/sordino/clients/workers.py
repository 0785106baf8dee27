"""Workers: one run in several processes, on one machine or on many, with the same bytes.

Process 0 plays the run. It has the kernel, the ledger, the log and the checkpoints. Every other
process is a worker, which holds clients of the same study and answers their tasks. Process 0 is a
worker, too.

References:
    Granqvist et al. 2024, pfl-research: simulation framework for accelerating research in Private
    Federated Learning. Dimitriadis et al. 2022, FLUTE. Both add up floats on their workers; here
    answers are gathered in the order of the kernel (docs/decisions/0015-workers.md).
"""

# Theory of operation
#
# An answer is a function of (client, number, task, permits): batches and noise are drawn at
# addresses that name the client and the number (:mod:`sordino.base.entropy`). What a client
# remembers, the noise of its last steps where noise is correlated, travels with the task and comes
# back with the answer; process 0 keeps it from the moment at which it takes the answer. So it does
# not matter which process computes an answer, or when. The kernel takes answers in the order of its
# heap, as in one process; all sums are made by process 0, in that order. Hence the bytes of a run
# are the same for any number of workers, and a run that was killed goes on with another number.
#
#     Kernel.dispatch   ->  the answer is on the heap; its task waits to be handed out
#     next turn         ->  workers get tasks, as many as `AHEAD` says; the rest is open to all
#     Kernel.answer     ->  process 0 works on open tasks until the answer that is due is there
#     answers come      ->  their worker, which has as many tasks again by then, gets open ones
#
# So a process that is slow for a while, or whose tasks take longer than expected, gets fewer.
#
# What must hold:
#
# * Charges first. A task is dispatched after its charges are durable, and its permits travel with
#   it: a worker's client checks them as it does in one process.
# * Only what will be used is handed out. Answers that are due after the next alarm may be dropped
#   then, so their tasks wait until it has come. If they are, nobody gets them: the permits of their
#   round may be gone. An answer that was computed and is then dropped was paid for, and nobody sees
#   it.
# * Nothing is lost with a process. Only process 0 writes. When a worker is gone, process 0 ends
#   with a message, and the run goes on from its last checkpoint with `--resume`. When process 0 is
#   gone, the workers end.
#
# How a lost process is noticed: each side has a thread that always waits for the next message of
# the other, and is told of a closed connection at once; between machines also of one that is silent
# (`LOST`). Process 0 interrupts what it is doing, as Ctrl-C would (`INTERRUPT`), and says which
# worker is gone in its place.
#
# Messages are MessagePack, a length and then the bytes. They hold tasks, raw contributions and the
# secret key of noise, and a worker runs the code that they name. Processes of one machine talk over
# pairs of sockets that workers inherit: nothing listens, because every user of a machine
# can connect to its ports. Processes that torchrun has started talk over torch.distributed (gloo)
# in the clear, and trust the network between them.

from __future__ import annotations

import _thread
import datetime as dt
import heapq
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import torch
from safetensors.numpy import load, save

from sordino.base import modules
from sordino.base.entropy import Seeded, System
from sordino.base.errors import SordinoError, StudyError, WorkerGone
from sordino.base.frozen import Frozen
from sordino.base.message import (
    Compute,
    Contribution,
    Gradient,
    Masked,
    Train,
    TrainInOrder,
    Update,
    Vector,
    decode_vector,
    encode_vector,
)
from sordino.base.processes import Child, calling, handling, start, stop, why
from sordino.base.settings import tune
from sordino.clients.assemble import Rows
from sordino.clients.division import federation
from sordino.clients.regime import of
from sordino.clients.study import HorizontalStudy
from sordino.clients.world import HorizontalWorld, Shared
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.effect import Request, Said
from sordino.core.kernel import Kernel
from sordino.core.prepared import Affordable, PreparedRun
from sordino.core.run.environment import environment
from sordino.core.study.base import Study
from sordino.core.world import Flight, KernelSnapshot, RunListener, S
from sordino.privacy import PackedPermit, unpacked
from sordino.training.evaluate import Counted

LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The environment variable that torchrun sets."""
LOST, BEAT = dt.timedelta(minutes=2), 20.0
"""The longest silence of another machine, and the seconds after which each says that it is there:
one that loses power closes no connection.
"""
GONE = EOFError, OSError
"""Errors of a line that is closed."""
INTERRUPT = signal.SIGUSR2
"""Interrupts what process 0 is doing: shells have background processes ignore Ctrl-C's signal."""
FAREWELL = 5.0
"""Seconds that workers have to end."""
AHEAD = 0.6
"""Of its equal part of all work that is not done, what a worker has at most."""


class Load(Frozen, tag=True):
    """To workers, first: read the data of this study.

    Attributes:
        study: as TOML, complete.
        modules: the folder of modules that it names, if any.
    """

    study: str
    modules: str | None


class Prepare(Frozen, tag=True):
    """To workers, when the run begins or goes on: hold its clients.

    Attributes:
        turn: number of the run among those that these workers take part in.
        study: calibrated.
        seed, run, key: of the entropy; ``key`` is empty for a seeded one.
        data, unit: see :class:`~sordino.clients.world.Shared`.
        environment: what the bits of a result depend on.
    """

    turn: int
    study: str
    seed: int
    run: str
    key: bytes
    data: str
    unit: str
    environment: dict[str, Any]


class Call(Frozen, array_like=True):
    """A task of one client: the task, and its permits, by their places in :class:`Work`; and what
    the client remembers, in the format of safetensors.
    """

    site: int
    number: int
    task: int
    permits: tuple[int, ...]
    memory: bytes


class Work(Frozen, tag=True):
    """To a worker: tasks of its share. What several clients have in common travels once."""

    tasks: tuple[Train | TrainInOrder | Compute, ...]
    permits: tuple[PackedPermit, ...]
    calls: tuple[Call, ...]


class Measure(Frozen, tag=True):
    """To workers: evaluate a model (d,) on a part of the test or validation rows."""

    rows: Rows
    weights: Vector


class End(Frozen, tag=True):
    """To workers: there is nothing more to do."""


class Answers(Frozen, tag=True):
    """From a worker: the answers to a :class:`Work`, in its order, and what clients remember."""

    turn: int
    calls: tuple[tuple[int, int], ...]
    said: tuple[Update | Contribution | Masked | Gradient, ...]
    memories: tuple[bytes, ...]


class Measured(Frozen, tag=True):
    """From a worker: the batches of its part."""

    turn: int
    rank: int
    batches: tuple[Counted, ...]


class Failed(Frozen, tag=True):
    """From a worker: it cannot go on, and why; ``study`` says whether the input is at fault."""

    why: str
    study: bool


Order = Load | Prepare | Work | Measure
_encoder = msgspec.msgpack.Encoder(enc_hook=encode_vector)
_orders: Any = msgspec.msgpack.Decoder(Order | End, dec_hook=decode_vector)
_reports: Any = msgspec.msgpack.Decoder(Answers | Measured | Failed, dec_hook=decode_vector)


@dataclass(frozen=True, slots=True)
class Launched:
    """The line to another process that torchrun has started."""

    gloo: Any
    peer: int
    sending: threading.Lock = field(default_factory=threading.Lock)

    def send_bytes(self, message: bytes, /) -> None:
        """Send a message; an empty one says no more than that this process is there."""
        with self.sending:
            self._do("send", torch.tensor([len(message)]))
            if message:
                self._do("send", torch.frombuffer(bytearray(message), dtype=torch.uint8))

    def recv_bytes(self) -> bytes:
        """Wait for a message that is not empty."""
        length = 0
        while not length:
            length = int(self._do("recv", torch.empty(1, dtype=torch.int64)))
        return self._do("recv", torch.empty(length, dtype=torch.uint8)).numpy().tobytes()

    def beat(self) -> Launched:
        """Say every so often, from a thread of its own, that this process is there."""

        def beating() -> None:
            with suppress(EOFError):  # who listens says what happened
                while True:
                    time.sleep(BEAT)
                    self.send_bytes(b"")

        threading.Thread(target=beating, daemon=True).start()
        return self

    def _do(self, what: str, data: torch.Tensor) -> torch.Tensor:
        try:
            getattr(self.gloo, what)([data], self.peer, 0).wait()
        except RuntimeError as error:
            raise EOFError(str(error)) from error
        return data


Line = Connection | Launched
"""Whole messages to and from one other process; one of :data:`GONE` once it is gone."""


class Workers:
    """The workers of a run, as process 0 has them.

    Attributes:
        size: processes, this one included.
        children: the workers that this process has started, by number.
        gone: which worker is gone or has failed, and why; None while all is well.
    """

    def __init__(self, lines: Sequence[Line], children: dict[int, Child]) -> None:
        self._lines, self.size = lines, len(lines) + 1
        self.gone: SordinoError | None = None
        self.heard = False  # whether the run ends; then nobody is interrupted any more
        self.children, self._loaded, self._ending = children, False, False
        self._turn = 0
        self._inbox: queue.SimpleQueue[Answers | Measured | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._listen, args=(rank,), daemon=True)
            for rank in range(1, self.size)
        ]
        for each in self._threads:
            each.start()

    def build(
        self, study: Study, folder: Path, run: str, affordable_steps: Affordable
    ) -> PreparedRun:
        """Return the objects of a run that its workers take part in.

        Raises:
            StudyError: of a regime or a study whose runs are one process.
        """
        if not self._loaded:  # they read the data while this process does
            home = modules.study_folder()
            place = None if home is None else str(home)
            self.tell(Load(studies.write(study), place))
            self._loaded = True
        built = regimes.build(study, folder, run, affordable_steps)
        simulation: Any = built.simulation
        kind = type(simulation)
        if not isinstance(simulation, HorizontalWorld) or kind.answer is not HorizontalWorld.answer:
            raise StudyError(
                f"--workers: a run of regime '{study.regime}' is one process: each of its events "
                "needs the model that the one before has left. Leave --workers out"
            )
        spread = partial(SpreadKernel, workers=self, study=built.study)
        return replace(built, simulation=replace(simulation, kernel=spread))

    def prepare(self, study: Study, simulation: HorizontalWorld[Any]) -> None:
        """Let workers hold the clients of a calibrated study."""
        assert simulation.objects is not None
        shared = simulation.objects.shared
        self._loaded = False  # the next run has other data
        self._turn += 1
        root: Any = shared.entropy
        seeded = isinstance(root, Seeded)
        self.tell(
            Prepare(
                turn=self._turn,
                study=studies.write(study),
                seed=root.seed if seeded else 0,
                run=root.run if seeded else "",
                key=b"" if seeded else root.key,
                data=shared.data,
                unit=shared.unit,
                environment=environment(study),
            )
        )

    def tell(self, message: Load | Prepare | Measure | End) -> None:
        """Send all workers a message."""
        for rank in range(1, self.size):
            self.send(message, rank)

    def send(self, message: Any, rank: int) -> None:
        """Send a worker a message."""
        try:
            self._lines[rank - 1].send_bytes(_encoder.encode(message))
        except GONE:
            if not self._ending:
                self._lose(rank)
                self.check()

    def take(self, *, wait: bool) -> Answers | Measured | None:
        """Return what a worker has found; None if nothing yet and nobody waits for it.

        Raises:
            SordinoError: if a worker is gone.
        """
        while True:
            self.check()
            try:
                found = self._inbox.get(block=wait)
            except queue.Empty:
                return None
            if found is not None and found.turn == self._turn:  # not of a run before
                return found

    def check(self) -> None:
        """Raise what a worker has failed with, if one has."""
        if self.gone is not None:
            raise self.gone

    def interrupt(self, *_: object) -> None:
        """Do what Ctrl-C does, for :data:`INTERRUPT`."""
        if not self.heard:
            raise KeyboardInterrupt

    def close(self) -> None:
        """End all workers; once they have ended, do nothing."""
        if self._ending:
            return
        self._ending = True
        self.tell(End())
        stop(list(self.children.values()), within=FAREWELL, ask=False)
        for each in self._threads:
            each.join(FAREWELL)

    def _listen(self, rank: int) -> None:
        while True:
            try:
                message = _reports.decode(self._lines[rank - 1].recv_bytes())
            except GONE:
                if not self._ending:
                    self._lose(rank)
                return
            if isinstance(message, Failed):
                kind = StudyError if message.study else WorkerGone
                self._stop(kind(f"worker {rank}: {message.why}"))
            else:
                self._inbox.put(message)

    def _lose(self, rank: int) -> None:
        found = None
        if (child := self.children.get(rank)) is not None:
            with suppress(subprocess.TimeoutExpired, ValueError):  # it is being closed
                child.process.wait(FAREWELL)
                found = why(child)
        self._stop(WorkerGone(f"worker {rank} is gone: {found or 'its connection is closed'}"))

    def _stop(self, failure: SordinoError) -> None:
        """End the run, whatever it is doing."""
        with self._lock:
            if self.gone is not None or self._ending:
                return
            self.gone = failure
        _thread.interrupt_main(INTERRUPT)
        self._inbox.put(None)  # an interruption wakes nobody who waits for the inbox


@contextmanager
def workers(count: int | None) -> Iterator[Workers | None]:
    """Start the workers of a run, or meet those that torchrun has started; None for one process.

    Args:
        count: processes, this one included; None for one, or for as many as torchrun has started.

    Raises:
        StudyError: for less than one, or where torchrun says how many there are.
        WorkerGone: in place of an interruption, if a worker is gone; says how to go on.
    """
    if count is not None and count < 1:
        raise StudyError(f"--workers must be at least 1; got {count}")
    launched = int(os.environ["WORLD_SIZE"]) if LAUNCHED in os.environ else None
    if launched is not None and count not in (None, launched):
        raise StudyError(f"--workers {count}: torchrun has started {launched}; leave it out")
    size = launched or count or 1
    if size == 1:
        yield None
        return
    with _met(size, launched is not None) as found, handling(INTERRUPT, found.interrupt):
        try:
            try:
                yield found
            finally:
                found.heard = True  # an interruption before this is told below, a later one is none
        except BaseException as stopped:  # an interrupted import may fail in its own way
            if found.gone is None:
                raise
            notes = " ".join(getattr(stopped, "__notes__", ()))
            raise type(found.gone)(f"{found.gone}. {notes}".rstrip()) from None


@contextmanager
def _met(size: int, launched: bool) -> Iterator[Workers]:
    """Let the processes of a group meet, and end all others at last.

    A process that torchrun has started as a worker ends here, with the run.
    """
    if launched:
        from torch import distributed

        meet: Any = distributed
        store, rank, size = next(meet.rendezvous("env://"))
        # a group of our own, for the user may have one
        gloo = meet.ProcessGroupGloo(store, rank, size, LOST)
        if rank:
            serve(Launched(gloo, 0).beat(), rank, size)
        others = [Launched(gloo, peer).beat() for peer in range(1, size)]
        with closing(Workers(others, {})) as found:
            yield found
        return
    children, lines = dict[int, Child](), list[Connection]()
    try:
        for rank in range(1, size):
            own, other = socket.socketpair()
            lines.append(Connection(own.detach()))
            with other:
                handle = other.fileno()
                first = f"sordino.base.processes:follow({os.getpid()})"
                call = f"from sordino.clients.workers import join; join({handle}, {rank}, {size})"
                children[rank] = start(calling(f"{first}; {call}"), keep=(handle,))
        with closing(Workers(lines, children)) as found:
            yield found
    finally:
        stop(list(children.values()), within=0.0)
        for each in lines:
            each.close()


class SpreadKernel(Kernel[S]):
    """The kernel of process 0: tasks are handed out, and answers are taken when they are due."""

    world: HorizontalWorld[S]

    def __init__(
        self,
        world: HorizontalWorld[S],
        moment: KernelSnapshot[S],
        watcher: RunListener,
        *,
        workers: Workers,
        study: Study,
    ) -> None:
        super().__init__(world, moment, watcher)
        self._workers = workers
        self._waiting = [each for each in self.heap if _answers(each)]
        self._open: dict[tuple[int, int], tuple[float, Flight]] = {}  # with their expected work
        self._said: dict[tuple[int, int], tuple[Said | None, bytes]] = {}
        self._given: dict[tuple[int, int], tuple[int, float]] = {}  # rank and work
        self._loads = dict.fromkeys(range(1, workers.size), 0.0)
        workers.prepare(study, world)
        # else no client is made here that works elsewhere
        self._remembers = (
            isinstance(study, HorizontalStudy)
            and study.correlated is not None
            and not of(study).whole(study)
        )
        objects = world.objects
        assert objects is not None
        self._expected, objects.elsewhere = objects.work, self._evaluate
        self._batches: dict[int, tuple[Counted, ...]] = {}

    def push(self, time: float, site: int = 0, number: int = 0, tag: str = "") -> None:
        super().push(time, site, number, tag)
        flight = time, self.count, site, number, tag
        if _answers(flight):
            self._waiting.append(flight)

    def next(self) -> None:
        """Hand out what waits, then as one process does."""
        if self._waiting:
            self._hand_out()
        _, _, site, number, _ = self.heap[0]
        super().next()
        key = site, number
        self._said.pop(key, None)
        self._open.pop(key, None)

    def answer(self, site: int, number: int) -> Said | None:
        """Wait for the answer, and work on open tasks meanwhile."""
        key = site, number
        while key not in self._said:
            own = key not in self._given
            # whoever has finished gets open tasks before this process begins another
            if not self._heard(wait=not own and not self._open):
                self._work(key if own else next(iter(self._open)))
        said, memory = self._said.pop(key)
        if memory:
            _remember(self.world.clients[site], memory)
        return said

    def _heard(self, *, wait: bool) -> bool:
        """Take in what a worker has found, if anything."""
        match self._workers.take(wait=wait):
            case Answers(_, calls, said, memories):
                for key, answer, memory in zip(calls, said, memories, strict=True):
                    rank, work = self._given.pop(key)
                    self._loads[rank] -= work
                    if self._expects(key):  # nobody takes any other
                        self._said[key] = answer, memory
                self._share()
            case Measured(_, rank, batches):
                self._batches[rank] = batches
            case None:
                return False
        return True

    def _evaluate(self, rows: Rows, weights: Vector) -> tuple[int, Callable[[], list[Counted]]]:
        """Let workers evaluate their parts of the rows."""
        self._workers.tell(Measure(rows, weights))

        def rest() -> list[Counted]:
            while len(self._batches) < self._workers.size - 1:
                self._heard(wait=True)
            found = [each for _, batches in sorted(self._batches.items()) for each in batches]
            self._batches.clear()
            return found

        return self._workers.size, rest

    def _expects(self, key: tuple[int, int]) -> bool:
        return self.world.regime.expects(self.state, *key)

    def _work(self, key: tuple[int, int]) -> None:
        self._open.pop(key, None)
        client = self.world.clients[key[0]]
        before = _memory(client)
        said = super().answer(*key)
        self._said[key] = said, _memory(client)
        _remember(client, before)  # until the answer is taken

    def _hand_out(self) -> None:
        """Open the tasks whose answers will be used to all processes."""
        alarm = min((each for each in self.heap if each[4]), default=None)
        late = [] if alarm is None else [each for each in self._waiting if each > alarm]
        for each in sorted(set(self._waiting).difference(late)):
            _, _, site, number, _ = each
            if self._expects((site, number)):
                self._open[site, number] = self._expected(site, self.tasks[site]), each
        self._waiting = late
        self._share()

    def _share(self) -> None:
        """Give workers open tasks, the largest first, to who has least; what somebody gets is sent
        in two parts, so that he works on the second while the next come.
        """
        left = sum(self._loads.values()) + sum(work for work, _ in self._open.values())
        most = AHEAD * left / self._workers.size
        shares: dict[int, list[Flight]] = {rank: [] for rank in self._loads}
        lightest = [(load, rank) for rank, load in self._loads.items()]
        heapq.heapify(lightest)
        for work, each in sorted(self._open.values(), key=lambda one: (-one[0], one[1])):
            load, rank = lightest[0]
            if load + work > max(most, 1.001 * work):  # who has nothing gets one
                break
            heapq.heapreplace(lightest, (load + work, rank))
            key = each[2], each[3]
            del self._open[key]
            self._given[key] = rank, work
            self._loads[rank] += work
            shares[rank].append(each)
        for rank, share in shares.items():
            for part in (share[::2], share[1::2]):
                if part:
                    self._workers.send(self._packed(sorted(part)), rank)

    def _packed(self, share: Sequence[Flight]) -> Work:
        """Return tasks as they travel."""
        tasks: dict[Any, int] = {}
        permits: dict[int, int] = {}
        sent: list[Any] = []
        packed: list[PackedPermit] = []
        calls = []
        for _, _, site, number, _ in share:
            task = self.tasks[site]
            alike = _identity(task)
            if alike not in tasks:
                tasks[alike] = len(sent)
                sent.append(task)
            for permit in self.permits(site):
                if id(permit) not in permits:
                    permits[id(permit)] = len(packed)
                    packed.append(permit.packed())
            own = tuple(permits[id(each)] for each in self.permits(site))
            memory = _memory(self.world.clients[site]) if self._remembers else b""
            calls.append(Call(site, number, tasks[alike], own, memory))
        return Work(tuple(sent), tuple(packed), tuple(calls))


def _answers(flight: Flight) -> bool:
    """Tell whether an entry of the heap is an answer, and no alarm and no return."""
    return flight[3] > 0 and not flight[4]


def _memory(client: Any) -> bytes:
    """Return what a client remembers from task to task; empty for one that remembers nothing."""
    arrays = client.passes.carried() if getattr(client, "passes", None) is not None else {}
    return save(arrays) if arrays else b""


def _remember(client: Any, memory: bytes) -> None:
    """Have a client remember this."""
    if getattr(client, "passes", None) is not None:
        client.passes.restore(load(memory) if memory else {})


def _identity(task: Request) -> tuple[Any, ...]:
    """Return what is equal for equal tasks; vectors are the same object or others."""
    parts = msgspec.structs.astuple(task)
    return (type(task), *(id(p) if isinstance(p, np.ndarray) else p for p in parts))


# A worker's side.


def join(handle: int, rank: int, size: int) -> NoReturn:
    """Be a worker of a process of this machine; ``handle`` is that of the socket between them."""
    os.set_inheritable(handle, False)
    serve(Connection(handle), rank, size)


def serve(line: Line, rank: int, size: int) -> NoReturn:
    """Answer process 0 until it says that the run is over, or is gone."""
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()

    def listen() -> None:
        while True:
            try:
                order = _orders.decode(line.recv_bytes())
            except GONE:
                os._exit(1)  # nothing of a worker outlives the run
            if isinstance(order, End):
                os._exit(0)
            orders.put(order)

    threading.Thread(target=listen, daemon=True).start()
    worker = Worker(rank, size)
    try:
        while True:
            if (found := worker.carry_out(orders.get())) is not None:
                line.send_bytes(_encoder.encode(found))
    except SordinoError as error:
        why, study = str(error), isinstance(error, StudyError)
    except Exception as error:  # of code that a study names, or of the system
        said = modules.raised(error)
        if said is None:
            traceback.print_exc(file=sys.stderr)
        why, study = said or f"{type(error).__name__}: {error}", said is not None
    line.send_bytes(_encoder.encode(Failed(f"{socket.gethostname()}: {why}", study)))
    while True:  # process 0 ends this one
        orders.get()


@dataclass
class Worker:
    """Clients of a study, in a process that answers for them.

    Attributes:
        rank, size: its number, and how many processes there are.
        turn: of the run.
        held: the data, until it has become clients.
        objects: what the clients were made of.
        clients: in the order of their numbers.
    """

    rank: int
    size: int
    turn: int = 0
    held: Any = None
    objects: Any = None
    clients: Sequence[Any] = ()

    def carry_out(self, order: Order) -> Answers | Measured | None:
        """Do what process 0 asks for.

        Raises:
            StudyError: if this machine has other code, libraries or data.
        """
        match order:
            case Load(text, folder):
                study: Any = _study(text, folder)
                self.held = federation(study)
            case Prepare():
                self._prepare(order)
            case Work(tasks, permits, calls):
                return self._work(tasks, [unpacked(each) for each in permits], calls)
            case Measure(rows, weights):
                batches = self.objects.counted(rows, self.rank, self.size, weights)
                return Measured(self.turn, self.rank, tuple(batches))
        return None

    def _prepare(self, asked: Prepare) -> None:
        study: Any = _study(asked.study, None)
        here = msgspec.json.decode(msgspec.json.encode(environment(study)))
        differing = [
            f"{key} is {here.get(key)!r} here and {asked.environment.get(key)!r} in process 0"
            for key in sorted({*here, *asked.environment})
            if here.get(key) != asked.environment.get(key)
        ]
        if differing:
            raise StudyError(
                f"all processes of a run need the same environment: {'; '.join(differing)}"
            )
        root = System(asked.key) if asked.key else Seeded(asked.seed, asked.run)
        shared = Shared(root, asked.data, asked.unit)
        self.objects = of(study).assembly(
            of(study), study, self.held, Path(), asked.run, shared=shared
        )
        self.turn = asked.turn
        self.held, self.clients = None, self.objects.clients()
        tune()

    def _work(self, tasks: Sequence[Any], permits: Sequence[Any], calls: Sequence[Call]) -> Answers:
        answered: Callable[..., Any] = self.objects.kind.answered
        said, memories = list[Any](), list[bytes]()
        for each in calls:
            client = self.clients[each.site]
            _remember(client, each.memory)
            own = [permits[i] for i in each.permits]
            said.append(answered(client, tasks[each.task], own))
            memories.append(_memory(client))
        places = tuple((each.site, each.number) for each in calls)
        return Answers(self.turn, places, tuple(said), tuple(memories))


def _study(text: str, folder: str | None) -> Study:
    """Return the study in TOML that process 0 has sent."""
    import tomllib

    place = modules.study_folder() if folder is None else Path(folder)
    return studies.of_table(tomllib.loads(text), source="the study of process 0", modules=place)
