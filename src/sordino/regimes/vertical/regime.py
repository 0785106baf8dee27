r"""Studies of events with features at parties: dynamic local regret, OGD and SLR.

**The price**: each entity, with label and all features, is on its own. There is no batch to hide
in and no sampling. One appearance of an entity releases (soundness of the parts is argued in
docs/mathematics.md, Events)

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
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.base.errors import StudyError
from sordino.core.method import ContractBroken, Method
from sordino.core.plan import ENDLESS, Disk, NoisyCharges, Plan, Schedule, Stages, balances
from sordino.core.prepared import Affordable, PreparedRun
from sordino.core.regimes import Regime
from sordino.core.statements import FLOATS, LOOKING, SIMULATED, Paragraph, Table, of_other_runs
from sordino.privacy import (
    Budget,
    Composed,
    Event,
    Gaussian,
    LedgerSession,
    NonPrivate,
    Nothing,
    Pure,
    Repeated,
)
from sordino.privacy.budget import left_out
from sordino.privacy.records import Records
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical.method import OnlineMethod
from sordino.regimes.vertical.study import TEMPLATE, VerticalStudy

if TYPE_CHECKING:
    from sordino.core.network import NetworkRegime

BLOCK = 1000
"""Events in a block."""

LABELS, ENTITIES = "labels", "entities"
RequiredCharges = tuple[tuple[str, Event], ...]
"""Ledger units and events that must be paid for before something of an entity is released."""
QUARTER = 0.25  # of epsilon that a label may cost beside features, unless something else is said
RAW_EMBEDDINGS = "embeddings are sent without noise"
RAW_UPDATES = (
    "parties' models learn from raw features, and later embeddings, noise or not, tell of "
    "what they have learned"
)
LABEL_COST = (
    "on Fashion-MNIST, label epsilon 1 / 2 / 3 / 4 gave 73 / 79 / 83 / 84 % where 85 % "
    "were had without"
)
FEATURE_COST = (
    "on Fashion-MNIST in two halves, noise on every embedding at epsilon 32 / 16 / 8 / 4 a release "
    "gave 75 / 54 / 32 / 19 % where 85 % were had without, whatever the embedding's size; secure "
    "aggregation is the answer for features"
)
OF_EVENTS = (
    "Event times, active parties and missing answers are public, and assumed to be "
    "independent of all protected data.",
    "The server learns responded labels and what parties send, and parties learn "
    "derivatives, which follow from these: neither is trusted.",
    "The number of events, and which events are about one entity, is public.",
)
MEMOISED = (
    "The label of an entity never changes. Its randomised response is drawn once and used "
    "for the whole stream."
)
KEPT = (
    "Checkpoints contain the last examples unprotected until the run ends, because method 'slr' "
    "sends their embeddings again. Keep the folder secret until then."
)
SYNTHETIC = (
    "Each deformed image is taken for an entity of its own; the people behind the images "
    "that were deformed are not protected by this."
)
PREQUENTIAL = (
    "Errors and losses are computed from responded labels and from what the server was sent, so "
    "they tell nothing beyond the ledger; labels that are not protected are used as they are, "
    "and in a simulation no party releases such errors."
)
RAW_ERRORS = (
    "Errors and losses are measured on the labels as they are, which nothing protects; in a "
    "simulation no party releases them."
)


def party_unit(index: int) -> str:
    """Return the ledger unit of a party's features."""
    return f"party:{index}"


def label_epsilon(study: VerticalStudy) -> float:
    """Return the epsilon of one response."""
    privacy = study.privacy
    whole = privacy.epsilon or math.inf
    part = privacy.label_epsilon or (whole if privacy.unit == "label" else QUARTER * whole)
    return part if privacy.memoised else part / privacy.appearances


def calibrate(study: VerticalStudy) -> VerticalStudy:
    """Return the study with its noise filled in: one multiplier for embeddings and updates alike.

    Raises:
        StudyError: where no noise is enough.
    """
    privacy = study.privacy
    if privacy.embedding is None or privacy.epsilon is None or privacy.delta is None:
        return study
    noisy = [privacy.embedding, *([privacy.update] if privacy.updates == "noisy" else [])]
    if all(each.noise_multiplier is not None for each in noisy):
        return study
    spent, left, holders = 0.0, privacy.epsilon, 1
    if privacy.unit == "entity":
        spent, holders = privacy.label_epsilon or QUARTER * privacy.epsilon, study.data.parties
        left -= spent
    if left <= 0:
        raise StudyError(
            f"privacy.label_epsilon = {epsilon_text(spent)} leaves nothing of epsilon = "
            f"{epsilon_text(privacy.epsilon)} for features: lower it"
        )

    def release(sigma: float) -> Event:
        return Repeated(_features(study, sigma), holders)

    charged = NoisyCharges(release=release, stages=((1.0, privacy.appearances),))
    found = charged.calibrated(Budget(left, privacy.delta, privacy.accountant))
    filled = {
        name: one.model_copy(update={"noise_multiplier": one.noise_multiplier or found})
        for name, one in (("embedding", privacy.embedding), ("update", privacy.update))
    }
    return study.with_privacy(filled)


