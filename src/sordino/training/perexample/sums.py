r"""The two sums a client asks for: clipped per example, or plain.

The package's docstring says which path a module takes, and how a batch becomes a sum. Both sums run
under ``no_grad``.

Modules of one linear layer go by one compiled loop (:mod:`.loops`):

    s_i = w a_i + b,      g_i = dl/ds_i,      |G_i|^2 = |g_i|^2 (|a_i|^2 + 1),
    out = sum_i c_i g_i a_i^T,  sum_i c_i g_i,      c_i = min(1, s C / |G_i|)

(without a bias, no 1). For logistic regression a plan's dozen of library calls, each a microsecond
or more, cost several times the arithmetic (784 features, 10 classes, 12 examples: 155 microseconds
against 30). The loop takes the whole store and the indices of the batch, and reads the examples
where they lie, bytes as bytes.

It serves a flattening followed by one linear layer, all of it trained, in float32 on a processor,
with cross entropy or the multi-class hinge and a flat bound. Everything else goes by the other
paths.

Rounding is that of :mod:`.clipping`: a row's square is summed in float32 over at most 1 024 numbers
and 2^-126 is added for each that may vanish; norm and quotient are float64; at most 96 examples
are added up in float32. An example whose norm is not finite is left out of the sum, not multiplied
by zero. Without privacy it stays in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sordino.base.arrays import Array, Floats, Ints
from sordino.base.errors import StudyError
from sordino.mechanisms.gaussian import checked_clip
from sordino.training.flat import Flat, Slot
from sordino.training.graph import Function, Graph, Named, pulled, trained
from sordino.training.loss import CrossEntropy, Loss, MulticlassHinge
from sordino.training.outline import FAST, MAPPED, SINGLE, Path
from sordino.training.perexample.clipping import (
    MARGIN,
    MOST,
    TOGETHER,
    UNKNOWN,
    VECTOR,
    Bound,
    ClippedBatch,
    FlatBound,
    Layers,
    Measured,
    Shortened,
    add_rows,
    factors,
    filled,
    finite,
    joined,
    kept,
    leaves,
    parts,
    root,
    rows_of,
)
from sordino.training.perexample.general import OneByOne, layers_of, written
from sordino.training.perexample.layers import Collected
from sordino.training.perexample.plan import Plan, compiled, exact_products, plain_layers

# gradients of as many examples as this are written out at once, while they are in the cache
ROW_BYTES, FEW = 3_000_000, 16
WHOLE = slice(None)
TRIALS = 12
BYTES, FLOATS = (np.float32(127.5), np.float32(1 / 127.5)), (np.float32(0), np.float32(1))
"""The number that is subtracted, and the factor of the rest, to give model input."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """One client's data on the device: ``x`` (n, ...) and labels ``y`` (n,).

    Pixels stay bytes until a batch is taken: a quarter of the memory, and of what a batch has to
    fetch.

    Where ``starts`` (m + 1,) are given, it is m persons who are drawn and clipped, and number i has
    the rows ``starts[i]`` to ``starts[i + 1]``.
    """

    x: Tensor
    y: Tensor
    starts: Tensor | None = None

    def __len__(self) -> int:
        return self.y.shape[0] if self.starts is None else self.starts.shape[0] - 1  # quick

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the rows with these indices (b,), as model input."""
        return model_input(self.x.index_select(0, chosen)), self.y.index_select(0, chosen)


def model_input(x: Tensor) -> Tensor:
    """Bytes as pixels in [-1, 1], to the bit as :func:`sordino.data.scaled` has them; else as is.

    >>> model_input(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([-1.0000, -0.6000,  1.0000])
    """
    return x.to(torch.float32).sub_(127.5).div_(127.5) if x.dtype == torch.uint8 else x


