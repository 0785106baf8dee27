"""The networks that the loop knows: chains of linear layers, for parties and server.

A party maps its features to an embedding; the server maps all embeddings, side by side in the order
of parties, to scores. Between layers, and after a party's last one if ``last``, stands a ReLU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from sordino.training.perexample.separable import known


@dataclass(frozen=True, slots=True)
class Chain:
    """Linear layers one after another, with biases.

    Attributes:
        widths: inputs, hidden layers, outputs.
        last: whether a ReLU follows the last layer, too.
    """

    widths: tuple[int, ...]
    last: bool = False

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each layer."""
        return tuple(pairwise(self.widths))

    @property
    def dim(self) -> int:
        """How many parameters."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)


@dataclass(frozen=True, slots=True)
class Net:
    """A network cut between parties and server."""

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
    """The chain that a module is: biased linear layers and ReLUs, trained in float32; or None."""
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
