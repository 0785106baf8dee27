"""Canaries at one edge of a study in which gradients are applied as they arrive.

The run is the study's own, by its kernel and with its ledger. At the first edge, examples are
planted whose gradient has length G on one number of the vector, another for each, and is in the
edge's data or not by a coin (:mod:`sordino.audit.planted`). The adversary sees every gradient that
this edge sends. Its sampling rate and its noise are what they are without canaries.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.audit.intervals import Interval, Row, alone, played
from sordino.audit.planted import Promised, Watched, dirac, likelihoods
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.clients.division import Federation, federation, loss_of
from sordino.clients.simulation import Simulation
from sordino.regimes.asynchronous.edge import PrivateEdge
from sordino.regimes.asynchronous.regime import REGIME
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.training.client import ModelKernels


def rows(study: AsynchronousStudy, canaries: int, name: str) -> Sequence[Row]:
    """Return the rows of one study, with at most so many canaries in a run."""
    if study.privacy.unit != "sample" or study.method.unpriced is not None:
        raise StudyError(
            f"method.name = {study.method.name!r}: no epsilon is promised that canaries could "
            "refute. Use privacy.unit = 'sample' and form = 'sound'"
        )
    return [lambda alpha: arrivals(study, canaries, alpha, name)]


def arrivals(study: AsynchronousStudy, canaries: int, alpha: float, name: str) -> Interval:
    """One run with canaries at the first edge, by an adversary who sees all that it sends.

    Raises:
        StudyError: if its noise differs from number to number.
    """
    study = alone(study)
    privacy = study.privacy
    divided = federation(study)
    with tempfile.TemporaryDirectory() as folder:
        built = REGIME.assembled(study, divided, Path(folder), "audit", None)
        simulation = built.simulation
        assert isinstance(simulation, Simulation)
        first = simulation.clients[0]
        assert isinstance(first, PrivateEdge)
        edge, coins = _planted(study, divided, first, canaries)
        played(
            replace(built, simulation=replace(simulation, clients=[edge, *simulation.clients[1:]]))
        )
        spent = simulation.ledgers.spent(simulation.units[0])
        simulation.ledgers.close()
    assert isinstance(edge.mechanism, Watched)
    told = Promised(
        name=f"{name}, every gradient seen",
        unit="sample",
        how="one run, white box",
        spent=spent,
        delta=privacy.delta or 1e-5,
        accountant=privacy.accountant,
    )
    return told.interval(likelihoods(edge.mechanism.seen, edge.sampling_rate), coins, alpha)


def _planted(
    study: AsynchronousStudy, divided: Federation, edge: PrivateEdge, canaries: int
) -> tuple[PrivateEdge, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """The edge with canaries behind its examples, and their coins (m,)."""
    flat, part = edge.kernels.flat, divided.parts[0]
    m, entropy = min(canaries, flat.dim), Seeded(study.seed)
    coins = entropy.at("audit", "arrivals", "coins").random(m) < 0.5
    rng = entropy.at("audit", "arrivals", "places")
    kernel, examples = dirac(flat, loss_of(study), part, coins, rng)
    assert kernel.places is not None
    return (
        replace(
            edge,
            examples=examples,
            kernels=ModelKernels(flat, kernel, edge.kernels.mean),
            mechanism=Watched(edge.mechanism, kernel.without, kernel.places),
        ),
        coins,
    )


ROWS = rows