def path_of(flat: Flat, shape: tuple[int, ...], loss: Loss) -> Path:
    """The path of a module for examples of ``shape``, numbers with class labels.

    Raises:
        StudyError: if a forward pass changes the module's buffers.
    """
    if Single.of(flat, loss) is not None:
        return SINGLE
    if compiled(flat, shape) is not None:
        return FAST
    x = flat.weights.new_zeros((1, *shape))
    return OneByOne(flat, loss).path(x, torch.zeros(1, dtype=torch.int64, device=x.device))


class Single:
    """The sums of one linear layer: its weight, its bias if it has one, and the loss."""

    def __init__(self, flat: Flat, weight: Slot, bias: Slot | None, hinge: bool) -> None:
        self.features = weight.shape[1]
        self._dim, self._weight, self._bias, self._hinge = flat.dim, weight, bias, hinge
        self._weights = self._parts(flat.weights)

    @classmethod
    def of(cls, flat: Flat, loss: Loss) -> Single | None:
        """Return the path of this module and loss, if it has one."""
        match plain_layers(flat.module):
            case [nn.Flatten(start_dim=1, end_dim=-1), nn.Linear() as linear]:
                weight, bias = flat.slot(linear.weight), flat.slot(linear.bias)
            case _:
                return None
        frozen = linear.bias is not None and bias is None
        here = flat.weights.device.type == "cpu" and flat.weights.dtype == torch.float32
        if weight is None or frozen or not here or 0 in weight.shape:
            return None
        if type(loss) not in (CrossEntropy, MulticlassHinge):
            return None
        return cls(flat, weight, bias, isinstance(loss, MulticlassHinge))

    def reads(self, x: Tensor, y: Tensor) -> bool:
        """Return whether examples ``x`` (n, ...) with labels ``y`` (n,) can be read in place."""
        return (
            x.dtype in (torch.uint8, torch.float32)
            and y.dtype == torch.int64
            and x.device.type == y.device.type == "cpu"
            and x.is_contiguous()
            and y.is_contiguous()
            and x.ndim > 1
            and y.shape == x.shape[:1]
            and x.numel() == len(x) * self.features
            and not x.requires_grad
        )

    def clipped(
        self, x: Tensor, y: Tensor, chosen: Tensor, clip: float, out: Tensor
    ) -> ClippedBatch:
        """Write the clipped sum over indices ``chosen`` (b,) to ``out`` (d,), float64."""
        norms, losses = self._sum(x, y, chosen, clip * MARGIN, out)
        return ClippedBatch(norms, clip, losses)

    def mean(self, x: Tensor, y: Tensor, chosen: Tensor, out: Tensor) -> Tensor:
        """Write the mean gradient over ``chosen`` (b,), not empty, to ``out`` (d,); the mean loss.

        Raises:
            IndexError: for a label that is no class.
        """
        total = torch.empty(self._dim, dtype=torch.float64)
        _, losses = self._sum(x, y, chosen, None, total)
        out.copy_(total.div_(len(chosen)))
        return losses.mean()

    def steps(self, x: Tensor, y: Tensor, batches: Ints, rate: float) -> None:
        """Take plain steps on ``batches`` (tau, b), not empty; to the bit what :meth:`mean` and
        torch come to. All weights are NaN where a label is no class.
        """
        from sordino.training.perexample import loops

        total = torch.empty(self._dim, dtype=torch.float64)
        norms, losses = np.empty((2, batches.shape[1]), np.float32)
        wrong = loops.steps(
            *_numbers(x, y), batches, *self._weights, self._hinge, np.float32(-rate),
            *self._parts(total), norms, losses,
        )  # fmt: skip
        if wrong:
            for part in self._weights:
                part.fill(np.nan)

    def _sum(
        self, x: Tensor, y: Tensor, chosen: Tensor, room: float | None, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return norms and losses; without ``room``, s C, nothing is clipped or left out."""
        from sordino.training.perexample import loops

        if out.shape != (self._dim,) or out.dtype != torch.float64 or not out.is_contiguous():
            raise ValueError(f"out must be a vector of {self._dim} numbers of type torch.float64")
        norms, losses = np.empty((2, len(chosen)), np.float32)
        wrong = loops.linear(
            *_numbers(x, y), chosen.contiguous().numpy(), *self._weights, self._hinge,
            room is not None, room or 0.0, *self._parts(out), norms, losses,
        )  # fmt: skip
        if wrong == loops.NO_EXAMPLE:
            raise IndexError("an index of the batch lies outside of the examples")
        if wrong == loops.NO_CLASS and room is None:  # with privacy, an error would tell of it
            raise IndexError("a label of the batch lies outside of the model's classes")
        return torch.from_numpy(norms), torch.from_numpy(losses)

    def _parts(self, vector: Tensor) -> tuple[Array, Array]:
        """The weight and the bias of a vector (d,), the latter empty where there is none."""
        bias = vector[:0] if self._bias is None else self._bias.of(vector)
        return self._weight.of(vector).numpy(), bias.numpy()


def _numbers(x: Tensor, y: Tensor) -> tuple[Any, Any, Any, Any]:
    """Examples as a loop takes them: rows, what makes them model input, labels."""
    middle, scale = BYTES if x.dtype == torch.uint8 else FLOATS
    return x.view(len(x), -1).numpy(), middle, scale, y.numpy()


class Paths:
    """The paths of one module, found out once for each shape of input.

    Attributes:
        flat: the module.
        loss: its loss.
        slow: the path for every module.
    """

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self.flat, self.loss = flat, loss
        self.slow = OneByOne(flat, loss)
        self._fast: dict[tuple[tuple[int, ...], torch.dtype], Plan | None] = {}
        self._single = Single.of(flat, loss)

    def in_place(self, examples: Examples, chosen: Tensor) -> Single | None:
        """The path that reads a batch in place; None: it must be copied."""
        single = self._single
        if single is None or not len(chosen) or not single.reads(examples.x, examples.y):
            return None
        return single if chosen.ndim == 1 and chosen.dtype == torch.int64 else None

    def find(self, x: Tensor) -> Plan | None:
        """The fast path for batches like this one, or None where examples go one by one."""
        key = tuple(x.shape[1:]), x.dtype
        if key not in self._fast:
            tokens = x.dtype in (torch.int64, torch.int32)
            fits = tokens or x.dtype == self.flat.weights.dtype
            self._fast[key] = compiled(self.flat, key[0], tokens) if fits else None
        return self._fast[key]


class ClippedSum:
    """Writes sum_i g_i min(1, C/|g_i|) over a batch into a flat vector."""

    def __init__(self, flat: Flat, loss: Loss) -> None:
        _refuse_settings()  # before anything is charged, too
        self._paths = Paths(flat, loss)
        self._shapes: dict[tuple[object, ...], tuple[int, Tensor]] = {}
        self._begun: set[tuple[object, ...]] = set()

    def __call__(
        self, x: Tensor, y: Tensor, bound: float | Bound, out: Tensor, *, expected: float = UNKNOWN
    ) -> ClippedBatch:
        """Overwrite ``out`` (d,), float64, with the clipped sum over ``x`` (n, ...), ``y`` (n,).

        A number is a flat bound C. An empty batch gives zeros. What is returned is raw and must not
        leave its client. ``expected`` is the expected size of batches, which is public: batches of
        about this size are fastest.

        Raises:
            StudyError: for a bound, a batch or a setting of torch for which the sum's sensitivity
                is not proven.
        """
        if len(x) > MOST:
            raise StudyError(
                f"a batch of {len(x)} examples: at most {MOST} can be summed within the proven "
                "bound; lower the sampling rate"
            )
        every = torch.arange(len(y), device=y.device)
        return self.of(Examples(x, y), every, bound, out, expected=expected)

    def of(
        self,
        examples: Examples,
        chosen: Tensor,
        bound: float | Bound,
        out: Tensor,
        *,
        expected: float = UNKNOWN,
    ) -> ClippedBatch:
        """The same over indices ``chosen`` (b,), in place where the module's path can.

        Nothing that examples hold makes it fail: those that cannot be computed add nothing.
        """
        bound = FlatBound(bound) if isinstance(bound, int | float) else bound
        checked_clip(bound.clip)
        if isinstance(bound, Layers):
            layers = len(layers_of(self._paths.flat))
            checked_clip(bound.each(layers), f"privacy.clip / sqrt({layers} layers)")
        if out.dtype != torch.float64:
            raise ValueError(f"a clipped sum is written in float64; got a vector of {out.dtype}")
        _refuse_settings()
        self._begin(examples, bound, out, expected, idle=not len(chosen))
        total = out
        if not 0 < len(chosen) <= TOGETHER:
            total = torch.empty_like(out.zero_())
        found = []
        for leaf in leaves(chosen):
            found.append(self._leaf(examples, leaf, bound, total, expected))
            if total is not out:
                out.add_(total)
        return joined(found, bound.clip, self._paths.flat.weights, chosen)

    def _begin(
        self, examples: Examples, bound: Bound, out: Tensor, expected: float, *, idle: bool
    ) -> None:
        """Record and compile what batches like this one need, with an example of zeros: else what
        a module of a user's own prints, and kept code, would tell which batch was the first that is
        not empty. An ``idle`` batch takes the time of this example: else a server would see by its
        clock which batches of a site are empty.
        """
        x, y, starts = examples.x, examples.y, examples.starts
        like = type(bound), starts is None, x.shape[1:], x.dtype, rows_of(expected, TOGETHER)
        if idle or like not in self._begun:
            self._begun.add(like)
            some = x.new_zeros(1, *x.shape[1:]), y.new_zeros(1, *y.shape[1:])
            zeros = Examples(*some, None if starts is None else starts.new_tensor([0, 1]))
            only = torch.zeros(1, dtype=torch.int64, device=y.device)
            self._leaf(zeros, only, bound, torch.empty_like(out), expected)

    def _leaf(
        self, examples: Examples, chosen: Tensor, bound: Bound, out: Tensor, expected: float
    ) -> ClippedBatch:
        """Overwrite ``out`` with the clipped sum over a leaf."""
        if examples.starts is not None:
            return self._persons(examples, examples.starts, chosen, bound, out, expected)
        single = self._paths.in_place(examples, chosen) if isinstance(bound, FlatBound) else None
        if single is not None:
            return single.clipped(examples.x, examples.y, chosen, bound.clip, out)
        norms: list[Tensor] = []
        losses: list[Tensor] = []
        with torch.no_grad():
            for piece in self._pieces(*examples.take(chosen), expected):
                norms.append(self._add(piece, bound, out, fresh=not norms)[piece.places])
                losses.append(piece.losses[piece.places])
        return ClippedBatch(torch.cat(norms).to(losses[0].dtype), bound.clip, torch.cat(losses))

    def _persons(
        self, examples: Examples, starts: Tensor, chosen: Tensor, bound: Bound, out: Tensor,
        expected: float,
    ) -> ClippedBatch:  # fmt: skip
        """Overwrite ``out`` with the sum over persons, each of whom is bounded as one example.

        Rows are worked off in pieces, whoever they are of; their gradients are written out and
        added up in float64, one after another. So nobody's sum depends on where a piece ends. It is
        rounded once, and then bounded by itself, in memory of its own.
        """
        from sordino.training.perexample import loops

        flat, counts = self._paths.flat, (starts[chosen + 1] - starts[chosen]).tolist()
        rows = torch.cat(
            [
                torch.arange(*each, device=starts.device)
                for each in zip(starts[chosen].tolist(), starts[chosen + 1].tolist(), strict=True)
            ]
        )
        norms, losses, total = list[Tensor](), list[Tensor](), np.zeros(flat.dim)
        own, persons = list[float](), iter(counts)
        left = next(persons)
        out.zero_()
        with torch.no_grad():
            for piece in self._pieces(*examples.take(rows), expected):
                there = finite(root(_added([square for _, square in piece.layers])))
                made = kept(there, self._formed(piece))[piece.places].cpu().numpy()
                values = piece.losses[piece.places].tolist()
                while values:
                    here = made[: min(left, len(values))]
                    loops.add_rows(here, np.ones(len(here)), total)
                    own += values[: len(here)]
                    made, values, left = made[len(here) :], values[len(here) :], left - len(here)
                    if not left:
                        losses.append(flat.weights.new_tensor([sum(own) / len(own)]))
                        norms.append(self._add(self._person(total, losses[-1]), bound, out, False))
                        total[:], own, left = 0.0, [], next(persons, 0)
        return ClippedBatch(torch.cat(norms).to(losses[0].dtype), bound.clip, torch.cat(losses))

    def _person(self, total: Floats, loss: Tensor) -> _Piece:
        """A sum of rows (d,) as the gradient of one example; ``loss`` (1,) is their mean."""
        flat = self._paths.flat
        row = torch.tensor(total).to(flat.weights).unsqueeze(0)
        layers = written(flat, lambda slot: slot.columns(row))
        return _Piece(torch.zeros(1, dtype=torch.int64, device=row.device), loss, layers)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Every example's own gradient (n, d). Raw."""
        flat = self._paths.flat
        with torch.no_grad():
            found = [self._formed(each)[each.places] for each in self._pieces(x, y, UNKNOWN)]
        return torch.cat([flat.weights.new_empty(0, flat.dim), *found])

    def _pieces(self, x: Tensor, y: Tensor, expected: float) -> Iterator[_Piece]:
        """The gradients of ``x`` (n, ...), ``y`` (n,); each piece lasts until the next is drawn."""
        path, threads = self._paths.find(x), torch.get_num_threads()
        if threads > 1:  # where threads meet, a vector is cut
            torch.set_num_threads(1)  # takes milliseconds: torch forgets its convolutions
        try:
            rows, places = self._shape(path, x, y, expected)
            for start in range(0, len(x), len(places)):
                some = slice(start, start + len(places))
                yield self._piece(path, x[some], y[some], rows, places)
        finally:
            if threads > 1:
                torch.set_num_threads(threads)

    def _piece(self, path: Plan | None, x: Tensor, y: Tensor, rows: int, places: Tensor) -> _Piece:
        """A piece of so many rows, with the examples (k, ...) at the first k places."""
        xs, ys, used = filled(x, rows, places), filled(y, rows, places), places[: len(x)]
        if path is None:
            return _Piece(used, *self._paths.slow.gradients(xs, ys, used))
        losses, slopes = path.slopes(self._paths.loss, xs, ys, 1.0)
        return _Piece(used, losses, [owner.collect(g) for owner, g in slopes])

    def _shape(
        self, path: Plan | None, x: Tensor, y: Tensor, expected: float
    ) -> tuple[int, Tensor]:
        """Rows of a piece, and the places that are used, which are alike."""
        most = self._paths.slow.most if path is None else path.most
        wanted = rows_of(expected, most)
        if path is None and self._paths.slow.path(x, y) is not MAPPED:
            return min(wanted, most), torch.arange(min(wanted, most))  # each goes by itself
        key = x.shape[1:], x.dtype, y.shape[1:], y.dtype, wanted
        if key not in self._shapes:
            for rows in (wanted, wanted + VECTOR, 2 * wanted):
                places = self._alike(path, x, y, rows)
                if len(places) >= wanted:
                    break
            self._shapes[key] = rows, places[:TOGETHER]
        return self._shapes[key]

    def _alike(self, path: Plan | None, x: Tensor, y: Tensor, rows: int) -> Tensor:
        """Places (k,) of so many in which equal examples have equal gradients, to the bit."""
        every = torch.arange(rows, device=x.device)
        weights, generator = self._paths.flat.weights, torch.Generator().manual_seed(0)
        held, same = weights.clone(), torch.ones(min(rows, 4), rows, dtype=torch.bool)
        try:
            for trial in range(TRIALS):
                random = torch.randn(len(weights), generator=generator, dtype=weights.dtype)
                weights.copy_(held + 0.05 * random.to(held))
                one = torch.zeros(1, *x.shape[1:], dtype=x.dtype)
                if x.is_floating_point() and trial:
                    one.normal_(generator=generator)
                xs = one.to(x.device).expand(rows, *one.shape[1:])
                piece = self._piece(path, xs, y.new_zeros(rows, *y.shape[1:]), rows, every)
                for found in (self._formed(piece), piece.losses, *(n for _, n in piece.layers)):
                    bits = found.view(rows, -1).nan_to_num(nan=0.0)
                    if not bool((bits == bits[0]).all()):
                        for first, row in enumerate(same):
                            row &= (bits == bits[first]).all(1).cpu()
        finally:
            weights.copy_(held)
        return same[int(same.sum(1).argmax())].nonzero().flatten().to(x.device)

    def _formed(self, piece: _Piece, part: slice = WHOLE) -> Tensor:
        """The gradients (k, d) of a part of a piece, written out."""
        weights = self._paths.flat.weights
        rows = weights.new_empty(len(piece.losses[part]), len(weights))
        for layer, _ in piece.layers:
            layer.form(part, rows)
        return rows

    def _add(self, piece: _Piece, bound: Bound, out: Tensor, fresh: bool) -> Tensor:
        """Norms (k,) of a piece; its clipped sum goes to ``out``, written if ``fresh``, else added.

        Nothing here lets one example change what is computed for another: those that cannot
        contribute are left in their places, with zeros for gradients.
        """
        if isinstance(bound, Measured | Shortened):
            return self._measured(piece, bound, out, fresh)
        squared = [square for _, square in piece.layers]
        norms = _largest(squared, bound) if isinstance(bound, Layers) else root(_added(squared))
        usable = finite(norms)
        if not bool(usable.all()):
            for layer, square in piece.layers:
                layer.leave(usable)
                square.masked_fill_(~usable, 0.0)
        dtype, used = piece.losses.dtype, torch.zeros_like(piece.losses)
        used[piece.places] = 1.0
        if isinstance(bound, Layers):
            each = bound.each(len(squared))
            for layer, square in piece.layers:
                layer.write(used * factors(square.sqrt(), each, MARGIN, dtype), out, fresh)
        else:
            factor = used * factors(norms, bound.clip, MARGIN, dtype)
            for layer, _ in piece.layers:
                layer.write(factor, out, fresh)
        return norms

    def _measured(
        self, piece: _Piece, bound: Measured | Shortened, out: Tensor, fresh: bool
    ) -> Tensor:
        """Gradients are written out, measured and added few at a time, in the cache."""
        weights = self._paths.flat.weights
        few = min(FEW, int(ROW_BYTES / (len(weights) * weights.element_size())))
        norms = weights.new_zeros(len(piece.losses), dtype=torch.float64)
        used = torch.zeros_like(norms)
        used[piece.places] = 1.0
        if fresh:
            out.zero_()
        for part in parts(len(norms), few):
            if not bool(used[part].any()):
                continue
            rows = self._formed(piece, part)
            if isinstance(bound, Shortened):
                rows, found = bound.rows(rows)
                factor = used[part]
            else:
                found = bound.norms(rows)
            found = found.to(torch.float64)
            usable = finite(found)
            norms[part] = found = torch.where(usable, found, math.inf)
            if isinstance(bound, Measured):
                factor = used[part] * factors(found, bound.clip, bound.margin, torch.float64)
                rows = rows if bool(usable.all()) else kept(usable, rows)
            add_rows(out, rows, factor, fresh=False)
        return norms


class _Piece(NamedTuple):
    """Gradients of k rows with examples in some ``places``: losses (k,), and each layer with its
    squared norms (k,).
    """

    places: Tensor
    losses: Tensor
    layers: Sequence[Collected]


def _refuse_settings() -> None:
    """Refuse settings that the proof in :mod:`.clipping` does not cover."""
    wrong = {
        "torch.set_float32_matmul_precision was set below 'highest': products are then too coarse "
        "for the bound; leave it alone": not exact_products(),
        "torch.autocast is on: products are then in half precision, too coarse for the bound; "
        "leave it off around a run": any(map(torch.is_autocast_enabled, ("cpu", "cuda"))),
        "torch.autograd.set_detect_anomaly is on: one row could end the run; "
        "leave it off": torch.is_anomaly_enabled(),
    }
    for why, so in wrong.items():
        if so:
            raise StudyError(why)


def _added(squared: list[Tensor]) -> Tensor:
    # one after another: a sum over an axis may go another way where the others are longer
    return functools.reduce(torch.add, squared)


def _largest(squared: list[Tensor], bound: Layers) -> Tensor:
    found = root(torch.stack(squared).amax(0))  # NaN and infinity come through
    return torch.where(
        finite(root(_added(squared))), found * (bound.clip / bound.each(len(squared))), math.inf
    )


class MeanGradient:
    """Writes the gradient of a batch's mean loss into a flat vector: no clipping, no privacy.

    Attributes:
        known: whether the module has known layers alone, so that no code of a user's runs.
    """

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self._paths = Paths(flat, loss)
        self.known = plain_layers(flat.module) is not None

    def __call__(self, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """Overwrite ``out`` (d,) with the mean gradient over ``x`` (n, ...), ``y`` (n,); mean loss.

        An empty batch gives zeros, and zero.
        """
        if len(x) == 0:
            out.zero_()
            return out.new_zeros(())
        with torch.no_grad():
            return self._mean(self._paths.find(x), x, y, out)

    def of(self, examples: Examples, chosen: Tensor, out: Tensor) -> Tensor:
        """The same over the indices ``chosen`` (b,), in place where that is possible."""
        single = self._paths.in_place(examples, chosen)
        if single is None:
            return self(*examples.take(chosen), out)
        return single.mean(examples.x, examples.y, chosen, out)

    def steps(self, examples: Examples, batches: Ints, rate: float) -> bool:
        """Take plain steps on ``batches`` (tau, b) of indices, not empty, where the module's path
        can take all of them at once; whether it can.
        """
        single = self._paths.in_place(examples, torch.from_numpy(batches[0]))
        if single is not None:
            single.steps(examples.x, examples.y, batches, rate)
        return single is not None

    def prepare(self, examples: Examples, sizes: Iterable[int]) -> None:
        """Record what batches of so many rows need, so that nothing of a user's own runs later.

        Raises:
            StudyError: for a module that has no graph for one of them.
        """
        one, label = model_input(examples.x[:1]), examples.y
        for size in sorted(set(sizes)):
            x, y = (each.new_zeros((size, *each.shape[1:])) for each in (one, label))
            if self._paths.find(x) is None:
                self._graph(x, y)

    def _mean(self, path: Plan | None, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        if path is None:  # the whole batch at once: without privacy, examples may meet
            found: Tensor
            found, gradients = self._graph(x, y)(x, y)
            for slot in self._paths.flat.layout:
                slot.logical(out).copy_(gradients[slot.name])
            return found
        total, share = out.new_zeros(()), 1.0 / len(x)
        for start in range(0, len(x), path.most):
            some = slice(start, start + path.most)
            losses, slopes = path.slopes(self._paths.loss, x[some], y[some], share)
            for owner, g in slopes:
                owner.plain(g, out, start == 0)
            total += losses.sum()
        return total * share

    def _graph(self, x: Tensor, y: Tensor) -> Graph:
        return self._paths.flat.graphs.of(("mean", self._paths.loss), self._gradient, x, y)

    def _gradient(
        self, module: Function, tensors: Named, x: Tensor, y: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = trained(tensors, {slot.name: slot for slot in self._paths.flat.layout})
        with torch.enable_grad():
            mean = self._paths.loss(module(leaves, x), y).mean()
        return mean.detach(), pulled(mean, leaves)
