"""What messages weigh: payload as it stands in them, framing as it is encoded.

The payload of an embedding or a derivative is its numbers, at 16 or 32 bits; the framing is what
the codec adds (names, party, event, lengths), and queries are framing altogether. Sizes are those
of encoded messages, counted from who was active, so that a run that hands its messages over one by
one and one that is compiled count the same.

>>> sizes = Sizes.of((64,) * 4, resends=1, batch=1, bits=16)
>>> traffic = sizes.weigh(1, np.ones((1000, 4), bool), np.ones(1000, bool))
>>> traffic.up == traffic.down == 1000 * 4 * 64 * 2
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.base.message import Derivative, Embedding, Query, encode

MIB = 2**20
# where MessagePack's whole numbers take more bytes
_GROWS = np.array([2**7, 2**8, 2**16, 2**32, 2**63 - 1])

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of payload up and down, and of framing."""

    up: int = 0
    down: int = 0
    framing: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Payload of one embedding, or derivative, of each party (bytes), and its numbers' bits."""

    payload: tuple[int, ...]
    bits: int

    @staticmethod
    def of(embeddings: Sequence[int], *, resends: int, batch: int, bits: int) -> Sizes:
        """For embeddings of so many numbers, sent for so many examples."""
        return Sizes(tuple(width * resends * batch * bits // 8 for width in embeddings), bits)

    def weigh(self, first: int, active: Mask, learned: Mask) -> Traffic:
        """Of events from number ``first`` on: active parties (n, M), whether it was learned (n,).

        Everybody sends an embedding, in time or too late; who is passive is queried; who is active
        gets a derivative of what was learned from.
        """
        ups, downs, asked = np.ones_like(active), active & learned[:, None], ~active
        kinds = np.searchsorted(_GROWS, np.arange(first, first + len(learned)), side="right")
        framing = 0
        for kind in np.unique(kinds):
            here, event = kinds == kind, int(_GROWS[kind]) - 1
            framing += int(asked[here].sum()) * len(encode(Query(event)))
            for party, size in enumerate(self.payload):
                body = bytes(size)
                framing += int(ups[here, party].sum()) * (
                    len(encode(Embedding(party, event, True, self.bits, body))) - size
                )
                framing += int(downs[here, party].sum()) * (
                    len(encode(Derivative(party, event, self.bits, body))) - size
                )
        up = int(ups.sum(0) @ np.array(self.payload))
        return Traffic(up, int(downs.sum(0) @ np.array(self.payload)), framing)
