r"""The price of a study of arrivals, before anything runs.

Edge k draws its batches with q_k = b / n_k. With T updates, K edges and M gradients to an update,
an edge's fair share is ceil(T M / K) tasks; edges that are faster than others are given more. So
where delays differ a quarter more is planned for, unless ``budget.tasks`` says how many. A stage of
MAPA that does not end within T updates is said here, with what would make it end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import cast

from sordino.base.errors import StudyError
from sordino.base.modules import raised
from sordino.clients import pricing
from sordino.clients.pricing import KINDS
from sordino.core.method import METHODS
from sordino.core.plan import Plan, Schedule
from sordino.mechanisms.gaussian import LARGEST, SMALLEST
from sordino.regimes.asynchronous.method import AsynchronousMethod, EdgeTerms, Noisy, Stage
from sordino.regimes.asynchronous.methods.mapa import Mapa, feasible
from sordino.regimes.asynchronous.study import AsynchronousStudy

SPARE = 1.25  # times the fair share, where delays differ


def rates(batch: float, sizes: Sequence[int]) -> tuple[float, ...]:
    """Return q_k = b / n_k of every edge; of many different ones in steps of 3 %.

    Each kind of event is priced by itself.

    Raises:
        StudyError: for an edge with fewer examples than a batch.
    """
    if min(sizes) < batch:
        raise StudyError(
            f"method.batch = {batch:g}, but the smallest edge has {min(sizes)} examples: "
            "lower it, or data.clients"
        )
    exact = [batch / size for size in sizes]
    if len(set(exact)) <= KINDS:
        return tuple(exact)
    return tuple(min(2.0 ** (round(32.0 * math.log2(rate)) / 32.0), 1.0) for rate in exact)


def share(study: AsynchronousStudy) -> int:
    """Return the tasks of an edge, if all are equally fast."""
    return math.ceil(study.budget.updates * study.participation.buffer / study.edges)


def planned(study: AsynchronousStudy) -> int:
    """Return the tasks of an edge that noise is calibrated for."""
    if study.budget.tasks is not None:
        return study.budget.tasks
    even = study.world.latency.even and study.world.latency.spread == 0 and study.world.dropout == 0
    return share(study) if even else math.ceil(SPARE * share(study))


def schedule(study: AsynchronousStudy, sizes: Sequence[int]) -> Schedule:
    """Return what a study that promises something charges its edges, with the noise it states."""
    each = rates(study.method.batch, sizes)
    return pricing.schedule(study, each, planned(study), "gradients")


def calibrate(study: AsynchronousStudy, sizes: Sequence[int]) -> AsynchronousStudy:
    """Return the study with its noise filled in: one multiplier, or one for each edge's epsilon."""
    privacy, given = study.privacy, study.privacy.noise_multipliers
    if privacy.unit == "none" or privacy.noise_multiplier is not None:
        return study
    if privacy.epsilon is not None and study.method.literal and given is None:
        # which that form does not use
        given = (1.0,) * len(sizes)
    sigmas = given or tuple(schedule(study, sizes).calibrated().multipliers.values())
    update: dict[str, object] = {"noise_multiplier": max(sigmas)}
    if privacy.epsilons is not None:
        update["noise_multipliers"] = sigmas
    return study.model_copy(update={"privacy": privacy.model_copy(update=update)})


def terms(study: AsynchronousStudy, dimension: int) -> EdgeTerms:
    """Return the public facts of a calibrated study."""
    private = study.privacy.unit != "none"
    return EdgeTerms(
        dimension=dimension,
        edges=study.edges,
        batch=study.method.batch,
        clip=study.privacy.clip if private else math.inf,
        noise=max(study.multipliers) if private else 0.0,
        staleness=study.stalest,
        updates=study.budget.updates,
    )


def _stages(method: AsynchronousMethod, known: EdgeTerms) -> tuple[Stage, ...]:
    """Return a method's stages, without gaps, from the first update to the last.

    Raises:
        StudyError: if it is none.
    """
    given: object = method.stages(known)
    wanted = "its stages (Stage), one after another without a gap, up to the last update"
    if not isinstance(given, tuple | list) or not all(isinstance(each, Stage) for each in given):
        raise METHODS.wrong(method, "stages", given, wanted)
    end = 0
    for stage in given:
        if stage.start != end or stage.length < 1:
            raise METHODS.wrong(method, "stages", given, wanted)
        if not isinstance(stage.clip, Real):
            raise METHODS.wrong(method, "clip of stages", stage.clip, "a number")
        if end < known.updates and not isinstance(
            rate := cast(object, method.rate(known, stage, end + 1)), Real
        ):
            raise METHODS.wrong(method, "rate", rate, "a number")
        end = stage.end
    if end < known.updates:
        raise METHODS.wrong(method, "stages", given, wanted)
    return tuple(given)


