r"""What a study of arrivals will cost, before anything runs.

Edge k draws its batches with q_k = b / n_k. With T updates, K edges and M gradients to an update,
an edge's fair share is ceil(T M / K) tasks; edges that are faster than others are given more. So
where delays differ a quarter more is planned for, unless ``budget.tasks`` says how many. A stage of
MAPA that does not end within T updates is said here, with what would make it end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import cast

from sordino.base.errors import StudyError
from sordino.base.modules import raised
from sordino.core.method import METHODS
from sordino.core.plan import ACCOUNTANTS, Curve, Plan, limits, step_event
from sordino.mechanisms.gaussian import LARGEST, SMALLEST
from sordino.privacy import accountant, epsilon_after, noise_multiplier
from sordino.privacy.budget import left_out
from sordino.regimes.asynchronous.method import AsynchronousMethod, EdgeTerms, Noisy, Stage
from sordino.regimes.asynchronous.methods.mapa import Mapa, feasible
from sordino.regimes.asynchronous.study import AsynchronousStudy

KINDS = 16  # of sampling rates, beyond which they are rounded
SPARE = 1.25  # times the fair share, where delays differ


def rates(batch: float, sizes: Sequence[int]) -> tuple[float, ...]:
    """q_k = b / n_k of every edge, of many different ones in steps of 3 %.

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
    """Tasks of an edge, if all are equally fast."""
    return math.ceil(study.budget.updates * study.participation.buffer / study.edges)


def planned(study: AsynchronousStudy) -> int:
    """Tasks of an edge that noise is calibrated for."""
    if study.budget.tasks is not None:
        return study.budget.tasks
    even = study.world.latency.even and study.world.latency.spread == 0 and study.world.dropout == 0
    return share(study) if even else math.ceil(SPARE * share(study))


def calibrate(study: AsynchronousStudy, sizes: Sequence[int]) -> AsynchronousStudy:
    """The same study with its noise filled in: one multiplier, or one for each edge's epsilon."""
    privacy = study.privacy
    if privacy.unit == "none" or privacy.noise_multiplier is not None:
        return study
    if privacy.noise_multipliers is not None:
        return study.model_copy(
            update={
                "privacy": privacy.model_copy(
                    update={"noise_multiplier": max(privacy.noise_multipliers)}
                )
            }
        )
    if privacy.epsilon is None or privacy.delta is None or math.isinf(privacy.epsilon):
        raise StudyError(
            "privacy.noise_multiplier can be calibrated only from a finite epsilon; give one "
            "of the two"
        )
    if study.method.literal:
        # which that form does not use
        return study.model_copy(
            update={"privacy": privacy.model_copy(update={"noise_multiplier": 1.0})}
        )
    found: dict[tuple[float, float], float] = {}
    targets = [
        (rate, epsilon)
        for rate, epsilon in zip(rates(study.method.batch, sizes), epsilons(study), strict=True)
    ]
    if privacy.epsilons is None:
        targets = [max(targets)] * len(targets)
    for rate, epsilon in set(targets):
        found[rate, epsilon] = noise_multiplier(
            sampling_rate=rate,
            steps=planned(study),
            epsilon=epsilon,
            delta=privacy.delta,
            accountant=privacy.accountant,
            release=privacy.mechanism.event,
        )
    each = tuple(found[target] for target in targets)
    update = {
        "noise_multiplier": max(each),
        "noise_multipliers": each if privacy.epsilons is not None else None,
    }
    return study.model_copy(update={"privacy": privacy.model_copy(update=update)})


def epsilons(study: AsynchronousStudy) -> tuple[float, ...]:
    """epsilon_k of every edge."""
    own = study.privacy.epsilons
    return own if own is not None else (study.privacy.epsilon or math.inf,) * study.edges


def multipliers(study: AsynchronousStudy) -> tuple[float, ...]:
    """z_k of every edge of a calibrated study."""
    own = study.privacy.noise_multipliers
    return own if own is not None else (study.privacy.noise_multiplier or 0.0,) * study.edges


def terms(study: AsynchronousStudy, dimension: int) -> EdgeTerms:
    """The public facts of a calibrated study."""
    private = study.privacy.unit != "none"
    return EdgeTerms(
        dimension=dimension,
        edges=study.edges,
        batch=study.method.batch,
        clip=study.privacy.clip if private else math.inf,
        noise=max(multipliers(study)) if private else 0.0,
        staleness=study.stalest,
        updates=study.budget.updates,
    )


