"""The price of a choice on private data: known, and shown, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sordino.base.errors import StudyError
from sordino.clients.study import HorizontalStudy
from sordino.core.plan import Stages
from sordino.core.regimes import calibrated
from sordino.privacy import Repeated, Selected, accountant
from sordino.privacy.event import Composed, Trials
from sordino.privacy.parts import expected, law, missed, name_of, named
from sordino.privacy.records.group import of_rows
from sordino.regimes.synchronous.regime import REGIME, charges, scheduled
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.tune.grid import Candidate, again

VALIDATION = "accuracy of the final model on its public validation examples"
TEST = "accuracy of the final model on its public test set, which is therefore too high"
PAID = "noisy accuracy of the final model on its private test rows, which pay for it"


@dataclass(frozen=True, slots=True, eq=False)
class Price:
    """A choice that can be paid for.

    Attributes:
        studies: of each candidate, as a trial runs it: priced as one of a random number.
        grid: what is tried, as ``KEY=V1,V2``.
        measure: by what the best is chosen.
        law: name of the distribution of the number of trials; ``trials`` the distribution.
        event: what is booked for a client's data (and for private test rows ``tested``).
        own: the same for each client, where clients have epsilons of their own.
        epsilon, delta: of everything together, by ``accountant``: of the client that pays most.
        one: epsilon of a single run with this noise, of the same client.
        noise, without: noise multipliers of a trial, and of the study if nothing were tuned: the
            largest over the clients.
        missed: the chance that a certain candidate is never tried.
    """

    studies: tuple[SynchronousStudy, ...]
    grid: tuple[str, ...]
    measure: str
    law: str
    trials: Trials
    event: Selected
    own: tuple[Selected, ...]
    tested: Selected | None
    epsilon: float
    delta: float
    accountant: str
    one: float
    noise: float
    without: float
    missed: float


def price(
    candidates: Sequence[Candidate], grid: Sequence[str], kind: str, mean: float | None
) -> Price:
    """The price of a private choice among candidates.

    Args:
        kind: the law of the number of trials; ``mean`` how many are expected, by default two for
            each candidate.

    Raises:
        StudyError: if the choice cannot be made, or has no proven price.
    """
    for candidate in candidates:
        _refuse(candidate.study)
    mean = 2.0 * len(candidates) if mean is None else mean
    first = candidates[0].study
    trials, measure = law(kind, mean), measured(first)
    name = name_of(first.privacy.accountant, kind, mean)
    trials = (named(name) or ("", trials))[1]  # as the accountant's name has it, to the last digit
    note = {"source": "private", "grid": list(grid), "measure": measure}
    asked = [
        again(
            each.study,
            f"candidate {each.title}",
            privacy={"accountant": name, "ledger": "run"},
            tuned={"chosen": dict(each.chosen), **note},
        )
        for each in candidates
    ]
    studies = tuple(
        full for each in asked if isinstance(full := calibrated(each), SynchronousStudy)
    )
    prices = {(_histories(study), _tested(study, trials)) for study in studies}
    if len(prices) > 1:
        raise StudyError(
            "the candidates cost different amounts (noise, sampling rate, or number of steps or of "
            "measurements on private rows differ), and a private choice is priced for equal ones: "
            "vary only keys that leave the price as it is, such as privacy.clip, "
            "method.learning_rate and model.name"
        )
    ((each, tested),), base = prices, accountant(first.privacy.accountant)
    parts = [[Repeated(event, count) for event, count in history] for history in each]
    events = tuple(
        Selected(own[0] if len(own) == 1 else Composed(tuple(own)), trials) for own in parts
    )
    delta, rows = first.privacy.delta or 0.0, first.rows_at_once
    return Price(
        studies=studies,
        grid=tuple(grid),
        measure=measure,
        law=kind,
        trials=trials,
        event=events[0],
        own=events if studies[0].privacy.epsilons is not None else (),
        tested=tested,
        epsilon=max(base.epsilon([(of_rows(event, rows), 1)], delta) for event in set(events)),
        delta=delta,
        accountant=first.privacy.accountant,
        one=max(
            base.epsilon([(of_rows(event, rows), count) for event, count in history], delta)
            for history in set(each)
        ),
        noise=studies[0].privacy.noise_multiplier or 0.0,
        without=calibrated(first).privacy.noise_multiplier or 0.0,
        missed=missed(trials, len(candidates)),
    )


def _refuse(study: HorizontalStudy) -> None:
    privacy = study.privacy
    if not isinstance(study, SynchronousStudy):
        raise StudyError(
            "--on private is for methods that work in rounds: on arrival, how often a client's "
            "data is used depends on the others. Tune on public data"
        )
    if privacy.unit == "none" or privacy.epsilon is None or math.isinf(privacy.epsilon):
        raise StudyError("--on private needs a finite privacy.epsilon, which pays for the choice")
    if named(privacy.accountant) is not None:
        raise StudyError(
            f"privacy.accountant = '{privacy.accountant}' is that of a selection already: give "
            "that of one run, such as 'pld'"
        )
    if privacy.noise_multiplier is not None or study.privacy.noise_multipliers is not None:
        raise StudyError(
            "privacy.noise_multiplier is given, and a private choice calibrates the noise of its "
            "trials so that all of them stay within epsilon: leave it out"
        )
    if privacy.entropy != "system":
        raise StudyError(
            "--on private draws the number of its trials in secret, and each trial needs noise of "
            "its own, which noise from a seed is not: set privacy.entropy = 'system'"
        )
    chosen = study.method.fixed_tau is None and scheduled(study)
    if study.method.adapts_noise or privacy.mechanism.sized or chosen:
        raise StudyError(
            "--on private needs runs whose price is known beforehand: noise that is chosen along "
            "the way, a number of steps that is chosen while noise follows a schedule, or a price "
            "that depends on the model's size, is not"
        )


def measured(study: HorizontalStudy) -> str:
    """By what candidates are told apart: something public, or something paid for.

    Raises:
        StudyError: if there is nothing.
    """
    if study.data.validation:
        return VALIDATION
    if study.data.testing == "private share":
        return PAID
    if study.data.testing != "none":
        return TEST
    own = ": what data.client_validation sets aside is the clients' own"
    raise StudyError(
        "no model of this study is measured on anything that is public or paid for"
        f"{own if study.data.client_validation else ''}. Give data.validation, a public "
        "data.test, or data.test = 'private share'"
    )


def _histories(study: SynchronousStudy) -> tuple[Stages, ...]:
    """Return the most that one run books: for each client where clients differ, else for all."""
    asked, promised = REGIME.schedule(study, ()), REGIME.promised(study, ())
    kinds, found = {}, list[Stages]()
    for first in asked.kinds.values():
        if first not in kinds:
            steps, used = charges(study, promised.affordable(first))
            most = steps if study.method.adapts_steps else used
            kinds[first] = tuple(asked.spending(first, most or 0))
        found.append(kinds[first])
    return tuple(found) if study.privacy.epsilons is not None else (found[0],)


def _tested(study: HorizontalStudy, trials: Trials) -> Selected | None:
    """Return the charge of private test rows; None where there are none."""
    if study.data.testing != "private share":
        return None
    from sordino.clients.evaluation import priced

    mechanism, _, times = priced(study)
    return Selected(Repeated(mechanism.event(), times), trials)


def told(price: Price) -> list[tuple[str, str]]:
    """A price, for people: (what, how much)."""
    from sordino.privacy.rounding import epsilon_text

    mean = expected(price.trials)
    return [
        ("candidates", str(len(price.studies))),
        ("number of trials", f"{price.law}, {mean:g} expected; drawn in secret, told to nobody"),
        ("a certain candidate is never tried", f"with probability {price.missed:.2f}"),
        ("epsilon of all of it together", f"{epsilon_text(price.epsilon)} at {price.delta:g}"),
        ("epsilon of one such run alone", epsilon_text(price.one)),
        ("noise multiplier of a trial", f"{price.noise:g}"),
        ("noise multiplier without tuning", f"{price.without:g}"),
        ("measure", price.measure),
    ]