def unprotected(study: VerticalStudy) -> str | None:
    """Return why a party's features have no finite price; None where they have one."""
    privacy = study.privacy
    if privacy.embedding is None:
        return RAW_EMBEDDINGS
    if study.method.activation.looks:
        return (
            f"activation '{study.method.activation.kind}' tells whether a party's mean feature "
            "is above the threshold"
        )
    if privacy.updates == "raw":
        return RAW_UPDATES
    return None


def released(
    embedding: float | None, update: float | None, times: int, unbounded: str | None
) -> Event:
    """Return what one appearance of an entity releases of its features at one party.

    Args:
        embedding, update: noise on an embedding and on a step, in units of 2 C; None where it has
            none.
        times: how often it is sent.
        unbounded: why nothing bounds it, if nothing does.
    """
    if embedding is None or unbounded is not None:
        return NonPrivate(reason=unbounded or RAW_EMBEDDINGS)
    noises = (embedding,) if update is None else (embedding, update)
    return Repeated(Composed(tuple(Gaussian(noise_multiplier=z) for z in noises)), times)


def features(study: VerticalStudy) -> Event:
    """Return what one appearance of an entity releases of its features at one party."""
    return _features(study, 0.0, unprotected(study))


def _features(study: VerticalStudy, default: float, unbounded: str | None = None) -> Event:
    """Return it with this noise where none is given."""
    privacy = study.privacy
    embedding = None if privacy.embedding is None else privacy.embedding.noise_multiplier or default
    update = privacy.update.noise_multiplier or default if privacy.updates == "noisy" else None
    return released(embedding, update, study.method.resends, unbounded)


def label(study: VerticalStudy) -> Event:
    """Return what one response releases of a label."""
    return (
        NonPrivate(reason="labels are told as they are")
        if study.privacy.unit == "none"
        else Pure(epsilon=label_epsilon(study))
    )


def units(study: VerticalStudy) -> tuple[str, ...]:
    """Return the ledger's units."""
    return (ENTITIES, LABELS, *(party_unit(m) for m in range(study.data.parties)))


def promised(study: VerticalStudy) -> str:
    """Return the unit whose epsilon is promised."""
    return ENTITIES if study.privacy.unit == "entity" else LABELS


def label_charges(study: VerticalStudy) -> RequiredCharges:
    """Return what one response about an entity charges: its label, and the entity."""
    return ((LABELS, label(study)), (ENTITIES, label(study)))


def feature_charges(study: VerticalStudy) -> RequiredCharges:
    """Return what one appearance charges of an entity's features: at each party, and at all."""
    event, parties = features(study), study.data.parties
    return (*((party_unit(m), event) for m in range(parties)), (ENTITIES, Repeated(event, parties)))


def charges(study: VerticalStudy, first: int, last: int) -> tuple[tuple[str, Event, int], ...]:
    """Return (unit, event, how often) of appearances ``first`` to ``last`` of an entity, from 1."""
    count = last - first + 1
    responses = (1 if first == 1 else 0) if study.privacy.memoised else count
    alone, together = label_charges(study)
    *local, everywhere = feature_charges(study)
    times = [(alone, responses), *((each, count) for each in local)]
    times += [(together, responses), (everywhere, count)]
    return tuple((*charge, n) for charge, n in times if n)


def schedule(study: VerticalStudy) -> Schedule:
    """Return what the appearances of an entity charge each unit of the ledger, on and on.

    With memoised responses its label is charged at the first appearance alone.
    """
    privacy, parties = study.privacy, study.data.parties
    told, held = label(study), features(study)

    def stages(rest: Event) -> Stages:
        both = Composed((told, rest))
        return ((both, 1), (rest, ENDLESS)) if privacy.memoised else ((both, ENDLESS),)

    everywhere = stages(Repeated(held, parties))
    found: dict[str, Stages] = {ENTITIES: everywhere, LABELS: stages(Nothing())}
    found |= {party_unit(m): ((held, ENDLESS),) for m in range(parties)}
    most = privacy.epsilon if privacy.unit != "none" and privacy.epsilon is not None else math.inf
    budget = Budget(most, privacy.delta or 1e-5, privacy.accountant)
    return Schedule(budgets=dict.fromkeys(found, budget), charged="appearances", stages=found)


