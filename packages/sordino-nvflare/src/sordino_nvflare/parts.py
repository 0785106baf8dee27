"""The two parts of an NVFlare job: a controller that serves the study, an executor that joins it.

Each has one task for its whole life: the server's is the workflow, a site's the only task of the
job. Both work in a thread of their own, so that NVFlare can abort them: what they had on disk is
enough to go on from, when the job is submitted again.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import CellMessageAuthHeaderKey, FLContextKey, ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply as cell_reply
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import AUTH_CLIENT_NAME_FOR_SJ

from sordino.extend.network import (
    RUN,
    Agreed,
    BudgetExceeded,
    Hub,
    JoinOptions,
    Mailbox,
    Outcome,
    Page,
    Shown,
    StudyError,
    cut_short,
    join,
    log_to,
    resumable,
    serve,
    site_of,
)
from sordino.extend.runs import report
from sordino_nvflare import local
from sordino_nvflare.channel import SERVER, FlareHub, FlareLine, Got, Parcel, Quorum, Topic
from sordino_nvflare.job import AGAIN, ENDED, TASK

WORDS, CHANNEL = "nvflare.txt", "sordino"
LOOK = 0.1
"""Seconds between two looks whether NVFlare wants us to end."""
FAREWELL = 60.0
"""Seconds that the server's process waits at the end for the sites' processes."""


class CellPost:
    """Post of a job process: messages through its cell.

    Args:
        cell: of this job process.
        job: identifier of the job.
        peers: qualified name of each other process's parent cell (of the server, or of the sites,
            which differs from the site's name behind a relay), and the token of that process.
    """

    def __init__(self, cell: Any, job: str, peers: dict[str, tuple[str, str]]) -> None:
        self._cell = cell.core_cell  # without the library's streams, which are slower
        self._names = {FQCN.join([own, job]): name for name, (own, _) in peers.items()}
        self._tokens = {name: token for name, (_, token) in peers.items()}
        self._cells = {name: own for own, name in self._names.items()}

    def on(self, topic: Topic, got: Got) -> None:

        def taken(message: Any) -> Any:
            name = self._sender(message)
            if name is None:
                return cell_reply(CellCode.AUTHENTICATION_ERROR)
            parcel = _parcel(message)
            if parcel is None:
                return cell_reply(CellCode.INVALID_REQUEST)
            reply = got(name, parcel)
            return None if reply is None else Message({}, msgspec.msgpack.encode(reply))

        self._cell.register_request_cb(CHANNEL, topic, taken)

    def tell(self, to: str, topic: Topic, parcel: Parcel) -> None:
        message = Message({}, msgspec.msgpack.encode(parcel))
        self._cell.fire_and_forget(CHANNEL, topic, self._cells[to], message, optional=True)

    def ask(self, to: str, topic: Topic, parcel: Parcel, seconds: float) -> Parcel | None:
        message = Message({}, msgspec.msgpack.encode(parcel))
        reply = self._cell.send_request(
            CHANNEL, topic, self._cells[to], message, timeout=seconds, optional=True
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE, CellCode.OK)
        return _parcel(reply) if code == CellCode.OK else None

    def _sender(self, message: Any) -> str | None:
        """The name of the process that a message is from, if it is one of this job: what the
        sender's cell is called, the name that NVFlare's server has signed, and the token of that
        process. NVFlare signs name and token without anything between: "west" with a token "-2..."
        has the signature of a client "west-2", but not the token of west.
        """
        name = self._names.get(str(message.get_header(MessageHeaderKey.ORIGIN)))
        known = message.get_header(CellMessageAuthHeaderKey.CLIENT_NAME)
        token = message.get_header(CellMessageAuthHeaderKey.TOKEN)
        if name is None or token != self._tokens[name]:
            return None
        return name if known == (AUTH_CLIENT_NAME_FOR_SJ if name == SERVER else name) else None


def _parcel(message: Any) -> Parcel | None:
    """Return the parcel in a message; None for anything else than bytes of a parcel."""
    if not isinstance(message.payload, bytes | bytearray | memoryview):
        return None
    try:
        return msgspec.msgpack.decode(message.payload, type=Parcel)
    except msgspec.MsgspecError:
        return None


def _agreed(kit: Path, federation: str, digest: str) -> Agreed:
    """The agreement of a kit, which is that of the job.

    Raises:
        StudyError: if it is another one.
    """
    found = Agreed(kit)
    if (found.agreement.name, found.digest) != (federation, digest):
        raise StudyError(
            f"{kit}: the job is of another agreement than this kit. Make the job again from the "
            "kits that everybody has"
        )
    return found


def _refuse_insecure(fl_ctx: Any) -> None:
    """Refuse an NVFlare whose connections are not certified.

    Raises:
        StudyError: if this process is of one.
    """
    if not fl_ctx.get_prop(FLContextKey.SECURE_MODE, False):
        raise StudyError(
            "this NVFlare does not run in secure mode: nobody would certify who the server and the "
            "sites are. Start it from what NVFlare has provisioned, with secure_train=true"
        )


def _local(fl_ctx: Any) -> Path:
    """Return the folder of the site's own settings."""
    return Path(fl_ctx.get_workspace().get_site_config_dir())


def _shown(words: Callable[[str], None]) -> Shown:
    return Shown(row=lambda row: None, begin=lambda going: None, log=log_to(words))


