"""Networks cut between parties and server: by name, as chains that the loop knows, and for a study.

mlp        party: linear to the embedding, ReLU; server: linear, ReLU, linear
           (Wang, Wang, Gu and Ling 2025, section 5.1)
physics    their network for SUSY and HIGGS (appendix D.2): party 32, 64, 98, 128;
           server 256, 128, 64, 32
linear     party: linear scores of the classes; server: their sum, and a bias. Convex in all
           weights together
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from sordino.base.arrays import Array, Ints
from sordino.base.entropy import Entropy, Seeded
from sordino.base.errors import StudyError, passing_over
from sordino.base.message import Vector
from sordino.base.registry import foreign
from sordino.base.settings import filled_memory
from sordino.core.prepared import named_parameters
from sordino.data import stream as streams
from sordino.mechanisms.gaussian import Single
from sordino.regimes.vertical import halves
from sordino.regimes.vertical.halves import HalfSettings, Party, PartyModule, PartyNoise, Server
from sordino.regimes.vertical.method import ACTIVATIONS, Activation
from sordino.regimes.vertical.protocol import EventRules
from sordino.regimes.vertical.regime import unprotected
from sordino.regimes.vertical.stream import parts
from sordino.regimes.vertical.study import Release, SplitModel, VerticalStudy
from sordino.training import models
from sordino.training.flat import Flat
from sordino.training.perexample.plan import plain_layers


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


def party(model: SplitModel, features: int, classes: int) -> nn.Module:
    """Return a party's half that has a name, for ``features`` numbers of an example."""
    widths = model.party_widths(features, classes)
    if model.name == "linear":
        return nn.Linear(features, classes)
    return linear_layers(widths, last=model.name != "physics")


def server(model: SplitModel, embeddings: int, classes: int) -> nn.Module:
    """Return the server's half that has a name, for so many numbers of all embeddings."""
    widths = model.server_widths(embeddings, classes)
    return linear_layers(widths, last=False) if widths else Total(classes)


def _checked(module: nn.Module, features: int, where: str, *, party: bool) -> int:
    """Check a half that a user's factory made, and return the numbers it gives."""
    with filled_memory():
        found = width(module, features, where)
    models.check_initialised(module, where)
    kinds = {str(p.dtype).removeprefix("torch.") for p in module.parameters()}
    if kinds != {"float32"}:
        raise StudyError(
            f"{where}: its parameters are {', '.join(sorted(kinds))}; embeddings are "
            "float32, so they must be, too"
        )
    try:
        models.check_private(module, (features,))
        if party:
            PartyModule(module, features)
    except StudyError as error:
        raise StudyError(f"{where}: {str(error).removeprefix('model: ')}") from error
    return found


def width(module: nn.Module, features: int, where: str = "model") -> int:
    """Return how many numbers a half makes of ``features``."""
    like = next(module.parameters(), None)
    if like is None or not any(p.requires_grad for p in module.parameters()):
        raise StudyError(
            f"{where}: it has no trainable parameters; use a module with requires_grad"
        )
    rows = torch.zeros(2, features, dtype=like.dtype)
    found = models.forward_pass(module, rows, f"{where} does not fit {features} numbers")
    if not isinstance(found, Tensor) or found.ndim != 2 or found.shape[0] != 2:
        raise StudyError(
            f"{where} must give a tensor of shape (examples, numbers); it gave "
            f"{getattr(found, 'shape', type(found).__name__)}"
        )
    return int(found.shape[1])


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


Net = tuple[Chain, ...]
"""Chains of a network: each party's maps its features to its embedding; the last, the server's,
maps all embeddings, side by side in the order of parties, to scores.
"""


