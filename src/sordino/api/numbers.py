"""Arrays from what other libraries hold; what would lose something on the way is refused.

numpy takes many things without a word: it drops the mask of a masked array and the imaginary part
of a complex number, makes seconds of a date, and a class called "None" of a missing label.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sordino.errors import DataError


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
        with np.errstate(over="ignore"):  # an infinity, which is refused with its place
            return x.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"x must hold real numbers: {error}") from error


def column(values: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    """Labels or owners as they are kept: numbers, or text of a fixed length.

    Raises:
        DataError: if one is missing.
    """
    if values.dtype == np.float16:
        return values.astype(np.float32)  # which can tell whether a number is too large
    if values.dtype != object:
        return values
    for row, each in enumerate(values.flat):
        if each is None or each != each:
            raise DataError(f"row {row} (the first is 0) has no {what}; drop the row")
    return values.astype(str)
