r"""Fourier transforms of sixteen images side by side, written out for one length.

A vector holds the same number of sixteen images, one in each lane. No step mixes lanes, so what
happens to an image depends neither on its lane nor on what lies in the others, to the last bit.

Transforms are those of Cooley and Tukey (1965), with radix 4, 2, and odd primes, and they are not
divided by anything:

    X_p = sum_k x_k exp(sign 2 pi i p k / n).

All additions and products for one length are written down one behind another: factors that are
1 or i cost nothing, and neither do imaginary parts that are zero.

Shapes: a real field is (height, width, 16), a complex one (height, width, 2, 16); float32.

References:
    Cooley and Tukey 1965, An Algorithm for the Machine Calculation of Complex Fourier Series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from sordino.native import Tile, emitted

if TYPE_CHECKING:
    from sordino.native.emit import Emitter, Index

LANES = 16
"""Images side by side."""
Complex = tuple[Any, Any]
"""Vectors of real and imaginary parts; None for zero."""


@cache
def along(
    n: int,
    lines: int,
    pitch: int,
    step: int,
    sign: int,
    *,
    real: bool = False,
    moduli: bool = False,
) -> Tile:
    """``tile(x, at, out, to)``: transforms of lines of n numbers, from a field into another or in
    place.

    Args:
        n: numbers of a line, ``pitch`` places apart.
        lines: how many, ``step`` places apart.
        pitch: in places.
        step: in places.
        sign: of the exponent, 1 or -1.
        real: whether x is a real field.
        moduli: whether to store moduli, as a real field.
    """
    wide, thin = 1 if real else 2, 1 if moduli else 2

    def body(code: Emitter, x: Any, at: Index, out: Any, to: Index) -> None:
        with code.loop(lines) as line:
            start, there = at + line * (step * wide * LANES), to + line * (step * thin * LANES)

            def given(k: int) -> Complex:
                place = start + k * pitch * wide * LANES
                return code.load(x, place), None if real else code.load(x, place + LANES)

            for k, value in enumerate(_Writer(code, sign).transform(given, n)):
                place = there + k * pitch * thin * LANES
                re, im = (code.zero if part is None else part for part in value)
                if moduli:
                    square = code.fma(re, re, code.builder.fmul(im, im))
                    code.store(code.root(square), out, place)
                else:
                    code.store(re, out, place)
                    code.store(im, out, place + LANES)

    return emitted(LANES, body)


def radix(n: int) -> int:
    """What a transform of n numbers is split into first: 4 if it can be, else a prime.

    >>> [radix(n) for n in (36, 18, 9, 29)]
    [4, 2, 3, 29]
    """
    if n % 4 == 0:
        return 4
    return next(r for r in range(2, n + 1) if n % r == 0)


class _Writer:
    """Writes down what a transform does, on vectors that may be known to be zero."""

    def __init__(self, code: Emitter, sign: int) -> None:
        self._code, self._sign = code, sign

    def transform(self, given: Callable[[int], Complex], n: int) -> list[Complex]:
        """Of numbers ``given(0)``, ..., ``given(n - 1)``; each is asked for once."""
        if n == 1:
            return [given(0)]
        r = radix(n)
        m = n // r

        def every(q: int) -> Callable[[int], Complex]:
            return lambda k: given(q + r * k)

        parts = [self.transform(every(q), m) for q in range(r)]
        found: list[Complex] = [(None, None)] * n
        for k in range(m):
            turned = [self._turned(part[k], q * k, n) for q, part in enumerate(parts)]
            for p, value in enumerate(self._butterfly(turned)):
                found[k + m * p] = value
        return found

    def _butterfly(self, x: Sequence[Complex]) -> list[Complex]:
        """A transform of a prime number of values, or of four."""
        if len(x) == 2:
            return [self._plus(x[0], x[1]), self._minus(x[0], x[1])]
        if len(x) == 4:
            even, odd = self._plus(x[0], x[2]), self._plus(x[1], x[3])
            left, right = self._minus(x[0], x[2]), self._minus(x[1], x[3])
            if self._sign < 0:
                right = self._minus((None, None), right)
            over, under = self._beside(left, right)
            return [self._plus(even, odd), over, self._minus(even, odd), under]
        return self._odd(x)

    def _odd(self, x: Sequence[Complex]) -> list[Complex]:
        """Values q and r - q have the same cosines, and sines that differ in sign."""
        r, half = len(x), len(x) // 2
        sums = [self._plus(x[q], x[r - q]) for q in range(1, half + 1)]
        gaps = [self._minus(x[q], x[r - q]) for q in range(1, half + 1)]
        total = x[0]
        for each in sums:
            total = self._plus(total, each)
        found = [total] * r
        for p in range(1, half + 1):
            angles = [2.0 * math.pi * (p * q % r) / r for q in range(1, half + 1)]
            same: Complex = x[0]
            other: Complex = (None, None)
            for angle, s, g in zip(angles, sums, gaps, strict=True):
                same = self._more(same, math.cos(angle), s)
                other = self._more(other, self._sign * math.sin(angle), g)
            found[p], found[r - p] = self._beside(same, other)
        return found

    def _turned(self, x: Complex, number: int, n: int) -> Complex:
        """x exp(sign 2 pi i number / n)."""
        quarters, rest = divmod(4 * number, n)
        if rest == 0:
            for _ in range(quarters * self._sign % 4):
                x = self._less(None, x[1]), x[0]
            return x
        angle = self._sign * 2.0 * math.pi * number / n
        cosine, sine = math.cos(angle), math.sin(angle)
        return (
            self._also(self._scaled(x[0], cosine), -sine, x[1]),
            self._also(self._scaled(x[0], sine), cosine, x[1]),
        )

    def _beside(self, a: Complex, b: Complex) -> tuple[Complex, Complex]:
        """a + i b and a - i b."""
        return (
            (self._less(a[0], b[1]), self._sum(a[1], b[0])),
            (self._sum(a[0], b[1]), self._less(a[1], b[0])),
        )

    def _plus(self, a: Complex, b: Complex) -> Complex:
        return self._sum(a[0], b[0]), self._sum(a[1], b[1])

    def _minus(self, a: Complex, b: Complex) -> Complex:
        return self._less(a[0], b[0]), self._less(a[1], b[1])

    def _more(self, a: Complex, factor: float, b: Complex) -> Complex:
        return self._also(a[0], factor, b[0]), self._also(a[1], factor, b[1])

    # single vectors

    def _sum(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return self._code.builder.fadd(a, b)

    def _less(self, a: Any, b: Any) -> Any:
        if b is None:
            return a
        return self._code.builder.fneg(b) if a is None else self._code.builder.fsub(a, b)

    def _scaled(self, a: Any, factor: float) -> Any:
        return None if a is None else self._code.builder.fmul(a, self._code.constant(factor))

    def _also(self, a: Any, factor: float, b: Any) -> Any:
        """a + factor b."""
        if a is None or b is None:
            return self._scaled(b, factor) if a is None else a
        return self._code.fma(b, self._code.constant(factor), a)
