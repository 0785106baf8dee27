"""Drawings that a test has drawn before: the same figure under the same settings is drawn once.

Most of a report's time is matplotlib's, and most pages of these tests share their pictures.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any
from unittest import mock

import matplotlib
from matplotlib.figure import Figure
from matplotlib.transforms import TransformNode

from sordino.core import statements as data
from sordino.report import drawing, page

_drawn: dict[bytes, str] = {}
_of_data: dict[Any, str] = {}
_draw: Callable[..., None] = Figure.savefig


class _Content(pickle.Pickler):
    """Writes what a figure consists of."""

    def reducer_override(self, found: object) -> Any:
        """Functions by what they do, and transforms without their parents: these are listed by
        where they lie in memory, and only tell whom to inform of a change.
        """
        if isinstance(found, FunctionType) and "<" in found.__qualname__:  # one without a name
            around = tuple(cell.cell_contents for cell in found.__closure__ or ())
            return tuple, ((marshal.dumps(found.__code__), around, found.__defaults__),)
        if isinstance(found, TransformNode):
            state: Any = found.__getstate__()
            return object.__new__, (type(found),), {**state, "_parents": None}
        return NotImplemented


def key(figure: Figure) -> bytes:
    """A digest of all that a figure is drawn from."""
    content = io.BytesIO()
    _Content(content).dump((figure, sorted(map(repr, matplotlib.rcParams.items()))))
    return hashlib.sha256(content.getvalue()).digest()


def _once(figure: Figure, file: Any, **options: Any) -> None:
    found = key(figure) + repr(options).encode()
    if found not in _drawn:
        text = io.StringIO()
        _draw(figure, text, **options)
        _drawn[found] = text.getvalue()
    file.write(_drawn[found])


def draw_once(figure: data.Figure | data.Matrix) -> str:
    """Draw a figure that is data; one with the same content was drawn before."""
    found = repr(figure), vars(drawing)["svg"]  # which may leave pictures empty
    if found not in _of_data:
        _of_data[found] = drawing.draw(figure)
    return _of_data[found]


@contextmanager
def once() -> Iterator[None]:
    """Draw no figure twice."""
    with mock.patch.object(Figure, "savefig", _once), mock.patch.object(page, "draw", draw_once):
        yield


@contextmanager
def anew() -> Iterator[None]:
    """Draw every figure, as the program does."""
    with mock.patch.object(Figure, "savefig", _draw), mock.patch.object(page, "draw", drawing.draw):
        yield
