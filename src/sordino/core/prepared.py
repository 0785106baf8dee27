"""A study before it runs: its price, its simulation, the ledger and the budget."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Entropy, over
from sordino.base.errors import BudgetExceeded, LocalProtocolError
from sordino.base.fingerprints import joined, key_seen_by_others, keying, record_key
from sordino.base.message import Vector
from sordino.core.plan import Plan
from sordino.core.records import Facts, Metrics
from sordino.core.statements import SiteScope
from sordino.core.study.base import Study
from sordino.core.world import RunPlayer, Snapshot
from sordino.data.notices import notice
from sordino.mechanisms.gaussian import Gaussian
from sordino.privacy import Budget, Charge, LedgerSession, Permit, covers_round
from sordino.privacy.event import History
from sordino.privacy.records import Records
from sordino.privacy.storage import seen_by_others

if TYPE_CHECKING:
    from sordino.training.flat import Flat


UNIT = "test"
"""The unit of the rows of a private test share, in the ledger."""

ELSEWHERE = ("site:", "elsewhere/")
"""Stand-ins for the fingerprint of data that another process has."""

PUBLIC = "public"
"""The unit of rows that were declared public, in a ledger of the data: later runs must know."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaidEvaluation:
    r"""Noisy accuracy on private rows, booked before it is told.

    Of a test set that is private, an evaluation of model w on m rows releases one number,

        c~ = #{rows that w gets right} + N(0, z^2),        accuracy = min(max(c~ / m, 0), 1),

    and nothing else: no loss, no share of a class. One row's contribution, replaced by none, moves
    the count by at most 1, and m is public, so this is a Gaussian mechanism of multiplier z (Dwork
    and Roth 2014, appendix A), without sampling. It is booked under a unit of its own, "test",
    before it leaves. No row both trains and tests: a row's epsilon is that of its own unit, and the
    run's is the largest over units (parallel composition, McSherry 2009). That w depends on
    training rows costs the test rows nothing.

    The same model is evaluated once: its digest is the key of the charge and the address of the
    noise, so a run that is resumed says the same again.

    Attributes:
        right: how many rows a model (d,) gets right, exactly: raw data.
        rows: m, public.
        mechanism: of sensitivity 1.
        ledgers, budget: where it is charged, under :data:`UNIT`, and what may be spent there.
        entropy: of the noise.
        method, charge_key_prefix: as in other charges.
    """

    right: Callable[[Vector], int]
    rows: int
    mechanism: Gaussian
    ledgers: LedgerSession
    budget: Budget
    entropy: Entropy
    method: str
    charge_key_prefix: str

    def __call__(self, weights: Vector) -> Mapping[str, float]:
        """The row of an evaluation: accuracy, if the test rows can pay, and what they spent."""
        digest = hashlib.sha256(np.ascontiguousarray(weights).tobytes()).hexdigest()
        charge = Charge(
            unit=UNIT,
            event=self.mechanism.event(),
            count=1,
            why="an evaluation on rows that are private",
            method=self.method,
            round=0,
            key=f"{self.charge_key_prefix}/evaluation {digest}",
        )
        try:
            (permit,) = self.ledgers.charge([charge], self.budget)
        except BudgetExceeded:
            return {}
        accuracy = self.release(weights, digest, permit)
        return {
            "accuracy": accuracy,
            "test_epsilon": self.ledgers.check(UNIT, self.budget, permit.seq),
        }

    def release(self, weights: Vector, digest: str, permit: Permit) -> float:
        """The noisy accuracy of a model; ``permit`` is of one evaluation, by the model's digest.

        Raises:
            LocalProtocolError: without that permit; nothing has been computed then.
        """
        covers_round(UNIT, [permit], [(self.mechanism.event(), 1)], 0)
        if not permit.key.endswith(digest):
            raise LocalProtocolError(
                f"the permit is for {permit.unit}, {permit.key}, and not for this evaluation"
            )
        import torch

        exact = torch.tensor([float(self.right(weights))], dtype=torch.float64)
        hidden = repr((float(exact), self.mechanism)).encode()
        draws = over(self.entropy, (hidden,), "evaluation", digest)
        noisy, _ = self.mechanism.release_counted(exact, 0.0, draws)
        return min(max(float(noisy[0]) / self.rows, 0.0), 1.0)

    def spent(self) -> float:
        """Epsilon of the test rows so far."""
        return self.ledgers.epsilon(UNIT, self.budget.delta, self.budget.accountant)


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
        moves: whether it can be played when its folder, but for the ledger, has another name.
        planned: gives all charges of each unit, where their number is fixed.
    """

    study: Study
    plan: Plan
    simulation: RunPlayer
    first: Snapshot
    facts: Facts
    model: str
    named: Callable[[Vector], dict[str, NDArray[Any]]]
    paid: str
    remedy: str
    evaluation: PaidEvaluation | None = None
    own: SiteScope | None = None
    metrics: Callable[[Vector], Metrics | None] = lambda _: None
    agreed: bool = False
    moves: bool = False
    planned: Callable[[], Mapping[str, History]] = dict


Affordable = Sequence[int] | None
"""The steps that each client could pay for when a run that goes on began; None for a new run,
and where nothing limits it.
"""
PrepareRun = Callable[[Study, Path, str, Affordable], PreparedRun]
"""A maker of the objects of a calibrated study, with its ledger in a folder, such as
:func:`sordino.core.regimes.build`: study, folder, run, and what clients could pay for if it began
before.
"""


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
    rows: Mapping[str, int] | None = None,
) -> LedgerSession:
    """The run's ledger: its own in ``folder``, or one that knows records, its own or the data's.

    ``fingerprints``, and ``labels`` for people, by unit; ``data`` are fingerprints of all data that
    bears on what is released; ``others`` names units that are not priced by records. A folder with
    a ``run.json`` is that of a run which has begun: its ledger must be there, with the same data,
    and is not made again.

    Args:
        public: whether all rows that ``fingerprints`` are of are published. Of others the ledger
            holds fingerprints under the user's key, and none without.
        rows: of one person at most, by unit, where the records are elsewhere.
    """
    begun = (folder / "run.json").exists()
    if not public and (warning := key_seen_by_others()) is not None:
        notice(warning)
    whole = joined(data)
    sign = str if public else keying(run, make=not begun)
    whole = sign(whole)
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
        unit: each if each.startswith(ELSEWHERE) else sign(each)
        for unit, each in fingerprints.items()
    }
    ledger = folder / "ledger.sqlite"
    return LedgerSession.for_run(
        ledger, prints, labels=labels, begun=begun, run=run, data=whole, rows=rows
    )


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
