"""The server's half of a run: everything that a simulation has but the clients' data.

It is an ordinary run folder: log, checkpoints, model, report; its ledger books what was asked of
every site, so it is an upper bound of what each site's own ledger holds. Beside it stands the
journal of what reached the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sordino.base.errors import BudgetExceeded, StudyError
from sordino.base.files import GIB, read_below
from sordino.core.files import replace_file
from sordino.core.prepared import PreparedRun, PrepareRun
from sordino.core.records import Row, known
from sordino.core.run import reading
from sordino.core.run.log import RunLog
from sordino.core.study.base import Study
from sordino.core.world import EncodedSnapshot, RunListener, ServerSide, Simulation, Snapshot
from sordino.data.dataset import Dataset
from sordino.network import frames, progress
from sordino.network.journal import NAME as JOURNAL
from sordino.network.journal import Journal
from sordino.network.kernel import LiveKernel
from sordino.network.kit import Agreed
from sordino.network.scripted import ScriptedKernel
from sordino.network.server_session import ServerSession
from sordino.network.sums import kernels
from sordino.network.transport import Hub, Mailbox
from sordino.privacy import Budget, Event, LedgerSession

FAREWELL = 10.0
"""Seconds that the server waits at the end for sites to keep what they need."""

LAST = "farewell.bin"
"""Last message to every site, for those that were away then."""

Noted = Callable[[str, str, str], object]
"""Told of an incident: which site, what, and the detail."""

OpensFor = Callable[[int, Mailbox], Hub]
"""Opens the transport for frames of at most so many bytes."""


@contextmanager
def _opened(opens: OpensFor, limit: int) -> Iterator[tuple[Hub, Mailbox]]:
    """The transport, open for frames of at most so many bytes."""
    mailbox = Mailbox()
    hub = opens(limit, mailbox)
    try:
        yield hub, mailbox
    finally:
        hub.close()


def farewell(
    agreed: Agreed,
    folder: Path,
    opens: OpensFor,
    refused: Callable[[str, str], None],
    seconds: float,
) -> int:
    """Tell the sites of a run that has ended how it ended; how many have heard it. A journal that
    a kill has left is removed.

    Raises:
        StudyError: if the folder's run has not ended.
    """
    try:
        bye = frames.to_site(read_below(folder, LAST, most=GIB))
    except FileNotFoundError:
        raise StudyError(f"{folder}: this run has not ended yet") from None
    (folder / JOURNAL).unlink(missing_ok=True)
    if not isinstance(bye, frames.Bye):
        raise StudyError(f"{folder / LAST}: this is no farewell")
    with _opened(opens, frames.limit(len(bye.model) // 4)) as (hub, mailbox):
        session = ServerSession(
            hub,
            mailbox,
            agreed.agreement.names,
            dimension=len(bye.model) // 4,
            run=str(known(reading.load(folder).about.run)),
            agreement=agreed.digest,
            patience=agreed.agreement.patience,
            refused=refused,
        )
        return session.bye(bye, seconds)


def _bye(moment: Snapshot, hands_out: bool, why: str = "") -> frames.Bye:
    given = moment.model if hands_out else moment.model[:0]
    model = np.ascontiguousarray(given, dtype="<f4").tobytes()
    return frames.Bye(why=moment.ended or why, model=model)


@dataclass(frozen=True, slots=True)
class _Ends:
    """A watcher that keeps what sites are told at the end, before the end itself is kept: a server
    that is killed between the two can still tell them.
    """

    watcher: RunListener[Any]
    folder: Path
    hands_out: bool

    @property
    def kept(self) -> int:
        """Number of the moment that was kept last."""
        return self.watcher.saved if isinstance(self.watcher, RunLog) else 0

    def hurry(self) -> None:
        """Let the next moment be kept, wherever the run stands."""
        if isinstance(self.watcher, RunLog):
            self.watcher.hurry()

    def row(self, row: Row) -> None:
        self.watcher.row(row)

    def save(self, moment: Snapshot) -> None:
        if moment.ended is not None:
            replace_file(self.folder / LAST, frames.encode(_bye(moment, self.hands_out)))
        self.watcher.save(moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server.

    Attributes:
        agreed: what everybody has agreed to.
        opens: the transport, for frames of at most so many bytes.
        refused: told of each kind of refusal once: which site, and why; ``noted`` of each one:
            which site, what it is, and the detail.
        told: told of progress, with the session and the kernel; ``idle`` every second without any.
        test: public rows that models are measured on.
        scripted: whether the simulator's clock decides who is heard first.
        durable: whether each input waits for the disk.
        within: seconds in which a site answers, if they are not as agreed.
    """

    agreed: Agreed
    opens: OpensFor
    refused: Callable[[str, str], None]
    told: Callable[[ServerSession, Any], None] = lambda session, kernel: None
    idle: Callable[[ServerSession, Any], None] = lambda session, kernel: None
    noted: Noted = lambda site, what, detail: None
    test: Dataset | None = None
    scripted: bool = False
    durable: bool = False
    within: float | None = None
    clock: Callable[[], float] = time.monotonic


