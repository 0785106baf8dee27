"""The server: from a kit to a finished run folder, and on after a kill.

A server has everything that a simulation has but the clients' data. Its run folder is an ordinary
one: log, checkpoints, model, report; its ledger books what was asked of every site, once. What a
site computed again after a kill is in the site's own ledger alone. Beside it stands the journal of
what reached the server.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sordino.base.errors import StudyError
from sordino.base.files import GIB, read_below, readable
from sordino.base.frozen import Frozen
from sordino.base.settings import give_back, tune
from sordino.core import regimes
from sordino.core.files import locked, replace_file
from sordino.core.prepared import Affordable, PreparedRun, PrepareRun
from sordino.core.records import known
from sordino.core.run import reading
from sordino.core.run.session import Outcome, begin, resume
from sordino.core.study.base import Study
from sordino.core.world import EncodedSnapshot, RunListener, RunPlayer, ServerSide, Snapshot
from sordino.data.dataset import Dataset
from sordino.network import certificates, frames, sums, transport
from sordino.network.kernel import KernelOptions, LiveKernel, NetworkKernel, ScriptedKernel
from sordino.network.kit import AGAIN, AGREEMENT, RUN, Agreed, read_agreement
from sordino.network.server_session import ServerSession
from sordino.network.status import Incidents, Listeners, Reporter, conclude
from sordino.network.storage import JOURNAL, Journal, load_tokens
from sordino.network.transport import Hub, Mailbox, OpensHub
from sordino.privacy import Budget, Event, LedgerSession
from sordino.privacy import decode as event_of
from sordino.privacy import encode as written

FAREWELL = 10.0
"""Seconds that the server waits at the end for sites to keep what they need."""
LAST = "farewell.bin"
"""The file of a :class:`Farewell`."""


class Farewell(Frozen, tag="farewell", tag_field="kind"):
    """Last message to every site, for those that were away then; and what a site is told that has
    forgotten a part of what it did, because its folder was put back from an older copy.

    Attributes:
        answered: number of the last task that a site has answered, where that is no secret.
        rounds: that were charged to everybody, and their events, as the ledger writes them.
    """

    bye: frames.Bye
    answered: dict[int, int] = msgspec.field(default_factory=dict)
    rounds: tuple[tuple[int, str], ...] = ()


_last = msgspec.msgpack.Decoder(Farewell)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server.

    Attributes:
        agreed: what everybody has agreed to.
        opens: the transport, for frames of at most so many bytes.
        noted: told of each refusal: which site, what it is, and the detail.
        reports: called with the kernel after each input, and every second without one.
        test: public rows that models are measured on.
        scripted: whether the simulator's clock decides who is heard first.
        durable: whether each input waits for the disk.
        within: seconds in which a site answers, if they are not as agreed.
    """

    agreed: Agreed
    opens: Callable[[int, Mailbox], Hub]
    reports: Callable[[Any], None] = lambda kernel: None
    noted: Callable[[str, str, str], object] = lambda site, what, detail: None
    test: Dataset | None = None
    scripted: bool = False
    durable: bool = False
    within: float | None = None


def serve(
    folder: Path,
    listeners: Listeners,
    *,
    way: OpensHub,
    out: Path | None = None,
    test: Path | None = None,
    durable: bool = False,
    scripted: bool = False,
    within: float | None = None,
) -> Outcome:
    """Serve a kit's study to its sites, until it is over.

    Args:
        folder: the server's kit.
        way: opens the transport.
        out: the run folder; goes on with it if it is there.
        test: rows that models are measured on, which are public.
        durable: whether each input waits for the disk.
        scripted: whether the simulator's clock decides who is heard first; for rehearsals.
        within: seconds in which a site that is connected answers; as agreed, if left out.

    Raises:
        StudyError: if the kit does not fit.
    """
    if within is not None and not within > 0:
        raise StudyError(f"--answer-within: it must be positive; got {within}")
    tune(trains=False)
    agreed, run = Agreed(folder), out or folder / RUN
    agreement = agreed.agreement
    certificates.refuse_other_authority(folder, "server.pem")
    certificates.refuse_expired(folder, "server.pem", dt.datetime.now(dt.UTC))
    incidents = Incidents(run, listeners.log)
    opened: list[Hub] = []

    def opens(limit: int, mailbox: Mailbox) -> Hub:
        opened.append(way(limit, mailbox, incidents.connection, listeners.log.info))
        listeners.log.info(f"{agreement.name}: waiting for {len(agreement.names)} sites")
        return opened[-1]

    options = ServerOptions(
        agreed=agreed,
        opens=opens,
        reports=Reporter(run, agreed, incidents, listeners.log),
        noted=incidents.note,
        test=agreed.network.test(test),
        scripted=scripted,
        durable=durable,
        within=within,
    )
    build = prepare_server(options)
    if (run / "run.json").exists():
        done = resume(run, listeners.row, listeners.begin, build=build, again=AGAIN)
    else:
        done = begin(agreed.study, run, listeners.row, listeners.begin, build=build, again=AGAIN)
    with locked(run):
        if not opened:
            heard = farewell(run, options, FAREWELL)
            listeners.log.info(f"the run had ended; {heard} sites were told so")
        conclude(run, done.rounds, done.spent, done.why)
    return done


