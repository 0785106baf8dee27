"""Canaries at one edge of a study in which gradients are applied as they arrive.

The run is the study's own, by its kernel and with its ledger. At the first edge, examples are
planted whose gradient has length G on one number of the vector, another for each, and is in the
edge's data or not by a coin (:mod:`sordino.audit.planted`). The adversary sees every gradient that
this edge sends. Its sampling rate and its noise are what they are without canaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sordino.audit.intervals import Interval, Row, alone
from sordino.audit.planted import Planted, Watched, attacked, dirac
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.clients.division import Federation, federation, loss_of
from sordino.clients.simulation import Simulation
from sordino.core.prepared import PreparedRun
from sordino.regimes.asynchronous.edge import PrivateEdge
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
    divided = federation(study)
    row = f"{name}, every gradient seen", "sample"
    return attacked(study, divided, partial(_planted, study, divided, canaries), row, alpha)


def _planted(
    study: AsynchronousStudy, divided: Federation, canaries: int, built: PreparedRun
) -> Planted:
    """Return the run with canaries behind the first edge's examples."""
    simulation = built.simulation
    assert isinstance(simulation, Simulation)
    edge, *others = simulation.clients
    assert isinstance(edge, PrivateEdge)
    flat, part = edge.kernels.flat, divided.parts[0]
    m, entropy = min(canaries, flat.dim), Seeded(study.seed)
    coins = entropy.at("audit", "arrivals", "coins").random(m) < 0.5
    rng = entropy.at("audit", "arrivals", "places")
    kernel, examples = dirac(flat, loss_of(study), part, coins, rng)
    watched = Watched(edge.mechanism, kernel.without, kernel.places)
    kernels = ModelKernels(flat, kernel, edge.kernels.mean)
    planted = replace(edge, examples=examples, kernels=kernels, mechanism=watched)
    played = replace(simulation, clients=[planted, *others])
    return replace(built, simulation=played), watched, edge.sampling_rate, coins


ROWS = rows