def _schedule(study: AsynchronousStudy, known: EdgeTerms) -> tuple[Stage, ...]:
    """Return the method's stages.

    Raises:
        StudyError: where they leave the numbers that can be reckoned with.
    """
    try:
        stages = _stages(study.method, known)
        usable = all(
            SMALLEST <= stage.clip <= LARGEST or math.isinf(known.clip) for stage in stages
        )
    except ArithmeticError as error:
        if raised(error) is not None:
            raise
        usable = False
    if not usable:
        raise StudyError(
            f"method '{study.method.name}': with these constants clipping bounds or lengths of "
            f"stages leave what can be reckoned with (bounds from {SMALLEST:g} to {LARGEST:g}): "
            "look at privacy.clip and method.theta, smoothness, deviation and gap"
        )
    return stages


def price(study: AsynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
    """Return the plan of a study over edges of these sizes and a model of this dimension."""
    full = calibrate(study, sizes)
    privacy, known = full.privacy, terms(full, dimension)
    stages, batch = _schedule(full, known), full.method.batch
    if privacy.unit == "none" or privacy.delta is None or privacy.epsilon is None:
        return _uncharged(full, math.inf, (), stages)
    if isinstance(full.method, Noisy) and full.method.literal:
        told = tuple(warnings(full, sizes, None, known, stages))
        claimed = share(full) * max(full.method.claims(full.edges))
        claim = _uncharged(full, claimed, told, stages)
        return claim.exposed("method.form", math.inf, full.method.unpriced or "")
    asked, wanted = schedule(full, sizes), share(full)

    def counts(used: int) -> list[int]:
        return sorted({max(math.ceil(used * part / 20), 1) for part in range(1, 21)})

    found = pricing.price(full, asked, wanted, dimension, (batch,) * 3, sizes, counts)
    return replace(
        found,
        calibrated=study.privacy.noise_multiplier is None,
        warnings=(*warnings(full, sizes, found.steps, known, stages), *found.warnings),
        stages=stages,
    )


def _uncharged(
    study: AsynchronousStudy, epsilon: float, told: tuple[str, ...], stages: tuple[Stage, ...]
) -> Plan:
    """Return a plan without a proven bound: without privacy, or of a paper's claim."""
    return Plan(
        rounds=study.budget.updates,
        used=share(study),
        epsilon=epsilon,
        curve=(epsilon,),
        batches=(study.method.batch,) * 3,
        warnings=told,
        stages=stages,
    )


def warnings(
    study: AsynchronousStudy,
    sizes: Sequence[int],
    steps: int | None,
    known: EdgeTerms,
    stages: Sequence[Stage],
) -> list[str]:
    """Return what is allowed but should be looked at."""
    method = study.method
    found = pricing.warnings(study.privacy.delta, min(sizes), steps, "edge", "gradient")
    noise = known.noise * math.sqrt(known.dimension) / known.batch
    if noise > 1.0 and not method.literal:
        found.append(
            "more noise than signal: a gradient of length at most G carries noise of length z "
            f"sqrt(d) / b = {noise:.3g} G (z = {known.noise:.3g}, d = {known.dimension}, b = "
            f"{known.batch:g}); a larger method.batch would help"
        )
    if isinstance(method, Mapa):
        found += _unfinished(method, known, stages)
    return found


def _unfinished(method: Mapa, known: EdgeTerms, stages: Sequence[Stage]) -> list[str]:
    first = stages[0]
    if first.end <= known.updates:
        return []
    said = (
        f"MAPA does not leave its first stage: it takes {first.length} updates (P = "
        f"{first.slowing:.3g}) and budget.updates is {known.updates}; clip and learning rate stay "
        "what they are"
    )
    if method.literal:
        return [said]
    batch, noise = feasible(method, known)
    ways = [f"method.batch from {math.ceil(batch)} at this noise"] if batch is not None else []
    ways += [f"a noise_multiplier up to {noise:.2g} at this batch"] if noise is not None else []
    return [
        f"{said}. It would end with {' or '.join(ways)}"
        if ways
        else f"{said}. No larger batch and no less noise would change that: lower smoothness"
    ]
