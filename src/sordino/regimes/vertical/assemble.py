"""The objects of a study of events."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import UNSET

from sordino.base.entropy import Entropy, Seeded
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun, open_ledgers
from sordino.core.run.environment import answering, lineage, origin, protective
from sordino.data import stream as streams
from sordino.data.stream.checked import is_foreign
from sordino.mechanisms.response import RandomisedResponse, secret
from sordino.privacy import Budget, Repeated
from sordino.privacy.accounting import Spent
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.vertical import records
from sordino.regimes.vertical.activity import Activity
from sordino.regimes.vertical.cut import Split, halved, one_party, rates
from sordino.regimes.vertical.engine import Dues, Engine, EventPath, Whole
from sordino.regimes.vertical.engines import split as halves
from sordino.regimes.vertical.engines.joint import Joint
from sordino.regimes.vertical.messages import Messages
from sordino.regimes.vertical.plan import (
    ENTITIES,
    LABELS,
    charges,
    features,
    label,
    label_epsilon,
    party,
    payable,
    price,
    promised,
    units,
    unprotected,
)
from sordino.regimes.vertical.protocol import Vertical
from sordino.regimes.vertical.respond import Respond
from sordino.regimes.vertical.simulation import PIECE, Events
from sordino.regimes.vertical.source import Index, arranged, parts, source
from sordino.regimes.vertical.study import VerticalStudy
from sordino.regimes.vertical.traffic import Sizes
from sordino.training.models import digest_of


def check(study: VerticalStudy, stream: streams.Stream) -> None:
    """Refuse models that do not fit the data: every half is made once."""
    Split.of(study, stream, parts(study, stream))


def build(study: VerticalStudy, folder: Path, run: str, pays: Sequence[int] | None) -> PreparedRun:
    """See :func:`sordino.core.regimes.build`."""
    torch.set_num_threads(study.execution.threads)
    stream, fingerprint, known = source(study)
    held = parts(study, stream)
    split = Split.of(study, stream, held)
    shape = shaping(fingerprint, held)
    whose = {party(m): f"{party(m)}/{digest[:16]}" for m, digest in enumerate(shape[1:])}
    own = protective(study, run, shape, folder)
    server, halves = split.halves()
    begun = [*shape, *map(digest_of, (server, *halves))]  # noise is over what it covers already
    ledgers = open_ledgers(
        study,
        folder,
        run,
        {unit: f"{fingerprint}/{whose.get(unit, unit)}" for unit in units(study)},
        begun,
        known,
        # an entity's record books them, too
        {party(m): f"{run}/{party(m)}" for m in range(len(held))},
        public=study.data.published and not is_foreign(study.data.stream),
    )
    simulation = Events(
        engine=partial(_engine, study, split, own),
        stream=arranged(stream, held),
        activity=activity(study, split.columns),
        respond=responding(
            study, len(stream.classes), partial(answering, study, run, shape, folder)
        ),
        limit=limit_of(study, pays, ledgers.histories(promised(study))),
        ledgers=ledgers,
        units=(promised(study),) if study.privacy.unit != "none" else (),
        **common(study, split, run),
    )
    return built(study, split, stream, held, simulation, path(study, split))


def shaping(fingerprint: str, held: Sequence[Index]) -> list[str]:
    """What of the data shapes the noise: a fingerprint, and who holds which features."""
    return [fingerprint, *(hashlib.sha256(part.tobytes()).hexdigest() for part in held)]


def activity(study: VerticalStudy, columns: tuple[slice, ...]) -> Activity:
    """Who is active: drawn from the study's seed; once on zeros now, so that misfits are told."""
    found = Activity(
        activation=study.method.activation,
        columns=columns,
        dropout=study.world.dropout,
        entropy=Seeded(study.seed),
    )
    found.drawn(np.zeros((1, max(each.stop for each in columns)), np.float32), 0, 1, PIECE)
    return found


def responding(study: VerticalStudy, classes: int, entropy: Callable[[], Entropy]) -> Respond:
    """How labels are told: as they are, or by randomised response with a key of its own."""
    told, mechanism, key = label(study), None, (0, 0)
    if study.privacy.unit != "none":
        mechanism = RandomisedResponse(epsilon=label_epsilon(study), classes=classes)
        key = secret(entropy().at("labels"))
    dues = ((LABELS, told), (ENTITIES, told))
    return Respond(mechanism=mechanism, key=key, memoised=study.privacy.memoised, dues=dues)


def common(study: VerticalStudy, split: Split, run: str) -> dict[str, Any]:
    """What a simulation, a server and a site have alike: fields of
    :class:`~sordino.regimes.vertical.simulation.Events`.
    """
    method, privacy = study.method, study.privacy
    delta = privacy.delta or 1e-5
    return {
        "events": study.horizon,
        "batch": method.batch,
        "every": study.stride,
        "sizes": Sizes.of(
            split.embeddings, resends=method.resends, batch=method.batch, bits=study.world.precision
        ),
        "charges": partial(charges, study),
        "budget": Budget(privacy.epsilon or math.inf, delta, privacy.accountant),
        "unlimited": Budget(math.inf, delta, privacy.accountant),
        "method": method.name,
        "lineage": lineage(study, run),
        "origin": origin(study, run),
    }


