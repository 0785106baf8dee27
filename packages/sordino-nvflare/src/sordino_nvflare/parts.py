"""The two parts of a job of NVFlare, a controller at the server and an executor at each site: they
put the ends of the tunnel on messages between the processes of the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import CellMessageAuthHeaderKey, ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message

from sordino_nvflare import local
from sordino_nvflare.tunnel import LOOK, Parcel, ServerEnd, SiteEnd, bound

TASK, CHANNEL = "sordino", "sordino"
_parcels = msgspec.msgpack.Decoder(Parcel)


class Post:
    """Messages between the process of this job and its other processes.

    Args:
        cell: of this process.
        peers: names of the cells that are heard, and the token that NVFlare's server gave each of
            them; None where the sender is not looked at.
    """

    def __init__(self, cell: Any, peers: Mapping[str, str | None]) -> None:
        self._cell = cell.core_cell  # without the library's streams, which send full blocks only
        self._peers = peers

    def tell(self, peer: str, parcel: Parcel) -> bool:
        """Put a message on its way; return whether that was possible."""
        message = Message({}, msgspec.msgpack.encode(parcel))
        try:
            said = self._cell.fire_and_forget(CHANNEL, "", peer, message, optional=True)
        except Exception:  # the library has many; each means that nothing was sent
            return False
        return not any((said or {}).values())

    def hear(self, got: Callable[[str, Parcel], None]) -> None:
        """Have messages taken, in threads of the library."""

        def taken(message: Any) -> None:
            peer = str(message.get_header(MessageHeaderKey.ORIGIN))
            token = message.get_header(CellMessageAuthHeaderKey.TOKEN)
            if peer not in self._peers or self._peers[peer] not in (None, token):
                return
            if isinstance(message.payload, bytes | bytearray | memoryview):
                try:
                    parcel = _parcels.decode(message.payload)
                except msgspec.MsgspecError:
                    return
                got(peer, parcel)

        self._cell.register_request_cb(CHANNEL, "", taken)


def _local(fl_ctx: Any) -> Path:
    """Return the folder of this end's own settings."""
    return Path(fl_ctx.get_workspace().get_site_config_dir())


class ServerPart(Controller):  # type: ignore[misc]  # the library has no types
    """The server's part: until an admin aborts the job, or nobody has used it for a time.

    Args:
        port: that connections go to, if this end's operator allows it.
        idle: seconds without a connection after which the job ends.
    """

    def __init__(self, port: int, idle: float) -> None:
        super().__init__()
        self._asked, self._idle = port, float(idle)

    def start_controller(self, fl_ctx: Any) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Nothing to end."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Have the sites listen, and carry bytes."""
        try:
            port = local.allowed(_local(fl_ctx), self._asked)
        except local.Refused as error:
            self.system_panic(str(error), fl_ctx)
            return
        engine, job = fl_ctx.get_engine(), fl_ctx.get_job_id()
        clients = engine.get_clients()
        post = Post(
            engine.get_cell(), {FQCN.join([each.get_fqcn(), job]): each.token for each in clients}
        )
        end = ServerEnd(post.tell, port, lambda text: self.log_info(fl_ctx, text))
        with closing(end):
            post.hear(end.got)
            names = [each.name for each in clients]
            task = Task(name=TASK, data=Shareable())
            self.broadcast(task, fl_ctx, targets=names, min_responses=len(names))
            while not abort_signal.triggered and task.completion_status is None:
                if end.quiet() > self._idle:
                    self.log_info(fl_ctx, f"no connection for {self._idle:g} seconds: the job ends")
                    return
                time.sleep(LOOK)
        if not abort_signal.triggered:
            self.system_panic("no site carries anything any more; their logs say why", fl_ctx)

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: Any
    ) -> None:
        """A site's part has ended after the server's: nothing is needed of it."""


class SitePart(Executor):  # type: ignore[misc]  # the library has no types
    """A site's part.

    Args:
        port: of the job; this end's operator says which port of the loopback listens for it.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self._asked = port

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Carry bytes until the job ends."""
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            port = local.allowed(_local(fl_ctx), self._asked)
        except local.Refused as error:
            self.log_error(fl_ctx, str(error))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        server = FQCN.join([FQCN.ROOT_SERVER, fl_ctx.get_job_id()])
        post = Post(fl_ctx.get_engine().get_cell(), {server: None})

        def wanted() -> bool:
            return not abort_signal.triggered

        with closing(SiteEnd(post.tell, server)) as end:
            post.hear(end.got)
            if (listener := bound(port, wanted)) is not None:
                with listener:
                    self.log_info(fl_ctx, f"listening on port {port} of the loopback")
                    end.listen(listener, wanted)
        return make_reply(ReturnCode.TASK_ABORTED)
