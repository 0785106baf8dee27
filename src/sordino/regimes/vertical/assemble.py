"""The objects of a study of events."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.data import stream as streams
from sordino.engine.built import Built, named, vault
from sordino.engine.plan import Plan
from sordino.engine.surroundings import answering, lineage, origin, protective
from sordino.entropy import Entropy, Seeded
from sordino.errors import StudyError
from sordino.mechanism.response import RandomisedResponse, secret
from sordino.mechanism.single import Single
from sordino.message import Vector
from sordino.privacy import Budget, Repeated, Vault
from sordino.regimes.vertical import records
from sordino.regimes.vertical.activity import Activity
from sordino.regimes.vertical.engine import Dues, Engine, Whole
from sordino.regimes.vertical.engines import models
from sordino.regimes.vertical.engines import split as halves
from sordino.regimes.vertical.engines.fused import Fused, Rule
from sordino.regimes.vertical.engines.joint import Joint
from sordino.regimes.vertical.engines.net import Net, chain_of
from sordino.regimes.vertical.engines.observed import Rates
from sordino.regimes.vertical.engines.static import Static
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
from sordino.regimes.vertical.simulation import Events
from sordino.regimes.vertical.source import Index, arranged, parts, source
from sordino.regimes.vertical.study import Release, VerticalStudy
from sordino.regimes.vertical.traffic import Sizes
from sordino.training.flat import Flat


def check(study: VerticalStudy, stream: streams.Stream) -> None:
    """Refuse models that do not fit the data: every half is made once."""
    _Split.of(study, stream, parts(study, stream))


def build(study: VerticalStudy, folder: Path, run: str, pays: Sequence[int] | None) -> Built:
    """See :func:`sordino.engine.assemble.build`."""
    torch.set_num_threads(study.execution.threads)
    stream, fingerprint, known = source(study)
    held = parts(study, stream)
    split, priced, entropy = _Split.of(study, stream, held), price(study), Seeded(study.seed)
    privacy, method = study.privacy, study.method
    whole = [fingerprint, *(hashlib.sha256(part.tobytes()).hexdigest() for part in held)]
    own = protective(study, run, whole, folder)
    whose = {party(m): f"{party(m)}/{digest[:16]}" for m, digest in enumerate(whole[1:])}
    ledgers = vault(
        study,
        folder,
        run,
        {unit: f"{fingerprint}/{whose.get(unit, unit)}" for unit in units(study)},
        known,
        # an entity's record books them, too
        {party(m): f"{run}/{party(m)}" for m in range(len(held))},
    )
    delta = privacy.delta or 1e-5
    simulation = Events(
        engine=partial(_engine, study, split, own),
        stream=arranged(stream, held),
        events=study.horizon,
        batch=method.batch,
        every=study.stride,
        activity=Activity(
            activation=method.activation,
            columns=split.columns,
            dropout=study.world.dropout,
            entropy=entropy,
        ),
        sizes=Sizes.of(
            split.embeddings, resends=method.resends, batch=method.batch, bits=study.world.precision
        ),
        respond=_respond(study, len(stream.classes), partial(answering, study, run, whole, folder)),
        charges=partial(charges, study),
        limit=_limit(study, ledgers, pays),
        vault=ledgers,
        units=(promised(study),) if privacy.unit != "none" else (),
        budget=Budget(privacy.epsilon or math.inf, delta, privacy.accountant),
        unlimited=Budget(math.inf, delta, privacy.accountant),
        method=method.name,
        lineage=lineage(study, run),
        origin=origin(study, run),
    )
    return Built(
        study=study,
        plan=priced,
        simulation=simulation,
        first=simulation.first(),
        facts=_facts(study, split, stream, held, priced, path(study, split)),
        model=study.model.name,
        named=split.named,
        paid="appearance of an entity",
        remedy="Raise the noise multipliers, or lower label_epsilon",
    )


def _respond(study: VerticalStudy, classes: int, entropy: Callable[[], Entropy]) -> Respond:
    """How labels are told: as they are, or by randomised response with a key of its own."""
    told, mechanism, key = label(study), None, (0, 0)
    if study.privacy.unit != "none":
        mechanism = RandomisedResponse(epsilon=label_epsilon(study), classes=classes)
        key = secret(entropy().at("labels"))
    dues = ((LABELS, told), (ENTITIES, told))
    return Respond(mechanism=mechanism, key=key, memoised=study.privacy.memoised, dues=dues)


def _limit(study: VerticalStudy, ledgers: Vault, pays: Sequence[int] | None) -> int | None:
    """In how many events an entity may take part, as was found first; None without privacy."""
    if study.privacy.unit == "none" or pays is not None:
        return pays[0] if pays is not None else None
    found = [
        most
        for spent in ledgers.histories(promised(study))
        if (most := payable(study, spent)) is not None
    ]
    return min(*found, study.privacy.appearances) if found else study.horizon * study.method.batch


@dataclass(frozen=True, slots=True, eq=False)
class _Split:
    """A network cut between parties and server, as at first, and each party's features."""

    study: VerticalStudy
    features: tuple[int, ...]
    embeddings: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, study: VerticalStudy, stream: streams.Stream, held: Sequence[Index]) -> _Split:
        """The split for this stream; halves are made once, so that misfits are said now."""
        features, classes = tuple(len(part) for part in held), len(stream.classes)
        made = cls(study, features, (), classes)
        split = cls(
            study,
            features,
            tuple(models.width(made.party(m), features[m]) for m in range(len(held))),
            classes,
        )
        split.server()
        return split

    @property
    def columns(self) -> tuple[slice, ...]:
        """Each party's place in the features, side by side."""
        ends = np.cumsum(self.features).tolist()
        return tuple(
            slice(end - count, end) for end, count in zip(ends, self.features, strict=True)
        )

    def party(self, m: int) -> nn.Module:
        """The m-th party's half, with its first weights."""
        model, rng = self.study.model, Seeded(self.study.seed).at("model", "party", m)
        return models.party(
            model.name, self.features[m], model.embedding, self.classes, model.party, rng
        )

    def server(self) -> nn.Module:
        """The server's half, likewise."""
        model, rng = self.study.model, Seeded(self.study.seed).at("model", "server")
        return models.server(
            model.name, self.embeddings, model.hidden, self.classes, model.server, rng
        )

    def halves(self) -> tuple[nn.Module, list[nn.Module]]:
        """Server and parties."""
        return self.server(), [self.party(m) for m in range(len(self.features))]

    @property
    def net(self) -> Net | None:
        """The network as compiled code knows it; None if it is something else."""
        server, parties = self.halves()
        chains = [chain_of(half) for half in (server, *parties)]
        found = [chain for chain in chains if chain is not None]
        return (
            Net(tuple(found[1:]), found[0])
            if len(found) == len(chains) and not found[0].last
            else None
        )

    def flats(self) -> dict[str, Flat]:
        """Every half's weights in one vector."""
        server, parties = self.halves()
        return {
            "server": Flat(server),
            **{f"party{m}": Flat(party) for m, party in enumerate(parties)},
        }

    def named(self, vector: Vector) -> dict[str, NDArray[Any]]:
        """All weights by name, from one vector, server first."""
        found: dict[str, NDArray[Any]] = {}
        start = 0
        for who, flat in self.flats().items():
            own = named(flat, vector[start : start + flat.dim])
            found |= {f"{who}.{name}": values for name, values in own.items()}
            start += flat.dim
        return found