def price(study: VerticalStudy) -> Plan:
    """Return the plan of a calibrated study."""
    privacy, events = study.privacy, study.horizon
    if privacy.unit == "none" or privacy.delta is None or privacy.epsilon is None:
        return Plan(rounds=events, curve=(math.inf,))
    asked, unit = schedule(study), promised(study)
    most = asked.affordable(unit)
    times = privacy.appearances if most is None else max(1, min(most, privacy.appearances))
    shown = [each for each in asked.stages if each != ENTITIES or privacy.unit == "entity"]
    spent = {each: asked.epsilon(each, times) for each in shown}
    noise, more = None, tuple[str, ...]()
    if privacy.embedding is not None:  # of many numbers; answers have no noise
        noise, numbers = privacy.embedding.noise_multiplier, study.data.parties * times
        numbers *= study.model.embedding
        more = left_out(privacy.delta, privacy.epsilon, numbers=numbers)
    return Plan(
        noise_multiplier=noise or 0.0,
        steps=most,
        most=asked.most(unit) if most is not None else {},
        rounds=events,
        used=times,
        epsilon=spent[unit],
        curve=(spent[unit],),
        warnings=(*warnings(study, most), *more),
        releases=tuple((each, _in_words(study, each), epsilon) for each, epsilon in spent.items()),
    )


def with_balances(study: VerticalStudy, known: Sequence[Records], plan: Plan) -> Plan:
    """Return the plan of a calibrated study with what a ledger of its data has left, if it has one
    and promises something.
    """
    if not known or plan.used is None:
        return plan
    asked, folder = schedule(study).of(promised(study)), Path(study.privacy.ledger).expanduser()
    with LedgerSession.for_plan(folder, known, asked.budgets) as ledgers:
        left = asked.affordable_in(ledgers, 1, alone=True)
        (held,) = balances(asked, ledgers, left, plan.used)
        said = of_other_runs(study, ledgers, [held], f"{plan.used} {asked.charged}")
    if held.steps is not None and held.steps < plan.used:
        said.append(
            f"the ledger of {held.called} pays for {held.steps} of {plan.used} {asked.charged}: "
            "use other data, or lower privacy.appearances"
        )
    return replace(plan, left=(held,), warnings=(*plan.warnings, *said))


