"""The server's half of a run: everything that a simulation has but the clients' data.

It is an ordinary run folder: log, checkpoints, model, report; its ledger books what was asked of
every site, so it is an upper bound of what each site's own ledger holds. Beside it stands the
journal of what reached the server.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sordino.base.errors import BudgetExceeded, StudyError
from sordino.base.files import GIB, read_below
from sordino.core.files import replace_file
from sordino.core.prepared import PreparedRun
from sordino.core.records import Row, known
from sordino.core.run import reading
from sordino.core.run.log import RunLog
from sordino.core.simulation import EncodedSnapshot, RunListener, Snapshot
from sordino.core.study.base import Study
from sordino.core.world import ServerSide
from sordino.data.dataset import Dataset
from sordino.network import frames, seals
from sordino.network.agreement import Agreed
from sordino.network.checks import Unfit, unknown
from sordino.network.courier import Courier
from sordino.network.journal import NAME as JOURNAL
from sordino.network.journal import Journal
from sordino.network.kernel import LiveKernel
from sordino.network.scripted import ScriptedKernel
from sordino.network.seals import Seals
from sordino.network.summing import kernels
from sordino.network.transport import Hub, Mailbox
from sordino.privacy import Budget, Event, LedgerSession

FAREWELL = 10.0
"""Seconds that the server waits at the end for sites to keep what they need."""

LAST = "farewell.bin"
"""What every site is told at the end, for those that were away then."""

Owed = Callable[[int, int], Iterable[tuple[int, Event]]]
"""Rounds that were charged to a site after the one with this number, and their events."""

Noted = Callable[[str, str, str], object]
"""Told of an incident: which site, what, and the detail."""

Opens = Callable[[int, Mailbox], Hub]
"""Opens the transport for frames of at most so many bytes."""


@contextmanager
def _connected(
    agreed: Agreed,
    opens: Opens,
    run: str,
    dimension: int,
    refused: Callable[[str, str], None],
    clock: Callable[[], float],
    *,
    widest: int = 0,
    unfit: Unfit = unknown,
    most: float = math.inf,
    noted: Noted = lambda site, what, detail: None,
    owed: Owed = lambda site, after: (),
    sealed: Seals | None = None,
) -> Iterator[Courier]:
    """A courier over an open transport."""
    mailbox = Mailbox()
    hub = opens(frames.limit(max(dimension, widest)), mailbox)
    try:
        yield Courier(
            hub,
            mailbox,
            agreed.agreement.names,
            dimension=dimension,
            run=run,
            agreement=agreed.digest,
            patience=agreed.agreement.patience,
            refused=refused,
            unfit=unfit,
            most=most,
            noted=noted,
            owed=owed,
            seals=sealed,
            clock=clock,
        )
    finally:
        hub.close()


def farewell(
    agreed: Agreed, folder: Path, opens: Opens, refused: Callable[[str, str], None], seconds: float
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
    run = str(known(reading.load(folder).about.run))
    dimension = len(bye.model) // 4
    with _connected(agreed, opens, run, dimension, refused, time.monotonic) as courier:
        return courier.bye(bye, seconds)


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
        """See :class:`~sordino.core.simulation.RunListener`."""
        self.watcher.row(row)

    def save(self, moment: Snapshot) -> None:
        """See :class:`~sordino.core.simulation.RunListener`."""
        if moment.ended is not None:
            replace_file(self.folder / LAST, frames.encode(_bye(moment, self.hands_out)))
        self.watcher.save(moment)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Serving:
    """A run whose clients are sites: what :class:`~sordino.core.simulation.Simulation` asks for.

    Attributes:
        agreed: what everybody has agreed to.
        inner: the simulation of the same study, over stand-ins.
        folder: of the run.
        run_id: identifier of the run.
        opens: the transport.
        refused: told of each kind of refusal once: which site, and why; ``noted`` of each one, and
            what it is.
        told: told of progress, with the courier and the kernel; ``idle`` every second without any.
        scripted: whether the simulator's clock decides who is heard first.
        within: seconds in which a site answers, if they are not as agreed.
    """

    agreed: Agreed
    inner: Any
    folder: Path
    run_id: str
    opens: Opens
    refused: Callable[[str, str], None]
    told: Callable[[Courier, Any], None]
    idle: Callable[[Courier, Any], None]
    noted: Noted
    scripted: bool = False
    durable: bool = False
    within: float | None = None
    clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def ledgers(self) -> LedgerSession:
        """See :class:`~sordino.core.simulation.Simulation`."""
        found: LedgerSession = self.inner.ledgers
        return found

    @property
    def units(self) -> Sequence[str]:
        """See :class:`~sordino.core.simulation.Simulation`."""
        found: Sequence[str] = self.inner.units
        return found

    @property
    def budget(self) -> Budget:
        """See :class:`~sordino.core.simulation.Simulation`."""
        found: Budget = self.inner.budget
        return found

    @property
    def payable(self) -> list[int] | None:
        """See :class:`~sordino.core.simulation.Simulation`."""
        found: list[int] | None = self.inner.payable
        return found

    def unpack(self, packed: EncodedSnapshot) -> Snapshot:
        """See :class:`~sordino.core.simulation.Simulation`."""
        found: Snapshot = self.inner.unpack(packed)
        return found

    def run(self, moment: Any, watcher: RunListener[Any]) -> Snapshot:
        """Open the transport, play to the end, and say good-bye."""
        world, moment = self.agreed.network.world(self.inner, moment)
        with _connected(
            self.agreed,
            self.opens,
            self.run_id,
            moment.model.size,
            self.refused,
            self.clock,
            widest=world.widest,
            unfit=world.unfit,
            most=world.most,
            noted=self.noted,
            owed=partial(self._owed, world),
            sealed=seals.kept(self.folder, self.run_id),
        ) as courier:
            ends = _Ends(watcher, self.folder, world.hands_out)
            kernel = self._kernel(world, moment, ends, courier)
            try:
                done: Snapshot = kernel.run()
            except BudgetExceeded as refusal:
                courier.bye(_bye(kernel.moment(), world.hands_out, str(refusal)), FAREWELL)
                if not self.agreed.agreement.rehearsal:  # it goes no further, started again or not
                    kernel.journal.destroy()
                raise
            courier.bye(_bye(done, world.hands_out), FAREWELL)
        return done

    def _owed(self, world: ServerSide[Any], site: int, after: int) -> Iterable[tuple[int, Event]]:
        if not world.charges_everybody:
            return ()
        ledger, unit = self.ledgers.ledger, self.ledgers.names[self.units[site]]
        return [(each.round, each.event) for each in ledger.entries(unit) if each.round > after]

    def _kernel(
        self, world: ServerSide[Any], moment: Any, watcher: _Ends, courier: Courier
    ) -> LiveKernel[Any, Any] | ScriptedKernel[Any, Any]:
        dimension = moment.model.size
        # The aggregator replays its noise, which must not meet other inputs than before.
        journal = Journal(self.folder, durable=self.durable or world.charges_everybody)
        more, scripts, lives = kernels(world, self.agreed, dimension, self.run_id, courier)
        if self.scripted:
            scripted: ScriptedKernel[Any, Any] = scripts(
                world,
                moment,
                watcher,
                courier=courier,
                journal=journal,
                dimension=dimension,
                kept=lambda: watcher.kept,
                hurry=watcher.hurry,
                sites=len(courier.names),
                told=lambda: self.idle(courier, scripted),
                clock=self.clock,
                **more,
            )
            return scripted
        kernel: LiveKernel[Any, Any] = lives(
            world,
            moment,
            watcher,
            courier=courier,
            journal=journal,
            dimension=dimension,
            minimum=self.agreed.minimum,
            within=self.within or self.agreed.agreement.answer_within,
            kept=lambda: watcher.kept,
            hurry=watcher.hurry,
            told=lambda: self.told(courier, kernel),
            idle=lambda: self.idle(courier, kernel),
            clock=self.clock,
            **more,
        )
        return kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """Makes the objects of a study at the server; see :class:`sordino.core.run.session.Builds`."""

    agreed: Agreed
    opens: Opens
    refused: Callable[[str, str], None]
    told: Callable[[Courier, Any], None] = lambda courier, kernel: None
    idle: Callable[[Courier, Any], None] = lambda courier, kernel: None
    noted: Noted = lambda site, what, detail: None
    test: Dataset | None = None
    scripted: bool = False
    durable: bool = False
    within: float | None = None

    def __call__(
        self, study: Study, folder: Path, run: str, payable: Sequence[int] | None = None, /
    ) -> PreparedRun:
        """The objects of a calibrated study, with the server's ledger in ``folder``."""
        part = self.agreed.network
        if not (folder / "run.json").exists():  # single updates of sites will be here
            folder.chmod(0o700)
        built = part.server(self.agreed.agreement, study, folder, run, payable, self.test)
        serving = Serving(
            agreed=self.agreed,
            inner=built.simulation,
            folder=folder,
            run_id=run,
            opens=self.opens,
            refused=self.refused,
            told=self.told,
            idle=self.idle,
            noted=self.noted,
            scripted=self.scripted,
            durable=self.durable,
            within=self.within,
        )
        return replace(built, simulation=serving, agreed=True)
