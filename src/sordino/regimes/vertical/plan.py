r"""What a study of events will cost: each entity, with label and all features, is on its own.

There is no batch to hide in and no sampling. One appearance of an entity releases (soundness of the
parts is argued in docs/mathematics.md, Events)

    labels      its label by randomised response: once if memoised, else once an appearance
    party m     its embedding, with noise z_h; and with noisy updates its gradient, with noise z_u

each l times with static local regret, which asks for the same examples again. What depends on
released embeddings and responded labels alone (the server's model, derivatives) is post-processing.
Where something is missing that a bound needs, a party's price is infinite, and :func:`unprotected`
says why.

Ledger units: "labels", "party:m", and "entities" for one entity at all parties, its label included.
All of them are kept, whatever is promised: a run that promises labels, or nothing, must show in the
ledger of a later one that promises entities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sordino.base.errors import StudyError
from sordino.core.plan import ACCOUNTANTS, Plan
from sordino.privacy import (
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    Nothing,
    Pure,
    Repeated,
    accountant,
    most_steps,
    noise_multiplier,
)
from sordino.privacy.accounting import Spent
from sordino.privacy.budget import left_out
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical.study import VerticalStudy

LABELS, ENTITIES = "labels", "entities"
QUARTER = 0.25  # of epsilon that a label may cost beside features, unless something else is said
LABEL_COST = (
    "on Fashion-MNIST, label epsilon 1 / 2 / 3 / 4 gave 73 / 79 / 83 / 84 % where 85 % "
    "were had without"
)
FEATURE_COST = (
    "on Fashion-MNIST in two halves, noise on every embedding at epsilon 32 / 16 / 8 / 4 a release "
    "gave 75 / 54 / 32 / 19 % where 85 % were had without, whatever the embedding's size; secure "
    "aggregation is the answer for features"
)


def party(index: int) -> str:
    """Ledger unit of a party's features."""
    return f"party:{index}"


def label_epsilon(study: VerticalStudy) -> float:
    """What one response may cost."""
    privacy = study.privacy
    whole = privacy.epsilon or math.inf
    part = privacy.label_epsilon or (whole if privacy.unit == "label" else QUARTER * whole)
    return part if privacy.memoised else part / privacy.appearances


def calibrate(study: VerticalStudy) -> VerticalStudy:
    """The same study with its noise filled in: one multiplier for embeddings and updates alike.

    Raises:
        StudyError: where no noise is enough.
    """
    privacy = study.privacy
    if privacy.embedding is None or privacy.epsilon is None or privacy.delta is None:
        return study
    open_ones = [one for one in (privacy.embedding, privacy.update) if one.noise_multiplier is None]
    if not open_ones or (
        privacy.embedding.noise_multiplier is not None and privacy.updates != "noisy"
    ):
        return study
    spent = privacy.label_epsilon or QUARTER * privacy.epsilon
    left = privacy.epsilon - spent if privacy.unit == "entity" else privacy.epsilon
    if left <= 0:
        raise StudyError(
            f"privacy.label_epsilon = {epsilon_text(spent)} leaves nothing of epsilon = "
            f"{epsilon_text(privacy.epsilon)} for features: lower it"
        )
    holders = study.data.parties if privacy.unit == "entity" else 1

    def release(sigma: float) -> Event:
        update = privacy.update.noise_multiplier or sigma
        embedding = (privacy.embedding or privacy.update).noise_multiplier or sigma
        return Repeated(_features(study, embedding, update), holders)

    found = noise_multiplier(
        sampling_rate=1.0,
        steps=privacy.appearances,
        epsilon=left,
        delta=privacy.delta,
        accountant=privacy.accountant,
        release=release,
    )
    filled = {
        name: one.model_copy(update={"noise_multiplier": one.noise_multiplier or found})
        for name, one in (("embedding", privacy.embedding), ("update", privacy.update))
    }
    return study.model_copy(update={"privacy": privacy.model_copy(update=filled)})