def path(study: VerticalStudy, split: _Split) -> str:
    """How events are played: "compiled" (chains), "joint" (no messages needed) or "messages"."""
    privacy = study.privacy
    if (
        study.execution.path == "messages"
        or study.world.dropout
        or privacy.embedding is not None
        or privacy.updates != "raw"
    ):
        return "messages"
    return "compiled" if study.method.batch == 1 and split.net is not None else "joint"


def _rates(study: VerticalStudy) -> Rates:
    method = study.method
    parties = method.learning_rates or (method.learning_rate,) * study.data.parties
    return Rates(method.server_learning_rate or method.learning_rate, parties)


def _engine(study: VerticalStudy, split: _Split, own: Entropy) -> Engine:
    method, rates, half, net = study.method, _rates(study), study.world.precision == 16, split.net
    told = halves.Plan(
        length=method.window,
        alpha=method.attenuation,
        replays=method.replays,
        batch=method.batch,
        bits=study.world.precision,
    )
    chosen = path(study, split)
    first = {who: flat.weights.numpy() for who, flat in split.flats().items()}
    if chosen == "compiled" and net is not None:
        rule = Rule(method.window, method.attenuation)
        return Whole(
            Static(net, method.window, rates, half=half)
            if method.replays
            else Fused(net, rule, rates, half=half),
            first,
            _dues(study),
        )
    if chosen == "joint":
        return Whole(
            Joint(*split.halves(), told, rates, split.columns, split.classes), first, _dues(study)
        )
    server, parties = split.halves()
    frozen = study.privacy.updates == "frozen"
    made = [
        halves.Party(
            m,
            module,
            split.features[m],
            told,
            rates.parties[m],
            _cover(study, m, own),
            frozen,
            unprotected(study),
        )
        for m, module in enumerate(parties)
    ]
    regime = Vertical(
        tuple(width * told.rows for width in split.embeddings), study.world.missing, method.resends
    )
    return Messages(
        regime, halves.Server(server, told, rates.server), made, split.columns, _dues(study)
    )


def _dues(study: VerticalStudy) -> Dues:
    """What an appearance of an entity releases of its features: at each party, and at all."""
    held, parties = features(study), study.data.parties
    return (*((party(m), held) for m in range(parties)), (ENTITIES, Repeated(held, parties)))


def _cover(study: VerticalStudy, m: int, own: Entropy) -> halves.Cover:
    privacy = study.privacy
    return halves.Cover(
        embedding=_single(privacy.embedding) if privacy.embedding is not None else None,
        update=_single(privacy.update) if privacy.updates == "noisy" else None,
        embedding_draws=own.stream("embedding", m),
        update_draws=own.stream("update", m),
    )


def _single(release: Release) -> Single:
    if release.noise_multiplier is None:
        raise StudyError("privacy: a noise_multiplier is missing")  # calibration fills it in
    return Single(clip=release.clip, noise_multiplier=release.noise_multiplier)


def _facts(
    study: VerticalStudy,
    split: _Split,
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
        activation=method.activation.model_dump(),
        window=method.window,
        alpha=method.attenuation,
        resends=method.resends,
        precision=study.world.precision,
        missing=study.world.missing if study.world.dropout else None,
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
