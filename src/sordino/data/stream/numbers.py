r"""The text of a table, row by row: numbers read in compiled code, everything unusual handed back.

A decimal number  +-d...d.d...d e +-k  is  m 10^e  with a whole m < 2^64 (further digits are worth less than 2^-60 of it).

- m < 2^53 and |e| <= 22: both are floats, and so one rounding makes the nearest float64 (Clinger 1990).
- Otherwise v = m 10^e has three roundings and the digits left out, less than 2^-51 of v together. If (1 - 2^-49) v and
  (1 + 2^-49) v round to the same float32, then so does the nearest float64.
- If they do not (one number in 10^7), or the cell is no such number (empty, "nan", quoted, text), the cell goes to Python.

So a number becomes exactly ``numpy.float32(float(text))``, at some 30 ns a number.

Cells end at a comma or at the end of the line. A cell that begins with a quote ends at the closing quote; a doubled quote
is one inside. Lines that are empty hold no row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

Run = Callable[..., Any]

ENOUGH, FULL, CELL, FEW, MANY = 0, 1, 2, 3, 4
"""Why :func:`parse` returned: no complete row is left; ``x`` is full; a cell for Python; too few cells; too many."""

_POWERS = np.array([float(f"1e{e}") for e in range(-300, 289)])
_EXACT = 22
_MOST = np.uint64((2**64 - 10) // 10)  # ten times this and a digit still fits
_MANTISSA = np.uint64(2**53)
_NUL, _NINE, _TEN, _HUNDRED, _MYRIAD = np.uint64(48), np.uint64(9), np.uint64(10), np.uint64(100), np.uint64(10_000)
_ROOM = np.uint64(10**11)  # 10^8 times less than this and eight digits still fit
_COMMA, _LINE, _RETURN, _QUOTE, _POINT, _MINUS, _PLUS = 44, 10, 13, 34, 46, 45, 43


def _cell_end(text: Any, at: int, stop: int) -> int:
    """Where the cell from ``at`` on ends: its comma or line feed; -1 where it does not end before ``stop``."""
    if at < stop and text[at] == _QUOTE:
        at += 1
        while at < stop:
            if text[at] == _QUOTE:
                at += 1
                if at >= stop or text[at] != _QUOTE:
                    break
            at += 1
        else:
            return -1
    while at < stop:
        if text[at] == _COMMA or text[at] == _LINE:
            return at
        at += 1
    return -1


cell_end: Run = njit(nogil=True)(_cell_end)


def _skip(text: Any, at: int, stop: int, rows: int) -> Any:
    """(how many of ``rows`` rows were passed, where the next one begins)."""
    passed = 0
    while passed < rows:
        end = at
        while True:
            end = cell_end(text, end, stop)
            if end < 0:
                return passed, at
            if text[end] == _LINE:
                break
            end += 1
        empty = end == at or (end == at + 1 and text[at] == _RETURN)
        at = end + 1
        if not empty:
            passed += 1
    return passed, at


skip: Run = njit(nogil=True)(_skip)


def _eight(text: Any, at: int) -> Any:
    """(whether eight digits stand there, their number). One after another each would wait for the one before."""
    a, b = np.uint64(text[at]) - _NUL, np.uint64(text[at + 1]) - _NUL
    c, d = np.uint64(text[at + 2]) - _NUL, np.uint64(text[at + 3]) - _NUL
    e, f = np.uint64(text[at + 4]) - _NUL, np.uint64(text[at + 5]) - _NUL
    g, h = np.uint64(text[at + 6]) - _NUL, np.uint64(text[at + 7]) - _NUL
    digits = (a <= _NINE) & (b <= _NINE) & (c <= _NINE) & (d <= _NINE) & (e <= _NINE) & (f <= _NINE) & (g <= _NINE) & (h <= _NINE)
    high, low = (a * _TEN + b) * _HUNDRED + (c * _TEN + d), (e * _TEN + f) * _HUNDRED + (g * _TEN + h)
    return digits, high * _MYRIAD + low


eight: Run = njit(nogil=True)(_eight)


def _number(text: Any, at: int, stop: int) -> Any:
    """(sure, value, where it ends) of the number that begins at ``at``."""
    sign = np.float64(1)
    if at < stop and (text[at] == _MINUS or text[at] == _PLUS):
        if text[at] == _MINUS:
            sign = np.float64(-1)
        at += 1
    m, power, digits = np.uint64(0), 0, 0
    while at < stop:
        digit = np.uint64(text[at]) - _NUL  # of what is no digit, a huge number
        if digit > _NINE:
            break
        if m <= _MOST:
            m = m * _TEN + digit
        else:
            power += 1
        digits += 1
        at += 1
    if at < stop and text[at] == _POINT:
        at += 1
        while at + 8 <= stop and m < _ROOM:
            together, value = eight(text, at)
            if not together:
                break
            m, power, digits, at = m * _MYRIAD * _MYRIAD + value, power - 8, digits + 8, at + 8
        while at < stop:
            digit = np.uint64(text[at]) - _NUL
            if digit > _NINE:
                break
            if m <= _MOST:
                m = m * _TEN + digit
                power -= 1
            digits += 1
            at += 1
    if digits == 0:
        return False, 0.0, at
    if at < stop and (text[at] | 32) == 101:  # e, E
        at += 1
        negative, k, figures = False, 0, 0
        if at < stop and (text[at] == _MINUS or text[at] == _PLUS):
            negative = text[at] == _MINUS
            at += 1
        while at < stop:
            digit = np.uint64(text[at]) - _NUL
            if digit > _NINE:
                break
            k = k * 10 + int(digit) if k < 10_000 else k
            figures += 1
            at += 1
        if figures == 0:
            return False, 0.0, at
        power += -k if negative else k
    if m == np.uint64(0):
        return True, sign * 0.0, at
    if m < _MANTISSA and -_EXACT <= power <= _EXACT:
        v = np.float64(m) * _POWERS[300 + power] if power >= 0 else np.float64(m) / _POWERS[300 - power]
        return True, sign * v, at
    if not -300 <= power < 289:
        return False, 0.0, at
    v = np.float64(m) * _POWERS[300 + power]
    margin = v * 2.0**-49
    return np.float32(v - margin) == np.float32(v + margin), sign * v, at


number: Run = njit(nogil=True)(_number)


def _parse(text: Any, at: int, stop: int, places: Any, begin: int, row: int, column: int, x: Any, spans: Any) -> Any:
    """Rows of ``text[at:stop]``, which ends with a line feed, into ``x`` from ``row``, ``column`` on.

    Args:
        begin: where the row begins that is being read.
        places: for each column, its feature; of the label -1, of the entity -2.
        x: (rows, features).
        spans: (rows, 4), where label and entity begin and end in ``text``.

    Returns:
        (why it stopped, row, column, where to go on; with ``CELL``, ``FEW`` and ``MANY`` where the cell begins; where the row begins).
        With ``ENOUGH``, the rest from the beginning of the row on is to be given again, with more behind it.
    """
    columns = places.shape[0]
    while row < x.shape[0]:
        if column == 0:
            begin = at
            if at < stop and text[at] == _LINE:
                at += 1
                continue
            if at + 1 < stop and text[at] == _RETURN and text[at + 1] == _LINE:
                at += 2
                continue
        if at >= stop:
            return ENOUGH, row, 0, begin, begin
        place = places[column]
        if place >= 0:
            sure, value, end = number(text, at, stop)
            if end + 1 < stop and text[end] == _RETURN and text[end + 1] == _LINE:
                end += 1
            if not sure or end >= stop or (text[end] != _COMMA and text[end] != _LINE) or not abs(value) < 3.4e38:
                end = cell_end(text, at, stop)
                if end < 0:
                    return ENOUGH, row, 0, begin, begin
                return CELL, row, column, at, begin
            x[row, place] = np.float32(value)
        else:
            end = cell_end(text, at, stop)
            if end < 0:
                return ENOUGH, row, 0, begin, begin
            spans[row, -2 - 2 * place], spans[row, -1 - 2 * place] = at, end
        last = text[end] == _LINE
        if column + 1 == columns:
            if not last:
                return MANY, row, column, at, begin
            row, column = row + 1, 0
        elif last:
            return FEW, row, column, at, begin
        else:
            column += 1
        at = end + 1
    return FULL, row, column, at, begin


parse: Run = njit(nogil=True)(_parse)
