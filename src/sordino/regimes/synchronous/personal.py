r"""Clients with epsilons of their own: each has its own noise, its own budget and its own weight.

A client's noise multiplier sigma_i is calibrated for its epsilon_i, over the steps that all take. A
client with little epsilon sends much noise, and an average by size would be as noisy as its worst
part. So a client counts in the average by its usual weight times 1 / sigma_i^2, as the precision of
its noise says, which is what it was before if all epsilons are equal. Weights follow from epsilons,
sizes, delta, q and the number of steps, all of which are public, so they cost nothing; they tilt
what is learned towards the data of those who allow more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sordino.core.plan import Plan
from sordino.regimes.synchronous import plan, sums
from sordino.regimes.synchronous.study import SynchronousStudy


def epsilons(study: SynchronousStudy) -> tuple[float, ...]:
    """epsilon_i of every client."""
    own = study.privacy.epsilons
    return own if own is not None else (study.privacy.epsilon or math.inf,) * study.data.clients


def multipliers(study: SynchronousStudy, clients: int) -> tuple[float, ...]:
    """sigma_i of every client of a calibrated study."""
    own = study.privacy.noise_multipliers
    return own if own is not None else (study.privacy.noise_multiplier or 0.0,) * clients


def scales(study: SynchronousStudy) -> tuple[float, ...]:
    """sigma_i over the largest of them; empty where all clients are alike."""
    own, largest = study.privacy.noise_multipliers, study.privacy.noise_multiplier
    return () if own is None or not largest else tuple(sigma / largest for sigma in own)


def scale(study: SynchronousStudy, client: int) -> float:
    """sigma_i of a client over the study's noise multiplier."""
    found = scales(study)
    return found[client] if found else 1.0


def weights(study: SynchronousStudy, sizes: Sequence[int]) -> tuple[float, ...]:
    """p_i of every client, adding up to 1."""
    total, equal = sum(sizes), study.method.weights == "equal"
    usual = tuple(1.0 / len(sizes) if equal else n / total for n in sizes)
    own = scales(study)
    if not own:
        return usual
    precise = [p / s**2 for p, s in zip(usual, own, strict=True)]
    return tuple(p / sum(precise) for p in precise)


def of_client(study: SynchronousStudy, client: int) -> SynchronousStudy:
    """The study as if all clients were this one."""
    privacy, own = study.privacy, study.privacy.noise_multipliers
    changed = {
        "epsilon": epsilons(study)[client],
        "noise_multiplier": privacy.noise_multiplier if own is None else own[client],
        "epsilons": None,
        "noise_multipliers": None,
    }
    return study.model_copy(update={"privacy": privacy.model_copy(update=changed)})


def calibrated(study: SynchronousStudy) -> SynchronousStudy:
    """The same study with the noise multiplier of each client."""
    privacy = study.privacy
    if privacy.noise_multipliers is not None:
        found = privacy.noise_multipliers
    else:
        own = epsilons(study)
        first = {epsilon: client for client, epsilon in reversed(list(enumerate(own)))}
        sigma = {
            epsilon: plan.calibrate(of_client(study, client)).privacy.noise_multiplier or 0.0
            for epsilon, client in first.items()
        }
        found = tuple(sigma[epsilon] for epsilon in own)
    changed = {"noise_multipliers": found, "noise_multiplier": max(found)}
    return study.model_copy(update={"privacy": privacy.model_copy(update=changed)})


def price(study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
    """The plan of any study; with epsilons of clients' own, steps that all clients can pay for, and
    epsilon of the one that spends most.
    """
    if study.privacy.epsilons is None:
        return sums.price(study, sizes, dimension)
    full = calibrated(study)
    kinds = zip(epsilons(full), multipliers(full, len(sizes)), strict=True)
    first = {kind: client for client, kind in reversed(list(enumerate(kinds)))}
    studies = [of_client(full, client) for client in first.values()]
    plans = [plan.price(one, sizes, dimension) for one in studies]
    steps = min(each.steps for each in plans if each.steps is not None)
    rounds, dearest = full.budget.rounds, max(range(len(plans)), key=lambda k: plans[k].epsilon)
    pace = plan.charged_per_round(full) or (1 if rounds >= steps else math.ceil(steps / rounds))
    used = min(pace * rounds, steps)
    curve = plan.curve(studies[dearest], pace, used)
    signals = [each.signal_to_noise for each in plans if each.signal_to_noise is not None]
    return replace(
        plans[dearest],
        noise_multiplier=full.privacy.noise_multiplier or 0.0,
        steps=steps,
        most={name: _least(each.most[name] for each in plans) for name in plans[0].most},
        used=used,
        epsilon=curve[-1],
        curve=curve,
        ends="privacy" if pace * rounds > steps else "rounds",
        signal_to_noise=max(signals, default=None),
        relative_noise=_relative(full, sizes),
        calibrated=study.privacy.noise_multipliers is None,
        clients=tuple(
            zip(
                epsilons(full),
                multipliers(full, len(sizes)),
                weights(full, sizes),
                strict=True,
            )
        ),
        warnings=tuple(dict.fromkeys(line for each in plans for line in each.warnings)),
    )


def _least(values: Iterable[int | None]) -> int | None:
    return min((each for each in values if each is not None), default=None)


def _relative(study: SynchronousStudy, sizes: Sequence[int]) -> float:
    """sigma / (q n) of equal clients with as much noise in their average."""
    rate, own = study.privacy.sampling_rate, multipliers(study, len(sizes))
    parts = [
        p * sigma / (rate * n)
        for p, sigma, n in zip(weights(study, sizes), own, sizes, strict=True)
        if n
    ]
    return math.hypot(*parts) / math.sqrt(len(sizes))
