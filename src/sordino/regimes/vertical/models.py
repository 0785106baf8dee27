"""Networks cut between parties and server: by name, as chains that the loop knows, and for a study.

mlp        party: linear to the embedding, ReLU; server: linear, ReLU, linear
           (Wang, Wang, Gu and Ling 2025, section 5.1)
physics    their network for SUSY and HIGGS (appendix D.2): party 32, 64, 98, 128;
           server 256, 128, 64, 32
linear     party: linear scores of the classes; server: their sum, and a bias. Convex in all
           weights together
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.base import modules
from sordino.base.entropy import Entropy, Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Vector
from sordino.core.prepared import named_parameters
from sordino.data import stream as streams
from sordino.mechanisms.gaussian import Single
from sordino.regimes.vertical.engine import Rates
from sordino.regimes.vertical.halves import (
    HalfSettings,
    Party,
    PartyModule,
    PartyNoise,
    keeps_rows_apart,
)
from sordino.regimes.vertical.plan import unprotected
from sordino.regimes.vertical.stream import Index
from sordino.regimes.vertical.study import Release, VerticalStudy
from sordino.training.flat import Flat
from sordino.training.models import check_initialised, check_private, digest_of
from sordino.training.perexample.separable import known
from sordino.training.settings import filled_memory, own_code

PARTY, SERVER = (32, 64, 98, 128), (256, 128, 64, 32)


class Total(nn.Module):
    """The sum of the parties' scores (n, parties classes) -> (n, classes), and a bias."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return scores (n, classes)."""
        return embeddings.view(len(embeddings), -1, len(self.bias)).sum(1) + self.bias


def linear_layers(widths: Sequence[int], *, last: bool) -> nn.Sequential:
    """Return linear layers with ReLUs between, and one after the last if ``last``."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))


def party(
    name: str,
    features: int,
    embedding: int,
    classes: int,
    own: str | None,
    rng: np.random.Generator,
) -> nn.Module:
    """Return a party's half, for ``features`` numbers of an example.

    Raises:
        StudyError: for a factory that cannot be used, or gives something else than embeddings.
    """
    if own is not None:
        module = _seeded(lambda: _factory(own)(features, embedding), rng, f"model.party = {own!r}")
    elif name == "linear":
        return _seeded(lambda: nn.Linear(features, classes), rng, "")
    elif name == "physics":
        return _seeded(lambda: linear_layers((features, *PARTY), last=False), rng, "")
    else:
        return _seeded(lambda: linear_layers((features, embedding), last=True), rng, "")
    where = f"model.party = {own!r}"
    _checked(module, features, where)
    try:
        PartyModule(module, features)
    except StudyError as error:
        raise StudyError(f"{where}: {str(error).removeprefix('model: ')}") from error
    return module


def server(
    name: str,
    embeddings: Sequence[int],
    hidden: int,
    classes: int,
    own: str | None,
    rng: np.random.Generator,
) -> nn.Module:
    """Return the server's half, for embeddings of so many numbers each, side by side.

    Raises:
        StudyError: for a factory that cannot be used, or does not give a score for each class.
    """
    total = sum(embeddings)
    if own is None and name == "linear":
        return Total(classes)
    if own is None:
        widths = (total, *SERVER, classes) if name == "physics" else (total, hidden, classes)
        return _seeded(lambda: linear_layers(widths, last=False), rng, "")
    module = _seeded(
        lambda: _factory(own)(tuple(embeddings), classes), rng, f"model.server = {own!r}"
    )
    if (found := _checked(module, total, f"model.server = {own!r}")) != classes:
        raise StudyError(
            f"model.server = {own!r} gives {found} scores; the data has {classes} classes, "
            f"so it must give {classes}"
        )
    return module


def _checked(module: nn.Module, features: int, where: str) -> int:
    """Check a half that a user's factory made, and return the numbers it gives."""
    with filled_memory():
        found = _width(module, features, where)
    check_initialised(module, where)
    kinds = {str(p.dtype).removeprefix("torch.") for p in module.parameters()}
    if kinds != {"float32"}:
        raise StudyError(
            f"{where}: its parameters are {', '.join(sorted(kinds))}; embeddings are "
            "float32, so they must be, too"
        )
    try:
        check_private(module, (features,))
    except StudyError as error:
        raise StudyError(f"{where}: {str(error).removeprefix('model: ')}") from error
    return found


