"""The privacy ledger from Python: what runs released, and charges of training loops elsewhere.

A loop of another library (Opacus, or one's own) opens a ledger of its data, charges each piece of
work *before* it releases anything, and is refused when the budget would be passed. Runs of other
days add up, because the ledger is a file that outlives them.

A charge is for one time that something happens. A loop that is repeated draws other noise, which is
a second release, and is charged again.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, SupportsFloat, get_args

from sordino import privacy
from sordino.api import shown
from sordino.base.entropy import System
from sordino.base.errors import DataError, LedgerError, StudyError
from sordino.core.run.verify import places
from sordino.mechanisms.gaussian import Gaussian as GaussianSum
from sordino.privacy.chain import SHOWN_COLUMNS
from sordino.privacy.event import History
from sordino.privacy.parts import expected
from sordino.privacy.rounding import epsilon_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars
    import torch

ACCOUNTANT = "pld"


class Ledger(shown.Tabular):
    """One ledger, or all ledgers of a folder, opened by its path. A context manager.

    >>> import sordino as so
    >>> step = so.privacy.PoissonSampled(0.01, so.privacy.Gaussian(1.1))
    >>> with so.Ledger.create("clinic.sqlite", units=["clinic"]) as ledger:
    ...     permit = ledger.charge(step, count=100, epsilon=3.0, delta=1e-5, why="model 1, epoch 0")
    ...     0 < ledger.epsilon(delta=1e-5) < 3.0
    True

    Its proof of integrity is :meth:`verify`; ``sordino ledger verify`` compares a whole run with
    its ledger.
    """

    def __init__(self, ledgers: Sequence[privacy.Ledger]) -> None:
        self._ledgers = tuple(ledgers)
        # a notebook drops what it has looked at, and closes nothing
        self._closing = weakref.finalize(self, _close, self._ledgers)

    @classmethod
    def open(cls, path: Path | str, *, readonly: bool = True) -> Ledger:
        """The ledger in a file, of a run folder, or of a folder with ledgers of data.

        Args:
            readonly: whether it is only read; charges need False.

        Raises:
            LedgerError, StudyError: if there is none, or its chain is broken.
        """
        return cls([privacy.Ledger.open(each, readonly=readonly) for each in places(Path(path))])

    @classmethod
    def create(cls, path: Path | str, units: Mapping[str, str] | Sequence[str]) -> Ledger:
        """A ledger to charge: a new file, or the one that is there already.

        Args:
            units: whose data is used: a name for each, and its data's fingerprint where you have
                one (:func:`fingerprint`); with other data the same unit is refused.

        Raises:
            LedgerError: if the file is no ledger, or a unit was kept for other data.
        """
        named = dict(units) if isinstance(units, Mapping) else dict.fromkeys(units, "")
        if not named:
            raise StudyError("units must name at least one: whose data is it?")
        return cls([privacy.Ledger.open_or_create(Path(path), named)])

    @property
    def units(self) -> tuple[str, ...]:
        """The units whose releases are kept here."""
        return tuple(dict.fromkeys(name for each in self._ledgers for name in each.units()))

    def charge(
        self,
        event: privacy.Event,
        *,
        epsilon: float,
        delta: float,
        unit: str | None = None,
        count: int = 1,
        key: str | None = None,
        why: str = "",
        method: str = "",
        round: int = 0,  # noqa: A002 — the ledger's own word for it
        accountant: str = ACCOUNTANT,
    ) -> privacy.Permit:
        """Book a release, durably, before it happens; or refuse it, and book nothing.

        Args:
            event: what is done with the data, such as ``so.privacy.PoissonSampled(q,
                so.privacy.Gaussian(sigma))``.
            epsilon: the budget of the unit, over all that it ever released.
            delta: in (0, 1), of that budget.
            unit: whose data; may be left out where there is one.
            count: how often.
            key: names this release and no other; drawn unless given. One that was booked before is
                refused: the same work with other noise is another release.
            why: for the reader of the ledger.
            method: the same.
            round: the same.
            accountant: turns events into epsilon.

        Raises:
            BudgetExceeded: if the unit would pass its budget. Do not release then.
            StudyError, ResumeError: if the key was booked before.
            LedgerError: for a set of records, which only runs charge.
        """
        ledger, name = self._of(unit)
        budget = _budget(event, epsilon, delta, ledger.chosen_by(accountant))
        named = f"charge/{secrets.token_hex(16)}" if key is None else key
        charge = privacy.Charge(
            unit=name, event=event, count=count, why=why, method=method, round=round, key=named
        )
        (permit,) = ledger.charge([charge], budget, once=True)
        return permit

    def epsilon(self, delta: float, unit: str | None = None, accountant: str = ACCOUNTANT) -> float:
        """Return the epsilon of a unit: a proven upper bound; of all units, the highest.

        Of a set of records that is what its records were in, in all runs.

        Args:
            delta: in (0, 1).
        """
        if unit is None:
            found = [_epsilons(each, each.units(), delta, accountant) for each in self._ledgers]
            return max((one for each in found for one in each.values()), default=0.0)
        ledger, name = self._of(unit)
        return _epsilons(ledger, [name], delta, accountant)[name]

    def remaining(
        self,
        event: privacy.Event,
        *,
        epsilon: float,
        delta: float,
        unit: str | None = None,
        accountant: str = ACCOUNTANT,
    ) -> int | None:
        """Return how often ``event`` may still happen within the budget; None without a limit."""
        ledger, name = self._of(unit)
        budget = _budget(event, epsilon, delta, ledger.chosen_by(accountant))
        left = [budget.remaining_steps(event, one) for one in _histories(ledger)[name]]
        return min((steps for steps in left if steps is not None), default=None)

    def entries(self, unit: str | None = None) -> list[privacy.Entry]:
        """Every charge, in the order of its booking."""
        return [entry for each in self._ledgers for entry in each.entries(unit)]

    def verify(self) -> None:
        """Follow the chain of digests from its start.

        Raises:
            LedgerError: at the first link that does not fit.
        """
        for each in self._ledgers:
            each.verify()

    def to_polars(self) -> polars.DataFrame:
        """The charges, a row each."""
        rows = [{name: getattr(entry, name) for name in SHOWN_COLUMNS} for entry in self.entries()]
        return shown.frame([row | {"event": privacy.encode(row["event"])} for row in rows])

    def close(self) -> None:
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _of(self, unit: str | None) -> tuple[privacy.Ledger, str]:
        """The ledger that keeps a unit."""
        found = [
            (each, name) for each in self._ledgers for name in each.units() if unit in (None, name)
        ]
        if len(found) == 1:
            return found[0]
        if unit is not None and found:
            files = ", ".join(str(each.path) for each, _ in found)
            raise LedgerError(f"several ledgers keep {unit!r}: open one of {files}")
        listed = ", ".join(self.units[:10]) or "none"
        said = "say which unit" if unit is None else f"no unit {unit!r} is kept here"
        raise LedgerError(f"{said}; there are {listed}")

    def __repr__(self) -> str:
        count = sum(1 for each in self._ledgers for _ in each.entries())
        return f"<Ledger of {', '.join(self.units)}: {count} charges>"

    def _repr_html_(self) -> str:
        delta = 1e-5
        rows = [
            (name, str(sum(entry.count for entry in each.entries(name))), epsilon_text(epsilon))
            for each in self._ledgers
            for name, epsilon in _epsilons(each, each.units(), delta, ACCOUNTANT).items()
        ]
        head = ("unit", "releases", f"epsilon at delta {delta:g} ({ACCOUNTANT})")
        return shown.page("Privacy ledger", shown.table(head, rows))


@dataclass(slots=True)
class _Paid:
    """The releases that one process has paid for and not made.

    Attributes:
        steps: releases.
        sampled: the threads that have drawn a sample whose sum is not released.
        process: its number; a fork has paid for nothing.
        lock: held while a release is paid for: threads that share a mechanism take turns.
    """

    steps: int = 0
    sampled: set[int] = field(default_factory=set)
    process: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism:
    """Clipping and noise for a training loop of one's own, charged to a ledger before each release.

    >>> import numpy as np, sordino as so
    >>> with so.Ledger.create("clinic.sqlite", units=["clinic"]) as ledger:
    ...     add_noise = so.mechanism(
    ...         ledger=ledger, epsilon=3.0, delta=1e-5,
    ...         clip=1.0, noise_multiplier=2.0, sampling_rate=0.1,
    ...     )
    ...     batch = add_noise.sample(1000)  # indices of a Poisson sample
    ...     total = add_noise(np.ones((len(batch), 3)))  # a row for each example of the batch
    >>> total.shape  # divide by 0.1 * 1000, and never by len(batch), which is secret
    (3,)

    A release is sum_i v_i min(1, s C / |v_i|) + N(0, (sigma C)^2 I_d), as whole numbers on a public
    grid. Rows are bounded and added up in float64. For up to 2^20 rows that is off by 2^-12 C at
    most (gamma_n sum_i |v_i| with one row more and with one less), for which s = 1 - 2^-9 leaves
    room. A row that is not finite, or longer than 1e19, contributes nothing. Noise and samples come
    from the operating system: nothing can be drawn twice. Threads may share a mechanism; only the
    one that has opened the ledger can pay for more. A process that is forked pays from a ledger
    that it opens itself, and that was not open before the fork.

    One sum is charged for each sample: whatever you compute of a sample (gradients of all layers,
    counts) goes into one row of each example, side by side.

    Attributes:
        ledger: of the data; charged before a release is computed.
        epsilon, delta: the budget of the unit, over all that it ever released.
        clip: C, the L2 bound of what one record adds to a sum (units of the rows).
        noise_multiplier: sigma.
        sampling_rate: q of the Poisson samples that rows are of; 1 where every record has a row.
        unit: whose data; may be left out where the ledger has one.
        steps: how many releases are paid for at a time; what is left at the end stays charged.
        why: for the reader of the ledger.
        accountant: turns events into epsilon.

    Raises:
        StudyError: for numbers that no bound or noise can have.
    """

    ledger: Ledger
    epsilon: float
    delta: float
    clip: float
    noise_multiplier: float
    sampling_rate: float = 1.0
    unit: str | None = None
    steps: int = 1
    why: str = "a sum of a loop elsewhere"
    accountant: str = ACCOUNTANT
    _noise: GaussianSum = field(init=False, repr=False)
    _paid: _Paid = field(default_factory=_Paid, init=False, repr=False)

    def __post_init__(self) -> None:
        noise = GaussianSum(clip=self.clip, noise_multiplier=self.noise_multiplier)
        object.__setattr__(self, "_noise", noise)
        if not (0 < self.sampling_rate <= 1 and self.steps >= 1):
            raise StudyError(
                f"sampling_rate must lie in (0, 1], and steps be 1 at least; got "
                f"{self.sampling_rate} and {self.steps}"
            )

    def __copy__(self) -> Self:
        """Return itself: a copy would release again what was paid for once."""
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a mechanism stays in its process: make one in each, over the same ledger")

    @property
    def event(self) -> privacy.Event:
        """The fact that the ledger keeps of one release."""
        noise, rate = self._noise.event(), self.sampling_rate
        return noise if rate == 1 else privacy.PoissonSampled(rate, noise)

    def sample(self, count: int) -> npt.NDArray[np.int64]:
        """Return the indices (b,) of a Poisson sample of so many records."""
        from sordino.training.client import poisson

        self._here().sampled.add(threading.get_ident())
        return poisson(count, self.sampling_rate, System().at("sample")).numpy()

    def _here(self) -> _Paid:
        """The releases that this process has paid for."""
        if self._paid.process != os.getpid():
            object.__setattr__(self, "_paid", _Paid())
        return self._paid

    def _pay(self) -> None:
        """Take one release from what is paid for, and pay for more where nothing is left."""
        paid = self._here()
        with paid.lock:
            if self.sampling_rate < 1 and threading.get_ident() not in paid.sampled:
                raise StudyError(
                    "a sum is charged for a sample of its own: call sample() first, and give all "
                    "that you compute of it in one matrix, a row for each example"
                )
            if not paid.steps:
                self.ledger.charge(
                    self.event,
                    epsilon=self.epsilon,
                    delta=self.delta,
                    unit=self.unit,
                    count=self.steps,
                    why=self.why,
                    accountant=self.accountant,
                )
                paid.steps = self.steps
            paid.steps -= 1
            paid.sampled.discard(threading.get_ident())

    def __call__(self, rows: npt.ArrayLike | torch.Tensor) -> Any:
        """Return the noisy sum (d,), float32, of rows (n, d): an array, or a tensor of tensors.

        Raises:
            DataError: if these are no rows of real numbers.
            StudyError: for a second sum of one sample.
            BudgetExceeded: if the unit would pass its budget. Nothing is released then.
        """
        import torch

        from sordino.training.perexample.clipping import LONGEST, MARGIN, MOST, factors

        held = torch.as_tensor(rows).detach()
        if held.ndim != 2 or not held.is_floating_point() or len(held) > MOST:
            raise DataError(
                f"give real numbers (n, d), one row for each record, at most {MOST:,} rows; got "
                f"{held.dtype} {tuple(held.shape)}"
            )
        self._pay()
        held = held.double().contiguous()  # a norm's last bit would depend on other rows
        norms = torch.linalg.vector_norm(held, dim=1).nan_to_num_(nan=math.inf)
        held = held.where((norms <= LONGEST)[:, None], 0.0)
        total = (held * factors(norms, self._noise.clip, MARGIN, held.dtype)[:, None]).sum(0)
        noisy, _ = self._noise.release_counted(total, 0.0, System().at("noise"))
        return noisy if isinstance(rows, torch.Tensor) else noisy.numpy()


mechanism = Mechanism


def _budget(event: object, epsilon: Any, delta: Any, accountant: str) -> privacy.Budget:
    """Return what an event is held against; refuse what is no event with a price, or no number,
    before the ledger is asked: what goes wrong in there counts as damage of its file.

    Raises:
        StudyError: naming it.
    """
    if not isinstance(event, get_args(privacy.Event)):
        raise StudyError(
            f"{event!r} is no event: say what is done with the data, such as "
            "so.privacy.PoissonSampled(q, so.privacy.Gaussian(sigma))"
        )
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not isinstance(value, SupportsFloat) or isinstance(value, bool):
            raise StudyError(f"{name} must be a number; got {value!r}")
    found = privacy.Budget(float(epsilon), float(delta), accountant)
    try:
        known = privacy.decode(privacy.encode(event))
        privacy.accountant("rdp").epsilon([(known, 1)], found.delta)
    except (TypeError, ValueError, RecursionError) as error:
        raise StudyError(f"{event!r} has no price: {error}") from None
    return found


def _histories(ledger: privacy.Ledger) -> Mapping[str, Sequence[History]]:
    """Of each unit, its own history, and of sets of records all that their records were in; with
    what runs could still charge that chose how much it is.
    """
    from sordino.privacy.records import Prices, spendings  # arrays take a while to import

    return spendings(ledger, rest=Prices(ledger).rest())


def _epsilons(
    ledger: privacy.Ledger, units: Iterable[str], delta: float, accountant: str
) -> dict[str, float]:
    """Each unit's epsilon."""
    found, by = _histories(ledger), ledger.chosen_by(accountant)
    return {unit: max(ledger.price(unit, one, delta, by) for one in found[unit]) for unit in units}