def serve_all(
    kits: Sequence[Path], play: Callable[[Path, OpensHub], None], *, host: str, address: str | None
) -> None:
    """Serve studies at once, each in a thread of its own, until all have ended. How one ends is
    nothing to the others.

    An interruption stops all of them where they next look for what their sites say.

    Args:
        kits: of servers.
        play: serves the study of a kit, given how its end of the transport is opened.
        host: address to listen on; empty for every one of this machine.
        address: host and port of this server or the broker, if they are not the agreed ones now.

    Raises:
        StudyError: if the kits do not fit each other.
        BaseException: what ``play`` has raised for the first kit for which it has.
    """
    agreements = {kit: read_agreement(kit / AGREEMENT) for kit in kits}
    travels = {each.transport for each in agreements.values()}
    if len(agreements) > 1 and travels != {"websocket"}:
        raise StudyError(
            f"several kits: only transport = 'websocket' has one port for all, and here are "
            f"{', '.join(sorted(travels))}. Start a process for each study"
        )
    ways = transport.of(travels.pop()).servers(agreements, host, address)
    mailboxes, stopped, turns = list[Mailbox](), threading.Event(), threading.Lock()

    def life(kit: Path) -> None:
        with ExitStack() as turn:
            # first models are drawn from generators of the process: one study begins at a time
            turn.enter_context(turns)

            def opens(limit: int, mailbox: Mailbox, *told: Any) -> Hub:
                mailboxes.append(mailbox)
                if stopped.is_set():
                    mailbox.stop()
                turn.close()
                return ways[kit](limit, mailbox, *told)

            play(kit, opens)

    with ThreadPoolExecutor(len(ways)) as pool:
        lives = [pool.submit(copy_context().run, life, kit) for kit in ways]
        try:
            wait(lives)
        except KeyboardInterrupt:
            stopped.set()
            for mailbox in mailboxes:
                mailbox.stop()
    for each in lives:
        each.result()


def farewell(folder: Path, options: ServerOptions, seconds: float) -> int:
    """Tell the sites of a run that has ended how it ended; how many have heard it. A journal that
    a kill has left is removed.

    Raises:
        StudyError: if the folder's run has not ended.
    """
    with readable(folder / LAST, missing="this run has not ended yet"):
        last = _last.decode(read_below(folder, LAST, most=GIB))
    (folder / JOURNAL).unlink(missing_ok=True)
    dimension, mailbox = len(last.bye.model) // 4, Mailbox()
    with closing(options.opens(frames.limit(dimension), mailbox)) as hub:
        session = ServerSession(
            hub,
            mailbox,
            options.agreed,
            dimension=dimension,
            run=str(known(reading.load(folder).about.run)),
            noted=options.noted,
            owed=lambda site, after: [
                (number, event_of(event)) for number, event in last.rounds if number > after
            ],
        )
        for site, number in last.answered.items():
            session.answered(site, number)
        return session.bye(last.bye, seconds)


def _bye(moment: Snapshot, hands_out: bool) -> frames.Bye:
    given = moment.model if hands_out else moment.model[:0]
    model = np.ascontiguousarray(given, dtype="<f4").tobytes()
    return frames.Bye(why=moment.ended or "", model=model)


