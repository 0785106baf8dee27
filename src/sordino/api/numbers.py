"""Arrays from what other libraries hold; what would lose something on the way is refused.

numpy takes many things without a word: it drops the mask of a masked array and the imaginary part
of a complex number, makes seconds of a date, and a class called "None" of a missing label.

Other libraries also choose one type for all entries of a list: its first number, one word, or one
picture of another type then changes how every other row is read, by far more than a row is clipped
to. So each example, and each cell of a column, is read by itself here, and the type of the whole is
one in which no other entry changes; where there is none, the whole is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.data.dataset import single

_MOST = 2**127


def array(values: Any, what: str) -> npt.NDArray[Any]:
    """``values`` as an array of the same shape.

    Args:
        what: it is called in refusals.

    Raises:
        DataError: if it is sparse, has masked entries, lies on no device, or is ragged.
    """
    if type(values).__module__.startswith("torch") and hasattr(values, "detach"):
        return _of_tensor(values, what)
    if type(values).__module__.startswith("scipy.sparse"):
        raise DataError(f"{what} is sparse; give a dense array: x.toarray()")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError(
            f"{what} has masked entries; drop their rows, or fill them with a constant that does "
            "not depend on the data"
        )
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of several lengths, for example
        raise DataError(f"{what} cannot be made an array: {error}") from error


def _of_tensor(values: Any, what: str) -> npt.NDArray[Any]:
    import torch

    if values.layout != torch.strided:
        raise DataError(f"{what} is a sparse tensor; give a dense one: x.to_dense()")
    if values.is_meta:
        raise DataError(f"{what} is a tensor on the device 'meta', which holds no values")
    plain = values.detach().cpu().resolve_conj().resolve_neg()
    if plain.is_floating_point() and plain.dtype not in (
        torch.float16,
        torch.float32,
        torch.float64,
    ):
        plain = plain.float()  # bfloat16 and shorter ones, which numpy does not know
    found: npt.NDArray[Any] = plain.numpy()
    return found


def examples(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Examples as they are kept: pixels as they are, all other numbers as float32.

    Raises:
        DataError: if they are no real numbers.
    """
    held = [each for each in x.flat if isinstance(each, str | bytes)] if x.dtype == object else []
    if x.dtype.kind not in "buifO" or held:
        kind = "text" if held or x.dtype.kind in "SU" else str(x.dtype)
        raise DataError(f"x must hold real numbers, found {kind}; encode it as numbers")
    if x.dtype == np.uint8:
        return x
    try:
        return single(x)  # an infinity is refused with its place
    except (TypeError, ValueError) as error:
        raise DataError(f"x must hold real numbers: {error}") from error


def stacked(values: Sequence[Any], what: str) -> npt.NDArray[Any]:
    """Examples, each made an array by itself, as :func:`examples` keeps them.

    Raises:
        DataError: if they differ in shape, or only some are pixels.
    """
    found = [examples(array(each, what)) for each in values]
    for row, each in enumerate(found):
        for which in ("shape", "dtype"):
            if getattr(each, which) != getattr(found[0], which):
                raise DataError(
                    f"{what} cannot be made an array: example {row} (the first is 0) has "
                    f"{which} {getattr(each, which)}, example 0 {getattr(found[0], which)}; all "
                    "examples must have one shape, and all be pixels (uint8) or none"
                )
    return np.stack(found) if found else np.empty(0, np.float32)


def entries(values: Any, what: str) -> npt.NDArray[Any]:
    """Labels or owners as they are kept: numbers, or text of a fixed length.

    Raises:
        DataError: if one is missing, or neither.
    """
    if not isinstance(values, list | tuple):
        values = array(values, what)
        if values.dtype == np.float16:
            return single(values)  # which can tell whether a number is too large
        if values.dtype != object:
            return np.asarray(values)
    found = cells(values, what)
    if None in found:
        raise DataError(f"row {found.index(None)} (the first is 0) has no {what}; drop the row")
    return np.asarray(found)


def cells(values: Iterable[Any], what: str) -> list[Any]:
    """Cells of a column, each read by itself, as Python values of one type; None is a gap.

    Truth values, whole numbers and numbers stay what they are among themselves, and whole numbers
    are numbers beside others. Any other mixture is text, spelled cell by cell, as in a CSV file.

    Raises:
        DataError: for a cell that is no number and no text.
    """
    found = [_cell(each, row, what) for row, each in enumerate(values)]
    kinds = {type(each) for each in found if each is not None}
    if len(kinds) < 2:
        return found
    kind = float if kinds == {int, float} else str
    return [None if each is None else kind(each) for each in found]


def _cell(value: Any, row: int, what: str) -> bool | int | float | str | None:
    """One cell as a plain Python value."""
    place = f"row {row} (the first is 0) of {what}"
    if getattr(value, "ndim", None) == 0 and not isinstance(value, np.datetime64 | np.timedelta64):
        value = array(value, place).item()  # of numpy or torch
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise DataError(f"{place} holds bytes that are no UTF-8; make them text") from None
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    if isinstance(value, Decimal):
        exact = value.copy_abs() < _MOST and value == value.to_integral_value()
        value = int(value) if exact else float(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and -_MOST <= value < _MOST:
        return int(value)
    if isinstance(value, float):
        return float(value) if value == value else None
    if isinstance(value, str | date | time | timedelta):
        return str(value)
    raise DataError(
        f"{place} holds {type(value).__name__}: convert or drop what is no number of at most 128 "
        "bits and no text"
    )
