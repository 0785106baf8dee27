"""IDX, the format of MNIST and Fashion-MNIST.

A file is one array: two zero bytes, a type code (0x08: unsigned byte, the only one these
data sets use), the number of dimensions, each dimension as a big-endian 32-bit integer,
then the values in row-major order. Nothing follows, so every missing or surplus byte shows.

Images are returned with a channel axis, (examples, 1, height, width); the array is the
file's only copy in memory.

References:
    LeCun, Cortes, Burges 1998, "The MNIST database of handwritten digits".
    Xiao, Rasul, Vollgraf 2017, "Fashion-MNIST".
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.base.files import allowed, too_large
from sordino.data.dataset import Labels
from sordino.data.source import Source

_UNSIGNED_BYTE = 0x0800


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array in an IDX file (gzip or not) of unsigned bytes with so many dimensions."""
    source, shape = _opened(path, dimensions)
    size = math.prod(shape)
    what = f"values (shape {' x '.join(map(str, shape))})"
    values = np.empty(shape, dtype=np.uint8)
    source.fill(values.reshape(-1).data, what)
    source.end(f"{size} {what}")
    return values


def idx_shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """The shape of the array in an IDX file, by its header alone."""
    return _opened(path, dimensions)[1]


def _opened(path: Path, dimensions: int) -> tuple[Source, tuple[int, ...]]:
    """A file behind its header, and the shape that it announces."""
    source = Source(path)
    wanted = _UNSIGNED_BYTE | dimensions
    (magic,) = struct.unpack(">I", source.exactly(4, "IDX magic number"))
    if magic != wanted:
        raise source.damaged(
            f"expected the IDX magic number 0x{wanted:08x} (unsigned bytes, {dimensions} "
            f"dimension{'s' * (dimensions > 1)})",
            f"found 0x{magic:08x}",
        )
    shape = struct.unpack(f">{dimensions}I", source.exactly(4 * dimensions, "IDX dimensions"))
    size = math.prod(shape)
    if size == 0:
        raise source.damaged(
            "expected at least one value", f"the header announces the shape {shape}"
        )
    what = f"values (shape {' x '.join(map(str, shape))})"
    source.check_room(size, what)
    if size > (most := allowed(path.stat().st_size)):
        raise DataError(too_large(path, "its header announces", size, most))
    return source, shape


def read_images(images: Path, labels: Path, classes: int) -> tuple[npt.NDArray[np.uint8], Labels]:
    """Images (examples, 1, height, width) and their labels, from their two files."""
    x = read_idx(images, 3)
    return x[:, None], _labels(images, len(x), labels, classes)


def read_labels(images: Path, labels: Path, classes: int) -> tuple[tuple[int, ...], Labels]:
    """The shape (1, height, width) of the images, of which only the header is read, and their
    labels.
    """
    count, *shape = idx_shape(images, 3)
    return (1, *shape), _labels(images, count, labels, classes)


def _labels(images: Path, count: int, labels: Path, classes: int) -> Labels:
    y = read_idx(labels, 1)
    if count != len(y):
        raise Source(labels).damaged(
            f"expected {count} labels, one for each image of {images.name}", f"found {len(y)}"
        )
    if int(y.max()) >= classes:
        row = int(np.argmax(y >= classes))
        raise Source(labels).damaged(
            f"expected labels 0..{classes - 1}", f"label {row} is {int(y[row])}"
        )
    return y.astype(np.int64)
