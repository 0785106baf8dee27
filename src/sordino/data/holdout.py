"""Examples set aside for choosing hyper-parameters, so that the test set is never asked.

Choosing the clipping norm or the learning rate by test accuracy reports a number that no
new data would give. :func:`hold_out` cuts a validation set from the *training* data once,
before anything is partitioned; :func:`per_client_validation` lets every client keep a part
of its own examples back. Neither makes the choice private: a hyper-parameter chosen by
looking at held-out private examples is a release as well. It is harmless only where the
held-out part is public or its use is booked.

>>> import numpy as np
>>> parts = (np.arange(10), np.arange(10, 14))
>>> train, validation = per_client_validation(parts, 0.25, np.random.default_rng(0))
>>> [len(p) for p in train], [len(p) for p in validation]
([8, 3], [2, 1])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sordino.base.errors import StudyError
from sordino.data.dataset import Dataset, Indices


def hold_out(dataset: Dataset, count: int, rng: np.random.Generator) -> tuple[Dataset, Dataset]:
    """(the rest, ``count`` examples drawn at random), both in their original order."""
    if not 0 < count < len(dataset):
        raise StudyError(
            f"hold-out of {count} examples from {len(dataset)}: choose between 1 and "
            f"{len(dataset) - 1}"
        )
    order = rng.permutation(len(dataset))
    return dataset.take(np.sort(order[count:])), dataset.take(np.sort(order[:count]))


def per_client_validation(
    parts: Sequence[Indices], fraction: float, rng: np.random.Generator
) -> tuple[tuple[Indices, ...], tuple[Indices, ...]]:
    """(training parts, validation parts): ``fraction`` of each client, rounded down, never all."""
    if not 0 < fraction < 1:
        raise StudyError(f"validation fraction must lie between 0 and 1, got {fraction}")
    train, validation = [], []
    for part in parts:
        order = rng.permutation(part)
        count = int(fraction * len(part))
        train.append(np.sort(order[count:]))
        validation.append(np.sort(order[:count]))
    return tuple(train), tuple(validation)