def unprotected(study: VerticalStudy) -> str | None:
    """Why a party's features have no finite price; None where they have one."""
    privacy = study.privacy
    if privacy.embedding is None:
        return "embeddings are sent without noise"
    if study.method.activation.looks:
        return (
            f"activation '{study.method.activation.kind}' tells whether a party's mean feature "
            "is above the threshold"
        )
    if privacy.updates == "raw":
        return (
            "parties' models learn from raw features, and later embeddings, noise or not, tell "
            "of what they have learned"
        )
    return None


def features(study: VerticalStudy) -> Event:
    """What one appearance of an entity releases of its features at one party."""
    if (reason := unprotected(study)) is not None or study.privacy.embedding is None:
        return NonPrivate(reason=reason or "")
    return _features(
        study,
        study.privacy.embedding.noise_multiplier or 0.0,
        study.privacy.update.noise_multiplier or 0.0,
    )


def _features(study: VerticalStudy, embedding: float, update: float) -> Event:
    once: list[Event] = [Gaussian(noise_multiplier=embedding)]
    if study.privacy.updates == "noisy":
        once.append(Gaussian(noise_multiplier=update))
    return Repeated(Composed(tuple(once)), study.method.resends)


def label(study: VerticalStudy) -> Event:
    """What one response releases of a label."""
    return (
        NonPrivate(reason="labels are told as they are")
        if study.privacy.unit == "none"
        else Pure(epsilon=label_epsilon(study))
    )


def units(study: VerticalStudy) -> tuple[str, ...]:
    """The ledger's units."""
    return (ENTITIES, LABELS, *(party(m) for m in range(study.data.parties)))


def promised(study: VerticalStudy) -> str:
    """The unit whose epsilon is promised."""
    return ENTITIES if study.privacy.unit == "entity" else LABELS


def charges(study: VerticalStudy, first: int, last: int) -> tuple[tuple[str, Event, int], ...]:
    """(Unit, event, how often) of appearances ``first`` to ``last`` of an entity, from 1."""
    count, parties = last - first + 1, study.data.parties
    responses = (1 if first == 1 else 0) if study.privacy.memoised else count
    told, held = label(study), features(study)
    found = [(LABELS, told, responses), *((party(m), held, count) for m in range(parties))]
    found += [(ENTITIES, told, responses), (ENTITIES, Repeated(held, parties), count)]
    return tuple(each for each in found if each[2])


def payable(study: VerticalStudy, spent: Spent = ()) -> int | None:
    """For how many events of an entity the budget pays after ``spent``; None for any number."""
    privacy = study.privacy
    if privacy.unit == "none" or privacy.epsilon is None or privacy.delta is None:
        return None
    before: list[tuple[Event, int]] = [*spent, *([(label(study), 1)] if privacy.memoised else [])]
    if accountant(privacy.accountant).epsilon(before, privacy.delta) > privacy.epsilon:
        return 0
    if privacy.unit == "label" and privacy.memoised:
        return None
    held: Event = (
        Nothing() if privacy.unit == "label" else Repeated(features(study), study.data.parties)
    )
    each = held if privacy.memoised else Composed((label(study), held))
    return most_steps(
        each,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        accountant=privacy.accountant,
        spent=before,
    )


