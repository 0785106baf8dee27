"""The objects of a study in rounds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from sordino import data as datasets
from sordino.base.entropy import Entropy, Seeded
from sordino.clients.balance import remedy
from sordino.clients.facts import horizontal
from sordino.clients.mechanism import Trial
from sordino.clients.setup import SharedSetup
from sordino.clients.study import for_dimension
from sordino.core.latency import Churn
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun, budget, open_ledgers
from sordino.core.run.environment import charge_key_prefix
from sordino.mechanisms import Bounded, Learning
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import Budget, LedgerSession
from sordino.privacy.records.group import CLIENT, SAMPLE
from sordino.regimes.synchronous import personal, records, sums
from sordino.regimes.synchronous.aggregate import PrivateSum
from sordino.regimes.synchronous.clients import Makes
from sordino.regimes.synchronous.mechanism import announced, mechanism
from sordino.regimes.synchronous.method import Terms
from sordino.regimes.synchronous.methods.client_level import ClientLevel
from sordino.regimes.synchronous.plan import (
    aggregated,
    charged_per_round,
    schedule,
    scheduled_steps,
    shares,
    spending,
    step,
)
from sordino.regimes.synchronous.protocol import Synchronous
from sordino.regimes.synchronous.sharing import fewest, honest, shared
from sordino.regimes.synchronous.simulation import Moment, Simulation
from sordino.regimes.synchronous.study import SynchronousStudy


def build(
    study: SynchronousStudy,
    setup: SharedSetup,
    parts: list[datasets.Dataset],
    folder: Path,
    run: str,
    payable: Sequence[int] | None,
) -> PreparedRun:
    """See :func:`sordino.core.regimes.build`; ``parts`` is emptied, to save memory."""
    entropy, flat, sizes = Seeded(study.seed), setup.kernels.flat, setup.sizes
    described = charge_key_prefix(study, run)
    privacy = study.privacy
    priced = personal.price(for_dimension(study, flat.dim), sizes, flat.dim)
    whole = aggregated(study)
    units, fingerprints = _units(
        whole, setup.fingerprints, not setup.records and setup.mine is None
    )
    noise = _noise(study, setup)
    if noise is not None:
        priced = announced(priced, study, noise, max(sizes))
    own = setup.entropy(study, run, folder)
    fixed = sums.rule(study, sizes, flat.dim) if noise is not None and shared(study) else None
    made = Makes(study=study, setup=setup, noise=noise, entropy=own, units=units, sums=fixed)
    clients = made.all(parts)
    kind = CLIENT if isinstance(study.method, ClientLevel) and privacy.unit == "client" else SAMPLE
    known = [
        replace(one, kind=kind, summed=shared(study)) if one.unit in fingerprints else one
        for one in setup.records
    ]
    ledgers = open_ledgers(
        study,
        folder,
        run,
        setup.units(fingerprints),
        setup.shaping,
        known,
        labels=setup.labels(units),
        public=setup.published(study),
    )
    most = budget(study, privacy.epsilon)
    budgets = [budget(study, epsilon) for epsilon in personal.epsilons(study)]
    tested = setup.evaluation(study, ledgers, own, charge_key_prefix(study, run))
    pays = _payable(study, priced, ledgers, units, budgets) if payable is None else tuple(payable)
    terms = _terms(study, sizes, flat.dim, pays, noise)
    regime = _rules(study, terms, pays, noise, own, units, fixed)
    simulation = Simulation(
        regime=regime,
        clients=clients,
        ledgers=ledgers,
        budget=most,
        budgets=budgets,
        units=units,
        latency=study.world.latency,
        churn=Churn(dropout=study.world.dropout, rejoin=study.world.rejoin),
        entropy=entropy,
        evaluate=setup.measured(tested),
        due=lambda number: number % study.stride == 0,
        method=study.method.name,
        # a round of whole clients is one release of the aggregator, in whatever life it is booked
        charge_key_prefix=described if whole else setup.charge_key_prefix(study, run),
        life=setup.charge_key_prefix(study, run).removeprefix(described) if fixed and whole else "",
    )
    first = Moment(regime.start(setup.first()))
    facts = _facts(study, setup, priced, simulation)
    paid = "round" if privacy.unit == "client" else "local step"
    remedies = remedy(
        study, personal.epsilons(study), "Raise noise_multiplier or lower sampling_rate"
    )
    return setup.built(
        study, priced, simulation, first, facts=facts, paid=paid, remedy=remedies, evaluation=tested
    )


def _noise(study: SynchronousStudy, setup: SharedSetup) -> Bounded | None:
    if study.privacy.unit == "none":
        return None
    return mechanism(study, setup.sizes, Trial.of(setup.kernels, setup.validation))


def _facts(
    study: SynchronousStudy, setup: SharedSetup, priced: Plan, simulation: Simulation
) -> records.Synchronous:
    """What the run's record says of it, with the grid of a shared sum."""
    found = horizontal(records.Synchronous, study, setup, priced, simulation)
    if priced.shared is None:
        return found
    grid = {name: getattr(priced.shared, name) for name in records.Sum.__struct_fields__[2:]}
    told = records.Sum(honest=honest(study), fewest=fewest(study), **grid)
    return msgspec.structs.replace(found, shared=told)


