"""CIFAR-10: 60 000 colour images of 32 x 32 pixels in six batches.

Two published forms hold the same images. The **binary** form is 10 000 records a batch,
one byte of label and 3 072 of pixels (1 024 red, 1 024 green, 1 024 blue, row by row). The
**python** form holds a pickled dictionary a batch, which is read without running it
(:mod:`sordino.data.inert`). Either may lie in a folder or in the archive as downloaded;
archives are read as a stream and nothing is ever extracted to disk.

Reference: Krizhevsky 2009, "Learning multiple layers of features from tiny images".
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.data.dataset import Labels
from sordino.data.inert import array_of, read_inert
from sordino.data.source import AGAIN, Source

BINARY = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
PYTHON = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
RECORDS = 10_000
_PIXELS = 3 * 32 * 32
_CLASSES = 10

Pixels = npt.NDArray[np.uint8]
Split = tuple[Pixels, Labels]


def read_folder(folder: Path, records: int = RECORDS) -> tuple[Split, Split]:
    """(training, test) from the batches that lie in ``folder``; the binary form is preferred."""
    names = BINARY if all((folder / name).is_file() for name in BINARY) else PYTHON
    return _assemble(
        names,
        ((name, str(folder / name), Source(folder / name).whole()) for name in names),
        records,
        str(folder),
    )


def read_archive(path: Path, records: int = RECORDS) -> tuple[Split, Split]:
    """(training, test) from ``cifar-10-binary.tar.gz`` or ``cifar-10-python.tar.gz``."""
    names = BINARY if "binary" in path.name else PYTHON
    return _assemble(names, _members(path, names, records), records, str(path))


def _members(path: Path, names: tuple[str, ...], records: int) -> Iterator[tuple[str, str, bytes]]:
    source = Source(path, whole=True)  # tarfile holds as much of a header as it announces
    # Names of the images and the dictionary around them make the python form a little larger.
    most = records * (_PIXELS + 1) * 2 + 65_536
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name not in names or not member.isreg():
                    continue
                if member.size > most:
                    raise source.damaged(
                        f"expected {name} to have at most {most} bytes", f"it has {member.size}"
                    )
                content = archive.extractfile(member)
                yield name, f"{path}: {name}", content.read() if content else b""
    except DataError:
        raise
    except Exception as error:  # tarfile has its own errors, and damaged headers bring others
        raise source.damaged("expected a tar archive of batches", str(error)) from error
    source.drain()


def _assemble(
    names: tuple[str, ...], batches: Iterator[tuple[str, str, bytes]], records: int, place: str
) -> tuple[Split, Split]:
    """Decode each batch into its part of one array; the test batch is the last of ``names``."""
    decode: Callable[[bytes, str, int], Split] = _binary if names == BINARY else _python
    x = np.empty((len(names) * records, 3, 32, 32), dtype=np.uint8)
    y = np.empty(len(names) * records, dtype=np.int64)
    seen: set[str] = set()
    for name, where, content in batches:
        start = names.index(name) * records
        pixels, labels = decode(content, where, records)
        x[start : start + records] = pixels
        y[start : start + records] = labels
        seen.add(name)
    if missing := [name for name in names if name not in seen]:
        raise DataError(
            f"{place}: expected the batches {', '.join(names)}, but {', '.join(missing)} is "
            f"not there. {AGAIN}"
        )
    cut = (len(names) - 1) * records
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def _binary(content: bytes, place: str, records: int) -> Split:
    expected = records * (_PIXELS + 1)
    if len(content) != expected:
        raise DataError(
            f"{place}: expected {expected} bytes ({records} images of {_PIXELS + 1}), found "
            f"{len(content)}. {AGAIN}"
        )
    raw = np.frombuffer(content, dtype=np.uint8).reshape(records, _PIXELS + 1)
    return raw[:, 1:].reshape(records, 3, 32, 32), _labels(raw[:, 0].astype(np.int64), place)


def _python(content: bytes, place: str, records: int) -> Split:
    batch = read_inert(content, place)
    if not isinstance(batch, Mapping):
        raise DataError(
            f"{place}: expected a dictionary with 'data' and 'labels', found "
            f"{type(batch).__name__}. {AGAIN}"
        )
    fields = {
        key.decode("latin1") if isinstance(key, bytes) else key: value
        for key, value in batch.items()
    }
    pixels = array_of(fields.get("data"), (records, _PIXELS), f"{place}: data")
    labels = fields.get("labels")
    if (
        not isinstance(labels, list)
        or len(labels) != records
        or not all(type(v) is int and 0 <= v < _CLASSES for v in labels)
    ):
        raise DataError(
            f"{place}: expected 'labels' to be a list of {records} integers "
            f"0..{_CLASSES - 1}. {AGAIN}"
        )
    return pixels.reshape(records, 3, 32, 32), np.array(labels, dtype=np.int64)


def _labels(labels: Labels, place: str) -> Labels:
    if int(labels.max()) >= _CLASSES:
        row = int(np.argmax(labels >= _CLASSES))
        raise DataError(
            f"{place}: expected labels 0..{_CLASSES - 1}, found {int(labels[row])} in image "
            f"{row}. {AGAIN}"
        )
    return labels