def chain_of(module: nn.Module) -> Chain | None:
    """Return the chain that a module is, trained in float32; None if it is something else."""
    layers = list(module) if type(module) is nn.Sequential else [module]
    if layers and type(layers[0]) is nn.Flatten:
        layers = layers[1:]
    linear = [each for each in layers[::2] if type(each) is nn.Linear and each.bias is not None]
    if not linear or len(set(linear)) < len(layers[::2]) or plain_layers(module) is None:
        return None
    if any(type(each) is not nn.ReLU for each in layers[1::2]):
        return None
    if any(
        not p.requires_grad or p.dtype.itemsize != 4 or p.device.type != "cpu"
        for layer in linear
        for p in layer.parameters()
    ):
        return None
    widths = linear[0].in_features, *(layer.out_features for layer in linear)
    fits = all(inputs == layer.in_features for inputs, layer in zip(widths, linear, strict=False))
    return Chain(widths, len(layers) % 2 == 0) if fits and 0 not in widths else None


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A network cut between parties and server, as at first, for the examples of a stream.

    Attributes:
        study: calibrated.
        stream: examples, whole.
        held: numbers of the features that each party holds.
        embeddings: numbers in each party's embedding of an example.
    """

    study: VerticalStudy
    stream: streams.Stream
    held: tuple[Ints, ...]
    embeddings: tuple[int, ...]

    @classmethod
    def of(cls, study: VerticalStudy, stream: streams.Stream) -> Split:
        """Cut the study's network for this stream; halves that do not fit it are refused now."""
        first = cls(study, stream, parts(study, stream), ())
        widths = (width(first.party(m), count) for m, count in enumerate(first.features))
        split = replace(first, embeddings=tuple(widths))
        split.server()
        return split

    @property
    def features(self) -> tuple[int, ...]:
        """Numbers of an example that each party holds."""
        return tuple(map(len, self.held))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.stream.classes)

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

    @property
    def rules(self) -> EventRules:
        """The rules of an event."""
        return EventRules(self.numbers, self.study.world.missing, self.study.method.resends)

    def party(self, m: int) -> nn.Module:
        """Return the m-th party's half, with its first weights.

        Raises:
            StudyError: for a factory that cannot be used, or gives something else than embeddings.
        """
        module = self._party(m)
        if (own := self.study.model.party) is not None:
            _checked(module, self.features[m], f"model.party = {own!r}", party=True)
        return module

    def _party(self, m: int) -> nn.Module:
        model, features, own = self.study.model, self.features[m], self.study.model.party
        where, rng = f"model.party = {own!r}", Seeded(self.study.seed).at("model", "party", m)
        make = partial(party, model, features, self.classes)
        if own is not None:
            make = partial(
                models.factory(where, own, "(features, embedding)"), features, model.embedding
            )
        return models.seeded_module(where, make, (features,), rng)

    def server(self) -> nn.Module:
        """Return the server's half, with its first weights.

        Raises:
            StudyError: for a factory that cannot be used, or does not give a score for each class.
        """
        module, classes = self._server(), self.classes
        if (own := self.study.model.server) is None:
            return module
        where = f"model.server = {own!r}"
        if (found := _checked(module, sum(self.embeddings), where, party=False)) != classes:
            raise StudyError(
                f"{where} gives {found} scores; the data has {classes} classes, so it must give "
                f"{classes}"
            )
        return module

    def _server(self) -> nn.Module:
        model, own, inputs = self.study.model, self.study.model.server, sum(self.embeddings)
        where, rng = f"model.server = {own!r}", Seeded(self.study.seed).at("model", "server")
        make = partial(server, model, inputs, self.classes)
        if own is not None:
            make = partial(
                models.factory(where, own, "(embeddings, classes)"), self.embeddings, self.classes
            )
        return models.seeded_module(where, make, (inputs,), rng)

    def halves(self) -> dict[str, nn.Module]:
        """Return the halves by name, the server's first; they are not checked again, as they serve
        for weights, names and digests and see no data.
        """
        parties = {f"party{m}": self._party(m) for m in range(len(self.held))}
        return {"server": self._server(), **parties}

    def shaping(self, fingerprint: str) -> list[str]:
        """Return what of the data shapes the noise: a fingerprint, and the features of each
        party.
        """
        return [fingerprint, *(hashlib.sha256(part.tobytes()).hexdigest() for part in self.held)]

    def digests(self) -> list[str]:
        """Return a digest of each half's first weights, the server's first, and where noise
        protects features, of what modules of one's own compute; and what an activation of one's own
        says of made-up numbers.

        Raises:
            StudyError: for a module of one's own that cannot be recorded, and an activation that
                says something else when it is asked again.
        """
        model, widths = self.study.model, (sum(self.embeddings), *self.features)
        found = []
        for (who, half), width in zip(self.halves().items(), widths, strict=True):
            found.append(models.digest_of(half))
            path = model.server if who == "server" else model.party
            if path is not None and not unprotected(self.study):
                found[-1] += f"/{Flat(half).graphs.digest(torch.zeros((1, width)))}"
        rule = self.study.method.activation
        if foreign(rule):
            one, other = (_said(rule, len(self.held)) for _ in range(2))
            if one != other:
                wanted = "the same for the same numbers, or a run that goes on is another one"
                raise ACTIVATIONS.wrong(rule, "active", "something else when asked again", wanted)
            found.append(one)
        return found

    @property
    def net(self) -> Net | None:
        """The network as chains; None if it is something else."""
        server, *parties = map(chain_of, self.halves().values())
        found = tuple(each for each in (*parties, server) if each is not None)
        return found if len(found) > len(parties) and not found[-1].last else None

    @property
    def known(self) -> bool:
        """All parties' halves are layers that are known to keep rows apart."""
        return self.study.model.party is None or all(
            halves.keeps_rows_apart(self._party(m), count) for m, count in enumerate(self.features)
        )

    def flats(self) -> dict[str, Flat]:
        """Return every half's weights in one vector."""
        return {who: Flat(half) for who, half in self.halves().items()}


