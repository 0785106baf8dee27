"""What a process makes of a catalogue: a run, or an attack on gradients."""

from __future__ import annotations

import math
from pathlib import Path
from shutil import rmtree

import msgspec

from sordino.extend.runs import ResumeError, replace_file, there

ATTACK = "attack.json"
"""Findings of an attack, in the folder that stands for a run's."""


class Found(msgspec.Struct, frozen=True):
    """Quality of an attack's images: means, and its price; None where that is infinite."""

    correlation: float
    psnr: float | None
    once: float | None
    whole: float | None


def make(path: str, place: str, images: int | None) -> None:
    """Make one run, or go on with it; or attack gradients.

    Args:
        path: the file of its study.
        place: the run's folder, which may exist half done.
        images: how many an attack tries to recover; None for a run.
    """
    from sordino.extend.runs import session
    from sordino.extend.runs import study as studies

    folder = Path(place)
    if images is not None:
        _attacked(Path(path), folder, images)
        return
    if there(folder, "run.json"):
        try:
            session.resume(folder, lambda row: None, lambda going: None)
            return
        except ResumeError:  # begun by another version, or elsewhere: nobody else has its bits
            rmtree(folder)
    session.begin(studies.read(Path(path)), folder, lambda row: None, lambda going: None)


def _attacked(path: Path, folder: Path, images: int) -> None:
    """Attack one gradient at the initial weights, under the study's noise."""
    from sordino.extend.runs import HorizontalStudy, StudyError
    from sordino.extend.runs import study as studies
    from sordino_papers.inversion import scenes as inversion

    study = studies.read(path)
    if not isinstance(study, HorizontalStudy):
        raise StudyError(f"{path}: an attack on gradients needs a study whose clients send them")
    scenes = inversion.scenes(inversion.attacked(study, [inversion.NoiseLevel()]), images)
    attempts = [attempt for scene in scenes for attempt in scene.attempts]
    correlations = [value for attempt in attempts for value in attempt.correlations]
    ratios = [value for attempt in attempts for value in attempt.psnr]
    found = Found(
        sum(correlations) / len(correlations),
        _finite(sum(ratios) / len(ratios)),
        _finite(max(attempt.level.once for attempt in attempts)),
        _finite(max(attempt.level.whole for attempt in attempts)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / ATTACK, msgspec.json.encode(found))


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