def disk(study: VerticalStudy, held: Sequence[int], classes: int) -> Disk | None:
    """Return what a study takes on disks whose parties hold so many features each; None where its
    halves are of one's own.
    """
    model, method = study.model, study.method
    if model.name == "own":
        return None
    parties = [model.party_widths(features, classes) for features in held]
    sent = [widths[-1] for widths in parties]
    halves = [*map(_numbers, parties), _numbers(model.server_widths(sum(sent), classes)) or classes]
    window = 1 if method.replays else method.window
    rows = method.batch * (method.window if method.replays else 1)
    sites = [
        4 * ((window + 2) * half + rows * features)
        for half, features in zip(halves, (*held, 0), strict=True)
    ]
    answer = rows * max(sent) * study.world.precision // 8
    return Disk.of(
        kept=sum(sites),
        models=4 * sum(halves),
        answer=answer,
        answers=study.horizon * (len(held) + 1),
        at_once=min(study.horizon, BLOCK) * (len(held) + 1),
        rows=-(-study.horizon // study.stride),
        entries=-(-study.horizon // BLOCK) * (len(held) + 2),
        sites=len(held) + 1,
        site=max(sites) + study.checkpoint_stride * answer,  # with the turns since it was saved
    )


def _numbers(widths: Sequence[int]) -> int:
    """Return how many numbers linear layers of these widths have."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))


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
    held = f"embedding with noise {privacy.embedding.noise_multiplier:g}"
    if privacy.updates == "noisy":
        held += f" and gradient with noise {privacy.update.noise_multiplier:g}"
    else:
        held += " of a frozen model"
    held += f", {study.method.resends} times" if study.method.resends > 1 else ""
    if unit != ENTITIES:
        return held
    return f"{response}; {held}, at each of {study.data.parties} parties"


def warnings(study: VerticalStudy, most: int | None) -> Sequence[str]:
    """Return what to look at before running, where the budget pays for ``most`` appearances."""
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
    if most is not None and most < privacy.appearances:
        found.append(
            f"the budget pays for {most} appearances of an entity, and privacy.appearances "
            f"is {privacy.appearances}: later events go unused"
        )
    return found


class VerticalRegime(Regime[VerticalStudy]):
    """Parties with different features of the same entities learn from events, one after another."""

    name = "vertical"
    study = VerticalStudy
    budget = "events"
    template = TEMPLATE
    others = "entities"
    plain = (
        "No privacy guarantee: embeddings, labels and updates are used without noise, and "
        "epsilon is infinite."
    )
    calibrated = staticmethod(calibrate)

    def plan(self, study: VerticalStudy) -> tuple[Plan, tuple[int, ...]]:
        """Price the study, and refuse data and models that do not fit together.

        Built-in models fit any data; others are made, and only they wait for torch.
        """
        from sordino.regimes.vertical.stream import parts, source

        full = calibrate(study)
        stream, _, known = source(full)
        held = [len(part) for part in parts(full, stream)]
        if full.model.party is not None or full.model.server is not None:
            from sordino.regimes.vertical.models import Split

            Split.of(full, stream)
        takes = disk(full, held, len(stream.classes))
        priced = replace(price(full), calibrated=full != study, disk=takes)
        return with_balances(full, known, priced), ()

    def build(
        self, study: VerticalStudy, folder: Path, run: str, affordable_steps: Affordable
    ) -> PreparedRun:
        """Make the objects of a simulation, with its ledger in ``folder``."""
        from sordino.regimes.vertical.run import build  # a plan does not wait for what trains

        return build(calibrate(study), folder, run, affordable_steps)

    def told(self, study: VerticalStudy, plan: Plan) -> Sequence[Paragraph]:
        """Return a plan, for people."""
        data, method, privacy = study.data, study.method, study.privacy
        events = (
            f"{study.budget.events} events, {data.parties} parties, activation "
            f"{method.activation.kind}, window {method.window}"
        )
        if privacy.unit == "none":
            return [events, "no privacy: epsilon is infinite"]
        rows = [[unit, what, epsilon_text(epsilon)] for unit, what, epsilon in plan.releases]
        many, release = ("s", "release") if plan.used != 1 else ("", "releases")
        title = f"What {plan.used} appearance{many} of an entity {release}, at delta"
        head = ["unit of the ledger", "released", f"epsilon ({privacy.accountant})"]
        promise = f"promised, with unit '{privacy.unit}': epsilon {epsilon_text(privacy.epsilon)}"
        limit = "" if plan.steps is None else f"; it pays for {plan.steps} appearances of an entity"
        return [events, Table(f"{title} {privacy.delta:g}", head, rows), promise + limit]

    def check(self, method: Method) -> None:
        """Refuse a method whose window cannot be.

        Raises:
            ContractBroken: saying why.
        """
        if not isinstance(method, OnlineMethod):
            raise ContractBroken(f"{method.name}: is no OnlineMethod, and its about says vertical")
        if method.window < 1 or not 0.0 < method.attenuation <= 1.0:
            raise ContractBroken(
                f"{method.name}: a window of {method.window} events at attenuation "
                f"{method.attenuation}"
            )
        if method.resends not in (1, method.window):
            raise ContractBroken(
                f"{method.name}: sends {method.resends} examples an event, and its window holds "
                f"{method.window}"
            )
        if method.resends > 1 and method.attenuation != 1.0:
            raise ContractBroken(
                f"{method.name}: examples that are evaluated again count alike; its attenuation "
                f"is {method.attenuation}"
            )

    @property
    def network(self) -> type[NetworkRegime[Any]]:
        """Studies of events on a network: every site is a party, and one more has the labels."""
        from sordino.regimes.vertical.network import VerticalNetwork

        return VerticalNetwork

    def assumptions(self, study: VerticalStudy) -> list[str]:
        """Return what the guarantee, or the run, rests on."""
        if study.privacy.unit == "none":
            return [SIMULATED, RAW_ERRORS]
        found = [*OF_EVENTS, SIMULATED, FLOATS, LOOKING, PREQUENTIAL]
        if study.privacy.memoised:
            found.append(MEMOISED)
        if study.method.resends > 1:
            found.append(KEPT)
        if study.data.stream.kind == "deformed":
            found.append(SYNTHETIC)
        return found


REGIME = VerticalRegime()
