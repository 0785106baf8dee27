r"""Compiled loops that draw: random words, and whole numbers round(s Z), Z standard normal.

**Rounded normal numbers** are drawn from random words, each proven to be rounded the right way.

Box and Muller (1958): for u, v uniform on (0, 1), the pair

    z_1 = sqrt(-2 log u) cos(2 pi v),    z_2 = sqrt(-2 log u) sin(2 pi v)

is standard normal. Two words of 64 bits are the first digits of u and v; they are worth a small
interval of each. The pair is computed in float64, where every error is bounded: for any u, v in
those intervals the computed z is within

    E = 2^-42

of the true one (below). So round(s z) is the true whole number unless s z lies within s E of the
middle between two whole numbers. There, and where u is so near 0 or 1 that E does not hold, 64 more
bits of u and v are drawn, and the pair is computed to 250 bits (once in 800 000 pairs at s = 2^20).
The whole number is then that of a *real* normal number, but for a chance below 2^-95 that even 128
digits of u and v leave two possibilities.

**No number depends on the data.** Which pairs are computed twice is a matter of the words and of s
alone.

**The error bound.** With k the first 63 bits of u, x = k 2^-63 as float64, m in [sqrt(1/2),
sqrt(2)) its fraction and e its exponent, t = (m - 1)/(m + 1):

    log x = e log 2 + 2 (t + t^3/3 + ... + t^17/17),     |t| <= 0.1716,
    remainder below 2 |t|^19 / 19 / (1 - t^2) < 2^-51.

* u against x: |log u - log x| <= 2^-63/u + 2^-53, which is at most 2^-41 + 2^-53 for u >= 2^-22.
  Both are divided by r.
* Rounding in log x, where e is not 0: below 2^-47, and r >= 0.8. Where e = 0 nothing is added to
  the series, whose error is a few 2^-53 of log x itself.
* r = sqrt(-2 log u), so an error d in log u is d/r in r: 2^-41/5.5 at the small end, 2^-53/r <=
  2^-43 at the large one as long as r >= 2^-10.
* The angle: the quarter of the turn and what is left of it, |angle| <= pi/4, are exact in 64 bits;
  the conversion to float64 and the product with 2 pi are off by 2^-52 together. The Taylor series
  to angle^14/14! and angle^15/15! leave less than 2^-49. Times r <= 5.6: below 2^-46.

The sum is below 2^-43 + 2^-45; E has twice that. Only fused products are allowed to the compiler,
which make errors smaller.

Shapes: words (2 h,), the first h for u, the others for v; numbers (d,), d = 2 h or 2 h - 1.

References:
    Box and Muller 1958, A Note on the Generation of Random Normal Deviates.
    Mironov 2012, On Significance of the Least Significant Bits for Differential Privacy: why
    rounding must be exact.

**Random words** (:func:`sfc64`): generators of the kind SFC64 (Doty-Humphrey 2018) run side by side
in the processor's vectors.

**Correlated noise** goes on from step to step, by one recurrence for each number. Both memories do,
in an order that does not depend on values,

    zeta = N - round(f(earlier zetas)),      released = (whole + zeta) step,

where ``whole`` is the sum in steps of the grid, and then take zeta into the memory, held to
+-:data:`HELD`. :mod:`.correlated` proves what follows from that. What is given is ``drawn`` =
(whole + N) step. All products and sums of a band are exact, so fused ones change no bit. Numbers
and rows of a banded memory are (d,), buffers (2, d).
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.compiled import compiled

F, I, U = np.float64, np.int64, np.uint64  # noqa: E741

ERROR = 2.0**-42
"""E: how far a computed z may be from the true one."""
SHORTEST, LONGEST = 2.0**-20, 44.0 * math.log(2.0)
"""Between these, r^2 = -2 log u is computed to within E."""
STRETCH = 1024
"""Pairs that are counted together."""
_ALONE = threading.Lock()  # the precision and the constants of mpmath are the process's
REACH = 2.0**51
"""Sums beyond as many steps of the grid are held there, so that float64 counts without gaps."""
HELD = 2.0**31 - 1.0
"""The memory holds each zeta to this, whatever was drawn: so the errors of its sums are bounded."""

_MIDDLE = F(1.5 * 2.0**52)  # added and taken away again, it rounds to the nearest whole number
_LOG2 = F(math.log(2.0))
_TURN = F(2.0 * math.pi * 2.0**-64)
_ROOT_HALF = I(0x3FE6A09E667F3BCD)  # the bits of sqrt(1/2)
_FUSED = {"contract", "nsz"}


@compiled(error_model="numpy", fastmath=_FUSED)
def _length(word: Any) -> Any:
    """r^2 = -2 log u, u = word 2^-64."""
    x = F(F(I(U(word) >> U(1))) * F(2.0**-63))
    bits = x.view(np.int64)
    exponent = I(bits - _ROOT_HALF) >> I(52)
    f = I(bits - (exponent << I(52))).view(np.float64) - F(1)
    t = f / (F(2) + f)
    q = t * t
    p = ((F(1 / 17) * q + F(1 / 15)) * q + F(1 / 13)) * q + F(1 / 11)
    p = ((p * q + F(1 / 9)) * q + F(1 / 7)) * q + F(1 / 5)
    p = (p * q + F(1 / 3)) * q + F(1)
    return F(-2) * (F(exponent) * _LOG2 + F(2) * t * p)


@compiled(error_model="numpy", fastmath=_FUSED)
def _turned(word: Any) -> tuple[Any, Any]:
    """cos and sin of 2 pi v, v = word 2^-64."""
    whole = U(word)
    quarter = (whole + U(1 << 61)) >> U(62)
    t = F(I(whole - (quarter << U(62)))) * _TURN
    z = t * t
    s = (F(-1 / 1307674368000) * z + F(1 / 6227020800)) * z + F(-1 / 39916800)
    s = (s * z + F(1 / 362880)) * z + F(-1 / 5040)
    s = (s * z + F(1 / 120)) * z + F(-1 / 6)
    sine = s * z * t + t
    c = (F(-1 / 87178291200) * z + F(1 / 479001600)) * z + F(-1 / 3628800)
    c = (c * z + F(1 / 40320)) * z + F(-1 / 720)
    c = (c * z + F(1 / 24)) * z + F(-0.5)
    cosine = c * z + F(1)
    odd = (quarter & U(1)) != U(0)
    x, y = (sine, cosine) if odd else (cosine, sine)
    return (-x if ((quarter + U(1)) & U(2)) != U(0) else x), (-y if (quarter & U(2)) != U(0) else y)


@compiled()
def _whole(x: Any) -> Any:
    return (x + _MIDDLE) - _MIDDLE


@compiled()
def _steps(number: Any, per_step: Any) -> Any:
    """The nearest whole number of steps of the grid; what is no number is none."""
    x = number * per_step
    x = x if x == x else F(0)
    return _whole(min(max(x, -F(REACH)), F(REACH)))


@compiled(error_model="numpy")
def noisy(words: Any, total: Any, out: Any, step: float, deviation: float, doubtful: Any) -> Any:
    """Fill ``out`` (d,), float32 or float64, and return how many pairs are doubtful.

    ``doubtful`` (ceil(h / STRETCH),) gets their number in each stretch of pairs.
    """
    half, found = words.size // 2, I(0)
    per_step, sure = F(1.0 / step), F(0.5 - deviation * ERROR)
    for number in range(doubtful.size):
        start = number * STRETCH
        end = min(start + STRETCH, total.size - half)
        # slices, so that indices start at zero and cannot be negative: the compiler then uses its
        # widest vectors
        first, second = words[start:end], words[half + start : half + end]
        left, right = total[start:end], total[half + start : half + end]
        out_left, out_right = out[start:end], out[half + start : half + end]
        counted = I(0)
        for i in range(right.size):
            square = _length(first[i])
            cosine, sine = _turned(second[i])
            radius = F(deviation) * math.sqrt(square)
            x, y = radius * cosine, radius * sine
            near_x, near_y = _whole(x), _whole(y)
            counted += I(
                (max(abs(x - near_x), abs(y - near_y)) > sure)
                | (square < F(SHORTEST))
                | (square > F(LONGEST))
            )
            out_left[i] = (_steps(left[i], per_step) + near_x) * step
            out_right[i] = (_steps(right[i], per_step) + near_y) * step
        doubtful[number] = counted
        found += counted
    if total.size % 2:  # the second of the last pair goes unused
        last = half - 1
        square = _length(words[last])
        x = F(deviation) * math.sqrt(square) * _turned(words[half + last])[0]
        near = _whole(x)
        counted = I((abs(x - near) > sure) | (square < F(SHORTEST)) | (square > F(LONGEST)))
        out[last] = (_steps(total[last], per_step) + near) * step
        doubtful[last // STRETCH] += counted
        found += counted
    return found


@compiled(error_model="numpy")
def mark(words: Any, deviation: float, start: int, marks: Any) -> None:
    """Mark in ``marks`` (k,) the pairs from ``start`` on that are doubtful, or some more."""
    half, sure = words.size // 2, F(0.5 - deviation * ERROR * 2.0)
    for i in range(marks.size):
        square = _length(words[start + i])
        cosine, sine = _turned(words[half + start + i])
        radius = F(deviation) * math.sqrt(square)
        x, y = radius * cosine, radius * sine
        far = max(abs(x - _whole(x)), abs(y - _whole(y)))
        marks[i] = (far > sure) | (square < F(SHORTEST)) | (square > F(LONGEST))


def doubtful_pairs(
    words: NDArray[np.uint64], deviation: float, doubtful: NDArray[np.int64]
) -> list[int]:
    """The pairs whose whole numbers are not certain, from the stretches (k,) that have some."""
    half, found = words.size // 2, []
    for number in np.flatnonzero(doubtful).tolist():
        start = number * STRETCH
        marks = np.zeros(min(STRETCH, half - start), np.bool_)
        mark(words, deviation, start, marks)
        found += (np.flatnonzero(marks) + start).tolist()
    return found


def exact_pair(
    word_u: int, word_v: int, more_u: int, more_v: int, deviation: float
) -> tuple[int, int]:
    """The two whole numbers of a pair from 128 bits of u and of v, to 250 bits."""
    from mpmath import mp, mpf  # rarely needed

    with _ALONE, mp.workprec(250):
        u = (mpf((word_u << 64) | more_u) + mpf(1) / 2) / mpf(2) ** 128
        v = (mpf((word_v << 64) | more_v) + mpf(1) / 2) / mpf(2) ** 128
        radius, angle = mpf(deviation) * mp.sqrt(-2 * mp.log(u)), 2 * mp.pi * v
        return int(mp.nint(radius * mp.cos(angle))), int(mp.nint(radius * mp.sin(angle)))


LANES = 32


@compiled(error_model="numpy")
def sfc64(state: Any, out: Any) -> None:
    """``out`` (32 k,) from 32 states (4, 32) of SFC64, one word of each in turn."""
    a, b, c, counter = state[0], state[1], state[2], state[3]
    for start in range(0, out.size, LANES):
        place = out[start : start + LANES]
        for i in range(LANES):
            word = a[i] + b[i] + counter[i]
            counter[i] = counter[i] + np.uint64(1)
            a[i] = b[i] ^ (b[i] >> np.uint64(11))
            b[i] = c[i] + (c[i] << np.uint64(3))
            c[i] = ((c[i] << np.uint64(24)) | (c[i] >> np.uint64(40))) + word
            place[i] = word


@compiled()
def _held(zeta: Any) -> Any:
    return min(max(zeta, -F(HELD)), F(HELD))


@compiled(error_model="numpy", fastmath={"contract"})
def add_row(past: Any, factor: float, row: Any) -> None:
    """Add a row (d,), times its factor, to ``past`` (d,)."""
    for i in range(past.size):
        past[i] += factor * F(row[i])


@compiled(error_model="numpy")
def banded(drawn: Any, past: Any, total: Any, step: float, kept: Any, out: Any) -> None:
    """Release ``total`` (d,) into ``out`` (d,), float32; zeta goes into ``kept`` (d,), int32.

    ``past`` (d,) is f, the sum of earlier rows.
    """
    per_step = F(1.0 / step)
    for i in range(total.size):
        noisy = drawn[i] * per_step - _whole(past[i])
        out[i] = np.float32(noisy * step)
        kept[i] = np.int32(_held(noisy - _steps(total[i], per_step)))


@compiled(error_model="numpy")
def buffered(
    drawn: Any, total: Any, step: float, decays: Any, weights: Any, held: Any, after: Any, out: Any
) -> None:
    """Release ``total`` (d,) into ``out`` (d,), float32; ``after`` (2, d) gets the new buffers.

    f = sum_k weights[k] held[k]; after[k] = decays[k] held[k] + zeta.
    """
    per_step, first, second = F(1.0 / step), decays[0], decays[1]
    light, heavy = weights[0], weights[1]
    a, b, next_a, next_b = held[0], held[1], after[0], after[1]
    for i in range(total.size):
        x, y = a[i], b[i]
        noisy = drawn[i] * per_step - _whole(light * x + heavy * y)
        out[i] = np.float32(noisy * step)
        kept = _held(noisy - _steps(total[i], per_step))
        next_a[i] = first * x + kept
        next_b[i] = second * y + kept


@compiled(error_model="numpy")
def column_of(decays: Any, weights: Any, out: Any) -> None:
    """Fill ``out`` (n,) with 1, then sum_k weights[k] decays[k]^(j - 1)."""
    out[:] = F(0)
    out[0] = F(1)
    for k in range(decays.size):
        power = F(weights[k])
        for j in range(1, out.size):
            out[j] += power
            power *= decays[k]


@compiled(error_model="numpy")
def prefix_error(decays: Any, weights: Any, steps: int) -> float:
    """Mean over t < n of the squared length of row t of A C^-1, A all ones below the diagonal."""
    held, total, found = np.zeros(decays.size), F(0), F(0)
    for t in range(steps):
        zeta = F(1) if t == 0 else F(0)  # so zeta is the next number of the first column of C^-1
        for k in range(decays.size):
            zeta -= weights[k] * held[k]
        for k in range(decays.size):
            held[k] = decays[k] * held[k] + zeta
        total += zeta
        found += total * total * F(steps - t)
    return found / F(steps)
