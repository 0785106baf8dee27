"""Published digits in two classes, even and odd: for two-way models, of which a paper does not say
which classes they tell apart. Studies name them as ``sordino_papers.parity:MNIST``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sordino.extend.tables import PUBLISHED, Published


def _read(folder: Path, published: Published) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    whole = PUBLISHED[published.name]
    assert whole.read is not None
    (x, y), (x_test, y_test) = whole.read(folder, whole)
    return (x, y % 2), (x_test, y_test % 2)


MNIST, MNIST_10K, USPS, FASHION = (
    replace(PUBLISHED[name], classes=("even", "odd"), read=_read)
    for name in ("mnist", "mnist-10k", "usps", "fashion-mnist")
)
"""Of Fashion-MNIST, the numbers of the classes are even or odd."""
