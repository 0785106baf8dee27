"""LIBSVM text, the form in which USPS (16 x 16 digits of envelopes) is published.

A line is one example: a class number, then ``index:value`` pairs with rising indices from
1; what is not listed is 0. USPS has values in [-1, 1] already, a public range, and calls
its digits 1 to 10, of which we make 0 to 9.

Text carries no length, so a file cut at the end of a line looks whole. Readers of a
published file therefore say how many examples it must have, and a last line without its
line feed is refused.

References:
    Hull 1994, "A database for handwritten text recognition research".
    Chang and Lin 2011, "LIBSVM: a library for support vector machines".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from sordino.data.dataset import Labels
from sordino.data.source import Source
from sordino.errors import DataError
from sordino.files import allowed, too_large


def read_libsvm(path: Path, features: int, examples: int | None = None) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Dense features (examples, features) and labels as written, from text (bzip2, gzip or plain)."""
    source = Source(path)
    content = source.whole()
    if not content.endswith(b"\n"):
        raise source.damaged("expected the last line to end with a line feed", "it breaks off")
    found = content.count(b"\n")
    if examples is not None and found != examples:
        raise source.damaged(f"expected {examples} lines, one for each example", f"found {found}")
    if (size := 4 * features * found) > (most := allowed(path.stat().st_size)):
        raise DataError(too_large(path, f"its {found} lines need", size, most))
    lines = content[:-1].split(b"\n")
    x = np.zeros((len(lines), features), dtype=np.float32)
    y = np.empty(len(lines), dtype=np.float64)
    for row, line in enumerate(lines):
        pairs = line.replace(b":", b" ").split()
        try:
            numbers = np.array(pairs, dtype=np.float64)
        except ValueError as error:
            raise source.damaged(f"line {row + 1}: expected 'label index:value ...'", str(error)) from error
        at, values = numbers[1::2], numbers[2::2]
        if len(numbers) % 2 == 0 or line.count(b":") != len(at):
            raise source.damaged(f"line {row + 1}: expected 'label index:value ...'", f"found {line[:40]!r}")
        if not np.isfinite(numbers).all():
            bad = int(np.argmin(np.isfinite(numbers)))
            raise source.damaged(f"line {row + 1}: expected finite numbers", f"number {bad + 1} is {numbers[bad]}")
        if len(at) and not (at[0] >= 1 and at[-1] <= features and np.all(np.diff(at) > 0) and np.all(at == np.floor(at))):
            raise source.damaged(f"line {row + 1}: expected rising feature numbers 1..{features}", "found others")
        y[row] = numbers[0]
        x[row, at.astype(np.int64) - 1] = values
    return x, y


def read_usps(path: Path, examples: int | None) -> tuple[npt.NDArray[np.float32], Labels]:
    """USPS as images (examples, 1, 16, 16) in [-1, 1] and digits 0..9."""
    x, y = read_libsvm(path, 256, examples)
    if bad := np.flatnonzero((y != np.round(y)) | (y < 1) | (y > 10)).tolist():
        raise Source(path).damaged("expected labels 1..10", f"line {bad[0] + 1} has {y[bad[0]]:g}")
    if bad := np.flatnonzero(np.abs(x).max(axis=1) > 1).tolist():
        raise Source(path).damaged("expected values in [-1, 1]", f"line {bad[0] + 1} has others")
    return x.reshape(-1, 1, 16, 16), y.astype(np.int64) - 1
