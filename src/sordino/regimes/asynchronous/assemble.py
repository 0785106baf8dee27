"""The objects of a study in which gradients are applied as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino import data as datasets
from sordino.base.entropy import Entropy, Seeded
from sordino.clients.balance import remedy
from sordino.clients.facts import horizontal
from sordino.clients.mechanism import Trial
from sordino.clients.setup import SharedSetup
from sordino.clients.study import for_dimension
from sordino.core.latency import Churn, Delays
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun, budget, open_ledgers
from sordino.core.run.environment import charge_key_prefix
from sordino.mechanisms import Bounded
from sordino.privacy import Budget, LedgerSession
from sordino.regimes.asynchronous import records
from sordino.regimes.asynchronous.edge import Edge, LiteralEdge, PlainEdge, PrivateEdge
from sordino.regimes.asynchronous.mechanism import announced, edge_mechanism
from sordino.regimes.asynchronous.method import EdgeTerms, Noisy
from sordino.regimes.asynchronous.plan import epsilons, multipliers, price, rates, terms
from sordino.regimes.asynchronous.protocol import Asynchronous
from sordino.regimes.asynchronous.simulation import Arrivals
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.training.client import ModelKernels
from sordino.training.perexample.clipping import summable
from sordino.training.perexample.general import layers_of


def build(
    study: AsynchronousStudy,
    setup: SharedSetup,
    parts: list[datasets.Dataset],
    folder: Path,
    run: str,
    payable: Sequence[int] | None,
) -> PreparedRun:
    """See :func:`sordino.core.regimes.build`; ``parts`` is emptied, to save memory."""
    entropy, flat, sizes = Seeded(study.seed), setup.kernels.flat, setup.sizes
    privacy, world = study.privacy, study.world
    priced, known = price(for_dimension(study, flat.dim), sizes, flat.dim), terms(study, flat.dim)
    noise = (
        edge_mechanism(study, Trial.of(setup.kernels, setup.validation))
        if privacy.unit != "none" and not study.method.literal
        else None
    )
    if noise is not None:
        priced = announced(priced, study, noise, sizes)
    own = setup.entropy(study, run, folder)
    units = [f"client:{i}" for i in range(len(sizes))]
    if noise is not None:
        summable(study.method.batch)
    edges = _edges(study, parts, setup, noise, own, units)
    fingerprints = setup.units(dict(zip(units, setup.fingerprints, strict=True)))
    ledgers = open_ledgers(
        study,
        folder,
        run,
        fingerprints,
        setup.shaping,
        setup.records,
        labels=setup.labels(units),
        public=setup.published(study),
    )
    tested = setup.evaluation(study, ledgers, own, charge_key_prefix(study, run))
    budgets = [budget(study, epsilon) for epsilon in epsilons(study)]
    pays = _payable(study, edges, ledgers, units, budgets) if payable is None else tuple(payable)
    simulation = Arrivals(
        regime=_rules(study, known, priced, edges, pays),
        edges=edges,
        ledgers=ledgers,
        budget=budget(study, privacy.epsilon),
        budgets=budgets,
        units=units,
        delays=Delays(
            world.latency, Churn(dropout=world.dropout, rejoin=world.rejoin), entropy, len(sizes)
        ),
        evaluate=setup.measured(tested),
        method=study.method.name,
        charge_key_prefix=setup.charge_key_prefix(study, run),
    )
    first = simulation.first(setup.first())
    facts = horizontal(records.Asynchronous, study, setup, priced, simulation)
    told = remedy(study, epsilons(study), "Raise noise_multiplier or lower method.batch")
    return setup.built(
        study,
        priced,
        simulation,
        first,
        facts=facts,
        paid="gradient",
        remedy=told,
        evaluation=tested,
    )


def _rules(
    study: AsynchronousStudy,
    known: EdgeTerms,
    priced: Plan,
    edges: Sequence[Edge],
    pays: tuple[int, ...] | None,
) -> Asynchronous:
    return Asynchronous(
        method=study.method,
        terms=known,
        schedule=priced.stages,
        budget=pays,
        exponent=study.participation.staleness_weight,
        buffer=study.participation.buffer,
        decay=study.method.average,
        every=study.stride,
        noise=tuple(edge.noise for edge in edges),
    )


def _edges(
    study: AsynchronousStudy,
    parts: list[datasets.Dataset],
    setup: SharedSetup,
    noise: Bounded | None,
    entropy: Entropy,
    units: Sequence[str],
) -> list[Edge]:
    """The edges; ``parts`` is emptied on the way."""
    method = study.method
    each, sigmas = rates(method.batch, setup.sizes), multipliers(study)
    edges: list[Edge] = []
    scratch = torch.empty_like(setup.kernels.flat.weights, dtype=torch.float64)
    parts.reverse()
    while parts:
        index = len(edges)
        told: dict[str, Any] = {
            "index": index,
            "unit": units[index],
            "examples": setup.examples(parts.pop()),
            "sampling_rate": each[index],
            "regularisation": method.regularisation,
            "kernels": setup.kernels,
            "draws": entropy.stream("edge", index),
            "scratch": scratch,
        }
        if noise is not None:
            edges.append(PrivateEdge(**told, mechanism=noise.scaled(noise.clip, sigmas[index])))
        elif study.privacy.unit == "none":
            edges.append(PlainEdge(**told))
        elif isinstance(method, Noisy):
            edges.append(
                LiteralEdge(
                    **told,
                    iteration_epsilon=method.claims(study.edges)[index],
                    batch=int(method.batch),
                    noised=_first_layer(setup.kernels)
                    if method.noised == "first-layer"
                    else setup.kernels.flat.dim,
                    reason=method.unpriced or "",
                )
            )
    return edges


def _first_layer(kernels: ModelKernels) -> int:
    """Numbers of the first layer that has any; its weights and its bias go together."""
    return sum(slot.size for slot in layers_of(kernels.flat)[0])


def _payable(
    study: AsynchronousStudy,
    edges: Sequence[Edge],
    ledgers: LedgerSession,
    units: Sequence[str],
    budgets: Sequence[Budget],
) -> tuple[int, ...] | None:
    """Updates that each edge can still pay for, by its ledger; None if nothing is promised."""
    if study.privacy.unit == "none" or study.form == "paper":
        return None
    events = {unit: edge.price for unit, edge in zip(units, edges, strict=True)}
    most = dict(zip(units, budgets, strict=True))
    here = ledgers.remaining(events, most)
    left = [
        # another site has a ledger of its own
        here[unit] if unit in here else most[unit].remaining_steps(events[unit], ())
        for unit in units
    ]
    if all(steps is None for steps in left):
        return None
    endless = int(np.iinfo(np.int64).max)
    return tuple(endless if steps is None else min(steps, endless) for steps in left)
