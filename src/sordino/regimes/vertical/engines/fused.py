r"""Many events in one compiled call, for chains of linear layers.

Online gradient descent and dynamic local regularisation.

At event t every participant that is active (the server always is) moves against an average of its
last l gradients, which were taken when their events came (Wang, Wang, Gu, Ling 2025: dlr; ogd is l
= 1):

    w -= (eta / W) sum_{i<l} alpha^i g^{t-i},   W = sum_{i<l} alpha^i, also while the window fills,

with zeros in place of the gradients of events at which a party was passive. Embeddings and their
slopes may travel as 16-bit floats.

A gradient of one example is an outer product in every layer. So an event costs two products of
vector and matrix with the server's weights, and is spared the two passes over all weights that
adding l gradients, or a running sum of them, would take: ``compiled.deferred.events`` has the
algebra. The weights are those of the plain rule but for float32's rounding; after each call they
are dense, and with what :meth:`Fused.pack` returns they are the whole state, bit for bit. Where
calls end is where all is folded: the same events in other pieces give the same weights but for
rounding.

Time is measured inside the compiled loop by the system's monotonic clock, four readings an event
(25 ns each): what a block's common products cost is the parties' forward pass, what folding costs
is each participant's update, and the inner products that only the regret needs count for the
participant whose gradients they are.

The first object of a process compiles for some seconds; networks, windows and rates are data, and
nothing is compiled again for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.regimes.vertical.compiled.deferred import events
from sordino.regimes.vertical.compiled.deferred.chain import (
    A_AT,
    A_PITCH,
    IN,
    OUT,
    U_AT,
    U_PITCH,
    W_AT,
)
from sordino.regimes.vertical.compiled.deferred.state import (
    CAPACITY,
    CLOCK,
    END,
    FILLED,
    FIRST,
    HALF,
    REGRET,
    RING,
    State,
)
from sordino.regimes.vertical.engines.layout import Layout, buffer
from sordino.regimes.vertical.engines.net import Net
from sordino.regimes.vertical.engines.observed import Observed, Rates
from sordino.training.jit import tile

Array = NDArray[np.float32]
Kept = NDArray[Any]

# events between two folds: more make longer lists of pending events, fewer make folding dear
BLOCK = 16


@dataclass(frozen=True, slots=True)
class Rule:
    """The window of gradients.

    Attributes:
        length: l, at least 1.
        alpha: weight of a gradient against the next newer one, in (0, 1].
    """

    length: int
    alpha: float

    def __post_init__(self) -> None:
        """ValueError for what is no window."""
        if self.length < 1:
            raise ValueError(f"a window has at least one gradient, not {self.length}")
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha lies above 0 and is at most 1, not {self.alpha}")


class Fused:
    """Weights and window of one network, with buffers of its own: one object serves one thread.

    ``half`` says whether embeddings and their slopes travel as 16-bit floats, ``regret`` whether
    |S_t|^2 is computed (up to a tenth of the time). Another ``block`` changes results by float32's
    rounding only.
    """

    def __init__(
        self,
        net: Net,
        rule: Rule,
        rates: Rates,
        *,
        half: bool,
        regret: bool = True,
        block: int = BLOCK,
    ) -> None:
        if len(rates.parties) != len(net.parties):
            raise ValueError(f"{len(net.parties)} parties, but rates for {len(rates.parties)}")
        if sum(net.embeddings) != net.server.widths[0]:
            raise ValueError(
                f"the parties' embeddings make up {sum(net.embeddings)} numbers, the server "
                f"takes {net.server.widths[0]}"
            )
        if net.server.last:
            raise ValueError("the server ends in scores, not in a ReLU")
        if block < 1:
            raise ValueError(f"a block has at least one event, not {block}")
        self.net, self.rule, self.rates = net, rule, rates
        size = tile.widest()
        self._plan = plan = Layout.of(net, rule.length, block, size)
        plan.fields[[HALF, REGRET]] = half, regret
        powers = rule.alpha ** np.arange(rule.length, dtype=np.float64)
        people, capacity, widest = len(plan.people), int(plan.fields[CAPACITY]), plan.widest
        self._m = buffer(plan.size)
        self._when = np.zeros((people, capacity), np.int64)
        self._place = np.zeros((people, capacity), np.int64)
        self._due, self._sums = np.zeros((people, capacity)), np.zeros((2, capacity))
        self._chosen = np.zeros((len(plan.layers), widest), np.int64)
        self._given = (
            np.array([*rates.parties, rates.server], np.float64) / powers.sum(),
            np.append(powers[::-1], rule.alpha),
        )
        self._work = (
            np.arange(widest, dtype=np.int64),
            np.zeros(block + 3, np.int64),
            np.zeros(widest, np.int64),
            np.zeros(2, np.int64),
        )
        self._product = np.zeros(capacity)
        self._run = events.events(size)
        self._empty()

    def start(self, server: Array, parties: Sequence[Array]) -> None:
        """Begin with copies of these flat weights, and an empty window."""
        chains, vectors = (*self.net.parties, self.net.server), (*parties, server)
        if len(vectors) != len(chains):
            raise ValueError(
                f"weights of {len(parties)} parties, but there are {len(self.net.parties)}"
            )
        for p, (vector, one) in enumerate(zip(vectors, chains, strict=True)):
            name = f"party {p}" if p < len(parties) else "the server"
            _check(f"the weights of {name}", vector, np.dtype(np.float32), (one.dim,))
        self._empty()
        at = [0] * len(chains)
        for p, _, layer in self._layers():
            inputs, outputs = int(layer[IN]), int(layer[OUT])
            here = vectors[p][at[p] : at[p] + (inputs + 1) * outputs]
            dense = self._dense(layer)
            dense[:inputs] = here[: inputs * outputs].reshape(outputs, inputs).T
            dense[inputs] = here[inputs * outputs :]
            at[p] += here.size

    def run(self, x: Array, y: NDArray[np.int64], active: NDArray[np.bool_]) -> Observed:
        """n events, one after another.

        ``x`` (n, features) holds the parties' features side by side; ``y`` (n,) the labels;
        ``active`` (n, parties) who learns. ValueError for other types and shapes, IndexError for a
        label that is no class; nothing has changed then.
        """
        n, classes = len(x), self.net.server.widths[-1]
        _check("features", x, np.dtype(np.float32), (n, sum(self.net.features)))
        _check("labels", y, np.dtype(np.int64), (n,))
        _check("active", active, np.dtype(np.bool_), (n, len(self.net.parties)))
        if n and not (y.min() >= 0 and y.max() < classes):
            raise IndexError(f"labels must lie in 0..{classes - 1}, found {y.min()}..{y.max()}")
        seen = Observed(np.zeros(n, np.int64), np.zeros(n), np.zeros(n), np.zeros(3))
        spent, plan = np.zeros(3, np.int64), self._plan
        self._run(
            State(
                self._m, plan.layers, plan.people, plan.fields, self._when, self._place, self._due,
                self._chosen,
            ),
            _own(x).reshape(-1), _own(y), _own(active), *self._given,
            events.Work(*self._work, self._sums, self._product), seen.predictions, seen.losses,
            seen.regret, spent,
        )  # fmt: skip
        seen.seconds[:] = spent / 1e9
        return seen

    def weights(self) -> tuple[Array, tuple[Array, ...]]:
        """Copies of the flat weights in force: the server's, and each party's."""
        vectors: list[list[Array]] = [[] for _ in range(len(self.net.parties) + 1)]
        for p, _, layer in self._layers():
            dense = self._dense(layer)
            vectors[p] += [dense[:-1].T.ravel(), dense[-1]]
        *parties, server = [np.concatenate(parts) for parts in vectors]
        return server, tuple(parties)

    def pack(self) -> dict[str, Kept]:
        """The window, for a checkpoint: with the weights it is the whole state.

        ``clock`` is how many events there were; ``when.p`` which of the last l - 1 participant p
        (the server is the last) was active at; ``a.q`` and ``u.q`` the inputs of layer q at those
        and the slopes of its outputs; ``sums`` the bits of float64 numbers.
        """
        plan = self._plan
        count = int(plan.people[-1, FILLED])
        kept: dict[str, Kept] = {
            "clock": plan.fields[CLOCK : CLOCK + 1].copy(),
            "sums": self._sums[:, :count].copy().view(np.int64),
        }
        for p, person in enumerate(plan.people):
            kept[f"when.{p}"] = self._when[p, : person[FILLED]].copy()
        for p, q, layer in self._layers():
            rows = self._place[p, : plan.people[p, FILLED]]
            kept[f"a.{q}"], kept[f"u.{q}"] = (ring[rows] for ring in self._rings(layer))
        return kept

    def unpack(self, server: Array, parties: Sequence[Array], kept: Mapping[str, Kept]) -> None:
        """Go on from weights and window; ValueError for one of another network or rule."""
        clock, whens = self._window(kept)
        self.start(server, parties)
        plan = self._plan
        plan.fields[CLOCK] = clock
        self._sums[:, : len(whens[-1])] = kept["sums"].view(np.float64)
        for p, when in enumerate(whens):
            plan.people[p, FILLED] = when.size
            self._when[p, : when.size], self._place[p, : when.size] = when, when % plan.fields[RING]
        for p, q, layer in self._layers():
            rows = self._place[p, : len(whens[p])]
            for ring, name in zip(self._rings(layer), ("a", "u"), strict=True):
                ring[rows] = kept[f"{name}.{q}"]

    def _window(self, kept: Mapping[str, Kept]) -> tuple[int, list[NDArray[np.int64]]]:
        """The number of events and the lists of those in the window, if all is as it must be."""
        people, layers = range(len(self._plan.people)), list(self._layers())
        names = {
            "clock",
            "sums",
            *(f"when.{p}" for p in people),
            *(f"{kind}.{q}" for _, q, _ in layers for kind in "au"),
        }
        if set(kept) != names:
            raise ValueError(
                f"a window of this network has {', '.join(sorted(names))}; found "
                f"{', '.join(sorted(kept))}"
            )
        _check("clock", kept["clock"], np.dtype(np.int64), (1,))
        clock, whens = int(kept["clock"][0]), [kept[f"when.{p}"] for p in people]
        count = min(clock, self.rule.length - 1)
        _check("sums", kept["sums"], np.dtype(np.int64), (2, count))
        for p, when in enumerate(whens):
            _check(f"when.{p}", when, np.dtype(np.int64), (len(when),))
            if not (
                np.isin(when, np.arange(clock - count, clock)).all() and (np.diff(when) > 0).all()
            ):
                raise ValueError(
                    f"when.{p} must name events {clock - count} to {clock - 1} in their "
                    f"order, found {when.tolist()}"
                )
        if len(whens[-1]) != count:
            raise ValueError(
                f"the server is active at every event, but {len(whens[-1])} of the last "
                f"{count} are kept"
            )
        for p, q, layer in layers:
            for name, width in ((f"a.{q}", layer[IN]), (f"u.{q}", layer[OUT])):
                _check(name, kept[name], np.dtype(np.float32), (len(whens[p]), int(width)))
        return clock, whens

    def _empty(self) -> None:
        """No weights, no window; a 1 behind every input."""
        self._m[:] = 0
        self._plan.people[:, FILLED] = self._plan.fields[CLOCK] = 0
        self._due[:] = self._sums[:] = 0
        for _, _, layer in self._layers():
            a = layer[A_AT]
            self._m[
                a + layer[IN] : a + self._plan.fields[RING] * layer[A_PITCH] : layer[A_PITCH]
            ] = 1

    def _layers(self) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Participant, number and row of the table of each layer."""
        for p, person in enumerate(self._plan.people):
            for q in range(person[FIRST], person[END]):
                yield p, q, self._plan.layers[q]

    def _view(self, at: int, rows: int, pitch: int, width: int) -> Array:
        return self._m[at : at + rows * pitch].reshape(rows, pitch)[:, :width]

    def _dense(self, layer: NDArray[np.int64]) -> Array:
        """A layer's weights, (inputs + 1, outputs), the bias last."""
        return self._view(layer[W_AT], layer[IN] + 1, layer[U_PITCH], layer[OUT])

    def _rings(self, layer: NDArray[np.int64]) -> tuple[Array, Array]:
        """A layer's inputs (ring, inputs) and slopes (ring, outputs)."""
        ring = self._plan.fields[RING]
        return self._view(layer[A_AT], ring, layer[A_PITCH], layer[IN]), self._view(
            layer[U_AT], ring, layer[U_PITCH], layer[OUT]
        )


def _own(values: Kept) -> Kept:
    """As compiled code takes it: without gaps, writable."""
    return np.require(values, requirements=["C", "W", "A"])


def _check(name: str, values: Kept, kind: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if values.dtype != kind or values.shape != shape:
        raise ValueError(
            f"{name} must be {kind} of shape {shape}, found {values.dtype} of shape {values.shape}"
        )
