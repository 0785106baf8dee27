"""Primitives for inner loops in LLVM's language: numbers, vectors of L float32, and blocks.

This is what :func:`sordino.native.emitted` gives to a ``body``. It loads the compiler: a module
that is loaded where nothing is compiled imports it for its types only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FLOAT, DOUBLE, INT = ir.FloatType(), ir.DoubleType(), ir.IntType(64)
Sums = list[list[Any]]  # places of vectors

_tools: Any = cgutils  # partly annotated


@dataclass(frozen=True, slots=True)
class Index:
    """A whole number of the result, to add and to multiply."""

    builder: Any
    value: Any

    def __add__(self, other: Index | int) -> Index:
        return Index(self.builder, self.builder.add(self.value, self.raw(other)))

    def __sub__(self, other: Index | int) -> Index:
        return Index(self.builder, self.builder.sub(self.value, self.raw(other)))

    def __mul__(self, other: Index | int) -> Index:
        return Index(self.builder, self.builder.mul(self.value, self.raw(other)))

    def __floordiv__(self, other: Index | int) -> Index:
        return Index(self.builder, self.builder.sdiv(self.value, self.raw(other)))

    @staticmethod
    def raw(other: Index | int) -> Any:
        return INT(other) if isinstance(other, int) else other.value

    def apart(self, pitch: Index | int, count: int) -> list[Index]:
        """So many numbers from this one on, ``pitch`` apart."""
        return [self + (pitch * k if isinstance(pitch, Index) else k * pitch) for k in range(count)]


class Emitter:
    """Vectors of L numbers in flat buffers. Places in a buffer are counted in numbers."""

    def __init__(self, builder: Any, size: int) -> None:
        self.builder, self.size = builder, size
        self.vector = ir.VectorType(FLOAT, size)
        self.bytes = ir.VectorType(ir.IntType(8), size)
        self.zero = self.constant(0.0)

    # loops and places

    @contextmanager
    def loop(self, count: Index | int) -> Iterator[Index]:
        """A loop of the result."""
        with _tools.for_range(self.builder, Index.raw(count)) as loop:
            yield Index(self.builder, loop.index)

    def when(self, condition: Any) -> Any:
        """A branch of the result, for a boolean argument or a comparison."""
        return self.builder.if_then(_tools.as_bool_bit(self.builder, condition))

    def beside(self, at: Index, vectors: int) -> list[Index]:
        """Where so many vectors begin, one behind another."""
        return at.apart(self.size, vectors)

    def place(self, pointer: Any, index: Index | int, kind: Any) -> Any:
        return self.builder.bitcast(
            self.builder.gep(pointer, [Index.raw(index)]), kind.as_pointer()
        )

    def room(self, count: int = 1) -> Any:
        """Places for so many vectors, one behind another."""
        return _tools.alloca_once(self.builder, self.vector, size=INT(count))

    # numbers and vectors

    def is_zero(self, index: Index) -> Any:
        """Whether a whole number is zero."""
        return self.builder.icmp_signed("==", index.value, INT(0))

    def double(self, number: Any) -> Any:
        """A float32 as float64."""
        return self.builder.fpext(number, DOUBLE)

    def number(self, pointer: Any, index: Index | int) -> Any:
        """One element of a buffer, of its type."""
        return self.builder.load(self.builder.gep(pointer, [Index.raw(index)]))

    def whole(self, pointer: Any, index: Index) -> Index:
        """The same of a buffer of whole numbers."""
        return Index(self.builder, self.number(pointer, index))

    def add(self, value: Any, pointer: Any, index: Index) -> None:
        """Add to one number of a buffer."""
        there = self.builder.gep(pointer, [index.value])
        self.builder.store(self.builder.fadd(self.builder.load(there), value), there)

    def load(self, pointer: Any, index: Index | int, kind: Any = None) -> Any:
        """A vector, of float32 or of another ``kind``."""
        return self.builder.load(
            self.place(pointer, index, kind or self.vector), align=1 if kind == self.bytes else 4
        )

    def store(self, value: Any, pointer: Any, index: Index | int) -> None:
        """A vector of any length and type."""
        self.builder.store(
            value,
            self.place(pointer, index, value.type),
            align=1 if value.type == self.bytes else 4,
        )

    def constant(self, number: float) -> Any:
        """The same number in every lane."""
        return ir.Constant(self.vector, [number] * self.size)

    def byte(self, number: int) -> Any:
        """The same byte in every lane."""
        return ir.Constant(self.bytes, [number] * self.size)

    def lanes(self, a: Any, b: Any, which: list[int]) -> Any:
        """These lanes of a, and of b behind it, in one vector."""
        return self.builder.shuffle_vector(
            a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(which)), which)
        )

    def spread(self, number: Any) -> Any:
        """A number into all lanes."""
        single = self.builder.insert_element(
            ir.Constant(self.vector, ir.Undefined), number, ir.IntType(32)(0)
        )
        return self.lanes(single, single, [0] * self.size)

    # arithmetic

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once."""
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(
            _tools.get_or_insert_function(self.builder.module, kind, f"llvm.fma.v{self.size}f32"),
            [a, b, c],
        )

    def root(self, a: Any) -> Any:
        """Square roots, correctly rounded."""
        kind = ir.FunctionType(self.vector, [self.vector])
        return self.builder.call(
            _tools.get_or_insert_function(self.builder.module, kind, f"llvm.sqrt.v{self.size}f32"),
            [a],
        )

    def total(self, value: Any) -> Any:
        """The sum of the lanes, in any order."""
        kind = ir.FunctionType(FLOAT, [FLOAT, self.vector])
        reduce = _tools.get_or_insert_function(
            self.builder.module, kind, f"llvm.vector.reduce.fadd.v{self.size}f32"
        )
        return self.builder.call(reduce, [FLOAT(0.0), value], fastmath=["reassoc"])

    def folded(self, a: Any, b: Any, group: int) -> Any:
        """First half plus second half of every group of so many lanes, of a and then of b."""
        starts = range(0, 2 * a.type.count if b is not a else a.type.count, group)
        low = [start + lane for start in starts for lane in range(group // 2)]
        return self.builder.fadd(
            self.lanes(a, b, low), self.lanes(a, b, [lane + group // 2 for lane in low])
        )

    def gathered(self, values: list[Any], group: int) -> Any:
        """Sums of groups of lanes of all these vectors, a power of two, in order in one vector.

        Two are folded into one again and again: L - 1 additions for L sums, in place of L log L.
        """
        while len(values) > 1:
            values = [
                self.folded(a, b, group) for a, b in zip(values[::2], values[1::2], strict=True)
            ]
            group //= 2
        while group > 1:
            values, group = [self.folded(values[0], values[0], group)], group // 2
        return values[0]

    # blocks of sums

    def sums(self, rows: int, vectors: int) -> Sums:
        """R x V places for sums. The compiler keeps them in registers."""
        return [[self.room() for _ in range(vectors)] for _ in range(rows)]

    def clear(self, sums: Sums, start: list[Any] | None = None) -> None:
        """Begin at zero, or every row at these vectors."""
        for line in sums:
            for place, value in zip(line, start or [self.zero] * len(line), strict=True):
                self.builder.store(value, place)

    def multiply(self, value: Any, factor: Any, place: Any) -> None:
        """Add a product to a sum."""
        self.builder.store(self.fma(value, factor, self.builder.load(place)), place)

    def outer(self, sums: Sums, rows: list[Any], columns: list[Any]) -> None:
        """Add to the sum at row r, column v the product of these vectors; numbers count as such."""
        for line, row in zip(sums, rows, strict=True):
            wide = self.spread(row) if row.type == FLOAT else row
            for place, column in zip(line, columns, strict=True):
                self.multiply(wide, column, place)

    def write(
        self,
        sums: Sums,
        pointer: Any,
        at: list[Index],
        change: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        """Store the sums of row r from ``at[r]`` on, or what ``change`` makes of old and new."""
        for line, start in zip(sums, at, strict=True):
            for place, there in zip(line, self.beside(start, len(line)), strict=True):
                value = self.builder.load(place)
                self.store(
                    change(value, self.load(pointer, there)) if change else value, pointer, there
                )


def intrinsic_of(size: int, body: Callable[..., Any], returns: str, told: Mapping[str, str]) -> Any:
    """A numba intrinsic, which compiled code alone can call; see :func:`sordino.native.emitted`."""
    names = list(inspect.signature(body).parameters)[1:]
    kinds_told = {name: getattr(types, kind) for name, kind in told.items()}

    def definition(typing: Any, *given: Any) -> Any:
        kinds = [
            kinds_told.get(
                name, kind if isinstance(kind, types.Array | types.CPointer) else types.intp
            )
            for name, kind in zip(names, given, strict=True)
        ]

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = []
            for kind, value in zip(signature.args, arguments, strict=True):
                if isinstance(kind, types.Array):
                    values.append(context.make_array(kind)(context, builder, value).data)
                else:
                    values.append(Index(builder, value) if kind == types.intp else value)
            result = body(Emitter(builder, size), *values)
            return context.get_dummy_value() if result is None else result

        return getattr(types, returns)(*kinds), emit

    places = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in ("typing", *names)
    ]
    definition.__signature__ = inspect.Signature(places)  # type: ignore[attr-defined]
    return intrinsic(definition)