def _stages(method: AsynchronousMethod, known: EdgeTerms) -> tuple[Stage, ...]:
    """What a method's schedule is, if it is one: without gaps, from the first update to the last.

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
    """The method's stages.

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
    """The plan of a study over edges of these sizes and a model of this dimension."""
    full = calibrate(study, sizes)
    privacy, known = full.privacy, terms(full, dimension)
    stages, updates, batch = _schedule(full, known), full.budget.updates, full.method.batch
    if privacy.unit == "none" or privacy.delta is None or privacy.epsilon is None:
        return _uncharged(full, math.inf, (), stages)
    if isinstance(full.method, Noisy) and full.method.literal:
        told = tuple(warnings(full, sizes, None, known, stages))
        claimed = share(full) * max(full.method.claims(full.edges))
        claim = _uncharged(full, claimed, told, stages)
        return claim.exposed("method.form", math.inf, full.method.unpriced or "")
    names = tuple(dict.fromkeys((*ACCOUNTANTS, privacy.accountant)))
    rate, z, epsilon = dearest(full, sizes)
    event = step_event(rate, z, privacy.mechanism)
    most = limits(event, epsilon, privacy.delta, names)
    steps, wanted = most[privacy.accountant], share(full)
    used = wanted if steps is None else min(wanted, steps)
    points = sorted({max(math.ceil(used * part / 20), 1) for part in range(1, 21)})
    delta, chosen = privacy.delta, accountant(privacy.accountant)
    curve = Curve(
        tuple(points),
        lambda count: chosen.epsilon([(event, count)], delta, quick=count != points[-1]),
    )
    return Plan(
        noise_multiplier=z,
        steps=steps,
        most=most,
        rounds=updates,
        used=used,
        epsilon=curve[-1],
        curve=curve,
        ends="privacy" if steps is not None and wanted > steps else "rounds",
        batches=(batch,) * 3,
        signal_to_noise=batch / (z * math.sqrt(dimension)),
        relative_noise=z / (rate * sum(sizes)),
        calibrated=study.privacy.noise_multiplier is None,
        warnings=(
            *warnings(full, sizes, steps, known, stages),
            *left_out(privacy.delta, epsilon, numbers=used * dimension),
        ),
        stages=stages,
    )


def _uncharged(
    study: AsynchronousStudy, epsilon: float, told: tuple[str, ...], stages: tuple[Stage, ...]
) -> Plan:
    """A plan without a proven bound: of a study without privacy, or of what a paper claims."""
    return Plan(
        noise_multiplier=0.0,
        steps=None,
        most={},
        rounds=study.budget.updates,
        used=share(study),
        epsilon=epsilon,
        curve=(epsilon,),
        ends="rounds",
        batches=(study.method.batch,) * 3,
        signal_to_noise=None,
        relative_noise=None,
        calibrated=False,
        warnings=told,
        stages=stages,
    )


def dearest(study: AsynchronousStudy, sizes: Sequence[int]) -> tuple[float, float, float]:
    """q, z and epsilon of the edge that spends most in its share; of many, by the Rényi bound."""
    privacy, wanted, delta = study.privacy, share(study), study.privacy.delta or 1e-5
    edges = set(
        zip(rates(study.method.batch, sizes), multipliers(study), epsilons(study), strict=True)
    )
    named = privacy.accountant if len(edges) <= KINDS else "rdp"

    def spent(edge: tuple[float, float, float]) -> tuple[float, float]:
        rate, z, epsilon = edge
        (after,) = epsilon_after(
            step_event(rate, z, privacy.mechanism), [wanted], delta=delta, accountant=named
        )
        return min(after, epsilon), rate / z

    return max(edges, key=spent) if len(edges) > 1 else edges.pop()


def warnings(
    study: AsynchronousStudy,
    sizes: Sequence[int],
    steps: int | None,
    known: EdgeTerms,
    stages: Sequence[Stage],
) -> list[str]:
    """What is allowed but should be looked at."""
    found = []
    privacy, smallest, method = study.privacy, min(sizes), study.method
    if privacy.delta is not None and privacy.delta >= 1.0 / smallest:
        found.append(
            f"privacy.delta = {privacy.delta:g} is not below 1/{smallest}, one over the smallest "
            "edge's examples: it would allow giving one example away. Choose less than "
            f"{1.0 / smallest:.1g}"
        )
    if steps == 0:
        found.append(
            "the privacy budget does not pay for a single gradient: raise epsilon or "
            "noise_multiplier"
        )
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
