"""The two parts of an NVFlare job that sends frames to and fro; see :mod:`bench.flare`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from bench.flare import BYTES, ECHOES, RESULT
from sordino.network.transport import Mailbox
from sordino_nvflare.channel import SERVER, FlareHub, FlareLine
from sordino_nvflare.job import TASK
from sordino_nvflare.parts import CellPost


class Back(Controller):  # type: ignore[misc]  # the library has no types
    """The server: sends back what comes."""

    def __init__(self, federation: str, digest: str) -> None:
        super().__init__()

    def start_controller(self, fl_ctx: Any) -> None:
        """Nothing to prepare."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Nothing to end."""

    def process_result_of_unknown_task(self, *given: Any, **named: Any) -> None:
        """Nothing comes."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Until the site has ended its connection."""
        engine, mailbox = fl_ctx.get_engine(), Mailbox()
        cells = {each.name: each.get_fqcn() for each in engine.get_clients()}
        post = CellPost(engine.get_cell(), fl_ctx.get_job_id(), cells)
        hub = FlareHub(post, 2 * BYTES, frozenset(cells), mailbox, lambda who, why: None)
        task = Task(name=TASK, data=Shareable())
        self.broadcast(task, fl_ctx, targets=list(cells), min_responses=len(cells))
        while (event := mailbox.get(60.0)) is not None and event.kind != "closed":
            if event.kind == "frame":
                hub.send(event.site, event.frame)
        while task.completion_status is None and not abort_signal.triggered:
            time.sleep(0.1)
        hub.close()


class Ask(Executor):  # type: ignore[misc]  # the library has no types
    """The site: sends, waits for what comes back, and writes down how long it took."""

    def __init__(self, federation: str, digest: str) -> None:
        super().__init__()

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """One frame after another."""
        cell = fl_ctx.get_engine().get_cell()
        line = FlareLine(CellPost(cell, fl_ctx.get_job_id(), {SERVER: FQCN.ROOT_SERVER}), 2 * BYTES)
        taken, frames, body = [], line.frames(), bytes(BYTES)
        for _ in range(ECHOES):
            start = time.perf_counter()
            line.send(body)
            next(frames)
            taken.append(time.perf_counter() - start)
        line.close()
        Path(os.environ[RESULT]).write_text(json.dumps(taken))
        return make_reply(ReturnCode.OK)
