"""Networks cut between parties and server, by name.

mlp        party: linear to the embedding, ReLU; server: linear, ReLU, linear
           (Wang, Wang, Gu and Ling 2025, section 5.1)
physics    their network for SUSY and HIGGS (appendix D.2): party 32, 64, 98, 128;
           server 256, 128, 64, 32
linear     party: linear scores of the classes; server: their sum, and a bias. Convex in all
           weights together
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from sordino.base import modules
from sordino.base.errors import StudyError
from sordino.regimes.vertical.engines.rowwise import PartyModule
from sordino.training.models import check_initialised, check_private
from sordino.training.settings import filled_memory, own_code

PARTY, SERVER = (32, 64, 98, 128), (256, 128, 64, 32)


class Total(nn.Module):
    """The sum of the parties' scores (n, parties classes) -> (n, classes), and a bias."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, embeddings: Tensor) -> Tensor:
        """See the class."""
        return embeddings.view(len(embeddings), -1, len(self.bias)).sum(1) + self.bias


def chain(widths: Sequence[int], *, last: bool) -> nn.Sequential:
    """Linear layers with ReLUs between, and one after the last if ``last``."""
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
    """A party's half, for ``features`` numbers of an example.

    Raises:
        StudyError: for a factory that cannot be used, or gives something else than embeddings.
    """
    if own is not None:
        module = _seeded(lambda: _factory(own)(features, embedding), rng, f"model.party = {own!r}")
    elif name == "linear":
        return _seeded(lambda: nn.Linear(features, classes), rng, "")
    elif name == "physics":
        return _seeded(lambda: chain((features, *PARTY), last=False), rng, "")
    else:
        return _seeded(lambda: chain((features, embedding), last=True), rng, "")
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
    """The server's half, for embeddings of so many numbers each, side by side.

    Raises:
        StudyError: for a factory that cannot be used, or does not give a score for each class.
    """
    total = sum(embeddings)
    if own is None and name == "linear":
        return Total(classes)
    if own is None:
        widths = (total, *SERVER, classes) if name == "physics" else (total, hidden, classes)
        return _seeded(lambda: chain(widths, last=False), rng, "")
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
    """The width of somebody's own half, after a look at what it is made of."""
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
    """Numbers that a half makes of ``features``."""
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
