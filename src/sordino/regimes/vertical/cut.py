"""A network cut between parties and server, and the halves that learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sordino.base.entropy import Entropy, Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Vector
from sordino.core.prepared import named_parameters
from sordino.data import stream as streams
from sordino.mechanisms.gaussian import Single
from sordino.regimes.vertical.engines import models
from sordino.regimes.vertical.engines import split as halves
from sordino.regimes.vertical.engines.net import Net, chain_of
from sordino.regimes.vertical.engines.observed import Rates
from sordino.regimes.vertical.engines.rowwise import keeps_rows_apart
from sordino.regimes.vertical.plan import unprotected
from sordino.regimes.vertical.source import Index
from sordino.regimes.vertical.study import Release, VerticalStudy
from sordino.training.flat import Flat


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A network cut between parties and server, as at first, and each party's features."""

    study: VerticalStudy
    features: tuple[int, ...]
    embeddings: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, study: VerticalStudy, stream: streams.Stream, held: Sequence[Index]) -> Split:
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

    @property
    def numbers(self) -> tuple[int, ...]:
        """In an embedding message of each party."""
        method = self.study.method
        return tuple(width * method.resends * method.batch for width in self.embeddings)

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
        """The network as the loop knows it; None if it is something else."""
        server, parties = self.halves()
        chains = [chain_of(half) for half in (server, *parties)]
        found = [chain for chain in chains if chain is not None]
        return (
            Net(tuple(found[1:]), found[0])
            if len(found) == len(chains) and not found[0].last
            else None
        )

    @property
    def known(self) -> bool:
        """Whether all parties' halves are layers that are known to keep rows apart."""
        return self.study.model.party is None or all(
            keeps_rows_apart(self.party(m), count) for m, count in enumerate(self.features)
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
            own = named_parameters(flat, vector[start : start + flat.dim])
            found |= {f"{who}.{name}": values for name, values in own.items()}
            start += flat.dim
        return found


def rates(study: VerticalStudy) -> Rates:
    """Learning rates of the server and of each party."""
    method = study.method
    parties = method.learning_rates or (method.learning_rate,) * study.data.parties
    return Rates(method.server_learning_rate or method.learning_rate, parties)


def halved(study: VerticalStudy) -> halves.Plan:
    """What both halves know of the method."""
    method = study.method
    return halves.Plan(
        length=method.window,
        alpha=method.attenuation,
        replays=method.replays,
        batch=method.batch,
        bits=study.world.precision,
        buffered=method.buffered,
        fades=method.fades,
    )


def one_party(
    study: VerticalStudy, split: Split, m: int, own: Entropy, module: nn.Module
) -> halves.Party:
    """The m-th party over its half of the network, with noise from ``own``."""
    return halves.Party(
        m,
        module,
        split.features[m],
        halved(study),
        rates(study).parties[m],
        cover(study, m, own),
        study.privacy.updates == "frozen",
        unprotected(study),
    )


def cover(study: VerticalStudy, m: int, own: Entropy) -> halves.Cover:
    """The noise on what a party lets out."""
    privacy = study.privacy
    return halves.Cover(
        embedding=single(privacy.embedding) if privacy.embedding is not None else None,
        update=single(privacy.update) if privacy.updates == "noisy" else None,
        embedding_draws=own.stream("embedding", m),
        update_draws=own.stream("update", m),
    )


def single(release: Release) -> Single:
    """The mechanism of a release.

    Raises:
        StudyError: if it is not calibrated.
    """
    if release.noise_multiplier is None:
        raise StudyError("privacy: a noise_multiplier is missing")  # calibration fills it in
    return Single(clip=release.clip, noise_multiplier=release.noise_multiplier)
