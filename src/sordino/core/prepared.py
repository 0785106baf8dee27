"""A study before it runs: its price, its simulation, the ledger and the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from sordino.base.fingerprints import joined, key_seen_by_others, keyed, record_key
from sordino.base.message import Vector
from sordino.core.plan import Plan
from sordino.core.records import Facts, Metrics
from sordino.core.statements import SiteScope
from sordino.core.study.base import Study
from sordino.core.world import Simulation, Snapshot
from sordino.data.notices import notice
from sordino.privacy import Budget, LedgerSession
from sordino.privacy.records import Records
from sordino.privacy.storage import seen_by_others

if TYPE_CHECKING:
    from sordino.training.flat import Flat


UNIT = "test"
"""Whose data the rows of a private test share are, in the ledger."""

ELSEWHERE = ("site:", "elsewhere/")
"""Stand-ins for the fingerprint of data that another process has."""

PUBLIC = "public"
"""Whose data rows are that were declared public, in a ledger of the data: later runs must know."""


class Paid(Protocol):
    """A measurement on private rows, at a price."""

    @property
    def budget(self) -> Budget:
        """The most that may be spent on these rows in all."""
        ...

    def spent(self) -> float:
        """Epsilon of these rows so far."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRun:
    """Everything that a run needs, and the moment it begins at. Raw data is in the clients only.

    Attributes:
        study: calibrated.
        plan: its price.
        simulation: who plays it.
        first: the moment before anything happened.
        facts: what run.json says of this regime.
        model: the model's name, and ``named`` its parameters by name, from one vector (d,).
        paid: what privacy is paid for, in the singular, and ``remedy`` what to do if not even one
            can be.
        evaluation: on rows that are private, if that is asked for.
        own: what the run speaks for, where it is one site's part of a network.
        metrics: of a model (d,) on public rows; None where it is measured on none.
        agreed: whether a federation has agreed on classes and columns, so that no row tells them.
    """

    study: Study
    plan: Plan
    simulation: Simulation[Any]
    first: Snapshot
    facts: Facts
    model: str
    named: Callable[[Vector], dict[str, NDArray[Any]]]
    paid: str
    remedy: str
    evaluation: Paid | None = None
    own: SiteScope | None = None
    metrics: Callable[[Vector], Metrics | None] = lambda _: None
    agreed: bool = False


class PrepareRun(Protocol):
    """A maker of the objects of a study, such as :func:`sordino.core.regimes.build`."""

    def __call__(
        self, study: Study, folder: Path, run: str, affordable_steps: Sequence[int] | None = None, /
    ) -> PreparedRun:
        """The objects of a calibrated study, with its ledger in ``folder``."""
        ...


def named_parameters(flat: Flat, vector: Vector) -> dict[str, NDArray[Any]]:
    """A vector as the model's named parameters."""
    import torch

    tensor = torch.from_numpy(vector)
    return {slot.name: slot.logical(tensor).contiguous().numpy() for slot in flat.layout}


def open_ledgers(
    study: Study,
    folder: Path,
    run: str,
    fingerprints: Mapping[str, str],
    data: Iterable[str],
    known: Sequence[Records] = (),
    others: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    public: bool,
) -> LedgerSession:
    """The run's ledger: its own in ``folder``, or one that knows records, its own or the data's.

    ``fingerprints``, and ``labels`` for people, by unit; ``data`` are fingerprints of all data that
    bears on what is released; ``others`` names units that are not priced by records. A folder with
    a ``run.json`` is that of a run which has begun: its ledger must be there, with the same data,
    and is not made again.

    Args:
        public: whether all rows that ``fingerprints`` are of are published. Of others the ledger
            holds fingerprints under the user's key, and none without.
    """
    begun = (folder / "run.json").exists()
    if not public and (warning := key_seen_by_others()) is not None:
        notice(warning)
    whole = joined(data)
    if not public:
        whole = keyed(whole, run, make=not begun)
    if study.privacy.ledger != "run":
        kept = Path(study.privacy.ledger).expanduser()
        found = LedgerSession.for_data(kept, run, known, others, begun=begun, data=whole)
        if (warning := seen_by_others(kept)) is not None:
            notice(warning)
        return found
    if known:  # the run folder is shown to others, and the key of its records is not in it
        key = record_key(run, make=not begun)
        return LedgerSession.for_data(folder, run, known, others, begun=begun, key=key, data=whole)
    prints = {
        unit: each if public or each.startswith(ELSEWHERE) else keyed(each, run, make=not begun)
        for unit, each in fingerprints.items()
    }
    ledger = folder / "ledger.sqlite"
    return LedgerSession.for_run(ledger, prints, labels=labels, begun=begun, run=run, data=whole)


def budget(study: Study, epsilon: float | None) -> Budget:
    """Return what is held against the ledger: infinite where nothing is promised, or nothing can
    be.
    """
    privacy = study.privacy
    promised = privacy.unit != "none" and study.form == "sound" and epsilon is not None
    return Budget(
        epsilon=(epsilon or math.inf) if promised else math.inf,
        delta=privacy.delta or 1e-5,
        accountant=privacy.accountant,
    )
