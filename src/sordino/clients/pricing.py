"""What steps of DP-SGD at one noise multiplier cost, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from sordino.base.errors import StudyError
from sordino.clients.study import HorizontalStudy, SampledPromise
from sordino.core.plan import ACCOUNTANTS, Plan, limits, step_event
from sordino.core.statements import Paragraph, Table, number
from sordino.core.vocabulary import Vocabulary
from sordino.privacy import Budget, Event, LedgerSession, epsilon_after, noise_multiplier
from sordino.privacy.budget import left_out
from sordino.privacy.rounding import epsilon_text

P = TypeVar("P", bound=HorizontalStudy)


def promised(study: HorizontalStudy) -> SampledPromise:
    """The promise of a study of this kind."""
    assert isinstance(study.privacy, SampledPromise)
    return study.privacy


def step(study: HorizontalStudy, sigma: float) -> Event:
    """One step as it is booked, at this noise multiplier."""
    return step_event(promised(study).sampling_rate, sigma, study.privacy.mechanism)


def calibrate(study: P, steps: int) -> P:
    """The same study with its noise multiplier filled in for so many steps, if it was left out.

    Raises:
        StudyError: where epsilon is infinite.
    """
    privacy = promised(study)
    if privacy.unit == "none" or privacy.noise_multiplier is not None:
        return study
    if privacy.epsilon is None or privacy.delta is None or math.isinf(privacy.epsilon):
        raise StudyError(
            "privacy.noise_multiplier can be calibrated only from a finite epsilon; give one "
            "of the two"
        )
    sigma = noise_multiplier(
        sampling_rate=privacy.sampling_rate,
        steps=steps,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        accountant=privacy.accountant,
        release=privacy.mechanism.event,
    )
    return study.model_copy(
        update={"privacy": privacy.model_copy(update={"noise_multiplier": sigma})}
    )


def price(study: P, sizes: Sequence[int], dimension: int, wanted: int) -> Plan:
    """The plan of a study over clients of these sizes and a model of this dimension, of which the
    client that does most is asked for so many steps.
    """
    full = calibrate(study, wanted)
    privacy, ordered = promised(full), sorted(sizes)
    rate, sigma = privacy.sampling_rate, privacy.noise_multiplier
    batches = (rate * ordered[0], rate * ordered[len(ordered) // 2], rate * ordered[-1])
    if privacy.unit == "none" or privacy.epsilon is None or privacy.delta is None or sigma is None:
        return Plan(
            noise_multiplier=0.0,
            steps=None,
            most={},
            rounds=full.horizon,
            used=wanted,
            epsilon=math.inf,
            curve=(math.inf,),
            ends="rounds",
            batches=batches,
            signal_to_noise=None,
            relative_noise=None,
            calibrated=False,
            warnings=("this run promises no privacy: epsilon is infinite",),
        )
    event, names = step(full, sigma), dict.fromkeys((*ACCOUNTANTS, privacy.accountant))
    most = limits(event, privacy.epsilon, privacy.delta, tuple(names))
    steps = most[privacy.accountant]
    used = wanted if steps is None else min(wanted, steps)
    curve = epsilon_after(event, [used], delta=privacy.delta, accountant=privacy.accountant)
    return Plan(
        noise_multiplier=sigma,
        steps=steps,
        most=most,
        rounds=full.horizon,
        used=used,
        epsilon=curve[-1],
        curve=tuple(curve),
        ends="rounds" if used == wanted else "privacy",
        batches=batches,
        signal_to_noise=batches[1] / (sigma * math.sqrt(dimension)),
        relative_noise=sigma / (rate * sum(sizes)),
        calibrated=study.privacy.noise_multiplier is None,
        warnings=(
            *_warnings(privacy, ordered[0], steps),
            *left_out(privacy.delta, privacy.epsilon, numbers=used * dimension),
        ),
    )


def _warnings(privacy: SampledPromise, smallest: int, steps: int | None) -> list[str]:
    """What is allowed but should be looked at."""
    found = []
    if privacy.delta is not None and privacy.delta >= 1.0 / smallest:
        found.append(
            f"privacy.delta = {privacy.delta:g} is not below 1/{smallest}, one over the "
            "smallest client's examples: it would allow giving one example away"
        )
    if steps == 0:
        found.append(
            "the privacy budget does not pay for a single step: raise epsilon or noise_multiplier"
        )
    return found


def told(study: HorizontalStudy, priced: Plan, words: Vocabulary) -> list[Paragraph]:
    """A plan, for people."""
    privacy = promised(study)
    if not priced.most:
        return [f"no privacy: epsilon is infinite; {words.many(priced.rounds or 0)}"]
    made = "calibrated" if priced.calibrated else "given"
    rows = [
        [name + (" *" if name == privacy.accountant else ""), number(n, 10)]
        for name, n in priced.most.items()
    ]
    within = f"within epsilon {epsilon_text(privacy.epsilon)}, delta {privacy.delta:g}"
    return [
        f"noise multiplier {priced.noise_multiplier:g} ({made}), sampling rate "
        f"{privacy.sampling_rate:g}, clip {privacy.clip:g}",
        Table(f"R_c: most {words.steps} {within}", ["accountant", words.steps], rows),
        f"at most {priced.used} {words.steps} of one {words.client} in "
        f"{words.many(priced.rounds or 0)}: epsilon {epsilon_text(priced.epsilon)}",
    ]


def payable(
    priced: Plan, ledgers: LedgerSession, units: Sequence[str], event: Event, most: Budget
) -> tuple[int, ...] | None:
    """Steps that each client can still pay for, given what its ledger already holds; None without
    a limit.
    """
    if priced.steps is None:
        return None
    if ledgers.prices is None:
        return (priced.steps,) * len(units)
    left = ledgers.remaining(dict.fromkeys(units, event), dict.fromkeys(units, most))
    found = [left[unit] for unit in units]
    return tuple(priced.steps if steps is None else steps for steps in found)
