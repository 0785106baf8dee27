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

import bisect
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.base.files import allowed, too_large
from sordino.data.dataset import Labels
from sordino.data.source import Source


def read_libsvm(
    path: Path, features: int, examples: int | None = None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Dense features (examples, features) and labels as written, from text (bzip2, gzip or plain).

    Raises:
        DataError: naming the first line that is damaged, or what is missing.
    """
    source = Source(path)
    content = source.whole()
    if not content.endswith(b"\n"):
        raise source.damaged("expected the last line to end with a line feed", "it breaks off")
    found = content.count(b"\n")
    if examples is not None and found != examples:
        raise source.damaged(f"expected {examples} lines, one for each example", f"found {found}")
    if (size := 4 * features * found) > (most := allowed(path.stat().st_size)):
        raise DataError(too_large(path, f"its {found} lines need", size, most))
    try:
        return _parsed(content, features)
    except _MISTAKES:
        lines = [line + b"\n" for line in content[:-1].split(b"\n")]
    row = bisect.bisect_left(
        range(len(lines)), True, key=lambda last: _why(lines[: last + 1], features) is not None
    )
    expected = (
        f"line {row + 1}: expected 'label index:value ...' with finite numbers and rising "
        f"feature numbers 1..{features}"
    )
    raise source.damaged(expected, _why(lines[: row + 1], features) or "found others")


_MISTAKES = (ValueError, OverflowError)


def _parsed(
    content: bytes, features: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    from sklearn.datasets import load_svmlight_file

    x, y = load_svmlight_file(
        io.BytesIO(content), n_features=features, dtype=np.float32, zero_based=False
    )
    if len(y) != content.count(b"\n"):
        raise ValueError("found an empty line")
    if not (np.isfinite(x.data).all() and np.isfinite(y).all()):
        raise ValueError("found a number that is not finite")
    return x.toarray(), y


def _why(lines: Sequence[bytes], features: int) -> str | None:
    """What is wrong with these lines, or None."""
    try:
        _parsed(b"".join(lines), features)
    except _MISTAKES as error:
        return str(error)
    return None


def read_usps(path: Path, examples: int | None) -> tuple[npt.NDArray[np.float32], Labels]:
    """USPS as images (examples, 1, 16, 16) in [-1, 1] and digits 0..9."""
    x, y = read_libsvm(path, 256, examples)
    if bad := np.flatnonzero((y != np.round(y)) | (y < 1) | (y > 10)).tolist():
        raise Source(path).damaged("expected labels 1..10", f"line {bad[0] + 1} has {y[bad[0]]:g}")
    if bad := np.flatnonzero(np.abs(x).max(axis=1) > 1).tolist():
        raise Source(path).damaged("expected values in [-1, 1]", f"line {bad[0] + 1} has others")
    return x.reshape(-1, 1, 16, 16), y.astype(np.int64) - 1