def prepare_server(options: ServerOptions) -> PrepareRun:
    """Return what makes the objects of a calibrated study at the server."""

    def build(
        study: Study, folder: Path, run: str, affordable_steps: Sequence[int] | None = None, /
    ) -> PreparedRun:
        if not (folder / "run.json").exists():  # single updates of sites will be here
            folder.chmod(0o700)
        agreed = options.agreed
        built = agreed.network.server(
            agreed.agreement, study, folder, run, affordable_steps, options.test
        )
        inner = built.simulation
        serving = ServerRun(
            options=options,
            inner=inner,
            folder=folder,
            run_id=run,
            ledgers=inner.ledgers,
            units=inner.units,
            budget=inner.budget,
            affordable_steps=inner.affordable_steps,
        )
        return replace(built, simulation=serving, agreed=True)

    return build


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerRun:
    """A run whose clients are sites, as :class:`~sordino.core.world.Simulation` has it.

    Attributes:
        inner: the simulation of the same study, over stand-ins.
        folder: of the run.
        run_id: identifier of the run.
        ledgers, units, budget, affordable_steps: of the simulation.
    """

    options: ServerOptions
    inner: Simulation[Any]
    folder: Path
    run_id: str
    ledgers: LedgerSession
    units: Sequence[str]
    budget: Budget
    affordable_steps: list[int] | None

    def unpack(self, packed: EncodedSnapshot) -> Any:
        return self.inner.unpack(packed)

    def run(self, moment: Any, watcher: RunListener[Any]) -> Any:
        """Open the transport, play to the end, and say good-bye."""
        agreed, own = self.options.agreed, self.options
        world, moment = agreed.network.world(self.inner, moment)
        dimension = moment.model.size
        with _opened(own.opens, frames.limit(max(dimension, world.widest))) as (hub, mailbox):
            session = ServerSession(
                hub,
                mailbox,
                agreed.agreement.names,
                dimension=dimension,
                run=self.run_id,
                agreement=agreed.digest,
                patience=agreed.agreement.patience,
                refused=own.refused,
                noted=own.noted,
                unfit=world.unfit,
                most=world.most,
                owed=partial(self._owed, world),
                tokens=progress.kept(self.folder, self.run_id),
                clock=own.clock,
            )
            ends = _Ends(watcher, self.folder, world.hands_out)
            kernel = self._kernel(world, moment, ends, session)
            try:
                done = kernel.run()
            except BudgetExceeded as refusal:
                session.bye(_bye(kernel.moment(), world.hands_out, str(refusal)), FAREWELL)
                if not agreed.agreement.rehearsal:  # it goes no further, started again or not
                    kernel.journal.destroy()
                raise
            session.bye(_bye(done, world.hands_out), FAREWELL)
        return done

    def _owed(self, world: ServerSide[Any], site: int, after: int) -> Iterable[tuple[int, Event]]:
        if not world.charges_everybody:
            return ()
        ledger, unit = self.ledgers.ledger, self.ledgers.names[self.units[site]]
        return [(each.round, each.event) for each in ledger.entries(unit) if each.round > after]

    def _kernel(
        self, world: ServerSide[Any], moment: Any, watcher: _Ends, session: ServerSession
    ) -> LiveKernel[Any, Any] | ScriptedKernel[Any, Any]:
        own, dimension = self.options, moment.model.size
        # The aggregator replays its noise, which must not meet other inputs than before.
        journal = Journal(self.folder, durable=own.durable or world.charges_everybody)
        more, scripts, lives = kernels(own.agreed, dimension, self.run_id, session)
        if own.scripted:
            scripted: ScriptedKernel[Any, Any] = scripts(
                world,
                moment,
                watcher,
                session=session,
                journal=journal,
                dimension=dimension,
                kept=lambda: watcher.kept,
                hurry=watcher.hurry,
                sites=len(session.names),
                told=lambda: own.idle(session, scripted),
                clock=own.clock,
                **more,
            )
            return scripted
        kernel: LiveKernel[Any, Any] = lives(
            world,
            moment,
            watcher,
            session=session,
            journal=journal,
            dimension=dimension,
            minimum=own.agreed.minimum,
            within=own.within or own.agreed.agreement.answer_within,
            kept=lambda: watcher.kept,
            hurry=watcher.hurry,
            told=lambda: own.told(session, kernel),
            idle=lambda: own.idle(session, kernel),
            clock=own.clock,
            **more,
        )
        return kernel