def prepare_server(options: ServerOptions) -> PrepareRun:
    """Return what makes the objects of a calibrated study at the server."""

    def build(study: Study, folder: Path, run: str, steps: Affordable) -> PreparedRun:
        if not (folder / "run.json").exists():  # single updates of sites will be here
            folder.chmod(0o700)
        here = regimes.of(study).network(options.agreed.agreement, study)
        built = here.server(folder, run, steps, options.test)
        inner = built.simulation
        serving = ServerRun(
            options,
            inner,
            folder,
            run,
            inner.ledgers,
            inner.units,
            inner.budget,
            inner.affordable_steps,
        )
        return replace(built, simulation=serving, agreed=True)

    return build


@dataclass(frozen=True, slots=True, eq=False)
class ServerRun:
    """A run whose clients are sites, as :class:`~sordino.core.world.RunPlayer` has it.

    Attributes:
        inner: the simulation of the same study, over stand-ins.
        folder: of the run.
        run_id: identifier of the run.
        ledgers, units, budget, affordable_steps: of the simulation.
    """

    options: ServerOptions
    inner: RunPlayer
    folder: Path
    run_id: str
    ledgers: LedgerSession
    units: Sequence[str]
    budget: Budget
    affordable_steps: list[int] | None

    def unpack(self, packed: EncodedSnapshot) -> Any:
        return self.inner.unpack(packed)

    def run(self, moment: Any, watcher: RunListener) -> Any:
        """Open the transport, play to the end, and say good-bye."""
        agreed, own, mailbox = self.options.agreed, self.options, Mailbox()
        world: Any = self.inner
        moment = world.resumed(moment)
        dimension = moment.model.size
        with closing(own.opens(frames.limit(max(dimension, world.widest)), mailbox)) as hub:
            session = ServerSession(
                hub,
                mailbox,
                agreed,
                dimension=dimension,
                run=self.run_id,
                noted=own.noted,
                world=world,
                owed=partial(self._owed, world),
                tokens=load_tokens(self.folder, self.run_id),
            )
            kernel = self._kernel(world, moment, watcher, session)
            del moment  # it holds the first model
            give_back()
            done = kernel.run()
            session.bye(_bye(done, world.hands_out), FAREWELL)
        del session, kernel
        give_back()  # before the page is drawn
        return done

    def _owed(self, world: ServerSide[Any], site: int, after: int) -> Iterable[tuple[int, Event]]:
        if not world.charges_everybody:
            return ()
        ledger, unit = self.ledgers.ledger, self.ledgers.names[self.units[site]]
        return [(each.round, each.event) for each in ledger.entries(unit) if each.round > after]

    def _kernel(
        self, world: ServerSide[Any], moment: Any, watcher: Any, session: ServerSession
    ) -> NetworkKernel[Any]:
        own, agreed = self.options, self.options.agreed

        def ends(moment: Snapshot) -> None:
            """A server that is killed before the end itself is kept can still tell the sites."""
            sites = {unit: site for site, unit in enumerate(self.units)}.values()
            charged = dict(each for site in sites for each in self._owed(world, site, 0))
            rounds = tuple((number, written(event)) for number, event in sorted(charged.items()))
            last = Farewell(_bye(moment, world.hands_out), dict(session.answers()), rounds)
            replace_file(self.folder / LAST, msgspec.msgpack.encode(last), mode=0o600)

        summing, secret = agreed.summing, agreed.study.privacy.entropy == "system"
        # The aggregator replays its noise, which must not meet other inputs than before.
        journal = Journal(
            self.folder,
            durable=own.durable or world.charges_everybody,
            history=world.regime.history if secret else None,
        )
        if journal.damage:
            own.noted("", "journal", journal.damage)
        options = KernelOptions(
            session=session,
            journal=journal,
            within=own.within or agreed.agreement.answer_within,
            reports=own.reports,
            ends=ends,
            sums=None if summing is None else sums.Sums(session, agreed, summing),
        )
        kernels: tuple[type[NetworkKernel[Any]], ...] = (LiveKernel, ScriptedKernel)
        if summing is not None:
            kernels = sums.LiveSums, sums.ScriptedSums
        return kernels[own.scripted](world, moment, watcher, options)
