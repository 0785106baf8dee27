"""Reading a pickle without running it.

A pickle is a program: its instructions name any importable function and call it, so that
loading one from the network hands the machine to whoever wrote it. This project neither
writes nor loads pickles. One published data set, CIFAR-10's "python version", exists as
pickles all the same, and many people have just that one on their disks.

So the file is interpreted with the dictionary of callable names replaced. Of all names
that a pickle may utter, the few that NumPy's own pickling uses are answered, and each with
an inert record defined here: ``_reconstruct`` returns an empty note pad, its ``state`` is
written on it, and that is all. No NumPy code runs on the pickle's behalf, no imported
callable is ever reachable, and any other name is refused. What comes out are containers,
numbers, strings and note pads, which :func:`array_of` then reads with as much distrust as
any other file.

Old batches were written by Python 2: strings arrive as ``bytes`` (encoding="bytes").
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError


class InertDtype:
    """What a pickle says about an element type: ``u1`` is the only one we go on to accept."""

    def __init__(self, code: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment say nothing about single bytes."""


class InertArray:
    """What a pickle says about an array."""

    shape: object = None
    dtype: object = None
    fortran: object = None
    values: object = None

    def __setstate__(self, state: object) -> None:
        """Note (version, shape, element type, column-major, bytes)."""
        if isinstance(state, tuple) and len(state) == 5:
            _, self.shape, self.dtype, self.fortran, self.values = state


# The answers have no state of their own (``__slots__ = ()``), so a pickle cannot alter them either.


class _Ndarray:
    __slots__ = ()


class _Dtype:
    __slots__ = ()

    def __call__(self, code: object, *_: object) -> InertDtype:
        return InertDtype(code)


class _Reconstruct:
    __slots__ = ()

    def __call__(self, *_: object) -> InertArray:
        return InertArray()


class _FromBuffer:
    __slots__ = ()

    def __call__(self, values: object, dtype: object, shape: object, order: object) -> InertArray:
        array = InertArray()
        array.__setstate__((1, shape, dtype, order == "F", values))
        return array


class _Encode:
    """How Python 3 writes bytes into pickles that Python 2 can read."""

    __slots__ = ()

    def __call__(self, text: object, *_: object) -> bytes:
        if not isinstance(text, str):
            raise pickle.UnpicklingError("only text can be encoded")
        return text.encode("latin1")


_ANSWERS: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): _Ndarray(),
    ("numpy", "dtype"): _Dtype(),
    ("_codecs", "encode"): _Encode(),
    **{
        (f"{core}.multiarray", "_reconstruct"): _Reconstruct()
        for core in ("numpy.core", "numpy._core")
    },
    **{(f"{core}.numeric", "_frombuffer"): _FromBuffer() for core in ("numpy.core", "numpy._core")},
}


# The interpreter written in Python, not the faster one in C: a damaged memo index makes the latter
# allocate and touch up to 64 GB, which ends the process instead of raising. A batch takes some 50
# ms.
class _Reader(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        answer = _ANSWERS.get((module, name))
        if answer is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, and this reader calls nothing")
        return answer

    def persistent_load(self, pid: object) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside itself")


def read_inert(content: bytes, place: str) -> object:
    """The containers in a pickle; DataError, naming ``place``, for anything else."""
    file = io.BytesIO(content)
    try:
        value = _Reader(file, encoding="bytes").load()
    except Exception as error:
        # damaged bytes are arbitrary instructions: anything may come of them
        raise DataError(
            f"{place}: expected a batch of arrays in Python's pickle format, but reading it "
            f"failed ({error})"
        ) from error
    if file.read(1):
        raise DataError(
            f"{place}: expected the end of the file after the batch, but more bytes follow"
        )
    return value


def array_of(value: object, shape: tuple[int, ...], place: str) -> npt.NDArray[np.uint8]:
    """The array of unsigned bytes with this shape that ``value`` describes (a view)."""
    if not isinstance(value, InertArray):
        raise DataError(
            f"{place}: expected an array of shape {shape}, found {type(value).__name__}"
        )
    code = value.dtype.code if isinstance(value.dtype, InertDtype) else None
    size = int(np.prod(shape))
    if (
        code != "u1"
        or value.shape != shape
        or not isinstance(value.values, bytes | bytearray)
        or len(value.values) != size
    ):
        raise DataError(
            f"{place}: expected unsigned bytes of shape {shape}, found type {code}, shape "
            f"{value.shape}"
        )
    return np.frombuffer(value.values, dtype=np.uint8).reshape(
        shape, order="F" if value.fortran else "C"
    )
