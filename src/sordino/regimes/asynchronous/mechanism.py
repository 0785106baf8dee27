"""The mechanism of a study in which gradients are applied as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sordino.clients.mechanism import Trial, as_good, in_words
from sordino.core.plan import Plan
from sordino.mechanisms import NoiseRequest
from sordino.privacy import PoissonSampled, accountant
from sordino.regimes.asynchronous.plan import dearest
from sordino.regimes.asynchronous.study import AsynchronousStudy

if TYPE_CHECKING:
    from sordino.mechanisms import Bounded


def edge_mechanism(study: AsynchronousStudy, trial: Trial) -> Bounded:
    """The mechanism of the edges in the first stage, at the largest multiplier of any.

    No count is released beside: every gradient would pay for it.
    """
    return study.privacy.mechanism.made(
        NoiseRequest(
            unit=study.privacy.unit,
            clip=study.privacy.clip,
            noise_multiplier=study.privacy.noise_multiplier or 0.0,
            parameters=trial.parameters,
            energies=trial.energies if study.data.validation else None,
        )
    )


def announced(priced: Plan, study: AsynchronousStudy, noise: Bounded, sizes: Sequence[int]) -> Plan:
    """The plan with what a mechanism's literal form claims beside what it gives."""
    privacy, (rate, z, _) = study.privacy, dearest(study, sizes)
    true = noise.scaled(noise.clip, z).event()
    if as_good(true, privacy.mechanism.event(z)) or priced.used is None or privacy.delta is None:
        return priced
    spent = [(PoissonSampled(sampling_rate=rate, event=true), priced.used)]
    return priced.exposed(
        "privacy.mechanism.form",
        accountant(privacy.accountant).epsilon(spent, privacy.delta),
        in_words(true),
    )