def width(module: nn.Module, features: int) -> int:
    """Return how many numbers a half makes of ``features``."""
    return _width(module, features, "model")


def _width(module: nn.Module, features: int, where: str) -> int:
    like = next(module.parameters(), None)
    if like is None or not any(p.requires_grad for p in module.parameters()):
        raise StudyError(
            f"{where}: it has no trainable parameters; use a module with requires_grad"
        )
    try:
        with torch.no_grad():
            made = module(torch.zeros(2, features, dtype=like.dtype))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise StudyError(
            f"{where} does not fit {features} numbers: "
            f"{modules.raised(error) or str(error).partition(chr(10))[0] or type(error).__name__}"
        ) from error
    if not isinstance(made, Tensor) or made.ndim != 2 or made.shape[0] != 2:
        raise StudyError(
            f"{where} must give a tensor of shape (examples, numbers); it gave "
            f"{getattr(made, 'shape', type(made).__name__)}"
        )
    return int(made.shape[1])


def _seeded(make: Callable[[], nn.Module], rng: np.random.Generator, where: str) -> nn.Module:
    with own_code(), filled_memory():
        torch.manual_seed(int(rng.integers(2**63)))
        try:
            module = make()
        except StudyError:
            raise
        except Exception as error:  # a user's factory may raise anything
            raise StudyError(f"{where}: making it failed: {modules.told_of(error)}") from error
    if not isinstance(module, nn.Module):
        raise StudyError(f"{where}: it gave {type(module).__name__}, not a torch.nn.Module")
    return module


def _factory(path: str) -> Callable[..., nn.Module]:
    try:
        found = modules.attribute(path)
    except Exception as error:  # a user's module may raise anything
        raise StudyError(
            f"{path!r}: {modules.told_of(error)}. Write package.module:factory, beside the study "
            "file or installed"
        ) from error
    if not callable(found):
        raise StudyError(
            f"{path!r} is no function; see docs/vertical.md for what it must take and give"
        )
    return found


@dataclass(frozen=True, slots=True)
class Chain:
    """Linear layers one after another, with biases, and a ReLU between two of them.

    Attributes:
        widths: inputs, hidden layers, outputs.
        last: a ReLU follows the last layer, too.
    """

    widths: tuple[int, ...]
    last: bool = False

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each layer."""
        return tuple(pairwise(self.widths))

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)


@dataclass(frozen=True, slots=True)
class Net:
    """Chains of a network: parties map features to embeddings, the server maps all embeddings, side
    by side in the order of parties, to scores.
    """

    parties: tuple[Chain, ...]
    server: Chain

    @property
    def embeddings(self) -> tuple[int, ...]:
        """Numbers in each party's embedding."""
        return tuple(party.widths[-1] for party in self.parties)

    @property
    def features(self) -> tuple[int, ...]:
        """Numbers in each party's input."""
        return tuple(party.widths[0] for party in self.parties)