def built(
    study: VerticalStudy,
    split: Split,
    stream: streams.Stream,
    held: Sequence[Index],
    simulation: Events,
    chosen: str,
) -> PreparedRun:
    """The objects of a run over these events, which are played as ``chosen``."""
    priced = price(study)
    return PreparedRun(
        study=study,
        plan=priced,
        simulation=simulation,
        first=simulation.first(),
        facts=facts(study, split, stream, held, priced, chosen),
        model=study.model.name,
        named=split.named,
        paid="appearance of an entity",
        remedy=_remedy(simulation),
    )


def _remedy(simulation: Events) -> str:
    """What helps where the budget pays for no event; what was spent before is said then, too."""
    found, budget = "raise the noise multipliers, or lower label_epsilon", simulation.budget
    if simulation.limit != 0 or not simulation.units:
        return found.capitalize()
    (unit,) = simulation.units
    spent = simulation.ledgers.epsilon(unit, budget.delta, budget.accountant)
    return (
        f"The {unit} have spent epsilon {epsilon_text(spent)} of {epsilon_text(budget.epsilon)} "
        f"before: use other data, raise privacy.epsilon, {found}"
        if spent
        else found.capitalize()
    )


def limit_of(
    study: VerticalStudy, pays: Sequence[int] | None, spent: Sequence[Spent] = ((),)
) -> int | None:
    """In how many events an entity may take part after what its records have ``spent``, as was
    found first; None without privacy.
    """
    if study.privacy.unit == "none" or pays is not None:
        return pays[0] if pays is not None else None
    found = [most for each in spent if (most := payable(study, each)) is not None]
    return min(*found, study.privacy.appearances) if found else study.horizon * study.method.batch


def path(study: VerticalStudy, split: Split) -> EventPath:
    """How events are played."""
    privacy, method = study.privacy, study.method
    if (
        study.execution.path == "messages"
        or study.world.dropout
        or privacy.embedding is not None
        or privacy.updates != "raw"
    ):
        return "messages"
    if privacy.unit != "none" and not split.known:
        return "messages"  # where a row on which a module fails ends nothing
    plain = method.batch == 1 and method.buffered and not method.fades and not method.replays
    return "loop" if plain and split.net is not None else "graph"


def _engine(study: VerticalStudy, split: Split, own: Entropy) -> Engine:
    method, speeds, net = study.method, rates(study), split.net
    told = halved(study)
    chosen = path(study, split)
    first = {who: flat.weights.numpy() for who, flat in split.flats().items()}
    if chosen == "loop" and net is not None:  # the compiler is large: it is loaded here alone
        from sordino.regimes.vertical.loop import Loop, Rule

        rule = Rule(method.window, method.attenuation)
        loop = Loop(net, rule, speeds, half=study.world.precision == 16)
        return Whole(loop, first, dues(study))
    if chosen == "graph":
        graph = Joint(*split.halves(), told, speeds, split.columns, split.classes)
        return Whole(graph, first, dues(study))
    server, parties = split.halves()
    made = [one_party(study, split, m, own, module) for m, module in enumerate(parties)]
    regime = Vertical(split.numbers, study.world.missing, method.resends)
    return Messages(
        regime, halves.Server(server, told, speeds.server), made, split.columns, dues(study)
    )


def dues(study: VerticalStudy) -> Dues:
    """What an appearance of an entity releases of its features: at each party, and at all."""
    held, parties = features(study), study.data.parties
    return (*((party(m), held) for m in range(parties)), (ENTITIES, Repeated(held, parties)))


def facts(
    study: VerticalStudy,
    split: Split,
    stream: streams.Stream,
    held: Sequence[Index],
    priced: Plan,
    chosen: str,
) -> records.Vertical:
    method, privacy = study.method, study.privacy
    sizes = {who: flat.dim for who, flat in split.flats().items()}
    return records.Vertical(
        title=method.title,
        classes=tuple(stream.classes),
        clients=tuple(
            records.Party(
                client=m,
                unit=f"party:{m}",
                features=len(part),
                embedding=width,
                parameters=sizes[f"party{m}"],
            )
            for m, (part, width) in enumerate(zip(held, split.embeddings, strict=True))
        ),
        dimension=sum(sizes.values()),
        stream=stream.name,
        drift=study.data.drift.kind,
        activation=method.activation.model_dump(exclude_none=True),
        window=method.window,
        alpha=method.attenuation,
        resends=method.resends,
        precision=study.world.precision,
        missing=study.world.missing if study.world.dropout else None,
        buffer=UNSET if method.buffered else "server",
        schedule=method.schedule or UNSET,
        path=chosen,
        clip=privacy.embedding.clip if privacy.embedding is not None else None,
        label_epsilon=label_epsilon(study) if privacy.unit != "none" else None,
        open=unprotected(study) if privacy.unit != "none" else None,
        releases=tuple(
            records.Release(unit=unit, what=what, epsilon=epsilon)
            for unit, what, epsilon in priced.releases
        ),
        R_c=None,
    )