def price(study: VerticalStudy) -> Plan:
    """The plan of a calibrated study."""
    privacy, events = study.privacy, study.horizon
    if privacy.unit == "none" or privacy.delta is None or privacy.epsilon is None:
        return _plan(0.0, None, {}, events, None, math.inf, (), ())
    chosen, most = accountant(privacy.accountant), payable(study)
    times = privacy.appearances if most is None else max(1, min(most, privacy.appearances))
    shown = [unit for unit in units(study) if unit != ENTITIES or privacy.unit == "entity"]
    booked: dict[str, list[tuple[Event, int]]] = {unit: [] for unit in shown}
    for unit, event, count in charges(study, 1, times):
        booked.get(unit, []).append((event, count))
    spent = {unit: chosen.epsilon(each, privacy.delta) for unit, each in booked.items()}
    releases = tuple((unit, _in_words(study, unit), epsilon) for unit, epsilon in spent.items())
    noise = privacy.embedding.noise_multiplier if privacy.embedding is not None else None
    names = tuple(dict.fromkeys((*ACCOUNTANTS, privacy.accountant)))
    by_name: dict[str, int | None] = (
        {name: payable(_with_accountant(study, name)) for name in names} if most is not None else {}
    )
    return _plan(
        noise or 0.0,
        most,
        by_name,
        events,
        times,
        spent[promised(study)],
        (*warnings(study), *_left_out(study, times)),
        releases,
    )


def _left_out(study: VerticalStudy, times: int) -> tuple[str, ...]:
    """Of the noise on an entity's embeddings, which are many numbers; answers have none."""
    privacy = study.privacy
    if privacy.embedding is None:
        return ()
    numbers = study.data.parties * times * study.model.embedding
    return left_out(privacy.delta, privacy.epsilon, numbers=numbers)


def _with_accountant(study: VerticalStudy, name: str) -> VerticalStudy:
    return study.model_copy(
        update={"privacy": study.privacy.model_copy(update={"accountant": name})}
    )


def _plan(
    noise: float,
    most: int | None,
    by_name: dict[str, int | None],
    events: int,
    used: int | None,
    epsilon: float,
    told: tuple[str, ...],
    releases: tuple[tuple[str, str, float], ...],
) -> Plan:
    return Plan(
        noise_multiplier=noise,
        steps=most,
        most=by_name,
        rounds=events,
        used=used,
        epsilon=epsilon,
        curve=(epsilon,),
        ends="rounds",
        batches=None,
        signal_to_noise=None,
        relative_noise=None,
        calibrated=False,
        warnings=told,
        releases=releases,
    )


def _in_words(study: VerticalStudy, unit: str) -> str:
    privacy = study.privacy
    response = (
        f"randomised response at epsilon = {epsilon_text(label_epsilon(study))}, "
        f"{'once' if privacy.memoised else 'at every appearance'}"
    )
    if unit == LABELS:
        return response
    if (reason := unprotected(study)) is not None or privacy.embedding is None:
        return reason or ""
    again = f", {study.method.resends} times" if study.method.resends > 1 else ""
    held = f"embedding with noise {privacy.embedding.noise_multiplier:g}"
    held += (
        f" and gradient with noise {privacy.update.noise_multiplier:g}"
        if privacy.updates == "noisy"
        else " of a frozen model"
    )
    return (
        f"{held}{again}"
        if unit != ENTITIES
        else f"{response}; {held}{again}, at each of {study.data.parties} parties"
    )


def warnings(study: VerticalStudy) -> Sequence[str]:
    """What to look at before running."""
    found, privacy = [], study.privacy
    if privacy.memoised and study.data.repeats:
        found.append(
            "the error is estimated from the noisy labels that were learned from: it comes "
            "out too low for entities that came before"
        )
    if (reason := unprotected(study)) is not None:
        found.append(
            f"features are NOT protected, epsilon of every party is infinite: {reason}; only "
            "labels are"
        )
    if privacy.embedding is not None:
        found.append(f"noise on embeddings costs dearly: {FEATURE_COST}")
    if label_epsilon(study) < 4.0:
        found.append(
            f"randomised response at epsilon = {epsilon_text(label_epsilon(study))} costs "
            f"accuracy: {LABEL_COST}"
        )
    most = payable(study)
    if most is not None and most < privacy.appearances:
        found.append(
            f"the budget pays for {most} appearances of an entity, and privacy.appearances "
            f"is {privacy.appearances}: later events go unused"
        )
    return found