class Words:
    """A site's own messages, in a file beside its run folder: NVFlare sends its own logs to the
    server, and what a site refuses may tell something of its data.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, words: str) -> None:
        """Add a line."""
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"{now} {words}\n")


class _Work:
    """Something that goes on in a thread until it is done or nobody wants it any more."""

    def __init__(self, what: Callable[[], Outcome]) -> None:
        self.done: Outcome | None = None
        self.error: Exception | None = None
        self._what = what
        self._thread = threading.Thread(target=self._run, name="sordino", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.done = self._what()
            with resumable(Path(self.done.run)):
                report.write(Path(self.done.run))
        except Exception as error:
            self.error = error

    def wait(self, abort: Any, hopeless: Callable[[], bool] = lambda: False) -> bool:
        """Return whether it has ended; False if NVFlare wants it to end before, or it cannot."""
        while self._thread.is_alive():
            if abort.triggered or hopeless():
                return False
            self._thread.join(LOOK)
        return True


class Serve(Controller):  # type: ignore[misc]  # the library has no types
    """The server's part of a job.

    Args:
        federation: its name, a table of ``local/sordino.toml``.
        digest: of what everybody has agreed to.
    """

    def __init__(self, federation: str, digest: str) -> None:
        super().__init__()
        self._federation, self._digest = federation, digest
        self._hub: FlareHub | None = None

    def start_controller(self, fl_ctx: Any) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Nothing to end: the thread ends with the process."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Have the sites join, and serve the study until it is over."""
        everybody = [each.name for each in fl_ctx.get_engine().get_clients()]
        task = Task(name=TASK, data=Shareable())
        self.broadcast(task, fl_ctx, targets=everybody, min_responses=len(everybody))
        try:
            own = local.read(_local(fl_ctx), self._federation, local.ServerTable)
            agreed = _agreed(own.kit, self._federation, self._digest)
        except StudyError as error:
            self.system_panic(str(error), fl_ctx)
            return
        work = _Work(lambda: self._serve(own, agreed, fl_ctx))
        quorum = Quorum(agreed.agreement.minimum, own.wait)
        if not work.wait(abort_signal, lambda: quorum.lost(self._hub, time.monotonic())):
            if not abort_signal.triggered:
                self.system_panic(f"{quorum}. {AGAIN}", fl_ctx)
            return
        if work.error is not None:
            over = f". {ENDED}" if isinstance(work.error, BudgetExceeded) else ""
            self.system_panic(f"{type(work.error).__name__}: {work.error}{over}", fl_ctx)
            return
        if work.done is not None and cut_short(work.done.why):
            self.system_panic(f"{work.done.why}. {ENDED}", fl_ctx)
            return
        end = time.monotonic() + FAREWELL
        while task.completion_status is None and time.monotonic() < end:
            if abort_signal.triggered:
                return
            time.sleep(LOOK)

    def _serve(self, own: local.ServerTable, agreed: Agreed, fl_ctx: Any) -> Outcome:
        _refuse_insecure(fl_ctx)
        engine, names = fl_ctx.get_engine(), frozenset(agreed.agreement.names)
        clients = [each for each in engine.get_clients() if each.name in names]
        peers = {each.name: (each.get_fqcn(), each.token) for each in clients}
        post = CellPost(engine.get_cell(), fl_ctx.get_job_id(), peers)

        def opens(
            limit: int,
            mailbox: Mailbox,
            refused: Callable[[str, str], None],
            told: Callable[[str], None],
        ) -> Hub:
            self._hub = FlareHub(post, limit, names, mailbox, refused)
            return self._hub

        run, name = own.out or own.kit / RUN, agreed.agreement.name
        with nullcontext() if own.page is None else closing(Page({name: run}, own.page)):
            return serve(
                own.kit,
                # who refuses chooses words, and must not say for the server that it is over
                _shown(lambda words: self.log_info(fl_ctx, words.replace(ENDED, ENDED.upper()))),
                out=run,
                test=own.test,
                durable=own.durable,
                scripted=own.scripted,
                within=own.answer_within,
                way=opens,
            )

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: Any
    ) -> None:
        """A site's process has ended after the server's: it says nothing that is needed."""


class Join(Executor):  # type: ignore[misc]  # the library has no types
    """A site's part of a job.

    Args:
        federation: its name, a table of ``local/sordino.toml``.
        digest: of what everybody has agreed to.
    """

    def __init__(self, federation: str, digest: str) -> None:
        super().__init__()
        self._federation, self._digest = federation, digest

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Take part in the study until it is over."""
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            own = local.read(_local(fl_ctx), self._federation, local.SiteTable)
        except StudyError as error:
            self.log_error(fl_ctx, str(error))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        words = Words((own.out or own.kit / RUN).with_name(WORDS))
        work = _Work(lambda: self._join(own, words, fl_ctx))
        if not work.wait(abort_signal):
            return make_reply(ReturnCode.TASK_ABORTED)
        if work.error is not None:
            words(f"{type(work.error).__name__}: {work.error}")
            self.log_error(fl_ctx, f"this site's part has failed; {words.path} says why")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return make_reply(ReturnCode.OK)

    def _join(self, own: local.SiteTable, words: Words, fl_ctx: Any) -> Outcome:
        _refuse_insecure(fl_ctx)
        warnings.simplefilter("ignore")  # NVFlare logs them, and a library's may quote rows
        agreed, name = _agreed(own.kit, self._federation, self._digest), fl_ctx.get_identity_name()
        if agreed.agreement.names[site_of(agreed)] != name:
            raise StudyError(
                f"{own.kit}: this is not the kit of {name}, as NVFlare calls this site"
            )
        cell, running = fl_ctx.get_engine().get_cell(), fl_ctx.get_job_id()
        post = CellPost(cell, running, {SERVER: (FQCN.ROOT_SERVER, running)})
        options = JoinOptions(
            kit=own.kit,
            data=own.data,
            ledger=own.ledger,
            limit=own.epsilon_limit,
            out=own.out,
            rehearsal=own.rehearsal,
        )
        return join(options, _shown(words), connects=lambda limit: FlareLine(post, limit))