def _said(rule: Activation, parties: int) -> str:
    """Return whom a rule of somebody's own activates by made-up numbers, on which it may fail."""
    drawn = Seeded(0).at("made up").random((8, parties))
    with passing_over():
        return str(rule.active(drawn.shape, drawn.copy, drawn.astype(np.float32).copy))
    return "it fails"


def named(flats: Mapping[str, Flat], vector: Vector) -> dict[str, Array]:
    """Return the weights of halves by name, from one vector in their order."""
    found: dict[str, Array] = {}
    start = 0
    for who, flat in flats.items():
        own = named_parameters(flat, vector[start : start + flat.dim])
        found |= {f"{who}.{name}": values for name, values in own.items()}
        start += flat.dim
    return found


def rates(study: VerticalStudy) -> tuple[float, ...]:
    """Return the learning rate of each party, and of the server."""
    method = study.method
    parties = method.learning_rates or (method.learning_rate,) * study.data.parties
    return (*parties, method.server_learning_rate or method.learning_rate)


def make_server(split: Split) -> Server:
    """Return the server over its half of the network."""
    study = split.study
    settings = HalfSettings(study.method, study.world.precision)
    return Server(split.server(), settings, rates(study)[-1])


def make_party(split: Split, m: int, own: Entropy) -> Party:
    """Return the m-th party over its half of the network, with noise drawn from ``own``."""
    study, privacy = split.study, split.study.privacy
    settings = HalfSettings(study.method, study.world.precision)
    frozen = privacy.updates == "frozen"
    noise = PartyNoise(
        embedding=mechanism_of(privacy.embedding),
        update=mechanism_of(privacy.update) if privacy.updates == "noisy" else None,
        embedding_draws=own.stream("embedding", m),
        update_draws=own.stream("update", m),
    )
    module, features, rate = split.party(m), split.features[m], rates(study)[m]
    return Party(m, module, features, settings, rate, noise, frozen, unprotected(study))


def mechanism_of(release: Release | None) -> Single | None:
    """Return the mechanism of a release, if there is one.

    Raises:
        StudyError: if it is not calibrated.
    """
    if release is None:
        return None
    if release.noise_multiplier is None:
        raise StudyError("privacy: a noise_multiplier is missing")  # calibration fills it in
    return Single(clip=release.clip, noise_multiplier=release.noise_multiplier)
