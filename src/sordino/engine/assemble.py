"""The one place where a study becomes objects.

federation     its data, divided
surroundings   device, environment, model
mechanism      what it asks its mechanism for
common         what both regimes share
rounds         studies in rounds
arrivals       studies in which gradients are applied as they arrive
stream, vertical   studies of events: where they come from, and what plays them
promise, facts     what run.json says
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from sordino.engine.built import Built
from sordino.engine.plan import Plan, for_dimension
from sordino.engine.study.base import Study
from sordino.engine.surroundings import device, environment, model, surrounded
from sordino.federation.common import Hall
from sordino.federation.division import Federation, federation, tensors
from sordino.federation.left import left
from sordino.federation.mechanism import edge_mechanism, mechanism
from sordino.federation.study import HorizontalStudy
from sordino.plan import calibrate, price
from sordino.regimes.asynchronous import assemble as arrivals
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.regimes.synchronous import assemble as rounds
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.regimes.vertical import assemble as vertical
from sordino.regimes.vertical.study import VerticalStudy
from sordino.training.bench import Workbench
from sordino.training.flat import Flat
from sordino.training.loss import loss_for
from sordino.training.perexample import ClippedSum, MeanGradient, path_of

__all__ = ["Built", "Federation", "build", "calibrated", "device", "environment", "federation", "model", "plan", "sized", "surrounded"]

S = TypeVar("S", bound=Study)
H = TypeVar("H", bound=HorizontalStudy)


def calibrated(study: S) -> S:
    """The same study with its noise filled in. Data is loaded only where the price depends on it."""
    if not isinstance(study, HorizontalStudy):
        return calibrate(study, ())
    return calibrate(sized(study), federation(study).sizes if isinstance(study, AsynchronousStudy) else ())


def sized(study: H, divided: Federation | None = None) -> H:
    """The same study with its model's size told to a mechanism whose price depends on it; its data, where it is loaded already."""
    if study.privacy.unit == "none" or not study.privacy.mechanism.sized:
        return study
    test = (divided or federation(study)).test
    return for_dimension(study, Flat(model(study, test.shape, len(test.classes))).dim)


def plan(study: Study) -> tuple[Plan, tuple[int, ...]]:
    """The price of a study, with its data loaded but nothing trained; and how many examples each client has, where it has its own."""
    if isinstance(study, VerticalStudy):
        return vertical.plan(study), ()
    if not isinstance(study, HorizontalStudy):
        raise TypeError(type(study).__name__)
    divided = federation(study)
    flat = Flat(model(study, divided.test.shape, len(divided.test.classes)))
    priced, loss = price(study, divided.sizes, flat.dim), loss_for(study.model.name)
    if study.privacy.unit == "none":
        return priced, divided.sizes
    if study.privacy.unit == "sample":
        path = path_of(flat, divided.test.shape, loss)
        priced = replace(priced, gradients=f"{path.name} ({path.why}): {path.cost}")
    bench, public = Workbench(flat, ClippedSum(flat, loss), MeanGradient(flat, loss)), tensors(divided.validation, torch.device("cpu"))
    full = calibrate(for_dimension(study, flat.dim), divided.sizes)
    match full:
        case SynchronousStudy():
            priced = rounds.announced(priced, full, mechanism(full, divided.sizes, bench, public), max(divided.sizes))
        case AsynchronousStudy() if not full.method.literal:
            priced = arrivals.announced(priced, full, edge_mechanism(full, bench, public), divided.sizes)
    return left(full, divided, replace(priced, warnings=(*priced.warnings, *_of_persons(full, divided)))), divided.sizes


def _of_persons(study: HorizontalStudy, divided: Federation) -> list[str]:
    """What a plan, which counts examples by themselves, cannot say of persons with several."""
    if study.data.person is None or study.privacy.unit != "sample":
        return []
    whose = np.concatenate([part.words[:, 2] for part in divided.parts if part.words is not None])
    most = int(np.unique(whose, return_counts=True)[1].max(initial=0))
    if most <= 1:
        return []
    return [
        f"data.person: one person has up to {most} examples, which share one budget, at all clients together. This plan counts"
        " examples by themselves: such a person's budget is spent sooner, and the run then ends sooner. Raise noise_multiplier"
    ]


def build(study: Study, folder: Path, run: str, payable: Sequence[int] | None = None) -> Built:
    """The simulation of a study, calibrated. The ledger is opened (or made) in ``folder``.

    ``payable`` is what each client could pay for when the run began, if it began before: its
    own charges must not be counted against it twice.
    """
    if isinstance(study, VerticalStudy):
        return vertical.build(calibrate(study, ()), folder, run, payable)
    if not isinstance(study, HorizontalStudy):
        raise TypeError(type(study).__name__)
    divided = federation(study)
    full = calibrate(sized(study, divided), divided.sizes)
    hall, parts = Hall.of(full, divided), list(divided.parts)
    del divided  # each part is let go of when it has become a client's tensors
    match full:
        case SynchronousStudy():
            return rounds.build(full, hall, parts, folder, run, payable)
        case AsynchronousStudy():
            return arrivals.build(full, hall, parts, folder, run, payable)
    raise TypeError(type(study).__name__)
