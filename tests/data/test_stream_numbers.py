"""Numbers of a table are exactly what Python and NumPy make of the same text; whatever else goes to Python."""

from __future__ import annotations

import csv
import io
import struct

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sordino.data.stream import numbers

SURE_OF = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda v: f"{v:.18e}"),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=9).map(str),
    st.integers(-(10**30), 10**30).map(str),
    st.from_regex(r"\A[+-]?([0-9]{1,24}\.?[0-9]{0,24}|\.[0-9]{1,24})([eE][+-]?[0-9]{1,3})?\Z"),
)


def read(text: str) -> tuple[bool, float, int]:
    sure, value, end = numbers.number(np.frombuffer(text.encode() + b",", np.uint8), 0, len(text) + 1)
    return bool(sure), float(value), int(end)


@settings(max_examples=300)
@given(SURE_OF)
@example("0.000000000000000000e+00")
@example("9.728614687919616699e-01")
@example("-0")
@example("12345678")
@example("123456789012345678901234567890")
@example("0.12345678901234567890123456789")
@example("1e400")
@example("1e-400")
@example("1e99999999999999999999")
@example(".5")
@example("5.")
def test_a_number_is_the_float32_of_its_text(text: str) -> None:
    sure, value, end = read(text)
    with np.errstate(over="ignore"):
        wanted = np.float32(float(text))
        if sure:
            assert end == len(text)
            assert struct.pack("<f", np.float32(value)) == struct.pack("<f", wanted)


@given(st.floats(width=32, min_value=2.0**-90, max_value=2.0**90))
def test_published_numbers_need_no_second_look(value: float) -> None:
    assert read(f"{value:.18e}")[0]
    assert read(f"{value:.4f}")[0]
    assert read(str(int(value)))[0] or value > 1e20


def test_what_lies_between_two_floats_is_left_to_python() -> None:
    """The middle between two neighbours in float32, given to 25 digits, is nobody's guess."""
    low = np.float32(1.1)
    high = np.nextafter(low, np.float32(2))
    middle = (float(low) + float(high)) / 2
    assert not read(f"{middle:.25f}"[:27] + "1e0")[0]
    for text in ("", "-", "+", ".", "e5", "1e", "1e+", "nan", "inf", '"1"', " 1", "x"):
        sure, _, end = read(text)
        assert not sure or end < len(text), text


CELL = st.text(alphabet="ab1.,\"\n\r' ;", max_size=6)


@settings(max_examples=200)
@given(st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=1, max_size=6), st.sampled_from(["\n", "\r\n"]))
def test_cells_and_rows_end_where_csv_says(rows: list[list[str]], line: str) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=line, quoting=csv.QUOTE_ALL).writerows(rows)
    body = file.getvalue().encode()
    text, at, found = np.frombuffer(body, np.uint8), 0, []
    while at < len(body):
        end = int(numbers.cell_end(text, at, len(body)))
        found.append(body[at:end].decode().rstrip("\r")[1:-1].replace('""', '"'))
        at = end + 1
    assert found == [cell for row in rows for cell in row]
    for passed in range(len(rows) + 2):
        count, where = numbers.skip(text, 0, len(body), passed)
        assert count == min(passed, len(rows))
        left = csv.reader(io.StringIO(body[where:].decode(), newline=""))
        assert list(left) == rows[passed:]