def chain_of(module: nn.Module) -> Chain | None:
    """Return the chain that a module is, trained in float32; None if it is something else."""
    layers = list(module) if type(module) is nn.Sequential else [module]
    linear = [layer for layer in layers if type(layer) is nn.Linear]
    if not all(map(known, (module, *layers))) or len(set(linear)) < len(linear):
        return None
    if layers and type(layers[0]) is nn.Flatten:
        layers = layers[1:]
    widths: list[int] = []
    for place, layer in enumerate(layers):
        if place % 2:
            if type(layer) is not nn.ReLU:
                return None
            continue
        if (
            type(layer) is not nn.Linear
            or layer.bias is None
            or (widths and widths[-1] != layer.in_features)
        ):
            return None
        if not all(
            p.requires_grad and p.dtype.itemsize == 4 and p.device.type == "cpu"
            for p in layer.parameters()
        ):
            return None
        widths += [layer.out_features] if widths else [layer.in_features, layer.out_features]
    if len(widths) < 2 or math.prod(widths) == 0:
        return None
    return Chain(tuple(widths), len(layers) % 2 == 0)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A network cut between parties and server, as at first, and each party's features."""

    study: VerticalStudy
    features: tuple[int, ...]
    embeddings: tuple[int, ...]
    classes: int

    @classmethod
    def of(cls, study: VerticalStudy, stream: streams.Stream, held: Sequence[Index]) -> Split:
        """Cut the study's network for this stream; halves that do not fit it are refused now."""
        features, classes = tuple(len(part) for part in held), len(stream.classes)
        made = cls(study, features, (), classes)
        split = cls(
            study,
            features,
            tuple(width(made.party(m), features[m]) for m in range(len(held))),
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
        """Numbers in an embedding message of each party."""
        method = self.study.method
        return tuple(width * method.resends * method.batch for width in self.embeddings)

    def party(self, m: int) -> nn.Module:
        """Return the m-th party's half, with its first weights."""
        model, rng = self.study.model, Seeded(self.study.seed).at("model", "party", m)
        return party(model.name, self.features[m], model.embedding, self.classes, model.party, rng)

    def server(self) -> nn.Module:
        """Return the server's half, with its first weights."""
        model, rng = self.study.model, Seeded(self.study.seed).at("model", "server")
        return server(model.name, self.embeddings, model.hidden, self.classes, model.server, rng)

    def halves(self) -> tuple[nn.Module, list[nn.Module]]:
        """Return the halves of the server and of the parties."""
        return self.server(), [self.party(m) for m in range(len(self.features))]

    def digests(self, *, operations: bool) -> list[str]:
        """Return a digest of each half's first weights, the server's first; and, with
        ``operations``, of what modules of one's own compute.

        Raises:
            StudyError: for a module of one's own that cannot be recorded.
        """
        server, parties = self.halves()
        own = self.study.model.server, *(self.study.model.party for _ in parties)
        widths = sum(self.embeddings), *self.features
        found = []
        for half, made, width in zip((server, *parties), own, widths, strict=True):
            found.append(digest_of(half))
            if operations and made is not None:
                found[-1] += f"/{Flat(half).graphs.digest(torch.zeros((1, width)))}"
        return found

    @property
    def net(self) -> Net | None:
        """The network as chains; None if it is something else."""
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
        """All parties' halves are layers that are known to keep rows apart."""
        return self.study.model.party is None or all(
            keeps_rows_apart(self.party(m), count) for m, count in enumerate(self.features)
        )

    def flats(self) -> dict[str, Flat]:
        """Return every half's weights in one vector."""
        server, parties = self.halves()
        return {
            "server": Flat(server),
            **{f"party{m}": Flat(party) for m, party in enumerate(parties)},
        }

    def named(self, vector: Vector) -> dict[str, NDArray[Any]]:
        """Return all weights by name, from one vector, server first."""
        found: dict[str, NDArray[Any]] = {}
        start = 0
        for who, flat in self.flats().items():
            own = named_parameters(flat, vector[start : start + flat.dim])
            found |= {f"{who}.{name}": values for name, values in own.items()}
            start += flat.dim
        return found


def rates(study: VerticalStudy) -> Rates:
    """Return the learning rates of the server and of each party."""
    method = study.method
    parties = method.learning_rates or (method.learning_rate,) * study.data.parties
    return Rates(method.server_learning_rate or method.learning_rate, parties)


def half_settings(study: VerticalStudy) -> HalfSettings:
    """Return what both halves know of the method."""
    method = study.method
    return HalfSettings(
        length=method.window,
        alpha=method.attenuation,
        replays=method.replays,
        batch=method.batch,
        bits=study.world.precision,
        buffered=method.buffered,
        fades=method.fades,
    )


def make_party(
    study: VerticalStudy, split: Split, m: int, own: Entropy, module: nn.Module
) -> Party:
    """Return the m-th party over its half of the network, with noise drawn from ``own``."""
    return Party(
        m,
        module,
        split.features[m],
        half_settings(study),
        rates(study).parties[m],
        party_noise(study, m, own),
        study.privacy.updates == "frozen",
        unprotected(study),
    )


def party_noise(study: VerticalStudy, m: int, own: Entropy) -> PartyNoise:
    """Return the noise on what a party sends and learns from."""
    privacy = study.privacy
    return PartyNoise(
        embedding=mechanism_of(privacy.embedding) if privacy.embedding is not None else None,
        update=mechanism_of(privacy.update) if privacy.updates == "noisy" else None,
        embedding_draws=own.stream("embedding", m),
        update_draws=own.stream("update", m),
    )


def mechanism_of(release: Release) -> Single:
    """Return the mechanism of a release.

    Raises:
        StudyError: if it is not calibrated.
    """
    if release.noise_multiplier is None:
        raise StudyError("privacy: a noise_multiplier is missing")  # calibration fills it in
    return Single(clip=release.clip, noise_multiplier=release.noise_multiplier)