def _rules(
    study: SynchronousStudy,
    terms: Terms,
    pays: tuple[int, ...] | None,
    noise: Bounded | None,
    own: Entropy,
    units: Sequence[str],
    fixed: SharedNoise | None,
) -> Synchronous:
    whole = aggregated(study)
    return Synchronous(
        method=study.method,
        terms=terms,
        budget=None if whole else pays,
        payable=_payable_rounds(study, pays, whole),
        aggregator=None
        if noise is None or not whole or fixed is not None
        else _aggregator(study, terms, noise, own, units),
        adder=None if fixed is None else sums.adder(study, terms.sizes, terms, fixed),
        learner=noise if isinstance(noise, Learning) else None,
        entropy=own,
        cohort=study.participation.cohort,
        deadline=study.participation.deadline,
        momentum=study.method.momentum,
        decay=study.method.average,
    )


def _units(
    together: bool, fingerprints: Sequence[str], own: bool
) -> tuple[list[str], dict[str, str]]:
    """Each client's unit in the ledger, and whose data each unit is.

    Where whole clients are protected, every round charges all of them alike: in a ledger of the run
    they share one unit. In one that knows records each has its own, so that who joins or leaves
    resets nobody's budget.
    """
    if together and own:
        joined = hashlib.sha256("".join(fingerprints).encode()).hexdigest()
        return ["clients"] * len(fingerprints), {"clients": joined}
    units = [f"client:{i}" for i in range(len(fingerprints))]
    return units, dict(zip(units, fingerprints, strict=True))


def _aggregator(
    study: SynchronousStudy,
    terms: Terms,
    noise: Bounded,
    entropy: Entropy,
    units: Sequence[str],
) -> PrivateSum:
    return PrivateSum(
        mechanism=noise,
        shares=tuple(shares(study, terms.sizes)),
        units=tuple(dict.fromkeys(units)),
        sampling_rate=study.privacy.sampling_rate,
        entropy=entropy,
    )


def _payable(
    study: SynchronousStudy,
    priced: Plan,
    ledgers: LedgerSession,
    units: list[str],
    budgets: Sequence[Budget],
) -> tuple[int, ...] | None:
    """Steps that each client can still pay for, given what its ledger already holds.

    A paper's literal form keeps to the R_c it would have if its raw constants cost nothing.
    """
    if priced.steps is None or study.privacy.noise_multiplier is None:
        return None
    whole = aggregated(study)
    if isinstance(study.method, ClientLevel) and not whole:
        return None  # noisy models, whose price nobody could pay
    if study.form == "paper" or ledgers.prices is None:
        return (priced.steps,) * len(set(units))
    most = dict(zip(dict.fromkeys(units), budgets, strict=False))
    here = [unit for unit in most if unit in ledgers.names]  # other sites have ledgers of their own
    alone = len(set(budgets)) == 1 and len(set(ledgers.names.values())) == len(ledgers.names)
    scheduled = len(schedule(study)) > 1
    if scheduled and study.data.person is None and alone:
        own = budgets[0].accountant
        left = {
            unit: min(scheduled_steps(study, own, each) for each in ledgers.histories(unit))
            for unit in here
        }
        return tuple(left.get(unit, priced.steps) for unit in most)
    # Rows of one person weigh more than a schedule knows: then its dearest event stands for all.
    sigma = study.privacy.noise_multiplier
    booked = (
        [dict.fromkeys(most, event) for event, _ in spending(study, priced.steps)]
        if scheduled
        else [{unit: step(study, sigma * personal.scale(study, i)) for i, unit in enumerate(most)}]
    )
    payable = [ledgers.remaining(events, most) for events in booked]
    found = []
    for unit in most:
        each = [one[unit] for one in payable] if unit in here else [None]
        found.append(min(priced.steps if steps is None else steps for steps in each))
    return tuple(found)


def _payable_rounds(
    study: SynchronousStudy, pays: tuple[int, ...] | None, whole: bool
) -> int | None:
    """Rounds that everybody can pay for, if rounds are charged or differ; None: count steps."""
    if pays is None:
        return None
    if whole:
        return min(pays)
    return min(pays) // (charged_per_round(study) or 1) if len(schedule(study)) > 1 else None


def _terms(
    study: SynchronousStudy,
    sizes: tuple[int, ...],
    dimension: int,
    payable: tuple[int, ...] | None,
    noise: Bounded | None,
) -> Terms:
    sigma = study.privacy.noise_multiplier or 0.0 if study.privacy.unit != "none" else 0.0
    return Terms(
        dimension=dimension,
        sizes=sizes,
        weights=personal.weights(study, sizes),
        sampling_rate=study.privacy.sampling_rate,
        learning_rate=study.method.learning_rate,
        clip=math.inf if noise is None else noise.clip,
        noise=0.0 if noise is None else noise.vector_multiplier,
        rounds=study.budget.rounds,
        steps=None if payable is None or aggregated(study) else min(payable),
        sigma=sigma,
        scales=personal.scales(study),
        epsilon=study.privacy.epsilon
        if study.privacy.epsilon is not None and study.form == "sound"
        else math.inf,
        delta=study.privacy.delta or 0.0,
        accountant=study.privacy.accountant,
    )
