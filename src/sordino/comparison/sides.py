"""The studies of a comparison, in every variant, checked and calibrated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from sordino.base.errors import StudyError
from sordino.comparison.schedule import Side, Variant, labels, refuse_shared, slug
from sordino.core.regimes import calibrated
from sordino.core.study.base import Study, refuse_repeated

Reads: TypeAlias = Callable[[Sequence[str]], Study]
"""A study with ``key=value`` changes applied."""


def sides_of(studies: Sequence[tuple[Path, Reads]], variants: Sequence[Variant]) -> list[Side]:
    """Every study in every variant, calibrated; all that are wrong are told at once.

    Args:
        studies: of each its file, and what reads it.

    Raises:
        StudyError: if a study cannot be run, or cannot be told from another.
    """
    read, wrong = [], []
    for path, reads, variant in [(*study, variant) for study in studies for variant in variants]:
        try:
            study = reads(variant.changes)
            refuse_repeated(study.tuned)
            read.append((study, calibrated(study), path, variant))
        except StudyError as error:
            wrong.append(str(error))
    if wrong:
        raise StudyError("\n".join(dict.fromkeys(wrong)))
    names = labels(
        [study.name for study, *_ in read],
        [path for _, _, path, _ in read],
        [variant.title for *_, variant in read],
    )
    sides = [
        Side(name, slug(name), path, study, full)
        for name, (study, full, path, _) in zip(names, read, strict=True)
    ]
    refuse_shared(sides)
    return sides
