"""The server's half of a run: everything that a simulation has but the clients' data.

It is an ordinary run folder: log, checkpoints, model, report; its ledger books what was asked of
every site, so it is an upper bound of what each site's own ledger holds. Beside it stands the
journal of what reached the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.dataset import Dataset
from sordino.engine.built import Built
from sordino.engine.kernel import Kernel
from sordino.engine.study.base import Study
from sordino.engine.surroundings import sources
from sordino.engine.watch import Moment, Packed, Watcher
from sordino.engine.world import World
from sordino.network import frames
from sordino.network.agreement import Agreed
from sordino.network.carrier import carrier
from sordino.network.courier import Courier
from sordino.network.journal import Journal
from sordino.network.kernel import LiveKernel, ScriptedKernel
from sordino.network.transport.base import Hub, Mailbox
from sordino.privacy import Budget, Vault

FAREWELL = 10.0
"""Seconds that the server waits at the end for sites to keep what they need."""

Opens = Callable[[int, Mailbox], Hub]
"""Opens the transport for frames of at most so many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Serving:
    """A run whose clients are sites: what :class:`~sordino.engine.play.Play` asks for.

    Attributes:
        agreed: what everybody has agreed to.
        inner: the simulation of the same study, over stand-ins.
        world: the federation as the kernel sees it, from a moment, which may have to be copied.
        folder: of the run.
        run_id: identifier of the run.
        opens: the transport.
        refused: told of everything that is refused: which site, and why.
        told: told of progress, with the courier.
        scripted: whether the simulator's clock decides who is heard first.
    """

    agreed: Agreed
    inner: Any
    folder: Path
    run_id: str
    world: Callable[[Any], tuple[World[Any], Any]]
    opens: Opens
    refused: Callable[[str, str], None]
    told: Callable[[Courier, Any], None]
    scripted: bool = False
    durable: bool = False
    clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def vault(self) -> Vault:
        """See :class:`~sordino.engine.play.Play`."""
        found: Vault = self.inner.vault
        return found

    @property
    def units(self) -> Sequence[str]:
        """See :class:`~sordino.engine.play.Play`."""
        found: Sequence[str] = self.inner.units
        return found

    @property
    def budget(self) -> Budget:
        """See :class:`~sordino.engine.play.Play`."""
        found: Budget = self.inner.budget
        return found

    @property
    def payable(self) -> list[int] | None:
        """See :class:`~sordino.engine.play.Play`."""
        found: list[int] | None = self.inner.payable
        return found

    def unpack(self, packed: Packed) -> Moment:
        """See :class:`~sordino.engine.play.Play`."""
        found: Moment = self.inner.unpack(packed)
        return found

    def run(self, moment: Any, watcher: Watcher) -> Moment:
        """Open the transport, play to the end, and say good-bye."""
        mailbox, agreement = Mailbox(), self.agreed.agreement
        world, moment = self.world(moment)
        dimension = moment.model.size
        hub = self.opens(frames.limit(max(dimension, world.widest)), mailbox)
        courier = Courier(
            hub,
            mailbox,
            agreement.names,
            dimension=dimension,
            run=self.run_id,
            agreement=self.agreed.digest,
            code=sources(),
            patience=agreement.patience,
            refused=self.refused,
            unfit=world.unfit,
            clock=self.clock,
        )
        kernel = None
        try:
            kernel = self._kernel(world, moment, watcher, courier)
            done: Moment = kernel.run()
            given = done.model if world.hands_out else done.model[:0]
            model = np.ascontiguousarray(given, dtype="<f4").tobytes()
            courier.bye(done.ended or "", model, FAREWELL)
        finally:
            hub.close()
            if isinstance(kernel, LiveKernel):
                kernel.journal.close()
        return done

    def _kernel(
        self, world: World[Any], moment: Any, watcher: Watcher, courier: Courier
    ) -> Kernel[Any, Any]:
        dimension = moment.model.size
        if self.scripted:
            return ScriptedKernel(
                world,
                moment,
                watcher,
                courier=courier,
                dimension=dimension,
                sites=len(courier.names),
            )
        kernel: LiveKernel[Any, Any] = LiveKernel(
            world,
            moment,
            watcher,
            courier=courier,
            journal=Journal(self.folder, durable=self.durable),
            dimension=dimension,
            minimum=self.agreed.agreement.minimum,
            told=lambda: self.told(courier, kernel),
            clock=self.clock,
        )
        return kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """Makes the objects of a study at the server; see :class:`sordino.engine.session.Builds`."""

    agreed: Agreed
    opens: Opens
    refused: Callable[[str, str], None]
    told: Callable[[Courier, Any], None] = lambda courier, kernel: None
    test: Dataset | None = None
    scripted: bool = False
    durable: bool = False

    def __call__(
        self, study: Study, folder: Path, run: str, payable: Sequence[int] | None = None, /
    ) -> Built:
        """The objects of a calibrated study, with the server's ledger in ``folder``."""
        part = carrier(study)
        built = part.served(self.agreed, study, folder, run, payable, self.test)
        serving = Serving(
            agreed=self.agreed,
            inner=built.simulation,
            folder=folder,
            run_id=run,
            world=part.world(built.simulation),
            opens=self.opens,
            refused=self.refused,
            told=self.told,
            scripted=self.scripted,
            durable=self.durable,
        )
        return replace(built, simulation=serving)
