r"""The price of a study: what is charged to each unit of the ledger, in order, and its budget.

Theory of operation. A regime states once what it will charge: a :class:`Schedule` with the stages
of every unit of its ledger, each an event and how often it is charged. Everything else about a
price follows from that:

* the noise multiplier, where a study leaves it out: the smallest one (to four decimals) that keeps
  all planned charges of a unit within its budget (:meth:`Schedule.calibrated`);
* epsilon after so many charges (:meth:`Schedule.epsilon`), for plans and their curves;
* the most charges that a budget pays for, after what a ledger holds (:meth:`Schedule.affordable`).

What must hold. Stages are charged in their order, so the first n charges of a unit are a prefix of
them, and epsilon grows with n: a search over n finds the most. The event of a single stage, or of
an :data:`ENDLESS` last one, may be charged on and on. Other stages are all that is planned; between
them whole rounds (``pace`` charges each) are paid for. Records that one charge reaches several
times (at several units) have no such prefix: there the dearest event stands for all
(:meth:`Schedule.affordable_in`). All rows of a person at one unit are reached at once: they are a
group, which has a schedule of its own (:meth:`Schedule.for_group`).

>>> release = lambda sigma: Gaussian(noise_multiplier=sigma)
>>> noisy = {"client:0": NoisyCharges(release=release, stages=((1.0, 10),))}
>>> budget = Budget(epsilon=1.0, delta=1e-5)
>>> asked = Schedule(noisy=noisy, budgets={"client:0": budget}, charged="rounds")
>>> full = asked.calibrated()
>>> full.multipliers["client:0"], full.affordable("client:0")
(11.7973, 10)
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from sordino.base.errors import BudgetExceeded, StudyError
from sordino.base.files import MIB
from sordino.mechanisms.shared import SharedGrid
from sordino.privacy import (
    Budget,
    Charge,
    Event,
    Gaussian,
    LedgerSession,
    Nothing,
    PoissonSampled,
    Pure,
    accountant,
    noise_multiplier,
)
from sordino.privacy.accounting import Spent
from sordino.privacy.records.group import of_rows
from sordino.privacy.rounding import epsilon_text
from sordino.privacy.session import PLAN

ACCOUNTANTS = ("pld", "rdp", "rdp-classic")
ENDLESS = -1
"""The count of a last stage whose event is charged on and on."""

T = TypeVar("T")
Stages = tuple[tuple[Event, int], ...]


class Curve(msgspec.Struct, frozen=True):
    """Epsilon after each of ``counts`` charges.

    It is computed where it is looked at: hundreds of rounds are planned, and few of them shown.
    """

    counts: tuple[int, ...]
    price: Callable[[int], float]

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, place: int) -> float:
        return self.price(self.counts[place])

    def __iter__(self) -> Iterator[float]:
        return map(self.price, self.counts)


class Most(Mapping[str, int | None]):
    """The most charges under each accountant; computed where it is looked at: a run asks for that
    of its own accountant, and a plan that is shown for all.
    """

    def __init__(self, names: Iterable[str], price: Callable[[str], int | None]) -> None:
        self._names, self._price = dict.fromkeys(names), functools.cache(price)

    def __getitem__(self, name: str) -> int | None:
        return self._price(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class NoisyCharges(msgspec.Struct, frozen=True, kw_only=True):
    """Charges that a noise multiplier sets: releases of Poisson samples, in stages.

    Attributes:
        release: what one charge releases at a noise multiplier, before sampling.
        stages: factors on the noise multiplier, and how many charges there are at each.
        sampling_rate: q, in (0, 1].
        batches: b, where a charge is a pass of so many steps in a public order, of which a record
            is in one; None where each step is charged, on a Poisson sample.
        rows: how many records that fall away together are bounded; one is what is booked.
    """

    release: Callable[[float], Event]
    stages: tuple[tuple[float, int], ...]
    sampling_rate: float = 1.0
    batches: int | None = None
    rows: int = 1

    def event(self, sigma: float) -> Event:
        """Return one charge at this noise multiplier; as it is booked, if it bounds one record."""
        one = self.release(sigma)
        if self.batches is None:
            one = PoissonSampled(sampling_rate=self.sampling_rate, event=one)
        return of_rows(one, self.rows)

    @property
    def steps(self) -> int:
        """Steps that one charge pays for."""
        return self.batches or 1

    def at(self, sigma: float) -> Stages:
        """Return the stages at this noise multiplier."""
        return tuple((self.event(sigma * factor), count) for factor, count in self.stages)

    def for_group(self, size: int) -> NoisyCharges:
        """Return the charges as they bound ``size`` records that fall away together."""
        return msgspec.structs.replace(self, rows=self.rows * size)

    def calibrated(self, budget: Budget) -> float:
        """Return the smallest noise multiplier that keeps all charges within a budget.

        Raises:
            StudyError: for an infinite epsilon, or if no multiplier is enough.
        """
        if math.isinf(budget.epsilon):
            raise StudyError(
                "privacy.noise_multiplier can be calibrated only from a finite epsilon; give one "
                "of the two"
            )
        return noise_multiplier(
            sampling_rate=self.sampling_rate if self.batches is None else 1.0,
            steps=[(factor, -(-count // self.steps)) for factor, count in self.stages],
            epsilon=budget.epsilon,
            delta=budget.delta,
            accountant=budget.accountant,
            release=self.release,
            rows=self.rows,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The charges of a study and its budgets, by unit of the ledger.

    Attributes:
        budgets: what each unit may spend in all.
        charged: what is charged, in the plural.
        stages: events and how many steps each is charged for, in order; of units whose noise is
            known. A step is what a study counts; an event may pay for several (a pass).
        noisy: the charges of units whose noise follows from a multiplier.
        multipliers: sigma of these units, where it is known.
        one_multiplier: whether all units have one multiplier, that of the highest sampling rate.
        pace: charges of a round.
    """

    budgets: Mapping[str, Budget]
    charged: str
    stages: Mapping[str, Stages] = field(default_factory=dict)
    noisy: Mapping[str, NoisyCharges] = field(default_factory=dict)
    multipliers: Mapping[str, float] = field(default_factory=dict)
    one_multiplier: bool = False
    pace: int = 1

    def with_noise(self, multipliers: Mapping[str, float]) -> Schedule:
        """Return the schedule with these noise multipliers."""
        at = functools.cache(NoisyCharges.at)  # units are often alike
        stages = {unit: at(self.noisy[unit], sigma) for unit, sigma in multipliers.items()}
        return replace(
            self, stages={**self.stages, **stages}, multipliers={**self.multipliers, **multipliers}
        )

    def of(self, unit: str) -> Schedule:
        """Return the schedule of one unit alone."""

        def own(of: Mapping[str, T]) -> dict[str, T]:
            return {unit: of[unit]} if unit in of else {}

        return replace(
            self,
            budgets=own(self.budgets),
            stages=own(self.stages),
            noisy=own(self.noisy),
            multipliers=own(self.multipliers),
        )

    def for_group(self, size: int) -> Schedule:
        """Return the schedule as it bounds ``size`` records that fall away together."""
        if size == 1:
            return self
        group = functools.cache(NoisyCharges.for_group)  # units are often alike
        noisy = {unit: group(each, size) for unit, each in self.noisy.items()}
        return replace(self, noisy=noisy).with_noise(self.multipliers)

    def calibrated(self) -> Schedule:
        """Return the schedule with the noise multipliers that its budgets ask for, filled in.

        Raises:
            StudyError: for an infinite epsilon, or where no multiplier is enough.
        """
        open_ones = [unit for unit in self.noisy if unit not in self.multipliers]
        if not open_ones:
            return self
        calibrated = functools.cache(NoisyCharges.calibrated)  # units are often alike
        first = max(open_ones, key=lambda unit: self.noisy[unit].sampling_rate)
        asked = {unit: first if self.one_multiplier else unit for unit in open_ones}
        return self.with_noise(
            {unit: calibrated(self.noisy[like], self.budgets[like]) for unit, like in asked.items()}
        )

    @property
    def kinds(self) -> dict[str, str]:
        """The first unit of each kind, by unit: those of one kind are charged and held alike."""
        first: dict[tuple[Stages, int, Budget], str] = {}
        return {
            unit: first.setdefault((stages, self.paid(unit), self.budgets[unit]), unit)
            for unit, stages in self.stages.items()
        }

    @property
    def staged(self) -> bool:
        """True if charges of a unit differ from one another."""
        found = (*(each.stages for each in self.noisy.values()), *self.stages.values())
        return any(len(each) > 1 for each in found)

    def wanted(self, unit: str) -> int:
        """Return how many charges of a unit are planned."""
        return sum(count for _, count in self.noisy[unit].stages)

    def spending(self, unit: str, until: int) -> list[tuple[Event, int]]:
        """Return the first ``until`` charges of a unit, as (event, how often)."""
        stages, found, left = self.stages[unit], list[tuple[Event, int]](), until
        paid = self.paid(unit)
        for place, (event, planned) in enumerate(stages):
            last = len(stages) == 1 or planned == ENDLESS
            assert not last or place == len(stages) - 1
            count = left if last else min(planned, left)
            left -= count
            if count:
                found.append((event, -(-count // paid)))
        return found

    def charges(self, until: Mapping[str, int]) -> list[Charge]:
        """Return the first charges of each unit, so many, as a plan books them in a copy."""
        return [
            Charge(
                unit=unit,
                event=event,
                count=count,
                why="planned",
                method="",
                round=0,
                key=f"{PLAN}/{unit}/{place}",
            )
            for unit, most in until.items()
            for place, (event, count) in enumerate(self.spending(unit, most))
        ]

    def paid(self, *units: str) -> int:
        """Return the steps that one charge on each of these units alike pays for, at least."""
        return min(self.noisy[each].steps if each in self.noisy else 1 for each in units)

    def epsilon(self, unit: str, until: int, *, quick: bool = False, by: str = "") -> float:
        """Return epsilon of a unit's first ``until`` charges.

        ``quick`` asks for a looser bound, ``by`` for another accountant than the budget's.
        """
        budget = self.budgets[unit]
        spent = self.spending(unit, until)
        return accountant(by or budget.accountant).epsilon(spent, budget.delta, quick=quick)

    def curve(self, unit: str, counts: Sequence[int]) -> Curve:
        """Return epsilon after each of these numbers of charges, finely bounded at the last."""
        return Curve(
            tuple(counts), lambda count: self.epsilon(unit, count, quick=count != counts[-1])
        )

    def affordable(self, unit: str, spent: Spent = (), by: str = "") -> int | None:
        """Return the most charges of a unit that its budget pays for after ``spent``.

        None where nothing limits them. ``by`` names another accountant than the budget's.
        """
        budget = self.budgets[unit]
        if by:
            budget = replace(budget, accountant=by)
        before = list(spent)
        if math.isinf(budget.epsilon):
            return None
        stages = self.stages[unit]
        if len(stages) == 1:
            return times(self.paid(unit), budget.remaining_steps(stages[0][0], before))
        chosen, (last, count) = accountant(budget.accountant), stages[-1]

        def price(rounds: int) -> float:
            return chosen.epsilon([*before, *self.spending(unit, rounds * self.pace)], budget.delta)

        planned = sum(each for _, each in stages if each != ENDLESS)
        rounds = range(planned // self.pace + 1)
        most = self.pace * max(bisect.bisect_right(rounds, budget.epsilon, key=price) - 1, 0)
        if count != ENDLESS or most < planned:
            return most
        if isinstance(last, Nothing):
            return None
        more = budget.remaining_steps(last, [*before, *self.spending(unit, planned)])
        return None if more is None else planned + more

    def most(self, *units: str) -> Most:
        """Return the most charges that all of these units can pay for, under every accountant, that
        of their budgets included.
        """
        names = (*ACCOUNTANTS, *(self.budgets[unit].accountant for unit in units))
        return Most(names, lambda name: least(self.affordable(unit, by=name) for unit in units))

    def affordable_in(
        self, ledgers: LedgerSession, rows: int, *, alone: bool
    ) -> dict[str, int | None]:
        """Return the charges on all units alike that each unit in a ledger can still pay for.

        Of units that are kept elsewhere nothing is said.

        Args:
            rows: the most of one person.
            alone: whether one charge reaches each person once, so that stages can be told apart.
        """
        if self.staged and alone:
            held = self.for_group(rows)
            return {
                unit: least(held.affordable(unit, spent) for spent in ledgers.histories(unit))
                for unit in self.stages
                if unit in ledgers.names
            }
        found = [
            ledgers.remaining(
                {unit: each[at][0] for unit, each in self.stages.items()}, self.budgets
            )
            for at in range(max(map(len, self.stages.values())))  # all units have as many
        ]
        paid = self.paid(*self.stages)
        return {unit: times(paid, least(each[unit] for each in found)) for unit in found[0]}

    def released(
        self, unit: str, true: Event, sigma: float, charges: int
    ) -> list[tuple[Event, int]]:
        """Return so many charges of a unit whose release at ``sigma`` is ``true``.

        A literal form may release something else than its stages claim.
        """
        noisy = self.noisy[unit]
        if noisy.batches is not None:
            return [(true, -(-charges // noisy.batches))]
        if len(noisy.stages) == 1 or not isinstance(true, Gaussian | Pure):
            return [(PoissonSampled(sampling_rate=noisy.sampling_rate, event=true), charges)]
        level = true.noise_multiplier if isinstance(true, Gaussian) else sigma
        return self.with_noise({unit: level}).spending(unit, charges)


def times(paid: int, charges: int | None) -> int | None:
    """Return the steps that so many charges pay for; None: any number."""
    return None if charges is None else paid * charges


def least(values: Iterable[int | None]) -> int | None:
    """Return the smallest number; None stands for no limit."""
    return min((each for each in values if each is not None), default=None)


JOURNAL, INPUTS = 256 * MIB, 5_000
"""Bytes and inputs of a server's journal, beyond which it begins anew at the next moment that can
be saved.
"""
NOTED = 16 * MIB
"""Bytes of the log of what was refused, at most."""
_BESIDE, _ROW, _ENTRY, _INPUT = 4 * MIB, 600, 700, 100


class Disk(msgspec.Struct, frozen=True):
    """Bytes that a study takes on disks at most, about.

    Attributes:
        run: of the folder of a simulation.
        server: of the server's folder in a federation, and ``journal`` that part of it which is the
            journal; 0 where no network carries the study.
        site: of the folder of the site that needs most.
    """

    run: int
    server: int = 0
    journal: int = 0
    site: int = 0

    @classmethod
    def of(
        cls,
        *,
        kept: int,
        models: int,
        answer: int,
        answers: int,
        at_once: int,
        rows: int,
        entries: int,
        sites: int,
        site: int,
    ) -> Disk:
        """Return the sum of the files of each folder.

        Args:
            kept: bytes of a checkpoint of all; there are two while one is replaced.
            models: bytes of the model.
            answer: bytes of a site's answer, of which there are ``answers`` in the whole run;
                ``at_once`` may come before the next moment that can be saved.
            rows: of the log.
            entries: of the ledger of all.
            sites: how many share these entries.
            site: bytes of a site's checkpoint.
        """
        beside = _BESIDE + rows * _ROW
        run = beside + 2 * kept + models + entries * _ENTRY
        whole = answer + _INPUT
        journal = min(JOURNAL, min(INPUTS, answers) * whole) + at_once * whole
        own = 2 * (site + answer) + models + -(-entries // sites) * _ENTRY
        return cls(run, run + journal + models + NOTED, journal, beside + own + NOTED)

    def __str__(self) -> str:
        if not self.server:
            return f"disk: at most about {size_text(self.run)}"
        return (
            f"disk: at most about {size_text(self.run)}; in a federation {size_text(self.server)} "
            f"at the server, of which its journal takes {size_text(self.journal)}, and "
            f"{size_text(self.site)} at a site"
        )


def size_text(count: int) -> str:
    """Bytes for people, rounded up to two digits or so.

    >>> size_text(4_300_000), size_text(1_234_567_890)
    ('4.3 MB', '1.3 GB')
    """
    unit, name = (1e9, "GB") if count >= 1e9 else (1e6, "MB")
    found = count / unit
    return f"{math.ceil(found * 10) / 10 if found < 10 else math.ceil(found):g} {name}"


class Balance(msgspec.Struct, frozen=True):
    """The room that a ledger of the data has for the records of a unit, as it is now.

    Attributes:
        unit: of the study.
        name: of the client, where it has one.
        spent: epsilon, at the study's delta and by its accountant.
        steps: charges of the study that they can still pay for; None without a limit.
        total: epsilon after the study, or after as much of it as they can pay for.
    """

    unit: str
    name: str | None
    spent: float
    steps: int | None
    total: float

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts those that pay for least first, and of these those that have spent most."""
        return math.inf if self.steps is None else self.steps, -self.spent

    @property
    def called(self) -> str:
        """For people."""
        return f"{self.unit} ({self.name})" if self.name else self.unit


def balances(
    asked: Schedule,
    ledgers: LedgerSession,
    left: Mapping[str, int | None],
    wanted: int,
    names: Mapping[str, str] | None = None,
) -> tuple[Balance, ...]:
    """Return what a ledger has for each unit, before and after a run that has not begun.

    Args:
        ledgers: over a copy (:meth:`~sordino.privacy.session.LedgerSession.for_plan`).
        left: charges that each unit can still pay for (:meth:`Schedule.affordable_in`).
        wanted: charges of each that are planned.
        names: of units for people.
    """

    def epsilons() -> dict[str, float]:
        return {
            unit: ledgers.epsilon(unit, asked.budgets[unit].delta, asked.budgets[unit].accountant)
            for unit in left
        }

    before, budgets = epsilons(), {unit: asked.budgets[unit] for unit in left}
    paid = {unit: wanted if most is None else min(wanted, most) for unit, most in left.items()}
    after = {unit: max(before[unit], budgets[unit].epsilon) for unit in left}
    with suppress(BudgetExceeded), ledgers.undone():  # what another run was promised may forbid it
        ledgers.charge(asked.charges(paid), budgets)
        after = epsilons()
    names = names or {}
    return tuple(
        Balance(unit, names.get(unit), before[unit], most, after[unit])
        for unit, most in left.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The price of a study.

    Attributes:
        noise_multiplier: sigma; 0 without privacy.
        steps: R_c under the study's accountant, in local steps, or in rounds where whole clients
            are protected; None without a limit.
        most: R_c under every accountant.
        rounds: R_s, or T updates.
        used: how many of them a client will use if tau keeps to the pace.
        epsilon: after ``used`` steps: a proven bound, infinite where there is none.
        curve: epsilon after each round at that pace; of a paper's literal form, what it claims.
        ends: "rounds" or "privacy": which budget ends the run.
        batches: expected batch of the smallest, median and largest client; of the cohort (three
            times) where clients are protected.
        signal_to_noise: upper bound for one step of the median client.
        relative_noise: sigma / (q n), n all examples: noise of an averaged step in units of C /
            sqrt(d), times the clients.
        calibrated: whether sigma was calibrated here.
        warnings: what to look at before running.
        stages: of clipping bound and learning rate, where gradients are applied as they arrive;
            dataclasses.
        claimed: what a paper's literal form says that epsilon is; None for sound forms.
        gradients: how gradients of single examples are computed, why so and what it costs; empty
            where none are clipped.
        releases: of parties with different features: unit of the ledger, what is released of an
            entity, and epsilon.
        shared: the grid of a sum whose noise clients share, in the first round.
        left: what each client's data has left, where its ledger outlives runs.
        clients: epsilon, noise multiplier and weight of each client, where they differ.
        disk: what the study takes on disks; None where that is not known.
        samplings: the noise multiplier at this epsilon and number of steps by how batches come
            about: "poisson", and "passes" of ``batches`` batches; and "correlated", of independent
            noise that adds up to as much as correlated noise in passes. Empty where there is no
            choice.
    """

    noise_multiplier: float = 0.0
    steps: int | None = None
    most: Mapping[str, int | None] = field(default_factory=dict)
    rounds: int | None = None
    used: int | None = None
    epsilon: float = math.inf
    curve: Curve | tuple[float, ...] = ()
    ends: str = "rounds"
    batches: tuple[float, float, float] | None = None
    signal_to_noise: float | None = None
    relative_noise: float | None = None
    calibrated: bool = False
    warnings: tuple[str, ...] = ()
    stages: tuple[Any, ...] = ()
    claimed: float | None = None
    gradients: str = ""
    releases: tuple[tuple[str, str, float], ...] = ()
    shared: SharedGrid | None = None
    left: tuple[Balance, ...] = ()
    clients: tuple[tuple[float, float, float], ...] = ()
    disk: Disk | None = None
    samplings: Mapping[str, float] = field(default_factory=dict)

    def exposed(self, where: str, true: float, why: str) -> Plan:
        """The plan of a form that gives ``true`` where it claims what was planned, and says so."""
        claim = f" (noise multiplier {self.noise_multiplier:.4g})" if self.noise_multiplier else ""
        warning = (
            f"{where} = 'paper' is NOT private: it claims epsilon = "
            f"{epsilon_text(self.epsilon)}{claim} and gives epsilon = {epsilon_text(true)} "
            f"({why}); the ledger books what it gives"
        )
        return replace(self, epsilon=true, claimed=self.epsilon, warnings=(*self.warnings, warning))