def _close(ledgers: Sequence[privacy.Ledger]) -> None:
    for each in ledgers:
        each.close()


def fingerprint(data: bytes, *, public: bool = False) -> str:
    """Return the fingerprint of data in a ledger: a digest under this user's secret key.

    >>> import sordino as so
    >>> so.fingerprint(b"rows of a public table", public=True)[:7]
    'sha256:'

    Args:
        public: whether everybody may try which bytes these are: then it is SHA-256 without a key.

    Raises:
        StudyError: if the key, :func:`sordino.base.fingerprints.place`, cannot be read or made.
    """
    import hashlib

    from sordino.base.fingerprints import keyed

    found = "sha256:" + hashlib.sha256(data).hexdigest()
    return found if public else keyed(found)


def event_text(event: object) -> str:
    """Return an event in words."""

    match event:
        case privacy.Repeated(event=inside, count=count):
            return f"{event_text(inside)}, {count} times" if count > 1 else event_text(inside)
        case privacy.Composed(events=(only,)):
            return event_text(only)
        case privacy.Gaussian(noise_multiplier=sigma):
            return f"Gaussian, sigma {sigma:g}"
        case privacy.Pure(epsilon=epsilon):
            return f"pure, epsilon {epsilon_text(epsilon)}"
        case privacy.PoissonSampled(sampling_rate=q, event=inside):
            return f"{event_text(inside)}, Poisson sampled at {q:g}"
        case privacy.SampledRows(sampling_rate=q, rows=rows, event=inside):
            return f"{event_text(inside)}, Poisson sampled at {q:g}, {rows} rows of one person"
        case privacy.Composed(events=events):
            return f"{' and '.join(map(event_text, events))} together"
        case privacy.Chosen(order=order, event=inside):
            return f"{event_text(inside)}, its noise chosen along the way (order {order:g})"
        case privacy.Selected(event=inside, trials=trials):
            times = f"a random number of runs ({expected(trials):g} expected)"
            return f"the best of {times} of: {event_text(inside)}"
        case privacy.NonPrivate(reason=reason):
            return f"NOT private: {reason}"
        case _:
            return repr(event)
